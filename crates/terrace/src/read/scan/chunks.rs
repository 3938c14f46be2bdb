//! Scans and the scan cache ([`crate::cache::scans`]): reads from chunks, and makes chunks.

use super::{
    Listed, Scan, Values,
    show::{InChunk, More, Show},
};
use crate::{
    Error, Result,
    cache::{
        chunk::{
            Added, CHUNK_BYTES_MAX, ChunkWriter, END_BYTES, Pair, SHORT_CHUNK_BYTES_MAX, SHORT_CHUNK_FILLED_BYTES,
            SHORT_PAIR_BYTES_MAX, bytes_in_chunk,
        },
        scans::{Changed, Found, Made, Making, Takes},
    },
    engine::Engine,
    metrics::counters::AnsweredBy,
    read::multi_get,
    visibility::range_tombstones::successor,
};
use bytes::Bytes;

/// Maximum keys of a dropped chunk's range that is read again: others may have been added.
const LOST_KEYS_MAX: usize = 1000;
/// Maximum fraction (1/n) of the values that move to chunks that may be read from a device for it.
/// With none, two of five scans of values that just fit into RAM listed their range without result.
const NOT_IN_RAM_PART: usize = 8;

impl Scan {
    /// The next pairs, in a chunk or read by the index; of these at most `wanted`. Callers that
    /// `keep` pieces of a chunk get it with a reference count of its own.
    pub(super) fn more(&mut self, wanted: usize, keep: bool) -> Result<More> {
        let mut limit = None;
        if !self.has_back {
            if let Some(at) = self.in_chunk.take() {
                return Ok(More::Chunk(at));
            }
            match self.find()? {
                Found::Chunk { chunk, is_start } => {
                    let chunk = if keep { chunk.for_reader() } else { chunk };
                    let number = if is_start { 0 } else { chunk.first_from(&self.start) };
                    return Ok(More::Chunk(InChunk { chunk, number }));
                }
                Found::Nothing(next) => limit = next,
                Found::Lost(..) | Found::Changed => {}
            }
        }
        let begun = self.begin().map(|begun| (begun, self.start.clone()));
        let mut read = self.values_by_index(wanted, limit);
        let given = read.as_ref().map_or(0, |read| read.items.len());
        if let Some(((making, takes), first)) = begun {
            let made = match &mut read {
                Ok(read) => {
                    let end = may_read_ahead(takes, read).then(|| self.read_ahead(read)).flatten();
                    let end = end.unwrap_or_else(|| self.reached());
                    let chunk_bytes_max = self.engine().scan_cache.chunk_bytes_max();
                    let chunks = Chunks::new(chunk_bytes_max, first);
                    self.made_of(takes, read, chunks, &end, self.may_make_bytes())
                }
                Err(_) => Vec::new(),
            };
            self.finish(&making, made, |_| true);
        }
        let mut read = read?;
        read.items.truncate(given);
        Ok(More::Read(read))
    }

    /// What the scan cache has at `start`, after a chunk with changes there was rebuilt.
    fn find(&mut self) -> Result<Found> {
        let seq = self.snapshot.version().0;
        let mut chunk_end = std::mem::take(&mut self.chunk_end);
        let mut found = self.engine().scan_cache.find(&self.start, seq, &mut chunk_end);
        let may_be_another = match &found {
            Found::Lost(start, end) => self.make_again(start, end).map(|()| true)?,
            Found::Changed => self.make_anew().map(|()| true)?,
            Found::Chunk { .. } | Found::Nothing(_) => false,
        };
        if may_be_another {
            found = self.engine().scan_cache.find(&self.start, seq, &mut chunk_end);
        }
        self.chunk_end = chunk_end;
        Ok(found)
    }

    /// How far it has come, or where it ends (empty: no end).
    fn reached(&self) -> Vec<u8> {
        if self.is_over {
            self.end.clone()
        } else {
            self.start.clone()
        }
    }

    /// Appends the following pairs to those read, as long as they are nearly all in RAM and have
    /// room in the last chunk: short chunks take more RAM, and scans meet more of them. Of pairs
    /// that are copied at most as many as the scan has come to. Returns the end (empty: no end), if
    /// there is anything to append. The scan's position is behind the pairs read, not behind the
    /// appended ones.
    fn read_ahead(&mut self, read: &mut Values) -> Option<Vec<u8>> {
        let last = read.items.last().filter(|_| self.index.is_some())?;
        let (last, are_long) = (last.key.clone(), is_long(last));
        let (mut ahead, listed_end) = self.list_ahead(&read.items, are_long);
        (self.index, self.index_end, self.is_over) = (None, None, false);
        self.go_behind(&last);
        let mut end = listed_end?;
        let mut values = multi_get::values_in_ram(&self.snapshot, &ahead);
        let missing = values.iter().filter(|value| value.is_none()).count();
        if are_long && are_few(missing, ahead.len()) {
            multi_get::read_missing(&self.snapshot, &ahead, &mut values);
        }
        let sound = values.into_iter().map_while(|value| value.filter(Result::is_ok));
        let before = read.values.len();
        read.values.extend(sound);
        let count = read.values.len() - before;
        if let Some(item) = ahead.get(count) {
            end = item.key.to_vec();
        }
        ahead.truncate(count);
        read.items.append(&mut ahead);
        Some(end)
    }

