//! The ordered index: key → [`Entry`], in key order, with versions by the store's own seqs.
//!
//! Purpose: one durable, ordered map on flash that is a fold of the flash log. It has no log of its
//! own: after a crash, memtable contents are replayed from the flash log, from the seq of the
//! newest persisted [`IndexMark`]. This is the only module that uses `lsm_tree`. One [`Applier`]
//! writes, any thread reads, background threads call [`OrderedIndex::flush_sealed`] and
//! [`OrderedIndex::compact`].
//!
//! # Why a read at a snapshot is correct
//!
//! The library keeps a history of *states* (which memtables, which tables), each with a seqno taken
//! from the shared counter, under the history's write lock, when a flush or compaction installs it.
//! A read at seqno `r` uses the newest state whose seqno is below `r`, and returns the newest item
//! whose seqno is below `r`. Let `a` be the last applied commit and `s'` stand for `s <<
//! UPGRADE_BITS`. Items of commit `s` have seqno `s'`; when commit `a` is complete the applier
//! raises the counter to at least `a'`; a read at snapshot `S` uses `(S+1)'`; a read of the latest
//! uses the largest seqno. Fewer than `2^UPGRADE_BITS` states are installed between two commits
//! (`flush_sealed` and `compact` refuse before). A state that failed to install is none, and its
//! seqno is given out again: the counter stays above the newest state's, and not below `a'`. Then:
//!
//! 1. A state installed while commit `a` is the last complete one has a seqno in `[a', (a+1)')`.
//!    Seqnos of states rise in the order of installation.
//! 2. *Nothing is missed.* Let a read at `S ≤ a` use state `V`, and let `W` be the state installed
//!    after `V`, if any; so `W.seqno ≥ (S+1)'`. With `b` the last complete commit when `W` was
//!    installed, `(b+1)' > W.seqno ≥ (S+1)'`, hence `S < b`: all items up to `S` were applied
//!    before `W` replaced `V`. Until then `V` was the live state, every item went to its active
//!    memtable, and rotation, done by the applier between commits, replaces the live state in
//!    place, keeping its seqno. So `V` holds them all.
//! 3. *Nothing needed is dropped.* A flush or compaction that produces `W` only reads items of
//!    sealed memtables, so of commits complete before `W` was installed: their seqnos are at most
//!    `W.seqno` rounded down to a commit, `b'`. Readers of `W` have `(S+1)' > W.seqno`, so `S ≥ b`,
//!    so all of these items are visible to each of them, and the newest per key is the only one
//!    they can see. Dropping the shadowed ones, and tombstones in the last level, is therefore
//!    correct for every reader of `W`; readers of older snapshots use older states, which keep
//!    their tables.
//! 4. *Old states live long enough, and no longer.* A state is forgotten only when a newer one has
//!    a seqno below the watermark `(w+1)'`, where `w` is at most the oldest snapshot still read and
//!    at most `a`; such a reader would use the newer one. [`OrderedIndex::get_at`] refuses
//!    snapshots older than a watermark it was given. With no snapshot but the latest, `w = a`, only
//!    the live state is left ([`OrderedIndex::forget_states`]): otherwise tables merged by a
//!    compaction would stay on flash until the end of the next compaction, which on a full device
//!    never comes.
//!
//! After an open there is one state with seqno 0, no snapshots, and the counter starts at `D'`,
//! where `D` is the mark's seq; persisted items have seqnos of at most `D'`, and the applier only
//! accepts later commits.
//!
//! # What persists
//!
//! A memtable is sealed with its mark inside, memtables are flushed together and in order, and a
//! flush installs its tables by replacing one small file. So the state on flash is always the fold
//! of the log up to exactly the mark's seq. Nothing is flushed before the caller requests it; the
//! caller first makes the log durable up to that seq.
//!
//! # On failure
//!
//! A failed flush keeps its memtables in memory and can be tried again; files it left behind are
//! removed when neither a flush nor a compaction runs, and at the next open. If a failure leaves it
//! unknown which state the directory names, flushes and compactions are refused from then on
//! (`Failed`) and reads continue. Damaged files are `Corruption`, at open or when the block is
//! read.

