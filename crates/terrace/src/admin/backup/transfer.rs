//! Brings single files into a backup: by a link from the earlier backup or from the store, or by
//! copying.
//!
//! Invariants: a file is durable when a call returns, its name once its directory is synced. A file
//! is linked from the earlier backup only if it was made from the same file of the store, and that
//! was not written since.
//!
//! On failure: the backup cannot be completed. If the file system refuses a link, the file is
//! copied.

use super::{
    BackupProgress,
    dirs::{Target, write_file},
    manifest::{BackupFile, BackupManifest, Origin},
};
use crate::{
    Error, Result,
    io::{AlignedBuffer, Disk, DiskFile, OpenMode, PAGE_BYTES},
    metrics::bucket::Bucket,
};
use std::{
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// Bytes per request.
const CHUNK_BYTES: usize = 1 << 20;

/// A complete earlier backup.
#[derive(Debug)]
pub(super) struct Earlier {
    pub disk: Arc<dyn Disk>,
    pub manifest: BackupManifest,
}

/// A file of the store.
pub(super) struct Source<'a> {
    /// Its path in the backup.
    pub path: PathBuf,
    /// Bytes that count.
    pub bytes: u64,
    /// Length of the file in the backup.
    pub length: u64,
    /// Where it is in the operating system's file system, if it is there.
    pub host_path: Option<PathBuf>,
    /// Identifies this use of the file, if files are reused. `None` if it may be written while it
    /// is copied: two such states cannot be distinguished for certain.
    pub tag: Option<String>,
    /// Whether the store never writes the file again; called only for files that would be linked.
    pub is_final: Box<dyn Fn() -> Result<bool> + 'a>,
    /// Opens it for reading.
    pub open: Box<dyn Fn() -> Result<Arc<dyn DiskFile>> + 'a>,
}

impl Source<'_> {
    /// Identifies the store's file among all files that were or will be at its path.
    fn identity(&self) -> Option<String> {
        let tag = self.tag.as_ref()?;
        let found = std::fs::metadata(self.host_path.as_ref()?).ok()?;
        Some(format!(
            "{tag}-{}-{}.{:09}",
            found.ino(),
            found.mtime(),
            found.mtime_nsec()
        ))
    }
}

/// Brings files into a backup and lists them.
pub(super) struct Transfer<'a> {
    pub target: &'a Target,
    pub earlier: Option<&'a Earlier>,
    /// Link no files from the store.
    pub copy: bool,
    pub direct_io: bool,
    pub pace: Bucket,
    pub progress: &'a BackupProgress,
    /// Fails once the store is closed: another process may then have opened it.
    pub check: &'a dyn Fn() -> Result<()>,
    pub manifest: BackupManifest,
    pub copied_bytes: u64,
    pub linked_bytes: u64,
    pub reused_bytes: u64,
}

