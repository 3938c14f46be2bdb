//! The lock of a store: one process writes it, or any number read it.

use crate::{Error, Options, Result, Tier, io::create_private_dir_all};
use std::{
    fs::{File, TryLockError},
    os::unix::fs::OpenOptionsExt as _,
    time::{Duration, Instant},
};

pub(super) const LOCK_FILE: &str = "LOCK";
/// How long a held lock is retried. A forked child shares open files, and their locks, until its
/// exec: the store of a process that was just killed may be locked for a moment longer.
pub(super) const LOCK_PATIENCE: Duration = Duration::from_millis(500);
const LOCK_STEP: Duration = Duration::from_millis(5);

/// A file that is locked until this is dropped.
///
/// The lock is released explicitly: after a mere close, a child process that was just forked holds
/// it until its exec.
#[derive(Debug)]
pub struct Lock(pub(super) File);

impl Lock {
    /// The lock of a locked file.
    pub const fn of(file: File) -> Self {
        Self(file)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // If it fails, closing the file does the same, a little later.
        let _ = self.0.unlock();
    }
}

/// Holds the store for this process until dropped. Readers share it.
///
/// # Errors
/// [`Error::Locked`] if another process has it.
pub fn lock(options: &Options) -> Result<Option<Lock>> {
    lock_within(options, LOCK_PATIENCE)
}

pub(super) fn lock_within(options: &Options, patience: Duration) -> Result<Option<Lock>> {
    let path = options.flash_dir.join(LOCK_FILE);
    let context = || format!("lock {}", path.display());
    if !options.create && !options.flash_dir.is_dir() {
        let nothing = "there is no store here; check the path";
        return Err(Error::not_a_store(&options.flash_dir, nothing));
    }
    if !options.read_only {
        create_private_dir_all(&options.flash_dir).map_err(|error| Error::io_on(Tier::Flash, context(), &error))?;
    }
    let file = match File::options()
        .create(!options.read_only)
        .truncate(false)
        .write(true)
        .read(true)
        .mode(0o600)
        .open(&path)
    {
        Ok(file) => file,
        Err(error) if options.read_only && error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io_on(Tier::Flash, context(), &error)),
    };
    let until = Instant::now() + patience;
    loop {
        let outcome = if options.read_only {
            file.try_lock_shared()
        } else {
            file.try_lock()
        };
        match outcome {
            Ok(()) => return Ok(Some(Lock(file))),
            Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(LOCK_STEP),
            Err(TryLockError::WouldBlock) => return Err(Error::Locked(options.flash_dir.clone())),
            Err(TryLockError::Error(error)) => return Err(Error::io(context(), &error)),
        }
    }
}
