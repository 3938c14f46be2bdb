//! Changes of objects without versioning; with it, see [`crate::versions`].
#![allow(clippy::unwrap_used)]
use super::*;
use crate::{
    access::decide::Claim,
    bucket::{Buckets, Record},
};
use terrace::{Clock, Options};

fn place() -> (tempfile::TempDir, Store, Permit) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(Options::new(dir.path())).unwrap();
    let buckets = Buckets::load(&store).unwrap();
    buckets.create(&store, "abc", Record::default()).unwrap();
    let permit = Claim::of_system(&buckets.get("abc").unwrap()).on_bucket().unwrap();
    (dir, store, permit)
}

fn object(etag: &str, values: Option<Id>) -> NewObject {
    let mut attributes = Attributes::new();
    record::stamp(&mut attributes, etag, 0);
    if let Some(id) = values {
        record::place(&mut attributes, id, 10);
    }
    NewObject {
        value: Bytes::from(etag.to_owned()),
        attributes,
    }
}

fn at<'a>(store: &'a Store, permit: &'a Permit) -> Place<'a> {
    Place {
        store,
        durability: Durability::Buffered,
        permit,
        key: "k",
    }
}

/// An outcome without the store's version.
fn without_commit(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Done(done) => Outcome::Done(Done { commit: None, ..done }),
        other => other,
    }
}

fn put(store: &Store, permit: &Permit, requirement: &Requirement, new: &NewObject) -> Result<Outcome, String> {
    let outcome = change(at(store, permit), requirement, Some(new), &|_| {});
    outcome.map(without_commit).map_err(|error| format!("{error:?}"))
}

fn done(garbage: bool) -> Outcome {
    Outcome::Done(Done {
        garbage,
        ..Done::default()
    })
}

fn condition(text: &str) -> Option<Tag> {
    let is_any = text == "*";
    Some(if is_any { Tag::Any } else { Tag::Is(text.to_owned()) })
}

#[test]
fn conditions_are_judged_on_what_is_replaced() {
    let (_dir, store, permit) = place();
    let absent = Requirement {
        if_none_match: condition("*"),
        ..Requirement::default()
    };
    let is_a = Requirement {
        if_match: condition("a"),
        ..Requirement::default()
    };
    let done = Ok(done(false));
    assert_eq!(
        put(&store, &permit, &is_a, &object("b", None)),
        Err("NoSuchKey(None)".to_owned())
    );
    assert_eq!(put(&store, &permit, &absent, &object("a", None)), done);
    assert_eq!(
        put(&store, &permit, &absent, &object("b", None)),
        Err("Condition(NoneMatch)".to_owned())
    );
    assert_eq!(put(&store, &permit, &is_a, &object("b", None)), done);
    assert_eq!(
        put(&store, &permit, &is_a, &object("c", None)),
        Err("Condition(Match)".to_owned())
    );
}

#[test]
fn what_had_values_leaves_a_marker() {
    let (_dir, store, permit) = place();
    let (first, second) = (Id::new(&Clock::default()), Id::new(&Clock::default()));
    let free = Requirement::default();
    put(&store, &permit, &free, &object("a", Some(first))).unwrap();
    let same = put(&store, &permit, &free, &object("retagged", Some(first)));
    assert_eq!(same, Ok(done(false)), "the values are still an object's");
    assert_eq!(put(&store, &permit, &free, &object("b", Some(second))), Ok(done(true)));
    assert!(store.head(keyspace::garbage(first)).unwrap().is_some());
    let deleted = change(at(&store, &permit), &free, None, &|_| {}).unwrap();
    assert_eq!(without_commit(deleted), done(true));
    assert!(store.head(keyspace::garbage(second)).unwrap().is_some());
    let again = change(at(&store, &permit), &free, None, &|_| {}).unwrap();
    assert_eq!(again, Outcome::Nothing);
}

/// Of many conditional puts exactly one creates the object; concurrent replacements leave no values
/// behind.
#[test]
fn commits_that_meet() {
    let (_dir, store, permit) = place();
    let absent = Requirement {
        if_none_match: condition("*"),
        ..Requirement::default()
    };
    let first = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| put(&store, &permit, &absent, &object("a", None)).is_ok()))
            .collect();
        threads
            .into_iter()
            .filter_map(|thread| thread.join().ok())
            .filter(|won| *won)
            .count()
    });
    assert_eq!(first, 1);
    let free = Requirement::default();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    put(&store, &permit, &free, &object("b", Some(Id::new(&Clock::default())))).unwrap();
                }
            });
        }
    });
    let markers = store
        .scan(terrace::ScanRange::prefix(keyspace::GARBAGE))
        .unwrap()
        .count();
    assert_eq!(markers, 8 * 20 - 1);
}

/// [`try_change`] commits the same as [`change`], and leaves the cases that wait or report to that.
#[test]
fn only_what_leaves_nothing_to_do_is_committed_at_once() {
    let (_dir, store, permit) = place();
    // Longer than what the index keeps inline, so RAM may not have it.
    let new = object(&"new".repeat(100), None);
    let tried = |requirement: &Requirement, new: Option<&NewObject>| {
        let committing = try_change(at(&store, &permit), requirement, new);
        store.sync().unwrap();
        committing.is_some()
    };
    // Right after an open, absence is unknown until the index is filled, and another thread may
    // hold the log's lock.
    let done = |requirement: &Requirement, new: Option<&NewObject>| {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !tried(requirement, new) {
            assert!(std::time::Instant::now() < until, "it is never committed");
        }
        true
    };
    let none_there = Requirement {
        if_none_match: Some(Tag::Any),
        ..Requirement::default()
    };
    let any = Requirement::default();
    assert!(!tried(&any, None), "there is nothing to delete: change says so");
    assert!(done(&none_there, Some(&new)));
    let key = keyspace::object("abc", "k");
    let stored = store.get(&key).unwrap().unwrap();
    assert_eq!(stored.value, new.value);
    assert_eq!(stored.attributes, new.attributes);
    assert!(!tried(&none_there, Some(&object("other", None))), "change refuses it");
    assert!(done(&any, Some(&object(&"newer".repeat(100), None))));
    assert!(done(&any, None));
    assert!(store.get(&key).unwrap().is_none());
    // Separate values become garbage, and the collector must be woken.
    put(
        &store,
        &permit,
        &any,
        &object("values", Some(Id::new(&Clock::default()))),
    )
    .unwrap();
    assert!(!tried(&any, Some(&new)) && !tried(&any, None));
    put(&store, &permit, &any, &new).unwrap();
    // Versioning involves more than one record.
    let buckets = Buckets::load(&store).unwrap();
    for versioning in [Versioning::Enabled, Versioning::Suspended] {
        buckets.set_versioning(&store, "abc", versioning).unwrap();
        let permit = Claim::of_system(&buckets.get("abc").unwrap()).on_bucket().unwrap();
        assert!(try_change(at(&store, &permit), &any, Some(&new)).is_none());
        assert!(try_change(at(&store, &permit), &any, None).is_none());
    }
    // Nor is there a put to a deleted bucket, or without a permit to write.
    buckets.create(&store, "gone", Record::default()).unwrap();
    let gone = buckets.get("gone").unwrap();
    let permit = Claim::of_system(&gone).on_bucket().unwrap();
    buckets.delete(&store, "gone").unwrap();
    assert!(try_change(at(&store, &permit), &any, Some(&new)).is_none());
}
