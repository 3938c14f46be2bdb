//! The store: the public interface of the engine. Each call checks its arguments, updates counters,
//! and calls `write` or `read`.

use crate::{
    BackupCheck, BackupOptions, BackupProgress, BackupReport, Batch, Clock, Committing, Condition, Durability, Error,
    Object, ObjectInfo, Options, PutOptions, RamAnswer, ReadOptions, Reader, RepairReport, RestoreOptions,
    RestoreReport, Result, Scan, ScanRange, Snapshot, Stats, ValueWriter, VerifyReport, Version, WriterOptions,
    admin::{backup, open, repair, verify},
    engine::Engine,
    maintenance::{
        checkpoint::{self, Haste, take_if},
        workers,
    },
    manifest,
    metrics::counters::{Metrics, Operation, StreamClock},
    read, write,
};
use bytes::Bytes;
use parking_lot::Mutex;
use std::{ops::Range, path::Path, sync::Arc, thread::JoinHandle};

/// An open store. Clones share it and are cheap; calls block, and may be made from any thread.
#[derive(Clone)]
pub struct Store {
    handle: Arc<Handle>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the engine: its tables may have gigabytes.
        let options = &self.handle.engine.options;
        f.debug_struct("Store")
            .field("flash_dir", &options.flash_dir)
            .field("large_dir", &options.large_dir)
            .finish_non_exhaustive()
    }
}

struct Handle {
    engine: Arc<Engine>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Held until all threads have ended.
    lock: Mutex<Option<manifest::Lock>>,
}

impl Store {
    /// Opens or creates a store and recovers it. The store serves immediately; the rest of recovery
    /// continues in the background.
    ///
    /// # Errors
    /// [`Error::Invalid`] for contradictory options, [`Error::NotAStore`], [`Error::Locked`],
    /// [`Error::Corruption`] if the index cannot be opened (run [`Store::repair`]), or errors of
    /// the devices.
    pub fn open(options: Options) -> Result<Self> {
        options.validate()?;
        let lock = manifest::lock(&options)?;
        let engine = Arc::new(open::open(options)?);
        let handle = Handle {
            engine,
            threads: Mutex::default(),
            lock: Mutex::new(lock),
        };
        let started = workers::start(&handle.engine, &mut handle.threads.lock());
        if let Err(error) = started {
            // Only moves were committed: after a crash, values of moves that are not durable are at
            // their former homes.
            let _ = handle.stop();
            return Err(error);
        }
        Ok(Self {
            handle: Arc::new(handle),
        })
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.handle.engine
    }

    /// Runs and counts a call that writes.
    fn write_call<T>(&self, of: fn(&Metrics) -> &Operation, call: impl FnOnce(&Engine) -> Result<T>) -> Result<T> {
        let engine = self.engine();
        of(&engine.metrics).measure(|| engine.told(call(engine)))
    }

    /// Puts an object, durably.
    ///
    /// # Errors
    /// See [`Store::put_with`].
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Version> {
        self.put_with(key, value, &PutOptions::default())
    }

    /// Puts an object.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad key or value, [`Error::ConditionFailed`], [`Error::OutOfSpace`]
    /// (nothing was written), [`Error::Failed`] (whether it was written is unknown).
    pub fn put_with(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, options: &PutOptions) -> Result<Version> {
        let put = |engine: &Engine| write::put(engine, key.as_ref(), value.as_ref(), options);
        self.write_call(|metrics| &metrics.put, put)
    }

    /// Deletes a key, durably. It need not exist.
    ///
    /// # Errors
    /// As [`Store::put_with`].
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<Version> {
        self.delete_with(key, Condition::None, Durability::Sync)
    }

    /// Deletes a key.
    ///
    /// # Errors
    /// As [`Store::put_with`].
    pub fn delete_with(&self, key: impl AsRef<[u8]>, condition: Condition, durability: Durability) -> Result<Version> {
        let delete = |engine: &Engine| write::delete(engine, key.as_ref(), condition, durability);
        self.write_call(|metrics| &metrics.delete, delete)
    }

    /// Deletes every object with a key in `range`, by one atomic commit whose cost does not depend
    /// on their number, since none is read. The objects are absent when this returns; a background
    /// thread removes their entries later, and their space is reclaimed. With 256 outstanding
    /// deletions, or 64 KiB of their bounds, the next call waits for that thread. An empty range
    /// commits nothing.
    ///
    /// # Errors
    /// As [`Store::put_with`]; [`Error::Unavailable`] after waiting for a minute.
    pub fn delete_range(&self, range: ScanRange, durability: Durability) -> Result<Version> {
        let delete = |engine: &Engine| write::delete_range(engine, &range, durability);
        self.write_call(|metrics| &metrics.delete_range, delete)
    }

