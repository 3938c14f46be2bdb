//! Reading an extent by what is nearer than its block: an image in RAM, a copy on flash; and gathering an image from what
//! is read of the block all the same.

use super::{
    COPY_BYTES_MIN, Heat, SLICE_BYTES, Slice,
    admission::Worth,
    count,
    prefetch::RUN_MIN,
    staging::{Image, Joined},
};
use parking_lot::Mutex;
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU8, Ordering},
};

/// What the bytes of a read came from, the farthest of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Source {
    /// An image in RAM, because somebody else reads the same.
    Ram = 1,
    /// A copy on flash.
    Copy = 2,
    /// An image in RAM that was read ahead.
    Ahead = 3,
    /// The block.
    Block = 4,
}

/// One reader of one extent. Positions count from the page in which the extent begins.
#[derive(Debug)]
pub struct NearReader {
    heat: Arc<Heat>,
    block: u64,
    offset: u64,
    /// Bytes from the first page to the last.
    extent_bytes: u64,
    key: Arc<[u8]>,
    worth: Worth,
    /// The image this reader fills.
    filling: Mutex<Option<Arc<Image>>>,
    /// A copy was used since somebody last asked.
    used_copy: AtomicBool,
    /// Copies are not to be trusted any more.
    avoids_copies: AtomicBool,
    farthest: AtomicU8,
    /// Nobody has asked for it yet.
    is_ahead: bool,
}

impl NearReader {
    /// Counts a read of the object and begins it. `None` for extents that are too short to be copied.
    #[must_use]
    pub fn begin(
        heat: &Arc<Heat>,
        key: &[u8],
        block: u64,
        offset: u64,
        extent_bytes: u64,
        value_bytes: u64,
    ) -> Option<Self> {
        if extent_bytes < COPY_BYTES_MIN || !heat.images.has_room_at_all() {
            return None;
        }
        let seen = heat.popularity.read(key, value_bytes);
        if seen.run >= RUN_MIN
            && let Some(next) = heat.popularity.successor(key)
        {
            heat.ahead.want(next.into());
        }
        Some(Self::new(heat, key, block, offset, extent_bytes, seen.worth, false))
    }

    /// Begins to read an object ahead of its reader. `None` if that is of no use: it is near, or of more than one slice.
    #[must_use]
    pub fn begin_ahead(
        heat: &Arc<Heat>,
        key: &[u8],
        block: u64,
        offset: u64,
        extent_bytes: u64,
        value_bytes: u64,
    ) -> Option<Self> {
        if !(COPY_BYTES_MIN..=SLICE_BYTES).contains(&extent_bytes) {
            return None;
        }
        let worth = heat.popularity.worth(key, value_bytes);
        let reader = Self::new(heat, key, block, offset, extent_bytes, worth, true);
        (!reader.is_near()).then_some(reader)
    }

    /// Whether its beginning is nearer than the block.
    #[must_use]
    pub fn is_near(&self) -> bool {
        let slice = self.slice(0);
        self.heat.copies.has(slice) || self.heat.images.find(slice).is_some()
    }

    fn new(
        heat: &Arc<Heat>,
        key: &[u8],
        block: u64,
        offset: u64,
        extent_bytes: u64,
        worth: Worth,
        is_ahead: bool,
    ) -> Self {
        Self {
            heat: Arc::clone(heat),
            block,
            offset,
            extent_bytes,
            key: key.into(),
            worth,
            filling: Mutex::default(),
            used_copy: AtomicBool::new(false),
            avoids_copies: AtomicBool::new(false),
            farthest: AtomicU8::new(0),
            is_ahead,
        }
    }

    fn slice(&self, position: u64) -> Slice {
        Slice {
            block: self.block,
            offset: self.offset,
            #[allow(clippy::cast_possible_truncation)] // a value has fewer slices
            number: (position / SLICE_BYTES) as u32,
        }
    }

    #[allow(clippy::cast_possible_truncation)] // at most SLICE_BYTES
    fn slice_bytes(&self, slice: Slice) -> usize {
        (self.extent_bytes - u64::from(slice.number) * SLICE_BYTES).min(SLICE_BYTES) as usize
    }

    /// Fills `out` with the bytes at `position` if they are nearer than the block.
    #[must_use]
    pub fn read(&self, position: u64, out: &mut [u8]) -> bool {
        if !self.is_ahead {
            count(&self.heat.counters.asked_bytes, out.len() as u64);
        }
        let slice = self.slice(position);
        // Over the border of two slices: rare, and one read of the block is better than two of others.
        if out.is_empty() || self.slice(position + out.len() as u64 - 1) != slice {
            return false;
        }
        #[allow(clippy::cast_possible_truncation)] // less than SLICE_BYTES
        let from = (position % SLICE_BYTES) as usize;
        if self.reads_copy(slice, from as u64, out) {
            self.came_from(Source::Copy);
            count(&self.heat.counters.copy_reads, 1);
            count(&self.heat.counters.copy_bytes_read, out.len() as u64);
            return true;
        }
        if self.is_filling(slice) {
            return false;
        }
        let image = if from == 0 {
            match self.join(slice) {
                Joined::There(image) => Some(image),
                Joined::Fill(image) => {
                    self.give_up();
                    *self.filling.lock() = Some(image);
                    None
                }
                Joined::Full => {
                    if self.worth != Worth::None {
                        count(&self.heat.counters.dropped_full, 1);
                    }
                    None
                }
            }
        } else {
            self.heat.images.find(slice)
        };
        image.is_some_and(|image| self.reads_image(&image, from, out))
    }

