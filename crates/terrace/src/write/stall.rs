//! What the cleaning thread and writers of large values know of each other: whether writers are to wait, and for what.
//!
//! A writer waits before it has reserved anything, and holds nothing that the thread needs. It goes on when the space is within
//! its limit again; or when the thread says that it can do nothing (everything that could be had is held by snapshots or
//! readers, is damaged, or there is no room to move it to); or after ten seconds in which nothing was moved or deleted.
//!
//! A writer that has found no room waits as well, if what was deleted is about to give some back: until blocks are deleted, and then it tries
//! again. That goes for a device that is full as for the capacity that is used up, and whether cleaning has anything to do or not.
//!
//! Invariant: whatever the thread does or fails to do, a writer goes on. A bound on space is not worth a deadlock.

use crate::maintenance::block_gc::policy::Bounds;
use crate::{Error, Result, Tier, engine::Engine};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// How long a writer waits while nothing is moved or deleted.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a writer waits in all for room that deletions give back, while others take what comes.
const ROOM_PATIENCE: Duration = Duration::from_secs(30);
/// How often those who wait look again.
const WAIT_STEP: Duration = Duration::from_millis(20);
/// How often they look through all blocks.
const BLOCKS_STEP: Duration = Duration::from_millis(200);
/// Why a writer goes on at once.
const NOTHING_TO_RECLAIM: &str =
    "nothing can be reclaimed now: it is held by snapshots or readers, being written, or damaged";
/// At most this often it is logged that writers are let go.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// The state of cleaning, shared.
#[derive(Debug, Default)]
pub struct Cleaning {
    /// Held by the thread while it changes anything.
    at_work: Mutex<()>,
    /// Bytes at rest that cannot be reclaimed now.
    tolerated_bytes: AtomicU64,
    /// There is need, and nothing can be done.
    is_stuck: AtomicBool,
    /// Writers that wait,
    waiting: AtomicU64,
    /// and those of them that wait for room within the capacity.
    waiting_for_room: AtomicU64,
    /// Counts what was moved or deleted.
    progress: AtomicU64,
    /// Dead blocks are being deleted: those that went are dead no more, and may not be counted as progress yet.
    is_deleting: AtomicBool,
    lock: Mutex<()>,
    signal: Condvar,
    warned_at: Mutex<Option<Instant>>,
    /// Blocks emptied since the store was opened.
    pub blocks_cleaned: AtomicU64,
    /// Blocks that could not be emptied.
    pub blocks_set_aside: AtomicU64,
    /// What could be reclaimed of those.
    pub set_aside_bytes: AtomicU64,
    /// Writes that waited.
    pub writers_held: AtomicU64,
    /// Nanoseconds for which they did, in all.
    pub held_ns: AtomicU64,
    /// Writes over the limit that went on all the same.
    pub writers_let_go: AtomicU64,
}

impl Cleaning {
    /// Says what was seen: how much cannot be reclaimed now, and whether nothing can though there is need.
    pub fn publish(&self, tolerated_bytes: u64, is_stuck: bool) {
        self.tolerated_bytes.store(tolerated_bytes, Ordering::Release);
        self.is_stuck.store(is_stuck, Ordering::Release);
        self.notify();
    }

    /// Something was moved or deleted.
    pub fn progress(&self) {
        self.progress.fetch_add(1, Ordering::AcqRel);
        self.notify();
    }

