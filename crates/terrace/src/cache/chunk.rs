//! Pairs of a range of keys that a scan has read, one behind the other in one buffer.
//!
//! A record is version, checksum, lengths, home, key, attributes, value; behind all records there
//! is where each begins, and last how many there are. Numbers are little-endian.
//!
//! Invariant: keys ascend. A chunk is made in RAM and stays there: whatever has other bytes is no
//! chunk, and nothing is found in it.

use crate::{
    HomeKind,
    codec::{Reader, u32_at},
};
use bytes::Bytes;
use std::ops::Range;

/// Bytes of a chunk, at most: short enough to be dropped for one write, long enough that a scan of
/// a hundred short values looks for one or two, and just what allocators have a size for.
pub const CHUNK_BYTES_MAX: usize = 14 << 10;
/// Key, attributes and value of a pair in a chunk have so many bytes together at most. Of longer
/// ones second copies take the room of first ones: docs/adr/0027-scan-cache.md.
pub const PAIR_BYTES_MAX: usize = 512;

/// Version, checksum, length of the value, of the attributes, of the key, home.
const HEAD_BYTES: usize = 8 + 4 + 4 + 4 + 2 + 1;
const OFFSET_BYTES: usize = 4;

/// A pair of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The commit that wrote it.
    pub version: u64,
    /// CRC-32C of the value.
    pub checksum: u32,
    /// Where the value lived when it was read.
    pub home: HomeKind,
    /// Encoded attributes.
    pub attributes: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

impl Pair<'_> {
    /// What it takes in a chunk; `None` if it is too long for one.
    fn bytes_in_chunk(&self) -> Option<usize> {
        let bytes = self.key.len() + self.attributes.len() + self.value.len();
        (bytes <= PAIR_BYTES_MAX).then_some(HEAD_BYTES + bytes)
    }
}

/// Makes a chunk.
#[derive(Debug, Default)]
pub struct ChunkWriter {
    records: Vec<u8>,
    starts: Vec<u32>,
}

/// What came of adding a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// It is in the chunk.
    Here,
    /// It belongs in the next one.
    Full,
    /// It belongs in none.
    TooLong,
}

impl ChunkWriter {
    /// Adds the pair with the next key, unless the chunk would have more than `bytes_max`.
    #[allow(clippy::cast_possible_truncation)] // shorter than a chunk
    pub fn add(&mut self, pair: &Pair<'_>, bytes_max: usize) -> Added {
        let Some(bytes) = pair.bytes_in_chunk() else {
            return Added::TooLong;
        };
        let ends_bytes = (self.starts.len() + 2) * OFFSET_BYTES;
        if !self.starts.is_empty() && self.records.len() + bytes + ends_bytes > bytes_max {
            return Added::Full;
        }
        self.starts.push(self.records.len() as u32);
        let records = &mut self.records;
        records.extend_from_slice(&pair.version.to_le_bytes());
        records.extend_from_slice(&pair.checksum.to_le_bytes());
        records.extend_from_slice(&(pair.value.len() as u32).to_le_bytes());
        records.extend_from_slice(&(pair.attributes.len() as u32).to_le_bytes());
        records.extend_from_slice(&(pair.key.len() as u16).to_le_bytes());
        records.push(pair.home as u8);
        for part in [pair.key, pair.attributes, pair.value] {
            records.extend_from_slice(part);
        }
        Added::Here
    }

    /// The chunk, and an empty writer. `None` if nothing was added.
    #[allow(clippy::cast_possible_truncation)] // shorter than a chunk
    pub fn take(&mut self) -> Option<Bytes> {
        if self.starts.is_empty() {
            return None;
        }
        for start in &self.starts {
            self.records.extend_from_slice(&start.to_le_bytes());
        }
        self.records
            .extend_from_slice(&(self.starts.len() as u32).to_le_bytes());
        let chunk = Bytes::copy_from_slice(&self.records);
        self.records.clear();
        self.starts.clear();
        Some(chunk)
    }
}

/// A chunk that is read.
#[derive(Debug)]
pub struct Chunk {
    bytes: Bytes,
    count: usize,
    starts_at: usize,
}

impl Chunk {
    /// Of these bytes. Its pieces share a reference count of their own, not one that all threads
    /// which read the same chunk write.
    pub fn open(bytes: Bytes) -> Option<Self> {
        let count_at = bytes.len().checked_sub(OFFSET_BYTES)?;
        let count = u32_at(&bytes, count_at)? as usize;
        let starts_at = count_at.checked_sub(count.checked_mul(OFFSET_BYTES)?)?;
        Some(Self {
            bytes: Bytes::from_owner(bytes),
            count,
            starts_at,
        })
    }

