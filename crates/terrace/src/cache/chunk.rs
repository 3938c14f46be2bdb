//! Contiguous pairs of a key range that a scan has read, in one buffer.
//!
//! The head of a pair is version, checksum, lengths, home, offset of its value, place, key,
//! attributes. First come all heads, so that a key search and a step from pair to pair touch
//! adjacent memory; then the values; then the offsets of the heads, the offset of the values, and
//! the number of pairs. Numbers are little-endian.
//!
//! Of a short value a chunk has a second copy. For a longer one the chunk is the home in RAM: the
//! pair has the value's place, by which the cache leads to it.
//!
//! Invariant: keys ascend. A chunk is made in RAM and never stored: any other bytes are not a
//! chunk, and nothing is found in them.

use super::Place;
use crate::{HomeKind, codec::Reader};
use bytes::Bytes;
use std::ops::Range;

/// Bytes of a chunk with short pairs alone, at most: short enough to be dropped for one write, long
/// enough that a scan of a hundred looks for one or two, and just what allocators have a size for.
pub const SHORT_CHUNK_BYTES_MAX: usize = 14 << 10;
/// Bytes up to which a scan fills such a chunk with pairs that it was not asked for: what is
/// inserted later has room in it.
pub const SHORT_CHUNK_FILLED_BYTES: usize = 12 << 10;
/// Bytes of any chunk, at most: some fifty values of 1 KiB, which are copied when one is changed.
pub const CHUNK_BYTES_MAX: usize = 56 << 10;
/// Maximum bytes of key, attributes and value of a short pair. For longer ones second copies would
/// displace first copies: docs/adr/0027-scan-cache.md.
pub const SHORT_PAIR_BYTES_MAX: usize = 512;
/// The same of any pair in a chunk.
pub const PAIR_BYTES_MAX: usize = 4 << 10;

const OFFSET_BYTES: usize = 2;
/// Bytes of a chunk besides its pairs: the offset of the values, and the number of pairs.
pub const END_BYTES: usize = 2 * OFFSET_BYTES;
/// Bytes of a pair besides key, attributes and value: the rest of its head, and the head's offset.
const HEAD_BYTES: usize = 8 + 4 + 3 * 2 + 1 + 2 * OFFSET_BYTES;
/// Bytes of a head before place, key and attributes.
const FIXED_BYTES: usize = HEAD_BYTES - OFFSET_BYTES;
/// Where in it the offset of the value is.
const VALUE_AT: usize = FIXED_BYTES - OFFSET_BYTES;
const PLACE_BYTES: usize = 16;
/// A line of memory.
const LINE_BYTES: usize = 64;
/// Heads that are prefetched in parallel when a key is searched among fifty or ninety.
const LOOKED_AT_TOGETHER: usize = 9;
/// Flag in the byte of the home: the pair has a place.
const HAS_PLACE: u8 = 0x80;

fn u16_at(bytes: &[u8], at: usize) -> Option<usize> {
    Reader(bytes.get(at..)?).u16().map(usize::from)
}

/// The pair with the head that `head` begins with, and a value among these.
#[inline]
fn decode<'a>(head: &'a [u8], values: &'a [u8]) -> Option<Pair<'a>> {
    // One check for all numbers of the head.
    let (fixed, rest) = head.split_first_chunk::<FIXED_BYTES>()?;
    let (mut fixed, mut rest) = (Reader(fixed), Reader(rest));
    let version = fixed.u64()?;
    let checksum = fixed.u32()?;
    let mut length = || fixed.u16().map(usize::from);
    let (key_bytes, attribute_bytes, value_bytes) = (length()?, length()?, length()?);
    let [home] = fixed.array()?;
    let value_at = usize::from(fixed.u16()?);
    let place = match home & HAS_PLACE {
        0 => None,
        _ => Some(Place(rest.u64()?, rest.u64()?)),
    };
    let home = match home & !HAS_PLACE {
        home if home == HomeKind::Inline as u8 => HomeKind::Inline,
        home if home == HomeKind::Flash as u8 => HomeKind::Flash,
        _ => HomeKind::Block,
    };
    Some(Pair {
        version,
        checksum,
        home,
        place,
        key: rest.bytes(key_bytes)?,
        attributes: rest.bytes(attribute_bytes)?,
        value: values.get(value_at..value_at + value_bytes)?,
    })
}

/// Pairs of a chunk, one after the other. Where the next head is does not depend on this one: a
/// processor that waits for one from memory goes on to the next.
#[derive(Debug, Clone)]
pub struct Pairs<'a> {
    heads: &'a [u8],
    values: &'a [u8],
    /// Offsets of the heads.
    starts: &'a [u8],
}

