//! Read ahead: requests for objects ahead of a sequential reader, and the images read for them.
//!
//! A reader that has reached an object by two or more steps in order (`seg-0012`, `seg-0013`) will
//! most likely read the next one. A thread (`maintenance::prefetch`) reads it from the disk
//! meanwhile, as an image like those that readers fill (`staging`): a reader that arrives during
//! the read is served as it grows. The image is kept until its reader has read it, and is copied to
//! flash only then, if it is worth a copy: the reader it was read for is no reason for a copy, and
//! reads the image from RAM instead of flash.
//!
//! Invariants: bounded. At most [`WANTED_MAX`] objects are requested, images read ahead have half
//! of the room for images, and there is one object ahead of each reader: nothing more is read for a
//! reader that stops. An image not read within [`KEPT`] is dropped.

use super::{FlashCache, SLICE_BYTES, admission::Worth, count, staging::Image};
use crate::metrics::event::Event;
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

/// Steps in order, the first read included, from which on a reader counts as one of the whole
/// group.
pub const RUN_MIN: u32 = 3;
/// Objects that may be waiting to be read ahead; the oldest is given up for a newer one.
const WANTED_MAX: usize = 64;
/// How long an image waits for its reader.
const KEPT: Duration = Duration::from_secs(10);
/// How long the thread sleeps without requests, while images wait for their readers,
const IDLE: Duration = Duration::from_millis(250);
/// and while none does.
const IDLE_MAX: Duration = Duration::from_secs(5);

/// Requested keys, and images that wait for their readers.
#[derive(Debug, Default)]
pub struct Ahead {
    wanted: Mutex<VecDeque<Arc<[u8]>>>,
    /// Something is wanted, or the thread is to look up.
    changed: Event,
    kept: Mutex<VecDeque<(Arc<Image>, Instant)>>,
}

impl Ahead {
    /// The object with this key will be read soon.
    pub fn want(&self, key: Arc<[u8]>) {
        let mut wanted = self.wanted.lock();
        // A reader calls this with each of its reads.
        if wanted.contains(&key) {
            return;
        }
        if wanted.len() >= WANTED_MAX {
            wanted.pop_front();
        }
        wanted.push_back(key);
        drop(wanted);
        self.changed.raise();
    }

    /// The next key; waits at most `wait` for one, or until woken. `seen` is the waiting thread's
    /// alone.
    fn next(&self, seen: &mut u64, wait: Duration) -> Option<Arc<[u8]>> {
        let next = || self.wanted.lock().pop_front();
        self.changed.wait_unless(seen, wait, next)
    }

    /// Wakes the thread that waits for the next key.
    pub fn wake(&self) {
        self.changed.raise();
    }

    /// Keeps a complete image until its reader comes.
    fn keep(&self, image: Arc<Image>) {
        self.kept.lock().push_back((image, Instant::now()));
    }

    /// Its reader has had it. `false` if it is not kept here.
    pub fn release(&self, image: &Arc<Image>) -> bool {
        let mut kept = self.kept.lock();
        let at = kept.iter().position(|(other, _)| Arc::ptr_eq(other, image));
        at.and_then(|at| kept.remove(at)).is_some()
    }

    /// Images that were not read in time.
    fn overdue(&self) -> Vec<Arc<Image>> {
        let mut kept = self.kept.lock();
        // They are in the order of time.
        let overdue = kept.iter().take_while(|(_, since)| since.elapsed() > KEPT).count();
        kept.drain(..overdue).map(|(image, _)| image).collect()
    }

    /// The one that has waited longest.
    fn oldest(&self) -> Option<Arc<Image>> {
        self.kept.lock().pop_front().map(|(image, _)| image)
    }
}

impl FlashCache {
    /// Keeps a complete image until its reader comes, unless it has had it.
    pub fn keep_ahead(&self, image: Arc<Image>) {
        if image.was_read() {
            let worth = self.popularity.worth(&image.key, image.slice_bytes as u64);
            self.pass_on(image, worth);
        } else {
            self.ahead.keep(image);
        }
    }

    /// The next key to read ahead, if one comes soon. Drops images that were not read in time.
    /// `seen` belongs to the waiting thread.
    pub fn next_ahead(&self, seen: &mut u64) -> Option<Arc<[u8]>> {
        let keeps_none = self.ahead.kept.lock().is_empty();
        let idle = if keeps_none { IDLE_MAX } else { IDLE };
        let wanted = self.ahead.next(seen, idle);
        self.drop_unused(&self.ahead.overdue());
        wanted
    }

    /// Makes room to read an extent of this many bytes ahead: drops the images that have waited
    /// longest for their readers. `false` if there are none.
    pub fn make_room_ahead(&self, extent_bytes: u64) -> bool {
        while self.images.bytes() + extent_bytes.min(SLICE_BYTES) > self.images.ahead_bytes_max() {
            let Some(oldest) = self.ahead.oldest() else {
                return false;
            };
            self.drop_unused(&[oldest]);
        }
        true
    }

    fn drop_unused(&self, images: &[Arc<Image>]) {
        count(&self.counters.prefetch_unused, images.len() as u64);
        images.iter().for_each(|image| self.images.drop_image(image));
    }

    /// Queues a complete image to be written to flash, if that is worth it; else drops it.
    pub fn pass_on(&self, image: Arc<Image>, worth: Worth) {
        if worth != Worth::None && !self.copies.has(image.slice) {
            self.images.enqueue(image);
        } else {
            self.images.drop_image(&image);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::flash_cache::{
        Slice,
        staging::{Images, Joined},
    };

    fn image(images: &Images, block: u64) -> Arc<Image> {
        let slice = Slice {
            block,
            offset: 4096,
            number: 0,
        };
        match images.join(slice, 4096, &Arc::from(&b"key"[..]), true) {
            Joined::Fill(image) => image,
            _ => panic!("there is room"),
        }
    }

    #[test]
    fn what_is_wanted_is_bounded_and_wanted_once() {
        let ahead = Ahead::default();
        for number in 0..WANTED_MAX as u64 + 10 {
            ahead.want(Arc::from(number.to_be_bytes().as_slice()));
            ahead.want(Arc::from(number.to_be_bytes().as_slice()));
        }
        let mut seen = 0;
        let mut next = || ahead.next(&mut seen, Duration::ZERO);
        let first = next().unwrap();
        assert_eq!(&*first, 10_u64.to_be_bytes(), "the oldest gave way");
        let rest = std::iter::from_fn(next).count();
        assert_eq!(rest, WANTED_MAX - 1);
    }

    #[test]
    fn an_image_is_kept_until_its_reader_had_it_or_nobody_came() {
        let (ahead, images) = (Ahead::default(), Images::new(1 << 20));
        let (one, other) = (image(&images, 1), image(&images, 2));
        ahead.keep(Arc::clone(&one));
        ahead.keep(Arc::clone(&other));
        assert!(ahead.release(&one) && !ahead.release(&one));
        assert!(ahead.overdue().is_empty());
        ahead.kept.lock()[0].1 = Instant::now() - KEPT - Duration::from_millis(1);
        let overdue = ahead.overdue();
        assert!(overdue.len() == 1 && Arc::ptr_eq(&overdue[0], &other));
        assert!(ahead.oldest().is_none());
    }
}
