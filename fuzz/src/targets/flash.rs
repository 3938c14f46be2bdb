//! Targets of the flash log and of the manifests.

use super::{as_is_and_signed, sign_at};
use terrace::{
    KEY_BYTES_MAX, fuzzing,
    io::PAGE_BYTES,
    log::format::{
        FRAME_HEADER_BYTES, FrameHeader, RECORD_UNIT_BYTES, Record, RecordLayout, SegmentHeader, check_frame, records,
    },
};

/// What is read encodes to the bytes it was read from. `recode` decodes bytes, whose bytes 8 to 12
/// are the checksum of those behind, and encodes the result.
fn is_canonical(data: &[u8], recode: fn(&[u8]) -> Option<Vec<u8>>) -> bool {
    let check = |bytes: &[u8]| {
        let encoded = recode(bytes);
        assert!(
            encoded.as_deref().is_none_or(|encoded| encoded == bytes),
            "not canonical"
        );
        encoded.is_some()
    };
    as_is_and_signed(data, check, |bytes| {
        let end = bytes.len();
        sign_at(bytes, 8, 12..end);
    })
}

/// A manifest that is read encodes to the bytes it was read from.
///
/// # Panics
/// If a property is broken.
pub fn manifest(data: &[u8]) -> bool {
    is_canonical(data, fuzzing::manifest)
}

/// The same of a count of opens.
///
/// # Panics
/// If a property is broken.
pub fn open_count(data: &[u8]) -> bool {
    is_canonical(data, fuzzing::open_count)
}

/// What is read of a backup's manifest encodes to one that reads the same.
///
/// # Panics
/// If a property is broken.
pub fn backup_manifest(data: &[u8]) -> bool {
    let check = |bytes: &[u8]| {
        let Some(encoded) = fuzzing::backup_manifest(bytes) else {
            return false;
        };
        assert_eq!(
            fuzzing::backup_manifest(&encoded).as_ref(),
            Some(&encoded),
            "its own form reads differently"
        );
        true
    };
    as_is_and_signed(data, check, |bytes| {
        let lines = |bytes: &[u8]| {
            bytes
                .split_inclusive(|&byte| byte == b'\n')
                .map(<[u8]>::to_vec)
                .collect::<Vec<_>>()
        };
        let mut lines = lines(bytes);
        lines.pop();
        let files = lines.iter().filter(|line| line.starts_with(b"file ")).count();
        *bytes = lines.concat();
        bytes.extend_from_slice(fuzzing::backup_manifest_end(bytes, files).as_bytes());
    })
}

/// A segment header that is read encodes to the bytes it was read from.
///
/// # Panics
/// If a property is broken.
pub fn segment_header(data: &[u8]) -> bool {
    let check = |bytes: &[u8]| {
        let header = SegmentHeader::decode(bytes);
        assert!(header.is_none_or(|header| header.encode() == bytes), "not canonical");
        header.is_some()
    };
    as_is_and_signed(data, check, |bytes| {
        bytes.resize(PAGE_BYTES, 0);
        sign_at(bytes, 8, 12..PAGE_BYTES);
    })
}

/// A record that is read encodes to the bytes it was read from, and is no longer than what it was
/// read from.
///
/// # Panics
/// If a property is broken.
pub fn record(data: &[u8]) -> bool {
    as_is_and_signed(data, check_record, |bytes| sign_record(bytes))
}

fn check_record(bytes: &[u8]) -> bool {
    let whole = records(bytes).filter(|(_, record)| record.value_matches()).count();
    assert!(whole <= bytes.len() / RECORD_UNIT_BYTES, "records overlap");
    let Some(record) = Record::decode(bytes) else {
        return false;
    };
    assert!(
        (1..=KEY_BYTES_MAX).contains(&record.key.len()),
        "a key of a length no key has"
    );
    let length = record.record_bytes();
    let layout = RecordLayout::read(bytes).expect("a record that is read has a layout");
    assert_eq!(layout.record_bytes(), length, "layout and record disagree");
    let mut encoded = vec![0xAA; length];
    record.encode_into(&mut encoded);
    assert_eq!(encoded, bytes[..length], "not canonical");
    true
}

