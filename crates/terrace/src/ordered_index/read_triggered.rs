//! Read-triggered compaction: charges for lookups in unmerged runs, and the merges that they
//! trigger.
//!
//! A run of the first level is one more place that each step of a scan must look into, and each
//! lookup of a key that is not in a newer one; so is a memtable for a scan. The library merges the
//! first level when some runs have accumulated ([`super::shape`]), so that not every flush rewrites
//! the index. It has no information about readers: after the last flush of a burst one run less
//! than that may stay for as long as nothing is written.
//!
//! Charges are therefore counted, in *looks*: steps of scans and lookups, each as often as it had
//! to look into a run that a merge would have avoided. A memtable has every version of a key that
//! was written since it was begun, and a scan steps over all but the newest: each step counts as
//! many looks as there are versions of a key, on average. When the charges for runs have reached
//! the cost of a merge, the first level is merged into the next; when the charges for memtables
//! have reached the cost of a flush, the memtable is sealed (the engine does so only while nothing
//! is written: otherwise many short runs would follow). This is ski rental, like LevelDB's
//! `allowed_seeks`: in any case looks and merges together cost at most twice the optimum with known
//! future.
//!
//! Invariants:
//! - Without readers nothing is merged that the library would not merge: a store that is only
//!   written writes no more bytes. The engine's own walks and lookups are not counted, since they
//!   happen with or without readers.
//! - Charges are spent once. Bytes written by merges for readers are at most [`BYTES_PER_LOOK`]
//!   times the charged looks.
//!
//! Only figures in RAM: on failure, and when the index is closed, they are lost, and counting
//! starts over.

use super::OrderedIndex;
use crate::metrics::striped::Striped;
use lsm_tree::AbstractTree as _;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Bytes of tables that are merged in the time of one look into a run. Measured by processor time,
/// with 360,000 to 660,000 entries of 41 bytes: each additional run costs a step of a scan 60 ns
/// (179 in one run, 355 in four) and a lookup of an absent key 75; a flush takes 320 ns an entry,
/// and a merge of eight runs about twice that.
pub(super) const BYTES_PER_LOOK: u64 = 4;
/// Bytes of a memtable, as the library counts them, that are flushed in the time of one look at it:
/// 85 ns for a step of a scan, 3.2 ns for each of these bytes.
const MEMTABLE_BYTES_PER_LOOK: u64 = 24;
/// Cost of beginning a scan in a run, in steps.
const LOOKS_PER_BEGINNING: u64 = 8;
/// Steps of a scan that are charged together.
const STEPS_TOGETHER: u64 = 256;
/// The last level, which the library fills first.
pub(super) const LAST_LEVEL: usize = 6;

/// Charges of readers.
#[derive(Debug, Default)]
pub(super) struct Looks {
    runs: Account,
    memtables: Account,
}

#[derive(Debug, Default)]
struct Account {
    paid: Striped<AtomicU64>,
    /// The part that is spent.
    spent: AtomicU64,
}

impl Account {
    fn pay(&self, looks: u64) {
        if looks > 0 {
            self.paid.own().fetch_add(looks, Ordering::Relaxed);
        }
    }

    fn left(&self) -> u64 {
        let paid = self.paid.sum(|paid| paid);
        paid.saturating_sub(self.spent.load(Ordering::Relaxed))
    }

    fn buys(&self, bytes: u64, bytes_per_look: u64) -> bool {
        self.left().saturating_mul(bytes_per_look) >= bytes.max(1)
    }

    fn spend(&self) {
        self.spent.store(self.paid.sum(|paid| paid), Ordering::Relaxed);
    }
}

impl Looks {
    /// A lookup searched this many runs that a merge would save.
    pub fn pay_for_runs(&self, looks: u64) {
        self.runs.pay(looks);
    }

    /// The first level is merged: the charges for it are spent.
    pub fn spend_on_runs(&self) {
        self.runs.spend();
    }
}

/// What a scan pays.
pub(super) struct Fare {
    looks: Arc<Looks>,
    /// Runs and memtables it looks at that it could be spared.
    runs: u64,
    memtables: u64,
    steps: u64,
}

impl Fare {
    /// The scan took a step.
    pub fn step(&mut self) {
        self.steps += 1;
        if self.steps >= STEPS_TOGETHER {
            self.pay();
        }
    }

    fn pay(&mut self) {
        let steps = std::mem::take(&mut self.steps);
        self.looks.runs.pay(steps * self.runs);
        self.looks.memtables.pay(steps * self.memtables);
    }
}

impl Drop for Fare {
    fn drop(&mut self) {
        self.pay();
    }
}

/// A merge of the first level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MergeOfRuns {
    /// The level that it is merged into.
    pub into: u8,
    /// Of the tables that are merged.
    pub bytes: u64,
}

impl OrderedIndex {
    /// What a scan that begins now pays.
    pub(super) fn fare(&self) -> Fare {
        let state = self.tree.current_version();
        let has_deeper = state.iter_levels().skip(1).any(|level| !level.is_empty());
        let runs = state.l0().run_count() as u64;
        Fare {
            looks: Arc::clone(&self.looks),
            runs: spared(runs, has_deeper),
            memtables: self.looks_at_memtables(),
            steps: LOOKS_PER_BEGINNING,
        }
    }

    /// At how many items of memtables a step of a scan looks: one of each that has any, and as many
    /// more as their keys have older versions.
    fn looks_at_memtables(&self) -> u64 {
        let active = self.tree.active_memtable();
        let memtables = u64::from(!active.is_empty()) + self.tree.sealed_memtable_count() as u64;
        let items: usize = self.memtables(&self.marks.lock()).map(|memtable| memtable.len()).sum();
        memtables * (items as u64 / self.live.keys().max(1)).max(1)
    }

    /// The merge that empties the first level (L0), if there is anything to merge. Its output level
    /// is the one that the library would choose: the first level below that is not empty, or the
    /// one above the last if only the last is not empty and is larger than the library allows the
    /// first to be.
    pub(super) fn merge_of_runs(&self) -> Option<MergeOfRuns> {
        let state = self.tree.current_version();
        let levels: Vec<u64> = state.iter_levels().map(|level| level.size()).collect();
        let runs = state.l0().run_count();
        let first = (1..levels.len()).find(|level| levels[*level] > 0).unwrap_or(LAST_LEVEL);
        let is_full = first == LAST_LEVEL && levels[first] > self.shape().level_bytes();
        let into = if is_full { LAST_LEVEL - 1 } else { first };
        let others = usize::from(levels[into] > 0);
        (runs > 0 && runs + others > 1).then(|| MergeOfRuns {
            // Of seven.
            into: into as u8,
            bytes: levels[0] + levels[into],
        })
    }

    /// Whether the charges of readers are sufficient for this merge.
    pub(super) fn is_paid(&self, merge: MergeOfRuns) -> bool {
        self.looks.runs.buys(merge.bytes, BYTES_PER_LOOK)
    }

    /// Whether the charges of readers are sufficient to flush the memtables. Spends them.
    #[must_use]
    pub fn take_fare_of_flush(&self) -> bool {
        let memtable = self.tree.active_memtable();
        let is_bought = !memtable.is_empty() && self.looks.memtables.buys(memtable.size(), MEMTABLE_BYTES_PER_LOOK);
        if is_bought {
            self.looks.memtables.spend();
        }
        is_bought
    }
}

/// Of this many runs of the first level, the number that merging all of them would save a reader.
pub(super) const fn spared(runs: u64, has_deeper: bool) -> u64 {
    if has_deeper { runs } else { runs.saturating_sub(1) }
}
