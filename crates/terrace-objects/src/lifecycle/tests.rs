//! Tests of rules, with given times.
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
    // 2014-01-15 10:30 and three days: due at midnight as 2014-01-19 begins, as in S3's
    // documentation.
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

#[test]
fn classes_by_rules() {
    let moves = |when, class: &str| Transition {
        when,
        class: class.to_owned(),
    };
    let mut rule = Rule {
        expire: None,
        transitions: vec![
            moves(Expire::Days(40), "GLACIER_IR"),
            moves(Expire::Days(0), "STANDARD_IA"),
        ],
        noncurrent_transitions: vec![NoncurrentTransition {
            when: Noncurrent { days: 2, keep: 1 },
            class: "ONEZONE_IA".to_owned(),
        }],
        ..days(0)
    };
    let long = facts(MOVED_BYTES_MIN, "", 10 * DAY_MS + 1);
    let class = |rule: &Rule, facts: &Facts, day| rule.class(Subject::of("k", facts), day * DAY_MS);
    assert_eq!(class(&rule, &long, 10), None, "not before a midnight");
    assert_eq!(class(&rule, &long, 11), Some(Class::StandardIa));
    assert_eq!(class(&rule, &long, 50), Some(Class::StandardIa));
    assert_eq!(class(&rule, &long, 51), Some(Class::GlacierIr), "the last that is due");
    let noncurrent = |since, newer, day| rule.noncurrent_class(Subject::of("k", &long), since, newer, day * DAY_MS);
    assert_eq!(noncurrent(10 * DAY_MS, 1, 12), Some(Class::OneZoneIa));
    assert_eq!(noncurrent(10 * DAY_MS, 1, 11), None);
    assert_eq!(noncurrent(10 * DAY_MS, 0, 12), None, "it is one of those to keep");
    assert_eq!(noncurrent(0, 1, 12), None, "since when is not known");
    // An object not put through S3 never expires by days, but by a date.
    let unknown = facts(MOVED_BYTES_MIN, "", 0);
    assert_eq!(class(&rule, &unknown, 99), None);
    rule.transitions
        .push(moves(Expire::DateMs(20 * DAY_MS), "INTELLIGENT_TIERING"));
    assert_eq!(class(&rule, &unknown, 20), Some(Class::IntelligentTiering));
    // Short ones keep their class, unless the rule has a size condition.
    let short = facts(MOVED_BYTES_MIN - 1, "", 10 * DAY_MS);
    assert_eq!(class(&rule, &short, 99), None);
    rule.filter.longer = Some(1);
    assert_eq!(class(&rule, &short, 99), Some(Class::GlacierIr));
    rule.enabled = false;
    assert_eq!(class(&rule, &short, 99), None);
}

#[test]
fn when_an_upload_is_aborted() {
    let rule = |id: &str, abort_days| Rule {
        id: id.to_owned(),
        enabled: true,
        filter: Filter {
            prefix: Some("in/".to_owned()),
            ..Filter::default()
        },
        abort_days,
        ..Rule::default()
    };
    let rules = [rule("late", Some(7)), rule("none", None), rule("early", Some(2))];
    let said = |key: &str| abortion(&rules, key, 10 * DAY_MS + 1);
    let due = said("in/k").unwrap();
    assert_eq!(
        (due.at, due.rule.as_str()),
        (UNIX_EPOCH + Duration::from_millis(13 * DAY_MS), "early")
    );
    assert!(rules[2].is_upload_due("in/k", 10 * DAY_MS + 1, 13 * DAY_MS));
    assert!(!rules[2].is_upload_due("in/k", 10 * DAY_MS + 1, 13 * DAY_MS - 1));
    assert_eq!(said("out/k"), None);
    let off = Rule {
        enabled: false,
        ..rules[0].clone()
    };
    assert_eq!(abortion(&[off], "in/k", 0), None);
}
