//! The space that block files take on the device, and its limit.
//!
//! Invariants:
//! - Room is taken before a file grows and given back after it was shortened or removed, so the
//!   counted size is never below the actual size. Footers are the exception: a full block must be
//!   sealed, so their pages are added without a check.
//! - Part of the limit is reserved for block GC, which needs room to free room.
//! - If the present size exceeds the limit (it was lowered), block GC has that part beyond the
//!   present size, and less with everything that is given back: the space shrinks to the limit.
//!
//! On failure: `StorageFull`, as from a device, with a message that names the option. Nothing is
//! taken then.

use super::format::RecordKind;
use crate::{io::Disk, metrics::subtract};
use std::{
    io,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

/// The origin of a write into the space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A caller's large value.
    User,
    /// Log GC, which frees space on flash.
    Recycling,
    /// Block GC, which frees space here.
    Cleaning,
}

impl Origin {
    /// Open block for this origin. Moved values are old and likely to stay live, so they are kept
    /// apart from new ones.
    pub(super) const fn stream(self) -> usize {
        match self {
            Self::User => 0,
            Self::Recycling | Self::Cleaning => 1,
        }
    }

    /// Kind of its records: moved ones have their version.
    pub(super) const fn kind(self) -> RecordKind {
        match self {
            Self::User => RecordKind::Put,
            Self::Recycling | Self::Cleaning => RecordKind::Destaged,
        }
    }
}

/// How many blocks take extents of known size at a time; see [`Origin::stream`].
pub(super) const STREAMS: usize = 2;

const NO_LIMIT: u64 = u64::MAX;

fn refusal(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::StorageFull, reason)
}

/// The count, and the limit.
#[derive(Debug)]
pub(super) struct Room {
    /// Where the files are.
    disk: Arc<dyn Disk>,
    used_bytes: AtomicU64,
    /// [`NO_LIMIT`] if there is none.
    limit_bytes: AtomicU64,
    /// Up to here cleaning may write although that is beyond the limit; 0 if it may not. Raised
    /// only by another limit.
    drain_bytes: AtomicU64,
    /// Of the limit, for cleaning alone, a quarter of it at most; and of what the device has left.
    kept_bytes: u64,
    /// Bytes of the device that block GC leaves free, since the index must persist its moves.
    pub left_to_index_bytes: OnceLock<Arc<AtomicU64>>,
}

impl Room {
    /// Room for blocks that take `used_bytes` so far and are sealed at `split_bytes`.
    pub fn new(disk: Arc<dyn Disk>, used_bytes: u64, limit_bytes: Option<u64>, split_bytes: u64) -> Self {
        let room = Self {
            disk,
            used_bytes: AtomicU64::new(used_bytes),
            limit_bytes: AtomicU64::new(NO_LIMIT),
            drain_bytes: AtomicU64::new(0),
            // The open block of block GC and its next one; space is freed as it continues.
            kept_bytes: 2 * split_bytes,
            left_to_index_bytes: OnceLock::new(),
        };
        room.set_limit(limit_bytes);
        room
    }

