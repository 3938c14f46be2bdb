//! How a store is opened and how a write is made.

use crate::{Attributes, Clock, Error, Expiry, GroupRule, Pin, Result, Version, api::placement, io::Disk};
use std::{path::PathBuf, sync::Arc, time::Duration};

/// Segments and blocks are such a part of their device, so that what cannot be used for want of a
/// whole one is little,
const DEVICE_PARTS: u64 = 64;
/// and from so many bytes, in which what is written in one step fits four times,
const PART_BYTES_MIN: u64 = 1 << 20;
/// to so many, which devices write at their full rate.
const PART_BYTES_MAX: u64 = 64 << 20;
/// So many memtables fit into a flash device.
const DEVICE_MEMTABLES: u64 = 256;
/// Values that a segment must have room for: a longer one would leave too much of a segment unused
/// before it.
pub(crate) const SEGMENT_VALUES_MIN: u64 = 4;
/// Segments that the log must have room for: those that stay free for someone, and as many to be
/// written and recycled.
const SEGMENTS_MIN: u64 = 8;
/// Most of the flash tier that copies may have for certain, in per cent: the log needs the rest.
const COPIES_SHARE_MAX_PERCENT: u32 = 80;

/// When a write is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// After the commit is on the device (fdatasync, grouped with other commits). Readers see it
    /// from then on, and until then what was there before.
    #[default]
    Sync,
    /// At once, and readers see it at once. A crash loses at most the most recent such commits,
    /// never one from the middle; so it may take back what was read of them. One that replaces what
    /// a `Sync` write is still making durable waits for that.
    Buffered,
}

/// What must hold for a write to happen, decided inside the commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Condition {
    /// Nothing.
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
    /// Open to look only: no commit, no flush. Several may look at once, but not beside a process
    /// that writes.
    pub read_only: bool,
    /// *SizeThreshold* (MRIS section 3): values of at least this size go to the large space. 128
    /// KiB. It may be changed at any open: new values follow at once, old ones are moved in the
    /// background.
    pub size_threshold_bytes: u64,
    /// *SplitThreshold* (MRIS section 3): a LargeBlock is sealed once it is this long.
    /// [`Options::BY_DEVICE`], the default: a 64th of the large tier's capacity or device, from 1
    /// MiB to 64 MiB.
    pub split_threshold_bytes: u64,
    /// Size of a flash segment; fixed when the store is created. [`Options::BY_DEVICE`], the
    /// default: a 64th of the flash tier's capacity or device, from 1 MiB to 64 MiB.
    pub segment_bytes: u64,
    /// Most the files of the flash tier may occupy: the log, the ordered index, checkpoints and the
    /// reserve. 64 GiB; less if the device is smaller. The log has what the others leave. It may
    /// be changed at any opening, and on a running store
    /// ([`crate::Store::set_flash_capacity`]).
    pub flash_capacity_bytes: u64,
    /// Most the segments of the flash log may occupy, of the flash capacity. `None`, the default:
    /// all that the other files leave. For tests and benchmarks that compare logs of one length.
    pub log_capacity_bytes: Option<u64>,
    /// Most the files of blocks may occupy. `None`, the default: what the device has. A part of it
    /// is kept for cleaning: the length of two blocks, a quarter of the capacity at most. It may
    /// be changed at any open, where below what is there it stops writes until enough is deleted,
    /// and on a running store ([`crate::Store::set_large_capacity`]).
    pub large_capacity_bytes: Option<u64>,
    /// RAM for cached values. 256 MiB; 0 turns the cache off. An eighth of it, and what the cache
    /// does not use of the rest, holds what was written lately, read or not; less of it, down to a
    /// thirty-second, where scans have brought longer values into chunks.
    pub cache_bytes: u64,
    /// Most bytes a day that are copied to flash or moved back to it, for its life. `None`: no
    /// limit.
    pub promotion_bytes_per_day: Option<u64>,
    /// What part of a key names its group: objects of one group are of one heat.
    pub group_rule: GroupRule,
    /// Prefixes of keys whose objects live on flash, or never do, whatever their heat. None.
    /// Changed like *SizeThreshold*.
    pub pins: Vec<Pin>,
    /// How long a snapshot or scan keeps what was deleted or overwritten since. An older one is
    /// refused ([`Error::SnapshotTooOld`]) and holds nothing back. `None`, the default: as long as
    /// it is held.
    pub snapshot_max_age: Option<Duration>,
    /// The clock that expiries are held against; the operating system's.
    pub clock: Clock,
    /// The device under the flash tier; `None` for the operating system's file system at
    /// `flash_dir`. The ordered index keeps its own files there in either case.
    pub flash_disk: Option<Arc<dyn Disk>>,
    /// The device under the large tier; `None` for the operating system's file system at
    /// `large_dir`.
    pub large_disk: Option<Arc<dyn Disk>>,
    /// What few users have a reason to change.
    pub tuning: Tuning,
}

