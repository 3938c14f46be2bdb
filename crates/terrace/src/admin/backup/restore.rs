//! Copies a backup to a new store.
//!
//! Invariants: nothing is linked, so writes to the store do not affect the backup. The tiers'
//! manifests are written last, and the marks of an unfinished restore are removed after them, so an
//! incomplete store is never opened.
//!
//! On failure: the target is incomplete; the next restore into it removes its contents. The backup
//! was only read.

use super::{
    RestoreOptions, RestoreReport,
    dirs::{Restored, created, existing, load_manifest},
    manifest::BackupFile,
    transfer::{CopyTo, copy},
};
use crate::{
    Error, Options, Result, Tier, Version,
    io::{Disk, OpenMode},
    manifest::{self, Manifest},
};
use std::{io, path::Path, sync::Arc, time::Instant};

struct Restore<'a> {
    backup: Arc<dyn Disk>,
    backup_dir: &'a Path,
    options: &'a Options,
    how: &'a RestoreOptions,
    restored: Restored,
    /// The index keeps its own files, wherever the rest of the tier is.
    index: Arc<dyn Disk>,
    damaged: Vec<String>,
}

/// Restores a backup. See [`crate::Store::restore`].
///
/// # Errors
/// See there.
pub fn restore(backup_dir: &Path, options: &Options, how: &RestoreOptions) -> Result<RestoreReport> {
    let start = Instant::now();
    let backup = existing(how.backup_disk.as_ref(), backup_dir)?;
    let manifest = load_manifest(&*backup, backup_dir)?;
    let options = Options {
        create: true,
        read_only: false,
        ..options.clone()
    };
    let flash = created(options.flash_disk.as_ref(), &options.flash_dir)?;
    let large = created(options.large_disk.as_ref(), &options.large_dir)?;
    // Checked before the lock file is created there, and again after.
    Restored::check(&*flash, &options)?;
    let _lock = manifest::lock(&options)?;
    let mut restore = Restore {
        restored: Restored::begin(flash, large, &options)?,
        index: created(None, &options.flash_dir)?,
        backup,
        backup_dir,
        options: &options,
        how,
        damaged: Vec::new(),
    };
    how.progress.start(manifest.bytes());
    restore.prepare_index()?;
    let (last, first): (Vec<_>, Vec<_>) = manifest.files.iter().partition(|(path, _)| is_tier_manifest(path));
    for (path, file) in first {
        restore.file(path, file)?;
    }
    restore.sync_index()?;
    restore.restored.sync()?;
    for (path, file) in last {
        restore.file(path, file)?;
    }
    restore.restored.sync()?;
    restore.restored.complete()?;
    Ok(RestoreReport {
        version: Version(manifest.seq),
        files: manifest.files.len() as u64,
        bytes: manifest.bytes(),
        damaged: restore.damaged,
        elapsed: start.elapsed(),
    })
}

fn is_tier_manifest(path: &str) -> bool {
    Path::new(path)
        .file_name()
        .is_some_and(|name| name == Manifest::PATH || name == Manifest::COPY_PATH)
}

impl Restore<'_> {
    /// The index's directory, which an attempt before may have filled.
    fn prepare_index(&self) -> Result<()> {
        let prepare = || {
            for directory in ["index/tables", "index"].map(Path::new) {
                self.index.create_dir_all(directory)?;
                for name in self.index.list(directory)? {
                    self.index.remove(&directory.join(name))?;
                }
            }
            Ok(())
        };
        prepare().map_err(|error: io::Error| Error::io_on(Tier::Flash, "begin the restore", &error))
    }

    fn file(&mut self, path: &str, file: &BackupFile) -> Result<()> {
        let context = || format!("read {}", self.backup_dir.join(path).display());
        let (tier, disk, place) = match path.split_once('/') {
            Some(("flash", place)) if place.starts_with("index/") => (Tier::Flash, Arc::clone(&self.index), place),
            Some(("flash", place)) => (Tier::Flash, Arc::clone(&self.restored.flash), place),
            Some((_, place)) => (Tier::Large, Arc::clone(&self.restored.large), place),
            None => return Err(Error::corruption(path.to_owned(), "it is of no tier")),
        };
        let opened = self
            .backup
            .open(
                Path::new(path),
                OpenMode::READ.with_direct(self.options.tuning.direct_io),
            )
            .and_then(|from| from.len().map(|length| (from, length)));
        let (from, length) = match opened {
            Ok(opened) => opened,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return self.damage(path, "it is gone"),
            Err(error) => return Err(Error::io(context(), &error)),
        };
        if length != file.length {
            let reason = format!("it has {length} bytes instead of {}", file.length);
            self.damage(path, &reason)?;
        }
        let to = CopyTo {
            disk: &*disk,
            path: Path::new(place),
            direct_io: self.options.tuning.direct_io,
            // A segment's space is taken whole, so that the log never finds a full device within
            // it.
            reserve: file.length > file.bytes,
        };
        let progress = &self.how.progress;
        let mut step = |bytes| {
            progress.add(bytes);
            progress.check()
        };
        let copied = copy(&*from, file.bytes.min(length), file.length, &to, &mut step);
        let checksum = copied.map_err(|error| {
            error.at(&self.backup_dir.join(path), |_, error| {
                Error::io_on(tier, format!("restore {path}"), error)
            })
        })?;
        if length == file.length && file.checksum.is_some_and(|expected| expected != checksum) {
            return self.damage(path, "its checksum is wrong");
        }
        Ok(())
    }

    /// Reports a file of the backup that has changed.
    fn damage(&mut self, path: &str, reason: &str) -> Result<()> {
        let place = self.backup_dir.join(path).display().to_string();
        if !self.how.keep_damaged {
            return Err(Error::Corruption {
                place,
                reason: format!(
                    "{reason}; restore another backup, or this one as it is with --keep-damaged, which loses what the damage hit"
                ),
            });
        }
        tracing::error!(path, reason, "a file of the backup is damaged");
        self.damaged.push(format!("{place}: {reason}"));
        Ok(())
    }

    fn sync_index(&self) -> Result<()> {
        ["index/tables", "index", ""]
            .iter()
            .try_for_each(|directory| self.index.sync_dir(Path::new(directory)))
            .map_err(|error| Error::io_on(Tier::Flash, "sync the restored index", &error))
    }
}
