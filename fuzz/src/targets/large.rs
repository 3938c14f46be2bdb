//! Targets of the large space.

use super::{as_is_and_signed, sign_at};
use terrace::{
    VALUE_BYTES_MAX,
    blocks::{
        format::{
            BlockHeader, CHUNK_DATA_BYTES, FOOTER_ENTRY_BYTES, Place, TRAILER_BYTES, decode_block_header, decode_chunk,
            decode_footer, decode_record_header, decode_trailer, encode_block_header, encode_footer,
            encode_record_header,
        },
        meta::{decode_meta, encode_meta},
    },
    io::{AlignedBuffer, PAGE_BYTES},
};

/// Where the bytes of these targets are said to lie.
pub const PLACE: Place = Place {
    store_id: 0x1122_3344_5566_7788,
    block: 0x0A0B,
    offset: 0x3000,
};

/// The block of these targets.
pub const BLOCK: BlockHeader = BlockHeader {
    store_id: PLACE.store_id,
    block: PLACE.block,
};

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..at + 8)?;
    Some(u64::from_le_bytes(field.try_into().ok()?))
}

/// A block header that is read encodes to the page it was read from.
///
/// # Panics
/// If a property is broken.
pub fn block_header(data: &[u8]) -> bool {
    let check = |bytes: &[u8]| {
        let header = decode_block_header(bytes);
        if let Some(header) = header {
            assert_eq!(encode_block_header(header)[..], bytes[..PAGE_BYTES], "not canonical");
        }
        header.is_some()
    };
    as_is_and_signed(data, check, |bytes| {
        bytes.resize(PAGE_BYTES, 0);
        sign_at(bytes, 32, 0..32);
    })
}

/// A record header that is read encodes to the bytes it was read from, and passes at no other
/// place.
///
/// # Panics
/// If a property is broken.
pub fn large_record_header(data: &[u8]) -> bool {
    let check = |bytes: &[u8]| {
        let Some(header) = decode_record_header(bytes, PLACE) else {
            return false;
        };
        assert!(header.length <= VALUE_BYTES_MAX && !header.key.is_empty());
        let elsewhere = Place {
            offset: PLACE.offset + 64,
            ..PLACE
        };
        assert_eq!(decode_record_header(bytes, elsewhere), None, "it passes elsewhere");
        let mut encoded = AlignedBuffer::new();
        encode_record_header(
            &mut encoded,
            PLACE,
            header.kind,
            header.ticket,
            header.length,
            &header.key,
            &header.attributes,
        );
        assert_eq!(encoded[..], bytes[..encoded.len()], "not canonical");
        true
    };
    as_is_and_signed(data, check, |bytes| {
        if bytes.len() < 48 {
            return;
        }
        bytes[32..40].copy_from_slice(&PLACE.block.to_le_bytes());
        bytes[40..48].copy_from_slice(&PLACE.offset.to_le_bytes());
        bytes[12..16].fill(0);
        let key_bytes = usize::from(u16::from_le_bytes([bytes[6], bytes[7]]));
        let attributes_bytes = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize;
        let end = (48 + key_bytes).saturating_add(attributes_bytes).min(bytes.len());
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&PLACE.store_id.to_le_bytes()), &bytes[..end]);
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
    })
}

/// A chunk gives its data, all but the checksum, and passes under no other number.
///
/// # Panics
/// If a property is broken.
pub fn chunk(data: &[u8]) -> bool {
    let seed = PLACE.chunk_seed();
    let check = |bytes: &[u8]| {
        let Some(found) = decode_chunk(bytes, seed, 5) else {
            return false;
        };
        assert!(!found.is_empty() && found.len() <= CHUNK_DATA_BYTES);
        assert_eq!(found, &bytes[..bytes.len() - 4]);
        assert_eq!(decode_chunk(bytes, seed, 6), None, "a chunk knows its place");
        true
    };
    as_is_and_signed(data, check, |bytes| {
        let Some(end) = bytes.len().checked_sub(4) else { return };
        let start = crc32c::crc32c_append(seed, &5_u64.to_le_bytes());
        let checksum = crc32c::crc32c_append(start, &bytes[..end]);
        bytes[end..].copy_from_slice(&checksum.to_le_bytes());
    })
}

