//! The mark: the seq up to which the index contains the log.
//!
//! Just before a memtable is sealed the applier writes a mark into it, under a key that no object
//! can have. The mark is therefore flushed in one atomic step with every entry up to its seq and
//! with none after, and the newest mark found at open says where the replay of the log starts. The
//! highest seqno in the tables could not say it: compaction drops tombstones and overwritten
//! entries, so that number can fall.
//!
//! Invariants: the mark's key sorts after every key of at most [`KEY_BYTES_MAX`] bytes; scans end
//! before it. It is the last key, not the first, so that ascending keys (where a flush does not
//! overlap earlier tables) still let compaction move or leave alone older tables; a mark before all
//! keys would make every flush overlap every table. (The empty key is refused by lsm-tree anyway.)
//!
//! On failure: a mark that does not decode makes the open fail with `Corruption`; nothing is
//! guessed.

use crate::{KEY_BYTES_MAX, codec::Reader};
use bytes::Bytes;

/// Key of the mark: one byte longer than any object's key, and sorting last.
pub(super) static MARK_KEY: [u8; KEY_BYTES_MAX + 1] = [0xFF; KEY_BYTES_MAX + 1];

const MAGIC: [u8; 4] = *b"TIXM";
/// Format u16, then two zero bytes.
const FORMAT_WORD: [u8; 4] = [1, 0, 0, 0];
const HEADER_BYTES: usize = 24;

/// How much of the log the index holds, and data of the store that is persisted with it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IndexMark {
    /// Every commit up to this seq is in the index, and none after it.
    pub applied_seq: u64,
    /// Bytes of the store: its accounting as of `applied_seq`. Not interpreted here.
    pub payload: Bytes,
}

impl IndexMark {
    /// The stored form: `magic, format u16, zero u16, applied_seq u64, payload length u32, CRC-32C
    /// u32, payload`; the checksum covers everything but itself.
    ///
    /// # Panics
    /// If the payload is 4 GiB or longer.
    pub fn encode(&self) -> Vec<u8> {
        let length = u32::try_from(self.payload.len()).expect("a mark's payload is shorter than 4 GiB");
        let mut out = Vec::with_capacity(HEADER_BYTES + self.payload.len());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&FORMAT_WORD);
        out.extend_from_slice(&self.applied_seq.to_le_bytes());
        out.extend_from_slice(&length.to_le_bytes());
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&out), &self.payload);
        out.extend_from_slice(&checksum.to_le_bytes());
        out.extend_from_slice(&self.payload);
        out
    }

    /// Reads the stored form. `None` if the bytes are not one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (header, payload) = bytes.split_at_checked(HEADER_BYTES)?;
        let covered = &header[..HEADER_BYTES - 4];
        let mut words = Reader(header);
        if words.array()? != MAGIC || words.array()? != FORMAT_WORD {
            return None;
        }
        let (applied_seq, length, checksum) = (words.u64()?, words.u32()?, words.u32()?);
        let expected = crc32c::crc32c_append(crc32c::crc32c(covered), payload);
        (length as usize == payload.len() && checksum == expected).then(|| Self {
            applied_seq,
            payload: Bytes::copy_from_slice(payload),
        })
    }
}
