//! How many bytes of tables flushes and compactions have written.
//!
//! The library tells neither, so the tables are looked at whenever a flush or a compaction is over:
//! a table that was not there before was written by one or the other, and by which one its items
//! say. A flush writes what is newer than all tables before it (it has at least the mark, and no
//! two marks have the same seq); a compaction writes again what tables held when it began. So a
//! table that has an item newer than those of all tables that were known is a flush's, any other
//! new one a compaction's.
//!
//! Invariants: each table is counted once. The tables are looked at before a compaction begins as
//! well, so what it may merge is known by then. (Were a flush to install a table between that look
//! and the library's choice of tables, and its own look to come only after the merge is over, that
//! table would be missed and the merge's taken for a flush's: a thread would have to stand still
//! for all of a merge.)
//!
//! What is known here also tells what a flush or compaction that failed has left behind: files that
//! were never in any state. On a full device they would eat what room somebody makes, since every
//! attempt leaves more of them.
//!
//! On failure: tables of a flush or compaction that failed are not counted, nor are the small files
//! that name the current state.

use lsm_tree::{AbstractTree as _, SeqNo, TableId, Tree};
use parking_lot::Mutex;
use std::{
    collections::HashSet,
    fs,
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
};

/// Retired tables are forgotten when there are this many and their files are gone.
const RETIRED_MAX: usize = 1024;

/// Bytes of tables since the index was opened.
pub(super) struct WrittenTables {
    /// Where they are.
    dir: PathBuf,
    known: Mutex<Known>,
    flushed_bytes: AtomicU64,
    compacted_bytes: AtomicU64,
    compactions: AtomicU64,
}

#[derive(Default)]
struct Known {
    /// Of the current state.
    tables: HashSet<TableId>,
    /// Of earlier states, which a snapshot may still read.
    retired: HashSet<TableId>,
    highest_seqno: SeqNo,
}

impl WrittenTables {
    /// Starts with what is there.
    pub(super) fn new(tree: &Tree, dir: PathBuf) -> Self {
        let written = Self {
            dir,
            known: Mutex::default(),
            flushed_bytes: AtomicU64::new(0),
            compacted_bytes: AtomicU64::new(0),
            compactions: AtomicU64::new(0),
        };
        written.look(tree);
        written.flushed_bytes.store(0, Ordering::Relaxed);
        written.compacted_bytes.store(0, Ordering::Relaxed);
        written.compactions.store(0, Ordering::Relaxed);
        written
    }

    /// Counts the tables that are new.
    pub(super) fn look(&self, tree: &Tree) {
        let mut known = self.known.lock();
        // Asked under the lock, so that no look sees an older state than the one before. It keeps
        // its tables' files.
        let version = tree.current_version();
        let before = known.highest_seqno;
        let mut tables = HashSet::with_capacity(known.tables.len());
        let mut compacted = false;
        for table in version.iter_tables() {
            tables.insert(table.id());
            if known.tables.contains(&table.id()) {
                continue;
            }
            // The table's own figure leaves out the blocks behind its index.
            let bytes = fs::metadata(&*table.path).map_or(table.metadata.file_size, |file| file.len());
            let newest = table.get_highest_seqno();
            let counter = if newest > before {
                &self.flushed_bytes
            } else {
                compacted = true;
                &self.compacted_bytes
            };
            counter.fetch_add(bytes, Ordering::Relaxed);
            known.highest_seqno = known.highest_seqno.max(newest);
        }
        // There is a look after each compaction, and one compaction at a time.
        self.compactions.fetch_add(u64::from(compacted), Ordering::Relaxed);
        let before = std::mem::replace(&mut known.tables, tables);
        let gone: Vec<_> = before.difference(&known.tables).copied().collect();
        known.retired.extend(gone);
        if known.retired.len() > RETIRED_MAX {
            known.retired.retain(|id| self.dir.join(id.to_string()).exists());
        }
    }

    /// Removes files that are tables of no state. No flush and no compaction may be running.
    pub(super) fn remove_leftovers(&self, tree: &Tree) {
        self.look(tree);
        let known = self.known.lock();
        let Ok(items) = fs::read_dir(&self.dir) else { return };
        for item in items.flatten() {
            let id = item.file_name().to_str().and_then(|name| name.parse::<TableId>().ok());
            if id.is_some_and(|id| !known.tables.contains(&id) && !known.retired.contains(&id))
                && let Err(error) = fs::remove_file(item.path())
            {
                tracing::warn!(%error, "a table that was not finished is left behind");
            }
        }
    }

    /// By flushes.
    pub(super) fn flushed_bytes(&self) -> u64 {
        self.flushed_bytes.load(Ordering::Relaxed)
    }

    /// By compactions.
    pub(super) fn compacted_bytes(&self) -> u64 {
        self.compacted_bytes.load(Ordering::Relaxed)
    }

    /// Compactions that wrote tables; those that only move some to another level do not count.
    pub(super) fn compactions(&self) -> u64 {
        self.compactions.load(Ordering::Relaxed)
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
