//! The tables of the cache, and the segments that they lead to: the lock-free part for readers.
//!
//! A reader loads a slot, then the segment that the slot names, then checks the slot again, and
//! that the segment is still in use. A thread that releases a segment changes the slots that lead
//! to it, then marks it as not in use, and only then gives its number to another. So a reader that
//! finds the slot unchanged, and the segment in use, has the record that the slot was made for; a
//! reference to the segment keeps its memory from being overwritten.

use super::{
    CachedValue, Place,
    chunk::{Chunk, Pair},
    record::{HEAD_BYTES_MAX, Head, WORD_BYTES, Words},
    table::{Found, Inserted, SEGMENT_WORDS_MAX, SEGMENTS_MAX, Slot, Table},
};
use crate::metrics::subtract;
use arc_swap::{ArcSwap, ArcSwapOption};
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

/// Tables at most, each of which becomes longer by itself: to copy one takes some milliseconds.
const TABLES_MAX: u64 = 64;
/// One table per this many bytes of values.
const TABLE_FOR_BYTES: u64 = 4 << 20;
/// Sets of slots that a table begins with.
const SETS: usize = 8;
/// A table becomes longer when more of its slots than this are taken, in per cent: then it has lost
/// one in a hundred.
const FILLED_MAX: usize = 82;
/// As many segments as a thread can have hold of without counting on each.
const SEGMENTS_TOGETHER: usize = 7;
/// A line of memory.
const LINE_BYTES: usize = 64;
/// Where in its segment a chunk is itself: no pair has such a number.
pub const CHUNK_AT: usize = SEGMENT_WORDS_MAX - 1;

/// What a segment has.
#[derive(Debug)]
pub enum Contents {
    /// Records, one behind the other.
    Records(Box<[AtomicU64]>),
    /// One value that is too long to be copied.
    Whole {
        /// Where it is read from without a cache.
        place: Place,
        /// The object's key.
        key: Box<[u8]>,
        value: CachedValue,
        /// Its size.
        bytes: u64,
    },
    /// A chunk of the scan cache: a slot leads to it, and one to each pair that has a place.
    Chunk {
        /// Its key in the index.
        place: Place,
        /// Its pairs: that with number *n* is at "word" *n*.
        chunk: Chunk,
        /// Its size.
        bytes: u64,
    },
}

/// A piece of RAM with values.
#[derive(Debug)]
pub struct Segment {
    /// Its contents.
    pub contents: Contents,
    is_retired: AtomicBool,
    /// Words of live records, as of the last check of their slots.
    live_words: AtomicU64,
}

impl Segment {
    /// With these values.
    pub const fn new(contents: Contents) -> Self {
        Self {
            contents,
            is_retired: AtomicBool::new(false),
            live_words: AtomicU64::new(0),
        }
    }

    /// Words of records in it that are led to, at most.
    pub fn live_words(&self) -> u64 {
        self.live_words.load(Ordering::Relaxed)
    }

    /// A record of this many words was appended.
    pub fn add_live(&self, words: usize) {
        self.live_words.fetch_add(words as u64, Ordering::Relaxed);
    }

    /// The record at a word is led to no more. Says how many words are, before and after.
    pub fn remove_live(&self, at: usize) -> (u64, u64) {
        let taken = subtract(&self.live_words, self.words_of(at) as u64);
        let live = self.live_words();
        (live + taken, live)
    }

    /// Words of the segment that the item at a word takes; for a chunk itself, all pairs without a
    /// slot of their own.
    pub fn words_of(&self, at: usize) -> usize {
        let words_of = |pair: Pair<'_>| pair.bytes().div_ceil(WORD_BYTES);
        match &self.contents {
            Contents::Records(_) => self.head(at).map_or(0, |head| head.words()),
            Contents::Whole { .. } => 0,
            Contents::Chunk { chunk, .. } if at == CHUNK_AT => {
                chunk.pairs().filter(|pair| pair.place.is_none()).map(words_of).sum()
            }
            Contents::Chunk { chunk, .. } => chunk.pair(at).map_or(0, words_of),
        }
    }

