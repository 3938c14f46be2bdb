//! Values in RAM, found by where they live, not by key.
//!
//! A place is written once: a segment's generation or a block's number makes it unique for ever. So a cached value never
//! goes stale and nothing would have to be invalidated when a key is overwritten: the indexes lead to another place. The
//! applier takes it out all the same, to have its room for what replaces it. A false match of the flash index is caught as on
//! flash, by the key.

use crate::flash::{
    address::Address,
    format::Record,
    recent::{Heir, PlaceInLog, RecentFrames},
    segments::Segments,
};
use bytes::Bytes;
use quick_cache::{Weighter, sync::Cache};
use std::sync::Arc;

/// A place in the flash log or in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place(u64, u64);

impl Place {
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
}

/// A cached record.
#[derive(Debug, Clone)]
pub struct CachedValue {
    /// The version of the object.
    pub version: u64,
    /// The value.
    pub value: Bytes,
    /// The key and behind it the encoded attributes.
    head: Bytes,
    key_bytes: usize,
}

impl CachedValue {
    /// A copy of a record of the log, in one piece of memory: a lookup does little else than wait for memory, once for each piece.
    pub fn of_record(record: &Record<'_>) -> Self {
        let parts = [record.key, record.attributes, record.body.value()];
        let mut whole = Bytes::from(parts.concat());
        let head = whole.split_to(record.key.len() + record.attributes.len());
        Self {
            version: record.version(),
            value: whole,
            head,
            key_bytes: record.key.len(),
        }
    }

    /// Of a value that is in memory.
    pub fn new(key: &[u8], version: u64, attributes: &[u8], value: Bytes) -> Self {
        Self {
            version,
            value,
            head: Bytes::from([key, attributes].concat()),
            key_bytes: key.len(),
        }
    }

    /// Its key.
    pub fn key(&self) -> &[u8] {
        &self.head[..self.key_bytes]
    }

    /// Encoded attributes.
    pub fn attributes(&self) -> Bytes {
        self.head.slice(self.key_bytes..)
    }
}

#[derive(Debug, Clone)]
struct ByBytes;

/// What an item costs besides its bytes.
const ITEM_OVERHEAD_BYTES: u64 = 160;

impl Weighter<Place, CachedValue> for ByBytes {
    fn weight(&self, _: &Place, item: &CachedValue) -> u64 {
        ITEM_OVERHEAD_BYTES + (item.head.len() + item.value.len()) as u64
    }
}

/// The cache. With no capacity it holds nothing and costs nothing. Clones are the same.
#[derive(Debug, Clone)]
pub struct ValueCache {
    values: Option<Values>,
    /// Frames that have the RAM which values do not use yet.
    recent: Arc<RecentFrames>,
}

/// Values, the recent frames' heir.
#[derive(Debug, Clone)]
struct Values {
    cache: Arc<Cache<Place, CachedValue, ByBytes>>,
    capacity_bytes: u64,
}

impl Values {
    /// Keeps a value, unless it would take more than an eighth of the cache.
    fn insert(&self, place: Place, value: impl FnOnce() -> CachedValue, value_bytes: u64) {
        if value_bytes <= self.capacity_bytes / 8 {
            self.cache.insert(place, value());
        }
    }
}

impl Heir for Values {
    fn inherit(&self, place: PlaceInLog, record: &Record<'_>) {
        let bytes = record.body.value().len() as u64;
        self.insert(Place::log(place), || CachedValue::of_record(record), bytes);
    }

    fn unused_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.cache.weight())
    }
}

impl ValueCache {
    /// A cache of this many bytes, 0 turns it off; `recent` frames have what it does not use.
    pub fn new(capacity_bytes: u64, recent: &Arc<RecentFrames>) -> Self {
        let items = usize::try_from(capacity_bytes / 4096).unwrap_or(usize::MAX).max(64);
        let values = (capacity_bytes > 0).then(|| Values {
            cache: Arc::new(Cache::with_weighter(items, capacity_bytes, ByBytes)),
            capacity_bytes,
        });
        if let Some(values) = &values {
            recent.hand_on_to(Box::new(values.clone()));
        }
        Self {
            values,
            recent: Arc::clone(recent),
        }
    }

    /// The value at a place.
    pub fn get(&self, place: Place) -> Option<CachedValue> {
        self.values.as_ref()?.cache.get(&place)
    }

    /// Keeps a value, unless it would take more than an eighth of the cache. Recent frames leave for it, if need be.
    pub fn insert(&self, place: Place, value: impl FnOnce() -> CachedValue, value_bytes: u64) {
        if let Some(values) = &self.values {
            values.insert(place, value, value_bytes);
            self.recent.give_back(value_bytes);
        }
    }

    /// Takes the value of `key` at a place out of the cache. `None` if it is not there.
    pub fn take(&self, place: Place, key: &[u8]) -> Option<CachedValue> {
        let values = self.values.as_ref()?;
        values
            .cache
            .remove_if(&place, |cached| cached.key() == key)
            .map(|(_, cached)| cached)
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.values.as_ref().map_or(0, |values| values.cache.weight())
    }

    /// Bytes it may hold.
    pub fn capacity_bytes(&self) -> u64 {
        self.values.as_ref().map_or(0, |values| values.capacity_bytes)
    }
}
