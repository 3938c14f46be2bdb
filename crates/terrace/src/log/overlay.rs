//! Commits that the index does not know yet. They answer first, as soon as they are visible: a
//! `Buffered` commit at once, a `Sync` commit when it is durable. Until then an earlier record of
//! the key answers, here or in the index.
//!
//! The overlay is a list of frames, newest last. A frame enters when it is opened and leaves when
//! it is both written and applied, so at every moment a committed record can be found here or
//! through the indexes. Before it leaves it is among the recent frames, so what was just written is
//! in RAM all the time.

mod frame_filter;

use crate::{
    Durability,
    log::{
        departures::Departures,
        format::Record,
        frame::{Frame, FrameView},
        recent::RecentFrames,
    },
};
use frame_filter::FrameFilter;
use parking_lot::{Mutex, RwLock};
use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

/// A record is counted as this many bytes at least: applying it takes its time, however short it
/// is, and who scans waits for all of them.
const RECORD_BYTES_MIN: u64 = 256;

/// The list of unapplied frames.
#[derive(Debug, Default)]
pub struct Overlay {
    frames: RwLock<VecDeque<Arc<Frame>>>,
    /// How many there are: who finds none need not take the lock, which is everybody's.
    count: AtomicUsize,
    filter: FrameFilter,
    /// What its commits have taken away.
    pub departures: Departures,
    /// Those that the filter does not know.
    unfiltered: AtomicUsize,
    /// Bytes of the sealed frames in the list.
    bytes: AtomicU64,
    /// Their records.
    records: AtomicU64,
    /// It is full above so many bytes, or with this many for each record.
    bytes_max: u64,
    /// Last seq of the last frame that left: everything up to it is applied and in its segment.
    released_seq: AtomicU64,
    /// Held by who lets frames go, so that none is kept twice.
    releasing: Mutex<()>,
}

impl Overlay {
    /// An empty overlay. Everything up to `released_seq` is applied and written.
    pub fn starting_at(released_seq: u64, bytes_max: u64) -> Self {
        Self {
            released_seq: AtomicU64::new(released_seq),
            bytes_max,
            ..Self::default()
        }
    }

    /// Adds a frame that was just opened, or recovered.
    pub fn push(&self, frame: Arc<Frame>) {
        match self.filter.lend() {
            Some(bit) => {
                frame.set_filter_bit(bit);
                frame.view().hashes().for_each(|hash| self.filter.add(bit, hash));
            }
            None => {
                self.unfiltered.fetch_add(1, Ordering::AcqRel);
            }
        }
        self.count.fetch_add(1, Ordering::AcqRel);
        self.frames.write().push_back(frame);
    }

