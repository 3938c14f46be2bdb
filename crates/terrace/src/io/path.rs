//! What both disks do with paths: keep them inside the root, and put them into error messages.

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

/// Says in `source` what failed and where. The kind stays, except that a full quota is a full device.
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

/// The error for a range whose end is no valid file offset. Kernels answer those with `EINVAL`, which
/// would be mistaken for a refusal of direct I/O.
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
