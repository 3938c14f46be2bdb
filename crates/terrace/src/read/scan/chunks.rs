//! What scans take from the scan cache ([`crate::cache::scans`]), and what they bring to it.

use super::{Listed, Scan, ScanItem, ValueSource, Values};
use crate::{
    Error, ObjectInfo, Result, Version,
    api::expiry,
    cache::{
        chunk::{Added, Chunk, ChunkWriter, Pair, SHORT_PAIR_BYTES_MAX},
        scans::{Changed, Found, Made, Making},
    },
    engine::Engine,
    metrics::counters::AnsweredBy,
    read::describe::decode_attributes,
    visibility::range_tombstones::successor,
};
use bytes::Bytes;

/// A range that had a chunk and is read anew has at most so many keys: others may have come.
const LOST_KEYS_MAX: usize = 1000;

impl Scan {
    /// Adds what comes next, from one chunk or from the index, until there are `count` pairs.
    pub(super) fn more_values(&mut self, count: usize, pairs: &mut Vec<(ScanItem, Result<Bytes>)>) -> Result<()> {
        let wanted = count - pairs.len();
        let mut limit = None;
        if !self.has_back {
            let seq = self.snapshot.version().0;
            let mut chunk_end = std::mem::take(&mut self.chunk_end);
            let mut found = self.engine().scan_cache.find(&self.start, seq, &mut chunk_end);
            let is_made = match &found {
                Found::Lost(start, end) => self.make_again(start, end)?,
                Found::Changed => self.make_anew()?,
                Found::Chunk(_) | Found::Nothing(_) => false,
            };
            if is_made {
                found = self.engine().scan_cache.find(&self.start, seq, &mut chunk_end);
            }
            self.chunk_end = chunk_end;
            match found {
                Found::Chunk(chunk) => return self.values_of_chunk(&chunk, count, pairs),
                Found::Nothing(next) => limit = next,
                Found::Lost(..) | Found::Changed => {}
            }
        }
        let making = self.begin();
        let first = making.as_ref().map(|_| self.start.clone());
        let read = self.values_by_index(wanted, limit);
        if let (Some(making), Some(first)) = (making, first) {
            let end = if self.is_over { &self.end } else { &self.start };
            let made = read
                .as_ref()
                .map(|read| self.made_of(&making, read, first, end))
                .unwrap_or_default();
            self.finish(&making, made);
        }
        let Values { items, values, .. } = read?;
        for (item, value) in items.into_iter().zip(values) {
            pairs.push((item.into_item(&self.snapshot)?, value));
        }
        Ok(())
    }

    fn engine(&self) -> &Engine {
        self.snapshot.engine()
    }

    fn may_make(&self) -> bool {
        let cache = &self.engine().scan_cache;
        !self.has_back && cache.chunk_bytes_max() > 0 && self.made_bytes < cache.scan_bytes_max()
    }

    /// Begins to make chunks, if this scan may.
    fn begin(&self) -> Option<Making> {
        let seq = self.snapshot.version().0;
        self.may_make()
            .then(|| self.engine().scan_cache.begin(&self.start, seq))
            .flatten()
    }

    fn finish(&mut self, making: &Making, made: Vec<Made>) -> bool {
        self.made_bytes += made.iter().map(|made| made.chunk.bytes()).sum::<usize>();
        self.engine().scan_cache.finish(making, made)
    }

    /// Makes a chunk again of a range that `start` is in. Says whether there is one now.
    fn make_again(&mut self, start: &[u8], end: &[u8]) -> Result<bool> {
        let seq = self.snapshot.version().0;
        let Some(making) = self.engine().scan_cache.begin(start, seq) else {
            return Ok(false);
        };
        let mut other = Self::between(&self.snapshot, self.now_ms, start.to_vec(), end.to_vec());
        let read = other.values_by_index(LOST_KEYS_MAX, None);
        let is_whole = other.is_over && read.is_ok();
        let made = read.as_ref().ok().filter(|_| is_whole);
        let made = made
            .map(|read| self.made_of(&making, read, start.to_vec(), end))
            .unwrap_or_default();
        let is_made = self.finish(&making, made);
        // Else each scan would list the range twice.
        if !is_made {
            self.engine().scan_cache.give_up(&making, start);
        }
        read.map(|_| is_made)
    }

