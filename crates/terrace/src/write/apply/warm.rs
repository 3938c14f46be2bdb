//! What the cache has stays there when it is written anew or moved.
//!
//! The cache is asked by place, and what is written anew has another place. Without this, each time a value that is read often
//! is overwritten, its next reader would ask a device, and the value before it would fill the cache until it aged out.
//!
//! The slot of the flash index already leads to the new place while the cache does not know it: the frame is still in the
//! overlay then, and answers.

use super::{Applier, Replaced};
use crate::{
    flash::{address::Address, format::Record},
    index::{Entry, Home},
    read::cache::{CachedValue, Place},
};

impl Applier {
    /// `record`, at `address`, takes the place of what it replaces; in the cache too, if that was there.
    pub(super) fn cache_instead(&self, replaced: &Replaced, address: Address, record: &Record<'_>) {
        if self.uncache(replaced, record.key).is_some()
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
        if let Some(old) = self.place(&entry.home)
            && let Some(cached) = self.engine.cache.take(old, key)
            && let Some(place) = self.place(home)
        {
            let bytes = cached.value.len() as u64;
            self.engine.cache.insert(place, || cached, bytes);
        }
    }

    /// Takes what is replaced out of the cache. `None` if it was not there.
    pub(super) fn uncache(&self, replaced: &Replaced, key: &[u8]) -> Option<CachedValue> {
        let place = match replaced {
            Replaced::Nothing => None,
            Replaced::Flash(address) => self.place_in_log(*address),
            Replaced::Entry(entry) => self.place(&entry.home),
        };
        self.engine.cache.take(place?, key)
    }

    fn place(&self, home: &Home) -> Option<Place> {
        match *home {
            Home::Inline(_) => None,
            Home::Flash { address } => Address::new(address).and_then(|address| self.place_in_log(address)),
            Home::Block { block, offset, .. } => Some(Place::block(block, offset)),
        }
    }

    fn place_in_log(&self, address: Address) -> Option<Place> {
        Place::in_log(&self.engine.log.segments, address)
    }
}
