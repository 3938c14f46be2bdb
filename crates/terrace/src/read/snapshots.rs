//! Which seqs somebody still reads at. A snapshot is a seq: taking one costs a map entry; holding one keeps old
//! versions in the index and keeps drained segments and blocks from being reused.

use parking_lot::Mutex;
use std::{collections::BTreeMap, sync::Arc};

/// The open snapshots' seqs, with how many hold each.
#[derive(Debug, Default)]
pub struct Snapshots {
    seqs: Mutex<BTreeMap<u64, u64>>,
}

impl Snapshots {
    /// Registers a snapshot at what `current_seq` gives. Both happen under the lock that [`Snapshots::oldest_or`] takes,
    /// so a snapshot is never older than a watermark computed before it.
    pub fn register(self: &Arc<Self>, current_seq: impl FnOnce() -> u64) -> SnapshotSeq {
        let mut seqs = self.seqs.lock();
        let seq = current_seq();
        *seqs.entry(seq).or_insert(0) += 1;
        SnapshotSeq {
            seq,
            snapshots: Arc::clone(self),
        }
    }

    /// The oldest snapshot's seq, or what `current_seq` gives if there is none.
    pub fn oldest_or(&self, current_seq: impl FnOnce() -> u64) -> u64 {
        let seqs = self.seqs.lock();
        seqs.keys().next().copied().unwrap_or_else(current_seq)
    }

    /// Number of open snapshots.
    pub fn count(&self) -> u64 {
        self.seqs.lock().values().sum()
    }
}

/// A registered snapshot; released when dropped.
#[derive(Debug)]
pub struct SnapshotSeq {
    /// Commits up to this seq are seen.
    pub seq: u64,
    snapshots: Arc<Snapshots>,
}

impl Drop for SnapshotSeq {
    fn drop(&mut self) {
        let mut seqs = self.snapshots.seqs.lock();
        if let Some(count) = seqs.get_mut(&self.seq) {
            *count -= 1;
            if *count == 0 {
                seqs.remove(&self.seq);
            }
        }
    }
}
