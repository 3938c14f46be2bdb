//! Replacing and deleting objects.
//!
//! Every change of an object is conditional on the version that was looked at: the conditions of a request are judged on
//! exactly what the commit replaces, and if that object had values of its own, the same commit marks them as garbage. If
//! another commit comes in between, all of it is judged again.

use super::{
    bucket::Bucket,
    errors, keyspace,
    record::{self, Facts},
};
use bytes::Bytes;
use s3s::{
    S3Result,
    dto::{ETagCondition, Timestamp},
    s3_error,
};
use terrace::{Attributes, Batch, Condition, Durability, Error, Store, Version};

/// How often a change starts again before the client is asked to.
const ATTEMPTS: usize = 256;

/// What must hold for a change.
#[derive(Debug, Clone, Default)]
pub struct Requirement {
    /// `If-Match`
    pub if_match: Option<ETagCondition>,
    /// `If-None-Match`
    pub if_none_match: Option<ETagCondition>,
    /// `x-amz-if-match-last-modified-time`
    pub modified: Option<Timestamp>,
    /// `x-amz-if-match-size`
    pub length: Option<i64>,
    /// It is exactly the object that was read.
    pub version: Option<Version>,
}

fn failed(header: &str) -> s3s::S3Error {
    s3_error!(
        PreconditionFailed,
        "At least one of the pre-conditions you specified did not hold: {header}"
    )
}

impl Requirement {
    /// Judges.
    ///
    /// # Errors
    /// `PreconditionFailed`; `NoSuchKey` if there is nothing that could match.
    pub fn check(&self, existing: Option<&Facts>) -> S3Result {
        let matches = |condition: &ETagCondition, facts: &Facts| match condition {
            ETagCondition::Any => true,
            ETagCondition::ETag(tag) => tag.value() == facts.etag,
        };
        let read = self.version.is_some() || self.if_match.is_some();
        let needs_one = read || self.modified.is_some() || self.length.is_some();
        let Some(facts) = existing else {
            return if needs_one { Err(no_such_key()) } else { Ok(()) };
        };
        if self.version.is_some_and(|version| version != facts.version) {
            return Err(failed("version"));
        }
        if self
            .if_match
            .as_ref()
            .is_some_and(|condition| !matches(condition, facts))
        {
            return Err(failed("If-Match"));
        }
        if self
            .if_none_match
            .as_ref()
            .is_some_and(|condition| matches(condition, facts))
        {
            return Err(failed("If-None-Match"));
        }
        if self
            .modified
            .as_ref()
            .is_some_and(|time| *time != record::timestamp(facts.modified))
        {
            return Err(failed("x-amz-if-match-last-modified-time"));
        }
        if self
            .length
            .is_some_and(|length| u64::try_from(length) != Ok(facts.length))
        {
            return Err(failed("x-amz-if-match-size"));
        }
        Ok(())
    }
}

/// No object has the key that was asked for.
pub fn no_such_key() -> s3s::S3Error {
    s3_error!(NoSuchKey, "The specified key does not exist.")
}

/// What a change did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It is committed; whether values became garbage by it.
    Done {
        /// There is something to collect.
        garbage: bool,
    },
    /// There was nothing to delete.
    Nothing,
    /// A condition of what was to go with it did not hold.
    OtherCondition,
}

/// What an object becomes.
#[derive(Debug, Clone)]
pub struct NewObject {
    /// The value of its record.
    pub value: Bytes,
    /// The attributes of its record.
    pub attributes: Attributes,
}

