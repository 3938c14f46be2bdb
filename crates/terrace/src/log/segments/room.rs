//! Whether there is room for a segment: by the log's capacity, and on the device.

use super::{RESERVED_SEGMENTS, SEGMENTS_MAX, Segments};
use crate::{
    Error, Result, Tier,
    log::{format::SegmentUse, reserve::Left},
};
use std::sync::atomic::Ordering;

/// Segments by which a growing index lowers the limit before recycling has drained others.
const DRIFT_SEGMENTS: u32 = 8;

impl Segments {
    /// Whether callers can have a segment, as the device says now.
    pub fn has_for_callers(&self) -> bool {
        let has_free = self.free() > RESERVED_SEGMENTS && !self.owes_segment();
        has_free || (self.may_grow() && !self.is_device_short())
    }

    pub(super) fn limit_of(capacity_bytes: u64, segment_bytes: u64) -> u32 {
        // At most 1 TiB / 256 KiB.
        let segments = (capacity_bytes / segment_bytes) as u32;
        segments.min(SEGMENTS_MAX)
    }

    /// Another capacity. If there are more segments than it allows, recycling empties what is too
    /// much, and its room is given back.
    pub fn set_capacity(&self, capacity_bytes: u64) {
        let limit = Self::limit_of(capacity_bytes, self.segment_bytes);
        if self.limit.swap(limit, Ordering::AcqRel) != limit {
            self.retry_device();
        }
    }

    /// The other files of the tier leave the shortest log so many bytes too little.
    pub fn set_lacking(&self, bytes: u64) {
        self.lacking_bytes.store(bytes, Ordering::Release);
    }

    /// Why nothing new is taken, if the other files of the tier leave too little of its capacity.
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

    /// What the segments may take by the capacity.
    pub fn capacity_bytes(&self) -> u64 {
        u64::from(self.limit()) * self.segment_bytes
    }

    /// Segments there are beyond the capacity.
    pub fn beyond_capacity(&self) -> u32 {
        self.created().saturating_sub(self.limit())
    }

    /// Whether callers wait until segments are given back. A log far beyond its limit, which was
    /// lowered, gives one back for each that they take, or it would stay as long while they write.
    /// One that is beyond it by little, since the index has grown, gives that back first. Not while
    /// the reserve is used: its segments are beyond the limit, and only commits that make room are
    /// taken.
    pub fn owes_segment(&self) -> bool {
        let beyond = self.beyond_capacity();
        let is_over = beyond > 0 && (beyond <= DRIFT_SEGMENTS || self.owes.load(Ordering::Acquire));
        is_over && self.left_of_reserve_bytes() == 0
    }

    /// Whether a maker of segments that keeps so many of them free makes one for callers.
    ///
    /// # Errors
    /// [`Error::OutOfSpace`] if it does and they wait.
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

    /// Whether it is the device that has no segment for callers.
    pub fn is_device_short(&self) -> bool {
        self.may_grow() && !self.has_room_beside(self.left_to_others_bytes()).unwrap_or(true)
    }

    /// Segments that may still be taken, as the device says now: what it refused when it was last
    /// asked, it may have; and of what it had, something else may have taken it.
    pub fn available_now(&self) -> u32 {
        if self.is_device_short() {
            self.free()
        } else {
            self.available()
        }
    }

    /// Segments the ring may have in all, as the device says now.
    pub fn capacity_now(&self) -> u32 {
        if self.is_device_short() {
            self.created()
        } else {
            self.capacity()
        }
    }

    /// While the reserve is used, that as well: its room is no room for a segment like any other.
    pub fn left_to_others_bytes(&self) -> u64 {
        let always = self.left_to_others_bytes.load(Ordering::Acquire);
        always.saturating_add(self.left_of_reserve_bytes())
    }

    /// Whether the device has room for a segment and so much more.
    fn has_room_beside(&self, bytes: u64) -> std::io::Result<bool> {
        let available = self.disk.available_bytes()?;
        Ok(available >= bytes.saturating_add(self.segment_bytes))
    }

    /// From now on so much of the device is left to others.
    pub fn leave_to_others(&self, bytes: u64) {
        self.left_to_others_bytes.store(bytes, Ordering::Release);
    }

    /// The same for the commits that the reserve is for, as long as that is used.
    pub fn leave_of_reserve(&mut self, left: Left) {
        self.left_of_reserve = left;
    }

    /// Makes one more segment, if so much of the device is left to others. They are asked while no
    /// other thread makes one: what one maker has taken, the next one does not count on.
    ///
    /// # Errors
    /// [`Error::OutOfSpace`], or the device's.
    pub fn add_free(&self, left_bytes: impl FnOnce() -> u64) -> Result<()> {
        let made = self.create(true, || Ok(left_bytes()))?;
        self.push_free(made);
        Ok(())
    }

    /// Makes one beyond the capacity, if what it takes was given up elsewhere: that is asked while
    /// no other thread makes one, too.
    ///
    /// # Errors
    /// [`Error::OutOfSpace`], or the device's.
    pub fn add_beyond_capacity(&self, is_given: impl FnOnce() -> bool) -> Result<()> {
        let made = self.create(false, || {
            let refused = || Error::no_room(Tier::Flash, "another commit has the segment that the reserve gave up");
            is_given().then_some(0).ok_or_else(refused)
        })?;
        self.push_free(made);
        Ok(())
    }

    /// What a maker of segments that keeps so many of them free leaves of the device: one that
    /// leaves the reserved ones alone leaves what others need to make room on it; one that does
    /// not, what they need while the reserve is used.
    pub(super) fn left_beside(&self, keep_free: u32) -> u64 {
        if keep_free < RESERVED_SEGMENTS {
            self.left_of_reserve_bytes()
        } else {
            self.left_to_others_bytes()
        }
    }

    /// What is left to the commits that the reserve is for: nothing while it is there.
    pub fn left_of_reserve_bytes(&self) -> u64 {
        self.left_of_reserve.by_segments.load(Ordering::Acquire)
    }

    /// Whether the device has room for a segment beside so much.
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
