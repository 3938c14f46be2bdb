//! The table of contents at the end of a segment of copies, from which they are found again after an open.
//!
//! Its checksum covers the store, the segment and its generation. That the copies it names are whole it does not promise: their own
//! checksums tell.

use super::Slice;
use crate::io::{AlignedBuffer, PAGE_BYTES};

const MAGIC: [u8; 8] = *b"TRCCOPYS";
/// Magic, CRC-32C u32, count u32, store id u64, generation u64, segment u32, bytes of the items u32.
const HEAD_BYTES: usize = 40;
/// Block u64, offset u64, slice u32, at u32 in pages, bytes u32, length of the key u16, passing u8, zero u8.
const ITEM_BYTES: usize = 32;

/// Bytes a segment keeps for its contents.
#[must_use]
pub(super) fn contents_bytes(segment_bytes: u64) -> u64 {
    (segment_bytes / 64).max(16 << 10).next_multiple_of(PAGE_BYTES as u64)
}

/// Whose contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    /// The store.
    pub store_id: u64,
    /// Number of the segment.
    pub segment: u32,
    /// Generation of this use of it.
    pub generation: u64,
}

/// One copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    /// Of what.
    pub slice: Slice,
    /// Where in the segment, in bytes; a multiple of a page.
    pub at: u64,
    /// How long.
    pub bytes: u32,
    /// For a reader on its way.
    pub is_passing: bool,
    /// The object's key.
    pub key: Box<[u8]>,
}

impl Item {
    /// Bytes of the item in the table.
    pub fn stored_bytes(key_bytes: usize) -> usize {
        (ITEM_BYTES + key_bytes).next_multiple_of(8)
    }
}

/// Collects the items of a segment.
#[derive(Debug)]
pub(super) struct Contents {
    bytes: Vec<u8>,
    count: u32,
    bytes_max: usize,
}

impl Contents {
    /// An empty table for segments of this length.
    #[allow(clippy::cast_possible_truncation)] // at most 16 MiB
    pub fn new(segment_bytes: u64) -> Self {
        Self {
            bytes: Vec::new(),
            count: 0,
            bytes_max: contents_bytes(segment_bytes) as usize - HEAD_BYTES,
        }
    }

    /// Whether an item with a key of this length still fits.
    pub fn has_room(&self, key_bytes: usize) -> bool {
        self.bytes.len() + Item::stored_bytes(key_bytes) <= self.bytes_max
    }

    /// Adds an item.
    #[allow(clippy::cast_possible_truncation)] // a key is shorter than 64 KiB, a segment than 2^32 pages
    pub fn push(&mut self, item: &Item) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&item.slice.block.to_le_bytes());
        self.bytes.extend_from_slice(&item.slice.offset.to_le_bytes());
        self.bytes.extend_from_slice(&item.slice.number.to_le_bytes());
        self.bytes
            .extend_from_slice(&((item.at / PAGE_BYTES as u64) as u32).to_le_bytes());
        self.bytes.extend_from_slice(&item.bytes.to_le_bytes());
        self.bytes.extend_from_slice(&(item.key.len() as u16).to_le_bytes());
        self.bytes.extend_from_slice(&[u8::from(item.is_passing), 0]);
        self.bytes.extend_from_slice(&item.key);
        self.bytes.resize(start + Item::stored_bytes(item.key.len()), 0);
        self.count += 1;
    }

    /// The table's bytes, padded to pages.
    #[allow(clippy::cast_possible_truncation)] // at most 16 MiB
    pub fn encode(&self, owner: Owner) -> AlignedBuffer {
        let mut out = AlignedBuffer::with_capacity((HEAD_BYTES + self.bytes.len()).next_multiple_of(PAGE_BYTES));
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.count.to_le_bytes());
        out.extend_from_slice(&owner.store_id.to_le_bytes());
        out.extend_from_slice(&owner.generation.to_le_bytes());
        out.extend_from_slice(&owner.segment.to_le_bytes());
        out.extend_from_slice(&(self.bytes.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.bytes);
        let checksum = crc32c::crc32c(&out[12..]);
        out[8..12].copy_from_slice(&checksum.to_le_bytes());
        out.pad_to_page();
        out
    }
}

