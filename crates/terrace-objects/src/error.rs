//! What can go wrong with objects: one enum, with the facts that an answer needs and no words of a
//! protocol. A service says in its own words what each of them is, in one place.
//!
//! What it tells of the engine keeps the engine's error, so that a caller that is no client, such
//! as the command line, sees that.

use crate::engine::NotRun;
use std::{fmt, time::SystemTime};

/// What went wrong.
#[derive(Debug, Clone)]
pub enum ObjectError {
    /// The engine could not do something with the record under a key.
    Engine(terrace::Error, Vec<u8>),
    /// A call of the engine gave no result.
    NotRun(NotRun),
    /// What cannot be.
    Impossible,
    /// There is no bucket of this name, or not any more.
    NoSuchBucket,
    /// A bucket of another account has the name.
    BucketIsTaken,
    /// A bucket of the same account has the name.
    BucketExists,
    /// There are as many buckets as there may be, which is so many.
    TooManyBuckets(usize),
    /// A bucket with something in it cannot be deleted.
    BucketNotEmpty,
    /// A bucket whose versions may be locked keeps its versioning.
    VersioningIsKept,
    /// A setting of the bucket that decides who may cannot be read.
    BucketUnreadable,
    /// The settings of a bucket are longer than so many bytes.
    SettingsTooLong(usize),
    /// No object has the key; the latest version may be a delete marker.
    NoSuchKey(Option<Marker>),
    /// No version has the name.
    NoSuchVersion,
    /// The text is no name that a version can have.
    NoVersionName,
    /// The version is a delete marker, and was asked for as if it were an object.
    IsDeleteMarker(Marker),
    /// The object was replaced again and again while it was being opened.
    AlwaysReplaced,
    /// Others were faster with their changes, again and again.
    AlwaysChanged,
    /// A condition of the request does not hold.
    Condition(Condition),
    /// Whoever asks may not.
    Denied,
    /// A lock keeps the version.
    Locked,
    /// What stays as a version must be short enough to be moved, unless it has values of its own.
    TooLongToMove,
    /// The same of what gets another description.
    TooLongToDescribe,
    /// Fewer or more bytes came than were announced.
    Incomplete,
    /// More bytes came than a value can have.
    TooLong,
    /// What was computed of the bytes is not what was said of them.
    BadDigest(Digest),
    /// There is no master key to encrypt with.
    NoMasterKey,
    /// The master key of the object is not one of those that the server has.
    MasterKeyMissing,
    /// There is no key of the store that AWS would call so.
    KmsNotFound(String),
    /// The key is not to be used for now.
    KmsDisabled(String),
    /// The key is for others.
    KmsDenied(String),
    /// The key is for callers that sign by version 4.
    KmsNeedsVersion4,
    /// The object needs a client's key, and none was given.
    KeyNeeded,
    /// A client's key was given for an object that has none.
    KeyNotNeeded,
}

/// A delete marker that is in the way.
#[derive(Debug, Clone)]
pub struct Marker {
    /// The name of the version.
    pub version: String,
    /// When it was made.
    pub modified: SystemTime,
}

/// A condition of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// On the version that was looked at.
    Version,
    /// On the entity tag that it must have.
    Match,
    /// On the entity tag that it must not have.
    NoneMatch,
    /// On when it was modified.
    Modified,
    /// On its length.
    Length,
}

/// What was said of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Digest {
    /// Their MD5.
    Md5,
    /// A checksum by the algorithm of this name.
    Checksum(&'static str),
}

/// A result of the object model.
pub type ObjectResult<T = ()> = Result<T, ObjectError>;

impl ObjectError {
    /// What the engine said of the record under `key`.
    pub fn engine(error: &terrace::Error, key: &[u8]) -> Self {
        Self::Engine(error.clone(), key.to_vec())
    }

    /// No object has the key, and nothing more is known.
    pub const fn no_such_key() -> Self {
        Self::NoSuchKey(None)
    }

    /// A tier has no room.
    pub const fn is_full(&self) -> bool {
        matches!(self, Self::Engine(terrace::Error::OutOfSpace { .. }, _))
    }

    /// The engine's error, if this is one.
    pub const fn of_engine(&self) -> Option<&terrace::Error> {
        match self {
            Self::Engine(error, _) => Some(error),
            _ => None,
        }
    }
}

impl From<NotRun> for ObjectError {
    fn from(reason: NotRun) -> Self {
        Self::NotRun(reason)
    }
}

/// For logs; clients are told by their service.
impl fmt::Display for ObjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Engine(error, _) => error.fmt(f),
            Self::TooLongToMove => f.write_str("it is too long to stay as a version"),
            Self::MasterKeyMissing => f.write_str("the master key of this object is not at hand"),
            Self::NoMasterKey => f.write_str("there is no master key"),
            Self::KeyNeeded => f.write_str("it is encrypted with a key that only its client has"),
            other => write!(f, "{other:?}"),
        }
    }
}

impl std::error::Error for ObjectError {}
