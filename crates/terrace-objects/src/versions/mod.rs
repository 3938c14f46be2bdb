//! Versions of objects: where they are stored, and how to find one.
//!
//! The current object is always at `BUCKET/KEY`, with or without versioning, so reading it is one
//! lookup and listing is one scan. The other versions of a versioned bucket, which are replaced or
//! deleted objects and delete markers, are below [`keyspace::VERSIONS`], ordered by key and then
//! from the latest to the earliest. The versions of an object are ordered by an [`Id`] in their
//! attributes, made at the time of writing and always later than the previous one's, even if the
//! clock goes back. It is also the version's ID in S3, except for the `null` version, which an
//! object can have once: the one written before versioning was enabled or while it was suspended.
//! If the `null` version is not the current object, a record at [`keyspace::null_version`] names
//! it, so that no reader has to search.
//!
//! Invariants, each kept by every commit ([`crate::commit`]):
//! - If there is an object at `BUCKET/KEY`, it is the latest version.
//! - If there is none, the latest version, if any, is a delete marker.
//! - Among an object's records below [`keyspace::VERSIONS`] at most one is the `null` version. If
//!   there is one, and only then, the record that names it exists, and the current object is not a
//!   `null` version.
//! - Separate values belong to exactly one version.
//!
//! Commands use the same commits. An import writes to the store directly, as commands did formerly:
//! afterwards the latest version may be an object that is not the current one, and stays so.

mod listing;

pub use listing::{After, Query, Version, page, page_to_show};

pub use crate::record::Name;
use crate::{
    access::decide::Claim,
    bucket::{Bucket, Versioning},
    collector::Collector,
    error::{Marker, ObjectError, ObjectResult},
    keyspace::{self, Id},
    read::{self, Opened},
    record::Facts,
};
use std::sync::Arc;
use terrace::{ObjectInfo, ReadOptions, ScanRange, Store};

/// Retries of opening a version that was moved meanwhile by a new current object.
const ATTEMPTS: usize = 64;

/// A version, and its key in the store.
#[derive(Debug, Clone)]
pub struct Found {
    /// The key in the store.
    pub place: Vec<u8>,
    /// Its metadata.
    pub facts: Facts,
}

/// Looks up a key, in the store or in a snapshot.
pub type Look<'a> = &'a dyn Fn(&[u8]) -> terrace::Result<Option<ObjectInfo>>;

/// Finds a version. `look` must read one snapshot, or no other thread may change the object
/// meanwhile.
///
/// # Errors
/// Errors of the store.
pub fn find(look: Look<'_>, bucket: &str, key: &str, name: Name) -> terrace::Result<Option<Found>> {
    let found = |place: Vec<u8>| -> terrace::Result<Option<Found>> {
        let facts = look(&place)?.map(|info| Facts::of(&info));
        let facts = facts.filter(|facts| Name::of(facts) == name);
        Ok(facts.map(|facts| Found { place, facts }))
    };
    if let Some(current) = found(keyspace::object(bucket, key))? {
        return Ok(Some(current));
    }
    let order = match name {
        Name::Id(order) => Some(order),
        Name::Null => null_order(look, bucket, key)?,
    };
    match order {
        Some(order) => found(keyspace::version(bucket, key, order)),
        None => Ok(None),
    }
}

/// The order of an object's `null` version, if it has one that is not the current object.
///
/// # Errors
/// Errors of the store.
pub fn null_order(look: Look<'_>, bucket: &str, key: &str) -> terrace::Result<Option<Id>> {
    let record = look(&keyspace::null_version(bucket, key))?;
    Ok(record.and_then(|info| Facts::of(&info).order))
}

/// The latest `count` versions of an object that are not the current object.
///
/// # Errors
/// Errors of the store.
pub fn latest(store: &Store, bucket: &str, key: &str, count: usize) -> terrace::Result<Vec<Found>> {
    let scan = store.scan(ScanRange::prefix(keyspace::versions_of(bucket, key)))?;
    scan.take(count)
        .map(|item| {
            let item = item?;
            Ok(Found {
                place: item.key.to_vec(),
                facts: Facts::of(&item.info),
            })
        })
        .collect()
}

