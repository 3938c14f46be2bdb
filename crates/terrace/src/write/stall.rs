//! Where writers of large values wait for room, and what the cleaning thread tells them.
//!
//! There are two reasons to wait. Blocks take more than they may (`hold_back`): a writer waits before it has reserved
//! anything, until the space is within its limit again, until the cleaning thread says that it can do nothing, or for ten
//! seconds in which nothing was moved or deleted. And there is no room (`find_room`): a writer waits while something is on
//! its way to giving room back, tries again at each progress, and is refused at once if nothing is.
//!
//! What gives room back goes through these places, each entered before the one before it is left: a range deletion that is
//! not swept; a commit that is not applied; a block that is being cleaned; a block in which nothing lives; a block that is
//! being deleted, which leaves that place only after its room was given back; where the log is on the same device, a segment in which next
//! to nothing lives, and one that is free; a device with room for the reserve, which is about to be restored. So whoever looks at them in this order and
//! then asks for room misses nothing: what had left a place before the look is met in a later one, or is room.
//!
//! Invariant: whatever the threads do or fail to do, a writer goes on. A bound on space is not worth a deadlock.

use crate::maintenance::{block_gc::policy::Bounds, log_gc::log_gives_room};
use crate::{Result, Tier, engine::Engine, metrics::event::Event};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// How long a writer waits while nothing is moved or deleted.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a writer waits in all for room that deletions give back, while others take what comes.
const ROOM_PATIENCE: Duration = Duration::from_secs(30);
/// How often waiting writers look whether the store stops.
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
    /// Writers that wait,
    waiting: AtomicU64,
    /// and those of them that wait for room.
    waiting_for_room: AtomicU64,
    /// Counts what was moved or deleted.
    progress: AtomicU64,
    passes: Mutex<Passes>,
    signal: Condvar,
    /// Raised when a writer begins to wait.
    activity: Arc<Event>,
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

/// The cleaning thread's looks at the blocks.
#[derive(Debug, Default)]
struct Passes {
    /// How many it has begun,
    begun: u64,
    /// and which of them was the last to end with a finding.
    ended: u64,
    /// It failed and rests: its last finding stands until it begins again.
    is_resting: bool,
    finding: Finding,
}

/// What the cleaning thread has found.
#[derive(Debug, Clone, Copy, Default)]
pub struct Finding {
    /// Bytes at rest that cannot be reclaimed now.
    pub tolerated_bytes: u64,
    /// Blocks take more than they may, and nothing can be done.
    pub is_stuck: bool,
    /// It goes on to clean a block.
    pub cleans: bool,
}

impl Cleaning {
    /// Nobody waits. From now on whoever does raises `activity`.
    pub fn raising(activity: Arc<Event>) -> Self {
        Self {
            activity,
            ..Self::default()
        }
    }

    /// The thread begins to look at the blocks.
    pub fn begin_pass(&self) {
        let mut passes = self.passes.lock();
        passes.begun += 1;
        passes.is_resting = false;
    }

    /// Says what it has found.
    pub fn publish(&self, finding: Finding) {
        let mut passes = self.passes.lock();
        passes.ended = passes.begun;
        passes.finding = finding;
        self.signal.notify_all();
    }

    /// The thread could not do its work, and rests.
    pub fn failed(&self) {
        self.publish(Finding {
            is_stuck: true,
            ..Finding::default()
        });
        self.passes.lock().is_resting = true;
        self.signal.notify_all();
    }

    /// Something was moved or deleted.
    pub fn progress(&self) {
        self.progress.fetch_add(1, Ordering::AcqRel);
        let _passes = self.passes.lock();
        self.signal.notify_all();
    }

    /// How much was moved or deleted.
    fn progress_so_far(&self) -> u64 {
        self.progress.load(Ordering::Acquire)
    }

