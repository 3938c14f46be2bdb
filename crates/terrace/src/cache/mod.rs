//! Values in RAM, found by place, not by key.
//!
//! A place is written once: a segment's generation or a block's number makes it unique. So a cached
//! value never goes stale, and an overwrite need not invalidate anything: the indexes lead to
//! another place. The applier removes the old value nevertheless, to make room for the new one. A
//! false match of the hash index is detected as on flash, by the key.
//!
//! Short values are packed in segments of RAM ([`values`]); docs/adr/0020-dense-cache.md has the
//! reasons. Scanned pairs are cached again in key order ([`scans`]); only these are dropped when a
//! key changes.

pub mod chunk;
mod index;
mod record;
pub mod scans;
mod table;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
mod values;

use crate::{
    Version,
    log::{
        address::Address,
        format::{Record, put_bytes},
        frame::{Heir, PlaceInLog},
        frame_table::FrameTable,
        segments::Segments,
    },
};
use bytes::Bytes;
use chunk::{Chunk, Pair};
use record::Item;
use std::{ops::Deref, sync::Arc};
use values::{Rank, Values};

/// A place in the flash log or in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place(u64, u64);

impl Place {
    /// Of chunks, which have no place in the store ([`scans`]): no block has such a number.
    const CHUNKS: u64 = 1 << 48;

    /// The place in the flash log that is at this address now. `None` if there is no such segment.
    pub fn in_log(segments: &Segments, address: Address) -> Option<Self> {
        segments.place(address.bytes()).map(Self::log)
    }

    /// A place in the flash log, as [`Segments::place`] names it.
    pub const fn log((generation, offset): PlaceInLog) -> Self {
        Self(generation, offset << 1)
    }

    /// An extent's place in a block.
    pub const fn block(block: u64, offset: u64) -> Self {
        Self(block, offset << 1 | 1)
    }

    /// The place in the flash log that it is, if it is one.
    const fn place_in_log(self) -> Option<PlaceInLog> {
        if self.1 & 1 == 0 {
            Some((self.0, self.1 >> 1))
        } else {
            None
        }
    }

