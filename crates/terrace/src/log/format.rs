//! Bytes of the flash log: segment headers, frame headers, records. docs/format.md is normative.
//!
//! ```text
//! segment = header page, frame, frame, ...
//! frame   = header (64 bytes), record, record, ..., zeros to the end of a page
//! record  = header (32 bytes), extension, key, attributes, value, zeros to a multiple of 16
//!
//! header of a record, by offset:
//!    0  checksum of all from byte 4 to the value   16  length of the attributes, u32
//!    4  kind, then a zero                          20  length of the value, u32
//!    6  length of the key, u16                     24  checksum of the value
//!    8  seq, u64                                   28  low half of the generation, u32
//!
//! extension, by kind, in u64:
//!    put to a block                block, offset, extent's length, value's length
//!    move in the log, drop         version, 0
//!    move to a block               version, 0, block, offset, extent's length, value's length
//! ```
//!
//! Invariants:
//! - Little-endian; reserved bytes are zero; zero is never a kind or a magic.
//! - A segment begins with one header page; frames follow, each starting at a page boundary and
//!   padded to one.
//! - A record starts at a multiple of [`RECORD_UNIT_BYTES`]. Its header checksum covers header,
//!   extension, key and attributes; the value has its own checksum, which the header (and so the
//!   header checksum) holds.
//! - A frame is valid if its header is and every record in it decodes and exactly fills the
//!   payload. A batch is always inside one frame, so it is in the log whole or not at all.
//!
//! Decoders take any bytes: they return `None` and never panic.

pub use crate::api::object::Extent;
use crate::{
    codec::{Reader, is_zero, put_u16, put_u32, put_u64, u32_at, u64_at},
    io::PAGE_BYTES,
    mutation::{Mutation, active},
};

/// First bytes of a segment.
pub const SEGMENT_MAGIC: [u8; 8] = *b"TERRSEG1";
/// First bytes of a frame.
pub const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"FRM1");
/// Version of the format written by this code.
pub const FORMAT_VERSION: u32 = 1;
/// Length of a frame header in bytes.
pub const FRAME_HEADER_BYTES: usize = 64;
/// Length of a record header in bytes, without its extension.
pub const RECORD_HEADER_BYTES: usize = 32;
/// Bytes of the extension of a record that moves a value within the log.
pub const MOVE_EXTENSION_BYTES: usize = 16;
/// Bytes of an extent in an extension.
const EXTENT_BYTES: usize = 32;
/// Records start at multiples of this many bytes.
pub const RECORD_UNIT_BYTES: usize = 16;

/// What a segment is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum SegmentUse {
    /// Frames of the log.
    #[default]
    Log = 0,
    /// Copies of extents of the large space.
    Copies = 1,
}

/// The header page of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The store it belongs to.
    pub store_id: u64,
    /// Its number in the ring.
    pub number: u32,
    /// Counts every use of any segment; frames contain it, so that those of an earlier use are
    /// never valid.
    pub generation: u64,
    /// Lowest seq that may be in it.
    pub first_seq: u64,
    /// Length of every segment of the store.
    pub segment_bytes: u64,
    /// What is in it.
    pub segment_use: SegmentUse,
}

impl SegmentHeader {
    /// The header page.
    pub fn encode(&self) -> [u8; PAGE_BYTES] {
        let mut page = [0; PAGE_BYTES];
        page[..8].copy_from_slice(&SEGMENT_MAGIC);
        put_u32(&mut page, 12, FORMAT_VERSION);
        put_u64(&mut page, 16, self.store_id);
        put_u32(&mut page, 24, self.number);
        put_u32(&mut page, 28, self.segment_use as u32);
        put_u64(&mut page, 32, self.generation);
        put_u64(&mut page, 40, self.first_seq);
        put_u64(&mut page, 48, self.segment_bytes);
        let checksum = crc32c::crc32c(&page[12..]);
        put_u32(&mut page, 8, checksum);
        page
    }

    /// Reads a header page.
    pub fn decode(page: &[u8]) -> Option<Self> {
        if page.len() != PAGE_BYTES
            || page[..8] != SEGMENT_MAGIC
            || u32_at(page, 8)? != crc32c::crc32c(&page[12..])
            || u32_at(page, 12)? != FORMAT_VERSION
            || !is_zero(&page[56..])
        {
            return None;
        }
        let segment_use = match u32_at(page, 28)? {
            0 => SegmentUse::Log,
            1 => SegmentUse::Copies,
            _ => return None,
        };
        Some(Self {
            segment_use,
            store_id: u64_at(page, 16)?,
            number: u32_at(page, 24)?,
            generation: u64_at(page, 32)?,
            first_seq: u64_at(page, 40)?,
            segment_bytes: u64_at(page, 48)?,
        })
    }
}