    /// Dead blocks are looked at, and deleted, until what is returned is dropped: meanwhile room is coming, whatever the figures say.
    pub fn deleting(&self) -> impl Drop + '_ {
        struct Deleting<'a>(&'a AtomicBool);
        impl Drop for Deleting<'_> {
            fn drop(&mut self) {
                self.0.store(false, Ordering::Release);
            }
        }
        self.is_deleting.store(true, Ordering::Release);
        Deleting(&self.is_deleting)
    }

    fn notify(&self) {
        let _guard = self.lock.lock();
        self.signal.notify_all();
    }

    /// How much was moved or deleted: to be asked before an attempt to find room, for [`Cleaning::try_again`].
    pub fn progress_so_far(&self) -> u64 {
        self.progress.load(Ordering::Acquire)
    }

    /// Waits for a writer in need, at most `wait`.
    pub fn wait_for_work(&self, wait: Duration) {
        let mut guard = self.lock.lock();
        let wait = if self.has_waiting() { WAIT_STEP } else { wait };
        self.signal.wait_for(&mut guard, wait);
    }

    /// While this is held the thread changes nothing.
    pub fn at_work(&self) -> MutexGuard<'_, ()> {
        self.at_work.lock()
    }

    /// Whether writers wait.
    pub fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Whether somebody waits for cleaning, or soon will.
    pub fn is_awaited(&self, engine: &Engine) -> bool {
        self.has_waiting() || self.is_tight(engine)
    }

    /// Whether the capacity has no room for what comes next.
    pub fn is_tight(&self, engine: &Engine) -> bool {
        self.waiting_for_room.load(Ordering::Acquire) > 0
            || engine.large.lacks_room(engine.options.split_threshold_bytes)
    }

    fn is_over(&self, engine: &Engine) -> bool {
        let tolerated_bytes = self.tolerated_bytes.load(Ordering::Acquire);
        Bounds::of(engine).holds(&engine.large.totals(), tolerated_bytes)
    }

    fn is_stuck(&self) -> bool {
        self.is_stuck.load(Ordering::Acquire)
    }

    /// Before `bytes` of large values are written: waits while blocks take more than they may and cleaning can help.
    pub fn hold_back(&self, engine: &Engine, bytes: u64) {
        let lacks_room = || engine.large.lacks_room(bytes);
        let is_over = self.is_over(engine);
        if !is_over && !lacks_room() {
            return;
        }
        if self.is_stuck() {
            if is_over {
                self.let_go(NOTHING_TO_RECLAIM);
            }
            return;
        }
        self.held(u64::from(lacks_room()), || self.wait(engine, &lacks_room));
    }

    /// Counts somebody as waiting while he does.
    fn held<T>(&self, for_room: u64, wait: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        self.waiting.fetch_add(1, Ordering::AcqRel);
        self.waiting_for_room.fetch_add(for_room, Ordering::AcqRel);
        self.notify();
        let outcome = wait();
        self.waiting_for_room.fetch_sub(for_room, Ordering::AcqRel);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        let waited_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.writers_held.fetch_add(1, Ordering::Relaxed);
        self.held_ns.fetch_add(waited_ns, Ordering::Relaxed);
        outcome
    }

    /// Makes an attempt to find room for a large value; if there is none, see [`Cleaning::try_again`].
    ///
    /// # Errors
    /// The attempt's.
    pub fn find_room<T>(&self, engine: &Engine, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let seen = self.progress_so_far();
        attempt().or_else(|error| self.try_again(engine, seen, error, attempt))
    }

    /// After an attempt to find room for a large value failed with `error`: waits while what was deleted is about to give room back, and
    /// tries again whenever some has come. `seen` is [`Cleaning::progress_so_far`] from before the first attempt.
    ///
    /// # Errors
    /// `error`, if no room is to come; the last attempt's, if none has come for a while.
    pub fn try_again<T>(
        &self,
        engine: &Engine,
        mut seen: u64,
        error: Error,
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let is_full = |error: &Error| error.is_out_of_space_on(Tier::Large);
        let deleted_seq = engine.log.committed_seq();
        // In this order, so that what comes between is not missed.
        let is_hopeless = || !is_room_coming(engine, deleted_seq) && self.progress_so_far() == seen;
        if !is_full(&error) || is_hopeless() {
            return Err(error);
        }
        let give_up = Instant::now() + ROOM_PATIENCE;
        self.held(1, || {
            let mut last = error;
            while self.wait_for_room(engine, deleted_seq, &mut seen) {
                match attempt() {
                    Err(error) if is_full(&error) && Instant::now() < give_up => last = error,
                    outcome => return outcome,
                }
            }
            Err(last)
        })
    }

    /// Waits until more was deleted than `seen`, which it brings up to date. False if nothing will be.
    fn wait_for_room(&self, engine: &Engine, deleted_seq: u64, seen: &mut u64) -> bool {
        let until = Instant::now() + PATIENCE;
        let mut look_at = Instant::now();
        loop {
            // Asked before progress is looked at, so that what came last is not missed; and without the lock, since there may be many blocks.
            let mut is_coming = Instant::now() < until;
            if Instant::now() >= look_at {
                is_coming &= is_room_coming(engine, deleted_seq);
                look_at = Instant::now() + BLOCKS_STEP;
            }
            let mut guard = self.lock.lock();
            let now = self.progress_so_far();
            if now != *seen {
                *seen = now;
                return true;
            }
            let is_over = engine.log.is_closing() || engine.log.writer.failure().is_some();
            if is_over || !is_coming {
                return false;
            }
            self.signal.wait_for(&mut guard, WAIT_STEP);
        }
    }

    fn wait(&self, engine: &Engine, lacks_room: &impl Fn() -> bool) {
        let mut seen = self.progress.load(Ordering::Acquire);
        let mut until = Instant::now() + PATIENCE;
        let mut guard = self.lock.lock();
        while self.is_over(engine) || lacks_room() {
            if engine.log.is_closing() || engine.log.writer.failure().is_some() {
                return;
            }
            if self.is_stuck() {
                drop(guard);
                if self.is_over(engine) {
                    self.let_go(NOTHING_TO_RECLAIM);
                }
                return;
            }
            let now = self.progress.load(Ordering::Acquire);
            if now != seen {
                (seen, until) = (now, Instant::now() + PATIENCE);
            }
            if Instant::now() >= until {
                drop(guard);
                self.let_go("cleaning makes no progress");
                return;
            }
            self.signal.wait_for(&mut guard, WAIT_STEP);
        }
    }

    fn let_go(&self, why: &str) {
        self.writers_let_go.fetch_add(1, Ordering::Relaxed);
        let mut warned_at = self.warned_at.lock();
        if warned_at.is_none_or(|at| at.elapsed() >= WARN_INTERVAL) {
            *warned_at = Some(Instant::now());
            tracing::warn!(
                why,
                "blocks take more than their limit of what lives in them; writers go on all the same"
            );
        }
    }
}

/// Whether what was deleted up to a commit has yet to give room back: the commit is not applied, ranges are not swept, or blocks in which
/// nothing lives are not deleted, though nobody holds them.
fn is_room_coming(engine: &Engine, deleted_seq: u64) -> bool {
    engine.log.applied_seq() < deleted_seq
        || engine.log.ranges.count() > 0
        || engine.large.dead_bytes() > engine.metrics.held_dead_bytes()
        // Last: once this is over, what the figures did not show any more is progress.
        || engine.cleaning.is_deleting.load(Ordering::Acquire)
}

impl Bounds {
    /// Those of a store.
    pub fn of(engine: &Engine) -> Self {
        Self {
            steady_percent: engine.options.space_amplification_percent.into(),
            hold_percent: engine.options.space_amplification_max_percent.into(),
            slack_bytes: engine.options.space_slack_bytes,
            split_bytes: engine.options.split_threshold_bytes,
        }
    }
}
