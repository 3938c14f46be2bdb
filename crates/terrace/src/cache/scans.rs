//! The scan cache: which key ranges have chunks of scanned pairs.
//!
//! A *chunk* has all pairs of a key range, so a scan through it needs neither the ordered index nor
//! a lookup per value. It is stored in the value cache like any value ([`super::values`]), so there
//! is one budget and one eviction order; this module has only the borders.
//! docs/adr/0027-scan-cache.md has the reasons.
//!
//! Invariants:
//! - A range has a chunk with seq *b* only if its keys have had the same versions and values at all
//!   times from *b* until now, where *now* is everything whose application has begun. So a snapshot
//!   at *b* or later that finds the chunk may use it, and an older one reads the index.
//! - Before the applier begins a batch it announces the batch's last seq ([`ScanCache::changing`]),
//!   and before the batch is visible to any reader, chunks with its keys are dropped, or the keys
//!   are noted as *changed* beside their range: then the chunk is not used until it is rebuilt.
//!   Moves change neither version nor value, and drop nothing.
//! - A chunk is *begun* before its contents are read, at a snapshot with everything whose
//!   application has begun. If anything applied from then on is in its range, the chunk is not
//!   kept.
//! - Ranges do not overlap.
//!
//! Both sides detect a race at the moment of beginning, without a lock where there is no chunk: the
//! applier stores its position and then loads whether anything is in the table; a scan that begins
//! a chunk stores that, then loads the applier's position. All four operations are sequentially
//! consistent, so one of the two sees the other.

mod ranges;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use super::{
    Place, ValueCache,
    chunk::{CHUNK_BYTES_MAX, Chunk, PAIR_BYTES_MAX, Pair, SHORT_CHUNK_BYTES_MAX},
};
use crate::{
    api::stats::ScanCacheStats,
    metrics::striped::Striped,
    mutation::{Mutation, active},
};
use parking_lot::{Mutex, RwLock};
use ranges::{Begun, InRange, Range, Table, bytes_of};
use std::{
    ops::Bound,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Instant,
};

/// Keys of applied records that are looked up at a time: scans wait for that long.
const CHANGED_TOGETHER: usize = 64;
/// This fraction of the cache's room (1/n) is for the table of chunk boundaries.
const TABLE_PART: u64 = 32;
/// Second copies are made while this fraction (1/n) of the cache's room is unused.
const UNUSED_PART: u64 = 16;
/// With less, other values are evicted for a chunk of them, which scans must have paid for: so many
/// uses of chunks for each. To make one takes about as long as two scans of 50 through the index,
/// and most of those that a cache has no room for are evicted unused.
const USES_FOR_CHUNK: u64 = 8;
/// Without that, one scan in this many makes some nevertheless: otherwise there would never be any
/// in a cache that gets have filled.
const SCANS_OF_TRIAL: u64 = 64;
/// Longer values move to chunks while this fraction (1/n) of all RAM for values is free or dead.
/// With less, values of emptied frames and segments would have to be evicted. Half of it is the
/// share of the frames then, which keep a thirty-second.
const SPARE_PART: u64 = 16;
/// Determining that takes some 50 µs per 256 MiB, so one scan in this many does at most,
const SCANS_OF_LOOK: u64 = 128;
/// and at most this part (1/n) of a core is used for it: a scan of 50 short values in RAM takes 30
/// µs, and the looks of one in 128 took a tenth of all processor time.
const PART_OF_CORE: u32 = 128;
/// Maximum of a chunk, as a fraction (1/n) of the cache's room.
const CHUNK_PART: u64 = 64;
/// Maximum of the chunks that one scan makes, as a fraction (1/n) of the cache's room: a scan of a
/// large store is not cached.
const SCAN_PART: u64 = 64;
/// Ranges that are searched for room for a new one, since evicted chunks leave theirs behind; and
/// for the next one that a snapshot may use, since one older than all ranges would search all.
const LOOKED_AT: usize = 16;

