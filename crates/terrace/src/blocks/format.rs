//! The bytes of a block: block header, record header, chunks, footer. docs/format.md is normative;
//! golden-byte tests bind this file to it.
//!
//! Invariants:
//! - Little-endian, reserved bytes zero, zero is never a kind.
//! - Every checksum is CRC-32C and covers the place the bytes belong to (store, block, offset), so
//!   that bytes that are valid elsewhere never pass here.
//! - Decoders return `None` for anything that is not exactly what an encoder wrote; they never
//!   panic and never trust a length before its checksum.

use crate::{
    ATTRIBUTES_BYTES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX,
    codec::{is_zero, put_u16, put_u32, put_u64, u32_at, u64_at},
    io::{AlignedBuffer, PAGE_BYTES},
};
use crc32c::{crc32c, crc32c_append};

/// [`PAGE_BYTES`] as an offset.
pub const PAGE: u64 = PAGE_BYTES as u64;
/// Value bytes in a full chunk.
pub const CHUNK_DATA_BYTES: usize = 65_532;
/// Bytes of a full chunk on the device: data, then its checksum.
pub const CHUNK_BYTES: u64 = 65_536;
/// Alignment of every record; records of user writes start at a page.
pub const RECORD_ALIGNMENT: u64 = 64;
/// Bytes of a record header.
pub const RECORD_HEADER_BYTES: usize = 48;
/// Bytes of a footer entry.
pub const FOOTER_ENTRY_BYTES: usize = 32;
/// Bytes of the trailer that ends a sealed block.
pub const TRAILER_BYTES: usize = 64;

const BLOCK_MAGIC: [u8; 8] = *b"TRCBLOCK";
const TRAILER_MAGIC: [u8; 8] = *b"TRCTRAIL";
const RECORD_MAGIC: [u8; 4] = *b"TRCR";
const FORMAT_VERSION: u32 = 1;
const BLOCK_HEADER_BYTES: usize = 36;

/// Contents of the first page of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHeader {
    /// The store the block belongs to.
    pub store_id: u64,
    /// The block's number.
    pub block: u64,
}

/// The first page of a block.
pub fn encode_block_header(header: BlockHeader) -> AlignedBuffer {
    let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
    page[..8].copy_from_slice(&BLOCK_MAGIC);
    put_u32(&mut page, 8, FORMAT_VERSION);
    put_u64(&mut page, 16, header.store_id);
    put_u64(&mut page, 24, header.block);
    let checksum = crc32c(&page[..32]);
    put_u32(&mut page, 32, checksum);
    page
}

/// Reads the first page of a block.
pub fn decode_block_header(page: &[u8]) -> Option<BlockHeader> {
    let page = page.get(..PAGE_BYTES)?;
    let valid = page[..8] == BLOCK_MAGIC
        && u32_at(page, 8)? == FORMAT_VERSION
        && u32_at(page, 12)? == 0
        && u32_at(page, 32)? == crc32c(&page[..32])
        && is_zero(&page[BLOCK_HEADER_BYTES..]);
    valid.then_some(BlockHeader {
        store_id: u64_at(page, 16)?,
        block: u64_at(page, 24)?,
    })
}

/// Place of an extent. Part of every checksum inside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The store.
    pub store_id: u64,
    /// The block's number.
    pub block: u64,
    /// Offset of the record header in the block.
    pub offset: u64,
}

impl Place {
    /// Initial value of the chunk checksums of this extent.
    pub fn chunk_seed(&self) -> u32 {
        let mut bytes = [0; 24];
        put_u64(&mut bytes, 0, self.store_id);
        put_u64(&mut bytes, 8, self.block);
        put_u64(&mut bytes, 16, self.offset);
        crc32c(&bytes)
    }
}

/// How a record came into its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// A user's write. Page-aligned; its ticket is a lower bound of its version.
    Put = 1,
    /// Moved here by recycling. Aligned to 64 bytes; its ticket is its exact version.
    Destaged = 2,
}

