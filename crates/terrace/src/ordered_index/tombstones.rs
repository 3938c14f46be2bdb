//! Compaction charged to deletions.
//!
//! A deletion adds an entry, a *tombstone*; it and the entries that it hides are dropped when a
//! merge takes both into the last level. The library merges by size alone: after many deletions
//! without other writes both stay, and each scan over those keys steps over all of them.
//!
//! So tombstones are charged for the merge of their level with the next one: it is executed when
//! there are enough tombstones for the bytes that it reads and writes, level by level from the runs
//! downwards, until they are gone. A memtable with enough of them is flushed for that.
//!
//! Invariants:
//! - Merges for tombstones write at most [`ENTRIES_PER_TOMBSTONE`] entries for each, in each level,
//!   or [`BYTES_PER_TOMBSTONE`] if that is more.
//! - No merge is useless: it removes tombstones from their level. In the last level this requires
//!   that no snapshot is older, and only then that level is merged with itself.
//!
//! Levels are merged as a whole, since the library's interface has no other choice: so in an index
//! much larger than its deleted part, tombstones wait for merges by size.

use super::{OrderedIndex, background::Choice, read_seqno, read_triggered::LAST_LEVEL};
use crate::Result;
use lsm_tree::{AbstractTree as _, Table, compaction::PullDown};
use parking_lot::Mutex;
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Entries that may be merged per tombstone, in each level: twice as many as are rewritten anyway
/// per entry that moves down a level, at a level ratio of ten. With this, if 600,000 of a million
/// keys are deleted, a scan steps over the tombstones that are not merged in 20 ms.
const ENTRIES_PER_TOMBSTONE: u64 = 20;
/// Minimum bytes of tables merged for each: ten of the shortest entries.
const BYTES_PER_TOMBSTONE: u64 = 512;
/// Fewer are ignored: a scan steps over them, and the entries they hide, in some milliseconds.
const TOMBSTONES_MIN: u64 = 8_192;
/// Minimum interval between merges of the runs for tombstones: otherwise, if a caller deletes
/// without pause, each flush would be merged with the next level.
const INTERVAL: Duration = Duration::from_secs(10);

/// Tombstones that are in no table yet, and the time of the last merge for those in tables.
#[derive(Debug, Default)]
pub(super) struct Tombstones {
    in_memtable: AtomicU64,
    pub(super) merged_at: Mutex<Option<Instant>>,
}

impl Tombstones {
    /// The memtable has one more. Only the applier calls it.
    pub fn added(&self) {
        self.in_memtable.fetch_add(1, Ordering::Relaxed);
    }

    /// The memtable was sealed.
    pub fn sealed(&self) {
        self.in_memtable.store(0, Ordering::Relaxed);
    }

    fn are_due(&self) -> bool {
        self.merged_at.lock().is_none_or(|at| at.elapsed() >= INTERVAL)
    }
}

/// Contents of a level.
#[derive(Debug, Clone, Copy, Default)]
struct LevelShare {
    bytes: u64,
    /// Entries, including tombstones.
    items: u64,
    tombstones: u64,
    highest_seqno: u64,
}

impl OrderedIndex {
    /// Tombstones in tables and in the memtable.
    pub fn tombstones(&self) -> u64 {
        let in_tables: u64 = self
            .tree
            .current_version()
            .iter_tables()
            .map(Table::tombstone_count)
            .sum();
        in_tables + self.tombstones.in_memtable.load(Ordering::Relaxed)
    }

    /// Merges a level for its tombstones, if their charges suffice. `false` if those of no level
    /// do. To be called when [`OrderedIndex::compact`] had nothing to do.
    ///
    /// # Errors
    /// As for [`OrderedIndex::compact`].
    pub fn merge_for_tombstones(&self, watermark_seq: u64) -> Result<bool> {
        self.compact_by(watermark_seq, || {
            let (from, into) = self.level_to_merge(watermark_seq)?;
            if from == 0 {
                // Before the merge: if it fails, it is not tried again at once.
                *self.tombstones.merged_at.lock() = Some(Instant::now());
            }
            Some(Choice::by(PullDown(from, into)))
        })
    }

    /// Whether the memtable has enough tombstones to pay for a merge once they are in a table.
    pub fn wants_tombstones_flushed(&self) -> bool {
        let in_memtable = self.tombstones.in_memtable.load(Ordering::Relaxed);
        if in_memtable < TOMBSTONES_MIN || !self.tombstones.are_due() {
            return false;
        }
        let levels = self.level_shares();
        let (runs, next) = (levels[0], levels[below(&levels, 0)]);
        let memtable = self.tree.active_memtable();
        pay(
            in_memtable + runs.tombstones,
            runs.items + next.items + memtable.len() as u64,
            runs.bytes + next.bytes + memtable.size(),
        )
    }

    fn level_shares(&self) -> [LevelShare; LAST_LEVEL + 1] {
        let mut shares = [LevelShare::default(); LAST_LEVEL + 1];
        let state = self.tree.current_version();
        for (share, level) in shares.iter_mut().zip(state.iter_levels()) {
            share.bytes = level.size();
            for table in level.iter().flat_map(|run| run.iter()) {
                share.items += table.metadata.item_count;
                share.tombstones += table.tombstone_count();
                share.highest_seqno = share.highest_seqno.max(table.get_highest_seqno());
            }
        }
        shares
    }

    /// The first level whose tombstones pay for a merge, and its target level.
    fn level_to_merge(&self, watermark_seq: u64) -> Option<(u8, u8)> {
        let levels = self.level_shares();
        let seqno = read_seqno(watermark_seq.min(self.applied_seq()));
        let (from, into) = (0..=LAST_LEVEL).find_map(|from| {
            let into = below(&levels, from);
            let others = if into == from {
                LevelShare::default()
            } else {
                levels[into]
            };
            let (items, bytes) = (levels[from].items + others.items, levels[from].bytes + others.bytes);
            let goes = match from {
                0 => self.tombstones.are_due(),
                LAST_LEVEL => levels[from].highest_seqno < seqno,
                _ => true,
            };
            let is_merged = goes && pay(levels[from].tombstones, items, bytes);
            is_merged.then_some((from, into))
        })?;
        Some((u8::try_from(from).ok()?, u8::try_from(into).ok()?))
    }
}

/// The target level of a merge: the next one that is not empty, or the last.
fn below(levels: &[LevelShare], from: usize) -> usize {
    let next = (from + 1..levels.len()).find(|level| levels[*level].bytes > 0);
    next.unwrap_or(LAST_LEVEL)
}

/// Whether tombstones pay for a merge of so many entries, with so many bytes in total.
const fn pay(tombstones: u64, items: u64, bytes: u64) -> bool {
    tombstones >= TOMBSTONES_MIN
        && (tombstones.saturating_mul(ENTRIES_PER_TOMBSTONE) >= items
            || tombstones.saturating_mul(BYTES_PER_TOMBSTONE) >= bytes)
}
