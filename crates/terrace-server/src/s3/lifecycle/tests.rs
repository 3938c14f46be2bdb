//! Rules and walks, with times that are given.
#![allow(clippy::unwrap_used)]

use super::{walk::Walk, *};
use crate::s3::{
    access::decide::Claim,
    bucket::{Bucket, Buckets, Record, Versioning},
    commit::{self, NewObject, Outcome, Place, Requirement},
    lock, versions,
};
use bytes::Bytes;
use std::sync::Arc;
use terrace::{Attributes, Durability, HomeKind, ObjectInfo, Options, ScanRange, Store, Version};

fn facts(length: u64, tagging: &str, modified_ms: u64) -> Facts {
    let mut attributes = Attributes::new().with("x-amz-tagging", tagging);
    super::super::record::stamp(&mut attributes, "e", modified_ms);
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
    assert_eq!(
        said(&[days(3)]).unwrap(),
        "expiry-date=\"Sun, 19 Jan 2014 00:00:00 GMT\", rule-id=\"r%201\""
    );
    let date = Rule {
        id: "first".to_owned(),
        expire: Some(Expire::DateMs(0)),
        ..days(1)
    };
    assert!(said(&[days(3), date.clone()]).unwrap().contains("first"));
    let off = Rule { enabled: false, ..date };
    assert_eq!(said(&[off]), None);
    assert_eq!(said(&[days(u32::MAX)]), None, "no date has that year");
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

struct World {
    _dir: tempfile::TempDir,
    store: Store,
    buckets: Buckets,
    bucket: Arc<Bucket>,
}

impl World {
    fn new(versioning: Versioning) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Options::new(dir.path())).unwrap();
        let buckets = Buckets::load(&store).unwrap();
        buckets.create(&store, "abc", Record::default()).unwrap();
        let bucket = buckets.get("abc").unwrap();
        let world = Self {
            _dir: dir,
            store,
            buckets,
            bucket,
        };
        world.switch(versioning);
        world
    }

    fn switch(&self, versioning: Versioning) {
        self.buckets.set_versioning(&self.store, "abc", versioning).unwrap();
    }

    fn change(&self, key: &str, new: Option<&NewObject>) {
        let place = Place {
            store: &self.store,
            durability: Durability::Buffered,
            permit: &Claim::of_system(&self.bucket).on_bucket().unwrap(),
            key,
        };
        let outcome = commit::change(place, &Requirement::default(), new, &|_| {}).unwrap();
        assert!(matches!(outcome, Outcome::Done(_)));
    }

    /// Puts an object with values of its own, written at a time.
    fn put(&self, key: &str, written_ms: u64) {
        self.put_with(key, written_ms, Attributes::new());
    }

    fn put_with(&self, key: &str, written_ms: u64, mut attributes: Attributes) {
        super::super::record::stamp(&mut attributes, "e", written_ms);
        super::super::record::place(&mut attributes, keyspace::Id::new(), 10);
        let new = NewObject {
            value: Bytes::new(),
            attributes,
        };
        self.change(key, Some(&new));
    }

    fn walk(&self, rules: &[Rule], now_ms: u64) -> bool {
        let mut walk = Walk::new(now_ms);
        while !walk.page(&self.store, &self.bucket, rules).unwrap() {}
        walk.garbage
    }

    /// Each version as `key`, or `-key` for a delete marker.
    fn left(&self) -> Vec<String> {
        let query = versions::Query {
            bucket: "abc",
            prefix: "",
            delimiter: None,
            after: versions::After::Nothing,
            limit: 10_000,
        };
        let page = versions::page(&self.store, &query).unwrap();
        let entries = page.entries.into_iter().map(|entry| match entry {
            crate::s3::list::Entry::Key(version) if version.facts.is_delete_marker => format!("-{}", version.key),
            crate::s3::list::Entry::Key(version) => version.key,
            crate::s3::list::Entry::Prefix(prefix) => panic!("{prefix}"),
        });
        entries.collect()
    }
}

