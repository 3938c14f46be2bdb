//! When keys may have become absent: for reads of several keys that must say whether what is absent
//! was so at a moment.
//!
//! Keys share a few places, so what is told of one may be another's: [`Departures::none_since`]
//! errs to the side of "maybe".
//!
//! Invariant: a commit is noted before any reader can see it.

use crate::{
    api::expiry,
    log::format::{Body, Record},
};
use std::sync::atomic::{AtomicU64, Ordering};

/// Places that keys share, of 8 bytes: beside a delete one read of an absent key in so many is
/// repeated for nothing.
const PLACES: usize = 1024;

/// The last commits that may have taken keys away.
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
        // Never out of bounds, and the hash index uses the upper bits.
        &self.of_keys[hash as usize % PLACES]
    }

    /// Notes what a commit may take away, before it can be seen.
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

    /// Whether no commit after `seq` that can have been seen has taken a key with this hash away.
    pub fn none_since(&self, seq: u64, hash: u64) -> bool {
        self.of_ranges.load(Ordering::SeqCst) <= seq && self.of(hash).load(Ordering::SeqCst) <= seq
    }
}
