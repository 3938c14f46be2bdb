//! Whether a segment is worth rewriting if nothing can move to the large tier: by its dead bytes,
//! and by how much of a full device's reserve is left to use meanwhile.

use super::{Live, LogGc, Ring, record_bytes};
use crate::{log::segments::Segment, metrics::stalls::StallReason};
use std::time::{Duration, Instant};

/// If nothing can move to the large tier, a segment with a higher live percentage is not drained:
/// rewriting it would free too little.
const LIVE_PERCENT_MAX: usize = 80;
/// While the reserve of a full device is used, and one segment of it is left, so much of a segment
/// must be dead, in its records.
const DEAD_PERCENT_MIN_AT_THE_LAST: usize = 10;
/// The same while a writer waits: new data is refused meanwhile, and overwrites that shrink free
/// scattered values. Their part of the reserve, a 32nd of the ring, is used up before a fifth of
/// each segment is dead, if the values are in both tiers. The gain is small: frames do not fill the
/// next segment to its end, so that 296 MB were written for 3 of room.
pub(super) const DEAD_PERCENT_MIN_AWAITED: usize = 5;
/// For this long after a segment of the reserve was taken the others are used first, while segments
/// become emptier: draining one with a twentieth dead writes twenty bytes per byte freed, and five
/// a little later. After that the room is needed for new data.
const BURST: Duration = Duration::from_secs(3);

impl LogGc {
    /// Whether the rest of the reserve can be used before much is rewritten for a small gain.
    pub(super) fn limit_use_of_reserve(&mut self, ring: Ring) {
        let left = if ring.reserve_is_whole {
            u32::MAX
        } else {
            ring.reserve_segments
        };
        let since = if left < self.reserve_seen.0 {
            Instant::now()
        } else {
            self.reserve_seen.1
        };
        self.reserve_seen = (left, since);
        let somebody_waits = self.engine.log.stalls.waiting(&[StallReason::Segment]) > 0;
        let percent = if somebody_waits || since.elapsed() >= BURST {
            DEAD_PERCENT_MIN_AWAITED
        } else if ring.is_used_up() {
            DEAD_PERCENT_MIN_AT_THE_LAST
        } else {
            100 - LIVE_PERCENT_MAX
        };
        if percent < self.dead_percent_min {
            // Segments that would have freed too little may free enough now.
            self.round += 1;
        }
        self.dead_percent_min = percent;
    }

    /// With the large tier full, writing live values again only helps if enough of the segment is
    /// dead.
    pub(super) fn reinserting_helps(&self, values: &[&[Live]], held_bytes: usize) -> bool {
        self.gives_enough(record_bytes(values), held_bytes)
    }

    /// The same before it is read, by its live bytes as counted.
    // At most 1 GiB.
    pub(super) fn may_be_reinserted(&self, segment: &Segment) -> bool {
        self.gives_enough(segment.live_bytes() as usize, segment.end_bytes() as usize)
    }

    fn gives_enough(&self, live_bytes: usize, held_bytes: usize) -> bool {
        let segment_bytes = self.segment_bytes();
        // The fraction of its frames and not of its length: as much may be free at the end of the
        // next segment, and draining would never end.
        let dead_bytes = held_bytes.saturating_sub(live_bytes);
        let helps_reserve = dead_bytes >= segment_bytes * self.dead_percent_min / 100;
        live_bytes < segment_bytes * LIVE_PERCENT_MAX / 100 || (helps_reserve && !self.engine.log.reserve.is_whole())
    }
}
