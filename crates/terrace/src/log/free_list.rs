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
use std::{ops::Range, sync::atomic::Ordering};

/// A use of a segment: number and generation.
pub type Use = (u32, u64);

impl Segments {
    /// Ended uses of segments once the index has persisted `applied_seq`: of free segments, and of
    /// those drained as of that seq. Only the last use of a segment may be listed; so of the free
    /// segments, those that are not taken meanwhile, and of the drained ones, those whose
    /// generation is the same before and after the check.
    pub fn over_uses(&self, applied_seq: u64) -> Vec<Use> {
        let mut list: Vec<Use> = self
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

    /// Segments into which entries of the index as of `applied_seq` may lead, as runs of numbers:
    /// if the file of one is gone, values are lost.
    pub fn in_use(&self, applied_seq: u64) -> Vec<Range<u32>> {
        let is_used = |segment: &Segment| match segment.state() {
            SegmentState::Free | SegmentState::Copies => false,
            SegmentState::Drained => Self::drained_use(segment, applied_seq).is_none(),
            SegmentState::Open | SegmentState::Sealed | SegmentState::Draining | SegmentState::Quarantined => true,
        };
        let used = self.iter().filter(|segment| is_used(segment));
        let mut numbers: Vec<u32> = used.map(|segment| segment.number).collect();
        numbers.sort_unstable();
        let mut runs: Vec<Range<u32>> = Vec::new();
        for number in numbers {
            match runs.last_mut() {
                Some(run) if run.end == number => run.end += 1,
                _ => runs.push(number..number + 1),
            }
        }
        runs
    }

    /// Uses of segments whose short values were all copied into their entries by merges that the
    /// index has installed.
    pub fn swept_uses(&self) -> Vec<Use> {
        let swept = self.iter().filter(|segment| segment.is_swept());
        let mut list: Vec<Use> = swept.map(|segment| (segment.number, segment.generation())).collect();
        list.retain(|(_, generation)| *generation > 0);
        list.sort_unstable();
        list
    }

    /// Notes the uses that are listed as swept, so that no sweep reads them again.
    pub fn note_swept(&self, list: &[Use]) {
        for &(number, generation) in list {
            if let Some(segment) = self.get(number) {
                segment.swept(generation);
            }
        }
    }

    fn drained_use(segment: &Segment, applied_seq: u64) -> Option<Use> {
        let generation = segment.generation();
        let over = segment.state() == SegmentState::Drained && segment.drained_seq() <= applied_seq;
        (over && segment.generation() == generation).then_some((segment.number, generation))
    }

    /// Frees the segments whose last use is listed, before recovery reads any. Generations that are
    /// listed are not assigned again, even if their files are gone.
    pub fn free_over_uses(&self, list: &[Use]) {
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
