//! The store: places, commits, reads, recovers.

use crate::{
    Batch, Condition, Durability, Error, Object, ObjectInfo, Options, PutOptions, Result, Stats, Version, WriterOptions,
};
use bytes::Bytes;
use std::ops::{Bound, Range};

/// An open store. Cloning is cheap and shares it; all calls may come from any thread and block.
#[derive(Clone, Debug)]
pub struct Store;

impl Store {
    /// Opens or creates a store and recovers it. # Errors: see [`Error`].
    pub fn open(options: Options) -> Result<Self> {
        let _ = options;
        todo!()
    }
    /// Puts an object durably.
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Version> {
        let _ = (key, value);
        todo!()
    }
    /// Puts an object.
    pub fn put_with(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, options: &PutOptions) -> Result<Version> {
        let _ = (key, value, options);
        todo!()
    }
    /// Deletes a key durably, whether or not it is there.
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<Version> {
        let _ = key;
        todo!()
    }
    /// Deletes a key.
    pub fn delete_with(&self, key: impl AsRef<[u8]>, condition: Condition, durability: Durability) -> Result<Version> {
        let _ = (key, condition, durability);
        todo!()
    }
    /// Commits a batch, whole or not at all.
    pub fn write(&self, batch: Batch, durability: Durability) -> Result<Version> {
        let _ = (batch, durability);
        todo!()
    }
    /// A stream to write one object; nothing is visible before `finish`.
    pub fn writer(&self, key: impl AsRef<[u8]>, options: WriterOptions) -> Result<ValueWriter> {
        let _ = (key, options);
        todo!()
    }
    /// Reads an object whole.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Object>> {
        let _ = key;
        todo!()
    }
    /// What is known of an object without reading its value.
    pub fn head(&self, key: impl AsRef<[u8]>) -> Result<Option<ObjectInfo>> {
        let _ = key;
        todo!()
    }
    /// Reads part of a value; the range is cut to the value's length.
    pub fn get_range(&self, key: impl AsRef<[u8]>, range: Range<u64>) -> Result<Option<Bytes>> {
        let _ = (key, range);
        todo!()
    }
    /// A stream over a value.
    pub fn reader(&self, key: impl AsRef<[u8]>) -> Result<Option<Reader>> {
        let _ = key;
        todo!()
    }
    /// Reads several objects, in parallel.
    pub fn multi_get<K: AsRef<[u8]> + Sync>(&self, keys: &[K]) -> Vec<Result<Option<Object>>> {
        let _ = keys;
        todo!()
    }
    /// Objects in a range, in key order, as of this call.
    pub fn scan(&self, range: ScanRange) -> Result<Scan> {
        let _ = range;
        todo!()
    }
    /// The store as it is now, unchanged by later writes.
    pub fn snapshot(&self) -> Result<Snapshot> {
        todo!()
    }
    /// Makes every commit before the call durable and the index persist them.
    pub fn flush(&self) -> Result<()> {
        todo!()
    }
    /// Figures about the store.
    pub fn stats(&self) -> Stats {
        todo!()
    }
    /// Flushes and closes; later calls fail. Dropping the last clone closes too, without reporting.
    pub fn close(&self) -> Result<()> {
        todo!()
    }
    /// Reads everything and checks it.
    pub fn verify(&self) -> Result<VerifyReport> {
        todo!()
    }
    /// Rebuilds index and LargeMeta from segments and blocks alone. The store must not be open.
    pub fn repair(options: Options) -> Result<RepairReport> {
        let _ = options;
        todo!()
    }
}

/// Which keys a scan covers.
#[derive(Debug, Clone)]
pub struct ScanRange {
    /// Lower bound.
    pub start: Bound<Vec<u8>>,
    /// Upper bound.
    pub end: Bound<Vec<u8>>,
}
impl ScanRange {
    /// Every key.
    #[must_use]
    pub fn all() -> Self {
        Self {
            start: Bound::Unbounded,
            end: Bound::Unbounded,
        }
    }
    /// Keys that start with `prefix`.
    #[must_use]
    pub fn prefix(prefix: impl AsRef<[u8]>) -> Self {
        let _ = prefix;
        todo!()
    }
    /// Keys in `range`.
    #[must_use]
    pub fn range<K: AsRef<[u8]>>(range: impl std::ops::RangeBounds<K>) -> Self {
        let _ = range;
        todo!()
    }
    /// The same range, from after `key` on: for paging.
    #[must_use]
    pub fn after(self, key: impl AsRef<[u8]>) -> Self {
        let _ = key;
        todo!()
    }
}

/// An iterator over objects in key order, from both ends. Holds a snapshot until dropped.
#[derive(Debug)]
pub struct Scan;
impl Iterator for Scan {
    type Item = Result<ScanItem>;
    fn next(&mut self) -> Option<Self::Item> {
        todo!()
    }
}
impl DoubleEndedIterator for Scan {
    fn next_back(&mut self) -> Option<Self::Item> {
        todo!()
    }
}

/// One object of a scan; the value is read when asked for.
#[derive(Debug, Clone)]
pub struct ScanItem {
    /// The key.
    pub key: Bytes,
    /// What is known of it.
    pub info: ObjectInfo,
}
impl ScanItem {
    /// Reads the value.
    pub fn value(&self) -> Result<Bytes> {
        todo!()
    }
}

/// The store at one moment. Holds back reuse of space until dropped.
#[derive(Debug)]
pub struct Snapshot;
impl Snapshot {
    /// The version of the last commit it sees.
    #[must_use]
    pub fn version(&self) -> Version {
        todo!()
    }
    /// Reads an object whole.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Object>> {
        let _ = key;
        todo!()
    }
    /// What is known of an object.
    pub fn head(&self, key: impl AsRef<[u8]>) -> Result<Option<ObjectInfo>> {
        let _ = key;
        todo!()
    }
    /// Objects in a range.
    pub fn scan(&self, range: ScanRange) -> Result<Scan> {
        let _ = range;
        todo!()
    }
}

/// A stream over one value, verified as it goes. Pins what it reads until dropped.
#[derive(Debug)]
pub struct Reader;
impl Reader {
    /// The object.
    #[must_use]
    pub fn info(&self) -> &ObjectInfo {
        todo!()
    }
    /// Continues at `offset` of the value (at most its length).
    pub fn seek_to(&mut self, offset: u64) -> Result<()> {
        let _ = offset;
        todo!()
    }
}
impl std::io::Read for Reader {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        todo!()
    }
}

/// A stream into one value. Dropping it without `finish` leaves nothing visible.
#[derive(Debug)]
pub struct ValueWriter;
impl ValueWriter {
    /// Commits the object.
    pub fn finish(self) -> Result<Version> {
        todo!()
    }
}
impl std::io::Write for ValueWriter {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        todo!()
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What `verify` found.
#[derive(Debug, Clone, Default)]
pub struct VerifyReport {
    /// Objects whose values were read and matched.
    pub objects: u64,
    /// Bytes of their values.
    pub bytes: u64,
    /// Findings that mean loss or damage: corrupt values, dangling entries, bad frames.
    pub errors: Vec<String>,
    /// Values no entry points to, that cleaning will reclaim: bytes.
    pub orphaned_bytes: u64,
}
/// What `repair` did.
#[derive(Debug, Clone, Default)]
pub struct RepairReport {
    /// Objects found again.
    pub objects: u64,
    /// What could not be known or read, in words.
    pub notes: Vec<String>,
}
#[allow(unused)]
fn unused(_: Error) {}