    /// Makes the chunk anew that `start` is in the range of, and of which keys have changed. Says
    /// whether there is one now.
    fn make_anew(&mut self) -> Result<bool> {
        let seq = self.snapshot.version().0;
        let making = self.may_make().then(|| {
            let cache = &self.engine().scan_cache;
            cache.begin_anew(&self.start, seq)
        });
        let Some(making) = making.flatten() else {
            return Ok(false);
        };
        let read = making.from.as_ref().map(|changed| self.changed_values(changed));
        let read = read.transpose().map(Option::flatten);
        let made = match (&read, &making.from) {
            (Ok(Some(read)), Some(changed)) => self.made_of_changed(changed, read),
            _ => Vec::new(),
        };
        let can_be_made = !made.is_empty();
        let is_made = self.finish(&making, made);
        if !can_be_made {
            self.engine().scan_cache.give_up(&making, &self.start);
        }
        read.map(|_| is_made)
    }

    /// What the index has now of keys that have changed, without those that are gone. `None` if an
    /// object is dead: that a chunk shows only where it can hide it.
    fn changed_values(&self, changed: &Changed) -> Result<Option<Values>> {
        let mut items = Vec::with_capacity(changed.keys.len());
        for key in &changed.keys {
            let entry = self.snapshot.read(|seq| self.engine().index.get_at(key, seq))?;
            let key = Bytes::copy_from_slice(key);
            items.extend(entry.map(|entry| Listed { key, entry }));
        }
        self.snapshot.check()?;
        if items.iter().any(|item| self.is_dead(item)) {
            return Ok(None);
        }
        Ok(Some(self.values_of(items, Vec::new())))
    }

    /// Chunks of what has not changed in one, and of what was read of the keys that have.
    fn made_of_changed(&self, changed: &Changed, read: &Values) -> Vec<Made> {
        let pairs = changed.chunk.pairs();
        let mut before = pairs.filter(|pair| !changed.has(pair.key)).peekable();
        let mut chunks = Chunks::new(self.engine().scan_cache.chunk_bytes_max(), changed.start.clone());
        for (item, value) in read.items.iter().zip(&read.values) {
            while let Some(pair) = before.next_if(|pair| *pair.key < *item.key) {
                chunks.add(pair.key, Some(pair));
            }
            chunks.add(&item.key, self.pair_of(item, value));
        }
        before.for_each(|pair| chunks.add(pair.key, Some(pair)));
        chunks.end(&changed.end)
    }

    /// Chunks of what was read from `start` to `end` (empty: no end). Where a value is too long,
    /// could not be read or is dead there is none.
    fn made_of(&self, making: &Making, read: &Values, start: Vec<u8>, end: &[u8]) -> Vec<Made> {
        // Where something had to be read from a device, not all that is wanted fits into RAM.
        let may_move = making.may_move && read.device_reads == 0;
        let belongs = |item: &Listed| if is_long(item) { may_move } else { making.may_copy };
        if !read.items.iter().any(belongs) {
            return Vec::new();
        }
        let mut chunks = Chunks::new(self.engine().scan_cache.chunk_bytes_max(), start);
        let mut gaps = read.gaps.iter().peekable();
        for (number, (item, value)) in read.items.iter().zip(&read.values).enumerate() {
            while let Some((_, key)) = gaps.next_if(|(before, _)| *before <= number) {
                chunks.add(key, None);
            }
            let pair = self.pair_of(item, value).filter(|_| belongs(item));
            chunks.add(&item.key, pair);
        }
        gaps.for_each(|(_, key)| chunks.add(key, None));
        chunks.end(end)
    }

    /// A pair for a chunk, with the place of a value that moves there.
    fn pair_of<'a>(&self, item: &'a Listed, value: &'a Result<Bytes>) -> Option<Pair<'a>> {
        let value = value.as_ref().ok()?;
        let entry = &item.entry;
        let place = if is_long(item) {
            Some(self.engine().place_of(&entry.home)?)
        } else {
            None
        };
        Some(Pair {
            key: &item.key,
            version: entry.version.0,
            checksum: entry.checksum,
            home: entry.home.kind(),
            place,
            attributes: &entry.attributes,
            value,
        })
    }