    /// Bits of which each depends on all of it.
    const fn hash(self) -> u64 {
        let mixed = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.1;
        let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

/// A cached record.
#[derive(Debug, Clone)]
pub struct CachedValue {
    /// The version of the object.
    pub version: u64,
    /// Encoded attributes.
    pub attributes: Bytes,
    /// The value.
    pub value: Bytes,
}

impl CachedValue {
    /// A copy of a record of the log.
    pub fn of_record(record: &Record<'_>) -> Self {
        Self {
            version: record.version(),
            attributes: Bytes::copy_from_slice(record.attributes),
            value: Bytes::copy_from_slice(record.body.value()),
        }
    }

    /// A copy of a pair of a chunk.
    fn of_pair(pair: &Pair<'_>) -> Self {
        Self {
            version: pair.version,
            attributes: Bytes::copy_from_slice(pair.attributes),
            value: Bytes::copy_from_slice(pair.value),
        }
    }

    /// Of an object of the large space, or a piece of it.
    pub fn of_entry(version: Version, attributes: &Bytes, value: &Bytes) -> Self {
        Self {
            version: version.0,
            attributes: attributes.clone(),
            value: value.clone(),
        }
    }
}

/// The cache. With no capacity it holds nothing and costs nearly nothing. Clones share it.
#[derive(Clone)]
pub struct ValueCache {
    values: Arc<Values>,
    /// Frames that have the RAM which values do not use yet.
    frames: Arc<FrameTable>,
}

impl Deref for ValueCache {
    type Target = Values;

    fn deref(&self) -> &Values {
        &self.values
    }
}

/// The frames' heir.
struct ValuesOfFrames(Arc<Values>);

impl Heir for ValuesOfFrames {
    fn inherit(&self, place: PlaceInLog, record: &Record<'_>) {
        let item = Item {
            place: Place::log(place),
            key: record.key,
            version: record.version(),
            attributes: record.attributes,
            value: record.body.value(),
        };
        self.0.insert(&item, Rank::Newcomer, || CachedValue::of_record(record));
    }

    fn unused_bytes(&self) -> u64 {
        self.0.unused_bytes()
    }

    fn borrowed_bytes(&self) -> u64 {
        self.0.borrowed_bytes()
    }

    fn takes_unread(&self, bytes: u64) -> bool {
        self.0.takes_unread(bytes)
    }
}

impl ValueCache {
    /// A cache of this many bytes, 0 turns it off; `frames` use the rest of the RAM for values.
    pub fn new(capacity_bytes: u64, frames: &Arc<FrameTable>) -> Self {
        let values = Arc::new(Values::new(capacity_bytes));
        values.set_frames_share(frames.share_bytes());
        if capacity_bytes > 0 {
            frames.hand_on_to(Box::new(ValuesOfFrames(Arc::clone(&values))));
        }
        Self {
            values,
            frames: Arc::clone(frames),
        }
    }

    /// Changes the capacity, which includes the frames' share. A smaller cache evicts before this
    /// returns. One that was opened without capacity keeps none.
    pub fn set_capacity(&self, bytes: u64) {
        if self.values.is_off() {
            return;
        }
        let share_bytes = FrameTable::share_of(bytes);
        self.values.set_frames_share(share_bytes);
        self.values.set_capacity(bytes - share_bytes);
        self.frames.set_share(share_bytes);
    }

    /// Lends this much of its RAM to another user, until called again. What is above the rest is
    /// evicted, frames too: they may have all the RAM that values do not use.
    pub fn lend(&self, bytes: u64) {
        self.values.lend(bytes);
        self.frames.give_back(self.frames.retained_bytes());
    }

    /// Keeps the value of `key` at a place, unless it would take more than an eighth of the cache.
    /// Frames leave for it, if need be. It was read from a device.
    pub fn insert(&self, place: Place, key: &[u8], value: &CachedValue) {
        self.values.note_read(value.value.len());
        self.insert_as(Rank::Newcomer, place, key, value);
    }

    fn insert_as(&self, rank: Rank, place: Place, key: &[u8], value: &CachedValue) {
        let item = Item {
            place,
            key,
            version: value.version,
            attributes: &value.attributes,
            value: &value.value,
        };
        let came_bytes = self.values.insert(&item, rank, || value.clone());
        if came_bytes > 0 {
            self.frames.give_back(came_bytes);
        }
    }

    /// Moves the entry of one place to another. Returns whether it was cached.
    pub fn rename(&self, from: Place, to: Place, key: &[u8]) -> bool {
        let found = self.get(from, key);
        if let Some(value) = &found {
            self.take(from);
            self.insert_as(Rank::Known, to, key, value);
        }
        found.is_some()
    }

    /// RAM of values that live, in frames and here, and what all of them may have.
    pub fn living_and_room_bytes(&self) -> (u64, u64) {
        let living_bytes = self.values.living_bytes() + self.frames.living_bytes();
        (living_bytes, self.values.capacity_bytes() + self.frames.share_bytes())
    }

    /// Has a chunk be the home in RAM of its longer values; see [`Values::move_to_chunk`]. Frames
    /// need not keep them any more.
    fn move_to_chunk(
        &self,
        place: Place,
        chunk: &Chunk,
        is_new: impl Fn(&[u8]) -> bool,
        counted_bytes: fn(u64) -> u64,
    ) {
        for pair in self.values.move_to_chunk(place, chunk, |pair| is_new(pair.key)) {
            if let Some(place) = pair.place.and_then(Place::place_in_log) {
                let record_bytes = put_bytes(pair.key.len(), pair.attributes.len(), pair.value.len() as u64);
                self.frames.value_died(place, counted_bytes(record_bytes));
            }
        }
        self.frames.give_back(chunk.bytes() as u64);
    }
}