    /// Deletes every object whose key begins with `prefix`, like [`Store::delete_range`]. The empty
    /// prefix matches every key.
    ///
    /// # Errors
    /// As [`Store::delete_range`].
    pub fn delete_prefix(&self, prefix: impl AsRef<[u8]>, durability: Durability) -> Result<Version> {
        self.delete_range(ScanRange::prefix(prefix), durability)
    }

    /// Commits a batch atomically. All its objects get the same version.
    ///
    /// # Errors
    /// As [`Store::put_with`]; if any condition fails, nothing is written.
    pub fn write(&self, batch: Batch, durability: Durability) -> Result<Version> {
        let write = |engine: &Engine| write::write_batch(engine, &batch, durability);
        self.write_call(|metrics| &metrics.write, write)
    }

    /// Commits a batch like [`Store::write`], if that needs no device read and no wait, and returns
    /// a future that resolves when it is durable: for threads that must not block. `None`: nothing
    /// was written. To get the reason, call [`Store::write`] on a thread that may block.
    ///
    /// ```
    /// # async fn put(store: &terrace::Store) -> terrace::Result<()> {
    /// let mut batch = terrace::Batch::new();
    /// batch.put("key", "value");
    /// match store.try_write(&batch, terrace::Durability::Sync) {
    ///     Some(committing) => committing.await?,
    ///     None => store.write(batch, terrace::Durability::Sync)?, // on a thread that may block
    /// };
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_write(&self, batch: &Batch, durability: Durability) -> Option<Committing> {
        write::committing::try_batch(self.engine(), batch, durability)
    }

    /// A stream to write one object. Nothing is visible before [`ValueWriter::finish`].
    ///
    /// # Errors
    /// As [`Store::put_with`].
    pub fn writer(&self, key: impl AsRef<[u8]>, options: WriterOptions) -> Result<ValueWriter> {
        let engine = self.engine();
        let clock = Arc::new(StreamClock::writing(&engine.metrics.writer));
        clock.time(|| {
            engine.told(ValueWriter::new(
                Arc::clone(engine),
                key.as_ref(),
                options,
                Arc::clone(&clock),
            ))
        })
    }

