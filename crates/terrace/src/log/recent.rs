//! Frames that were written lately, to be read by place: what was just written is often read soon,
//! and then no device need be asked.
//!
//! A frame comes here just before the overlay lets go of it: written, applied, and never changed
//! again. A long one is kept as it is; of a short one a copy is kept without its padding, so that
//! its memory, which may be much longer, goes to the next frame. What was read here is marked, and
//! handed on when its frame leaves, to an heir: the cache, which so has nothing that is here. RAM
//! that the heir may have and does not use is lent to frames, so what a store was filled with is
//! read from RAM as long as there is room.
//!
//! Invariants:
//! - A frame is found by generation and offset, which together name a place for ever: a segment
//!   that is used anew has another generation. So what is found is what was written at the place
//!   that was asked for, or nothing.
//! - A frame's bytes do not change while it is here, whoever has it, and are read without a lock.
//!   Whoever has found a frame keeps it ([`Arc`]): if it leaves meanwhile its memory goes to no
//!   other frame before it is let go of.
//! - Together they take no more than their share and what the heir lends; the oldest leaves first.
//!
//! Nothing of this outlives the process, and nothing depends on it: what is not here is on the
//! device.

use super::{
    format::{FRAME_HEADER_BYTES, RECORD_UNIT_BYTES, Record},
    frame::Frame,
};
use parking_lot::{Mutex, RwLock};
use std::{
    collections::VecDeque,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

/// Of the RAM for values one part in so many is for recent frames.
const PART: u64 = 8;
/// Of frames that take up to so much memory, and of those that fill less than half of theirs, a
/// copy is kept.
const COPIED_BYTES_MAX: usize = 64 << 10;
/// Half of what may leave at once, if what came is shorter.
const LEFT_BYTES_MIN: u64 = 1 << 20;
/// What a frame costs besides its bytes.
const FRAME_OVERHEAD_BYTES: usize = 128;
/// Records whose memory is fetched side by side: as many as the processor's first cache has room
/// for.
const FETCHED_TOGETHER: usize = 32;
/// Of a record so many bytes are fetched at once; the processor itself reads on in what is longer.
const FETCHED_BYTES_MAX: usize = 1 << 10;
/// Memory is fetched in pieces of so many bytes.
const LINE_BYTES: usize = 64;
const MARKS_OF_WORD: usize = u64::BITS as usize;

/// A place in the log: the generation of a segment, and an offset in it.
pub type PlaceInLog = (u64, u64);

/// Who has what was read here from when it leaves.
pub trait Heir: Send + Sync {
    /// Takes a record that leaves.
    fn inherit(&self, place: PlaceInLog, record: &Record<'_>);
    /// Bytes of RAM that it may use and does not.
    fn unused_bytes(&self) -> u64;
}

/// See the module.
#[derive(Default)]
pub struct RecentFrames {
    kept: RwLock<Kept>,
    share_bytes: AtomicU64,
    heir: OnceLock<Box<dyn Heir>>,
    /// Held by who lets frames go.
    leaving: Mutex<()>,
}

#[derive(Default)]
struct Kept {
    /// In the order of the log, each with the place where it starts.
    frames: VecDeque<(PlaceInLog, Arc<RecentFrame>)>,
    bytes: u64,
}

struct RecentFrame {
    records: Records,
    /// A bit for each place where a record may begin: it was read.
    read: Box<[AtomicU64]>,
    /// RAM it takes.
    bytes: u64,
}

/// A frame's bytes, from its header to its last record at least.
enum Records {
    Whole(Arc<Frame>),
    Copy(Box<[u8]>),
}

impl std::fmt::Debug for RecentFrames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecentFrames")
            .field("bytes", &self.bytes())
            .field("share_bytes", &self.share_bytes())
            .finish_non_exhaustive()
    }
}

impl RecentFrames {
    /// Their share of the RAM for values, in bytes.
    pub const fn share_of(cache_bytes: u64) -> u64 {
        cache_bytes / PART
    }

    /// Keeps frames of up to so many bytes, and more while they are lent; with 0 none.
    pub fn new(share_bytes: u64) -> Self {
        Self {
            share_bytes: AtomicU64::new(share_bytes),
            ..Self::default()
        }
    }

    /// Changes their share, and lets go of what is above it and not lent. Those that were made with
    /// no share stay without one.
    pub fn set_share(&self, share_bytes: u64) {
        if self.share_bytes() > 0 {
            self.share_bytes.store(share_bytes.max(1), Ordering::Relaxed);
            self.give_back(self.bytes());
        }
    }

    /// Says who takes what was read here and leaves, and lends.
    pub fn hand_on_to(&self, heir: Box<dyn Heir>) {
        let _ = self.heir.set(heir);
    }

