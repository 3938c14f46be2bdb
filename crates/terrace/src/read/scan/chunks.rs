//! What scans take from the scan cache ([`crate::cache::scans`]), and what they bring to it.

use super::{Listed, Scan, ScanItem, ValueSource, Values};
use crate::{
    Error, ObjectInfo, Result, Version,
    api::expiry,
    cache::{
        chunk::{Added, Chunk, ChunkWriter, Pair},
        scans::{Found, Made},
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
            if let Found::Lost(start, end) = &found
                && self.make_again(start, end)?
            {
                found = self.engine().scan_cache.find(&self.start, seq, &mut chunk_end);
            }
            self.chunk_end = chunk_end;
            match found {
                Found::Chunk(chunk) => return self.values_of_chunk(&chunk, count, pairs),
                Found::Nothing(next) => limit = next,
                Found::Lost(..) => {}
            }
        }
        let begun = self.begin();
        let first = begun.map(|_| self.start.clone());
        let read = self.values_by_index(wanted, limit);
        if let (Some(begun), Some(first)) = (begun, first) {
            let end = if self.is_over { &self.end } else { &self.start };
            let made = read
                .as_ref()
                .map(|read| self.made_of(read, first, end))
                .unwrap_or_default();
            self.finish(begun, made);
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

    /// Begins to make chunks, if this scan may.
    fn begin(&self) -> Option<u64> {
        let cache = &self.engine().scan_cache;
        let may_make = !self.has_back && cache.chunk_bytes_max() > 0 && self.made_bytes < cache.scan_bytes_max();
        may_make
            .then(|| cache.begin(&self.start, self.snapshot.version().0))
            .flatten()
    }

    fn finish(&mut self, begun: u64, made: Vec<Made>) -> bool {
        self.made_bytes += made.iter().map(|made| made.bytes.len()).sum::<usize>();
        let seq = self.snapshot.version().0;
        self.engine().scan_cache.finish(begun, seq, made)
    }

    /// Makes a chunk again of a range that `start` is in. Says whether there is one now.
    fn make_again(&mut self, start: &[u8], end: &[u8]) -> Result<bool> {
        let seq = self.snapshot.version().0;
        let Some(begun) = self.engine().scan_cache.begin(start, seq) else {
            return Ok(false);
        };
        let mut other = Self::between(&self.snapshot, self.now_ms, start.to_vec(), end.to_vec());
        let read = other.values_by_index(LOST_KEYS_MAX, None);
        let is_whole = other.is_over && read.is_ok();
        let made = read.as_ref().ok().filter(|_| is_whole);
        let made = made
            .map(|read| self.made_of(read, start.to_vec(), end))
            .unwrap_or_default();
        let is_made = self.finish(begun, made);
        read.map(|_| is_made)
    }

    /// Chunks of what was read from `start` to `end` (empty: no end). Where a value is too long,
    /// could not be read or is dead there is none.
    fn made_of(&self, read: &Values, mut start: Vec<u8>, end: &[u8]) -> Vec<Made> {
        let bytes_max = self.engine().scan_cache.chunk_bytes_max();
        let (mut writer, mut made) = (ChunkWriter::default(), Vec::new());
        let mut gaps = read.gaps.iter().peekable();
        let mut close = |writer: &mut ChunkWriter, start: &mut Vec<u8>, end: &[u8], next: Option<Vec<u8>>| {
            let start = std::mem::replace(start, next.unwrap_or_else(|| end.to_vec()));
            made.extend(writer.take().map(|bytes| Made {
                start,
                end: end.to_vec(),
                bytes,
            }));
        };
        for (number, (item, value)) in read.items.iter().zip(&read.values).enumerate() {
            while let Some((_, key)) = gaps.next_if(|(before, _)| *before <= number) {
                close(&mut writer, &mut start, key, successor(key));
            }
            let pair = value.as_ref().ok().map(|value| pair_of(item, value));
            let mut added = pair.map_or(Added::TooLong, |pair| writer.add(&pair, bytes_max));
            if added == Added::Full {
                close(&mut writer, &mut start, &item.key, None);
                added = pair.map_or(Added::TooLong, |pair| writer.add(&pair, bytes_max));
            }
            if added == Added::TooLong {
                close(&mut writer, &mut start, &item.key, successor(&item.key));
            }
        }
        for (_, key) in gaps {
            close(&mut writer, &mut start, key, successor(key));
        }
        close(&mut writer, &mut start, end, None);
        made
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

fn pair_of<'a>(item: &'a Listed, value: &'a Bytes) -> Pair<'a> {
    let entry = &item.entry;
    Pair {
        key: &item.key,
        version: entry.version.0,
        checksum: entry.checksum,
        home: entry.home.kind(),
        attributes: &entry.attributes,
        value,
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
