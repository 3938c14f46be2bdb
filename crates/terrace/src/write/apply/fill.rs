//! Fills the hash index and the filter of keys elsewhere after an open: from the checkpoint if
//! there is a valid one, else by a walk over the ordered index; a little at a time, between frames.
//!
//! Invariants:
//! - A walk inserts the present entries of the ordered index, so no slot is ever older than the
//!   applied state.
//! - While a checkpoint is loaded the table is as of the open, and hidden. Changes applied
//!   meanwhile are recorded, in order, and executed on the table before it is shown.
//! - Until either is complete, the ordered index tells what a commit replaces.
//!
//! On failure: an invalid checkpoint is rejected in favour of a walk; a walk that meets damage
//! ends, and lookups use the ordered index permanently.

use super::{Applier, load::Loader};
use crate::{
    FilledFrom, HomeKind, Result,
    hash_index::{Found, HashIndex, key_filter::KeyFilter},
    key_hash,
    log::{address::Address, format::record_bytes_max},
    ordered_index::Home,
};
use std::{
    ops::Bound,
    sync::{Arc, atomic::Ordering},
};

/// Entries walked between two looks at the queue.
const WALK_STEP: usize = 2_000;
/// At this many noted changes, no frame is applied until the checkpoint is loaded.
const NOTED_MAX: usize = 1 << 20;
/// The filter is built anew when it holds this many times the keys that can be in it,
const STALE_FILTER_FACTOR: u64 = 4;
/// where one key may be in it that has lost its slot for so many that have one: deletions of half
/// as many objects as there are cost a walk over all of them.
const FLASH_OBJECTS_PER_SLOT_TAKEN_OUT: u64 = 8;

/// How the hash index and the filter are being filled.
pub(super) enum Filling {
    /// From the checkpoint.
    Load(Box<Loading>),
    /// From the ordered index.
    Walk(Walk),
}

pub(super) struct Loading {
    loader: Loader,
    noted: Vec<Noted>,
}

/// What the applier would have done to table and filter: where the record of a key with this hash
/// is, and its length; `None` if it is not in the log any more.
type Noted = (u64, Option<(Address, u64)>);

pub(super) struct Walk {
    after: Bound<Vec<u8>>,
    /// The ordered index is damaged after this position: lookups use it permanently.
    given_up: bool,
}

impl Walk {
    const fn from_the_start() -> Self {
        Self {
            after: Bound::Unbounded,
            given_up: false,
        }
    }
}

impl Filling {
    /// From a checkpoint if there is one to load.
    pub(super) fn begin(loader: Option<Loader>) -> Self {
        match loader {
            Some(loader) => Self::Load(Box::new(Loading {
                loader,
                noted: Vec::new(),
            })),
            None => Self::Walk(Walk::from_the_start()),
        }
    }

    /// Whether there is something left to do.
    pub(super) const fn goes_on(&self) -> bool {
        !matches!(self, Self::Walk(walk) if walk.given_up)
    }

    /// Whether it must get on before more frames are applied.
    pub(super) fn holds_up_frames(&self) -> bool {
        matches!(self, Self::Load(loading) if loading.noted.len() >= NOTED_MAX)
    }
}

impl Applier {
    /// Points the slot of the key to its record. Returns its former value, if known.
    pub(super) fn set_slot(&mut self, hash: u64, address: Address, record_bytes: u64) -> Option<Found> {
        if let Some(Filling::Load(loading)) = &mut self.filling {
            loading.noted.push((hash, Some((address, record_bytes))));
            return None;
        }
        self.engine.hash_index.insert(hash, address, record_bytes)
    }

    /// Removes the key's slot from the hash index, and returns it if it is known. Another key of
    /// the class may have lost its slot to this one, so the class is added to the filter before the
    /// slot is removed.
    pub(super) fn remove_slot(&mut self, hash: u64) -> Option<Found> {
        if let Some(Filling::Load(loading)) = &mut self.filling {
            loading.noted.push((hash, None));
            return None;
        }
        let index = &self.engine.hash_index;
        if index.peek(hash).is_some() {
            self.elsewhere.insert(index.class_hash(hash));
        }
        index.remove(hash)
    }

    /// The key is elsewhere from now on.
    pub(super) fn add_elsewhere(&mut self, hash: u64) {
        if let Some(Filling::Load(loading)) = &mut self.filling {
            loading.noted.push((hash, None));
            return;
        }
        self.elsewhere.insert(self.engine.hash_index.class_hash(hash));
    }

    /// Continues filling, or starts over if the filter is stale.
    pub(super) fn fill_step(&mut self) {
        self.filling = match self.filling.take() {
            Some(Filling::Load(loading)) => self.load_step(loading),
            Some(Filling::Walk(walk)) if !walk.given_up => self.walk_step(walk).map(Filling::Walk),
            None if self.filter_is_stale() => {
                self.engine.checkpoints.filter_is_gone();
                self.elsewhere = Arc::default();
                Some(Filling::Walk(Walk::from_the_start()))
            }
            same => same,
        };
    }

