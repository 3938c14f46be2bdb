//! A value of the large space in pieces: those in RAM are returned as they are, the others are read
//! from the device, up to a MiB at once, and cached.
//!
//! Pieces are aligned, so pieces that one reader caches are those that the next one looks up. A
//! piece is a place of its block like a value, and never goes stale. It is evicted when it is no
//! longer read, not when its value is deleted: a long value has too many.
//!
//! Invariants: at most [`PIECES_PER_READ`] pieces are held besides those of the cache. No byte is
//! returned before the value is known to be the key's: by a piece in the cache, or by its header.
//! Nothing is read before the caller needs bytes, and a read from the start gets the header by the
//! same device read: on a disk with other readers two reads are two seeks.

use crate::cache::{CachedValue, Place};

use super::count_large_hit;
use crate::{
    Result,
    blocks::{CHUNK_DATA, PIECE_BYTES, PIECES_PER_READ, ValueReader},
    engine::Engine,
    metrics::counters::AnsweredBy,
    ordered_index::Entry,
};
use bytes::Bytes;
use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// A stream over one value.
#[derive(Debug)]
pub struct Pieces {
    engine: Arc<Engine>,
    reader: ValueReader,
    key: Bytes,
    entry: Entry,
    /// The value is known to be the key's, and counted as found.
    is_checked: AtomicBool,
    /// Pieces that were read and are not handed out yet.
    ready: VecDeque<Bytes>,
    /// Number of the first of them.
    ready_from: u64,
    /// Where the next piece is taken.
    position: u64,
    /// Bytes that [`Pieces::read`] has read and not returned yet: they are before `position`.
    rest: Bytes,
    /// Bytes read at once for [`Pieces::read`].
    ahead_bytes: u64,
}

/// Which pieces read from the device are cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    InCache,
    Nothing,
}

impl Pieces {
    /// At the start of the value of `key`, described by `entry`.
    pub fn new(engine: &Arc<Engine>, reader: ValueReader, key: &[u8], entry: &Entry) -> Self {
        Self {
            engine: Arc::clone(engine),
            reader,
            key: Bytes::copy_from_slice(key),
            entry: entry.clone(),
            is_checked: AtomicBool::new(false),
            ready: VecDeque::new(),
            ready_from: 0,
            position: 0,
            rest: Bytes::new(),
            ahead_bytes: 0,
        }
    }

    /// The value, to read in another way. It is the key's.
    ///
    /// # Errors
    /// `Corruption` if it is another's, I/O errors.
    pub fn checked(&self) -> Result<&ValueReader> {
        self.check()?;
        Ok(&self.reader)
    }

    /// Moves to another byte of the value.
    pub fn seek(&mut self, position: u64) {
        if position != self.position - self.rest.len() as u64 {
            self.position = position;
            self.rest.clear();
            self.ready.clear();
            self.ahead_bytes = 0;
        }
    }

    /// Steps back by this many bytes of the last piece: they are returned next.
    pub const fn step_back(&mut self, bytes: usize) {
        self.position -= bytes as u64;
    }

    /// Whether it begins in RAM or on flash.
    pub fn is_near(&self) -> bool {
        self.reader.is_near()
    }

    /// Whether the piece with the first byte is in the cache; then the value is `key`'s, and is
    /// counted as found there.
    pub fn is_begun_in_ram(&self) -> bool {
        let found = self.cached(0).is_some();
        if found {
            self.engine.metrics.answered(AnsweredBy::Cache, self.entry.length);
            self.is_checked.store(true, Ordering::Relaxed);
        }
        found
    }

    fn check(&self) -> Result<()> {
        if !self.is_checked.load(Ordering::Relaxed) {
            self.reader.check_header(&self.key)?;
            self.note_checked();
        }
        Ok(())
    }

    /// A read of the device has shown that the value is the key's.
    fn note_checked(&self) {
        if !self.is_checked.swap(true, Ordering::Relaxed) {
            count_large_hit(&self.engine, &self.reader, self.entry.length);
        }
    }

    /// The rest of the current piece, if it is in RAM and not empty.
    pub fn next_in_ram(&mut self) -> Option<Bytes> {
        if !self.rest.is_empty() {
            return Some(std::mem::take(&mut self.rest));
        }
        let position = self.position;
        if position >= self.reader.length() {
            return None;
        }
        let number = position / PIECE_BYTES;
        let piece = self.take_ready(number).or_else(|| self.cached(number))?;
        let start = number * PIECE_BYTES;
        self.position = start + piece.len() as u64;
        // Within a piece.
        Some(piece.slice((position - start) as usize..))
    }

