//! Commits that the index does not know yet. They answer first.
//!
//! The overlay is a list of frames, newest last. A frame enters when it is opened and leaves when it is both written
//! and applied, so at every moment a committed record can be found here or through the indexes.

use crate::flash::frame::Frame;
use parking_lot::{Condvar, Mutex, RwLock};
use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// The list of unapplied frames.
#[derive(Debug, Default)]
pub struct Overlay {
    frames: RwLock<VecDeque<Arc<Frame>>>,
    /// Bytes of the sealed frames in the list.
    bytes: AtomicU64,
    /// Last seq of the last frame that left.
    released_seq: AtomicU64,
    room: Condvar,
    room_lock: Mutex<()>,
}

impl Overlay {
    /// Adds a frame that was just opened, or recovered.
    pub fn push(&self, frame: Arc<Frame>) {
        self.frames.write().push_back(frame);
    }

    /// A frame was sealed at this length.
    pub fn sealed(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::AcqRel);
    }

    /// Lets go of the frames at the front that are written and applied.
    pub fn release_finished(&self) {
        let mut frames = self.frames.write();
        let mut released = 0;
        while let Some(frame) = frames.front().filter(|frame| frame.is_finished()) {
            let (last_seq, bytes) = {
                let view = frame.view();
                (view.last_seq(), view.bytes().len() as u64)
            };
            self.released_seq.fetch_max(last_seq, Ordering::AcqRel);
            self.bytes.fetch_sub(bytes, Ordering::AcqRel);
            frames.pop_front();
            released += 1;
        }
        drop(frames);
        if released > 0 {
            let _guard = self.room_lock.lock();
            self.room.notify_all();
        }
    }

    /// Bytes of commits not yet applied or written, without the open frame.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Number of frames.
    pub fn len(&self) -> usize {
        self.frames.read().len()
    }

    /// Last seq of the last frame that left. While this stays the same, what the index says of a key that is not
    /// in the overlay is its latest state.
    pub fn released_seq(&self) -> u64 {
        self.released_seq.load(Ordering::Acquire)
    }

    /// Waits until there are at most `limit` bytes, or `give_up` says so; looks again every 50 ms at least.
    pub fn wait_for_room(&self, limit: u64, give_up: impl Fn() -> bool) {
        if self.bytes() <= limit {
            return;
        }
        let mut guard = self.room_lock.lock();
        while self.bytes() > limit && !give_up() {
            self.room.wait_for(&mut guard, Duration::from_millis(50));
        }
    }

    /// Hands the newest record of `key` to `use_record`, if the overlay has one.
    pub fn find<R>(
        &self,
        hash: u64,
        key: &[u8],
        use_record: impl FnOnce(&crate::flash::format::Record<'_>) -> R,
    ) -> Option<R> {
        let frames = self.frames.read();
        for frame in frames.iter().rev() {
            let view = frame.view();
            if let Some(record) = view.find(hash, key) {
                return Some(use_record(&record));
            }
        }
        None
    }
}
