//! Replacing and deleting objects.
//!
//! Every change of an object is conditional on the version that was read: a request's conditions
//! are evaluated on exactly the object that the commit replaces, and if that object had separate
//! values, the same commit marks them as garbage. If another commit intervenes, the step starts
//! again.
//!
//! In a versioned bucket a change concerns several records: the current object, the version that it
//! becomes, and the record that names the `null` version. They are one commit, so after a crash all
//! of them are there or none, and the invariants of [`crate::versions`] hold. A value moves with
//! its record, which holds its ID or its bytes, so no value has two owners or none. The other
//! versions are looked up before the commit, and not all of them can be named in conditions;
//! therefore changes of the same key are serialised ([`Bucket::turn`]). The versioning state cannot
//! change during a commit, because changing it waits for all threads in the bucket.

use crate::{
    access::decide::{Claim, Permit},
    bucket::{Bucket, Versioning},
    class::Class,
    error::{self, ObjectError, ObjectResult},
    keyspace::{self, Id},
    lock,
    manifest::MANIFEST_BYTES_MAX,
    outbox::{Announce, Happened, What},
    record::{self, Facts},
    versions::{self, Found, Name},
};
use bytes::Bytes;
use parking_lot::RwLockReadGuard;
use std::time::SystemTime;
use terrace::{Attributes, Batch, Committing, Condition, Durability, Error, RamAnswer, Store, Version};

/// Retries of a change before the client is told to retry.
const ATTEMPTS: usize = 256;

/// A condition on an entity tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tag {
    /// Any object.
    Any,
    /// An object with this tag, without quotes.
    Is(String),
}

impl Tag {
    /// Whether an object satisfies it.
    fn is_met(&self, facts: &Facts) -> bool {
        match self {
            Self::Any => true,
            Self::Is(tag) => *tag == facts.etag,
        }
    }
}

/// Conditions of a change.
#[derive(Debug, Clone, Default)]
pub struct Requirement {
    /// `If-Match`
    pub if_match: Option<Tag>,
    /// `If-None-Match`
    pub if_none_match: Option<Tag>,
    /// `x-amz-if-match-last-modified-time`
    pub modified: Option<SystemTime>,
    /// `x-amz-if-match-size`
    pub length: Option<i64>,
    /// The caller may delete versions under governance retention.
    pub bypasses: bool,
    /// The object is still the version that was read.
    pub version: Option<Version>,
    /// If an entity tag is named: the claim to read the object. Without read permission the answer
    /// must not tell whether the tag matches.
    pub reader: Option<Claim>,
}

impl Requirement {
    /// Evaluates the conditions.
    ///
    /// # Errors
    /// `PreconditionFailed`; `NoSuchKey` if there is no object to match; `AccessDenied` if the
    /// caller may not learn the result.
    pub fn check(&self, existing: Option<&Facts>) -> ObjectResult {
        let read = self.version.is_some() || self.if_match.is_some();
        let needs_one = read || self.modified.is_some() || self.length.is_some();
        let Some(facts) = existing else {
            if !needs_one {
                return Ok(());
            }
            // A missing object is reported as for a read.
            let missing = ObjectError::no_such_key();
            let told = self.reader.as_ref().map(|reader| reader.on_nothing(missing.clone()));
            return Err(told.unwrap_or(missing));
        };
        if self.version.is_some_and(|version| version != facts.version) {
            return Err(ObjectError::Condition(error::Condition::Version));
        }
        if let Some(reader) = &self.reader {
            reader.on(facts)?;
        }
        if self.if_match.as_ref().is_some_and(|condition| !condition.is_met(facts)) {
            return Err(ObjectError::Condition(error::Condition::Match));
        }
        if self
            .if_none_match
            .as_ref()
            .is_some_and(|condition| condition.is_met(facts))
        {
            return Err(ObjectError::Condition(error::Condition::NoneMatch));
        }
        if self.modified.is_some_and(|time| time != facts.modified) {
            return Err(ObjectError::Condition(error::Condition::Modified));
        }
        if self
            .length
            .is_some_and(|length| u64::try_from(length) != Ok(facts.length))
        {
            return Err(ObjectError::Condition(error::Condition::Length));
        }
        Ok(())
    }
}

/// Result of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Committed.
    Done(Done),
    /// There was nothing to delete.
    Nothing,
    /// A condition of `also` did not hold.
    OtherCondition,
}

