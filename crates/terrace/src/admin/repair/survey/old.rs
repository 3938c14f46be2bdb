//! What the old index adds to the survey: tiny values whose segments were reclaimed, deletes, and
//! the versions of damaged values.
//!
//! An index that can be read to its end gives the state of every key as of its mark. In a damaged
//! one, each known key is looked up separately; a key that cannot be read stays unknown.

use super::{LOST_SEQS, OldIndex, Place, SEQ_LIMIT, Survey};
use crate::{
    Result,
    admin::repair::notes::Notes,
    engine::mark::MarkPayload,
    ordered_index::{Entry, Home},
};
use std::ops::Bound;

impl Survey {
    /// Adds the contents of the old index: values that live in it alone, versions whose records are
    /// reclaimed or damaged, and, if it can be read to its end, deletes: the keys that it does not
    /// have.
    pub fn add_old_index(&mut self, old: &OldIndex, notes: &mut Notes) {
        let walked = for_each_entry(old, |key, entry| {
            if let Some(known) = self.keys.get_mut(key) {
                known.is_indexed = true;
            }
            self.offer_outside(key, entry.version.0, Place::OldIndex);
            Ok(())
        });
        match walked {
            Ok(()) => {
                let seq = old.applied_seq();
                self.seen(seq);
                self.indexed_seq = Some(seq);
                self.take_out_absent(seq);
            }
            Err(error) => {
                notes.add(format!(
                    "the old index could be read in part only ({error}); tiny values that lived in the rest alone are lost"
                ));
                self.seen(old.applied_seq());
                self.ask_old_index(old);
            }
        }
    }

    /// Looks up in a partly readable index only keys that another source has.
    fn ask_old_index(&mut self, old: &OldIndex) {
        let mut keys = old.keys_in_sound_parts();
        keys.extend(self.keys.keys().map(|key| key.to_vec()));
        let seq = old.applied_seq();
        for key in keys {
            match old.get(&key) {
                Ok(Some(entry)) if is_sound(&entry) => self.offer_outside(&key, entry.version.0, Place::OldIndex),
                Ok(None) => {
                    let covered = &self.covered;
                    if let Some(known) = self.keys.get_mut(&key[..])
                        && known.version <= seq
                        && !covered.contains(known.version, seq)
                    {
                        known.place = Place::Deleted;
                    }
                }
                // Not known.
                Ok(Some(_)) | Err(_) => {}
            }
        }
    }

    /// The old index has persisted every commit up to `seq`: a log that ends before has lost its
    /// end.
    pub fn compare_end(&mut self, seq: u64, notes: &mut Notes) {
        self.seen(seq);
        // So far beyond is where a repair began that took the log's end for lost.
        if seq <= self.last_seq || self.log_is_damaged || seq - self.last_seq >= LOST_SEQS {
            return;
        }
        let note = format!(
            "the log ends with commit {}, and the index has commit {seq}: a segment at its end is missing",
            self.last_seq
        );
        self.damage(notes, note);
    }

    /// Takes out what the old index would have as of `seq`, were it not deleted by a commit that
    /// the log does not have.
    fn take_out_absent(&mut self, seq: u64) {
        let covered = &self.covered;
        for known in self.keys.values_mut() {
            if !known.is_indexed && known.version <= seq && !covered.contains(known.version, seq) {
                known.place = Place::Deleted;
            }
        }
        // A value of unknown version that was committed is a later version of its key: one that the
        // index or the log has.
        if covered.contains(seq + 1, self.last_seq) && !self.log_is_damaged {
            self.orphans.clear();
        }
    }

    /// Whether log and old index together contain every commit.
    pub(super) fn all_is_known(&self) -> bool {
        let indexed = |seq: u64| !self.log_is_damaged && self.covered.contains(seq + 1, self.last_seq);
        self.log_is_complete() || self.indexed_seq.is_some_and(indexed)
    }

    /// Adds the range deletions that the old index's mark lists: their records may be recycled.
    pub fn add_old_ranges(&mut self, old: &OldIndex) {
        let payload = old.persisted_mark().and_then(|mark| MarkPayload::decode(&mark.payload));
        let ranges = payload.map_or_else(Vec::new, |payload| payload.ranges);
        for range in ranges.into_iter().filter(|range| range.seq < SEQ_LIMIT) {
            self.seen(range.seq);
            self.ranges.push(range);
        }
    }
}

/// Walks the entries of an index but for inline values that are not what their checksum says.
fn for_each_entry(index: &OldIndex, mut visit: impl FnMut(&[u8], &Entry) -> Result<()>) -> Result<()> {
    for item in index.scan((Bound::Unbounded, Bound::Unbounded), index.applied_seq())? {
        let (key, entry) = item?;
        if is_sound(&entry) {
            visit(&key, &entry)?;
        }
    }
    Ok(())
}

/// Whether an entry can be believed: a version that can be, and of an inline value what its
/// checksum says.
fn is_sound(entry: &Entry) -> bool {
    let is_whole = !matches!(&entry.home, Home::Inline(value) if crc32c::crc32c(value) != entry.checksum);
    is_whole && entry.version.0 < SEQ_LIMIT
}
