//! Seqs at which reads may still happen. A snapshot is a seq: taking one costs a map entry; holding
//! one keeps old versions in the index and keeps drained segments and blocks from being reused.
//!
//! Invariants:
//! - The seq returned as the oldest is not newer than any valid snapshot. So while a snapshot is
//!   valid, nothing it sees is freed.
//! - With a maximum age, a snapshot becomes invalid when it is found too old, under the lock, and
//!   is marked before the next oldest seq is returned. While a read by it is under way it stays
//!   valid at any age: the index must not forget the state that is being read. No read begins with
//!   a snapshot that is marked or too old.
//! - Snapshots that the store takes for itself have no maximum age.

use crate::{Error, Result, metrics::event::Event};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// The open snapshots.
#[derive(Debug, Default)]
pub struct Snapshots {
    max_age: Option<Duration>,
    /// By seq and a number that distinguishes those at the same seq.
    open: Mutex<BTreeMap<(u64, u64), Open>>,
    next: AtomicU64,
    expired: AtomicU64,
    /// Raised when a snapshot is dropped: versions that it kept may be deleted.
    dropped: Arc<Event>,
    /// See [`Snapshots::look_older_by`].
    #[cfg(test)]
    seconds_ahead: AtomicU64,
}

/// A snapshot that counts.
#[derive(Debug, Clone)]
struct Open {
    since: Instant,
    /// Whether it may become too old.
    ages: bool,
    reads: Arc<Reads>,
}

/// How many reads by a snapshot are under way, or that there will be none any more.
#[derive(Debug, Default)]
struct Reads(AtomicU64);

impl Reads {
    const OVER: u64 = u64::MAX;

    /// Ends the snapshot, unless a read by it is under way. Whether it is over.
    fn end(&self) -> bool {
        let ended = self
            .0
            .compare_exchange(0, Self::OVER, Ordering::SeqCst, Ordering::SeqCst);
        matches!(ended, Ok(_) | Err(Self::OVER))
    }

    fn is_over(&self) -> bool {
        self.0.load(Ordering::SeqCst) == Self::OVER
    }

    /// Begins a read, which lasts until the result is dropped. `None` if the snapshot has expired.
    fn begin(&self) -> Option<UnderWay<'_>> {
        let one_more = |now: u64| (now != Self::OVER).then(|| now + 1);
        let begun = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more);
        begun.is_ok().then_some(UnderWay(self))
    }
}

/// A read by a snapshot.
struct UnderWay<'a>(&'a Reads);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Summary of the open snapshots.
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

    /// Raises this event whenever a snapshot is dropped.
    #[must_use]
    pub fn raising(mut self, dropped: Arc<Event>) -> Self {
        self.dropped = dropped;
        self
    }

    /// Registers a snapshot at the seq that `current_seq` returns. Both happen under the lock that
    /// [`Snapshots::oldest_or`] takes, so a snapshot is never older than a watermark computed
    /// before it. A snapshot that `ages` (a caller's) expires by age; one of the store itself
    /// counts until it is dropped.
    pub fn register(self: &Arc<Self>, ages: bool, current_seq: impl FnOnce() -> u64) -> SnapshotSeq {
        let mut all = self.open.lock();
        let seq = current_seq();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let open = Open {
            since: Instant::now(),
            ages,
            reads: Arc::default(),
        };
        all.insert((seq, number), open.clone());
        SnapshotSeq {
            seq,
            number,
            open,
            snapshots: Arc::clone(self),
        }
    }

    /// The oldest snapshot's seq, or the result of `current_seq` if there is none. Snapshots that
    /// are too old expire here.
    pub fn oldest_or(&self, current_seq: impl FnOnce() -> u64) -> u64 {
        let mut open = self.open.lock();
        while let Some(oldest) = open.first_entry() {
            if !(self.is_too_old(oldest.get()) && oldest.get().reads.end()) {
                return oldest.key().0;
            }
            oldest.remove();
            self.expired.fetch_add(1, Ordering::Relaxed);
        }
        current_seq()
    }

    fn is_too_old(&self, open: &Open) -> bool {
        // Called for each step of a scan: the clock is read only where it matters.
        let Some(max_age) = self.max_age.filter(|_| open.ages) else {
            return false;
        };
        let age = open.since.elapsed();
        #[cfg(test)]
        let age = age + Duration::from_secs(self.seconds_ahead.load(Ordering::SeqCst));
        age > max_age
    }

    /// Makes all seem so much older.
    #[cfg(test)]
    pub fn look_older_by(&self, seconds: u64) {
        self.seconds_ahead.store(seconds, Ordering::SeqCst);
    }

    /// Summary of the open snapshots.
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
    open: Open,
    snapshots: Arc<Snapshots>,
}

impl SnapshotSeq {
    /// Whether it is still valid.
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`].
    pub fn check(&self) -> Result<()> {
        if self.open.reads.is_over() || self.snapshots.is_too_old(&self.open) {
            return Err(self.too_old());
        }
        Ok(())
    }

    fn too_old(&self) -> Error {
        Error::SnapshotTooOld {
            version: self.seq,
            max_age: self.snapshots.max_age.unwrap_or_default(),
        }
    }

    /// Reads by the snapshot, which stays valid until the read is over. Refused if it has become
    /// too old.
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`], or errors of `read`.
    pub fn read<T>(&self, read: impl FnOnce(u64) -> Result<T>) -> Result<T> {
        self.check()?;
        let under_way = self.open.reads.begin().ok_or_else(|| self.too_old())?;
        let outcome = read(self.seq);
        drop(under_way);
        self.check()?;
        outcome
    }
}

impl Drop for SnapshotSeq {
    fn drop(&mut self) {
        self.snapshots.open.lock().remove(&(self.seq, self.number));
        self.snapshots.dropped.raise();
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
            snapshots.register(true, || 5),
            snapshots.register(true, || 5),
            snapshots.register(true, || 9),
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
        let snapshots = Arc::new(Snapshots::new(Some(Duration::from_secs(3600))));
        let own = snapshots.register(false, || 7);
        let old = snapshots.register(true, || 3);
        assert_eq!(old.read(Ok), Ok(3));
        assert_eq!(snapshots.oldest_or(|| 20), 3);
        // During a read: the state that it sees is kept until it ends.
        let outcome = old.read(|seq| {
            snapshots.look_older_by(3601);
            assert_eq!(snapshots.oldest_or(|| 20), 3);
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