impl<'a> Iterator for Pairs<'a> {
    type Item = Pair<'a>;

    #[inline]
    fn next(&mut self) -> Option<Pair<'a>> {
        let (start, starts) = self.starts.split_first_chunk()?;
        self.starts = starts;
        decode(self.heads.get(usize::from(u16::from_le_bytes(*start))..)?, self.values)
    }
}

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
    /// Where it is read from without a cache, if the chunk is its home in RAM.
    pub place: Option<Place>,
    /// Encoded attributes.
    pub attributes: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

/// Bytes that a pair takes in a chunk, with this many bytes of key, attributes and value.
pub const fn bytes_in_chunk(bytes: usize, has_place: bool) -> usize {
    HEAD_BYTES + bytes + if has_place { PLACE_BYTES } else { 0 }
}

impl Pair<'_> {
    /// Bytes of a chunk that it takes.
    pub const fn bytes_in_chunk(&self) -> usize {
        bytes_in_chunk(self.bytes(), self.place.is_some())
    }

    /// Bytes of key, attributes and value.
    pub const fn bytes(&self) -> usize {
        self.key.len() + self.attributes.len() + self.value.len()
    }

    /// Whether it is too long for a chunk, or for a second copy in one.
    const fn is_too_long(&self) -> bool {
        let bytes_max = match self.place {
            Some(_) => PAIR_BYTES_MAX,
            None => SHORT_PAIR_BYTES_MAX,
        };
        self.bytes() > bytes_max
    }

    /// Writes its head; its value is at `value_at` among the values.
    #[allow(clippy::cast_possible_truncation)] // none of its parts is longer than a chunk
    fn encode_head(&self, value_at: usize, heads: &mut Vec<u8>) {
        heads.extend_from_slice(&self.version.to_le_bytes());
        heads.extend_from_slice(&self.checksum.to_le_bytes());
        for part in [self.key, self.attributes, self.value] {
            heads.extend_from_slice(&(part.len() as u16).to_le_bytes());
        }
        let has_place = if self.place.is_some() { HAS_PLACE } else { 0 };
        heads.push(self.home as u8 | has_place);
        heads.extend_from_slice(&(value_at as u16).to_le_bytes());
        if let Some(Place(container, offset)) = self.place {
            heads.extend_from_slice(&container.to_le_bytes());
            heads.extend_from_slice(&offset.to_le_bytes());
        }
        heads.extend_from_slice(self.key);
        heads.extend_from_slice(self.attributes);
    }
}

/// Makes a chunk of pairs, each of which is copied once: when all are known.
#[derive(Debug, Default)]
pub struct ChunkWriter<'a> {
    pairs: Vec<Pair<'a>>,
    /// Their bytes.
    pairs_bytes: usize,
    /// There are pairs that are not short.
    is_long: bool,
}

/// Result of adding a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// It is in the chunk.
    Here,
    /// It belongs in the next one.
    Full,
    /// It belongs in none.
    TooLong,
}

impl<'a> ChunkWriter<'a> {
    /// Adds the pair with the next key, unless the chunk would have more than `bytes_max`.
    pub fn add(&mut self, pair: &Pair<'a>, bytes_max: usize) -> Added {
        if pair.is_too_long() {
            return Added::TooLong;
        }
        let is_long = self.is_long || pair.place.is_some();
        let bytes_max = bytes_max.min(if is_long {
            CHUNK_BYTES_MAX
        } else {
            SHORT_CHUNK_BYTES_MAX
        });
        let pairs_bytes = self.pairs_bytes + pair.bytes_in_chunk();
        if !self.pairs.is_empty() && pairs_bytes + END_BYTES > bytes_max {
            return Added::Full;
        }
        self.pairs.push(*pair);
        self.pairs_bytes = pairs_bytes;
        self.is_long = is_long;
        Added::Here
    }

    /// The chunk, and an empty writer. `None` if nothing was added.
    #[allow(clippy::cast_possible_truncation)] // shorter than a chunk
    pub fn take(&mut self) -> Option<Chunk> {
        let (pairs, is_home) = (std::mem::take(&mut self.pairs), std::mem::take(&mut self.is_long));
        let bytes_all = std::mem::take(&mut self.pairs_bytes) + END_BYTES;
        if pairs.is_empty() {
            return None;
        }
        let mut bytes = Vec::with_capacity(bytes_all);
        let mut ends = Vec::with_capacity(pairs.len() + 2);
        let mut value_at = 0;
        for pair in &pairs {
            ends.push(bytes.len() as u16);
            pair.encode_head(value_at, &mut bytes);
            value_at += pair.value.len();
        }
        ends.extend([bytes.len() as u16, pairs.len() as u16]);
        pairs.iter().for_each(|pair| bytes.extend_from_slice(pair.value));
        bytes.extend(ends.into_iter().flat_map(u16::to_le_bytes));
        Chunk::open(bytes.into(), is_home)
    }
}

