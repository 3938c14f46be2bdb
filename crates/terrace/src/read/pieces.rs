//! A value of the large space in pieces: those that are in RAM are handed out as they are, the others are read from the device, up to
//! a MiB at once, and kept in the cache.
//!
//! Pieces lie on a grid, so what one reader leaves in the cache is what the next one asks for. A piece is a place of its block like
//! a value, and goes stale as little. It leaves the cache when it has not been asked for, not when its value is deleted: a
//! long value has too many.
//!
//! Invariant: at most [`PIECES_PER_READ`] pieces are held besides those of the cache.

use super::cache::{CachedValue, Place, ValueCache};
use crate::{
    Result,
    index::Entry,
    large::{PIECE_BYTES, PIECES_PER_READ, ValueReader},
};
use bytes::Bytes;
use std::collections::VecDeque;

/// A stream over one value.
#[derive(Debug)]
pub struct Pieces {
    reader: ValueReader,
    cache: ValueCache,
    key: Bytes,
    entry: Entry,
    /// Pieces that were read and are not handed out yet.
    ready: VecDeque<Bytes>,
    /// Number of the first of them.
    ready_from: u64,
}

impl Pieces {
    /// At the start of the value of `key`, of which `entry` tells.
    pub fn new(reader: ValueReader, cache: &ValueCache, key: &[u8], entry: &Entry) -> Self {
        Self {
            reader,
            cache: cache.clone(),
            key: Bytes::copy_from_slice(key),
            entry: entry.clone(),
            ready: VecDeque::new(),
            ready_from: 0,
        }
    }

    /// The value.
    pub const fn reader(&self) -> &ValueReader {
        &self.reader
    }

    /// The value, to move or to read on in another way.
    pub const fn reader_mut(&mut self) -> &mut ValueReader {
        &mut self.reader
    }

    /// Whether the piece with the first byte is in the cache; then the value is `key`'s.
    pub fn is_begun_in_ram(&self) -> bool {
        self.cached(0).is_some()
    }

    /// What is left of the piece the stream is in, if that is in RAM and there is something left.
    pub fn next_in_ram(&mut self) -> Option<Bytes> {
        let position = self.reader.position();
        if position >= self.reader.length() {
            return None;
        }
        let number = position / PIECE_BYTES;
        let piece = self.take_ready(number).or_else(|| self.cached(number))?;
        let start = number * PIECE_BYTES;
        self.reader.seek(start + piece.len() as u64);
        #[allow(clippy::cast_possible_truncation)] // within a piece
        Some(piece.slice((position - start) as usize..))
    }

    /// The next piece, or what is left of it, or less if no more than `bytes` are wanted. What `bytes` names beyond it is read from the
    /// device at once, as far as one read goes. Empty only at the end.
    ///
    /// # Errors
    /// `Corruption`, I/O errors.
    pub fn next(&mut self, bytes: usize) -> Result<Bytes> {
        if let Some(piece) = self.next_in_ram() {
            return Ok(piece);
        }
        let (position, length) = (self.reader.position(), self.reader.length());
        if position >= length {
            return Ok(Bytes::new());
        }
        let number = position / PIECE_BYTES;
        let end = position.saturating_add(bytes as u64).min(length);
        let covered = if end == length {
            length.div_ceil(PIECE_BYTES)
        } else {
            end / PIECE_BYTES
        };
        if position % PIECE_BYTES > 0 || covered == number {
            // Somewhere within a piece: no more than is wanted of it.
            let piece_end = length.min((number + 1) * PIECE_BYTES);
            #[allow(clippy::cast_possible_truncation)] // within a piece
            return self.reader.read_piece((end.min(piece_end) - position) as usize);
        }
        let covered = covered.min(number + PIECES_PER_READ);
        let until = (number + 1..covered)
            .find(|number| self.cached(*number).is_some())
            .unwrap_or(covered);
        self.ready = self.reader.read_pieces(number..until)?.into();
        self.ready_from = number;
        for (number, piece) in (number..).zip(&self.ready) {
            self.keep(number, piece);
        }
        Ok(self.next_in_ram().unwrap_or_default())
    }

    /// A piece that was read, if it is at hand. Those before it are not wanted any more.
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

    fn place(&self, number: u64) -> Place {
        let (block, offset) = self.reader.place_of_piece(number);
        Place::block(block, offset)
    }

    fn cached(&self, number: u64) -> Option<Bytes> {
        let cached = self.cache.get(self.place(number));
        cached
            .filter(|cached| cached.key() == &self.key[..])
            .map(|cached| cached.value)
    }

    fn keep(&self, number: u64, piece: &Bytes) {
        let cached = || CachedValue::new(&self.key, self.entry.version.0, &self.entry.attributes, piece.clone());
        self.cache.insert(self.place(number), cached, piece.len() as u64);
    }
}
