//! Keys that were found in the index not long ago. The cache of blocks most probably has what
//! another lookup of them reads.
//!
//! A thread that serves many connections must not wait for a device. The library cannot be asked
//! whether a lookup would: so a key's first lookup is made by a thread that may wait, and is noted
//! here. If the block was evicted since, or a flush or a merge has written it anew, the next lookup
//! reads 4 KiB. Blocks that were just written are in the kernel's cache.

use std::sync::atomic::{AtomicU32, Ordering};

/// Length of a block of a table: the library's default.
const BLOCK_BYTES: u64 = 4096;

/// One slot per block that the cache can hold: a part of the hash of the last key that came to it.
#[derive(Debug)]
pub(super) struct Warm(Box<[AtomicU32]>);

impl Warm {
    /// Beside a cache of this many bytes.
    pub fn beside(cache_bytes: u64) -> Self {
        let blocks = (cache_bytes / BLOCK_BYTES).next_power_of_two();
        Self((0..blocks).map(|_| AtomicU32::new(0)).collect())
    }

    /// A lookup that may wait has found the key with this hash.
    pub fn note(&self, hash: u64) {
        let (slot, tag) = self.slot(hash);
        if slot.load(Ordering::Relaxed) != tag {
            slot.store(tag, Ordering::Relaxed);
        }
    }

    /// Whether one did, and no key of the same slot was looked up since.
    pub fn has(&self, hash: u64) -> bool {
        let (slot, tag) = self.slot(hash);
        slot.load(Ordering::Relaxed) == tag
    }

    /// The slot of a hash, and what names it there: never zero, which names none.
    fn slot(&self, hash: u64) -> (&AtomicU32, u32) {
        // A power of two of slots, at least one.
        let number = hash as usize & (self.0.len() - 1);
        (&self.0[number], (hash >> 32) as u32 | 1)
    }
}
