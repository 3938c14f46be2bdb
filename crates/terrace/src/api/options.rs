//! How a store is opened and how a write is made.

use crate::{Attributes, Clock, Error, Expiry, GroupRule, Pin, Result, Version, api::placement, io::Disk};
use std::{path::PathBuf, sync::Arc, time::Duration};

/// Segments and blocks are this fraction (1/n) of their device, so that the rest that does not hold
/// a whole one is small,
const DEVICE_PARTS: u64 = 64;
/// at least this long, four times the size of one write,
const PART_BYTES_MIN: u64 = 1 << 20;
/// and at most this long, with which devices write at their full rate.
const PART_BYTES_MAX: u64 = 64 << 20;
/// The memtable is at most this fraction (1/n) of the flash device.
const DEVICE_MEMTABLES: u64 = 256;
/// A segment must have room for this many of the longest values: longer ones would leave too much
/// of the segment before them unused.
pub(crate) const SEGMENT_VALUES_MIN: u64 = 4;
/// The log must have room for this many segments: those that must stay free, and as many to be
/// written and recycled.
const SEGMENTS_MIN: u64 = 8;
/// Maximum percentage of the flash tier that copies may keep; the log needs the rest.
const COPIES_SHARE_MAX_PERCENT: u32 = 80;

/// When a write is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// After the commit is on the device (fdatasync, grouped with other commits). Until then
    /// readers see the former version.
    #[default]
    Sync,
    /// Immediately, and readers see it immediately. A crash loses at most the most recent such
    /// commits, never one from the middle; so values that were read may be lost. A commit that
    /// replaces what a `Sync` write is still making durable waits for that write.
    Buffered,
}

/// Condition of a write, evaluated inside the commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Condition {
    /// No condition.
    #[default]
    None,
    /// No object has this key.
    Absent,
    /// An object has this key, whatever its version.
    Present,
    /// The object has exactly this version.
    VersionIs(Version),
}

/// How a store is opened. Sizes are in bytes.
#[derive(Debug, Clone)]
pub struct Options {
    /// Directory of the flash tier: flash log and ordered index.
    pub flash_dir: PathBuf,
    /// Directory of the large tier: blocks and LargeMeta.
    pub large_dir: PathBuf,
    /// Create the store if the directories hold none.
    pub create: bool,
    /// Open for reading only: no commit, no flush. Several processes may do so at a time, but not
    /// while one has the store open for writing.
    pub read_only: bool,
    /// [`crate::Store::repair`] may go on if one tier has nothing of a store: everything that was
    /// on that tier is forgotten. Off by default, since it is more likely that its file system is
    /// not mounted.
    pub repair_without_tier: bool,
    /// *SizeThreshold* (MRIS section 3): values of at least this size go to the large space. 128
    /// KiB. It may be changed at any open: it applies to new values immediately, and old ones are
    /// moved in the background.
    pub size_threshold_bytes: u64,
    /// *SplitThreshold* (MRIS section 3): a block is sealed when it is this long.
    /// [`Options::BY_DEVICE`], the default: a 64th of the large tier's capacity or device, from 1
    /// MiB to 64 MiB.
    pub split_threshold_bytes: u64,
    /// Size of a flash segment; fixed when the store is created. [`Options::BY_DEVICE`], the
    /// default: a 64th of the flash tier's capacity or device, from 1 MiB to 64 MiB.
    pub segment_bytes: u64,
    /// Maximum total size of the flash tier's files: the log, the ordered index, checkpoints and
    /// the reserve. 64 GiB; less if the device is smaller. The log may use what the others leave.
    /// It may be changed at any open, and on a running store
    /// ([`crate::Store::set_flash_capacity`]).
    pub flash_capacity_bytes: u64,
    /// Maximum size of the flash log's segments, within the flash capacity. `None`, the default:
    /// all that the other files leave. For tests and benchmarks that compare logs of equal length.
    pub log_capacity_bytes: Option<u64>,
    /// Maximum total size of the block files. `None`, the default: what the device has. Block GC
    /// reserves a part of it: the length of two blocks, a quarter of the capacity at most. It may
    /// be changed at any open, and on a running store ([`crate::Store::set_large_capacity`]). If
    /// the blocks take more at an open, writes are refused until enough is deleted.
    pub large_capacity_bytes: Option<u64>,
    /// RAM for cached values. 256 MiB; 0 turns the cache off. An eighth of it, and what the cache
    /// does not use of the rest, holds recently written frames, read or not. If scans have moved
    /// longer values to chunks, it is less, down to a thirty-second.
    pub cache_bytes: u64,
    /// Maximum number of bytes per day that are copied or moved back to flash, to limit wear.
    /// `None`: no limit.
    pub promotion_bytes_per_day: Option<u64>,
    /// Which part of a key names its group: the objects of a group share one heat.
    pub group_rule: GroupRule,
    /// Prefixes of keys whose objects live on flash, or never do, whatever their heat. None by
    /// default. May be changed like *SizeThreshold*.
    pub pins: Vec<Pin>,
    /// How long a snapshot or scan keeps versions that were deleted or overwritten since. An older
    /// one is refused ([`Error::SnapshotTooOld`]) and holds nothing back. `None`, the default: as
    /// long as it is held.
    pub snapshot_max_age: Option<Duration>,
    /// The clock that expiries are compared with, see [`crate::Store::clock`]; the operating
    /// system's by default.
    pub clock: Clock,
    /// The device under the flash tier; `None` for the operating system's file system at
    /// `flash_dir`. The ordered index keeps its own files there in either case.
    pub flash_disk: Option<Arc<dyn Disk>>,
    /// The device under the large tier; `None` for the operating system's file system at
    /// `large_dir`.
    pub large_disk: Option<Arc<dyn Disk>>,
    /// Options that few users have a reason to change.
    pub tuning: Tuning,
}

