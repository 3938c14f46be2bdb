//! The operating system's file system as a [`Disk`].
//!
//! Invariants:
//! - Every operation transfers all its bytes or fails; short and interrupted calls are continued
//!   here.
//! - If the file system refuses direct I/O, at open or at the first transfer, the file uses the
//!   page cache; writers must still align, so that a mistake shows on every file system.
//! - A direct file accepts reads of any alignment; unaligned ones go through a bounce buffer.
//! - A directory is durable when `create_dir_all` returns; the names of files in it, after
//!   `sync_dir`.
//! - Created files and directories are accessible to the user alone, whatever the umask:
//!   directories 0700, files 0600. `create_dir_all` removes the access of others to a directory
//!   below the root.
//!
//! On failure the error names the operation and the path and keeps its kind. Only interrupted calls
//! are retried; what was written of a failed write, or is durable after a failed sync, is unknown.

mod direct;
#[cfg(test)]
mod tests;

use super::{
    AlignedBuffer, Disk, DiskCounters, DiskFile, OpenMode, PAGE_BYTES,
    checks::{at, check_aligned, check_len, check_range, check_writable, ends_early, is_aligned, relative},
    counters::Counters,
    slicing::{Neighbours, SHORT_BYTES},
};
use crate::{
    metrics::count,
    mutation::{Mutation, unless},
};
use std::{
    fs::{self, DirBuilder, File, Permissions},
    io,
    os::{
        fd::{AsFd as _, BorrowedFd},
        unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Bytes moved at a time through a bounce buffer, or as zeros.
const CHUNK_BYTES: usize = 1 << 20;

/// Mode of files that are created: values and secrets are in them.
const FILE_MODE: u32 = 0o600;
/// Mode of directories that are created.
const DIRECTORY_MODE: u32 = 0o700;

/// A directory of the operating system's file system.
#[derive(Debug)]
pub struct FileDisk {
    root: PathBuf,
    /// That directory, and its device and number. Some file systems (overlayfs) give one that was
    /// not in use for a while another number, so it is kept open.
    _directory: File,
    identity: (u64, u64),
    counters: Arc<Counters>,
    neighbours: Arc<Neighbours>,
}

impl FileDisk {
    /// Uses the directory `root`; creates it, and its parents, if it is absent.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn new(root: impl Into<PathBuf>) -> io::Result<Self> {
        let root = root.into();
        create_dir_durably(&root)?;
        let directory = File::open(&root).map_err(|error| at("open", &root, error))?;
        let found = directory.metadata().map_err(|error| at("find", &root, error))?;
        Ok(Self {
            _directory: directory,
            identity: (found.dev(), found.ino()),
            counters: Arc::default(),
            neighbours: Neighbours::of(&root),
            root,
        })
    }

    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        let path = relative(path)?;
        self.check_place()?;
        // Joining nothing would append a slash.
        Ok(if path.as_os_str().is_empty() {
            self.root.clone()
        } else {
            self.root.join(path)
        })
    }
}

