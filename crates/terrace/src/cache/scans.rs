//! What scans have read, kept in key order: which ranges of keys there are chunks of.
//!
//! A *chunk* has all pairs of a range of keys, so that a scan that comes through it asks neither
//! the ordered index nor one place of a value after the other. It lies in the value cache like any
//! value ([`super::values`]), so there is one budget and one order in which things leave; here is
//! only where each begins and ends. docs/adr/0027-scan-cache.md says why.
//!
//! Invariants:
//! - A range has a chunk with seq *b* only if its keys have had the same versions and values at all
//!   times from *b* until now, where *now* is everything whose applying has begun. So a snapshot of
//!   *b* or later that finds the chunk may use it, and one that is older asks the index.
//! - Before the applier begins with a batch it says how far that goes ([`ScanCache::changing`]),
//!   and before the batch is shown to anybody, chunks with keys of it are gone. Moves change
//!   neither version nor value, and drop nothing.
//! - A chunk is *begun* before what is in it is read, at a snapshot with everything whose applying
//!   has begun. What is applied from then on and lies in its range is noted, and it is not kept.
//! - Ranges do not overlap.
//!
//! Whether something is applied at the moment of beginning both sides can tell, without a lock
//! where there is no chunk: the applier stores how far it goes and then looks whether there is
//! anything here; a scan that begins one says that there is, then looks how far the applier goes.
//! All four are sequentially consistent, so one of the two sees the other.

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use super::{
    CachedValue, Place, ValueCache,
    chunk::{CHUNK_BYTES_MAX, Chunk},
};
use crate::{
    api::stats::ScanCacheStats,
    metrics::striped::Striped,
    mutation::{Mutation, active},
};
use bytes::Bytes;
use parking_lot::RwLock;
use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

/// Keys of what is applied that are looked for at once: scans wait so long.
const CHANGED_TOGETHER: usize = 64;
/// One part in so many of the cache's room is for where chunks begin and end.
const TABLE_PART: u64 = 32;
/// What a range takes in the table besides its two keys: the node's share, and two allocations.
const RANGE_OVERHEAD_BYTES: u64 = 112;
/// Chunks are made while one part in so many of the cache's room is unused.
const UNUSED_PART: u64 = 16;
/// A chunk takes at most one part in so many of the cache's room,
const CHUNK_PART: u64 = 64;
/// and the chunks that one scan makes one in so many: a scan of a large store is not kept.
const SCAN_PART: u64 = 64;
/// Ranges that are looked at for a new one, where there is no room: chunks leave the cache unasked.
const LOOKED_AT: usize = 16;

/// Keys from where a range begins (which is its key in the table) up to an end.
#[derive(Debug)]
struct Range {
    /// The first key behind it; empty: no end.
    end: Box<[u8]>,
    /// Its chunk. Of a range that had one until somebody wrote in it only the borders are left:
    /// with them it is read anew, and not in ever smaller pieces.
    chunk: Option<(u64, u64)>,
}

impl Range {
    fn covers(&self, key: &[u8]) -> bool {
        self.end.is_empty() || *key < *self.end
    }
}

/// A chunk that is being made.
#[derive(Debug)]
struct Begun {
    number: u64,
    start: Box<[u8]>,
    /// The lowest key from `start` on that was changed since.
    changed: Option<Box<[u8]>>,
}

#[derive(Debug, Default)]
struct Table {
    ranges: BTreeMap<Box<[u8]>, Range>,
    begun: Vec<Begun>,
    bytes: u64,
    /// Where to go on looking for what has left.
    hand: Box<[u8]>,
}

#[derive(Debug, Default)]
struct Uses {
    chunks: AtomicU64,
    pairs: AtomicU64,
}

/// A chunk that is made: its range and its bytes.
#[derive(Debug)]
pub struct Made {
    /// Its first key, or one that nothing lies between.
    pub start: Vec<u8>,
    /// The first key behind it; empty: no end.
    pub end: Vec<u8>,
    /// See [`super::chunk`].
    pub bytes: Bytes,
}

