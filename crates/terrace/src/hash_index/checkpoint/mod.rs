//! The checkpoint of the flash index: its slots and the filter of keys elsewhere in one file, so that an open does not have to
//! walk the whole ordered index (FlashStore, section 4.7, but without stopping writers).
//!
//! In reading order: [`mod@format`] (bytes), [`mod@file`] (writing and reading them one after the other), [`take`] (a picture of
//! a table that others change meanwhile), [`load`] (the table of the last commit the index has persisted, from the picture and the
//! log behind it). docs/durability.md argues why no slot lies afterwards.
//!
//! Invariants:
//! - The file has its name only when it is durable, and when the ordered index has persisted every commit that may be in it.
//! - It is believed only if the log still has every commit after it that the index has persisted.
//! - Nothing else depends on it, so no failure of it stops the store.
//!
//! On failure: of taking, the file before it stays, and the next one is tried later; of loading, the flash index is filled from the
//! ordered index. Both cost time only.

pub mod file;
pub mod format;
pub mod load;
pub mod take;

#[cfg(test)]
mod tests;

use crate::{CheckpointStats, FilledFrom, engine::Engine, hash_index::key_filter::KeyFilter};
use parking_lot::Mutex;
use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use take::{Haste, take_if};

/// The newest checkpoint.
pub const FILE: &str = "CHECKPOINT";
/// Where the next one grows.
pub const NEW_FILE: &str = "CHECKPOINT.new";

/// At least this many times a checkpoint's length is written to the log before the next one: so they stay below a sixteenth
/// of it.
const LOG_PER_CHECKPOINT: u64 = 16;
/// Without a checkpoint one is taken at once if it has this many bytes: the walk that it saves takes long.
const FIRST_BYTES: u64 = 1 << 20;
/// How often the background looks whether one is due.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Wait after one that failed.
const RETRY: Duration = Duration::from_secs(30);

/// Whether a name in the flash directory is a checkpoint's.
pub fn is_its_file(name: &str) -> bool {
    name == FILE || name == NEW_FILE
}

/// What is known of checkpoints in an open store.
#[derive(Debug)]
pub struct Checkpoints {
    opened: Instant,
    /// Keys that are elsewhere, while that is known of all of them, and so the flash index filled.
    filter: Mutex<Option<Arc<KeyFilter>>>,
    /// Locked while one is taken.
    newest: Mutex<Option<Newest>>,
    /// Bytes of log applied since the open.
    applied_bytes: AtomicU64,
    filled: OnceLock<(FilledFrom, Duration)>,
    taken: AtomicU64,
    failed: AtomicU64,
    written_bytes: AtomicU64,
    /// Length of the newest one; beside its lock, which is held for long.
    file_bytes: AtomicU64,
}

/// The checkpoint that the next open would use.
#[derive(Debug, Clone, Copy)]
pub struct Newest {
    file_bytes: u64,
    /// Bytes of log behind it when it was found or begun,
    behind_bytes: u64,
    /// and what was applied by then.
    applied_bytes: u64,
}

impl Default for Checkpoints {
    fn default() -> Self {
        Self {
            opened: Instant::now(),
            filter: Mutex::default(),
            newest: Mutex::default(),
            applied_bytes: AtomicU64::new(0),
            filled: OnceLock::new(),
            taken: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            file_bytes: AtomicU64::new(0),
        }
    }
}

impl Checkpoints {
    /// The flash index and this filter have everything that is applied. From now on they can be copied.
    pub fn filled(&self, from: FilledFrom, filter: Arc<KeyFilter>) {
        *self.filter.lock() = Some(filter);
        let _ = self.filled.set((from, self.opened.elapsed()));
    }

    /// The filter is built anew.
    pub fn filter_is_gone(&self) {
        *self.filter.lock() = None;
    }

    /// The filter, if it is complete.
    fn filter(&self) -> Option<Arc<KeyFilter>> {
        self.filter.lock().clone()
    }

    /// RAM of the filter, in bytes, once it is complete.
    pub fn filter_bytes(&self) -> u64 {
        self.filter().map_or(0, |filter| filter.bytes())
    }

    /// A checkpoint was loaded; so many bytes of log behind it were in the index before the open.
    pub fn found(&self, file_bytes: u64, behind_bytes: u64) {
        self.file_bytes.store(file_bytes, Ordering::Relaxed);
        *self.newest.lock() = Some(Newest {
            file_bytes,
            behind_bytes,
            applied_bytes: 0,
        });
    }

    /// A frame of the log was applied.
    pub fn applied(&self, frame_bytes: u64) {
        self.applied_bytes.fetch_add(frame_bytes, Ordering::Relaxed);
    }

    fn behind_bytes(&self, newest: &Newest) -> u64 {
        newest.behind_bytes
            + self
                .applied_bytes
                .load(Ordering::Relaxed)
                .saturating_sub(newest.applied_bytes)
    }

    /// Figures.
    pub fn stats(&self) -> CheckpointStats {
        let (filled_from, filled_after) = self.filled.get().copied().unzip();
        CheckpointStats {
            filled_from,
            filled_after,
            taken: self.taken.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
            file_bytes: self.file_bytes.load(Ordering::Relaxed),
        }
    }
}

/// Bytes a checkpoint taken now would have, about.
fn expected_bytes(engine: &Engine) -> u64 {
    let filter = engine.checkpoints.filter().map_or(0, |filter| filter.bytes());
    engine.flash_index.image_bytes() + filter
}

/// Whether so much was written to the log that the next checkpoint is due.
fn is_due(engine: &Engine, newest: Option<&Newest>) -> bool {
    let (wanted, ring) = (engine.options.checkpoint_log_bytes, engine.options.flash_capacity_bytes);
    // Not so seldom that the log behind it is recycled before the next one.
    let every = |least: u64| wanted.max(least).min(ring / 2);
    match newest {
        None => {
            let applied = engine.checkpoints.applied_bytes.load(Ordering::Relaxed);
            applied >= every(0) || expected_bytes(engine) >= FIRST_BYTES
        }
        Some(newest) => engine.checkpoints.behind_bytes(newest) >= every(newest.file_bytes * LOG_PER_CHECKPOINT),
    }
}

/// Takes checkpoints as they are due, until the store is closed.
pub fn run(engine: &Arc<Engine>) {
    if engine.options.checkpoint_log_bytes == 0 {
        return;
    }
    while !engine.log.is_closed() {
        match take_if(engine, Haste::Gently, |newest| is_due(engine, newest)) {
            Ok(_) => engine.pause(LOOK_INTERVAL),
            Err(_) if engine.log.is_closing() => engine.pause(LOOK_INTERVAL),
            Err(error) => {
                tracing::warn!(%error, "no checkpoint of the flash index could be written; trying again");
                engine.pause(RETRY);
            }
        }
    }
}

/// Takes one when the store is closed in order and everything is persisted, unless reading the log behind the newest one
/// is less than writing it anew.
pub fn at_close(engine: &Engine) {
    if engine.options.checkpoint_log_bytes == 0 {
        return;
    }
    let is_due = |newest: Option<&Newest>| {
        newest.is_none_or(|newest| engine.checkpoints.behind_bytes(newest) > newest.file_bytes)
    };
    if let Err(error) = take_if(engine, Haste::AtOnce, is_due) {
        tracing::warn!(%error, "no checkpoint of the flash index could be written; the next open takes longer");
    }
}
