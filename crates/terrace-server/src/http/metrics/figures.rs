//! The engine's figures: one table, a row for each family.

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet},
    metrics::MetricType,
};
use std::fmt;
use terrace::{FilledFrom, OperationStats, Stats, Tier};

/// The engine's figures.
#[derive(Debug)]
pub(super) struct Figures(pub Stats);

/// A row for each family: kind, name, help, labels, and its value, or one for each value of the
/// labels.
macro_rules! families {
    ($out:ident: $($kind:ident $name:literal $help:literal $(by [$($label:literal),+])? = $values:expr;)*) => {
        $(families!(@row $out $kind $name $help [$($($label),+)?] $values);)*
    };
    (@row $out:ident $kind:ident $name:literal $help:literal [] $value:expr) => {
        $out.family(MetricType::$kind, $name, $help, [], [([], $value)])?
    };
    (@row $out:ident $kind:ident $name:literal $help:literal [$label:literal] $values:expr) => {
        $out.family(MetricType::$kind, $name, $help, [$label], $values.map(|(text, value)| ([text], value)))?
    };
    (@row $out:ident $kind:ident $name:literal $help:literal [$($label:literal),+] $values:expr) => {
        $out.family(MetricType::$kind, $name, $help, [$($label),+], $values)?
    };
}

impl Collector for Figures {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (mut out, stats) = (Out(encoder), &self.0);
        reads(&mut out, stats)?;
        written(&mut out, stats)?;
        sizes(&mut out, stats)?;
        under_way(&mut out, stats)?;
        flash_cache(&mut out, stats)?;
        tiers(&mut out, stats)?;
        policies(&mut out, stats)?;
        out.operations(&stats.operations)
    }
}

/// Objects, and the tiers that answered reads.
fn reads(out: &mut Out<'_>, stats: &Stats) -> fmt::Result {
    let homes = [("inline", stats.inline), ("flash", stats.flash), ("block", stats.block)];
    let reads = &stats.reads;
    let answered = [
        ("overlay", reads.overlay_hits),
        ("cache", reads.cache_hits),
        ("inline", reads.inline_hits),
        ("flash", reads.flash_hits),
        ("copy", reads.copy_hits),
        ("prefetch", reads.prefetch_hits),
        ("block", reads.block_hits),
        ("none", reads.misses),
    ];
    let bytes = [
        ("ram", reads.ram_bytes),
        ("flash", reads.flash_bytes),
        ("large", reads.large_bytes),
    ];
    let ages = [
        ("log", stats.log.eviction_age),
        ("copies", stats.flash_cache.eviction_age),
    ];
    families! { out:
        Gauge "terrace_objects" "Live objects" by ["home"] = homes.map(|(name, home)| (name, home.objects));
        Gauge "terrace_object_bytes" "Bytes of live values" by ["home"] = homes.map(|(name, home)| (name, home.bytes));
        Counter "terrace_reads" "Reads of objects, by where they were answered" by ["answered_by"] = answered;
        Counter "terrace_read_bytes" "Bytes of the values that reads were answered with, by tier" by ["tier"] = bytes;
        Counter "terrace_device_reads" "Reads of the tiers' devices" by ["tier"]
            = [("flash", reads.flash_reads), ("large", reads.block_reads)];
        Gauge "terrace_eviction_age_seconds" "How long what left flash last had been there; 0 before the first"
            by ["part"] = ages.map(|(part, age)| (part, age.unwrap_or_default().as_secs()));
        Counter "terrace_false_flash_reads" "Flash reads that found another key" = reads.false_flash_reads;
    }
    Ok(())
}

