//! The counters behind [`DiskCounters`], shared by a disk and the files it opened.
//!
//! They are statistics: relaxed, exact in their sums, but not a snapshot of one moment. A request
//! is counted when it is made, its bytes when it succeeded.

use super::DiskCounters;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The live form of [`DiskCounters`].
#[derive(Debug, Default)]
pub(super) struct Counters {
    reads: AtomicU64,
    bytes_read: AtomicU64,
    writes: AtomicU64,
    bytes_written: AtomicU64,
    syncs: AtomicU64,
}

impl Counters {
    pub(super) fn read_requested(&self) {
        self.reads.fetch_add(1, Relaxed);
    }

    pub(super) fn read_done(&self, bytes: usize) {
        self.bytes_read.fetch_add(bytes as u64, Relaxed);
    }

    pub(super) fn write_requested(&self) {
        self.writes.fetch_add(1, Relaxed);
    }

    pub(super) fn write_done(&self, bytes: usize) {
        self.bytes_written.fetch_add(bytes as u64, Relaxed);
    }

    pub(super) fn sync_requested(&self) {
        self.syncs.fetch_add(1, Relaxed);
    }

    pub(super) fn load(&self) -> DiskCounters {
        DiskCounters {
            reads: self.reads.load(Relaxed),
            bytes_read: self.bytes_read.load(Relaxed),
            writes: self.writes.load(Relaxed),
            bytes_written: self.bytes_written.load(Relaxed),
            syncs: self.syncs.load(Relaxed),
        }
    }
}