    /// Its length in words.
    pub const fn all_words(&self) -> u64 {
        match &self.contents {
            Contents::Records(words) => words.len() as u64,
            Contents::Whole { .. } => 0,
            Contents::Chunk { chunk, .. } => chunk.bytes().div_ceil(WORD_BYTES) as u64,
        }
    }

    /// RAM of the parts that slots lead to; for a chunk the overhead of its allocation counts, too.
    pub fn living_bytes(&self) -> u64 {
        let live_bytes = self.live_words() * WORD_BYTES as u64;
        match &self.contents {
            Contents::Records(_) => live_bytes,
            Contents::Whole { bytes, .. } => *bytes,
            Contents::Chunk { bytes, .. } => {
                bytes
                    - (self.all_words() * WORD_BYTES as u64)
                        .saturating_sub(live_bytes)
                        .min(*bytes)
            }
        }
    }

    /// RAM that it takes.
    pub const fn bytes(&self) -> u64 {
        match &self.contents {
            Contents::Records(words) => (words.len() * WORD_BYTES) as u64,
            Contents::Whole { bytes, .. } | Contents::Chunk { bytes, .. } => *bytes,
        }
    }

    /// Whether it is a chunk that is the home of values.
    pub const fn is_home(&self) -> bool {
        matches!(&self.contents, Contents::Chunk { chunk, .. } if chunk.is_home())
    }

    /// The words from one on; none but of records.
    pub fn words(&self, at: usize) -> Words<'_> {
        match &self.contents {
            Contents::Records(words) => Words(words.get(at..).unwrap_or_default()),
            Contents::Whole { .. } | Contents::Chunk { .. } => Words(&[]),
        }
    }

    /// Prefetches the item at a word, of about this many bytes. See [`Table::fetch`].
    fn fetch(&self, at: usize, bytes: usize) -> u64 {
        let words = self.words(at).0;
        let words = &words[..words.len().min(bytes / WORD_BYTES + HEAD_BYTES_MAX / WORD_BYTES)];
        let lines = words.iter().step_by(LINE_BYTES / WORD_BYTES);
        lines.fold(0, |sum, word| sum ^ word.load(Ordering::Relaxed))
    }

    /// The head of the record at a word.
    pub fn head(&self, at: usize) -> Option<Head> {
        self.words(at).head()
    }

    /// Where the value at a word is read from without a cache.
    pub fn place(&self, at: usize) -> Option<Place> {
        match &self.contents {
            Contents::Records(_) => self.head(at).map(|head| head.place),
            Contents::Whole { place, .. } => Some(*place),
            Contents::Chunk { place, .. } if at == CHUNK_AT => Some(*place),
            Contents::Chunk { chunk, .. } => chunk.pair(at)?.place,
        }
    }

    fn read(&self, at: usize, wanted: Place, wanted_key: &[u8]) -> Option<CachedValue> {
        match &self.contents {
            Contents::Records(_) => self.words(at).read(wanted, wanted_key),
            Contents::Whole { place, key, value, .. } => {
                (*place == wanted && **key == *wanted_key).then(|| value.clone())
            }
            Contents::Chunk { chunk, .. } => {
                let pair = chunk.pair(at)?;
                (pair.place == Some(wanted) && *pair.key == *wanted_key).then(|| CachedValue::of_pair(&pair))
            }
        }
    }
}