mod applier;
mod background;
mod damaged;
mod entry;
mod errors;
mod files;
mod image;
mod listing;
mod live;
mod lost;
mod mark;
mod mirror;
mod open;
mod preload;
mod read_triggered;
mod scan;
mod set_aside;
mod shape;
mod state_copy;
mod table_bytes;
mod tombstones;
mod warm;
mod with_copies;

#[cfg(test)]
mod both_ends_tests;
#[cfg(test)]
mod contract_tests;
#[cfg(test)]
mod damage_tests;
#[cfg(test)]
mod live_tests;
#[cfg(test)]
mod mirror_tests;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod read_triggered_tests;
#[cfg(test)]
mod set_aside_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tombstones_tests;

pub use applier::Applier;
pub use damaged::{noted_damage, noted_unreadable};
pub use entry::{ADDRESS_LIMIT, BLOCK_LIMIT, Entry, Home, INLINE_BYTES_LIMIT, VERSION_LIMIT};
pub use image::IndexImage;
pub use lost::LostRange;
pub use mark::IndexMark;
pub use mirror::{MIRROR_STEP_BYTES, mend};
pub use scan::{IndexScan, KeyBounds};
pub use set_aside::{Outcome as SetAside, set_damaged_aside};
pub use state_copy::StateCopy;
pub use with_copies::CopySource;

use crate::{Error, IndexStats, RamAnswer, Result, key_hash};
use damaged::DamageNote;
use live::{FoundInTables, Live, Newest};
use lsm_tree::{AbstractTree as _, Memtable, SeqNo, SequenceNumberCounter, Tree, UserValue};
use mirror::Mirror;
use parking_lot::Mutex;
use read_triggered::{Looks, spared};
use std::{
    collections::VecDeque,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};
use table_bytes::WrittenTables;
use tombstones::Tombstones;
use warm::Warm;
use with_copies::CopySlot;

/// Maximum number of states that the library may install between two commits, as bits of the seqno
/// below the commit's seq. With 48 bits of seq this leaves the top bit clear, as the library
/// requires.
const UPGRADE_BITS: u32 = 15;

/// How the ordered index is opened.
#[derive(Debug, Clone, Copy)]
pub struct IndexOptions {
    /// RAM for data blocks, in bytes. Filters and block indexes are in addition to it (about 2.5
    /// bytes per key).
    pub cache_bytes: u64,
    /// Size at which [`Applier::is_full`] becomes true, in bytes as the library counts them (about
    /// 64 per entry, plus its key and bytes). Small ones stay in the processor's caches: see
    /// docs/adr/0001-ordered-index.md.
    pub memtable_bytes: u64,
    /// Size of the tables compaction writes, in bytes; see `shape`.
    pub table_bytes: u64,
    /// Whether a copy of the state and a note of damage may be written next to the index's files.
    pub guards: bool,
}

impl Default for IndexOptions {
    fn default() -> Self {
        Self {
            cache_bytes: 64 << 20,
            memtable_bytes: 16 << 20,
            table_bytes: 32 << 20,
            guards: false,
        }
    }
}

/// A table is this fraction (1/n) of a tier of less than 8 GiB, as a memtable is of a small device.
const TABLES_PER_TIER: u64 = 256;

impl IndexOptions {
    /// Options with memtables of so many bytes, on a tier of this capacity: on a small one, tables
    /// are a 256th of it. A merge of the first level then takes at most a sixth of it.
    pub fn on_tier(memtable_bytes: u64, capacity_bytes: u64) -> Self {
        let usual = Self::default();
        let least = memtable_bytes.min(usual.table_bytes);
        Self {
            memtable_bytes,
            table_bytes: (capacity_bytes / TABLES_PER_TIER).clamp(least, usual.table_bytes),
            ..usual
        }
    }
}

/// RAM of the index by purpose, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexRam {
    /// Memtables not yet flushed.
    pub memtable_bytes: u64,
    /// Cached blocks of tables, and filters and block indexes of tables.
    pub blocks_bytes: u64,
    /// Filters of the memtables.
    pub filters_bytes: u64,
}

