//! Background work: flushes of sealed memtables, compactions of tables.
//!
//! Invariants: one flush and one compaction at a time (they may overlap each other). The tree
//! outlives both calls, so the library never sees its stop signal during a compaction, which would
//! make it install half a result.
//!
//! On failure: nothing was installed, and the call can be repeated, unless the directory names
//! another state than the one in memory (a failure after the rename) or the library panicked: then
//! every later call fails with `Failed`.

use super::{
    FreeNumber, IndexMark, OrderedIndex, UPGRADE_BITS, errors, item_seqno, live::Tables, open::CURRENT_FILE, read_seqno,
};
use crate::{Error, Result};
use lsm_tree::{
    AbstractTree as _, SeqNo,
    compaction::{CompactionStrategy, MoveDown, PullDown},
};
use std::{
    fs,
    sync::{Arc, atomic::Ordering},
};

/// What the library merges.
pub(super) enum Choice {
    /// Chosen by this strategy.
    By(Arc<dyn CompactionStrategy>),
    /// All tables, into tables of this length in the last level.
    All {
        /// Length of the tables.
        table_bytes: u64,
    },
}

impl Choice {
    pub fn by(strategy: impl CompactionStrategy + 'static) -> Self {
        Self::By(Arc::new(strategy))
    }
}

/// States left unused between two commits, for operations already running.
const UPGRADES_RESERVED: u64 = 256;
/// Copies wait while more memtables than this are sealed, or while merges are behind by more runs
/// than this: long before the applier waits for either.
const SEALED_BESIDE_COPIES_MAX: usize = 1;
const RUNS_BEHIND_COPIES_MAX: usize = 2;

impl OrderedIndex {
    /// Writes the sealed memtables to flash. When this returns, everything up to the returned
    /// mark's seq is durable; `None` if no memtable is sealed. The caller must have made the log
    /// durable up to the newest sealed mark.
    ///
    /// `watermark_seq` is at most the oldest snapshot that will still be read, and at most the last
    /// complete commit; older snapshots cannot be read afterwards.
    ///
    /// # Errors
    /// `OutOfSpace`, `Io`: the memtables are kept; try again. `Failed`: open the index again.
    pub fn flush_sealed(&self, watermark_seq: u64) -> Result<Option<IndexMark>> {
        let _one = self.flushing.lock();
        self.check_usable()?;
        if self.upgrades_left() == 0 {
            return Err(Error::Unavailable(
                "the index awaits another commit before it flushes again",
            ));
        }
        let watermark = self.raise_watermark(watermark_seq);
        let flushed = errors::guarded_write("flushing the index", || {
            let lock = self.tree.get_flush_lock();
            self.tree.flush(&lock, watermark)
        });
        let flushed = self.noting_failure(flushed);
        if flushed.is_err() {
            // Set before the other lock is tried: a running compaction checks it after releasing
            // that lock.
            self.has_leftovers.store(true, Ordering::Release);
            if let Some(_alone) = self.compacting.try_lock() {
                self.remove_leftovers();
            }
        }
        if flushed?.is_none() {
            return Ok(None);
        }
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.copy_new_state();
        self.written.look(&self.tree);
        // Sealing holds the same lock, so both lists agree here: memtables that the library no
        // longer has as sealed are on flash.
        let mut marks = self.marks.lock();
        let sealed_now = self.tree.sealed_memtable_count();
        let flushed = marks.sealed.len().saturating_sub(sealed_now);
        let last = marks.sealed.drain(..flushed).next_back();
        if let Some((mark, _)) = last {
            marks.persisted = Some(mark);
        }
        let replaced = self.live.installed(flushed, Tables::of(&self.tree));
        let persisted = marks.persisted.clone();
        // The applier waits for the marks.
        drop(marks);
        replaced.leave();
        Ok(persisted)
    }

    /// One step of levelled compaction. `false` if there was nothing to do. For `watermark_seq` see
    /// [`OrderedIndex::flush_sealed`].
    ///
    /// # Errors
    /// `OutOfSpace`, `Io`: the tables are unchanged; try again later. `Corruption`: a table is
    /// damaged.
    pub fn compact(&self, watermark_seq: u64) -> Result<bool> {
        self.compact_by(watermark_seq, || {
            let above_gap = self.level_above_gap();
            Some(above_gap.map_or_else(
                || Choice::by(self.shape().strategy()),
                |level| Choice::by(MoveDown(level, level + 1)),
            ))
        })
    }

