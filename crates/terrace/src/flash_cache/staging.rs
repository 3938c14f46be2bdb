//! Images of slices in RAM: being filled by the one reader who reads the disk, read by everybody else who wants the same,
//! and kept until the copy is on flash.
//!
//! Invariants: bounded in bytes; one image per slice; an image is filled from its start on by one thread at a time. Who waits for
//! bytes waits for a bounded time and then reads the disk himself: a filler may be as slow as its caller.

use super::Slice;
use crate::io::AlignedBuffer;
use hashbrown::HashMap;
use parking_lot::{Condvar, Mutex};
use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// How long a reader waits for bytes somebody else is reading. A disk in a hurry answers within that.
const PATIENCE: Duration = Duration::from_millis(100);

/// The bytes of a slice, as far as they were read.
#[derive(Debug)]
pub(super) struct Image {
    /// Whose bytes.
    pub slice: Slice,
    /// The object's key.
    pub key: Arc<[u8]>,
    /// How many bytes it will have.
    pub slice_bytes: usize,
    /// It is read before anybody asked for it.
    pub is_ahead: bool,
    /// A caller has read it to its end.
    was_read: AtomicBool,
    filling: Mutex<Filling>,
    progress: Condvar,
}

#[derive(Debug, Default)]
struct Filling {
    bytes: AlignedBuffer,
    given_up: bool,
}

impl Image {
    /// Copies the bytes at `from` into `out`; waits for them if somebody is reading them. `false` if they do not come.
    pub fn read(&self, from: usize, out: &mut [u8]) -> bool {
        let until = Instant::now() + PATIENCE;
        let end = from + out.len();
        let mut filling = self.filling.lock();
        while filling.bytes.len() < end {
            if filling.given_up || self.progress.wait_until(&mut filling, until).timed_out() {
                return false;
            }
        }
        out.copy_from_slice(&filling.bytes[from..end]);
        true
    }

    /// Appends bytes that were read behind those that are there. `false`, and nothing done, if they are not the next.
    pub fn append(&self, from: usize, bytes: &[u8]) -> bool {
        let mut filling = self.filling.lock();
        let is_next = filling.bytes.len() == from && from + bytes.len() <= self.slice_bytes && !filling.given_up;
        if is_next {
            filling.bytes.extend_from_slice(bytes);
            self.progress.notify_all();
        }
        is_next
    }

    /// Bytes so far.
    pub fn filled(&self) -> usize {
        self.filling.lock().bytes.len()
    }

    /// Whether all bytes are there.
    pub fn is_complete(&self) -> bool {
        self.filled() == self.slice_bytes
    }

    /// A caller has read it to its end.
    pub fn set_read(&self) {
        self.was_read.store(true, Ordering::Release);
    }

    /// Whether [`Image::set_read`] was called.
    pub fn was_read(&self) -> bool {
        self.was_read.load(Ordering::Acquire)
    }

    /// Hands the bytes to `use_bytes`.
    pub fn with_bytes<T>(&self, use_bytes: impl FnOnce(&[u8]) -> T) -> T {
        use_bytes(&self.filling.lock().bytes)
    }
}

/// All images, and which of them are to be written to flash.
#[derive(Debug)]
pub(super) struct Images {
    bytes_max: u64,
    bytes: AtomicU64,
    table: Mutex<HashMap<Slice, Arc<Image>>>,
    queue: Mutex<VecDeque<Arc<Image>>>,
    queued: Condvar,
}

/// What [`Images::join`] gives.
pub(super) enum Joined {
    /// Somebody has it or is reading it.
    There(Arc<Image>),
    /// The caller is to fill it.
    Fill(Arc<Image>),
    /// No room.
    Full,
}

