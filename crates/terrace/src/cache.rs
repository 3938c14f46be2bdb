//! Values in RAM, found by where they live, not by key.
//!
//! A place is written once: a segment's generation or a block's number makes it unique for ever. So
//! a cached value never goes stale and nothing would have to be invalidated when a key is
//! overwritten: the indexes lead to another place. The applier takes it out all the same, to have
//! its room for what replaces it. A false match of the hash index is caught as on flash, by the
//! key.

use crate::log::{
    address::Address,
    format::Record,
    recent::{Heir, PlaceInLog, RecentFrames},
    segments::Segments,
};
use bytes::Bytes;
use quick_cache::{Weighter, sync::Cache};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

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
    head: Head,
}

/// A key and behind it the encoded attributes.
#[derive(Debug, Clone)]
enum Head {
    /// In the cache's own table: nothing but the value is anywhere else, in memory of its own
    /// length. A value of a power of two together with its key would be given a quarter more, since
    /// allocators have a few lengths only.
    Inline {
        bytes: [u8; INLINE_BYTES_MAX],
        key_bytes: u8,
        bytes_used: u8,
    },
    /// Elsewhere, perhaps in one piece with the value.
    Apart { bytes: Bytes, key_bytes: u32 },
}

/// So long a [`Head`] makes an item no longer than one that is elsewhere.
const INLINE_BYTES_MAX: usize = 36;

impl Head {
    #[allow(clippy::cast_possible_truncation)] // checked
    fn inline(key: &[u8], attributes: &[u8]) -> Option<Self> {
        let mut bytes = [0; INLINE_BYTES_MAX];
        let used = key.len() + attributes.len();
        bytes.get_mut(..key.len())?.copy_from_slice(key);
        bytes.get_mut(key.len()..used)?.copy_from_slice(attributes);
        Some(Self::Inline {
            bytes,
            key_bytes: key.len() as u8,
            bytes_used: used as u8,
        })
    }

    #[allow(clippy::cast_possible_truncation)] // keys are at most 64 KiB
    const fn apart(bytes: Bytes, key: &[u8]) -> Self {
        Self::Apart {
            bytes,
            key_bytes: key.len() as u32,
        }
    }

    fn key(&self) -> &[u8] {
        match self {
            Self::Inline { bytes, key_bytes, .. } => &bytes[..usize::from(*key_bytes)],
            Self::Apart { bytes, key_bytes } => &bytes[..*key_bytes as usize],
        }
    }

    fn attributes(&self) -> Bytes {
        match self {
            Self::Inline {
                bytes,
                key_bytes,
                bytes_used,
            } => Bytes::copy_from_slice(&bytes[usize::from(*key_bytes)..usize::from(*bytes_used)]),
            Self::Apart { bytes, key_bytes } => bytes.slice(*key_bytes as usize..),
        }
    }

    fn bytes_apart(&self) -> usize {
        match self {
            Self::Inline { .. } => 0,
            Self::Apart { bytes, .. } => bytes.len(),
        }
    }
}

impl CachedValue {
    /// A copy of a record of the log, in one piece of memory beside the table: a lookup does little
    /// else than wait for memory, once for each piece.
    pub fn of_record(record: &Record<'_>) -> Self {
        let (key, attributes, value) = (record.key, record.attributes, record.body.value());
        if let Some(head) = Head::inline(key, attributes) {
            return Self {
                version: record.version(),
                value: Bytes::copy_from_slice(value),
                head,
            };
        }
        let mut whole = Bytes::from([key, attributes, value].concat());
        let head = whole.split_to(key.len() + attributes.len());
        Self {
            version: record.version(),
            value: whole,
            head: Head::apart(head, key),
        }
    }

    /// Of a value that is in memory.
    pub fn new(key: &[u8], version: u64, attributes: &[u8], value: Bytes) -> Self {
        let apart = || Head::apart(Bytes::from([key, attributes].concat()), key);
        Self {
            version,
            value,
            head: Head::inline(key, attributes).unwrap_or_else(apart),
        }
    }

    /// Its key.
    pub fn key(&self) -> &[u8] {
        self.head.key()
    }

    /// Encoded attributes.
    pub fn attributes(&self) -> Bytes {
        self.head.attributes()
    }
}

#[derive(Debug, Clone)]
struct ByBytes;

/// What an item costs besides its bytes.
const ITEM_OVERHEAD_BYTES: u64 = 160;

impl Weighter<Place, CachedValue> for ByBytes {
    fn weight(&self, _: &Place, item: &CachedValue) -> u64 {
        ITEM_OVERHEAD_BYTES + allocated_bytes(item.head.bytes_apart() + item.value.len())
    }
}