/// A committed change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Done {
    /// It left garbage to collect.
    pub garbage: bool,
    /// The version that was made or deleted. `None` if versioning was never enabled.
    pub version: Option<Name>,
    /// That version is a delete marker.
    pub is_delete_marker: bool,
    /// The store's version of the commit.
    pub commit: Option<Version>,
}

/// The new contents of an object.
#[derive(Debug, Clone)]
pub struct NewObject {
    /// The value of its record.
    pub value: Bytes,
    /// The attributes of its record, without those that identify the version.
    pub attributes: Attributes,
}

impl NewObject {
    /// The event of writing it.
    fn written(&self, how: impl FnOnce(u64, String) -> What) -> What {
        let (length, etag) = record::length_and_tag(&self.attributes, self.value.len());
        how(length, etag)
    }
}

/// Store, bucket and key of a change.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// The store.
    pub store: &'a Store,
    /// Durability of the commit.
    pub durability: Durability,
    /// The permit to write, and the bucket.
    pub permit: &'a Permit,
    /// The object's key.
    pub key: &'a str,
}

impl<'a> Place<'a> {
    fn bucket(&self) -> &'a Bucket {
        self.permit.bucket()
    }

    /// Adds events of the change to its batch.
    fn add_events(&self, batch: &mut Batch, what: What, version: Option<Name>) -> Option<Announce> {
        let cause = self.permit.cause()?;
        let happened = Happened {
            key: self.key,
            version,
            what,
        };
        cause.add_events(batch, self.bucket(), &happened)
    }

    /// Enters the bucket, if the permit allows writing.
    fn enter(&self) -> ObjectResult<RwLockReadGuard<'a, bool>> {
        self.permit.to_write()?.enter()
    }
}

/// Replaces the current object by `new`, or deletes it if `new` is `None`, in one commit with what
/// `also` adds. The former object becomes a version if the bucket has versioning. Blocks.
///
/// # Errors
/// `AccessDenied` without a permit to write, `NoSuchBucket`, errors of the requirement,
/// `OperationAborted` if other commits intervene too often, `NotImplemented` if the former object
/// is too long to become a version, errors of the store.
pub fn change(
    place: Place<'_>,
    requirement: &Requirement,
    new: Option<&NewObject>,
    also: &dyn Fn(&mut Batch),
) -> ObjectResult<Outcome> {
    let _entered = place.enter()?;
    let versioning = place.bucket().versioning();
    let _turn = (versioning != Versioning::Never).then(|| place.bucket().turn(place.key));
    attempt(place, |step| {
        let existing = step.head(&step.object)?;
        requirement.check(existing.as_ref())?;
        match versioning {
            Versioning::Never => {
                let condition = condition_of(existing.as_ref());
                match (new, &existing) {
                    (Some(new), _) => step.put_current(new.value.clone(), new.attributes.clone(), condition),
                    (None, Some(_)) => step.delete_current(condition),
                    (None, None) => return Ok(Next::Nothing),
                }
                let kept = new.and_then(|new| record::values(&new.attributes));
                if let Some(existing) = existing.filter(|facts| facts.values != kept) {
                    step.discard(&existing);
                }
            }
            Versioning::Enabled | Versioning::Suspended => {
                let is_null = versioning == Versioning::Suspended;
                if !step.succeed(existing.as_ref(), new, is_null)? {
                    return Ok(Next::Again);
                }
            }
        }
        also(&mut step.batch);
        step.what = place.permit.cause().map(|_| match new {
            Some(new) => new.written(What::Written),
            None if versioning == Versioning::Never => What::Deleted,
            None => What::Marked,
        });
        Ok(Next::Write)
    })
}

