//! The figures of an open store: one snapshot, assembled from the counters of all rooms.
//!
//! Above the engine, so that rooms do not depend on each other's counters.

use crate::{
    CacheStats, ExpireStats, FlashCacheStats, HashIndexStats, HomeKind, LargeStats, LogStats, QueueStats, RamStats,
    ReadStats, SnapshotStats, Stats, Version, WrittenStats,
    api::{clock::NEVER_MS, expiry},
    engine::Engine,
    log::segments::SegmentState,
    metrics::counters::AnsweredBy,
    visibility::snapshots::SnapshotFigures,
};
use std::sync::atomic::{AtomicU64, Ordering};

/// Makes a picture of the store.
pub fn stats(engine: &Engine) -> Stats {
    let metrics = &engine.metrics;
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let large = engine.large.counters();
    let written = engine.log.writer.written();
    let reinserted = load(&metrics.reinserted_bytes);
    let moved = load(&engine.flash_cache.moved_log_bytes);
    let ordered = load(&engine.scan_order.counters.log_bytes);
    let index = engine.index.stats();
    let flash_cache = engine.flash_cache.stats();
    let snapshots = engine.snapshots.figures();
    // Before the figures that are there when it is over.
    let refilling = engine.refilling.load(Ordering::Acquire);
    let checkpoint = engine.checkpoints.stats();
    Stats {
        flash_cache,
        flash_throttle: engine.paces.flash.stats(),
        large_throttle: engine.paces.large.stats(),
        placement: engine.migration.stats(),
        scan_order: engine.scan_order.stats(),
        scan_cache: engine.scan_cache.stats(),
        inline: engine.accounting.stats(HomeKind::Inline),
        flash: engine.accounting.stats(HomeKind::Flash),
        block: engine.accounting.stats(HomeKind::Block),
        log: log_stats(engine),
        large: large_stats(engine),
        index,
        hash_index: HashIndexStats {
            entries: engine.hash_index.len(),
            ram_bytes: engine.hash_index.ram_bytes(),
            slots_max: engine.hash_index.slots_max(),
            evicted: engine.hash_index.evicted(),
            refilling,
            checkpoint,
        },
        cache: cache_stats(engine),
        ram: ram_stats(engine, &flash_cache),
        reads: read_stats(engine, large.reads),
        written: WrittenStats {
            user_bytes: load(&metrics.user_bytes),
            flash_user_bytes: load(&written.records).saturating_sub(reinserted + moved + ordered),
            flash_padding_bytes: load(&written.padding),
            flash_reinserted_bytes: reinserted,
            flash_moved_bytes: moved,
            flash_ordered_bytes: ordered,
            sweep_bytes: load(&engine.scan_order.counters.spilled_bytes),
            index_bytes: index.flushed_bytes + engine.index.copy_bytes(),
            compaction_bytes: index.compacted_bytes,
            large_user_bytes: large.user_bytes + large.overhead_bytes,
            large_destaged_bytes: large.destaged_bytes,
            large_cleaned_bytes: large.cleaned_bytes,
            copy_bytes: flash_cache.promoted_bytes + flash_cache.recopied_bytes,
            checkpoint_bytes: checkpoint.written_bytes,
        },
        queue: queue_stats(engine, snapshots.count),
        stalls: engine.log.stalls.picture().to_vec(),
        expire: expire_stats(engine),
        snapshots: snapshot_stats(engine, snapshots),
        operations: metrics.operations(),
        failed: engine.log.writer.failure(),
        damage: engine.damage.clone(),
        mended: engine.mended.clone(),
        full: engine.full(),
        reserve_bytes: engine.log.reserve.bytes(),
        flash_capacity_bytes: engine.flash_limit_bytes(),
        fill: engine.look_at_fill(),
    }
}

fn queue_stats(engine: &Engine, snapshots: u64) -> QueueStats {
    QueueStats {
        overlay_bytes: engine.log.frames.pending_bytes(),
        frames: engine.log.frames.pending_frames() as u64,
        committed_seq: engine.log.committed_seq(),
        durable_seq: engine.log.writer.durable_seq(),
        syncs: engine.log.writer.written().syncs.load(Ordering::Relaxed),
        applied_seq: engine.log.applied_seq(),
        snapshots,
    }
}