/// Reads a table. `None` if it is not this segment's, of another use of it, or damaged.
#[must_use]
pub(super) fn decode(bytes: &[u8], owner: Owner) -> Option<Vec<Item>> {
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let end = HEAD_BYTES.checked_add(word(36)? as usize)?;
    let is_ours = bytes.starts_with(&MAGIC)
        && long(16)? == owner.store_id
        && long(24)? == owner.generation
        && word(32)? == owner.segment;
    if !is_ours || crc32c::crc32c(bytes.get(12..end)?) != word(8)? {
        return None;
    }
    let mut items = Vec::new();
    let mut at = HEAD_BYTES;
    for _ in 0..word(12)? {
        let key_bytes = u16::from_le_bytes(bytes.get(at + 28..at + 30)?.try_into().ok()?) as usize;
        items.push(Item {
            slice: Slice {
                block: long(at)?,
                offset: long(at + 8)?,
                number: word(at + 16)?,
            },
            at: u64::from(word(at + 20)?) * PAGE_BYTES as u64,
            bytes: word(at + 24)?,
            is_passing: *bytes.get(at + 30)? != 0,
            key: bytes.get(at + ITEM_BYTES..at + ITEM_BYTES + key_bytes)?.into(),
        });
        at += Item::stored_bytes(key_bytes);
    }
    (at == end).then_some(items)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const OWNER: Owner = Owner {
        store_id: 7,
        segment: 3,
        generation: 9,
    };

    fn item(number: u32) -> Item {
        Item {
            slice: Slice {
                block: 5,
                offset: 4096 * u64::from(number + 1),
                number,
            },
            at: 8192,
            bytes: 12_288,
            is_passing: number % 2 == 1,
            key: vec![b'k'; number as usize * 3 + 1].into(),
        }
    }

    #[test]
    fn golden_bytes() {
        let mut contents = Contents::new(256 << 10);
        contents.push(&item(1));
        let bytes = contents.encode(OWNER);
        let hex: String = bytes[..HEAD_BYTES + 40]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(
            hex,
            concat!(
                "545243434f505953d0cd3d5c010000000700000000000000",
                "09000000000000000300000028000000",
                "0500000000000000002000000000000001000000020000000030000004000100",
                "6b6b6b6b00000000",
            )
        );
    }

    #[test]
    fn what_was_written_is_read() {
        let mut contents = Contents::new(256 << 10);
        let items: Vec<Item> = (0..20).map(item).collect();
        items.iter().for_each(|item| contents.push(item));
        let bytes = contents.encode(OWNER);
        assert!(bytes.len().is_multiple_of(PAGE_BYTES));
        assert_eq!(decode(&bytes, OWNER).unwrap(), items);
        for other in [
            Owner { store_id: 8, ..OWNER },
            Owner { segment: 4, ..OWNER },
            Owner {
                generation: 10,
                ..OWNER
            },
        ] {
            assert_eq!(decode(&bytes, other), None);
        }
    }

    #[test]
    fn no_flipped_bit_passes_and_nothing_panics() {
        let mut contents = Contents::new(256 << 10);
        (0..3).for_each(|number| contents.push(&item(number)));
        let bytes = contents.encode(OWNER).to_vec();
        let used = HEAD_BYTES + contents.bytes.len();
        for bit in 0..used * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&flipped, OWNER), None, "bit {bit}");
        }
        for end in 0..used {
            assert_eq!(decode(&bytes[..end], OWNER), None);
        }
    }

    #[test]
    fn a_full_table_takes_no_more() {
        let mut contents = Contents::new(256 << 10);
        while contents.has_room(100) {
            contents.push(&Item {
                key: vec![0; 100].into(),
                ..item(0)
            });
        }
        assert!(contents.encode(OWNER).len() as u64 <= contents_bytes(256 << 10));
    }
}
