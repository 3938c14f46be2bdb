//! Calls to a running `serve`: `calls!` is the only table of them, from which the router, the
//! client and the fuzz target are generated. The router is served over HTTP at a Unix socket in the
//! store's flash directory.
//!
//! A call takes JSON, the body of its request, and returns lines of JSON ([`Line`]): its progress,
//! several times a second if it takes long, and its result. If the client disconnects, a backup
//! stops; other calls are completed.
//!
//! Invariants: the socket has mode 0600 before it has its name, and a peer must be the server's own
//! user, or root: that is known before anything is read. Connections, requests and calls under way
//! are bounded, in number, bytes and time. Secrets of access keys are returned only when they are
//! made, as on the command line. The process that has the store open for writing owns the name.
//!
//! On failure: a server without a socket serves all the same, and logs it.

mod client;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod server;
mod work;

pub use client::ask;
pub use server::serve;
pub use work::{Served, Work};

use crate::{
    failure::{Failure, Outcome},
    s3::{
        access_key::{Level, NewKey, Stored},
        kms::{Change, Summary},
        rewrap::Report,
    },
};
use axum::{Router, http::Method, routing::MethodFilter};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// The socket's name in the flash directory.
const SOCKET: &str = "control.sock";

/// An admin call: its request, its argument and result types, and its handler in the process that
/// has the store open.
pub struct Call<T, G> {
    method: Method,
    path: &'static str,
    /// Blocks.
    pub work: fn(&Served, T, &Work) -> Outcome<G>,
}

macro_rules! calls {
    ($($(#[doc = $doc:literal])+ $name:ident = $method:ident $path:literal ($takes:ty) -> $gives:ty: $work:path;)+) => {
        $($(#[doc = $doc])+
        pub const $name: Call<$takes, $gives> = Call { method: Method::$method, path: $path, work: $work };)+

        /// Method and path of every call.
        #[cfg(test)]
        const TABLE: &[(&str, &str)] = &[$((stringify!($method), $path)),+];

        /// The calls, without a check of the caller, which the router around them must do.
        fn routes() -> Router<server::State> {
            Router::new()$(.merge(server::route(&$name, MethodFilter::$method)))+
        }

        /// Whether bytes are a valid argument of a call, or a line of its result.
        #[cfg(feature = "fuzzing")]
        fn is_understood(bytes: &[u8]) -> bool {
            [$(fuzzing::round_trip::<$takes>(bytes), fuzzing::round_trip::<Line<$gives>>(bytes)),+].contains(&true)
        }
    };
}

calls! {
    /// The figures, as `terrace stat --json` prints them.
    STATS = GET "/stats" (()) -> serde_json::Value: work::stats;
    /// Takes a backup.
    BACKUP = POST "/backup" (BackupRequest) -> BackupSummary: work::back_up;
    /// Reads the master keys again, and rewraps with the first one the data keys that the others
    /// have wrapped.
    REWRAP = POST "/rewrap" (()) -> Report: work::rewrap;
    /// Changes the capacity of a tier.
    CAPACITY = POST "/capacity" (TierBytes) -> TierCapacity: work::set_capacity;
    /// The access keys, without secrets.
    KEYS = GET "/keys" (()) -> Vec<KeySummary>: work::keys;
    /// Makes an access key.
    KEY_CREATE = POST "/keys/create" (NewKey) -> KeySummary: work::create_key;
    /// Replaces the permissions of an access key; returns whether there is such a key.
    KEY_POLICY = POST "/keys/policy" (KeyPolicy) -> bool: work::set_key_policy;
    /// Removes the access key of this ID; returns whether there was one.
    KEY_REMOVE = POST "/keys/remove" (String) -> bool: work::remove_key;
    /// The keys for SSE-KMS.
    KMS = GET "/kms" (()) -> Vec<Summary>: work::kms;
    /// Changes, makes or deletes a key for SSE-KMS.
    KMS_CHANGE = POST "/kms/change" (KmsChange) -> Summary: work::change_kms;
}

/// A line of an answer.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Line<G> {
    /// More follow.
    Progress {
        /// Bytes, or records, that are done.
        done: u64,
        /// The total, if known.
        total: u64,
    },
    /// The result.
    Done(G),
    /// Why there is none.
    Failed(Failure),
}

/// A backup to take. Paths are absolute.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackupRequest {
    /// The target directory.
    pub dir: PathBuf,
    /// The earlier backup.
    pub onto: Option<PathBuf>,
    /// Link no files from the store.
    pub copy: bool,
    /// Most bytes per second.
    pub bytes_per_second: Option<u64>,
}

/// A new capacity of a tier; without bytes, that of its device.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TierBytes {
    /// The flash tier, all of its files.
    Flash(u64),
    /// Blocks.
    Large(Option<u64>),
}

/// Another policy for an access key, or none: then it has no permissions.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyPolicy {
    /// ID of the key.
    pub id: String,
    /// The policy.
    pub policy: Option<String>,
}

/// A change of a key for SSE-KMS.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KmsChange {
    /// Its name.
    pub name: String,
    /// The change.
    pub change: Change,
}

/// An access key.
#[derive(Serialize, Deserialize)]
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
    /// A stored key, without its secret.
    pub fn of((id, key): (String, Stored)) -> Self {
        Self {
            id,
            secret: None,
            created_ms: key.created_ms,
            account: key.account().to_owned(),
            grants: key.grants,
            expires_ms: key.expires_ms,
            policy: key.policy,
        }
    }
}

/// Capacity and use of a tier.
#[derive(Serialize, Deserialize)]
pub struct TierCapacity {
    /// Most bytes; `None`: the device's size.
    pub capacity_bytes: Option<u64>,
    /// Bytes of all their files.
    pub allocated_bytes: u64,
}

/// A backup's report.
#[derive(Serialize, Deserialize)]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_is_documented() {
        let documented = include_str!("../../../../docs/http.md");
        for (method, path) in TABLE {
            let row = format!("| `{method} {path}` |");
            assert!(documented.contains(&row), "docs/http.md has no row {row}");
        }
    }
}
