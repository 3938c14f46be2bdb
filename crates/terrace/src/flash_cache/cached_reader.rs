//! Reads an extent through the flash cache: from an image in RAM, or a copy on flash. Bytes that
//! are read from the block are gathered in an image.

use super::{
    COPY_BYTES_MIN, FlashCache, SLICE_BYTES, Slice,
    admission::Worth,
    count,
    prefetch::RUN_MIN,
    staging::{Appended, Image, ImageRead, Joined},
};
use crate::blocks::{NearReader, Nearer, Source, Wanted};
use parking_lot::Mutex;
use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU8, Ordering},
};

/// One reader of one extent.
#[derive(Debug)]
struct CachedReader {
    cache: Arc<FlashCache>,
    block: u64,
    offset: u64,
    /// Bytes from the first page to the last.
    extent_bytes: u64,
    key: Arc<[u8]>,
    value_bytes: u64,
    /// Value of copying it, once the read is counted.
    worth: OnceLock<Worth>,
    /// The image this reader fills, or did before another became its filler.
    filling: Mutex<Option<Filling>>,
    /// A copy was used since the last call that reset this.
    used_copy: AtomicBool,
    /// Copies may be invalid and are no longer used.
    avoids_copies: AtomicBool,
    farthest: AtomicU8,
    /// Not requested by a caller yet.
    is_ahead: bool,
}

#[derive(Debug)]
struct Filling {
    image: Arc<Image>,
    /// See [`Image::is_filled_by`].
    filler: u64,
}

impl Filling {
    fn goes_on(&self) -> bool {
        self.image.is_filled_by(self.filler)
    }
}

impl Nearer for FlashCache {
    /// Counts the read when bytes are first requested, since objects served by the RAM cache need
    /// no copy.
    fn begin(self: Arc<Self>, wanted: &Wanted<'_>) -> Option<Box<dyn NearReader>> {
        let may_be_near =
            wanted.page_bytes >= COPY_BYTES_MIN && self.images.has_room_at_all() && self.may_copy(wanted.key);
        may_be_near.then(|| Box::new(CachedReader::new(self, wanted, false)) as Box<dyn NearReader>)
    }

    /// Of no use for cached extents, and for objects of more than one slice.
    fn begin_ahead(self: Arc<Self>, wanted: &Wanted<'_>) -> Option<Box<dyn NearReader>> {
        if !(COPY_BYTES_MIN..=SLICE_BYTES).contains(&wanted.page_bytes) {
            return None;
        }
        let reader = CachedReader::new(self, wanted, true);
        (!reader.is_near()).then(|| Box::new(reader) as Box<dyn NearReader>)
    }
}

impl CachedReader {
    fn new(cache: Arc<FlashCache>, wanted: &Wanted<'_>, is_ahead: bool) -> Self {
        Self {
            cache,
            block: wanted.block,
            offset: wanted.offset,
            extent_bytes: wanted.page_bytes,
            key: wanted.key.into(),
            value_bytes: wanted.value_bytes,
            worth: OnceLock::new(),
            filling: Mutex::default(),
            used_copy: AtomicBool::new(false),
            avoids_copies: AtomicBool::new(false),
            farthest: AtomicU8::new(0),
            is_ahead,
        }
    }

    fn worth(&self) -> Worth {
        *self.worth.get_or_init(|| {
            let popularity = &self.cache.popularity;
            if self.is_ahead {
                return popularity.worth(&self.key, self.value_bytes);
            }
            let seen = popularity.read(&self.key, self.value_bytes);
            if seen.is_new {
                self.cache.images.rouse();
            }
            if seen.run >= RUN_MIN
                && let Some(next) = popularity.rule.successor(&self.key)
            {
                self.cache.ahead.want(next.into());
            }
            seen.worth
        })
    }

    fn slice(&self, position: u64) -> Slice {
        Slice {
            block: self.block,
            offset: self.offset,
            // A value has fewer slices.
            number: (position / SLICE_BYTES) as u32,
        }
    }

    // At most SLICE_BYTES.
    fn slice_bytes(&self, slice: Slice) -> usize {
        (self.extent_bytes - u64::from(slice.number) * SLICE_BYTES).min(SLICE_BYTES) as usize
    }

    fn join(&self, slice: Slice) -> Joined {
        let images = &self.cache.images;
        images.join(slice, self.slice_bytes(slice), &self.key, self.is_ahead)
    }

    fn reads_image(&self, image: &Arc<Image>, from: usize, out: &mut [u8]) -> bool {
        match image.read(from, out, !self.is_ahead) {
            ImageRead::Done => {}
            ImageRead::Absent => return false,
            ImageRead::Fill(filler) => {
                self.fill(Arc::clone(image), filler);
                return false;
            }
        }
        if image.is_ahead {
            self.came_from(Source::Ahead);
            count(&self.cache.counters.prefetch_reads, 1);
            if from + out.len() == image.slice_bytes && !self.is_ahead {
                image.set_read();
                if self.cache.ahead.release(image) {
                    self.cache.pass_on(Arc::clone(image), self.worth());
                }
            }
        } else {
            self.came_from(Source::Ram);
            count(&self.cache.counters.image_reads, 1);
        }
        true
    }

    fn reads_copy(&self, slice: Slice, from: u64, out: &mut [u8]) -> bool {
        if self.avoids_copies.load(Ordering::Relaxed) {
            return false;
        }
        let Some((file, at)) = self.cache.copies.find(slice, from, out.len()) else {
            return false;
        };
        let timed = self.cache.paces.flash.read();
        // A device that fails to read a copy may still be able to read the block.
        let found = file.read_exact_at(out, at).is_ok();
        drop(timed);
        if found {
            self.used_copy.store(true, Ordering::Relaxed);
        }
        found
    }

