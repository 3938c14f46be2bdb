//! Images of slices in RAM: filled by the one reader that reads the disk, read by all others that
//! want the same slice, and kept until the copy is on flash.
//!
//! Invariants:
//! - Bounded in bytes; one image per slice; it is filled from its start on.
//! - An image that is being filled has one filler, which must release it: complete or not. A filler
//!   may be as slow as its caller, so a reader waits for bytes for a bounded time. After that the
//!   reader that needs the next bytes becomes the filler, and no other reader waits until more
//!   bytes have arrived.
//! - Complete bytes do not change and are read without a lock, also while they are written to
//!   flash.

use super::Slice;
use crate::{io::AlignedBuffer, metrics::event::Event};
use hashbrown::HashMap;
use parking_lot::{Condvar, Mutex};
use std::{
    collections::VecDeque,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// How long a reader waits for bytes that another is reading. A disk under load answers within
/// that.
pub const PATIENCE: Duration = Duration::from_millis(100);
/// Fraction (1/n) of the room for images that prefetched ones may use: present readers come first.
const AHEAD_PART: u64 = 2;

/// The bytes of a slice, as far as they were read.
#[derive(Debug)]
pub struct Image {
    /// The slice that the bytes are of.
    pub slice: Slice,
    /// The object's key.
    pub key: Arc<[u8]>,
    /// How many bytes it will have.
    pub slice_bytes: usize,
    /// It is prefetched.
    pub is_ahead: bool,
    /// A caller has read it to its end.
    was_read: AtomicBool,
    /// All bytes, once they are there.
    whole: OnceLock<AlignedBuffer>,
    filling: Mutex<Filling>,
    progress: Condvar,
}

#[derive(Debug)]
struct Filling {
    bytes: AlignedBuffer,
    /// How long a reader waits.
    patience: Duration,
    given_up: bool,
    /// Which filler it is: how often it has changed.
    filler: u64,
    /// A reader has waited without result since the last bytes arrived.
    stalled: bool,
}

impl Default for Filling {
    fn default() -> Self {
        Self {
            bytes: AlignedBuffer::default(),
            patience: PATIENCE,
            given_up: false,
            filler: 0,
            stalled: false,
        }
    }
}

/// Result of [`Image::read`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageRead {
    /// The bytes are there.
    Done,
    /// They will not come.
    Absent,
    /// They do not come, and the caller is the filler with this number now.
    Fill(u64),
}

/// Result of [`Image::append`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// More bytes are to come.
    InOrder,
    /// These were the last: the caller passes the image on.
    Completed,
    /// Not appended: it was given up or is complete, or bytes before these are missing.
    Refused,
}

impl Image {
    /// Copies the bytes at `from` into `out`; waits for them if another reader is reading them.
    /// After a timeout the caller becomes the filler, if `may_fill` and the bytes are the next.
    pub fn read(&self, from: usize, out: &mut [u8], may_fill: bool) -> ImageRead {
        let end = from + out.len();
        if let Some(bytes) = self.whole.get() {
            out.copy_from_slice(&bytes[from..end]);
            return ImageRead::Done;
        }
        let mut filling = self.filling.lock();
        let until = Instant::now() + filling.patience;
        let filler = filling.filler;
        loop {
            if let Some(bytes) = self.whole.get() {
                out.copy_from_slice(&bytes[from..end]);
                return ImageRead::Done;
            }
            if filling.bytes.len() >= end {
                out.copy_from_slice(&filling.bytes[from..end]);
                return ImageRead::Done;
            }
            if filling.given_up {
                return ImageRead::Absent;
            }
            if !filling.stalled && !self.progress.wait_until(&mut filling, until).timed_out() {
                continue;
            }
            if filling.filler != filler {
                // Another reader has waited as long, and reads the next bytes.
                return ImageRead::Absent;
            }
            if may_fill && from <= filling.bytes.len() {
                filling.filler += 1;
                filling.stalled = false;
                return ImageRead::Fill(filling.filler);
            }
            filling.stalled = true;
            self.progress.notify_all();
            return ImageRead::Absent;
        }
    }

