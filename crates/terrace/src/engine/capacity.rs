//! The capacity of the flash tier: the log may use what the other files of the tier leave.
//!
//! The ordered index, checkpoints and the reserve are on the same tier. Whenever the index has
//! changed, the log's limit becomes the capacity less the bytes of these files and less the space
//! that a merge of the index needs. A log beyond its limit is recycled and gives segments back to
//! the device, as after a lowered capacity.
//!
//! Invariant: new data is refused before the other files leave less than the shortest log and the
//! space of a second merge, so entries of deletes still fit in the index until merges drop them.
//! While a merge is due that may make the index shorter, new data waits instead.

use super::Engine;
use crate::{Result, log::reserve::Reserve};
use std::sync::atomic::Ordering;

/// Maximum fraction (1/n) of the flash tier that new data leaves to merges of the index. A larger
/// index is merged a few tables at a time, which need about this much of the tier at most
/// ([`crate::ordered_index::IndexOptions::on_tier`]).
const MERGE_ROOM_DIVISOR: u64 = 6;
/// Maximum fraction (1/n) of the flash tier for copies of the index's tables.
const MIRROR_DIVISOR: u64 = 8;
/// On the smallest tier merges may be behind by this many runs, since one merge may be running.
const RUNS_BEHIND_MIN: usize = 2;
/// A checkpoint is written before the previous one is deleted.
const CHECKPOINTS_AT_ONCE: u64 = 2;
/// Files of the tier with a fixed length, and directories: manifest, identity, versions of the
/// index.
const SMALL_FILES_BYTES: u64 = 128 << 10;

impl Engine {
    /// Bytes of the flash tier's files other than the log.
    pub fn beside_log_bytes(&self) -> u64 {
        let reserve = &self.log.reserve;
        let reserve_bytes = if reserve.is_whole() { reserve.flash_bytes() } else { 0 };
        let index_bytes = self.index.disk_bytes() + self.index.mirror_bytes();
        index_bytes + self.checkpoints.stats().file_bytes + reserve_bytes
    }

    /// Space for the output of a merge of the index, which is written before its input is deleted.
    fn merge_room_bytes(&self) -> u64 {
        let capacity_bytes = self.flash_capacity_bytes.load(Ordering::Acquire);
        let most_bytes = self.flash_disk.total_bytes().unwrap_or(0).min(capacity_bytes) / MERGE_ROOM_DIVISOR;
        self.index.disk_bytes().min(most_bytes)
    }

    /// Maximum number of runs of the index that wait for merges, at most `usual`: on a small tier,
    /// half of a merge's space holds fewer.
    pub fn runs_behind_max(&self, usual: usize) -> usize {
        let capacity_bytes = self.flash_capacity_bytes.load(Ordering::Acquire);
        let runs = capacity_bytes / (2 * MERGE_ROOM_DIVISOR) / self.options.tuning.memtable_bytes;
        let runs = usize::try_from(runs).unwrap_or(usize::MAX);
        let behind = runs.saturating_sub(self.index.runs_merged_at_once());
        behind.clamp(RUNS_BEHIND_MIN.min(usual), usual)
    }

    /// Space of all files other than the log, merges of the index included.
    fn others_bytes(&self) -> u64 {
        let index_bytes = self.index.disk_bytes() + self.merge_room_bytes();
        let checkpoint_bytes = self.checkpoints.stats().file_bytes * CHECKPOINTS_AT_ONCE;
        index_bytes + checkpoint_bytes + fixed_bytes(&self.log.reserve)
    }

    /// The part of these bytes that the space for merges does not cover: tables that a long merge
    /// has written, or that only a snapshot holds.
    fn surplus_bytes(&self) -> u64 {
        let covered_bytes = self.index.disk_bytes() + self.merge_room_bytes();
        self.index.files_bytes().saturating_sub(covered_bytes)
    }

