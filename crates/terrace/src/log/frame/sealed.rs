//! The bytes of a sealed frame: immutable, and read without a lock.
//!
//! They outlive their frame: when that is written and applied, they may be kept in RAM for lookups
//! by place. Live records and those that were read are marked, and go to an heir when the bytes are
//! evicted.
//!
//! Invariants:
//! - The marks of a record are at the first two units that it takes, and every record has at least
//!   two: the first is set while it is live, the second if it was read.
//! - A reader of the bytes owns a share of them ([`Arc`], or a guard that stands for one); their
//!   memory is not reused for another frame before all have released it.

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

/// Frames that take at most this much memory are kept as a copy,
const COPIED_BYTES_MAX: usize = 64 << 10;
/// and also those that fill less than this fraction (1/n) of theirs.
const COPIED_PART: usize = 2;
/// Overhead of a frame in RAM.
const OVERHEAD_BYTES: usize = 128;
/// Bytes of a record that are prefetched; the processor itself reads ahead in longer ones.
const FETCHED_BYTES_MAX: usize = 1 << 10;
/// Memory is fetched in units of this many bytes.
const LINE_BYTES: usize = 64;
const MARKS_OF_WORD: usize = u64::BITS as usize;
/// A frame with less memory is not worth emptying early.
const SPARSE_BYTES_MIN: u64 = 64 << 10;

const _: () = assert!(RECORD_HEADER_BYTES >= 2 * RECORD_UNIT_BYTES);

/// A place in the log: the generation of a segment, and an offset in it.
pub type PlaceInLog = (u64, u64);

/// The next holder of records that were read here, when their frame is evicted.
pub trait Heir: Send + Sync {
    /// Takes a record of an evicted frame.
    fn inherit(&self, place: PlaceInLog, record: &Record<'_>);
    /// Bytes of RAM that it may use and does not.
    fn unused_bytes(&self) -> u64;
    /// Bytes of the frames' share that it has borrowed at present.
    fn borrowed_bytes(&self) -> u64;
    /// Whether it takes so many bytes of live records that have not been read.
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
    /// Approximate live bytes.
    living_bytes: AtomicU64,
}

/// Sealed frames, by place and live fraction. A value that has left RAM costs its next reader far
/// more than a copy, so even a frame of which nearly seven eighths are live is worth emptying.
pub type EmptiestFrames = Emptiest<PlaceInLog, 7>;

/// Which records of evicted bytes are passed to the heir.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heritage {
    /// Those that are live and were read.
    Read,
    /// All that are live.
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

    /// A copy without the padding, if that takes much less memory. A mark set meanwhile may be
    /// missing in it: then its record is evicted as if it had not been read.
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

    /// Length of their memory.
    pub fn memory_bytes(&self) -> usize {
        match &self.memory {
            Memory::Pooled(buffer, _) => buffer.capacity(),
            Memory::Copied(bytes) => bytes.len(),
        }
    }

    /// RAM that it takes in total.
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

    /// Clears a mark. Returns whether it was set.
    fn unmark_at(&self, at: usize) -> bool {
        let mark = self.mark_at(at);
        mark.is_some_and(|(word, bit)| word.fetch_and(!bit, Ordering::Relaxed) & bit != 0)
    }

    /// Marks the record at an offset as read.
    pub fn mark(&self, at: usize) {
        // Most marks of frequently read records are set already: reading the word costs less than
        // writing it, and does not take the cache line from another core.
        if let Some((word, bit)) = self.mark_at(at + RECORD_UNIT_BYTES)
            && word.load(Ordering::Relaxed) & bit == 0
        {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Clears the mark that the record at an offset was read. Returns whether it was set.
    pub fn unmark(&self, at: usize) -> bool {
        self.unmark_at(at + RECORD_UNIT_BYTES)
    }

    /// The record at an offset, of about so many bytes, is its value's home from now on.
    pub fn lives(&self, at: usize, bytes: u64) {
        if let Some((word, bit)) = self.mark_at(at)
            && word.fetch_or(bit, Ordering::Relaxed) & bit == 0
        {
            self.living_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// It no longer is. Returns whether the frame must be noted among the emptiest.
    pub fn died(&self, at: usize, bytes: u64) -> bool {
        if !self.unmark_at(at) {
            return false;
        }
        let taken_bytes = subtract(&self.living_bytes, bytes);
        let (living_bytes, all_bytes) = (self.living_bytes(), self.ram_bytes());
        all_bytes >= SPARSE_BYTES_MIN && EmptiestFrames::has_fallen(living_bytes + taken_bytes, living_bytes, all_bytes)
    }

    /// Approximate live bytes.
    pub fn living_bytes(&self) -> u64 {
        self.living_bytes.load(Ordering::Relaxed)
    }

    /// Whether so little of the memory is live that it is worth emptying.
    pub fn is_sparse(&self) -> bool {
        self.ram_bytes() >= SPARSE_BYTES_MIN && EmptiestFrames::is_worth(self.living_bytes(), self.ram_bytes())
    }

    /// The record at an offset. The caller may have the address from an earlier use of the segment,
    /// when another record began there, or none: so it is returned only if its checksum matches.
    pub fn record_at(&self, at: usize, generation: u64) -> Option<Record<'_>> {
        let bytes = self.bytes().get(at..).filter(|_| at >= FRAME_HEADER_BYTES)?;
        // The low half, as the format defines.
        let generation = generation as u32;
        Record::decode(bytes).filter(|record| record.generation == generation)
    }

    /// Prefetches the memory needed to read a record: no load here waits for another.
    pub fn fetch(&self, at: usize, length: usize) {
        let end = at.saturating_add(length.min(FETCHED_BYTES_MAX));
        let lines = (at..end).step_by(LINE_BYTES);
        let bytes = self.bytes();
        let touched = lines.map_while(|at| bytes.get(at)).fold(0, |sum, byte| sum ^ byte);
        let mark = self.mark_at(at).map_or(0, |(word, _)| word.load(Ordering::Relaxed));
        std::hint::black_box((touched, mark));
    }

    /// Passes the live records, or those of them that were read, to the heir, which keeps them. The
    /// bytes are at this place.
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
