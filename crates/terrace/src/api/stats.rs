//! What a store tells about itself.

mod scans;

use crate::{RamStats, Tier, Version, metrics::counted};
pub use crate::{
    io::throttle::ThrottleStats,
    metrics::{
        counters::OperationStats,
        stalls::{StallReason, StallStats},
    },
};
pub(crate) use scans::ScanOrderCounters;
pub use scans::{ScanCacheStats, ScanOrderStats};
use std::time::Duration;

/// A picture of the store at one moment. Sizes in bytes.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    /// Objects and bytes per home.
    pub inline: HomeStats,
    /// Values in the flash log.
    pub flash: HomeStats,
    /// Values in blocks.
    pub block: HomeStats,
    /// The flash log.
    pub log: LogStats,
    /// The large space.
    pub large: LargeStats,
    /// The ordered index.
    pub index: IndexStats,
    /// The hash index in RAM.
    pub hash_index: HashIndexStats,
    /// Values cached in RAM.
    pub cache: CacheStats,
    /// What all of the RAM is for.
    pub ram: RamStats,
    /// Where reads were answered.
    pub reads: ReadStats,
    /// Copies of large objects on flash.
    pub flash_cache: FlashCacheStats,
    /// What background work may have of the flash tier's device, and what it leaves to callers'
    /// reads.
    pub flash_throttle: ThrottleStats,
    /// The same of the large tier's device.
    pub large_throttle: ThrottleStats,
    /// Values that are not where they belong, and what is pinned.
    pub placement: PlacementStats,
    /// What scans have paid for.
    pub scan_order: ScanOrderStats,
    /// What scans have read.
    pub scan_cache: ScanCacheStats,
    /// Bytes written per tier and cause.
    pub written: WrittenStats,
    /// Commits on their way.
    pub queue: QueueStats,
    /// Callers that waited for room, by reason, in the order of [`StallReason::ALL`].
    pub stalls: Vec<StallStats>,
    /// Objects that expired or were deleted by a range, and are not or were swept.
    pub expire: ExpireStats,
    /// Open snapshots and what they hold back.
    pub snapshots: SnapshotStats,
    /// Operations and how long they took.
    pub operations: Vec<OperationStats>,
    /// What recovery found damaged when the store was opened, in words.
    pub damage: Vec<String>,
    /// What was damaged when the store was opened and was put right by it, in words, with how long
    /// it took: an index that was built anew from the log, a manifest that was written anew from
    /// its copy. Nothing was lost by it.
    pub mended: Vec<String>,
    /// Why writes are refused, if they are.
    pub failed: Option<String>,
    /// Why nothing new is taken until something was deleted, or room comes from elsewhere, if it is
    /// not. Deletes are.
    pub full: Option<String>,
    /// Space of the flash device that is kept for deletes and the index; 0 while it is used.
    pub reserve_bytes: u64,
    /// Most the files of the flash tier may take, now.
    pub flash_capacity_bytes: u64,
    /// How full the tiers are, as of a second ago at most.
    pub fill: FillStats,
}

/// How full the tiers are.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct FillStats {
    /// The flash tier: what only it can hold, so not the values in its log, of which the cold ones
    /// move to the large tier. Both tiers, with all that lives, if they are on one device.
    pub flash: TierFill,
    /// The large tier, or the same as `flash`.
    pub large: TierFill,
    /// Both are on one device.
    pub is_shared: bool,
}

/// How full a tier is.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TierFill {
    /// Bytes that nothing but deletions can give back.
    pub used_bytes: u64,
    /// What it may have of its device, less what others have taken of that.
    pub capacity_bytes: u64,
    /// How long what is left lasts at the rate of the last day, or of the time since the opening.
    /// `None` while it does not grow, and for the first minute.
    pub hours_to_full: Option<f64>,
}