    /// Waits for a writer in need, at most `wait`.
    pub fn wait_for_work(&self, wait: Duration) {
        let mut guard = self.passes.lock();
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

    /// Whether there is no room for what comes next.
    pub fn is_tight(&self, engine: &Engine) -> bool {
        self.waiting_for_room.load(Ordering::Acquire) > 0
            || engine.large.lacks_room(engine.options.split_threshold_bytes)
            || log_lacks_room(engine)
    }

    fn finding(&self) -> Finding {
        self.passes.lock().finding
    }

    fn is_over(&self, engine: &Engine) -> bool {
        Bounds::of(engine).holds(&engine.large.totals(), self.finding().tolerated_bytes)
    }

    /// Before large values are written: waits while blocks take more than they may and cleaning can help.
    pub fn hold_back(&self, engine: &Engine) {
        if !self.is_over(engine) {
            return;
        }
        if self.finding().is_stuck {
            self.let_go(NOTHING_TO_RECLAIM);
            return;
        }
        self.held(0, || self.wait(engine));
    }

    /// Counts a writer as waiting while it does.
    fn held<T>(&self, for_room: u64, wait: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        self.waiting.fetch_add(1, Ordering::AcqRel);
        self.waiting_for_room.fetch_add(for_room, Ordering::AcqRel);
        {
            let _passes = self.passes.lock();
            self.signal.notify_all();
        }
        self.activity.raise();
        let outcome = wait();
        self.waiting_for_room.fetch_sub(for_room, Ordering::AcqRel);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        let waited_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.writers_held.fetch_add(1, Ordering::Relaxed);
        self.held_ns.fetch_add(waited_ns, Ordering::Relaxed);
        outcome
    }

    /// Makes attempts to find room for a large value, the next one whenever something was moved or deleted, for as long as
    /// room is on its way.
    ///
    /// # Errors
    /// The last attempt's.
    pub fn find_room<T>(&self, engine: &Engine, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let mut attempt = || engine.log.reserve.refusal(Tier::Large).map_or_else(&mut attempt, Err);
        match attempt() {
            Err(error) if error.is_out_of_space_on(Tier::Large) => {}
            outcome => return outcome,
        }
        self.held(1, || {
            let give_up = Instant::now() + ROOM_PATIENCE;
            let mut until = Instant::now() + PATIENCE;
            loop {
                let seen = self.progress_so_far();
                // Before the attempt: see the module.
                let is_coming = self.is_room_coming(engine);
                match attempt() {
                    Err(error) if error.is_out_of_space_on(Tier::Large) => {
                        if !is_coming || Instant::now() >= until.min(give_up) {
                            return Err(error);
                        }
                    }
                    outcome => return outcome,
                }
                if self.wait_for_progress(engine, seen) {
                    until = Instant::now() + PATIENCE;
                }
            }
        })
    }

    /// Whether anything that was deleted is on its way to giving room back. In the order in which it goes there.
    fn is_room_coming(&self, engine: &Engine) -> bool {
        if engine.log.index_full.reason().is_some() {
            // No block goes before the index has persisted that it is dead.
            return false;
        }
        if engine.log.ranges.count() > 0 {
            return true;
        }
        let deleted_seq = engine.log.committed_seq();
        let is_applied = || engine.log.applied_seq() >= deleted_seq;
        // An error: the store stops, which the next attempt will say.
        engine.log.wait_for(is_applied).is_ok()
            && (self.cleans(engine)
                || engine.large.is_giving_room()
                || (engine.log.reserve.is_shared() && log_gives_room(engine))
                || engine.log.reserve.is_coming())
    }

    /// Whether a look at the blocks that begins now finds one to clean.
    fn cleans(&self, engine: &Engine) -> bool {
        // A worker at rest begins none by itself.
        self.activity.raise();
        let mut passes = self.passes.lock();
        let asked = passes.begun;
        loop {
            if passes.finding.cleans || passes.is_resting || passes.ended > asked {
                return passes.finding.cleans;
            }
            if is_stopping(engine) {
                return false;
            }
            self.signal.notify_all();
            self.signal.wait_for(&mut passes, WAIT_STEP);
        }
    }

    /// Waits until more was moved or deleted than `seen`, but not long: what is on its way may come to be held by a reader.
    fn wait_for_progress(&self, engine: &Engine, seen: u64) -> bool {
        let look_again = Instant::now() + BLOCKS_STEP;
        let mut passes = self.passes.lock();
        loop {
            if self.progress_so_far() != seen {
                return true;
            }
            if is_stopping(engine) || Instant::now() >= look_again {
                return false;
            }
            self.signal.wait_for(&mut passes, WAIT_STEP);
        }
    }

    fn wait(&self, engine: &Engine) {
        let mut seen = self.progress_so_far();
        let mut until = Instant::now() + PATIENCE;
        while self.is_over(engine) && !is_stopping(engine) {
            if self.finding().is_stuck {
                self.let_go(NOTHING_TO_RECLAIM);
                return;
            }
            let now = self.progress_so_far();
            if now != seen {
                (seen, until) = (now, Instant::now() + PATIENCE);
            }
            if Instant::now() >= until {
                self.let_go("cleaning makes no progress");
                return;
            }
            let mut passes = self.passes.lock();
            self.signal.wait_for(&mut passes, WAIT_STEP);
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

/// Whether the log, on the same device, has no room, or the way out has taken its reserve: blocks may be what gives it back.
fn log_lacks_room(engine: &Engine) -> bool {
    let (reserve, segments) = (&engine.log.reserve, &engine.log.segments);
    reserve.is_shared() && (!reserve.is_whole() || segments.is_device_short())
}

fn is_stopping(engine: &Engine) -> bool {
    engine.log.is_closing() || engine.log.writer.failure().is_some()
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
