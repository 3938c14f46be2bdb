//! Compaction strategy: the larger the index, the more runs accumulate before they are merged.
//!
//! Each entry is written once by a flush and again by every merge that includes it. With keys in
//! random order a merge of the first level rewrites all of the next one, and the overflow of that
//! level is merged with some ten tables of the last one for each of its own. So the merge cost of a
//! put grows with the index: with 8 runs and tables of 32 MiB, computed table by table, an entry is
//! merged 4 times until there are 20 million of them, 8 times until 40 million, 11 times until 100
//! million. With twice as many runs each merge has twice as much input; with tables half as long
//! the next level keeps its size. Then it is 3, 5 and 7 times.
//!
//! Cost: a lookup, and each step of a scan, searches more runs, until reads have been charged for
//! their merge ([`super::read_triggered`]).
//!
//! Only parameters; nothing here can fail. Tables written with another shape stay valid.

use super::{OrderedIndex, files::TABLES_DIR};
use lsm_tree::{AbstractTree as _, compaction::Leveled};
use std::{fs, os::unix::fs::MetadataExt as _, path::Path, sync::atomic::Ordering};

/// Runs of the first level of a small index that are merged into the next. Twice the library's
/// default: a put of 1 KiB then costs an eighth less CPU.
const RUNS: u8 = 8;
/// The same for a large index,
const RUNS_OF_LARGE: u8 = 16;
/// and for a huge one.
const RUNS_OF_HUGE: u8 = 24;
/// An index is large from this many bytes of tables on, some 12 million entries: merge costs have
/// doubled by then, while scans are still as fast as before.
const LARGE_BYTES: u64 = 384 << 20;
/// An index is huge from this many bytes on.
const HUGE_BYTES: u64 = 2 << 30;

/// Unit of a file's allocated size, as `stat` returns it.
const DU_BLOCK_BYTES: u64 = 512;

/// How tables are merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// Runs of the first level that are merged into the next.
    pub runs: u8,
    /// Maximum length of the tables that a merge writes.
    pub table_bytes: u64,
}

impl Shape {
    /// The shape for an index of so many bytes, with tables of this length while it is small.
    pub const fn of(index_bytes: u64, table_bytes: u64) -> Self {
        let (runs, table_bytes) = match index_bytes {
            ..LARGE_BYTES => (RUNS, table_bytes),
            LARGE_BYTES..HUGE_BYTES => (RUNS_OF_LARGE, table_bytes.div_ceil(2)),
            HUGE_BYTES.. => (RUNS_OF_HUGE, table_bytes.div_ceil(2)),
        };
        Self { runs, table_bytes }
    }

    /// Maximum bytes of the level below the runs before it is merged further.
    pub const fn level_bytes(self) -> u64 {
        self.table_bytes.saturating_mul(self.runs as u64)
    }

    pub fn strategy(self) -> Leveled {
        Leveled::default()
            .with_l0_threshold(self.runs)
            .with_table_target_size(self.table_bytes)
    }
}

impl OrderedIndex {
    /// The present shape.
    pub(super) fn shape(&self) -> Shape {
        Shape::of(self.tree.disk_space(), self.options.table_bytes)
    }

    /// Bytes of its tables.
    pub fn disk_bytes(&self) -> u64 {
        self.tree.disk_space()
    }

    /// Bytes of the files in its directory, including tables being written and those that only
    /// older readers hold.
    pub fn files_bytes(&self) -> u64 {
        let bytes = |dir: &Path| -> u64 {
            let items = fs::read_dir(dir).into_iter().flatten().flatten();
            let files = items.filter_map(|item| item.metadata().ok());
            files.map(|file| file.blocks() * DU_BLOCK_BYTES).sum()
        };
        bytes(&self.dir) + bytes(&self.dir.join(TABLES_DIR))
    }

    /// Sets the maximum size of merges that only readers need.
    pub fn set_merge_room(&self, bytes: u64) {
        self.merge_room_bytes.store(bytes, Ordering::Release);
    }

    pub(super) fn has_room_to_merge(&self, bytes: u64) -> bool {
        bytes <= self.merge_room_bytes.load(Ordering::Acquire)
    }

    /// Runs of the first level that are merged together.
    pub fn runs_merged_at_once(&self) -> usize {
        usize::from(self.shape().runs)
    }

    /// Whether so many runs wait that they are merged next. Not if merges meet damage.
    pub fn awaits_merge(&self) -> bool {
        self.l0_runs() >= self.runs_merged_at_once() && !self.is_damaged()
    }

    /// Runs of the first level beyond those that are merged together: the number of flushes by
    /// which merges are behind.
    pub fn runs_behind(&self) -> usize {
        self.l0_runs().saturating_sub(self.runs_merged_at_once())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_runs_come_together_as_an_index_grows() {
        const MIB: u64 = 1 << 20;
        let shape = |index_mib: u64| Shape::of(index_mib * MIB, 32 * MIB);
        let by_size = [0, 383, 384, 2047, 2048, 100 << 10].map(|mib| (shape(mib).runs, shape(mib).table_bytes / MIB));
        assert_eq!(by_size, [(8, 32), (8, 32), (16, 16), (16, 16), (24, 16), (24, 16)]);
        // The level below them never gets shorter, or it would overflow as the index grows.
        let levels = [383, 384, 2048].map(|mib| shape(mib).level_bytes() / MIB);
        assert_eq!(levels, [256, 256, 384]);
    }
}
