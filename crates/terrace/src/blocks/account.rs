//! Live bytes per block: exact in RAM, persisted through the index's mark. An extent counts as if
//! packed, rounded up to the alignment of records: the size of the block files is compared with the
//! size that their live values would need.
//!
//! Invariants:
//! - Every value that was not abandoned is counted live once, when its commit is applied, and dead
//!   once, when the entry that points to it is replaced. If it was overwritten before it was
//!   applied: both, in this order.
//! - No block counts as dead before [`LargeSpace::accounting_complete`], which the store calls
//!   after replay.
//! - The totals are the sums over all blocks, except during a change by the applier.

use super::{LargeSpace, block::Block, format::RECORD_ALIGNMENT};
use crate::metrics::subtract;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Sums over all blocks.
#[derive(Debug, Default)]
pub(super) struct Totals {
    /// Bytes of the files of blocks at rest.
    pub rest_bytes: AtomicU64,
    live_bytes: AtomicU64,
}

impl Totals {
    /// With blocks at rest, of which nothing is known to be live yet.
    pub fn starting_with(rest_bytes: u64) -> Self {
        Self {
            rest_bytes: AtomicU64::new(rest_bytes),
            ..Self::default()
        }
    }
}

/// The sums as they were at a moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LargeTotals {
    /// Bytes of all block files, preallocated space included.
    pub allocated_bytes: u64,
    /// Of that, blocks that are no longer written.
    pub rest_bytes: u64,
    /// Blocks that are full, no longer written, and not at rest yet.
    pub full_bytes: u64,
    /// Live extents.
    pub live_bytes: u64,
}

/// A block at rest, as cleaning sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockShare {
    /// Its number.
    pub number: u64,
    /// Bytes of its file.
    pub bytes: u64,
    /// Bytes of live extents in it.
    pub live_bytes: u64,
    /// Every extent in it is accounted.
    pub is_settled: bool,
    /// It has no live values, and snapshots or readers keep it from being deleted.
    pub is_held: bool,
}

/// Live bytes that an extent is counted with: its size among packed extents.
pub const fn live_bytes_of(extent_bytes: u64) -> u64 {
    match extent_bytes.checked_next_multiple_of(RECORD_ALIGNMENT) {
        Some(bytes) => bytes,
        None => extent_bytes,
    }
}

impl LargeSpace {
    /// A commit that points to an extent was applied to the index.
    pub fn account_live(&self, block: u64, extent_bytes: u64) {
        match self.space.block(block) {
            Ok(block) => {
                let live_bytes = live_bytes_of(extent_bytes);
                // Live first: a block must never look dead in between.
                block.live_bytes.fetch_add(live_bytes, Ordering::AcqRel);
                self.space.totals.live_bytes.fetch_add(live_bytes, Ordering::AcqRel);
                subtract(&block.unapplied_bytes, extent_bytes);
            }
            Err(error) => tracing::error!(%error, "an entry points to a block that is gone"),
        }
    }

    /// The entry that pointed to an extent was replaced or deleted.
    pub fn account_dead(&self, block: u64, extent_bytes: u64) {
        if let Ok(block) = self.space.block(block) {
            let was_live = subtract(&block.live_bytes, live_bytes_of(extent_bytes));
            subtract(&self.space.totals.live_bytes, was_live);
        }
    }

    /// The blocks at rest. None before [`LargeSpace::accounting_complete`].
    pub fn shares(&self) -> Vec<BlockShare> {
        if !self.space.accounted.load(Ordering::Acquire) {
            return Vec::new();
        }
        let blocks = self.space.blocks.read();
        blocks.values().filter_map(share).collect()
    }

    /// One block at rest.
    pub fn share(&self, number: u64) -> Option<BlockShare> {
        self.space.blocks.read().get(&number).and_then(share)
    }

    /// Totals of all blocks.
    pub fn totals(&self) -> LargeTotals {
        let totals = &self.space.totals;
        LargeTotals {
            allocated_bytes: self.space.room.used_bytes(),
            rest_bytes: totals.rest_bytes.load(Ordering::Acquire),
            full_bytes: self.full_bytes(),
            live_bytes: totals.live_bytes.load(Ordering::Acquire),
        }
    }

