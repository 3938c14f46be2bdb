//! Installs the new index: `index.new` while it is built, `index` once it is complete, and the
//! replaced one in `index.old-N` until then.
//!
//! On failure between the two renames there is no `index`, only both others: the store refuses to
//! open, and the next repair starts over. After any other failure the old index is where it was.

use super::{OldIndex, notes::Notes, survey::Survey};
use crate::{
    Error, Result, Tier,
    engine::mark::MarkPayload,
    ordered_index::{IndexOptions, OrderedIndex, SetAside, mend, set_damaged_aside},
};
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The index of an open store.
const CURRENT: &str = "index";
/// The one that is being built.
pub const NEW: &str = "index.new";
/// Prefix of replaced directories.
const OLD: &str = "index.old-";

/// Where the new index is built.
pub fn new_directory(flash_dir: &Path) -> PathBuf {
    flash_dir.join(NEW)
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Error {
    Error::io_on(Tier::Flash, format!("{what} {}", path.display()), error)
}

fn sync(directory: &Path) -> Result<()> {
    File::open(directory)
        .and_then(|file| file.sync_all())
        .map_err(|error| failed("sync", directory, &error))
}

fn remove(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(|error| failed("remove", directory, &error)),
    }
}

/// Removes the incomplete new index of an interrupted repair.
///
/// # Errors
/// Errors of the file system.
pub fn remove_unfinished(flash_dir: &Path) -> Result<()> {
    remove(&new_directory(flash_dir))
}

/// Indexes that were replaced, by number.
fn old_ones(flash_dir: &Path) -> Result<Vec<u64>> {
    let items = fs::read_dir(flash_dir).map_err(|error| failed("list", flash_dir, &error))?;
    let mut numbers = Vec::new();
    for item in items {
        let item = item.map_err(|error| failed("list", flash_dir, &error))?;
        let name = item.file_name().to_string_lossy().into_owned();
        numbers.extend(name.strip_prefix(OLD).and_then(|number| number.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

fn old_directory(flash_dir: &Path, number: u64) -> PathBuf {
    flash_dir.join(format!("{OLD}{number}"))
}

/// Whether there is no index, but the remains of an interrupted exchange of two.
///
/// # Errors
/// Errors of the file system.
pub fn is_between(flash_dir: &Path) -> Result<bool> {
    if flash_dir.join(CURRENT).exists() || !flash_dir.is_dir() {
        return Ok(false);
    }
    Ok(new_directory(flash_dir).exists() || !old_ones(flash_dir)?.is_empty())
}

/// The index that was, if it can be opened. Tiny values live in it alone once their segment was
/// recycled, deletes are known to it alone, and it says how far the log once went.
///
/// # Errors
/// `OutOfSpace`, if that keeps tables from being replaced by their copies: without them more would
/// be lost. [`Error::NotAStore`] if it is another store's.
pub fn open_old(flash_dir: &Path, store_id: u64, survey: &Survey, notes: &mut Notes) -> Result<Option<OldIndex>> {
    let newest_old = old_ones(flash_dir).ok().and_then(|numbers| numbers.last().copied());
    let candidates = [
        Some(flash_dir.join(CURRENT)),
        newest_old.map(|number| old_directory(flash_dir, number)),
    ];
    let mut reason = "there is none".to_owned();
    for directory in candidates.into_iter().flatten().filter(|directory| directory.is_dir()) {
        match mend(&directory) {
            Ok(mended) => mended.into_iter().for_each(|note| notes.add(note)),
            Err(error @ Error::OutOfSpace { .. }) => return Err(error),
            Err(error) => notes.add(format!("the old index cannot be mended: {error}")),
        }
        let mut opened = OrderedIndex::open(&directory, IndexOptions::default());
        if matches!(opened, Err(Error::Corruption { .. }))
            && let Ok(SetAside::Done { tables, .. }) = set_damaged_aside(&directory, false)
        {
            notes.add(format!("{tables} damaged tables of the old index were set aside"));
            opened = OrderedIndex::open(&directory, IndexOptions::default());
        }
        match opened {
            Ok((index, Some(mark))) => {
                MarkPayload::check_store(&mark, store_id, &directory)?;
                return Ok(Some(Arc::new(index)));
            }
            Ok((_, None)) => "it is empty".clone_into(&mut reason),
            Err(error) => reason = error.to_string(),
        }
    }
    if survey.log_is_complete() {
        return Ok(None);
    }
    notes.add(format!(
        "the old index cannot be read ({reason}), and the log does not have every commit: tiny values that lived in the index alone are lost"
    ));
    Ok(None)
}

/// Puts the new index in place of the old one.
///
/// # Errors
/// Errors of the file system.
pub fn install(flash_dir: &Path) -> Result<()> {
    let (current, new) = (flash_dir.join(CURRENT), new_directory(flash_dir));
    let next = old_ones(flash_dir)?.last().map_or(0, |last| last + 1);
    let old = old_directory(flash_dir, next);
    let rename = |from: &Path, to: &Path| fs::rename(from, to).map_err(|error| failed("rename", from, &error));
    let had_one = current.exists();
    if had_one {
        rename(&current, &old)?;
        sync(flash_dir)?;
    }
    if let Err(error) = rename(&new, &current) {
        if had_one {
            // If this fails too, the next repair finds both.
            let _ = rename(&old, &current);
        }
        return Err(error);
    }
    sync(flash_dir)?;
    for number in old_ones(flash_dir)? {
        remove(&old_directory(flash_dir, number))?;
    }
    sync(flash_dir)
}
