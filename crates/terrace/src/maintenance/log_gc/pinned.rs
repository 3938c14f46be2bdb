//! How much of a segment that is drained may stay in the log because it is pinned there.
//!
//! Pins ask for at most half of the log, or count for nothing (`settle`, which counts them). Until
//! they are counted, and where recycling itself runs out of room, each segment must give something
//! back all the same. Found by a log full of pinned values: segments of nothing else gave nothing
//! back, each took a little more room than before, since the next frame does not fit into a
//! segment's end, and at last recycling had no room left to move anything.

use std::collections::VecDeque;

/// Where more is pinned than half of the log at most this share of what a segment holds stays. Not
/// of its length: a segment ends where the next frame does not fit, and the same may not fit again.
const SHARE_MAX_PERCENT: usize = 80;
/// And this where recycling is short of room. The rest comes back with the next walk of `settle`.
const SHARE_SHORT_PERCENT: usize = 50;

/// What stayed of the segments drained last.
#[derive(Debug)]
pub struct Pinned {
    segments: usize,
    segment_bytes: usize,
    /// Pinned bytes in each, as many as the log has. Each pinned value is in one of them.
    drained: VecDeque<usize>,
    /// Of the segment that is being drained.
    now: usize,
}

impl Pinned {
    /// For a log of so many segments of so many bytes.
    pub fn new(segments: usize, segment_bytes: usize) -> Self {
        Self {
            segments,
            segment_bytes,
            drained: VecDeque::new(),
            now: 0,
        }
    }

    /// Bytes of pinned values that may stay of a segment that holds `held` bytes. `is_short`: of
    /// the segments kept free for recycling too few are left.
    pub fn bytes_max(&mut self, held: usize, is_short: bool) -> usize {
        if is_short {
            return held * SHARE_SHORT_PERCENT / 100;
        }
        while self.drained.len() >= self.segments.max(1) {
            self.drained.pop_front();
        }
        let kept: usize = self.drained.iter().sum();
        let half = self.segments * self.segment_bytes / 2;
        half.saturating_sub(kept).max(held * SHARE_MAX_PERCENT / 100)
    }

    /// So many bytes stay of the segment that is being drained.
    pub fn stays(&mut self, bytes: usize) {
        self.now = bytes;
    }

    /// That segment is drained. Not before: one that has to be tried again would count each time.
    pub fn segment_drained(&mut self) {
        self.drained.push_back(self.now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(pinned: &mut Pinned, held: usize, is_short: bool) -> usize {
        let stays = held.min(pinned.bytes_max(held, is_short));
        pinned.stays(stays);
        pinned.segment_drained();
        stays
    }

    #[test]
    fn all_stay_up_to_half_of_the_log_and_a_share_beyond() {
        let mut pinned = Pinned::new(10, 1000);
        let first: Vec<_> = (0..7).map(|_| drain(&mut pinned, 1000, false)).collect();
        assert_eq!(first, [1000, 1000, 1000, 1000, 1000, 800, 800]);
        // A segment that is not full gives back just as much of what it holds.
        assert_eq!(drain(&mut pinned, 500, false), 400);
    }

    #[test]
    fn where_room_is_short_half_of_each_goes() {
        let mut pinned = Pinned::new(10, 1000);
        assert_eq!(drain(&mut pinned, 1000, true), 500);
        assert_eq!(drain(&mut pinned, 1000, false), 1000);
    }

    #[test]
    fn what_was_drained_a_whole_log_ago_counts_no_more() {
        let mut pinned = Pinned::new(4, 1000);
        for _ in 0..2 {
            assert_eq!(drain(&mut pinned, 1000, false), 1000);
        }
        for _ in 0..3 {
            drain(&mut pinned, 0, false);
        }
        assert_eq!(drain(&mut pinned, 1000, false), 1000);
    }
}