#[derive(Debug, Default)]
struct Uses {
    chunks: AtomicU64,
    pairs: AtomicU64,
}

/// A chunk that is made, and its range.
#[derive(Debug)]
pub struct Made {
    /// Its first key, or a lower one with no key in between.
    pub start: Vec<u8>,
    /// The first key behind it; empty: no end.
    pub end: Vec<u8>,
    /// See [`super::chunk`].
    pub chunk: Chunk,
}

/// Chunks that are being made.
#[derive(Debug)]
pub struct Making {
    number: u64,
    seq: u64,
    /// The chunk that they are made of, if they are.
    from: Option<u64>,
    /// Other values are evicted for them.
    evicts: bool,
}

/// Which of the index's pairs may be put into chunks.
#[derive(Debug, Clone, Copy)]
pub struct Takes {
    /// Second copies.
    pub short: bool,
    /// Longer values, which move.
    pub long: bool,
}

impl Takes {
    /// Whether longer or short ones may.
    pub const fn takes(self, long: bool) -> bool {
        if long { self.long } else { self.short }
    }
}

/// A chunk of which keys have changed.
#[derive(Debug)]
pub struct Changed {
    /// Where its range begins.
    pub start: Vec<u8>,
    /// The first key behind it; empty: no end.
    pub end: Vec<u8>,
    /// Its pairs as they were.
    pub chunk: Chunk,
    /// The keys, in order.
    pub keys: Vec<Box<[u8]>>,
}

impl Changed {
    /// Whether this key has changed.
    pub fn has(&self, key: &[u8]) -> bool {
        self.keys.binary_search_by(|changed| (**changed).cmp(key)).is_ok()
    }
}

/// State of a key.
#[derive(Debug)]
pub enum Found {
    /// It is in the range of a chunk, and perhaps the key at which that begins.
    Chunk { chunk: Chunk, is_start: bool },
    /// No chunk has it. With the key at which the next chunk begins, if one is known.
    Nothing(Option<Vec<u8>>),
    /// It is in a range from here to there (empty: no end) that had a chunk until lately.
    Lost(Vec<u8>, Vec<u8>),
    /// It is in the range of a chunk of which keys have changed.
    Changed,
}

/// See the module.
pub struct ScanCache {
    values: ValueCache,
    /// Bytes that a frame counts for a live value with a record of this length.
    counted_bytes: fn(u64) -> u64,
    table: RwLock<Table>,
    /// Whether there is anything in the table.
    is_used: AtomicBool,
    /// The seq up to which records are applied or being applied.
    applying_seq: AtomicU64,
    /// As of the last look (`ScanCache::may_move`).
    may_move: AtomicBool,
    /// When the next one is due.
    next_look: Mutex<Instant>,
    /// Chunks that were begun.
    begun: AtomicU64,
    numbers: AtomicU64,
    uses: Striped<Uses>,
    /// Uses that were spent on chunks for which other values were evicted.
    spent_uses: AtomicU64,
    made: AtomicU64,
    made_bytes: AtomicU64,
    dropped: AtomicU64,
}

const fn place(number: u64) -> Place {
    Place(Place::CHUNKS, number << 1 | 1)
}

