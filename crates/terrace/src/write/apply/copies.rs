//! Copies of short values into their entries, for scans that have paid for them.
//!
//! A copy is derived: the record in the log is the home, and whoever writes the entry may leave the
//! copy out. So it takes no commit. It is inserted as of what is applied, a few at a time between
//! frames, where the entry is the key's present one (docs/durability.md, section 4).
//!
//! Invariant: what is inserted is the key's entry as it is, and its value beside it.
//!
//! On failure: the entry stays without a copy, and scans pay again.

use super::{Applier, ROOM_LOOK, TOUCHED_TOGETHER};
use crate::{
    Version,
    log::move_queue::Moving,
    mutation::{Mutation, active},
    ordered_index::{Entry, Home},
    scan_order::{Copied, index_bytes},
};
use std::time::Duration;

/// Copies between two looks for frames: what waits for the applier waits a millisecond longer.
const COPIED_TOGETHER: usize = 1024;

/// A list of values that is being copied.
pub(super) struct Copying {
    values: std::vec::IntoIter<Moving>,
    copied: Copied,
}

impl Applier {
    /// Makes the next copies, if any are wanted: as fast as flushes and merges keep up.
    pub(super) fn copy_step(&mut self) {
        let taken = || {
            let values = self.engine.scan_order.copies.take()?.into_iter();
            Some(Copying {
                values,
                copied: Copied::default(),
            })
        };
        let Some(mut copying) = self.copying.take().or_else(taken) else {
            return;
        };
        if self.index.is_full() || !self.engine.index.keeps_up() {
            if self.may_copy() {
                self.copying = Some(copying);
                return;
            }
            copying.values = Vec::new().into_iter();
        }
        for number in 0..copying.values.len().min(COPIED_TOGETHER) {
            if number % TOUCHED_TOGETHER == 0 {
                let next = copying.values.as_slice().iter().take(TOUCHED_TOGETHER);
                self.engine.hash_index.touch(next.map(|value| value.hash));
            }
            let Some(value) = copying.values.next() else { break };
            let (key, hash) = (value.key.clone(), value.hash);
            if let Some(entry) = self.entry_with_copy(value)
                && self.index.insert_copy(&key, hash, &entry)
            {
                copying.copied.values += 1;
                copying.copied.index_bytes += index_bytes(key.len(), entry.length);
            }
        }
        if copying.values.len() == 0 {
            self.engine.scan_order.copies.finish(copying.copied);
        } else {
            self.copying = Some(copying);
        }
    }

    /// How long to wait for frames before the next copies: not at all, but for room in the index.
    pub(super) fn wait_beside_copies(&self) -> Option<Duration> {
        self.copying.as_ref()?;
        let is_room = !self.index.is_full() && self.engine.index.keeps_up();
        Some(if is_room { Duration::ZERO } else { ROOM_LOOK })
    }

    /// Whether there will be room for copies.
    fn may_copy(&self) -> bool {
        let log = &self.engine.log;
        self.engine.index.takes_copies()
            && log.index_full.reason().is_none()
            && log.writer.failure().is_none()
            && !log.is_closing()
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
            Some(address) => Home::Flash {
                address: address.bytes(),
            },
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
