//! Whether a segment is drained now. Pure arithmetic over the ring.
//!
//! Draining starts when too few segments are free and continues until somewhat more are, so that
//! values are destaged in few long bursts. Drained segments, and those borrowed by copies, count as
//! free: they become free without more work. A few drained ones are enough to wait for; one flush
//! of the index then frees them all.

use crate::{
    engine::HASH_INDEX_LOAD_WANTED,
    log::segments::{RESERVED_SEGMENTS, WANTED_SEGMENTS},
};

/// Draining starts when less than this share of the ring is free (FlashStore section 4.5 cleans
/// above 80 %).
const FREE_SHARE_MIN_PERCENT: u32 = 20;
/// Once started it continues until this much more is free.
const FREE_SHARE_MORE_PERCENT: u32 = 5;
/// It also starts when so much of a bounded hash index is in use (FlashStore section 4.5).
const INDEX_LOAD_MAX: f64 = 0.9;
/// Segments drained before their freeing is pushed on.
const DRAINED_BATCH: u32 = 4;

/// The ring of segments at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Ring {
    /// Segments it may have; queried from the device now.
    pub capacity: u32,
    /// Segments it has beyond that, since the capacity was lowered.
    pub beyond_capacity: u32,
    /// Segments that commits can take.
    pub available: u32,
    /// Those of them that the device has room for now.
    pub available_now: u32,
    /// Segments that are drained and not yet free.
    pub drained: u32,
    /// Segments that copies of large objects have beyond their guaranteed ones.
    pub lent: u32,
    /// Segments of a used reserve that commits which free space may still have.
    pub reserve_segments: u32,
    /// The reserve of a full device is unused.
    pub reserve_is_whole: bool,
    /// Share of a bounded hash index that is in use.
    pub index_load: f64,
}

impl Ring {
    /// How many segments of a ring of this capacity are kept free.
    pub fn wanted_free(capacity: u32) -> u32 {
        (capacity * FREE_SHARE_MIN_PERCENT / 100).max(WANTED_SEGMENTS)
    }

    /// Segments that are free, or will be without more work.
    const fn soon_free(&self) -> u32 {
        self.available_now + self.drained + self.lent
    }

    /// Whether segments should be drained, given whether they are already. Always while the reserve
    /// is used, since drained segments refill it, and while the ring exceeds its capacity.
    pub fn wants_draining(&self, is_under_way: bool) -> bool {
        if !self.reserve_is_whole {
            return true;
        }
        let (more, load_max) = if is_under_way {
            (self.capacity * FREE_SHARE_MORE_PERCENT / 100, HASH_INDEX_LOAD_WANTED)
        } else {
            (0, INDEX_LOAD_MAX)
        };
        let wanted = Self::wanted_free(self.capacity) + self.beyond_capacity + more;
        self.soon_free() < wanted || self.index_load > load_max
    }

    /// Whether fewer segments are drained than are enough to wait for.
    pub const fn may_drain_more(&self) -> bool {
        self.drained < DRAINED_BATCH
    }

    /// Whether the next segment is drained now, if draining is wanted. If not, drained segments are
    /// waited for: there are enough of them, or there is no room for the live values of the next.
    pub const fn drains_next(&self) -> bool {
        let enough = !self.may_drain_more() && self.available > RESERVED_SEGMENTS;
        let no_room = self.drained > 0 && self.available == 0;
        !enough && !no_room
    }

    /// Whether commits that free space have one segment at most before they wait for draining.
    pub const fn is_used_up(&self) -> bool {
        self.available_now + self.drained + self.reserve_segments <= RESERVED_SEGMENTS + 1
    }

    /// Whether so few are left that each segment that is drained must give something back, whatever
    /// is in it.
    pub const fn is_short(&self) -> bool {
        self.soon_free() < RESERVED_SEGMENTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hundred segments of which this many are free.
    const fn ring(available: u32) -> Ring {
        Ring {
            capacity: 100,
            beyond_capacity: 0,
            available,
            available_now: available,
            drained: 0,
            lent: 0,
            reserve_segments: 0,
            reserve_is_whole: true,
            index_load: 0.0,
        }
    }

    #[test]
    fn draining_starts_at_a_fifth_and_goes_on_to_a_quarter() {
        assert!(!ring(20).wants_draining(false));
        assert!(ring(19).wants_draining(false));
        assert!(ring(24).wants_draining(true));
        assert!(!ring(25).wants_draining(true));
    }

    /// A ring of a few segments keeps those that log GC and the next commits need.
    #[test]
    fn a_short_ring_keeps_the_segments_of_the_table() {
        assert_eq!(Ring::wanted_free(5), WANTED_SEGMENTS);
        assert_eq!(Ring::wanted_free(100), 20);
    }

    /// After the capacity was lowered as many more are emptied as there are too many.
    #[test]
    fn segments_beyond_the_capacity_are_drained() {
        let lowered = Ring {
            beyond_capacity: 30,
            ..ring(20)
        };
        assert!(lowered.wants_draining(false));
        assert!(
            !Ring {
                available_now: 50,
                ..lowered
            }
            .wants_draining(false)
        );
    }

    #[test]
    fn what_will_be_free_counts_as_free() {
        let drained = Ring { drained: 3, ..ring(17) };
        let lent = Ring { lent: 3, ..ring(17) };
        assert!(!drained.wants_draining(false));
        assert!(!lent.wants_draining(false));
        assert!(ring(17).wants_draining(false));
    }

    #[test]
    fn a_full_hash_index_and_a_used_reserve_start_it() {
        let load = |index_load| Ring { index_load, ..ring(50) };
        assert!(load(0.91).wants_draining(false));
        assert!(!load(0.89).wants_draining(false));
        let used = Ring {
            reserve_is_whole: false,
            ..ring(50)
        };
        assert!(used.wants_draining(false));
    }

    /// The last segment of the reserve is used while the next one is drained.
    #[test]
    fn one_segment_beside_those_for_recycling_is_little() {
        let left = |reserve_segments| Ring {
            reserve_segments,
            ..ring(RESERVED_SEGMENTS)
        };
        assert!(!left(2).is_used_up());
        assert!(left(1).is_used_up());
        assert!(!Ring { drained: 1, ..left(1) }.is_used_up());
    }

    #[test]
    fn drained_ones_are_waited_for_while_there_are_enough_of_them_or_no_room() {
        let drained = |drained, available| Ring {
            drained,
            ..ring(available)
        };
        assert!(drained(0, 0).drains_next());
        assert!(drained(3, 3).drains_next());
        assert!(!drained(4, 3).drains_next());
        assert!(
            drained(4, RESERVED_SEGMENTS).drains_next(),
            "writers wait: more is needed"
        );
        assert!(!drained(1, 0).drains_next());
    }
}
