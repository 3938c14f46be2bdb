//! Finds the files under a directory.
//!
//! Invariants: entries are in name order, so two runs over the same tree agree. Symbolic links are
//! followed, and each directory, identified by device and inode, is read at most once: no links
//! make the walk endless. Only regular files are returned; pipes, sockets and devices are never
//! opened.
//!
//! Failure: a path that cannot be read is returned as a failure, and the walk continues.

use std::{
    collections::HashSet,
    ffi::OsString,
    fs, io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

/// A result of the walk.
#[derive(Debug)]
pub(super) enum Found {
    /// A regular file.
    File(PathBuf),
    /// A path that cannot be imported, and the reason.
    Failed(PathBuf, String),
}

/// A directory being read: its remaining names, in reverse order.
struct Level {
    path: PathBuf,
    identity: (u64, u64),
    names: Vec<OsString>,
}

/// An iterator over everything under a path.
pub(super) struct Walk {
    root: Option<PathBuf>,
    levels: Vec<Level>,
    visited: HashSet<(u64, u64)>,
}

impl Walk {
    /// Walks a directory, or returns a single file.
    pub(super) fn new(root: &Path) -> Self {
        Self {
            root: Some(root.to_owned()),
            levels: Vec::new(),
            visited: HashSet::new(),
        }
    }

    /// Handles a path: returns a file, enters a directory.
    fn visit(&mut self, path: PathBuf) -> Option<Found> {
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) => return Some(Found::Failed(path, unreadable(&error))),
        };
        let kind = metadata.file_type();
        if kind.is_file() {
            return Some(Found::File(path));
        }
        if kind.is_dir() {
            return self.enter(path, (metadata.dev(), metadata.ino()));
        }
        let name = if kind.is_fifo() {
            "a named pipe"
        } else if kind.is_socket() {
            "a socket"
        } else {
            "a device"
        };
        Some(Found::Failed(path, format!("{name}, not a file; left alone")))
    }

    fn enter(&mut self, path: PathBuf, identity: (u64, u64)) -> Option<Found> {
        if self.levels.iter().any(|level| level.identity == identity) {
            return Some(Found::Failed(
                path,
                "a symbolic link back to a directory it is in; not followed".to_owned(),
            ));
        }
        if !self.visited.insert(identity) {
            return None;
        }
        match names_in(&path) {
            Ok(names) => {
                self.levels.push(Level { path, identity, names });
                None
            }
            Err(error) => Some(Found::Failed(path, unreadable(&error))),
        }
    }
}

impl Iterator for Walk {
    type Item = Found;

    fn next(&mut self) -> Option<Found> {
        if let Some(root) = self.root.take()
            && let Some(found) = self.visit(root)
        {
            return Some(found);
        }
        while let Some(level) = self.levels.last_mut() {
            let Some(name) = level.names.pop() else {
                self.levels.pop();
                continue;
            };
            let path = level.path.join(name);
            if let Some(found) = self.visit(path) {
                return Some(found);
            }
        }
        None
    }
}

/// The names in a directory, in reverse order.
fn names_in(path: &Path) -> io::Result<Vec<OsString>> {
    let mut names = fs::read_dir(path)?
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<io::Result<Vec<_>>>()?;
    names.sort_unstable_by(|one, other| other.cmp(one));
    Ok(names)
}

/// The reason why a path could not be read.
pub(super) fn unreadable(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        io::ErrorKind::NotFound => "nothing there (a dangling link, or removed meanwhile)".to_owned(),
        _ => format!("cannot be read: {error}"),
    }
}
