//! How other commands ask a running `serve`: a Unix socket in the store's flash directory.
//!
//! A connection is one request, a line of JSON, and answers, a line of JSON each: how far it is,
//! several times a second, and how it ended. A client that hangs up before the end stops the work.
//!
//! Invariants: the socket has mode 0600 before it has its name, and a peer must be the server's own
//! user, or root. Requests are short, and there are few at a time. Secrets of access keys are told
//! only when they are made, as on the command line. The process that has the store open for writing
//! owns the name.
//!
//! On failure: a server without a socket serves all the same, and says so.

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

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Take a backup.
    Backup(BackupRequest),
    /// Tell the figures of the store.
    Stats,
    /// Do something with access keys.
    Key(KeyRequest),
    /// Do something with keys for SSE-KMS.
    Kms(KmsRequest),
    /// Read the master keys again, and encrypt with the first what the others encrypted.
    Rewrap,
    /// Change what the blocks of the large tier may take.
    Capacity {
        /// Bytes; `None`: what the device has.
        large_bytes: Option<u64>,
    },
    /// Change what the flash log may take.
    FlashCapacity {
        /// Bytes.
        bytes: u64,
    },
}

/// What to do with access keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum KeyRequest {
    /// Make one.
    Create(NewKey),
    /// Tell which there are.
    List,
    /// Remove the one with this ID.
    Remove(String),
    /// Have the one with this ID do what this policy says, or nothing, in place of what it could.
    SetPolicy(String, Option<String>),
}

/// What to do with keys for SSE-KMS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum KmsRequest {
    /// Tell which there are.
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
    /// The account that it belongs to.
    pub account: String,
    /// Until when it is good, in milliseconds since 1970.
    pub expires_ms: Option<u64>,
    /// Its policy, if that says what it may do.
    #[serde(default)]
    pub policy: Option<String>,
}

impl KeySummary {
    /// A key that is there, without its secret.
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

    /// A key as it is stored.
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

    /// One that was just made.
    pub fn of_new(id: String, key: &AccessKey) -> Self {
        Self {
            secret: Some(key.secret.clone()),
            ..Self::of(id, key)
        }
    }
}

impl fmt::Debug for KeySummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the secret: this ends in logs.
        f.debug_struct("KeySummary")
            .field("id", &self.id)
            .field("grants", &self.grants)
            .finish_non_exhaustive()
    }
}

/// What the blocks of the large tier, or the segments of the flash log, may take, and do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierCapacity {
    /// Most bytes; `None`: what the device has.
    pub capacity_bytes: Option<u64>,
    /// Bytes of all their files.
    pub allocated_bytes: u64,
}

/// A backup to take. Paths are absolute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackupRequest {
    /// Where to.
    pub dir: PathBuf,
    /// The earlier backup.
    pub onto: Option<PathBuf>,
    /// Link nothing from the store.
    pub copy: bool,
    /// Most bytes per second.
    pub bytes_per_second: Option<u64>,
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// How far it is.
    Progress {
        /// Bytes done.
        done_bytes: u64,
        /// Of so many.
        total_bytes: u64,
    },
    /// The backup is complete.
    BackedUp(BackupSummary),
    /// The figures, as `terrace stat --json` prints them.
    Stats(serde_json::Value),
    /// Everything is encrypted with the current master key.
    Rewrapped(Report),
    /// A tier has another capacity.
    Capacity(TierCapacity),
    /// The access key that was made, or all there are, without secrets. Of one that was removed:
    /// nothing, if it was not there.
    Keys(Vec<KeySummary>),
    /// The key for SSE-KMS that was changed, or all there are.
    Kms(Vec<Summary>),
    /// It failed.
    Failed {
        /// The exit code of the command that asked.
        code: Code,
        /// Why.
        message: String,
    },
}

/// A backup's report as it is printed.
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

/// A path to a name in an open directory that is short however long the directory's own is: a
/// socket's may have some hundred bytes only.
fn short_path(dir: &std::fs::File, name: &str) -> PathBuf {
    use std::os::fd::AsRawFd as _;
    Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name)
}