impl Transfer<'_> {
    fn list(&mut self, path: &Path, file: BackupFile) {
        self.manifest.files.insert(path.display().to_string(), file);
    }

    /// Writes a small file that only the backup has.
    ///
    /// # Errors
    /// The target's.
    pub fn write(&mut self, path: &Path, bytes: &[u8]) -> Result<()> {
        write_file(&*self.target.disk, path, bytes)
            .map_err(|error| self.target.error(&format!("write {}", path.display()), &error))?;
        let length = bytes.len() as u64;
        self.copied_bytes += length;
        self.progress.add(length);
        let file = BackupFile {
            bytes: length,
            length,
            checksum: Some(xxh3_128(bytes)),
            origin: Origin::Copied,
            source: None,
        };
        self.list(path, file);
        Ok(())
    }

    /// Brings a file of the store in.
    ///
    /// # Errors
    /// The devices', or that the work was stopped.
    pub fn take(&mut self, source: &Source<'_>) -> Result<()> {
        self.progress.check()?;
        (self.check)()?;
        // Before the bytes are read: were it written meanwhile, it would be another file from then
        // on.
        let identity = source.identity();
        if self.reuse(source, identity.as_deref())? || self.link(source, identity.as_deref())? {
            return Ok(());
        }
        let checksum = self.copy(source)?;
        self.copied_bytes += source.bytes;
        let file = BackupFile {
            bytes: source.bytes,
            length: source.length,
            checksum: Some(checksum),
            origin: Origin::Copied,
            source: identity,
        };
        self.list(&source.path, file);
        Ok(())
    }

    /// Links the file from the earlier backup, if it has the same one.
    fn reuse(&mut self, source: &Source<'_>, identity: Option<&str>) -> Result<bool> {
        let Some((earlier, identity)) = self.earlier.zip(identity) else {
            return Ok(false);
        };
        let same = |file: &&BackupFile| {
            file.source.as_deref() == Some(identity)
                && (file.bytes, file.length) == (source.bytes, source.length)
                && !(self.copy && file.origin == Origin::Linked)
        };
        let Some(file) = earlier
            .manifest
            .files
            .get(&source.path.display().to_string())
            .filter(same)
        else {
            return Ok(false);
        };
        let Some(path) = earlier.disk.host_path(&source.path) else {
            return Ok(false);
        };
        // A file that was cut short since is copied anew. Its bytes are not read again.
        if std::fs::metadata(&path).is_ok_and(|found| found.len() != file.length) {
            return Ok(false);
        }
        if !self.try_link(&path, &source.path)? {
            return Ok(false);
        }
        self.reused_bytes += file.bytes;
        self.progress.add(file.bytes);
        let file = file.clone();
        self.list(&source.path, file);
        Ok(true)
    }

    /// Links the store's own file, if that never changes.
    fn link(&mut self, source: &Source<'_>, identity: Option<&str>) -> Result<bool> {
        let Some(path) = source.host_path.as_ref().filter(|_| !self.copy) else {
            return Ok(false);
        };
        if !(source.is_final)()? || !self.try_link(path, &source.path)? {
            return Ok(false);
        }
        self.linked_bytes += source.bytes;
        self.progress.add(source.bytes);
        let file = BackupFile {
            bytes: source.bytes,
            length: source.length,
            checksum: None,
            origin: Origin::Linked,
            source: identity.map(str::to_owned),
        };
        self.list(&source.path, file);
        Ok(true)
    }

    fn try_link(&self, from: &Path, to: &Path) -> Result<bool> {
        match self.target.disk.link(from, to) {
            Ok(()) => Ok(true),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::CrossesDevices
                        | io::ErrorKind::Unsupported
                        | io::ErrorKind::PermissionDenied
                        | io::ErrorKind::TooManyLinks
                        | io::ErrorKind::NotFound
                ) =>
            {
                Ok(false)
            }
            Err(error) => Err(self.target.error(&format!("link {}", to.display()), &error)),
        }
    }

    fn copy(&mut self, source: &Source<'_>) -> Result<u128> {
        let from = (source.open)()?;
        let write = CopyTo {
            disk: &*self.target.disk,
            path: &source.path,
            direct_io: self.direct_io,
            reserve: false,
        };
        let (check, progress, pace) = (self.check, self.progress, &mut self.pace);
        let mut step = |bytes| {
            check()?;
            progress.check()?;
            progress.add(bytes);
            pace.wait(bytes, || check().is_err() || progress.is_stopped());
            Ok(())
        };
        let target = self.target;
        copy(&*from, source.bytes, source.length, &write, &mut step)
            .map_err(|error| error.at(&source.path, |what, error| target.error(what, error)))
    }
}

/// Destination of a copy.
pub(super) struct CopyTo<'a> {
    pub disk: &'a dyn Disk,
    pub path: &'a Path,
    pub direct_io: bool,
    /// Allocate the whole length, which may otherwise have holes.
    pub reserve: bool,
}

/// Why a copy failed.
pub(super) enum CopyError {
    Read(io::Error),
    Write(io::Error),
    Stopped(Error),
}

impl CopyError {
    /// The error for the caller; `write_error` tells of the target's.
    pub fn at(self, path: &Path, write_error: impl FnOnce(&str, &io::Error) -> Error) -> Error {
        match self {
            Self::Read(error) => Error::io(format!("read {} to copy it", path.display()), &error),
            Self::Write(error) => write_error(&format!("write {}", path.display()), &error),
            Self::Stopped(error) => error,
        }
    }
}

/// Copies the first `bytes` of a file into a new one of `length`, durably, and gives their
/// checksum.
pub(super) fn copy(
    from: &dyn DiskFile,
    bytes: u64,
    length: u64,
    to: &CopyTo<'_>,
    step: &mut dyn FnMut(u64) -> Result<()>,
) -> std::result::Result<u128, CopyError> {
    let file = to
        .disk
        .open(to.path, OpenMode::CREATE.with_direct(to.direct_io))
        .map_err(CopyError::Write)?;
    if to.reserve {
        file.allocate(length).map_err(CopyError::Write)?;
    }
    let mut hasher = Xxh3::new();
    let mut buffer = AlignedBuffer::new();
    let mut at = 0;
    while at < bytes {
        // At most a chunk.
        let count = (bytes - at).min(CHUNK_BYTES as u64) as usize;
        buffer.clear();
        buffer.set_len(count);
        from.read_exact_at(&mut buffer, at).map_err(CopyError::Read)?;
        hasher.update(&buffer);
        // Only the last one needs it; it is cut off below.
        buffer.pad_to(PAGE_BYTES);
        file.write_all_at(&buffer, at).map_err(CopyError::Write)?;
        at += count as u64;
        step(count as u64).map_err(CopyError::Stopped)?;
    }
    file.set_len(length)
        .and_then(|()| file.sync_data())
        .map_err(CopyError::Write)?;
    Ok(hasher.digest128())
}