impl Images {
    /// Room for so many bytes.
    pub fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            bytes: AtomicU64::new(0),
            table: Mutex::default(),
            queue: Mutex::default(),
            queued: Condvar::new(),
        }
    }

    /// Whether there may be any.
    pub const fn has_room_at_all(&self) -> bool {
        self.bytes_max > 0
    }

    /// Nothing is read ahead that would bring [`Images::bytes`] above this.
    pub const fn ahead_bytes_max(&self) -> u64 {
        self.bytes_max / 2
    }

    /// Bytes promised to images.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The image of a slice, if there is one.
    pub fn find(&self, slice: Slice) -> Option<Arc<Image>> {
        if self.bytes() == 0 {
            return None;
        }
        self.table.lock().get(&slice).map(Arc::clone)
    }

    /// The image of a slice, or a new one that the caller fills. Those that are read ahead have half of the room.
    pub fn join(&self, slice: Slice, slice_bytes: usize, key: &Arc<[u8]>, is_ahead: bool) -> Joined {
        let mut table = self.table.lock();
        if let Some(image) = table.get(&slice) {
            return Joined::There(Arc::clone(image));
        }
        let room = if is_ahead {
            self.ahead_bytes_max()
        } else {
            self.bytes_max
        };
        if self.bytes() + slice_bytes as u64 > room {
            return Joined::Full;
        }
        self.bytes.fetch_add(slice_bytes as u64, Ordering::Relaxed);
        let image = Arc::new(Image {
            slice,
            key: Arc::clone(key),
            slice_bytes,
            is_ahead,
            was_read: AtomicBool::new(false),
            filling: Mutex::default(),
            progress: Condvar::new(),
        });
        table.insert(slice, Arc::clone(&image));
        Joined::Fill(image)
    }

    /// Lets go of an image, complete or not.
    pub fn drop_image(&self, image: &Arc<Image>) {
        let mut table = self.table.lock();
        if table.get(&image.slice).is_some_and(|there| Arc::ptr_eq(there, image)) {
            table.remove(&image.slice);
            self.bytes.fetch_sub(image.slice_bytes as u64, Ordering::Relaxed);
        }
        drop(table);
        image.filling.lock().given_up = true;
        image.progress.notify_all();
    }

    /// Has a complete image written to flash.
    pub fn enqueue(&self, image: Arc<Image>) {
        self.queue.lock().push_back(image);
        self.queued.notify_one();
    }

    /// The next image to write; waits at most `wait` for one.
    pub fn next(&self, wait: Duration) -> Option<Arc<Image>> {
        let mut queue = self.queue.lock();
        if queue.is_empty() {
            self.queued.wait_for(&mut queue, wait);
        }
        queue.pop_front()
    }

    /// Wakes who waits for the next image.
    pub fn wake(&self) {
        let _queue = self.queue.lock();
        self.queued.notify_all();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SLICE: Slice = Slice {
        block: 1,
        offset: 4096,
        number: 0,
    };

    fn key() -> Arc<[u8]> {
        Arc::from(&b"key"[..])
    }

    fn fill(images: &Images, slice: Slice, bytes: usize) -> Arc<Image> {
        match images.join(slice, bytes, &key(), false) {
            Joined::Fill(image) => image,
            _ => panic!("there is room"),
        }
    }

    #[test]
    fn one_fills_and_others_follow() {
        let images = Images::new(1 << 20);
        let image = fill(&images, SLICE, 8192);
        let Joined::There(other) = images.join(SLICE, 8192, &key(), false) else {
            panic!("it is being filled")
        };
        let follower = std::thread::spawn(move || {
            let mut out = [0; 4096];
            (other.read(4096, &mut out), out[0])
        });
        assert!(image.append(0, &[1; 4096]));
        assert!(!image.append(0, &[1; 4096]), "not the next");
        std::thread::sleep(Duration::from_millis(5));
        assert!(image.append(4096, &[2; 4096]));
        assert_eq!(follower.join().unwrap(), (true, 2));
        assert!(image.is_complete());
    }

    #[test]
    fn nobody_waits_for_a_filler_that_gave_up_or_stalls() {
        let images = Images::new(1 << 20);
        let image = fill(&images, SLICE, 8192);
        let start = Instant::now();
        assert!(!image.read(0, &mut [0; 10]));
        assert!(start.elapsed() >= PATIENCE);
        images.drop_image(&image);
        let start = Instant::now();
        assert!(!image.read(0, &mut [0; 10]));
        assert!(start.elapsed() < PATIENCE);
        assert!(!image.append(0, &[1; 10]), "it was given up");
        assert!(images.find(SLICE).is_none());
    }

    #[test]
    fn what_is_read_ahead_has_half_of_the_room() {
        let images = Images::new(20_000);
        let other = |block| Slice { block, ..SLICE };
        assert!(matches!(images.join(other(1), 8192, &key(), true), Joined::Fill(image) if image.is_ahead));
        assert!(matches!(images.join(other(2), 8192, &key(), true), Joined::Full));
        assert!(matches!(images.join(other(2), 8192, &key(), false), Joined::Fill(_)));
    }

    #[test]
    fn room_is_bounded_and_comes_back() {
        let images = Images::new(10_000);
        let first = fill(&images, SLICE, 8192);
        let other = Slice { block: 2, ..SLICE };
        assert!(matches!(images.join(other, 4096, &key(), false), Joined::Full));
        images.drop_image(&first);
        images.drop_image(&first);
        assert_eq!(images.bytes(), 0);
        assert!(matches!(images.join(other, 8192, &key(), false), Joined::Fill(_)));
    }
}