/// RAM of an item of a memtable that the library does not count; it counts the key, the bytes and
/// 64. It is the rest of the node, and the reference count of the bytes.
const ITEM_OVERHEAD_BYTES: u64 = 48;

/// The ordered index. Shared behind an `Arc`.
pub struct OrderedIndex {
    tree: Tree,
    /// Its directory.
    dir: PathBuf,
    options: IndexOptions,
    /// The counter from which installed states take their seqnos (the library's, shared).
    seqno: SequenceNumberCounter,
    /// The last complete commit.
    applied_seq: AtomicU64,
    /// The highest watermark given to flush or compaction: older snapshots can no longer be read.
    watermark_seq: AtomicU64,
    /// Whether an [`Applier`] exists.
    applier_taken: AtomicBool,
    marks: Mutex<Marks>,
    /// One flush at a time.
    flushing: Mutex<()>,
    /// One compaction at a time, so that each step sees the state that the previous one left.
    compacting: Mutex<()>,
    /// A flush or a compaction failed, and the files it left are not removed yet.
    has_leftovers: AtomicBool,
    free_number: Mutex<FreeNumber>,
    /// Why flushes and compactions are refused; `None` if they are not.
    failed: Mutex<Option<String>>,
    /// After a failure the directory could not be read: nothing is installed before it was.
    is_unsure: AtomicBool,
    flushes: AtomicU64,
    damage: DamageNote,
    /// See [`lost`].
    lost: Vec<(u32, LostRange)>,
    /// One copy of the state is written at a time.
    copying: Mutex<()>,
    written: WrittenTables,
    mirror: Mirror,
    live: Live,
    warm: Warm,
    /// Charges of readers for unmerged runs.
    looks: Arc<Looks>,
    /// Counts of tombstones.
    tombstones: Tombstones,
    /// See [`OrderedIndex::set_merge_room`].
    merge_room_bytes: AtomicU64,
    /// The source of copies for the running merge.
    copy_slot: Arc<CopySlot>,
}

/// The first number that no state had when this one was the newest.
struct FreeNumber {
    /// The library's count of states.
    state: u64,
    seqno: SeqNo,
}

/// Marks in the order of their memtables.
#[derive(Default)]
struct Marks {
    persisted: Option<IndexMark>,
    /// Marks of sealed memtables, with the memtables.
    sealed: VecDeque<(IndexMark, Arc<Memtable>)>,
}

impl OrderedIndex {
    /// The newest entry of a key.
    ///
    /// # Errors
    /// `Corruption` or `Io` if a block cannot be read.
    pub fn get(&self, key: &[u8]) -> Result<Option<Entry>> {
        self.get_with_hash(key, key_hash(key))
    }

    /// The same, for a caller that has the key's hash.
    ///
    /// # Errors
    /// As for [`OrderedIndex::get`].
    pub fn get_with_hash(&self, key: &[u8], hash: u64) -> Result<Option<Entry>> {
        Ok(self.look_up(key, hash)?.0)
    }

    /// The same for a caller of the store: searches of runs without a result are charged
    /// ([`OrderedIndex::merge_for_readers`]).
    ///
    /// # Errors
    /// As for [`OrderedIndex::get`].
    pub fn get_for_caller(&self, key: &[u8], hash: u64) -> Result<Option<Entry>> {
        let (entry, looks) = self.look_up(key, hash)?;
        self.looks.pay_for_runs(looks);
        if entry.is_some() {
            self.warm.note(hash);
        }
        Ok(entry)
    }

    /// The same for a caller that must not wait for a device: what a memtable has, and what was
    /// found in tables not long ago. Then a block is read only if it is no longer cached.
    ///
    /// # Errors
    /// As for [`OrderedIndex::get`].
    pub fn get_in_ram(&self, key: &[u8], hash: u64) -> Result<RamAnswer<Entry>> {
        if self.lost_of(key).is_some() {
            return Ok(RamAnswer::Unknown);
        }
        let newest = self.live.find(key, hash);
        if matches!(newest, Newest::In(_)) && !self.warm.has(hash) {
            return Ok(RamAnswer::Unknown);
        }
        let (entry, looks) = self.entry_at(newest, key, hash)?;
        self.looks.pay_for_runs(looks);
        Ok(entry.map_or(RamAnswer::Absent, RamAnswer::Found))
    }

