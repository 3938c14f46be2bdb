//! The live state: the memtables and the tables in which a lookup of a newest entry searches.
//!
//! The library has the same in its history of states, but under a lock that a flush or a merge
//! holds while it writes and syncs the file that names its state. A lookup there waits for the
//! device. Here each change is a few pointers, made when the library has installed the state.
//!
//! Each memtable has a Bloom filter, so that a lookup of a key that is in none of them searches the
//! tables alone. A memtable is a skip list, with nodes scattered in memory: finding that a key is
//! absent takes some twenty memory stalls. A filter takes one or two.
//!
//! # Why no key is hidden
//!
//! 1. The applier adds a key to its memtable's filter before it inserts the item.
//! 2. A memtable is in the list before anything is inserted into it. It is removed by one change
//!    together with the tables, which are taken from a state that has its items: the flush that
//!    wrote them has installed that state before.
//! 3. Tables are replaced only by those of a later state (its number is higher), and each state has
//!    what the one before it had, or what hides it.
//! 4. A lookup takes the list and the tables under one lock, and searches the newest memtable first
//!    and the tables last.
//!
//! Let an item be applied before a lookup of its key begins, so that the lookup sees the applier's
//! earlier writes (a lookup that comes from the overlay knows by its filter or its count of frames
//! that the frame was released; one that comes from `applied_seq`, by that). When the lookup takes
//! the list, the item's memtable either is in it: then its filter has the key, and the item or a
//! newer one is found. Or it was removed: then the tables are of a state that has the item, or a
//! newer one of its key, or none if a merge has dropped it as one that no reader can see. So a
//! lookup misses only what was applied after it had begun, as any lookup may.
//!
//! Lookups at a snapshot use the library's history: the state they read may be an old one, with
//! memtables that were flushed since.
//!
//! On failure: a failed flush or merge leaves everything unchanged. A false positive costs a
//! useless lookup in a memtable.

use crate::hash_index::key_filter::KeyFilter;
use lsm_tree::{AbstractTree as _, InternalValue, Memtable, SeqNo, Tree};
use parking_lot::RwLock;
use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

/// How long replaced tables wait for lookups, one of which may read a busy device,
const LOOKUP_WAIT_MAX: Duration = Duration::from_secs(1);
/// and how often they check for them.
const LOOKUP_LOOK: Duration = Duration::from_micros(100);

/// The live state.
pub(super) struct Live(RwLock<State>);

struct State {
    /// In the order of writing: the sealed ones, then the active one.
    memtables: VecDeque<Unflushed>,
    tables: Tables,
}

/// A memtable, and the filter of its keys.
struct Unflushed {
    filter: Arc<KeyFilter>,
    memtable: Arc<Memtable>,
}

/// The tables of a state.
#[derive(Clone)]
pub(super) struct Tables {
    /// The state's number.
    id: u64,
    search: Arc<Search>,
}

/// Searches tables for a key with this hash. The library does not export the type of its states, so
/// they are kept inside of this.
type Search = dyn Fn(&[u8], u64) -> lsm_tree::Result<FoundInTables> + Send + Sync;

/// Result of a search of the tables.
#[derive(Debug, Default)]
pub(super) struct FoundInTables {
    /// The newest item, which may be a tombstone.
    pub item: Option<InternalValue>,
    /// Runs of the first level that were searched.
    pub runs: u64,
    /// A deeper level was searched, too.
    pub has_deeper: bool,
}

impl FoundInTables {
    /// Of a lookup that searched no table.
    pub fn of(item: InternalValue) -> Self {
        Self {
            item: Some(item),
            ..Self::default()
        }
    }
}

/// Memtables and tables that are in the live state no more.
#[must_use = "dropping it may remove files"]
pub(super) struct Replaced {
    memtables: Vec<Unflushed>,
    tables: Tables,
}

impl Replaced {
    /// Drops them. Dropping the last state that has a table may remove its file, which takes
    /// milliseconds: a lookup that has these tables yet ends before, so that it need not do that.
    pub fn leave(self) {
        let Self { memtables, tables } = self;
        drop(memtables);
        let began = Instant::now();
        // No other lookup comes to have them.
        while Arc::strong_count(&tables.search) > 1 && began.elapsed() < LOOKUP_WAIT_MAX {
            std::thread::sleep(LOOKUP_LOOK);
        }
    }
}