/// The header of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordHeader {
    /// How it came into the block.
    pub kind: RecordKind,
    /// For a put a lower bound of the version, for a destaged record the version.
    pub ticket: u64,
    /// Length of the value.
    pub length: u64,
    /// The object's key.
    pub key: Vec<u8>,
    /// Its attributes, in stored form.
    pub attributes: Vec<u8>,
}

impl RecordHeader {
    /// Bytes from the record header to the end of the value.
    pub fn extent_bytes(&self) -> u64 {
        extent_bytes(self.key.len(), self.attributes.len(), self.length)
    }
}

/// Bytes from the record header to the end of the value, without the padding after it.
pub const fn extent_bytes(key_bytes: usize, attributes_bytes: usize, length: u64) -> u64 {
    (RECORD_HEADER_BYTES + key_bytes + attributes_bytes) as u64 + stored_bytes(length)
}

/// How many chunks a value of `length` bytes has.
pub const fn chunk_count(length: u64) -> u64 {
    length.div_ceil(CHUNK_DATA_BYTES as u64)
}

/// Bytes of a value in a block: data and chunk checksums.
pub const fn stored_bytes(length: u64) -> u64 {
    length + 4 * chunk_count(length)
}

/// Appends a record's header, key and attributes. The record's value is `length` bytes.
pub fn encode_record_header(
    out: &mut AlignedBuffer,
    place: Place,
    kind: RecordKind,
    ticket: u64,
    length: u64,
    key: &[u8],
    attributes: &[u8],
) {
    debug_assert!(!key.is_empty() && key.len() <= KEY_BYTES_MAX && attributes.len() <= ATTRIBUTES_BYTES_MAX);
    let mut head = [0; RECORD_HEADER_BYTES];
    head[..4].copy_from_slice(&RECORD_MAGIC);
    head[4] = kind as u8;
    // Keys have at most 4 KiB, attributes 64 KiB.
    put_u16(&mut head, 6, key.len() as u16);
    put_u32(&mut head, 8, attributes.len() as u32);
    put_u64(&mut head, 16, length);
    put_u64(&mut head, 24, ticket);
    put_u64(&mut head, 32, place.block);
    put_u64(&mut head, 40, place.offset);
    let checksum = record_checksum(place.store_id, &head, key, attributes);
    put_u32(&mut head, 12, checksum);
    out.extend_from_slice(&head);
    out.extend_from_slice(key);
    out.extend_from_slice(attributes);
}

/// The head must have zeros where the checksum goes. The store's identity is mixed in but not
/// stored: user data that looks like a record is then never taken for one by a scan.
fn record_checksum(store_id: u64, head: &[u8; RECORD_HEADER_BYTES], key: &[u8], attributes: &[u8]) -> u32 {
    let checksum = crc32c_append(crc32c(&store_id.to_le_bytes()), head);
    crc32c_append(crc32c_append(checksum, key), attributes)
}

/// How many bytes a record header with its key and attributes claims to have, if `bytes` may be one
/// at all. Nothing of it is verified yet.
pub fn record_head_bytes(bytes: &[u8]) -> Option<usize> {
    let head = bytes.get(..RECORD_HEADER_BYTES)?;
    if head[..4] != RECORD_MAGIC {
        return None;
    }
    let key_bytes = usize::from(u16::from_le_bytes([head[6], head[7]]));
    let attributes_bytes = u32_at(head, 8)? as usize;
    let plausible = (1..=KEY_BYTES_MAX).contains(&key_bytes) && attributes_bytes <= ATTRIBUTES_BYTES_MAX;
    plausible.then_some(RECORD_HEADER_BYTES + key_bytes + attributes_bytes)
}

