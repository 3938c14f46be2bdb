//! Frames that wait for the applier. They gather, since of several overwrites of a key that are
//! applied together only the last must be applied.
//!
//! Invariants: frames are in log order. A frame waits no longer than [`GATHER_MAX`] for others, and
//! not at all once a thread waits for one of its commits, the store is closed or nothing is written
//! any more: nothing that callers wait for is delayed. Nor does a short frame wait: it shows that
//! the write rate is low, so that there is time to apply it alone. And none waits while keys are
//! not overwritten soon (`applying`).

use crate::{api::options::Tuning, log::frame::Frame};
use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

/// How long a frame waits for others to be applied with it.
const GATHER_MAX: Duration = Duration::from_millis(100);
/// A frame with fewer records
const SHORT_RECORDS: usize = 64;
/// and bytes is short.
const SHORT_BYTES: u64 = 256 << 10;
/// This many frames are a batch, however short: half of those that the overlay's filter can
/// distinguish, so that readers never search one needlessly while a batch is being applied.
const BATCH_FRAMES: usize = 32;
/// Maximum size of an applied record in the memtable, if its key is short.
const RECORD_IN_MEMTABLE_BYTES: u64 = 192;
/// A batch fills at most this fraction (1/n) of the memtable, which may be full already: it may
/// exceed its size by half.
const MEMTABLE_PART: u64 = 2;
/// This percentage of the maximum is worth applying: there must be room for what comes in
/// meanwhile.
const ENOUGH_PERCENT: usize = 75;
/// Waiting frames fill the overlay, too, and callers wait when that is full: this fraction (1/n) of
/// it is worth applying, however many records it has.
const OVERLAY_PART: u64 = 2;

/// How much is worth applying at once, and how much may be.
#[derive(Debug, Clone, Copy)]
pub struct BatchSize {
    /// This many records are enough.
    records: usize,
    /// At most this many are applied at once, but at least one frame.
    records_max: usize,
    /// This many bytes are enough, however many records they have.
    bytes: u64,
}

impl BatchSize {
    /// The sizes for a store.
    pub fn of(tuning: &Tuning) -> Self {
        let records_max = tuning.memtable_bytes / MEMTABLE_PART / RECORD_IN_MEMTABLE_BYTES;
        let records_max = usize::try_from(records_max).unwrap_or(usize::MAX);
        Self {
            records: records_max / 100 * ENOUGH_PERCENT,
            records_max,
            bytes: tuning.overlay_bytes / OVERLAY_PART,
        }
    }
}

impl Default for BatchSize {
    fn default() -> Self {
        Self::of(&Tuning::default())
    }
}

/// The frames, oldest first.
#[derive(Debug, Default)]
pub struct Waiting {
    frames: VecDeque<Arc<Frame>>,
    records: usize,
    bytes: u64,
    /// When they are applied, however few there are.
    due: Option<Instant>,
    /// The applier is notified that there are some, and checks again when they are due.
    pub is_watched: bool,
}

/// Records and bytes of a sealed frame.
fn size(frame: &Frame) -> (usize, u64) {
    let view = frame.view();
    (view.record_count() as usize, view.bytes().len() as u64)
}

impl Waiting {
    /// Frames that an open found in the log. They do not wait any longer.
    pub fn recovered(frames: Vec<Arc<Frame>>) -> Self {
        let mut waiting = Self::default();
        frames.into_iter().for_each(|frame| waiting.push(frame));
        waiting.due = waiting.due.map(|_| Instant::now());
        waiting
    }

    /// Adds a sealed frame.
    pub fn push(&mut self, frame: Arc<Frame>) {
        let (records, bytes) = size(&frame);
        self.records += records;
        self.bytes += bytes;
        self.frames.push_back(frame);
        let is_short = records < SHORT_RECORDS && bytes < SHORT_BYTES;
        let due = Instant::now() + if is_short { Duration::ZERO } else { GATHER_MAX };
        self.due = Some(self.due.map_or(due, |others| others.min(due)));
    }

    /// Whether there are enough to apply.
    pub fn is_batch(&self, size: BatchSize) -> bool {
        self.records >= size.records || self.bytes >= size.bytes || self.frames.len() >= BATCH_FRAMES
    }