/// Options that few users have a reason to change: the defaults are right for nearly all. Sizes are
/// in bytes.
#[derive(Debug, Clone)]
pub struct Tuning {
    /// Values up to this size live in the ordered index itself. 64 bytes.
    pub inline_bytes_max: u64,
    /// Block files may take this percentage of their live bytes, plus the slack; above that, block
    /// GC drains blocks that are mostly dead. 130. Open blocks are not included.
    pub space_amplification_percent: u32,
    /// Above this percentage, plus twice the slack ([`Options::HOLD_BLOCKS`] at least), writers of
    /// large values wait for block GC, as long as that can help. 150.
    pub space_amplification_max_percent: u32,
    /// Bytes that block files may take beyond the percentages above while there is room. 256 MiB.
    /// In a store of a few blocks the percentages amount to less than a block: without slack each
    /// block would be drained while most of it is live, and writers would wait for that.
    pub space_slack_bytes: u64,
    /// RAM for the ordered index's block cache. 64 MiB.
    pub index_cache_bytes: u64,
    /// RAM of the index's memtable before it is flushed. 16 MiB: small ones stay in the processor's
    /// caches. On a small flash device less, down to 1 MiB, since the reserve is four memtables.
    pub memtable_bytes: u64,
    /// How long a buffered commit may wait for others before its frame is written. 1 ms; up to 32
    /// times as long under such load that the frame is full by then, and up to half a second if it
    /// has large values on a disk that seeks while others read it.
    pub coalesce_interval: Duration,
    /// Maximum RAM of the hash index. `None`, the default: 8 to 9 bytes for each value in the log.
    /// With a limit, recycling begins when nine tenths of its slots are in use: the log then holds
    /// fewer values than would fit.
    pub hash_index_bytes_max: Option<u64>,
    /// RAM for commits not yet applied to the index; beyond it writers wait. 64 MiB. A record
    /// counts as at least 256 bytes.
    pub overlay_bytes: u64,
    /// RAM for objects on their way from disk to readers and to flash: concurrent readers of one
    /// object share it. 64 MiB; with 0 every reader reads for itself and nothing is copied to
    /// flash. Small values that return to the log may use an eighth of it in addition.
    pub staging_bytes: u64,
    /// Percentage of the flash log's capacity that copies of hot large objects keep even if small
    /// values need room; beyond it they use what is left over. 50; with 0 they have only what
    /// nothing else needs.
    pub copies_share_percent: u32,
    /// Maximum rate, in bytes per second, of moves caused by changed rules. 8 MiB; 0 disables these
    /// moves.
    pub migrate_bytes_per_second: u64,
    /// Maximum rate, in bytes per second, of rewrites charged to scans: small values are rewritten
    /// in key order once reading them one by one has cost as much as rewriting them. A sweep of the
    /// log may exceed it by what scans pay meanwhile. 64 MiB; 0 disables these rewrites.
    pub order_bytes_per_second: u64,
    /// A sweep, which copies short values of the whole log into their index entries, reads the log
    /// and merges the index. It begins when scans have paid this percentage of its cost. 100, the
    /// default: all of it.
    pub sweep_price_percent: u32,
    /// A checkpoint of the hash index is written after this many bytes of log, so that an open need
    /// not walk the ordered index: later, if the checkpoint itself is long (the log must be four
    /// times its length), but after half of the log's capacity at the latest; and at a close,
    /// unless little was written since the last one. 1 GiB; 0 disables checkpoints.
    pub checkpoint_log_bytes: u64,
    /// A table of the ordered index is copied once it has been there for this long. If its file is
    /// damaged, the next open uses the copy, and nothing is lost. The copies take as much room as
    /// the index, but at most an eighth of the flash tier, and none on a full device. 30 seconds;
    /// `None` makes no copies.
    pub index_mirror_after: Option<Duration>,
    /// Use direct I/O where the file system allows it.
    pub direct_io: bool,
    /// Minimum time between two walks over the index in search of expired objects, once something
    /// has expired. 1 minute.
    pub expire_interval: Duration,
}

