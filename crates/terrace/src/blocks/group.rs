//! The writes of one block, and one `fdatasync` for all that ended before it started.
//!
//! Each write has an *ordinal*: taken before it begins if later writes must not overtake it, or
//! after it has ended. A caller that needs writes to be durable waits with their ordinals; the
//! first caller that finds them ended and no sync under way syncs for all.
//!
//! Invariants:
//! - An ordinal counts as durable only if its write had ended, without error, before a successful
//!   sync began.
//! - After a failed sync no further ordinal becomes durable.
//!
//! On failure: a failed write fails its ordinal alone, a failed sync fails all present and future
//! waiters.

use crate::io::DiskFile;
use parking_lot::{Condvar, Mutex};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
};

/// Ordinals with their results.
#[derive(Debug, Default)]
pub(super) struct GroupSync {
    state: Mutex<SyncState>,
    /// A write ended.
    written: Condvar,
    /// A sync ended.
    synced: Condvar,
}

#[derive(Debug, Default)]
struct SyncState {
    next: u64,
    /// Ordinals of writes that have not ended.
    writing: BTreeSet<u64>,
    failed_writes: BTreeMap<u64, io::Error>,
    /// The last sync that succeeded covers all ordinals below this,
    covered: u64,
    /// except these, whose writes had not ended when it began.
    not_covered: BTreeSet<u64>,
    syncing: bool,
    failed: Option<io::Error>,
}

/// The same error for the next caller.
fn again(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
}

/// Why a write is not durable.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotDurable {
    /// It failed itself; others did not.
    #[error("{0}")]
    Write(io::Error),
    /// A sync failed: what the file holds is unknown.
    #[error("{0}")]
    Sync(io::Error),
}

impl SyncState {
    fn is_durable(&self, ordinal: u64) -> bool {
        ordinal < self.covered && !self.not_covered.contains(&ordinal)
    }
}

impl GroupSync {
    /// An ordinal for a write that begins now.
    pub fn begin(&self) -> u64 {
        let mut state = self.state.lock();
        let ordinal = state.next;
        state.next += 1;
        state.writing.insert(ordinal);
        ordinal
    }

    /// The write with this ordinal has ended.
    pub fn end(&self, ordinal: u64, result: Result<(), &io::Error>) {
        let mut state = self.state.lock();
        state.writing.remove(&ordinal);
        if let Err(error) = result {
            state.failed_writes.insert(ordinal, again(error));
        }
        self.written.notify_all();
    }

    /// An ordinal that covers everything written so far.
    pub fn mark(&self) -> u64 {
        let mut state = self.state.lock();
        state.next += 1;
        state.next - 1
    }

    /// Returns once the writes with these ordinals are durable.
    ///
    /// # Errors
    /// If one of them failed, or a sync did, now or before.
    pub fn wait(&self, ordinals: &[u64], file: Option<&Arc<dyn DiskFile>>) -> Result<(), NotDurable> {
        let mut state = self.state.lock();
        loop {
            if let Some(failure) = ordinals.iter().find_map(|ordinal| state.failed_writes.get(ordinal)) {
                return Err(NotDurable::Write(again(failure)));
            }
            if ordinals.iter().all(|ordinal| state.is_durable(*ordinal)) {
                return Ok(());
            }
            if let Some(failure) = &state.failed {
                return Err(NotDurable::Sync(again(failure)));
            }
            if ordinals.iter().any(|ordinal| state.writing.contains(ordinal)) {
                self.written.wait(&mut state);
                continue;
            }
            if state.syncing {
                self.synced.wait(&mut state);
                continue;
            }
            // A block without a file is at rest, and was synced before it came to that.
            let Some(file) = file else { return Ok(()) };
            state.syncing = true;
            let (covered, not_covered) = (state.next, state.writing.clone());
            drop(state);
            let result = file.sync_data();
            state = self.state.lock();
            state.syncing = false;
            match result {
                Ok(()) => (state.covered, state.not_covered) = (covered, not_covered),
                Err(error) => state.failed = Some(error),
            }
            self.synced.notify_all();
        }
    }

    /// Returns when no write is under way.
    pub fn wait_written(&self) {
        let mut state = self.state.lock();
        while !state.writing.is_empty() {
            self.written.wait(&mut state);
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
    use std::sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering},
    };

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
                    let ordinal = group.begin();
                    group.end(ordinal, Ok(()));
                    barrier.wait();
                    group.wait(&[ordinal], Some(&file)).unwrap();
                });
            }
        });
        // All writes ended before the first sync started, so that one covers them all.
        assert_eq!(slow.syncs.load(Ordering::SeqCst), 1);
        group.wait(&[group.mark()], Some(&file)).unwrap();
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
        assert!(group.wait(&[group.mark()], Some(&file)).is_err());
        assert!(group.wait(&[group.mark()], Some(&file)).is_err());
        assert_eq!(
            slow.syncs.load(Ordering::SeqCst),
            1,
            "never synced again: the kernel may have dropped the pages"
        );
        assert!(group.failed());
    }

    #[test]
    fn a_sync_covers_the_writes_that_had_ended_and_no_others() {
        let slow = Arc::new(SlowFile::default());
        let file: Arc<dyn DiskFile> = Arc::<SlowFile>::clone(&slow);
        let group = GroupSync::default();
        let (first, second) = (group.begin(), group.begin());
        group.end(second, Ok(()));
        group.wait(&[second], Some(&file)).unwrap();
        assert_eq!(slow.syncs.load(Ordering::SeqCst), 1, "it does not wait for the first");
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| group.wait(&[first, second], Some(&file)));
            std::thread::sleep(std::time::Duration::from_millis(30));
            assert!(!waiter.is_finished());
            assert_eq!(
                slow.syncs.load(Ordering::SeqCst),
                1,
                "no sync before the write has ended"
            );
            group.end(first, Ok(()));
            waiter.join().unwrap().unwrap();
        });
        assert_eq!(slow.syncs.load(Ordering::SeqCst), 2);
        group.wait(&[first, second], Some(&file)).unwrap();
        group.wait_written();
        assert_eq!(slow.syncs.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_failed_write_fails_its_ordinal_alone() {
        let slow = Arc::new(SlowFile::default());
        let file: Arc<dyn DiskFile> = Arc::<SlowFile>::clone(&slow);
        let group = GroupSync::default();
        let (good, bad) = (group.begin(), group.begin());
        group.end(bad, Err(&io::Error::other("lost")));
        group.end(good, Ok(()));
        group.wait(&[good], Some(&file)).unwrap();
        assert!(matches!(group.wait(&[bad], Some(&file)), Err(NotDurable::Write(_))));
        assert!(!group.failed());
    }
}
