//! Heat: which objects of the large space get a copy on flash, and reading by way of that copy.
//!
//! A copy is an exact image of an extent, in slices (docs/adr/0010-copies-beside-the-log.md). Every checksum in an extent names
//! its place, so an image proves whose it is: a read by way of a copy is verified as a read of the block is, and what does not
//! match is forgotten. Nothing here must be durable, ordered or invalidated; all of it may be lost at any time.
//!
//! The way of a copy: a reader reads a block (`cached_reader`), and what it reads is gathered as an image in RAM, from
//! which others that want the same object are served meanwhile (`staging`). If the object is worth it (`admission`) the
//! image is queued, and a thread writes it to a segment (`promote`), where readers then find it (`copies`). A reader that
//! takes a group in order has the next object read to RAM before it asks (`prefetch`).
//!
//! Values too small for copies move back to the log when they are read often (`small`, `small_moves`): those moves are records.

mod admission;
mod budget;
mod cached_reader;
mod contents;
mod copies;
mod credit;
mod prefetch;
mod promote;
mod sequences;
#[cfg(test)]
mod simulation;
mod sketch;
mod small;
mod small_moves;
#[cfg(test)]
mod small_simulation;
mod staging;
mod streams;

pub use prefetch::read_ahead;
pub use promote::{KEPT_FREE, Promoter, lent_by_copies, release_to_log};
pub use small_moves::{may_move_to_log, small_read};

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
use small::SmallHeat;
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
/// Shorter extents are not copied: the table would cost more than it gains. When they are read often they move to the log.
pub const COPY_BYTES_MIN: u64 = 32 << 10;

/// RAM for small values on their way back to the log: this part of what large objects have, and beside it.
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

/// Everything about heat.
#[derive(Debug)]
pub struct Heat {
    popularity: Popularity,
    images: Images,
    copies: Copies,
    ahead: Ahead,
    runs: Runs,
    paces: Arc<Paces>,
    /// Small values in blocks.
    pub small: SmallHeat,
    placement: Arc<Placement>,
    counters: Counters,
    /// The log needs even the segments that are being written.
    must_seal: AtomicBool,
}

#[derive(Debug, Default)]
struct Counters {
    /// Bytes that callers have asked of objects that may have copies, wherever they came from.
    asked_bytes: AtomicU64,
    image_reads: AtomicU64,
    copy_reads: AtomicU64,
    copy_bytes_read: AtomicU64,
    forgotten: AtomicU64,
    promoted: AtomicU64,
    promoted_bytes: AtomicU64,
    recopied_bytes: AtomicU64,
    evicted: AtomicU64,
    eviction_age: Mutex<Option<Duration>>,
    dropped_full: AtomicU64,
    dropped_budget: AtomicU64,
    dropped_no_room: AtomicU64,
    ahead_objects: AtomicU64,
    ahead_bytes: AtomicU64,
    ahead_reads: AtomicU64,
    ahead_unused: AtomicU64,
    moved: AtomicU64,
    moved_bytes: AtomicU64,
    moved_log_bytes: AtomicU64,
}

fn count(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

impl Heat {
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
            small: SmallHeat::new(options.staging_bytes / SMALL_STAGING_PART, options.flash_capacity_bytes),
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

    /// Counts a read by a name that need not be a key. What its reader will ask for next, if that can be told.
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
