//! Whether there is room for a segment: within the log's capacity, and on the device.

use super::{RESERVED_SEGMENTS, SEGMENTS_MAX, Segments};
use crate::{
    Error, Result, Tier,
    log::{format::SegmentUse, reserve::Left},
};
use std::sync::atomic::Ordering;

/// Number of segments by which a growing index may lower the limit before log GC has drained
/// others.
const DRIFT_SEGMENTS: u32 = 8;

impl Segments {
    /// Whether callers can have a segment; queries the device.
    pub fn has_for_callers(&self) -> bool {
        let has_free = self.free() > RESERVED_SEGMENTS && !self.owes_segment();
        has_free || (self.may_grow() && !self.is_device_short())
    }

    pub(super) fn limit_of(capacity_bytes: u64, segment_bytes: u64) -> u32 {
        // At most 1 TiB / 256 KiB.
        let segments = (capacity_bytes / segment_bytes) as u32;
        segments.min(SEGMENTS_MAX)
    }

    /// Sets another capacity. If there are more segments than it allows, log GC drains the excess,
    /// and their space is returned.
    pub fn set_capacity(&self, capacity_bytes: u64) {
        let limit = Self::limit_of(capacity_bytes, self.segment_bytes);
        if self.limit.swap(limit, Ordering::AcqRel) != limit {
            self.retry_device();
        }
    }

    /// The other files of the tier leave the shortest log so many bytes too little. New data is
    /// refused, or waits, if that may change with a merge of the index.
    pub fn set_lacking(&self, bytes: u64, awaits_merge: bool) {
        let refused_for = if awaits_merge { 0 } else { bytes };
        self.lacking_bytes.store(refused_for, Ordering::Release);
        self.awaits_merge.store(bytes > refused_for, Ordering::Release);
    }

    /// Whether new data waits for a merge of the index.
    pub fn awaits_merge(&self) -> bool {
        self.awaits_merge.load(Ordering::Acquire)
    }

    /// Why new data is refused; `None` unless the other files of the tier leave too little of its
    /// capacity.
    pub fn refusal(&self, tier: Tier) -> Option<Error> {
        let lacking = self.lacking_bytes.load(Ordering::Acquire);
        let reason = || {
            format!(
                "the ordered index and other files beside the log leave it {lacking} bytes less of flash_capacity_bytes \
                 than its least; raise that, or delete something"
            )
        };
        (lacking > 0).then(|| Error::no_room(tier, reason()))
    }

    pub(super) fn limit(&self) -> u32 {
        self.limit.load(Ordering::Acquire)
    }

    /// Maximum size of the segments by the capacity.
    pub fn capacity_bytes(&self) -> u64 {
        u64::from(self.limit()) * self.segment_bytes
    }

    /// Number of segments beyond the capacity.
    pub fn beyond_capacity(&self) -> u32 {
        self.created().saturating_sub(self.limit())
    }

    /// Whether callers wait until segments are given back. A log far beyond its limit, which was
    /// lowered, gives one back for each segment that they take; otherwise it would stay as long
    /// while they write. A log that exceeds the limit by little, since the index has grown, gives
    /// that back first. Not while the reserve is in use: its segments are beyond the limit, and
    /// only commits that free space are accepted.
    pub fn owes_segment(&self) -> bool {
        let beyond = self.beyond_capacity();
        let is_over = beyond > 0 && (beyond <= DRIFT_SEGMENTS || self.owes.load(Ordering::Acquire));
        is_over && self.left_of_reserve_bytes() == 0
    }

    /// Checks whether a creator that keeps so many segments free creates one for callers.
    ///
    /// # Errors
    /// [`Error::OutOfSpace`] if so and callers must wait.
    pub(super) fn check_owed(&self, segment_use: SegmentUse, keep_free: u32) -> Result<bool> {
        let is_for_callers = segment_use == SegmentUse::Log && keep_free >= RESERVED_SEGMENTS;
        if is_for_callers && self.owes_segment() {
            let limit = self.limit();
            let reason = format!("the log has more than the {limit} segments that its capacity allows now");
            return Err(Error::no_room(Tier::Flash, reason));
        }
        Ok(is_for_callers)
    }