/// What few users have a reason to change: the defaults are right for nearly all. Sizes are in
/// bytes.
#[derive(Debug, Clone)]
pub struct Tuning {
    /// Values up to this size live in the ordered index itself. 64 bytes.
    pub inline_bytes_max: u64,
    /// Block files may take so many per cent of what lives in them, and the slack; above that,
    /// blocks that are mostly dead are cleaned. 130. Open blocks come on top.
    pub space_amplification_percent: u32,
    /// Above this many per cent, and twice the slack ([`Options::HOLD_BLOCKS`] at least), writers
    /// of large values wait for cleaning, as long as that can help. 150.
    pub space_amplification_max_percent: u32,
    /// Bytes that block files may take beyond the shares above while there is room. 256 MiB. In a
    /// store of a few blocks the shares are less than a block: without slack each of them would be
    /// cleaned while most of it lives, and writers would wait for that.
    pub space_slack_bytes: u64,
    /// RAM for the ordered index's block cache. 64 MiB.
    pub index_cache_bytes: u64,
    /// RAM of the index's memtable before it is flushed. 16 MiB: small ones stay in the processor's
    /// caches. On a small flash device less, down to 1 MiB, since four of them are kept as its
    /// reserve.
    pub memtable_bytes: u64,
    /// How long a buffered commit may wait for others before its frame is written. 1 ms; up to 32
    /// times as long where so much is written that the frame is full by then, and up to half a
    /// second where it has large values on a disk that seeks while others read it.
    pub coalesce_interval: Duration,
    /// Most RAM for the hash index. `None`, the default: 8 to 9 bytes for each value in the log.
    /// With a bound, recycling begins when nine tenths of the slots it allows are in use: the log
    /// then holds fewer values than would fit.
    pub hash_index_bytes_max: Option<u64>,
    /// RAM for commits not yet applied to the index, before writers wait. 64 MiB. A record counts
    /// as 256 bytes at least.
    pub overlay_bytes: u64,
    /// RAM for objects on their way from disk to readers and to flash: concurrent readers of one
    /// object share it. 64 MiB; with 0 every reader reads for itself and nothing is copied to
    /// flash. Small values that come back to the log have an eighth of it beside it.
    pub staging_bytes: u64,
    /// Share of the flash log's capacity that copies of hot large objects keep even if small values
    /// need room; they use what is left over beyond it. 50; 0 leaves them only what nothing else
    /// needs.
    pub copies_share_percent: u32,
    /// Most bytes a second of values that are moved because of changed rules. 8 MiB; 0 moves
    /// nothing.
    pub migrate_bytes_per_second: u64,
    /// Most bytes a second that are written because scans have paid for it: small values are
    /// written in the order of their keys once it has cost as much to read them one by one. 64 MiB;
    /// 0 writes nothing.
    pub order_bytes_per_second: u64,
    /// Short values of the whole log are copied into their index entries, which reads the log and
    /// merges the index, when scans have paid so many per cent of what that costs. 100: as if it
    /// had been known that they would.
    pub sweep_price_percent: u32,
    /// After so many bytes of log a checkpoint of the hash index is written, so that an open need
    /// not walk the ordered index: later, if it is long itself (the log is to have four times its
    /// length), but after half of the log's capacity at the latest; and at a close, unless
    /// little happened since. 1 GiB; 0 writes none.
    pub checkpoint_log_bytes: u64,
    /// Use direct I/O where the file system allows it.
    pub direct_io: bool,
    /// Least time between two walks over the index in search of expired objects, once something has
    /// expired. 1 minute.
    pub expire_interval: Duration,
}