    /// Room for copies of the index's tables, of what the other files leave of the capacity. On a
    /// full device there is none, and on one without free space, or with a log beyond its capacity,
    /// there are no further ones.
    fn mirror_room_bytes(&self, left_bytes: u64) -> u64 {
        let log = &self.log;
        let is_wanted = self.options.tuning.index_mirror_after.is_some();
        if !is_wanted || !log.reserve.is_whole() || log.index_full.reason().is_some() {
            return 0;
        }
        let most_bytes = self.flash_capacity_bytes.load(Ordering::Acquire) / MIRROR_DIVISOR;
        // A device that cannot be queried counts as full.
        let free_bytes = self.flash_disk.available_bytes().unwrap_or(0);
        let kept_bytes = log.segments.left_to_others_bytes() + log.segments.segment_bytes();
        let more_bytes = if log.segments.beyond_capacity() > 0 {
            0
        } else {
            free_bytes.saturating_sub(kept_bytes)
        };
        let room_bytes = self.index.mirror_bytes().saturating_add(more_bytes);
        let wanted_bytes = self.index.mirror_wanted_bytes();
        wanted_bytes.min(most_bytes).min(left_bytes).min(room_bytes)
    }

    /// Maximum total size of the flash tier's files.
    pub fn flash_limit_bytes(&self) -> u64 {
        let log_bytes = self.options.log_capacity_bytes.unwrap_or(u64::MAX);
        let with_log = self.beside_log_bytes().saturating_add(log_bytes);
        self.flash_capacity_bytes.load(Ordering::Acquire).min(with_log)
    }

    /// Divides the capacity, and sets how much of the device the creators of segments must leave
    /// free. Without that space, merges on a full device would use the reserve, and no new data
    /// would be accepted although log GC made progress.
    pub fn share_flash(&self) {
        if self.options.read_only {
            return;
        }
        let segments = &self.log.segments;
        let merge_room_bytes = self.merge_room_bytes();
        segments.leave_to_others(self.log.reserve.cleaning_bytes() + merge_room_bytes);
        let capacity_bytes = self.flash_capacity_bytes.load(Ordering::Acquire);
        let left_bytes = capacity_bytes.saturating_sub(self.others_bytes());
        let least_bytes = self.options.log_bytes_min();
        let log_bytes = self.options.log_capacity_bytes.unwrap_or(u64::MAX);
        let spare_bytes = left_bytes.saturating_sub(least_bytes + merge_room_bytes);
        let mirror_bytes = self.mirror_room_bytes(spare_bytes);
        self.index.set_mirror_room(mirror_bytes);
        let beside_bytes = self.surplus_bytes() + mirror_bytes;
        let for_log_bytes = left_bytes.saturating_sub(beside_bytes).min(log_bytes);
        segments.set_capacity(for_log_bytes.max(least_bytes));
        // Deleting all objects adds this much to the index before merges drop it.
        let lacking_bytes = (least_bytes + merge_room_bytes).saturating_sub(left_bytes);
        segments.set_lacking(lacking_bytes, self.index.awaits_merge());
        // Readers can wait for a merge; only merges for tombstones and by size free space.
        let log_bytes = u64::from(segments.created()) * segments.segment_bytes();
        self.index
            .set_merge_room(left_bytes.saturating_sub(log_bytes) + merge_room_bytes);
        if segments.beyond_capacity() > 0 {
            self.recycle_work.raise();
        }
    }

    /// See [`crate::Store::set_flash_capacity`].
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] for a capacity that the present files do not allow.
    pub fn set_flash_capacity(&self, bytes: u64) -> Result<()> {
        self.options.validate_flash_capacity(bytes, self.others_bytes())?;
        self.flash_capacity_bytes.store(bytes, Ordering::Release);
        self.share_flash();
        self.log.activity.raise();
        self.recycle_work.raise();
        self.log.notify_progress();
        Ok(())
    }
}

/// Bytes that every store needs in addition to the shortest log.
pub fn fixed_bytes(reserve: &Reserve) -> u64 {
    reserve.flash_bytes() + SMALL_FILES_BYTES
}
