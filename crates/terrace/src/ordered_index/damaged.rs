//! A note in the index's directory that one of its tables was found damaged. Most of a table is
//! read only on demand, so an open does not see such damage; the next open finds this note, and can
//! rebuild the index.
//!
//! The note is removed with the directory when the index is rebuilt. On failure: there is none, and
//! the next read that meets the damage tries again.
//!
//! Another note says that the system did not read a part of the index, as where a sector has died.
//! That may pass, so the next open only replaces tables that it cannot read, or that differ from
//! what was written, by their copies.

use super::{OrderedIndex, errors, mark::MARK_KEY};
use crate::Error;
use lsm_tree::AbstractTree as _;
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

const FILE: &str = "damaged";
const UNREADABLE_FILE: &str = "unreadable";

/// Makes the notes.
#[derive(Debug)]
pub(super) struct DamageNote {
    /// `None` if nothing may be written.
    dir: Option<PathBuf>,
    is_made: AtomicBool,
    is_unreadable: AtomicBool,
}

impl DamageNote {
    pub(super) fn new(dir: &Path, may_write: bool) -> Self {
        Self {
            dir: may_write.then(|| dir.to_owned()),
            is_made: AtomicBool::new(false),
            is_unreadable: AtomicBool::new(false),
        }
    }

    /// Whether damage was found since the open.
    pub(super) fn is_made(&self) -> bool {
        self.is_made.load(Ordering::Acquire)
    }

    /// Makes a note if `error` tells of damage, or of a part that was not read.
    pub(super) fn make(&self, error: &Error) {
        let (is_made, file, what) = match error {
            Error::Corruption { .. } => (
                &self.is_made,
                FILE,
                "the ordered index is damaged; the next open builds it anew if the log has all of it",
            ),
            Error::Io { .. } => (
                &self.is_unreadable,
                UNREADABLE_FILE,
                "the system failed to read or write the ordered index; the next open compares its tables with their \
                 checksums, and replaces damaged ones by their copies",
            ),
            _ => return,
        };
        let Some(dir) = &self.dir else { return };
        if is_made.swap(true, Ordering::AcqRel) {
            return;
        }
        tracing::error!(%error, "{what}");
        if let Err(error) = fs::write(dir.join(file), error.to_string()) {
            tracing::warn!(%error, "the damage could not be noted beside the index");
            is_made.store(false, Ordering::Release);
        }
    }
}

impl OrderedIndex {
    /// The readable keys of partly damaged tables: of each table those before its first damaged
    /// block and those behind its last. The entry of each key must be looked up separately.
    pub fn keys_in_sound_parts(&self) -> BTreeSet<Vec<u8>> {
        let mut keys = BTreeSet::new();
        let state = self.tree.current_version();
        for table in state.iter_tables() {
            let walked = errors::guarded_read("reading a damaged table", || {
                let mut items = table.iter();
                let forth = items.by_ref().map_while(lsm_tree::Result::ok);
                keys.extend(forth.map(|item| item.key.user_key.to_vec()));
                let back = table.iter().rev().map_while(lsm_tree::Result::ok);
                keys.extend(back.map(|item| item.key.user_key.to_vec()));
                Ok(())
            });
            if let Err(error) = walked {
                tracing::warn!(%error, "a table of the index cannot be read");
            }
        }
        // The mark and what is behind it are no objects'.
        keys.retain(|key| key.as_slice() < MARK_KEY.as_slice());
        keys
    }
}

/// Removes the note of damage: what it tells of was put right.
pub(super) fn remove_note(dir: &Path) -> io::Result<()> {
    remove(&dir.join(FILE))
}

/// Removes the other note: all tables were read.
pub(super) fn remove_unreadable_note(dir: &Path) -> io::Result<()> {
    remove(&dir.join(UNREADABLE_FILE))
}

fn remove(note: &Path) -> io::Result<()> {
    match fs::remove_file(note) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// What an earlier life noted.
pub fn noted_damage(dir: &Path) -> Option<String> {
    let text = fs::read(dir.join(FILE)).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// Whether an earlier life could not read a part.
pub fn noted_unreadable(dir: &Path) -> bool {
    dir.join(UNREADABLE_FILE).exists()
}