/// [`change`] without waiting: commits if RAM has all records that are needed, no event is due, and
/// the former object leaves no garbage. The commit is then to be awaited. `None` means nothing:
/// call [`change`], which reports why.
pub fn try_change(place: Place<'_>, requirement: &Requirement, new: Option<&NewObject>) -> Option<Committing> {
    let _entered = place.permit.to_write().ok()?.try_enter()?;
    if place.bucket().versioning() != Versioning::Never || place.permit.cause().is_some() {
        return None;
    }
    let object = keyspace::object(&place.bucket().name, place.key);
    let existing = match place.store.head_in_ram(&object).ok()? {
        RamAnswer::Found(info) => Some(Facts::of(&info)),
        RamAnswer::Absent => None,
        RamAnswer::Unknown => return None,
    };
    requirement.check(existing.as_ref()).ok()?;
    if existing.as_ref().is_some_and(|facts| facts.values.is_some()) {
        return None;
    }
    let condition = condition_of(existing.as_ref());
    let mut batch = Batch::new();
    match new {
        Some(new) => batch.put_with(&object, new.value.clone(), new.attributes.clone(), condition),
        None => batch.delete_if(&object, existing.map(|_| condition)?),
    };
    place.store.try_write(&batch, place.durability)
}

/// Deletes one version permanently. If it was the latest, its predecessor becomes the latest.
/// Blocks.
///
/// # Errors
/// As [`change`]; `AccessDenied` if it is locked.
pub fn delete_version(place: Place<'_>, name: Name, requirement: &Requirement) -> ObjectResult<Outcome> {
    let _entered = place.enter()?;
    let is_versioned = place.bucket().versioning() != Versioning::Never;
    let _turn = is_versioned.then(|| place.bucket().turn(place.key));
    attempt(place, |step| {
        let (store, bucket, key) = (place.store, place.bucket().name.as_str(), place.key);
        let found = versions::find(&|key| store.head(key), bucket, key, name).map_err(|error| step.fail(&error))?;
        requirement.check(found.as_ref().map(|found| &found.facts))?;
        let Some(found) = found else {
            return Ok(Next::Nothing);
        };
        if lock::is_kept(&found.facts.attributes, requirement.bypasses, store.clock().now_ms()) {
            return Err(ObjectError::Locked);
        }
        let is_current = found.place == step.object;
        let Some(heir) = step.heir(&found, is_current)? else {
            return Ok(Next::Again);
        };
        let condition = Condition::VersionIs(found.facts.version);
        match heir {
            Heir::Object(heir, value) => {
                let in_place_of = if is_current { condition } else { Condition::Absent };
                step.put_current(value, heir.facts.attributes.clone(), in_place_of);
                step.delete_other(&heir);
            }
            Heir::None if is_current => step.delete_current(condition),
            Heir::None => {}
        }
        if !is_current {
            step.delete_other(&found);
        }
        step.discard(&found.facts);
        step.done.version = is_versioned.then_some(name);
        step.done.is_delete_marker = found.facts.is_delete_marker;
        step.what = Some(What::Deleted);
        Ok(Next::Write)
    })
}

/// Replaces the attributes of the record at `at`, if its version still is `looked_at`; its bytes
/// and its identity stay. Returns whether it was replaced. Blocks.
///
/// # Errors
/// `NoSuchBucket`, errors of the store.
pub fn redescribe(place: Place<'_>, at: &[u8], looked_at: Version, new: &NewObject) -> ObjectResult<bool> {
    let _entered = place.enter()?;
    let mut batch = Batch::new();
    batch.put_with(
        at,
        new.value.clone(),
        new.attributes.clone(),
        Condition::VersionIs(looked_at),
    );
    let version = record::version_id(&new.attributes).map_or(Name::Null, Name::Id);
    let is_versioned = place.bucket().versioning() != Versioning::Never;
    let class = Class::of(&new.attributes);
    let happened = new.written(|length, etag| What::Described(length, etag, class));
    let announce = place.add_events(&mut batch, happened, is_versioned.then_some(version));
    match place.store.write(batch, place.durability) {
        Ok(_) => {
            announce.into_iter().for_each(|announce| announce());
            Ok(true)
        }
        Err(Error::ConditionFailed { .. }) => Ok(false),
        Err(error) => Err(ObjectError::engine(&error, at)),
    }
}

/// What to do with a prepared step.
enum Next {
    /// Commit it.
    Write,
    /// Start again: a record has changed.
    Again,
    /// There is nothing to delete.
    Nothing,
}

