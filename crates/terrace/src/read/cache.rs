//! Values in RAM, found by where they live, not by key.
//!
//! A place is written once: a segment's generation or a block's number makes it unique for ever. So a cached value never
//! goes stale and nothing would have to be invalidated when a key is overwritten: the indexes lead to another place. The
//! applier takes it out all the same, to have its room for what replaces it. A false match of the flash index is caught as on
//! flash, by the key.

use crate::flash::{address::Address, format::Record, recent::Leaving, segments::Segments};
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
    pub const fn log((generation, offset): (u64, u64)) -> Self {
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
    cache: Option<Arc<Cache<Place, CachedValue, ByBytes>>>,
    capacity_bytes: u64,
}

impl ValueCache {
    /// A cache of this many bytes; 0 turns it off.
    pub fn new(capacity_bytes: u64) -> Self {
        let items = usize::try_from(capacity_bytes / 4096).unwrap_or(usize::MAX).max(64);
        Self {
            cache: (capacity_bytes > 0).then(|| Arc::new(Cache::with_weighter(items, capacity_bytes, ByBytes))),
            capacity_bytes,
        }
    }

    /// The value at a place.
    pub fn get(&self, place: Place) -> Option<CachedValue> {
        self.cache.as_ref()?.get(&place)
    }

    /// Keeps a value, unless it would take more than an eighth of the cache.
    pub fn insert(&self, place: Place, value: impl FnOnce() -> CachedValue, value_bytes: u64) {
        if let Some(cache) = &self.cache
            && value_bytes <= self.capacity_bytes / 8
        {
            cache.insert(place, value());
        }
    }

    /// Takes the value of `key` at a place out of the cache. `None` if it is not there.
    pub fn take(&self, place: Place, key: &[u8]) -> Option<CachedValue> {
        let cache = self.cache.as_ref()?;
        cache
            .remove_if(&place, |cached| cached.key() == key)
            .map(|(_, cached)| cached)
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.cache.as_ref().map_or(0, |cache| cache.weight())
    }

    /// Bytes it may hold.
    pub const fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }
}

/// What recent frames do with what was read there, when they leave: the cache takes it.
pub fn taking_over(cache: &ValueCache) -> Leaving {
    let cache = cache.clone();
    Box::new(move |place, record| {
        let bytes = record.body.value().len() as u64;
        cache.insert(Place::log(place), || CachedValue::of_record(record), bytes);
    })
}