/// Describes the current object, or the version named, if the claim is good for it. Blocks.
///
/// # Errors
/// `AccessDenied`, `NoSuchKey`, `NoSuchVersion`, `MethodNotAllowed` for a delete marker, errors of
/// the store.
pub fn describe(store: &Store, claim: &Claim, key: &str, name: Option<Name>) -> ObjectResult<Facts> {
    let bucket = claim.bucket();
    let object = keyspace::object(&bucket.name, key);
    let fail = |error| ObjectError::engine(&error, &object);
    let Some(name) = name else {
        return match store.head(&object).map_err(fail)? {
            Some(info) => {
                let facts = Facts::of(&info);
                claim.on(&facts)?;
                Ok(facts)
            }
            None => Err(claim.on_nothing(absent(store, bucket, key))),
        };
    };
    named(store, claim, key, name).map(|found| found.facts)
}

/// Opens the current object, or the version named, if the claim is good for it. Blocks.
///
/// # Errors
/// As [`describe`].
pub fn open(
    store: &Store,
    collector: &Arc<Collector>,
    claim: &Claim,
    key: &str,
    name: Option<Name>,
) -> ObjectResult<Opened> {
    open_with(store, &ReadOptions::default(), collector, claim, key, name)
}

/// Like [`open`]; `reading` applies up to the first piece.
///
/// # Errors
/// As [`describe`]; `SlowDown`.
pub fn open_with(
    store: &Store,
    reading: &ReadOptions,
    collector: &Arc<Collector>,
    claim: &Claim,
    key: &str,
    name: Option<Name>,
) -> ObjectResult<Opened> {
    let bucket = claim.bucket();
    let Some(name) = name else {
        let object = keyspace::object(&bucket.name, key);
        let opened = read::open(store, reading, collector, &object, claim)?;
        return opened.ok_or_else(|| claim.on_nothing(absent(store, bucket, key)));
    };
    for _ in 0..ATTEMPTS {
        let found = named(store, claim, key, name)?;
        // It may have moved, and another version may be at its key.
        let opened = read::open(store, reading, collector, &found.place, claim)?;
        if let Some(opened) = opened.filter(|opened| Name::of(&opened.facts) == name) {
            return Ok(opened);
        }
    }
    Err(ObjectError::AlwaysReplaced)
}

fn named(store: &Store, claim: &Claim, key: &str, name: Name) -> ObjectResult<Found> {
    let bucket = claim.bucket();
    let look = || {
        // In a snapshot, since a version moves when it becomes the current object or ceases to be.
        let snapshot = store.snapshot()?;
        find(&|key| snapshot.head(key), &bucket.name, key, name)
    };
    let found = look().map_err(|error| ObjectError::engine(&error, &keyspace::object(&bucket.name, key)))?;
    let found = found.ok_or_else(|| claim.on_nothing(ObjectError::NoSuchVersion))?;
    claim.on(&found.facts)?;
    if found.facts.is_delete_marker {
        return Err(ObjectError::IsDeleteMarker(marker_of(&found.facts)));
    }
    Ok(found)
}

/// The error for a missing current object; it says if that is because of a delete marker.
fn absent(store: &Store, bucket: &Bucket, key: &str) -> ObjectError {
    if bucket.versioning() == Versioning::Never {
        return ObjectError::NoSuchKey(None);
    }
    let latest = latest(store, &bucket.name, key, 1).ok();
    let marker = latest.and_then(|mut found| found.pop());
    let marker = marker.filter(|found| found.facts.is_delete_marker);
    ObjectError::NoSuchKey(marker.map(|found| marker_of(&found.facts)))
}

fn marker_of(facts: &Facts) -> Marker {
    Marker {
        version: Name::of(facts).to_string(),
        modified: facts.modified,
    }
}

#[cfg(test)]
mod tests;
