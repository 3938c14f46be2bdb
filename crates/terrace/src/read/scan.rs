//! Scans: objects in key order as of one moment, values read on demand.
//!
//! `next_values` takes pairs from chunks of the scan cache ([`chunks`]) and reads the ordered index
//! for the gaps. All other calls read the index alone, whose iterator is created where and when it
//! is needed: the snapshot keeps the state.
//!
//! Invariants: the remaining range begins at `start`, inclusive, and ends before what was returned
//! from the back. An existing iterator stands at `start`, and goes as far as `index_end`. Once
//! something was returned from the back there is one iterator for both ends, which goes to the
//! scan's end and stays: chunks are not used any more.

mod chunks;
mod show;

use super::{multi_get, object_info, read_home, snapshot::Snapshot};
use crate::{
    ObjectInfo, Result, ScanRange,
    ordered_index::{Entry, IndexScan},
    visibility::range_tombstones::{first_and_end, successor},
};
use bytes::Bytes;
use show::{Collect, InChunk, Lend};
use std::ops::Bound;

/// Memory is preallocated for at most this many objects of one call; most scans with a higher limit
/// end sooner.
const PRESIZED_MAX: usize = 256;

/// An iterator over objects in key order, from both ends. It sees the store as of its begin,
/// without objects expired by then, and holds a snapshot until it is dropped. Between two calls of
/// [`Scan::next_values`] or [`Scan::visit_values`] it may also hold up to 56 KiB of pairs.
#[derive(Debug)]
pub struct Scan {
    snapshot: Snapshot,
    /// The moment that expiries are held against.
    now_ms: u64,
    /// The first key that is not shown yet, or one before it.
    start: Vec<u8>,
    /// The first key behind the range; empty: no end.
    end: Vec<u8>,
    index: Option<IndexScan>,
    /// Where `index` ends, if that is before `end`.
    index_end: Option<Vec<u8>>,
    /// Something was shown from the back.
    has_back: bool,
    is_over: bool,
    /// Where the chunk at `start` ends: memory that is used again.
    chunk_end: Vec<u8>,
    /// That chunk, if the last call ended inside it.
    in_chunk: Option<InChunk>,
    /// Pairs that it has shown with their values.
    shown: usize,
    /// Bytes of chunks that it has made.
    made_bytes: usize,
}

impl Scan {
    pub(super) fn at(snapshot: &Snapshot, range: ScanRange) -> Result<Self> {
        snapshot.check()?;
        let bounds = first_and_end(&range);
        let is_over = bounds.is_none();
        let (start, end) = bounds.unwrap_or_default();
        let now_ms = snapshot.engine().options.clock.now_ms();
        let scan = Self::between(snapshot, now_ms, start, end);
        Ok(Self { is_over, ..scan })
    }

    fn between(snapshot: &Snapshot, now_ms: u64, start: Vec<u8>, end: Vec<u8>) -> Self {
        Self {
            snapshot: snapshot.clone(),
            now_ms,
            start,
            end,
            index: None,
            index_end: None,
            has_back: false,
            is_over: false,
            chunk_end: Vec::new(),
            in_chunk: None,
            shown: 0,
            made_bytes: 0,
        }
    }

    /// The iterator of the index, begun at `start` if there is none: up to `limit`, if that is
    /// before the end.
    fn index(&mut self, limit: Option<Vec<u8>>) -> Result<&mut IndexScan> {
        let index = match self.index.take() {
            Some(index) => index,
            None => {
                self.index_end = limit.filter(|limit| self.end.is_empty() || *limit < self.end);
                let end = self.index_end.as_ref().unwrap_or(&self.end);
                self.index_between(&self.start, end)?
            }
        };
        Ok(self.index.insert(index))
    }

