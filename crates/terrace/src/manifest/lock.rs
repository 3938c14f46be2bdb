//! The lock of a store: one process writes it, or any number read it.

use crate::{Error, Options, Result, Tier, io::create_private_dir_all};
use std::{
    fs::{File, TryLockError},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
    time::{Duration, Instant},
};

pub(super) const LOCK_FILE: &str = "LOCK";
/// How long a held lock is retried. A forked child shares open files, and their locks, until its
/// exec: the store of a process that was just killed may be locked for a moment longer.
pub(super) const LOCK_PATIENCE: Duration = Duration::from_millis(500);
const LOCK_STEP: Duration = Duration::from_millis(5);

/// Files and directories that are locked until this is dropped.
///
/// The locks are released explicitly: after a mere close, a child process that was just forked
/// holds them until its exec.
#[derive(Debug)]
pub struct Lock(pub(super) Vec<File>);

impl Lock {
    /// The lock of a locked file.
    pub fn of(file: File) -> Self {
        Self(vec![file])
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        for file in self.0.iter().rev() {
            // If it fails, closing the file does the same, a little later.
            let _ = file.unlock();
        }
    }
}

/// Holds the store for this process until dropped. Readers share it.
///
/// Locked are the file `LOCK` of the flash tier, which is what programs of before lock, and the
/// directories of both tiers: `LOCK` can be deleted under its holder, and says nothing of the large
/// tier, which a copy of the flash tier may name as well.
///
/// # Errors
/// [`Error::Locked`] if another process has it.
pub fn lock(options: &Options) -> Result<Option<Lock>> {
    lock_within(options, LOCK_PATIENCE)
}

pub(super) fn lock_within(options: &Options, patience: Duration) -> Result<Option<Lock>> {
    if !options.create && !options.flash_dir.is_dir() {
        let nothing = "there is no store here; check the path";
        return Err(Error::not_a_store(&options.flash_dir, nothing));
    }
    if !options.read_only {
        let failed = |error| Error::io_on(Tier::Flash, context(&options.flash_dir.join(LOCK_FILE)), &error);
        create_private_dir_all(&options.flash_dir).map_err(failed)?;
    }
    let until = Instant::now() + patience;
    let mut held = Lock(Vec::new());
    if let Some(file) = lock_file(options)? {
        hold(file, &options.flash_dir, options.read_only, until, &mut held)?;
    }
    for dir in directories(options)? {
        match File::open(dir) {
            Ok(file) => match hold(file, dir, options.read_only, until, &mut held) {
                // Network file systems lock no directories. There `LOCK` is all there is.
                Err(Error::Io { message, .. }) => {
                    tracing::warn!("{} cannot be locked: {message}", dir.display());
                }
                outcome => outcome?,
            },
            // The open says what is missing.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io(context(dir), &error)),
        }
    }
    Ok((!held.0.is_empty()).then_some(held))
}

fn context(path: &Path) -> String {
    format!("lock {}", path.display())
}

/// The file `LOCK`. A reader creates and writes nothing: the file system may be read-only.
pub(super) fn lock_file(options: &Options) -> Result<Option<File>> {
    let path = options.flash_dir.join(LOCK_FILE);
    let is_writer = !options.read_only;
    match File::options()
        .create(is_writer)
        .truncate(false)
        .write(is_writer)
        .read(true)
        .mode(0o600)
        .open(&path)
    {
        Ok(file) => Ok(Some(file)),
        Err(error) if options.read_only && error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io_on(Tier::Flash, context(&path), &error)),
    }
}

/// The directories to lock, flash first: one only if the two are the same, since a second lock
/// would wait for the first. The large tier's is made here if the store may be created.
fn directories(options: &Options) -> Result<Vec<&Path>> {
    let (flash, large) = (options.flash_dir.as_path(), options.large_dir.as_path());
    // A disk that was handed over is not in the directory.
    if options.large_disk.is_some() {
        return Ok(vec![flash]);
    }
    if options.create && !options.read_only {
        create_private_dir_all(large).map_err(|error| Error::io_on(Tier::Large, context(large), &error))?;
    }
    let identity = |dir: &Path| dir.metadata().ok().map(|found| (found.dev(), found.ino()));
    Ok(if identity(flash) == identity(large) {
        vec![flash]
    } else {
        vec![flash, large]
    })
}

fn hold(file: File, dir: &Path, is_shared: bool, until: Instant, held: &mut Lock) -> Result<()> {
    loop {
        let outcome = if is_shared {
            file.try_lock_shared()
        } else {
            file.try_lock()
        };
        match outcome {
            Ok(()) => {
                held.0.push(file);
                return Ok(());
            }
            Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(LOCK_STEP),
            Err(TryLockError::WouldBlock) => return Err(Error::Locked(dir.to_owned())),
            Err(TryLockError::Error(error)) => return Err(Error::io(context(dir), &error)),
        }
    }
}