fn cache_stats(engine: &Engine) -> CacheStats {
    let (values, frames) = (&engine.cache, &engine.log.frames);
    CacheStats {
        bytes: values.bytes() + values.index_bytes() + frames.retained_bytes(),
        capacity_bytes: values.capacity_bytes() + frames.share_bytes(),
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
        prefetch_hits: metrics.hits(AnsweredBy::Ahead),
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

fn expire_stats(engine: &Engine) -> ExpireStats {
    let earliest_ms = Some(engine.expiring.earliest_ms()).filter(|earliest| *earliest != NEVER_MS);
    ExpireStats {
        ranges_outstanding: engine.log.ranges.count() as u64,
        earliest_expiry: earliest_ms.map(expiry::from_ms),
        ..engine.expire_counters.picture()
    }
}

/// What the snapshots hold back: drained segments and dead blocks that the index has done with.
fn snapshot_stats(engine: &Engine, figures: SnapshotFigures) -> SnapshotStats {
    let segments = &engine.log.segments;
    let persisted_seq = engine.persisted_seq.load(Ordering::Acquire);
    let oldest_seq = figures.oldest.map_or(u64::MAX, |(seq, _)| seq);
    let held = segments
        .in_state(SegmentState::Drained)
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
    let (metrics, block_gc) = (&engine.metrics, &engine.block_gc);
    let totals = engine.large.totals();
    LargeStats {
        blocks: engine.large.block_count(),
        allocated_bytes: totals.allocated_bytes,
        open_bytes: totals
            .allocated_bytes
            .saturating_sub(totals.rest_bytes + totals.full_bytes),
        live_bytes: totals.live_bytes,
        meta_version: engine.large.meta_version(),
        meta_bytes: engine.large.meta_bytes(),
        reserve_bytes: engine.log.reserve.large_bytes(),
        capacity_bytes: engine.large.capacity_bytes(),
        blocks_reclaimed: load(&block_gc.blocks_reclaimed),
        blocks_set_aside: load(&block_gc.blocks_set_aside),
        set_aside_bytes: load(&block_gc.set_aside_bytes),
        pinned_block_bytes: load(&metrics.pinned_block_bytes),
        writers_let_go: load(&block_gc.writers_let_go),
    }
}

fn log_stats(engine: &Engine) -> LogStats {
    let segments = &engine.log.segments;
    LogStats {
        capacity_bytes: u64::from(segments.capacity()) * segments.segment_bytes(),
        allocated_bytes: u64::from(segments.created()) * segments.segment_bytes(),
        segments_used: u64::from(segments.created() - segments.free().min(segments.created())),
        segments_free: u64::from(segments.available()),
        segments_reclaimed: engine.metrics.segments_reclaimed.load(Ordering::Relaxed),
        eviction_age: *engine.metrics.log_eviction_age.lock(),
        segments_quarantined: segments.in_state(SegmentState::Quarantined).count() as u64,
    }
}

/// What the store's RAM is for at the moment, of which `flash_cache` has the staging already.
pub fn ram_stats(engine: &Engine, flash_cache: &FlashCacheStats) -> RamStats {
    let index = engine.index.ram();
    RamStats {
        values_bytes: engine.cache.bytes() + engine.cache.index_bytes(),
        recent_bytes: engine.log.frames.retained_bytes(),
        frames_bytes: engine.log.frames.pending_bytes() + engine.log.pool.spare_bytes(),
        transfer_bytes: engine.large.transfer_bytes(),
        staging_bytes: flash_cache.staged_bytes + flash_cache.moving_bytes + engine.scan_order.queue.bytes(),
        draining_bytes: engine.metrics.draining_bytes.load(Ordering::Relaxed),
        memtable_bytes: index.memtable_bytes,
        index_blocks_bytes: index.blocks_bytes,
        hash_index_bytes: engine.hash_index.ram_bytes(),
        filters_bytes: index.filters_bytes + engine.checkpoints.filter_bytes(),
    }
}
