//! Requests of other commands to a running `serve`, by a Unix socket in the store's flash
//! directory.
//!
//! A connection has one request, a line of JSON, and answers, a line of JSON each: progress,
//! several times a second, and the result. A client that closes it before the end stops the work.
//!
//! Invariants: the socket has mode 0600 before it has its name, and a peer must be the server's own
//! user, or root. Requests are short, and few at a time. Secrets of access keys are returned only
//! when they are made, as on the command line. The process that has the store open for writing owns
//! the name.
//!
//! On failure: a server without a socket serves all the same, and logs it.

mod client;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod server;

pub use client::ask;
pub use server::{Control, Served};

use crate::{
    failure::Code,
    s3::{
        access_key::{AccessKey, Level, NewKey, Stored},
        kms::{Change, Summary},
        rewrap::Report,
    },
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

/// The socket's name in the flash directory.
const SOCKET: &str = "control.sock";
/// Longest line of a request.
const REQUEST_BYTES_MAX: u64 = 64 << 10;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Take a backup.
    Backup(BackupRequest),
    /// Return the store's figures.
    Stats,
    /// Read or change access keys.
    Key(KeyRequest),
    /// Read or change keys for SSE-KMS.
    Kms(KmsRequest),
    /// Read the master keys again, and rewrap with the first what the others have wrapped.
    Rewrap,
    /// Change the capacity of the large tier.
    Capacity {
        /// Bytes; `None`: the device's size.
        large_bytes: Option<u64>,
    },
    /// Change the capacity of the flash log.
    FlashCapacity { bytes: u64 },
}

/// A request about access keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum KeyRequest {
    /// Make one.
    Create(NewKey),
    /// List them.
    List,
    /// Remove the one with this ID.
    Remove(String),
    /// Replace the permissions of the one with this ID by this policy, or by none.
    SetPolicy(String, Option<String>),
}

/// A request about keys for SSE-KMS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum KmsRequest {
    /// List them.
    List,
    /// Change the one of this name.
    Change(String, Change),
}

/// An access key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeySummary {
    /// Its ID.
    pub id: String,
    /// Its secret, if it was just made.
    pub secret: Option<String>,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    /// Level by bucket.
    pub grants: BTreeMap<String, Level>,
    /// Its account.
    pub account: String,
    /// End of its validity, in milliseconds since 1970.
    pub expires_ms: Option<u64>,
    /// Its policy, if it has one instead of levels.
    #[serde(default)]
    pub policy: Option<String>,
}

impl KeySummary {
    /// An existing key, without its secret.
    pub fn of(id: String, key: &AccessKey) -> Self {
        Self {
            id,
            secret: None,
            created_ms: key.created_ms,
            grants: key.grants.clone(),
            account: key.account.to_string(),
            expires_ms: key.expires_ms,
            policy: key.policy.as_ref().map(|policy| policy.text.clone()),
        }
    }

    /// A stored key.
    pub fn of_stored(id: String, key: &Stored) -> Self {
        Self {
            id,
            secret: None,
            created_ms: key.created_ms,
            grants: key.grants.clone(),
            account: key.account().to_owned(),
            expires_ms: key.expires_ms,
            policy: key.policy.clone(),
        }
    }

    /// A new key.
    pub fn of_new(id: String, key: &AccessKey) -> Self {
        Self {
            secret: Some(key.secret.clone()),
            ..Self::of(id, key)
        }
    }
}

impl fmt::Debug for KeySummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the secret: this may be logged.
        f.debug_struct("KeySummary")
            .field("id", &self.id)
            .field("grants", &self.grants)
            .finish_non_exhaustive()
    }
}

/// Capacity and use of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierCapacity {
    /// Most bytes; `None`: the device's size.
    pub capacity_bytes: Option<u64>,
    /// Bytes of all their files.
    pub allocated_bytes: u64,
}

/// A backup to take. Paths are absolute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackupRequest {
    /// The target directory.
    pub dir: PathBuf,
    /// The earlier backup.
    pub onto: Option<PathBuf>,
    /// Link nothing from the store.
    pub copy: bool,
    /// Most bytes per second.
    pub bytes_per_second: Option<u64>,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    Progress {
        done_bytes: u64,
        total_bytes: u64,
    },
    /// The backup is complete.
    BackedUp(BackupSummary),
    /// The figures, as `terrace stat --json` prints them.
    Stats(serde_json::Value),
    /// Everything is wrapped with the current master key.
    Rewrapped(Report),
    /// The capacity was changed.
    Capacity(TierCapacity),
    /// The access key that was made, or all, without secrets. After a removal: empty if the key did
    /// not exist.
    Keys(Vec<KeySummary>),
    /// The key for SSE-KMS that was changed, or all.
    Kms(Vec<Summary>),
    Failed {
        /// The exit code of the requesting command.
        code: Code,
        /// Why.
        message: String,
    },
}

/// A backup's report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BackupSummary {
    /// The last commit in it.
    pub version: u64,
    /// Files.
    pub files: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Of these, copied.
    pub copied_bytes: u64,
    /// Of these, linked from the store.
    pub linked_bytes: u64,
    /// Of these, linked from the earlier backup.
    pub reused_bytes: u64,
    /// How long it took.
    pub elapsed_seconds: f64,
}

impl From<terrace::BackupReport> for BackupSummary {
    fn from(report: terrace::BackupReport) -> Self {
        Self {
            version: report.version.0,
            files: report.files,
            bytes: report.bytes,
            copied_bytes: report.copied_bytes,
            linked_bytes: report.linked_bytes,
            reused_bytes: report.reused_bytes,
            elapsed_seconds: report.elapsed.as_secs_f64(),
        }
    }
}

/// A short path to a name in an open directory, however long the directory's own path is: a
/// socket's path may have about a hundred bytes.
fn short_path(dir: &std::fs::File, name: &str) -> PathBuf {
    use std::os::fd::AsRawFd as _;
    Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name)
}
