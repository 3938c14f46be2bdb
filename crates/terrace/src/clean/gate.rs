//! What the cleaning thread and writers of large values know of each other: whether writers are to wait, and for what.
//!
//! A writer waits before it has reserved anything, and holds nothing that the thread needs. It goes on when the space is within
//! its limit again; or when the thread says that it can do nothing (everything that could be had is held by snapshots or
//! readers, is damaged, or there is no room to move it to); or after ten seconds in which nothing was moved or deleted.
//!
//! Invariant: whatever the thread does or fails to do, a writer goes on. A bound on space is not worth a deadlock.

use super::policy::Bounds;
use crate::engine::Engine;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// How long a writer waits while nothing is moved or deleted.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often those who wait look again.
const WAIT_STEP: Duration = Duration::from_millis(20);
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

    fn notify(&self) {
        let _guard = self.lock.lock();
        self.signal.notify_all();
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
        let began = Instant::now();
        let for_room = u64::from(lacks_room());
        self.waiting.fetch_add(1, Ordering::AcqRel);
        self.waiting_for_room.fetch_add(for_room, Ordering::AcqRel);
        self.notify();
        self.wait(engine, &lacks_room);
        self.waiting_for_room.fetch_sub(for_room, Ordering::AcqRel);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        let waited_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.writers_held.fetch_add(1, Ordering::Relaxed);
        self.held_ns.fetch_add(waited_ns, Ordering::Relaxed);
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

impl Bounds {
    /// Those of a store.
    pub fn of(engine: &Engine) -> Self {
        Self {
            steady_percent: engine.options.space_amplification_percent.into(),
            hold_percent: engine.options.space_amplification_max_percent.into(),
            split_bytes: engine.options.split_threshold_bytes,
        }
    }
}