/// Two million values of 100 bytes were in order after 24 s with 32 MiB, which bounded it, after 16
/// s with this, and no sooner with 128 MiB: then two processors are what bounds it (ADR 29).
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
            direct_io: true,
            expire_interval: Duration::from_secs(60),
        }
    }
}

/// Refuses an option's value that is not what it must be.
fn require(is_allowed: bool, option: &str, value: u64, must: &str) -> Result<()> {
    if is_allowed {
        return Ok(());
    }
    Err(Error::Invalid(format!("{option} {value} must {must}")))
}

impl Options {
    /// Writers of large values wait only beyond at least so many blocks over their share, however
    /// small the slack: a store of a few blocks has a share of its own at every seal.
    pub const HOLD_BLOCKS: u64 = 2;

    /// Of a size: as the device asks for.
    pub const BY_DEVICE: u64 = 0;

    /// Both tiers in one directory: `dir/flash` and `dir/large`.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        let dir = dir.into();
        Self::on_tiers(dir.join("flash"), dir.join("large"))
    }

    /// The tiers in a directory each, on a device each.
    #[must_use]
    pub fn on_tiers(flash_dir: impl Into<PathBuf>, large_dir: impl Into<PathBuf>) -> Self {
        Self {
            flash_dir: flash_dir.into(),
            large_dir: large_dir.into(),
            create: true,
            read_only: false,
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
    /// [`Error::Invalid`] naming the option and what it may be.
    pub fn validate(&self) -> Result<()> {
        self.fitted(u64::MAX, u64::MAX).validate_fitted()
    }

    /// These options with all sizes given, for devices of so many bytes.
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

    /// Most the log's segments may ever take.
    pub(crate) fn log_bytes_max(&self) -> u64 {
        let log_bytes = self.log_capacity_bytes.unwrap_or(u64::MAX);
        log_bytes.min(self.flash_capacity_bytes)
    }

    /// The shortest log.
    pub(crate) const fn log_bytes_min(&self) -> u64 {
        SEGMENTS_MIN * self.segment_bytes
    }

    /// Checks a flash capacity that holds `others_bytes` beside the log.
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
    /// What must hold.
    pub condition: Condition,
    /// When the object expires.
    pub expiry: Expiry,
}

/// How an object is read.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReadOptions {
    /// For callers that prefer a refusal to a wait: while reads of the large tier's device are
    /// under way that take longer than this, none is begun there, and the answer is
    /// [`Error::Busy`]. What is in RAM or on flash is read as ever, copies too, and streams that
    /// are open go on. `None`, the default: a read takes as long as it takes.
    pub large_wait_max: Option<Duration>,
}

/// How a stream is written.
#[derive(Debug, Clone, Default)]
pub struct WriterOptions {
    /// The value's length where it is known; the writer then refuses more or fewer bytes.
    pub length: Option<u64>,
    /// Attributes, durability and condition, as for a put. The condition is decided at `finish`.
    pub put: PutOptions,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// With the defaults a disk of 300 MB was too small: segments of 64 MiB want 320 MiB.
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
            // The smallest log, the reserve and a new one of each.
            let least = (SEGMENTS_MIN + 4) * fitted.segment_bytes + 5 * fitted.tuning.memtable_bytes;
            assert!(least < device_bytes / 2, "{device_bytes}");
        }
        // What is said is left as it is, whatever the device.
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
