//! What the index's mark holds of range deletions and expiry: the ranges that may still hide
//! entries, and the earliest expiry.
//!
//! Invariants: ranges come by seq, ascending, each once; one list has one encoding.
//!
//! On failure: bytes that begin like this part and are not one are refused, and the store does not
//! open: an object that was deleted must not be back because of a bad byte. (The mark has a
//! checksum; only a repair can help then.)

use super::DeletedRange;
use crate::{KEY_BYTES_MAX, api::clock::NEVER_MS, codec::Reader};

const MAGIC: [u8; 4] = *b"TRDR";
const FORMAT_VERSION: u32 = 1;
const HEAD_BYTES: usize = 20;

/// The part as it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// No object expires before this.
    pub earliest_ms: u64,
    /// By seq, ascending.
    pub ranges: Vec<DeletedRange>,
}

impl Stored {
    /// Of a store without ranges, in which nothing expires.
    pub const fn none() -> Self {
        Self {
            earliest_ms: NEVER_MS,
            ranges: Vec::new(),
        }
    }
}

/// The stored form.
#[must_use]
pub fn encode<'a>(earliest_ms: u64, ranges: impl ExactSizeIterator<Item = &'a DeletedRange>) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD_BYTES);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    out.extend_from_slice(&earliest_ms.to_le_bytes());
    #[allow(clippy::cast_possible_truncation)] // far fewer; keys are at most 4096 bytes long
    {
        out.extend_from_slice(&(ranges.len() as u32).to_le_bytes());
        for range in ranges {
            out.extend_from_slice(&range.seq.to_le_bytes());
            out.extend_from_slice(&(range.start.len() as u16).to_le_bytes());
            out.extend_from_slice(&(range.end.len() as u16).to_le_bytes());
            out.extend_from_slice(&range.start);
            out.extend_from_slice(&range.end);
        }
    }
    out
}

/// Reads the stored form; gives it and what follows. Other bytes are taken to have none, as in
/// marks of format 1 and of `repair`. `None` if it is cut short, of another format, or not as it is
/// written.
#[must_use]
pub fn decode(bytes: &[u8]) -> Option<(Option<Stored>, &[u8])> {
    if !bytes.starts_with(&MAGIC) {
        return Some((None, bytes));
    }
    let mut rest = Reader(&bytes[MAGIC.len()..]);
    let (version, earliest_ms, count) = (rest.u32()?, rest.u64()?, rest.u32()?);
    if version != FORMAT_VERSION {
        return None;
    }
    let mut ranges: Vec<DeletedRange> = Vec::new();
    for _ in 0..count {
        let (seq, start_bytes, end_bytes) = (rest.u64()?, rest.u16()?, rest.u16()?);
        let (start, end) = (rest.bytes(start_bytes.into())?, rest.bytes(end_bytes.into())?);
        let is_range = !start.is_empty()
            && start.len() <= KEY_BYTES_MAX
            && end.len() <= KEY_BYTES_MAX
            && (end.is_empty() || start < end);
        if !is_range || seq <= ranges.last().map_or(0, |before| before.seq) {
            return None;
        }
        ranges.push(DeletedRange {
            seq,
            start: start.into(),
            end: end.into(),
        });
    }
    Some((Some(Stored { earliest_ms, ranges }), rest.0))
}