impl ScanCache {
    /// For chunks in this cache. A value with a record of this many bytes counts as `counted_bytes`
    /// in frames.
    pub fn new(values: ValueCache, counted_bytes: fn(u64) -> u64) -> Self {
        Self {
            values,
            counted_bytes,
            table: RwLock::default(),
            is_used: AtomicBool::new(false),
            applying_seq: AtomicU64::new(0),
            may_move: AtomicBool::new(false),
            next_look: Mutex::new(Instant::now()),
            begun: AtomicU64::new(0),
            numbers: AtomicU64::new(0),
            uses: Striped::default(),
            spent_uses: AtomicU64::new(0),
            made: AtomicU64::new(0),
            made_bytes: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    /// Maximum bytes of records in a chunk; 0 if none are kept. Its live pairs fit into one
    /// segment, and one is always free.
    pub fn chunk_bytes_max(&self) -> usize {
        let part = (self.values.capacity_bytes() / CHUNK_PART).min(self.values.segment_bytes());
        usize::try_from(part).map_or(CHUNK_BYTES_MAX, |part| part.min(CHUNK_BYTES_MAX))
    }

    /// Maximum bytes of key, attributes and value of a pair that moves to a chunk. Longer ones
    /// could not be copied when their chunk is emptied.
    pub fn long_pair_bytes_max(&self) -> usize {
        self.values.copied_bytes_max().min(PAIR_BYTES_MAX)
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
        let (number, is_start) = match table.at(key) {
            Some((start, range)) => {
                let Some(chunk) = range.chunk else {
                    return Found::Lost(start.into(), range.end.to_vec());
                };
                if chunk.seq > seq {
                    // A snapshot older than the chunk.
                    return Found::Nothing(None);
                }
                if !range.changed.is_empty() {
                    return Found::Changed;
                }
                end.clear();
                end.extend_from_slice(&range.end);
                (chunk.number, *start == *key)
            }
            None => {
                let behind = table.ranges.range::<[u8], _>((Bound::Excluded(key), Bound::Unbounded));
                let mut few = behind.take(LOOKED_AT);
                let next = few.find(|(_, range)| range.chunk.is_some_and(|chunk| chunk.seq <= seq));
                return Found::Nothing(next.map(|(start, _)| start.to_vec()));
            }
        };
        drop(table);
        match self.values.chunk(place(number)) {
            Some(chunk) => Found::Chunk { chunk, is_start },
            None => {
                self.forget(key, number);
                self.find(key, seq, end)
            }
        }
    }

    /// Passes the pair of a key to `take`, if a chunk has it: as it is now, or, while a batch with
    /// that key is being applied, as it was before.
    pub fn pair_of<R>(&self, key: &[u8], take: impl FnOnce(&Pair<'_>) -> R) -> Option<R> {
        if !self.is_used.load(Ordering::Relaxed) {
            return None;
        }
        let table = self.table.read();
        let (_, range) = table.at(key)?;
        let number = range.chunk.filter(|_| !range.has_changed(key))?.number;
        drop(table);
        let chunk = self.values.chunk(place(number))?;
        let pair = chunk.pair(chunk.first_from(key))?;
        (pair.key == key).then(|| take(&pair))
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
            .filter(|(_, range)| range.chunk.is_some_and(|chunk| chunk.number == number));
        if let Some(start) = found.map(|(start, _)| Box::<[u8]>::from(start)) {
            table.remove(&start);
        }
        self.note_bytes(&table);
    }

    /// Begins chunks from `start` on, of what a snapshot of this seq shows. `None` if something is
    /// applied that it does not, or if there is no room.
    pub fn begin(&self, start: &[u8], seq: u64) -> Option<(Making, Takes)> {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let has_unused = self.values.unused_bytes() > self.values.capacity_bytes() / UNUSED_PART;
        let takes = Takes {
            short: has_unused || number.is_multiple_of(SCANS_OF_TRIAL) || self.have_uses_paid(),
            long: self.may_move(number),
        };
        let has_room = takes.short || takes.long;
        let mut making = has_room.then(|| self.begin_in(&mut self.table.write(), start, seq, None))??;
        making.evicts = takes.short && !has_unused;
        Some((making, takes))
    }

    /// The same for the range that a key is in, if that has a chunk of which keys have changed.
    pub fn begin_anew(&self, key: &[u8], seq: u64) -> Option<(Making, Changed)> {
        let mut table = self.table.write();
        let (start, range) = table.at(key)?;
        let number = range.chunk.filter(|_| !range.changed.is_empty())?.number;
        let (start, end, keys) = (start.to_vec(), range.end.to_vec(), range.changed.clone());
        let Some(chunk) = self.values.chunk(place(number)) else {
            table.remove(&start);
            self.note_bytes(&table);
            return None;
        };
        let making = self.begin_in(&mut table, &start, seq, Some(number))?;
        let changed = Changed {
            start,
            end,
            chunk,
            keys,
        };
        Some((making, changed))
    }

    fn begin_in(&self, table: &mut Table, start: &[u8], seq: u64, from: Option<u64>) -> Option<Making> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        table.begun.push(Begun {
            number,
            start: start.into(),
            changed: None,
        });
        self.is_used.store(true, Ordering::SeqCst);
        let shows_all = self.applying_seq.load(Ordering::SeqCst) == seq || active(Mutation::ScanCacheBegin);
        if !shows_all {
            table.begun.pop();
            self.note_bytes(table);
        }
        shows_all.then_some(Making {
            number,
            seq,
            from,
            evicts: false,
        })
    }

    /// The chunk for the range of this key could not be made. Drops the range, if it has not
    /// changed since.
    pub fn give_up(&self, making: &Making, key: &[u8]) {
        let mut table = self.table.write();
        let found = table
            .at(key)
            .map(|(start, range)| (Box::<[u8]>::from(start), range.chunk));
        let is_same = |chunk: Option<InRange>| chunk.map(|chunk| chunk.number) == making.from;
        let Some((start, chunk)) = found.filter(|(_, chunk)| is_same(*chunk)) else {
            return;
        };
        table.remove(&start);
        self.note_bytes(&table);
        drop(table);
        if let Some(chunk) = chunk {
            self.values.take(place(chunk.number));
        }
    }

    /// Whether chunks were used often enough for another one, for which other values are evicted.
    /// No more uses are saved up than for a cache full of chunks.
    fn have_uses_paid(&self) -> bool {
        let uses = self.uses.sum(|uses| &uses.chunks);
        let chunks = self.values.capacity_bytes() / SHORT_CHUNK_BYTES_MAX as u64;
        let forgotten = uses.saturating_sub(chunks * USES_FOR_CHUNK);
        let spent = self.spent_uses.fetch_max(forgotten, Ordering::Relaxed).max(forgotten);
        spent + USES_FOR_CHUNK <= uses
    }

    /// Whether values may move to chunks: there is spare room to empty the frames and segments that
    /// they leave. Checked only periodically.
    fn may_move(&self, number: u64) -> bool {
        if number.is_multiple_of(SCANS_OF_LOOK)
            // Another thread looks.
            && let Some(mut next_look) = self.next_look.try_lock()
        {
            let begin = Instant::now();
            if begin >= *next_look {
                let (living_bytes, room_bytes) = self.values.living_and_room_bytes();
                let has_room = living_bytes + room_bytes / SPARE_PART <= room_bytes;
                self.may_move.store(has_room, Ordering::Relaxed);
                *next_look = Instant::now() + begin.elapsed() * PART_OF_CORE;
            }
        }
        self.may_move.load(Ordering::Relaxed)
    }

    /// Keeps the chunks that were made since [`ScanCache::begin`], unless a key in their ranges was
    /// changed meanwhile. Returns whether it kept one. In a rebuilt chunk only pairs for which
    /// `is_new` holds may be without another copy in RAM; see [`Values::move_to_chunk`].
    ///
    /// [`Values::move_to_chunk`]: super::values::Values::move_to_chunk
    pub fn finish(&self, making: &Making, made: Vec<Made>, is_new: impl Fn(&[u8]) -> bool) -> bool {
        let put = |made: &Made| {
            let number = self.numbers.fetch_add(1, Ordering::Relaxed);
            self.values.insert_chunk(place(number), &made.chunk);
            number
        };
        let numbers: Vec<u64> = made.iter().map(put).collect();
        let (mut kept, mut gone) = (Vec::new(), Vec::new());
        let mut table = self.table.write();
        let at = table.begun.iter().position(|other| other.number == making.number);
        let changed = at.map(|at| table.begun.swap_remove(at)).and_then(|begun| begun.changed);
        for (made, number) in made.into_iter().zip(numbers) {
            // The lowest changed key is known: nothing from it on is valid.
            let is_so_still = changed
                .as_ref()
                .is_none_or(|changed| !made.end.is_empty() && *made.end <= **changed);
            let may_stay = is_so_still || active(Mutation::ScanCacheBegin);
            let replaced = self.replace(&mut table, making, &made, number, may_stay && at.is_some());
            match replaced {
                Some(before) => {
                    gone.extend(before);
                    kept.push((made.chunk, number));
                }
                None => gone.push(number),
            }
        }
        self.note_bytes(&table);
        drop(table);
        for (chunk, number) in &kept {
            self.made_bytes.fetch_add(chunk.bytes() as u64, Ordering::Relaxed);
            if chunk.is_home() {
                self.values
                    .move_to_chunk(place(*number), chunk, &is_new, self.counted_bytes);
            }
        }
        self.made.fetch_add(kept.len() as u64, Ordering::Relaxed);
        if making.evicts {
            let second_copies = kept.iter().filter(|(chunk, _)| !chunk.is_home()).count() as u64;
            self.spent_uses
                .fetch_add(second_copies * USES_FOR_CHUNK, Ordering::Relaxed);
        }
        for number in gone {
            self.values.take(place(number));
        }
        !kept.is_empty()
    }

    /// Gives a range to a chunk, if it `may`. Gives the number of the one that was there, if it is
    /// what this one is made of; `None` if something is in the way.
    fn replace(&self, table: &mut Table, making: &Making, made: &Made, number: u64, may: bool) -> Option<Option<u64>> {
        let bytes = bytes_of(&made.start, &made.end);
        let from = making.from.and_then(|from| {
            let (start, range) = table.at(&made.start)?;
            let is_same = range.chunk.is_some_and(|chunk| chunk.number == from);
            is_same.then(|| (Box::<[u8]>::from(start), range.bytes(start), from))
        });
        let freed_bytes = from.as_ref().map_or(0, |(_, bytes, _)| *bytes);
        if !may || !self.has_room(table, bytes.saturating_sub(freed_bytes)) {
            return None;
        }
        if let Some((start, ..)) = &from {
            table.remove(start);
        }
        if !table.clear(&made.start, &made.end) {
            return None;
        }
        let range = Range {
            end: made.end.as_slice().into(),
            chunk: Some(InRange {
                number,
                seq: making.seq,
                is_home: made.chunk.is_home(),
            }),
            changed: Vec::new(),
        };
        table.ranges.insert(made.start.as_slice().into(), range);
        table.bytes += bytes;
        Some(from.map(|(.., number)| number))
    }

    fn table_bytes_max(&self) -> u64 {
        self.values.capacity_bytes() / TABLE_PART
    }

    /// Whether there is room for a range, perhaps of some that have left.
    fn has_room(&self, table: &mut Table, bytes: u64) -> bool {
        let bytes_max = self.table_bytes_max();
        if table.bytes + bytes <= bytes_max {
            return true;
        }
        let behind = (Bound::Excluded(&*table.hand), Bound::Unbounded);
        let looked_at: Vec<_> = table.ranges.range::<[u8], _>(behind).take(LOOKED_AT).collect();
        let has_left = |range: &Range| range.chunk.is_none_or(|chunk| !self.values.has(place(chunk.number)));
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

    /// The applier will apply records up to `seq`, and change or remove these keys. Must be called
    /// before any of the changes is visible to readers.
    pub fn changing<'k>(&self, seq: u64, keys: impl Iterator<Item = &'k [u8]>) {
        self.applying_seq.store(seq, Ordering::SeqCst);
        if !self.is_used.load(Ordering::SeqCst) || active(Mutation::ScanCacheDrop) {
            return;
        }
        let bytes_max = self.table_bytes_max();
        let mut keys = keys.peekable();
        while keys.peek().is_some() {
            let mut table = self.table.write();
            let dropped: Vec<u64> = keys
                .by_ref()
                .take(CHANGED_TOGETHER)
                .filter_map(|key| table.change(key, bytes_max))
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