    /// The newest entry of a key, and the number of runs searched that a merge would have avoided.
    fn look_up(&self, key: &[u8], hash: u64) -> Result<(Option<Entry>, u64)> {
        match self.lost_of(key) {
            Some(range) => Ok((self.read_in_lost(range, key, hash)?, 0)),
            None => self.entry_at(self.live.find(key, hash), key, hash),
        }
    }

    fn entry_at(&self, newest: Newest, key: &[u8], hash: u64) -> Result<(Option<Entry>, u64)> {
        let found = match newest {
            Newest::Item(item) => FoundInTables::of(item),
            Newest::In(tables) => errors::guarded_read("reading the index", || tables.search(key, hash))
                .inspect_err(|error| self.note_damage(error))?,
        };
        let value = found.item.filter(|item| !item.is_tombstone()).map(|item| item.value);
        Ok((entry_of(key, value)?, spared(found.runs, found.has_deeper)))
    }

    /// The entry of a key as of commit `seq`.
    ///
    /// # Errors
    /// `Invalid` if a flush or compaction was given a watermark after `seq`; otherwise as for
    /// [`OrderedIndex::get`].
    pub fn get_at(&self, key: &[u8], seq: u64) -> Result<Option<Entry>> {
        self.check_readable(seq)?;
        match self.lost_of(key) {
            Some(range) => self.read_in_lost_at(range, key, read_seqno(seq)),
            None => self.read(key, read_seqno(seq)),
        }
    }

    fn read(&self, key: &[u8], seqno: SeqNo) -> Result<Option<Entry>> {
        let value = errors::guarded_read("reading the index", || self.tree.get(key, seqno))
            .inspect_err(|error| self.note_damage(error))?;
        entry_of(key, value)
    }

    /// Records damage for the next open, if `error` reports any.
    pub fn note_damage(&self, error: &Error) {
        self.damage.make(error);
    }

    /// Whether damage was found since the open, by a read or a merge.
    pub fn is_damaged(&self) -> bool {
        self.damage.is_made()
    }

    /// Bytes written of copies of the files that name the state, and of tables.
    pub fn copy_bytes(&self) -> u64 {
        self.written.state_copy_bytes.load(Ordering::Relaxed) + self.mirror.written_bytes()
    }

    /// Copies the files that name the state. Returns the bytes written.
    fn copy_state(&self) -> u64 {
        if !self.options.guards {
            return 0;
        }
        let _one = self.copying.lock();
        state_copy::update(&self.dir, |number| self.details(number)) as u64
    }

    /// The same, and counts them.
    fn copy_new_state(&self) {
        self.written
            .state_copy_bytes
            .fetch_add(self.copy_state(), Ordering::Relaxed);
    }

    /// Entries within bounds as of commit `seq`, in key order, from both ends. The scan keeps the
    /// state it reads: later watermarks do not affect it.
    ///
    /// # Errors
    /// `Invalid` as for [`OrderedIndex::get_at`].
    pub fn scan(&self, bounds: KeyBounds, seq: u64) -> Result<IndexScan> {
        self.check_readable(seq)?;
        let Some(bounds) = scan::clamp(bounds) else {
            return Ok(IndexScan::empty());
        };
        let gap = self.lost_within(&bounds);
        let inner = errors::guarded_read("scanning the index", || {
            Ok(self.tree.range::<Vec<u8>, _>(bounds, read_seqno(seq), None))
        })?;
        Ok(IndexScan::new(inner, gap))
    }

    /// The same for a caller of the store: searches of runs without a result are charged
    /// ([`OrderedIndex::merge_for_readers`]).
    ///
    /// # Errors
    /// As for [`OrderedIndex::scan`].
    pub fn scan_for_caller(&self, bounds: KeyBounds, seq: u64) -> Result<IndexScan> {
        Ok(self.scan(bounds, seq)?.paying(self.fare()))
    }