/// Replaces (or deletes, if there is no `new`) the object at `key`, together with what `also` adds. Blocks.
///
/// # Errors
/// `NoSuchBucket`, what the requirement says, `OperationAborted` if others are always faster, the store's.
pub fn change(
    store: &Store,
    durability: Durability,
    bucket: &Bucket,
    key: &str,
    requirement: &Requirement,
    new: Option<&NewObject>,
    also: &dyn Fn(&mut Batch),
) -> S3Result<Outcome> {
    let _entered = bucket.enter()?;
    let object = keyspace::object(&bucket.name, key);
    let text = String::from_utf8_lossy(&object).into_owned();
    let new_values = new.and_then(|new| record::values(&new.attributes));
    for _ in 0..ATTEMPTS {
        let existing = store
            .head(&object)
            .map_err(|error| errors::of_engine(&error, &object))?;
        let existing = existing.map(|info| Facts::of(&info));
        requirement.check(existing.as_ref())?;
        let condition = existing
            .as_ref()
            .map_or(Condition::Absent, |facts| Condition::VersionIs(facts.version));
        let mut batch = Batch::new();
        match new {
            Some(new) => batch.put_with(&object, new.value.clone(), new.attributes.clone(), condition),
            None if existing.is_none() => return Ok(Outcome::Nothing),
            None => batch.delete_if(&object, condition),
        };
        let old_values = existing
            .and_then(|facts| facts.values)
            .filter(|id| Some(*id) != new_values);
        if let Some(id) = old_values {
            batch.put(keyspace::garbage(id), "");
        }
        also(&mut batch);
        match store.write(batch, durability) {
            Ok(_) => {
                return Ok(Outcome::Done {
                    garbage: old_values.is_some(),
                });
            }
            Err(Error::ConditionFailed { key, .. }) if key == text => {}
            Err(Error::ConditionFailed { .. }) => return Ok(Outcome::OtherCondition),
            Err(error) => return Err(errors::of_engine(&error, &object)),
        }
    }
    Err(s3_error!(
        OperationAborted,
        "A conflicting conditional operation is currently in progress against this resource. Try again."
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::s3::{
        bucket::{Buckets, Record},
        keyspace::Id,
    };
    use std::sync::Arc;
    use terrace::Options;

    fn place() -> (tempfile::TempDir, Store, Arc<Bucket>) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Options::new(dir.path())).unwrap();
        let buckets = Buckets::load(&store).unwrap();
        buckets.create(&store, "abc", Record::default()).unwrap();
        let bucket = buckets.get("abc").unwrap();
        (dir, store, bucket)
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

    fn put(store: &Store, bucket: &Bucket, requirement: &Requirement, new: &NewObject) -> Result<Outcome, String> {
        change(
            store,
            Durability::Buffered,
            bucket,
            "k",
            requirement,
            Some(new),
            &|_| {},
        )
        .map_err(|error| error.code().as_str().to_owned())
    }

    fn condition(text: &str) -> Option<ETagCondition> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn conditions_are_judged_on_what_is_replaced() {
        let (_dir, store, bucket) = place();
        let absent = Requirement {
            if_none_match: condition("*"),
            ..Requirement::default()
        };
        let is_a = Requirement {
            if_match: condition("\"a\""),
            ..Requirement::default()
        };
        let done = Ok(Outcome::Done { garbage: false });
        assert_eq!(
            put(&store, &bucket, &is_a, &object("b", None)),
            Err("NoSuchKey".to_owned())
        );
        assert_eq!(put(&store, &bucket, &absent, &object("a", None)), done);
        assert_eq!(
            put(&store, &bucket, &absent, &object("b", None)),
            Err("PreconditionFailed".to_owned())
        );
        assert_eq!(put(&store, &bucket, &is_a, &object("b", None)), done);
        assert_eq!(
            put(&store, &bucket, &is_a, &object("c", None)),
            Err("PreconditionFailed".to_owned())
        );
    }

    #[test]
    fn what_had_values_leaves_a_marker() {
        let (_dir, store, bucket) = place();
        let (first, second) = (Id::new(), Id::new());
        let free = Requirement::default();
        put(&store, &bucket, &free, &object("a", Some(first))).unwrap();
        let same = put(&store, &bucket, &free, &object("retagged", Some(first)));
        assert_eq!(
            same,
            Ok(Outcome::Done { garbage: false }),
            "the values are still an object's"
        );
        assert_eq!(
            put(&store, &bucket, &free, &object("b", Some(second))),
            Ok(Outcome::Done { garbage: true })
        );
        assert!(store.head(keyspace::garbage(first)).unwrap().is_some());
        let deleted = change(&store, Durability::Buffered, &bucket, "k", &free, None, &|_| {}).unwrap();
        assert_eq!(deleted, Outcome::Done { garbage: true });
        assert!(store.head(keyspace::garbage(second)).unwrap().is_some());
        let again = change(&store, Durability::Buffered, &bucket, "k", &free, None, &|_| {}).unwrap();
        assert_eq!(again, Outcome::Nothing);
    }

    /// Of many that want to be the first, one is; and of many that replace at once, none leaves its values behind.
    #[test]
    fn commits_that_meet() {
        let (_dir, store, bucket) = place();
        let absent = Requirement {
            if_none_match: condition("*"),
            ..Requirement::default()
        };
        let first = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| put(&store, &bucket, &absent, &object("a", None)).is_ok()))
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
                        put(&store, &bucket, &free, &object("b", Some(Id::new()))).unwrap();
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
}