    /// Reads a whole object.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad key, [`Error::Corruption`] if this object is damaged, errors of
    /// the devices.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Object>> {
        let engine = self.engine();
        let get = || read::get(engine, key.as_ref())?.map(read::Hit::into_object).transpose();
        engine.metrics.get.measure(get)
    }

    /// Metadata of an object, without reading its value.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn head(&self, key: impl AsRef<[u8]>) -> Result<Option<ObjectInfo>> {
        let engine = self.engine();
        engine.metrics.head.measure(|| read::head(engine, key.as_ref()))
    }

    /// Metadata of an object whose value is small and in RAM, whose entry in the index is, or that
    /// RAM shows to be absent, without a device read or a wait for another thread: for threads that
    /// must not block. A block of the index that was found not long ago counts as in RAM; if the
    /// cache has evicted it since, it is read.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn head_in_ram(&self, key: impl AsRef<[u8]>) -> Result<RamAnswer<ObjectInfo>> {
        let engine = self.engine();
        let head = || read::head_in_ram(engine, key.as_ref());
        engine.metrics.head.measure_unless(RamAnswer::is_unknown, head)
    }

    /// Reads part of a value; the range is truncated to the value's length.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn get_range(&self, key: impl AsRef<[u8]>, range: Range<u64>) -> Result<Option<Bytes>> {
        let engine = self.engine();
        engine.metrics.get_range.measure(|| {
            let reader = Reader::newest(engine, key.as_ref(), &ReadOptions::default())?;
            reader.map(|reader| reader.read_range(range)).transpose()
        })
    }

    /// A stream over a value.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn reader(&self, key: impl AsRef<[u8]>) -> Result<Option<Reader>> {
        self.reader_with(key, &ReadOptions::default())
    }

    /// A stream over a value.
    ///
    /// # Errors
    /// As [`Store::get`]; [`Error::Busy`] if `options` allow it.
    pub fn reader_with(&self, key: impl AsRef<[u8]>, options: &ReadOptions) -> Result<Option<Reader>> {
        let engine = self.engine();
        let clock = StreamClock::reading(&engine.metrics.reader);
        let reader = clock.time(|| {
            write::check_key(key.as_ref())?;
            Reader::newest(engine, key.as_ref(), options)
        })?;
        Ok(reader.map(|reader| reader.timed_by(clock)))
    }

    /// A stream over a value, if all of it is in RAM and available without a device read or a wait
    /// for another thread: for threads that must not block. `None` says nothing about the key. Of
    /// the index as [`Store::head_in_ram`].
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn reader_in_ram(&self, key: impl AsRef<[u8]>) -> Result<Option<Reader>> {
        let engine = self.engine();
        let clock = StreamClock::reading(&engine.metrics.reader);
        let Some(reader) = clock.time(|| Reader::in_ram(engine, key.as_ref()))? else {
            clock.cancel();
            return Ok(None);
        };
        Ok(Some(reader.timed_by(clock)))
    }

    /// Notes that a client begins to read `name`, which need not be a key of the store. Returns the
    /// expected next name, if the client has read three or more in order (`seg-0011`, `seg-0012`,
    /// `seg-0013`). For applications that store values under other keys than the requested ones; if
    /// the keys themselves are in order the store does this itself.
    pub fn note_read(&self, name: impl AsRef<[u8]>) -> Option<Vec<u8>> {
        self.engine().flash_cache.named_readers.read(name.as_ref())
    }

    /// Reads a value of the large tier, of up to 8 MiB, into RAM in the background, for an expected
    /// read. Does nothing if the value is elsewhere.
    pub fn read_ahead(&self, key: impl AsRef<[u8]>) {
        self.engine().flash_cache.ahead.want(key.as_ref().into());
    }

    /// Reads several objects, in parallel, all as of one seq: a batch is visible as a whole or not
    /// at all. Only expiry is decided at the time of each read. The results are in the order of the
    /// keys.
    pub fn multi_get<K: AsRef<[u8]> + Sync>(&self, keys: &[K]) -> Vec<Result<Option<Object>>> {
        let engine = self.engine();
        let multi_get = || read::multi_get::multi_get(engine, keys);
        engine.metrics.multi_get.measure_all(multi_get)
    }

    /// Objects in a range, in key order, as of this call.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn scan(&self, range: ScanRange) -> Result<Scan> {
        self.engine().metrics.scan.measure(|| self.snapshot()?.scan(range))
    }

    /// The store as it is now, unchanged by later writes.
    ///
    /// # Errors
    /// [`Error::Failed`] if commits can no longer be applied.
    pub fn snapshot(&self) -> Result<Snapshot> {
        Snapshot::take(self.engine())
    }

    /// Makes every commit before the call durable, so all of them are visible.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn sync(&self) -> Result<()> {
        let log = &self.engine().log;
        log.make_durable(log.committed_seq())
    }

    /// Makes every commit before the call durable and has the index persist them, so that an open
    /// replays nothing.
    ///
    /// # Errors
    /// [`Error::Failed`], [`Error::Unavailable`].
    pub fn flush(&self) -> Result<()> {
        let engine = self.engine();
        engine.check_writable()?;
        let seq = engine.log.committed_seq();
        engine.log.make_durable(seq)?;
        engine.persist_index(seq)
    }

    /// Writes a checkpoint of the hash index now, so that an open fills it by reading one file;
    /// reads and writes continue. The store does this by itself
    /// ([`crate::Tuning::checkpoint_log_bytes`]). `false` if it is not possible yet: the hash index
    /// is still being filled after the open, or there was no commit yet.
    ///
    /// # Errors
    /// [`Error::OutOfSpace`] and errors of the device: the previous checkpoint is kept then. Those
    /// of [`Store::flush`].
    pub fn checkpoint(&self) -> Result<bool> {
        let engine = self.engine();
        engine.check_writable()?;
        take_if(engine, Haste::AtOnce, |_| true)
    }

    /// Changes [`Options::cache_bytes`] of the running store: a larger cache fills as values are
    /// read, a smaller one evicts before this returns. No effect on a store that was opened without
    /// a cache.
    pub fn set_cache_bytes(&self, bytes: u64) {
        self.engine().cache.set_capacity(bytes);
    }

    /// Changes [`Options::large_capacity_bytes`] of the running store, until it is closed. It can
    /// be raised, or lowered to the live bytes in blocks plus a tenth of them and two blocks, which
    /// block GC needs to make room. If the blocks take more at the moment, block GC drains them
    /// until they fit; large writes wait or are refused meanwhile as on a full tier.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it would not hold four blocks, or less than the live bytes.
    pub fn set_large_capacity(&self, bytes: Option<u64>) -> Result<()> {
        let engine = self.engine();
        engine.options.validate_large_capacity(bytes)?;
        let too_low = |least: u64| bytes.is_some_and(|bytes| bytes < least);
        let (mut living, mut least) = engine.least_large_capacity();
        if too_low(least) {
            // Values deleted just now count as live until the deletes are applied.
            engine.log.wait_applied()?;
            (living, least) = engine.least_large_capacity();
        }
        if let Some(bytes) = bytes.filter(|_| too_low(least)) {
            return Err(Error::Invalid(format!(
                "large capacity {bytes} is below {least}: {living} bytes live, a tenth of that and two blocks are for \
                 cleaning; delete first"
            )));
        }
        engine.large.set_capacity(bytes);
        engine.block_gc.look_again();
        Ok(())
    }

    /// Changes [`Options::flash_capacity_bytes`] of the running store, until it is closed. If it is
    /// lowered, log GC recycles the log until it fits: cold values move to the large tier, and free
    /// segments are given back to the device. Writes continue meanwhile. If the large tier has no
    /// room, the log stays as long as its live values require.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it would not hold eight segments beside the ordered index and the
    /// other files of the tier, or is more than 1 TiB.
    pub fn set_flash_capacity(&self, bytes: u64) -> Result<()> {
        let engine = self.engine();
        engine.check_writable()?;
        engine.set_flash_capacity(bytes)
    }

    /// The clock of its options, for layers above that keep times too.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.engine().options.clock
    }

    /// Figures about the store.
    #[must_use]
    pub fn stats(&self) -> Stats {
        crate::figures::stats(self.engine())
    }

    /// Makes everything durable and closes; later writes fail. Dropping the last clone closes too,
    /// without reporting errors.
    ///
    /// # Errors
    /// [`Error::Failed`] if not everything could be made durable.
    pub fn close(&self) -> Result<()> {
        self.handle.close()
    }

    /// Reads every value and compares it with its entry. Checks every block and segment for damage.
    ///
    /// # Errors
    /// If the store cannot be read at all; findings are in the report.
    pub fn verify(&self) -> Result<VerifyReport> {
        verify::verify(self.engine())
    }

    /// Takes a backup of the running store into `dir`, which must be empty or hold an interrupted
    /// backup. It holds exactly the state after one commit, no earlier than the last one before the
    /// call. Reads and writes continue.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the directory has other contents or the earlier backup is of another
    /// store, [`Error::Unavailable`] if it was stopped or the store closed, errors of the devices.
    pub fn backup(&self, dir: impl AsRef<Path>, options: &BackupOptions) -> Result<BackupReport> {
        backup::take(self.engine(), dir.as_ref(), options)
    }

    /// Copies a backup to the directories that `options` names, which must be empty, and verifies
    /// it while copying. All other `options` are ignored. The store is then opened like any other.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a directory is not empty, [`Error::NotAStore`] if there is no complete
    /// backup, [`Error::Corruption`] if a file of it is damaged, errors of the devices.
    pub fn restore(backup: impl AsRef<Path>, options: &Options, how: &RestoreOptions) -> Result<RestoreReport> {
        backup::restore(backup.as_ref(), options, how)
    }

    /// Checks a backup: every checksum of its manifest; then opens the copy, read-only, and reads
    /// everything in it.
    ///
    /// # Errors
    /// If there is no complete backup; findings are in the result.
    pub fn verify_backup(backup: impl AsRef<Path>, progress: &BackupProgress) -> Result<BackupCheck> {
        backup::verify(backup.as_ref(), progress, |options| {
            let copy = Self::open(options)?;
            let report = copy.verify()?;
            Ok((report, Version(copy.engine().log.committed_seq())))
        })
    }

    /// Rebuilds the index and LargeMeta from segments and blocks. No process may have the store
    /// open. Takes some 100 bytes of RAM and the key for each key, deleted ones included.
    ///
    /// # Errors
    /// [`Error::Invalid`] if one tier has nothing of a store, unless
    /// [`Options::repair_without_tier`] permits it; [`Error::Locked`], [`Error::NotAStore`], errors
    /// of the devices.
    pub fn repair(options: Options) -> Result<RepairReport> {
        repair::repair(options)
    }
}