    /// Keeps a frame that is written and applied, if anybody may ask for a place in it: inline
    /// values are in the index. The RAM that came with it: it may be too much now
    /// ([`RecentFrames::give_back`]).
    pub fn add(&self, frame: &Arc<Frame>) -> u64 {
        if self.share_bytes() == 0 || !frame.view().has_homes() {
            return 0;
        }
        let place = (frame.generation, frame.offset);
        let recent = RecentFrame::of(frame);
        let bytes = recent.bytes;
        if bytes > self.share_bytes() {
            if let Some(heir) = self.heir.get() {
                recent.hand_on(place, heir.as_ref());
            }
            return 0;
        }
        let mut kept = self.kept.write();
        kept.bytes += bytes;
        // Nearly always behind the others.
        let at = kept.frames.partition_point(|(other, _)| *other < place);
        kept.frames.insert(at, (place, Arc::new(recent)));
        bytes
    }

    /// Lets go of the oldest frames if there are more than the share and what is lent, since so
    /// many bytes came. What is handed on may take as much as its frame did, so that the next one
    /// must leave for it: most of that is left for who comes next, or the first reader to want a
    /// little room would move all there is.
    pub fn give_back(&self, came_bytes: u64) {
        if self.bytes() <= self.share_bytes() {
            return;
        }
        // Whoever is at it has it done.
        let Some(_alone) = self.leaving.try_lock() else { return };
        let heir = self.heir.get();
        let bytes_max = self.share_bytes() + heir.map_or(0, |heir| heir.unused_bytes());
        let mut left_bytes = 0;
        while left_bytes < 2 * came_bytes.max(LEFT_BYTES_MIN)
            && let Some((place, oldest)) = self.oldest_above(bytes_max)
        {
            left_bytes += oldest.bytes;
            if let Some(heir) = heir {
                oldest.hand_on(place, heir.as_ref());
            }
        }
    }

    /// Takes the oldest frame away if there are more bytes than this.
    fn oldest_above(&self, bytes_max: u64) -> Option<(PlaceInLog, Arc<RecentFrame>)> {
        let mut kept = self.kept.write();
        if kept.bytes <= bytes_max {
            return None;
        }
        let oldest = kept.frames.pop_front()?;
        kept.bytes -= oldest.1.bytes;
        Some(oldest)
    }

    /// Lets go of the frames of a segment's use that is over: nobody asks for them any more.
    pub fn forget_use(&self, generation: u64) {
        let mut kept = self.kept.write();
        let from = kept.frames.partition_point(|(place, _)| place.0 < generation);
        let to = kept.frames.partition_point(|(place, _)| place.0 <= generation);
        let forgotten: u64 = kept.frames.drain(from..to).map(|(_, frame)| frame.bytes).sum();
        kept.bytes -= forgotten;
    }