/// Bytes written.
fn written(out: &mut Out<'_>, stats: &Stats) -> fmt::Result {
    let written = &stats.written;
    let causes = [
        (["flash", "user"], written.flash_user_bytes),
        (["flash", "padding"], written.flash_padding_bytes),
        (["flash", "reinsertion"], written.flash_reinserted_bytes),
        (["flash", "move"], written.flash_moved_bytes),
        (["flash", "order"], written.flash_ordered_bytes),
        (["flash", "sweep"], written.sweep_bytes),
        (["flash", "index"], written.index_bytes),
        (["flash", "compaction"], written.compaction_bytes),
        (["flash", "copy"], written.copy_bytes),
        (["flash", "checkpoint"], written.checkpoint_bytes),
        (["large", "user"], written.large_user_bytes),
        (["large", "destage"], written.large_destaged_bytes),
        (["large", "cleaning"], written.large_cleaned_bytes),
    ];
    families! { out:
        Counter "terrace_written_bytes" "Bytes written, by tier and cause" by ["tier", "cause"] = causes;
        Counter "terrace_user_bytes" "Bytes of keys, attributes and values that callers wrote" = written.user_bytes;
        Gauge "terrace_write_amplification" "Device bytes per user byte since open" = written.write_amplification();
    }
    Ok(())
}

/// The parts of the store, and their sizes.
fn sizes(out: &mut Out<'_>, stats: &Stats) -> fmt::Result {
    let Stats {
        log,
        large,
        index,
        hash_index,
        ..
    } = stats;
    let segments = [
        ("used", log.segments_used),
        ("free", log.segments_free),
        ("quarantined", log.segments_quarantined),
    ];
    families! { out:
        Gauge "terrace_log_segments" "Segments of the flash log" by ["state"] = segments;
        Counter "terrace_log_segments_reclaimed" "Segments reclaimed since open" = log.segments_reclaimed;
        Counter "terrace_log_syncs" "Group commits: fdatasyncs of the log since open" = stats.queue.syncs;
        Counter "terrace_index_flushes" "Flushes of the ordered index since open" = index.flushes;
        Counter "terrace_index_compactions" "Compactions of the ordered index since open that wrote tables"
            = index.compactions;
        Counter "terrace_index_block_reads" "Index block reads that went to the device" = index.block_reads;
        Gauge "terrace_log_capacity_bytes" "Most the flash log may occupy" = log.capacity_bytes;
        Gauge "terrace_log_allocated_bytes" "Bytes the flash log occupies" = log.allocated_bytes;
        Gauge "terrace_large_blocks" "Block files of the large space" = large.blocks;
        Gauge "terrace_large_allocated_bytes" "Bytes of the block files" = large.allocated_bytes;
        Gauge "terrace_large_live_bytes" "Bytes in blocks that hold live values" = large.live_bytes;
        Gauge "terrace_index_tables" "Tables of the ordered index" = index.tables;
        Gauge "terrace_index_table_bytes" "Bytes of the ordered index's tables" = index.bytes;
        Gauge "terrace_index_mirror_bytes" "Bytes of copies of the ordered index's tables" = index.mirror_bytes;
        Gauge "terrace_index_memtable_bytes" "Bytes of the ordered index's memtables" = index.memtable_bytes;
        Gauge "terrace_hash_index_entries" "Slots in use in the hash index" = hash_index.entries;
        Gauge "terrace_hash_index_ram_bytes" "RAM of the hash index" = hash_index.ram_bytes;
        Gauge "terrace_hash_index_refilling" "1 while the hash index is refilled after an open" = hash_index.refilling;
    }
    Ok(())
}

