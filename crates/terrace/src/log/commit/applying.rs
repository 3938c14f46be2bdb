//! The log's interface to the applier: its next frames, and waiting until something is applied.
//!
//! Frames gather until there are enough to be worth applying ([`super::waiting`]), unless a thread
//! waits for one of their commits.
//!
//! Invariant: a frame with a `Sync` commit is handed out only when that is durable. So all entries
//! of the indexes are visible, and need no further check.
//!
//! On failure, when nothing is written any more, the applier continues without the `Sync` commits
//! that are not durable. So reads continue, and see the same state as before. None of it is
//! persisted.

use super::{CommitLog, waiting::Waiting};
use crate::{Error, Result, log::frame::Frame};
use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// Frames gather if more than this fraction (1/n) of the last ones' records was left out.
const LEFT_OUT_DIVISOR: usize = 10;
/// Interval at which a wait checks whether the store stops.
pub(super) const WAIT_STEP: Duration = Duration::from_millis(20);

impl CommitLog {
    /// Whether the applier may have a frame: every commit in it is visible, or never will be.
    fn may_be_applied(&self, frame: &Frame) -> bool {
        frame.sync_seq() <= self.writer.durable_seq() || self.writer.has_failed()
    }

    /// Queues a sealed frame for the applier.
    pub(super) fn push_to_apply(&self, frame: Arc<Frame>) {
        let mut waiting = self.to_apply.lock();
        waiting.push(frame);
        self.wake_applier_for(&waiting);
    }

    /// Whether the waiting frames must be applied now.
    fn are_due(&self, waiting: &Waiting) -> bool {
        waiting.remaining() == Some(Duration::ZERO)
            || !self.gathering_pays.load(Ordering::Relaxed)
            || waiting.is_batch(self.batch)
            || self.urgent_seq.load(Ordering::Acquire) > self.applied_seq()
            || self.is_closed()
            || self.writer.has_failed()
    }

    /// Notes how many records were handed out, and how many of them had to be applied: frames
    /// gather as long as enough records are left out. If keys are not overwritten soon, gathered
    /// records would only be out of the processor's caches by the time they are applied.
    pub fn note_folded(&self, records: usize, applied: usize) {
        let pays = records - applied > records / LEFT_OUT_DIVISOR;
        self.gathering_pays.store(pays, Ordering::Relaxed);
    }

    /// The value of a record of about so many bytes is no longer at this position: updates the
    /// counts of the segment, and of the frame while it is in RAM.
    pub fn value_died(&self, position: u64, bytes: u64) {
        self.segments.value_died(position, bytes);
        if let Some(place) = self.segments.place(position) {
            self.frames.value_died(place, bytes);
        }
    }

    /// Number of frames that wait for the applier.
    pub(super) fn waiting_for_applier(&self) -> usize {
        self.to_apply.lock().len()
    }

    /// A thread waits until the present commits, or later ones, are applied: the applier does not
    /// wait for more frames.
    pub(super) fn urge_applier(&self) {
        let seq = self.committed_seq();
        if self.applied_seq() < seq && self.urgent_seq.fetch_max(seq, Ordering::AcqRel) < seq {
            self.wake_applier();
        }
    }

    /// The applier's next frames, which it applies at once. If none are due it waits at most
    /// `wait`, and not if `called` returns true. Whatever changes the result of `called` must wake
    /// the applier.
    pub fn next_to_apply(&self, wait: Duration, called: impl Fn() -> bool) -> Vec<Arc<Frame>> {
        let until = Instant::now() + wait;
        let mut waiting = self.to_apply.lock();
        loop {
            let are_due = self.are_due(&waiting);
            if are_due {
                let ready = waiting.take(self.batch, |frame| self.may_be_applied(frame));
                if !ready.is_empty() {
                    return ready;
                }
            }
            let mut wait = until.saturating_duration_since(Instant::now());
            if wait == Duration::ZERO || called() {
                return Vec::new();
            }
            if let Some(remaining) = waiting.remaining() {
                // A failure wakes no thread, nor does a frame that has waited long enough.
                let until_due = if are_due { WAIT_STEP } else { remaining };
                wait = wait.min(WAIT_STEP).min(until_due);
                waiting.is_watched = !are_due;
            }
            self.apply_signal.wait_for(&mut waiting, wait);
            waiting.is_watched = false;
        }
    }

