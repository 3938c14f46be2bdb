//! How far the values are where they belong by the rules of now: what the migration counts, for
//! everybody.

use crate::PlacementStats;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What is known of places, for everybody.
#[derive(Debug, Default)]
pub struct Migration {
    /// The index is walked since the rules have changed.
    pub is_under_way: AtomicBool,
    /// Entries that this walk has looked at.
    pub walked: AtomicU64,
    /// Values moved since the store was opened,
    pub moved: AtomicU64,
    /// and their bytes.
    pub moved_bytes: AtomicU64,
    /// Bytes of values pinned to flash, as of the last walk,
    pub pinned_flash_bytes: AtomicU64,
    /// and of those pinned to the large tier.
    pub pinned_disk_bytes: AtomicU64,
    /// Pins to flash ask for too much.
    pub pins_exceed: AtomicBool,
}

impl Migration {
    /// Whether pins to flash count: they do unless they ask for too much.
    pub fn pins_hold(&self) -> bool {
        !self.pins_exceed.load(Ordering::Relaxed)
    }

    /// A picture.
    pub fn stats(&self) -> PlacementStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PlacementStats {
            settling: self.is_under_way.load(Ordering::Relaxed),
            walked: load(&self.walked),
            moved: load(&self.moved),
            moved_bytes: load(&self.moved_bytes),
            pinned_flash_bytes: load(&self.pinned_flash_bytes),
            pinned_disk_bytes: load(&self.pinned_disk_bytes),
            pins_exceed_flash: !self.pins_hold(),
        }
    }
}
