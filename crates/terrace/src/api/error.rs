//! Errors, named by what the caller can do about them.
//!
//! The outcome of a failed write may be unknown. The message says so then, and the store refuses
//! further writes until it is opened again (see docs/durability.md).

use rustix::io::Errno;
use std::{io, path::PathBuf, time::Duration};

/// Shorthand for a result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What failed, by what the caller can do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request itself is wrong (bad key, oversize value, contradictory options). Change it.
    #[error("{0}")]
    Invalid(String),

    /// A condition of a conditional write did not hold. Nothing was written. Read again and decide
    /// anew.
    #[error("condition failed for key {key:?}: {reason}")]
    ConditionFailed {
        /// The key whose condition failed (lossy text).
        key: String,
        /// What was found instead.
        reason: String,
    },

    /// A tier has no room. Nothing was written; reads continue; writes resume when there is room.
    #[error(
        "out of space on the {tier} tier: {reason}{}; free space on that device or raise its capacity, then write again",
        room.map_or_else(String::new, |room| format!(" ({room})"))
    )]
    OutOfSpace {
        /// Which tier is full.
        tier: Tier,
        /// The detail.
        reason: String,
        /// Usage of the tier, for writes of objects; `None` for calls that open, flush or maintain
        /// a store.
        room: Option<Room>,
    },

    /// Stored bytes do not match their checksums, or an address is invalid. Other objects are not
    /// affected.
    #[error("corrupt data in {place}: {reason}; run `terrace verify` for the extent of it")]
    Corruption {
        /// The file or object.
        place: String,
        /// What did not match.
        reason: String,
    },

    /// Another process has the store open.
    #[error(
        "store {0} is in use by another process; stop that process first, or ask it (a running `terrace serve` answers over HTTP)"
    )]
    Locked(PathBuf),

    /// The directory does not hold a store, or holds one that this version cannot read.
    #[error("{path}: {reason}")]
    NotAStore {
        /// The directory.
        path: PathBuf,
        /// Why it is refused, and what to do.
        reason: String,
    },

    /// The store met an I/O failure and refuses writes until it is opened again. The outcome of
    /// writes not yet acknowledged is unknown.
    #[error(
        "the store refuses writes since an earlier failure ({0}); reads go on; open it again once the device is well"
    )]
    Failed(String),

    /// The store was closed, or opened read-only, and cannot do this.
    #[error("{0}")]
    Unavailable(&'static str),

    /// The large tier's device is so busy that no read of it is begun for a caller that prefers a
    /// refusal to a wait (`Options::large_wait_max`). Try again later.
    #[error("the large tier's device is busy: its reads take longer than {wait_max:?}")]
    Busy {
        /// The longest wait that the caller accepts.
        wait_max: Duration,
    },

    /// The snapshot or scan is older than the limit, so the versions it sees may be gone. Take a
    /// new one.
    #[error(
        "the snapshot of version {version} is older than the {max_age:?} for which the store keeps snapshots; take a new one, or raise the limit"
    )]
    SnapshotTooOld {
        /// The version it saw.
        version: u64,
        /// The limit.
        max_age: Duration,
    },

    /// An operation of the operating system failed.
    #[error("{context}: {message}")]
    Io {
        /// The operation, and its file.
        context: String,
        /// The kind of failure.
        kind: io::ErrorKind,
        /// The system's message.
        message: String,
    },
}

/// What a tier uses and may use, at the time when it had no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Bytes of the store on it, live and dead, including the reserve.
    pub used_bytes: u64,
    /// Maximum: its capacity, or what it uses and what its device has left, if that is less.
    pub capacity_bytes: u64,
    /// The part reserved for deletes and operations that free space; 0 while that is in use.
    pub reserve_bytes: u64,
}

impl std::fmt::Display for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            used_bytes,
            capacity_bytes,
            reserve_bytes,
        } = self;
        write!(
            f,
            "{used_bytes} of {capacity_bytes} bytes are used, {reserve_bytes} of them kept for deletes"
        )
    }
}

/// One of the two tiers, in messages and statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// The flash log and the ordered index.
    Flash,
    /// The large space.
    Large,
}

impl std::fmt::Display for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Flash => "flash",
            Self::Large => "large",
        })
    }
}

/// The error of an operation without a free file descriptor. There will be one.
pub(crate) const NO_DESCRIPTOR: Error =
    Error::Unavailable("too many files are open, so the store cannot open its own; raise the limit of open files");

/// Whether the process or the system has too many open files.
pub(crate) fn lacks_descriptor(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

impl Error {
    /// Wraps an operating-system error with the operation that failed.
    pub fn io(context: impl Into<String>, error: &io::Error) -> Self {
        Self::Io {
            context: context.into(),
            kind: error.kind(),
            message: error.to_string(),
        }
    }

    /// Like [`Error::io`], but "no space left" on `tier` becomes [`Error::OutOfSpace`], and "too
    /// many open files" [`Error::Unavailable`].
    pub fn io_on(tier: Tier, context: impl Into<String>, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::no_room(tier, format!("{}: {error}", context.into()))
            }
            _ if lacks_descriptor(error) => NO_DESCRIPTOR,
            _ => Self::io(context, error),
        }
    }

    /// Builds an [`Error::OutOfSpace`].
    pub(crate) fn no_room(tier: Tier, reason: impl Into<String>) -> Self {
        let (reason, room) = (reason.into(), None);
        Self::OutOfSpace { tier, reason, room }
    }

    /// Adds the usage of the tier, if the error says that a tier had no room.
    pub(crate) fn with_room(mut self, of: impl FnOnce(Tier) -> Room) -> Self {
        if let Self::OutOfSpace { tier, room, .. } = &mut self {
            *room = Some(of(*tier));
        }
        self
    }

    /// Builds an [`Error::NotAStore`].
    pub(crate) fn not_a_store(path: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        let (path, reason) = (path.into(), reason.into());
        Self::NotAStore { path, reason }
    }

    /// Whether the error says that `full` has no room.
    pub(crate) fn is_out_of_space_on(&self, full: Tier) -> bool {
        matches!(self, Self::OutOfSpace { tier, .. } if *tier == full)
    }

    /// Builds an [`Error::Corruption`].
    pub fn corruption(place: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Corruption {
            place: place.into(),
            reason: reason.into(),
        }
    }

    /// Builds an [`Error::Corruption`] of a key's value.
    pub(crate) fn corrupt_value(key: &[u8], reason: &str) -> Self {
        Self::corruption(String::from_utf8_lossy(key), reason)
    }

    /// Builds an [`Error::Invalid`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid(message.into())
    }
}
