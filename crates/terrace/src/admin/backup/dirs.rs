//! The directories of backups and restores: whether they may be used, and the files that mark them.
//!
//! | file | where | meaning |
//! |---|---|---|
//! | `BACKUP` | backup | the manifest: the backup is complete |
//! | `BACKUP.part` | backup | a backup is being taken, or was interrupted |
//! | `BACKUP` | flash directory of a backup | this directory belongs to a backup and is never written |
//! | `RESTORING` | flash directory of a store | a restore is under way, or was interrupted |
//! | `RESTORING` | its large directory | the same, if the flash directory has one too; else nothing |
//!
//! On failure: a directory with any other contents is not changed.

use super::manifest::{BackupManifest, MANIFEST_BYTES_MAX};
use crate::{
    Error, Options, Result, Tier,
    hash_index::checkpoint,
    io::{Disk, FileDisk, OpenMode},
    manifest::{
        Lock, Manifest,
        marks::{BACKUP_FILE, RESTORING_FILE, exists, exists_plainly},
    },
};
use std::{
    fs::{self, File, TryLockError},
    hash::{BuildHasher as _, Hasher as _},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Where it grows.
const BACKUP_NEW: &str = "BACKUP.new";
/// A backup that is not complete.
const PART_FILE: &str = "BACKUP.part";
/// More than a mark has.
const MARK_BYTES_MAX: usize = 256;
/// The directories of a backup, innermost first.
pub(super) const DIRECTORIES: [&str; 7] = [
    "flash/index/tables",
    "flash/index",
    "flash/segments",
    "flash",
    "large/blocks",
    "large/meta",
    "large",
];

const MARKER_TEXT: &str =
    "This directory belongs to a backup and is never written. `terrace restore` copies it to a store.\n";
const PART_TEXT: &str =
    "A backup that is being taken, or was cut short. The next `terrace backup` here begins again.\n";
const RESTORING_TEXT: &str = "A restore that is under way, or was cut short. Run `terrace restore` again.";

/// Writes a small file that is not there yet, durably once its directory is synced.
pub(super) fn write_file(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = disk.open(path, OpenMode::CREATE)?;
    file.write_all_at(bytes, 0)?;
    file.sync_data()
}

/// Opens an existing directory as a disk.
pub(super) fn existing(given: Option<&Arc<dyn Disk>>, dir: &Path) -> Result<Arc<dyn Disk>> {
    if let Some(disk) = given {
        return Ok(Arc::clone(disk));
    }
    if !dir.is_dir() {
        return Err(Error::not_a_store(dir, "there is no such directory; check the path"));
    }
    created(None, dir)
}

/// Opens a directory as a disk; creates it if necessary.
pub(super) fn created(given: Option<&Arc<dyn Disk>>, dir: &Path) -> Result<Arc<dyn Disk>> {
    if let Some(disk) = given {
        return Ok(Arc::clone(disk));
    }
    let disk = FileDisk::new(dir).map_err(|error| Error::io(format!("open {}", dir.display()), &error))?;
    Ok(Arc::new(disk))
}

/// Reads the manifest of a complete backup.
///
/// # Errors
/// [`Error::NotAStore`] if it is none, [`Error::Corruption`], errors of the device.
pub(super) fn load_manifest(disk: &dyn Disk, dir: &Path) -> Result<BackupManifest> {
    let place = dir.join(BACKUP_FILE);
    let fail = |error: io::Error| Error::io(format!("read {}", place.display()), &error);
    let file = match disk.open(Path::new(BACKUP_FILE), OpenMode::READ) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let reason = if exists(disk, PART_FILE)? {
                "this backup is not complete: it is being taken, or was cut short; take it again, or use another"
            } else {
                "there is no backup here; check the path"
            };
            return Err(Error::not_a_store(dir, reason));
        }
        Err(error) => return Err(fail(error)),
    };
    let length = file.len().map_err(fail)?;
    if length > MANIFEST_BYTES_MAX {
        return Err(Error::corruption(place.display().to_string(), "it is impossibly long"));
    }
    // Within the limit.
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, 0).map_err(fail)?;
    BackupManifest::decode(&bytes, &place)
}

/// The directory of a backup that is being taken.
#[derive(Debug)]
pub(super) struct Target {
    pub disk: Arc<dyn Disk>,
    pub dir: PathBuf,
    /// Keeps others from taking one into the same directory.
    _lock: Option<Lock>,
}

