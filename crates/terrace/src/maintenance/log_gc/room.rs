//! What of the log's room goes back to the device.

use crate::{
    engine::Engine,
    log::segments::{RESERVED_SEGMENTS, Segment, SegmentState},
};

/// So many of the segment files that are there may be free; the room of others is given back. More than recycling makes free.
const FILES_KEPT_PERCENT: u32 = 40;

/// How many free segments keep their files. Where the device is full only those that recycling needs.
pub(super) fn files_kept(engine: &Engine) -> u32 {
    let segments = &engine.log.segments;
    if !engine.log.reserve.is_whole() {
        return RESERVED_SEGMENTS;
    }
    (segments.created() * FILES_KEPT_PERCENT / 100).max(RESERVED_SEGMENTS + 2)
}

/// Whether a part of the log is about to give its room back to the device: what is dead and will be drained, what is drained and
/// no snapshot holds, what is free and not kept. In the order in which it goes there.
pub fn log_gives_room(engine: &Engine) -> bool {
    let segments = &engine.log.segments;
    let (released_seq, watermark_seq) = (engine.log.overlay.released_seq(), engine.watermark_seq());
    let is_going = |segment: &Segment| match segment.state() {
        SegmentState::Sealed => segment.is_hopeful() && segment.last_seq() <= released_seq,
        SegmentState::Draining => true,
        SegmentState::Drained => segment.drained_seq() <= watermark_seq,
        _ => false,
    };
    segments.iter().any(is_going) || segments.free() > files_kept(engine)
}
