//! What goes over connections, counted for the thread that looks after the memory that it takes.

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

/// What a read or a write counts at least: a few bytes may ask for a page of a listing.
const LEAST_BYTES: u64 = 16 << 10;

/// Counts bytes, and tells when there were many.
#[derive(Debug)]
pub struct Traffic {
    step_bytes: u64,
    /// Since it was looked at.
    bytes: AtomicU64,
    told: OwnedFd,
}

impl Traffic {
    /// Tells once so many bytes have gone one way or the other since it was looked at.
    ///
    /// # Errors
    /// The operating system's.
    pub fn new(step_bytes: u64) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            step_bytes,
            bytes: AtomicU64::new(0),
            told: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
        }))
    }

    /// Counts what was read or written.
    pub fn count(&self, bytes: usize) {
        let bytes = (bytes as u64).max(LEAST_BYTES);
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before < self.step_bytes && before + bytes >= self.step_bytes {
            self.tell();
        }
    }

    /// Tells whatever was counted.
    pub fn tell(&self) {
        // It fails only where no thread has looked since 2^64 times.
        let _ = rustix::io::write(&self.told, &1_u64.to_ne_bytes());
    }

    /// Begins to count anew, and forgets what it told.
    pub fn look(&self) {
        let _ = rustix::io::read(&self.told, &mut [0; 8]);
        self.bytes.store(0, Ordering::Relaxed);
    }
}

impl AsFd for Traffic {
    /// Can be read once it tells.
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