    /// Takes room for a file to grow by.
    ///
    /// # Errors
    /// `StorageFull` beyond the limit.
    pub fn take(&self, bytes: u64, origin: Origin) -> io::Result<()> {
        self.check_device(bytes, origin)?;
        let limit = self.limit_for(origin);
        let taken = self
            .used_bytes
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
                used.checked_add(bytes)
                    .filter(|sum| limit.is_none_or(|limit| *sum <= limit))
            });
        taken.map(|_| ()).map_err(|used| {
            let limit = self.limit_bytes().unwrap_or_default();
            refusal(format!(
                "{bytes} bytes more are needed, blocks have {used} of the {limit} that they may have \
                 (large_capacity_bytes), and the rest is kept for cleaning"
            ))
        })
    }

    /// Refuses writes that would leave the device without room for block GC, or for the index.
    fn check_device(&self, bytes: u64, origin: Origin) -> io::Result<()> {
        let left = self.left_to_index_bytes.get();
        let left = left.map_or(0, |bytes| bytes.load(Ordering::Acquire));
        if origin == Origin::Cleaning && left == 0 {
            return Ok(());
        }
        let available = self.disk.available_bytes()?;
        let kept = match origin {
            Origin::Cleaning => left,
            Origin::User | Origin::Recycling => self.kept_bytes.min(self.used_bytes().saturating_add(available) / 4),
        };
        if available >= bytes.saturating_add(kept) {
            return Ok(());
        }
        let used = self.used_bytes();
        Err(refusal(format!(
            "{bytes} bytes more are needed, blocks have {used}, the device has {available} left, and {kept} are kept for \
             making room"
        )))
    }

    /// Notes that a file has grown, regardless of the limit.
    pub fn note(&self, bytes: u64) {
        self.used_bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    /// A file was shortened or deleted.
    pub fn give_back(&self, bytes: u64) {
        subtract(&self.used_bytes, bytes);
        let used = self.used_bytes();
        let is_over = self.limit_for(Origin::User).is_some_and(|limit| used > limit);
        let drain = if is_over {
            used.saturating_add(self.kept_bytes)
        } else {
            0
        };
        self.drain_bytes.fetch_min(drain, Ordering::AcqRel);
    }

    /// Free bytes of the device.
    pub fn available_bytes(&self) -> io::Result<u64> {
        self.disk.available_bytes()
    }

    /// Most that they may take.
    pub fn limit_bytes(&self) -> Option<u64> {
        Some(self.limit_bytes.load(Ordering::Acquire)).filter(|limit| *limit != NO_LIMIT)
    }

    /// Sets another limit. If it is below the present use, only block GC takes more space until
    /// enough is freed.
    pub fn set_limit(&self, limit_bytes: Option<u64>) {
        self.drain_bytes.store(0, Ordering::Release);
        self.limit_bytes
            .store(limit_bytes.unwrap_or(NO_LIMIT), Ordering::Release);
        let used = self.used_bytes();
        if self.limit_for(Origin::Cleaning).is_some_and(|limit| used > limit) {
            self.drain_bytes
                .store(used.saturating_add(self.kept_bytes), Ordering::Release);
        }
    }

    /// Bytes of all block files.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Acquire)
    }

    /// Whether there is no room for this many more bytes of callers.
    pub fn lacks(&self, bytes: u64) -> bool {
        let limit = self.limit_for(Origin::User);
        limit.is_some_and(|limit| self.used_bytes().saturating_add(bytes) > limit)
            || self.check_device(bytes, Origin::User).is_err()
    }

    fn limit_for(&self, origin: Origin) -> Option<u64> {
        let limit = self.limit_bytes()?;
        let kept = self.kept_bytes.min(limit / 4);
        Some(match origin {
            // The last quarter is for footers and LargeMeta.
            Origin::Cleaning => (limit - kept / 4).max(self.drain_bytes.load(Ordering::Acquire)),
            Origin::User | Origin::Recycling => limit - kept,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn disk() -> Arc<dyn Disk> {
        Arc::new(crate::io::SimDisk::new(1))
    }

    #[test]
    fn callers_leave_cleaning_what_is_kept_back() {
        let room = Room::new(disk(), 500, Some(1_000), 100);
        room.take(300, Origin::User).unwrap();
        let refused = room.take(1, Origin::Recycling).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        assert!(refused.to_string().contains("large_capacity_bytes"), "{refused}");
        assert!(room.lacks(1) && !room.lacks(0));
        room.take(150, Origin::Cleaning).unwrap();
        assert!(room.take(1, Origin::Cleaning).is_err());
        room.note(10);
        assert_eq!(room.used_bytes(), 960);
        room.give_back(400);
        room.take(240, Origin::User).unwrap();
        assert!(room.take(1, Origin::User).is_err());
    }

    #[test]
    fn another_limit_counts_at_once_up_and_down() {
        let room = Room::new(disk(), 800, Some(1_000), 100);
        assert!(room.take(1, Origin::User).is_err());
        room.set_limit(Some(2_000));
        room.take(1_000, Origin::User).unwrap();
        room.set_limit(Some(1_000));
        assert!(room.take(0, Origin::User).is_err() && room.take(1, Origin::Recycling).is_err());
        // Regression: block GC could not move anything, and the store stayed above its limit
        // forever.
        room.take(200, Origin::Cleaning).unwrap();
        assert!(room.take(1, Origin::Cleaning).is_err());
        room.give_back(300);
        room.take(200, Origin::Cleaning).unwrap();
        assert!(room.take(1, Origin::Cleaning).is_err(), "never as much as before");
        assert_eq!(room.used_bytes(), 1_900);
        room.give_back(1_200);
        room.take(100, Origin::User).unwrap();
        assert!(room.take(1, Origin::User).is_err());
        room.set_limit(None);
        assert_eq!(room.limit_bytes(), None);
        room.take(1 << 30, Origin::User).unwrap();
    }

    #[test]
    fn without_a_limit_there_is_room() {
        let room = Room::new(disk(), 0, None, 64 << 20);
        room.take(1 << 40, Origin::User).unwrap();
        assert!(!room.lacks(1 << 40));
    }

    /// Cleaning empties some blocks before the first of them is deleted. It took the last room of
    /// the device for that, and the index could not persist that they were empty.
    #[test]
    fn cleaning_leaves_the_index_what_it_may_need_while_the_reserve_is_used() {
        let disk = crate::io::SimDisk::new(1);
        disk.set_capacity(Some(1_000));
        let room = Room::new(Arc::new(disk), 0, None, 100);
        room.take(1_000, Origin::Cleaning).unwrap();
        let left = Arc::new(AtomicU64::new(300));
        room.left_to_index_bytes.set(Arc::clone(&left)).unwrap();
        room.take(700, Origin::Cleaning).unwrap();
        let refused = room.take(701, Origin::Cleaning).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        left.store(0, Ordering::Release);
        room.take(1_000, Origin::Cleaning).unwrap();
    }
}
