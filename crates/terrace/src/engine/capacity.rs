//! The capacity of the flash tier: the log has what the other files of the tier leave.
//!
//! The ordered index, checkpoints and the reserve lie beside the log. Whenever the index has
//! changed, the log's limit becomes the capacity less these and less the room that a merge of the
//! index needs. The rest is what a lowered capacity does anyway: a log beyond its limit is recycled
//! and gives segments back to the device.
//!
//! Invariant: new data is refused before the others leave less than the shortest log and the room
//! of a second merge, so what deletes add to the index until merges drop it still fits.

use super::Engine;
use crate::{Result, log::reserve::Reserve};
use std::sync::atomic::Ordering;

/// Most of the flash tier that new data leaves to merges of the index, as a divisor: a larger index
/// is merged some tables at a time, which take about so much of it at most
/// ([`crate::ordered_index::IndexOptions::on_tier`]).
const MERGE_ROOM_DIVISOR: u64 = 6;
/// On the smallest tier merges may be behind by so many runs: one may be under way.
const RUNS_BEHIND_MIN: usize = 2;
/// A checkpoint is written beside the one before it.
const CHECKPOINTS_AT_ONCE: u64 = 2;
/// Files of the tier with a fixed length, and directories: manifest, identity, versions of the
/// index.
const SMALL_FILES_BYTES: u64 = 128 << 10;

impl Engine {
    /// What lies on the flash tier beside the log.
    pub fn beside_log_bytes(&self) -> u64 {
        let reserve = &self.log.reserve;
        let reserve_bytes = if reserve.is_whole() { reserve.flash_bytes() } else { 0 };
        self.index.disk_bytes() + self.checkpoints.stats().file_bytes + reserve_bytes
    }

    /// Room for what a merge of the index writes before it removes what it has read.
    fn merge_room_bytes(&self) -> u64 {
        let capacity_bytes = self.flash_capacity_bytes.load(Ordering::Acquire);
        let most_bytes = self.flash_disk.total_bytes().unwrap_or(0).min(capacity_bytes) / MERGE_ROOM_DIVISOR;
        self.index.disk_bytes().min(most_bytes)
    }

    /// Runs of the index by which merges may be behind, `usual` at most: on a small tier half of
    /// the room of a merge holds fewer.
    pub fn runs_behind_max(&self, usual: usize) -> usize {
        let capacity_bytes = self.flash_capacity_bytes.load(Ordering::Acquire);
        let runs = capacity_bytes / (2 * MERGE_ROOM_DIVISOR) / self.options.tuning.memtable_bytes;
        let runs = usize::try_from(runs).unwrap_or(usize::MAX);
        let behind = runs.saturating_sub(self.index.runs_merged_at_once());
        behind.clamp(RUNS_BEHIND_MIN.min(usual), usual)
    }

    /// What the files beside the log take, merges of the index included.
    fn others_bytes(&self) -> u64 {
        let index_bytes = self.index.disk_bytes() + self.merge_room_bytes();
        let checkpoint_bytes = self.checkpoints.stats().file_bytes * CHECKPOINTS_AT_ONCE;
        index_bytes + checkpoint_bytes + fixed_bytes(&self.log.reserve)
    }

    /// What of that the room for merges does not cover: tables that a long merge has written, or
    /// that only a snapshot holds.
    fn surplus_bytes(&self) -> u64 {
        let covered_bytes = self.index.disk_bytes() + self.merge_room_bytes();
        self.index.files_bytes().saturating_sub(covered_bytes)
    }

    /// Most that the files of the flash tier may take.
    pub fn flash_limit_bytes(&self) -> u64 {
        let log_bytes = self.options.log_capacity_bytes.unwrap_or(u64::MAX);
        let with_log = self.beside_log_bytes().saturating_add(log_bytes);
        self.flash_capacity_bytes.load(Ordering::Acquire).min(with_log)
    }

    /// Divides the capacity, and tells the makers of segments what to leave of the device: a merge
    /// without room on a full device would use the reserve, and nothing new would be taken though
    /// log GC made progress.
    pub fn share_flash(&self) {
        if self.options.read_only {
            return;
        }
        let segments = &self.log.segments;
        let cleaning_bytes = self.log.reserve.cleaning_bytes();
        segments.leave_to_others(cleaning_bytes + self.merge_room_bytes());
        let capacity_bytes = self.flash_capacity_bytes.load(Ordering::Acquire);
        let left_bytes = capacity_bytes.saturating_sub(self.others_bytes());
        let least_bytes = self.options.log_bytes_min();
        let log_bytes = self.options.log_capacity_bytes.unwrap_or(u64::MAX);
        let for_log_bytes = left_bytes.saturating_sub(self.surplus_bytes()).min(log_bytes);
        segments.set_capacity(for_log_bytes.max(least_bytes));
        // Deletes of everything add as much to the index before merges drop it.
        let lacking_bytes = (least_bytes + self.merge_room_bytes()).saturating_sub(left_bytes);
        segments.set_lacking(lacking_bytes);
        // A level is merged whole for its tombstones. If nothing else makes room that may take more
        // than there is: only it drops what was deleted.
        let log_bytes = u64::from(segments.created()) * segments.segment_bytes();
        let unused_bytes = left_bytes.saturating_sub(log_bytes) + self.merge_room_bytes();
        self.index
            .set_merge_room(if lacking_bytes > 0 { u64::MAX } else { unused_bytes });
        if segments.beyond_capacity() > 0 {
            self.recycle_work.raise();
        }
    }

    /// See [`crate::Store::set_flash_capacity`].
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] for one that the present files do not allow.
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

/// Bytes that no store can do without beside the shortest log.
pub fn fixed_bytes(reserve: &Reserve) -> u64 {
    reserve.flash_bytes() + SMALL_FILES_BYTES
}