    fn check_readable(&self, seq: u64) -> Result<()> {
        let watermark = self.watermark_seq.load(Ordering::Acquire);
        if seq < watermark {
            return Err(Error::invalid(format!(
                "the index no longer holds the state of seq {seq}; the oldest it holds is {watermark}"
            )));
        }
        Ok(())
    }

    /// The last complete commit.
    pub fn applied_seq(&self) -> u64 {
        self.applied_seq.load(Ordering::Acquire)
    }

    /// The newest mark on flash.
    pub fn persisted_mark(&self) -> Option<IndexMark> {
        self.marks.lock().persisted.clone()
    }

    /// Memtables sealed and not yet flushed.
    pub fn sealed_count(&self) -> usize {
        self.marks.lock().sealed.len()
    }

    /// Runs in the first level: every lookup of an absent key checks these, and one run per further
    /// level.
    pub fn l0_runs(&self) -> usize {
        self.tree.l0_run_count()
    }

    /// Bytes of filters and block indexes held in RAM.
    pub fn pinned_bytes(&self) -> u64 {
        (self.tree.pinned_filter_size() + self.tree.pinned_block_index_size()) as u64
    }

    /// RAM the index takes.
    pub fn ram(&self) -> IndexRam {
        let of_memtable = |memtable: Arc<Memtable>| memtable.size() + memtable.len() as u64 * ITEM_OVERHEAD_BYTES;
        IndexRam {
            memtable_bytes: self.memtables(&self.marks.lock()).map(of_memtable).sum(),
            blocks_bytes: self.tree.tree_config().cache.size() + self.pinned_bytes(),
            filters_bytes: self.live.filter_bytes(),
        }
    }

    /// The memtables: the active one and those that are sealed.
    fn memtables<'a>(&self, marks: &'a Marks) -> impl Iterator<Item = Arc<Memtable>> + 'a {
        let sealed = marks.sealed.iter().map(|(_, memtable)| Arc::clone(memtable));
        sealed.chain([self.tree.active_memtable()])
    }

    /// Statistics of the index.
    pub fn stats(&self) -> IndexStats {
        let metrics = self.tree.metrics();
        let marks = self.marks.lock();
        let state = self.tree.current_version();
        IndexStats {
            tables: self.tree.table_count() as u64,
            levels: state.iter_levels().filter(|level| !level.is_empty()).count() as u64,
            runs: state.iter_levels().map(|level| level.run_count() as u64).sum(),
            pinned_bytes: self.pinned_bytes(),
            bytes: self.tree.disk_space(),
            mirror_bytes: self.mirror_bytes(),
            memtable_bytes: self.memtables(&marks).map(|memtable| memtable.size()).sum(),
            persisted_seq: marks.persisted.as_ref().map_or(0, |mark| mark.applied_seq),
            tombstones: self.tombstones(),
            flushes: self.flushes.load(Ordering::Relaxed),
            flushed_bytes: self.written.flushed_bytes.load(Ordering::Relaxed),
            compactions: self.written.compactions.load(Ordering::Relaxed),
            compacted_bytes: self.written.compacted_bytes.load(Ordering::Relaxed),
            // Two counters that other threads raise meanwhile: their difference may be off by a
            // few, but is never below zero.
            block_reads: metrics
                .data_block_load_count()
                .saturating_sub(metrics.data_block_load_cached_count()) as u64,
        }
    }
}

/// The library's value of a key, as an entry.
fn entry_of(key: &[u8], value: Option<UserValue>) -> Result<Option<Entry>> {
    value
        .map(|bytes| Entry::decode(&bytes).ok_or_else(|| scan::undecodable(key)))
        .transpose()
}

/// Seqno of the items of commit `seq`.
const fn item_seqno(seq: u64) -> SeqNo {
    seq << UPGRADE_BITS
}

/// Seqno for reads as of commit `seq`, and watermark for dropping old versions: the library returns
/// items strictly below it, and uses and keeps the states below it. It is the seqno of the next
/// commit, so states installed since `seq` are included.
const fn read_seqno(seq: u64) -> SeqNo {
    item_seqno(seq + 1)
}