    /// How many pairs there are.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// A pair.
    pub fn pair(&self, number: usize) -> Option<Pair<'_>> {
        let start = u32_at(&self.bytes, self.starts_at + number * OFFSET_BYTES)? as usize;
        let mut rest = Reader(self.bytes.get(start..self.starts_at)?);
        let version = rest.number::<8>()?;
        let checksum = rest.u32()?;
        let (value_bytes, attribute_bytes) = (rest.u32()?, rest.u32()?);
        let key_bytes = rest.number::<2>()?;
        let home = match rest.number::<1>()? {
            home if home == HomeKind::Inline as u64 => HomeKind::Inline,
            home if home == HomeKind::Flash as u64 => HomeKind::Flash,
            _ => HomeKind::Block,
        };
        Some(Pair {
            version,
            checksum,
            home,
            key: rest.bytes(usize::try_from(key_bytes).ok()?)?,
            attributes: rest.bytes(usize::try_from(attribute_bytes).ok()?)?,
            value: rest.bytes(usize::try_from(value_bytes).ok()?)?,
        })
    }

    /// A part of a pair as a piece of the chunk's memory.
    pub fn piece(&self, part: &[u8]) -> Bytes {
        self.bytes.slice_ref(part)
    }

    /// The number of the first pair with a key that is not before `key`.
    pub fn first_from(&self, key: &[u8]) -> usize {
        let is_before = |number| self.pair(number).is_some_and(|pair| pair.key < key);
        if !is_before(0) {
            return 0;
        }
        let mut among: Range<usize> = 1..self.count;
        while !among.is_empty() {
            let middle = among.start + among.len() / 2;
            if is_before(middle) {
                among.start = middle + 1;
            } else {
                among.end = middle;
            }
        }
        among.start
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn pair<'a>(key: &'a [u8], value: &'a [u8]) -> Pair<'a> {
        Pair {
            key,
            version: u64::from(key[0]) << 40,
            checksum: crc32c::crc32c(value),
            home: [HomeKind::Inline, HomeKind::Flash, HomeKind::Block][usize::from(key[0]) % 3],
            attributes: &key[1..],
            value,
        }
    }

    #[test]
    fn a_chunk_has_what_was_added() {
        let mut writer = ChunkWriter::default();
        assert_eq!(writer.take(), None);
        let keys: Vec<String> = (0..100).map(|number| format!("{number:02}x")).collect();
        let values: Vec<Vec<u8>> = (0..100).map(|number| vec![number as u8; number * 7 % 200]).collect();
        for (key, value) in keys.iter().zip(&values) {
            assert_eq!(writer.add(&pair(key.as_bytes(), value), 1 << 20), Added::Here);
        }
        let chunk = Chunk::open(writer.take().unwrap()).unwrap();
        assert_eq!(chunk.count(), 100);
        for (number, (key, value)) in keys.iter().zip(&values).enumerate() {
            let found = chunk.pair(number).unwrap();
            assert_eq!(found, pair(key.as_bytes(), value));
            assert_eq!(chunk.piece(found.value), value);
            assert_eq!(chunk.first_from(key.as_bytes()), number);
            assert_eq!(chunk.first_from(format!("{key}y").as_bytes()), number + 1);
        }
        assert_eq!((chunk.first_from(b"0"), chunk.pair(100)), (0, None));
        // An empty writer again.
        assert_eq!(writer.take(), None);
    }

    #[test]
    fn a_chunk_ends_before_what_is_too_much() {
        let mut writer = ChunkWriter::default();
        let long = vec![1; PAIR_BYTES_MAX];
        assert_eq!(writer.add(&pair(b"a", &long), 10), Added::TooLong);
        assert_eq!(writer.add(&pair(b"a", &long[1..]), 10), Added::Here, "one at least");
        assert_eq!(writer.add(&pair(b"b", b""), 10), Added::Full);
        assert_eq!(Chunk::open(writer.take().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn other_bytes_are_no_chunk() {
        assert!(Chunk::open(Bytes::new()).is_none());
        assert!(Chunk::open(Bytes::from_static(&[255; 40])).is_none());
        let chunk = Chunk::open(Bytes::from_static(&[9, 0, 0, 0, 1, 0, 0, 0])).unwrap();
        assert_eq!(chunk.pair(0), None);
    }
}
