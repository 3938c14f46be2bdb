//! Figures about a store as JSON and as text. `terrace stat --json` and `/api/stats` give the same
//! JSON.

use crate::{size::Size, time_span::Moment};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use terrace::{
    ExpireStats, FillStats, FilledFrom, FlashCacheStats, HashIndexStats, HomeStats, LargeStats, PlacementStats,
    QueueStats, RamStats, ScanCacheStats, ScanOrderStats, SnapshotStats, StallStats, Stats, ThrottleStats, Tier,
    TierFill, WrittenStats,
};

/// Findings of damage that the text lists; a lost device makes one per file.
const FINDINGS_SHOWN: usize = 20;

/// The figures as JSON. Names end in their unit.
pub fn stats_json(stats: &Stats) -> Value {
    let home = |home: &HomeStats| json!({ "objects": home.objects, "bytes": home.bytes });
    let (log, large, index) = (&stats.log, &stats.large, &stats.index);
    let reads = &stats.reads;
    json!({
        "homes": { "inline": home(&stats.inline), "flash": home(&stats.flash), "block": home(&stats.block) },
        "log": {
            "capacity_bytes": log.capacity_bytes,
            "allocated_bytes": log.allocated_bytes,
            "segments_used": log.segments_used,
            "segments_free": log.segments_free,
            "segments_reclaimed": log.segments_reclaimed,
            "eviction_age_seconds": log.eviction_age.map(|age| age.as_secs_f64()),
            "segments_quarantined": log.segments_quarantined,
        },
        "large": large_json(large),
        "space": { "flash": space_json(stats, Tier::Flash), "large": space_json(stats, Tier::Large) },
        "index": {
            "tables": index.tables,
            "bytes": index.bytes,
            "memtable_bytes": index.memtable_bytes,
            "tombstones": index.tombstones,
            "persisted_seq": index.persisted_seq,
            "flushes": index.flushes,
            "compactions": index.compactions,
            "block_reads": index.block_reads,
        },
        "hash_index": hash_index_json(&stats.hash_index),
        "cache": { "bytes": stats.cache.bytes, "capacity_bytes": stats.cache.capacity_bytes },
        "ram": ram_json(&stats.ram),
        "reads": {
            "overlay_hits": reads.overlay_hits,
            "cache_hits": reads.cache_hits,
            "inline_hits": reads.inline_hits,
            "flash_hits": reads.flash_hits,
            "copy_hits": reads.copy_hits,
            "prefetch_hits": reads.prefetch_hits,
            "block_hits": reads.block_hits,
            "misses": reads.misses,
            "ram_bytes": reads.ram_bytes,
            "flash_bytes": reads.flash_bytes,
            "large_bytes": reads.large_bytes,
            "flash_reads": reads.flash_reads,
            "false_flash_reads": reads.false_flash_reads,
            "block_reads": reads.block_reads,
        },
        "written": written_json(&stats.written),
        "queue": queue_json(&stats.queue),
        "stalls": stalls_json(&stats.stalls),
        "expire": expire_json(&stats.expire),
        "snapshots": snapshots_json(&stats.snapshots),
        "flash_cache": flash_cache_json(&stats.flash_cache),
        "throttle": { "flash": throttle_json(&stats.flash_throttle), "large": throttle_json(&stats.large_throttle) },
        "placement": placement_json(&stats.placement),
        "scan_order": scan_order_json(&stats.scan_order),
        "scan_cache": scan_cache_json(&stats.scan_cache),
        "damage": stats.damage,
        "mended": stats.mended,
        "failed": stats.failed,
        "full": stats.full,
        "reserve_bytes": stats.reserve_bytes,
        "fill": fill_json(&stats.fill),
    })
}

fn queue_json(queue: &QueueStats) -> Value {
    json!({
        "overlay_bytes": queue.overlay_bytes,
        "frames": queue.frames,
        "committed_seq": queue.committed_seq,
        "durable_seq": queue.durable_seq,
        "syncs": queue.syncs,
        "applied_seq": queue.applied_seq,
        "snapshots": queue.snapshots,
    })
}

fn fill_json(fill: &FillStats) -> Value {
    let tier = |fill: &TierFill| {
        json!({
            "used_bytes": fill.used_bytes,
            "capacity_bytes": fill.capacity_bytes,
            "percent": fill.percent(),
            "hours_to_full": fill.hours_to_full,
        })
    };
    json!({ "flash": tier(&fill.flash), "large": tier(&fill.large), "shared": fill.is_shared })
}

