//! The flash cache: which objects of the large space get a copy on flash, and reading by way of
//! that copy.
//!
//! A copy is an exact image of an extent, in slices (docs/adr/0010-copies-beside-the-log.md). Every
//! checksum in an extent names its place, so an image proves whose it is: a read by way of a copy
//! is verified as a read of the block is, and what does not match is forgotten. Nothing here must
//! be durable, ordered or invalidated; all of it may be lost at any time.
//!
//! This is the state; the threads that fill it and make room are `maintenance::{promote,
//! small_moves, prefetch}`.
//!
//! The way of a copy: a reader reads a block (`cached_reader`), and what it reads is gathered as an
//! image in RAM, from which others that want the same object are served meanwhile (`staging`). If
//! the object is worth it (`admission`) the image is queued, and a thread writes it to a segment,
//! where readers then find it (`copies`). A reader that takes a group in order has the next object
//! read to RAM before it asks (`prefetch`).
//!
//! Values too small for copies move back to the log when they are read often (`small`): those moves
//! are records.

pub mod admission;
pub mod budget;
mod cached_reader;
pub mod contents;
pub mod copies;
pub mod credit;
pub mod prefetch;
mod sequences;
#[cfg(test)]
mod simulation;
mod sketch;
pub mod small;
#[cfg(test)]
mod small_simulation;
pub mod staging;
mod streams;

use crate::{
    HeatStats, Options,
    api::placement::{Pinning, Placement},
    io::throttle::Paces,
};
use admission::Popularity;
use copies::Copies;
use parking_lot::Mutex;
use prefetch::Ahead;
use sequences::Runs;
use small::SmallValues;
use staging::Images;
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

/// Longest part of an extent that is one image, in bytes.
pub const SLICE_BYTES: u64 = 8 << 20;
/// Shorter extents are not copied: the table would cost more than it gains. When they are read
/// often they move to the log.
pub const COPY_BYTES_MIN: u64 = 32 << 10;

/// RAM for small values on their way back to the log: this part of what large objects have, and
/// beside it.
const SMALL_STAGING_PART: u64 = 8;

/// A slice of an extent: where the extent begins in its block, and which part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slice {
    /// Number of the block.
    pub block: u64,
    /// Offset of the extent in the block.
    pub offset: u64,
    /// Which slice, from 0.
    pub number: u32,
}

/// The flash cache.
#[derive(Debug)]
pub struct FlashCache {
    /// What is worth a copy.
    pub popularity: Popularity,
    /// Slices in RAM, and which of them are to be copied.
    pub images: Images,
    /// Where the copies are.
    pub copies: Copies,
    ahead: Ahead,
    runs: Runs,
    paces: Arc<Paces>,
    /// Small values in blocks.
    pub small: SmallValues,
    placement: Arc<Placement>,
    /// What was done.
    pub counters: Counters,
    /// The log needs even the segments that are being written.
    pub must_seal: AtomicBool,
}

/// Counters since the store was opened.
#[derive(Debug, Default)]
pub struct Counters {
    /// Bytes that callers have asked of objects that may have copies, wherever they came from.
    pub asked_bytes: AtomicU64,
    /// Reads that images in RAM served, filled by another reader.
    pub image_reads: AtomicU64,
    /// Reads that copies served,
    pub copy_reads: AtomicU64,
    /// and their bytes.
    pub copy_bytes_read: AtomicU64,
    /// Copies that did not match their checksums.
    pub forgotten: AtomicU64,
    /// Copies written,
    pub promoted: AtomicU64,
    /// and their bytes.
    pub promoted_bytes: AtomicU64,
    /// Bytes of copies written again when their segment was cleaned.
    pub recopied_bytes: AtomicU64,
    /// Copies dropped for others.
    pub evicted: AtomicU64,
    /// Age of the segment that was freed last.
    pub eviction_age: Mutex<Option<Duration>>,
    /// What was not gathered for want of RAM,
    pub dropped_full: AtomicU64,
    /// what was not written because too much was in a day,
    pub dropped_budget: AtomicU64,
    /// and for want of room on flash.
    pub dropped_no_room: AtomicU64,
    /// Objects read ahead,
    pub ahead_objects: AtomicU64,
    /// their bytes,
    pub ahead_bytes: AtomicU64,
    /// reads they served,
    pub ahead_reads: AtomicU64,
    /// and those that nobody came for.
    pub ahead_unused: AtomicU64,
    /// Small values that came back to the log,
    pub moved: AtomicU64,
    /// their bytes,
    pub moved_bytes: AtomicU64,
    /// and those of the records.
    pub moved_log_bytes: AtomicU64,
}