    /// A level below the first that has tables while the next one has none: a merge for tombstones
    /// took the tables in between. The library expects levels without gaps (its debug build panics
    /// when such a level is full); moving it down writes only a state.
    fn level_above_gap(&self) -> Option<u8> {
        let state = self.tree.current_version();
        let is_empty: Vec<bool> = state.iter_levels().map(|level| level.is_empty()).collect();
        let above = (1..is_empty.len().saturating_sub(1)).find(|level| !is_empty[*level] && is_empty[*level + 1]);
        // Of seven.
        above.map(|level| level as u8)
    }

    /// Merges the runs of the first level into the next if reads were charged for it (see
    /// [`super::read_triggered`]), although there are fewer than [`OrderedIndex::compact`]
    /// requires. `false` if not. To be called when `compact` had nothing to do.
    ///
    /// # Errors
    /// As for [`OrderedIndex::compact`].
    pub fn merge_for_readers(&self, watermark_seq: u64) -> Result<bool> {
        self.compact_by(watermark_seq, || {
            let merge = self.merge_of_runs();
            let merge = merge.filter(|merge| self.is_paid(*merge) && self.has_room_to_merge(merge.bytes))?;
            // Before the merge: if it fails, it is not tried again before new charges suffice.
            self.looks.spend_on_runs();
            Some(Choice::by(PullDown(0, merge.into)))
        })
    }

    /// Forgets states that no reader can need any more, which removes the files of merged tables. A
    /// flush or a compaction does so with the watermark from its beginning; if commits or snapshots
    /// advanced meanwhile, the replaced state is left until the next one. On a full device there is
    /// no next one, and no room while the files exist.
    ///
    /// Nothing is removed from a failed index: the state that its directory names is unknown then.
    ///
    /// # Errors
    /// `Io`: a file cannot be removed. Nothing is lost; try again later.
    pub fn forget_states(&self, watermark_seq: u64) -> Result<()> {
        if self.tree.version_free_list_len() == 0 || self.check_usable().is_err() {
            return Ok(());
        }
        let watermark = self.raise_watermark(watermark_seq);
        errors::guarded_write("removing old states of the index", || {
            self.tree.get_version_history_lock().maintenance(&self.dir, watermark)
        })
    }

    pub(super) fn compact_by(&self, watermark_seq: u64, choose: impl FnOnce() -> Option<Choice>) -> Result<bool> {
        let compacted = self.compact_once(watermark_seq, choose);
        if compacted.is_err() {
            self.has_leftovers.store(true, Ordering::Release);
        }
        if self.has_leftovers.load(Ordering::Acquire) {
            // Attempts that overlap each other, for as long as the device is full, must not fill it
            // with leftover files.
            let _no_flush = self.flushing.lock();
            let _no_compaction = self.compacting.lock();
            self.remove_leftovers();
        }
        compacted
    }

    fn compact_once(&self, watermark_seq: u64, choose: impl FnOnce() -> Option<Choice>) -> Result<bool> {
        let _one = self.compacting.lock();
        self.check_usable()?;
        if self.upgrades_left() == 0 {
            return Ok(false);
        }
        // With the lock held: until the merge is done only a flush can change the state, and that
        // only adds a run, which is newer.
        let Some(choice) = choose() else { return Ok(false) };
        let watermark = self.raise_watermark(watermark_seq);
        self.written.look(&self.tree);
        let (before, runs) = (self.tree.current_version().id(), self.l0_runs());
        let compacted = errors::guarded_read("compacting the index", || match choice {
            Choice::By(strategy) => self.tree.compact(strategy, watermark),
            Choice::All { table_bytes } => self.tree.major_compact(table_bytes, watermark),
        });
        self.copy_slot.clear();
        // Also after an error: tables that the state no longer has may be removed now.
        self.live.installed(0, Tables::of(&self.tree)).leave();
        self.noting_failure(compacted)?;
        // A flush in between also counts as a change; the next step then finds nothing to do.
        let changed = self.tree.current_version().id() != before;
        if changed {
            self.written.look(&self.tree);
            self.copy_new_state();
            if self.l0_runs() < runs {
                self.looks.spend_on_runs();
            }
        }
        Ok(changed)
    }