/// What a general allocator takes for so many bytes. It has four lengths for each power of two, as
/// jemalloc's size classes are; the C library's takes less.
const fn allocated_bytes(bytes: usize) -> u64 {
    let step = if bytes <= 128 {
        16
    } else {
        bytes.next_power_of_two() / 8
    };
    bytes.next_multiple_of(step) as u64
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
    capacity_bytes: Arc<AtomicU64>,
}

impl Values {
    fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes.load(Ordering::Relaxed)
    }

    /// Keeps a value, unless it would take more than an eighth of the cache.
    fn insert(&self, place: Place, value: impl FnOnce() -> CachedValue, value_bytes: u64) {
        if value_bytes <= self.capacity_bytes() / 8 {
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
        self.capacity_bytes().saturating_sub(self.cache.weight())
    }
}

impl ValueCache {
    /// A cache of this many bytes, 0 turns it off; `recent` frames have what it does not use.
    pub fn new(capacity_bytes: u64, recent: &Arc<RecentFrames>) -> Self {
        let items = usize::try_from(capacity_bytes / 4096).unwrap_or(usize::MAX).max(64);
        let values = (capacity_bytes > 0).then(|| Values {
            cache: Arc::new(Cache::with_weighter(items, capacity_bytes, ByBytes)),
            capacity_bytes: Arc::new(AtomicU64::new(capacity_bytes)),
        });
        if let Some(values) = &values {
            recent.hand_on_to(Box::new(values.clone()));
        }
        Self {
            values,
            recent: Arc::clone(recent),
        }
    }

    /// Changes how much it holds together with the recent frames, of which they have their share. A
    /// smaller one lets go of the rest before this returns. One that was opened with nothing stays
    /// so.
    pub fn set_capacity(&self, bytes: u64) {
        let Some(values) = &self.values else { return };
        let share_bytes = RecentFrames::share_of(bytes);
        values.capacity_bytes.store(bytes - share_bytes, Ordering::Relaxed);
        values.cache.set_capacity(bytes - share_bytes);
        self.recent.set_share(share_bytes);
    }

    /// The value at a place.
    pub fn get(&self, place: Place) -> Option<CachedValue> {
        self.values.as_ref()?.cache.get(&place)
    }

    /// Keeps a value, unless it would take more than an eighth of the cache. Recent frames leave
    /// for it, if need be.
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
        self.values.as_ref().map_or(0, Values::capacity_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::format::Body;

    #[test]
    fn heads_of_every_length_come_back() {
        for (key_bytes, attribute_bytes) in [
            (0, 0),
            (1, 0),
            (36, 0),
            (20, 16),
            (37, 0),
            (20, 17),
            (1, 300),
            (4096, 0),
        ] {
            let key: Vec<u8> = (0..key_bytes).map(|byte| byte as u8).collect();
            let attributes = vec![0xA7; attribute_bytes];
            let record = Record {
                seq: 5,
                generation: 0,
                key: &key,
                attributes: &attributes,
                checksum: 0,
                body: Body::Put { value: b"value" },
            };
            let of_record = CachedValue::of_record(&record);
            let new = CachedValue::new(&key, record.version(), &attributes, Bytes::from_static(b"value"));
            for cached in [of_record, new] {
                assert_eq!(cached.key(), key);
                assert_eq!(cached.attributes(), attributes);
                assert_eq!((&cached.value[..], cached.version), (&b"value"[..], record.version()));
                let apart = if key_bytes + attribute_bytes > INLINE_BYTES_MAX {
                    key_bytes + attribute_bytes
                } else {
                    0
                };
                assert_eq!(cached.head.bytes_apart(), apart);
            }
        }
    }

    #[test]
    fn what_an_item_costs_is_what_an_allocator_takes_for_it() {
        for (bytes, allocated) in [
            (0, 0),
            (1, 16),
            (128, 128),
            (129, 160),
            (1024, 1024),
            (1040, 1280),
            (8208, 10240),
        ] {
            assert_eq!(allocated_bytes(bytes), allocated, "{bytes}");
        }
        assert_eq!(size_of::<CachedValue>(), 80, "no longer than with every head elsewhere");
        let value = Bytes::from(vec![0; 1024]);
        let weight = |key: &[u8]| ByBytes.weight(&Place::block(0, 0), &CachedValue::new(key, 1, &[], value.clone()));
        assert_eq!(weight(&[1; 16]), ITEM_OVERHEAD_BYTES + 1024);
        assert_eq!(weight(&[1; 92]), ITEM_OVERHEAD_BYTES + 1280);
    }
}
