//! The list of segments that may be written again, for the index's mark: without it every segment
//! would count as used after an open, and would have to be read and drained once more.
//!
//! Invariants: a segment is listed with the generation of the ended use. No entry of the index as
//! of the mark's seq points into that use, and no commit after that seq is in it. A later use has a
//! higher generation, whose header is durable before its first frame, so an outdated list is
//! detected by the header.
//!
//! On failure: a segment that is not listed counts as used, which costs time but no data.

use super::segments::{Segment, SegmentState, Segments};
use std::sync::atomic::Ordering;

/// An ended use of a segment: number and generation.
pub type OverUse = (u32, u64);

impl Segments {
    /// Ended uses of segments once the index has persisted `applied_seq`: of free segments, and of
    /// those drained as of that seq. Only the last use of a segment may be listed; so of the free
    /// segments, those that are not taken meanwhile, and of the drained ones, those whose
    /// generation is the same before and after the check.
    pub fn over_uses(&self, applied_seq: u64) -> Vec<OverUse> {
        let mut list: Vec<OverUse> = self
            .iter()
            .filter_map(|segment| Self::drained_use(segment, applied_seq))
            .collect();
        let free = self.free.lock();
        let free = free.iter().filter_map(|number| self.get(*number));
        list.extend(free.map(|segment| (segment.number, segment.generation())));
        // After the free ones: a segment is in that set before it returns its space.
        let hollow = self.hollow.lock();
        let hollow = hollow.iter().filter_map(|number| self.get(*number));
        list.extend(hollow.map(|segment| (segment.number, segment.generation())));
        // Generation 0: never used, which its header says as well.
        list.retain(|(_, generation)| *generation > 0);
        list.sort_unstable();
        // Drained at the first check and free at the second: the same use.
        list.dedup_by_key(|(number, _)| *number);
        list
    }

    fn drained_use(segment: &Segment, applied_seq: u64) -> Option<OverUse> {
        let generation = segment.generation();
        let over = segment.state() == SegmentState::Drained && segment.drained_seq() <= applied_seq;
        (over && segment.generation() == generation).then_some((segment.number, generation))
    }

    /// Frees the segments whose last use is listed, before recovery reads any. Generations that are
    /// listed are not assigned again, even if their files are gone.
    pub fn free_over_uses(&self, list: &[OverUse]) {
        for &(number, generation) in list {
            self.next_generation
                .fetch_max(generation.saturating_add(1), Ordering::AcqRel);
            let same =
                |segment: &&Segment| segment.state() == SegmentState::Sealed && segment.generation() == generation;
            if let Some(segment) = self.get(number).filter(same) {
                self.free_unused(segment);
            }
        }
    }
}