#[test]
fn what_is_due_goes_with_its_values() {
    let world = World::new(Versioning::Never);
    for number in 0..1200 {
        world.put(&format!("old/{number:04}"), 1);
        world.put(&format!("young/{number:04}"), 10 * DAY_MS);
    }
    world.put("other", 1);
    let rule = Rule {
        filter: Filter {
            prefix: Some("o".to_owned()),
            ..Filter::default()
        },
        ..days(5)
    };
    assert!(!world.walk(std::slice::from_ref(&rule), 6 * DAY_MS - 1));
    assert_eq!(world.left().len(), 2401);
    assert!(world.walk(&[rule], 6 * DAY_MS));
    assert!(world.left().iter().all(|key| key.starts_with("young/")));
    let markers = world.store.scan(ScanRange::prefix(keyspace::GARBAGE)).unwrap().count();
    assert_eq!(markers, 1201, "no values without a marker");
}

#[test]
fn versions_go_when_their_time_is_over() {
    let world = World::new(Versioning::Enabled);
    for written in [1, 2, 3, 4] {
        world.put("a", written * DAY_MS);
        world.put("b", written * DAY_MS);
    }
    world.change("b", None);
    let noncurrent = |days, keep| Rule {
        expire: None,
        noncurrent: Some(Noncurrent { days, keep }),
        ..days_rule()
    };
    // Those replaced on day 2 and 3 are due on day 4; the one replaced on day 4 is not. The delete
    // marker is of today.
    world.walk(&[noncurrent(1, 0)], 4 * DAY_MS);
    assert_eq!(world.left(), ["a", "a", "-b", "b", "b"]);
    let later = keyspace::now_ms() + 10 * DAY_MS;
    world.walk(&[noncurrent(1, 1)], later);
    assert_eq!(world.left(), ["a", "a", "-b", "b"]);
    world.walk(&[noncurrent(1, 0)], later);
    assert_eq!(world.left(), ["a", "-b"]);
    let markers = |wanted| Rule {
        expire: Some(Expire::Markers(wanted)),
        ..days_rule()
    };
    world.walk(&[markers(false)], later);
    assert_eq!(world.left(), ["a", "-b"]);
    world.walk(&[markers(true)], later);
    assert_eq!(world.left(), ["a"]);
    world.walk(&[days_rule()], later);
    assert_eq!(world.left(), ["-a", "a"], "what expires becomes a version");
    world.walk(&[markers(true)], later);
    assert_eq!(world.left(), ["-a", "a"], "the marker hides something");
}

/// What is locked is nobody's to delete, a rule's neither: the walk passes over it and deletes what
/// is not, and what was locked until a time that is over.
#[test]
fn locked_versions_outlive_their_rules() {
    let world = World::new(Versioning::Enabled);
    let until = |until_ms| {
        let mut attributes = Attributes::new();
        let mode = lock::Mode::Governance;
        lock::set_retention(&mut attributes, Some(lock::Retention { mode, until_ms }));
        attributes
    };
    let mut held = Attributes::new();
    lock::set_legal_hold(&mut held, true);
    world.put_with("a", DAY_MS, held);
    world.put_with("a", 2 * DAY_MS, until(keyspace::now_ms() + DAY_MS));
    world.put_with("a", 3 * DAY_MS, until(keyspace::now_ms() - 1));
    world.put("a", 4 * DAY_MS);
    world.put("a", 5 * DAY_MS);
    let rule = Rule {
        expire: None,
        noncurrent: Some(Noncurrent { days: 1, keep: 0 }),
        ..days_rule()
    };
    let later = keyspace::now_ms() + 10 * DAY_MS;
    assert!(world.walk(std::slice::from_ref(&rule), later));
    assert_eq!(world.left(), ["a"; 3], "the current one, and the two that are locked");
    assert!(!world.walk(&[rule], later), "what is locked makes no garbage");
}

fn days_rule() -> Rule {
    days(1)
}
