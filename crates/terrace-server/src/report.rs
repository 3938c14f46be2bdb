//! Figures about a store as JSON and as text. `terrace stat --json` and `/api/stats` give the same
//! JSON.

use crate::{size::Size, time_span::Moment};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use terrace::{
    FillStats, FilledFrom, FlashCacheStats, HashIndexStats, HomeStats, PlacementStats, RamStats, StallStats, Stats,
    ThrottleStats, Tier, TierFill, WrittenStats,
};

/// Damage findings that the text lists; a lost device causes one per file.
const FINDINGS_SHOWN: usize = 20;

/// Fields of a structure by their names, and further figures.
macro_rules! fields {
    ($of:ident: $($field:ident)* $(; $($name:ident = $value:expr),*)?) => {
        json!({ $((stringify!($field)): $of.$field,)* $($((stringify!($name)): $value,)*)? })
    };
}

/// The figures as JSON. Names end in their unit.
pub fn stats_json(stats: &Stats) -> Value {
    let home = |home: &HomeStats| fields!(home: objects bytes);
    let (log, index, reads, cache) = (&stats.log, &stats.index, &stats.reads, &stats.cache);
    let (large, queue, order, chunks) = (&stats.large, &stats.queue, &stats.scan_order, &stats.scan_cache);
    let (expire, snapshots, placement) = (&stats.expire, &stats.snapshots, &stats.placement);
    let throttle = |pace: &ThrottleStats| fields!(pace: share_per_mille slow_ns rested_us);
    fields! { stats: damage mended failed full reserve_bytes;
        homes = json!({ "inline": home(&stats.inline), "flash": home(&stats.flash), "block": home(&stats.block) }),
        log = fields!(log: capacity_bytes allocated_bytes segments_used segments_free segments_reclaimed segments_quarantined;
            eviction_age_seconds = log.eviction_age.map(|age| age.as_secs_f64())),
        large = fields!(large: blocks allocated_bytes open_bytes live_bytes meta_version blocks_reclaimed blocks_set_aside
            set_aside_bytes pinned_block_bytes writers_let_go),
        space = json!({ "flash": space_json(stats, Tier::Flash), "large": space_json(stats, Tier::Large) }),
        index = fields!(index: tables bytes mirror_bytes memtable_bytes tombstones persisted_seq flushes compactions block_reads),
        hash_index = hash_index_json(&stats.hash_index),
        cache = fields!(cache: bytes capacity_bytes),
        ram = ram_json(&stats.ram),
        reads = fields!(reads: overlay_hits cache_hits inline_hits flash_hits copy_hits prefetch_hits block_hits misses
            ram_bytes flash_bytes large_bytes flash_reads false_flash_reads block_reads),
        written = written_json(&stats.written),
        queue = fields!(queue: overlay_bytes frames committed_seq durable_seq syncs applied_seq snapshots),
        stalls = stalls_json(&stats.stalls),
        expire = fields!(expire: ranges_outstanding dropped_expired dropped_deleted expiry_passes;
            earliest_expiry = expire.earliest_expiry.map(|time| Moment(time).to_string())),
        snapshots = fields!(snapshots: open held_segment_bytes held_block_bytes expired;
            oldest_version = snapshots.oldest_version.map(|version| version.0),
            oldest_age_seconds = snapshots.oldest_age.map(|age| age.as_secs_f64())),
        flash_cache = flash_cache_json(&stats.flash_cache),
        throttle = json!({ "flash": throttle(&stats.flash_throttle), "large": throttle(&stats.large_throttle) }),
        placement = fields!(placement: migrating walked moved moved_bytes),
        scan_order = fields!(order: waiting_bytes paid_bytes moved copied sweeps sweep_bytes spilled_bytes log_bytes
            dropped_full dropped_no_room),
        scan_cache = fields!(chunks: chunks table_bytes chunk_hits pair_hits made made_bytes dropped),
        fill = fill_json(&stats.fill)
    }
}

fn fill_json(fill: &FillStats) -> Value {
    let tier = |fill: &TierFill| fields!(fill: used_bytes capacity_bytes hours_to_full; percent = fill.percent());
    json!({ "flash": tier(&fill.flash), "large": tier(&fill.large), "shared": fill.is_shared })
}

fn stalls_json(stalls: &[StallStats]) -> Value {
    let stall = |stall: &StallStats| {
        let figures = fields!(stall: waiting count; seconds = stall.time.as_secs_f64());
        (stall.reason.name().to_owned(), figures)
    };
    stalls.iter().map(stall).collect::<Map<_, _>>().into()
}

fn space_json(stats: &Stats, tier: Tier) -> Value {
    let space = stats.space(tier);
    fields!(space: live_bytes disk_bytes capacity_bytes; amplification = space.amplification())
}

fn ram_json(ram: &RamStats) -> Value {
    let parts = ram.parts().map(|(part, bytes)| (format!("{part}_bytes"), bytes));
    let total = ("total_bytes".to_owned(), ram.total_bytes());
    parts
        .into_iter()
        .chain([total])
        .map(|(name, bytes)| (name, bytes.into()))
        .collect::<Map<_, _>>()
        .into()
}

fn hash_index_json(hash_index: &HashIndexStats) -> Value {
    let checkpoint = &hash_index.checkpoint;
    fields! { hash_index: entries ram_bytes slots_max evicted refilling;
        filled_from = checkpoint.filled_from.map(FilledFrom::name),
        filled_after_seconds = checkpoint.filled_after.map(|span| span.as_secs_f64()),
        checkpoints = checkpoint.taken,
        checkpoints_failed = checkpoint.failed
    }
}

fn written_json(written: &WrittenStats) -> Value {
    fields! { written: user_bytes flash_user_bytes flash_padding_bytes flash_reinserted_bytes flash_moved_bytes
        flash_ordered_bytes sweep_bytes index_bytes compaction_bytes large_user_bytes large_destaged_bytes large_cleaned_bytes
        copy_bytes checkpoint_bytes;
        write_amplification = written.write_amplification(),
        flash_write_amplification = written.flash_write_amplification()
    }
}

fn flash_cache_json(cache: &FlashCacheStats) -> Value {
    fields! { cache: segments copies bytes staged_bytes asked_bytes image_reads copy_reads copy_bytes_read forgotten
        promoted promoted_bytes recopied_bytes moved moved_bytes moving_bytes evicted;
        eviction_age_seconds = cache.eviction_age.map(|age| age.as_secs_f64()),
        dropped = json!({
            "full": cache.dropped_full,
            "budget": cache.dropped_budget,
            "no_room": cache.dropped_no_room,
        }),
        prefetch = json!({
            "objects": cache.prefetch_objects,
            "bytes": cache.prefetch_bytes,
            "reads": cache.prefetch_reads,
            "unused": cache.prefetch_unused,
        })
    }
}

/// Moves because of placement rules; empty without rules.
fn placement_text(placement: &PlacementStats) -> String {
    if !placement.migrating {
        return String::new();
    }
    format!(
        "placement    rules were changed: {} objects looked at, {} values moved so far\n",
        placement.walked, placement.moved
    )
}

/// Copies, deletions in progress, expiry and snapshots, if there are any.
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

/// The figures as text.
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