impl Disk for FileDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.resolve(path)?;
        let writable = mode.write || mode.create_new;
        let file = File::options()
            .read(true)
            .write(writable)
            .create_new(mode.create_new)
            .mode(FILE_MODE)
            .open(&path)
            .and_then(|file| {
                // Opening a directory for reading succeeds; say so here rather than at the first
                // read.
                if file.metadata()?.is_dir() {
                    return Err(io::ErrorKind::IsADirectory.into());
                }
                Ok(file)
            })
            .map_err(|error| at(if mode.create_new { "create" } else { "open" }, &path, error))?;
        let direct = mode.direct && direct::enable(&file).map_err(|error| at("open", &path, error))?;
        let read_unit_bytes = if direct { direct::unit_bytes(&file) } else { PAGE_BYTES };
        Ok(Arc::new(OpenFile {
            file,
            read_unit_bytes,
            path,
            writable,
            aligned: mode.direct,
            direct: AtomicBool::new(direct),
            counters: self.counters.clone(),
            neighbours: self.neighbours.clone(),
        }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let path = self.resolve(path)?;
        create_dir_durably(&path)?;
        if path != self.root {
            close_to_others(&path);
        }
        Ok(())
    }

    /// Names that are not UTF-8 are left out: nothing here ever makes one.
    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let path = self.resolve(path)?;
        let list = || -> io::Result<Vec<String>> {
            let mut names = Vec::new();
            for entry in fs::read_dir(&path)? {
                let entry = entry?;
                if entry.file_type()?.is_file() {
                    names.extend(entry.file_name().into_string().ok());
                }
            }
            Ok(names)
        };
        match list() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            result => result.map_err(|error| at("list", &path, error)),
        }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let path = self.resolve(path)?;
        fs::remove_file(&path).map_err(|error| at("remove", &path, error))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (self.resolve(from)?, self.resolve(to)?);
        fs::rename(&from, &to).map_err(|error| at("rename", &from, error))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        count(&self.counters.syncs, 1);
        sync_directory(&self.resolve(path)?)
    }

    fn check_place(&self) -> io::Result<()> {
        if identity(&self.root)? == self.identity {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "{} is not the directory that was opened: it was replaced, or a file system was mounted over it; start \
             again to use what is there now",
            self.root.display()
        )))
    }

    fn available_bytes(&self) -> io::Result<u64> {
        let space = rustix::fs::statvfs(&self.root)
            .map_err(|error| at("ask for the free space of", &self.root, error.into()))?;
        Ok(space.f_bavail.saturating_mul(space.f_frsize))
    }

    fn total_bytes(&self) -> io::Result<u64> {
        let space =
            rustix::fs::statvfs(&self.root).map_err(|error| at("ask for the size of", &self.root, error.into()))?;
        Ok(space.f_blocks.saturating_mul(space.f_frsize))
    }

    fn counters(&self) -> DiskCounters {
        self.counters.picture()
    }

    fn host_path(&self, path: &Path) -> Option<PathBuf> {
        self.resolve(path).ok()
    }

    fn link(&self, host_path: &Path, to: &Path) -> io::Result<()> {
        let to = self.resolve(to)?;
        fs::hard_link(host_path, &to).map_err(|error| at("link", &to, error))
    }
}

/// Device and number of a directory.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::metadata(path).map_err(|error| at("find", path, error))?;
    Ok((found.dev(), found.ino()))
}

/// Creates `path` and its parents, and syncs the parent of each directory it created.
fn create_dir_durably(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    };
    create_dir_durably(parent)?;
    match DirBuilder::new().mode(DIRECTORY_MODE).create(path) {
        // Another thread or process may have been faster, and may not have synced yet.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        result => result.map_err(|error| at("create directory", path, error))?,
    }
    unless(Mutation::NewDirectory, || sync_directory(parent))
}

/// Creates a directory and its parents, for the user alone.
pub fn create_private_dir_all(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)
}

/// Removes other users' permissions from a directory that an earlier version left open to all. A
/// process without the right to do so uses a store that another user made, and continues.
pub fn close_to_others(path: &Path) {
    let Ok(metadata) = fs::metadata(path) else { return };
    if metadata.is_dir() && metadata.permissions().mode() & 0o077 != 0 {
        let closed = fs::set_permissions(path, Permissions::from_mode(DIRECTORY_MODE));
        if let Err(error) = closed {
            tracing::warn!(path = %path.display(), %error, "other users can read this directory");
        }
    }
}

fn sync_directory(path: &Path) -> io::Result<()> {
    let synced = File::open(path).and_then(|directory| directory.sync_all());
    match synced {
        // Some network and user-space file systems cannot sync a directory and say so with EINVAL;
        // they make names durable on their own terms, and refusing to run there would help no user.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        result => result.map_err(|error| at("sync directory", path, error)),
    }
}

/// An open file of a [`FileDisk`].
#[derive(Debug)]
struct OpenFile {
    file: File,
    path: PathBuf,
    writable: bool,
    /// Opened as direct: writers must align, whether or not the file system does direct I/O.
    aligned: bool,
    /// `O_DIRECT` is set. Goes from true to false at most once.
    direct: AtomicBool,
    read_unit_bytes: usize,
    counters: Arc<Counters>,
    neighbours: Arc<Neighbours>,
}

