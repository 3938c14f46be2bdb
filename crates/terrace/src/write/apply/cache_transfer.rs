//! Re-keys cached values whose location changed: popular values stay cached when they are
//! overwritten or moved.
//!
//! The cache is keyed by place, and a rewritten value has another place. Without this, after each
//! overwrite of a popular value its next reader would read a device, and the old value would take
//! cache space until it ages out.
//!
//! The slot of the hash index already leads to the new place while the cache does not have it: its
//! frame is in RAM, and serves it. The frame only needs a mark that this value is to be cached when
//! the frame is evicted.

use super::{Applier, Replaced, flash};
use crate::{
    cache::CachedValue,
    log::{address::Address, format::Record},
    ordered_index::{Entry, Home},
};

impl Applier {
    /// The record at `address` replaces the former one, in the cache too, if that was cached or was
    /// read in its frame.
    pub(super) fn cache_instead(&self, replaced: &Replaced, address: Address) {
        if self.uncache(replaced) {
            self.want(address);
        }
    }

    /// A value cached at the home in `entry` is cached at `home` from now on.
    pub(super) fn cache_at(&self, entry: &Entry, key: &[u8], home: &Home) {
        match *home {
            Home::Flash { address } => {
                if self.uncache_at(&entry.home)
                    && let Some(address) = Address::new(address)
                {
                    self.want(address);
                }
            }
            Home::Block(_) => self.cache_in_block(entry, key, home),
            Home::Inline(_) => {}
        }
    }

    /// The same for a value whose record does not have it.
    fn cache_in_block(&self, entry: &Entry, key: &[u8], home: &Home) {
        let (Some(from), Some(to)) = (self.engine.place_of(&entry.home), self.engine.place_of(home)) else {
            return;
        };
        if self.engine.cache.rename(from, to, key) {
            return;
        }
        if let Some(value) = self.take_read(&entry.home, CachedValue::of_record) {
            self.engine.cache.insert(to, key, &value);
        }
    }

    /// Removes the replaced value from the cache. Returns whether it was there, or would have been
    /// moved there.
    pub(super) fn uncache(&self, replaced: &Replaced) -> bool {
        match replaced {
            (None, None) => false,
            (None, Some(found)) => self.uncache_at(&flash(found.address)),
            (Some(entry), _) => self.uncache_at(&entry.home),
        }
    }

    fn uncache_at(&self, home: &Home) -> bool {
        let was_cached = || {
            let place = self.engine.place_of(home);
            place.and_then(|place| self.engine.cache.take(place)).is_some()
        };
        was_cached() || self.take_read(home, |_| ()).is_some()
    }

    /// The record at `address`, which is being applied, is kept in RAM when its frame leaves it.
    fn want(&self, address: Address) {
        if let Some((sealed, at)) = self.in_frame(address) {
            sealed.mark(at);
        }
    }

    /// The record at `home` is no longer moved to the cache when its frame is evicted. Calls
    /// `use_record` with it if it would have been.
    fn take_read<R>(&self, home: &Home, use_record: impl FnOnce(&Record<'_>) -> R) -> Option<R> {
        let log = &self.engine.log;
        let Home::Flash { address } = *home else { return None };
        log.frames.take_read(log.segments.place(address)?, use_record)
    }
}
