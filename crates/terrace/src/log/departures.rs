//! When keys may have become absent: for reads of several keys that must know whether an absent key
//! was absent at a given seq.
//!
//! Keys share a few counters, so a note may be of another key: [`Departures::none_since`] may
//! return false without need, never true.
//!
//! Invariant: a commit is noted before any reader can see it.

use crate::{
    api::expiry,
    log::format::{Body, Record},
};
use std::sync::atomic::{AtomicU64, Ordering};

/// Shared counters, of 8 bytes: concurrent with a delete, one of this many reads of absent keys is
/// repeated needlessly.
const PLACES: usize = 1024;

/// The last commits that may have removed keys.
#[derive(Debug)]
pub struct Departures {
    /// Seqs of the last deletes, and of the last puts that expire, by hashes.
    of_keys: Box<[AtomicU64]>,
    /// Seq of the last range deletion.
    of_ranges: AtomicU64,
}

impl Default for Departures {
    fn default() -> Self {
        Self {
            of_keys: (0..PLACES).map(|_| AtomicU64::new(0)).collect(),
            of_ranges: AtomicU64::new(0),
        }
    }
}

impl Departures {
    fn of(&self, hash: u64) -> &AtomicU64 {
        // In bounds; the hash index uses the upper bits.
        &self.of_keys[hash as usize % PLACES]
    }

    /// Notes the keys that a commit may remove, before it becomes visible.
    pub fn note(&self, seq: u64, records: &[(u64, Record<'_>)]) {
        for (hash, record) in records {
            match record.body {
                Body::Delete => self.of(*hash).fetch_max(seq, Ordering::SeqCst),
                Body::DeleteRange { .. } => self.of_ranges.fetch_max(seq, Ordering::SeqCst),
                _ if record.body.answers_for_key() && expiry::of(record.attributes).is_some() => {
                    self.of(*hash).fetch_max(seq, Ordering::SeqCst)
                }
                _ => 0,
            };
        }
    }

    /// Whether no visible commit after `seq` can have removed a key with this hash.
    pub fn none_since(&self, seq: u64, hash: u64) -> bool {
        self.of_ranges.load(Ordering::SeqCst) <= seq && self.of(hash).load(Ordering::SeqCst) <= seq
    }
}
