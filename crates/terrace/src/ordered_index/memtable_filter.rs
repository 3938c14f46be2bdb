//! Memtable filters: one Bloom filter per memtable, so that a lookup of a key that is in none of
//! them reads the tables alone.
//!
//! A memtable is a skip list whose nodes are scattered in memory: finding that a key is absent
//! takes some twenty memory stalls per memtable. A filter takes one or two.
//!
//! # Why no key is hidden
//!
//! 1. The applier adds a key to its memtable's filter before it inserts the item.
//! 2. A filter is in the list before anything is added to it, and is removed only after the flush
//!    that wrote its memtable has installed the state with the tables: both lists are changed under
//!    the lock of the marks, so a filter is always removed with its own memtable.
//! 3. A lookup checks the filters first and takes the newest state after that.
//!
//! Let an item be applied before a lookup of its key begins, so that the lookup sees the applier's
//! earlier writes (a lookup that comes from the overlay knows by its filter or its count of frames
//! that the frame was released; one that comes from `applied_seq`, by that). When the lookup loads
//! the list, the filter of the item's memtable either is in it: then it has the key, and the lookup
//! searches the memtables as well. Or it was removed: then the state with the item's table was
//! installed before, and the lookup takes that state or a later one, in whose tables the item is,
//! or a newer one of its key, or none if a compaction has dropped it as one that no reader can see.
//! So a lookup misses only what was applied after it had begun, as any lookup may.
//!
//! Lookups at a snapshot do not use the filters: the state they read may be an old one, with
//! memtables that were flushed since.
//!
//! On failure: a failed flush leaves the list unchanged. A false positive costs a useless lookup in
//! memtables.

use crate::hash_index::key_filter::KeyFilter;
use parking_lot::RwLock;
use std::{collections::VecDeque, sync::Arc};

/// Filters in the order of their memtables: the sealed ones, then the active one.
#[derive(Debug)]
pub(super) struct Unflushed(RwLock<VecDeque<Arc<KeyFilter>>>);

impl Default for Unflushed {
    fn default() -> Self {
        Self(RwLock::new([Arc::default()].into()))
    }
}

impl Unflushed {
    /// The active memtable's.
    pub fn newest(&self) -> Arc<KeyFilter> {
        let filters = self.0.read();
        filters.back().map_or_else(Arc::default, Arc::clone)
    }

    /// The active memtable was sealed: the filter of the next one.
    pub fn begin(&self) -> Arc<KeyFilter> {
        let next = Arc::<KeyFilter>::default();
        self.0.write().push_back(Arc::clone(&next));
        next
    }

    /// The oldest sealed memtable is in tables that every later state has.
    pub fn flushed(&self) {
        let mut filters = self.0.write();
        debug_assert!(filters.len() > 1, "the active memtable is not flushed");
        filters.pop_front();
    }

    /// Keys of the memtables, those that several have as often; a few less, since a filter may take
    /// one for another.
    pub fn keys(&self) -> u64 {
        self.0.read().iter().map(|filter| filter.len()).sum()
    }

    /// RAM they take, in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.read().iter().map(|filter| filter.bytes()).sum()
    }

    /// Whether a memtable may have a key with this hash.
    pub fn may_have(&self, hash: u64) -> bool {
        self.0.read().iter().any(|filter| filter.may_contain(hash))
    }
}