impl DiskFile for OpenFile {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let wanted = buffer.len();
        let bytes = self.read_up_to_at(buffer, offset)?;
        if bytes < wanted {
            return Err(ends_early(&self.path, offset, wanted, bytes));
        }
        Ok(())
    }

    fn read_up_to_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        check_range(&self.path, offset, buffer.len())?;
        count(&self.counters.reads, 1);
        let began = (buffer.len() <= SHORT_BYTES && self.is_direct()).then(Instant::now);
        let bytes = self
            .read_any_alignment(buffer, offset)
            .map_err(|error| at("read", &self.path, error))?;
        if let Some(began) = began {
            let ended = Instant::now();
            self.neighbours.short_read(ended - began, ended);
        }
        count(&self.counters.bytes_read, bytes as u64);
        Ok(bytes)
    }

    fn write_all_at(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_vectored_at(&[buffer], offset)
    }

    fn write_all_vectored_at(&self, buffers: &[&[u8]], offset: u64) -> io::Result<()> {
        let bytes = buffers.iter().map(|buffer| buffer.len()).sum();
        check_range(&self.path, offset, bytes)?;
        check_writable("write", &self.path, self.writable)?;
        if self.aligned {
            // Each of them aligned makes their sum and every position aligned.
            for buffer in buffers {
                check_aligned(&self.path, buffer, offset)?;
            }
        }
        count(&self.counters.writes, 1);
        self.write_vectored_fully(buffers, offset)
            .map_err(|error| at("write", &self.path, error))?;
        count(&self.counters.bytes_written, bytes as u64);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        count(&self.counters.syncs, 1);
        // An interrupted sync did not happen; a failed one is not retried, because the kernel may
        // have dropped the pages it could not write and would then report success.
        uninterrupted(|| self.file.sync_data()).map_err(|error| at("sync", &self.path, error))
    }

    /// Never shortens the file. Must not run concurrently with writes to the same file.
    fn allocate(&self, bytes: u64) -> io::Result<()> {
        check_len(&self.path, bytes)?;
        check_writable("allocate", &self.path, self.writable)?;
        let length = self.len()?;
        self.reserve(length, bytes).map_err(|error| {
            // ext4 keeps the extents that it allocated before the device was full: free them for
            // others. The first error is the one to report.
            let _ = self.file.set_len(length);
            at("allocate", &self.path, error)
        })
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        check_len(&self.path, bytes)?;
        check_writable("set the length of", &self.path, self.writable)?;
        uninterrupted(|| self.file.set_len(bytes)).map_err(|error| at("set the length of", &self.path, error))
    }

    fn len(&self) -> io::Result<u64> {
        let metadata = self.file.metadata().map_err(|error| at("stat", &self.path, error))?;
        Ok(metadata.len())
    }

    fn warm(&self) {
        // Looking for a hole walks the list of the file's extents, which the file system keeps
        // then.
        let _ = rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Hole(0));
    }

    fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Acquire)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn was_read(&self, bytes: usize, took: Duration) {
        count(&self.counters.reads, 1);
        if bytes <= SHORT_BYTES && self.is_direct() {
            self.neighbours.short_read(took, Instant::now());
        }
        count(&self.counters.bytes_read, bytes as u64);
    }

    fn read_unit_bytes(&self) -> usize {
        self.read_unit_bytes
    }
}

impl OpenFile {
    fn read_any_alignment(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if !self.is_direct() || is_aligned(buffer, offset, self.read_unit_bytes) {
            return self.read_fully(buffer, offset);
        }
        let page = PAGE_BYTES as u64;
        let mut bounce = AlignedBuffer::new();
        let mut filled = 0;
        while filled < buffer.len() {
            let position = offset + filled as u64;
            let start = position - position % page;
            let skip = (position - start) as usize;
            bounce.set_len(
                (skip + buffer.len() - filled)
                    .next_multiple_of(PAGE_BYTES)
                    .min(CHUNK_BYTES),
            );
            let read = self.read_fully(&mut bounce, start)?;
            let usable = read.saturating_sub(skip).min(buffer.len() - filled);
            buffer[filled..filled + usable].copy_from_slice(&bounce[skip..skip + usable]);
            filled += usable;
            if read < bounce.len() {
                break;
            }
        }
        Ok(filled)
    }

