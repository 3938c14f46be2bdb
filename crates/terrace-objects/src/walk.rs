//! The walk that deletes what is due by the rules of a bucket's lifecycle, and changes storage
//! classes.
//!
//! One page of versions per call, so that requests go in between. What a version is judged by
//! besides itself (since when it is not the latest, how many are between, whether a delete marker
//! is all there is) depends on those shown before it, which [`Walk`] remembers from page to page.

use crate::{
    access::decide::Claim,
    bucket::Bucket,
    class::Class,
    collector,
    commit::{self, NewObject, Outcome, Place, Requirement},
    error::{ObjectError, ObjectResult},
    keyspace::{self, Id},
    lifecycle::{Rule, Subject},
    list::Entry,
    manifest::MANIFEST_BYTES_MAX,
    outbox::Cause,
    record::{self, Facts},
    versions::{self, After, Name, Query, Version},
};
use std::sync::Arc;
use terrace::{Durability, Store};

/// Versions per call.
const PAGE: usize = 500;

/// Aborts the uploads of a bucket that are due. Whether there were any. Blocks.
///
/// # Errors
/// The store's.
pub fn abort_uploads(store: &Store, bucket: &Bucket, now_ms: u64) -> terrace::Result<bool> {
    let record = bucket.record();
    let rules = &record.lifecycle;
    if rules.iter().all(|rule| rule.abort_days.is_none()) {
        return Ok(false);
    }
    let prefix = keyspace::uploads(&bucket.name);
    let mut any = false;
    collector::each_key(store, &prefix, |record| {
        let upload = keyspace::parse_upload(&record[prefix.len()..]);
        let is_due = |(key, id): &(&str, Id)| rules.iter().any(|rule| rule.is_upload_due(key, id.ms(), now_ms));
        if let Some((_, id)) = upload.filter(is_due) {
            any |= collector::abort_upload(store, record, id)?;
        }
        Ok(())
    })?;
    Ok(any)
}

/// How far a walk is, and what it must remember.
#[derive(Debug)]
pub struct Walk {
    now_ms: u64,
    /// The version judged last: its key and what orders it.
    last: Option<(String, Option<Id>)>,
    /// When that was written, which is since when the next one of the same key is not the latest.
    last_ms: u64,
    /// Versions of this key, shown before, that are not the latest.
    newer: u32,
    /// A delete marker that is the latest version, if no other version of its key was shown yet.
    marker: Option<(String, Facts)>,
    /// Something was deleted that had values of its own.
    pub garbage: bool,
    /// What is told of why, if a target is to be told.
    cause: Option<Arc<dyn Cause>>,
}

impl Walk {
    /// One that judges as of a time.
    pub const fn new(now_ms: u64) -> Self {
        Self {
            now_ms,
            last: None,
            last_ms: 0,
            newer: 0,
            marker: None,
            garbage: false,
            cause: None,
        }
    }

    /// The same, with what is told of why.
    pub fn caused_by(self, cause: Option<Arc<dyn Cause>>) -> Self {
        Self { cause, ..self }
    }

    /// Judges the next page. Whether it was the last.
    ///
    /// # Errors
    /// The store's.
    pub fn page(&mut self, store: &Store, bucket: &Arc<Bucket>, rules: &[Rule]) -> ObjectResult<bool> {
        let last = self.last.clone();
        let query = Query {
            bucket: &bucket.name,
            prefix: "",
            delimiter: None,
            after: match &last {
                None => After::Nothing,
                // By order: it may have been deleted, and what was judged before it must not be
                // judged again.
                Some((key, Some(order))) => After::Order(key, *order),
                // It was put where there was no versioning, so that it is the only one there was.
                Some((key, None)) => After::Version(key, Name::Null),
            },
            limit: PAGE,
        };
        let page = versions::page(store, &query)?;
        for entry in page.entries {
            // Without a delimiter there are no common prefixes.
            if let Entry::Key(version) = entry {
                self.judge(store, bucket, rules, version)?;
            }
        }
        if !page.truncated {
            self.judge_marker(store, bucket, rules)?;
        }
        Ok(!page.truncated)
    }