impl TierFill {
    pub(crate) const fn of(used_bytes: u64, capacity_bytes: u64) -> Self {
        Self {
            used_bytes,
            capacity_bytes,
            hours_to_full: None,
        }
    }

    /// What is used, in per cent.
    #[must_use]
    pub const fn percent(&self) -> u64 {
        if self.capacity_bytes == 0 {
            return 0;
        }
        let percent = self.used_bytes as u128 * 100 / self.capacity_bytes as u128;
        if percent > 100 { 100 } else { percent as u64 }
    }
}

/// Objects and bytes that live in one home.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HomeStats {
    /// Live objects.
    pub objects: u64,
    /// Bytes of their values.
    pub bytes: u64,
}

/// The flash log.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogStats {
    /// Most it may occupy.
    pub capacity_bytes: u64,
    /// Segment files times segment size.
    pub allocated_bytes: u64,
    /// Segments holding records (open, sealed, draining, drained).
    pub segments_used: u64,
    /// Segments ready to be written.
    pub segments_free: u64,
    /// How old the segment was from which recycling last moved values to the large tier: so long a
    /// value stays on flash if it is not read. Counted from the opening at the earliest; `None`
    /// before the first.
    pub eviction_age: Option<Duration>,
    /// Segments reclaimed since open.
    pub segments_reclaimed: u64,
    /// Segments in quarantine because a frame in them is corrupt.
    pub segments_quarantined: u64,
}

/// The large space.
#[derive(Debug, Clone, Copy, Default)]
pub struct LargeStats {
    /// Block files.
    pub blocks: u64,
    /// Bytes of the block files, preallocated space of open ones included.
    pub allocated_bytes: u64,
    /// Of that, blocks that are being written. They come on top of what cleaning bounds: what dies
    /// in them can only be had once they are full.
    pub open_bytes: u64,
    /// Bytes of extents that hold live values: keys, attributes and checksums included, each
    /// rounded up to 64, as it would lie among packed ones.
    pub live_bytes: u64,
    /// Number of the newest LargeMeta.
    pub meta_version: u64,
    /// Bytes of the LargeMeta files.
    pub meta_bytes: u64,
    /// Bytes of the reserve's part for blocks: none where the tiers are on devices of their own, or
    /// while the reserve is used.
    pub reserve_bytes: u64,
    /// Most the block files may take; `None`: what the device has.
    pub capacity_bytes: Option<u64>,
    /// Blocks that cleaning has emptied since open. What it wrote for that is in [`WrittenStats`].
    pub blocks_reclaimed: u64,
    /// Blocks that cleaning leaves alone, because they are damaged or the index cannot tell what
    /// lives in them.
    pub blocks_set_aside: u64,
    /// What cleaning could have reclaimed of these.
    pub set_aside_bytes: u64,
    /// Blocks in which nothing lives and which are only kept because they are being read.
    pub pinned_block_bytes: u64,
    /// Writes that went on although the blocks took more than the limit, since cleaning could not
    /// help.
    pub writers_let_go: u64,
}

/// What a tier takes, and what of that is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierSpace {
    /// Bytes that live on it. On flash those of values, partly estimated; on the large tier those
    /// of extents.
    pub live_bytes: u64,
    /// Bytes of its files. (Not among them: the manifest, and the small files that name the ordered
    /// index's state.)
    pub disk_bytes: u64,
    /// Most they may take; on the large tier that of the blocks.
    pub capacity_bytes: Option<u64>,
}

impl TierSpace {
    /// Bytes on the device per live byte; 0 if nothing lives there. On flash it says little: the
    /// log takes its capacity whatever lives in it.
    #[must_use]
    pub fn amplification(&self) -> f64 {
        if self.live_bytes == 0 {
            0.0
        } else {
            self.disk_bytes as f64 / self.live_bytes as f64
        }
    }
}