impl Target {
    /// Begins a backup in an empty directory, or again in one with an interrupted backup.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the directory holds something else or another backup is being taken
    /// into it, errors of the device.
    pub fn begin(given: Option<&Arc<dyn Disk>>, dir: &Path) -> Result<Self> {
        if given.is_none() && dir.exists() && !dir.is_dir() {
            return Err(Error::invalid(format!("{} is no directory", dir.display())));
        }
        let disk = created(given, dir)?;
        let is_part = exists(&*disk, PART_FILE)?;
        if exists(&*disk, BACKUP_FILE)? {
            return Err(Error::invalid(format!(
                "{} holds a backup already; choose a new directory (with that one as --onto, what has not changed costs nothing)",
                dir.display()
            )));
        }
        if !is_part && !is_empty(&*disk, &[])? {
            return Err(Error::invalid(format!(
                "{} is not empty; choose a new directory for the backup",
                dir.display()
            )));
        }
        let fail = |error: io::Error| Error::io(format!("begin a backup in {}", dir.display()), &error);
        if !is_part {
            write_file(&*disk, Path::new(PART_FILE), PART_TEXT.as_bytes()).map_err(fail)?;
            disk.sync_dir(Path::new("")).map_err(fail)?;
        }
        let lock = lock(&*disk, dir)?;
        if is_part {
            remove_contents(&*disk, &DIRECTORIES).map_err(fail)?;
            let _ = disk.remove(Path::new(BACKUP_NEW));
        }
        for directory in DIRECTORIES {
            disk.create_dir_all(Path::new(directory)).map_err(fail)?;
        }
        write_file(&*disk, &Path::new("flash").join(BACKUP_FILE), MARKER_TEXT.as_bytes()).map_err(fail)?;
        Ok(Self {
            disk,
            dir: dir.to_owned(),
            _lock: lock,
        })
    }

    /// Makes all names durable and then the backup complete.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn complete(&self, manifest: &BackupManifest) -> Result<()> {
        let disk = &*self.disk;
        let complete = || {
            for directory in DIRECTORIES {
                disk.sync_dir(Path::new(directory))?;
            }
            write_file(disk, Path::new(BACKUP_NEW), manifest.encode().as_bytes())?;
            disk.rename(Path::new(BACKUP_NEW), Path::new(BACKUP_FILE))?;
            disk.sync_dir(Path::new(""))
        };
        complete().map_err(|error| self.error("complete the backup", &error))?;
        // If it is left behind, it is harmless beside the manifest.
        let _ = disk
            .remove(Path::new(PART_FILE))
            .and_then(|()| disk.sync_dir(Path::new("")));
        Ok(())
    }

    /// An error of the target.
    pub fn error(&self, what: &str, error: &io::Error) -> Error {
        let advice = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "; the backup's device is full: free space there, and take the backup again"
            }
            _ => "",
        };
        Error::Io {
            context: format!("{what} in {}", self.dir.display()),
            kind: error.kind(),
            message: format!("{error}{advice}"),
        }
    }
}

fn lock(disk: &dyn Disk, dir: &Path) -> Result<Option<Lock>> {
    let Some(path) = disk.host_path(Path::new(PART_FILE)) else {
        return Ok(None);
    };
    let fail = |error: io::Error| Error::io(format!("lock {}", path.display()), &error);
    let file = File::open(&path).map_err(fail)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(Lock::of(file))),
        Err(TryLockError::WouldBlock) => Err(Error::invalid(format!(
            "another backup is being taken into {}; wait for it, or choose another directory",
            dir.display()
        ))),
        Err(TryLockError::Error(error)) => Err(fail(error)),
    }
}

/// Whether nothing but `ignored` is in a disk's root.
fn is_empty(disk: &dyn Disk, ignored: &[&str]) -> Result<bool> {
    let root = disk.host_path(Path::new(""));
    let names = match &root {
        // With directories, which `list` leaves out.
        Some(root) => fs::read_dir(root).and_then(|items| {
            items
                .map(|item| Ok(item?.file_name().to_string_lossy().into_owned()))
                .collect::<io::Result<Vec<_>>>()
        }),
        None => disk.list(Path::new("")),
    };
    let names = names.map_err(|error| Error::io("list the directory", &error))?;
    Ok(names.iter().all(|name| ignored.contains(&name.as_str())))
}

/// Removes the files in some directories.
fn remove_contents(disk: &dyn Disk, directories: &[&str]) -> io::Result<()> {
    for directory in directories.iter().map(Path::new) {
        let names = disk.list(directory)?;
        for name in &names {
            disk.remove(&directory.join(name))?;
        }
        if !names.is_empty() {
            disk.sync_dir(directory)?;
        }
    }
    Ok(())
}

/// The directories of a store that is being restored.
///
/// The mark of the flash tier decides: it is durable before anything else is made, and while it
/// exists the store is incomplete. The large tier's mark has the same text, a number unique to this
/// restore; it only says that a restore that finds both may remove the files beside it.
#[derive(Debug)]
pub(super) struct Restored {
    pub flash: Arc<dyn Disk>,
    pub large: Arc<dyn Disk>,
}

