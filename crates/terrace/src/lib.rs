//! Terrace: a tiered object store. It keeps each object on the storage it deserves: size decides its first home.
//!
//! *The log is the truth; the index is a fold of the log; every move is a record in the log.*
//!
//! ARCHITECTURE.md walks one put to the device and one get back. In reading order: [`Store`] is the interface;
//! `write` places, commits and applies; `flash` is the log and its index in RAM; `large` the blocks; `index` the ordered
//! index; `read` the way back; `recycle` and `clean` make room; `heat` copies to flash what is read often from disk; `placement` says
//! what belongs where, and `settle` brings it there when that has changed; `pace` has background work let reads go first; `ranges`,
//! `presence` and `sweep` are about objects that are gone and not yet forgotten; `recover` opens all of it again, and `checkpoint`
//! makes that short.
//!
//! # Memory
//!
//! [`Options`] bounds what the store uses; the allocator may keep more. Values are read on one thread and freed on another, and the C
//! library's allocator has a heap for each thread: it may keep twice as much. The server uses jemalloc, and so should a program with a
//! store in it.

mod admin;
mod api;
#[doc(hidden)]
pub mod blocks;
pub mod cache;
mod engine;
#[doc(hidden)]
pub mod flash_cache;
pub mod hash_index;
#[doc(hidden)]
pub mod log;
mod maintenance;
mod metrics;
mod read;
mod store;
mod visibility;
mod write;
// Public for the benchmarks and the fuzz targets; no part of the interface.
#[doc(hidden)]
pub mod fuzzing;
pub mod io;
#[doc(hidden)]
pub mod ordered_index;

mod accounting;
mod manifest;
#[doc(hidden)]
pub mod mutation;

#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod test_common;
#[cfg(test)]
mod tests;

pub use admin::backup::{BackupCheck, BackupOptions, BackupProgress, BackupReport, RestoreOptions, RestoreReport};
pub use admin::repair::RepairReport;
pub use admin::verify::VerifyReport;
pub use api::batch::Batch;
pub use api::clock::Clock;
pub use api::error::{Error, Result, Tier};
pub use api::expiry::Expiry;
pub use api::object::{
    ATTRIBUTES_BYTES_MAX, Attributes, HomeKind, KEY_BYTES_MAX, Object, ObjectInfo, VALUE_BYTES_MAX, Version,
};
pub use api::options::{Condition, Durability, Options, PutOptions, WriterOptions};
pub use api::placement::{Pin, Pinning};
pub use api::ram::RamStats;
pub use api::stats::*;
pub use flash_cache::GroupRule;
pub use read::{
    reader::Reader,
    scan::{Scan, ScanItem, ScanRange},
    snapshot::Snapshot,
};
pub use store::Store;
pub use write::stream::ValueWriter;

/// The first bytes of a key as a number that sorts like them.
pub(crate) fn key_prefix(key: &[u8]) -> u64 {
    let mut prefix = [0; 8];
    let bytes = key.len().min(8);
    prefix[..bytes].copy_from_slice(&key[..bytes]);
    u64::from_be_bytes(prefix)
}

/// The hash of a key that the flash index, the overlay and the filter share.
#[doc(hidden)]
#[must_use]
pub fn key_hash(key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(key)
}

/// Compiles the example of README.md with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
