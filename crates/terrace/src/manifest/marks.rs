//! The files that mark a directory as not being a complete, writable store.

use crate::{
    Error, Options, Result,
    io::{Disk, OpenMode},
};
use std::{io, path::Path};

/// A complete backup's manifest, and the marker in its flash directory.
pub const BACKUP_FILE: &str = "BACKUP";
/// A restore that is not complete.
pub const RESTORING_FILE: &str = "RESTORING";

/// Whether there is a file of this name.
///
/// # Errors
/// Errors of the device.
pub fn exists(disk: &dyn Disk, name: &str) -> Result<bool> {
    exists_plainly(disk, name).map_err(|error| Error::io(format!("read {name}"), &error))
}

/// The same, with the error as the device gives it.
///
/// # Errors
/// Errors of the device.
pub fn exists_plainly(disk: &dyn Disk, name: &str) -> io::Result<bool> {
    match disk.open(Path::new(name), OpenMode::READ) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Refuses to open or repair for writing a backup or an interrupted restore.
///
/// # Errors
/// [`Error::NotAStore`], the devices'.
pub fn refuse_marked(options: &Options, flash: &dyn Disk) -> Result<()> {
    let refuse = |reason: &str| Err(Error::not_a_store(&options.flash_dir, reason));
    if !options.read_only && exists(flash, BACKUP_FILE)? {
        return refuse(
            "this is a backup, which is never written; copy it to a new place with `terrace restore`, or only read it",
        );
    }
    if exists(flash, RESTORING_FILE)? {
        return refuse("a restore into it is under way or was cut short; run `terrace restore` again");
    }
    Ok(())
}
