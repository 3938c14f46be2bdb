//! One segment file: its state, the seqs in it, and its readers.

use crate::io::{DiskFile, PAGE_BYTES};
use parking_lot::Mutex;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// State of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum SegmentState {
    /// Has nothing of use; may be written.
    Free = 0,
    /// The log's tail is in it.
    Open = 1,
    /// Full.
    Sealed = 2,
    /// Its live values are being moved.
    Draining = 3,
    /// All its values are dead or moved, as of its drained seq; it becomes free once no reader may
    /// need the old addresses.
    Drained = 4,
    /// Damaged and still referenced; kept as it is.
    Quarantined = 5,
    /// Holds copies of extents of the large space, and no part of the log. Becomes free whenever
    /// they are no longer needed: a late reader detects that by the checksums.
    Copies = 6,
}

impl SegmentState {
    const ALL: [Self; 7] = [
        Self::Free,
        Self::Open,
        Self::Sealed,
        Self::Draining,
        Self::Drained,
        Self::Quarantined,
        Self::Copies,
    ];
}

/// One segment file.
#[derive(Debug)]
pub struct Segment {
    /// Its number in the ring.
    pub number: u32,
    /// The file.
    pub file: Arc<dyn DiskFile>,
    pub(super) state: AtomicU8,
    pub(super) pins: AtomicU32,
    pub(in crate::log) generation: AtomicU64,
    pub(in crate::log) first_seq: AtomicU64,
    pub(super) last_seq: AtomicU64,
    pub(super) drained_seq: AtomicU64,
    pub(super) end_bytes: AtomicU64,
    /// Length of the file at the open, if it was shorter than a segment.
    pub(in crate::log) cut_at: AtomicU64,
    /// The file was cut, and the device had no room for the rest: it is allocated before the next
    /// use.
    pub(in crate::log) lacks_room: AtomicBool,
    /// See `liveness`.
    pub(in crate::log) live_bytes: AtomicU64,
    /// It was written before the open.
    pub(in crate::log) is_former: AtomicBool,
    /// Generation of the use whose short values were all copied into their entries.
    pub(in crate::log) swept_generation: AtomicU64,
    /// The round of log GC in which it could not be drained for lack of space, and its live bytes
    /// then.
    pub(in crate::log) refused: Mutex<Option<(u64, u64)>>,
    pub(super) begun: Mutex<Instant>,
}

impl Segment {
    pub(in crate::log) fn new(number: u32, file: Arc<dyn DiskFile>) -> Self {
        Self {
            number,
            file,
            state: AtomicU8::new(SegmentState::Free as u8),
            pins: AtomicU32::new(0),
            generation: AtomicU64::new(0),
            first_seq: AtomicU64::new(0),
            last_seq: AtomicU64::new(0),
            drained_seq: AtomicU64::new(0),
            end_bytes: AtomicU64::new(PAGE_BYTES as u64),
            cut_at: AtomicU64::new(u64::MAX),
            lacks_room: AtomicBool::new(false),
            live_bytes: AtomicU64::new(0),
            is_former: AtomicBool::new(false),
            swept_generation: AtomicU64::new(0),
            refused: Mutex::new(None),
            begun: Mutex::new(Instant::now()),
        }
    }

    /// Its state.
    pub fn state(&self) -> SegmentState {
        SegmentState::ALL[usize::from(self.state.load(Ordering::SeqCst))]
    }

    pub(in crate::log) fn set_state(&self, state: SegmentState) {
        self.state.store(state as u8, Ordering::SeqCst);
    }

    /// Generation of its present use.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Lowest seq that may be in it.
    pub fn first_seq(&self) -> u64 {
        self.first_seq.load(Ordering::Acquire)
    }

    /// Highest seq in it, once it is sealed.
    pub fn last_seq(&self) -> u64 {
        self.last_seq.load(Ordering::Acquire)
    }

    /// The seq as of which everything in it is dead or moved.
    pub fn drained_seq(&self) -> u64 {
        self.drained_seq.load(Ordering::Acquire)
    }

    /// Length of its file at the open, if that was cut.
    pub fn cut_at(&self) -> Option<u64> {
        Some(self.cut_at.load(Ordering::Acquire)).filter(|at| *at != u64::MAX)
    }

    /// Whether writing after its end may fail for lack of space.
    pub fn lacks_room(&self) -> bool {
        self.lacks_room.load(Ordering::Acquire)
    }

    /// Age of its present use; if that began before the open, the time since the open.
    pub fn age(&self) -> Duration {
        self.begun.lock().elapsed()
    }

    /// End of its last frame, as far as known.
    pub fn end_bytes(&self) -> u64 {
        self.end_bytes.load(Ordering::Acquire)
    }
}

/// Prevents a segment from being freed while it is read.
#[derive(Debug)]
pub struct SegmentPin<'a>(pub(super) &'a Segment);

impl std::ops::Deref for SegmentPin<'_> {
    type Target = Segment;
    fn deref(&self) -> &Segment {
        self.0
    }
}

impl Drop for SegmentPin<'_> {
    fn drop(&mut self) {
        self.0.pins.fetch_sub(1, Ordering::SeqCst);
    }
}