/// Work in progress, waiting work, and errors.
fn under_way(out: &mut Out<'_>, stats: &Stats) -> fmt::Result {
    let Stats {
        index,
        cache,
        queue,
        expire,
        snapshots,
        ..
    } = stats;
    let dropped = [("expired", expire.dropped_expired), ("deleted", expire.dropped_deleted)];
    let held = [
        ("flash", snapshots.held_segment_bytes),
        ("large", snapshots.held_block_bytes),
    ];
    families! { out:
        Gauge "terrace_ram_bytes" "RAM of the store, by what it is for" by ["part"] = stats.ram.parts();
        Gauge "terrace_cache_used_bytes" "Bytes in the RAM cache" = cache.bytes;
        Gauge "terrace_cache_capacity_bytes" "Most the RAM cache may hold" = cache.capacity_bytes;
        Gauge "terrace_overlay_bytes" "Bytes of commits not yet applied" = queue.overlay_bytes;
        Gauge "terrace_queue_frames" "Frames not yet applied" = queue.frames;
        Gauge "terrace_snapshots" "Open snapshots" = queue.snapshots;
        Gauge "terrace_committed_seq" "Last commit" = queue.committed_seq;
        Gauge "terrace_durable_seq" "Last commit on the device" = queue.durable_seq;
        Gauge "terrace_applied_seq" "Last commit applied to the index" = queue.applied_seq;
        Gauge "terrace_persisted_seq" "Last commit the index has persisted" = index.persisted_seq;
        Gauge "terrace_writes_refused" "1 while writes are refused after a failure" = stats.failed.is_some();
        Gauge "terrace_damage_findings" "Damage found when the store was opened" = stats.damage.len() as u64;
        Gauge "terrace_ranges_outstanding" "Range deletions whose space is not reclaimed yet"
            = expire.ranges_outstanding;
        Counter "terrace_dropped_objects" "Objects dropped since open after they expired or a range deletion took them"
            by ["cause"] = dropped;
        Counter "terrace_expiry_passes" "Walks over the index for expired objects since open" = expire.expiry_passes;
        Gauge "terrace_snapshot_oldest_age_seconds" "Age of the oldest snapshot, 0 if there is none"
            = snapshots.oldest_age.map_or(0.0, |age| age.as_secs_f64());
        Gauge "terrace_snapshot_held_bytes" "Bytes of segments and blocks that only snapshots keep" by ["tier"] = held;
        Counter "terrace_snapshots_expired" "Snapshots that became older than the limit, since open"
            = snapshots.expired;
    }
    Ok(())
}

/// Copies of large objects on flash, promoted small values, and prefetching.
fn flash_cache(out: &mut Out<'_>, stats: &Stats) -> fmt::Result {
    let cache = &stats.flash_cache;
    let dropped = [
        ("full", cache.dropped_full),
        ("budget", cache.dropped_budget),
        ("no_room", cache.dropped_no_room),
    ];
    families! { out:
        Gauge "terrace_copies" "Copies of large objects on flash" = cache.copies;
        Gauge "terrace_copies_bytes" "Bytes of the copies on flash" = cache.bytes;
        Gauge "terrace_staged_bytes" "RAM for objects on their way from disk to readers and to flash"
            = cache.staged_bytes;
        Counter "terrace_promoted" "Copies written to flash since open" = cache.promoted;
        Counter "terrace_moved_back" "Small values moved from blocks to the log since open, because they are read often"
            = cache.moved;
        Counter "terrace_copies_evicted" "Copies given up since open, for others or for the log" = cache.evicted;
        Counter "terrace_copies_forgotten" "Copies that did not match their checksums since open" = cache.forgotten;
        Counter "terrace_promotions_dropped" "Promotions given up since open" by ["cause"] = dropped;
        Counter "terrace_prefetch_objects" "Objects read ahead since open" = cache.prefetch_objects;
        Counter "terrace_prefetch_bytes" "Their bytes" = cache.prefetch_bytes;
        Counter "terrace_prefetch_unused" "Objects prefetched since open that were not read" = cache.prefetch_unused;
    }
    Ok(())
}