    fn judge(&mut self, store: &Store, bucket: &Arc<Bucket>, rules: &[Rule], version: Version) -> ObjectResult {
        let Version { key, facts, is_latest } = version;
        if self.last.as_ref().is_some_and(|(last, _)| *last == key) {
            self.marker = None;
        } else {
            self.judge_marker(store, bucket, rules)?;
            self.newer = 0;
            // The latest version was removed without a server; since when is not known.
            self.last_ms = self.now_ms;
        }
        let name = Name::of(&facts);
        let (written_ms, order) = (facts.modified_ms, facts.order);
        if is_latest && facts.is_delete_marker {
            self.marker = Some((key.clone(), facts));
        } else if is_latest {
            let due = rules.iter().any(|rule| {
                rule.expiry_ms(Subject::of(&key, &facts))
                    .is_some_and(|ms| self.now_ms >= ms)
            });
            if due {
                self.delete(store, bucket, &key, &facts, None)?;
            } else {
                let subject = Subject::of(&key, &facts);
                let class = rules.iter().filter_map(|rule| rule.class(subject, self.now_ms)).max();
                self.reclass(store, bucket, &key, &facts, is_latest, class)?;
            }
        } else {
            let (since_ms, newer, now_ms) = (self.last_ms, self.newer, self.now_ms);
            let due = rules
                .iter()
                .any(|rule| rule.is_noncurrent_due(Subject::of(&key, &facts), since_ms, newer, now_ms));
            if due {
                self.delete(store, bucket, &key, &facts, Some(name))?;
            } else if !facts.is_delete_marker {
                let subject = Subject::of(&key, &facts);
                let class = |rule: &Rule| rule.noncurrent_class(subject, since_ms, newer, now_ms);
                let class = rules.iter().filter_map(class).max();
                self.reclass(store, bucket, &key, &facts, is_latest, class)?;
            }
            self.newer += 1;
        }
        self.last = Some((key, order));
        self.last_ms = written_ms;
        Ok(())
    }

    /// A delete marker that turned out to be all there is of its object.
    fn judge_marker(&mut self, store: &Store, bucket: &Arc<Bucket>, rules: &[Rule]) -> ObjectResult {
        let Some((key, facts)) = self.marker.take() else {
            return Ok(());
        };
        if rules
            .iter()
            .any(|rule| rule.is_marker_due(Subject::of(&key, &facts), self.now_ms))
        {
            self.delete(store, bucket, &key, &facts, Some(Name::of(&facts)))?;
        }
        Ok(())
    }

    /// Deletes what was judged, if it is still exactly that.
    fn delete(
        &mut self,
        store: &Store,
        bucket: &Arc<Bucket>,
        key: &str,
        facts: &Facts,
        name: Option<Name>,
    ) -> ObjectResult {
        let permit = Claim::of_system(bucket).caused_by(self.cause.clone()).on_bucket()?;
        let place = Place {
            store,
            durability: Durability::Buffered,
            permit: &permit,
            key,
        };
        let judged = Requirement {
            version: Some(facts.version),
            ..Requirement::default()
        };
        let outcome = match name {
            None => commit::change(place, &judged, None, &|_| {}),
            Some(name) => commit::delete_version(place, name, &judged),
        };
        match outcome {
            Ok(Outcome::Done(done)) => self.garbage |= done.garbage,
            Ok(Outcome::Nothing | Outcome::OtherCondition) => {}
            // Replaced or gone meanwhile, or locked: then it is due again when that is over.
            Err(ObjectError::Condition(_) | ObjectError::NoSuchKey(_) | ObjectError::Denied | ObjectError::Locked) => {}
            // The key alone cannot be deleted that way; the others can.
            Err(error @ ObjectError::TooLongToMove) => {
                tracing::warn!(%error, bucket = bucket.name, key, "an expired object cannot be deleted");
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Gives a version the class that rules want, if it still is what was judged and they want a
    /// later one: its bytes, its time and all else stay. Locks are about other things.
    fn reclass(
        &self,
        store: &Store,
        bucket: &Arc<Bucket>,
        key: &str,
        facts: &Facts,
        is_latest: bool,
        class: Option<Class>,
    ) -> ObjectResult {
        let Some(class) = class.filter(|class| *class > facts.class()) else {
            return Ok(());
        };
        let at = match facts.order.filter(|_| !is_latest) {
            None => keyspace::object(&bucket.name, key),
            Some(order) => keyspace::version(&bucket.name, key, order),
        };
        let fail = |error: terrace::Error| ObjectError::engine(&error, &at);
        let reader = store.reader(&at).map_err(fail)?;
        let Some(reader) = reader.filter(|reader| reader.info().version == facts.version) else {
            return Ok(());
        };
        // What was not put over S3 and is this long stays as it is.
        let bytes = reader.info().length;
        if bytes > MANIFEST_BYTES_MAX {
            return Ok(());
        }
        let new = NewObject {
            value: reader.read_range(0..bytes).map_err(fail)?,
            attributes: record::with_class(&reader.info().attributes, class),
        };
        let permit = Claim::of_system(bucket).caused_by(self.cause.clone()).on_bucket()?;
        let place = Place {
            store,
            durability: Durability::Buffered,
            permit: &permit,
            key,
        };
        // Replaced or gone meanwhile: what is there now is judged by the next walk.
        match commit::redescribe(place, &at, facts.version, &new) {
            Ok(_) | Err(ObjectError::NoSuchBucket) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
