//! What lives in the log's segments, about; and segments that give their room back to the file
//! system.
//!
//! The applier tells of values that come and go, each of about the length of its record, the same
//! both times ([`crate::hash_index::HashIndex::read_bytes_max`]). A segment that was written before
//! the store was opened counts as full of life, but for what died since, until the hash index is
//! asked what lives in it: about, as well. So the figure is a hint: which segments are worth
//! draining. What really lives in one says the index when it is drained.
//!
//! Beside it: whether a sweep has been through what lives there (`maintenance/order/sweep.rs`).
//!
//! A free segment whose room is given back keeps its file, empty. To be used again it is given its
//! length as a new one is, durably and before its next header; so after a crash it is empty, or of
//! its length and without a header of its next use, which is what a file looks like that was just
//! made. Its generation is not forgotten: the index's mark lists it with the free ones.

use super::segments::{Segment, SegmentState, Segments};
use crate::{Result, io::PAGE_BYTES, metrics::subtract};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicU64, Ordering},
};

/// A segment that could not be drained is tried again when such a part of it has died.
const TRIED_AGAIN_DIVISOR: u64 = 16;
/// Where no more than such a part lives, draining costs next to nothing.
const NEXT_TO_NOTHING_DIVISOR: u64 = 10;

impl Segment {
    /// Bytes of records that live in it, about.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes.load(Ordering::Relaxed)
    }

    /// Whether its short values were copied into their entries since the store was opened.
    pub fn is_swept(&self) -> bool {
        self.swept_generation.load(Ordering::Relaxed) == self.generation()
    }

    /// The short values of this use are copied into their entries.
    pub fn swept(&self, generation: u64) {
        self.swept_generation.store(generation, Ordering::Relaxed);
    }

    /// Whether next to nothing lives in it.
    pub fn is_mostly_dead(&self) -> bool {
        let held_bytes = self.end_bytes().saturating_sub(PAGE_BYTES as u64);
        self.live_bytes() <= held_bytes / NEXT_TO_NOTHING_DIVISOR
    }

    /// Whether next to nothing lives in it, and nothing was in the way of draining it yet.
    pub fn is_hopeful(&self) -> bool {
        self.is_mostly_dead() && self.refused.lock().is_none()
    }

    /// It could not be drained in this round for want of room.
    pub fn refuse(&self, round: u64) {
        *self.refused.lock() = Some((round, self.live_bytes()));
    }

    /// Whether draining it may succeed in this round: it was not tried in it, or a part of it has
    /// died since.
    pub fn is_worth_trying(&self, round: u64) -> bool {
        let part_bytes = self.end_bytes() / TRIED_AGAIN_DIVISOR;
        self.refused
            .lock()
            .is_none_or(|(refused_in, live_bytes)| refused_in != round || self.live_bytes() + part_bytes <= live_bytes)
    }
}

impl Segments {
    /// The sealed segment of which most is dead, about; of the same ones as
    /// [`oldest_sealed`](Self::oldest_sealed).
    pub fn deadest_sealed(&self, finished_seq: u64, is_wanted: impl Fn(&Segment) -> bool) -> Option<&Segment> {
        self.finished(finished_seq)
            .filter(|segment| is_wanted(segment))
            .max_by_key(|segment| segment.end_bytes().saturating_sub(segment.live_bytes()))
    }

    /// Sealed segments with nothing after `finished_seq`.
    pub(super) fn finished(&self, finished_seq: u64) -> impl Iterator<Item = &Segment> {
        self.iter()
            .filter(move |segment| segment.state() == SegmentState::Sealed && segment.last_seq() <= finished_seq)
    }

    /// A value whose record has about so many bytes lives at this position from now on.
    pub fn value_lives(&self, position: u64, bytes: u64) {
        if let Some(live_bytes) = self.live_bytes_at(position) {
            live_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// One does no more.
    pub fn value_died(&self, position: u64, bytes: u64) {
        if let Some(live_bytes) = self.live_bytes_at(position) {
            subtract(live_bytes, bytes);
        }
    }

    /// What lives in segments that were written before the store was opened, by their numbers. No
    /// more than is known already.
    pub fn lives_in_former(&self, lives: &BTreeMap<u32, u64>) {
        let former =
            |segment: &&Segment| segment.state() == SegmentState::Sealed && segment.is_former.load(Ordering::Acquire);
        for segment in self.iter().filter(former) {
            let bytes = lives.get(&segment.number).copied().unwrap_or(0);
            segment.live_bytes.fetch_min(bytes, Ordering::Relaxed);
        }
    }

    fn live_bytes_at(&self, position: u64) -> Option<&AtomicU64> {
        let number = u32::try_from(position / self.segment_bytes).ok()?;
        Some(&self.get(number)?.live_bytes)
    }

    /// Gives the room of a free segment back to the file system, if more than `keep` are free. True
    /// if it did.
    ///
    /// # Errors
    /// The device's. The segment is free as before.
    pub fn release_free(&self, keep: u32) -> Result<bool> {
        // The last one, so that the log lies at the beginning of the ring.
        let last = self.pop_free(keep, BTreeSet::pop_last);
        let Some(segment) = last.and_then(|number| self.get(number)) else {
            return Ok(false);
        };
        if let Err(error) = segment.file.set_len(0) {
            self.push_free(segment.number);
            return Err(self.not_made(&Self::path(segment.number), &error));
        }
        self.created.fetch_sub(1, Ordering::AcqRel);
        self.hollow.lock().insert(segment.number);
        self.owes.store(false, Ordering::Release);
        Ok(true)
    }

    /// Gives a segment that has given its room back its length again; there may be none.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn refill(&self) -> Result<Option<u32>> {
        let mut hollow = self.hollow.lock();
        let Some(segment) = hollow.first().and_then(|number| self.get(*number)) else {
            return Ok(None);
        };
        self.allocate(&*segment.file)
            .map_err(|error| self.not_made(&Self::path(segment.number), &error))?;
        hollow.pop_first();
        self.created.fetch_add(1, Ordering::AcqRel);
        Ok(Some(segment.number))
    }
}