    fn join(&self, slice: Slice) -> Joined {
        let images = &self.heat.images;
        images.join(slice, self.slice_bytes(slice), &self.key, self.is_ahead)
    }

    fn reads_image(&self, image: &Arc<Image>, from: usize, out: &mut [u8]) -> bool {
        if !image.read(from, out) {
            return false;
        }
        if image.is_ahead {
            self.came_from(Source::Ahead);
            count(&self.heat.counters.ahead_reads, 1);
            if from + out.len() == image.slice_bytes && !self.is_ahead {
                image.set_read();
                if self.heat.ahead.release(image) {
                    self.heat.pass_on(Arc::clone(image), self.worth);
                }
            }
        } else {
            self.came_from(Source::Ram);
            count(&self.heat.counters.image_reads, 1);
        }
        true
    }

    fn reads_copy(&self, slice: Slice, from: u64, out: &mut [u8]) -> bool {
        if self.avoids_copies.load(Ordering::Relaxed) {
            return false;
        }
        // A device that fails to read a copy may still be able to read the block.
        let found = matches!(self.heat.read_copy(slice, from, out), Ok(Some(())));
        if found {
            self.used_copy.store(true, Ordering::Relaxed);
        }
        found
    }

    fn is_filling(&self, slice: Slice) -> bool {
        self.filling.lock().as_ref().is_some_and(|image| image.slice == slice)
    }

    /// Takes note of what was read of the block at `position`.
    pub fn gather(&self, position: u64, mut bytes: &[u8]) {
        self.came_from(Source::Block);
        let mut position = position;
        while !bytes.is_empty() {
            let slice = self.slice(position);
            let slice_end = (u64::from(slice.number) + 1) * SLICE_BYTES;
            #[allow(clippy::cast_possible_truncation)] // less than SLICE_BYTES
            let (from, length) = (
                (position % SLICE_BYTES) as usize,
                ((slice_end - position) as usize).min(bytes.len()),
            );
            self.gather_in(slice, from, &bytes[..length]);
            bytes = &bytes[length..];
            position += length as u64;
        }
    }

    fn gather_in(&self, slice: Slice, from: usize, bytes: &[u8]) {
        let mut filling = self.filling.lock();
        if from == 0 && filling.as_ref().is_none_or(|image| image.slice != slice) {
            // Reached by a read over the border of two slices.
            if let Joined::Fill(image) = self.join(slice)
                && let Some(before) = filling.replace(image)
            {
                self.heat.images.drop_image(&before);
            }
        }
        let Some(image) = filling.as_ref().filter(|image| image.slice == slice) else {
            return;
        };
        // A stream reads on where it ended, but may read a part twice.
        let filled = image.filled();
        let is_in_order =
            from <= filled && (from + bytes.len() <= filled || image.append(filled, &bytes[filled - from..]));
        if is_in_order && !image.is_complete() {
            return;
        }
        let Some(image) = filling.take() else { return };
        if !is_in_order {
            self.heat.images.drop_image(&image);
        } else if self.is_ahead {
            self.heat.keep_ahead(image);
        } else {
            self.heat.pass_on(image, self.worth);
        }
    }

    fn give_up(&self) {
        if let Some(image) = self.filling.lock().take() {
            self.heat.images.drop_image(&image);
        }
    }

    fn came_from(&self, source: Source) {
        self.farthest.fetch_max(source as u8, Ordering::Relaxed);
    }

    /// The farthest that anything read so far came from.
    #[must_use]
    pub fn source(&self) -> Option<Source> {
        [Source::Ram, Source::Copy, Source::Ahead, Source::Block]
            .into_iter()
            .find(|source| *source as u8 == self.farthest.load(Ordering::Relaxed))
    }

    /// Bytes did not match their checksums. Whether a copy may be to blame: it is forgotten then, and to read again is worth it.
    #[must_use]
    pub fn blames_copy(&self) -> bool {
        if !self.used_copy.swap(false, Ordering::Relaxed) {
            return false;
        }
        self.avoids_copies.store(true, Ordering::Relaxed);
        let slices = self.extent_bytes.div_ceil(SLICE_BYTES);
        for number in 0..slices {
            if self.heat.copies.forget(self.slice(number * SLICE_BYTES)) {
                count(&self.heat.counters.forgotten, 1);
            }
        }
        true
    }
}

impl Drop for NearReader {
    fn drop(&mut self) {
        self.give_up();
    }
}
