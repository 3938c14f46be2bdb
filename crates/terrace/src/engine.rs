//! Everything an open store consists of, shared by callers and background threads.

use crate::{
    Error, Options, Result, Tier,
    accounting::Accounting,
    api::{expiry::Expiring, placement::Placement},
    blocks::{LargeSpace, unsynced::UnsyncedLarge},
    cache::ValueCache,
    flash_cache::Heat,
    hash_index::{Config as HashIndexConfig, HashIndex, checkpoint::Checkpoints},
    io::{Disk, read_pool::ReadPool, throttle::Paces},
    log::{commit::CommitLog, segments::RESERVED_SEGMENTS},
    maintenance::{block_gc::Cleaning, fill::FillWatch, migrate::Migration},
    manifest::Manifest,
    metrics::counters::{AnsweredBy, Metrics},
    ordered_index::OrderedIndex,
    visibility::{presence::Presence, range_tombstones::RangeSet, snapshots::Snapshots},
};
use parking_lot::{Condvar, Mutex};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Background work does not rest any more when only one segment in so many is free.
const PRESSED_SHARE: u32 = 10;
/// Recycling goes on until only so much of a bounded flash index is in use.
pub const FLASH_INDEX_LOAD_WANTED: f64 = 0.85;

/// The parts of a store.
#[derive(Debug)]
pub struct Engine {
    /// As opened.
    pub options: Options,
    /// Which store it is.
    pub manifest: Manifest,
    /// The flash tier's device.
    pub flash_disk: Arc<dyn Disk>,
    /// The commit log and the overlay.
    pub log: CommitLog,
    /// The ordered index.
    pub index: Arc<OrderedIndex>,
    /// The flash index.
    pub flash_index: HashIndex,
    /// Its checkpoints.
    pub checkpoints: Checkpoints,
    /// The large space.
    pub large: LargeSpace,
    /// Values of buffered commits in the large space that are not durable yet.
    pub unsynced: Arc<UnsyncedLarge>,
    /// Values in RAM.
    pub cache: ValueCache,
    /// Threads that help who reads many values.
    pub helpers: ReadPool,
    /// What is hot in the large space.
    pub heat: Arc<Heat>,
    /// How background work shares the devices with callers.
    pub paces: Arc<Paces>,
    /// What belongs where.
    pub placement: Arc<Placement>,
    /// What is known of values that are not where they belong.
    pub settling: Migration,
    /// Open snapshots.
    pub snapshots: Arc<Snapshots>,
    /// Objects and bytes per home.
    pub accounting: Accounting,
    /// What cleaning does, and who waits for it.
    pub cleaning: Cleaning,
    /// When the first object expires.
    pub expiring: Expiring,
    /// How full the tiers are.
    pub fill: FillWatch,
    /// Counters.
    pub metrics: Metrics,
    /// Everything up to this seq is persisted in the ordered index.
    pub persisted_seq: AtomicU64,
    /// Last seq that recovery found in the log.
    pub recovered_seq: u64,
    /// What recovery found damaged, in words.
    pub damage: Vec<String>,
    /// What was damaged and the open has put right, in words.
    pub mended: Vec<String>,
    /// The flash index is being filled after the open.
    pub refilling: AtomicBool,
    /// Somebody wants the memtable sealed and flushed.
    pub mark_wanted: AtomicBool,
    index_work: Mutex<u64>,
    index_signal: Condvar,
    recycle_work: Mutex<()>,
    recycle_signal: Condvar,
}

