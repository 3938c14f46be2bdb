//! One LargeBlock in RAM: what may still be written to it, what is live in it, and its shared syncs.
//!
//! Invariants:
//! - Every byte of a block is given out to one writer once; an abandoned extent is never written again.
//! - `Writing` is there only while this process may write the block; after a restart it never is again.
//! - After a failed write or sync no further extent is reserved in the block.

use super::format::{ExtentKind, FooterEntry, PAGE};
use crate::io::DiskFile;
use parking_lot::{Condvar, Mutex};
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Space is taken from the file system in steps of this size, so that a full disk shows at a reservation.
const ALLOCATION_STEP_BYTES: u64 = 8 << 20;

/// A block and what is known of it. `Arc` clones beside the one in the space's table pin it.
#[derive(Debug)]
pub(super) struct Block {
    pub number: u64,
    /// Bytes of extents that entries of the index point to.
    pub live_bytes: AtomicU64,
    /// Bytes of extents written but not yet accounted by the applier. While there are any, the block is not dead.
    pub unapplied_bytes: AtomicU64,
    pub writing: Mutex<Option<Writing>>,
    pub group: GroupSync,
}

impl Block {
    /// A block this process will not write.
    pub fn at_rest(number: u64) -> Self {
        Self {
            number,
            live_bytes: AtomicU64::new(0),
            unapplied_bytes: AtomicU64::new(0),
            writing: Mutex::new(None),
            group: GroupSync::default(),
        }
    }

    /// A new block whose header is written.
    pub fn open(number: u64, file: Arc<dyn DiskFile>) -> Self {
        let block = Self::at_rest(number);
        *block.writing.lock() = Some(Writing {
            file,
            tail: PAGE,
            allocated_bytes: PAGE,
            extents: Vec::new(),
            pending: 0,
            closed: false,
        });
        block
    }

    /// The file, while the block may be written.
    pub fn writing_file(&self) -> Option<Arc<dyn DiskFile>> {
        self.writing.lock().as_ref().map(|writing| Arc::clone(&writing.file))
    }

    /// No further extent goes into this block.
    pub fn close(&self) {
        if let Some(writing) = self.writing.lock().as_mut() {
            writing.closed = true;
        }
    }

    /// Settles the extent at `offset`: 0 abandons it, anything else is its version.
    pub fn settle(&self, offset: u64, version: u64) {
        let mut guard = self.writing.lock();
        let Some(writing) = guard.as_mut() else { return };
        let Ok(at) = writing
            .extents
            .binary_search_by_key(&offset, |extent| extent.entry.offset)
        else {
            return;
        };
        let extent = &mut writing.extents[at];
        if !extent.settled {
            extent.settled = true;
            extent.entry.version = version;
            writing.pending -= 1;
        }
    }

    pub fn is_dead(&self) -> bool {
        self.has_nothing_live() && self.writing.lock().is_none()
    }

    /// No entry points into it, nor will one that is on its way.
    pub fn has_nothing_live(&self) -> bool {
        self.live_bytes.load(Ordering::Acquire) == 0 && self.unapplied_bytes.load(Ordering::Acquire) == 0
    }
}

/// A counter that never wraps below zero.
pub(super) fn subtract(counter: &AtomicU64, bytes: u64) {
    let _ = counter.fetch_update(Ordering::AcqRel, Ordering::Acquire, |value| {
        Some(value.saturating_sub(bytes))
    });
}

/// The writable side of an open block.
#[derive(Debug)]
pub(super) struct Writing {
    pub file: Arc<dyn DiskFile>,
    /// Where the next extent starts; page-aligned.
    pub tail: u64,
    pub allocated_bytes: u64,
    pub extents: Vec<Extent>,
    /// Extents not yet settled.
    pub pending: usize,
    /// No further reservation.
    pub closed: bool,
}

/// An extent of an open block.
#[derive(Debug)]
pub(super) struct Extent {
    pub entry: FooterEntry,
    pub settled: bool,
}

impl Writing {
    /// Reserves an extent of `bytes`. `None`: the block is full, take another.
    pub fn reserve(&mut self, bytes: u64, split_bytes: u64) -> io::Result<Option<u64>> {
        let end = (self.tail + bytes).next_multiple_of(PAGE);
        if self.closed || (end > split_bytes && !self.extents.is_empty()) {
            self.closed = true;
            return Ok(None);
        }
        self.allocate(end, split_bytes)?;
        let offset = self.tail;
        self.push(offset, bytes, split_bytes);
        Ok(Some(offset))
    }

    /// Notes an extent at the tail, not settled yet.
    pub fn push(&mut self, offset: u64, bytes: u64, split_bytes: u64) {
        self.extents.push(Extent {
            entry: FooterEntry {
                kind: ExtentKind::Put,
                offset,
                extent_bytes: bytes,
                version: 0,
            },
            settled: false,
        });
        self.pending += 1;
        self.tail = (offset + bytes).next_multiple_of(PAGE);
        self.closed |= self.tail >= split_bytes;
    }

