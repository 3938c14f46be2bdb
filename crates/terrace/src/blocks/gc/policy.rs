//! Which block GC drains next, if any. Pure arithmetic over the state of the blocks.
//!
//! The bound is on the total space: block files at rest take no more than a percentage of what the
//! live extents would take if packed, and some slack. If the total is over the bound, some block is
//! over it by itself, so there is always one to drain; the emptiest costs the fewest bytes written
//! per byte reclaimed. Open blocks are not included: their dead space can be reclaimed only after
//! they are sealed.

use crate::{
    Options,
    blocks::{BlockShare, LargeTotals},
    io::PAGE_BYTES,
};

/// A rewritten block has a header, a footer and the rounding of its regions: a smaller gain is not
/// worth a move.
const GAIN_BYTES_MIN: u64 = 4 * PAGE_BYTES as u64;
/// The bound while the tier has no room for new data.
const PERCENT_WITHOUT_ROOM: u64 = 110;
/// Emptied blocks that may wait for the index, for snapshots and for readers before no more are
/// made, in blocks,
const OUTSTANDING_BLOCKS: u64 = 8;
/// and in per cent of the blocks at rest, if that is more.
const OUTSTANDING_PERCENT: u64 = 5;

/// The bounds, in per cent of the packed live extents.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Cleaning begins above this.
    pub steady_percent: u64,
    /// Writers are held above this.
    pub hold_percent: u64,
    /// *SplitThreshold*.
    pub split_bytes: u64,
    /// Bytes tolerated in addition to the percentage. Writers are held above twice as many: half of
    /// that is the allowed lag of block GC.
    pub slack_bytes: u64,
}

impl Bounds {
    /// The bounds of a store.
    pub fn of(options: &Options) -> Self {
        Self {
            steady_percent: options.tuning.space_amplification_percent.into(),
            hold_percent: options.tuning.space_amplification_max_percent.into(),
            slack_bytes: options.tuning.space_slack_bytes,
            split_bytes: options.split_threshold_bytes,
        }
    }

    /// Maximum bytes of blocks, without the open ones, after GC for lack of room.
    pub const fn packed_tightly(packed_bytes: u64) -> u64 {
        packed_bytes.saturating_add(packed_bytes / 100 * (PERCENT_WITHOUT_ROOM - 100))
    }

    /// The same while there is no room.
    pub fn without_room(self) -> Self {
        Self {
            steady_percent: self.steady_percent.min(PERCENT_WITHOUT_ROOM),
            slack_bytes: 0,
            ..self
        }
    }

    /// Whether this many bytes at rest exceed what block GC tolerates.
    pub fn is_over(&self, rest_bytes: u64, live_bytes: u64) -> bool {
        exceeds(
            rest_bytes.saturating_sub(self.slack_bytes),
            live_bytes,
            self.steady_percent,
        )
    }

    /// Whether writers are to be held, if `tolerated_bytes` at rest cannot be reclaimed.
    pub fn holds(&self, totals: &LargeTotals, tolerated_bytes: u64) -> bool {
        let slack_bytes = self
            .slack_bytes
            .saturating_mul(2)
            .max(Options::HOLD_BLOCKS * self.split_bytes);
        let beyond = tolerated_bytes.saturating_add(slack_bytes);
        exceeds(
            (totals.rest_bytes + totals.full_bytes).saturating_sub(beyond),
            totals.live_bytes,
            self.hold_percent,
        )
    }

    /// Whether drained blocks of `emptied_bytes` are enough to wait for, with `living_bytes` at
    /// rest.
    pub fn are_outstanding(&self, emptied_bytes: u64, living_bytes: u64) -> bool {
        emptied_bytes > (OUTSTANDING_BLOCKS * self.split_bytes).max(living_bytes / 100 * OUTSTANDING_PERCENT)
    }

    fn is_worth(&self, share: &BlockShare) -> bool {
        share.is_settled
            && share.bytes.saturating_sub(share.live_bytes) >= GAIN_BYTES_MIN
            && exceeds(share.bytes, share.live_bytes, self.steady_percent)
    }
}

fn exceeds(bytes: u64, of_bytes: u64, percent: u64) -> bool {
    u128::from(bytes) * 100 > u128::from(of_bytes) * u128::from(percent)
}

