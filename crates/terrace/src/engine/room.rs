//! What of the log's room goes back to the device, and whether the log has too little.

use super::Engine;
use crate::{
    blocks::gc::AsOf,
    log::segments::{RESERVED_SEGMENTS, SCARCE_SEGMENTS, Segment, SegmentState, WANTED_SEGMENTS},
};

/// So many of the segment files that are there may be free; the room of others is given back. More
/// than log GC makes free.
const FILES_KEPT_PERCENT: u32 = 40;

impl Engine {
    /// How many free segments keep their files. Where the device is full only those that log GC
    /// needs, and one more where the log is beyond its capacity: writers go on meanwhile.
    pub fn log_files_kept(&self) -> u32 {
        let segments = &self.log.segments;
        if !self.log.reserve.is_whole() {
            return RESERVED_SEGMENTS;
        }
        if segments.beyond_capacity() > 0 {
            return SCARCE_SEGMENTS;
        }
        (segments.created() * FILES_KEPT_PERCENT / 100).max(WANTED_SEGMENTS)
    }

    /// Whether a part of the log is about to give its room back to the device: what is dead and
    /// will be drained, what is drained and no snapshot holds, what is free and not kept. In the
    /// order in which it goes there.
    pub fn log_gives_room(&self) -> bool {
        let segments = &self.log.segments;
        let (released_seq, watermark_seq) = (self.log.frames.released_seq(), self.watermark_seq());
        let is_going = |segment: &Segment| match segment.state() {
            SegmentState::Sealed => segment.is_hopeful() && segment.last_seq() <= released_seq,
            // Others are drained as well, and most of them in vain where there is no room.
            SegmentState::Draining => segment.is_mostly_dead(),
            SegmentState::Drained => segment.drained_seq() <= watermark_seq,
            _ => false,
        };
        segments.iter().any(is_going) || segments.free() > self.log_files_kept()
    }

    /// Whether what was deleted is about to give room of blocks back: the index can persist it, and
    /// a block is cleaned, or nothing lives in one. To be asked once its commits are applied.
    pub fn blocks_give_room(&self, is_stopping: impl Fn() -> bool) -> bool {
        let as_of = AsOf {
            applied_seq: self.log.applied_seq(),
            watermark_seq: self.watermark_seq(),
            is_accounted: self.large.is_accounted(),
        };
        let cleans = || self.block_gc.cleans(as_of, is_stopping);
        self.log.index_full.reason().is_none() && (cleans() || self.large.is_giving_room())
    }

    /// Whether the log, on the same device as the blocks, has no room, or the way out has taken its
    /// reserve: blocks may be what gives it back.
    pub(super) fn log_lacks_room(&self) -> bool {
        let (reserve, segments) = (&self.log.reserve, &self.log.segments);
        reserve.is_shared() && (!reserve.is_whole() || segments.is_device_short())
    }
}