/// Prepares a step with `build` and commits it; retries while other commits intervene.
fn attempt(place: Place<'_>, build: impl Fn(&mut Step<'_>) -> ObjectResult<Next>) -> ObjectResult<Outcome> {
    for _ in 0..ATTEMPTS {
        let mut step = Step {
            place,
            object: keyspace::object(&place.bucket().name, place.key),
            batch: Batch::new(),
            done: Done::default(),
            what: None,
        };
        match build(&mut step)? {
            Next::Write => {}
            Next::Again => continue,
            Next::Nothing => return Ok(Outcome::Nothing),
        }
        let what = step.what.take();
        let announce = what.and_then(|what| place.add_events(&mut step.batch, what, step.done.version));
        match place.store.write(step.batch, place.durability) {
            Ok(version) => {
                announce.into_iter().for_each(|announce| announce());
                let commit = Some(version);
                return Ok(Outcome::Done(Done { commit, ..step.done }));
            }
            // Conditions outside the step's own records are on an upload.
            Err(Error::ConditionFailed { key, .. }) if key.starts_with(keyspace::UPLOADS) => {
                return Ok(Outcome::OtherCondition);
            }
            Err(Error::ConditionFailed { .. }) => {}
            Err(error) => return Err(ObjectError::engine(&error, &step.object)),
        }
    }
    Err(ObjectError::AlwaysChanged)
}

fn condition_of(existing: Option<&Facts>) -> Condition {
    existing.map_or(Condition::Absent, |facts| Condition::VersionIs(facts.version))
}

/// The object that becomes current when the latest version is deleted.
enum Heir {
    /// The previous version and its record's value.
    Object(Box<Found>, Bytes),
    /// Nothing: the deleted version is not the latest, or there is no other, or that is a delete
    /// marker.
    None,
}

/// A commit being prepared.
struct Step<'a> {
    place: Place<'a>,
    /// The key of the current object.
    object: Vec<u8>,
    batch: Batch,
    done: Done,
    /// The event, if a target must be notified.
    what: Option<What>,
}