/// Summary of the blocks at rest.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Picture {
    /// Bytes of blocks in which something lives.
    pub living_bytes: u64,
    /// Bytes of blocks in which nothing does and that are not held: they are deleted once the index
    /// has persisted that.
    pub dead_bytes: u64,
    /// Bytes of those that snapshots or readers hold.
    pub held_bytes: u64,
    /// Bytes that could be reclaimed in blocks that are set aside.
    pub set_aside_bytes: u64,
    /// The emptiest block that is worth draining; of equal ones the oldest.
    pub emptiest: Option<BlockShare>,
}

/// Decision of block GC if blocks exceed their limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// Empties this one.
    Clean(BlockShare),
    /// Waits: dead blocks that are not held will be freed.
    Wait,
    /// Does nothing: no block is worth draining, or enough are drained, and no room will be freed.
    Stuck,
}

impl Picture {
    /// The action for this many live bytes in total, with drained blocks of `emptied_bytes` not yet
    /// deleted.
    pub fn plan(&self, bounds: &Bounds, live_bytes: u64, emptied_bytes: u64) -> Plan {
        let is_over = bounds.is_over(self.living_bytes, live_bytes);
        let must_wait = bounds.are_outstanding(emptied_bytes, self.living_bytes);
        match self.emptiest {
            Some(block) if is_over && !must_wait => Plan::Clean(block),
            _ if self.dead_bytes > 0 => Plan::Wait,
            _ => Plan::Stuck,
        }
    }

    /// Bytes that cannot be reclaimed now.
    pub const fn tolerated_bytes(&self) -> u64 {
        self.set_aside_bytes + self.held_bytes
    }

    /// Takes it. `shares` are in the order of their numbers.
    pub fn of(shares: &[BlockShare], bounds: &Bounds, is_set_aside: impl Fn(&BlockShare) -> bool) -> Self {
        let mut picture = Self::default();
        for share in shares {
            if share.live_bytes == 0 && share.is_settled {
                let bytes = if share.is_held {
                    &mut picture.held_bytes
                } else {
                    &mut picture.dead_bytes
                };
                *bytes += share.bytes;
                continue;
            }
            picture.living_bytes += share.bytes;
            if is_set_aside(share) {
                picture.set_aside_bytes += share.bytes.saturating_sub(share.live_bytes);
                continue;
            }
            let is_emptier = |than: &BlockShare| {
                u128::from(share.live_bytes) * u128::from(than.bytes)
                    < u128::from(than.live_bytes) * u128::from(share.bytes)
            };
            if bounds.is_worth(share) && picture.emptiest.as_ref().is_none_or(is_emptier) {
                picture.emptiest = Some(*share);
            }
        }
        picture
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        steady_percent: 130,
        hold_percent: 150,
        split_bytes: 1 << 20,
        slack_bytes: 4 << 20,
    };

    fn share(number: u64, bytes: u64, live_bytes: u64) -> BlockShare {
        BlockShare {
            number,
            bytes,
            live_bytes,
            is_settled: true,
            is_held: false,
        }
    }

    fn totals(rest_bytes: u64, live_bytes: u64) -> LargeTotals {
        LargeTotals {
            allocated_bytes: rest_bytes,
            full_bytes: 0,
            rest_bytes,
            live_bytes,
        }
    }

    #[test]
    fn the_emptiest_is_next_and_of_equal_ones_the_oldest() {
        let unsettled = BlockShare {
            is_settled: false,
            ..share(9, 1 << 20, 0)
        };
        let shares = [
            share(1, 1 << 20, 0),
            share(2, 1 << 20, 900_000),
            share(3, 2 << 20, 400_000),
            share(4, 1 << 20, 200_000),
            share(5, 1 << 20, 100_000),
            unsettled,
        ];
        let held = BlockShare {
            is_held: true,
            ..share(10, 3 << 20, 0)
        };
        let shares = [&shares[..], &[held]].concat();
        let picture = Picture::of(&shares, &BOUNDS, |share| share.number == 5);
        assert_eq!(picture.emptiest.map(|share| share.number), Some(3));
        assert_eq!(picture.dead_bytes, 1 << 20, "one with extents on their way is not dead");
        assert_eq!(picture.held_bytes, 3 << 20);
        assert_eq!(picture.living_bytes, 6 << 20);
        assert_eq!(picture.set_aside_bytes, (1 << 20) - 100_000);
        let picture = Picture::of(&shares[..2], &BOUNDS, |_| false);
        assert_eq!(picture.emptiest, None, "850 KiB of 1 MiB are not worth it");
    }