    /// Reads until `buffer` is full or the file ends. Aligned, if the file is direct.
    fn read_fully(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            let position = offset + filled as u64;
            let end = filled + self.slice_of(buffer.len() - filled);
            let bytes = self.attempt(|file| file.read_at(&mut buffer[filled..end], position))?;
            if bytes == 0 {
                break;
            }
            // A direct read may only go on at a boundary of units. One that stopped elsewhere
            // stopped at the end of the file, or else is taken up again from the last boundary.
            if self.is_direct() && bytes % self.read_unit_bytes != 0 && filled + bytes < buffer.len() {
                if position + bytes as u64 >= self.file.metadata()?.len() {
                    return Ok(filled + bytes);
                }
                filled += whole_units(bytes, self.read_unit_bytes)?;
            } else {
                filled += bytes;
            }
        }
        Ok(filled)
    }

    /// Writes all of `buffer`. Aligned, if the file is direct.
    fn write_fully(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        let mut written = 0;
        while written < buffer.len() {
            let position = offset + written as u64;
            let end = written + self.slice_of(buffer.len() - written);
            let bytes = self.attempt(|file| file.write_at(&buffer[written..end], position))?;
            if bytes == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            written += if self.is_direct() && written + bytes < buffer.len() {
                whole_units(bytes, PAGE_BYTES)?
            } else {
                bytes
            };
        }
        Ok(())
    }

    /// How many of `wanted` bytes to transfer at a time, for the sake of other readers of the
    /// device. Through the page cache the kernel chooses.
    fn slice_of(&self, wanted: usize) -> usize {
        if !self.is_direct() {
            return wanted;
        }
        self.neighbours.slice_of(wanted, Instant::now())
    }

    /// Writes all of `buffers`: in one call, unless that would be too long, and the rest buffer by
    /// buffer.
    fn write_vectored_fully(&self, buffers: &[&[u8]], offset: u64) -> io::Result<()> {
        let bytes: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let mut written = if self.slice_of(bytes) == bytes {
            self.attempt(|file| direct::write_vectored(file, buffers, offset))?
        } else {
            0
        };
        let mut position = offset;
        for buffer in buffers {
            let done = written.min(buffer.len());
            written -= done;
            // A direct write continues at a page boundary; bytes before it may be written again.
            let from = if done < buffer.len() && self.is_direct() {
                done - done % PAGE_BYTES
            } else {
                done
            };
            if from < buffer.len() {
                self.write_fully(&buffer[from..], position + from as u64)?;
            }
            position += buffer.len() as u64;
        }
        Ok(())
    }

    /// One transfer: again if interrupted, and again through the page cache if the file system
    /// accepted `O_DIRECT` but refuses to act on it. Ranges were checked, so `EINVAL` has no other
    /// cause.
    fn attempt(&self, mut transfer: impl FnMut(&File) -> io::Result<usize>) -> io::Result<usize> {
        loop {
            let direct = self.is_direct();
            match uninterrupted(|| transfer(&self.file)) {
                Err(error) if direct && error.kind() == io::ErrorKind::InvalidInput => {
                    direct::disable(&self.file)?;
                    self.direct.store(false, Ordering::Release);
                }
                result => return result,
            }
        }
    }

    fn reserve(&self, len: u64, bytes: u64) -> io::Result<()> {
        match direct::preallocate(&self.file, bytes) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => self.reserve_with_zeros(len, bytes),
            result => result,
        }
    }

    /// Writes zeros behind the end and into every page of zeros before it, which may be a hole.
    fn reserve_with_zeros(&self, len: u64, bytes: u64) -> io::Result<()> {
        let mut chunk = AlignedBuffer::new();
        let mut position = 0;
        while position < bytes {
            let wanted = (bytes - position).min(CHUNK_BYTES as u64) as usize;
            chunk.set_len(wanted.next_multiple_of(PAGE_BYTES));
            let present = self.read_fully(&mut chunk, position)?;
            chunk[present..].fill(0);
            let is_zero = |page: &[u8]| page.iter().all(|&byte| byte == 0);
            if present < chunk.len() || chunk.chunks(PAGE_BYTES).any(is_zero) {
                count(&self.counters.writes, 1);
                self.write_fully(&chunk, position)?;
                count(&self.counters.bytes_written, chunk.len() as u64);
            }
            position += wanted as u64;
        }
        // Whole pages were written; the requested length may end inside the last one.
        uninterrupted(|| self.file.set_len(len.max(bytes)))
    }
}

/// The part of a short direct transfer that can be built on.
fn whole_units(bytes: usize, unit_bytes: usize) -> io::Result<usize> {
    match bytes - bytes % unit_bytes {
        0 => Err(io::Error::other(format!(
            "a direct transfer stopped after {bytes} bytes, within its first {unit_bytes}"
        ))),
        units => Ok(units),
    }
}

fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
