//! Waiting for a segment of the log.
//!
//! A commit that finds no free segment waits for recycling. One that brings something new is
//! refused at once if recycling has tried every segment and could free none, and nothing was
//! committed since that might change that. One that frees space is given the device's reserve.

use super::{CommitLog, Committer, WAIT_STEP};
use crate::{Error, Result, Tier, log::segments::Segments};
use parking_lot::MutexGuard;
use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

/// How long a commit waits for recycling before it reports that the tier is full.
const SPACE_WAIT_MAX: Duration = Duration::from_secs(10);
/// How long one that frees space does before it takes the reserve: as long as recycling needs where
/// it can help at all.
const RESERVE_WAIT: Duration = Duration::from_millis(200);

impl CommitLog {
    /// Waits until recycling has freed a segment that a caller may have.
    pub(super) fn wait_for_segment(&self, who: Committer, patience: &mut Patience) -> Result<()> {
        let stopped = || self.is_closing() || self.writer.failure().is_some();
        // Recycling only takes what is written.
        self.wake_flusher();
        let began = Instant::now();
        let mut progress = self.progress.lock();
        while self.segments.available() <= who.keeps_free() && !stopped() {
            let is_freeing = who == Committer::Freeing;
            if is_freeing
                && began.elapsed() >= RESERVE_WAIT
                && MutexGuard::unlocked(&mut progress, || self.makes_segment_of_reserve())
            {
                continue;
            }
            if patience.is_over(&self.segments) || (!is_freeing && self.recycling_is_stuck()) {
                self.segments.retry_device();
                return Err(self.no_segment());
            }
            self.progress_signal.wait_for(&mut progress, WAIT_STEP);
        }
        Ok(())
    }

    /// Makes a segment of what the reserve has for that, or of what the device has beside what
    /// others may need: without an index that can be flushed no segment becomes free, and without
    /// cleaning few blocks do.
    fn makes_segment_of_reserve(&self) -> bool {
        if !self.segments.is_device_full() {
            return false;
        }
        self.reserve.give_up();
        if !self.reserve.take_segment() {
            return self.segments.add_free_beside_others().is_ok();
        }
        let is_made = self.segments.add_free().is_ok();
        if !is_made {
            // Somebody else has the room of the device for now.
            self.reserve.keep_segment();
        }
        is_made
    }

    fn no_segment(&self) -> Error {
        let segment_bytes = self.segments.segment_bytes();
        Error::OutOfSpace {
            tier: Tier::Flash,
            reason: format!(
                "the flash log has no free segment among {} of {segment_bytes} bytes (flash_capacity_bytes) and recycling \
                 cannot free one (large tier full, see large_capacity_bytes, or an old snapshot holds them)",
                self.segments.created()
            ),
        }
    }

    /// Recycling has tried every segment as of `committed_seq` and could free none; with 0, it
    /// could.
    pub fn recycling_stuck_at(&self, committed_seq: u64) {
        self.stuck_at_seq.store(committed_seq, Ordering::Release);
    }

    /// Whether recycling can free no segment.
    pub fn recycling_is_stuck(&self) -> bool {
        let seq = self.stuck_at_seq.load(Ordering::Acquire);
        seq > 0 && seq == self.committed_seq()
    }
}

/// How long a commit still waits for a segment. As long as segments become free, whoever gets them,
/// it is worth waiting: on a slow disk many writers may stand in line for each.
pub(super) struct Patience {
    until: Instant,
    uses_begun: u64,
}

impl Patience {
    pub(super) fn new(segments: &Segments) -> Self {
        Self {
            until: Instant::now() + SPACE_WAIT_MAX,
            uses_begun: segments.uses_begun(),
        }
    }

    fn is_over(&mut self, segments: &Segments) -> bool {
        if self.uses_begun != segments.uses_begun() {
            *self = Self::new(segments);
        }
        Instant::now() >= self.until
    }
}