    /// Adds bytes that were read at `from`, except those that are present.
    pub fn append(&self, from: usize, bytes: &[u8]) -> Appended {
        let mut filling = self.filling.lock();
        let filled = filling.bytes.len();
        let end = from + bytes.len();
        if self.whole.get().is_some() || filling.given_up || from > filled || end > self.slice_bytes {
            return Appended::Refused;
        }
        if end > filled {
            filling.bytes.extend_from_slice(&bytes[filled - from..]);
            filling.stalled = false;
            self.progress.notify_all();
        }
        if filling.bytes.len() < self.slice_bytes {
            return Appended::InOrder;
        }
        let _ = self.whole.set(std::mem::take(&mut filling.bytes));
        Appended::Completed
    }

    /// Whether the filler with this number is still the one, and has something to do.
    pub fn is_filled_by(&self, filler: u64) -> bool {
        let filling = self.filling.lock();
        filling.filler == filler && !filling.given_up && self.whole.get().is_none()
    }

    /// All bytes, once they are there.
    pub fn whole(&self) -> Option<&[u8]> {
        self.whole.get().map(|bytes| &bytes[..])
    }

    /// A caller has read it to its end.
    pub fn set_read(&self) {
        self.was_read.store(true, Ordering::Release);
    }

    /// Whether [`Image::set_read`] was called.
    pub fn was_read(&self) -> bool {
        self.was_read.load(Ordering::Acquire)
    }
}

/// All images, and which of them are to be written to flash.
#[derive(Debug)]
pub struct Images {
    bytes_max: u64,
    bytes: AtomicU64,
    table: Mutex<HashMap<Slice, Arc<Image>>>,
    queue: Mutex<VecDeque<Arc<Image>>>,
    /// There is another image to write.
    queued: Event,
    /// There is another image to write, or other work for the thread that writes images.
    roused: Event,
}

/// Result of [`Images::join`].
pub enum Joined {
    /// There is one: complete, or being filled.
    There(Arc<Image>),
    /// The caller is to fill it: it is filler number 0.
    Fill(Arc<Image>),
    /// No room.
    Full,
}

