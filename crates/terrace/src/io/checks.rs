//! What both disks check before they act, so that a mistake shows the same way on both, and how
//! errors come to name the path.

use super::PAGE_BYTES;
use std::{
    io,
    path::{Component, Path, PathBuf},
};

/// `path` without `.` components. Anything that could leave a disk's root is refused.
pub(super) fn relative(path: &Path) -> io::Result<PathBuf> {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                let why = "the path must be relative and without `..`";
                return Err(refused("use", path, io::ErrorKind::InvalidInput, why));
            }
        }
    }
    Ok(clean)
}

/// Adds to `source` which operation failed on which file. The kind stays, except that a full quota
/// is a full device.
pub(super) fn at(operation: &'static str, path: &Path, source: io::Error) -> io::Error {
    let kind = match source.kind() {
        io::ErrorKind::QuotaExceeded => io::ErrorKind::StorageFull,
        kind => kind,
    };
    let error = PathError {
        operation,
        path: path.to_owned(),
        source,
    };
    io::Error::new(kind, error)
}

/// The same for requests that are refused here already.
fn refused(operation: &'static str, path: &Path, kind: io::ErrorKind, why: impl Into<String>) -> io::Error {
    at(operation, path, io::Error::new(kind, why.into()))
}

/// The error for a range whose end is no valid file offset. Kernels answer those with `EINVAL`,
/// which would be mistaken for a refusal of direct I/O.
pub(super) fn check_range(path: &Path, offset: u64, bytes: usize) -> io::Result<()> {
    match offset.checked_add(bytes as u64) {
        Some(end) if i64::try_from(end).is_ok() => Ok(()),
        _ => {
            let why = format!("offset {offset} plus {bytes} bytes is beyond any file");
            Err(refused("address", path, io::ErrorKind::InvalidInput, why))
        }
    }
}

/// The same for a length.
pub(super) fn check_len(path: &Path, bytes: u64) -> io::Result<()> {
    check_range(path, bytes, 0)
}

/// Whether direct I/O in units of `unit_bytes` can take the transfer as it is.
pub(super) fn is_aligned(buffer: &[u8], offset: u64, unit_bytes: usize) -> bool {
    buffer.as_ptr().addr().is_multiple_of(PAGE_BYTES)
        && buffer.len().is_multiple_of(unit_bytes)
        && offset.is_multiple_of(unit_bytes as u64)
}

/// Refuses a write that direct I/O could not take.
pub(super) fn check_aligned(path: &Path, buffer: &[u8], offset: u64) -> io::Result<()> {
    if is_aligned(buffer, offset, PAGE_BYTES) {
        return Ok(());
    }
    let message = format!(
        "a direct write of {} bytes at {offset} must be aligned to {PAGE_BYTES} bytes, in the file and in memory",
        buffer.len()
    );
    Err(refused("write", path, io::ErrorKind::InvalidInput, message))
}

/// Refuses to change a file that is open for reading.
pub(super) fn check_writable(operation: &'static str, path: &Path, writable: bool) -> io::Result<()> {
    if writable {
        return Ok(());
    }
    let why = "the file is open for reading only";
    Err(refused(operation, path, io::ErrorKind::PermissionDenied, why))
}

/// The error for a file that ends before a buffer is full.
pub(super) fn ends_early(path: &Path, offset: u64, wanted: usize, bytes: usize) -> io::Error {
    let message = format!("the file ends {bytes} bytes after offset {offset}, {wanted} were asked for");
    refused("read", path, io::ErrorKind::UnexpectedEof, message)
}

#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {}: {source}", .path.display())]
struct PathError {
    operation: &'static str,
    path: PathBuf,
    source: io::Error,
}