/// What is known of a key.
#[derive(Debug)]
pub enum Found {
    /// It is in the range of a chunk.
    Chunk(Chunk),
    /// No chunk has it, and none has what comes before this key, if there is one.
    Nothing(Option<Vec<u8>>),
    /// It is in a range from here to there (empty: no end) that had a chunk until lately.
    Lost(Vec<u8>, Vec<u8>),
}

/// See the module.
pub struct ScanCache {
    values: ValueCache,
    table: RwLock<Table>,
    /// Whether there is anything in the table.
    is_used: AtomicBool,
    /// How far what is applied goes, and what is being applied.
    applying_seq: AtomicU64,
    numbers: AtomicU64,
    uses: Striped<Uses>,
    made: AtomicU64,
    made_bytes: AtomicU64,
    dropped: AtomicU64,
}

const fn place(number: u64) -> Place {
    Place(Place::CHUNKS, number << 1 | 1)
}

const fn bytes_of(start: &[u8], end: &[u8]) -> u64 {
    RANGE_OVERHEAD_BYTES + (start.len() + end.len()) as u64
}

impl Table {
    fn at(&self, key: &[u8]) -> Option<(&[u8], &Range)> {
        let before = self.ranges.range::<[u8], _>((Bound::Unbounded, Bound::Included(key)));
        let (start, range) = before.into_iter().next_back()?;
        range.covers(key).then_some((start, range))
    }

    fn remove(&mut self, start: &[u8]) {
        if let Some((start, range)) = self.ranges.remove_entry(start) {
            self.bytes -= bytes_of(&start, &range.end);
        }
    }

    /// Takes note that a key has changed. Gives the number of the chunk that is none any more.
    fn change(&mut self, key: &[u8]) -> Option<u64> {
        for begun in self.begun.iter_mut().filter(|begun| *begun.start <= *key) {
            if begun.changed.as_ref().is_none_or(|changed| *key < **changed) {
                begun.changed = Some(key.into());
            }
        }
        let start: Box<[u8]> = self.at(key)?.0.into();
        match self.ranges.get_mut(&start)?.chunk.take() {
            Some((number, _)) => Some(number),
            // Written in twice, and not read in between: nobody scans here.
            None => {
                self.remove(&start);
                None
            }
        }
    }

    /// Makes room for a range. Says whether nothing with a chunk is in the way.
    fn clear(&mut self, start: &[u8], end: &[u8]) -> bool {
        let mut lost: Vec<Box<[u8]>> = Vec::new();
        if let Some((start, range)) = self.at(start) {
            if range.chunk.is_some() {
                return false;
            }
            lost.push(start.into());
        }
        for (start, range) in self
            .ranges
            .range::<[u8], _>((Bound::Excluded(start), Bound::Unbounded))
            .take_while(|(start, _)| end.is_empty() || ***start < *end)
        {
            if range.chunk.is_some() {
                return false;
            }
            lost.push(start.clone());
        }
        lost.iter().for_each(|start| self.remove(start));
        true
    }
}