    /// The keys after these objects that belong in their last chunk, and the end of that; `None` if
    /// the index cannot be read.
    fn list_ahead(&mut self, items: &[Listed], are_long: bool) -> (Vec<Listed>, Option<Vec<u8>>) {
        let (bytes_max, count_max) = match are_long {
            true => (CHUNK_BYTES_MAX, usize::MAX),
            false => (SHORT_CHUNK_FILLED_BYTES, self.shown + items.len()),
        };
        let bytes_max = bytes_max.min(self.engine().scan_cache.chunk_bytes_max());
        let bytes_max = bytes_max.saturating_sub(END_BYTES);
        let fill = |bytes: usize, more: usize| match bytes.saturating_add(more) {
            bytes if bytes <= bytes_max => bytes,
            _ => more,
        };
        let mut bytes = items.iter().map(bytes_of).fold(0, fill);
        let mut ahead = Vec::new();
        loop {
            match self.next_listed(None) {
                None => {
                    self.leave_index();
                    return (ahead, Some(self.reached()));
                }
                Some(Err(_)) => return (ahead, None),
                Some(Ok(item)) => {
                    bytes = bytes.saturating_add(bytes_of(&item));
                    let is_full = bytes > bytes_max || ahead.len() == count_max;
                    if is_full || is_long(&item) != are_long || self.is_dead(&item) {
                        return (ahead, Some(item.key.to_vec()));
                    }
                    ahead.push(item);
                }
            }
        }
    }

    fn engine(&self) -> &Engine {
        self.snapshot.engine()
    }

    fn may_make(&self) -> bool {
        !self.has_back && self.engine().scan_cache.chunk_bytes_max() > 0 && self.may_make_bytes() > 0
    }

    /// Bytes of chunks that this scan may still make.
    fn may_make_bytes(&self) -> usize {
        self.engine()
            .scan_cache
            .scan_bytes_max()
            .saturating_sub(self.made_bytes)
    }

    /// Begins to make chunks, if this scan may.
    fn begin(&self) -> Option<(Making, Takes)> {
        let seq = self.snapshot.version().0;
        self.may_make()
            .then(|| self.engine().scan_cache.begin(&self.start, seq))
            .flatten()
    }

    fn finish(&mut self, making: &Making, made: Vec<Made>, is_new: impl Fn(&[u8]) -> bool) -> bool {
        self.made_bytes += made.iter().map(|made| made.chunk.bytes()).sum::<usize>();
        self.engine().scan_cache.finish(making, made, is_new)
    }

    /// Rebuilds the chunk of a range that contains `start`, if it can.
    fn make_again(&mut self, start: &[u8], end: &[u8]) -> Result<()> {
        let seq = self.snapshot.version().0;
        let Some((making, takes)) = self.engine().scan_cache.begin(start, seq) else {
            return Ok(());
        };
        let mut other = Self::between(&self.snapshot, self.now_ms, start.to_vec(), end.to_vec());
        let read = other.values_by_index(LOST_KEYS_MAX, None);
        let is_whole = other.is_over && read.is_ok();
        let made = read.as_ref().ok().filter(|_| is_whole);
        let made = made
            .map(|read| {
                let bytes_max = self.bytes_of_each(&read.items);
                let chunks = Chunks::new(bytes_max, start.to_vec());
                self.made_of(takes, read, chunks, end, usize::MAX)
            })
            .unwrap_or_default();
        let is_made = self.finish(&making, made, |_| true);
        // Otherwise each scan would list the range twice.
        if !is_made {
            self.engine().scan_cache.give_up(&making, start);
        }
        read.map(|_| ())
    }

    /// Rebuilds the chunk whose range contains `start` and some of whose keys have changed, if it
    /// can.
    fn make_anew(&mut self) -> Result<()> {
        let seq = self.snapshot.version().0;
        let begun = self.may_make().then(|| {
            let cache = &self.engine().scan_cache;
            cache.begin_anew(&self.start, seq)
        });
        let Some((making, changed)) = begun.flatten() else {
            return Ok(());
        };
        let read = self.changed_values(&changed);
        let made = match &read {
            Ok(Some(read)) => self.made_of_changed(&changed, read),
            _ => Vec::new(),
        };
        let can_be_made = !made.is_empty();
        self.finish(&making, made, |key| changed.has(key));
        if !can_be_made {
            self.engine().scan_cache.give_up(&making, &self.start);
        }
        read.map(|_| ())
    }

