//! Rules, with times that are given.
#![allow(clippy::unwrap_used)]

use super::*;
use terrace::{Attributes, HomeKind, ObjectInfo, Version};

fn facts(length: u64, tagging: &str, modified_ms: u64) -> Facts {
    let mut attributes = Attributes::new().with("x-amz-tagging", tagging);
    crate::record::stamp(&mut attributes, "e", modified_ms);
    Facts::of(&ObjectInfo {
        expires_at: None,
        version: Version(1),
        length,
        checksum: 1,
        home: HomeKind::Inline,
        attributes,
    })
}

fn days(days: u32) -> Rule {
    Rule {
        id: "r 1".to_owned(),
        enabled: true,
        expire: Some(Expire::Days(days)),
        ..Rule::default()
    }
}

#[test]
fn nothing_is_due_before_a_midnight() {
    assert_eq!(midnight_after(10 * DAY_MS, 3), 13 * DAY_MS);
    assert_eq!(midnight_after(10 * DAY_MS + 1, 3), 14 * DAY_MS);
    assert!(midnight_after(u64::MAX, u32::MAX) > 1 << 60);
    // 2014-01-15 10:30, three days: the midnight at which 2014-01-19 begins, as S3's documentation
    // has it.
    let written = facts(1, "", 1_389_781_800_000);
    let said = |rules: &[Rule]| expiration(rules, Subject::of("k", &written));
    let due = said(&[days(3)]).unwrap();
    assert_eq!(
        (due.at, due.rule.as_str()),
        (UNIX_EPOCH + Duration::from_secs(1_390_089_600), "r 1")
    );
    let date = Rule {
        id: "first".to_owned(),
        expire: Some(Expire::DateMs(0)),
        ..days(1)
    };
    assert_eq!(said(&[days(3), date.clone()]).unwrap().rule, "first");
    let off = Rule { enabled: false, ..date };
    assert_eq!(said(&[off]), None);
    let unknown = facts(1, "", 0);
    assert_eq!(days(1).expiry_ms(Subject::of("k", &unknown)), None, "not 1970");
}

#[test]
fn all_of_a_filter_must_hold() {
    let filter = Filter {
        prefix: Some("logs/".to_owned()),
        tags: vec![("a".to_owned(), "1 2".to_owned())],
        longer: Some(10),
        shorter: Some(20),
        ..Filter::default()
    };
    let matches = |key: &str, facts: &Facts| filter.matches(Subject::of(key, facts));
    assert!(matches("logs/x", &facts(11, "b=2&a=1%202", 0)));
    assert!(!matches("log", &facts(11, "a=1%202", 0)));
    assert!(!matches("logs/x", &facts(10, "a=1%202", 0)));
    assert!(!matches("logs/x", &facts(20, "a=1%202", 0)));
    assert!(!matches("logs/x", &facts(11, "a=1", 0)));
    assert!(!matches("logs/x", &facts(11, "", 0)));
    assert!(Filter::default().matches(Subject::of("", &facts(0, "", 0))));
}
