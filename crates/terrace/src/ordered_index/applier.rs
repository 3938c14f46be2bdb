//! The one writer of the ordered index.
//!
//! Invariants: there is one [`Applier`] at a time. It holds the active memtable, which only it
//! replaces, and so inserts without any lock. Commits complete in seq order, one or many at a time;
//! between two completions entries may come in any order (in key order they are inserted up to
//! twice as fast). A memtable is sealed only when no commit is begun, with a mark that says exactly
//! what is in it.
//!
//! On failure: inserts cannot fail (memory only). A commit out of order is a bug that would corrupt
//! the index, and panics before anything is changed.

use super::{Entry, IndexMark, OrderedIndex, VERSION_LIMIT, errors, item_seqno, mark::MARK_KEY};
use crate::{Error, Result, hash_index::key_filter::KeyFilter, key_hash};
use lsm_tree::{AbstractTree as _, InternalValue, Memtable, SeqNo, ValueType};
use std::sync::{Arc, atomic::Ordering};

/// Inserts commits into the index, one after the other.
pub struct Applier {
    index: Arc<OrderedIndex>,
    memtable: Arc<Memtable>,
    /// Filter of its keys.
    filter: Arc<KeyFilter>,
    /// The last complete commit: a copy of the index's.
    applied_seq: u64,
    /// The last commit begun.
    begun_seq: u64,
    scratch: Vec<u8>,
}

impl OrderedIndex {
    /// The writer. Dropping it releases the exclusive right to write.
    ///
    /// # Errors
    /// `Unavailable` while another one exists.
    pub fn applier(self: &Arc<Self>) -> Result<Applier> {
        if self.applier_taken.swap(true, Ordering::AcqRel) {
            return Err(Error::Unavailable("the index already has an applier"));
        }
        let applied_seq = self.applied_seq();
        Ok(Applier {
            index: Arc::clone(self),
            memtable: self.tree.active_memtable(),
            filter: self.live.newest(),
            applied_seq,
            begun_seq: applied_seq,
            scratch: Vec::with_capacity(64),
        })
    }
}

impl Applier {
    /// Inserts or replaces an entry in commit `seq`. Until [`Applier::applied`] commits and keys
    /// may come in any order.
    ///
    /// # Panics
    /// If `seq` is not after the last complete commit, or the key is not one.
    pub fn insert(&mut self, key: &[u8], entry: &Entry, seq: u64) {
        self.insert_with_hash(key, key_hash(key), entry, seq);
    }

    /// The same, for a caller that has the key's hash.
    ///
    /// # Panics
    /// As for [`Applier::insert`].
    pub fn insert_with_hash(&mut self, key: &[u8], hash: u64, entry: &Entry, seq: u64) {
        self.enter(key, hash, seq);
        entry.encode_into(&mut self.scratch);
        self.memtable.insert(InternalValue::from_components(
            key,
            self.scratch.as_slice(),
            item_seqno(seq),
            ValueType::Value,
        ));
    }

    /// Inserts a key's present entry once more in commit `seq`, with a copy of its value. `false`,
    /// and nothing done, if that commit has written the key itself.
    ///
    /// # Panics
    /// As for [`Applier::insert`].
    pub fn insert_copy(&mut self, key: &[u8], hash: u64, entry: &Entry, seq: u64) -> bool {
        let is_taken = |item: InternalValue| item.key.seqno >= item_seqno(seq);
        if self.filter.may_contain(hash) && self.memtable.get(key, SeqNo::MAX).is_some_and(is_taken) {
            return false;
        }
        self.insert_with_hash(key, hash, entry, seq);
        true
    }

    /// Removes an entry in commit `seq`, whether or not it is there.
    ///
    /// # Panics
    /// As for [`Applier::insert`].
    pub fn remove_with_hash(&mut self, key: &[u8], hash: u64, seq: u64) {
        self.enter(key, hash, seq);
        self.index.tombstones.added();
        self.memtable.insert(InternalValue::new_tombstone(key, item_seqno(seq)));
    }

    fn enter(&mut self, key: &[u8], hash: u64, seq: u64) {
        assert!(
            !key.is_empty() && key.len() < MARK_KEY.len(),
            "a key of {} bytes is no object's",
            key.len()
        );
        assert!(
            seq > self.applied_seq && seq < VERSION_LIMIT,
            "commit {seq} is applied after {}",
            self.applied_seq
        );
        self.begun_seq = self.begun_seq.max(seq);
        // Before the item is there, whatever it is: a removal hides what tables have.
        self.filter.insert(hash);
    }

    /// Commit `seq`, and with it every one before, is complete: snapshots at `seq` may be read from
    /// now on.
    ///
    /// # Panics
    /// If a later commit was begun or completed.
    pub fn applied(&mut self, seq: u64) {
        assert!(
            seq >= self.begun_seq && seq < VERSION_LIMIT,
            "commit {seq} completes after {}",
            self.begun_seq
        );
        self.applied_seq = seq;
        self.begun_seq = seq;
        let _none_is_given_back = self.index.free_number.lock();
        self.index.seqno.fetch_max(item_seqno(seq));
        self.index.applied_seq.store(seq, Ordering::Release);
    }

    /// The last complete commit.
    pub const fn applied_seq(&self) -> u64 {
        self.applied_seq
    }

    /// Bytes of the active memtable.
    pub fn memtable_bytes(&self) -> u64 {
        self.memtable.size()
    }

    /// Whether the active memtable should be sealed.
    pub fn is_full(&self) -> bool {
        self.memtable_bytes() >= self.index.options.memtable_bytes
    }

    /// Seals the active memtable with its mark, ready to be flushed. `false`, and nothing done, if
    /// the newest mark already has this seq: nothing was committed since.
    ///
    /// # Errors
    /// `Invalid` if the mark's seq is not the last complete commit's, or a commit is begun.
    /// `Corruption` if the library gave up earlier.
    pub fn rotate(&mut self, mark: IndexMark) -> Result<bool> {
        if mark.applied_seq != self.applied_seq || self.begun_seq != self.applied_seq {
            return Err(Error::invalid(format!(
                "a mark for seq {} while seq {} is applied and {} begun",
                mark.applied_seq, self.applied_seq, self.begun_seq
            )));
        }
        let mut marks = self.index.marks.lock();
        let newest = marks.sealed.back().map(|(mark, _)| mark).or(marks.persisted.as_ref());
        if newest.map_or(0, |newest| newest.applied_seq) == mark.applied_seq {
            return Ok(false);
        }
        self.memtable.insert(InternalValue::from_components(
            MARK_KEY.as_slice(),
            mark.encode(),
            item_seqno(mark.applied_seq),
            ValueType::Value,
        ));
        let sealed = errors::guarded_write("sealing a memtable", || Ok(self.index.tree.rotate_memtable()))?;
        if let Some(memtable) = sealed {
            marks.sealed.push_back((mark, memtable));
            self.memtable = self.index.tree.active_memtable();
            self.filter = self.index.live.begin(Arc::clone(&self.memtable));
            self.index.tombstones.sealed();
        }
        Ok(true)
    }
}

impl Drop for Applier {
    fn drop(&mut self) {
        self.index.applier_taken.store(false, Ordering::Release);
    }
}