    /// The present entries of changed keys, without deleted ones. `None` if an object is dead: a
    /// chunk may contain one only where it can hide it.
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

    /// Chunks of the unchanged pairs of one, and of the values read for the changed keys.
    fn made_of_changed(&self, changed: &Changed, read: &Values) -> Vec<Made> {
        let unchanged = changed.chunk.pairs().filter(|pair| !changed.has(pair.key));
        let mut before = unchanged.peekable();
        let mut pairs = Vec::with_capacity(changed.chunk.count() + read.items.len());
        for (item, value) in read.items.iter().zip(&read.values) {
            while let Some(pair) = before.next_if(|pair| *pair.key < *item.key) {
                pairs.push((pair.key, Some(pair)));
            }
            pairs.push((&item.key, self.pair_of(item, value)));
        }
        pairs.extend(before.map(|pair| (pair.key, Some(pair))));
        let is_home = pairs
            .iter()
            .any(|(_, pair)| pair.is_some_and(|pair| pair.place.is_some()));
        let bytes_max = if is_home {
            CHUNK_BYTES_MAX
        } else {
            SHORT_CHUNK_BYTES_MAX
        };
        let bytes_max = bytes_max.min(self.engine().scan_cache.chunk_bytes_max());
        let lengths = pairs.iter().flat_map(|(_, pair)| pair).map(Pair::bytes_in_chunk);
        let mut chunks = Chunks::new(even_bytes_max(lengths, bytes_max), changed.start.clone());
        for (key, pair) in pairs {
            chunks.add(key, pair);
        }
        chunks.end(&changed.end)
    }

    /// Completes `chunks` with the values read, up to `end` (empty: no end). None at a value that
    /// is too long, dead or could not be read, nor after `bytes_max`.
    fn made_of<'a>(
        &self,
        takes: Takes,
        read: &'a Values,
        mut chunks: Chunks<'a>,
        end: &[u8],
        bytes_max: usize,
    ) -> Vec<Made> {
        let may_move = may_move(takes, read);
        let belongs = |item: &Listed| if is_long(item) { may_move } else { takes.short };
        if !read.items.iter().any(belongs) {
            return Vec::new();
        }
        let mut gaps = read.gaps.iter().peekable();
        for (number, (item, value)) in read.items.iter().zip(&read.values).enumerate() {
            while let Some((_, key)) = gaps.next_if(|(before, _)| *before <= number) {
                chunks.add(key, None);
            }
            if chunks.made_bytes >= bytes_max {
                return chunks.end(&item.key);
            }
            let pair = self.pair_of(item, value).filter(|_| belongs(item));
            chunks.add(&item.key, pair);
        }
        gaps.for_each(|(_, key)| chunks.add(key, None));
        chunks.end(end)
    }

    /// Bytes for each of the chunks of these objects, so that they become about as long as each
    /// other.
    fn bytes_of_each(&self, items: &[Listed]) -> usize {
        let bytes_max = if items.iter().any(is_long) {
            CHUNK_BYTES_MAX
        } else {
            SHORT_CHUNK_BYTES_MAX
        };
        let bytes_max = bytes_max.min(self.engine().scan_cache.chunk_bytes_max());
        even_bytes_max(items.iter().map(bytes_of), bytes_max)
    }

    /// A pair for a chunk, with the place of a value that moves there. `None` if it is too long for
    /// that.
    fn pair_of<'a>(&self, item: &'a Listed, value: &'a Result<Bytes>) -> Option<Pair<'a>> {
        let value = value.as_ref().ok()?;
        let entry = &item.entry;
        let place = if is_long(item) {
            Some(self.engine().place_of(&entry.home)?)
        } else {
            None
        };
        let pair = Pair {
            key: &item.key,
            version: entry.version.0,
            checksum: entry.checksum,
            home: entry.home.kind(),
            place,
            attributes: &entry.attributes,
            value,
        };
        let fits = place.is_none() || pair.bytes() <= self.engine().scan_cache.long_pair_bytes_max();
        fits.then_some(pair)
    }

    /// Shows pairs of a chunk, which ends at `chunk_end`.
    pub(super) fn show_chunk<S: Show>(&mut self, at: InChunk, wanted: usize, show: &mut S) -> Result<usize> {
        self.check()?;
        self.index = None;
        let presence = self.snapshot.presence().frozen_at(self.now_ms);
        let is_inside = self.end.is_empty() || (!self.chunk_end.is_empty() && self.chunk_end <= self.end);
        let InChunk { chunk, mut number } = at;
        let (mut given, mut bytes) = (0, 0);
        let mut last: &[u8] = &[];
        let mut ends_inside = false;
        chunk.fetch(number, wanted);
        let mut pairs = chunk.pairs_from(number);
        while number < chunk.count() && given < wanted {
            let no_chunk = || Error::corruption("a chunk of the scan cache", "it is none");
            let pair = pairs.next().ok_or_else(no_chunk)?;
            if !is_inside && *pair.key >= *self.end {
                ends_inside = true;
                break;
            }
            if presence.dead(pair.key, pair.version, pair.attributes).is_none() {
                show.pair(&chunk, &pair)?;
                (given, bytes) = (given + 1, bytes + pair.value.len() as u64);
            }
            last = pair.key;
            number += 1;
        }
        drop(presence);
        self.count_shown(given as u64, bytes);
        if ends_inside {
            self.is_over = true;
        } else if number == chunk.count() {
            let end = std::mem::take(&mut self.chunk_end);
            self.go_on_at(&end);
            self.chunk_end = end;
        } else {
            self.go_behind(last);
            self.in_chunk = Some(InChunk { chunk, number });
        }
        Ok(given)
    }

    fn count_shown(&self, pairs: u64, bytes: u64) {
        let engine = self.engine();
        engine.metrics.answered_many(AnsweredBy::Cache, pairs, bytes);
        engine.scan_cache.count_use(pairs);
    }
}

