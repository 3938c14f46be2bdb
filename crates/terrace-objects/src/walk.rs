//! Lifecycle walk: deletes versions that are due by a bucket's rules, and changes storage classes.
//!
//! Each call handles one page of versions, so that requests are served in between. Some conditions
//! (since when a version is not the latest, how many are newer, whether a delete marker is alone)
//! depend on earlier versions, which [`Walk`] remembers between pages.

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

/// Versions per page.
const PAGE: usize = 500;

/// Aborts uploads of a bucket that are due. Returns whether there were any. Blocks.
///
/// # Errors
/// Errors of the store.
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

/// State of a walk.
#[derive(Debug)]
pub struct Walk {
    now_ms: u64,
    /// Key and order of the last version.
    last: Option<(String, Option<Id>)>,
    /// Time of the last version: since then the next one of the same key has not been the latest.
    last_ms: u64,
    /// Number of earlier versions of this key that are not the latest.
    newer: u32,
    /// A delete marker that is the latest version and so far the only version of its key.
    marker: Option<(String, Facts)>,
    /// A deleted version had separate values.
    pub garbage: bool,
    /// Cause of the changes, for events.
    cause: Option<Arc<dyn Cause>>,
}

impl Walk {
    /// A walk that evaluates rules at this time.
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

    /// Sets the cause of the changes, for events.
    pub fn caused_by(self, cause: Option<Arc<dyn Cause>>) -> Self {
        Self { cause, ..self }
    }

    /// Handles the next page. Returns whether it was the last.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn page(&mut self, store: &Store, bucket: &Arc<Bucket>, rules: &[Rule]) -> ObjectResult<bool> {
        let last = self.last.clone();
        let query = Query {
            bucket: &bucket.name,
            prefix: "",
            delimiter: None,
            after: match &last {
                None => After::Nothing,
                // By order: the version may have been deleted, and earlier ones must not be handled
                // again.
                Some((key, Some(order))) => After::Order(key, *order),
                // It was put before versioning was enabled, so it is the key's only version.
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
            // The latest version was removed without a server, at an unknown time.
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

    /// Handles a delete marker that is the only version of its key.
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

    /// Deletes a version, if it has not changed since it was read.
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
            // Replaced, deleted or locked meanwhile. A locked version is due again after its lock.
            Err(ObjectError::Condition(_) | ObjectError::NoSuchKey(_) | ObjectError::Denied | ObjectError::Locked) => {}
            // This key cannot be deleted this way; the walk continues with others.
            Err(error @ ObjectError::TooLongToMove) => {
                tracing::warn!(%error, bucket = bucket.name, key, "an expired object cannot be deleted");
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Changes the class of a version, if it has not changed since it was read and the new class is
    /// later. Bytes and time stay. Locks do not prevent it.
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
        // A value this long that was not put through S3 stays as it is.
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
        // Replaced or deleted meanwhile: the next walk handles the new version.
        match commit::redescribe(place, &at, facts.version, &new) {
            Ok(_) | Err(ObjectError::NoSuchBucket) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
