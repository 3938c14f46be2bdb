//! One slot of the hash index: a 64-bit word.
//!
//! ```text
//!  63            45 44  43        38 37     36 35                       0
//! +----------------+---+------------+---------+--------------------------+
//! | tag         19 | a | size class | recency | address / 16          36 |
//! |                | 1 |          6 |       2 |                          |
//! +----------------+---+------------+---------+--------------------------+
//! ```
//!
//! `a` (alternate) is set in a slot that is in the second of its two buckets. The all-zero word is
//! an empty slot; no other word is, because an address is never 0. The tag and `a` together are the
//! slot's *identity*: with the bucket's number they determine the class of the slot (see
//! `geometry.rs`).
//!
//! The word exists in RAM only; its layout is fixed by a test because changing it changes the
//! limits stated in docs/design.md.

use crate::log::address::Address;

pub(super) const TAG_BITS: u32 = 19;

const RECENCY_SHIFT: u32 = Address::PACKED_BITS;
const RECENCY_BITS: u32 = 2;
const SIZE_SHIFT: u32 = RECENCY_SHIFT + RECENCY_BITS;
const SIZE_BITS: u32 = 6;
const IDENTITY_SHIFT: u32 = SIZE_SHIFT + SIZE_BITS;
const _: () = assert!(IDENTITY_SHIFT + 1 + TAG_BITS == 64);

const ADDRESS_MASK: u64 = (1 << Address::PACKED_BITS) - 1;
const RECENCY_MASK: u64 = ((1 << RECENCY_BITS) - 1) << RECENCY_SHIFT;
const PAYLOAD_MASK: u64 = (1 << IDENTITY_SHIFT) - 1;

/// Uses after which recency stops counting.
pub(super) const RECENCY_MAX: u8 = (1 << RECENCY_BITS) - 1;

/// A slot that holds something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot(u64);

impl Slot {
    /// A slot never used yet (recency 0).
    pub(super) fn new(identity: Identity, size: SizeClass, address: Address) -> Self {
        Self((identity.0 << IDENTITY_SHIFT) | (u64::from(size.0) << SIZE_SHIFT) | address.packed())
    }

    /// The slot in `word`, or `None` if it is empty.
    pub(super) fn from_word(word: u64) -> Option<Self> {
        (word != 0).then_some(Self(word))
    }

    pub(super) fn word(self) -> u64 {
        self.0
    }

    pub(super) fn identity(self) -> Identity {
        Identity(self.0 >> IDENTITY_SHIFT)
    }

    /// The same record seen from another bucket.
    pub(super) fn with_identity(self, identity: Identity) -> Self {
        Self((identity.0 << IDENTITY_SHIFT) | (self.0 & PAYLOAD_MASK))
    }

    /// Where the record is. `None` only for a word that [`Slot::new`] did not make.
    pub(super) fn address(self) -> Option<Address> {
        Address::from_packed(self.0 & ADDRESS_MASK)
    }

    pub(super) fn size(self) -> SizeClass {
        SizeClass(((self.0 >> SIZE_SHIFT) & ((1 << SIZE_BITS) - 1)) as u8)
    }

    /// Uses since the slot was written or its recency cleared, at most [`RECENCY_MAX`].
    pub(super) fn recency(self) -> u8 {
        ((self.0 & RECENCY_MASK) >> RECENCY_SHIFT) as u8
    }

    /// The slot used once more, or `None` if recency is at its maximum.
    pub(super) fn used(self) -> Option<Self> {
        (self.recency() < RECENCY_MAX).then(|| Self(self.0 + (1 << RECENCY_SHIFT)))
    }
}

/// Tag and alternate flag: which class a slot belongs to, seen from the bucket it lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity(u64);

impl Identity {
    pub(super) fn new(tag: u64, alternate: bool) -> Self {
        debug_assert!(tag < 1 << TAG_BITS);
        Self((tag << 1) | u64::from(alternate))
    }

    pub(super) fn tag(self) -> u64 {
        self.0 >> 1
    }

    pub(super) fn is_alternate(self) -> bool {
        self.0 & 1 == 1
    }

    /// The same class seen from its other bucket.
    pub(super) fn flipped(self) -> Self {
        Self(self.0 ^ 1)
    }

    /// Whether `word` is a slot of this identity. An empty slot is of none.
    #[inline]
    pub(super) fn matches(self, word: u64) -> bool {
        word ^ (self.0 << IDENTITY_SHIFT) <= PAYLOAD_MASK && word != 0
    }
}

/// How many bytes to read to get the whole record in one read: one of 64 sizes.
///
/// The sizes: 128, 256, 384 and 512 bytes, then four steps per doubling (640, 768, 896, 1024, 1280,
/// …) up to 16 MiB, and [`SizeClass::HEAD_BYTES`] more: values often have a power of two as length,
/// and a record is longer than its value by a header and a key. Without that, records of 8 KiB
/// values were read as 10 KiB, usually one page more than needed. Above 640 bytes a read is at most
/// 25 % longer than its record. A longer record is in the last class: its reader sees in the header
/// that bytes are missing and reads the rest with a second read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SizeClass(u8);

