//! Whether there is room for a segment: by the log's capacity, and on the device.

use super::{RESERVED_SEGMENTS, Segments};
use crate::{Error, Result, Tier};
use std::sync::atomic::Ordering;

impl Segments {
    /// Whether callers can have a segment, as the device says now.
    pub fn has_for_callers(&self) -> bool {
        self.free() > RESERVED_SEGMENTS || (self.may_grow() && !self.is_device_short())
    }

    pub(super) fn may_grow(&self) -> bool {
        self.slots.len() > self.created.load(Ordering::Acquire) as usize
    }

    /// Whether it is the device that has no segment for callers.
    pub fn is_device_short(&self) -> bool {
        self.may_grow() && !self.has_room_beside(self.left_to_others_bytes()).unwrap_or(true)
    }

    fn left_to_others_bytes(&self) -> u64 {
        self.left_to_others_bytes.load(Ordering::Acquire)
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

    /// Who leaves the reserved segments alone leaves the device what others need to make room on
    /// it.
    pub(super) fn check_device(&self, keep_free: u32) -> Result<()> {
        let left_bytes = self.left_to_others_bytes();
        if left_bytes == 0 || keep_free < RESERVED_SEGMENTS {
            return Ok(());
        }
        let has_room = self.has_room_beside(left_bytes);
        if has_room.map_err(|error| Error::io_on(Tier::Flash, "ask for the free space", &error))? {
            return Ok(());
        }
        self.device_full.store(true, Ordering::Release);
        Err(Error::OutOfSpace {
            tier: Tier::Flash,
            reason: format!(
                "the device has no room for a segment of {} bytes beside {left_bytes} that are kept for cleaning",
                self.segment_bytes
            ),
        })
    }
}
