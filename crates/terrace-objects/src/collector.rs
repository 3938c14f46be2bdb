//! Deletes values that no object refers to any more, and values that were never finished.
//!
//! A commit that replaces or deletes an object with separate values adds, in the same batch, a
//! garbage marker with the values' [`Id`]. A thread that starts to write values for a new object or
//! a part first commits a pending marker, which the commit of the object or the part removes. So
//! after a crash every value belongs to an object or a part, or has a marker. The collector deletes
//! values with garbage markers at once, and those with pending markers when their writer fails or
//! the server starts.
//!
//! A reader may continue to read the values of an object that is replaced meanwhile: it holds their
//! ID ([`Collector::hold`]), then checks that the object has not changed. The collector skips IDs
//! that are held. The marker is committed before the collector checks for holds, and the hold is
//! taken before the reader checks the object, so one of the two always sees the other.
//!
//! Failures of the store are logged and retried later; undeleted values cost only space.

use super::engine::Engine;
use super::keyspace::{self, Id};
use bytes::Bytes;
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    mem,
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use terrace::{Batch, Condition, Durability, ScanRange, Store};
use tokio::sync::Notify;

/// Interval of runs without a wake-up, for IDs that were held and for retries.
const INTERVAL: Duration = Duration::from_secs(10);
/// Keys deleted per commit.
const BATCH_KEYS: usize = 256;
/// Keys read per scan.
const PAGE_KEYS: usize = 256;
/// Age at which an incomplete upload is aborted.
const UPLOAD_LIFE_MS: u64 = 7 * 24 * 3600 * 1000;
/// Interval of checks for such uploads.
const UPLOAD_CHECK_INTERVAL_MS: u64 = 3600 * 1000;

/// A value being written that may never be finished.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Discarded {
    /// All values of an ID, and its pending marker.
    Values(Id),
    /// One value and its marker: a part of an upload that may continue.
    Part(Vec<u8>),
}

/// Deletes unreferenced values.
#[derive(Debug, Default)]
pub struct Collector {
    held: Mutex<HashMap<Id, Holds>>,
    discarded: Mutex<Vec<Discarded>>,
    /// Held while a thread collects. A thread that finds the device full during a run waits for its
    /// end.
    at_work: Mutex<()>,
    /// Number of runs begun.
    begun: AtomicU64,
    /// Number of items deleted.
    collected: AtomicU64,
    wake: Notify,
}

/// The holders of an ID.
#[derive(Debug, Default)]
struct Holds {
    count: usize,
    /// The collector skipped it because of the holds.
    is_awaited: bool,
}

/// Keeps the values of an ID from being deleted.
#[derive(Debug)]
pub struct Hold {
    id: Id,
    collector: Arc<Collector>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut held = self.collector.held.lock();
        let Some(holds) = held.get_mut(&self.id) else { return };
        holds.count -= 1;
        if holds.count == 0 && held.remove(&self.id).is_some_and(|holds| holds.is_awaited) {
            self.collector.wake.notify_one();
        }
    }
}

/// Values being written. If it is dropped before [`Unfinished::finished`], they are deleted.
#[derive(Debug)]
pub struct Unfinished {
    discarded: Option<Discarded>,
    collector: Arc<Collector>,
}

impl Unfinished {
    /// An object or a part refers to the values now.
    pub fn finished(mut self) {
        self.discarded = None;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(discarded) = self.discarded.take() {
            self.collector.discarded.lock().push(discarded);
            self.collector.wake.notify_one();
        }
    }
}

impl Collector {
    /// Keeps the values of `id` while the hold lives.
    pub fn hold(self: &Arc<Self>, id: Id) -> Hold {
        self.held.lock().entry(id).or_default().count += 1;
        Hold {
            id,
            collector: Arc::clone(self),
        }
    }

    /// Values are being written under `id`; their pending marker has been committed.
    pub fn unfinished_values(self: &Arc<Self>, id: Id) -> Unfinished {
        self.unfinished(Discarded::Values(id))
    }

    /// A part's value is being written at `key`; its pending marker has been committed.
    pub fn unfinished_part(self: &Arc<Self>, key: Vec<u8>) -> Unfinished {
        self.unfinished(Discarded::Part(key))
    }

    fn unfinished(self: &Arc<Self>, discarded: Discarded) -> Unfinished {
        Unfinished {
            discarded: Some(discarded),
            collector: Arc::clone(self),
        }
    }

