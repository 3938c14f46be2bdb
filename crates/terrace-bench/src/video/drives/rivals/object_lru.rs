//! Whole segments on flash, evicting the least recently used. A missing segment is returned first
//! and written by another thread; if too many wait to be written, it is not kept.

use super::{CacheFile, Flash, Shelf};
use crate::Outcome;
use lru::LruCache;
use parking_lot::Mutex;
use std::{
    num::NonZeroUsize,
    ops::Range,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{SyncSender, TrySendError, sync_channel},
    },
    thread::JoinHandle,
};
use terrace::io::AlignedBuffer;

/// Most segments waiting to be written.
const WAITING_MAX: usize = 32;

#[derive(Debug)]
struct Places {
    slot_of: LruCache<usize, usize>,
    free: Vec<usize>,
    /// How often each slot was written.
    uses: Vec<u64>,
}

#[derive(Debug)]
struct Shared {
    file: CacheFile,
    places: Mutex<Places>,
    segment_bytes: usize,
    /// Bytes of segments that readers can find.
    written_bytes: AtomicU64,
}

/// The cache.
#[derive(Debug)]
pub struct ObjectLru {
    shared: Arc<Shared>,
    waiting: Mutex<Option<SyncSender<(usize, AlignedBuffer)>>>,
    writer: Mutex<Option<JoinHandle<Outcome>>>,
}

impl ObjectLru {
    /// A cache in a file of this size, rounded down to whole segments, at least one.
    pub fn new(directory: &Path, bytes: u64, segment_bytes: usize) -> Outcome<Self> {
        let slots = NonZeroUsize::new(bytes as usize / segment_bytes).unwrap_or(NonZeroUsize::MIN);
        let shared = Arc::new(Shared {
            file: CacheFile::create(directory, (slots.get() * segment_bytes) as u64)?,
            places: Mutex::new(Places {
                slot_of: LruCache::new(slots),
                free: (0..slots.get()).rev().collect(),
                uses: vec![0; slots.get()],
            }),
            segment_bytes,
            written_bytes: AtomicU64::new(0),
        });
        let (waiting, to_write) = sync_channel::<(usize, AlignedBuffer)>(WAITING_MAX);
        let writing = Arc::clone(&shared);
        let writer = std::thread::spawn(move || {
            to_write
                .into_iter()
                .try_for_each(|(object, segment)| writing.write(object, &segment))
        });
        Ok(Self {
            shared,
            waiting: Mutex::new(Some(waiting)),
            writer: Mutex::new(Some(writer)),
        })
    }
}

impl Shared {
    /// Only one thread writes, so a slot without an object belongs to it.
    fn write(&self, object: usize, segment: &[u8]) -> Outcome {
        let slot = {
            let mut places = self.places.lock();
            if places.slot_of.contains(&object) {
                return Ok(());
            }
            let free = places.free.pop();
            let Some(slot) = free.or_else(|| places.slot_of.pop_lru().map(|(_, slot)| slot)) else {
                return Ok(());
            };
            places.uses[slot] += 1;
            slot
        };
        self.file.write(segment, (slot * self.segment_bytes) as u64)?;
        self.places.lock().slot_of.put(object, slot);
        self.written_bytes.fetch_add(segment.len() as u64, Ordering::Release);
        Ok(())
    }
}

impl Flash for ObjectLru {
    fn read(&self, shelf: &Shelf, object: usize, part: Range<usize>, into: &mut [u8]) -> Outcome {
        let place = || {
            let mut places = self.shared.places.lock();
            let slot = *places.slot_of.get(&object)?;
            Some((slot, places.uses[slot]))
        };
        if let Some(found) = place() {
            let position = (found.0 * self.shared.segment_bytes + part.start) as u64;
            self.shared.file.read(into, position)?;
            // It may have been evicted meanwhile, and its slot reused.
            if place() == Some(found) {
                return Ok(());
            }
        }
        shelf.read(object, part, into)
    }

    fn was_read(&self, object: usize, segment: &AlignedBuffer) -> Outcome {
        if self.shared.places.lock().slot_of.contains(&object) {
            return Ok(());
        }
        let waiting = self.waiting.lock();
        let Some(waiting) = waiting.as_ref() else { return Ok(()) };
        match waiting.try_send((object, segment.clone())) {
            Ok(()) | Err(TrySendError::Full(_)) => Ok(()),
            Err(TrySendError::Disconnected(_)) => Err("the writer of the cache has ended".into()),
        }
    }

    fn written_bytes(&self) -> u64 {
        self.shared.written_bytes.load(Ordering::Acquire)
    }

    fn close(&self) -> Outcome {
        drop(self.waiting.lock().take());
        let writer = self.writer.lock().take();
        writer.map_or(Ok(()), |writer| {
            writer.join().unwrap_or_else(|_| Err("the writer panicked".into()))
        })
    }
}
