//! The store at one moment.

use super::{Described, Hit, get_by_entry, object_info, reader::Reader, scan::Scan};

use crate::visibility::snapshots::SnapshotSeq;
use crate::{
    Object, ObjectInfo, ReadOptions, Result, ScanRange, Version,
    engine::Engine,
    ordered_index::Entry,
    visibility::{presence::Presence, range_tombstones::RangeSet},
    write::check_key,
};
use std::sync::Arc;

/// The store as it was when the snapshot was taken. Reads go to the ordered index at the snapshot's
/// seq: no later commit is seen. Until it is dropped, or older than
/// [`crate::Options::snapshot_max_age`], space freed since cannot be reused; the statistics show
/// their number, the age of the oldest and the retained space. Expiry is not frozen: objects that
/// expire meanwhile are absent from it, too.
#[derive(Debug, Clone)]
pub struct Snapshot(Arc<Taken>);

#[derive(Debug)]
struct Taken {
    engine: Arc<Engine>,
    seq: SnapshotSeq,
    /// Range deletions that may hide something from it.
    ranges: Option<Arc<RangeSet>>,
}

impl Snapshot {
    /// Takes a snapshot of everything that was visible before the call.
    pub(crate) fn take(engine: &Arc<Engine>) -> Result<Self> {
        Self::registered(engine, true)
    }

    /// The same for a call of the store itself: it does not become too old.
    pub(super) fn take_for_good(engine: &Arc<Engine>) -> Result<Self> {
        Self::registered(engine, false)
    }

    fn registered(engine: &Arc<Engine>, ages: bool) -> Result<Self> {
        engine.log.wait_visible_applied()?;
        let register = || engine.snapshots.register(ages, || engine.log.applied_seq());
        let (ranges, seq) = engine.log.ranges.current_with(register);
        let engine = Arc::clone(engine);
        Ok(Self(Arc::new(Taken { engine, seq, ranges })))
    }

    /// Decides which objects are dead for it.
    pub(super) fn presence(&self) -> Presence<'_> {
        self.0.engine.presence_at(self.0.ranges.clone(), self.0.seq.seq)
    }

    fn entry(&self, key: &[u8], seq: u64) -> Result<Option<Entry>> {
        Ok(self.presence().living(key, self.engine().index.get_at(key, seq)?))
    }

    fn described(&self, key: &[u8], seq: u64) -> Result<Option<Described>> {
        Ok(self.entry(key, seq)?.map(Described::from))
    }

    /// The version of the last commit it sees. Once the log has failed, it may be that of a commit
    /// that failed with it, which the snapshot does not see.
    #[must_use]
    pub fn version(&self) -> Version {
        Version(self.0.seq.seq)
    }

    /// Reads an object whole.
    ///
    /// # Errors
    /// As [`crate::Store::get`].
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Object>> {
        let key = key.as_ref();
        check_key(key)?;
        let hit = self.read(|seq| get_by_entry(self.engine(), key, || self.described(key, seq)))?;
        hit.map(Hit::into_object).transpose()
    }

    /// Metadata of an object.
    ///
    /// # Errors
    /// As [`crate::Store::head`].
    pub fn head(&self, key: impl AsRef<[u8]>) -> Result<Option<ObjectInfo>> {
        check_key(key.as_ref())?;
        let entry = self.read(|seq| self.entry(key.as_ref(), seq))?;
        entry.as_ref().map(object_info).transpose()
    }

    /// A stream over a value.
    ///
    /// # Errors
    /// As [`crate::Store::reader`].
    pub fn reader(&self, key: impl AsRef<[u8]>) -> Result<Option<Reader>> {
        check_key(key.as_ref())?;
        // An open reader pins its value, so it may outlive the snapshot.
        let key = key.as_ref();
        self.read(|seq| Reader::open(self.engine(), key, || self.described(key, seq), &ReadOptions::default()))
    }

    /// Objects in a range, in key order.
    ///
    /// # Errors
    /// As [`crate::Store::scan`].
    pub fn scan(&self, range: ScanRange) -> Result<Scan> {
        Scan::at(self, range)
    }

    /// Whether it can still be read.
    pub(super) fn check(&self) -> Result<()> {
        self.0.seq.check()
    }

    /// Reads by it.
    pub(super) fn read<T>(&self, read: impl FnOnce(u64) -> Result<T>) -> Result<T> {
        self.0.seq.read(read)
    }

    pub(super) fn engine(&self) -> &Arc<Engine> {
        &self.0.engine
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::{Error, Options, Store};
    use std::time::Duration;

    /// The index dropped the state of a snapshot that expired while a read of it was running. The
    /// library panicked. The panic was caught, but was printed to stderr, and ended programs built
    /// with `panic = "abort"`.
    #[test]
    fn a_state_is_kept_until_a_read_that_looks_at_it_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            snapshot_max_age: Some(Duration::from_secs(1)),
            ..Options::new(dir.path())
        };
        let store = Store::open(options).unwrap();
        let first = store.put("k", "first").unwrap();
        store.flush().unwrap();
        let snapshot = store.snapshot().unwrap();
        let outcome = snapshot.read(|seq| {
            while snapshot.check().is_ok() {
                std::thread::sleep(Duration::from_millis(10));
            }
            for value in ["second", "third"] {
                store.put("k", value).unwrap();
                store.flush().unwrap();
                store
                    .engine()
                    .index
                    .compact(store.engine().snapshots.oldest_or(|| u64::MAX))?;
            }
            let entry = store.engine().index.get_at(b"k", seq)?;
            assert_eq!(entry.map(|entry| entry.version), Some(first));
            // Checked here: once the read is over, any thread of the store may expire it.
            assert_eq!(store.stats().snapshots.expired, 0, "it counts");
            Ok(())
        });
        assert!(matches!(outcome, Err(Error::SnapshotTooOld { .. })), "{outcome:?}");
        store.put("k", "fourth").unwrap();
        store.flush().unwrap();
        assert_eq!(store.stats().snapshots.expired, 1);
        assert!(matches!(snapshot.get("k"), Err(Error::SnapshotTooOld { .. })));
    }
}
