//! A record in a segment of RAM: its place in the store, its version, key, attributes and value,
//! contiguous.
//!
//! Lengths and numbers are written in seven bits per byte, and only the end is padded, so a record
//! of the usual size costs about 16 bytes besides key and value. Memory is words that are read and
//! written one by one: a reader may load them while others are written, without `unsafe`.

use super::{CachedValue, Place};
use crate::{
    codec::{Reader, push_varint},
    log::format::RECORD_UNIT_BYTES,
};
use bytes::Bytes;
use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

/// Length of a word of memory.
pub const WORD_BYTES: usize = 8;
/// Words of the longest head.
const HEAD_WORDS_MAX: usize = 7;
/// Maximum bytes of a record besides its contents.
pub const HEAD_BYTES_MAX: usize = HEAD_WORDS_MAX * WORD_BYTES;
const UNIT: u64 = RECORD_UNIT_BYTES as u64;

/// A value to be cached.
#[derive(Debug, Clone, Copy)]
pub struct Item<'a> {
    /// Where it is read from without a cache.
    pub place: Place,
    /// The object's key.
    pub key: &'a [u8],
    /// The object's version.
    pub version: u64,
    /// Encoded attributes.
    pub attributes: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

/// The head of a record: offsets of its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Where the value is read from without a cache.
    pub place: Place,
    version: u64,
    key_at: usize,
    attributes_at: usize,
    value_at: usize,
    end: usize,
}

/// Packs an offset, whose lowest bit says what it is an offset in: shorter for offsets of the log,
/// which are multiples.
const fn pack(word: u64) -> u64 {
    let (offset, kind) = (word >> 1, word & 1);
    if offset.is_multiple_of(UNIT) {
        (offset / UNIT) << 2 | 2 | kind
    } else {
        offset << 2 | kind
    }
}

/// Of what was packed. Memory that is being written may give any number.
const fn unpack(packed: u64) -> u64 {
    let (offset, kind) = (packed >> 2, packed & 1);
    if packed & 2 == 0 {
        offset << 1 | kind
    } else {
        offset.wrapping_mul(UNIT) << 1 | kind
    }
}

impl Item<'_> {
    /// Writes the record to `bytes`, which is emptied before. `None` if its place is a number too
    /// large for a record.
    pub fn encode(&self, bytes: &mut Vec<u8>) -> Option<()> {
        bytes.clear();
        let Place(container, offset) = self.place;
        if offset >> 62 > 0 {
            return None;
        }
        push_varint(bytes, container);
        push_varint(bytes, pack(offset));
        push_varint(bytes, self.version);
        push_varint(
            bytes,
            (self.key.len() as u64) << 1 | u64::from(!self.attributes.is_empty()),
        );
        if !self.attributes.is_empty() {
            push_varint(bytes, self.attributes.len() as u64);
        }
        push_varint(bytes, self.value.len() as u64);
        bytes.extend_from_slice(self.key);
        bytes.extend_from_slice(self.attributes);
        bytes.extend_from_slice(self.value);
        bytes.resize(bytes.len().next_multiple_of(WORD_BYTES), 0);
        Some(())
    }

    /// Bytes of key, attributes and value.
    pub const fn bytes(&self) -> usize {
        self.key.len() + self.attributes.len() + self.value.len()
    }
}

/// Words of memory that begin with a record, or with anything.
#[derive(Debug, Clone, Copy)]
pub struct Words<'a>(pub &'a [AtomicU64]);

