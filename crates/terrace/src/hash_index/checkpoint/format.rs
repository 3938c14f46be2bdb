//! Bytes of a checkpoint of the hash index. docs/format.md is normative.
//!
//! A header page, then chunks: one per partition of the hash index, in order, then those of the
//! key filter, layer by layer. Each chunk has a checksum over its place in the file and its
//! content.
//!
//! Decoders take any bytes: they return `None` and never panic.

use crate::{
    codec::{Reader, is_zero, put_u32, put_u64, u32_at, u64_at},
    io::PAGE_BYTES,
};

/// First bytes of a checkpoint.
const MAGIC: [u8; 8] = *b"TERRCKP1";
/// Version of the format written by this code.
pub const FORMAT_VERSION: u32 = 2;
/// Where the reserved bytes of the header begin.
const HEADER_END: usize = 80;
/// Length of the head of a chunk.
pub const CHUNK_HEAD_BYTES: usize = 16;
/// Chunks begin at multiples of this many bytes.
pub const CHUNK_UNIT_BYTES: usize = 8;
/// Length of the head of a chunk of the filter.
pub const FILTER_HEAD_BYTES: usize = 16;
/// Lines of the filter in one chunk.
pub const FILTER_LINES: usize = 1 << 14;

/// The header: of which store, of which shape, and which commits are in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The store it belongs to.
    pub store_id: u64,
    /// Length of the store's segments: addresses are counted in it.
    pub segment_bytes: u64,
    /// Partitions of the hash index.
    pub partitions: u32,
    /// Buckets each partition begins with.
    pub buckets_min: u32,
    /// Every commit up to this seq is in it as far as the hash index has it.
    pub begun_seq: u64,
    /// No commit after this seq is in it.
    pub ended_seq: u64,
    /// Highest generation of a segment that may hold a record of a commit up to `begun_seq`.
    pub generation_max: u64,
    /// Layers of the filter.
    pub filter_layers: u32,
    /// Whether the hash index ever evicted slots for lack of room.
    pub was_crowded: bool,
    /// Length of the file.
    pub file_bytes: u64,
}

/// Why a page is no header of a checkpoint that this version can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotAHeader {
    /// Other bytes, or damaged ones.
    Unreadable,
    /// Another version of the format.
    Version(u32),
}

impl Header {
    /// The header page.
    pub fn encode(&self) -> [u8; PAGE_BYTES] {
        let mut page = [0; PAGE_BYTES];
        page[..8].copy_from_slice(&MAGIC);
        for (at, number) in [
            (12, FORMAT_VERSION),
            (32, self.partitions),
            (36, self.buckets_min),
            (64, self.filter_layers),
            (68, u32::from(self.was_crowded)),
        ] {
            put_u32(&mut page, at, number);
        }
        for (at, number) in [
            (16, self.store_id),
            (24, self.segment_bytes),
            (40, self.begun_seq),
            (48, self.ended_seq),
            (56, self.generation_max),
            (72, self.file_bytes),
        ] {
            put_u64(&mut page, at, number);
        }
        let checksum = crc32c::crc32c(&page[12..]);
        put_u32(&mut page, 8, checksum);
        page
    }

    /// Reads a header page.
    ///
    /// # Errors
    /// A description of the error.
    pub fn decode(page: &[u8]) -> Result<Self, NotAHeader> {
        let is_whole =
            page.len() == PAGE_BYTES && page[..8] == MAGIC && u32_at(page, 8) == Some(crc32c::crc32c(&page[12..]));
        let version = u32_at(page, 12).filter(|_| is_whole).ok_or(NotAHeader::Unreadable)?;
        if version != FORMAT_VERSION {
            return Err(NotAHeader::Version(version));
        }
        let read = || {
            let crowded = u32_at(page, 68)?;
            let is_sound = crowded <= 1 && is_zero(page.get(HEADER_END..)?);
            let header = Self {
                store_id: u64_at(page, 16)?,
                segment_bytes: u64_at(page, 24)?,
                partitions: u32_at(page, 32)?,
                buckets_min: u32_at(page, 36)?,
                begun_seq: u64_at(page, 40)?,
                ended_seq: u64_at(page, 48)?,
                generation_max: u64_at(page, 56)?,
                filter_layers: u32_at(page, 64)?,
                was_crowded: crowded == 1,
                file_bytes: u64_at(page, 72)?,
            };
            (is_sound && header.begun_seq <= header.ended_seq).then_some(header)
        };
        read().ok_or(NotAHeader::Unreadable)
    }
}