impl Step<'_> {
    fn fail(&self, error: &Error) -> ObjectError {
        ObjectError::engine(error, &self.object)
    }

    fn head(&self, key: &[u8]) -> ObjectResult<Option<Facts>> {
        let info = self.place.store.head(key).map_err(|error| self.fail(&error))?;
        Ok(info.map(|info| Facts::of(&info)))
    }

    fn put_current(&mut self, value: Bytes, attributes: Attributes, condition: Condition) {
        self.batch.put_with(&self.object, value, attributes, condition);
    }

    fn delete_current(&mut self, condition: Condition) {
        self.batch.delete_if(&self.object, condition);
    }

    /// Marks the values of a version as garbage.
    fn discard(&mut self, facts: &Facts) {
        if let Some(id) = facts.values {
            self.batch.put(keyspace::garbage(id), "").frees(facts.length);
            self.done.garbage = true;
        }
    }

    /// Removes the record of a version other than the current object.
    fn delete_other(&mut self, found: &Found) {
        self.batch
            .delete_if(&found.place, Condition::VersionIs(found.facts.version));
        if found.facts.is_null {
            self.batch
                .delete(keyspace::null_version(&self.place.bucket().name, self.place.key));
        }
    }

    /// Makes an object or a delete marker the latest version. The current object is kept as a
    /// version or replaced. False if it has changed.
    fn succeed(&mut self, existing: Option<&Facts>, new: Option<&NewObject>, is_null: bool) -> ObjectResult<bool> {
        let (bucket, key) = (self.place.bucket().name.as_str(), self.place.key);
        let former = self.former_order(existing)?;
        let (clock, first) = (self.place.store.clock(), former.map(Id::next));
        let order = Id::new(clock).max(first.unwrap_or(Id([0; 16])));
        if is_null {
            self.remove_null()?;
        }
        match existing {
            Some(existing) if is_null && existing.is_null => self.discard(existing),
            Some(existing) => {
                let Some(former) = former else { return Ok(false) };
                if !self.displace(existing, former)? {
                    return Ok(false);
                }
            }
            None => {}
        }
        let condition = condition_of(existing);
        if let Some(new) = new {
            let mut attributes = new.attributes.clone();
            record::set_version(&mut attributes, order, is_null);
            self.put_current(new.value.clone(), attributes, condition);
        } else {
            if existing.is_some() {
                self.delete_current(condition);
            }
            let marker = record::delete_marker(order, is_null, clock.now_ms());
            self.batch
                .put_with(keyspace::version(bucket, key, order), "", marker, Condition::Absent);
            if is_null {
                self.name_null(order);
            }
        }
        self.done.version = Some(if is_null { Name::Null } else { Name::Id(order) });
        self.done.is_delete_marker = new.is_none();
        Ok(true)
    }

    /// The order of the latest version. An object put before versioning was enabled has none; it
    /// gets one after all others, not earlier than its own time.
    fn former_order(&self, existing: Option<&Facts>) -> ObjectResult<Option<Id>> {
        if let Some(order) = existing.and_then(|facts| facts.order) {
            return Ok(Some(order));
        }
        let latest = versions::latest(self.place.store, &self.place.bucket().name, self.place.key, 1);
        let latest = latest.map_err(|error| self.fail(&error))?;
        let of_latest = latest.first().and_then(|found| found.facts.order);
        let Some(existing) = existing else { return Ok(of_latest) };
        let of_time = Id::first_of(existing.modified_ms);
        Ok(Some(of_latest.map_or(of_time, |latest| of_time.max(latest.next()))))
    }

    /// Keeps the current object as a version. False if it has changed.
    fn displace(&mut self, existing: &Facts, order: Id) -> ObjectResult<bool> {
        let Some(value) = self.value_of(&self.object, existing)? else {
            return Ok(false);
        };
        if existing.is_null {
            // There is a second `null` version only if a program wrote to the store without a
            // server.
            self.remove_null()?;
            self.name_null(order);
        }
        let mut attributes = existing.attributes.clone();
        record::set_version(&mut attributes, order, existing.is_null);
        let place = keyspace::version(&self.place.bucket().name, self.place.key, order);
        self.batch.put_with(place, value, attributes, Condition::Absent);
        Ok(true)
    }

    /// Records which version, other than the current object, is the `null` version.
    fn name_null(&mut self, order: Id) {
        let mut attributes = Attributes::new();
        record::set_version(&mut attributes, order, true);
        let key = keyspace::null_version(&self.place.bucket().name, self.place.key);
        self.batch.put_with(key, "", attributes, Condition::None);
    }

    /// Deletes the `null` version if it is not the current object.
    fn remove_null(&mut self) -> ObjectResult {
        let (store, bucket, key) = (self.place.store, self.place.bucket().name.as_str(), self.place.key);
        let order = versions::null_order(&|key| store.head(key), bucket, key).map_err(|error| self.fail(&error))?;
        let Some(order) = order else { return Ok(()) };
        self.batch.delete(keyspace::null_version(bucket, key));
        let place = keyspace::version(bucket, key, order);
        if let Some(facts) = self.head(&place)? {
            self.batch.delete_if(&place, Condition::VersionIs(facts.version));
            self.discard(&facts);
        }
        Ok(())
    }

    /// The object that becomes current when `found` is deleted. `None` if that has changed.
    fn heir(&self, found: &Found, is_current: bool) -> ObjectResult<Option<Heir>> {
        let bucket = self.place.bucket().name.as_str();
        // A delete marker is the latest version if there is no current object and no later marker.
        if !is_current && (!found.facts.is_delete_marker || self.head(&self.object)?.is_some()) {
            return Ok(Some(Heir::None));
        }
        let before =
            versions::latest(self.place.store, bucket, self.place.key, 2).map_err(|error| self.fail(&error))?;
        let mut before = before.into_iter();
        if !is_current && before.next().is_none_or(|latest| latest.place != found.place) {
            return Ok(Some(Heir::None));
        }
        let Some(heir) = before.next().filter(|heir| !heir.facts.is_delete_marker) else {
            return Ok(Some(Heir::None));
        };
        let value = self.value_of(&heir.place, &heir.facts)?;
        Ok(value.map(|value| Heir::Object(Box::new(heir), value)))
    }

    /// The value of a record that was read before; `None` if it has changed.
    fn value_of(&self, at: &[u8], facts: &Facts) -> ObjectResult<Option<Bytes>> {
        let reader = self.place.store.reader(at).map_err(|error| self.fail(&error))?;
        let Some(reader) = reader.filter(|reader| reader.info().version == facts.version) else {
            return Ok(None);
        };
        let bytes = reader.info().length;
        if bytes > MANIFEST_BYTES_MAX {
            return Err(ObjectError::TooLongToMove);
        }
        reader.read_range(0..bytes).map(Some).map_err(|error| self.fail(&error))
    }
}

#[cfg(test)]
mod tests;