/// Reads a record's header, key and attributes.
pub fn decode_record_header(bytes: &[u8], place: Place) -> Option<RecordHeader> {
    let head_bytes = record_head_bytes(bytes)?;
    let all = bytes.get(..head_bytes)?;
    let mut head: [u8; RECORD_HEADER_BYTES] = all[..RECORD_HEADER_BYTES].try_into().ok()?;
    let key_bytes = usize::from(u16::from_le_bytes([head[6], head[7]]));
    let (key, attributes) = all[RECORD_HEADER_BYTES..].split_at_checked(key_bytes)?;
    let checksum = u32_at(&head, 12)?;
    head[12..16].fill(0);
    if checksum != record_checksum(place.store_id, &head, key, attributes) {
        return None;
    }
    let kind = match head[4] {
        1 => RecordKind::Put,
        2 => RecordKind::Destaged,
        _ => return None,
    };
    let length = u64_at(&head, 16)?;
    let placed = u64_at(&head, 32)? == place.block && u64_at(&head, 40)? == place.offset;
    let aligned = kind == RecordKind::Destaged || place.offset.is_multiple_of(PAGE);
    (head[5] == 0 && placed && aligned && length <= VALUE_BYTES_MAX).then(|| RecordHeader {
        kind,
        ticket: u64_at(&head, 24).unwrap_or_default(),
        length,
        key: key.to_vec(),
        attributes: attributes.to_vec(),
    })
}

/// Turns value bytes into chunks, as they come.
#[derive(Debug)]
pub struct ChunkEncoder {
    seed: u32,
    chunk_checksum: u32,
    chunk_bytes: usize,
    index: u64,
    /// CRC-32C of the value so far.
    pub checksum: u32,
    /// Bytes of the value so far.
    pub length: u64,
}

fn chunk_start(seed: u32, index: u64) -> u32 {
    crc32c_append(seed, &index.to_le_bytes())
}

impl ChunkEncoder {
    /// For a value in the extent at `place`.
    pub fn new(place: Place) -> Self {
        let seed = place.chunk_seed();
        Self {
            seed,
            chunk_checksum: chunk_start(seed, 0),
            chunk_bytes: 0,
            index: 0,
            checksum: 0,
            length: 0,
        }
    }

    /// Appends as much of `data` as fits into the current chunk, and the chunk's checksum if it is
    /// full. Returns how much of `data` it took.
    pub fn push(&mut self, data: &[u8], out: &mut AlignedBuffer) -> usize {
        let taken = &data[..data.len().min(CHUNK_DATA_BYTES - self.chunk_bytes)];
        self.chunk_checksum = crc32c_append(self.chunk_checksum, taken);
        self.checksum = crc32c_append(self.checksum, taken);
        self.length += taken.len() as u64;
        self.chunk_bytes += taken.len();
        out.extend_from_slice(taken);
        if self.chunk_bytes == CHUNK_DATA_BYTES {
            self.end_chunk(out);
        }
        taken.len()
    }

    /// Ends the value.
    pub fn finish(&mut self, out: &mut AlignedBuffer) {
        if self.chunk_bytes > 0 {
            self.end_chunk(out);
        }
    }

    fn end_chunk(&mut self, out: &mut AlignedBuffer) {
        out.extend_from_slice(&self.chunk_checksum.to_le_bytes());
        self.index += 1;
        self.chunk_bytes = 0;
        self.chunk_checksum = chunk_start(self.seed, self.index);
    }
}

/// Verifies one chunk (data and checksum) and returns its data.
pub fn decode_chunk(chunk: &[u8], seed: u32, index: u64) -> Option<&[u8]> {
    if chunk.len() > CHUNK_DATA_BYTES + 4 {
        return None;
    }
    let (data, checksum) = chunk.split_last_chunk::<4>()?;
    let valid = !data.is_empty() && crc32c_append(chunk_start(seed, index), data) == u32::from_le_bytes(*checksum);
    valid.then_some(data)
}

/// Kind of a footer entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExtentKind {
    /// One record of a user's write.
    Put = 1,
    /// A page-aligned region of destaged records.
    Region = 2,
}

/// One line of a block's table of contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FooterEntry {
    /// Kind of the extent.
    pub kind: ExtentKind,
    /// Where it starts.
    pub offset: u64,
    /// Its bytes, without padding.
    pub extent_bytes: u64,
    /// The version of a put; 0 if it was abandoned, and for regions, whose records carry theirs.
    pub version: u64,
}

/// Contents of the trailer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trailer {
    /// Where the footer starts.
    pub footer_offset: u64,
    /// How many entries it has.
    pub entries: u32,
    /// CRC-32C of the entries.
    pub entries_checksum: u32,
}

