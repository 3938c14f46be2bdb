//! The checkpoint of the hash index: its slots and the filter of keys elsewhere in one file, so
//! that an open does not have to walk the whole ordered index (FlashStore, section 4.7, but without
//! stopping writers).
//!
//! In reading order: [`mod@format`] (bytes), [`mod@file`] (sequential writing and reading); above
//! the engine `maintenance::checkpoint` (a fuzzy snapshot of a table that changes meanwhile) and
//! `write::apply::load` (the table as of the last commit that the index has persisted, from the
//! snapshot and the log behind it). docs/durability.md argues why no slot is outdated afterwards.
//!
//! Invariants:
//! - The file has its name only when it is durable, and when the ordered index has persisted every
//!   commit that may be in it.
//! - It is used only if the log still has every later commit that the index has persisted.
//! - Nothing else depends on it, so no failure of it stops the store.
//!
//! On failure: if taking one fails, the previous file stays, and it is tried again later; if
//! loading fails, the hash index is filled from the ordered index. Both cost time only.

pub mod file;
pub mod format;

#[cfg(test)]
mod tests;

use crate::{
    CheckpointStats, FilledFrom, Result,
    api::stats::CheckpointCounters,
    hash_index::{HashIndex, key_filter::KeyFilter},
    io::Disk,
};
use parking_lot::{Mutex, RwLock};
use std::{
    io,
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// The newest checkpoint.
pub const FILE: &str = "CHECKPOINT";
/// Where the next one grows.
pub const NEW_FILE: &str = "CHECKPOINT.new";

/// Whether a name in the flash directory is a checkpoint's.
pub fn is_its_file(name: &str) -> bool {
    name == FILE || name == NEW_FILE
}

/// Removes the checkpoint, durably: it does not belong to the new index.
///
/// # Errors
/// Errors of the device.
pub fn remove(disk: &dyn Disk) -> io::Result<()> {
    let _ = disk.remove(Path::new(NEW_FILE));
    match disk.remove(Path::new(FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome.and_then(|()| disk.sync_dir(Path::new(""))),
    }
}

/// State of checkpoints in an open store.
#[derive(Debug)]
pub struct Checkpoints {
    /// Classes of keys that are elsewhere, or whose slot was taken out, while that is known of all
    /// of them, and so the hash index filled.
    filter: RwLock<Option<Arc<KeyFilter>>>,
    /// Locked while one is taken.
    newest: Mutex<Option<Newest>>,
    /// Its `begun_seq`, or `u64::MAX`; outside its lock, which is held for long.
    begun_seq: AtomicU64,
    /// Bytes of log applied since the open.
    applied_bytes: AtomicU64,
    filled: OnceLock<(FilledFrom, Duration)>,
    /// Includes the length of the newest checkpoint; outside its lock, which is held for long.
    counters: CheckpointCounters,
}

/// The checkpoint that the next open would use.
#[derive(Debug, Clone, Copy)]
pub struct Newest {
    /// The applied seq when it was begun: an open reads the log behind it.
    pub begun_seq: u64,
    /// Its length.
    pub file_bytes: u64,
    /// Bytes of log behind it when it was found or begun,
    pub behind_bytes: u64,
    /// and what was applied by then.
    pub applied_bytes: u64,
}

impl Default for Checkpoints {
    fn default() -> Self {
        Self {
            filter: RwLock::default(),
            newest: Mutex::default(),
            begun_seq: AtomicU64::new(u64::MAX),
            applied_bytes: AtomicU64::default(),
            filled: OnceLock::default(),
            counters: CheckpointCounters::default(),
        }
    }
}

impl Checkpoints {
    /// The hash index and this filter have everything that is applied, so long after the opening.
    /// From now on they can be copied.
    pub fn filled(&self, from: FilledFrom, after: Duration, filter: Arc<KeyFilter>) {
        *self.filter.write() = Some(filter);
        let _ = self.filled.set((from, after));
    }

    /// The filter is being rebuilt.
    pub fn filter_is_gone(&self) {
        *self.filter.write() = None;
    }

    /// The filter, if it is complete.
    pub fn filter(&self) -> Option<Arc<KeyFilter>> {
        self.filter.read().clone()
    }

    /// Whether no object of a key with this hash is applied: it has no slot, and no bit in the
    /// filter of keys elsewhere. `false` is inconclusive. docs/durability.md argues why no object
    /// is hidden.
    ///
    /// The filter is held while the slots are searched: removed slots are added to this filter.
    pub fn know_absent(&self, index: &HashIndex, hash: u64) -> bool {
        let filter = self.filter.read();
        filter
            .as_ref()
            .is_some_and(|filter| index.has_none(hash) && !filter.may_contain(index.class_hash(hash)))
    }

    /// RAM of the filter, in bytes, once it is complete.
    pub fn filter_bytes(&self) -> u64 {
        self.filter().map_or(0, |filter| filter.bytes())
    }

    /// A checkpoint was loaded.
    pub fn found(&self, checkpoint: Newest) {
        let mut newest = self.newest.lock();
        self.set(&mut newest, checkpoint);
    }

    fn set(&self, newest: &mut Option<Newest>, checkpoint: Newest) {
        *newest = Some(checkpoint);
        self.begun_seq.store(checkpoint.begun_seq, Ordering::Release);
        self.counters.file_bytes.store(checkpoint.file_bytes, Ordering::Relaxed);
    }

    /// Whether the newest checkpoint can be used without the log up to this seq. True if there is
    /// none.
    pub fn spares_log_up_to(&self, seq: u64) -> bool {
        seq <= self.begun_seq.load(Ordering::Acquire)
    }

    /// A frame of the log was applied.
    pub fn applied(&self, frame_bytes: u64) {
        self.applied_bytes.fetch_add(frame_bytes, Ordering::Relaxed);
    }

    /// Bytes of log applied since the open.
    pub fn applied_bytes(&self) -> u64 {
        self.applied_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of log behind a checkpoint.
    pub fn behind_bytes(&self, newest: &Newest) -> u64 {
        newest.behind_bytes + self.applied_bytes().saturating_sub(newest.applied_bytes)
    }

    /// This many bytes were written for a checkpoint.
    pub fn wrote(&self, bytes: u64) {
        self.counters.written_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes the next checkpoint by `take`, which gets the newest one and may decide that none is
    /// due. One at a time.
    ///
    /// # Errors
    /// Errors of `take`.
    pub fn take_next(&self, take: impl FnOnce(Option<&Newest>) -> Result<Option<Newest>>) -> Result<bool> {
        let mut newest = self.newest.lock();
        let outcome = take(newest.as_ref());
        match &outcome {
            Ok(Some(taken)) => {
                self.set(&mut newest, *taken);
                self.counters.taken.fetch_add(1, Ordering::Relaxed);
            }
            Ok(None) => {}
            Err(_) => drop(self.counters.failed.fetch_add(1, Ordering::Relaxed)),
        }
        outcome.map(|taken| taken.is_some())
    }

    /// Figures.
    pub fn stats(&self) -> CheckpointStats {
        let (filled_from, filled_after) = self.filled.get().copied().unzip();
        CheckpointStats {
            filled_from,
            filled_after,
            ..self.counters.picture()
        }
    }
}