impl ScanCache {
    /// Of chunks in this cache.
    pub fn new(values: ValueCache) -> Self {
        Self {
            values,
            table: RwLock::default(),
            is_used: AtomicBool::new(false),
            applying_seq: AtomicU64::new(0),
            numbers: AtomicU64::new(0),
            uses: Striped::default(),
            made: AtomicU64::new(0),
            made_bytes: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    /// Bytes of records that a chunk has at most; 0 if none are kept.
    pub fn chunk_bytes_max(&self) -> usize {
        let part = usize::try_from(self.values.capacity_bytes() / CHUNK_PART);
        part.map_or(CHUNK_BYTES_MAX, |part| part.min(CHUNK_BYTES_MAX))
    }

    /// Bytes of the chunks that one scan makes, at most.
    pub fn scan_bytes_max(&self) -> usize {
        usize::try_from(self.values.capacity_bytes() / SCAN_PART).unwrap_or(usize::MAX)
    }

    /// What there is of `key` for a snapshot of this seq. Of a chunk, `end` becomes the first key
    /// behind it (empty: no end).
    pub fn find(&self, key: &[u8], seq: u64, end: &mut Vec<u8>) -> Found {
        if !self.is_used.load(Ordering::Relaxed) {
            return Found::Nothing(None);
        }
        let table = self.table.read();
        let number = match table.at(key) {
            Some((
                _,
                Range {
                    end: to,
                    chunk: Some((number, from)),
                },
            )) if *from <= seq => {
                end.clear();
                end.extend_from_slice(to);
                *number
            }
            // Somebody older than the chunk.
            Some((_, Range { chunk: Some(_), .. })) => return Found::Nothing(None),
            Some((start, Range { end, chunk: None })) => return Found::Lost(start.into(), end.to_vec()),
            None => {
                let mut behind = table.ranges.range::<[u8], _>((Bound::Excluded(key), Bound::Unbounded));
                let next = behind.find(|(_, range)| range.chunk.is_some_and(|(_, from)| from <= seq));
                return Found::Nothing(next.map(|(start, _)| start.to_vec()));
            }
        };
        drop(table);
        match self
            .values
            .get(place(number), &[])
            .and_then(|found| Chunk::open(found.value))
        {
            Some(chunk) => Found::Chunk(chunk),
            None => {
                self.forget(key, number);
                Found::Nothing(None)
            }
        }
    }

    /// Counts pairs of a chunk that were handed out.
    pub fn count_use(&self, pairs: u64) {
        let uses = self.uses.own();
        uses.chunks.fetch_add(1, Ordering::Relaxed);
        uses.pairs.fetch_add(pairs, Ordering::Relaxed);
    }

    /// The chunk at a key has left the cache.
    fn forget(&self, key: &[u8], number: u64) {
        let mut table = self.table.write();
        let found = table
            .at(key)
            .filter(|(_, range)| range.chunk.is_some_and(|(other, _)| other == number));
        if let Some(start) = found.map(|(start, _)| Box::<[u8]>::from(start)) {
            table.remove(&start);
        }
        self.note_bytes(&table);
    }

    /// Begins chunks from `start` on, of what a snapshot of this seq shows. `None` if something is
    /// applied that it does not, or if there is no room but that of values: a chunk is a second
    /// copy of what is cached already.
    pub fn begin(&self, start: &[u8], seq: u64) -> Option<u64> {
        if self.values.unused_bytes() <= self.values.capacity_bytes() / UNUSED_PART {
            return None;
        }
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let mut table = self.table.write();
        table.begun.push(Begun {
            number,
            start: start.into(),
            changed: None,
        });
        self.is_used.store(true, Ordering::SeqCst);
        let shows_all = self.applying_seq.load(Ordering::SeqCst) == seq || active(Mutation::ScanCacheBegin);
        if !shows_all {
            table.begun.pop();
            self.note_bytes(&table);
        }
        shows_all.then_some(number)
    }

    /// Keeps the chunks that were made since [`ScanCache::begin`] for a snapshot of this seq,
    /// unless something in their ranges was changed meanwhile. Says whether it kept one.
    pub fn finish(&self, begun: u64, seq: u64, made: Vec<Made>) -> bool {
        let numbers: Vec<u64> = made.iter().map(|made| self.put(made)).collect();
        let mut kept = 0;
        let mut table = self.table.write();
        let at = table.begun.iter().position(|other| other.number == begun);
        let changed = at.map(|at| table.begun.swap_remove(at)).and_then(|begun| begun.changed);
        for (made, number) in made.into_iter().zip(numbers) {
            // The lowest of what was changed is known: nothing of what lies behind it.
            let is_so_still = changed
                .as_ref()
                .is_none_or(|changed| !made.end.is_empty() && *made.end <= **changed);
            let bytes = bytes_of(&made.start, &made.end);
            let may_stay = is_so_still || active(Mutation::ScanCacheBegin);
            if at.is_none() || !may_stay || !self.has_room(&mut table, bytes) || !table.clear(&made.start, &made.end) {
                self.values.take(place(number));
                continue;
            }
            let range = Range {
                end: made.end.into(),
                chunk: Some((number, seq)),
            };
            table.ranges.insert(made.start.into(), range);
            table.bytes += bytes;
            kept += 1;
            self.made_bytes.fetch_add(made.bytes.len() as u64, Ordering::Relaxed);
        }
        self.made.fetch_add(kept, Ordering::Relaxed);
        self.note_bytes(&table);
        kept > 0
    }

    fn put(&self, made: &Made) -> u64 {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let value = CachedValue {
            version: 0,
            attributes: Bytes::new(),
            value: made.bytes.clone(),
        };
        self.values.insert(place(number), &[], &value);
        number
    }

    /// Whether there is room for a range, perhaps of some that have left.
    fn has_room(&self, table: &mut Table, bytes: u64) -> bool {
        let bytes_max = self.values.capacity_bytes() / TABLE_PART;
        if table.bytes + bytes <= bytes_max {
            return true;
        }
        let behind = (Bound::Excluded(&*table.hand), Bound::Unbounded);
        let looked_at: Vec<_> = table.ranges.range::<[u8], _>(behind).take(LOOKED_AT).collect();
        let has_left = |range: &Range| range.chunk.is_none_or(|(number, _)| !self.values.has(place(number)));
        let left = looked_at.iter().filter(|(_, range)| has_left(range));
        let left: Vec<Box<[u8]>> = left.map(|(start, _)| (*start).clone()).collect();
        let hand = looked_at.last().map(|(start, _)| (*start).clone());
        table.hand = hand.filter(|_| looked_at.len() == LOOKED_AT).unwrap_or_default();
        left.iter().for_each(|start| table.remove(start));
        table.bytes + bytes <= bytes_max
    }

    fn note_bytes(&self, table: &Table) {
        self.values.set_beside_bytes(table.bytes);
        if table.ranges.is_empty() && table.begun.is_empty() {
            self.is_used.store(false, Ordering::SeqCst);
        }
    }

    /// The applier goes on up to `seq`, and these are the keys that it gives another version or
    /// value, or takes out. To be called before anybody is shown any of that.
    pub fn changing<'k>(&self, seq: u64, keys: impl Iterator<Item = &'k [u8]>) {
        self.applying_seq.store(seq, Ordering::SeqCst);
        if !self.is_used.load(Ordering::SeqCst) || active(Mutation::ScanCacheDrop) {
            return;
        }
        let mut keys = keys.peekable();
        while keys.peek().is_some() {
            let mut table = self.table.write();
            let dropped: Vec<u64> = keys
                .by_ref()
                .take(CHANGED_TOGETHER)
                .filter_map(|key| table.change(key))
                .collect();
            self.note_bytes(&table);
            drop(table);
            self.dropped.fetch_add(dropped.len() as u64, Ordering::Relaxed);
            for number in dropped {
                self.values.take(place(number));
            }
        }
    }

    /// A picture.
    pub fn stats(&self) -> ScanCacheStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let table = self.table.read();
        ScanCacheStats {
            chunks: table.ranges.values().filter(|range| range.chunk.is_some()).count() as u64,
            table_bytes: table.bytes,
            chunk_hits: self.uses.sum(|uses| &uses.chunks),
            pair_hits: self.uses.sum(|uses| &uses.pairs),
            made: load(&self.made),
            made_bytes: load(&self.made_bytes),
            dropped: load(&self.dropped),
        }
    }
}