/// The header of a frame, the unit of group commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// Generation of the segment the frame was written in.
    pub generation: u64,
    /// Seq of its first record.
    pub first_seq: u64,
    /// Seq of its last record.
    pub last_seq: u64,
    /// Bytes of records after the header, before the padding.
    pub payload_bytes: u32,
    /// Number of records.
    pub record_count: u32,
    /// Everything up to this seq was durable when the frame was written. With it, recovery
    /// distinguishes a bad frame before this one that was never synced from damage.
    pub durable_seq: u64,
}

impl FrameHeader {
    /// The header's bytes.
    pub fn encode(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        put_u32(&mut bytes, 0, FRAME_MAGIC);
        put_u64(&mut bytes, 8, self.generation);
        put_u64(&mut bytes, 16, self.first_seq);
        put_u64(&mut bytes, 24, self.last_seq);
        put_u32(&mut bytes, 32, self.payload_bytes);
        put_u32(&mut bytes, 36, self.record_count);
        put_u64(&mut bytes, 40, self.durable_seq);
        let checksum = crc32c::crc32c(&bytes[8..]);
        put_u32(&mut bytes, 4, checksum);
        bytes
    }

    /// Reads a header from the start of `bytes`.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..FRAME_HEADER_BYTES)?;
        if u32_at(bytes, 0)? != FRAME_MAGIC || u32_at(bytes, 4)? != crc32c::crc32c(&bytes[8..]) {
            return None;
        }
        let header = Self {
            generation: u64_at(bytes, 8)?,
            first_seq: u64_at(bytes, 16)?,
            last_seq: u64_at(bytes, 24)?,
            payload_bytes: u32_at(bytes, 32)?,
            record_count: u32_at(bytes, 36)?,
            durable_seq: u64_at(bytes, 40)?,
        };
        (header.first_seq <= header.last_seq && header.record_count > 0 && is_zero(&bytes[48..])).then_some(header)
    }

    /// Bytes of the frame on the device, header and padding included.
    pub const fn frame_bytes(&self) -> usize {
        (FRAME_HEADER_BYTES + self.payload_bytes as usize).next_multiple_of(PAGE_BYTES)
    }
}

const fn words(extent: &Extent) -> [u64; 4] {
    [extent.block, extent.offset, extent.extent_bytes, extent.length]
}

/// Operation of a record on its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body<'a> {
    /// The value is in the record, and lives there.
    Put {
        /// The value.
        value: &'a [u8],
    },
    /// The value is in the record, but lives in the ordered index.
    PutInline {
        /// The value.
        value: &'a [u8],
    },
    /// The value is in the large space, durable before this record was written.
    PutLarge {
        /// Its place.
        extent: Extent,
    },
    /// The key is deleted.
    Delete,
    /// A move: the value of `version` lives here now (reinsertion).
    MoveToFlash {
        /// The version that moved.
        version: u64,
        /// The value.
        value: &'a [u8],
    },
    /// A move: the value of `version` lives in the large space now (destaging).
    MoveToBlock {
        /// The version that moved.
        version: u64,
        /// Its place.
        extent: Extent,
    },
    /// The value of `version` is no longer needed.
    Drop {
        /// The version that is dropped.
        version: u64,
    },
    /// All keys from the record's key up to, but not including, `end` are deleted.
    DeleteRange {
        /// The first key after the range, or empty: no upper bound.
        end: &'a [u8],
    },
}

/// Kinds of records as they are stored.
mod kind {
    pub const PUT: u8 = 1;
    pub const PUT_INLINE: u8 = 2;
    pub const PUT_LARGE: u8 = 3;
    pub const DELETE: u8 = 4;
    pub const MOVE_TO_FLASH: u8 = 5;
    pub const MOVE_TO_BLOCK: u8 = 6;
    pub const DROP: u8 = 7;
    pub const DELETE_RANGE: u8 = 8;
}

impl<'a> Body<'a> {
    const fn kind(&self) -> u8 {
        match self {
            Self::Put { .. } => kind::PUT,
            Self::PutInline { .. } => kind::PUT_INLINE,
            Self::PutLarge { .. } => kind::PUT_LARGE,
            Self::Delete => kind::DELETE,
            Self::MoveToFlash { .. } => kind::MOVE_TO_FLASH,
            Self::MoveToBlock { .. } => kind::MOVE_TO_BLOCK,
            Self::Drop { .. } => kind::DROP,
            Self::DeleteRange { .. } => kind::DELETE_RANGE,
        }
    }

