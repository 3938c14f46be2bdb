//! Statistics of a store.

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

/// A snapshot of a store's statistics. Sizes in bytes.
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
    /// What RAM is used for.
    pub ram: RamStats,
    /// Where reads were served from.
    pub reads: ReadStats,
    /// Copies of large objects on flash.
    pub flash_cache: FlashCacheStats,
    /// What background work may use of the flash tier's device, and what it leaves to callers'
    /// reads.
    pub flash_throttle: ThrottleStats,
    /// The same for the large tier's device.
    pub large_throttle: ThrottleStats,
    /// Values that are not where they belong, and pinned ones.
    pub placement: PlacementStats,
    /// Rewrites charged to scans.
    pub scan_order: ScanOrderStats,
    /// Chunks of values cached for scans.
    pub scan_cache: ScanCacheStats,
    /// Bytes written per tier and cause.
    pub written: WrittenStats,
    /// Commits being written and applied.
    pub queue: QueueStats,
    /// Callers that waited for room, by reason, in the order of [`StallReason::ALL`].
    pub stalls: Vec<StallStats>,
    /// Objects that expired or were deleted by a range, swept or not yet.
    pub expire: ExpireStats,
    /// Open snapshots and what they hold back.
    pub snapshots: SnapshotStats,
    /// Operations with their latencies.
    pub operations: Vec<OperationStats>,
    /// Damage that recovery found when the store was opened, as messages.
    pub damage: Vec<String>,
    /// Damage that the open repaired, as messages, with how long it took: an index rebuilt from the
    /// log, a manifest rewritten from its copy. No data was lost by it.
    pub mended: Vec<String>,
    /// Why writes are refused; `None` if they are not.
    pub failed: Option<String>,
    /// Why new data is refused until something is deleted or space is freed otherwise; `None` if it
    /// is accepted. Deletes are accepted.
    pub full: Option<String>,
    /// Space of the flash device that is reserved for deletes and the index; 0 while it is in use.
    pub reserve_bytes: u64,
    /// Maximum total size of the flash tier's files, at present.
    pub flash_capacity_bytes: u64,
    /// How full the tiers are; at most a second old.
    pub fill: FillStats,
}

/// How full the tiers are.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct FillStats {
    /// The flash tier: data that can only be there. Values in its log are not included, since cold
    /// ones move to the large tier. If both are on one device: both tiers, with all live data.
    pub flash: TierFill,
    /// The large tier, or the same as `flash`.
    pub large: TierFill,
    /// Both tiers are on one device.
    pub is_shared: bool,
}

/// How full a tier is.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TierFill {
    /// Bytes that only deletions can free.
    pub used_bytes: u64,
    /// Its share of its device, less what other files use of it.
    pub capacity_bytes: u64,
    /// Time until it is full at the rate of the last day, or of the time since the open. `None`
    /// while it does not grow, and for the first minute.
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

    /// Percentage used.
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
    /// Maximum size.
    pub capacity_bytes: u64,
    /// Segment files times segment size.
    pub allocated_bytes: u64,
    /// Segments holding records (open, sealed, draining, drained).
    pub segments_used: u64,
    /// Segments ready to be written.
    pub segments_free: u64,
    /// Age of the segment from which recycling last moved values to the large tier: a value stays
    /// on flash this long if it is not read. Counted from the open at the earliest; `None` before
    /// the first.
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
    /// Bytes of blocks that are being written. They are in addition to what block GC bounds: dead
    /// space in them can only be reclaimed once they are full.
    pub open_bytes: u64,
    /// Bytes of extents that hold live values: keys, attributes and checksums included, each
    /// rounded up to 64, its size in a packed block.
    pub live_bytes: u64,
    /// Number of the newest LargeMeta.
    pub meta_version: u64,
    /// Bytes of the LargeMeta files.
    pub meta_bytes: u64,
    /// Bytes of the reserve's part for blocks: 0 if the tiers are on separate devices, or while the
    /// reserve is in use.
    pub reserve_bytes: u64,
    /// Maximum size of the block files; `None`: what the device has.
    pub capacity_bytes: Option<u64>,
    /// Blocks drained by block GC since open. The bytes written for that are in [`WrittenStats`].
    pub blocks_reclaimed: u64,
    /// Blocks that block GC skips, because they are damaged or the index cannot tell which of their
    /// values are live.
    pub blocks_set_aside: u64,
    /// Bytes that block GC could have reclaimed in these.
    pub set_aside_bytes: u64,
    /// Bytes of blocks without live values that are only kept because they are being read.
    pub pinned_block_bytes: u64,
    /// Writes that were allowed although the blocks exceeded the limit, since block GC could not
    /// help.
    pub writers_let_go: u64,
}