    /// Removes files left by failed attempts, and gives their numbers back. The caller holds the
    /// locks of flushes and of compactions.
    fn remove_leftovers(&self) {
        if self.check_usable().is_ok() {
            self.has_leftovers.store(false, Ordering::Release);
            self.written.remove_leftovers(&self.tree);
            self.give_numbers_back();
        }
    }

    /// Makes numbers free that were taken since the newest state was first seen here, since no
    /// state has them. On a full device installs fail for hours in which no commit comes.
    fn give_numbers_back(&self) {
        let state = self.tree.current_version().id();
        let mut free = self.free_number.lock();
        if free.state == state {
            self.seqno.set(free.seqno.max(item_seqno(self.applied_seq())));
        } else {
            let seqno = self.seqno.get();
            *free = FreeNumber { state, seqno };
        }
    }

    fn raise_watermark(&self, watermark_seq: u64) -> SeqNo {
        let seq = watermark_seq.min(self.applied_seq());
        self.watermark_seq.fetch_max(seq, Ordering::AcqRel);
        read_seqno(seq)
    }

    /// States that may still be installed before the next commit (see the argument in the module's
    /// header). Each commit resets the low bits of the counter, and each state increments them.
    fn upgrades_left(&self) -> u64 {
        let used = self.seqno.get() & ((1 << UPGRADE_BITS) - 1);
        ((1 << UPGRADE_BITS) - UPGRADES_RESERVED).saturating_sub(used)
    }

    /// Whether flushes and merges keep up, so that copies ([`super::Applier::insert_copy`]) do not
    /// delay writers.
    pub fn keeps_up(&self) -> bool {
        self.sealed_count() <= SEALED_BESIDE_COPIES_MAX && self.runs_behind() <= RUNS_BEHIND_COPIES_MAX
    }

    /// Whether the index can still be written.
    pub fn is_usable(&self) -> bool {
        self.check_usable().is_ok()
    }

    pub(super) fn check_usable(&self) -> Result<()> {
        if self.is_unsure.load(Ordering::Acquire) {
            self.compare_with_directory("a failure")?;
        }
        match &*self.failed.lock() {
            Some(reason) => Err(Error::Failed(reason.clone())),
            None => Ok(()),
        }
    }

    /// Passes on a result; after a failure, checks that memory and directory still agree.
    pub(super) fn noting_failure<T>(&self, result: Result<T>) -> Result<T> {
        let Err(error) = result else {
            return result;
        };
        self.note_damage(&error);
        let _ = self.compare_with_directory(&error.to_string());
        Err(error)
    }

    /// After a failure: flushes and compactions are refused from now on if the directory does not
    /// name the state in memory.
    ///
    /// # Errors
    /// `Unavailable` if that cannot be known now; [`OrderedIndex::check_usable`] tries again.
    fn compare_with_directory(&self, failure: &str) -> Result<()> {
        let agree = self.directory_names_present_state();
        self.is_unsure.store(agree.is_err(), Ordering::Release);
        if !agree? {
            *self.failed.lock() = Some(format!("the index's state on flash is unknown after: {failure}"));
        }
        Ok(())
    }

    /// Whether the directory names the state in memory. A flush and a merge may run side by side,
    /// so the other one may install a state meanwhile. It has the lock of the states until it has,
    /// and numbers only rise: if the number is the same before and after, nothing was installed.
    fn directory_names_present_state(&self) -> Result<bool> {
        let present = || errors::guarded_read("comparing states", || Ok(self.tree.current_version().id()));
        loop {
            let Ok(before) = present() else { return Ok(false) };
            let named = match fs::read(self.dir.join(CURRENT_FILE)) {
                Ok(bytes) => bytes.first_chunk().map(|number| u64::from_le_bytes(*number)),
                Err(error) if errors::lacks_descriptor(&error) => return Err(errors::NO_DESCRIPTOR),
                Err(_) => None,
            };
            match present() {
                Ok(after) if after == before => return Ok(named == Some(before)),
                Ok(_) => {}
                Err(_) => return Ok(false),
            }
        }
    }
}