    /// The value bytes that are in the log.
    pub const fn value(&self) -> &'a [u8] {
        match self {
            Self::Put { value } | Self::PutInline { value } | Self::MoveToFlash { value, .. } => value,
            Self::DeleteRange { end } => end,
            Self::PutLarge { .. } | Self::Delete | Self::MoveToBlock { .. } | Self::Drop { .. } => &[],
        }
    }

    /// Whether this is a move, not a user's commit.
    pub const fn is_move(&self) -> bool {
        matches!(
            self,
            Self::MoveToFlash { .. } | Self::MoveToBlock { .. } | Self::Drop { .. }
        )
    }

    /// Whether this record, as the newest one of its key, decides the key's state. A move takes
    /// effect only if the entry still has its version, which the applier decides; a range deletion
    /// has no single key.
    pub const fn answers_for_key(&self) -> bool {
        !self.is_move() && !matches!(self, Self::DeleteRange { .. })
    }

    /// Whether applying it gives a key another version or value, or removes the key. No object has
    /// version 0: a drop of it only gives the applier a turn.
    pub const fn changes_object(&self) -> bool {
        self.answers_for_key() || matches!(self, Self::Drop { version: 1.. })
    }

    /// Whether this record, if it is the newest one of its value, is the value's home: only such
    /// records are read by address.
    pub const fn is_home(&self) -> bool {
        matches!(self, Self::Put { .. } | Self::MoveToFlash { .. })
    }

    /// Whether it has the location of a value.
    pub const fn names_value(&self) -> bool {
        !matches!(self, Self::Delete | Self::Drop { .. } | Self::DeleteRange { .. })
    }
}

/// Bytes between header and key, by kind. `None` for a kind that does not exist.
const fn extension_bytes(kind: u8) -> Option<usize> {
    match kind {
        kind::PUT | kind::PUT_INLINE | kind::DELETE | kind::DELETE_RANGE => Some(0),
        kind::PUT_LARGE => Some(EXTENT_BYTES),
        kind::MOVE_TO_FLASH | kind::DROP => Some(MOVE_EXTENSION_BYTES),
        kind::MOVE_TO_BLOCK => Some(MOVE_EXTENSION_BYTES + EXTENT_BYTES),
        _ => None,
    }
}

/// Whether records of this kind hold a value.
const fn holds_value(kind: u8) -> bool {
    matches!(
        kind,
        kind::PUT | kind::PUT_INLINE | kind::MOVE_TO_FLASH | kind::DELETE_RANGE
    )
}

/// A record as it is appended to the log and as it is read from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Seq of the commit.
    pub seq: u64,
    /// Low half of the segment's generation.
    pub generation: u32,
    /// The key.
    pub key: &'a [u8],
    /// Encoded attributes.
    pub attributes: &'a [u8],
    /// CRC-32C of the value, wherever it lives; zero for a delete and a drop.
    pub checksum: u32,
    /// Its operation.
    pub body: Body<'a>,
}

impl<'a> Record<'a> {
    /// A record to be committed, which sets its seq, with the checksum of the value in it; for a
    /// record whose value is elsewhere, that value's checksum.
    pub fn new(key: &'a [u8], attributes: &'a [u8], body: Body<'a>) -> Self {
        Self {
            seq: 0,
            generation: 0,
            key,
            attributes,
            checksum: crc32c::crc32c(body.value()),
            body,
        }
    }

    /// Version of the object this record holds: its own seq, or the one that moved.
    pub const fn version(&self) -> u64 {
        match self.body {
            Body::MoveToFlash { version, .. } | Body::MoveToBlock { version, .. } | Body::Drop { version } => version,
            _ => self.seq,
        }
    }

    /// Bytes in the log, padding to the next record included.
    pub const fn record_bytes(&self) -> usize {
        let extension = match extension_bytes(self.body.kind()) {
            Some(bytes) => bytes,
            None => 0,
        };
        (RECORD_HEADER_BYTES + extension + self.key.len() + self.attributes.len() + self.body.value().len())
            .next_multiple_of(RECORD_UNIT_BYTES)
    }