/// Size of a tier's files, and how much of it is live.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierSpace {
    /// Live bytes. On flash those of values, partly estimated; on the large tier those of extents.
    pub live_bytes: u64,
    /// Bytes of its files. (Without the manifest and the small files that name the ordered index's
    /// state.)
    pub disk_bytes: u64,
    /// Their maximum; on the large tier that of the blocks.
    pub capacity_bytes: Option<u64>,
}

impl TierSpace {
    /// Bytes on the device per live byte; 0 if there are none. On flash it is of little use: the
    /// log takes its capacity whatever is live in it.
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
    /// Bytes of their copies, see [`crate::Tuning::index_mirror_after`].
    pub mirror_bytes: u64,
    /// Levels that have tables.
    pub levels: u64,
    /// Sorted runs of tables: a lookup of an absent key checks the filter of each.
    pub runs: u64,
    /// RAM of filters and block indexes of tables, which are always in RAM.
    pub pinned_bytes: u64,
    /// Bytes in memtables.
    pub memtable_bytes: u64,
    /// Tombstones that no merge has dropped yet.
    pub tombstones: u64,
    /// Highest seq persisted.
    pub persisted_seq: u64,
    /// Flushes since open.
    pub flushes: u64,
    /// Bytes of the tables flushes have written since open.
    pub flushed_bytes: u64,
    /// Compactions since open that wrote tables.
    pub compactions: u64,
    /// Bytes of the tables compactions have written since open.
    pub compacted_bytes: u64,
    /// Reads of data blocks from the file since open.
    pub block_reads: u64,
}

/// The hash index.
#[derive(Debug, Clone, Copy, Default)]
pub struct HashIndexStats {
    /// Slots in use.
    pub entries: u64,
    /// RAM of the table.
    pub ram_bytes: u64,
    /// Maximum number of slots in its RAM limit; `None` without a limit.
    pub slots_max: Option<u64>,
    /// Slots overwritten because it was full, since open: these objects are found by the ordered
    /// index.
    pub evicted: u64,
    /// Whether it is still being refilled after an open.
    pub refilling: bool,
    /// Its checkpoints.
    pub checkpoint: CheckpointStats,
}

/// The source that filled the hash index after the open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilledFrom {
    /// A checkpoint and the log after it.
    Checkpoint,
    /// A walk over the ordered index: there was no checkpoint, or no valid one.
    Index,
}

impl FilledFrom {
    /// Its name in metrics.
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
        /// The source that filled the hash index; `None` until then.
        pub filled_from: Option<FilledFrom>,
        /// Time from the open until it was filled.
        pub filled_after: Option<Duration>,
    }
    /// The counters.
    pub(crate) struct CheckpointCounters {
        /// Checkpoints written.
        taken,
        /// Attempts that failed.
        failed,
        /// Bytes written, failed attempts included.
        written_bytes,
        /// Length of the newest one.
        file_bytes,
    }
}

/// The RAM cache, including recently written frames that are still in RAM.
#[derive(Debug, Clone, Copy, Default)]
pub struct CacheStats {
    /// Bytes held.
    pub bytes: u64,
    /// Maximum number of bytes.
    pub capacity_bytes: u64,
}

counted! {
    /// Copies of large objects on flash, and small values moved back to it. Counts are since open.
    pub struct FlashCacheStats {
        /// Segments that hold copies.
        pub segments: u64,
        /// Copies: slices of up to 8 MiB.
        pub copies: u64,
        /// Their bytes.
        pub bytes: u64,
        /// Bytes of RAM of objects being read from disk.
        pub staged_bytes: u64,
        /// Age of the segment whose copies were evicted last; like [`LogStats::eviction_age`].
        pub eviction_age: Option<Duration>,
        /// Bytes of RAM of small values waiting to return to the log.
        pub moving_bytes: u64,
    }
    /// The counters.
    pub(crate) struct FlashCacheCounters {
        /// Bytes of large objects that callers have requested, from any source except the RAM
        /// cache. Those served from copies are [`FlashCacheStats::copy_bytes_read`].
        asked_bytes,
        /// Reads served from an image that another read was filling.
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
        /// Copies evicted for others, or for the log.
        evicted,
        /// Promotions dropped because too many were pending.
        dropped_full,
        /// Promotions dropped because of the daily budget.
        dropped_budget,
        /// Promotions dropped because flash had no room, or failed.
        dropped_no_room,
        /// Objects read ahead for a reader that reads a group in order.
        prefetch_objects,
        /// Their bytes.
        prefetch_bytes,
        /// Reads served from objects read ahead.
        prefetch_reads,
        /// Objects read ahead that were never requested.
        prefetch_unused,
        /// Destaged small values that were moved back to the log, since they were read often.
        moved,
        /// Their bytes.
        moved_bytes,
    }
}