/// Where a lookup goes on.
pub(super) enum Newest {
    /// The key's newest item, which may be a tombstone.
    Item(InternalValue),
    /// No memtable has the key.
    In(Tables),
}

impl Tables {
    /// Those of the newest state.
    pub fn of(tree: &Tree) -> Self {
        let state = tree.current_version();
        Self {
            id: state.id(),
            search: Arc::new(move |key, hash| {
                let mut found = FoundInTables::default();
                for (number, level) in state.iter_levels().enumerate() {
                    for table in level.iter().filter_map(|run| run.get_for_key(key)) {
                        found.runs += u64::from(number == 0);
                        found.has_deeper |= number > 0;
                        found.item = table.get(key, SeqNo::MAX, hash)?;
                        if found.item.is_some() {
                            return Ok(found);
                        }
                    }
                }
                Ok(found)
            }),
        }
    }

    /// Searches them for a key with this hash.
    ///
    /// # Errors
    /// The library's.
    pub fn search(&self, key: &[u8], hash: u64) -> lsm_tree::Result<FoundInTables> {
        (self.search)(key, hash)
    }
}

impl Unflushed {
    fn new(memtable: Arc<Memtable>) -> Self {
        Self {
            filter: Arc::default(),
            memtable,
        }
    }
}

impl Live {
    /// Of a tree that was opened just now: its memtable is empty.
    pub fn of(tree: &Tree) -> Self {
        Self(RwLock::new(State {
            memtables: [Unflushed::new(tree.active_memtable())].into(),
            tables: Tables::of(tree),
        }))
    }

    /// The filter of the active memtable.
    pub fn newest(&self) -> Arc<KeyFilter> {
        let state = self.0.read();
        state
            .memtables
            .back()
            .map_or_else(Arc::default, |newest| Arc::clone(&newest.filter))
    }

    /// The active memtable was sealed: the filter of this one, which follows it.
    pub fn begin(&self, memtable: Arc<Memtable>) -> Arc<KeyFilter> {
        let next = Unflushed::new(memtable);
        let filter = Arc::clone(&next.filter);
        self.0.write().memtables.push_back(next);
        filter
    }

    /// A state with these tables is installed. They have the items of the `flushed` oldest
    /// memtables, none of which is the active one; a merge has flushed none. Returns what they
    /// replace.
    pub fn installed(&self, flushed: usize, mut tables: Tables) -> Replaced {
        let mut state = self.0.write();
        debug_assert!(flushed < state.memtables.len(), "the active memtable is not flushed");
        let memtables = state.memtables.drain(..flushed).collect();
        // A flush and a merge may come here in another order than their states.
        if tables.id > state.tables.id {
            std::mem::swap(&mut state.tables, &mut tables);
        }
        Replaced { memtables, tables }
    }

    /// Keys of the memtables, those that several have as often; a few less, since a filter may take
    /// one for another.
    pub fn keys(&self) -> u64 {
        self.sum(KeyFilter::len)
    }

    /// RAM of the filters, in bytes.
    pub fn filter_bytes(&self) -> u64 {
        self.sum(KeyFilter::bytes)
    }

    fn sum(&self, figure: impl Fn(&KeyFilter) -> u64) -> u64 {
        self.0.read().memtables.iter().map(|one| figure(&one.filter)).sum()
    }

    /// Looks a key with this hash up in the memtables.
    pub fn find(&self, key: &[u8], hash: u64) -> Newest {
        let state = self.0.read();
        let newest_first = state.memtables.iter().rev();
        let mut with_key = newest_first.filter(|one| one.filter.may_contain(hash));
        match with_key.find_map(|one| one.memtable.get(key, SeqNo::MAX)) {
            Some(item) => Newest::Item(item),
            None => Newest::In(state.tables.clone()),
        }
    }

    /// Whether a memtable may have a key with this hash.
    #[cfg(test)]
    pub fn may_have(&self, hash: u64) -> bool {
        let state = self.0.read();
        state.memtables.iter().any(|one| one.filter.may_contain(hash))
    }
}