    fn is_filling(&self, slice: Slice) -> bool {
        let filling = self.filling.lock();
        filling
            .as_ref()
            .is_some_and(|filling| filling.image.slice == slice && filling.goes_on())
    }

    fn gather_in(&self, slice: Slice, from: usize, bytes: &[u8]) {
        let is_of = |filling: &Option<Filling>| filling.as_ref().is_some_and(|filling| filling.image.slice == slice);
        // Reached by a read over the border of two slices.
        if from == 0
            && !is_of(&self.filling.lock())
            && let Joined::Fill(image) = self.join(slice)
        {
            self.fill(image, 0);
        }
        let mut guard = self.filling.lock();
        if !is_of(&guard) {
            return;
        }
        let Some(filling) = guard.take() else { return };
        // A stream reads on where it ended, but may read a part twice.
        match filling.image.append(from, bytes) {
            Appended::InOrder => *guard = Some(filling),
            Appended::Completed if self.is_ahead => self.cache.keep_ahead(filling.image),
            Appended::Completed => self.cache.pass_on(filling.image, self.worth()),
            Appended::Refused => {
                drop(guard);
                self.let_go(Some(filling));
            }
        }
    }

    /// From now on this reader fills the image, and no other.
    fn fill(&self, image: Arc<Image>, filler: u64) {
        let before = self.filling.lock().replace(Filling { image, filler });
        self.let_go(before);
    }

    /// Drops the image unless it is complete or filled by another reader.
    fn let_go(&self, filling: Option<Filling>) {
        if let Some(filling) = filling.filter(Filling::goes_on) {
            self.cache.images.drop_image(&filling.image);
        }
    }

    fn came_from(&self, source: Source) {
        self.farthest.fetch_max(source as u8, Ordering::Relaxed);
    }
}

impl NearReader for CachedReader {
    fn read(&self, position: u64, out: &mut [u8]) -> bool {
        if !self.is_ahead {
            count(&self.cache.counters.asked_bytes, out.len() as u64);
        }
        let worth = self.worth();
        let slice = self.slice(position);
        // Over the border of two slices: rare, and one read of the block is better than two of
        // others.
        if out.is_empty() || self.slice(position + out.len() as u64 - 1) != slice {
            return false;
        }
        // Less than SLICE_BYTES.
        let from = (position % SLICE_BYTES) as usize;
        if self.reads_copy(slice, from as u64, out) {
            self.came_from(Source::Copy);
            count(&self.cache.counters.copy_reads, 1);
            count(&self.cache.counters.copy_bytes_read, out.len() as u64);
            return true;
        }
        if self.is_filling(slice) {
            return false;
        }
        let image = if from == 0 {
            match self.join(slice) {
                Joined::There(image) => Some(image),
                Joined::Fill(image) => {
                    self.fill(image, 0);
                    None
                }
                Joined::Full => {
                    if worth != Worth::None {
                        count(&self.cache.counters.dropped_full, 1);
                    }
                    None
                }
            }
        } else {
            self.cache.images.find(slice)
        };
        image.is_some_and(|image| self.reads_image(&image, from, out))
    }

    fn gather(&self, position: u64, mut bytes: &[u8]) {
        self.came_from(Source::Block);
        let mut position = position;
        while !bytes.is_empty() {
            let slice = self.slice(position);
            let slice_end = (u64::from(slice.number) + 1) * SLICE_BYTES;
            // Less than SLICE_BYTES.
            let (from, length) = (
                (position % SLICE_BYTES) as usize,
                ((slice_end - position) as usize).min(bytes.len()),
            );
            self.gather_in(slice, from, &bytes[..length]);
            bytes = &bytes[length..];
            position += length as u64;
        }
    }

    fn is_near(&self) -> bool {
        let slice = self.slice(0);
        self.cache.copies.has(slice) || self.cache.images.find(slice).is_some()
    }

    fn source(&self) -> Option<Source> {
        [Source::Ram, Source::Copy, Source::Ahead, Source::Block]
            .into_iter()
            .find(|source| *source as u8 == self.farthest.load(Ordering::Relaxed))
    }

    fn blames_copy(&self) -> bool {
        if !self.used_copy.swap(false, Ordering::Relaxed) {
            return false;
        }
        self.avoids_copies.store(true, Ordering::Relaxed);
        let slices = self.extent_bytes.div_ceil(SLICE_BYTES);
        for number in 0..slices {
            if self.cache.copies.forget(self.slice(number * SLICE_BYTES)) {
                count(&self.cache.counters.forgotten, 1);
            }
        }
        true
    }
}

impl Drop for CachedReader {
    fn drop(&mut self) {
        let filling = self.filling.lock().take();
        self.let_go(filling);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Options, api::placement::Placement, io::throttle::Paces};

    /// Streams served by the RAM cache counted as reads, unlike gets: objects that need no copy
    /// evicted objects that do.
    #[test]
    fn a_read_counts_when_bytes_are_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::new(dir.path());
        let placement = Arc::new(Placement::new(&options));
        let cache = Arc::new(FlashCache::new(&options, Arc::new(Paces::default()), placement));
        let wanted = Wanted {
            key: b"titles/1/seg-1.ts",
            block: 1,
            offset: 4096,
            page_bytes: 1 << 20,
            value_bytes: 1_000_000,
        };
        let begin = || Arc::clone(&cache).begin(&wanted).unwrap();
        drop(begin());
        assert!(cache.popularity.unmeasured().is_none(), "no group was read");
        assert!(!begin().read(0, &mut [0; 4096]));
        assert!(cache.popularity.unmeasured().is_some());
    }
}