    fn index_between(&self, start: &[u8], end: &[u8]) -> Result<IndexScan> {
        let end = match end {
            [] => Bound::Unbounded,
            end => Bound::Excluded(end.to_vec()),
        };
        let bounds = (Bound::Included(start.to_vec()), end);
        self.snapshot
            .read(|seq| self.snapshot.engine().index.scan_for_caller(bounds, seq))
    }

    /// Continues after `key`.
    fn go_behind(&mut self, key: &[u8]) {
        self.in_chunk = None;
        self.start.clear();
        if key.len() < crate::KEY_BYTES_MAX {
            self.start.extend_from_slice(key);
            self.start.push(0);
        } else if let Some(next) = successor(key) {
            self.start = next;
        } else {
            self.is_over = true;
        }
    }

    /// The next entry of the index from the front, dead or not, before the end of its iterator.
    fn next_listed(&mut self, limit: Option<Vec<u8>>) -> Option<Result<Listed>> {
        let found = match self.index(limit) {
            Ok(index) => index.next()?,
            Err(error) => Err(error),
        };
        match found {
            Ok((key, entry)) => {
                self.go_behind(&key);
                Some(Ok(Listed { key, entry }))
            }
            Err(error) => {
                self.is_over = true;
                Some(Err(error))
            }
        }
    }

    /// Continues after the end of the index iterator.
    fn leave_index(&mut self) {
        match self.index_end.take() {
            Some(end) => self.go_on_at(&end),
            None => self.is_over = true,
        }
    }

    /// Continues at `key`. (Empty: at the end.)
    fn go_on_at(&mut self, key: &[u8]) {
        (self.index, self.in_chunk) = (None, None);
        self.start.clear();
        self.start.extend_from_slice(key);
        self.is_over |= key.is_empty() || (!self.end.is_empty() && self.start >= self.end);
    }

    fn is_dead(&self, listed: &Listed) -> bool {
        let presence = self.snapshot.presence().frozen_at(self.now_ms);
        let entry = &listed.entry;
        presence.dead(&listed.key, entry.version.0, &entry.attributes).is_some()
    }

    /// The error of a snapshot that is too old, once; the scan is over then.
    fn check(&mut self) -> Result<()> {
        let checked = self.snapshot.check();
        self.is_over |= checked.is_err();
        checked
    }

    fn item(&mut self, found: Result<Listed>) -> Result<ScanItem> {
        self.check()?;
        found?.into_item(&self.snapshot)
    }

    /// The next `count` objects (fewer at the end) with their values, read in parallel. Keys and
    /// values of one call may share memory, up to 56 KiB: copy those that are kept for long.
    ///
    /// # Errors
    /// The first error of the scan; a value's error is in its place.
    pub fn next_values(&mut self, count: usize) -> Result<Vec<(ScannedObject, Result<Bytes>)>> {
        let mut collect = Collect(Vec::with_capacity(count.min(PRESIZED_MAX)));
        self.show(count, &mut collect)?;
        Ok(collect.0)
    }

    /// Calls `visit` with the keys and values of the next `count` objects (fewer at the end), in
    /// place in RAM: for callers that need them once it takes less time than [`Scan::next_values`].
    /// Returns the number of calls.
    ///
    /// # Errors
    /// The first error of the scan; a value's error is passed in its place.
    ///
    /// # Example
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let store = terrace::Store::open(terrace::Options::new(directory.path()))?;
    /// store.put("a", "one")?;
    /// let mut bytes = 0;
    /// store.scan(terrace::ScanRange::all())?.visit_values(100, |_key, value| {
    ///     bytes += value.map_or(0, <[u8]>::len);
    /// })?;
    /// assert_eq!(bytes, 3);
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn visit_values(&mut self, count: usize, visit: impl FnMut(&[u8], Result<&[u8]>)) -> Result<usize> {
        self.show(count, &mut Lend(visit))
    }

