//! Backups: a persisted state of the store, copied or linked while the store runs.
//!
//! A backup's directory has both tiers of a store, so the usual recovery opens it (read-only), and
//! a manifest that lists every file. docs/durability.md argues why it is complete;
//! docs/adr/0009-backup.md has the reasons for the design.
//!
//! Invariants:
//! - The manifest has its name durably only after every file it lists is durable. A directory
//!   without it is incomplete.
//! - Nothing is written to the store except one flush of its index. Nothing in a complete backup is
//!   ever written again.
//! - A restore never links.
//!
//! On failure: the store is unchanged, and so is an earlier backup. The target is incomplete; the
//! next run removes its contents.

mod check;
mod dirs;
mod image;
mod manifest;
mod restore;
mod take;
mod transfer;

pub(crate) use manifest::{BackupManifest, end_line};

pub use check::verify;
pub use restore::restore;
pub use take::take;

use crate::{Error, Result, VerifyReport, Version, io::Disk};
use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

/// How a backup is taken.
#[derive(Debug, Clone, Default)]
pub struct BackupOptions {
    /// An earlier backup of the same store on the target's file system: what has not changed since
    /// is linked from there.
    pub onto: Option<PathBuf>,
    /// Link no files from the store, so that the backup shares no byte with it.
    pub copy: bool,
    /// Most bytes per second to copy; `None` for no limit.
    pub bytes_per_second: Option<u64>,
    /// How far it is, and the way to stop it.
    pub progress: Arc<BackupProgress>,
    /// The device under the target; `None` for the operating system's file system.
    pub target_disk: Option<Arc<dyn Disk>>,
}

/// How a backup is restored.
#[derive(Debug, Clone, Default)]
pub struct RestoreOptions {
    /// Continue if a file of the backup is damaged, and report it; damaged values are detected when
    /// they are read.
    pub keep_damaged: bool,
    /// How far it is, and the way to stop it.
    pub progress: Arc<BackupProgress>,
    /// The device under the backup; `None` for the operating system's file system.
    pub backup_disk: Option<Arc<dyn Disk>>,
}

/// How far a backup, a restore or the check of a backup is. Any thread may look, and stop it.
#[derive(Debug, Default)]
pub struct BackupProgress {
    total_bytes: AtomicU64,
    done_bytes: AtomicU64,
    stopped: AtomicBool,
}

impl BackupProgress {
    /// Bytes there are to copy, link or read, once that is known.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of them that are done.
    #[must_use]
    pub fn done_bytes(&self) -> u64 {
        self.done_bytes.load(Ordering::Relaxed)
    }

    /// Has the work end with an error soon. The store and other backups stay as they are.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Whether [`BackupProgress::stop`] was called.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    fn start(&self, total_bytes: u64) {
        self.done_bytes.store(0, Ordering::Relaxed);
        self.total_bytes.store(total_bytes, Ordering::Relaxed);
    }

    fn add(&self, bytes: u64) {
        self.done_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn check(&self) -> Result<()> {
        if self.is_stopped() {
            return Err(Error::Unavailable("stopped before it was complete"));
        }
        Ok(())
    }
}

/// Contents and cost of a backup.
#[derive(Debug, Clone)]
pub struct BackupReport {
    /// The last commit in it.
    pub version: Version,
    /// Files.
    pub files: u64,
    /// Bytes of all files; of segments, the used bytes.
    pub bytes: u64,
    /// Of these, copied.
    pub copied_bytes: u64,
    /// Of these, linked from the store.
    pub linked_bytes: u64,
    /// Of these, linked from the earlier backup.
    pub reused_bytes: u64,
    /// How long it took.
    pub elapsed: Duration,
}

/// Result of a restore.
#[derive(Debug, Clone)]
pub struct RestoreReport {
    /// The last commit in the restored store.
    pub version: Version,
    /// Files.
    pub files: u64,
    /// Bytes copied.
    pub bytes: u64,
    /// Files that are not as they were when the backup was taken, if these were to be kept.
    pub damaged: Vec<String>,
    /// How long it took.
    pub elapsed: Duration,
}

/// Result of the check of a backup.
#[derive(Debug, Clone)]
pub struct BackupCheck {
    /// The last commit in it.
    pub version: Version,
    /// When it was taken.
    pub taken_at: SystemTime,
    /// Files of the backup.
    pub files: u64,
    /// Bytes of them whose checksums were compared with the manifest's.
    pub compared_bytes: u64,
    /// Bytes of files linked from the store: their values and table blocks were checked by their
    /// own checksums.
    pub linked_bytes: u64,
    /// What the engine found when it read everything; `None` if the copy could not be opened.
    pub store: Option<VerifyReport>,
    /// All findings of damage, those of the engine included.
    pub errors: Vec<String>,
}