/// Raises a counter.
pub fn count(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

impl FlashCache {
    /// Nothing is known, nothing is copied.
    #[must_use]
    pub fn new(options: &Options, paces: Arc<Paces>, placement: Arc<Placement>) -> Self {
        Self {
            popularity: Popularity::new(options.group_rule),
            images: Images::new(options.staging_bytes),
            copies: Copies::default(),
            ahead: Ahead::default(),
            runs: Runs::new(options.group_rule),
            paces,
            small: SmallValues::new(options.staging_bytes / SMALL_STAGING_PART, options.flash_capacity_bytes),
            placement,
            counters: Counters::default(),
            must_seal: AtomicBool::new(false),
        }
    }

    /// The store closes: the threads that wait for something to copy or to read ahead shall see it.
    pub fn wake(&self) {
        self.images.wake();
        self.ahead.wake();
    }

    /// Reads a part of a copy for a caller.
    fn read_copy(&self, slice: Slice, from: u64, out: &mut [u8]) -> io::Result<Option<()>> {
        self.copies.read(slice, from, out, |read| {
            let _timed = self.paces.flash.read();
            read()
        })
    }

    /// Counts a read by a name that need not be a key. What its reader will ask for next, if that
    /// can be told.
    #[must_use]
    pub fn note_read(&self, name: &[u8]) -> Option<Vec<u8>> {
        self.runs.read(name)
    }

    /// Has an object read ahead of its reader.
    pub fn want_ahead(&self, key: &[u8]) {
        self.ahead.want(key.into());
    }

    /// Whether objects of a key may be copied to flash.
    #[must_use]
    pub fn may_copy(&self, key: &[u8]) -> bool {
        self.placement.pinning(key) != Pinning::Disk
    }

    /// So many bytes of records were written to bring small values back to the log.
    pub fn moved_to_log(&self, log_bytes: u64) {
        count(&self.counters.moved_log_bytes, log_bytes);
    }

    /// Bytes of records in the log that brought small values back.
    #[must_use]
    pub fn moved_log_bytes(&self) -> u64 {
        self.counters.moved_log_bytes.load(Ordering::Relaxed)
    }

    /// A picture.
    #[must_use]
    pub fn stats(&self) -> HeatStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        let (segments, copies, bytes) = self.copies.size();
        HeatStats {
            segments,
            copies,
            bytes,
            staged_bytes: self.images.bytes(),
            asked_bytes: load(&counters.asked_bytes),
            image_reads: load(&counters.image_reads),
            copy_reads: load(&counters.copy_reads),
            copy_bytes_read: load(&counters.copy_bytes_read),
            forgotten: load(&counters.forgotten),
            promoted: load(&counters.promoted),
            promoted_bytes: load(&counters.promoted_bytes),
            recopied_bytes: load(&counters.recopied_bytes),
            evicted: load(&counters.evicted),
            eviction_age: *counters.eviction_age.lock(),
            dropped_full: load(&counters.dropped_full),
            dropped_budget: load(&counters.dropped_budget),
            dropped_no_room: load(&counters.dropped_no_room),
            ahead_objects: load(&counters.ahead_objects),
            ahead_bytes: load(&counters.ahead_bytes),
            ahead_reads: load(&counters.ahead_reads),
            ahead_unused: load(&counters.ahead_unused),
            moved: load(&counters.moved),
            moved_bytes: load(&counters.moved_bytes),
            moving_bytes: self.small.bytes(),
        }
    }
}
