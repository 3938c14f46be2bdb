//! Counts bytes of connections, for the thread that adjusts memory.

use rustix::{
    event::{EventfdFlags, eventfd},
    fd::{AsFd, BorrowedFd, OwnedFd},
};
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Least count of a read or a write: a few bytes may request a page of a listing.
const LEAST_BYTES: u64 = 16 << 10;

/// Counts bytes, and signals when there were many.
#[derive(Debug)]
pub struct Traffic {
    step_bytes: u64,
    /// Bytes since the last check.
    bytes: AtomicU64,
    told: OwnedFd,
}

impl Traffic {
    /// Signals once this many bytes were read or written since the last check.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn new(step_bytes: u64) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            step_bytes,
            bytes: AtomicU64::new(0),
            told: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
        }))
    }

    /// Counts bytes that were read or written.
    pub fn count(&self, bytes: usize) {
        let bytes = (bytes as u64).max(LEAST_BYTES);
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before < self.step_bytes && before + bytes >= self.step_bytes {
            self.tell();
        }
    }

    /// Signals whatever was counted.
    pub fn tell(&self) {
        // It fails only after 2^64 signals without a check.
        let _ = rustix::io::write(&self.told, &1_u64.to_ne_bytes());
    }

    /// Resets the count and the signal.
    pub fn look(&self) {
        let _ = rustix::io::read(&self.told, &mut [0; 8]);
        self.bytes.store(0, Ordering::Relaxed);
    }
}

impl AsFd for Traffic {
    /// Readable once it signals.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.told.as_fd()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn tells(traffic: &Traffic) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(traffic, PollFlags::IN)], Some(&at_once)).unwrap() > 0
    }

    #[test]
    fn many_bytes_or_many_requests_tell_and_nothing_else_does() {
        let traffic = Traffic::new(1 << 20).unwrap();
        assert!(!tells(&traffic), "nothing was sent");
        traffic.count((1 << 20) - 1);
        assert!(!tells(&traffic));
        traffic.count(1);
        assert!(tells(&traffic));
        traffic.look();
        assert!(!tells(&traffic), "it was looked at");
        for _ in 0..(1 << 20) / LEAST_BYTES {
            traffic.count(100);
        }
        assert!(tells(&traffic), "requests count however short they are");
        traffic.look();
        traffic.tell();
        assert!(tells(&traffic));
    }
}