    /// Appends a commit to the open frame, and answers for it: at once, or from when it is durable.
    pub fn append(&self, frame: &Frame, seq: u64, records: &[(u64, Record<'_>)], durability: Durability) {
        self.departures.note(seq, records);
        if let Some(bit) = frame.filter_bit() {
            let answering = records.iter().filter(|(_, record)| record.body.answers_for_key());
            answering.for_each(|(hash, _)| self.filter.add(bit, *hash));
        }
        match durability {
            Durability::Buffered => frame.append(seq, records),
            Durability::Sync => frame.append_unfinished(seq, records),
        }
    }

    /// A frame is in the list no more.
    fn forget(&self, frame: &Frame) {
        match frame.filter_bit() {
            Some(bit) => self.filter.give_back(bit, frame.view().hashes()),
            None => {
                self.unfiltered.fetch_sub(1, Ordering::AcqRel);
            }
        }
        frame.forget_keys();
    }

    /// A frame of the list was sealed.
    pub fn sealed(&self, frame: &Frame) {
        let view = frame.view();
        self.bytes.fetch_add(view.bytes().len() as u64, Ordering::AcqRel);
        self.records.fetch_add(u64::from(view.record_count()), Ordering::AcqRel);
    }

    /// Lets go of the frames at the front that are written and applied: they are `recent` before
    /// that. Whether there were any.
    pub fn release_finished(&self, recent: &RecentFrames) -> bool {
        let alone = self.releasing.lock();
        let is_finished = |frame: &&Arc<Frame>| frame.is_finished();
        let finished: Vec<_> = self.frames.read().iter().take_while(is_finished).cloned().collect();
        if finished.is_empty() {
            return false;
        }
        let came_bytes = finished.iter().map(|frame| recent.add(frame)).sum();
        let mut frames = self.frames.write();
        for frame in frames.drain(..finished.len()) {
            let view = frame.view();
            self.released_seq.fetch_max(view.last_seq(), Ordering::AcqRel);
            self.bytes.fetch_sub(view.bytes().len() as u64, Ordering::AcqRel);
            self.records.fetch_sub(u64::from(view.record_count()), Ordering::AcqRel);
        }
        self.count.fetch_sub(finished.len(), Ordering::AcqRel);
        drop(frames);
        finished.iter().for_each(|frame| self.forget(frame));
        drop(alone);
        recent.give_back(came_bytes);
        true
    }

    /// Bytes of commits not yet applied or written, without the open frame.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Number of frames.
    pub fn frame_count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Last seq of the last frame that left. While this stays the same, what the index says of a
    /// key that is not in the overlay is its latest state.
    pub fn released_seq(&self) -> u64 {
        self.released_seq.load(Ordering::Acquire)
    }

    /// Whether so much waits that those who write should, too.
    pub fn is_full(&self) -> bool {
        let records = self.records.load(Ordering::Acquire);
        self.bytes().max(records.saturating_mul(RECORD_BYTES_MIN)) > self.bytes_max
    }

    /// Hands the newest visible record of `key` to `use_record`, if the overlay has one.
    /// `durable_seq` is only asked for if it may have.
    pub fn find<R>(
        &self,
        hash: u64,
        key: &[u8],
        durable_seq: impl Fn() -> u64,
        use_record: impl FnOnce(&Record<'_>) -> R,
    ) -> Option<R> {
        let (mut durable, mut use_record) = (None, Some(use_record));
        self.find_by(hash, |view| {
            let durable_seq = *durable.get_or_insert_with(&durable_seq);
            let record = view.find_visible(hash, key, durable_seq)?;
            use_record.take().map(|use_record| use_record(&record))
        })
    }

    /// Hands the newest record of `key` to `use_record`, visible or not, and says whether it is
    /// visible when everything up to `durable_seq` is durable.
    pub fn find_committed<R>(
        &self,
        hash: u64,
        key: &[u8],
        durable_seq: u64,
        use_record: impl FnOnce(&Record<'_>, bool) -> R,
    ) -> Option<R> {
        let mut use_record = Some(use_record);
        self.find_by(hash, |view| {
            let record = view.find(hash, key)?;
            let is_visible = view.is_visible(record.seq, durable_seq);
            use_record.take().map(|use_record| use_record(&record, is_visible))
        })
    }

    /// The first answer of `look`, from the newest frame to the oldest, without those that cannot
    /// have a key with this hash.
    fn find_by<R>(&self, hash: u64, mut look: impl FnMut(&FrameView<'_>) -> Option<R>) -> Option<R> {
        let with_key = self.filter.frames_with(hash);
        if with_key == 0 && self.unfiltered.load(Ordering::Acquire) == 0 {
            return None;
        }
        let may_have = |frame: &Frame| frame.filter_bit().is_none_or(|bit| with_key >> bit & 1 == 1);
        let frames = self.frames.read();
        let mut asked = frames.iter().rev().filter(|frame| may_have(frame));
        asked.find_map(|frame| look(&frame.view()))
    }

    /// Hands the record at a place to `use_record`, if its frame is in the overlay. The indexes may
    /// know a record before it is on the device; whoever comes from them with its address must look
    /// here first.
    pub fn find_at<R>(&self, segment: u32, offset: u64, use_record: impl FnOnce(&Record<'_>) -> R) -> Option<R> {
        self.with_frame(segment, offset, |frame, at| {
            frame.view().record_at(at).map(|record| use_record(&record))
        })?
    }

    /// The record at a place need not be kept in RAM any more. Says whether its frame is here and
    /// the record was to be kept ([`Frame::want`]).
    pub fn unwant(&self, segment: u32, offset: u64) -> bool {
        self.with_frame(segment, offset, Frame::unwant) == Some(true)
    }

    /// Has `use_frame` do something with the frame that a place is in, and where it is there.
    fn with_frame<R>(&self, segment: u32, offset: u64, use_frame: impl FnOnce(&Frame, u64) -> R) -> Option<R> {
        if self.frame_count() == 0 {
            return None;
        }
        let frames = self.frames.read();
        // Frames of a segment are in the order of their offsets.
        let begins_before = |frame: &&Arc<Frame>| frame.segment == segment && frame.offset <= offset;
        let frame = frames.iter().rev().find(begins_before)?;
        (offset < frame.end()).then(|| use_frame(frame, offset - frame.offset))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::log::{format::Body, frame::FramePool};

    /// A sealed frame with a commit of so many empty values.
    fn frame(seq: u64, records: usize) -> Arc<Frame> {
        let record = Record {
            seq: 0,
            generation: 0,
            key: b"k",
            attributes: &[],
            checksum: 0,
            body: Body::Put { value: b"" },
        };
        let frame = Frame::open(0, 1, 1 << 20, seq << 16, Arc::new(FramePool::for_overlay(0)));
        frame.append(seq, &vec![(crate::key_hash(b"k"), record); records]);
        frame.seal(0);
        Arc::new(frame)
    }

    #[test]
    fn many_short_records_fill_it_before_their_bytes_do() {
        let overlay = Overlay::starting_at(0, 1 << 20);
        let add = |seq, records| {
            let frame = frame(seq, records);
            overlay.sealed(&frame);
            overlay.push(Arc::clone(&frame));
            frame
        };
        let first = add(1, 2_200);
        assert!(!overlay.is_full());
        let second = add(2, 2_200);
        assert!(overlay.is_full() && overlay.bytes() < 300_000);
        let recent = RecentFrames::new(1 << 20);
        second.set_applied();
        second.set_written();
        assert!(!overlay.release_finished(&recent));
        assert!(overlay.is_full(), "the one before is not applied");
        first.set_applied();
        first.set_written();
        assert!(overlay.release_finished(&recent));
        assert!(!overlay.is_full());
        assert_eq!(
            (overlay.bytes(), overlay.frame_count(), overlay.released_seq()),
            (0, 0, 2)
        );
        let seq_at = |seq: u64| recent.find((1, (seq << 16) + 64), |record| record.seq);
        assert_eq!((seq_at(1), seq_at(2)), (Some(1), Some(2)));
    }

    /// A frame left the overlay before it was kept: what had just been written was read from the
    /// device for a moment.
    #[test]
    fn what_leaves_is_in_ram_all_the_time() {
        let overlay = Overlay::starting_at(0, 1 << 20);
        let recent = RecentFrames::new(16 << 20);
        let frames: Vec<_> = (1..=500).map(|seq| frame(seq, 20)).collect();
        for frame in &frames {
            overlay.sealed(frame);
            overlay.push(Arc::clone(frame));
            frame.set_applied();
            frame.set_written();
        }
        let (looks, missed) = (AtomicU64::new(0), AtomicU64::new(0));
        let look_for = |seq: u64| {
            let offset = (seq << 16) + 64;
            let waits = overlay.find_at(0, offset, |record| record.seq);
            let found = waits.or_else(|| recent.find((1, offset), |record| record.seq));
            missed.fetch_add(u64::from(found != Some(seq)), Ordering::Relaxed);
            looks.fetch_add(1, Ordering::Release);
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while overlay.frame_count() > 0 {
                    (1..=500).rev().for_each(look_for);
                }
            });
            while looks.load(Ordering::Acquire) < 500 {
                std::thread::yield_now();
            }
            overlay.release_finished(&recent);
        });
        (1..=500).for_each(look_for);
        assert_eq!(missed.into_inner(), 0, "of {} looks", looks.into_inner());
    }
}
