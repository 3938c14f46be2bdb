//! Tests of an object's attributes.
#![allow(clippy::unwrap_used)]
use super::*;
use std::time::UNIX_EPOCH;
use terrace::HomeKind;

fn info(attributes: Attributes) -> ObjectInfo {
    ObjectInfo {
        expires_at: None,
        version: Version(0x1f),
        length: 12,
        checksum: 0xabc,
        home: HomeKind::Flash,
        attributes,
    }
}

#[test]
fn objects_from_elsewhere_have_facts_too() {
    let facts = Facts::of(&info(Attributes::new()));
    assert_eq!((facts.length, facts.etag.as_str()), (12, "1f-00000abc"));
    assert_eq!(facts.content_type(), CONTENT_TYPE_DEFAULT);
    assert_eq!(facts.modified, UNIX_EPOCH);
    assert!(facts.encoded_metadata().is_none() && facts.shown().next().is_none() && facts.values.is_none());
    let imported = Facts::of(&info(Attributes::new().with("etag", "\"blake\"").with("width", "7")));
    assert_eq!(imported.etag, "blake");
    let odd = Facts::of(&info(Attributes::new().with(LENGTH, "99").with(VALUES, "no id")));
    assert_eq!(odd.length, 12, "a length counts only with values");
}

/// The stored attributes, byte for byte: of an object, of a version, and of a delete marker.
#[test]
fn golden() {
    let id = Id::parse("018bcfe5687b000102030405060708ff").unwrap();
    let mut attributes = Attributes::new()
        .with("content-type", "text/plain")
        .with("x-amz-meta-a", "b");
    stamp(&mut attributes, "00ff", 1_700_000_000_123);
    place(&mut attributes, id, 1 << 40);
    set_version(&mut attributes, id, true);
    let attributes = with_tagging(&attributes, Some("a=b"));
    let attributes = with_list(&of_account(&attributes, Some("press")), "public-read");
    let attributes = with_encryption(&attributes, b"wrapped");
    let stored = |attributes: &Attributes| -> Vec<String> {
        let lines = attributes
            .iter()
            .map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value)));
        lines.collect()
    };
    let expected = [
        "content-type: text/plain",
        "etag: \"00ff\"",
        "s3-account: press",
        "s3-encryption: wrapped",
        "s3-length: 1099511627776",
        "s3-modified-ms: 1700000000123",
        "s3-null: ",
        "s3-values: 018bcfe5687b000102030405060708ff",
        "s3-version: 018bcfe5687b000102030405060708ff",
        "x-amz-acl: public-read",
        "x-amz-meta-a: b",
        "x-amz-tagging: a=b",
    ];
    assert_eq!(stored(&attributes), expected);
    let facts = Facts::of(&info(attributes));
    assert_eq!((facts.length, facts.order, facts.is_null), (1 << 40, Some(id), true));
    assert_eq!(facts.encryption, Some(Encryption::Unknown));
    let expected = [
        "s3-delete-marker: ",
        "s3-modified-ms: 5",
        "s3-version: 018bcfe5687b000102030405060708ff",
    ];
    assert_eq!(stored(&delete_marker(id, false, 5)), expected);
    let mut locked = Attributes::new();
    crate::lock::set_legal_hold(&mut locked, true);
    let retention = crate::lock::Retention {
        mode: crate::lock::Mode::Compliance,
        until_ms: 7,
    };
    crate::lock::set_retention(&mut locked, Some(retention));
    let expected = [
        "s3-retain-until-ms: 7",
        "x-amz-object-lock-legal-hold: ON",
        "x-amz-object-lock-mode: COMPLIANCE",
    ];
    assert_eq!(stored(&locked), expected);
}