    #[test]
    fn what_is_over_is_cleaned_unless_enough_is_emptied_or_dead() {
        let half_empty = share(1, 100 << 20, 50 << 20);
        let plan = |dead_bytes, live_bytes, emptied_bytes| {
            let picture = Picture {
                living_bytes: half_empty.bytes,
                dead_bytes,
                emptiest: Some(half_empty),
                ..Picture::default()
            };
            picture.plan(&BOUNDS, live_bytes, emptied_bytes)
        };
        assert_eq!(plan(0, 50 << 20, 0), Plan::Clean(half_empty));
        assert_eq!(
            plan(1, 50 << 20, 0),
            Plan::Clean(half_empty),
            "what is dead is not enough"
        );
        assert_eq!(
            plan(0, 50 << 20, 9 << 20),
            Plan::Stuck,
            "emptied ones wait for the index"
        );
        assert_eq!(plan(1, 50 << 20, 9 << 20), Plan::Wait);
        assert_eq!(plan(1, 100 << 20, 0), Plan::Wait, "it is what is dead that is over");
        let nothing = Picture::default();
        assert_eq!(nothing.plan(&BOUNDS, 0, 0), Plan::Stuck);
    }

    #[test]
    fn what_a_block_needs_anyway_is_no_gain() {
        let all = |share: BlockShare| Picture::of(&[share], &BOUNDS, |_| false).emptiest;
        // One short value in a block of its own: a header, a page, a footer.
        assert_eq!(all(share(1, 3 * 4096, 100)), None);
        assert!(all(share(1, 6 * 4096, 100)).is_some());
    }

    #[test]
    fn a_huge_value_alone_is_never_worth_it() {
        let huge = share(1, (5 << 30) + 8192, 5 << 30);
        assert_eq!(Picture::of(&[huge], &BOUNDS.without_room(), |_| false).emptiest, None);
    }

    #[test]
    fn over_the_bound_there_is_always_a_block_to_clean() {
        let shares: Vec<_> = (0..100).map(|n| share(n, 1 << 20, 10_000 * (n + 1))).collect();
        let rest: u64 = shares.iter().map(|share| share.bytes).sum();
        let live: u64 = shares.iter().map(|share| share.live_bytes).sum();
        assert!(BOUNDS.is_over(rest, live));
        assert!(Picture::of(&shares, &BOUNDS, |_| false).emptiest.is_some());
    }

    #[test]
    fn writers_are_held_beyond_the_limit_and_what_nobody_can_reclaim() {
        let live = 100 << 20;
        assert!(!BOUNDS.holds(&totals(150 << 20, live), 0));
        assert!(!BOUNDS.holds(&totals(158 << 20, live), 0), "twice the slack");
        assert!(BOUNDS.holds(&totals(159 << 20, live), 0));
        assert!(!BOUNDS.holds(&totals(159 << 20, live), 1 << 20));
        assert!(!BOUNDS.holds(&totals(159 << 20, live), u64::MAX));
        assert!(
            !BOUNDS.holds(&totals(8 << 20, 0), 0),
            "a store of eight blocks, all dead"
        );
    }

    /// 2 GiB written over 192 MiB waited for the cleaning of blocks of which two thirds lived: 290
    /// MB/s, and 547 with the slack.
    #[test]
    fn cleaning_leaves_the_slack_alone_unless_there_is_no_room() {
        let live = 100 << 20;
        assert!(!BOUNDS.is_over(134 << 20, live), "the slack");
        assert!(BOUNDS.is_over(135 << 20, live));
        assert!(BOUNDS.without_room().is_over(111 << 20, live));
    }

    #[test]
    fn without_slack_a_store_of_two_blocks_holds_nobody() {
        let bounds = Bounds {
            slack_bytes: 0,
            ..BOUNDS
        };
        assert!(!bounds.holds(&totals(2 << 20, 0), 0));
        assert!(bounds.holds(&totals(3 << 20, 0), 0));
    }

    #[test]
    fn only_so_many_blocks_wait() {
        assert!(!BOUNDS.are_outstanding(8 << 20, 0));
        assert!(BOUNDS.are_outstanding(9 << 20, 0));
        assert!(!BOUNDS.are_outstanding(49 << 20, 1_000 << 20));
    }
}