impl Stats {
    /// The space of a tier.
    #[must_use]
    pub const fn space(&self, tier: Tier) -> TierSpace {
        match tier {
            Tier::Flash => TierSpace {
                live_bytes: self.inline.bytes + self.flash.bytes,
                disk_bytes: self.log.allocated_bytes
                    + self.index.bytes
                    + self.hash_index.checkpoint.file_bytes
                    + (self.reserve_bytes - self.large.reserve_bytes),
                capacity_bytes: Some(self.flash_capacity_bytes),
            },
            Tier::Large => TierSpace {
                live_bytes: self.large.live_bytes,
                disk_bytes: self.large.allocated_bytes + self.large.meta_bytes + self.large.reserve_bytes,
                capacity_bytes: self.large.capacity_bytes,
            },
        }
    }
}

/// The ordered index.
#[derive(Debug, Clone, Copy, Default)]
pub struct IndexStats {
    /// Tables on flash.
    pub tables: u64,
    /// Bytes of the tables.
    pub bytes: u64,
    /// Levels that have tables.
    pub levels: u64,
    /// Sorted runs of tables: a key that is not there is looked for in each, by its filter.
    pub runs: u64,
    /// RAM of filters and block indexes of tables, which are always held.
    pub pinned_bytes: u64,
    /// Bytes in memtables.
    pub memtable_bytes: u64,
    /// Entries that only say that a key was deleted, and that no merge has taken out yet.
    pub tombstones: u64,
    /// Highest seq persisted.
    pub persisted_seq: u64,
    /// Flushes since open.
    pub flushes: u64,
    /// Bytes of the tables flushes have written since open.
    pub flushed_bytes: u64,
    /// Compactions since open that wrote tables.
    pub compactions: u64,
    /// Bytes of the tables compactions have written since open: entries written again.
    pub compacted_bytes: u64,
    /// Data block reads that went to the file since open.
    pub block_reads: u64,
}

/// The hash index.
#[derive(Debug, Clone, Copy, Default)]
pub struct HashIndexStats {
    /// Slots in use.
    pub entries: u64,
    /// RAM of the table.
    pub ram_bytes: u64,
    /// Slots it may have in the RAM it may take; `None` without a bound.
    pub slots_max: Option<u64>,
    /// Slots overwritten because it was full, since open: their objects are found by the ordered
    /// index.
    pub evicted: u64,
    /// Whether it is still being refilled after an open.
    pub refilling: bool,
    /// Its checkpoints.
    pub checkpoint: CheckpointStats,
}

/// What the hash index was filled from after the open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilledFrom {
    /// A checkpoint and the log behind it.
    Checkpoint,
    /// A walk over the ordered index: there was no checkpoint, or it could not be believed.
    Index,
}

impl FilledFrom {
    /// Its name in figures.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Checkpoint => "checkpoint",
            Self::Index => "index",
        }
    }
}

counted! {
    /// Checkpoints of the hash index. Counts are since open.
    pub struct CheckpointStats {
        /// What the hash index was filled from; `None` until it is.
        pub filled_from: Option<FilledFrom>,
        /// How long after the opening it was filled.
        pub filled_after: Option<Duration>,
    }
    /// As they are counted.
    pub(crate) struct CheckpointCounters {
        /// Checkpoints written.
        taken,
        /// Attempts that failed.
        failed,
        /// Bytes written, those of attempts that failed included.
        written_bytes,
        /// Length of the newest one.
        file_bytes,
    }
}

/// The RAM cache, with what was written lately and is still in RAM.
#[derive(Debug, Clone, Copy, Default)]
pub struct CacheStats {
    /// Bytes held.
    pub bytes: u64,
    /// Most it may hold.
    pub capacity_bytes: u64,
}

