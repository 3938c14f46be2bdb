//! Targets of the ordered index and of the accounting kept beside it.

use super::as_is_and_signed;
use terrace::{
    ATTRIBUTES_BYTES_MAX, Attributes, VALUE_BYTES_MAX, fuzzing,
    ordered_index::{Entry, IndexMark, LostRange, StateCopy},
};

/// An entry that is read encodes to the bytes it was read from.
///
/// # Panics
/// If a property is broken.
pub fn index_entry(data: &[u8]) -> bool {
    let Some(entry) = Entry::decode(data) else {
        return false;
    };
    assert!(entry.length <= VALUE_BYTES_MAX && entry.attributes.len() <= ATTRIBUTES_BYTES_MAX);
    let mut encoded = Vec::new();
    entry.encode_into(&mut encoded);
    assert_eq!(encoded, data, "not canonical");
    true
}

/// A mark that is read encodes to the bytes it was read from.
///
/// # Panics
/// If a property is broken.
pub fn index_mark(data: &[u8]) -> bool {
    let check = |bytes: &[u8]| {
        let mark = IndexMark::decode(bytes);
        assert!(mark.as_ref().is_none_or(|mark| mark.encode() == bytes), "not canonical");
        mark.is_some()
    };
    as_is_and_signed(data, check, |bytes| {
        if bytes.len() >= 24 {
            let checksum = crc32c::crc32c_append(crc32c::crc32c(&bytes[..20]), &bytes[24..]);
            bytes[20..24].copy_from_slice(&checksum.to_le_bytes());
        }
    })
}

/// A lost range that is read encodes to the bytes it was read from.
///
/// # Panics
/// If a property is broken.
pub fn lost_range(data: &[u8]) -> bool {
    let check = |bytes: &[u8]| {
        let range = LostRange::decode(bytes);
        assert!(
            range
                .as_ref()
                .is_none_or(|range| range.encode() == bytes && range.first < range.end),
            "not canonical, or no range"
        );
        range.is_some()
    };
    as_is_and_signed(data, check, |bytes| {
        if let Some((covered, checksum)) = bytes.split_last_chunk_mut::<4>() {
            *checksum = crc32c::crc32c(covered).to_le_bytes();
        }
    })
}

/// A copy of the index's state that is read, in the current or the former format, encodes to
/// something that reads the same.
///
/// # Panics
/// If a property is broken.
pub fn state_copy(data: &[u8]) -> bool {
    let check = |bytes: &[u8]| {
        let copy = StateCopy::decode(bytes);
        if let Some(copy) = &copy {
            let again = StateCopy::decode(&copy.encode()).expect("what is encoded can be read");
            assert_eq!(again.encode(), copy.encode(), "it reads differently");
        }
        copy.is_some()
    };
    as_is_and_signed(data, check, |bytes| {
        if bytes.len() >= 24 {
            let checksum = xxhash_rust::xxh3::xxh3_128(&[&bytes[..8], &bytes[24..]].concat());
            bytes[8..24].copy_from_slice(&checksum.to_le_bytes());
        }
    })
}

/// What a mark holds encodes to something that reads the same; to the bytes it was read from, if
/// those are of the present format and their numbers are no longer than they must be.
///
/// # Panics
/// If a property is broken.
pub fn mark_payload(data: &[u8]) -> bool {
    let Some(encoded) = fuzzing::mark_payload(data) else {
        return false;
    };
    assert_eq!(
        fuzzing::mark_payload(&encoded).as_ref(),
        Some(&encoded),
        "it reads differently"
    );
    // Magic and version.
    if data.starts_with(&encoded[..12]) {
        assert!(encoded.len() <= data.len(), "the canonical form is longer");
    }
    true
}

/// An expiry that is read encodes to the bytes it was read from, in front of the attributes.
///
/// # Panics
/// If a property is broken.
pub fn expiry(data: &[u8]) -> bool {
    let Some((expires_ms, rest)) = fuzzing::split_expiry(data) else {
        return false;
    };
    let Some(attributes) = Attributes::decode(rest) else {
        return false;
    };
    if let Some(encoded) = fuzzing::encode_expiring(&attributes, expires_ms) {
        assert_eq!(
            encoded.len() - attributes.encode().map_or(0, |bytes| bytes.len()),
            data.len() - rest.len()
        );
        let again = fuzzing::split_expiry(&encoded).expect("what encode writes, split reads");
        assert_eq!(again.0, expires_ms);
        assert_eq!(
            encoded[..encoded.len() - again.1.len()],
            data[..data.len() - rest.len()],
            "not canonical"
        );
    }
    expires_ms.is_some()
}