impl Words<'_> {
    fn word(&self, at: usize) -> u64 {
        self.0.get(at).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Writes a record there.
    pub fn write(&self, record: &[u8]) {
        for (word, bytes) in self.0.iter().zip(record.chunks_exact(WORD_BYTES)) {
            let bytes = bytes.try_into().unwrap_or_default();
            word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
    }

    /// Copies a record there.
    pub fn copy_from(&self, record: Words<'_>) {
        for (word, other) in self.0.iter().zip(record.0) {
            word.store(other.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// The head of the record. `None` if there is none, or it is longer than the memory.
    pub fn head(&self) -> Option<Head> {
        let mut bytes = [0; HEAD_WORDS_MAX * WORD_BYTES];
        for (at, word) in bytes.chunks_exact_mut(WORD_BYTES).enumerate() {
            word.copy_from_slice(&self.word(at).to_le_bytes());
        }
        let mut rest = Reader(&bytes);
        let container = rest.varint()?;
        let offset = unpack(rest.varint()?);
        let version = rest.varint()?;
        let key = rest.varint()?;
        let attribute_bytes = if key & 1 == 1 { rest.varint()? } else { 0 };
        let value_bytes = rest.varint()?;
        let at = bytes.len() - rest.0.len();
        let memory_bytes = self.0.len() * WORD_BYTES;
        let behind = |start: usize, bytes: u64| {
            let end = start.checked_add(usize::try_from(bytes).ok()?)?;
            (end <= memory_bytes).then_some(end)
        };
        let attributes_at = behind(at, key >> 1)?;
        let value_at = behind(attributes_at, attribute_bytes)?;
        Some(Head {
            place: Place(container, offset),
            version,
            key_at: at,
            attributes_at,
            value_at,
            end: behind(value_at, value_bytes)?,
        })
    }

    /// The record, if it is of this place and this key.
    pub fn read(&self, place: Place, key: &[u8]) -> Option<CachedValue> {
        let head = self.head().filter(|head| head.place == place)?;
        if !self.equals(head.key_at..head.attributes_at, key) {
            return None;
        }
        Some(CachedValue {
            version: head.version,
            attributes: self.copy(head.attributes_at..head.value_at),
            value: self.copy(head.value_at..head.end),
        })
    }

    /// Eight bytes from anywhere on.
    fn eight_bytes(&self, at: usize) -> [u8; WORD_BYTES] {
        let (word, shift) = (at / WORD_BYTES, at % WORD_BYTES * 8);
        let next = if shift == 0 {
            0
        } else {
            self.word(word + 1) << (64 - shift)
        };
        (self.word(word) >> shift | next).to_le_bytes()
    }

    fn equals(&self, range: Range<usize>, other: &[u8]) -> bool {
        let starts = range.clone().step_by(WORD_BYTES);
        range.len() == other.len()
            && starts
                .zip(other.chunks(WORD_BYTES))
                .all(|(at, part)| self.eight_bytes(at)[..part.len()] == *part)
    }

    /// The only copy made for the caller.
    fn copy(&self, range: Range<usize>) -> Bytes {
        if range.is_empty() {
            return Bytes::new();
        }
        let mut copy = vec![0; range.len()];
        let mut parts = copy.chunks_exact_mut(WORD_BYTES);
        let words = self.0.get(range.start / WORD_BYTES..).unwrap_or_default();
        let shift = range.start % WORD_BYTES * 8;
        if shift == 0 {
            for (part, word) in parts.by_ref().zip(words) {
                part.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
            }
        } else {
            for (part, words) in parts.by_ref().zip(words.windows(2)) {
                let [word, next] = [0, 1].map(|at: usize| words[at].load(Ordering::Relaxed));
                part.copy_from_slice(&(word >> shift | next << (64 - shift)).to_le_bytes());
            }
        }
        let rest = parts.into_remainder();
        let last = self.eight_bytes(range.end - rest.len());
        rest.copy_from_slice(&last[..rest.len()]);
        Bytes::from(copy)
    }
}

impl Head {
    /// Words of the record.
    pub const fn words(&self) -> usize {
        self.end.div_ceil(WORD_BYTES)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// With heads, keys and values of all lengths, and so all shifts.
    #[test]
    fn what_is_written_is_read() {
        let mut bytes = Vec::new();
        for value_bytes in [0, 1, 7, 8, 100, 1000, 4000] {
            for key_bytes in 1..20 {
                let key: Vec<u8> = (0..key_bytes).collect();
                let value: Vec<u8> = (0..value_bytes).map(|at| at as u8 ^ key_bytes).collect();
                let attributes = &value[..value.len().min(usize::from(key_bytes) % 5)];
                let item = Item {
                    place: Place(u64::from(key_bytes) << key_bytes, 16 * value_bytes),
                    key: &key,
                    version: 1 << (2 * key_bytes),
                    attributes,
                    value: &value,
                };
                item.encode(&mut bytes).unwrap();
                let memory: Vec<_> = (0..bytes.len() / WORD_BYTES).map(|_| AtomicU64::new(0)).collect();
                Words(&memory).write(&bytes);
                assert_eq!(Words(&memory).head().unwrap().words(), memory.len());
                let read = Words(&memory).read(item.place, &key).unwrap();
                assert_eq!((read.version, &*read.attributes), (item.version, attributes));
                assert_eq!(&*read.value, &*value);
                assert!(Words(&memory).read(item.place, b"other").is_none());
            }
        }
    }

    /// Regression: a number too large for an offset, in memory that was being written, ended the
    /// applier of a build that checks arithmetic, once in many runs of all tests.
    #[test]
    fn memory_of_any_content_has_a_head_or_none() {
        let largest = u64::from_le_bytes([0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        let memory = [largest, 0x0001_ffff, 0, 0, 0, 0, 0, 0].map(AtomicU64::new);
        assert_eq!(Words(&memory).head().map(|head| head.words()), Some(2));
        let mut seed = 1_u64;
        for _ in 0..10_000 {
            let memory = [0; 8].map(|_: u64| {
                seed = seed
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                AtomicU64::new(seed)
            });
            assert!(Words(&memory).head().is_none_or(|head| head.words() <= memory.len()));
        }
    }
}
