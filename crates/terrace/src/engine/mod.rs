//! The parts of an open store, shared by callers and background threads.

pub mod capacity;
mod fill;
pub mod mark;
mod room;

use crate::{
    Error, Options, Result, Tier,
    accounting::{Accounting, fill::FillWatch, migration::Migration},
    api::{expiry::Expiring, placement::Placement, stats::ExpireCounters},
    blocks::{
        LargeSpace,
        gc::{BlockGcState, Bounds},
        unsynced::UnsyncedLarge,
    },
    cache::{Place, ValueCache, scans::ScanCache},
    flash_cache::FlashCache,
    hash_index::{Config as HashIndexConfig, HashIndex, checkpoint::Checkpoints},
    io::{Disk, read_queue::ReadQueue, throttle::Paces},
    log::{address::Address, commit::CommitLog, segments::SCARCE_SEGMENTS},
    manifest::Manifest,
    metrics::{
        counters::{AnsweredBy, Metrics},
        event::Event,
        stalls::StallReason,
    },
    ordered_index::{Entry, Home, KeyBounds, OrderedIndex},
    scan_order::ScanOrder,
    visibility::{presence::Presence, range_tombstones::RangeSet, snapshots::Snapshots},
};
use bytes::Bytes;
use std::{
    ops::{Bound, ControlFlow, Deref},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Background work is no longer throttled when less than this fraction (1/n) of the segments is
/// free.
const PRESSED_SHARE: u32 = 10;
/// Recycling continues until at most this fraction of a bounded hash index is in use.
pub const HASH_INDEX_LOAD_WANTED: f64 = 0.85;

/// What a visitor of [`Engine::walk`] returns.
pub const fn go_on_if(wants_more: bool) -> ControlFlow<()> {
    if wants_more {
        ControlFlow::Continue(())
    } else {
        ControlFlow::Break(())
    }
}

/// The parts that recovery prepares.
pub struct Parts {
    /// The options that the store was opened with.
    pub options: Options,
    /// Identity of the store.
    pub manifest: Manifest,
    /// The flash tier's device.
    pub flash_disk: Arc<dyn Disk>,
    /// The commit log and the overlay.
    pub log: CommitLog,
    /// The ordered index.
    pub index: Arc<OrderedIndex>,
    /// The large space.
    pub large: LargeSpace,
    /// Values of buffered commits in the large space that are not durable yet.
    pub unsynced: Arc<UnsyncedLarge>,
    /// Objects and bytes per home.
    pub accounting: Accounting,
    /// When the first object expires.
    pub expiring: Expiring,
    /// Everything up to this seq is persisted in the ordered index.
    pub persisted_seq: AtomicU64,
    /// Damage that recovery found, as messages.
    pub damage: Vec<String>,
    /// Damage that the open repaired, as messages.
    pub mended: Vec<String>,
}

/// The parts of a store: those that recovery prepared, and the others.
pub struct Engine {
    prepared: Parts,
    /// The hash index.
    pub hash_index: HashIndex,
    /// Its checkpoints.
    pub checkpoints: Checkpoints,
    /// Values in RAM.
    pub cache: ValueCache,
    /// Chunks of values in key order, cached for scans.
    pub scan_cache: ScanCache,
    /// Device reads of calls that need several at once.
    pub read_queue: ReadQueue,
    /// Copies on flash of hot large objects.
    pub flash_cache: Arc<FlashCache>,
    /// How background work shares the devices with callers.
    pub paces: Arc<Paces>,
    /// The placement rules.
    pub placement: Arc<Placement>,
    /// Progress of moves to the places that changed rules require.
    pub migration: Migration,
    /// Charges of scans, and the values to be rewritten for them.
    pub scan_order: ScanOrder,
    /// Counters of entries dropped because they expired or were deleted by a range.
    pub expire_counters: ExpireCounters,
    /// Open snapshots.
    pub snapshots: Arc<Snapshots>,
    /// State of block GC, and the writers that wait for it.
    pub block_gc: BlockGcState,
    /// How full the tiers are.
    pub fill: FillWatch,
    /// Maximum size of the flash tier's files; see `capacity`.
    pub flash_capacity_bytes: AtomicU64,
    /// Counters.
    pub metrics: Metrics,
    /// Last seq that recovery found in the log.
    pub recovered_seq: u64,
    /// The hash index is being filled after the open.
    pub refilling: AtomicBool,
    /// The index must be persisted up to this seq as soon as it is applied. 0: no thread waits.
    pub mark_wanted: AtomicU64,
    /// There are memtables to flush or tables to compact.
    pub index_work: Event,
    /// There may be segments to recycle.
    pub recycle_work: Event,
}

impl Deref for Engine {
    type Target = Parts;

    #[inline]
    fn deref(&self) -> &Parts {
        &self.prepared
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

impl Engine {
    /// The cache's key for the place of a value; inline values have none.
    pub fn place_of(&self, home: &Home) -> Option<Place> {
        match *home {
            Home::Inline(_) => None,
            Home::Flash { address } => {
                Address::new(address).and_then(|address| Place::in_log(&self.log.segments, address))
            }
            Home::Block(extent) => Some(Place::block(extent.block, extent.offset)),
        }
    }

    /// Assembles the parts.
    ///
    /// # Errors
    /// If the hash index cannot be created.
    pub fn new(parts: Parts) -> Result<Self> {
        let paces = Arc::clone(parts.large.paces());
        let placement = Arc::new(Placement::new(&parts.options));
        let flash_cache = Arc::new(FlashCache::new(
            &parts.options,
            Arc::clone(&paces),
            Arc::clone(&placement),
        ));
        parts.large.attach(Arc::<FlashCache>::clone(&flash_cache));
        let frames = &parts.log.frames;
        let values = ValueCache::new(parts.options.cache_bytes - frames.share_bytes(), frames);
        let engine = Self {
            flash_cache,
            paces,
            placement,
            migration: Migration::default(),
            scan_order: ScanOrder::new(&parts.options),
            expire_counters: ExpireCounters::default(),
            scan_cache: ScanCache::new(values.clone(), HashIndex::read_bytes_max),
            cache: values,
            read_queue: ReadQueue::default(),
            hash_index: HashIndex::new(HashIndexConfig::for_flash_bytes(
                parts.options.log_bytes_max(),
                parts.options.tuning.hash_index_bytes_max,
            ))?,
            checkpoints: Checkpoints::default(),
            snapshots: Arc::new(
                Snapshots::new(parts.options.snapshot_max_age).raising(Arc::clone(&parts.log.activity)),
            ),
            fill: FillWatch::default(),
            flash_capacity_bytes: AtomicU64::new(parts.options.flash_capacity_bytes),
            metrics: Metrics::default(),
            block_gc: BlockGcState::raising(Arc::clone(&parts.log.activity)),
            recovered_seq: parts.log.committed_seq(),
            prepared: parts,
            refilling: AtomicBool::new(false),
            mark_wanted: AtomicU64::new(0),
            index_work: Event::default(),
            recycle_work: Event::default(),
        };
        engine.share_flash();
        Ok(engine)
    }

    /// Checks that writes are allowed.
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

    /// Passes on a result of the large space. If the large space refuses all writes from now on, so
    /// does the store.
    pub fn large_result<T>(&self, result: Result<T>) -> Result<T> {
        if result.is_err()
            && let Some(reason) = self.large.failure()
        {
            self.log.writer.fail(&reason);
        }
        result
    }

    /// The oldest seq that readers may use; without a snapshot, the applied seq.
    pub fn watermark_seq(&self) -> u64 {
        self.snapshots.oldest_or(|| self.log.applied_seq())
    }

    /// Persists the index up to `seq` and waits for it.
    ///
    /// # Errors
    /// [`Error::Failed`] if the store stops first; the index's `OutOfSpace`.
    pub fn persist_index(&self, seq: u64) -> Result<()> {
        self.log.wait_until_applied(seq)?;
        self.log.wait_for(|| {
            if self.persisted_seq.load(Ordering::Acquire) >= seq {
                return Ok(true);
            }
            if let Some(reason) = self.log.index_full.reason() {
                return Err(Error::no_room(Tier::Flash, reason));
            }
            self.want_mark(seq);
            Ok(false)
        })
    }

    /// Requests that the applier seals the memtable once everything up to `seq` is in it, unless it
    /// is in one already sealed. The applier waits until sealed memtables are flushed: requests
    /// made meanwhile cause one more flush, not one each.
    pub fn want_mark(&self, seq: u64) {
        self.mark_wanted.fetch_max(seq, Ordering::AcqRel);
        self.log.wake_applier();
    }

    /// Waits for `wait`, or until the store is closed.
    pub fn pause(&self, wait: Duration) {
        let deadline = Instant::now() + wait;
        let mut seen = self.recycle_work.count();
        while !self.log.is_closed() && Instant::now() < deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            self.recycle_work.wait(&mut seen, left);
        }
    }

    /// Passes the entries within `bounds` to `visit`, in order and as of one seq, until it stops.
    /// Returns where the rest begins; `None` at the end.
    ///
    /// # Errors
    /// Errors of the index.
    pub fn walk(
        &self,
        bounds: KeyBounds,
        mut visit: impl FnMut(&Bytes, Entry) -> ControlFlow<()>,
    ) -> Result<Option<Bound<Vec<u8>>>> {
        // Without a snapshot the state at this seq might be dropped. The snapshot has no age limit,
        // with which a step would fail.
        let held = self.snapshots.register(false, || self.log.applied_seq());
        for item in self.index.scan(bounds, held.seq)? {
            let (key, entry) = item?;
            if visit(&key, entry).is_break() {
                return Ok(Some(Bound::Excluded(key.to_vec())));
            }
        }
        Ok(None)
    }

    /// Checks that the directory of the flash tier is the one that was opened. The index's library
    /// uses paths: otherwise it would write among the files of another store.
    ///
    /// # Errors
    /// [`Error::Io`] if it is not.
    pub fn check_place_of_index(&self) -> Result<()> {
        let checked = self.flash_disk.check_place();
        checked.map_err(|error| Error::io("writing the index", &error))
    }

    /// Does a step of background work on `bytes` of the flash tier, after callers' reads.
    pub fn flash_step<T>(&self, bytes: usize, work: impl FnOnce() -> T) -> T {
        self.paces.flash.step(bytes as u64, || self.is_pressed(), work)
    }

    /// The same for a read that is charged to callers.
    pub fn paid_flash_step<T>(&self, work: impl FnOnce() -> T) -> T {
        self.paces.flash.paid_step(|| self.is_pressed(), work)
    }

    /// The same as [`Engine::flash_step`] for the large tier.
    pub fn large_step<T>(&self, bytes: usize, work: impl FnOnce() -> T) -> T {
        self.paces.large.step(bytes as u64, || self.is_pressed(), work)
    }

    /// Whether writers will soon wait unless background work progresses, or a caller of `close`
    /// waits already.
    fn is_pressed(&self) -> bool {
        let segments = &self.log.segments;
        let slack = (segments.capacity() / PRESSED_SHARE).max(SCARCE_SEGMENTS);
        segments.available() <= slack || self.log.is_closing() || self.awaits_block_gc()
    }

    /// Whether writers of large values wait.
    pub fn has_held_writers(&self) -> bool {
        let reasons = [StallReason::BlockSpace, StallReason::BlockRoom];
        self.log.stalls.waiting(&reasons) > 0
    }

    /// Whether a writer waits for block GC, or soon will.
    pub fn awaits_block_gc(&self) -> bool {
        self.has_held_writers() || self.lacks_block_room()
    }

    /// Live bytes of blocks, and the least capacity they need: their size after block GC for want
    /// of space, and two more blocks for GC itself.
    pub fn least_large_capacity(&self) -> (u64, u64) {
        let living = self.large.totals().live_bytes;
        let kept = 2 * self.options.split_threshold_bytes;
        (living, Bounds::packed_tightly(living).saturating_add(kept))
    }

    /// Whether blocks have no room for the next write.
    pub fn lacks_block_room(&self) -> bool {
        self.log.stalls.waiting(&[StallReason::BlockRoom]) > 0
            || self.large.lacks_room(self.options.split_threshold_bytes)
            || self.log_lacks_room()
    }

    /// Number of reads of small values so far that count for heat: its clock.
    pub fn small_reads(&self) -> u64 {
        let hits = |by| self.metrics.hits(by);
        hits(AnsweredBy::Log) + hits(AnsweredBy::Cache) + self.flash_cache.small.reads()
    }

    /// Whether RAM shows that no applied object has a key with this hash. Pending frames must be
    /// searched before.
    #[inline]
    pub fn knows_absent(&self, hash: u64) -> bool {
        self.checkpoints.know_absent(&self.hash_index, hash)
    }

    /// Whether the hash index is so close to its RAM limit that recycling may have to free slots.
    pub fn hash_index_is_crowded(&self) -> bool {
        self.hash_index.load_of_bound() > HASH_INDEX_LOAD_WANTED
    }

    /// Decides visibility in the newest state. Must be created before the key is looked up.
    #[inline]
    pub fn presence(&self) -> Presence<'_> {
        self.presence_at(self.log.ranges.current(), u64::MAX)
    }

    /// The same as of a seq, with the range tombstones of that seq.
    #[inline]
    pub fn presence_at(&self, ranges: Option<Arc<RangeSet>>, seq: u64) -> Presence<'_> {
        let durable_seq = ranges.as_ref().map_or(0, |_| self.log.writer.durable_seq());
        Presence::at(&self.options.clock, ranges, seq, durable_seq)
    }

    /// Decides visibility in the newest committed state, some of which may not be visible yet.
    pub fn presence_committed(&self) -> Presence<'_> {
        Presence::at(&self.options.clock, self.log.ranges.current(), u64::MAX, u64::MAX)
    }
}