fn large_json(large: &LargeStats) -> Value {
    json!({
        "blocks": large.blocks,
        "allocated_bytes": large.allocated_bytes,
        "open_bytes": large.open_bytes,
        "live_bytes": large.live_bytes,
        "meta_version": large.meta_version,
        "blocks_reclaimed": large.blocks_reclaimed,
        "blocks_set_aside": large.blocks_set_aside,
        "set_aside_bytes": large.set_aside_bytes,
        "pinned_block_bytes": large.pinned_block_bytes,
        "writers_let_go": large.writers_let_go,
    })
}

fn stalls_json(stalls: &[StallStats]) -> Value {
    let stall = |stall: &StallStats| {
        let figures = json!({ "waiting": stall.waiting, "count": stall.count, "seconds": stall.time.as_secs_f64() });
        (stall.reason.name().to_owned(), figures)
    };
    stalls.iter().map(stall).collect::<Map<_, _>>().into()
}

fn space_json(stats: &Stats, tier: Tier) -> Value {
    let space = stats.space(tier);
    json!({
        "live_bytes": space.live_bytes,
        "disk_bytes": space.disk_bytes,
        "capacity_bytes": space.capacity_bytes,
        "amplification": space.amplification(),
    })
}

fn ram_json(ram: &RamStats) -> Value {
    let mut parts: Map<String, Value> = ram
        .parts()
        .map(|(part, bytes)| (format!("{part}_bytes"), bytes.into()))
        .into_iter()
        .collect();
    parts.insert("total_bytes".to_owned(), ram.total_bytes().into());
    Value::Object(parts)
}

fn hash_index_json(hash_index: &HashIndexStats) -> Value {
    json!({
        "entries": hash_index.entries,
        "ram_bytes": hash_index.ram_bytes,
        "slots_max": hash_index.slots_max,
        "evicted": hash_index.evicted,
        "refilling": hash_index.refilling,
        "filled_from": hash_index.checkpoint.filled_from.map(FilledFrom::name),
        "filled_after_seconds": hash_index.checkpoint.filled_after.map(|span| span.as_secs_f64()),
        "checkpoints": hash_index.checkpoint.taken,
        "checkpoints_failed": hash_index.checkpoint.failed,
    })
}

fn expire_json(expire: &ExpireStats) -> Value {
    json!({
        "ranges_outstanding": expire.ranges_outstanding,
        "dropped_expired": expire.dropped_expired,
        "dropped_deleted": expire.dropped_deleted,
        "expiry_passes": expire.expiry_passes,
        "earliest_expiry": expire.earliest_expiry.map(|time| Moment(time).to_string()),
    })
}

fn written_json(written: &WrittenStats) -> Value {
    json!({
        "user_bytes": written.user_bytes,
        "flash_user_bytes": written.flash_user_bytes,
        "flash_padding_bytes": written.flash_padding_bytes,
        "flash_reinserted_bytes": written.flash_reinserted_bytes,
        "flash_moved_bytes": written.flash_moved_bytes,
        "flash_ordered_bytes": written.flash_ordered_bytes,
        "index_bytes": written.index_bytes,
        "compaction_bytes": written.compaction_bytes,
        "large_user_bytes": written.large_user_bytes,
        "large_destaged_bytes": written.large_destaged_bytes,
        "large_cleaned_bytes": written.large_cleaned_bytes,
        "copy_bytes": written.copy_bytes,
        "checkpoint_bytes": written.checkpoint_bytes,
        "write_amplification": written.write_amplification(),
        "flash_write_amplification": written.flash_write_amplification(),
    })
}

fn placement_json(placement: &PlacementStats) -> Value {
    json!({
        "migrating": placement.migrating,
        "walked": placement.walked,
        "moved": placement.moved,
        "moved_bytes": placement.moved_bytes,
    })
}

fn scan_order_json(order: &ScanOrderStats) -> Value {
    json!({
        "waiting_bytes": order.waiting_bytes,
        "paid_bytes": order.paid_bytes,
        "moved": order.moved,
        "copied": order.copied,
        "log_bytes": order.log_bytes,
        "dropped_full": order.dropped_full,
        "dropped_no_room": order.dropped_no_room,
    })
}