    /// Notifies the collector of a new garbage marker.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Whether a garbage ID is held. If so, its last holder wakes the collector.
    fn is_held(&self, id: Id) -> bool {
        let mut held = self.held.lock();
        let holds = held.get_mut(&id);
        holds.is_some_and(|holds| {
            holds.is_awaited = true;
            true
        })
    }

    /// Must run before anything is written: every pending marker is then from a former process, and
    /// its values will never be finished.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn recover(&self, store: &Store) -> terrace::Result<()> {
        for item in store.scan(ScanRange::prefix(keyspace::PENDING))? {
            if let Some(id) = keyspace::parse_id(&item?.key) {
                self.discarded.lock().push(Discarded::Values(id));
            }
        }
        for item in store.scan(ScanRange::prefix(keyspace::PENDING_PARTS))? {
            if let Some(value) = keyspace::value_of_pending_part(&item?.key) {
                self.discarded.lock().push(Discarded::Part(value));
            }
        }
        Ok(())
    }

    /// Runs until the process ends: collects when woken, and at intervals.
    pub async fn run(self: Arc<Self>, engine: Engine) {
        let mut uploads_checked_ms = 0;
        loop {
            let collector = Arc::clone(&self);
            let now_ms = engine.now().clock().now_ms();
            let check_uploads = now_ms.abs_diff(uploads_checked_ms) > UPLOAD_CHECK_INTERVAL_MS;
            if check_uploads {
                uploads_checked_ms = now_ms;
            }
            let turn = engine.run(move |store| {
                if check_uploads {
                    expire_uploads(store, now_ms)?;
                }
                collector.collect(store)
            });
            if let Ok(Err(error)) = turn.await {
                tracing::warn!(%error, "values that are not needed could not be deleted; this is tried again");
            }
            // A run without garbage costs one scan of an empty range.
            let _ = tokio::time::timeout(INTERVAL, self.wake.notified()).await;
        }
    }

    /// Number of runs begun.
    pub fn begun_so_far(&self) -> u64 {
        self.begun.load(Ordering::Acquire)
    }

    /// Number of items deleted, by any thread.
    pub fn collected_so_far(&self) -> u64 {
        self.collected.load(Ordering::Acquire)
    }

    /// Deletes the garbage that exists now.
    ///
    /// # Errors
    /// Errors of the store; values that were not deleted stay marked.
    pub fn collect(&self, store: &Store) -> terrace::Result<()> {
        let _at_work = self.at_work.lock();
        self.collect_all(store)
    }

    /// Like [`Collector::collect`], for a caller that read `begun` after its own deletes. If a run
    /// is in progress, waits for its end, and does nothing if that run began later than `begun`.
    ///
    /// # Errors
    /// As for [`Collector::collect`].
    pub fn collect_after(&self, store: &Store, begun: u64) -> terrace::Result<()> {
        let _at_work = self.at_work.lock();
        if self.begun_so_far() > begun {
            return Ok(());
        }
        self.collect_all(store)
    }

    fn collect_all(&self, store: &Store) -> terrace::Result<()> {
        self.begun.fetch_add(1, Ordering::AcqRel);
        let discarded = mem::take(&mut *self.discarded.lock());
        for (at, one) in discarded.iter().enumerate() {
            let outcome = match one {
                Discarded::Values(id) => delete_values(store, *id, &keyspace::pending(*id)),
                Discarded::Part(key) => {
                    let mut batch = Batch::new();
                    batch.delete(key).delete(keyspace::pending_part(key));
                    store.write(batch, Durability::Buffered).map(|_| ())
                }
            };
            if let Err(error) = outcome {
                self.discarded.lock().extend_from_slice(&discarded[at..]);
                return Err(error);
            }
            self.collected.fetch_add(1, Ordering::AcqRel);
        }
        each_key(store, keyspace::GARBAGE, |marker| {
            if let Some(id) = keyspace::parse_id(marker).filter(|id| !self.is_held(*id)) {
                delete_values(store, id, marker)?;
                self.collected.fetch_add(1, Ordering::AcqRel);
            }
            Ok(())
        })
    }
}

