//! Objects and bytes per home. The applier maintains them as it applies; the index's mark persists
//! them.
//!
//! The applier must know what an overwrite replaces, without reading the ordered index for every
//! put. The hash index tells it for objects in the flash log. [`crate::hash_index::key_filter`]
//! tells whether a key may be an object with another home (FlashStore's disk-presence bloom filter,
//! section 4.2), and only then is the ordered index read. Inline values and values in blocks are
//! therefore counted exactly, and so are the live bytes of blocks.
//!
//! The count of objects in the flash log is approximate. A put whose slot belongs to another key
//! subtracts that key's object (among *m* objects in the log, *m* / 2^35 of the puts of new keys:
//! 0.03 % at ten million), and a put of a key whose slot was taken or evicted counts one object too
//! many. The bytes of overwritten flash values are estimated by the average. The mark keeps the
//! difference; `repair` counts anew. The count is used for statistics only.

pub mod fill;
pub mod migration;

use crate::{
    HomeKind, HomeStats,
    metrics::{count, subtract},
};
use std::sync::atomic::{AtomicU64, Ordering};

/// Objects and bytes of one home.
#[derive(Debug, Default)]
struct HomeCount {
    objects: AtomicU64,
    bytes: AtomicU64,
}

/// The counts of all homes, in the order in which the index's mark has them.
#[derive(Debug, Default)]
pub struct Accounting([HomeCount; 3]);

impl Accounting {
    const fn of(&self, home: HomeKind) -> &HomeCount {
        &self.0[home as usize]
    }

    /// An object of this length lives here now.
    pub fn add(&self, home: HomeKind, bytes: u64) {
        count(&self.of(home).objects, 1);
        count(&self.of(home).bytes, bytes);
    }

    /// An object of this length lives here no more.
    pub fn remove(&self, home: HomeKind, bytes: u64) {
        subtract(&self.of(home).objects, 1);
        subtract(&self.of(home).bytes, bytes);
    }

    /// An object in the flash log was replaced; its length is not known.
    pub fn remove_average_flash(&self) {
        let stats = self.stats(HomeKind::Flash);
        let bytes = stats.bytes.checked_div(stats.objects).unwrap_or(0);
        self.remove(HomeKind::Flash, bytes);
    }

    /// Objects and bytes in a home.
    pub fn stats(&self, home: HomeKind) -> HomeStats {
        let home = self.of(home);
        HomeStats {
            objects: home.objects.load(Ordering::Relaxed),
            bytes: home.bytes.load(Ordering::Relaxed),
        }
    }

    /// For the index's mark.
    pub fn homes(&self) -> [HomeStats; 3] {
        [HomeKind::Inline, HomeKind::Flash, HomeKind::Block].map(|home| self.stats(home))
    }

    /// Restores the counts from the mark.
    pub fn restore(&self, homes: [HomeStats; 3]) {
        for (home, stats) in self.0.iter().zip(homes) {
            home.objects.store(stats.objects, Ordering::Relaxed);
            home.bytes.store(stats.bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_restored() {
        let counts = Accounting::default();
        counts.add(HomeKind::Flash, 100);
        counts.add(HomeKind::Flash, 300);
        counts.add(HomeKind::Block, 7);
        counts.remove_average_flash();
        let restored = Accounting::default();
        restored.restore(counts.homes());
        assert_eq!(restored.stats(HomeKind::Flash), HomeStats { objects: 1, bytes: 200 });
        assert_eq!(restored.stats(HomeKind::Block), HomeStats { objects: 1, bytes: 7 });
    }
}
