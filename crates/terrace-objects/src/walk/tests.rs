//! Tests of walks, with given times.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::{
    bucket::{Buckets, Record, Versioning},
    commit::NewObject,
    lifecycle::{Expire, Filter, Noncurrent, NoncurrentTransition, Transition},
    lock,
};
use bytes::Bytes;
use terrace::{Attributes, Clock, Options, ScanRange};

/// Milliseconds of a day.
const DAY_MS: u64 = 24 * 3600 * 1000;

fn days_rule() -> Rule {
    Rule {
        id: "r 1".to_owned(),
        enabled: true,
        expire: Some(Expire::Days(1)),
        ..Rule::default()
    }
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

    /// Puts an object with separate values, written at this time.
    fn put(&self, key: &str, written_ms: u64) {
        self.put_with(key, written_ms, Attributes::new());
    }

    fn put_with(&self, key: &str, written_ms: u64, mut attributes: Attributes) {
        crate::record::stamp(&mut attributes, "e", written_ms);
        crate::record::place(&mut attributes, keyspace::Id::new(&Clock::default()), 10);
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

    /// All versions.
    fn versions(&self) -> Vec<Version> {
        let query = versions::Query {
            bucket: "abc",
            prefix: "",
            delimiter: None,
            after: versions::After::Nothing,
            limit: 10_000,
        };
        let page = versions::page(&self.store, &query).unwrap();
        let entries = page.entries.into_iter().map(|entry| match entry {
            Entry::Key(version) => version,
            Entry::Prefix(prefix) => panic!("{prefix}"),
        });
        entries.collect()
    }

    /// Each version as `key`, or `-key` for a delete marker.
    fn left(&self) -> Vec<String> {
        let shown = |version: Version| match version.facts.is_delete_marker {
            true => format!("-{}", version.key),
            false => version.key,
        };
        self.versions().into_iter().map(shown).collect()
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
        expire: Some(Expire::Days(5)),
        ..days_rule()
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
    // Versions replaced on days 2 and 3 are due on day 4; the one replaced on day 4 is not. The
    // delete marker is of the same day.
    world.walk(&[noncurrent(1, 0)], 4 * DAY_MS);
    assert_eq!(world.left(), ["a", "a", "-b", "b", "b"]);
    let later = Clock::default().now_ms() + 10 * DAY_MS;
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

/// The walk passes over locked versions, and deletes those that are not locked or whose lock has
/// ended.
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
    world.put_with("a", 2 * DAY_MS, until(Clock::default().now_ms() + DAY_MS));
    world.put_with("a", 3 * DAY_MS, until(Clock::default().now_ms() - 1));
    world.put("a", 4 * DAY_MS);
    world.put("a", 5 * DAY_MS);
    let rule = Rule {
        expire: None,
        noncurrent: Some(Noncurrent { days: 1, keep: 0 }),
        ..days_rule()
    };
    let later = Clock::default().now_ms() + 10 * DAY_MS;
    assert!(world.walk(std::slice::from_ref(&rule), later));
    assert_eq!(world.left(), ["a"; 3], "the current one, and the two that are locked");
    assert!(!world.walk(&[rule], later), "what is locked makes no garbage");
}

/// A version that gets another class keeps everything else, including its values.
#[test]
fn classes_change_and_nothing_else() {
    let world = World::new(Versioning::Never);
    world.put("first", 1);
    world.switch(Versioning::Enabled);
    world.put("first", 2 * DAY_MS);
    let mut locked = Attributes::new();
    lock::set_legal_hold(&mut locked, true);
    world.put_with("locked", 1, locked);
    let rule = Rule {
        expire: None,
        filter: Filter {
            longer: Some(1),
            ..Filter::default()
        },
        transitions: vec![Transition {
            when: Expire::Days(1),
            class: "STANDARD_IA".to_owned(),
        }],
        noncurrent_transitions: vec![NoncurrentTransition {
            when: Noncurrent { days: 1, keep: 0 },
            class: "GLACIER_IR".to_owned(),
        }],
        ..days_rule()
    };
    let all = || world.versions();
    let classes = || {
        all()
            .iter()
            .map(|version| version.facts.class().name())
            .collect::<Vec<_>>()
    };
    let before = all();
    world.walk(std::slice::from_ref(&rule), 2 * DAY_MS);
    assert_eq!(classes(), ["STANDARD", "STANDARD", "STANDARD_IA"]);
    let garbage = world.walk(std::slice::from_ref(&rule), 4 * DAY_MS);
    assert!(!garbage);
    assert_eq!(classes(), ["STANDARD_IA", "GLACIER_IR", "STANDARD_IA"]);
    for (was, is) in before.iter().zip(all()) {
        let facts = [&was.facts, &is.facts];
        let [was_kept, is_kept] = facts.map(|facts| {
            let kept = record::with_class(&facts.attributes, Class::Standard);
            let pairs = kept.iter().map(|(name, value)| (name.to_owned(), value.to_vec()));
            pairs.collect::<Vec<_>>()
        });
        assert_eq!(was_kept, is_kept, "{}", was.key);
    }
    // No class goes back, and nothing is written again.
    let versions = all().iter().map(|version| version.facts.version).collect::<Vec<_>>();
    let back = Rule {
        noncurrent_transitions: vec![NoncurrentTransition {
            when: Noncurrent { days: 1, keep: 0 },
            class: "STANDARD_IA".to_owned(),
        }],
        ..rule
    };
    world.walk(&[back], 9 * DAY_MS);
    assert_eq!(
        all().iter().map(|version| version.facts.version).collect::<Vec<_>>(),
        versions
    );
}
