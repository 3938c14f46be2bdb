//! Commits that the index does not know yet. They answer first.
//!
//! The overlay is a list of frames, newest last. A frame enters when it is opened and leaves when it is both written
//! and applied, so at every moment a committed record can be found here or through the indexes.

use crate::flash::{format::Record, frame::Frame, recent::RecentFrames};
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
    /// Last seq of the last frame that left: everything up to it is applied and in its segment.
    released_seq: AtomicU64,
    room: Condvar,
    room_lock: Mutex<()>,
}

impl Overlay {
    /// An empty overlay. Everything up to `released_seq` is applied and written.
    pub fn starting_at(released_seq: u64) -> Self {
        Self {
            released_seq: AtomicU64::new(released_seq),
            ..Self::default()
        }
    }

    /// Adds a frame that was just opened, or recovered.
    pub fn push(&self, frame: Arc<Frame>) {
        self.frames.write().push_back(frame);
    }

    /// A frame was sealed at this length.
    pub fn sealed(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::AcqRel);
    }

    /// Lets go of the frames at the front that are written and applied: they are `recent` then.
    pub fn release_finished(&self, recent: &RecentFrames) {
        let mut frames = self.frames.write();
        let mut released = Vec::new();
        while let Some(frame) = frames.front().filter(|frame| frame.is_finished()) {
            let (last_seq, bytes) = {
                let view = frame.view();
                (view.last_seq(), view.bytes().len() as u64)
            };
            self.released_seq.fetch_max(last_seq, Ordering::AcqRel);
            self.bytes.fetch_sub(bytes, Ordering::AcqRel);
            released.extend(frames.pop_front());
        }
        drop(frames);
        if !released.is_empty() {
            released.into_iter().for_each(|frame| recent.keep(frame));
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
    pub fn find<R>(&self, hash: u64, key: &[u8], use_record: impl FnOnce(&Record<'_>) -> R) -> Option<R> {
        let frames = self.frames.read();
        for frame in frames.iter().rev() {
            let view = frame.view();
            if let Some(record) = view.find(hash, key) {
                return Some(use_record(&record));
            }
        }
        None
    }

    /// Hands the record at a place to `use_record`, if its frame is in the overlay. The indexes may know a record before it
    /// is on the device; whoever comes from them with its address must look here first.
    pub fn find_at<R>(&self, segment: u32, offset: u64, use_record: impl FnOnce(&Record<'_>) -> R) -> Option<R> {
        let frames = self.frames.read();
        let frame = frames
            .iter()
            .find(|frame| frame.segment == segment && (frame.offset..frame.end()).contains(&offset))?;
        frame
            .view()
            .record_at(offset - frame.offset)
            .map(|record| use_record(&record))
    }
}
