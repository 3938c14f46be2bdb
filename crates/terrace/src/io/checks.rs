//! What both disks check before they act, so that a mistake shows the same way on both, and how
//! errors come to name the path.

use super::PAGE_BYTES;
use std::{
    fmt, io,
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
                let source = io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "the path must be relative and without `..`",
                );
                return Err(at("use", path, source));
            }
        }
    }
    Ok(clean)
}

/// Says in `source` what failed and where. The kind stays, except that a full quota is a full
/// device.
pub(super) fn at(operation: &'static str, path: &Path, source: io::Error) -> io::Error {
    let kind = match source.kind() {
        io::ErrorKind::QuotaExceeded => io::ErrorKind::StorageFull,
        kind => kind,
    };
    let path = path.to_owned();
    io::Error::new(
        kind,
        PathError {
            operation,
            path,
            source,
        },
    )
}

/// The error for a range whose end is no valid file offset. Kernels answer those with `EINVAL`,
/// which would be mistaken for a refusal of direct I/O.
pub(super) fn check_range(path: &Path, offset: u64, bytes: usize) -> io::Result<()> {
    match offset.checked_add(bytes as u64) {
        Some(end) if i64::try_from(end).is_ok() => Ok(()),
        _ => Err(at(
            "address",
            path,
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("offset {offset} plus {bytes} bytes is beyond any file"),
            ),
        )),
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
    Err(at("write", path, io::Error::new(io::ErrorKind::InvalidInput, message)))
}

/// Refuses to change a file that is open for reading.
pub(super) fn check_writable(operation: &'static str, path: &Path, writable: bool) -> io::Result<()> {
    if writable {
        return Ok(());
    }
    let error = io::Error::new(io::ErrorKind::PermissionDenied, "the file is open for reading only");
    Err(at(operation, path, error))
}

/// The error for a file that ends before a buffer is full.
pub(super) fn ends_early(path: &Path, offset: u64, wanted: usize, bytes: usize) -> io::Error {
    let message = format!("the file ends {bytes} bytes after offset {offset}, {wanted} were asked for");
    at("read", path, io::Error::new(io::ErrorKind::UnexpectedEof, message))
}

#[derive(Debug)]
struct PathError {
    operation: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}: {}", self.operation, self.path.display(), self.source)
    }
}

impl std::error::Error for PathError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}