    /// Adds the values of the next entries of the index, until there are `count` pairs or its
    /// iterator ends. Returns what it read, and after how many of these a dead key was left out.
    fn values_by_index(&mut self, count: usize, limit: Option<Vec<u8>>) -> Result<Values> {
        let (mut items, mut gaps) = (Vec::with_capacity(count.min(PRESIZED_MAX)), Vec::new());
        while items.len() < count && !self.is_over {
            let Some(found) = self.next_listed(limit.clone()) else {
                self.leave_index();
                break;
            };
            let found = found.and_then(|found| self.check().map(|()| found))?;
            if self.is_dead(&found) {
                gaps.push((items.len(), found.key));
            } else {
                items.push(found);
            }
        }
        Ok(self.values_of(items, gaps))
    }

    fn values_of(&self, items: Vec<Listed>, gaps: Vec<(usize, Bytes)>) -> Values {
        let (values, not_in_ram) = multi_get::values(&self.snapshot, &items);
        Values {
            items,
            values,
            gaps,
            not_in_ram,
        }
    }
}

/// Objects that the index has shown, and their values.
struct Values {
    items: Vec<Listed>,
    values: Vec<Result<Bytes>>,
    /// Keys of dead objects, each with how many living ones come before it.
    gaps: Vec<(usize, Bytes)>,
    /// Number of values that came from a device.
    not_in_ram: usize,
}

impl Iterator for Scan {
    type Item = Result<ScanItem>;
    fn next(&mut self) -> Option<Self::Item> {
        while !self.is_over {
            match self.next_listed(None) {
                Some(Ok(found)) if self.is_dead(&found) => {}
                Some(found) => return Some(self.item(found)),
                None => self.leave_index(),
            }
        }
        None
    }
}

impl DoubleEndedIterator for Scan {
    fn next_back(&mut self) -> Option<Self::Item> {
        if !self.has_back {
            self.has_back = true;
            self.in_chunk = None;
            if self.index_end.is_some() {
                self.index = None;
            }
        }
        while !self.is_over {
            let found = match self.index(None) {
                Ok(index) => index.next_back(),
                Err(error) => Some(Err(error)),
            };
            let Some(found) = found else {
                self.is_over = true;
                break;
            };
            let found = found.map(|(key, entry)| Listed { key, entry });
            self.is_over |= found.is_err();
            if !found.as_ref().is_ok_and(|found| self.is_dead(found)) {
                return Some(self.item(found));
            }
        }
        None
    }
}

/// A key and its entry.
#[derive(Debug, Clone)]
pub struct Listed {
    pub key: Bytes,
    pub entry: Entry,
}

impl Listed {
    /// Reads the value. The snapshot keeps the entry's home where it was, so there is nothing to
    /// look up again.
    pub(super) fn value(&self, snapshot: &Snapshot) -> Result<Bytes> {
        snapshot.read(|_| read_home(snapshot.engine(), &self.key, &self.entry).map(|hit| hit.value))
    }

    fn into_item(self, snapshot: &Snapshot) -> Result<ScanItem> {
        Ok(ScanItem {
            info: object_info(&self.entry)?,
            key: self.key.clone(),
            listed: self,
            snapshot: snapshot.clone(),
        })
    }
}

/// One object of a scan.
#[derive(Debug, Clone)]
pub struct ScanItem {
    /// The key.
    pub key: Bytes,
    /// Its metadata.
    pub info: ObjectInfo,
    listed: Listed,
    snapshot: Snapshot,
}

impl ScanItem {
    /// Reads the value.
    ///
    /// # Errors
    /// [`crate::Error::Corruption`], [`crate::Error::SnapshotTooOld`], errors of the device.
    pub fn value(&self) -> Result<Bytes> {
        self.listed.value(&self.snapshot)
    }
}

/// An object of a scan with its value ([`Scan::next_values`]).
#[derive(Debug, Clone)]
pub struct ScannedObject {
    /// The key.
    pub key: Bytes,
    /// Its metadata; `home` is where its value was when it was last read, which may have been
    /// before the scan.
    pub info: ObjectInfo,
}