impl Restored {
    /// Refuses a flash directory with any contents other than an interrupted restore.
    ///
    /// # Errors
    /// [`Error::Invalid`], errors of the device.
    pub fn check(flash: &dyn Disk, options: &Options) -> Result<()> {
        match read_mark(flash) {
            Ok(Some(_)) => Ok(()),
            Ok(None) => refuse_unless_empty(flash, &options.flash_dir),
            Err(error) => Err(Error::io("begin the restore", &error)),
        }
    }

    /// Begins a restore in empty directories, or again in those of an interrupted one.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a directory holds something else, the devices'.
    pub fn begin(flash: Arc<dyn Disk>, large: Arc<dyn Disk>, options: &Options) -> Result<Self> {
        let restored = Self { flash, large };
        let fail = |error: io::Error| Error::io("begin the restore", &error);
        let mark = read_mark(&*restored.flash).map_err(fail)?;
        let is_part = mark.is_some();
        if !is_part {
            refuse_unless_empty(&*restored.flash, &options.flash_dir)?;
        }
        let text = mark.unwrap_or_else(|| format!("{RESTORING_TEXT} ({:016x})\n", random_number()).into_bytes());
        let large_is_part = is_part && read_mark(&*restored.large).map_err(fail)?.as_ref() == Some(&text);
        if !large_is_part {
            refuse_unless_empty(&*restored.large, &options.large_dir)?;
        }
        for (disk, tier, is_part) in [
            (&*restored.flash, "flash", is_part),
            (&*restored.large, "large", large_is_part),
        ] {
            Self::prepare(disk, tier, is_part, &text).map_err(fail)?;
        }
        Ok(restored)
    }

    fn prepare(disk: &dyn Disk, tier: &str, is_part: bool, mark: &[u8]) -> io::Result<()> {
        let directories = tier_directories(tier);
        if is_part {
            remove_contents(disk, &directories)?;
            for name in disk.list(Path::new(""))? {
                // A checkpoint is of a store that was opened; none that is being restored ever was.
                if name.starts_with(Manifest::PATH) || checkpoint::is_its_file(&name) {
                    disk.remove(Path::new(&name))?;
                }
            }
        } else {
            // A file whose bytes were lost in a power cut, in an otherwise empty directory.
            if exists_plainly(disk, RESTORING_FILE)? {
                disk.remove(Path::new(RESTORING_FILE))?;
            }
            write_file(disk, Path::new(RESTORING_FILE), mark)?;
        }
        disk.sync_dir(Path::new(""))?;
        directories
            .iter()
            .try_for_each(|directory| disk.create_dir_all(Path::new(directory)))
    }

    /// Makes all names durable.
    ///
    /// # Errors
    /// The devices'.
    pub fn sync(&self) -> Result<()> {
        for (disk, tier, name) in [(&self.flash, Tier::Flash, "flash"), (&self.large, Tier::Large, "large")] {
            let synced = tier_directories(name)
                .iter()
                .chain([&""])
                .try_for_each(|directory| disk.sync_dir(Path::new(directory)));
            synced.map_err(|error| Error::io_on(tier, "sync what was restored", &error))?;
        }
        Ok(())
    }

    /// Marks the store as complete.
    ///
    /// # Errors
    /// The devices'.
    pub fn complete(&self) -> Result<()> {
        for (disk, tier) in [(&self.flash, Tier::Flash), (&self.large, Tier::Large)] {
            let removed = disk
                .remove(Path::new(RESTORING_FILE))
                .and_then(|()| disk.sync_dir(Path::new("")));
            removed.map_err(|error| Error::io_on(tier, "complete the restore", &error))?;
        }
        Ok(())
    }
}

/// A tier's directories in a store, innermost first.
fn tier_directories(tier: &str) -> Vec<&'static str> {
    DIRECTORIES
        .iter()
        .filter_map(|path| path.strip_prefix(tier)?.strip_prefix('/'))
        .collect()
}

fn read_mark(disk: &dyn Disk) -> io::Result<Option<Vec<u8>>> {
    match disk.open(Path::new(RESTORING_FILE), OpenMode::READ) {
        Ok(file) => {
            let mut bytes = vec![0; MARK_BYTES_MAX];
            let length = file.read_up_to_at(&mut bytes, 0)?;
            bytes.truncate(length);
            let is_whole = bytes.starts_with(RESTORING_TEXT.as_bytes()) && bytes.ends_with(b")\n");
            Ok(is_whole.then_some(bytes))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn refuse_unless_empty(disk: &dyn Disk, dir: &Path) -> Result<()> {
    if is_empty(disk, &["LOCK", RESTORING_FILE])? {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{} is not empty; restore into a new directory, and put it in place of the old one when it is there",
        dir.display()
    )))
}

fn random_number() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}
