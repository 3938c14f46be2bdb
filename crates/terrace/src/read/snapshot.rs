//! The store at one moment.

use super::{Hit, get_by_ordered_index, object_info, reader::Reader, scan::Scan};

use crate::visibility::snapshots::SnapshotSeq;
use crate::{
    Object, ObjectInfo, Result, ScanRange, Version,
    engine::Engine,
    ordered_index::Entry,
    visibility::{presence::Presence, range_tombstones::RangeSet},
    write::check_key,
};
use std::sync::Arc;

/// The store as it was when the snapshot was taken. Reads go to the ordered index at the snapshot's seq: no later commit is
/// seen. Until it is dropped, or older than [`crate::Options::snapshot_max_age`], space freed since cannot be reused; how many are
/// open, how old the oldest is and what they hold back shows in the statistics.
/// Its clock does not stand still: what expires meanwhile is absent from it, too.
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
    /// Takes a snapshot of everything committed before the call.
    pub(crate) fn take(engine: &Arc<Engine>) -> Result<Self> {
        engine.log.wait_applied()?;
        let register = || engine.snapshots.register(|| engine.log.applied_seq());
        let (ranges, seq) = engine.log.ranges.current_with(register);
        let engine = Arc::clone(engine);
        Ok(Self(Arc::new(Taken { engine, seq, ranges })))
    }

    /// What decides which objects are dead for it.
    pub(super) fn presence(&self) -> Presence<'_> {
        Presence::at(self.0.ranges.clone(), self.0.seq.seq, &self.0.engine.options.clock)
    }

    fn entry(&self, key: &[u8], seq: u64) -> Result<Option<Entry>> {
        Ok(self.presence().living(key, self.engine().index.get_at(key, seq)?))
    }

    /// The version of the last commit it sees.
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
        let hit = self.read(|seq| get_by_ordered_index(self.engine(), key, |key| self.entry(key, seq)))?;
        hit.map(Hit::into_object).transpose()
    }

    /// What is known of an object.
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
        // What it reads from is pinned once it is open, so it may outlive the snapshot.
        self.read(|seq| Reader::open(self.engine(), key.as_ref(), |key| self.entry(key, seq), None))
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
