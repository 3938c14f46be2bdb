//! Maps lsm-tree's errors, and its panics, to this crate's errors.
//!
//! lsm-tree verifies the checksum of every block it loads, and returns an error when it is wrong.
//! Some of its decoders of metadata assert instead; and its locks panic once a thread panicked
//! while holding them. Stored bytes must never abort the process, so every call that reads tables
//! runs under [`guarded_read`] or [`guarded_write`], which turn a panic into `Corruption`.

pub(super) use crate::api::error::{NO_DESCRIPTOR, lacks_descriptor};
use crate::{Error, Result, Tier};
use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// Runs a read. A file that is missing, too short, or points to impossible offsets (the system's
/// "invalid argument") is corrupt, not merely an I/O failure.
pub(super) fn guarded_read<T>(context: &str, read: impl FnOnce() -> lsm_tree::Result<T>) -> Result<T> {
    guarded(context, read)?.map_err(|error| match error {
        lsm_tree::Error::Io(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput
            ) =>
        {
            Error::corruption(
                context,
                format!("a file of the index is missing, cut short or points nowhere ({error})"),
            )
        }
        other => translate(context, other),
    })
}

/// Runs a write. Without a free file descriptor it is `Unavailable`: there will be one.
pub(super) fn guarded_write<T>(context: &str, write: impl FnOnce() -> lsm_tree::Result<T>) -> Result<T> {
    guarded(context, write)?.map_err(|error| match error {
        lsm_tree::Error::Io(error) if lacks_descriptor(&error) => NO_DESCRIPTOR,
        other => translate(context, other),
    })
}

fn guarded<T>(context: &str, call: impl FnOnce() -> T) -> Result<T> {
    // The closures only touch the tree, whose locks refuse further use if a writer panicked inside.
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        let reason = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no reason given");
        Error::corruption(context, format!("the index library gave up: {reason}"))
    })
}

fn translate(context: &str, error: lsm_tree::Error) -> Error {
    match error {
        lsm_tree::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => {
            Error::corruption(context, error.to_string())
        }
        lsm_tree::Error::Io(error) => Error::io_on(Tier::Flash, context, &error),
        lsm_tree::Error::InvalidVersion(version) => Error::corruption(
            context,
            format!("the index has format {version}, which this version cannot read"),
        ),
        other => Error::corruption(context, format!("{other:?}")),
    }
}
