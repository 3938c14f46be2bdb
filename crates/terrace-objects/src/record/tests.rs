//! Tests of what is stored of an object.
#![allow(clippy::unwrap_used)]
use super::*;
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
