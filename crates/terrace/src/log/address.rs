//! The address of a record in the flash log.
//!
//! The ring of segments has one linear address space: byte `segment_number * segment_bytes +
//! offset`. Records start on multiples of 16 bytes, so that 36 bits address any record within 1 TiB
//! of flash.
//!
//! Invariant: an [`Address`] is never 0. The ring begins with a segment header, so no record lies
//! there, and the hash index uses the all-zero word for an empty slot. Numbers read from a device
//! are checked by [`Address::new`], which refuses those that cannot be the start of a record.

use std::{fmt, num::NonZeroU64};

/// Byte offset of a record in the ring of segments: a multiple of [`Address::ALIGNMENT_BYTES`],
/// above 0 and below [`Address::LIMIT_BYTES`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(NonZeroU64);

impl Address {
    /// Records start on multiples of this many bytes.
    pub const ALIGNMENT_BYTES: u64 = 16;

    /// Bits of the packed form.
    pub const PACKED_BITS: u32 = 36;

    /// Every address is below this byte offset (1 TiB).
    pub const LIMIT_BYTES: u64 = Self::ALIGNMENT_BYTES << Self::PACKED_BITS;

    /// The address of the record that starts `offset_bytes` into the ring, or `None` if no record
    /// can start there (not aligned, 0, or beyond [`Address::LIMIT_BYTES`]).
    pub fn new(offset_bytes: u64) -> Option<Self> {
        if offset_bytes >= Self::LIMIT_BYTES || !offset_bytes.is_multiple_of(Self::ALIGNMENT_BYTES) {
            return None;
        }
        NonZeroU64::new(offset_bytes).map(Self)
    }

    /// Byte offset in the ring.
    pub const fn bytes(self) -> u64 {
        self.0.get()
    }

    /// The address in units of 16 bytes: [`Address::PACKED_BITS`] bits, never 0.
    pub const fn packed(self) -> u64 {
        self.0.get() / Self::ALIGNMENT_BYTES
    }

    /// The inverse of [`Address::packed`]; `None` for 0 and for numbers of more than 36 bits.
    pub fn from_packed(packed: u64) -> Option<Self> {
        packed.checked_mul(Self::ALIGNMENT_BYTES).and_then(Self::new)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({:#x})", self.bytes())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_possible_starts_of_records_are_addresses() {
        for refused in [0, 1, 15, 17, 1 << 40, (1 << 40) + 16, u64::MAX, u64::MAX - 15] {
            assert_eq!(Address::new(refused), None, "{refused}");
        }
        for packed in [0, 1 << 36, u64::MAX, 1 << 60] {
            assert_eq!(Address::from_packed(packed), None, "{packed}");
        }
    }

    #[test]
    fn packed_form_round_trips() {
        for bytes in [16, 32, 4096, (1 << 40) - 16] {
            let address = Address::new(bytes).unwrap();
            assert_eq!(address.bytes(), bytes);
            assert_eq!(address.packed(), bytes / 16);
            assert_eq!(Address::from_packed(address.packed()), Some(address));
        }
    }
}
