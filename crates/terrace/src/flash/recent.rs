//! Frames that were written lately, to be read by place: what was just written is often read soon, and then no device need be asked.
//!
//! A frame comes here when the overlay lets go of it: written, applied, and never changed again. A long one is kept as it is; of a
//! short one a copy is kept without its padding, so that its memory, which may be much longer, goes to the next frame.
//!
//! Invariants:
//! - A frame is found by generation and offset, which together name a place for ever: a segment that is used anew has another
//!   generation. So what is found is what was written at the place that was asked for, or nothing.
//! - Together they take no more than the given bytes; the oldest leaves first.
//!
//! Nothing of this outlives the process, and nothing depends on it: what is not here is on the device.

use super::{
    format::{FRAME_HEADER_BYTES, Record},
    frame::Frame,
};
use parking_lot::RwLock;
use std::{collections::VecDeque, sync::Arc};

/// Of the RAM for values one part in so many is for recent frames.
const PART: u64 = 8;
/// Of frames that take up to so much memory, and of those that fill less than half of theirs, a copy is kept.
const COPIED_BYTES_MAX: usize = 64 << 10;
/// What a frame costs besides its bytes.
const FRAME_OVERHEAD_BYTES: usize = 96;

/// One part in so many of the frames, the oldest, leaves soon.
const LEAVING_PART: usize = 4;

/// When a frame that is here leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaves {
    /// It is one of the oldest: what is to stay in RAM has to be kept elsewhere from now on.
    Soon,
    /// Not before many others.
    Later,
}

/// See the module.
#[derive(Debug, Default)]
pub struct RecentFrames {
    kept: RwLock<Kept>,
    capacity_bytes: u64,
}

#[derive(Debug, Default)]
struct Kept {
    /// In the order of the log.
    frames: VecDeque<RecentFrame>,
    bytes: u64,
}

#[derive(Debug)]
struct RecentFrame {
    /// Generation of its segment, and where in that it starts.
    place: (u64, u64),
    records: Records,
    /// RAM it takes.
    bytes: u64,
}

/// A frame's bytes, from its header to its last record at least.
#[derive(Debug, Clone)]
enum Records {
    Whole(Arc<Frame>),
    Copy(Arc<[u8]>),
}

impl RecentFrames {
    /// Their share of the RAM for values, in bytes.
    pub const fn share_of(cache_bytes: u64) -> u64 {
        cache_bytes / PART
    }

    /// Keeps frames of up to so many bytes; with 0 none.
    pub fn new(capacity_bytes: u64) -> Self {
        Self {
            capacity_bytes,
            ..Self::default()
        }
    }

    /// Keeps a frame that is written and applied, and lets go of older ones for it.
    pub fn keep(&self, frame: Arc<Frame>) {
        if self.capacity_bytes == 0 {
            return;
        }
        let recent = RecentFrame::of(frame);
        if recent.bytes > self.capacity_bytes {
            return;
        }
        let mut left = Vec::new();
        let mut kept = self.kept.write();
        kept.bytes += recent.bytes;
        // Two threads may bring theirs in the other order.
        let at = kept.frames.partition_point(|other| other.place < recent.place);
        kept.frames.insert(at, recent);
        while kept.bytes > self.capacity_bytes
            && let Some(oldest) = kept.frames.pop_front()
        {
            kept.bytes -= oldest.bytes;
            left.push(oldest);
        }
        drop(kept);
    }

    /// Hands the record at a place, which is a generation and an offset in its segment, to `use_record`, if its frame is here; and
    /// says whether it will leave soon.
    pub fn find<R>(&self, place: (u64, u64), use_record: impl FnOnce(&Record<'_>, Leaves) -> R) -> Option<R> {
        if self.capacity_bytes == 0 {
            return None;
        }
        let (records, start, leaves) = {
            let kept = self.kept.read();
            let at = kept
                .frames
                .partition_point(|frame| frame.place <= place)
                .checked_sub(1)?;
            let frame = kept.frames.get(at).filter(|frame| frame.place.0 == place.0)?;
            let is_old = at < kept.frames.len() / LEAVING_PART;
            let leaves = if is_old { Leaves::Soon } else { Leaves::Later };
            (frame.records.clone(), frame.place.1, leaves)
        };
        let at = usize::try_from(place.1 - start).ok()?;
        match records {
            Records::Whole(frame) => {
                record_at(frame.view().bytes(), at, place.0).map(|record| use_record(&record, leaves))
            }
            Records::Copy(bytes) => record_at(&bytes, at, place.0).map(|record| use_record(&record, leaves)),
        }
    }

    /// Most RAM they may take, in bytes.
    pub const fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// RAM they take, in bytes.
    pub fn bytes(&self) -> u64 {
        self.kept.read().bytes
    }
}

/// The record at an offset in a frame. Who asks may have the address from an earlier use of the segment, when another record
/// began there, or none: so it is believed only if its checksum matches.
fn record_at(frame: &[u8], at: usize, generation: u64) -> Option<Record<'_>> {
    let bytes = frame.get(at..).filter(|_| at >= FRAME_HEADER_BYTES)?;
    #[allow(clippy::cast_possible_truncation)] // the low half, by definition
    let generation = generation as u32;
    Record::decode(bytes).filter(|record| record.generation == generation)
}

impl RecentFrame {
    fn of(frame: Arc<Frame>) -> Self {
        let place = (frame.generation, frame.offset);
        let copy: Option<Arc<[u8]>> = {
            let view = frame.view();
            let (used, memory) = (view.used_bytes(), view.memory_bytes());
            (memory <= COPIED_BYTES_MAX || used < memory / 2).then(|| view.bytes()[..used].into())
        };
        let (records, bytes) = match copy {
            Some(copy) => {
                let bytes = copy.len();
                (Records::Copy(copy), bytes)
            }
            None => {
                frame.forget_keys();
                let bytes = frame.view().memory_bytes();
                (Records::Whole(frame), bytes)
            }
        };
        Self {
            place,
            records,
            bytes: (bytes + FRAME_OVERHEAD_BYTES) as u64,
        }
    }
}
