//! What the cache has stays there when it is written anew or moved.
//!
//! The cache is asked by place, and what is written anew has another place. Without this, each time
//! a value that is read often is overwritten, its next reader would ask a device, and the value
//! before it would fill the cache until it aged out.
//!
//! The slot of the hash index already leads to the new place while the cache does not know it: the
//! frame is still in the overlay then, and answers.

use super::{Applier, Replaced};
use crate::{
    cache::{CachedValue, Place},
    log::{address::Address, format::Record},
    ordered_index::{Entry, Home},
};

impl Applier {
    /// `record`, at `address`, takes the place of what it replaces; in the cache too, if that was
    /// there, or was read while it was recent.
    pub(super) fn cache_instead(&self, replaced: &Replaced, address: Address, record: &Record<'_>) {
        if self.uncache(replaced, record.key)
            && let Some(place) = self.place_in_log(address)
        {
            let bytes = record.body.value().len() as u64;
            self.engine
                .cache
                .insert(place, || CachedValue::of_record(record), bytes);
        }
    }

    /// The cache finds at `home` what it had at the home that `entry` says.
    pub(super) fn cache_at(&self, entry: &Entry, key: &[u8], home: &Home) {
        let cached = self.place(&entry.home).and_then(|old| self.engine.cache.take(old, key));
        if let Some(cached) = cached.or_else(|| self.take_recent(&entry.home, CachedValue::of_record))
            && let Some(place) = self.place(home)
        {
            let bytes = cached.value.len() as u64;
            self.engine.cache.insert(place, || cached, bytes);
        }
    }

    /// Takes what is replaced out of the cache, and says whether it was there, or would have gone
    /// there.
    pub(super) fn uncache(&self, replaced: &Replaced, key: &[u8]) -> bool {
        let home = match replaced {
            Replaced::Nothing => return false,
            Replaced::Flash(address) => &Home::Flash {
                address: address.bytes(),
            },
            Replaced::Entry(entry) => &entry.home,
        };
        let was_cached = self
            .place(home)
            .is_some_and(|place| self.engine.cache.take(place, key).is_some());
        was_cached || self.take_recent(home, |_| ()).is_some()
    }

    /// What was at `home` goes to the cache no more when its frame leaves. Hands it to `use_record`
    /// if it would have.
    fn take_recent<R>(&self, home: &Home, use_record: impl FnOnce(&Record<'_>) -> R) -> Option<R> {
        let log = &self.engine.log;
        let Home::Flash { address } = *home else { return None };
        log.recent.take_read(log.segments.place(address)?, use_record)
    }

    fn place(&self, home: &Home) -> Option<Place> {
        match *home {
            Home::Inline(_) => None,
            Home::Flash { address } => Address::new(address).and_then(|address| self.place_in_log(address)),
            Home::Block(extent) => Some(Place::block(extent.block, extent.offset)),
        }
    }

    fn place_in_log(&self, address: Address) -> Option<Place> {
        Place::in_log(&self.engine.log.segments, address)
    }
}