/// The parts that recovery prepares.
pub struct Parts {
    /// See [`Engine`].
    pub options: Options,
    /// See [`Engine`].
    pub manifest: Manifest,
    /// See [`Engine`].
    pub flash_disk: Arc<dyn Disk>,
    /// See [`Engine`].
    pub log: CommitLog,
    /// See [`Engine`].
    pub index: Arc<OrderedIndex>,
    /// See [`Engine`].
    pub large: LargeSpace,
    /// See [`Engine`].
    pub unsynced: Arc<UnsyncedLarge>,
    /// See [`Engine`].
    pub accounting: Accounting,
    /// See [`Engine`].
    pub expiring: Expiring,
    /// See [`Engine`].
    pub persisted_seq: u64,
    /// See [`Engine`].
    pub damage: Vec<String>,
    /// See [`Engine`].
    pub mended: Vec<String>,
}

impl Engine {
    /// Puts the parts together.
    ///
    /// # Errors
    /// If the flash index cannot be made.
    pub fn new(parts: Parts) -> Result<Self> {
        let paces = Arc::new(Paces::default());
        let placement = Arc::new(Placement::new(&parts.options));
        let heat = Arc::new(Heat::new(&parts.options, Arc::clone(&paces), Arc::clone(&placement)));
        parts.large.attach(Arc::clone(&heat), Arc::clone(&paces));
        let recent = &parts.log.recent;
        let values = ValueCache::new(parts.options.cache_bytes - recent.share_bytes(), recent);
        Ok(Self {
            heat,
            paces,
            placement,
            settling: Migration::default(),
            cache: values,
            helpers: ReadPool::default(),
            flash_index: HashIndex::new(HashIndexConfig::for_flash_bytes(
                parts.options.flash_capacity_bytes,
                parts.options.flash_index_bytes_max,
            ))?,
            checkpoints: Checkpoints::default(),
            snapshots: Arc::new(
                Snapshots::new(parts.options.snapshot_max_age).raising(Arc::clone(&parts.log.activity)),
            ),
            fill: FillWatch::default(),
            metrics: Metrics::default(),
            cleaning: Cleaning::raising(Arc::clone(&parts.log.activity)),
            recovered_seq: parts.log.committed_seq(),
            options: parts.options,
            manifest: parts.manifest,
            flash_disk: parts.flash_disk,
            log: parts.log,
            index: parts.index,
            large: parts.large,
            unsynced: parts.unsynced,
            accounting: parts.accounting,
            expiring: parts.expiring,
            persisted_seq: AtomicU64::new(parts.persisted_seq),
            damage: parts.damage,
            mended: parts.mended,
            refilling: AtomicBool::new(false),
            mark_wanted: AtomicBool::new(false),
            index_work: Mutex::new(0),
            index_signal: Condvar::new(),
            recycle_work: Mutex::new(()),
            recycle_signal: Condvar::new(),
        })
    }

    /// Whether this store may be written.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it is read-only or closed, [`Error::Failed`] after a failure.
    pub fn check_writable(&self) -> Result<()> {
        if self.options.read_only {
            return Err(Error::Unavailable("the store is open read-only"));
        }
        if self.log.is_closing() {
            return Err(Error::Unavailable("the store is closed"));
        }
        Ok(())
    }

    /// Passes a result of the large space on; where the space refuses all writes from now on, so does the store.
    pub fn large_result<T>(&self, result: Result<T>) -> Result<T> {
        if result.is_err()
            && let Some(reason) = self.large.failure()
        {
            self.log.writer.fail(&reason);
        }
        result
    }

    /// The oldest seq somebody still reads at; with no snapshot, what is applied.
    pub fn watermark_seq(&self) -> u64 {
        self.snapshots.oldest_or(|| self.log.applied_seq())
    }

    /// Wakes the threads that flush and compact the index.
    pub fn wake_index_threads(&self) {
        *self.index_work.lock() += 1;
        self.index_signal.notify_all();
    }

    /// Waits for index work, at most `wait`. `seen` is what the caller saw last.
    pub fn wait_for_index_work(&self, seen: &mut u64, wait: Duration) {
        let mut work = self.index_work.lock();
        if *work == *seen {
            self.index_signal.wait_for(&mut work, wait);
        }
        *seen = *work;
    }