/// Space of the tiers, and stalls.
fn tiers(out: &mut Out<'_>, stats: &Stats) -> fmt::Result {
    let (large, fill) = (&stats.large, &stats.fill);
    let paces = [("flash", stats.flash_throttle), ("large", stats.large_throttle)];
    let spaces = [("flash", Tier::Flash), ("large", Tier::Large)].map(|(name, tier)| (name, stats.space(tier)));
    let fills = [("flash", fill.flash), ("large", fill.large)];
    let stalls = || stats.stalls.iter().map(|stall| (stall.reason.name(), stall));
    families! { out:
        Gauge "terrace_background_share_per_mille" "Share of the device's time that background work may have"
            by ["tier"] = paces.map(|(tier, pace)| (tier, u64::from(pace.share_per_mille)));
        Counter "terrace_background_rest_microseconds" "Time that background work rested for callers' reads since open"
            by ["tier"] = paces.map(|(tier, pace)| (tier, pace.rested_us));
        Gauge "terrace_tier_disk_bytes" "Bytes of the tiers' files" by ["tier"]
            = spaces.map(|(name, space)| (name, space.disk_bytes));
        Gauge "terrace_tier_live_bytes" "Bytes that live on the tiers" by ["tier"]
            = spaces.map(|(name, space)| (name, space.live_bytes));
        Gauge "terrace_large_space_amplification" "Bytes on the large tier per byte that lives there"
            = stats.space(Tier::Large).amplification();
        Gauge "terrace_large_capacity_bytes" "Most that blocks may occupy, 0 if there is no limit"
            = large.capacity_bytes.unwrap_or(0);
        Counter "terrace_blocks_reclaimed" "Blocks emptied by cleaning since open" = large.blocks_reclaimed;
        Gauge "terrace_blocks_set_aside" "Blocks that cleaning cannot empty" = large.blocks_set_aside;
        Gauge "terrace_pinned_block_bytes" "Bytes of dead blocks that are only kept for readers"
            = large.pinned_block_bytes;
        Counter "terrace_writers_let_go" "Writes of large values over the limit that cleaning could not help"
            = large.writers_let_go;
        Gauge "terrace_full" "1 while nothing new is taken for want of room" = stats.full.is_some();
        Gauge "terrace_reserve_bytes" "Space of the flash device that is kept for deletes; 0 while it is used"
            = stats.reserve_bytes;
        Gauge "terrace_fill_used_bytes" "Bytes that only deletions can give back; of both tiers where they are on one device"
            by ["tier"] = fills.map(|(name, tier)| (name, tier.used_bytes));
        Gauge "terrace_fill_capacity_bytes" "What the tier may have of its device, less what others have taken of that"
            by ["tier"] = fills.map(|(name, tier)| (name, tier.capacity_bytes));
        Gauge "terrace_hours_to_full" "How long what is left lasts at the rate of the last day; +Inf while it does not grow"
            by ["tier"] = fills.map(|(name, tier)| (name, tier.hours_to_full.unwrap_or(f64::INFINITY)));
        Gauge "terrace_stalled" "Callers that wait for room now" by ["reason"]
            = stalls().map(|(reason, stall)| (reason, stall.waiting));
        Counter "terrace_stalls" "Waits of callers for room that ended, since open" by ["reason"]
            = stalls().map(|(reason, stall)| (reason, stall.count));
        Counter "terrace_stall_seconds" "Time that callers waited for room, since open" by ["reason"]
            = stalls().map(|(reason, stall)| (reason, stall.time.as_secs_f64()));
    }
    Ok(())
}

/// Checkpoints of the hash index, rules of placement, and writes for scans.
fn policies(out: &mut Out<'_>, stats: &Stats) -> fmt::Result {
    let (placement, order, cache) = (&stats.placement, &stats.scan_order, &stats.scan_cache);
    let checkpoint = &stats.hash_index.checkpoint;
    let sources = [FilledFrom::Checkpoint, FilledFrom::Index];
    families! { out:
        Gauge "terrace_hash_index_filled_from" "1 for what the hash index was filled from after the opening"
            by ["source"] = sources.map(|source| (source.name(), checkpoint.filled_from == Some(source)));
        Counter "terrace_hash_index_checkpoints" "Checkpoints of the hash index since open, by outcome" by ["outcome"]
            = [("taken", checkpoint.taken), ("failed", checkpoint.failed)];
        Gauge "terrace_migrating" "1 while not everything was looked at since the rules of placement were changed"
            = placement.migrating;
        Counter "terrace_migrated" "Values moved since open because of changed rules" = placement.moved;
        Counter "terrace_scans_paid_bytes" "What scans have paid for order since open: bytes that could have been written in the time"
            = order.paid_bytes;
        Counter "terrace_ordered" "Values written in the order of their keys since open because scans have paid for it"
            = order.moved;
        Counter "terrace_ordered_copies" "Short values copied into their index entries since open because scans have paid for it"
            = order.copied;
        Counter "terrace_order_sweeps" "How often since open the log was read in long pieces to copy its short values"
            = order.sweeps;
        Counter "terrace_order_sweep_bytes" "Bytes of the log that were read for that" = order.sweep_bytes;
        Counter "terrace_order_dropped" "Values that scans have paid for and that were not written" by ["cause"]
            = [("full", order.dropped_full), ("no_room", order.dropped_no_room)];
        Gauge "terrace_scan_chunks" "Chunks of the scan cache: pairs of a range of keys, as scans have read them"
            = cache.chunks;
        Counter "terrace_scan_chunk_pairs" "Pairs that scans took out of chunks since open" = cache.pair_hits;
        Counter "terrace_scan_chunks_made" "Chunks of the scan cache made since open" = cache.made;
        Counter "terrace_scan_chunks_dropped" "Chunks of the scan cache dropped since open because something in them was written"
            = cache.dropped;
    }
    Ok(())
}