/// Two million values of 100 bytes were in order after 24 s with 32 MiB, the bottleneck then, after
/// 16 s with this, and no sooner with 128 MiB: two processors are the bottleneck then (ADR 29).
const ORDER_BYTES_PER_SECOND: u64 = 64 << 20;

impl Default for Tuning {
    fn default() -> Self {
        Self {
            inline_bytes_max: 64,
            space_amplification_percent: 130,
            space_amplification_max_percent: 150,
            space_slack_bytes: 256 << 20,
            index_cache_bytes: 64 << 20,
            memtable_bytes: 16 << 20,
            coalesce_interval: Duration::from_millis(1),
            hash_index_bytes_max: None,
            overlay_bytes: 64 << 20,
            staging_bytes: 64 << 20,
            copies_share_percent: 50,
            migrate_bytes_per_second: 8 << 20,
            order_bytes_per_second: ORDER_BYTES_PER_SECOND,
            sweep_price_percent: 100,
            checkpoint_log_bytes: 1 << 30,
            index_mirror_after: Some(Duration::from_secs(30)),
            direct_io: true,
            expire_interval: Duration::from_secs(60),
        }
    }
}

/// Refuses a value of an option that does not meet its requirement.
fn require(is_allowed: bool, option: &str, value: u64, must: &str) -> Result<()> {
    if is_allowed {
        return Ok(());
    }
    Err(Error::Invalid(format!("{option} {value} must {must}")))
}

impl Options {
    /// Writers of large values wait only if the blocks exceed their percentage by at least this
    /// many blocks, however small the slack: in a store of a few blocks the allowed bytes change
    /// with every seal.
    pub const HOLD_BLOCKS: u64 = 2;

    /// For sizes: chosen by the size of the device.
    pub const BY_DEVICE: u64 = 0;

