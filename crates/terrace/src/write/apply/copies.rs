//! Copies of short values into their entries, charged to scans.
//!
//! A copy is derived: the record in the log is the home, and a write of the entry may leave the
//! copy out. It is inserted at the end of a batch, with the seq of its last commit, if the entry is
//! the key's present one (docs/durability.md, section 4).
//!
//! Invariant: the inserted item is the key's entry unchanged, with the value in addition.
//!
//! On failure: the entry stays without a copy, and scans are charged again.

use super::{Applier, TOUCHED_TOGETHER, flash};
use crate::{
    Version,
    log::move_queue::Moving,
    mutation::{Mutation, active},
    ordered_index::{Entry, Home},
    scan_order::{Copied, index_bytes},
};

impl Applier {
    /// Makes the copies that wait, in the commit `seq` that is the last of this turn: all its
    /// records are applied. So no reader reads at it yet, and an open scan meets no new item.
    pub(super) fn copy_step(&mut self, seq: u64) {
        let Some(values) = self.engine.scan_order.copies.take() else {
            return;
        };
        let mut copied = Copied::default();
        let mut values = values.into_iter();
        while let Some(first) = values
            .as_slice()
            .get(..TOUCHED_TOGETHER.min(values.len()))
            .filter(|next| !next.is_empty())
        {
            self.engine.hash_index.touch(first.iter().map(|value| value.hash));
            for value in values.by_ref().take(TOUCHED_TOGETHER) {
                let (key, hash) = (value.key.clone(), value.hash);
                if let Some(entry) = self.entry_with_copy(value)
                    && self.index.insert_copy(&key, hash, &entry, seq)
                {
                    copied.values += 1;
                    copied.index_bytes += index_bytes(key.len(), entry.length);
                }
            }
        }
        self.engine.scan_order.copies.finish(copied);
    }

    /// The key's present entry with this value as its copy, if the value is that of the entry and
    /// there is no copy yet.
    ///
    /// If the hash index leads to the record from which the value was read, that record is the
    /// present one, and no other lookup is needed. A place is given to another record only with
    /// another generation of its segment. In this case the entry may have a copy already; it gets
    /// the same one.
    fn entry_with_copy(&self, value: Moving) -> Option<Entry> {
        let address = value.place.and_then(|(address, generation)| {
            let is_present = self.engine.hash_index.recency(value.hash, address).is_some()
                && self.engine.log.segments.place(address.bytes())?.0 == generation;
            (is_present || active(Mutation::CopyOfPresent)).then_some(address)
        });
        let home = match address {
            Some(address) => flash(address),
            None => {
                let entry = self.current_entry(value.hash, &value.key)?;
                let is_present = entry.version.0 == value.version || active(Mutation::CopyOfPresent);
                let wants_copy = matches!(entry.home, Home::Flash { .. }) && entry.copy.is_none();
                (is_present && wants_copy).then_some(entry.home)?
            }
        };
        Some(Entry {
            version: Version(value.version),
            length: value.value.len() as u64,
            checksum: value.checksum,
            home,
            attributes: value.attributes,
            copy: Some(value.value),
        })
    }
}