/// The encoder, with the shapes used above.
struct Out<'a>(DescriptorEncoder<'a>);

impl Out<'_> {
    fn family<const L: usize, V: Number>(
        &mut self,
        kind: MetricType,
        name: &str,
        help: &str,
        labels: [&str; L],
        values: impl IntoIterator<Item = ([&'static str; L], V)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, kind)?;
        for (texts, value) in values {
            if L == 0 {
                return value.encode(kind, family);
            }
            let pairs: Vec<(&str, &str)> = labels.into_iter().zip(texts).collect();
            value.encode(kind, family.encode_family(&pairs.as_slice())?)?;
        }
        Ok(())
    }

    fn operations(&mut self, operations: &[OperationStats]) -> fmt::Result {
        let outcomes = operations.iter().flat_map(|operation| {
            let name = operation.name;
            [([name, "ok"], operation.count), ([name, "error"], operation.errors)]
        });
        families! { self: Counter "terrace_operations" "Engine calls, by outcome" by ["operation", "outcome"] = outcomes; }
        let name = "terrace_operation_seconds";
        let mut family = self
            .0
            .encode_descriptor(name, "Time engine calls took", None, MetricType::Histogram)?;
        for operation in operations {
            let (sum, count, buckets) = histogram(operation);
            family
                .encode_family(&[("operation", operation.name)])?
                .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

/// A value for the encoder.
trait Number {
    fn encode(&self, kind: MetricType, encoder: MetricEncoder<'_>) -> fmt::Result;
}

impl Number for u64 {
    fn encode(&self, kind: MetricType, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        match kind {
            MetricType::Counter => encoder.encode_counter::<NoLabelSet, _, u64>(self, None),
            // Gauges are signed.
            _ => encoder.encode_gauge(&i64::try_from(*self).unwrap_or(i64::MAX)),
        }
    }
}

impl Number for f64 {
    fn encode(&self, kind: MetricType, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        match kind {
            MetricType::Counter => encoder.encode_counter::<NoLabelSet, _, u64>(self, None),
            _ => encoder.encode_gauge(self),
        }
    }
}

impl Number for bool {
    fn encode(&self, kind: MetricType, encoder: MetricEncoder<'_>) -> fmt::Result {
        u64::from(*self).encode(kind, encoder)
    }
}

/// Sum in seconds, count, and the calls per upper bound in seconds, the last bound being infinite.
#[allow(clippy::cast_precision_loss)]
fn histogram(operation: &OperationStats) -> (f64, u64, Vec<(f64, u64)>) {
    let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;
    let mut buckets: Vec<_> = operation
        .buckets
        .iter()
        .filter(|(bound, _)| *bound < u64::MAX)
        .map(|(bound, count)| (seconds(*bound), *count))
        .collect();
    let overflow = operation
        .buckets
        .iter()
        .filter(|(bound, _)| *bound == u64::MAX)
        .map(|(_, count)| count)
        .sum();
    buckets.push((f64::INFINITY, overflow));
    // Counted from the buckets, so that the two agree even while calls end during the snapshot.
    let count = buckets.iter().map(|(_, count)| count).sum();
    (seconds(operation.total_ns), count, buckets)
}