    /// Both tiers in one directory: `dir/flash` and `dir/large`.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        let dir = dir.into();
        Self::on_tiers(dir.join("flash"), dir.join("large"))
    }

    /// The tiers in separate directories, each on its own device.
    #[must_use]
    pub fn on_tiers(flash_dir: impl Into<PathBuf>, large_dir: impl Into<PathBuf>) -> Self {
        Self {
            flash_dir: flash_dir.into(),
            large_dir: large_dir.into(),
            create: true,
            read_only: false,
            repair_without_tier: false,
            size_threshold_bytes: 128 << 10,
            split_threshold_bytes: Self::BY_DEVICE,
            segment_bytes: Self::BY_DEVICE,
            flash_capacity_bytes: 64 << 30,
            log_capacity_bytes: None,
            large_capacity_bytes: None,
            cache_bytes: 256 << 20,
            promotion_bytes_per_day: None,
            group_rule: GroupRule::default(),
            pins: Vec::new(),
            snapshot_max_age: None,
            clock: Clock::default(),
            flash_disk: None,
            large_disk: None,
            tuning: Tuning::default(),
        }
    }

    /// These options with some of [`Options::tuning`] changed.
    ///
    /// ```
    /// # use terrace::Options;
    /// let options = Options::new("data").tuned(|tuning| tuning.direct_io = false);
    /// ```
    #[must_use]
    pub fn tuned(mut self, tune: impl FnOnce(&mut Tuning)) -> Self {
        tune(&mut self.tuning);
        self
    }

    /// Checks the options against each other.
    ///
    /// # Errors
    /// [`Error::Invalid`], naming the option and its allowed values.
    pub fn validate(&self) -> Result<()> {
        self.fitted(u64::MAX, u64::MAX).validate_fitted()
    }

    /// These options with all sizes filled in, for devices of these sizes.
    pub(crate) fn fitted(&self, flash_bytes: u64, large_bytes: u64) -> Self {
        let part = |bytes: u64| {
            let part = (bytes / DEVICE_PARTS).clamp(PART_BYTES_MIN, PART_BYTES_MAX);
            1 << part.ilog2()
        };
        let mut fitted = self.clone();
        if fitted.segment_bytes == Self::BY_DEVICE {
            fitted.segment_bytes = part(flash_bytes.min(self.log_bytes_max()));
        }
        if fitted.split_threshold_bytes == Self::BY_DEVICE {
            fitted.split_threshold_bytes = part(large_bytes.min(self.large_capacity_bytes.unwrap_or(u64::MAX)));
        }
        let memtable_bytes_max = (flash_bytes.min(self.flash_capacity_bytes) / DEVICE_MEMTABLES).max(PART_BYTES_MIN);
        fitted.tuning.memtable_bytes = self.tuning.memtable_bytes.min(memtable_bytes_max);
        fitted
    }

    fn validate_fitted(&self) -> Result<()> {
        let (segment, threshold, split) = (
            self.segment_bytes,
            self.size_threshold_bytes,
            self.split_threshold_bytes,
        );
        let is_allowed = segment.is_multiple_of(64 << 10) && (256 << 10..=1 << 30).contains(&segment);
        let must = "be a multiple of 64 KiB between 256 KiB and 1 GiB";
        require(is_allowed, "segment size", segment, must)?;
        let quarter = segment / SEGMENT_VALUES_MIN;
        let must = format!("be between 1 byte and a quarter of the segment size ({quarter})");
        require((1..=quarter).contains(&threshold), "size threshold", threshold, &must)?;
        let inline = self.tuning.inline_bytes_max;
        let must = "be below the size threshold and at most 4096 bytes";
        require(inline < threshold && inline <= 4096, "inline limit", inline, must)?;
        let is_allowed = (64 << 10..=64 << 30).contains(&split);
        require(is_allowed, "split threshold", split, "be between 64 KiB and 64 GiB")?;
        self.validate_capacities()?;
        let copies = self.tuning.copies_share_percent;
        let must = format!("be at most {COPIES_SHARE_MAX_PERCENT} per cent: the log needs the rest");
        require(copies <= COPIES_SHARE_MAX_PERCENT, "copies share", copies.into(), &must)?;
        placement::check(&self.pins)?;
        let fail = |message| Err(Error::invalid(message));
        if self.tuning.hash_index_bytes_max.is_some_and(|bytes| bytes < 256 << 10) {
            return fail("the hash index must have at least 256 KiB of RAM; leave the bound out for none");
        }
        if self.snapshot_max_age == Some(Duration::ZERO) {
            return fail("the maximum age of snapshots must be above 0; leave it out for none");
        }
        if self.tuning.overlay_bytes < 1 << 20 || self.tuning.memtable_bytes < 64 << 10 {
            return fail("overlay must have at least 1 MiB and the memtable 64 KiB of RAM");
        }
        Ok(())
    }

    /// Maximum size that the log's segments may ever have.
    pub(crate) fn log_bytes_max(&self) -> u64 {
        let log_bytes = self.log_capacity_bytes.unwrap_or(u64::MAX);
        log_bytes.min(self.flash_capacity_bytes)
    }

    /// Size of the shortest log.
    pub(crate) const fn log_bytes_min(&self) -> u64 {
        SEGMENTS_MIN * self.segment_bytes
    }

    /// Checks a flash capacity, of which files other than the log take `others_bytes`.
    pub(crate) fn validate_flash_capacity(&self, bytes: u64, others_bytes: u64) -> Result<()> {
        let least = self.log_bytes_min().saturating_add(others_bytes);
        let must = if others_bytes == 0 {
            format!("hold at least {SEGMENTS_MIN} segments ({least})")
        } else {
            format!("hold at least {SEGMENTS_MIN} segments and {others_bytes} bytes of other files ({least})")
        };
        require(bytes >= least, "flash capacity", bytes, &must)?;
        require(bytes <= 1 << 40, "flash capacity", bytes, "be at most 1 TiB")
    }

    fn validate_capacities(&self) -> Result<()> {
        self.validate_flash_capacity(self.flash_capacity_bytes, 0)?;
        let (least, log_bytes) = (self.log_bytes_min(), self.log_bytes_max());
        let must = format!("hold at least {SEGMENTS_MIN} segments ({least})");
        require(log_bytes >= least, "log capacity", log_bytes, &must)?;
        self.validate_large_capacity(self.large_capacity_bytes)?;
        let steady = self.tuning.space_amplification_percent;
        let most = self.tuning.space_amplification_max_percent;
        let is_allowed = steady >= 105 && most >= steady.saturating_add(10);
        let must = format!("be at least 105 per cent, and its limit {most} at least 10 more");
        require(is_allowed, "space amplification", steady.into(), &must)
    }

    pub(crate) fn validate_large_capacity(&self, bytes: Option<u64>) -> Result<()> {
        let least = 4 * self.split_threshold_bytes;
        let must = format!("hold at least 4 blocks ({least})");
        bytes.map_or(Ok(()), |bytes| require(bytes >= least, "large capacity", bytes, &must))
    }
}