    /// Bytes of blocks that are no longer written and have no footer yet. A full block may have
    /// uncommitted values, for a long time if its writer is slow: these cannot be reclaimed, so the
    /// block must not look reclaimable.
    fn full_bytes(&self) -> u64 {
        let full = self.space.full.lock();
        let bytes = full.iter().map(|block| {
            let writing = block.writing.lock();
            let written = writing.as_ref().filter(|writing| writing.pending == 0);
            written.map_or(0, |writing| writing.allocated_bytes)
        });
        bytes.sum()
    }

    /// Whether a block is about to free its room: it has no live values and is neither written nor
    /// held, or it is being deleted. True before [`LargeSpace::accounting_complete`], since it is
    /// unknown until then.
    pub fn is_giving_room(&self) -> bool {
        if !self.space.accounted.load(Ordering::Acquire) {
            return true;
        }
        let is_dead = self.space.blocks.read().values().any(|block| block.is_doomed());
        // Behind the blocks: one that is deleted is counted before it leaves them, and until its
        // room is given back.
        is_dead || self.space.leaving.load(Ordering::Acquire) > 0
    }

    /// Whether the live bytes of each block are known.
    pub fn is_accounted(&self) -> bool {
        self.space.accounted.load(Ordering::Acquire)
    }

    /// Sets which dead blocks snapshots or readers keep.
    pub fn set_held(&self, held: impl Fn(u64) -> bool) {
        for (&number, block) in self.space.blocks.read().iter() {
            block.is_held.store(held(number), Ordering::Release);
        }
    }

    /// Whether the capacity has no room for this many more bytes of callers.
    pub fn lacks_room(&self, bytes: u64) -> bool {
        self.space.room.lacks(bytes)
    }

    /// Free space of the device.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn available_bytes(&self) -> std::io::Result<u64> {
        self.space.room.available_bytes()
    }

    /// Maximum size of the blocks; `None`: what the device has.
    pub fn capacity_bytes(&self) -> Option<u64> {
        self.space.room.limit_bytes()
    }

    /// Sets another capacity.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.space.room.set_limit(bytes);
    }

    /// Restores the live bytes of blocks from the mark at which the index is opened. Missing blocks
    /// are skipped: `open` has reported them.
    pub fn restore_live(&self, live: &[(u64, u64)]) {
        let blocks = self.space.blocks.read();
        let mut total = 0;
        for (number, bytes) in live {
            if let Some(block) = blocks.get(number) {
                block.live_bytes.store(*bytes, Ordering::Release);
                total += bytes;
            }
        }
        self.space.totals.live_bytes.store(total, Ordering::Release);
    }

    /// Replay is done: from now on a block without live bytes is dead.
    pub fn accounting_complete(&self) {
        self.space.accounted.store(true, Ordering::Release);
    }

    /// How many blocks there are.
    pub fn block_count(&self) -> u64 {
        self.space.blocks.read().len() as u64
    }

    /// Live bytes of each block that is there.
    pub fn account(&self) -> Vec<(u64, u64)> {
        let blocks = self.space.blocks.read();
        let live = |(&number, block): (&u64, &Arc<Block>)| (number, block.live_bytes.load(Ordering::Acquire));
        blocks.iter().map(live).collect()
    }
}

fn share(block: &Arc<Block>) -> Option<BlockShare> {
    let bytes = block.rest_bytes.load(Ordering::Acquire);
    // Loaded before the live bytes: an accounted extent becomes live first.
    let is_settled = block.unapplied_bytes.load(Ordering::Acquire) == 0;
    let live_bytes = block.live_bytes.load(Ordering::Acquire);
    (bytes > 0).then(|| BlockShare {
        number: block.number,
        bytes,
        live_bytes,
        is_settled,
        is_held: block.is_held.load(Ordering::Acquire),
    })
}