impl SizeClass {
    const LAST: u64 = (1 << SIZE_BITS) - 1;
    /// Maximum overhead of most records over their values.
    pub(super) const HEAD_BYTES: u64 = 128;

    /// The class of a record of `record_bytes` bytes, header and checksums included.
    pub(super) fn of(record_bytes: u64) -> Self {
        let last_byte = record_bytes.saturating_sub(1 + Self::HEAD_BYTES);
        if last_byte < 512 {
            return Self((last_byte / 128) as u8);
        }
        let octave = u64::from(last_byte.ilog2()) - 9;
        let octave_bytes = 512u64 << octave;
        let quarter = (last_byte - octave_bytes) / (octave_bytes / 4);
        Self((4 + 4 * octave + quarter).min(Self::LAST) as u8)
    }

    /// Upper bound of the lengths in this class, except in the last one, in bytes.
    pub(super) fn read_bytes_max(self) -> u64 {
        let class = u64::from(self.0);
        if class < 4 {
            return (class + 1) * 128 + Self::HEAD_BYTES;
        }
        let (octave, quarter) = ((class - 4) / 4, (class - 4) % 4);
        (128 << octave) * (5 + quarter) + Self::HEAD_BYTES
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    #[test]
    fn layout_is_fixed() {
        let address = Address::new(0x12_3456_7890).unwrap();
        let slot = Slot::new(Identity::new(0x5_A5A5, true), SizeClass::of(1000), address);
        assert_eq!(slot.word(), (0x5_A5A5 << 45) | (1 << 44) | (6 << 38) | 0x1_2345_6789);
        assert_eq!(slot.used().unwrap().word(), slot.word() | (1 << 36));
        assert_eq!(Slot::from_word(0), None);
        let smallest = Slot::new(Identity::new(0, false), SizeClass::of(0), Address::new(16).unwrap());
        assert_eq!(smallest.word(), 1);
        assert!(Identity::new(0, false).matches(1));
        assert!(!Identity::new(0, false).matches(0), "an empty slot is no class's");
    }

    #[test]
    fn packing_round_trips() {
        let mut random = StdRng::seed_from_u64(7);
        for _ in 0..100_000 {
            let (tag, alternate) = (random.random_range(0..1 << TAG_BITS), random.random());
            let address = Address::from_packed(random.random_range(1..1 << 36)).unwrap();
            let size = SizeClass::of(random.random_range(0..20 << 20));
            let identity = Identity::new(tag, alternate);
            let mut slot = Slot::new(identity, size, address);
            for uses in 0..=RECENCY_MAX {
                assert_eq!(slot.recency(), uses);
                assert_eq!(
                    (slot.identity(), slot.size(), slot.address()),
                    (identity, size, Some(address))
                );
                assert_eq!(
                    (slot.identity().tag(), slot.identity().is_alternate()),
                    (tag, alternate)
                );
                let flipped = slot.with_identity(identity.flipped());
                assert_eq!(
                    (flipped.size(), flipped.address(), flipped.recency()),
                    (size, Some(address), uses)
                );
                assert_eq!(flipped.identity(), Identity::new(tag, !alternate));
                assert_eq!(slot.used().is_none(), uses == RECENCY_MAX);
                slot = slot.used().unwrap_or(slot);
            }
        }
    }

    #[test]
    fn one_read_brings_the_whole_record_and_little_more() {
        let mut bytes = 1;
        while bytes <= 16 << 20 {
            for record_bytes in [bytes - 1, bytes, bytes + 1]
                .into_iter()
                .filter(|bytes| *bytes <= 16 << 20)
            {
                let read_bytes = SizeClass::of(record_bytes).read_bytes_max();
                assert!(read_bytes >= record_bytes);
                assert!(
                    record_bytes <= 640 || read_bytes * 4 <= record_bytes * 5,
                    "{record_bytes}: {read_bytes}"
                );
                assert!(record_bytes > 640 || read_bytes < record_bytes.max(129) + 128);
            }
            bytes += 1 + bytes / 64;
        }
        // A value of 8 KiB, a header and a key: three pages of 4 KiB nearly wherever the record
        // begins.
        assert_eq!(SizeClass::of(8192 + 100).read_bytes_max(), 8192 + 128);
        assert_eq!(SizeClass::of((16 << 20) + 128).read_bytes_max(), (16 << 20) + 128);
        assert_eq!(SizeClass::of(u64::MAX).read_bytes_max(), (16 << 20) + 128);
        let ladder: Vec<_> = (0..64).map(|class| SizeClass(class).read_bytes_max()).collect();
        assert!(ladder.is_sorted_by(|a, b| a < b));
        assert!(
            ladder
                .iter()
                .enumerate()
                .all(|(class, bytes)| SizeClass::of(*bytes).0 as usize == class)
        );
    }
}