/// Calls `work` with each key that begins with `prefix`, up to the last one present now. No scan
/// stays open meanwhile: its snapshot would keep the space that the work frees from being reused,
/// and on a full device the work may wait for that space.
///
/// # Errors
/// Errors of the store, and those of `work`.
pub fn each_key(
    store: &Store,
    prefix: impl AsRef<[u8]>,
    mut work: impl FnMut(&[u8]) -> terrace::Result<()>,
) -> terrace::Result<()> {
    let mut range = ScanRange::prefix(prefix);
    let mut has_end = false;
    loop {
        let some = store.scan(range.clone())?.take(PAGE_KEYS);
        let keys: Vec<Bytes> = some.map(|item| Ok(item?.key)).collect::<terrace::Result<_>>()?;
        let next = keys.last().filter(|_| keys.len() == PAGE_KEYS).cloned();
        // Most ranges are one page, and need no second scan for their end.
        if let Some(next) = next.as_ref().filter(|_| !has_end) {
            has_end = true;
            let last = store.scan(range.clone())?.next_back().transpose()?;
            let last = last.map_or(Bytes::new(), |last| last.key);
            range.end = Bound::Included(last.max(next.clone()).to_vec());
        }
        for key in &keys {
            work(key)?;
        }
        match next {
            Some(last) => range.start = Bound::Excluded(last.to_vec()),
            None => return Ok(()),
        }
    }
}

/// Deletes the values and part records of `id`, with the last of them its marker.
fn delete_values(store: &Store, id: Id, marker: &[u8]) -> terrace::Result<()> {
    let mut batch = Batch::new();
    for prefix in [keyspace::values(id), keyspace::parts(id)] {
        add_range(store, &mut batch, &prefix, |_| true)?;
    }
    batch.delete(marker);
    store.write(batch, Durability::Buffered)?;
    Ok(())
}

/// Deletes the keys that begin with `prefix` and that `chosen` selects.
///
/// # Errors
/// Errors of the store.
pub fn delete_range(store: &Store, prefix: &[u8], chosen: impl Fn(&[u8]) -> bool) -> terrace::Result<()> {
    let mut batch = Batch::new();
    add_range(store, &mut batch, prefix, chosen)?;
    if !batch.is_empty() {
        store.write(batch, Durability::Buffered)?;
    }
    Ok(())
}

/// Adds deletes of these keys to a batch, which is committed whenever it is full.
fn add_range(store: &Store, batch: &mut Batch, prefix: &[u8], chosen: impl Fn(&[u8]) -> bool) -> terrace::Result<()> {
    each_key(store, prefix, |key| {
        if chosen(key) {
            batch.delete(key);
        }
        if batch.len() == BATCH_KEYS {
            store.write(mem::take(batch), Durability::Buffered)?;
        }
        Ok(())
    })
}

/// Aborts uploads older than the limit.
fn expire_uploads(store: &Store, now_ms: u64) -> terrace::Result<()> {
    abort_uploads(store, keyspace::UPLOADS.as_bytes(), |id| {
        now_ms.saturating_sub(id.ms()) >= UPLOAD_LIFE_MS
    })
}

/// Aborts uploads whose records begin with `prefix` and that `chosen` selects.
///
/// # Errors
/// Errors of the store.
pub fn abort_uploads(store: &Store, prefix: &[u8], chosen: impl Fn(Id) -> bool) -> terrace::Result<()> {
    each_key(store, prefix, |key| {
        if let Some(id) = keyspace::parse_id(key).filter(|id| chosen(*id)) {
            abort_upload(store, key, id)?;
        }
        Ok(())
    })
}

