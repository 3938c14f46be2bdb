//! State of block GC that the worker, waiting writers and figures share.
//!
//! The worker publishes its result at each check of the blocks; writers that lack room wake it.
//! They are independent: the worker is in `maintenance`, the waiting code of writers in
//! `write::stall`.

mod policy;

pub use policy::{Bounds, Picture, Plan};

use crate::metrics::event::Event;
use parking_lot::{Mutex, MutexGuard};
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// How often waiting writers look whether the store stops.
const WAIT_STEP: Duration = Duration::from_millis(20);
/// Minimum interval of warnings about writers over the limit.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// State of block GC and the writers that wait for it, shared.
#[derive(Debug, Default)]
pub struct BlockGcState {
    /// Held by the thread while it changes anything.
    at_work: Mutex<()>,
    /// Incremented for each move and deletion.
    progress: AtomicU64,
    passes: Mutex<Passes>,
    /// Raised when something was found, moved or deleted, and when a writer begins to wait.
    pub changed: Event,
    /// Wakes the thread if nothing else does.
    activity: Arc<Event>,
    warned_at: Mutex<Option<Instant>>,
    /// Drained blocks that still exist. Every key in them was looked up in the index.
    emptied: Mutex<BTreeSet<u64>>,
    /// Blocks emptied since the store was opened.
    pub blocks_reclaimed: AtomicU64,
    /// Blocks that could not be emptied.
    pub blocks_set_aside: AtomicU64,
    /// Bytes that could be reclaimed in these.
    pub set_aside_bytes: AtomicU64,
    /// Writes that were admitted although the limit was exceeded.
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
    /// At this state there was nothing to drain.
    idle_as_of: Option<AsOf>,
    /// Incremented for other changes that may affect the result of a check.
    changes: u64,
}

impl Passes {
    /// Invalidates the results of checks that have begun.
    fn change(&mut self) {
        self.idle_as_of = None;
        self.changes += 1;
    }
}

/// The inputs of a check of the blocks, besides moves and deletions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AsOf {
    /// Everything up to this seq is applied.
    pub applied_seq: u64,
    /// No snapshot is older than this.
    pub watermark_seq: u64,
    /// The live bytes of each block are known.
    pub is_accounted: bool,
}

/// Findings of the thread.
#[derive(Debug, Clone, Copy, Default)]
pub struct Finding {
    /// Bytes at rest that cannot be reclaimed now.
    pub tolerated_bytes: u64,
    /// Blocks exceed their limit, and nothing can be done.
    pub is_stuck: bool,
    /// It drains another block next.
    pub cleans: bool,
}

impl BlockGcState {
    /// No result yet. A call that needs the result of a check raises `activity`.
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

    /// A block was walked from end to end, and its live values were moved: since no new entry ever
    /// points into a block at rest, it stays empty.
    pub fn emptied(&self, number: u64) {
        self.blocks_reclaimed.fetch_add(1, Ordering::Relaxed);
        self.emptied.lock().insert(number);
    }

    /// Whether it was emptied since the store was opened, and is still there.
    pub fn has_emptied(&self, number: u64) -> bool {
        self.emptied.lock().contains(&number)
    }

    /// Drained blocks, without those that `is_there` does not find.
    pub fn emptied_and_there(&self, is_there: impl Fn(u64) -> bool) -> Vec<u64> {
        let mut emptied = self.emptied.lock();
        emptied.retain(|number| is_there(*number));
        emptied.iter().copied().collect()
    }

    /// Publishes the result of a check.
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

    /// A new check may have another result.
    pub fn look_again(&self) {
        self.passes.lock().change();
        self.activity.raise();
        self.changed.raise();
    }

    /// Something was moved or deleted.
    pub fn progress(&self) {
        self.passes.lock().change();
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

    /// While this is held, the thread changes nothing.
    pub fn at_work(&self) -> MutexGuard<'_, ()> {
        self.at_work.lock()
    }

    /// The last result.
    pub fn finding(&self) -> Finding {
        self.passes.lock().finding
    }

    /// Whether a check of the blocks that begins now finds one to drain. After a check without
    /// result there is no other one until something changes: otherwise each refused write on a full
    /// device would wait for the thread.
    pub fn cleans(&self, as_of: AsOf, is_stopping: impl Fn() -> bool) -> bool {
        // A worker at rest begins none by itself.
        self.activity.raise();
        let (asked, changes) = {
            let passes = self.passes.lock();
            if passes.idle_as_of == Some(as_of) && !passes.finding.cleans {
                return false;
            }
            (passes.begun, passes.changes)
        };
        loop {
            self.changed.raise();
            let seen = self.changed.count();
            {
                let mut passes = self.passes.lock();
                let has_looked = passes.ended > asked;
                if passes.finding.cleans || passes.is_resting || has_looked {
                    let is_idle = has_looked && !passes.finding.cleans && !passes.is_resting;
                    passes.idle_as_of = (is_idle && passes.changes == changes).then_some(as_of);
                    return passes.finding.cleans;
                }
            }
            if is_stopping() {
                return false;
            }
            self.changed.wait_beyond(seen, WAIT_STEP);
        }
    }

    /// Admits a writer over the limit.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: four clients had values of 1 MB refused. One refusal in a hundred took 8 to 47
    /// ms under other load: each refusal made the thread of block GC check all blocks.
    #[test]
    fn one_look_at_the_blocks_serves_all_questions_about_one_seq() {
        let gc = BlockGcState::default();
        let as_of = |seq| AsOf {
            applied_seq: seq,
            watermark_seq: seq,
            is_accounted: true,
        };
        let asks = |seq: u64| {
            let is_asked = std::sync::atomic::AtomicBool::new(false);
            std::thread::scope(|scope| {
                let asking = scope.spawn(|| gc.cleans(as_of(seq), || is_asked.load(Ordering::Acquire)));
                let mut looks = 0;
                let until = Instant::now() + Duration::from_secs(5);
                while !asking.is_finished() && Instant::now() < until {
                    gc.begin_pass();
                    gc.publish(Finding::default());
                    looks += 1;
                    std::thread::sleep(Duration::from_millis(1));
                }
                is_asked.store(true, Ordering::Release);
                looks
            })
        };
        assert!(asks(7) > 0);
        let is_stopping = || panic!("it waits");
        assert!(!gc.cleans(as_of(7), is_stopping), "at once");
        // Something else was committed, moved, or admitted.
        assert!(asks(8) > 0);
        gc.progress();
        assert_eq!(gc.passes.lock().idle_as_of, None);
        assert!(asks(8) > 0);
        gc.look_again();
        assert_eq!(gc.passes.lock().idle_as_of, None);
        assert!(asks(8) > 0);
        gc.publish(Finding {
            cleans: true,
            ..Finding::default()
        });
        assert!(gc.cleans(as_of(8), is_stopping), "what it found since");
    }

    /// A check did not see what was deleted after it had begun, and all callers with the same seq
    /// got the result that no room will be freed.
    #[test]
    fn a_look_that_something_came_after_is_no_answer_for_others() {
        let gc = BlockGcState::default();
        let as_of = AsOf {
            applied_seq: 7,
            watermark_seq: 7,
            is_accounted: true,
        };
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| gc.cleans(as_of, || false));
            let seen = gc.changed.count();
            gc.changed.wait_beyond(seen, Duration::from_millis(50));
            gc.begin_pass();
            gc.progress();
            while !asking.is_finished() {
                gc.publish(Finding::default());
                gc.begin_pass();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        assert_eq!(gc.passes.lock().idle_as_of, None);
    }
}
