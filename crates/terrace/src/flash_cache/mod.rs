//! The flash cache: copies on flash of popular objects of the large space, and reads of these
//! copies.
//!
//! A copy is an exact image of an extent, in slices (docs/adr/0010-flash-cache.md). Every checksum
//! in an extent covers its place, so an image identifies its extent: a read of a copy is verified
//! like a read of the block, and a copy that does not match is dropped. Nothing here must be
//! durable, ordered or invalidated; all of it may be lost at any time.
//!
//! This is the state; the threads that fill it and make room are `maintenance::{promote,
//! small_moves, prefetch}`.
//!
//! The path of a copy: a reader reads a block (`cached_reader`), and the data is gathered as an
//! image in RAM, which serves concurrent readers of the same object (`staging`). If the object is
//! worth it (`admission`) the image is queued, and a thread writes it to a segment, where readers
//! then find it (`copies`). For a reader that reads a group in order the next object is read to RAM
//! ahead (`prefetch`).
//!
//! Values too small for copies move back to the log when they are read often (`small`): those moves
//! are records.

pub mod admission;
mod cached_reader;
pub mod contents;
pub mod copies;
pub mod credit;
pub mod prefetch;
mod sequences;
#[cfg(test)]
mod simulation_tests;
mod sketch;
pub mod small;
#[cfg(test)]
mod small_simulation_tests;
pub mod staging;

use crate::{
    FlashCacheStats, Options,
    api::{
        placement::{Pinning, Placement},
        stats::FlashCacheCounters,
    },
    io::throttle::Paces,
    metrics::count,
};
use admission::Popularity;
use copies::Copies;
use hashbrown::HashMap;
use parking_lot::Mutex;
use prefetch::Ahead;
use sequences::NamedReaders;
use small::SmallValues;
use staging::Images;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64},
    },
    time::Duration,
};

/// Longest part of an extent that is one image, in bytes.
pub const SLICE_BYTES: u64 = 8 << 20;
/// Shorter extents are not copied: the table would cost more than it gains. When they are read
/// often they move to the log.
pub const COPY_BYTES_MIN: u64 = 32 << 10;

/// RAM for small values that return to the log: this fraction (1/n) of that for large objects, in
/// addition to it.
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

/// Forgets a quarter of the entries: those with the lowest scores.
fn forget_quarter<T>(remembered: &mut HashMap<u64, T>, score: impl Fn(&T) -> f64) {
    let mut scores: Vec<f64> = remembered.values().map(&score).collect();
    let quarter = scores.len() / 4;
    let (_, limit, _) = scores.select_nth_unstable_by(quarter, f64::total_cmp);
    let limit = *limit;
    remembered.retain(|_, one| score(one) > limit);
}

/// The flash cache.
#[derive(Debug)]
pub struct FlashCache {
    /// Which objects are worth a copy.
    pub popularity: Popularity,
    /// Slices in RAM, and which of them are to be copied.
    pub images: Images,
    /// Where the copies are.
    pub copies: Copies,
    /// Objects to be read ahead of their readers.
    pub ahead: Ahead,
    /// Readers in order, by names that need not be keys.
    pub named_readers: NamedReaders,
    paces: Arc<Paces>,
    /// Small values in blocks.
    pub small: SmallValues,
    placement: Arc<Placement>,
    /// The counters.
    pub counters: FlashCacheCounters,
    /// Bytes of records in the log that brought small values back.
    pub moved_log_bytes: AtomicU64,
    /// Age of the segment whose copies were given up last.
    pub eviction_age: Mutex<Option<Duration>>,
    /// The log needs even the segments that are being written.
    pub must_seal: AtomicBool,
}

impl FlashCache {
    /// A new flash cache, with nothing counted or copied.
    pub fn new(options: &Options, paces: Arc<Paces>, placement: Arc<Placement>) -> Self {
        Self {
            popularity: Popularity::new(options.group_rule),
            images: Images::new(options.tuning.staging_bytes),
            copies: Copies::default(),
            ahead: Ahead::default(),
            named_readers: NamedReaders::new(options.group_rule),
            paces,
            small: SmallValues::new(
                options.tuning.staging_bytes / SMALL_STAGING_PART,
                options.log_bytes_max(),
            ),
            placement,
            counters: FlashCacheCounters::default(),
            moved_log_bytes: AtomicU64::new(0),
            eviction_age: Mutex::default(),
            must_seal: AtomicBool::new(false),
        }
    }

    /// The store closes: the threads that wait for something to copy or to read ahead shall see it.
    pub fn wake(&self) {
        self.images.wake();
        self.ahead.wake();
    }

    /// Whether objects of a key may be copied to flash.
    pub fn may_copy(&self, key: &[u8]) -> bool {
        self.placement.pinning(key) != Pinning::Disk
    }

    /// A picture.
    pub fn stats(&self) -> FlashCacheStats {
        let (segments, copies, bytes) = self.copies.size();
        FlashCacheStats {
            segments,
            copies,
            bytes,
            staged_bytes: self.images.bytes(),
            eviction_age: *self.eviction_age.lock(),
            moving_bytes: self.small.queue.bytes(),
            ..self.counters.picture()
        }
    }
}
