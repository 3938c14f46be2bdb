//! Space on the flash tier's file system that only the way out of a full device may use.
//!
//! A store on a full device gets its room back by deletes, and what they free is reused only once
//! the ordered index has persisted them: which takes room. So a file of some memtables' length is
//! kept from the day the store is opened. What is on the way out and meets a full device gives the
//! file up and has its space; new data is refused from then on, until the file is there again. A
//! preallocated file and not an account, since other programs fill devices as well, and since the
//! index writes its own files.
//!
//! Where the large tier is on the same device a block is kept as well: what was deleted here and
//! there comes back when what lives between is moved out, and that is written first.
//!
//! Who may give it up: flushes of the index; compactions, once flushes wait for them; log segments
//! for commits that free space; cleaning, where blocks are on the same device. Who restores it:
//! recycling, as soon as the device has more room than that.
//!
//! Invariant: the file holds nothing. It may be missing, cut or left over at any crash; an open
//! makes it anew.

use crate::{
    Error, Options, Result, Tier,
    io::{Disk, FileDisk, OpenMode},
};
use parking_lot::Mutex;
use std::{
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

/// The file, in the flash tier's directory.
const FILE: &str = "TERRACE.reserve";
/// Its length in memtables, and one segment more: as many as wait to be flushed at most, one with
/// what is deleted afterwards, and as much as a compaction of small tables holds twice for a
/// moment.
const MEMTABLES: u64 = 4;
/// How much more than its length must be available before it is made again, as a divisor of its
/// length: else what is on its way out would give it up again at once.
const MARGIN_DIVISOR: u64 = 4;
/// Blocks of room that are left to cleaning where it shares the device: as many as the large tier
/// keeps from callers.
pub const CLEANING_BLOCKS: u64 = 2;
/// At most this often it is tried to make it again.
const RESTORE_INTERVAL: Duration = Duration::from_millis(50);

/// See the module.
#[derive(Debug)]
pub struct Reserve {
    /// Where it is; `None` for a store that is only read.
    disk: Option<FileDisk>,
    bytes: u64,
    /// Of these, what the index and cleaning may need.
    others_bytes: u64,
    /// What must be left beside it when it is made again.
    margin_bytes: u64,
    is_shared: bool,
    is_whole: AtomicBool,
    tried_at: Mutex<Option<Instant>>,
}

impl Reserve {
    /// Sets it aside. A device without room for it is no error: what is there can be read and
    /// deleted.
    ///
    /// # Errors
    /// The operating system's, if the directory cannot be used.
    pub fn open(options: &Options, large: &dyn Disk) -> Result<Self> {
        if options.read_only {
            return Ok(Self::none());
        }
        let dir = &options.flash_dir;
        let disk = FileDisk::new(dir).map_err(|error| Error::io_on(Tier::Flash, dir.display().to_string(), &error))?;
        let is_shared = on_one_device(&disk, large);
        let block_bytes = if is_shared { options.split_threshold_bytes } else { 0 };
        let others_bytes = MEMTABLES * options.memtable_bytes + block_bytes;
        let bytes = others_bytes + options.segment_bytes;
        let reserve = Self {
            is_shared,
            disk: Some(disk),
            bytes,
            others_bytes,
            margin_bytes: bytes / MARGIN_DIVISOR + CLEANING_BLOCKS * block_bytes,
            is_whole: AtomicBool::new(false),
            tried_at: Mutex::default(),
        };
        if let Err(error) = reserve.make() {
            tracing::warn!(
                %error,
                bytes,
                "the flash device has no room for the reserve: nothing new is taken until something was deleted"
            );
        }
        Ok(reserve)
    }

    /// That of a store which is only read.
    pub const fn none() -> Self {
        Self {
            disk: None,
            bytes: 0,
            others_bytes: 0,
            margin_bytes: 0,
            is_shared: false,
            is_whole: AtomicBool::new(true),
            tried_at: Mutex::new(None),
        }
    }

    fn make(&self) -> io::Result<()> {
        let Some(disk) = &self.disk else { return Ok(()) };
        let path = Path::new(FILE);
        let _ = disk.remove(path);
        let made = disk
            .open(path, OpenMode::CREATE)
            .and_then(|file| file.allocate(self.bytes));
        match made {
            Ok(()) => self.is_whole.store(true, Ordering::Release),
            Err(_) => drop(disk.remove(path)),
        }
        made
    }

    /// Gives its space to whoever is on the way out. False if that was done before.
    pub fn give_up(&self) -> bool {
        let Some(disk) = &self.disk else { return false };
        // Nothing new is taken from here on, so that nobody else has the space.
        if !self.is_whole.swap(false, Ordering::AcqRel) {
            return false;
        }
        *self.tried_at.lock() = Some(Instant::now());
        tracing::warn!(
            bytes = self.bytes,
            "the flash device is full: its reserve is used, and nothing new is taken until something was deleted"
        );
        disk.remove(Path::new(FILE)).is_ok()
    }

    /// Makes it again if the device has room. True if it did.
    pub fn restore(&self) -> bool {
        let Some(disk) = &self.disk else { return false };
        if self.is_whole() {
            return false;
        }
        let mut tried_at = self.tried_at.lock();
        if tried_at.is_some_and(|at| at.elapsed() < RESTORE_INTERVAL) {
            return false;
        }
        *tried_at = Some(Instant::now());
        let is_restored = self.has_room(disk) && self.make().is_ok();
        if is_restored {
            tracing::info!("the flash device has room again: its reserve is restored");
        }
        is_restored
    }

    fn has_room(&self, disk: &FileDisk) -> bool {
        let wanted = self.bytes + self.margin_bytes;
        disk.available_bytes().is_ok_and(|bytes| bytes >= wanted)
    }

    /// Whether the device has so many bytes more than the index and cleaning may need.
    pub fn has_beside_others(&self, bytes: u64) -> bool {
        let enough = |available: u64| available >= self.others_bytes + bytes;
        self.disk
            .as_ref()
            .is_some_and(|disk| disk.available_bytes().is_ok_and(enough))
    }

    /// Whether it is not there, and the device has room for it.
    pub fn is_coming(&self) -> bool {
        !self.is_whole() && self.disk.as_ref().is_some_and(|disk| self.has_room(disk))
    }

    /// Whether the large tier is on the same device.
    pub const fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Whether it is there.
    pub fn is_whole(&self) -> bool {
        self.is_whole.load(Ordering::Acquire)
    }

    /// Its length while it is there.
    pub fn bytes(&self) -> u64 {
        if self.is_whole() { self.bytes } else { 0 }
    }

    /// Why nothing new is taken on a tier, if nothing is.
    pub fn refusal(&self, tier: Tier) -> Option<Error> {
        (!self.is_whole()).then(|| Error::OutOfSpace {
            tier,
            reason: format!(
                "the flash device is full, and its reserve of {} bytes is used for deletes; nothing new is taken until it \
                 is restored",
                self.bytes
            ),
        })
    }
}

/// Whether two tiers take room from each other.
fn on_one_device(flash: &FileDisk, large: &dyn Disk) -> bool {
    let device = |path: Option<PathBuf>| Some(std::fs::metadata(path?).ok()?.dev());
    let flash = device(flash.host_path(Path::new("")));
    flash.is_some() && flash == device(large.host_path(Path::new("")))
}
