//! Manifest: the value of an object whose bytes are in separate values, a list of these.
//!
//! A body longer than [`crate::write::WHOLE_BYTES_MAX`] is written as separate values before its
//! object exists, because the entity tag is known only at its end and parts arrive in any order.
//! Completing an upload writes this list and moves no data.
//!
//! Format, little-endian: `TMF1`, algorithm of the parts' checksums `u8` (0 none, else 1 + index in
//! [`Algorithm::ALL`]), encrypted or not `u8`, two zero bytes, number of parts `u32`; then for each
//! part its number `u16`, nonce `u32`, length before encryption `u64`, the salt of its key if
//! encrypted (16 bytes), and its checksum. The engine's checksum covers all of it; a list that does
//! not decode is corruption.

use super::checksum::{Algorithm, Checksum};

/// Bytes of the salt of a value's key.
pub const SALT_BYTES: usize = 16;
const MAGIC: &[u8; 4] = b"TMF1";
const HEAD_BYTES: usize = 12;
const PART_BYTES: usize = 14;
/// Most parts of an object.
pub const PARTS_MAX: usize = 10_000;
/// Longest list.
pub const MANIFEST_BYTES_MAX: u64 = (HEAD_BYTES + PARTS_MAX * (PART_BYTES + SALT_BYTES + 32)) as u64;

/// One value of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Part number in the upload; 1 for an object put in one request.
    pub number: u16,
    /// Last component of its key.
    pub nonce: u32,
    /// Length in bytes before encryption.
    pub length: u64,
    /// Salt of its key, if encrypted.
    pub salt: Option<[u8; SALT_BYTES]>,
    /// Its checksum, if the list has checksums.
    pub checksum: Option<Checksum>,
}

/// Encodes a list. Checksums are kept if every part has one of `algorithm`, and so are salts.
pub fn encode(parts: &[Part], algorithm: Option<Algorithm>) -> Vec<u8> {
    let of = |part: &Part, algorithm| matches!(&part.checksum, Some(checksum) if checksum.algorithm == algorithm);
    let algorithm = algorithm.filter(|algorithm| parts.iter().all(|part| of(part, *algorithm)));
    let position = algorithm.and_then(|algorithm| Algorithm::ALL.iter().position(|other| *other == algorithm));
    let code = position.map_or(0, |position| position as u8 + 1);
    let is_sealed = !parts.is_empty() && parts.iter().all(|part| part.salt.is_some());
    let mut out = Vec::with_capacity(HEAD_BYTES + parts.len() * part_bytes(algorithm, is_sealed));
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&[code, u8::from(is_sealed), 0, 0]);
    out.extend_from_slice(&(parts.len() as u32).to_le_bytes());
    for part in parts {
        out.extend_from_slice(&part.number.to_le_bytes());
        out.extend_from_slice(&part.nonce.to_le_bytes());
        out.extend_from_slice(&part.length.to_le_bytes());
        if let Some(salt) = part.salt.as_ref().filter(|_| is_sealed) {
            out.extend_from_slice(salt);
        }
        if let Some(checksum) = part.checksum.as_ref().filter(|_| algorithm.is_some()) {
            out.extend_from_slice(&checksum.value);
        }
    }
    out
}

fn part_bytes(algorithm: Option<Algorithm>, is_sealed: bool) -> usize {
    let salt_bytes = if is_sealed { SALT_BYTES } else { 0 };
    PART_BYTES + salt_bytes + algorithm.map_or(0, Algorithm::bytes)
}

