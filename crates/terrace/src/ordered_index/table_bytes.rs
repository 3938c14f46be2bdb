//! How many bytes of tables flushes and compactions have written, and which files are tables.
//!
//! The library reports neither, so its tables are listed after each flush or compaction, and before
//! a compaction begins, and each is counted the first time it is seen. A table of a flush has an
//! item newer than all before (at least its mark); a table of a compaction has not.
//!
//! A file that was never a table of any state is left from a failed flush or compaction: on a full
//! device such files would use up any room that is freed.
//!
//! On failure: tables of a failed flush or compaction are not counted, nor are the small files by
//! which the library names the current state.

use lsm_tree::{AbstractTree as _, SeqNo, Table, TableId, Tree};
use parking_lot::Mutex;
use std::{
    collections::HashSet,
    fs,
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
};

/// Deleted tables are removed from the map when it has this many more than exist.
const GONE_MAX: usize = 1024;

/// Bytes of tables since the index was opened.
pub(super) struct WrittenTables {
    /// Where they are.
    dir: PathBuf,
    known: Mutex<Known>,
    /// Of the copies of the state, which each flush or compaction makes.
    pub state_copy_bytes: AtomicU64,
    /// By flushes.
    pub flushed_bytes: AtomicU64,
    /// By compactions.
    pub compacted_bytes: AtomicU64,
    /// Compactions that wrote tables; those that only move some to another level do not count.
    pub compactions: AtomicU64,
}

struct Known {
    /// Of this state and of earlier ones, which a snapshot may still read.
    tables: HashSet<TableId>,
    highest_seqno: SeqNo,
}

impl WrittenTables {
    /// Starts with the present tables.
    pub(super) fn new(tree: &Tree, dir: PathBuf) -> Self {
        let version = tree.current_version();
        let highest = version.iter_tables().map(Table::get_highest_seqno).max();
        Self {
            dir,
            known: Mutex::new(Known {
                tables: version.iter_tables().map(|table| table.id()).collect(),
                highest_seqno: highest.unwrap_or(0),
            }),
            state_copy_bytes: AtomicU64::new(0),
            flushed_bytes: AtomicU64::new(0),
            compacted_bytes: AtomicU64::new(0),
            compactions: AtomicU64::new(0),
        }
    }

    /// Counts the tables that are new.
    pub(super) fn look(&self, tree: &Tree) {
        let mut known = self.known.lock();
        // Read under the lock, so that no update sees an older state than the one before. The state
        // keeps its tables' files.
        let version = tree.current_version();
        let before = known.highest_seqno;
        let mut compacted = false;
        for table in version.iter_tables() {
            if !known.tables.insert(table.id()) {
                continue;
            }
            // The table's own figure leaves out the blocks behind its index.
            let bytes = fs::metadata(&*table.path).map_or(table.metadata.file_size, |file| file.len());
            let newest = table.get_highest_seqno();
            let is_flushed = newest > before;
            compacted |= !is_flushed;
            let counter = if is_flushed {
                &self.flushed_bytes
            } else {
                &self.compacted_bytes
            };
            counter.fetch_add(bytes, Ordering::Relaxed);
            known.highest_seqno = known.highest_seqno.max(newest);
        }
        // There is an update after each compaction, and one compaction at a time.
        self.compactions.fetch_add(u64::from(compacted), Ordering::Relaxed);
        if known.tables.len() > version.table_count() + GONE_MAX {
            known.tables.retain(|id| self.dir.join(id.to_string()).exists());
        }
    }

    /// Removes files that are tables of no state. No flush and no compaction may be running.
    pub(super) fn remove_leftovers(&self, tree: &Tree) {
        self.look(tree);
        let known = self.known.lock();
        let Ok(items) = fs::read_dir(&self.dir) else { return };
        for item in items.flatten() {
            let id = item.file_name().to_str().and_then(|name| name.parse::<TableId>().ok());
            if id.is_some_and(|id| !known.tables.contains(&id))
                && let Err(error) = fs::remove_file(item.path())
            {
                tracing::warn!(%error, "a table that was not finished is left behind");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::ordered_index::tests::{flash_entry, mark, open};
    use std::{collections::HashMap, fs, path::Path};

    /// Tables in the directory with their lengths.
    fn tables(dir: &Path) -> HashMap<String, u64> {
        let Ok(items) = fs::read_dir(dir.join("tables")) else {
            return HashMap::new();
        };
        items
            .map(|item| item.unwrap())
            .map(|item| (item.file_name().into_string().unwrap(), item.metadata().unwrap().len()))
            .collect()
    }

    /// Bytes of the tables that are in the directory and not among `before`.
    fn new_bytes(dir: &Path, before: &HashMap<String, u64>) -> u64 {
        let new = tables(dir).into_iter().filter(|(name, _)| !before.contains_key(name));
        new.map(|(_, bytes)| bytes).sum()
    }

    #[test]
    fn flushes_and_compactions_are_counted_by_the_files_they_make() {
        let dir = tempfile::tempdir().unwrap();
        let (mut flushed, mut compacted, mut compactions) = (0, 0, 0);
        let mut seq = 0;
        for _ in 0..2 {
            let (index, _) = open(dir.path());
            let mut applier = index.applier().unwrap();
            let (flushed_before, compacted_before, compactions_before) = (flushed, compacted, compactions);
            for _ in 0..30 {
                for _ in 0..100 {
                    seq += 1;
                    applier.insert(format!("key {}", seq * 7919 % 3000).as_bytes(), &flash_entry(seq), seq);
                    applier.applied(seq);
                }
                let before = tables(dir.path());
                applier.rotate(mark(seq)).unwrap();
                index.flush_sealed(seq).unwrap();
                flushed += new_bytes(dir.path(), &before);
                loop {
                    let before = tables(dir.path());
                    if !index.compact(seq).unwrap() {
                        break;
                    }
                    // Moved from level to level tables keep their names, and nothing is written.
                    let bytes = new_bytes(dir.path(), &before);
                    compacted += bytes;
                    compactions += u64::from(bytes > 0);
                }
                let stats = index.stats();
                assert_eq!(stats.flushed_bytes, flushed - flushed_before, "at seq {seq}");
                assert_eq!(stats.compacted_bytes, compacted - compacted_before, "at seq {seq}");
                assert_eq!(stats.compactions, compactions - compactions_before, "at seq {seq}");
            }
            assert!(compacted > compacted_before, "there were no compactions to count");
        }
    }
}
