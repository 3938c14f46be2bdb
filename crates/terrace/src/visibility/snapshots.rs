//! Which seqs somebody still reads at. A snapshot is a seq: taking one costs a map entry; holding one keeps old
//! versions in the index and keeps drained segments and blocks from being reused.
//!
//! Invariants:
//! - A seq that is given as the oldest is not newer than any snapshot that counts. So while a snapshot counts, nothing
//!   it sees is freed.
//! - With a maximum age, a snapshot stops to count when it is found too old, under the lock, and is marked before the next
//!   oldest seq is given. Whoever reads by a snapshot looks at the mark after the read: unmarked, the read saw what
//!   the snapshot sees.
//! - What the store registers for itself has no maximum age.

use crate::{Error, Result};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// The open snapshots.
#[derive(Debug, Default)]
pub struct Snapshots {
    max_age: Option<Duration>,
    /// By seq and a number that tells those at one seq apart.
    open: Mutex<BTreeMap<(u64, u64), Open>>,
    next: AtomicU64,
    expired: AtomicU64,
}

/// A snapshot that counts.
#[derive(Debug)]
struct Open {
    since: Instant,
    /// Whether it may become too old.
    ages: bool,
    is_over: Arc<AtomicBool>,
}

/// What the open snapshots are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SnapshotFigures {
    /// How many there are.
    pub count: u64,
    /// Seq and age of the one with the lowest seq.
    pub oldest: Option<(u64, Duration)>,
    /// How many became too old, since the store was opened.
    pub expired: u64,
}

impl Snapshots {
    /// No snapshot yet.
    pub fn new(max_age: Option<Duration>) -> Self {
        Self {
            max_age,
            ..Self::default()
        }
    }

    /// Registers a caller's snapshot at what `current_seq` gives. Both happen under the lock that [`Snapshots::oldest_or`]
    /// takes, so a snapshot is never older than a watermark computed before it.
    pub fn register(self: &Arc<Self>, current_seq: impl FnOnce() -> u64) -> SnapshotSeq {
        self.register_as(self.max_age.is_some(), current_seq)
    }

    /// As [`Snapshots::register`], for the store itself: it counts until it is dropped.
    pub fn register_for_good(self: &Arc<Self>, current_seq: impl FnOnce() -> u64) -> SnapshotSeq {
        self.register_as(false, current_seq)
    }

    fn register_as(self: &Arc<Self>, ages: bool, current_seq: impl FnOnce() -> u64) -> SnapshotSeq {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut open = self.open.lock();
        let seq = current_seq();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let since = Instant::now();
        let entry = Open {
            since,
            ages,
            is_over: Arc::clone(&is_over),
        };
        open.insert((seq, number), entry);
        SnapshotSeq {
            seq,
            number,
            since,
            ages,
            is_over,
            snapshots: Arc::clone(self),
        }
    }

    /// The oldest snapshot's seq, or what `current_seq` gives if there is none. Those that are too old do not count from
    /// here on.
    pub fn oldest_or(&self, current_seq: impl FnOnce() -> u64) -> u64 {
        let mut open = self.open.lock();
        while let Some(oldest) = open.first_entry() {
            if !self.is_too_old(oldest.get().since, oldest.get().ages) {
                return oldest.key().0;
            }
            self.end(&oldest.remove());
        }
        current_seq()
    }

    fn is_too_old(&self, since: Instant, ages: bool) -> bool {
        ages && self.max_age.is_some_and(|max_age| since.elapsed() > max_age)
    }

    fn end(&self, open: &Open) {
        open.is_over.store(true, Ordering::SeqCst);
        self.expired.fetch_add(1, Ordering::Relaxed);
    }

    /// What the open snapshots are.
    pub fn figures(&self) -> SnapshotFigures {
        let open = self.open.lock();
        SnapshotFigures {
            count: open.len() as u64,
            oldest: open.first_key_value().map(|(key, open)| (key.0, open.since.elapsed())),
            expired: self.expired.load(Ordering::Relaxed),
        }
    }
}

/// A registered snapshot; released when dropped.
#[derive(Debug)]
pub struct SnapshotSeq {
    /// Commits up to this seq are seen.
    pub seq: u64,
    number: u64,
    since: Instant,
    ages: bool,
    is_over: Arc<AtomicBool>,
    snapshots: Arc<Snapshots>,
}

impl SnapshotSeq {
    /// Whether it still counts.
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`].
    pub fn check(&self) -> Result<()> {
        if self.is_over.load(Ordering::SeqCst) || self.snapshots.is_too_old(self.since, self.ages) {
            return Err(Error::SnapshotTooOld {
                version: self.seq,
                max_age: self.snapshots.max_age.unwrap_or_default(),
            });
        }
        Ok(())
    }

    /// Reads by the snapshot. What was read counts only if the snapshot still does afterwards.
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`], or what `read` ends with.
    pub fn read<T>(&self, read: impl FnOnce(u64) -> Result<T>) -> Result<T> {
        self.check()?;
        let outcome = read(self.seq);
        self.check()?;
        outcome
    }
}

impl Drop for SnapshotSeq {
    fn drop(&mut self) {
        self.snapshots.open.lock().remove(&(self.seq, self.number));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_oldest_counts_until_it_is_dropped() {
        let snapshots = Arc::new(Snapshots::new(None));
        let (first, second, third) = (
            snapshots.register(|| 5),
            snapshots.register(|| 5),
            snapshots.register(|| 9),
        );
        drop(first);
        assert_eq!(snapshots.oldest_or(|| 20), 5);
        assert_eq!(snapshots.figures().count, 2);
        drop(second);
        assert_eq!(snapshots.oldest_or(|| 20), 9);
        drop(third);
        assert_eq!(snapshots.oldest_or(|| 20), 20);
        assert_eq!(snapshots.figures(), SnapshotFigures::default());
    }

    #[test]
    fn a_snapshot_that_is_too_old_neither_counts_nor_reads() {
        let snapshots = Arc::new(Snapshots::new(Some(Duration::from_millis(20))));
        let own = snapshots.register_for_good(|| 7);
        let old = snapshots.register(|| 3);
        assert_eq!(old.read(Ok), Ok(3));
        assert_eq!(snapshots.oldest_or(|| 20), 3);
        // In the midst of a read.
        let outcome = old.read(|seq| {
            std::thread::sleep(Duration::from_millis(30));
            Ok(seq)
        });
        assert!(
            matches!(outcome, Err(Error::SnapshotTooOld { version: 3, .. })),
            "{outcome:?}"
        );
        assert_eq!(snapshots.oldest_or(|| 20), 7, "the store's own counts on");
        assert_eq!(own.read(Ok), Ok(7));
        assert!(old.check().is_err());
        let figures = snapshots.figures();
        assert_eq!((figures.count, figures.expired), (1, 1));
        drop(old);
        assert_eq!(snapshots.figures().count, 1);
    }
}