/// Decodes a list. `None` if it is not valid.
pub fn decode(bytes: &[u8]) -> Option<Vec<Part>> {
    let (head, mut rest) = bytes.split_at_checked(HEAD_BYTES)?;
    if head[..4] != *MAGIC || head[5] > 1 || head[6..8] != [0, 0] {
        return None;
    }
    let is_sealed = head[5] == 1;
    let algorithm = match usize::from(head[4]) {
        0 => None,
        code => Some(*Algorithm::ALL.get(code - 1)?),
    };
    let count = u32::from_le_bytes(head[8..12].try_into().ok()?) as usize;
    let part_bytes = part_bytes(algorithm, is_sealed);
    if count > PARTS_MAX || rest.len() != count * part_bytes {
        return None;
    }
    let mut parts = Vec::with_capacity(count);
    let mut whole: u64 = 0;
    while !rest.is_empty() {
        let (part, after) = rest.split_at_checked(part_bytes)?;
        let length = u64::from_le_bytes(part[6..14].try_into().ok()?);
        whole = whole.checked_add(length)?;
        let (salt, checksum) = part[PART_BYTES..].split_at(if is_sealed { SALT_BYTES } else { 0 });
        parts.push(Part {
            number: u16::from_le_bytes(part[..2].try_into().ok()?),
            nonce: u32::from_le_bytes(part[2..6].try_into().ok()?),
            length,
            salt: salt.try_into().ok(),
            checksum: algorithm.map(|algorithm| Checksum {
                algorithm,
                value: checksum.to_vec(),
            }),
        });
        rest = after;
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn part(number: u16, checksum: Option<Vec<u8>>) -> Part {
        Part {
            number,
            nonce: 0x0102_0304,
            length: 5 << 20,
            salt: None,
            checksum: checksum.map(|value| Checksum {
                algorithm: Algorithm::Crc32c,
                value,
            }),
        }
    }

    #[test]
    fn golden_bytes() {
        let bytes = encode(&[part(7, Some(vec![0xaa; 4]))], Some(Algorithm::Crc32c));
        let expected = [
            &b"TMF1"[..],
            &[2, 0, 0, 0, 1, 0, 0, 0],
            &[7, 0, 4, 3, 2, 1, 0, 0, 0x50, 0, 0, 0, 0, 0],
            &[0xaa; 4],
        ]
        .concat();
        assert_eq!(bytes, expected);
        let sealed = Part {
            salt: Some([0xbb; SALT_BYTES]),
            ..part(7, Some(vec![0xaa; 4]))
        };
        let bytes = encode(std::slice::from_ref(&sealed), Some(Algorithm::Crc32c));
        let expected = [
            &b"TMF1"[..],
            &[2, 1, 0, 0, 1, 0, 0, 0],
            &[7, 0, 4, 3, 2, 1, 0, 0, 0x50, 0, 0, 0, 0, 0],
            &[0xbb; SALT_BYTES],
            &[0xaa; 4],
        ]
        .concat();
        assert_eq!(bytes, expected);
        assert_eq!(decode(&bytes), Some(vec![sealed]));
    }

    #[test]
    fn reads_what_it_writes() {
        let with: Vec<_> = (1..=300)
            .map(|number| part(number, Some(number.to_le_bytes().repeat(2))))
            .collect();
        assert_eq!(decode(&encode(&with, Some(Algorithm::Crc32c))), Some(with.clone()));
        let without: Vec<_> = (1..=300).map(|number| part(number, None)).collect();
        assert_eq!(
            decode(&encode(&without, Some(Algorithm::Crc32c))),
            Some(without.clone())
        );
        assert_eq!(decode(&encode(&with, None)), Some(without));
        assert_eq!(decode(&encode(&[], None)), Some(vec![]));
    }

    #[test]
    fn refuses_what_is_no_list() {
        let good = encode(&[part(1, None), part(2, None)], None);
        for at in 0..good.len() {
            assert_eq!(decode(&good[..at]), None, "cut at {at}");
        }
        let mut longer = good.clone();
        longer.push(0);
        assert_eq!(decode(&longer), None);
        for (at, value) in [(0, b'X'), (4, 9), (5, 1), (5, 2), (6, 1), (8, 3), (11, 0xff)] {
            let mut wrong = good.clone();
            wrong[at] = value;
            assert_eq!(decode(&wrong), None, "byte {at}");
        }
        let mut overflow = good;
        overflow[HEAD_BYTES + 6..HEAD_BYTES + 14].fill(0xff);
        assert_eq!(decode(&overflow), None);
    }
}