counted! {
    /// Moves after *SizeThreshold* or pins were changed. Counts are since open.
    pub struct PlacementStats {
        /// Not all objects have been checked since the rules were changed.
        pub migrating: bool,
    }
    /// The counters.
    pub(crate) struct PlacementCounters {
        /// Objects checked for that.
        walked,
        /// Values moved to where they belong, without those moved by log GC.
        moved,
        /// Their bytes.
        moved_bytes,
    }
}

/// Where reads were served from, since open.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReadStats {
    /// From commits not yet applied.
    pub overlay_hits: u64,
    /// From the RAM cache, or from recently written frames that are still in RAM.
    pub cache_hits: u64,
    /// From the ordered index (tiny values).
    pub inline_hits: u64,
    /// From the flash log.
    pub flash_hits: u64,
    /// From copies on flash, or from what another reader was reading.
    pub copy_hits: u64,
    /// From objects read ahead into RAM.
    pub prefetch_hits: u64,
    /// From the large space.
    pub block_hits: u64,
    /// No such object.
    pub misses: u64,
    /// Bytes of the values served from RAM: overlay, cache, objects read ahead. A stream counts as
    /// its whole value.
    pub ram_bytes: u64,
    /// Bytes of those served from flash: ordered index, log, copies.
    pub flash_bytes: u64,
    /// Bytes of those served from the large space.
    pub large_bytes: u64,
    /// Reads of the flash log's device of any cause, recovery and recycling included.
    pub flash_device_reads: u64,
    /// Reads of the flash log for a caller.
    pub flash_reads: u64,
    /// Of those, reads that found another key.
    pub false_flash_reads: u64,
    /// Reads of the large tier's device.
    pub block_reads: u64,
}

/// Bytes written since open, by tier and cause.
#[derive(Debug, Clone, Copy, Default)]
pub struct WrittenStats {
    /// Keys, attributes and values given by callers.
    pub user_bytes: u64,
    /// Records of user commits on flash, with headers.
    pub flash_user_bytes: u64,
    /// Frame headers and padding on flash.
    pub flash_padding_bytes: u64,
    /// Live values reinserted by log GC.
    pub flash_reinserted_bytes: u64,
    /// Small values moved back from blocks.
    pub flash_moved_bytes: u64,
    /// Small values rewritten in key order for scans.
    pub flash_ordered_bytes: u64,
    /// Temporary files of sweeps.
    pub sweep_bytes: u64,
    /// Index tables written by flushes, and copies of the files that name its state.
    pub index_bytes: u64,
    /// Index tables written by compactions.
    pub compaction_bytes: u64,
    /// Values of user commits in blocks, with headers and padding.
    pub large_user_bytes: u64,
    /// Cold values destaged to blocks.
    pub large_destaged_bytes: u64,
    /// Live values moved from block to block by block GC.
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
            + self.sweep_bytes
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

/// Commits being written and applied.
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
    /// Objects that are absent but whose entries are, or were, still in the index. Until they are
    /// swept they count among the objects of their home.
    pub struct ExpireStats {
        /// Range deletions not swept yet.
        pub ranges_outstanding: u64,
        /// No object expires before this; `None` if none does.
        pub earliest_expiry: Option<std::time::SystemTime>,
    }
    /// The counters.
    pub(crate) struct ExpireCounters {
        /// Expired objects dropped since open.
        dropped_expired,
        /// Objects deleted by a range and dropped since open.
        dropped_deleted,
        /// Completed walks over the whole index for expired objects, since open.
        expiry_passes,
    }
}

/// Open snapshots and scans, and the space they hold back.
#[derive(Debug, Clone, Copy, Default)]
pub struct SnapshotStats {
    /// How many are open, including those of the store itself (verify, the beginning of a backup).
    pub open: u64,
    /// The version that the oldest one sees.
    pub oldest_version: Option<Version>,
    /// Its age.
    pub oldest_age: Option<Duration>,
    /// Bytes of segments of the flash log that are only kept for snapshots.
    pub held_segment_bytes: u64,
    /// Bytes of blocks that are only kept for snapshots.
    pub held_block_bytes: u64,
    /// Snapshots that exceeded the age limit, since open.
    pub expired: u64,
}
