//! The contents of a backup: the index's state, and the segments and blocks it needs, held until
//! they are copied.
//!
//! Invariants: see docs/durability.md, section 7. The snapshot is dropped once everything is
//! pinned.

use crate::{
    Error, Result,
    blocks::HeldBlock,
    engine::{Engine, mark::MarkPayload},
    log::{
        scan::SegmentImage,
        segments::{Segment, SegmentPin, SegmentState},
    },
    ordered_index::IndexImage,
};

/// A state of the store, held.
pub(super) struct StoreImage<'a> {
    /// The index.
    pub index: IndexImage,
    /// The last commit in it.
    pub seq: u64,
    /// Segments, the oldest first.
    pub segments: Vec<SegmentPin<'a>>,
    /// Blocks.
    pub blocks: Vec<HeldBlock>,
}

impl<'a> StoreImage<'a> {
    /// Pins a state no older than the call.
    ///
    /// # Errors
    /// If the index cannot persist it.
    pub fn hold(engine: &'a Engine) -> Result<Self> {
        engine.check_writable()?;
        // While it is held nothing is freed that the state below may need: it is no older than the
        // snapshot.
        let snapshot = engine.snapshots.register(false, || engine.log.applied_seq());
        engine.persist_index(engine.log.committed_seq().max(snapshot.seq))?;
        let index = engine.index.image()?;
        let seq = index.mark.as_ref().map_or(0, |mark| mark.applied_seq);
        let payload = index.mark.as_ref().map(MarkPayload::of).transpose()?;
        let over = payload.map_or_else(Vec::new, |payload| payload.over_uses);
        let segments = &engine.log.segments;
        let mut pins: Vec<_> = segments
            .iter()
            .filter_map(|segment| segments.pin(segment.number))
            // Copies of large objects are written again when needed.
            .filter(|pin| pin.state() != SegmentState::Copies)
            .filter(|pin| !over.contains(&(pin.number, pin.generation())))
            .collect();
        pins.sort_by_key(|pin| pin.generation());
        let blocks = engine.large_result(engine.large.hold_blocks())?;
        drop(snapshot);
        Ok(Self {
            index,
            seq,
            segments: pins,
            blocks,
        })
    }
}

/// Bytes of a segment that belong to a state: up to the end of the last frame that is not after
/// `seq`. 0 if none is.
///
/// # Errors
/// Errors of the device.
pub(super) fn segment_bytes_at(segment: &Segment, seq: u64, segment_bytes: u64) -> Result<u64> {
    let state = segment.state();
    // A damaged segment is not written any more, and entries may point behind the damage.
    if state == SegmentState::Quarantined {
        let length = segment.file.len();
        let length = length.map_err(|error| Error::io(format!("read segment {:08x}", segment.number), &error))?;
        return Ok(length.min(segment_bytes));
    }
    let is_full = matches!(
        state,
        SegmentState::Sealed | SegmentState::Draining | SegmentState::Drained
    );
    if is_full && segment.last_seq() <= seq {
        return Ok(segment.end_bytes());
    }
    // The log's tail is in it, or was when the state was persisted.
    let image = SegmentImage::read(segment, segment_bytes)?;
    let last = image.frames().take_while(|frame| frame.header.last_seq <= seq).last();
    Ok(last.map_or(0, |frame| frame.end() as u64))
}