    /// Writes the record into `out`, which is exactly [`Record::record_bytes`] long.
    // Lengths are bounded by the store's limits, far below 4 GiB.
    pub fn encode_into(&self, out: &mut [u8]) {
        let kind = self.body.kind();
        let value = self.body.value();
        out[4] = kind;
        out[5] = 0;
        put_u16(out, 6, self.key.len() as u16);
        put_u64(out, 8, self.seq);
        put_u32(out, 16, self.attributes.len() as u32);
        put_u32(out, 20, value.len() as u32);
        put_u32(out, 24, self.checksum);
        put_u32(out, 28, self.generation);
        let mut at = RECORD_HEADER_BYTES;
        let (version, extent) = match self.body {
            Body::PutLarge { extent } => (None, Some(extent)),
            Body::MoveToFlash { version, .. } | Body::Drop { version } => (Some(version), None),
            Body::MoveToBlock { version, extent } => (Some(version), Some(extent)),
            Body::Put { .. } | Body::PutInline { .. } | Body::Delete | Body::DeleteRange { .. } => (None, None),
        };
        let version = version.map(|version| [version, 0]);
        let extent = extent.as_ref().map(words);
        for word in version.into_iter().flatten().chain(extent.into_iter().flatten()) {
            put_u64(out, at, word);
            at += 8;
        }
        out[at..at + self.key.len()].copy_from_slice(self.key);
        at += self.key.len();
        out[at..at + self.attributes.len()].copy_from_slice(self.attributes);
        at += self.attributes.len();
        let header_checksum = crc32c::crc32c(&out[4..at]);
        put_u32(out, 0, header_checksum);
        out[at..at + value.len()].copy_from_slice(value);
        out[at + value.len()..].fill(0);
    }

    /// Reads a record's header, key and attributes from the start of `bytes` and checks them; the
    /// value is not checked. `bytes` may be longer than the record.
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let record = Self::parse(bytes)?;
        let covered = RecordLayout::read(bytes)?.value_at;
        (u32_at(bytes, 0)? == crc32c::crc32c(&bytes[4..covered])).then_some(record)
    }

    /// Like [`Record::decode`] for bytes this process encoded or has already checked.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let layout = RecordLayout::read(bytes)?;
        let end = layout.value_at.checked_add(layout.value_bytes)?;
        let padding = bytes.get(end..layout.record_bytes())?;
        let is_move = matches!(layout.kind, kind::MOVE_TO_FLASH | kind::MOVE_TO_BLOCK | kind::DROP);
        let is_reserved_zero = !is_move || u64_at(bytes, RECORD_HEADER_BYTES + 8)? == 0;
        if !is_zero(padding) || !is_reserved_zero {
            return None;
        }
        let value = &bytes[layout.value_at..end];
        if layout.kind == kind::DELETE_RANGE
            && !value.is_empty()
            && value <= &bytes[layout.key_at..layout.attributes_at]
        {
            return None;
        }
        let extent_at = |at: usize| {
            let mut words = Reader(bytes.get(at..)?);
            Some(Extent {
                block: words.u64()?,
                offset: words.u64()?,
                extent_bytes: words.u64()?,
                length: words.u64()?,
            })
        };
        let body = match layout.kind {
            kind::PUT => Body::Put { value },
            kind::PUT_INLINE => Body::PutInline { value },
            kind::PUT_LARGE => Body::PutLarge {
                extent: extent_at(RECORD_HEADER_BYTES)?,
            },
            kind::DELETE => Body::Delete,
            kind::MOVE_TO_FLASH => Body::MoveToFlash {
                version: u64_at(bytes, RECORD_HEADER_BYTES)?,
                value,
            },
            kind::MOVE_TO_BLOCK => Body::MoveToBlock {
                version: u64_at(bytes, RECORD_HEADER_BYTES)?,
                extent: extent_at(RECORD_HEADER_BYTES + MOVE_EXTENSION_BYTES)?,
            },
            kind::DROP => Body::Drop {
                version: u64_at(bytes, RECORD_HEADER_BYTES)?,
            },
            kind::DELETE_RANGE => Body::DeleteRange { end: value },
            _ => return None,
        };
        Some(Self {
            seq: u64_at(bytes, 8)?,
            generation: u32_at(bytes, 28)?,
            key: &bytes[layout.key_at..layout.attributes_at],
            attributes: &bytes[layout.attributes_at..layout.value_at],
            checksum: u32_at(bytes, 24)?,
            body,
        })
    }

    /// Whether the value in the log matches its checksum (true where there is none).
    pub fn value_matches(&self) -> bool {
        match self.body {
            Body::Put { value } | Body::PutInline { value } | Body::MoveToFlash { value, .. } => {
                crc32c::crc32c(value) == self.checksum
            }
            Body::DeleteRange { end } => crc32c::crc32c(end) == self.checksum,
            _ => true,
        }
    }
}