impl Handle {
    fn close(&self) -> Result<()> {
        let engine = &self.engine;
        if engine.log.is_closed() {
            return Ok(());
        }
        let mut outcome = Ok(());
        // First, so that every acknowledged commit is made durable below.
        engine.log.refuse_commits();
        if !engine.options.read_only {
            let seq = engine.log.committed_seq();
            outcome = engine
                .log
                .make_durable(seq)
                .and_then(|()| engine.persist_index(seq))
                .inspect(|()| checkpoint::at_close(engine));
            // Otherwise its last values would prevent sealing their block.
            let _resting = engine.block_gc.at_work();
            outcome = outcome.and_then(|()| engine.large_result(engine.large.close()));
        }
        outcome.and(self.stop())
    }

    /// Ends all threads, and releases the lock after the last: while they write, no other process
    /// may open the store.
    fn stop(&self) -> Result<()> {
        let engine = &self.engine;
        let mut outcome = Ok(());
        engine.log.close();
        engine.index_work.raise();
        engine.recycle_work.raise();
        engine.flash_cache.wake();
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                outcome = outcome.and(Err(Error::Failed(
                    "a background thread panicked; see the log".to_owned(),
                )));
            }
        }
        engine.large.stop();
        drop(self.lock.lock().take());
        outcome
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!(%error, "closing the store failed");
        }
    }
}