counted! {
    /// Copies of large objects on flash, and small values that come back to it. Counts are since
    /// open.
    pub struct FlashCacheStats {
        /// Segments that hold copies.
        pub segments: u64,
        /// Copies: slices of up to 8 MiB.
        pub copies: u64,
        /// Their bytes.
        pub bytes: u64,
        /// Bytes of RAM for objects on their way from disk.
        pub staged_bytes: u64,
        /// How old the segment was whose copies were given up last; as [`LogStats::eviction_age`].
        pub eviction_age: Option<Duration>,
        /// Bytes of RAM for small values on their way back to the log.
        pub moving_bytes: u64,
    }
    /// As they are counted.
    pub(crate) struct FlashCacheCounters {
        /// Bytes that callers have asked of large objects, wherever they came from but the RAM
        /// cache.
        /// What of them came from copies is [`FlashCacheStats::copy_bytes_read`].
        asked_bytes,
        /// Reads answered from an image that another read was filling.
        image_reads,
        /// Reads of copies.
        copy_reads,
        /// Their bytes.
        copy_bytes_read,
        /// Copies that did not match their checksums.
        forgotten,
        /// Copies written.
        promoted,
        /// Their bytes.
        promoted_bytes,
        /// Bytes of copies that were written again to make room.
        recopied_bytes,
        /// Copies given up for others, or for the log.
        evicted,
        /// Promotions given up because too much was on its way.
        dropped_full,
        /// Promotions given up because of the daily budget.
        dropped_budget,
        /// Promotions given up because flash had no room, or failed.
        dropped_no_room,
        /// Objects read ahead of a reader that goes through a group in order.
        prefetch_objects,
        /// Their bytes.
        prefetch_bytes,
        /// Reads answered by what was read ahead.
        prefetch_reads,
        /// Objects read ahead that were never asked for.
        prefetch_unused,
        /// Small values that were destaged and moved back to the log, since they were read often.
        moved,
        /// Their bytes.
        moved_bytes,
    }
}

counted! {
    /// What becomes of values when *SizeThreshold* or pins are changed. Counts are since open.
    pub struct PlacementStats {
        /// Not everything has been looked at since the rules were changed.
        pub migrating: bool,
    }
    /// As they are counted.
    pub(crate) struct PlacementCounters {
        /// Objects looked at for that.
        walked,
        /// Values moved to where they belong, not counting those that log GC moved.
        moved,
        /// Their bytes.
        moved_bytes,
    }
}

/// Where reads were answered, since open.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReadStats {
    /// From commits not yet applied.
    pub overlay_hits: u64,
    /// From the RAM cache, or what was written lately and is still in RAM.
    pub cache_hits: u64,
    /// From the ordered index (tiny values).
    pub inline_hits: u64,
    /// From the flash log.
    pub flash_hits: u64,
    /// From copies on flash, or from what another reader was reading.
    pub copy_hits: u64,
    /// From what was read ahead to RAM.
    pub prefetch_hits: u64,
    /// From the large space.
    pub block_hits: u64,
    /// No such object.
    pub misses: u64,
    /// Bytes of the values that RAM answered with: overlay, cache, what was read ahead. A stream
    /// counts as its whole value.
    pub ram_bytes: u64,
    /// Bytes of those that flash answered with: ordered index, log, copies.
    pub flash_bytes: u64,
    /// Bytes of those that the large space answered with.
    pub large_bytes: u64,
    /// Reads of the flash log's device of any cause, recovery and recycling included.
    pub flash_device_reads: u64,
    /// Reads of the flash log for a caller.
    pub flash_reads: u64,
    /// Of those, for a key that turned out to be another.
    pub false_flash_reads: u64,
    /// Reads of the large tier's device.
    pub block_reads: u64,
}

