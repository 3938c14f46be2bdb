//! Approximate live bytes of the log's segments; and free segments that return their space to the
//! file system.
//!
//! The applier reports values that become live or dead, each with about the length of its record,
//! the same both times ([`crate::hash_index::HashIndex::read_bytes_max`]). A segment that was
//! written before the open counts as fully live, except for values that have died since, until its
//! live bytes are counted in the hash index: approximately, as well. So the figure is a hint as to
//! which segments are worth draining. The index decides what is live when a segment is drained.
//!
//! It also records whether a sweep has copied a segment's live values
//! (`maintenance/order/sweep.rs`).
//!
//! A free segment that returns its space keeps its file, empty. Before it is used again it gets its
//! length as a new one does, durably and before its next header; so after a crash it is empty, or
//! has its length and no header of its next use, like a file that was just created. Its generation
//! is kept: the index's mark lists it with the free ones.

use super::segments::{Segment, SegmentState, Segments};
use crate::{Result, io::PAGE_BYTES, metrics::subtract};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicU64, Ordering},
};

/// Draining a segment is tried again when this fraction (1/n) of it has died since it failed.
const TRIED_AGAIN_DIVISOR: u64 = 16;
/// Draining costs nearly nothing if at most this fraction (1/n) is live.
const NEXT_TO_NOTHING_DIVISOR: u64 = 10;

impl Segment {
    /// Approximate bytes of its live records.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes.load(Ordering::Relaxed)
    }

    /// Whether its short values have been copied into their entries since the open.
    pub fn is_swept(&self) -> bool {
        self.swept_generation.load(Ordering::Relaxed) == self.generation()
    }

    /// The short values of this use are copied into their entries.
    pub fn swept(&self, generation: u64) {
        self.swept_generation.store(generation, Ordering::Relaxed);
    }

    /// Whether nearly all of it is dead.
    pub fn is_mostly_dead(&self) -> bool {
        let held_bytes = self.end_bytes().saturating_sub(PAGE_BYTES as u64);
        self.live_bytes() <= held_bytes / NEXT_TO_NOTHING_DIVISOR
    }

    /// Whether nearly all of it is dead, and draining it has not failed yet.
    pub fn is_hopeful(&self) -> bool {
        self.is_mostly_dead() && self.refused.lock().is_none()
    }

    /// Draining it failed in this round for lack of space.
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
    /// The sealed segment with the most dead bytes, approximately; of the same ones as
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

    /// A value whose record has about so many bytes becomes live at this position.
    pub fn value_lives(&self, position: u64, bytes: u64) {
        if let Some(live_bytes) = self.live_bytes_at(position) {
            live_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// A value at this position becomes dead.
    pub fn value_died(&self, position: u64, bytes: u64) {
        if let Some(live_bytes) = self.live_bytes_at(position) {
            subtract(live_bytes, bytes);
        }
    }

    /// Sets the live bytes of segments that were written before the open, by number. Never raises a
    /// figure.
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

    /// Returns the space of a free segment to the file system, if more than `keep` are free. True
    /// if it did.
    ///
    /// # Errors
    /// Errors of the device. The segment stays free.
    pub fn release_free(&self, keep: u32) -> Result<bool> {
        // The last one, so that the log is at the beginning of the ring.
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

    /// Restores the length of a segment that has returned its space; `None` if there is none.
    ///
    /// # Errors
    /// Errors of the device.
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
