//! What block GC does and who waits for it: the state that the worker, waiting writers and figures
//! share.
//!
//! The worker publishes what it finds at each look at the blocks; writers that lack room wake it.
//! Neither decides for the other: the worker is in `maintenance`, where writers wait is
//! `write::stall`.

mod policy;

pub use policy::{Bounds, Picture, Plan};

use crate::metrics::event::Event;
use parking_lot::{Mutex, MutexGuard};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// How often waiting writers look whether the store stops.
const WAIT_STEP: Duration = Duration::from_millis(20);
/// At most this often it is logged that writers are let go.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// What block GC does and who waits for it, shared.
#[derive(Debug, Default)]
pub struct BlockGcState {
    /// Held by the thread while it changes anything.
    at_work: Mutex<()>,
    /// Counts what was moved or deleted.
    progress: AtomicU64,
    passes: Mutex<Passes>,
    /// Raised when something was found, moved or deleted, and when a writer begins to wait.
    pub changed: Event,
    /// Wakes the thread where nothing else does.
    activity: Arc<Event>,
    warned_at: Mutex<Option<Instant>>,
    /// Blocks emptied since the store was opened.
    pub blocks_reclaimed: AtomicU64,
    /// Blocks that could not be emptied.
    pub blocks_set_aside: AtomicU64,
    /// What could be reclaimed of those.
    pub set_aside_bytes: AtomicU64,
    /// Writes over the limit that went on all the same.
    pub writers_let_go: AtomicU64,
}

/// The thread's looks at the blocks.
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

/// What the thread has found.
#[derive(Debug, Clone, Copy, Default)]
pub struct Finding {
    /// Bytes at rest that cannot be reclaimed now.
    pub tolerated_bytes: u64,
    /// Blocks take more than they may, and nothing can be done.
    pub is_stuck: bool,
    /// It goes on to clean a block.
    pub cleans: bool,
}

impl BlockGcState {
    /// Nothing was found yet. Whoever asks what would be raises `activity`.
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
        drop(passes);
        self.changed.raise();
    }

    /// The thread could not do its work, and rests.
    pub fn failed(&self) {
        self.publish(Finding {
            is_stuck: true,
            ..Finding::default()
        });
        self.passes.lock().is_resting = true;
        self.changed.raise();
    }

    /// What may be there has changed.
    pub fn look_again(&self) {
        self.activity.raise();
        self.changed.raise();
    }

    /// Something was moved or deleted.
    pub fn progress(&self) {
        self.progress.fetch_add(1, Ordering::AcqRel);
        self.changed.raise();
    }

    /// How much was moved or deleted.
    pub fn progress_so_far(&self) -> u64 {
        self.progress.load(Ordering::Acquire)
    }

    /// Waits for a writer in need, at most `wait`.
    pub fn wait_for_work(&self, has_waiting: bool, wait: Duration) {
        let wait = if has_waiting { WAIT_STEP } else { wait };
        self.changed.wait_beyond(self.changed.count(), wait);
    }

    /// While this is held the thread changes nothing.
    pub fn at_work(&self) -> MutexGuard<'_, ()> {
        self.at_work.lock()
    }

    /// What it has found last.
    pub fn finding(&self) -> Finding {
        self.passes.lock().finding
    }

    /// Whether a look at the blocks that begins now finds one to clean.
    pub fn cleans(&self, is_stopping: impl Fn() -> bool) -> bool {
        // A worker at rest begins none by itself.
        self.activity.raise();
        let asked = self.passes.lock().begun;
        loop {
            self.changed.raise();
            let seen = self.changed.count();
            {
                let passes = self.passes.lock();
                if passes.finding.cleans || passes.is_resting || passes.ended > asked {
                    return passes.finding.cleans;
                }
            }
            if is_stopping() {
                return false;
            }
            self.changed.wait_beyond(seen, WAIT_STEP);
        }
    }

    /// A writer goes on over the limit.
    pub fn let_go(&self, why: &str) {
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