    /// Makes sure of space up to `end`: in steps, or exactly if the device has no room for a step.
    pub fn allocate(&mut self, end: u64, split_bytes: u64) -> io::Result<()> {
        if end <= self.allocated_bytes {
            return Ok(());
        }
        let ahead = self.allocated_bytes.max(end) + ALLOCATION_STEP_BYTES;
        // A block that is longer than the threshold already is one huge value's: there is no other limit.
        let limit = split_bytes.next_multiple_of(PAGE);
        let step = if end > limit { ahead } else { ahead.min(limit) };
        let bytes = match self.file.allocate(step) {
            Ok(()) => step,
            Err(_) if step > end => {
                self.file.allocate(end)?;
                end
            }
            Err(error) => return Err(error),
        };
        self.allocated_bytes = bytes;
        Ok(())
    }
}

/// One `fdatasync` for everybody who finished before it started: the first who waits syncs for all.
#[derive(Debug, Default)]
pub(super) struct GroupSync {
    state: Mutex<SyncState>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct SyncState {
    started: u64,
    completed: u64,
    running: bool,
    failed: Option<(io::ErrorKind, String)>,
}

impl GroupSync {
    /// A mark of now: a sync that starts later covers everything written before.
    pub fn mark(&self) -> u64 {
        self.state.lock().started
    }

    /// Returns once everything written before `mark` is durable. The flag says whether this call found a
    /// failure first.
    pub fn wait(&self, mark: u64, file: Option<&Arc<dyn DiskFile>>) -> io::Result<()> {
        let mut state = self.state.lock();
        loop {
            if let Some((kind, message)) = &state.failed {
                return Err(io::Error::new(*kind, message.clone()));
            }
            if state.completed > mark {
                return Ok(());
            }
            if state.running {
                self.ended.wait(&mut state);
                continue;
            }
            // A block without a file was sealed, and its seal synced it.
            let Some(file) = file else { return Ok(()) };
            state.running = true;
            state.started += 1;
            let this = state.started;
            drop(state);
            let result = file.sync_data();
            state = self.state.lock();
            state.running = false;
            match result {
                Ok(()) => state.completed = this,
                Err(error) => state.failed = Some((error.kind(), error.to_string())),
            }
            self.ended.notify_all();
        }
    }

    /// Whether a sync failed: what the file holds is unknown, it must not be written again.
    pub fn failed(&self) -> bool {
        self.state.lock().failed.is_some()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::{Barrier, atomic::AtomicUsize};

    #[derive(Debug, Default)]
    struct SlowFile {
        syncs: AtomicUsize,
        fail: bool,
    }

    impl DiskFile for SlowFile {
        fn read_exact_at(&self, _: &mut [u8], _: u64) -> io::Result<()> {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
        fn read_up_to_at(&self, _: &mut [u8], _: u64) -> io::Result<usize> {
            Ok(0)
        }
        fn write_all_at(&self, _: &[u8], _: u64) -> io::Result<()> {
            Ok(())
        }
        fn sync_data(&self) -> io::Result<()> {
            self.syncs.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(std::time::Duration::from_millis(20));
            if self.fail {
                Err(io::Error::other("lost"))
            } else {
                Ok(())
            }
        }
        fn allocate(&self, _: u64) -> io::Result<()> {
            Ok(())
        }
        fn set_len(&self, _: u64) -> io::Result<()> {
            Ok(())
        }
        fn len(&self) -> io::Result<u64> {
            Ok(0)
        }
        fn is_direct(&self) -> bool {
            false
        }
    }

    #[test]
    fn waiters_share_syncs() {
        let slow = Arc::new(SlowFile::default());
        let file: Arc<dyn DiskFile> = Arc::<SlowFile>::clone(&slow);
        let group = GroupSync::default();
        let barrier = Barrier::new(16);
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    let mark = group.mark();
                    barrier.wait();
                    group.wait(mark, Some(&file)).unwrap();
                });
            }
        });
        // All marks are from before the first sync started, so that one covers them all.
        assert_eq!(slow.syncs.load(Ordering::SeqCst), 1);
        group.wait(group.mark(), Some(&file)).unwrap();
        assert_eq!(slow.syncs.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_failed_sync_fails_all_later_ones() {
        let slow = Arc::new(SlowFile {
            fail: true,
            ..SlowFile::default()
        });
        let file: Arc<dyn DiskFile> = Arc::<SlowFile>::clone(&slow);
        let group = GroupSync::default();
        assert!(group.wait(0, Some(&file)).is_err());
        assert!(group.wait(group.mark(), Some(&file)).is_err());
        assert_eq!(
            slow.syncs.load(Ordering::SeqCst),
            1,
            "never synced again: the kernel may have dropped the pages"
        );
        assert!(group.failed());
    }
}
