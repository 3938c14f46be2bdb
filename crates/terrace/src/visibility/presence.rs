//! Whether an object that the overlay or an index has is present: it is dead if it has expired, or
//! if a range deletion hides its version.
//!
//! Invariant: a [`Presence`] is taken before the key is looked up. A range that was forgotten
//! before that hides no remaining entry; one that is forgotten later is still in the set
//! (docs/durability.md, section 7).
//!
//! On failure: nothing here can fail. Damaged attributes never count as expired, so the damage is
//! reported.

use crate::{Clock, api::expiry, visibility::range_tombstones::RangeSet};
use std::sync::Arc;

/// Why an object is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dead {
    /// A range deletion hides it.
    Deleted,
    /// It has expired.
    Expired,
}

/// Decides the visibility of objects as of one moment.
#[derive(Debug)]
pub struct Presence<'a> {
    ranges: Option<Arc<RangeSet>>,
    /// Ranges up to this seq count,
    seq: u64,
    /// if they are visible when everything up to this one is durable.
    durable_seq: u64,
    clock: &'a Clock,
    /// The moment, if it does not go on with the clock.
    now_ms: Option<u64>,
}

impl<'a> Presence<'a> {
    /// As of a snapshot's seq, with the ranges that it holds, and with everything up to
    /// `durable_seq` durable; the time is the clock's.
    pub const fn at(clock: &'a Clock, ranges: Option<Arc<RangeSet>>, seq: u64, durable_seq: u64) -> Self {
        Self {
            ranges,
            seq,
            durable_seq,
            clock,
            now_ms: None,
        }
    }

    /// The same, with a given time.
    pub const fn frozen_at(mut self, now_ms: u64) -> Self {
        self.now_ms = Some(now_ms);
        self
    }

    /// Whether and why an object is dead. `attributes` are in stored form.
    #[inline]
    pub fn dead(&self, key: &[u8], version: u64, attributes: &[u8]) -> Option<Dead> {
        if self.hides(key, version) {
            return Some(Dead::Deleted);
        }
        self.is_over(expiry::of(attributes)?).then_some(Dead::Expired)
    }

    /// Whether a range deletion hides a version of a key.
    #[inline]
    pub fn hides(&self, key: &[u8], version: u64) -> bool {
        let hides = |ranges: &Arc<RangeSet>| ranges.hides_visibly(key, version, self.seq, self.durable_seq);
        self.ranges.as_ref().is_some_and(hides)
    }

    /// Whether an expiry has come.
    pub fn is_over(&self, expires_ms: u64) -> bool {
        expires_ms <= self.now_ms.unwrap_or_else(|| self.clock.now_ms())
    }
}
