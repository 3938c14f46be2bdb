//! Tests of the stored description of an object.
#![allow(clippy::unwrap_used)]
use super::*;
use crate::s3::{digest::Algorithm, keyspace::Id};
use std::time::{Duration, UNIX_EPOCH};
use terrace::{HomeKind, ObjectInfo, Version};

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
fn a_description_comes_back() {
    let metadata = [("colour", "grün"), ("size", "as large as life")];
    let metadata = metadata.map(|(name, text)| (name.to_owned(), text.to_owned()));
    let metadata = metadata.into_iter().collect();
    let mut description = Description {
        metadata: Some(metadata),
        tagging: Some("a=b".to_owned()),
        ..Description::default()
    };
    description.kept[0] = Some("text/plain".to_owned());
    description.kept[3] = Some("aws-chunked, gzip".to_owned());
    let mut attributes = description.into_attributes().unwrap();
    let id = Id::new(&terrace::Clock::default());
    stamp(&mut attributes, "00ff", 1_700_000_000_999);
    place(&mut attributes, id, 1 << 40);
    let facts = Facts::of(&info(attributes));
    assert_eq!((facts.length, facts.values), (1 << 40, Some(id)));
    assert_eq!(facts.etag, "00ff");
    assert_eq!(facts.modified, UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    assert_eq!(facts.content_type(), "text/plain");
    assert_eq!(facts.header("content-encoding").as_deref(), Some("gzip"));
    let shown: Vec<_> = facts.shown().collect();
    let expected = [
        ("content-encoding", "gzip"),
        ("content-type", "text/plain"),
        ("x-amz-meta-size", "as large as life"),
    ];
    assert_eq!(shown, expected);
    let encoded = facts.encoded_metadata().unwrap();
    assert_eq!((encoded.len(), encoded["colour"].as_str()), (1, "grün"));
    assert_eq!(facts.tagging(), Some("a=b"));
    assert_eq!(facts.description().len(), 5);
    let untagged = with_tagging(&facts.attributes, None);
    assert_eq!(untagged.len(), facts.attributes.len() - 1);
}

/// Regression: text in another encoding was returned in a different form.
#[test]
fn only_the_way_of_transfer_goes() {
    for (sent, stored) in [
        ("gzip", Some("gzip")),
        ("deflate,  gzip", Some("deflate,  gzip")),
        ("gzip, aws-chunked", Some("gzip")),
        ("AWS-chunked,br,gzip", Some("br, gzip")),
        ("aws-chunked", None),
        ("aws-chunked, aws-chunked", None),
    ] {
        assert_eq!(without_transfer_coding(sent).as_deref(), stored, "{sent}");
    }
}

#[test]
fn metadata_has_a_limit() {
    let description = |bytes: usize| Description {
        metadata: Some([("n".to_owned(), "x".repeat(bytes))].into_iter().collect()),
        ..Description::default()
    };
    assert!(description(METADATA_BYTES_MAX - 1).into_attributes().is_ok());
    assert!(description(METADATA_BYTES_MAX).into_attributes().is_err());
}

/// Regression: 60,000 bytes of `Cache-Control` were stored, and every listing held them for each
/// object.
#[test]
fn system_metadata_has_a_limit_and_is_not_listed() {
    let description = |bytes: usize| {
        let mut description = Description::default();
        description.kept[1] = Some("x".repeat(bytes));
        description.into_attributes()
    };
    let bytes_max = SYSTEM_BYTES_MAX - "cache-control".len();
    let mut attributes = description(bytes_max).unwrap();
    let refused = description(bytes_max + 1).unwrap_err();
    assert_eq!(refused.code().as_str(), "MetadataTooLarge");
    stamp(&mut attributes, "00ff", 1_700_000_000_999);
    attributes.set(TAGGING, "a=b");
    attributes.set(format!("{METADATA_PREFIX}a"), "b");
    attributes.set(Algorithm::Crc32.header(), "AAAAAA==");
    let info = info(attributes);
    let (all, listed) = (Facts::of(&info), Facts::listed(&info));
    assert_eq!((&listed.etag, listed.modified_ms), (&all.etag, all.modified_ms));
    assert_eq!(listed.attributes.len(), 1);
    assert!(crate::s3::digest::stored(&listed.attributes).checksum_crc32.is_some());
}
