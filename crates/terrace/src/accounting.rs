//! How many objects and bytes live in each home. Kept by the applier as it applies, persisted with
//! the index's mark.
//!
//! The applier must know what an overwrite replaces, without asking the ordered index for every
//! put. The hash index tells for objects in the flash log; [`crate::hash_index::key_filter`] tells
//! whether a key may be an object with another home (FlashStore's disk-presence bloom filter,
//! section 4.2), and only then the ordered index is asked. So what is inline and in blocks is
//! counted exactly, and so are the live bytes of blocks.
//!
//! What is in the flash log is counted nearly so. A put whose slot is another key's takes that
//! key's object out of the count (among *m* objects in the log, *m* / 2^35 of the puts of new keys:
//! 0.03 % at ten million), and a put of a key whose slot was taken or evicted counts one object too
//! many. The bytes of overwritten flash values are taken as average. The mark keeps the difference;
//! `repair` counts anew. Nothing but figures is made of that count.

pub mod fill;
pub mod migration;

use crate::{HomeKind, HomeStats};
use std::sync::atomic::{AtomicU64, Ordering};

/// Objects and bytes of one home.
#[derive(Debug, Default)]
pub struct HomeCount {
    objects: AtomicU64,
    bytes: AtomicU64,
}

impl HomeCount {
    fn add(&self, bytes: u64) {
        self.objects.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn remove(&self, bytes: u64) {
        let less = |counter: &AtomicU64, by: u64| {
            let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| Some(now.saturating_sub(by)));
        };
        less(&self.objects, 1);
        less(&self.bytes, bytes);
    }

    fn stats(&self) -> HomeStats {
        HomeStats {
            objects: self.objects.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }

    fn set(&self, stats: HomeStats) {
        self.objects.store(stats.objects, Ordering::Relaxed);
        self.bytes.store(stats.bytes, Ordering::Relaxed);
    }
}

/// The counts of all homes.
#[derive(Debug, Default)]
pub struct Accounting {
    inline: HomeCount,
    flash: HomeCount,
    block: HomeCount,
}

/// The homes in the order in which the index's mark has them.
const HOMES: [HomeKind; 3] = [HomeKind::Inline, HomeKind::Flash, HomeKind::Block];

impl Accounting {
    const fn of(&self, home: HomeKind) -> &HomeCount {
        match home {
            HomeKind::Inline => &self.inline,
            HomeKind::Flash => &self.flash,
            HomeKind::Block => &self.block,
        }
    }

    /// An object of this length lives here now.
    pub fn add(&self, home: HomeKind, bytes: u64) {
        self.of(home).add(bytes);
    }

    /// An object of this length lives here no more.
    pub fn remove(&self, home: HomeKind, bytes: u64) {
        self.of(home).remove(bytes);
    }

    /// An object in the flash log was replaced; its length is not known.
    pub fn remove_average_flash(&self) {
        let stats = self.flash.stats();
        let bytes = stats.bytes.checked_div(stats.objects).unwrap_or(0);
        self.flash.remove(bytes);
    }

    /// Objects and bytes in a home.
    pub fn stats(&self, home: HomeKind) -> HomeStats {
        self.of(home).stats()
    }

    /// For the index's mark.
    pub fn homes(&self) -> [HomeStats; 3] {
        HOMES.map(|home| self.stats(home))
    }

    /// Takes over what the mark holds.
    pub fn restore(&self, homes: [HomeStats; 3]) {
        for (home, stats) in HOMES.into_iter().zip(homes) {
            self.of(home).set(stats);
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
