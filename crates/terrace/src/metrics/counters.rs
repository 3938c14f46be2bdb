//! Counters and latencies, and the picture made of them.

use crate::{
    CacheStats, FlashIndexStats, HomeKind, LargeStats, LogStats, OperationStats, QueueStats, ReadStats, SnapshotStats,
    Stats, SweepStats, Version, WrittenStats,
    api::{clock::NEVER_MS, expiry, ram::ram_stats},
    engine::Engine,
    log::segments::SegmentState,
    metrics::striped::Lanes,
    visibility::snapshots::SnapshotFigures,
};
use parking_lot::Mutex;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Latency buckets: powers of two from 1 µs to about 17 s; the last takes the rest.
const BUCKETS: usize = 25;
const FIRST_BUCKET_NS: u64 = 1_000;

/// Count and latencies of one operation.
#[derive(Debug, Default)]
pub struct Operation(Lanes<Calls>);

#[derive(Debug, Default)]
struct Calls {
    errors: AtomicU64,
    total_ns: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Operation {
    /// Runs and counts one call.
    pub fn measure<T, E>(&self, call: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let start = Instant::now();
        let outcome = call();
        self.record(elapsed_ns(start), outcome.is_err());
        outcome
    }

    /// Runs and counts one call of several parts; it failed if any of them did.
    pub fn measure_all<T, E>(&self, call: impl FnOnce() -> Vec<Result<T, E>>) -> Vec<Result<T, E>> {
        let start = Instant::now();
        let outcomes = call();
        self.record(elapsed_ns(start), outcomes.iter().any(Result::is_err));
        outcomes
    }

    fn record(&self, elapsed_ns: u64, failed: bool) {
        let calls = self.0.own();
        if failed {
            calls.errors.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let bucket = (elapsed_ns / FIRST_BUCKET_NS)
            .checked_ilog2()
            .map_or(0, |log| log as usize + 1)
            .min(BUCKETS - 1);
        calls.total_ns.fetch_add(elapsed_ns, Ordering::Relaxed);
        calls.buckets[bucket].fetch_add(1, Ordering::Relaxed);
    }

    fn stats(&self, name: &'static str) -> OperationStats {
        let buckets: Vec<_> = (0..BUCKETS)
            .map(|at| {
                let bound = if at == BUCKETS - 1 {
                    u64::MAX
                } else {
                    FIRST_BUCKET_NS << at
                };
                (bound, self.0.sum(|calls| &calls.buckets[at]))
            })
            .collect();
        OperationStats {
            name,
            count: buckets.iter().map(|(_, count)| count).sum(),
            errors: self.0.sum(|calls| &calls.errors),
            total_ns: self.0.sum(|calls| &calls.total_ns),
            buckets,
        }
    }
}

fn elapsed_ns(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// The calls of one stream. They count as one operation when the stream ends, with the time spent in them: what the
/// caller does in between is not the store's latency.
#[derive(Debug)]
pub struct StreamClock {
    operation: Arc<Operation>,
    spent_ns: AtomicU64,
    failed: AtomicBool,
    ended: AtomicBool,
}

impl StreamClock {
    /// For a stream to read: it ends when it is dropped, wherever it is then.
    pub fn reading(operation: &Arc<Operation>) -> Self {
        Self::new(operation, true)
    }

    /// For a stream to write: it ends with [`StreamClock::last`], or when a call fails. One that the caller gives up
    /// is no operation.
    pub fn writing(operation: &Arc<Operation>) -> Self {
        Self::new(operation, false)
    }

    fn new(operation: &Arc<Operation>, ended: bool) -> Self {
        Self {
            operation: Arc::clone(operation),
            spent_ns: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            ended: AtomicBool::new(ended),
        }
    }

    /// Runs one call.
    pub fn time<T, E>(&self, call: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let start = Instant::now();
        let outcome = call();
        self.spent_ns.fetch_add(elapsed_ns(start), Ordering::Relaxed);
        if outcome.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        outcome
    }

    /// There is no stream after all, so it counts as nothing.
    pub fn cancel(mut self) {
        *self.ended.get_mut() = false;
    }

    /// Runs the last call.
    pub fn last<T, E>(&self, call: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.ended.store(true, Ordering::Relaxed);
        self.time(call)
    }
}

impl Drop for StreamClock {
    fn drop(&mut self) {
        let failed = *self.failed.get_mut();
        if failed || *self.ended.get_mut() {
            self.operation.record(*self.spent_ns.get_mut(), failed);
        }
    }
}

/// What answered a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnsweredBy {
    /// The overlay.
    Overlay,
    /// The RAM cache, or frames written lately.
    Cache,
    /// What was read ahead.
    Ahead,
    /// The ordered index itself.
    Inline,
    /// The flash log.
    Log,
    /// A copy on flash, or what somebody else was reading.
    Copy,
    /// The large space.
    Block,
}

impl AnsweredBy {
    const COUNT: usize = Self::Block as usize + 1;
}

/// Reads answered.
#[derive(Debug, Default)]
struct Answers {
    /// By [`AnsweredBy`].
    hits: [AtomicU64; AnsweredBy::COUNT],
    misses: AtomicU64,
    /// Bytes of values by the tier that answered.
    ram_bytes: AtomicU64,
    flash_bytes: AtomicU64,
    large_bytes: AtomicU64,
}

/// All counters of a store since it was opened.
#[derive(Debug, Default)]
pub struct Metrics {
    answers: Lanes<Answers>,
    /// Age of the segment that values last left for the large tier.
    pub log_eviction_age: Mutex<Option<Duration>>,
    /// Reads of the flash log.
    pub flash_reads: AtomicU64,
    /// Of those, for another key.
    pub false_flash_reads: AtomicU64,
    /// Bytes callers gave.
    pub user_bytes: AtomicU64,
    /// Record bytes written by reinsertion.
    pub reinserted_bytes: AtomicU64,
    /// Segments freed by recycling.
    pub segments_recycled: AtomicU64,
    /// Drops committed for expired objects.
    pub dropped_expired: AtomicU64,
    /// Drops committed for objects that a range deletion hid.
    pub dropped_deleted: AtomicU64,
    /// Walks over the index in search of expired objects.
    pub expiry_passes: AtomicU64,
    /// Bytes of dead blocks that only a snapshot keeps.
    pub held_block_bytes: AtomicU64,
    /// Bytes of dead blocks that only readers keep, or a doubt.
    pub pinned_block_bytes: AtomicU64,
    /// Large values that went to the log because the large tier was full.
    pub fallback_values: AtomicU64,
    /// Their bytes.
    pub fallback_bytes: AtomicU64,
    /// Calls.
    pub get: Operation,
    /// Calls.
    pub head: Operation,
    /// Calls.
    pub get_range: Operation,
    /// Calls.
    pub put: Operation,
    /// Calls.
    pub delete: Operation,
    /// Calls.
    pub delete_range: Operation,
    /// Calls.
    pub write: Operation,
    /// Calls.
    pub scan: Operation,
    /// Calls.
    pub multi_get: Operation,
    /// Streams read.
    pub reader: Arc<Operation>,
    /// Streams written.
    pub writer: Arc<Operation>,
}

impl Metrics {
    /// Counts a read that was answered with a value of so many bytes.
    pub fn answered(&self, by: AnsweredBy, bytes: u64) {
        self.answered_many(by, 1, bytes);
    }

    /// Counts so many reads, answered with so many bytes in all.
    pub fn answered_many(&self, by: AnsweredBy, count: u64, bytes: u64) {
        let answers = self.answers.own();
        let tier_bytes = match by {
            AnsweredBy::Overlay | AnsweredBy::Cache | AnsweredBy::Ahead => &answers.ram_bytes,
            AnsweredBy::Inline | AnsweredBy::Log | AnsweredBy::Copy => &answers.flash_bytes,
            AnsweredBy::Block => &answers.large_bytes,
        };
        answers.hits[by as usize].fetch_add(count, Ordering::Relaxed);
        tier_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Reads that were answered so.
    pub fn hits(&self, by: AnsweredBy) -> u64 {
        self.answers.sum(|answers| &answers.hits[by as usize])
    }

    /// Counts a read that found no object.
    pub fn missed(&self) {
        self.answers.own().misses.fetch_add(1, Ordering::Relaxed);
    }

    /// Bytes of dead blocks that cannot be deleted though the index has persisted that they are dead.
    pub fn held_dead_bytes(&self) -> u64 {
        self.held_block_bytes.load(Ordering::Relaxed) + self.pinned_block_bytes.load(Ordering::Relaxed)
    }

    fn operations(&self) -> Vec<OperationStats> {
        vec![
            self.get.stats("get"),
            self.head.stats("head"),
            self.get_range.stats("get_range"),
            self.put.stats("put"),
            self.delete.stats("delete"),
            self.delete_range.stats("delete_range"),
            self.write.stats("write"),
            self.scan.stats("scan"),
            self.multi_get.stats("multi_get"),
            self.reader.stats("reader"),
            self.writer.stats("writer"),
        ]
    }
}

/// Makes a picture of the store.
pub fn stats(engine: &Engine) -> Stats {
    let metrics = &engine.metrics;
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let large = engine.large.counters();
    let written = engine.log.writer.written();
    let (reinserted, moved) = (load(&metrics.reinserted_bytes), engine.heat.moved_log_bytes());
    let index = engine.index.stats();
    let heat = engine.heat.stats();
    let snapshots = engine.snapshots.figures();
    // Before the figures that are there when it is over.
    let refilling = engine.refilling.load(Ordering::Acquire);
    let checkpoint = engine.checkpoints.stats();
    Stats {
        heat,
        flash_pace: engine.paces.flash.stats(),
        large_pace: engine.paces.large.stats(),
        placement: engine.settling.stats(),
        inline: engine.accounting.stats(HomeKind::Inline),
        flash: engine.accounting.stats(HomeKind::Flash),
        block: engine.accounting.stats(HomeKind::Block),
        log: log_stats(engine),
        large: large_stats(engine),
        index,
        flash_index: FlashIndexStats {
            entries: engine.flash_index.len(),
            ram_bytes: engine.flash_index.ram_bytes(),
            slots_max: engine.flash_index.slots_max(),
            evicted: engine.flash_index.evicted(),
            refilling,
            checkpoint,
        },
        cache: CacheStats {
            bytes: engine.cache.bytes() + engine.log.recent.bytes(),
            capacity_bytes: engine.cache.capacity_bytes() + engine.log.recent.share_bytes(),
        },
        ram: ram_stats(engine, &heat),
        reads: read_stats(engine, large.reads),
        written: WrittenStats {
            user_bytes: load(&metrics.user_bytes),
            flash_user_bytes: load(&written.records).saturating_sub(reinserted + moved),
            flash_padding_bytes: load(&written.padding),
            flash_reinserted_bytes: reinserted,
            flash_moved_bytes: moved,
            index_bytes: index.flushed_bytes,
            compaction_bytes: index.compacted_bytes,
            large_user_bytes: large.user_bytes + large.overhead_bytes,
            large_destaged_bytes: large.destaged_bytes,
            large_cleaned_bytes: large.cleaned_bytes,
            copy_bytes: heat.promoted_bytes + heat.recopied_bytes,
            checkpoint_bytes: checkpoint.written_bytes,
        },
        queue: QueueStats {
            overlay_bytes: engine.log.overlay.bytes(),
            frames: engine.log.overlay.len() as u64,
            committed_seq: engine.log.committed_seq(),
            durable_seq: engine.log.writer.durable_seq(),
            syncs: load(&written.syncs),
            applied_seq: engine.log.applied_seq(),
            snapshots: snapshots.count,
        },
        sweep: sweep_stats(engine),
        snapshots: snapshot_stats(engine, snapshots),
        operations: metrics.operations(),
        failed: engine.log.writer.failure(),
        damage: engine.damage.clone(),
    }
}

fn read_stats(engine: &Engine, block_reads: u64) -> ReadStats {
    let metrics = &engine.metrics;
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    ReadStats {
        overlay_hits: metrics.hits(AnsweredBy::Overlay),
        cache_hits: metrics.hits(AnsweredBy::Cache),
        inline_hits: metrics.hits(AnsweredBy::Inline),
        copy_hits: metrics.hits(AnsweredBy::Copy),
        ahead_hits: metrics.hits(AnsweredBy::Ahead),
        flash_hits: metrics.hits(AnsweredBy::Log),
        block_hits: metrics.hits(AnsweredBy::Block),
        misses: metrics.answers.sum(|answers| &answers.misses),
        ram_bytes: metrics.answers.sum(|answers| &answers.ram_bytes),
        flash_bytes: metrics.answers.sum(|answers| &answers.flash_bytes),
        large_bytes: metrics.answers.sum(|answers| &answers.large_bytes),
        flash_device_reads: engine.flash_disk.counters().reads,
        flash_reads: load(&metrics.flash_reads),
        false_flash_reads: load(&metrics.false_flash_reads),
        block_reads,
    }
}

fn sweep_stats(engine: &Engine) -> SweepStats {
    let metrics = &engine.metrics;
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let earliest_ms = Some(engine.expiring.earliest_ms()).filter(|earliest| *earliest != NEVER_MS);
    SweepStats {
        ranges_outstanding: engine.log.ranges.count() as u64,
        dropped_expired: load(&metrics.dropped_expired),
        dropped_deleted: load(&metrics.dropped_deleted),
        expiry_passes: load(&metrics.expiry_passes),
        earliest_expiry: earliest_ms.map(expiry::from_ms),
    }
}

/// What the snapshots hold back: drained segments and dead blocks that the index has done with.
fn snapshot_stats(engine: &Engine, figures: SnapshotFigures) -> SnapshotStats {
    let segments = &engine.log.segments;
    let persisted_seq = engine.persisted_seq.load(Ordering::Acquire);
    let oldest_seq = figures.oldest.map_or(u64::MAX, |(seq, _)| seq);
    let held = segments
        .iter()
        .filter(|segment| segment.state() == SegmentState::Drained)
        .filter(|segment| segment.drained_seq() <= persisted_seq && segment.drained_seq() > oldest_seq);
    SnapshotStats {
        open: figures.count,
        oldest_version: figures.oldest.map(|(seq, _)| Version(seq)),
        oldest_age: figures.oldest.map(|(_, age)| age),
        held_segment_bytes: held.count() as u64 * segments.segment_bytes(),
        held_block_bytes: engine.metrics.held_block_bytes.load(Ordering::Relaxed),
        expired: figures.expired,
    }
}

fn large_stats(engine: &Engine) -> LargeStats {
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (metrics, cleaning) = (&engine.metrics, &engine.cleaning);
    let totals = engine.large.totals();
    LargeStats {
        blocks: engine.large.block_count(),
        allocated_bytes: totals.allocated_bytes,
        open_bytes: totals
            .allocated_bytes
            .saturating_sub(totals.rest_bytes + totals.full_bytes),
        live_bytes: engine.large.live_bytes(),
        meta_version: engine.large.meta_version(),
        meta_bytes: engine.large.meta_bytes(),
        capacity_bytes: engine.options.large_capacity_bytes,
        blocks_cleaned: load(&cleaning.blocks_cleaned),
        blocks_set_aside: load(&cleaning.blocks_set_aside),
        set_aside_bytes: load(&cleaning.set_aside_bytes),
        pinned_block_bytes: load(&metrics.pinned_block_bytes),
        writers_held: load(&cleaning.writers_held),
        writers_held_time: Duration::from_nanos(load(&cleaning.held_ns)),
        writers_let_go: load(&cleaning.writers_let_go),
        fallback_values: load(&metrics.fallback_values),
        fallback_bytes: load(&metrics.fallback_bytes),
    }
}

fn log_stats(engine: &Engine) -> LogStats {
    let segments = &engine.log.segments;
    let quarantined = segments
        .iter()
        .filter(|segment| segment.state() == SegmentState::Quarantined)
        .count();
    LogStats {
        capacity_bytes: u64::from(segments.capacity()) * segments.segment_bytes(),
        allocated_bytes: u64::from(segments.created()) * segments.segment_bytes(),
        segments_used: u64::from(segments.created() - segments.free().min(segments.created())),
        segments_free: u64::from(segments.available()),
        segments_recycled: engine.metrics.segments_recycled.load(Ordering::Relaxed),
        eviction_age: *engine.metrics.log_eviction_age.lock(),
        segments_quarantined: quarantined as u64,
    }
}