/// How one object is put.
#[derive(Debug, Clone, Default)]
pub struct PutOptions {
    /// Attributes to store with it.
    pub attributes: Attributes,
    /// When to acknowledge.
    pub durability: Durability,
    /// Condition under which to write.
    pub condition: Condition,
    /// When the object expires.
    pub expiry: Expiry,
}

/// How an object is read.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReadOptions {
    /// For callers that prefer a refusal to a wait: while a read of the large tier's device has
    /// been running for longer than this, no new one is begun, and the call fails with
    /// [`Error::Busy`]. Values in RAM or on flash, copies included, are read as usual, and open
    /// streams continue. `None`, the default: no limit.
    pub large_wait_max: Option<Duration>,
}

/// How a stream is written.
#[derive(Debug, Clone, Default)]
pub struct WriterOptions {
    /// The value's length, if known; the writer then refuses more or fewer bytes.
    pub length: Option<u64>,
    /// Attributes, durability and condition, as for a put. The condition is evaluated at `finish`.
    pub put: PutOptions,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// With the former defaults a disk of 300 MB was too small: segments of 64 MiB need 320 MiB.
    #[test]
    fn sizes_go_by_the_device_from_a_hundred_megabytes_to_a_hundred_terabytes() {
        const MB: u64 = 1_000_000;
        let options = Options::new("store");
        for (device_bytes, part_mib, memtable_kib) in [
            (100 * MB, 1, 1 << 10),
            (300 * MB, 4, (300 * MB) >> 18),
            (900 * MB, 8, (900 * MB) >> 18),
            (5_000 * MB, 64, 16 << 10),
            (100_000_000 * MB, 64, 16 << 10),
        ] {
            let fitted = options.fitted(device_bytes, device_bytes);
            fitted.validate_fitted().unwrap();
            let sizes = (fitted.segment_bytes >> 20, fitted.split_threshold_bytes >> 20);
            assert_eq!(sizes, (part_mib, part_mib), "{device_bytes}");
            assert_eq!(fitted.tuning.memtable_bytes >> 10, memtable_kib, "{device_bytes}");
            // The smallest log, the reserve, and another of each.
            let least = (SEGMENTS_MIN + 4) * fitted.segment_bytes + 5 * fitted.tuning.memtable_bytes;
            assert!(least < device_bytes / 2, "{device_bytes}");
        }
        // Sizes that are given are not changed, whatever the device.
        let said = Options {
            segment_bytes: 256 << 10,
            split_threshold_bytes: 2 << 20,
            ..options
        };
        let fitted = said.fitted(u64::MAX, u64::MAX);
        assert_eq!(
            (fitted.segment_bytes, fitted.split_threshold_bytes),
            (256 << 10, 2 << 20)
        );
    }
}