impl Images {
    /// Room for this many bytes.
    pub fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            bytes: AtomicU64::new(0),
            table: Mutex::default(),
            queue: Mutex::default(),
            queued: Event::default(),
            roused: Event::default(),
        }
    }

    /// Whether there may be any.
    pub const fn has_room_at_all(&self) -> bool {
        self.bytes_max > 0
    }

    /// Nothing is read ahead that would bring [`Images::bytes`] above this.
    pub const fn ahead_bytes_max(&self) -> u64 {
        self.bytes_max / AHEAD_PART
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

    /// The image of a slice, or a new one that the caller fills. Prefetched ones have half of the
    /// room.
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
            whole: OnceLock::new(),
            filling: Mutex::default(),
            progress: Condvar::new(),
        });
        table.insert(slice, Arc::clone(&image));
        Joined::Fill(image)
    }

    /// Drops an image, complete or not.
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
        self.wake();
    }

    /// Sleeps until there is an image to write or something else to do, at most `wait`. `seen` is
    /// the waiting thread's alone.
    pub fn sleep(&self, seen: &mut u64, wait: Duration) {
        if self.queue.lock().is_empty() {
            self.roused.wait(seen, wait);
        }
    }

    /// Ends [`Images::sleep`]: there is something else to do, which can wait as long as the next
    /// image is waited for.
    pub fn rouse(&self) {
        self.roused.raise();
    }

    /// The next image to write; waits at most `wait` for one. `seen` is the waiting thread's alone.
    pub fn next(&self, seen: &mut u64, wait: Duration) -> Option<Arc<Image>> {
        let next = || self.queue.lock().pop_front();
        self.queued.wait_unless(seen, wait, next)
    }

    /// Ends both waits.
    pub fn wake(&self) {
        self.queued.raise();
        self.roused.raise();
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

    /// So long that a wait shows, however busy the machine is.
    const LONG: Duration = Duration::from_secs(600);

    fn key() -> Arc<[u8]> {
        Arc::from(&b"key"[..])
    }

    /// From now on readers of it wait so long for bytes.
    fn set_patience(image: &Image, patience: Duration) {
        image.filling.lock().patience = patience;
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
        set_patience(&image, LONG);
        let Joined::There(other) = images.join(SLICE, 8192, &key(), false) else {
            panic!("it is being filled")
        };
        let follower = std::thread::spawn(move || {
            let mut out = [0; 4096];
            (other.read(4096, &mut out, false), out[0])
        });
        assert_eq!(image.append(0, &[1; 4096]), Appended::InOrder);
        assert_eq!(image.append(0, &[9; 4096]), Appended::InOrder, "they are there");
        assert_eq!(image.append(4097, &[9; 95]), Appended::Refused, "not the next");
        assert!(image.is_filled_by(0) && image.whole().is_none());
        assert_eq!(image.append(4096, &[2; 4096]), Appended::Completed);
        assert_eq!(follower.join().unwrap(), (ImageRead::Done, 2));
        assert_eq!(image.append(0, &[9; 8192]), Appended::Refused, "it is passed on once");
        assert!(!image.is_filled_by(0));
        assert_eq!(image.whole().unwrap()[4095..4097], [1, 2]);
    }

    #[test]
    fn nobody_waits_for_a_filler_that_gave_up_or_stalls() {
        let images = Images::new(1 << 20);
        let image = fill(&images, SLICE, 8192);
        let start = Instant::now();
        assert_eq!(image.read(0, &mut [0; 10], false), ImageRead::Absent);
        assert!(start.elapsed() >= PATIENCE);
        images.drop_image(&image);
        set_patience(&image, LONG);
        let start = Instant::now();
        assert_eq!(image.read(0, &mut [0; 10], true), ImageRead::Absent);
        assert!(start.elapsed() < LONG / 2);
        assert_eq!(image.append(0, &[1; 10]), Appended::Refused, "it was given up");
        assert!(images.find(SLICE).is_none());
    }

    /// A client that stopped reading kept the image that it filled: every other reader waited 100
    /// ms at every read, and none of them was allowed to fill it.
    #[test]
    fn a_reader_that_waited_in_vain_for_the_next_bytes_fills_the_image() {
        let images = Images::new(1 << 20);
        let image = fill(&images, SLICE, 8192);
        assert_eq!(image.append(0, &[1; 100]), Appended::InOrder);
        assert_eq!(image.read(8000, &mut [0; 100], true), ImageRead::Absent, "not the next");
        set_patience(&image, LONG);
        let start = Instant::now();
        for _ in 0..5 {
            assert_eq!(image.read(8000, &mut [0; 100], true), ImageRead::Absent);
        }
        assert_eq!(image.read(50, &mut [0; 100], true), ImageRead::Fill(1));
        assert!(start.elapsed() < LONG / 2, "once is enough");
        assert!(!image.is_filled_by(0) && image.is_filled_by(1));
        assert_eq!(image.append(50, &[2; 8142]), Appended::Completed);
        assert_eq!(
            image.append(100, &[3; 100]),
            Appended::Refused,
            "the one before comes late"
        );
        assert_eq!(image.whole().unwrap()[99..101], [1, 2]);
        let mut out = [0; 100];
        assert_eq!((image.read(100, &mut out, true), out), (ImageRead::Done, [2; 100]));
    }

    /// The thread that wrote an image to flash held its lock meanwhile, for seconds under other
    /// load: readers of the object, which is hot, waited for it.
    #[test]
    fn a_whole_image_is_read_while_it_is_being_written() {
        let images = Images::new(1 << 20);
        let image = fill(&images, SLICE, 8192);
        assert_eq!(image.append(0, &[1; 8192]), Appended::Completed);
        let written = image.whole().unwrap();
        let _whatever_else_is_locked = image.filling.lock();
        let mut out = [0; 100];
        assert_eq!(image.read(0, &mut out, false), ImageRead::Done);
        assert_eq!(out, written[..100]);
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