    /// How long they may still wait for others, if there are any.
    pub fn remaining(&self) -> Option<Duration> {
        self.due.map(|due| due.saturating_duration_since(Instant::now()))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// The first.
    pub fn first(&self) -> Option<&Arc<Frame>> {
        self.frames.front()
    }

    /// Takes as many as may be applied at once, up to the first that `may_be_applied` refuses.
    pub fn take(&mut self, size: BatchSize, may_be_applied: impl Fn(&Frame) -> bool) -> Vec<Arc<Frame>> {
        let mut together = 0;
        let goes_on = |frame: &&Arc<Frame>| {
            let is_first = together == 0;
            together += self::size(frame).0;
            (is_first || together <= size.records_max) && may_be_applied(frame)
        };
        let count = self.frames.iter().take_while(goes_on).count();
        let taken: Vec<_> = self.frames.drain(..count).collect();
        for (records, bytes) in taken.iter().map(|frame| self::size(frame)) {
            self.records -= records;
            self.bytes -= bytes;
        }
        if self.frames.is_empty() {
            self.due = None;
        }
        taken
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{
        Batch, Durability, Options, Store,
        log::{
            format::{Body, Record},
            frame::FramePool,
        },
    };

    const SIZE: BatchSize = BatchSize {
        records: 300,
        records_max: 400,
        bytes: 1 << 20,
    };

    /// A sealed frame with a commit of so many records.
    fn frame(seq: u64, records: usize) -> Arc<Frame> {
        let record = Record::new(b"k", &[], Body::Put { value: b"" });
        let frame = Frame::open(0, 1, 1 << 20, seq << 16, Arc::new(FramePool::for_overlay(0)));
        frame.append(
            seq,
            &vec![(crate::key_hash(b"k"), record); records],
            Durability::Buffered,
        );
        frame.seal(0);
        Arc::new(frame)
    }

    fn seqs(frames: &[Arc<Frame>]) -> Vec<u64> {
        frames.iter().map(|frame| frame.view().last_seq()).collect()
    }

    #[test]
    fn frames_gather_up_to_what_is_applied_at_once() {
        let mut waiting = Waiting::default();
        assert_eq!((waiting.remaining(), waiting.is_batch(SIZE)), (None, false));
        waiting.push(frame(1, 100));
        assert!(waiting.remaining().unwrap() > Duration::ZERO);
        waiting.push(frame(2, 190));
        assert!(!waiting.is_batch(SIZE));
        waiting.push(frame(3, 110));
        assert!(waiting.is_batch(SIZE));
        waiting.push(frame(4, 70));
        assert_eq!(seqs(&waiting.take(SIZE, |_| true)), [1, 2, 3], "470 would be too many");
        assert!(!waiting.is_batch(SIZE) && waiting.remaining().is_some());
        assert!(waiting.take(SIZE, |_| false).is_empty());
        waiting.push(frame(5, 1000));
        assert_eq!(seqs(&waiting.take(SIZE, |_| true)), [4]);
        assert_eq!(seqs(&waiting.take(SIZE, |_| true)), [5], "one at least, however long");
        assert_eq!((waiting.remaining(), waiting.is_batch(SIZE)), (None, false));
        assert_eq!((waiting.records, waiting.bytes), (0, 0));
    }

    #[test]
    fn many_frames_and_a_few_long_ones_are_a_batch() {
        let mut waiting = Waiting::default();
        for seq in 1..BATCH_FRAMES as u64 {
            waiting.push(frame(seq, 1));
            assert!(!waiting.is_batch(SIZE));
        }
        waiting.push(frame(99, 1));
        assert!(waiting.is_batch(SIZE));
        let mut waiting = Waiting::default();
        waiting.push(frame(1, 1));
        assert!(waiting.is_batch(BatchSize { bytes: 4096, ..SIZE }));
    }

    /// When there was no other work, a recently put object was not in the index for a while, and
    /// was not read ahead: reading ahead uses the index alone.
    #[test]
    fn a_short_frame_is_applied_at_once_and_what_waits_before_it_with_it() {
        let mut waiting = Waiting::default();
        waiting.push(frame(1, SHORT_RECORDS));
        assert!(waiting.remaining().unwrap() > Duration::ZERO);
        waiting.push(frame(2, SHORT_RECORDS - 1));
        assert_eq!(waiting.remaining(), Some(Duration::ZERO));
    }

    #[test]
    fn what_an_open_found_is_applied_at_once() {
        let waiting = Waiting::recovered(vec![frame(1, 100), frame(2, 100)]);
        assert_eq!(waiting.remaining(), Some(Duration::ZERO));
        assert_eq!(Waiting::recovered(Vec::new()).remaining(), None);
    }

    /// A snapshot must show objects put just before it, so it needs the applier, and would wait as
    /// long as frames gather if it did not request otherwise.
    #[test]
    fn a_wait_for_a_frame_is_not_a_wait_for_others_to_join_it() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Options::new(dir.path())).unwrap();
        let began = Instant::now();
        for round in 0..100_u32 {
            // Overwritten at once, so that frames do gather.
            for _ in 0..3 {
                let mut batch = Batch::new();
                for key in 0..SHORT_RECORDS {
                    batch.put(format!("key {key}"), round.to_string());
                }
                store.write(batch, Durability::Buffered).unwrap();
            }
            let found = store.snapshot().unwrap().get("key 7").unwrap().unwrap();
            assert_eq!(found.value, round.to_string());
        }
        assert!(began.elapsed() < GATHER_MAX * 80, "{:?}", began.elapsed());
    }
}