    /// Wakes the applier if there is a frame that it may have, unless it is notified already and
    /// must let it gather: a frame was sealed or has become durable.
    pub(super) fn wake_applier_if_ready(&self) {
        self.wake_applier_for(&self.to_apply.lock());
    }

    fn wake_applier_for(&self, waiting: &Waiting) {
        if waiting.first().is_some_and(|frame| self.may_be_applied(frame))
            && (!waiting.is_watched || self.are_due(waiting))
        {
            self.apply_signal.notify_one();
        }
    }

    /// Wakes the applier for something other than a frame.
    pub fn wake_applier(&self) {
        let _guard = self.to_apply.lock();
        self.apply_signal.notify_one();
    }

    /// The applier has put everything up to `seq` into the index, the last of it from these frames.
    pub fn applied(&self, frames: &[Arc<Frame>], seq: u64) {
        self.applied_seq.store(seq, Ordering::Release);
        frames.iter().for_each(|frame| frame.set_applied());
        self.release_finished();
        self.notify_progress();
        if self.to_apply.lock().first().is_none() {
            self.pool.make_ready();
        }
    }

    /// Nothing is applied any more.
    pub fn applier_ends(&self) {
        self.applier_ended.store(true, Ordering::Release);
        self.notify_progress();
    }

    /// Frames were applied, or a segment was freed.
    pub fn notify_progress(&self) {
        self.progress.raise();
        self.activity.raise();
    }

    /// Returns when `done` holds or fails; checks again at every progress.
    ///
    /// # Errors
    /// Those of `done`; [`Error::Failed`] or [`Error::Unavailable`] if the store stops first.
    pub fn wait_for(&self, done: impl Fn() -> Result<bool>) -> Result<()> {
        if done()? {
            return Ok(());
        }
        self.urge_applier();
        loop {
            let seen = self.progress.count();
            if done()? {
                return Ok(());
            }
            self.writer.check()?;
            // No more progress is possible.
            if self.is_closed() {
                return Err(Error::Unavailable("the store is closed"));
            }
            self.progress.wait_beyond(seen, WAIT_STEP);
        }
    }

    /// Returns the applied seq when everything up to `seq` is applied. For background work: callers
    /// of `Sync` commits make these durable themselves.
    ///
    /// # Errors
    /// As [`CommitLog::wait_for`].
    pub fn wait_until_applied(&self, seq: u64) -> Result<u64> {
        self.seal();
        self.wait_for(|| Ok(self.applied_seq() >= seq))?;
        Ok(self.applied_seq())
    }

    /// Drops frames that are written and applied, and raises `progress` then.
    pub(super) fn release_finished(&self) {
        if self.frames.settle() {
            self.progress.raise();
        }
    }

    /// Returns when everything committed so far is applied, with that seq.
    ///
    /// # Errors
    /// [`Error::Failed`] or [`Error::Unavailable`] if the applier stops first.
    pub fn wait_applied(&self) -> Result<u64> {
        self.wait_applied_to(self.committed_seq())
    }

    /// Returns when everything that is visible now is applied, with that seq. Waits for a `Sync`
    /// commit under way only if a `Buffered` one came after it.
    ///
    /// # Errors
    /// As [`CommitLog::wait_applied`].
    pub fn wait_visible_applied(&self) -> Result<u64> {
        let durable_seq = self.writer.durable_seq();
        self.wait_applied_to(self.buffered_seq.load(Ordering::Acquire).max(durable_seq))
    }

    fn wait_applied_to(&self, seq: u64) -> Result<u64> {
        if self.applied_seq() >= seq {
            return Ok(self.applied_seq());
        }
        if self.writer.durable_seq() < seq {
            self.seal();
            let sync_seq = self.sync_seq.load(Ordering::Acquire);
            // If this fails, the applier goes on without them.
            let _ = self.make_durable(sync_seq);
        }
        self.urge_applier();
        loop {
            let seen = self.progress.count();
            if self.applied_seq() >= seq {
                return Ok(self.applied_seq());
            }
            if self.applier_ended.load(Ordering::Acquire) {
                self.writer.check()?;
                return Err(Error::Unavailable("the store is closed"));
            }
            self.progress.wait_beyond(seen, WAIT_STEP);
        }
    }
}
