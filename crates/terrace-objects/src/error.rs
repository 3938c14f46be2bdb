//! Errors of the object model: one enum with the facts of each error, independent of a protocol. A
//! service translates them in one place.
//!
//! Engine errors are kept as they are, for callers such as the command line.

use crate::engine::NotRun;
use std::{fmt, time::SystemTime};

/// An error.
#[derive(Debug, Clone)]
pub enum ObjectError {
    /// The engine failed on the record at this key.
    Engine(terrace::Error, Vec<u8>),
    /// An engine call returned no result.
    NotRun(NotRun),
    /// A state that cannot occur.
    Impossible,
    /// The bucket does not exist, or was deleted.
    NoSuchBucket,
    /// A bucket of another account has the name.
    BucketIsTaken,
    /// A bucket of the same account has the name.
    BucketExists,
    /// The number of buckets is at its limit, given here.
    TooManyBuckets(usize),
    /// The bucket is not empty.
    BucketNotEmpty,
    /// Versioning of a bucket with object lock cannot be suspended.
    VersioningIsKept,
    /// A setting that decides access to the bucket cannot be parsed.
    BucketUnreadable,
    /// The bucket's record exceeds this many bytes.
    SettingsTooLong(usize),
    /// No current object has the key; if that is because of a delete marker, that one.
    NoSuchKey(Option<Marker>),
    /// No version has this ID.
    NoSuchVersion,
    /// The text is not a valid version ID.
    NoVersionName,
    /// The version is a delete marker, and the request is for an object.
    IsDeleteMarker(Marker),
    /// The object was replaced repeatedly while it was being opened.
    AlwaysReplaced,
    /// Other commits intervened repeatedly.
    AlwaysChanged,
    /// A condition of the request does not hold.
    Condition(Condition),
    /// The caller has no permission.
    Denied,
    /// A lock keeps the version from being deleted.
    Locked,
    /// An object without separate values is too long to be kept as a version.
    TooLongToMove,
    /// An object without separate values is too long for its attributes to be replaced.
    TooLongToDescribe,
    /// The body was shorter or longer than announced.
    Incomplete,
    /// The body exceeds the largest value.
    TooLong,
    /// The bytes do not match the client's digest.
    BadDigest(Digest),
    /// There is no master key.
    NoMasterKey,
    /// The server lacks the master key of the object.
    MasterKeyMissing,
    /// No KMS key has this name, given as an ARN.
    KmsNotFound(String),
    /// The KMS key is disabled.
    KmsDisabled(String),
    /// The caller may not use the KMS key.
    KmsDenied(String),
    /// KMS keys need a signature of version 4.
    KmsNeedsVersion4,
    /// The object is encrypted with a client's key, and the request has none.
    KeyNeeded,
    /// The request has a client's key, and the object is not encrypted with one.
    KeyNotNeeded,
}

/// The delete marker that is the latest version.
#[derive(Debug, Clone)]
pub struct Marker {
    /// Its version ID.
    pub version: String,
    /// Its time.
    pub modified: SystemTime,
}

/// A condition of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// On the version that was looked at.
    Version,
    /// On the entity tag, `If-Match`.
    Match,
    /// On the entity tag, `If-None-Match`.
    NoneMatch,
    /// On the time of modification.
    Modified,
    /// On its length.
    Length,
}

/// Which digest does not match.
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
    /// An engine error on the record at `key`.
    pub fn engine(error: &terrace::Error, key: &[u8]) -> Self {
        Self::Engine(error.clone(), key.to_vec())
    }

    /// [`ObjectError::NoSuchKey`] without a delete marker.
    pub const fn no_such_key() -> Self {
        Self::NoSuchKey(None)
    }

    /// Whether a tier is full.
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

/// For logs; services have their own texts for clients.
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
