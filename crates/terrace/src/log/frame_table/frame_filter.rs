//! A filter of the overlay's frames that may have a key: one word of memory for each hash of a key,
//! with one bit for each frame. Without it a read would search the table of every pending frame.
//!
//! Invariants: a frame's bit is set in the words of its keys before a commit with them is
//! acknowledged. A bit belongs to one frame at a time, and is clear in all words when it is
//! assigned. A superfluous bit costs a needless search.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Half as many words as an overlay of 64 MiB may have records; a megabyte stays in the processor's
/// caches.
const WORDS_BITS: u32 = 17;

/// See the module.
pub struct FrameFilter {
    words: Box<[AtomicU64]>,
    /// Bits that no frame has.
    free: Mutex<u64>,
}

impl Default for FrameFilter {
    fn default() -> Self {
        Self {
            words: (0..1 << WORDS_BITS).map(|_| AtomicU64::new(0)).collect(),
            free: Mutex::new(u64::MAX),
        }
    }
}

impl FrameFilter {
    /// Assigns a bit to a frame. `None` if 64 frames have one: this frame must be searched for
    /// every key.
    pub fn lend(&self) -> Option<u32> {
        let mut free = self.free.lock();
        let bit = free.trailing_zeros();
        *free &= free.wrapping_sub(1);
        (bit < u64::BITS).then_some(bit)
    }

    /// The frame with this bit may have a key with this hash.
    pub fn add(&self, bit: u32, hash: u64) {
        self.word(hash).fetch_or(1 << bit, Ordering::AcqRel);
    }

    /// The frame with this bit, and these hashes, is no longer searched.
    pub fn give_back(&self, bit: u32, hashes: impl Iterator<Item = u64>) {
        for hash in hashes {
            self.word(hash).fetch_and(!(1 << bit), Ordering::AcqRel);
        }
        *self.free.lock() |= 1 << bit;
    }

    /// The bits of frames that may have a key with this hash.
    pub fn frames_with(&self, hash: u64) -> u64 {
        self.word(hash).load(Ordering::Acquire)
    }

    // 17 bits.
    fn word(&self, hash: u64) -> &AtomicU64 {
        &self.words[(hash >> (u64::BITS - WORDS_BITS)) as usize]
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_named_by_the_hashes_of_their_keys() {
        let filter = FrameFilter::default();
        let (one, other) = (filter.lend().unwrap(), filter.lend().unwrap());
        let hash = |key: u64| crate::key_hash(&key.to_le_bytes());
        (0..1000).for_each(|key| filter.add(one, hash(key)));
        (500..1500).for_each(|key| filter.add(other, hash(key)));
        let has = |bit: u32, key| filter.frames_with(hash(key)) >> bit & 1 == 1;
        assert!((0..1000).all(|key| has(one, key)) && (500..1500).all(|key| has(other, key)));
        let in_vain = (2000..12_000).filter(|&key| filter.frames_with(hash(key)) != 0).count();
        assert!(in_vain < 250, "{in_vain} of 10,000, with 1,500 of 131,072 words in use");
        filter.give_back(one, (0..1000).map(hash));
        assert!((0..12_000).all(|key| !has(one, key)));
        assert!((500..1500).all(|key| has(other, key)));
        assert_eq!(filter.lend(), Some(one), "it can be lent again");
    }

    #[test]
    fn there_are_sixty_four_bits() {
        let filter = FrameFilter::default();
        let lent: std::collections::BTreeSet<u32> = (0..64).map_while(|_| filter.lend()).collect();
        assert_eq!(lent.len(), 64);
        assert_eq!(filter.lend(), None);
        filter.give_back(17, std::iter::empty());
        assert_eq!((filter.lend(), filter.lend()), (Some(17), None));
    }
}
