//! A sealed frame's bytes: from now on they never change, and they are read without a lock.
//!
//! They outlive their frame: when that is written and applied, they may be kept in RAM for callers
//! that ask for a place in them. What lives here and what is read is marked, and goes to an heir
//! when they leave.
//!
//! Invariants:
//! - The marks of a record are at the first two units that it takes, and no record has fewer: that
//!   it lives is the first one's, that it was read the second one's.
//! - A reader of the bytes owns a share of them ([`Arc`], or a guard that stands for one); their
//!   memory goes to no other frame before all have let go.

use super::{FRAME_HEADER_BYTES, FramePool, Record};
use crate::{
    io::AlignedBuffer,
    log::{
        emptiest::Emptiest,
        format::{RECORD_HEADER_BYTES, RECORD_UNIT_BYTES},
    },
    metrics::subtract,
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Of frames that take up to so much memory a copy is kept,
const COPIED_BYTES_MAX: usize = 64 << 10;
/// and of those that fill less than this part of theirs.
const COPIED_PART: usize = 2;
/// What a frame costs besides its bytes.
const OVERHEAD_BYTES: usize = 128;
/// Of a record so many bytes are fetched at once; the processor itself reads on in what is longer.
const FETCHED_BYTES_MAX: usize = 1 << 10;
/// Memory is fetched in pieces of so many bytes.
const LINE_BYTES: usize = 64;
const MARKS_OF_WORD: usize = u64::BITS as usize;
/// Less memory is not worth emptying before its time.
const SPARSE_BYTES_MIN: u64 = 64 << 10;

const _: () = assert!(RECORD_HEADER_BYTES >= 2 * RECORD_UNIT_BYTES);

/// A place in the log: the generation of a segment, and an offset in it.
pub type PlaceInLog = (u64, u64);

/// The next holder of records that were read here, once their frame leaves.
pub trait Heir: Send + Sync {
    /// Takes a record that leaves.
    fn inherit(&self, place: PlaceInLog, record: &Record<'_>);
    /// Bytes of RAM that it may use and does not.
    fn unused_bytes(&self) -> u64;
    /// Bytes of the frames' share that it has for now.
    fn borrowed_bytes(&self) -> u64;
    /// Whether it wants so many bytes that live and have not been read.
    fn takes_unread(&self, bytes: u64) -> bool;
}

/// See the module.
#[derive(Debug)]
pub struct Sealed {
    memory: Memory,
    /// Without the padding at the end.
    used_bytes: usize,
    /// A bit for each unit: see the module.
    marks: Box<[AtomicU64]>,
    /// What lives here, about.
    living_bytes: AtomicU64,
}

/// Sealed frames, by where they are and by what of them lives. A value that has left RAM costs its
/// next reader far more than a copy, so even one of which nearly seven eighths live is worth
/// emptying.
pub type EmptiestFrames = Emptiest<PlaceInLog, 7>;

/// What is handed on of bytes that leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heritage {
    /// What lives and was read.
    Read,
    /// All that lives.
    Living,
}

/// A frame's bytes, from its header to its last record at least.
#[derive(Debug)]
enum Memory {
    Pooled(AlignedBuffer, Arc<FramePool>),
    Copied(Box<[u8]>),
}

impl Drop for Sealed {
    fn drop(&mut self) {
        if let Memory::Pooled(buffer, pool) = &mut self.memory {
            pool.put_buffer(std::mem::take(buffer));
        }
    }
}

impl Sealed {
    pub(super) fn new(buffer: AlignedBuffer, used_bytes: usize, pool: Arc<FramePool>) -> Self {
        let marks = used_bytes.div_ceil(RECORD_UNIT_BYTES * MARKS_OF_WORD);
        Self {
            memory: Memory::Pooled(buffer, pool),
            used_bytes,
            marks: (0..marks).map(|_| AtomicU64::new(0)).collect(),
            living_bytes: AtomicU64::new(0),
        }
    }

    /// A copy without the padding, if that takes much less memory. A mark that is set meanwhile may
    /// be missing in it: then its record leaves as if it had not been read.
    pub fn shortened(&self) -> Option<Self> {
        let memory_bytes = self.memory_bytes();
        let is_short = memory_bytes <= COPIED_BYTES_MAX || self.used_bytes < memory_bytes / COPIED_PART;
        is_short.then(|| Self {
            memory: Memory::Copied(Box::from(&self.bytes()[..self.used_bytes])),
            used_bytes: self.used_bytes,
            marks: self
                .marks
                .iter()
                .map(|word| word.load(Ordering::Relaxed).into())
                .collect(),
            living_bytes: self.living_bytes.load(Ordering::Relaxed).into(),
        })
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.memory {
            Memory::Pooled(buffer, _) => buffer,
            Memory::Copied(bytes) => bytes,
        }
    }

    /// Length of the memory they are in.
    pub fn memory_bytes(&self) -> usize {
        match &self.memory {
            Memory::Pooled(buffer, _) => buffer.capacity(),
            Memory::Copied(bytes) => bytes.len(),
        }
    }

    /// RAM that all of it takes.
    pub fn ram_bytes(&self) -> u64 {
        (self.memory_bytes() + size_of_val(&*self.marks) + OVERHEAD_BYTES) as u64
    }

    /// The mark of the unit at an offset.
    fn mark_at(&self, at: usize) -> Option<(&AtomicU64, u64)> {
        let unit = at / RECORD_UNIT_BYTES;
        Some((self.marks.get(unit / MARKS_OF_WORD)?, 1 << (unit % MARKS_OF_WORD)))
    }

    fn is_marked(&self, at: usize) -> bool {
        let mark = self.mark_at(at);
        mark.is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// Takes a mark away. Says whether it was there.
    fn unmark_at(&self, at: usize) -> bool {
        let mark = self.mark_at(at);
        mark.is_some_and(|(word, bit)| word.fetch_and(!bit, Ordering::Relaxed) & bit != 0)
    }

    /// Marks the record at an offset as read.
    pub fn mark(&self, at: usize) {
        // Most marks of what is read often are there: to look costs less than to write, and takes
        // the cache line from no other core.
        if let Some((word, bit)) = self.mark_at(at + RECORD_UNIT_BYTES)
            && word.load(Ordering::Relaxed) & bit == 0
        {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Takes the mark that the record at an offset was read away. Says whether it was there.
    pub fn unmark(&self, at: usize) -> bool {
        self.unmark_at(at + RECORD_UNIT_BYTES)
    }

    /// The record at an offset, of about so many bytes, is where its value lives from now on.
    pub fn lives(&self, at: usize, bytes: u64) {
        if let Some((word, bit)) = self.mark_at(at)
            && word.fetch_or(bit, Ordering::Relaxed) & bit == 0
        {
            self.living_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// It is so no more. Says whether the frame is to be noted among the emptiest for that.
    pub fn died(&self, at: usize, bytes: u64) -> bool {
        if !self.unmark_at(at) {
            return false;
        }
        let taken_bytes = subtract(&self.living_bytes, bytes);
        let (living_bytes, all_bytes) = (self.living_bytes(), self.ram_bytes());
        all_bytes >= SPARSE_BYTES_MIN && EmptiestFrames::has_fallen(living_bytes + taken_bytes, living_bytes, all_bytes)
    }

    /// What lives here, about.
    pub fn living_bytes(&self) -> u64 {
        self.living_bytes.load(Ordering::Relaxed)
    }

    /// Whether so little of the memory has something that lives that it is worth emptying.
    pub fn is_sparse(&self) -> bool {
        self.ram_bytes() >= SPARSE_BYTES_MIN && EmptiestFrames::is_worth(self.living_bytes(), self.ram_bytes())
    }

    /// The record at an offset. The caller may have the address from an earlier use of the segment,
    /// when another record began there, or none: so it is believed only if its checksum matches.
    pub fn record_at(&self, at: usize, generation: u64) -> Option<Record<'_>> {
        let bytes = self.bytes().get(at..).filter(|_| at >= FRAME_HEADER_BYTES)?;
        // The low half, by definition.
        let generation = generation as u32;
        Record::decode(bytes).filter(|record| record.generation == generation)
    }

    /// Begins to get what reading a record will need from memory: no load here waits for another.
    pub fn fetch(&self, at: usize, length: usize) {
        let end = at.saturating_add(length.min(FETCHED_BYTES_MAX));
        let lines = (at..end).step_by(LINE_BYTES);
        let bytes = self.bytes();
        let touched = lines.map_while(|at| bytes.get(at)).fold(0, |sum, byte| sum ^ byte);
        let mark = self.mark_at(at).map_or(0, |(word, _)| word.load(Ordering::Relaxed));
        std::hint::black_box((touched, mark));
    }

    /// Gives what of it lives, or what of that was read, to the heir, which keeps it. It is at this
    /// place.
    pub fn hand_on(&self, (generation, start): PlaceInLog, heritage: Heritage, heir: &dyn Heir) {
        let mut unit = 0;
        while let Some(living) = self.next_marked(unit) {
            let at = living * RECORD_UNIT_BYTES;
            if (heritage == Heritage::Living || self.is_marked(at + RECORD_UNIT_BYTES))
                && let Some(record) = self.record_at(at, generation)
            {
                heir.inherit((generation, start + at as u64), &record);
            }
            unit = living + 2;
        }
    }

    /// The first unit from this one on that has a mark.
    fn next_marked(&self, unit: usize) -> Option<usize> {
        let (first, bit) = (unit / MARKS_OF_WORD, unit % MARKS_OF_WORD);
        let marks = |number: usize| {
            let all = self.marks[number].load(Ordering::Relaxed);
            if number == first { all >> bit << bit } else { all }
        };
        let number = (first..self.marks.len()).find(|number| marks(*number) != 0)?;
        Some(number * MARKS_OF_WORD + marks(number).trailing_zeros() as usize)
    }
}