fn scan_cache_json(cache: &ScanCacheStats) -> Value {
    json!({
        "chunks": cache.chunks,
        "table_bytes": cache.table_bytes,
        "chunk_hits": cache.chunk_hits,
        "pair_hits": cache.pair_hits,
        "made": cache.made,
        "made_bytes": cache.made_bytes,
        "dropped": cache.dropped,
    })
}

fn flash_cache_json(cache: &FlashCacheStats) -> Value {
    json!({
        "segments": cache.segments,
        "copies": cache.copies,
        "bytes": cache.bytes,
        "staged_bytes": cache.staged_bytes,
        "asked_bytes": cache.asked_bytes,
        "image_reads": cache.image_reads,
        "copy_reads": cache.copy_reads,
        "copy_bytes_read": cache.copy_bytes_read,
        "forgotten": cache.forgotten,
        "promoted": cache.promoted,
        "promoted_bytes": cache.promoted_bytes,
        "recopied_bytes": cache.recopied_bytes,
        "moved": cache.moved,
        "moved_bytes": cache.moved_bytes,
        "moving_bytes": cache.moving_bytes,
        "evicted": cache.evicted,
        "eviction_age_seconds": cache.eviction_age.map(|age| age.as_secs_f64()),
        "dropped": {
            "full": cache.dropped_full,
            "budget": cache.dropped_budget,
            "no_room": cache.dropped_no_room,
        },
        "prefetch": {
            "objects": cache.prefetch_objects,
            "bytes": cache.prefetch_bytes,
            "reads": cache.prefetch_reads,
            "unused": cache.prefetch_unused,
        },
    })
}

fn throttle_json(pace: &ThrottleStats) -> Value {
    json!({
        "share_per_mille": pace.share_per_mille,
        "slow_ns": pace.slow_ns,
        "rested_us": pace.rested_us,
    })
}

fn snapshots_json(snapshots: &SnapshotStats) -> Value {
    json!({
        "open": snapshots.open,
        "oldest_version": snapshots.oldest_version.map(|version| version.0),
        "oldest_age_seconds": snapshots.oldest_age.map(|age| age.as_secs_f64()),
        "held_segment_bytes": snapshots.held_segment_bytes,
        "held_block_bytes": snapshots.held_block_bytes,
        "expired": snapshots.expired,
    })
}

/// What is moved because of rules; nothing where there is none.
fn placement_text(placement: &PlacementStats) -> String {
    if !placement.migrating {
        return String::new();
    }
    format!(
        "placement    rules were changed: {} objects looked at, {} values moved so far\n",
        placement.walked, placement.moved
    )
}

/// Copies, deletions under way, expiry and snapshots, of those that there are.
fn holding_text(stats: &Stats) -> String {
    let mut text = String::new();
    if stats.flash_cache.segments > 0 {
        let _ = writeln!(
            text,
            "copies       {} of large objects in {} segments of the flash log",
            Size(stats.flash_cache.bytes),
            stats.flash_cache.segments
        );
    }
    if stats.expire.ranges_outstanding > 0 {
        let _ = writeln!(
            text,
            "deletions    {} by prefix or range whose space is not reclaimed yet",
            stats.expire.ranges_outstanding
        );
    }
    if let Some(time) = stats.expire.earliest_expiry {
        let _ = writeln!(text, "expiry       nothing before {}", Moment(time));
    }
    let snapshots = &stats.snapshots;
    if let Some(age) = snapshots.oldest_age {
        let _ = writeln!(
            text,
            "snapshots    {}, the oldest for {} s; they hold back {} on flash and {} in blocks",
            snapshots.open,
            age.as_secs(),
            Size(snapshots.held_segment_bytes),
            Size(snapshots.held_block_bytes),
        );
    }
    text
}

/// How full the tiers are.
fn fill_text(stats: &Stats) -> String {
    let fill = &stats.fill;
    let tiers = [("flash", fill.flash), ("large", fill.large)];
    let shown = tiers.into_iter().take(if fill.is_shared { 1 } else { 2 });
    let mut text = String::new();
    for (name, tier) in shown {
        let name = if fill.is_shared { "both tiers" } else { name };
        let left = tier.hours_to_full.map(|hours| format!(", full in {hours:.1} hours"));
        let _ = writeln!(
            text,
            "in use       {} of {} of {name} ({} %){}",
            Size(tier.used_bytes),
            Size(tier.capacity_bytes),
            tier.percent(),
            left.unwrap_or_default(),
        );
    }
    if let Some(reason) = &stats.full {
        let _ = writeln!(text, "full         {reason}");
    }
    text
}