/// The footer of a block whose extents end at `footer_offset`: entries, zeros, trailer; whole
/// pages.
pub fn encode_footer(header: BlockHeader, footer_offset: u64, entries: &[FooterEntry]) -> AlignedBuffer {
    let entries_bytes = entries.len() * FOOTER_ENTRY_BYTES;
    let total_bytes = (entries_bytes + TRAILER_BYTES).next_multiple_of(PAGE_BYTES);
    let mut out = AlignedBuffer::zeroed(total_bytes);
    for (slot, entry) in out.chunks_exact_mut(FOOTER_ENTRY_BYTES).zip(entries) {
        put_u64(slot, 0, entry.offset);
        put_u64(slot, 8, entry.extent_bytes);
        put_u64(slot, 16, entry.version);
        slot[24] = entry.kind as u8;
    }
    let entries_checksum = crc32c(&out[..entries_bytes]);
    let mut trailer = [0; TRAILER_BYTES];
    trailer[..8].copy_from_slice(&TRAILER_MAGIC);
    put_u32(&mut trailer, 8, FORMAT_VERSION);
    // A block holds far fewer than 2^32 extents: each takes a page.
    put_u32(&mut trailer, 12, u32::try_from(entries.len()).unwrap_or(u32::MAX));
    put_u64(&mut trailer, 16, footer_offset);
    put_u64(&mut trailer, 24, header.store_id);
    put_u64(&mut trailer, 32, header.block);
    put_u32(&mut trailer, 40, entries_checksum);
    let checksum = crc32c(&trailer[..60]);
    put_u32(&mut trailer, 60, checksum);
    out[total_bytes - TRAILER_BYTES..].copy_from_slice(&trailer);
    out
}

/// Reads the last bytes of a sealed block of `block_bytes`.
pub fn decode_trailer(bytes: &[u8], header: BlockHeader, block_bytes: u64) -> Option<Trailer> {
    let trailer = bytes.last_chunk::<TRAILER_BYTES>()?;
    let valid = trailer[..8] == TRAILER_MAGIC
        && u32_at(trailer, 8)? == FORMAT_VERSION
        && u64_at(trailer, 24)? == header.store_id
        && u64_at(trailer, 32)? == header.block
        && is_zero(&trailer[44..60])
        && u32_at(trailer, 60)? == crc32c(&trailer[..60]);
    let found = Trailer {
        entries: u32_at(trailer, 12)?,
        footer_offset: u64_at(trailer, 16)?,
        entries_checksum: u32_at(trailer, 40)?,
    };
    let footer_bytes =
        (u64::from(found.entries) * FOOTER_ENTRY_BYTES as u64 + TRAILER_BYTES as u64).next_multiple_of(PAGE);
    (valid && found.footer_offset.is_multiple_of(PAGE) && found.footer_offset.checked_add(footer_bytes)? == block_bytes)
        .then_some(found)
}

/// Reads a footer's entries from the bytes at its offset.
pub fn decode_footer(bytes: &[u8], trailer: &Trailer) -> Option<Vec<FooterEntry>> {
    let entries_bytes = (trailer.entries as usize).checked_mul(FOOTER_ENTRY_BYTES)?;
    let bytes = bytes.get(..entries_bytes)?;
    if crc32c(bytes) != trailer.entries_checksum {
        return None;
    }
    let mut position = PAGE;
    let mut entries = Vec::with_capacity(trailer.entries as usize);
    for slot in bytes.chunks_exact(FOOTER_ENTRY_BYTES) {
        let entry = FooterEntry {
            offset: u64_at(slot, 0)?,
            extent_bytes: u64_at(slot, 8)?,
            version: u64_at(slot, 16)?,
            kind: match slot[24] {
                1 => ExtentKind::Put,
                2 => ExtentKind::Region,
                _ => return None,
            },
        };
        let end = entry.offset.checked_add(entry.extent_bytes)?;
        let ordered = entry.offset.is_multiple_of(PAGE) && entry.offset >= position && end <= trailer.footer_offset;
        if !ordered || !is_zero(&slot[25..]) {
            return None;
        }
        position = end;
        entries.push(entry);
    }
    Some(entries)
}