    fn load_step(&mut self, mut loading: Box<Loading>) -> Option<Filling> {
        match loading.loader.step(&self.engine) {
            Ok(false) => Some(Filling::Load(loading)),
            Ok(true) => {
                self.finish_load(*loading);
                None
            }
            Err(error) => {
                tracing::info!(%error, "the hash index is filled from the ordered index");
                self.engine.hash_index.clear();
                self.engine.hash_index.show();
                // The noted changes are in the ordered index by now.
                Some(Filling::Walk(Walk::from_the_start()))
            }
        }
    }

    fn finish_load(&mut self, loading: Loading) {
        let loaded = loading.loader.finish();
        let index = &self.engine.hash_index;
        for (hash, place) in loading.noted {
            set_place(index, &loaded.filter, hash, place);
        }
        index.show();
        self.elsewhere = Arc::new(loaded.filter);
        self.engine.checkpoints.found(loaded.checkpoint);
        self.filled(FilledFrom::Checkpoint);
    }

    fn filled(&self, from: FilledFrom) {
        let checkpoints = &self.engine.checkpoints;
        checkpoints.filled(from, self.opened.elapsed(), Arc::clone(&self.elsewhere));
        self.engine.refilling.store(false, Ordering::Release);
        tracing::debug!(?from, "the hash index is filled");
    }

    /// Puts the next entries of the ordered index into the hash index and the filter. Returns the
    /// remaining walk.
    fn walk_step(&self, mut walk: Walk) -> Option<Walk> {
        match self.walk_on(&mut walk) {
            Ok(false) => Some(walk),
            Ok(true) => {
                self.filled(FilledFrom::Index);
                None
            }
            Err(error) => {
                // Damage to some entries, not to the store: without a filled hash index all lookups
                // use the ordered one.
                tracing::error!(%error, "the hash index cannot be filled");
                walk.given_up = true;
                Some(walk)
            }
        }
    }

    fn walk_on(&self, walk: &mut Walk) -> Result<bool> {
        let seq = self.index.applied_seq();
        let scan = self.engine.index.scan((walk.after.clone(), Bound::Unbounded), seq)?;
        let mut seen = 0;
        for item in scan.take(WALK_STEP) {
            let (key, entry) = item?;
            let hash = key_hash(&key);
            let index = &self.engine.hash_index;
            let address = match entry.home {
                Home::Flash { address } => Address::new(address),
                Home::Inline(_) | Home::Block(_) => None,
            };
            match address {
                Some(address) => {
                    let record_bytes = record_bytes_max(key.len(), entry.attributes.len(), entry.length);
                    fill_slot(index, hash, address, record_bytes);
                }
                None => self.elsewhere.insert(index.class_hash(hash)),
            }
            seen += 1;
            walk.after = Bound::Excluded(key.to_vec());
        }
        Ok(seen < WALK_STEP)
    }

    fn filter_is_stale(&self) -> bool {
        let accounting = &self.engine.accounting;
        let objects = |home| accounting.stats(home).objects;
        let live = objects(HomeKind::Inline) + objects(HomeKind::Block);
        let taken_out = objects(HomeKind::Flash) / FLASH_OBJECTS_PER_SLOT_TAKEN_OUT;
        self.elsewhere.len() > (live + taken_out + 100_000) * STALE_FILTER_FACTOR
    }
}

/// Has a table that no reader sees yet say where a key's record is. Without one it is elsewhere, or
/// another key of its class may have lost its slot to it: the filter tells of both.
pub(super) fn set_place(index: &HashIndex, filter: &KeyFilter, hash: u64, place: Option<(Address, u64)>) {
    if let Some((address, record_bytes)) = place {
        index.insert(hash, address, record_bytes);
    } else {
        filter.insert(index.class_hash(hash));
        index.remove(hash);
    }
}

/// Points the key's slot in the hash index to this address. A slot that already does is left
/// unchanged: rewriting it would reset its use count, and log GC would treat a hot object as cold.
fn fill_slot(index: &HashIndex, hash: u64, address: Address, record_bytes: u64) {
    if index.recency(hash, address).is_none() {
        index.insert(hash, address, record_bytes);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::hash_index::Config;

    /// When the filter was stale the walk wrote every slot anew, and all that was hot looked cold
    /// to the next round of recycling.
    #[test]
    fn a_walk_leaves_slots_that_are_right_as_they_are() {
        let index = HashIndex::new(Config::default()).unwrap();
        let (hash, place, other) = (key_hash(b"hot"), Address::new(64).unwrap(), Address::new(4160).unwrap());
        fill_slot(&index, hash, place, 100);
        assert_eq!(index.recency(hash, place), Some(0));
        assert!(index.lookup(hash).is_some() && index.lookup(hash).is_some());
        fill_slot(&index, hash, place, 100);
        assert_eq!(index.recency(hash, place), Some(2));
        fill_slot(&index, hash, other, 100);
        assert_eq!(
            (index.recency(hash, place), index.recency(hash, other)),
            (None, Some(0))
        );
    }
}