/// Bytes written since open, by tier and cause.
#[derive(Debug, Clone, Copy, Default)]
pub struct WrittenStats {
    /// Keys, attributes and values the caller gave.
    pub user_bytes: u64,
    /// Records of user commits on flash, with headers.
    pub flash_user_bytes: u64,
    /// Frame headers and padding on flash.
    pub flash_padding_bytes: u64,
    /// Live values written again by recycling.
    pub flash_reinserted_bytes: u64,
    /// Small values moved back from blocks.
    pub flash_moved_bytes: u64,
    /// Small values written in order for scans.
    pub flash_ordered_bytes: u64,
    /// Index tables written by flushes.
    pub index_bytes: u64,
    /// Index tables written by compactions: entries written again.
    pub compaction_bytes: u64,
    /// Values of user commits in blocks, with headers and padding.
    pub large_user_bytes: u64,
    /// Cold values moved to blocks by recycling.
    pub large_destaged_bytes: u64,
    /// Live values moved from block to block by cleaning.
    pub large_cleaned_bytes: u64,
    /// Copies of large objects on flash, those written again included.
    pub copy_bytes: u64,
    /// Checkpoints of the hash index.
    pub checkpoint_bytes: u64,
}

impl WrittenStats {
    /// Bytes written to the flash tier, index included.
    #[must_use]
    pub const fn flash_bytes(&self) -> u64 {
        self.flash_user_bytes
            + self.flash_padding_bytes
            + self.flash_reinserted_bytes
            + self.flash_moved_bytes
            + self.flash_ordered_bytes
            + self.index_bytes
            + self.compaction_bytes
            + self.copy_bytes
            + self.checkpoint_bytes
    }

    /// Device bytes over user bytes, both tiers.
    #[must_use]
    pub fn write_amplification(&self) -> f64 {
        self.per_user_byte(
            self.flash_bytes() + self.large_user_bytes + self.large_destaged_bytes + self.large_cleaned_bytes,
        )
    }

    /// Bytes written to the flash tier over user bytes.
    #[must_use]
    pub fn flash_write_amplification(&self) -> f64 {
        self.per_user_byte(self.flash_bytes())
    }

    fn per_user_byte(&self, device_bytes: u64) -> f64 {
        if self.user_bytes == 0 {
            0.0
        } else {
            device_bytes as f64 / self.user_bytes as f64
        }
    }
}

/// Commits on their way to the index.
#[derive(Debug, Clone, Copy, Default)]
pub struct QueueStats {
    /// Bytes of commits not yet applied.
    pub overlay_bytes: u64,
    /// Frames not yet applied.
    pub frames: u64,
    /// Seq of the last commit.
    pub committed_seq: u64,
    /// Everything up to this seq is on the device.
    pub durable_seq: u64,
    /// Group commits: fdatasyncs of the log since open.
    pub syncs: u64,
    /// Everything up to this seq is applied to the index.
    pub applied_seq: u64,
    /// Open snapshots.
    pub snapshots: u64,
}

counted! {
    /// Objects that are gone and whose entries are, or were, still in the index. Until they are
    /// swept they count among the objects of their home.
    pub struct ExpireStats {
        /// Range deletions that are not swept yet.
        pub ranges_outstanding: u64,
        /// No object expires before this; `None` if none does.
        pub earliest_expiry: Option<std::time::SystemTime>,
    }
    /// As they are counted.
    pub(crate) struct ExpireCounters {
        /// Expired objects dropped since open.
        dropped_expired,
        /// Objects deleted by a range and dropped since open.
        dropped_deleted,
        /// Walks over the whole index for expired objects that ended since open.
        expiry_passes,
    }
}

/// Open snapshots and scans, and what they hold back.
#[derive(Debug, Clone, Copy, Default)]
pub struct SnapshotStats {
    /// How many are open, those of the store itself (verifying, the beginning of a backup)
    /// included.
    pub open: u64,
    /// The version that the oldest sees.
    pub oldest_version: Option<Version>,
    /// Its age.
    pub oldest_age: Option<Duration>,
    /// Segments of the flash log that are only kept for snapshots.
    pub held_segment_bytes: u64,
    /// Blocks that are only kept for snapshots.
    pub held_block_bytes: u64,
    /// Snapshots that became older than the limit, since open.
    pub expired: u64,
}
