//! Copies of short values into their entries, for scans that have paid for them.
//!
//! A copy is derived: the record in the log is the home, and a write of the entry may leave the
//! copy out. It is inserted at the end of a turn, with the seq of the last commit of it, where the
//! entry is the key's present one (docs/durability.md, section 4).
//!
//! Invariant: what is inserted is the key's entry as it is, and its value beside it.
//!
//! On failure: the entry stays without a copy, and scans pay again.

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

    /// The key's present entry with this value beside it, if the value is that of the entry and
    /// there is no copy yet.
    ///
    /// Where the hash index leads to the very record that the value was read from, it is the
    /// present one, and nothing else has to be asked. A place is given to another record only with
    /// another generation of its segment. Then it may have a copy already; it gets the same.
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