/// The figures for a person.
pub fn stats_text(stats: &Stats) -> String {
    let mut text = String::from("home        objects         bytes\n");
    for (name, home) in [("inline", stats.inline), ("flash", stats.flash), ("block", stats.block)] {
        let bytes = Size(home.bytes).to_string();
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(text, "{name:<8} {:>10} {bytes:>13}", home.objects);
    }
    let (log, large, index) = (&stats.log, &stats.large, &stats.index);
    let _ = write!(
        text,
        "\nflash log    {} of {} ({} segments used, {} free, {} quarantined)\n\
         large space  {} in {} blocks, {} of it live\n\
         index        {} in {} tables\n",
        Size(log.allocated_bytes),
        Size(log.capacity_bytes),
        log.segments_used,
        log.segments_free,
        log.segments_quarantined,
        Size(large.allocated_bytes),
        large.blocks,
        Size(large.live_bytes),
        Size(index.bytes),
        index.tables,
    );
    let _ = writeln!(
        text,
        "space        {:.2} on the large tier for each byte that lives there",
        stats.space(Tier::Large).amplification()
    );
    if let Some(capacity_bytes) = large.capacity_bytes {
        let _ = writeln!(text, "capacity     {} for blocks", Size(capacity_bytes));
    }
    if large.blocks_set_aside > 0 {
        let _ = writeln!(
            text,
            "damage       {} blocks cannot be cleaned; {} could be had back from them (see the log)",
            large.blocks_set_aside,
            Size(large.set_aside_bytes)
        );
    }
    text += &fill_text(stats);
    text += &placement_text(&stats.placement);
    text += &holding_text(stats);
    if !stats.damage.is_empty() {
        let _ = writeln!(text, "\ndamage found when the store was opened (see `terrace verify`):");
        for finding in stats.damage.iter().take(FINDINGS_SHOWN) {
            let _ = writeln!(text, "  {finding}");
        }
        let more = stats.damage.len().saturating_sub(FINDINGS_SHOWN);
        if more > 0 {
            let _ = writeln!(text, "  and {more} more, which --json lists");
        }
    }
    if let Some(reason) = &stats.failed {
        let _ = writeln!(text, "\nwrites are refused: {reason}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_listed_and_a_long_list_is_cut_short_in_the_text() {
        let mut stats = Stats::default();
        assert!(!stats_text(&stats).contains("damage"));
        stats.damage = (0..25).map(|n| format!("block {n} is gone")).collect();
        let text = stats_text(&stats);
        assert!(
            text.contains("\n  block 0 is gone\n") && text.contains("\n  block 19 is gone\n"),
            "{text}"
        );
        assert!(!text.contains("block 20 ") && text.contains("and 5 more"), "{text}");
        assert_eq!(stats_json(&stats)["damage"].as_array().map(Vec::len), Some(25));
    }

    #[test]
    fn ram_is_told_by_part_and_as_a_whole() {
        let mut stats = Stats::default();
        (stats.ram.values_bytes, stats.ram.filters_bytes) = (5, 2);
        let ram = &stats_json(&stats)["ram"];
        assert_eq!(
            (&ram["values_bytes"], &ram["memtable_bytes"], &ram["filters_bytes"]),
            (&json!(5), &json!(0), &json!(2))
        );
        assert_eq!(ram["total_bytes"], 7);
    }

    #[test]
    fn what_waits_to_be_swept_is_told() {
        let mut stats = Stats::default();
        let text = stats_text(&stats);
        assert!(!text.contains("deletions") && !text.contains("expiry"), "{text}");
        stats.expire.ranges_outstanding = 3;
        stats.expire.earliest_expiry = Some(std::time::UNIX_EPOCH);
        let text = stats_text(&stats);
        assert!(text.contains("deletions    3 by prefix"), "{text}");
        assert!(text.contains("nothing before 1970-01-01T00:00:00.000Z"), "{text}");
        let json = stats_json(&stats);
        assert_eq!(json["expire"]["ranges_outstanding"], 3);
        assert_eq!(json["expire"]["earliest_expiry"], "1970-01-01T00:00:00.000Z");
    }

    #[test]
    fn syncs_of_the_log_are_told() {
        let mut stats = Stats::default();
        stats.queue.syncs = 7;
        assert_eq!(stats_json(&stats)["queue"]["syncs"], 7);
    }
}