/// A trailer that is read is that of this block and of a footer that ends where the block ends.
///
/// # Panics
/// If a property is broken.
pub fn trailer(data: &[u8]) -> bool {
    as_is_and_signed(data, check_trailer, |bytes| sign_trailer(bytes))
}

fn check_trailer(bytes: &[u8]) -> bool {
    let Some(start) = bytes.len().checked_sub(TRAILER_BYTES) else {
        return false;
    };
    let offset = u64_at(bytes, start + 16).unwrap_or_default();
    let Some(block_bytes) = offset.checked_add(bytes.len() as u64) else {
        return decode_trailer(bytes, BLOCK, u64::MAX).is_some();
    };
    let Some(trailer) = decode_trailer(bytes, BLOCK, block_bytes) else {
        return false;
    };
    assert_eq!(trailer.footer_offset, offset);
    assert!(trailer.entries as usize * FOOTER_ENTRY_BYTES + TRAILER_BYTES <= bytes.len());
    assert_eq!(decode_trailer(bytes, BLOCK, block_bytes + PAGE_BYTES as u64), None);
    true
}

/// Makes the last bytes a trailer of this block, its checksum right.
fn sign_trailer(bytes: &mut [u8]) {
    let Some(start) = bytes.len().checked_sub(TRAILER_BYTES) else {
        return;
    };
    let trailer = &mut bytes[start..];
    trailer[24..32].copy_from_slice(&BLOCK.store_id.to_le_bytes());
    trailer[32..40].copy_from_slice(&BLOCK.block.to_le_bytes());
    sign_at(trailer, 60, 0..60);
}

/// A footer that is read has its extents in order, inside the block, and encodes to one that reads
/// the same.
///
/// # Panics
/// If a property is broken.
pub fn footer(data: &[u8]) -> bool {
    as_is_and_signed(data, check_footer, |bytes| {
        let Some(start) = bytes.len().checked_sub(TRAILER_BYTES) else {
            return;
        };
        let mut count = [0; 4];
        count.copy_from_slice(&bytes[start + 12..start + 16]);
        let entries_bytes = (u32::from_le_bytes(count) as usize).saturating_mul(FOOTER_ENTRY_BYTES);
        if entries_bytes <= start {
            sign_at(bytes, start + 40, 0..entries_bytes);
        }
        sign_trailer(bytes);
    })
}

fn check_footer(bytes: &[u8]) -> bool {
    if !check_trailer(bytes) {
        return false;
    }
    let offset = u64_at(bytes, bytes.len() - TRAILER_BYTES + 16).unwrap_or_default();
    let Some(trailer) = decode_trailer(bytes, BLOCK, offset.saturating_add(bytes.len() as u64)) else {
        return false;
    };
    let Some(entries) = decode_footer(bytes, &trailer) else {
        return false;
    };
    let mut end = 0;
    for entry in &entries {
        assert!(
            entry.offset >= end && entry.offset.is_multiple_of(PAGE_BYTES as u64),
            "out of order"
        );
        end = entry.offset + entry.extent_bytes;
        assert!(end <= offset, "beyond the footer");
    }
    let encoded = encode_footer(BLOCK, offset, &entries);
    let again = decode_trailer(&encoded, BLOCK, offset + encoded.len() as u64).expect("what encode writes reads");
    assert_eq!(decode_footer(&encoded, &again), Some(entries));
    true
}

/// A LargeMeta that is read encodes to the bytes it was read from.
///
/// # Panics
/// If a property is broken.
pub fn large_meta(data: &[u8]) -> bool {
    let check = |bytes: &[u8]| {
        let Some(meta) = decode_meta(bytes) else {
            return false;
        };
        assert!(meta.blocks.keys().all(|number| *number < meta.next_block));
        assert_eq!(encode_meta(&meta), bytes, "not canonical");
        true
    };
    as_is_and_signed(data, check, |bytes| {
        let end = bytes.len().saturating_sub(4);
        sign_at(bytes, end, 0..end);
    })
}