    /// The next piece, or the rest of it, or less if no more than `bytes` are requested. Requested
    /// bytes beyond it are read from the device in the same read, as far as one read goes. Empty
    /// only at the end.
    ///
    /// # Errors
    /// `Corruption`, I/O errors.
    pub fn next(&mut self, bytes: usize) -> Result<Bytes> {
        self.take_next(bytes as u64, Keep::InCache)
    }

    /// Continues reading into `out`; 0 only at the end, or for an empty `out`. Reads ahead by a
    /// chunk at first, up to a MiB for a longer sequence of calls. Data read this way bypasses the
    /// cache.
    ///
    /// # Errors
    /// `Corruption`, I/O errors.
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        if self.rest.is_empty() && !out.is_empty() {
            let ahead_bytes = self.ahead_bytes.clamp(CHUNK_DATA, PIECES_PER_READ * PIECE_BYTES);
            self.rest = self.take_next(ahead_bytes.max(out.len() as u64), Keep::Nothing)?;
            self.ahead_bytes = ahead_bytes * 2;
        }
        let count = self.rest.len().min(out.len());
        out[..count].copy_from_slice(&self.rest.split_to(count));
        Ok(count)
    }

    fn take_next(&mut self, bytes: u64, keep: Keep) -> Result<Bytes> {
        if let Some(piece) = self.next_in_ram() {
            return Ok(piece);
        }
        let (position, length) = (self.position, self.reader.length());
        if position >= length {
            return Ok(Bytes::new());
        }
        let number = position / PIECE_BYTES;
        let end = position.saturating_add(bytes).min(length);
        let covered = if end == length {
            length.div_ceil(PIECE_BYTES)
        } else {
            end / PIECE_BYTES
        };
        if position % PIECE_BYTES > 0 || covered == number {
            // Somewhere within a piece: no more than is wanted of it.
            self.check()?;
            let piece_end = length.min((number + 1) * PIECE_BYTES);
            let end = end.next_multiple_of(CHUNK_DATA).min(piece_end);
            // Within a piece.
            let mut part = Vec::with_capacity((end - position) as usize);
            self.reader.read_range(position..end, &mut part)?;
            self.position = end;
            return Ok(part.into());
        }
        let covered = covered.min(number + PIECES_PER_READ);
        let until = (number + 1..covered)
            .find(|number| self.cached(*number).is_some())
            .unwrap_or(covered);
        if number > 0 {
            self.check()?;
        }
        self.ready = self.reader.read_pieces(&self.key, number..until)?.into();
        self.note_checked();
        self.ready_from = number;
        if keep == Keep::InCache {
            for (number, piece) in (number..).zip(&self.ready) {
                self.keep(number, piece);
            }
        }
        Ok(self.next_in_ram().unwrap_or_default())
    }

    /// A piece that was read, if it is present. Those before it are dropped.
    fn take_ready(&mut self, number: u64) -> Option<Bytes> {
        if number < self.ready_from {
            self.ready.clear();
        }
        while self.ready_from < number && self.ready.pop_front().is_some() {
            self.ready_from += 1;
        }
        let piece = self.ready.pop_front()?;
        self.ready_from += 1;
        Some(piece)
    }

    fn cached(&self, number: u64) -> Option<Bytes> {
        cached(&self.engine, &self.reader, &self.key, number)
    }

    fn keep(&self, number: u64, piece: &Bytes) {
        let cached = CachedValue::of_entry(self.entry.version, &self.entry.attributes, piece);
        let place = place(&self.reader, number);
        self.engine.cache.insert(place, &self.key, &cached);
    }
}

fn place(reader: &ValueReader, number: u64) -> Place {
    let (block, offset) = reader.place_of_piece(number);
    Place::block(block, offset)
}

fn cached(engine: &Engine, reader: &ValueReader, key: &[u8], number: u64) -> Option<Bytes> {
    let cached = engine.cache.get(place(reader, number), key);
    cached.map(|cached| cached.value)
}

/// Whether the cache has all of a value. This does not count as a read.
pub fn is_cached(engine: &Engine, reader: &ValueReader) -> bool {
    let pieces = reader.length().div_ceil(PIECE_BYTES);
    (0..pieces).all(|number| engine.cache.has(place(reader, number)))
}