/// Puts the checksums of value and header right.
fn sign_record(bytes: &mut [u8]) {
    let Some(layout) = RecordLayout::read(bytes) else {
        return;
    };
    let value_at = layout.value_at;
    let value_bytes = u32::from_le_bytes([bytes[20], bytes[21], bytes[22], bytes[23]]) as usize;
    if value_bytes > 0 {
        sign_at(bytes, 24, value_at..value_at.saturating_add(value_bytes));
    }
    sign_at(bytes, 0, 4..value_at);
}

/// A frame that counts is made of whole records of its generation, in the number and range it says.
///
/// # Panics
/// If a property is broken.
pub fn frame(data: &[u8]) -> bool {
    as_is_and_signed(data, check_one_frame, |bytes| sign_frame(bytes))
}

fn check_one_frame(bytes: &[u8]) -> bool {
    let Some(claimed) = FrameHeader::decode(bytes) else {
        return false;
    };
    assert_eq!(claimed.encode(), bytes[..FRAME_HEADER_BYTES], "not canonical");
    assert_eq!(check_frame(bytes, !claimed.generation), None, "another generation's");
    let Some(header) = check_frame(bytes, claimed.generation) else {
        return false;
    };
    assert!(header.frame_bytes().is_multiple_of(PAGE_BYTES), "not whole pages");
    let end = FRAME_HEADER_BYTES + header.payload_bytes as usize;
    let mut next = 0;
    let mut count = 0;
    for (at, record) in records(&bytes[FRAME_HEADER_BYTES..end]) {
        assert_eq!(at, next, "a gap between records");
        assert!(record.value_matches() && (header.first_seq..=header.last_seq).contains(&record.seq));
        next = at + record.record_bytes();
        count += 1;
    }
    assert_eq!((count, next), (header.record_count, header.payload_bytes as usize));
    true
}

/// Makes the frame's records belong to it, and puts all checksums right.
fn sign_frame(bytes: &mut [u8]) {
    if bytes.len() < FRAME_HEADER_BYTES {
        return;
    }
    let payload_bytes = u32::from_le_bytes([bytes[32], bytes[33], bytes[34], bytes[35]]) as usize;
    let end = (FRAME_HEADER_BYTES + payload_bytes).min(bytes.len());
    let generation = [bytes[8], bytes[9], bytes[10], bytes[11]];
    let mut at = FRAME_HEADER_BYTES;
    while let Some(layout) = RecordLayout::read(&bytes[at..end]) {
        let next = at.saturating_add(layout.record_bytes());
        if next > end {
            break;
        }
        bytes[at + 28..at + 32].copy_from_slice(&generation);
        sign_record(&mut bytes[at..next]);
        at = next;
    }
    sign_at(bytes, 4, 8..FRAME_HEADER_BYTES);
}

/// A checkpoint of the hash index that is read is the one that is written of what was read.
///
/// # Panics
/// If a property is broken.
pub fn checkpoint(data: &[u8]) -> bool {
    let check = |bytes: &[u8]| {
        let written = fuzzing::checkpoint(bytes);
        assert!(
            written.as_deref().is_none_or(|written| written == bytes),
            "not canonical"
        );
        written.is_some()
    };
    as_is_and_signed(data, check, |bytes| sign_checkpoint(bytes))
}

/// Puts the length of the file, the numbers of its parts and all checksums right.
fn sign_checkpoint(bytes: &mut [u8]) {
    if bytes.len() < PAGE_BYTES {
        return;
    }
    let length = bytes.len() as u64;
    bytes[72..80].copy_from_slice(&length.to_le_bytes());
    sign_at(bytes, 8, 12..PAGE_BYTES);
    let mut at = PAGE_BYTES;
    for number in 0_u32.. {
        let Some(head) = bytes.get_mut(at..at + 16) else { return };
        let payload_bytes = u32::from_le_bytes([head[12], head[13], head[14], head[15]]) as usize;
        if payload_bytes == 0 {
            return;
        }
        head[8..12].copy_from_slice(&number.to_le_bytes());
        sign_at(bytes, at + 4, at + 8..at + 16 + payload_bytes);
        at = (at + 16 + payload_bytes).next_multiple_of(8);
    }
}