/// Length of a put's record, padding included.
pub const fn put_bytes(key_bytes: usize, attributes_bytes: usize, value_bytes: u64) -> u64 {
    let head_bytes = (RECORD_HEADER_BYTES + key_bytes + attributes_bytes) as u64;
    (head_bytes + value_bytes).next_multiple_of(RECORD_UNIT_BYTES as u64)
}

/// Maximum length of the record of a value in the log, padding included, computed from its entry: a
/// moved record is a little longer than the one that was put.
pub const fn record_bytes_max(key_bytes: usize, attributes_bytes: usize, value_bytes: u64) -> u64 {
    let head_bytes = RECORD_HEADER_BYTES + MOVE_EXTENSION_BYTES + key_bytes + attributes_bytes;
    (head_bytes as u64 + value_bytes).next_multiple_of(RECORD_UNIT_BYTES as u64)
}

/// Layout of a record; enough to know how much must be read.
#[derive(Debug, Clone, Copy)]
pub struct RecordLayout {
    kind: u8,
    key_at: usize,
    attributes_at: usize,
    /// Where the value starts; the header's checksum covers what is before.
    pub value_at: usize,
    value_bytes: usize,
}

impl RecordLayout {
    /// Reads the lengths from a record's first [`RECORD_HEADER_BYTES`].
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let header = bytes.get(..RECORD_HEADER_BYTES)?;
        let kind = header[4];
        let key_bytes = usize::from(u16::from_le_bytes([header[6], header[7]]));
        let attributes_bytes = u32_at(header, 16)? as usize;
        if key_bytes == 0
            || key_bytes > crate::KEY_BYTES_MAX
            || attributes_bytes > crate::ATTRIBUTES_BYTES_MAX
            || header[5] != 0
        {
            return None;
        }
        let value_bytes = u32_at(header, 20)? as usize;
        let has_too_much = (value_bytes > 0 && !holds_value(kind))
            || (matches!(kind, kind::DELETE | kind::DROP) && (attributes_bytes > 0 || u32_at(header, 24)? != 0))
            || (kind == kind::DELETE_RANGE && (attributes_bytes > 0 || value_bytes > crate::KEY_BYTES_MAX));
        if has_too_much {
            return None;
        }
        let key_at = RECORD_HEADER_BYTES + extension_bytes(kind)?;
        let attributes_at = key_at + key_bytes;
        Some(Self {
            kind,
            key_at,
            attributes_at,
            value_at: attributes_at + attributes_bytes,
            value_bytes,
        })
    }

    /// Bytes of the whole record, padding included.
    pub const fn record_bytes(&self) -> usize {
        (self.value_at + self.value_bytes).next_multiple_of(RECORD_UNIT_BYTES)
    }
}

/// Iterates over the records in a frame's payload without checking checksums; ends at the first
/// that does not parse. Yields the offset of each record within the payload.
pub fn records(payload: &[u8]) -> impl Iterator<Item = (usize, Record<'_>)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let record = Record::parse(payload.get(at..)?)?;
        let offset = at;
        at += record.record_bytes();
        Some((offset, record))
    })
}

/// Checks a whole frame: header, every record, every value. Returns the header if all are valid.
pub fn check_frame(bytes: &[u8], generation: u64) -> Option<FrameHeader> {
    let header = FrameHeader::decode(bytes)?;
    if header.generation != generation {
        return None;
    }
    let payload = bytes.get(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + header.payload_bytes as usize)?;
    let mut at = 0;
    let mut count = 0;
    while at < payload.len() {
        let record = if active(Mutation::FrameChecksum) {
            Record::parse(&payload[at..])?
        } else {
            Record::decode(&payload[at..])?
        };
        let low_generation = generation as u32;
        if record.generation != low_generation
            || record.seq < header.first_seq
            || record.seq > header.last_seq
            || !(record.value_matches() || active(Mutation::FrameChecksum))
        {
            return None;
        }
        at += record.record_bytes();
        count += 1;
    }
    (count == header.record_count).then_some(header)
}

/// Whether bytes look like the beginning of a frame of this generation, valid or not. No single
/// flipped bit hides both the magic and the generation.
pub fn looks_like_a_frame(page: &[u8], generation: u64) -> bool {
    let (Some(magic), Some(stored)) = (page.first_chunk::<4>(), page.get(8..16)) else {
        return false;
    };
    // A valid header with another generation is from an earlier use.
    stored == generation.to_le_bytes()
        || (u32::from_le_bytes(*magic) == FRAME_MAGIC && FrameHeader::decode(page).is_none())
}
