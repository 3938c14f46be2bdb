//! Conditional writes: decided inside the commit, never before.
//!
//! A lookup in the ordered index may take a device read, which must not happen while all other
//! commits wait. So the index is looked up before the commit, together with how far the overlay had
//! been released by then. Inside the commit the overlay is searched first; if it does not have the
//! key and has released nothing since, the index's answer is still valid.
//!
//! The decision uses the newest committed state, visible or not: otherwise two `Sync` writes of one
//! version could both be accepted. So the answer may depend on a commit that is not durable.
//! [`Judged::rests_on`] names it, and the log waits for it before it answers.
//!
//! Whether the object found is dead is decided inside the commit, with the time and the range
//! deletions as of then, and with the range deletions as of the precheck as well: one that was
//! forgotten since may hide the index's answer.

use crate::log::commit::Judged;
use crate::{
    Condition, Error, RamAnswer, Result, Version,
    api::expiry,
    cache::Place,
    engine::Engine,
    key_hash,
    log::format::{Body, Record},
    ordered_index::Entry,
    visibility::presence::Presence,
};

/// State of a key in the index before the commit.
#[derive(Debug)]
pub struct Precheck<'a> {
    condition: Condition,
    leaving_seq: u64,
    /// As of before the lookup in the index.
    presence: Presence<'a>,
    /// How a key is looked up.
    ask: Ask,
    indexed: Option<Found>,
}

/// Looks up a key in the index, or in its substitute.
type Ask = fn(&Engine, &[u8], &Presence<'_>) -> Result<Option<Found>>;

/// Only the index can decide.
const NOT_IN_RAM: Error = Error::Unavailable("what the condition is about is not in RAM");

/// An object that the overlay or the index has.
#[derive(Debug, Clone, Copy)]
struct Found {
    version: Version,
    expires_ms: Option<u64>,
    /// A range deletion known before the commit hides it.
    is_hidden: bool,
}

impl<'a> Precheck<'a> {
    /// Looks the key up in the index. Free if there is no condition.
    ///
    /// # Errors
    /// Errors of the index.
    pub fn new(engine: &'a Engine, key: &[u8], condition: Condition) -> Result<Self> {
        Self::asking(indexed, engine, key, condition)
    }

    /// The same from the part of the applied state that is in RAM, for a caller that must not
    /// block. A record found by the hash index is as new as the entry in the ordered index: one
    /// thread changes both before a frame leaves the overlay.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if only the ordered index can tell, here or inside the commit.
    pub fn in_ram(engine: &'a Engine, key: &[u8], condition: Condition) -> Result<Self> {
        Self::asking(in_ram, engine, key, condition)
    }

    fn asking(ask: Ask, engine: &'a Engine, key: &[u8], condition: Condition) -> Result<Self> {
        // In this order: a range that is missing in the set is released later than this.
        let leaving_seq = engine.log.frames.leaving_seq();
        let presence = engine.presence_committed();
        let indexed = if condition == Condition::None {
            None
        } else {
            ask(engine, key, &presence)?
        };
        Ok(Self {
            condition,
            leaving_seq,
            presence,
            ask,
            indexed,
        })
    }

    /// Decides; to be called inside the commit.
    ///
    /// # Errors
    /// Errors of the index.
    pub fn decide(&self, engine: &Engine, key: &[u8]) -> Result<Judged> {
        if self.condition == Condition::None {
            return Ok(Judged::default());
        }
        let now = engine.presence_committed();
        let durable_seq = engine.log.writer.durable_seq();
        let mut rests_on = engine.log.ranges.unfinished_seq(durable_seq);
        let in_frames = engine
            .log
            .frames
            .find_committed(key_hash(key), key, durable_seq, |record, is_visible| {
                if !is_visible {
                    rests_on = rests_on.max(record.seq);
                }
                match record.body {
                    Body::Delete => None,
                    _ => Some(found(&self.presence, key, record.version(), record.attributes)),
                }
            });
        let found = match in_frames {
            Some(found) => found,
            None if engine.log.frames.leaving_seq() == self.leaving_seq => self.indexed,
            None => (self.ask)(engine, key, &self.presence)?,
        };
        let is_there = |found: &Found| {
            let is_over = found.expires_ms.is_some_and(|expires_ms| now.is_over(expires_ms));
            !found.is_hidden && !is_over && !now.hides(key, found.version.0)
        };
        let current = found.filter(is_there).map(|found| found.version);
        let reason = match (self.condition, current) {
            (Condition::None, _) | (Condition::Absent, None) | (Condition::Present, Some(_)) => None,
            (Condition::VersionIs(wanted), Some(version)) if version == wanted => None,
            (Condition::Absent, Some(version)) => Some(format!("it exists with version {version}")),
            (Condition::Present, None) => Some("it does not exist".to_owned()),
            (Condition::VersionIs(wanted), Some(version)) => Some(format!("its version is {version}, not {wanted}")),
            (Condition::VersionIs(wanted), None) => Some(format!("it does not exist; version {wanted} was asked for")),
        };
        let refusal = reason.map(|reason| Error::ConditionFailed {
            key: String::from_utf8_lossy(key).into_owned(),
            reason,
        });
        Ok(Judged { refusal, rests_on })
    }
}

fn found(presence: &Presence<'_>, key: &[u8], version: u64, attributes: &[u8]) -> Found {
    Found {
        version: Version(version),
        expires_ms: expiry::of(attributes),
        is_hidden: presence.hides(key, version),
    }
}

fn indexed(engine: &Engine, key: &[u8], presence: &Presence<'_>) -> Result<Option<Found>> {
    let entry = engine.index.get(key)?;
    Ok(entry.map(|entry| of_entry(&entry, key, presence)))
}

fn of_entry(entry: &Entry, key: &[u8], presence: &Presence<'_>) -> Found {
    found(presence, key, entry.version.0, &entry.attributes)
}

/// The record that the hash index points to, or the entry of the ordered index, if it is in RAM.
fn in_ram(engine: &Engine, key: &[u8], presence: &Presence<'_>) -> Result<Option<Found>> {
    let hash = key_hash(key);
    let Some(slot) = engine.hash_index.lookup(hash) else {
        if engine.knows_absent(hash) {
            return Ok(None);
        }
        return match engine.index.get_in_ram(key, hash)? {
            RamAnswer::Found(entry) => Ok(Some(of_entry(&entry, key, presence))),
            RamAnswer::Absent => Ok(None),
            RamAnswer::Unknown => Err(NOT_IN_RAM),
        };
    };
    let place = engine.log.segments.place(slot.address.bytes()).ok_or(NOT_IN_RAM)?;
    let of_record =
        |record: &Record<'_>| (record.key == key).then(|| found(presence, key, record.version(), record.attributes));
    // Records of an evicted frame are in the cache before that.
    let there = engine.log.frames.at(place, of_record).unwrap_or_else(|| {
        let cached = engine.cache.get(Place::log(place), key)?;
        Some(found(presence, key, cached.version, &cached.attributes))
    });
    // A record of another key says nothing about this one.
    there.map(Some).ok_or(NOT_IN_RAM)
}