    /// Adds pairs of a chunk, which ends at `chunk_end`.
    fn values_of_chunk(
        &mut self,
        chunk: &Chunk,
        count: usize,
        pairs: &mut Vec<(ScanItem, Result<Bytes>)>,
    ) -> Result<()> {
        self.check()?;
        self.index = None;
        let presence = self.snapshot.presence().frozen_at(self.now_ms);
        let is_inside = self.end.is_empty() || (!self.chunk_end.is_empty() && self.chunk_end <= self.end);
        let (mut number, before, mut bytes) = (chunk.first_from(&self.start), pairs.len(), 0);
        let mut last: &[u8] = &[];
        let mut ends_inside = false;
        while number < chunk.count() && pairs.len() < count {
            let no_chunk = || Error::corruption("a chunk of the scan cache", "it is none");
            let pair = chunk.pair(number).ok_or_else(no_chunk)?;
            if !is_inside && *pair.key >= *self.end {
                ends_inside = true;
                break;
            }
            if presence.dead(pair.key, pair.version, pair.attributes).is_none() {
                pairs.push(item_of(chunk, &pair)?);
                bytes += pair.value.len() as u64;
            }
            last = pair.key;
            number += 1;
        }
        drop(presence);
        let given = (pairs.len() - before) as u64;
        self.engine().metrics.answered_many(AnsweredBy::Cache, given, bytes);
        self.engine().scan_cache.count_use(given);
        if ends_inside {
            self.is_over = true;
        } else if number == chunk.count() {
            let end = std::mem::take(&mut self.chunk_end);
            self.go_on_at(&end);
            self.chunk_end = end;
        } else {
            self.go_behind(last);
        }
        Ok(())
    }
}

/// Whether a chunk has not a copy of a value, but the value.
fn is_long(item: &Listed) -> bool {
    let entry = &item.entry;
    let bytes = (item.key.len() + entry.attributes.len()) as u64 + entry.length;
    bytes > SHORT_PAIR_BYTES_MAX as u64
}

/// Makes chunks of pairs that come in the order of their keys.
struct Chunks {
    writer: ChunkWriter,
    made: Vec<Made>,
    bytes_max: usize,
    /// Where the one begins that is being made.
    start: Vec<u8>,
}

impl Chunks {
    fn new(bytes_max: usize, start: Vec<u8>) -> Self {
        Self {
            writer: ChunkWriter::default(),
            made: Vec::new(),
            bytes_max,
            start,
        }
    }

    /// Adds what is at a key. A chunk ends before what belongs in none, and the next begins behind.
    fn add(&mut self, key: &[u8], pair: Option<Pair<'_>>) {
        let mut added = self.try_add(pair.as_ref());
        if added == Added::Full {
            self.close(key, key.to_vec());
            added = self.try_add(pair.as_ref());
        }
        if added == Added::TooLong {
            self.close(key, successor(key).unwrap_or_default());
        }
    }

    fn try_add(&mut self, pair: Option<&Pair<'_>>) -> Added {
        pair.map_or(Added::TooLong, |pair| self.writer.add(pair, self.bytes_max))
    }

    fn close(&mut self, end: &[u8], next: Vec<u8>) {
        let start = std::mem::replace(&mut self.start, next);
        self.made.extend(self.writer.take().map(|chunk| Made {
            start,
            end: end.to_vec(),
            chunk,
        }));
    }

    /// All chunks, the last of which goes up to a key (empty: no end).
    fn end(mut self, end: &[u8]) -> Vec<Made> {
        self.close(end, Vec::new());
        self.made
    }
}

fn item_of(chunk: &Chunk, pair: &Pair<'_>) -> Result<(ScanItem, Result<Bytes>)> {
    let value = chunk.piece(pair.value);
    let item = ScanItem {
        key: chunk.piece(pair.key),
        info: ObjectInfo {
            version: Version(pair.version),
            length: pair.value.len() as u64,
            checksum: pair.checksum,
            home: pair.home,
            expires_at: expiry::of(pair.attributes).map(expiry::from_ms),
            attributes: decode_attributes(pair.attributes)?,
        },
        source: ValueSource::Read(value.clone()),
    };
    Ok((item, Ok(value)))
}