    /// Whether the capacity allows another segment.
    pub fn may_grow(&self) -> bool {
        self.limit() > self.created()
    }

    /// Whether the reason that callers have no segment is the device.
    pub fn is_device_short(&self) -> bool {
        self.may_grow() && !self.has_room_beside(self.left_to_others_bytes()).unwrap_or(true)
    }

    /// Segments that may still be taken; queries the device: it may have room again, or less than
    /// at the last check.
    pub fn available_now(&self) -> u32 {
        if self.is_device_short() {
            self.free()
        } else {
            self.available()
        }
    }

    /// Maximum number of segments of the ring; queries the device.
    pub fn capacity_now(&self) -> u32 {
        if self.is_device_short() {
            self.created()
        } else {
            self.capacity()
        }
    }

    /// While the reserve is in use, the space left to its users is included: it is not for ordinary
    /// segments.
    pub fn left_to_others_bytes(&self) -> u64 {
        let always = self.left_to_others_bytes.load(Ordering::Acquire);
        always.saturating_add(self.left_of_reserve_bytes())
    }

    /// Whether the device has room for a segment and so many more bytes.
    fn has_room_beside(&self, bytes: u64) -> std::io::Result<bool> {
        let available = self.disk.available_bytes()?;
        Ok(available >= bytes.saturating_add(self.segment_bytes))
    }

    /// From now on so many bytes of the device are left to others.
    pub fn leave_to_others(&self, bytes: u64) {
        self.left_to_others_bytes.store(bytes, Ordering::Release);
    }

    /// The same for the commits that the reserve is for, while it is in use.
    pub fn leave_of_reserve(&mut self, left: Left) {
        self.left_of_reserve = left;
    }

    /// Creates one more segment, if it leaves so many bytes of the device. `left_bytes` is called
    /// while no other thread creates one: space that one creator has taken is not counted by the
    /// next.
    ///
    /// # Errors
    /// [`Error::OutOfSpace`], or errors of the device.
    pub fn add_free(&self, left_bytes: impl FnOnce() -> u64) -> Result<()> {
        let made = self.create(true, || Ok(left_bytes()))?;
        self.push_free(made);
        Ok(())
    }

    /// Creates one beyond the capacity, if its space was freed elsewhere: `given` too is called
    /// while no other thread creates one, and returns what it must leave of the device.
    ///
    /// # Errors
    /// [`Error::OutOfSpace`], or errors of the device.
    pub fn add_beyond_capacity(&self, given: impl FnOnce() -> Option<u64>) -> Result<()> {
        let made = self.create(false, || {
            let refused = || Error::no_room(Tier::Flash, "another commit has the segment that the reserve gave up");
            given().ok_or_else(refused)
        })?;
        self.push_free(made);
        Ok(())
    }

    /// Bytes of the device that a creator leaves, if it keeps so many segments free: one that
    /// leaves the reserved ones alone leaves the space that others need to free space; one that
    /// does not, the space that they need while the reserve is in use.
    pub(super) fn left_beside(&self, keep_free: u32) -> u64 {
        if keep_free < RESERVED_SEGMENTS {
            self.left_of_reserve_bytes()
        } else {
            self.left_to_others_bytes()
        }
    }

    /// Bytes left by the commits that the reserve is for: 0 while it exists.
    pub fn left_of_reserve_bytes(&self) -> u64 {
        self.left_of_reserve.by_segments.load(Ordering::Acquire)
    }

    /// Whether the device has room for a segment in addition to so many bytes.
    pub(super) fn check_device(&self, left_bytes: u64) -> Result<()> {
        if left_bytes == 0 {
            return Ok(());
        }
        let has_room = self.has_room_beside(left_bytes);
        if has_room.map_err(|error| Error::io_on(Tier::Flash, "ask for the free space", &error))? {
            return Ok(());
        }
        self.device_full.store(true, Ordering::Release);
        let segment_bytes = self.segment_bytes;
        let reason = format!(
            "the device has no room for a segment of {segment_bytes} bytes beside {left_bytes} that are kept for making room"
        );
        Err(Error::no_room(Tier::Flash, reason))
    }
}
