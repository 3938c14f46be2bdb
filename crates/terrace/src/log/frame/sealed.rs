//! A sealed frame's bytes: from now on they never change, and they are read without a lock.
//!
//! They outlive their frame: when that is written and applied, they may be kept in RAM for those
//! who ask for a place in them. What is read here is marked, and goes to an heir when they leave.
//!
//! Invariant: whoever reads the bytes has a part in them ([`Arc`], or a guard that stands for one);
//! their memory goes to no other frame before all have let go.

use super::{FRAME_HEADER_BYTES, FramePool, Record};
use crate::{io::AlignedBuffer, log::format::RECORD_UNIT_BYTES};
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
#[derive(Debug)]
pub struct Sealed {
    memory: Memory,
    /// Without the padding at the end.
    used_bytes: usize,
    /// A bit for each place where a record may begin: it was read.
    read: Box<[AtomicU64]>,
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
            read: (0..marks).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// A copy without the padding, if that takes much less memory. A mark that is set meanwhile may
    /// be missing in it: then its record leaves as if nobody had read it.
    pub fn shortened(&self) -> Option<Self> {
        let memory_bytes = self.memory_bytes();
        let is_short = memory_bytes <= COPIED_BYTES_MAX || self.used_bytes < memory_bytes / COPIED_PART;
        is_short.then(|| Self {
            memory: Memory::Copied(Box::from(&self.bytes()[..self.used_bytes])),
            used_bytes: self.used_bytes,
            read: self
                .read
                .iter()
                .map(|word| word.load(Ordering::Relaxed).into())
                .collect(),
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
        (self.memory_bytes() + size_of_val(&*self.read) + OVERHEAD_BYTES) as u64
    }

    /// Where it is marked that the record at an offset was read.
    fn mark_at(&self, at: usize) -> Option<(&AtomicU64, u64)> {
        let unit = at / RECORD_UNIT_BYTES;
        Some((self.read.get(unit / MARKS_OF_WORD)?, 1 << (unit % MARKS_OF_WORD)))
    }

    /// Marks the record at an offset as read.
    pub fn mark(&self, at: usize) {
        // Most marks of what is read often are there: to look costs less than to write, and takes
        // the line from nobody.
        if let Some((word, bit)) = self.mark_at(at)
            && word.load(Ordering::Relaxed) & bit == 0
        {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Takes the mark of the record at an offset away. Says whether it was there.
    pub fn unmark(&self, at: usize) -> bool {
        let mark = self.mark_at(at);
        mark.is_some_and(|(word, bit)| word.fetch_and(!bit, Ordering::Relaxed) & bit != 0)
    }

    /// The record at an offset. Who asks may have the address from an earlier use of the segment,
    /// when another record began there, or none: so it is believed only if its checksum matches.
    pub fn record_at(&self, at: usize, generation: u64) -> Option<Record<'_>> {
        let bytes = self.bytes().get(at..).filter(|_| at >= FRAME_HEADER_BYTES)?;
        #[allow(clippy::cast_possible_truncation)] // the low half, by definition
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

    /// Gives what was read of it, which is at a place, to who keeps it from now on.
    pub fn hand_on(&self, (generation, start): PlaceInLog, heir: &dyn Heir) {
        for (number, word) in self.read.iter().enumerate() {
            let mut marks = word.load(Ordering::Relaxed);
            while marks != 0 {
                let at = (number * MARKS_OF_WORD + marks.trailing_zeros() as usize) * RECORD_UNIT_BYTES;
                if let Some(record) = self.record_at(at, generation) {
                    heir.inherit((generation, start + at as u64), &record);
                }
                marks &= marks - 1;
            }
        }
    }
}