    /// Wakes the recycler.
    pub fn wake_recycler(&self) {
        let _guard = self.recycle_work.lock();
        self.recycle_signal.notify_all();
    }

    /// Waits for recycling to be wanted, at most `wait`.
    pub fn wait_for_recycle_work(&self, wait: Duration) {
        let mut guard = self.recycle_work.lock();
        self.recycle_signal.wait_for(&mut guard, wait);
    }

    /// Has the index persist everything up to `seq` and waits for it.
    ///
    /// # Errors
    /// [`Error::Failed`] if the store stops first; the index's `OutOfSpace`.
    pub fn persist_index(&self, seq: u64) -> Result<()> {
        self.log.seal();
        self.log.wait_for(|| self.log.applied_seq() >= seq)?;
        self.log.wait_until(|| {
            if self.persisted_seq.load(Ordering::Acquire) >= seq {
                return Ok(true);
            }
            if let Some(reason) = self.log.index_full.reason() {
                let tier = Tier::Flash;
                return Err(Error::OutOfSpace { tier, reason });
            }
            self.want_mark();
            Ok(false)
        })
    }

    /// Has the applier seal the memtable, if there is anything in it.
    pub fn want_mark(&self) {
        self.mark_wanted.store(true, Ordering::Release);
        self.log.wake_applier();
    }

    /// Waits `wait`, or until the store is closed.
    pub fn pause(&self, wait: Duration) {
        let deadline = Instant::now() + wait;
        let mut guard = self.recycle_work.lock();
        while !self.log.is_closed() && Instant::now() < deadline {
            self.recycle_signal.wait_until(&mut guard, deadline);
        }
    }

    /// Does a step of background work on `bytes` of the flash tier, and lets callers' reads go first.
    pub fn flash_step<T>(&self, bytes: usize, work: impl FnOnce() -> T) -> T {
        self.paces.flash.step(bytes as u64, || self.is_pressed(), work)
    }

    /// The same for the large tier.
    pub fn large_step<T>(&self, bytes: usize, work: impl FnOnce() -> T) -> T {
        self.paces.large.step(bytes as u64, || self.is_pressed(), work)
    }

    /// Writers will soon wait if background work does not get on, or whoever closes the store waits already.
    fn is_pressed(&self) -> bool {
        let segments = &self.log.segments;
        let slack = (segments.capacity() / PRESSED_SHARE).max(RESERVED_SEGMENTS + 1);
        segments.available() <= slack || self.log.is_closing() || self.cleaning.is_awaited(self)
    }

    /// Reads of small values so far, by those who count for heat: its clock.
    pub fn small_reads(&self) -> u64 {
        let hits = |by| self.metrics.hits(by);
        hits(AnsweredBy::Log) + hits(AnsweredBy::Cache) + self.heat.small.reads()
    }

    /// Whether the flash index has so little of the RAM left that it may take that recycling makes room in it.
    pub fn flash_index_is_crowded(&self) -> bool {
        self.flash_index.load_of_bound() > FLASH_INDEX_LOAD_WANTED
    }

    /// What decides about the newest state. To be taken before the key is looked up.
    #[inline]
    pub fn presence(&self) -> Presence<'_> {
        self.presence_at(self.log.ranges.current(), u64::MAX)
    }

    /// As of a seq, with the ranges of then.
    #[inline]
    pub fn presence_at(&self, ranges: Option<Arc<RangeSet>>, seq: u64) -> Presence<'_> {
        let durable_seq = ranges.as_ref().map_or(0, |_| self.log.writer.durable_seq());
        Presence::at(&self.options.clock, ranges, seq, durable_seq)
    }

    /// What decides about the newest committed state, of which some may not be visible yet.
    pub fn presence_committed(&self) -> Presence<'_> {
        Presence::at(&self.options.clock, self.log.ranges.current(), u64::MAX, u64::MAX)
    }
}