/// Whether longer values of these move to chunks. If many had to be read from a device, the working
/// set does not fit into RAM.
const fn may_move(takes: Takes, read: &Values) -> bool {
    takes.long && are_few(read.not_in_ram, read.items.len())
}

/// Whether the fraction of values to be read from a device is small enough to make chunks.
const fn are_few(not_in_ram: usize, count: usize) -> bool {
    not_in_ram * NOT_IN_RAM_PART <= count
}

/// Whether the pairs behind these may be read to fill their last chunk.
fn may_read_ahead(takes: Takes, read: &Values) -> bool {
    let may_be_kept = read.items.last().is_some_and(|last| takes.takes(is_long(last)));
    may_be_kept && are_few(read.not_in_ram, read.items.len())
}

/// Bytes that an object takes in a chunk.
fn bytes_of(item: &Listed) -> usize {
    let value_bytes = usize::try_from(item.entry.length).unwrap_or(usize::MAX);
    bytes_in_chunk(item.key.len() + item.entry.attributes.len(), is_long(item)).saturating_add(value_bytes)
}

/// Bytes for each of as few chunks as there must be, about as long as each other: one that is full
/// would lose a chunk of one pair with each that comes.
fn even_bytes_max(lengths: impl Iterator<Item = usize> + Clone, bytes_max: usize) -> usize {
    let longest = lengths.clone().max().unwrap_or(0);
    let all = lengths.sum::<usize>() + END_BYTES;
    let parts = all.div_ceil(bytes_max.max(1)).max(1);
    (all.div_ceil(parts) + longest).min(bytes_max)
}

/// Whether a chunk has not a copy of a value, but the value.
fn is_long(item: &Listed) -> bool {
    let entry = &item.entry;
    let bytes = (item.key.len() + entry.attributes.len()) as u64 + entry.length;
    bytes > SHORT_PAIR_BYTES_MAX as u64
}

/// Makes chunks of pairs that come in key order.
struct Chunks<'a> {
    writer: ChunkWriter<'a>,
    made: Vec<Made>,
    made_bytes: usize,
    bytes_max: usize,
    /// First key of the chunk being made.
    start: Vec<u8>,
}

impl<'a> Chunks<'a> {
    fn new(bytes_max: usize, start: Vec<u8>) -> Self {
        Self {
            writer: ChunkWriter::default(),
            made: Vec::new(),
            made_bytes: 0,
            bytes_max,
            start,
        }
    }

    /// Adds the pair at a key. A chunk ends before a key that belongs in none, and the next begins
    /// after it.
    fn add(&mut self, key: &[u8], pair: Option<Pair<'a>>) {
        let mut added = self.try_add(pair.as_ref());
        if added == Added::Full {
            self.close(key, key.to_vec());
            added = self.try_add(pair.as_ref());
        }
        if added == Added::TooLong {
            self.close(key, successor(key).unwrap_or_default());
        }
    }

    fn try_add(&mut self, pair: Option<&Pair<'a>>) -> Added {
        pair.map_or(Added::TooLong, |pair| self.writer.add(pair, self.bytes_max))
    }

    fn close(&mut self, end: &[u8], next: Vec<u8>) {
        let start = std::mem::replace(&mut self.start, next);
        if let Some(chunk) = self.writer.take() {
            self.made_bytes += chunk.bytes();
            let end = end.to_vec();
            self.made.push(Made { start, end, chunk });
        }
    }

    /// All chunks, the last of which ends at a key (empty: no end).
    fn end(mut self, end: &[u8]) -> Vec<Made> {
        self.close(end, Vec::new());
        self.made
    }
}