/// Aborts an incomplete upload. Returns whether it existed.
///
/// # Errors
/// Errors of the store.
pub fn abort_upload(store: &Store, record: &[u8], id: Id) -> terrace::Result<bool> {
    let mut batch = Batch::new();
    batch
        .delete_if(record, Condition::Present)
        .put(keyspace::garbage(id), "");
    match store.write(batch, Durability::Buffered) {
        Ok(_) => tracing::info!(%id, "an abandoned upload was aborted"),
        // Another thread completed or aborted it.
        Err(terrace::Error::ConditionFailed { .. }) => return Ok(false),
        Err(error) => return Err(error),
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::Instant;
    use terrace::{Clock, Options};

    fn place() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Options::new(dir.path())).unwrap();
        (dir, store)
    }

    fn count(store: &Store) -> usize {
        store.scan(ScanRange::all()).unwrap().count()
    }

    #[test]
    fn garbage_goes_unless_it_is_held() {
        let (_dir, store) = place();
        let collector = Arc::new(Collector::default());
        let (gone, kept) = (Id::new(&Clock::default()), Id::new(&Clock::default()));
        for number in 0..300 {
            store.put(keyspace::value(gone, number, 1), "x").unwrap();
        }
        store.put(keyspace::value(kept, 1, 1), "x").unwrap();
        store.put(keyspace::garbage(gone), "").unwrap();
        let hold = collector.hold(gone);
        let second = collector.hold(gone);
        collector.collect(&store).unwrap();
        drop(hold);
        collector.collect(&store).unwrap();
        assert_eq!(count(&store), 302);
        drop(second);
        collector.collect(&store).unwrap();
        assert_eq!(count(&store), 1, "another's value stays");
    }

    /// Regression: on a full device each delete waited for a segment that the scan over the garbage
    /// kept, and was refused after ten seconds, as were clients' deletes meanwhile.
    #[test]
    fn no_scan_is_open_while_something_is_done_with_its_keys() {
        let (_dir, store) = place();
        let keys: Vec<String> = (0..2 * PAGE_KEYS + 1)
            .map(|number| format!("some/{number:04}"))
            .collect();
        for key in keys.iter().map(String::as_str).chain(["same", "somf"]) {
            store.put(key, "").unwrap();
        }
        // The store itself holds snapshots for short times.
        let until = Instant::now() + Duration::from_secs(60);
        let mut met = Vec::new();
        each_key(&store, "some/", |key| {
            while store.stats().snapshots.open > 0 {
                assert!(Instant::now() < until);
                std::thread::sleep(Duration::from_millis(1));
            }
            met.push(String::from_utf8(key.to_vec()).unwrap());
            store.delete(key).map(drop)
        })
        .unwrap();
        assert_eq!(met, keys);
        assert_eq!(count(&store), 2);
    }

    /// Regression: a writer that found the device full while another thread collected retried after
    /// the first deletions and was refused, although more space was about to be freed.
    #[test]
    fn a_full_writer_waits_for_the_end_of_a_run() {
        let (_dir, store) = place();
        let (store, collector) = (&store, &Collector::default());
        let garbage = || store.put(keyspace::garbage(Id::new(&Clock::default())), "").unwrap();
        garbage();
        garbage();
        std::thread::scope(|scope| {
            // The collecting thread blocks on this lock.
            let held = collector.held.lock();
            let before = collector.begun_so_far();
            scope.spawn(|| collector.collect(store).unwrap());
            while collector.begun_so_far() == before {
                std::thread::yield_now();
            }
            // The present run may not see values deleted now.
            garbage();
            let begun = collector.begun_so_far();
            let waits = scope.spawn(move || {
                collector.collect_after(store, begun).unwrap();
                count(store)
            });
            drop(held);
            assert_eq!(waits.join().unwrap(), 0);
        });
        let begun = collector.begun_so_far();
        collector.collect_after(store, begun - 1).unwrap();
        assert_eq!(collector.begun_so_far(), begun, "that was done already");
    }

    #[test]
    fn what_is_not_finished_is_discarded() {
        let (_dir, store) = place();
        let collector = Arc::new(Collector::default());
        let (finished, given_up, of_a_crash) = (
            Id::new(&Clock::default()),
            Id::new(&Clock::default()),
            Id::new(&Clock::default()),
        );
        for id in [finished, given_up, of_a_crash] {
            store.put(keyspace::pending(id), "").unwrap();
            store.put(keyspace::value(id, 1, 1), "x").unwrap();
        }
        collector.unfinished_values(finished).finished();
        drop(collector.unfinished_values(given_up));
        let part = keyspace::value(Id::new(&Clock::default()), 1, 1);
        store.put(keyspace::pending_part(&part), "").unwrap();
        store.put(&part, "x").unwrap();
        drop(collector.unfinished_part(part));
        collector.collect(&store).unwrap();
        assert_eq!(count(&store), 4);

        let part = keyspace::value(Id::new(&Clock::default()), 2, 1);
        store.put(keyspace::pending_part(&part), "").unwrap();
        store.put(&part, "x").unwrap();
        let collector = Collector::default();
        store.delete(keyspace::pending(finished)).unwrap();
        collector.recover(&store).unwrap();
        collector.collect(&store).unwrap();
        assert_eq!(count(&store), 1);
        assert!(store.head(keyspace::value(finished, 1, 1)).unwrap().is_some());
    }

    #[test]
    fn abandoned_uploads_expire() {
        let (_dir, store) = place();
        let mut old = Id::new(&Clock::default());
        old.0[..6].fill(0);
        let young = Id::new(&Clock::default());
        for id in [old, young] {
            store.put(keyspace::upload("abc", "key", id), "").unwrap();
            store.put(keyspace::part(id, 1), "").unwrap();
            store.put(keyspace::value(id, 1, 1), "x").unwrap();
        }
        expire_uploads(&store, store.clock().now_ms()).unwrap();
        Collector::default().collect(&store).unwrap();
        assert_eq!(count(&store), 3);
        assert!(store.head(keyspace::upload("abc", "key", young)).unwrap().is_some());
    }
}