impl Drop for Index {
    /// Dropping a cell for a segment checks the debts of every thread that ever existed. Most cells
    /// of a large cache are empty and need no check: a million and a half of them, after a hundred
    /// threads, delayed a server's exit by half a minute.
    fn drop(&mut self) {
        for segment in std::mem::take(&mut self.segments) {
            if segment.load().is_none() {
                std::mem::forget(segment);
            }
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Index {
    /// Replaced together: a thread that looks up many values loads them once.
    tables: ArcSwap<Vec<Table>>,
    /// How many slots of each are taken.
    taken: Box<[AtomicUsize]>,
    /// By number, from 1 on.
    segments: Box<[ArcSwapOption<Segment>]>,
    bytes: AtomicU64,
}

impl Index {
    /// For this many bytes of values in at most this many segments.
    pub fn new(capacity_bytes: u64, segments: usize) -> Self {
        let tables = (capacity_bytes / TABLE_FOR_BYTES)
            .clamp(1, TABLES_MAX)
            .next_power_of_two();
        let tables: Vec<_> = (0..tables).map(|_| Table::new(SETS)).collect();
        let tables_bytes: u64 = tables.iter().map(Table::bytes).sum();
        let segments: Box<[_]> = (0..segments.min(SEGMENTS_MAX))
            .map(|_| ArcSwapOption::empty())
            .collect();
        let bytes = tables_bytes + (segments.len() * size_of::<ArcSwapOption<Segment>>()) as u64;
        Self {
            taken: tables.iter().map(|_| AtomicUsize::new(0)).collect(),
            tables: ArcSwap::from_pointee(tables),
            segments,
            bytes: AtomicU64::new(bytes),
        }
    }

    /// RAM that it takes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Numbers that segments may have.
    pub fn numbers(&self) -> std::ops::Range<u32> {
        1..u32::try_from(self.segments.len()).unwrap_or(u32::MAX)
    }

    /// Which table has the slots of a place.
    const fn part(&self, hash: u64) -> usize {
        (hash >> 32) as usize % self.taken.len()
    }

    fn segment_of(&self, number: u32) -> Option<&ArcSwapOption<Segment>> {
        self.segments.get(number as usize)
    }

    /// The value of `key` at a place.
    pub fn get(&self, place: Place, key: &[u8]) -> Option<CachedValue> {
        self.read(place, |segment, at| segment.read(at, place, key))
    }

    /// The chunk that is found by a place.
    pub fn chunk(&self, wanted: Place) -> Option<Chunk> {
        self.read(wanted, |segment, at| match &segment.contents {
            Contents::Chunk { place, chunk, .. } if *place == wanted && at == CHUNK_AT => Some(chunk.clone()),
            _ => None,
        })
    }

    /// Begins to get the slots of these places from memory: no load waits for another.
    pub fn fetch_slots(&self, places: impl Iterator<Item = Place>) {
        let tables = self.tables.load();
        let slots = places.map(Place::hash).map(|hash| tables[self.part(hash)].fetch(hash));
        std::hint::black_box(slots.fold(0, |sum, slots| sum ^ slots));
    }

    /// Prefetches the memory needed to find the values of these places: their slots, and about this
    /// many bytes of each value.
    pub fn fetch(&self, wanted: &[(Place, usize)]) {
        self.fetch_slots(wanted.iter().map(|(place, _)| *place));
        let tables = self.tables.load();
        let segment_of = |(place, bytes): &(Place, usize)| {
            let hash = place.hash();
            let slot = tables[self.part(hash)].find(hash).next()?.slot;
            Some((self.segment_of(slot.segment())?.load(), slot.at(), *bytes))
        };
        // No load of a value begins before one of a segment has ended.
        for few in wanted.chunks(SEGMENTS_TOGETHER) {
            let segments: [_; SEGMENTS_TOGETHER] = std::array::from_fn(|at| few.get(at).and_then(segment_of));
            let words = segments.iter().flatten().map(|(segment, at, bytes)| {
                let segment = segment.as_ref();
                segment.map_or(0, |segment| segment.fetch(*at, *bytes))
            });
            std::hint::black_box(words.fold(0, |sum, word| sum ^ word));
        }
    }

    /// What `read` finds at a word of a segment where a place may be. Counts as a read of it.
    fn read<R>(&self, place: Place, read: impl Fn(&Segment, usize) -> Option<R>) -> Option<R> {
        let hash = place.hash();
        let tables = self.tables.load();
        let table = &tables[self.part(hash)];
        let at_slot = |found: Found<'_>| {
            let segment = self.segment_of(found.slot.segment())?.load();
            let segment = segment.as_ref()?;
            if !found.is_so_still() || segment.is_retired.load(Ordering::Acquire) {
                return None;
            }
            let value = read(segment, found.slot.at())?;
            found.count_use();
            Some(value)
        };
        // Twice: it may be moved to another segment meanwhile.
        let look = || table.find(hash).find_map(at_slot);
        look().or_else(look)
    }

    /// Has `change` do something with the slot that leads to the value of a place, if there is one.
    pub fn with_slot<R>(&self, place: Place, change: impl FnOnce(&Found<'_>, &Segment) -> R) -> Option<R> {
        let hash = place.hash();
        let tables = self.tables.load();
        let table = &tables[self.part(hash)];
        let (found, segment) = table.find(hash).find_map(|found| {
            let segment = self.segment_of(found.slot.segment())?.load();
            let is_here = segment.as_ref()?.place(found.slot.at()) == Some(place);
            is_here.then_some((found, segment))
        })?;
        segment.as_ref().map(|segment| change(&found, segment))
    }

    /// The same for the slot that leads to a record of a segment.
    pub fn with_slot_of<R>(
        &self,
        place: Place,
        segment: u32,
        at: usize,
        use_: impl FnOnce(&Found<'_>) -> R,
    ) -> Option<R> {
        let hash = place.hash();
        let tables = self.tables.load();
        let table = &tables[self.part(hash)];
        let found = table.find_record(hash, segment, at)?;
        Some(use_(&found))
    }

    /// A slot that led somewhere was removed.
    pub fn note_gone(&self, place: Place) {
        let taken = &self.taken[self.part(place.hash())];
        let _ = taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| taken.checked_sub(1));
    }

    /// Whether the value of a place was here not long ago.
    pub fn was_here(&self, place: Place) -> bool {
        let hash = place.hash();
        self.tables.load()[self.part(hash)].was_here(hash)
    }

    /// Leads from a place to the record at a word of a segment. With the owner's lock held: makes a
    /// table longer if it is full.
    pub fn insert(&self, place: Place, segment: u32, at: usize) {
        let hash = place.hash();
        let part = self.part(hash);
        let tables = self.tables.load();
        let table = &tables[part];
        if table.insert(hash, Slot::new(hash, segment, at, 0)) == Inserted::Added {
            let taken = self.taken[part].fetch_add(1, Ordering::Relaxed) + 1;
            if taken * 100 > table.slots() * FILLED_MAX {
                self.lengthen(&tables, part);
            }
        }
    }

    fn lengthen(&self, tables: &[Table], part: usize) {
        let table = &tables[part];
        let longer = Table::longer_than(table);
        let hash_of = |slot: Slot| {
            let segment = self.segment(slot.segment())?;
            segment.place(slot.at()).map(Place::hash)
        };
        self.taken[part].store(table.copy_to(&longer, hash_of), Ordering::Relaxed);
        self.bytes.fetch_add(longer.bytes() - table.bytes(), Ordering::Relaxed);
        let mut tables = tables.to_vec();
        tables[part] = longer;
        self.tables.store(Arc::new(tables));
    }

    /// The segment with a number.
    pub fn segment(&self, number: u32) -> Option<Arc<Segment>> {
        self.segment_of(number)?.load_full()
    }

    /// Live bytes of RAM in the segment with this number.
    pub fn living_bytes(&self, number: u32) -> u64 {
        let segment = self.segment_of(number).map(ArcSwapOption::load);
        let segment = segment.as_ref().and_then(|segment| segment.as_ref());
        segment.map_or(0, |segment| segment.living_bytes())
    }

    /// Assigns a number to a segment.
    pub fn put_segment(&self, number: u32, segment: Arc<Segment>) {
        if let Some(place) = self.segment_of(number) {
            place.store(Some(segment));
        }
    }

    /// Removes a segment: no slot leads to it any more.
    pub fn take_segment(&self, number: u32) -> Option<Arc<Segment>> {
        let place = self.segment_of(number)?;
        if let Some(segment) = &*place.load() {
            segment.is_retired.store(true, Ordering::Release);
        }
        place.swap(None)
    }
}
