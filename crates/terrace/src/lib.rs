//! Terrace: a tiered object store for a small SSD and a large disk. The size of an object decides
//! its first home, its read rate the later ones.
//!
//! *The log is the truth; the index is a fold of the log; every move is a record in the log.*
//!
//! # A tour
//!
//! A [`Store`] has two directories, one per tier, or one for both. An object is a key, a value and
//! some attributes, and has the version of the commit that wrote it.
//!
//! ```
//! use terrace::{Batch, Condition, Durability, Options, PutOptions, ScanRange, Store, WriterOptions};
//!
//! # fn main() -> terrace::Result<()> {
//! # let place = tempfile::tempdir().unwrap();
//! # let dir = place.path();
//! let store = Store::open(Options::new(dir))?; // tiers in dir/flash and dir/large
//!
//! store.put("greeting", "hello")?; // durable when it returns
//! let found = store.get("greeting")?.expect("it was just put");
//! assert_eq!(&*found, b"hello");
//!
//! // Atomic for any sizes; a small value stays on flash, a large one goes to a block.
//! let mut batch = Batch::new();
//! batch.put("images/1/thumbnail", vec![1; 4 << 10]);
//! batch.put("images/1/large", vec![2; 1 << 20]);
//! let version = store.write(batch, Durability::Buffered)?;
//!
//! // Compare and swap: refused if another writer was first.
//! let swap = PutOptions { condition: Condition::VersionIs(found.version), ..PutOptions::default() };
//! store.put_with("greeting", "hello again", &swap)?;
//! assert!(store.put_with("greeting", "too late", &swap).is_err());
//!
//! // Long values are written and read as streams.
//! let mut writer = store.writer("video/1", WriterOptions::default())?;
//! for piece in [vec![3; 300_000], vec![4; 300_000]] {
//!     writer.append(&piece)?;
//! }
//! writer.finish()?;
//! assert_eq!(store.get_range("video/1", 299_999..300_001)?.as_deref(), Some(&[3, 4][..]));
//!
//! // A snapshot shows one moment. Keys come in order; values are read on demand.
//! let before = store.snapshot()?;
//! store.delete_prefix("images/", Durability::Sync)?; // one commit for any number
//! let keys: Vec<_> = before.scan(ScanRange::prefix("images/"))?.map(|item| item.map(|item| item.key)).collect();
//! assert_eq!(keys.len(), 2);
//! assert!(before.head("images/1/large")?.is_some_and(|info| info.version == version));
//! assert!(store.get("images/1/large")?.is_none());
//! store.close()
//! # }
//! ```
//!
//! | to | call |
//! |---|---|
//! | write | [`Store::put`], [`Store::delete`], [`Store::write`] with a [`Batch`], [`Store::writer`], [`Store::delete_range`]; without a thread that waits [`Store::try_write`] |
//! | read | [`Store::get`], [`Store::head`], [`Store::get_range`], [`Store::reader`], [`Store::multi_get`] |
//! | read in order, or as of one moment | [`Store::scan`], [`Store::snapshot`] |
//! | set durability, a condition, an expiry | [`PutOptions`]: [`Durability`], [`Condition`], [`Expiry`] |
//! | set the placement rules | [`Options::size_threshold_bytes`], [`Options::pins`] |
//! | administer a store | [`Store::stats`], [`Store::verify`], [`Store::backup`], [`Store::repair`] |
//! | handle errors | [`Error`], named by what the caller can do |
//!
//! # The rooms
//!
//! From the bottom up: rooms of state, `engine`, rooms of workers. ARCHITECTURE.md follows one put
//! to the device and one get back, and `cargo xtask tidy` refuses imports that its table of rooms
//! does not allow.
//!
//! | room | purpose |
//! |---|---|
//! | `metrics` | counters, and small building blocks of policies |
//! | `codec` | encoding of numbers in stored bytes |
//! | [`io`] | devices, direct I/O, slices and rests of background I/O; the simulated disk |
//! | `api` | types of the public interface |
//! | `visibility` | whether a version that was found is visible: snapshots, range tombstones |
//! | `log` | the flash log: segments, frames, group commit, the overlay |
//! | `cache` | values in RAM |
//! | `hash_index` | maps a key's hash to its record in the log, in RAM; and its checkpoint |
//! | `ordered_index` | maps a key to its entry; the only room that uses `lsm_tree` |
//! | `blocks` | the large space |
//! | `flash_cache` | copies on flash of large objects that are read often |
//! | `scan_order` | charges of scans: values to be rewritten in key order |
//! | `engine` | the parts of an open store, shared by callers and workers |
//! | `figures` | one snapshot of all counters |
//! | `write`, `read` | place, commit, apply; locate, fetch |
//! | `maintenance` | the workers: log GC, block GC, migration, expiry |
//! | `admin` | open, verify, repair, backup |
//! | `store` | the calls of the public interface: [`Store`] |
//!
//! # Memory
//!
//! [`Options`] bounds the memory of the store; the allocator may keep more. Values are read on one
//! thread and freed on another, and the C library's allocator has a heap per thread: it may keep
//! twice as much. The server uses jemalloc, which is recommended for any program with a store.

mod accounting;
mod admin;
mod api;
mod cache;
mod codec;
mod engine;
mod figures;
mod flash_cache;
mod maintenance;
mod manifest;
mod metrics;
mod read;
mod scan_order;
mod store;
mod visibility;
mod write;

pub mod io;

// Public for the benchmarks and the fuzz targets; no part of the interface.
#[doc(hidden)]
pub mod blocks;
#[doc(hidden)]
pub mod fuzzing;
#[doc(hidden)]
pub mod hash_index;
#[doc(hidden)]
pub mod log;
#[doc(hidden)]
pub mod mutation;
#[doc(hidden)]
pub mod ordered_index;

#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod test_common;
#[cfg(test)]
mod tests;

pub use admin::{
    backup::{BackupCheck, BackupOptions, BackupProgress, BackupReport, RestoreOptions, RestoreReport},
    repair::RepairReport,
    verify::VerifyReport,
};
pub use api::{
    batch::Batch,
    clock::Clock,
    error::{Error, Result, Room, Tier},
    expiry::Expiry,
    group::GroupRule,
    object::{
        ATTRIBUTES_BYTES_MAX, Attributes, HomeKind, KEY_BYTES_MAX, Object, ObjectInfo, RamAnswer, VALUE_BYTES_MAX,
        Version,
    },
    options::{Condition, Durability, Options, PutOptions, ReadOptions, Tuning, WriterOptions},
    placement::{Pin, Pinning},
    ram::RamStats,
    scan_range::ScanRange,
    stats::*,
};
pub use read::{
    reader::Reader,
    scan::{Scan, ScanItem, ScannedObject},
    snapshot::Snapshot,
};
pub use store::Store;
pub use write::{committing::Committing, stream::ValueWriter};

/// The first bytes of a key as a number that sorts like them.
pub(crate) fn key_prefix(key: &[u8]) -> u64 {
    let mut prefix = [0; 8];
    let bytes = key.len().min(8);
    prefix[..bytes].copy_from_slice(&key[..bytes]);
    u64::from_be_bytes(prefix)
}

/// The hash of a key that the hash index, the overlay and the filter share.
#[doc(hidden)]
#[must_use]
pub fn key_hash(key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(key)
}

/// Compiles the example of README.md with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