/// See the module. Clones share their bytes.
#[derive(Debug, Clone)]
pub struct Chunk {
    bytes: Bytes,
    count: usize,
    values_at: usize,
    starts_at: usize,
    is_home: bool,
}

impl Chunk {
    /// Of these bytes, which have pairs with places if it `is_home`.
    fn open(bytes: Bytes, is_home: bool) -> Option<Self> {
        let end_at = bytes.len().checked_sub(END_BYTES)?;
        let values_at = u16_at(&bytes, end_at)?;
        let count = u16_at(&bytes, end_at + OFFSET_BYTES)?;
        let starts_at = end_at.checked_sub(count * OFFSET_BYTES)?;
        Some(Self {
            bytes,
            count,
            values_at,
            starts_at,
            is_home,
        })
    }

    /// The same for one reader that keeps pieces: they share a reference count of their own, not
    /// one that all threads that read the chunk write.
    pub fn for_reader(&self) -> Self {
        Self {
            bytes: Bytes::from_owner(self.bytes.clone()),
            ..*self
        }
    }

    /// Bytes of it.
    pub const fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Its pairs.
    pub fn pairs(&self) -> impl Iterator<Item = Pair<'_>> {
        self.pairs_from(0)
    }

    /// Its pairs from one on.
    pub fn pairs_from(&self, number: usize) -> Pairs<'_> {
        let part = |from, to| self.bytes.get(from..to).unwrap_or_default();
        let starts_end = self.bytes.len() - END_BYTES;
        Pairs {
            heads: part(0, self.values_at),
            values: part(self.values_at, self.starts_at),
            starts: part((self.starts_at + number * OFFSET_BYTES).min(starts_end), starts_end),
        }
    }

    /// Whether it is the home of values in RAM.
    pub const fn is_home(&self) -> bool {
        self.is_home
    }

    /// How many pairs there are.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// A pair.
    pub fn pair(&self, number: usize) -> Option<Pair<'_>> {
        self.pairs_from(number).next()
    }

    /// A part of a pair as a piece of the chunk's memory.
    pub fn piece(&self, part: &[u8]) -> Bytes {
        self.bytes.slice_ref(part)
    }

    /// The number of the first pair with a key that is not before `key`. To look at a key is little
    /// work and a long wait for memory, so some are got side by side.
    pub fn first_from(&self, key: &[u8]) -> usize {
        let is_before = |number| self.pair(number).is_some_and(|pair| pair.key < key);
        let mut among: Range<usize> = 0..self.count;
        while !among.is_empty() {
            let step = among.len().div_ceil(LOOKED_AT_TOGETHER + 1);
            let looked_at = among.clone().skip(step - 1).step_by(step);
            std::hint::black_box(looked_at.clone().fold(0, |sum, number| sum ^ self.fetch_head(number)));
            let before = looked_at.clone().take_while(|number| is_before(*number)).last();
            let start = before.map_or(among.start, |number| number + 1);
            let end = (start + step - 1).min(among.end);
            among = start..end;
        }
        among.start
    }

    /// Prefetches the head of a pair. The result must be used, or the compiler removes the load.
    fn fetch_head(&self, number: usize) -> u8 {
        let start = u16_at(&self.bytes, self.starts_at + number * OFFSET_BYTES).unwrap_or(0);
        let byte = |at| self.bytes.get(at).copied().unwrap_or(0);
        byte(start) ^ byte(start + HEAD_BYTES + PLACE_BYTES)
    }

    /// Prefetches some pairs from one on: all heads side by side, then all short values.
    pub fn fetch(&self, number: usize, count: usize) {
        let end = (number + count).min(self.count);
        let start_of = |number| u16_at(&self.bytes, self.starts_at + number * OFFSET_BYTES);
        let value_of = |number| Some(self.values_at + u16_at(&self.bytes, start_of(number)? + VALUE_AT)?);
        // Where the first is, and where the last ends, is known without a look at the offsets.
        let between = |first: Option<usize>, end: Option<usize>| {
            if let (Some(first), Some(end)) = (first, end) {
                self.fetch_lines(first, end);
            }
        };
        let (is_first, is_last) = (number == 0, end == self.count);
        let head = if is_first { Some(0) } else { start_of(number) };
        between(head, if is_last { Some(self.values_at) } else { start_of(end) });
        if self.bytes.len() <= SHORT_CHUNK_BYTES_MAX {
            let value = if is_first {
                Some(self.values_at)
            } else {
                value_of(number)
            };
            between(value, if is_last { Some(self.starts_at) } else { value_of(end) });
        }
    }

    fn fetch_lines(&self, from: usize, to: usize) {
        let lines = self.bytes.get(from..to).unwrap_or_default().iter().step_by(LINE_BYTES);
        std::hint::black_box(lines.fold(0, |sum, byte| sum ^ byte));
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
            place: (value.len() % 2 == 1).then(|| Place::block(value.len() as u64, 7)),
            attributes: &key[1..],
            value,
        }
    }

    #[test]
    fn a_chunk_has_what_was_added() {
        let mut writer = ChunkWriter::default();
        assert!(writer.take().is_none());
        let keys: Vec<String> = (0..100).map(|number| format!("{number:02}x")).collect();
        let values: Vec<Vec<u8>> = (0..100).map(|number| vec![number as u8; number * 7 % 200]).collect();
        for (key, value) in keys.iter().zip(&values) {
            assert_eq!(writer.add(&pair(key.as_bytes(), value), 1 << 20), Added::Here);
        }
        let chunk = writer.take().unwrap().for_reader();
        assert_eq!(chunk.count(), 100);
        let pairs_bytes: usize = chunk.pairs().map(|pair| pair.bytes_in_chunk()).sum();
        assert_eq!(chunk.bytes(), pairs_bytes + END_BYTES);
        for (number, (key, value)) in keys.iter().zip(&values).enumerate() {
            let found = chunk.pair(number).unwrap();
            assert_eq!(found, pair(key.as_bytes(), value));
            assert_eq!(chunk.piece(found.value), value);
            assert!(chunk.pairs_from(number).eq(chunk.pairs().skip(number)));
            assert_eq!(chunk.first_from(key.as_bytes()), number);
            assert_eq!(chunk.first_from(format!("{key}y").as_bytes()), number + 1);
        }
        assert_eq!((chunk.first_from(b"0"), chunk.pair(100)), (0, None));
        assert_eq!(chunk.pairs_from(100).count(), 0);
        assert!(writer.take().is_none(), "an empty writer again");
    }

    #[test]
    fn a_chunk_ends_before_what_is_too_much() {
        let mut writer = ChunkWriter::default();
        let long = vec![1; PAIR_BYTES_MAX];
        let short = &long[..SHORT_PAIR_BYTES_MAX];
        assert_eq!(writer.add(&pair(b"a", short), 10), Added::TooLong, "for a second copy");
        assert_eq!(writer.add(&pair(b"a", &long[1..]), 10), Added::Here, "one at least");
        assert_eq!(writer.add(&pair(b"b", b""), 10), Added::Full);
        assert_eq!(writer.take().unwrap().count(), 1);
        for (bytes, most) in [(100, SHORT_CHUNK_BYTES_MAX), (2001, CHUNK_BYTES_MAX)] {
            while writer.add(&pair(b"a", &long[..bytes]), usize::MAX) == Added::Here {}
            let chunk = writer.take().unwrap();
            assert!((most - 2100..=most).contains(&chunk.bytes()), "{}", chunk.bytes());
            assert_eq!(chunk.is_home(), bytes == 2001);
        }
    }

    #[test]
    fn other_bytes_are_no_chunk() {
        assert!(Chunk::open(Bytes::new(), false).is_none());
        assert!(Chunk::open(Bytes::from_static(&[255; 40]), false).is_none());
        // A head that begins behind the heads, and heads that end behind the values.
        for bytes in [[7; 6], [9, 0, 4, 0, 1, 0], [0, 0, 99, 0, 1, 0]] {
            let chunk = Chunk::open(Bytes::copy_from_slice(&bytes), false);
            assert!(chunk.is_none_or(|chunk| chunk.pair(0).is_none()), "{bytes:?}");
        }
        let mut writer = ChunkWriter::default();
        writer.add(&pair(b"a", b"value"), 1000);
        let sound = writer.take().unwrap();
        for at in 0..sound.bytes() {
            let mut bytes = sound.bytes.to_vec();
            bytes[at] ^= 0xff;
            // No read is out of bounds.
            let chunk = Chunk::open(bytes.into(), false);
            chunk
                .iter()
                .inspect(|chunk| [0, 1].into_iter().for_each(|number| chunk.fetch(number, 9)))
                .flat_map(Chunk::pairs)
                .for_each(|pair| assert!(pair.bytes() <= sound.bytes()));
        }
    }
}
