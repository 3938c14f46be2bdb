//! Scans: objects in key order as of one moment, values read when asked for.

use super::{multi_get, object_info, read_home, snapshot::Snapshot};
use crate::{
    ObjectInfo, Result, ScanRange,
    engine::Engine,
    ordered_index::{Entry, IndexScan},
};
use bytes::Bytes;

/// For so many objects of one call memory is got beforehand; most scans that are asked for more end
/// sooner.
const PRESIZED_MAX: usize = 256;

/// An iterator over objects in key order, from both ends. It sees the store as it was when it
/// began, without what had expired by then, and holds a snapshot until it is dropped.
#[derive(Debug)]
pub struct Scan {
    inner: IndexScan,
    snapshot: Snapshot,
    /// The moment that expiries are held against.
    now_ms: u64,
    is_over: bool,
}

impl Scan {
    pub(super) fn at(snapshot: &Snapshot, range: ScanRange) -> Result<Self> {
        let inner = snapshot.read(|seq| snapshot.engine().index.scan_for_caller((range.start, range.end), seq))?;
        Ok(Self {
            inner,
            snapshot: snapshot.clone(),
            now_ms: snapshot.engine().options.clock.now_ms(),
            is_over: false,
        })
    }

    /// Steps on to an object that is not dead.
    fn step(&mut self, advance: impl Fn(&mut IndexScan) -> Option<Result<(Bytes, Entry)>>) -> Option<Result<ScanItem>> {
        if self.is_over {
            return None;
        }
        let presence = self.snapshot.presence().frozen_at(self.now_ms);
        loop {
            let found = advance(&mut self.inner)?;
            let is_dead = |found: &(Bytes, Entry)| {
                presence
                    .dead(&found.0, found.1.version.0, &found.1.attributes)
                    .is_some()
            };
            if !found.as_ref().is_ok_and(is_dead) {
                return self.ends_too_old().or_else(|| Some(self.item(found)));
            }
        }
    }

    /// The error of a snapshot that is too old, once; the scan is over then.
    fn ends_too_old(&mut self) -> Option<Result<ScanItem>> {
        let error = self.snapshot.check().err()?;
        self.is_over = true;
        Some(Err(error))
    }

    fn item(&self, found: Result<(Bytes, Entry)>) -> Result<ScanItem> {
        let (key, entry) = found?;
        let info = object_info(&entry)?;
        Ok(ScanItem {
            key,
            info,
            entry,
            snapshot: self.snapshot.clone(),
        })
    }

    /// The next `count` objects (fewer at the end) with their values, read in parallel.
    ///
    /// # Errors
    /// The first error of the scan; a value's error is in its place.
    pub fn next_values(&mut self, count: usize) -> Result<Vec<(ScanItem, Result<Bytes>)>> {
        let mut items = Vec::with_capacity(count.min(PRESIZED_MAX));
        while items.len() < count
            && let Some(item) = self.next()
        {
            items.push(item?);
        }
        Ok(multi_get::values(items))
    }
}

impl Iterator for Scan {
    type Item = Result<ScanItem>;
    fn next(&mut self) -> Option<Self::Item> {
        self.step(IndexScan::next)
    }
}

impl DoubleEndedIterator for Scan {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(IndexScan::next_back)
    }
}

/// One object of a scan.
#[derive(Debug, Clone)]
pub struct ScanItem {
    /// The key.
    pub key: Bytes,
    /// What is known of it.
    pub info: ObjectInfo,
    entry: Entry,
    snapshot: Snapshot,
}

impl ScanItem {
    /// Reads the value.
    ///
    /// # Errors
    /// [`crate::Error::Corruption`], [`crate::Error::SnapshotTooOld`], the device's.
    pub fn value(&self) -> Result<Bytes> {
        self.by_snapshot(read_home).map(|hit| hit.value)
    }

    /// Looks for the value with `read`. The snapshot keeps the entry's home where it was, so there
    /// is nothing to look up again.
    pub(super) fn by_snapshot<T>(&self, read: impl FnOnce(&Engine, &[u8], &Entry) -> Result<T>) -> Result<T> {
        self.snapshot.read(|_| read(self.engine(), &self.key, &self.entry))
    }

    pub(super) const fn entry(&self) -> &Entry {
        &self.entry
    }

    pub(super) fn engine(&self) -> &Engine {
        self.snapshot.engine()
    }
}
