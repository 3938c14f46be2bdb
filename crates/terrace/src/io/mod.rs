//! The I/O room: all device access of the engine goes through [`Disk`] and [`DiskFile`], so that a
//! test can substitute a simulated disk that loses, reorders and tears unsynced writes.
//!
//! Invariants:
//! - `write_at` of a file opened with [`OpenMode::direct`] takes buffers, offsets and lengths that
//!   are multiples of [`PAGE_BYTES`]; [`AlignedBuffer`] provides them. The fallback accepts the
//!   same calls.
//! - Nothing is durable before `sync_data` of the file returned, and a file's name is not durable
//!   before `sync_dir` of its directory returned.
//! - Short reads and writes are never returned: an operation transfers all bytes or fails.

mod buffer;
mod checks;
mod counters;
mod file;
mod read_pool;
pub mod read_queue;
mod sim;
mod slicing;
#[cfg(test)]
mod tests;
pub(crate) mod threads;
pub(crate) mod throttle;

pub use buffer::AlignedBuffer;
pub use counters::DiskCounters;
pub use file::{FileDisk, close_to_others, create_private_dir_all};
pub use sim::{Fault, FaultKind, SimDisk, Survival};
pub use slicing::SEEKS_NS;

use crate::mutation::{Mutation, unless};
use std::{
    fmt, io,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// Unit of alignment for direct I/O and of frames on flash, in bytes.
pub const PAGE_BYTES: usize = 4096;

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenMode {
    /// Create the file; fails if it exists.
    pub create_new: bool,
    /// Allow writes.
    pub write: bool,
    /// Bypass the page cache where the file system allows it (falls back silently where not).
    pub direct: bool,
}

impl OpenMode {
    /// Read-only, through the page cache.
    pub const READ: Self = Self {
        create_new: false,
        write: false,
        direct: false,
    };
    /// Read and write an existing file, through the page cache.
    pub const WRITE: Self = Self {
        create_new: false,
        write: true,
        direct: false,
    };
    /// Create a file that must not exist, through the page cache.
    pub const CREATE: Self = Self {
        create_new: true,
        write: true,
        direct: false,
    };

    /// The same mode, bypassing the page cache if `direct`.
    #[must_use]
    pub const fn with_direct(mut self, direct: bool) -> Self {
        self.direct = direct;
        self
    }
}

/// A directory tree on one device: one tier. Paths are relative to its root.
pub trait Disk: Send + Sync + fmt::Debug {
    /// Opens a file.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>>;
    /// Creates a directory and its parents, durably. Succeeds if it exists.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Names of the plain files in a directory, unordered. An absent directory is empty.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
    /// Removes a file.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Renames a file, replacing `to`.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes creations, removals and renames in this directory durable.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Fails if another directory is at the place of this one by now, or a file system was mounted
    /// over it: what is written by path would go there. Requests by path check this themselves.
    ///
    /// # Errors
    /// That, and errors of the operating system.
    fn check_place(&self) -> io::Result<()> {
        Ok(())
    }
    /// Bytes a process like this one may still allocate on the device.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn available_bytes(&self) -> io::Result<u64>;
    /// Bytes of the device, used or not.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn total_bytes(&self) -> io::Result<u64> {
        self.available_bytes()
    }
    /// Counters of the requests to this disk since it was opened.
    fn counters(&self) -> DiskCounters;
    /// Where a file, or the root for an empty path, is in the operating system's file system, if it
    /// is there.
    fn host_path(&self, _path: &Path) -> Option<PathBuf> {
        None
    }
    /// Gives a file of the operating system's file system a second name on this disk (a hard link).
    ///
    /// # Errors
    /// `Unsupported` if this disk is no part of that file system, or errors of the operating
    /// system.
    fn link(&self, _host_path: &Path, _to: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Creates a small file or replaces the one with this name: after a crash one of them exists, and
/// the new one once this has returned.
///
/// # Errors
/// Errors of the disk; the former file may still exist.
pub(crate) fn replace(disk: &dyn Disk, name: &str, bytes: &[u8]) -> io::Result<()> {
    let temporary = format!("{name}.new");
    let temporary = Path::new(&temporary);
    let _ = disk.remove(temporary);
    let file = disk.open(temporary, OpenMode::CREATE)?;
    file.write_all_at(bytes, 0)?;
    unless(Mutation::ManifestSync, || file.sync_data())?;
    disk.rename(temporary, Path::new(name))?;
    unless(Mutation::ManifestDirectory, || disk.sync_dir(Path::new("")))
}

/// An open file of a [`Disk`]. All methods may be called from any thread.
#[expect(
    clippy::len_without_is_empty,
    reason = "no caller asks whether a file on a device is empty"
)]
pub trait DiskFile: Send + Sync + fmt::Debug {
    /// Fills `buffer` from `offset`.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before `buffer` is full, or errors of the operating system.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Reads up to `buffer.len()` bytes from `offset`; fewer only at the end of the file.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn read_up_to_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all of `buffer` at `offset`.
    ///
    /// # Errors
    /// Errors of the operating system. What was written of `buffer` is then unknown.
    fn write_all_at(&self, buffer: &[u8], offset: u64) -> io::Result<()>;
    /// Writes all of `buffers`, contiguously, from `offset`: as one request where the system can.
    ///
    /// # Errors
    /// As [`DiskFile::write_all_at`]; what was written of any of them is then unknown.
    fn write_all_vectored_at(&self, buffers: &[&[u8]], offset: u64) -> io::Result<()> {
        let mut position = offset;
        for buffer in buffers {
            self.write_all_at(buffer, position)?;
            position += buffer.len() as u64;
        }
        Ok(())
    }
    /// Makes everything written before the call durable (`fdatasync`).
    ///
    /// # Errors
    /// Errors of the operating system; afterwards the file's unsynced content is unknown.
    fn sync_data(&self) -> io::Result<()>;
    /// Allocates `bytes` of space from the start of the file and sets its length, so that later
    /// writes inside cannot run out of space. Writes zeros where the file system cannot allocate.
    ///
    /// # Errors
    /// `StorageFull` when there is no room, or errors of the operating system.
    fn allocate(&self, bytes: u64) -> io::Result<()>;
    /// Truncates or extends the file to `bytes`.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn set_len(&self, bytes: u64) -> io::Result<()>;
    /// Length in bytes.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn len(&self) -> io::Result<u64>;
    /// Whether the file really bypasses the page cache.
    fn is_direct(&self) -> bool;
    /// Loads the file system's metadata of the file, so that the first read of it is one read of
    /// the device. Reads no data; may do nothing.
    fn warm(&self) {}
    /// The system's descriptor of the file, by which a [`read_queue`] may read it. None if every
    /// read must go through [`DiskFile::read_exact_at`].
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// `bytes` were read by the descriptor, and took so much of the device's time.
    fn was_read(&self, _bytes: usize, _took: Duration) {}
    /// Reads whose offset and length are multiples of this go to the device as they are, into
    /// page-aligned memory. A power of two, at most a page: often a sector, so a short record
    /// across two pages need not be read as both.
    fn read_unit_bytes(&self) -> usize {
        PAGE_BYTES
    }
}
