//! Which free segments of the log return their space to the device, and whether the log lacks
//! space.

use super::Engine;
use crate::{
    blocks::gc::AsOf,
    log::segments::{RESERVED_SEGMENTS, SCARCE_SEGMENTS, Segment, SegmentState, WANTED_SEGMENTS},
};

/// Maximum percentage of the existing segment files that may be free; the space of others is
/// returned. More than log GC frees.
const FILES_KEPT_PERCENT: u32 = 40;

impl Engine {
    /// How many free segments keep their files. On a full device only those that log GC needs, and
    /// one more if the log is beyond its capacity, so that writers can continue.
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

    /// Whether the device has less space left than the log takes. Then segments without live values
    /// are freed even on a busy store with free ones; elsewhere they wait, since freeing one reads
    /// it and moves what lives in it.
    pub fn log_crowds_device(&self) -> bool {
        let segments = &self.log.segments;
        let used = u64::from(segments.created().saturating_sub(segments.free()));
        // A device that cannot be queried counts as full.
        self.flash_disk.available_bytes().unwrap_or(0) < used * segments.segment_bytes()
    }

    /// Bytes of segments without live values that the newest checkpoint of the hash index needs.
    pub fn dead_log_behind_checkpoint_bytes(&self) -> u64 {
        let segments = &self.log.segments;
        let waits = |segment: &&Segment| segment.is_hopeful() && !self.checkpoints.spares_log_up_to(segment.last_seq());
        let count = segments.in_state(SegmentState::Sealed).filter(waits).count();
        count as u64 * segments.segment_bytes()
    }

    /// Whether a part of the log will soon return its space to the device: mostly dead segments to
    /// be drained, drained ones that no snapshot holds, free ones beyond the kept number. In the
    /// order of these states.
    pub fn log_gives_room(&self) -> bool {
        let segments = &self.log.segments;
        let (released_seq, watermark_seq) = (self.log.frames.released_seq(), self.watermark_seq());
        let is_going = |segment: &Segment| match segment.state() {
            SegmentState::Sealed => segment.is_hopeful() && segment.last_seq() <= released_seq,
            // Others are drained as well, but most of these drains fail where there is no space.
            SegmentState::Draining => segment.is_mostly_dead(),
            SegmentState::Drained => segment.drained_seq() <= watermark_seq,
            _ => false,
        };
        segments.iter().any(is_going) || segments.free() > self.log_files_kept()
    }

    /// Whether deleted values will soon free space of blocks: the index can persist the deletes,
    /// and a block is being drained or has no live values. Must be called after its commits are
    /// applied.
    pub fn blocks_give_room(&self, is_stopping: impl Fn() -> bool) -> bool {
        let as_of = AsOf {
            applied_seq: self.log.applied_seq(),
            watermark_seq: self.watermark_seq(),
            is_accounted: self.large.is_accounted(),
        };
        let cleans = || self.block_gc.cleans(as_of, is_stopping);
        self.log.index_full.reason().is_none() && (cleans() || self.large.is_giving_room())
    }

    /// Whether the log, on the same device as the blocks, has no space, or has used its reserve for
    /// operations that free space: freeing blocks may help then.
    pub(super) fn log_lacks_room(&self) -> bool {
        let (reserve, segments) = (&self.log.reserve, &self.log.segments);
        reserve.is_shared() && (!reserve.is_whole() || segments.is_device_short())
    }
}