/// Kind of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkKind {
    /// The slots of a partition.
    Slots,
    /// Lines of the filter.
    Filter,
}

impl ChunkKind {
    const fn magic(self) -> [u8; 4] {
        match self {
            Self::Slots => *b"TRCS",
            Self::Filter => *b"TRCF",
        }
    }
}

/// Bytes of a chunk in the file.
pub const fn chunk_bytes(payload_bytes: u64) -> u64 {
    (CHUNK_HEAD_BYTES as u64 + payload_bytes).next_multiple_of(CHUNK_UNIT_BYTES as u64)
}

/// Makes a chunk of what stands behind [`CHUNK_HEAD_BYTES`] bytes of room: head, and zeros up to
/// the unit. `ordinal` counts the chunks of the file. `None` if it is longer than a chunk can be.
#[must_use]
pub fn seal_chunk(kind: ChunkKind, ordinal: u32, chunk: &mut Vec<u8>) -> Option<()> {
    let payload_bytes = u32::try_from(chunk.len().checked_sub(CHUNK_HEAD_BYTES)?).ok()?;
    chunk[..4].copy_from_slice(&kind.magic());
    put_u32(chunk, 8, ordinal);
    put_u32(chunk, 12, payload_bytes);
    let checksum = crc32c::crc32c(&chunk[8..]);
    put_u32(chunk, 4, checksum);
    chunk.resize(chunk.len().next_multiple_of(CHUNK_UNIT_BYTES), 0);
    Some(())
}

/// The length of the payload that a chunk's head claims, if it is one of this kind and place.
pub fn payload_bytes(head: &[u8], kind: ChunkKind, ordinal: u32) -> Option<u32> {
    let mut words = Reader(head);
    let (magic, _checksum, place) = (words.array()?, words.u32()?, words.u32()?);
    words.u32().filter(|_| magic == kind.magic() && place == ordinal)
}

/// The payload of a whole chunk with its head and the zeros behind it.
pub fn open_chunk(chunk: &[u8], kind: ChunkKind, ordinal: u32) -> Option<&[u8]> {
    let end = CHUNK_HEAD_BYTES.checked_add(payload_bytes(chunk, kind, ordinal)? as usize)?;
    let (covered, rest) = chunk.split_at_checked(end)?;
    let is_sound = rest.len() < CHUNK_UNIT_BYTES && is_zero(rest) && u32_at(chunk, 4)? == crc32c::crc32c(&covered[8..]);
    is_sound.then(|| &covered[CHUNK_HEAD_BYTES..])
}

/// The head of a chunk of the filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilterHead {
    /// Layer, from 0.
    pub layer: u32,
    /// First line.
    pub line: u32,
    /// Keys that may still be added to the layer; 0 but in its first chunk.
    pub room: u64,
}

impl FilterHead {
    /// Its bytes.
    pub fn encode(&self) -> [u8; FILTER_HEAD_BYTES] {
        let mut bytes = [0; FILTER_HEAD_BYTES];
        put_u32(&mut bytes, 0, self.layer);
        put_u32(&mut bytes, 4, self.line);
        put_u64(&mut bytes, 8, self.room);
        bytes
    }

    /// Decodes it; returns the lines after it as words.
    pub fn decode(payload: &[u8]) -> Option<(Self, Vec<u64>)> {
        let mut rest = Reader(payload);
        let (layer, line, room) = (rest.u32()?, rest.u32()?, rest.u64()?);
        let is_whole = rest.0.len().is_multiple_of(8);
        let words = std::iter::from_fn(|| rest.u64()).collect();
        is_whole.then_some((Self { layer, line, room }, words))
    }
}