    /// Hands the record at a place to `use_record`, if its frame is here, and marks it as read.
    pub fn find<R>(&self, place: PlaceInLog, use_record: impl FnOnce(&Record<'_>) -> R) -> Option<R> {
        let (frame, at) = self.frame_with(place)?;
        frame.read(at, place.0, use_record)
    }

    /// The same for many places, each with the length that its record has at most: hands the
    /// records that are here to `use_record`, each with the number of its place. A record by itself
    /// is little work and a long wait for memory; the waits for many are one.
    pub fn find_many(&self, places: &[Option<(PlaceInLog, usize)>], mut use_record: impl FnMut(usize, &Record<'_>)) {
        let mut found = Vec::with_capacity(FETCHED_TOGETHER.min(places.len()));
        for (chunk, places) in places.chunks(FETCHED_TOGETHER).enumerate() {
            self.frames_with(places, &mut found);
            for (number, at, frame) in &found {
                let length = places[*number].map_or(0, |(_, bytes)| bytes);
                frame.fetch(*at, length);
            }
            for (number, at, frame) in found.drain(..) {
                if let Some((place, _)) = places[number] {
                    let number = chunk * FETCHED_TOGETHER + number;
                    frame.read(at, place.0, |record| use_record(number, record));
                }
            }
        }
    }

    /// The frames that places are in, each with the number of the place and where in the frame it
    /// is.
    fn frames_with(&self, places: &[Option<(PlaceInLog, usize)>], found: &mut Vec<(usize, usize, Arc<RecentFrame>)>) {
        if self.share_bytes() == 0 {
            return;
        }
        let kept = self.kept.read();
        for (number, place) in places.iter().enumerate() {
            if let Some((frame, at)) = place.and_then(|(place, _)| kept.frame_with(place)) {
                found.push((number, at, Arc::clone(frame)));
            }
        }
    }

    /// What is at a place is of no use there any more: it is not handed on. Hands it to
    /// `use_record` if it was read.
    pub fn take_read<R>(&self, place: PlaceInLog, use_record: impl FnOnce(&Record<'_>) -> R) -> Option<R> {
        let (frame, at) = self.frame_with(place)?;
        let (word, bit) = frame.mark(at)?;
        let was_read = word.fetch_and(!bit, Ordering::Relaxed) & bit != 0;
        was_read.then(|| frame.with_record(at, place.0, use_record))?
    }

    /// The frame that a place is in, or just behind, and where in it that is.
    fn frame_with(&self, place: PlaceInLog) -> Option<(Arc<RecentFrame>, usize)> {
        if self.share_bytes() == 0 {
            return None;
        }
        let kept = self.kept.read();
        let (frame, at) = kept.frame_with(place)?;
        Some((Arc::clone(frame), at))
    }

    /// RAM they may take whatever the heir uses, in bytes.
    pub fn share_bytes(&self) -> u64 {
        self.share_bytes.load(Ordering::Relaxed)
    }

    /// RAM they take, in bytes.
    pub fn bytes(&self) -> u64 {
        self.kept.read().bytes
    }
}

impl Kept {
    /// The frame that a place is in, or just behind, and where in it that is.
    fn frame_with(&self, place: PlaceInLog) -> Option<(&Arc<RecentFrame>, usize)> {
        let at = self
            .frames
            .partition_point(|(start, _)| *start <= place)
            .checked_sub(1)?;
        let (start, frame) = self.frames.get(at).filter(|(start, _)| start.0 == place.0)?;
        Some((frame, usize::try_from(place.1 - start.1).ok()?))
    }
}

/// The record at an offset in a frame. Who asks may have the address from an earlier use of the
/// segment, when another record began there, or none: so it is believed only if its checksum
/// matches.
fn record_at(frame: &[u8], at: usize, generation: u64) -> Option<Record<'_>> {
    let bytes = frame.get(at..).filter(|_| at >= FRAME_HEADER_BYTES)?;
    #[allow(clippy::cast_possible_truncation)] // the low half, by definition
    let generation = generation as u32;
    Record::decode(bytes).filter(|record| record.generation == generation)
}

impl RecentFrame {
    fn of(frame: &Arc<Frame>) -> Self {
        let (used, copy) = {
            let view = frame.view();
            let (used, memory) = (view.used_bytes(), view.memory_bytes());
            let is_short = memory <= COPIED_BYTES_MAX || used < memory / 2;
            (used, is_short.then(|| Box::from(&view.bytes()[..used])))
        };
        let (records, bytes) = match copy {
            Some(copy) => (Records::Copy(copy), used),
            None => {
                let bytes = frame.view().memory_bytes();
                (Records::Whole(Arc::clone(frame)), bytes)
            }
        };
        let marks = used.div_ceil(RECORD_UNIT_BYTES * MARKS_OF_WORD);
        let recent = Self {
            records,
            read: (0..marks).map(|_| AtomicU64::new(0)).collect(),
            bytes: (bytes + marks * size_of::<AtomicU64>() + FRAME_OVERHEAD_BYTES) as u64,
        };
        for at in frame.take_wanted() {
            if let Some((word, bit)) = usize::try_from(at).ok().and_then(|at| recent.mark(at)) {
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
        recent
    }

    /// Where it is marked that the record at an offset was read.
    fn mark(&self, at: usize) -> Option<(&AtomicU64, u64)> {
        let unit = at / RECORD_UNIT_BYTES;
        Some((self.read.get(unit / MARKS_OF_WORD)?, 1 << (unit % MARKS_OF_WORD)))
    }

    fn bytes(&self) -> &[u8] {
        match &self.records {
            // Written, so sealed.
            Records::Whole(frame) => frame.sealed_bytes().unwrap_or_default(),
            Records::Copy(bytes) => bytes,
        }
    }

    fn with_record<R>(&self, at: usize, generation: u64, use_record: impl FnOnce(&Record<'_>) -> R) -> Option<R> {
        record_at(self.bytes(), at, generation).map(|record| use_record(&record))
    }

    /// Hands the record at an offset to `use_record`, and marks it as read.
    fn read<R>(&self, at: usize, generation: u64, use_record: impl FnOnce(&Record<'_>) -> R) -> Option<R> {
        self.with_record(at, generation, |record| {
            let (word, bit) = self.mark(at)?;
            // Most marks of what is read often are there: to look costs less than to write, and
            // takes the line from nobody.
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_or(bit, Ordering::Relaxed);
            }
            Some(use_record(record))
        })?
    }

    /// Begins to get what [`RecentFrame::read`] will need from memory: no load here waits for
    /// another.
    fn fetch(&self, at: usize, length: usize) {
        let end = at.saturating_add(length.min(FETCHED_BYTES_MAX));
        let lines = (at..end).step_by(LINE_BYTES);
        let bytes = self.bytes();
        let touched = lines.map_while(|at| bytes.get(at)).fold(0, |sum, byte| sum ^ byte);
        let mark = self.mark(at).map_or(0, |(word, _)| word.load(Ordering::Relaxed));
        std::hint::black_box((touched, mark));
    }

    /// Gives what was read of it to who keeps it from now on.
    fn hand_on(&self, (generation, start): PlaceInLog, heir: &dyn Heir) {
        for (number, word) in self.read.iter().enumerate() {
            let mut marks = word.load(Ordering::Relaxed);
            while marks != 0 {
                let at = (number * MARKS_OF_WORD + marks.trailing_zeros() as usize) * RECORD_UNIT_BYTES;
                self.with_record(at, generation, |record| {
                    heir.inherit((generation, start + at as u64), record);
                });
                marks &= marks - 1;
            }
        }
    }
}
