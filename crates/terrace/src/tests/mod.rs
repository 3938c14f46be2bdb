//! Tests of the whole engine through its interface.
#![allow(clippy::unwrap_used)]

mod absent;
mod account;
mod basics;
mod cache;
mod capacity;
mod clean;
mod close;
mod copies;
mod expiry;
mod figures;
mod heat;
mod pieces;
mod placement;
mod range_delete;
mod reopen;
mod scan_cache;
mod scan_order;
mod scans;
mod small_heat;
mod snapshots;
mod sweeps;
mod threads;
mod together;

pub use crate::test_common::bytes;
use crate::{Clock, Durability, Options, PutOptions, Store};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, UNIX_EPOCH},
};

/// Options small enough that a test meets every mechanism.
pub fn small_options(dir: &Path) -> Options {
    Options {
        segment_bytes: 256 << 10,
        log_capacity_bytes: Some(4 << 20),
        size_threshold_bytes: 16 << 10,
        split_threshold_bytes: 256 << 10,
        cache_bytes: 1 << 20,
        ..Options::new(dir)
    }
    .tuned(|tuning| {
        tuning.space_slack_bytes = 0;
        tuning.memtable_bytes = 64 << 10;
        tuning.overlay_bytes = 1 << 20;
    })
}

pub fn open(dir: &Path) -> Store {
    Store::open(small_options(dir)).unwrap()
}

/// Values that are written together come into frames together.
pub fn buffered() -> PutOptions {
    PutOptions {
        durability: Durability::Buffered,
        ..PutOptions::default()
    }
}

/// A clock that stands still until it is set.
#[derive(Clone)]
pub struct Hands(Arc<AtomicU64>);

impl Hands {
    pub fn new() -> Self {
        Self(Arc::new(AtomicU64::new(1_700_000_000_000)))
    }

    pub fn clock(&self) -> Clock {
        let ms = Arc::clone(&self.0);
        Clock::new(move || UNIX_EPOCH + Duration::from_millis(ms.load(Ordering::SeqCst)))
    }

    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_millis() as u64, Ordering::SeqCst);
    }

    pub fn turn_back(&self, by: Duration) {
        self.0.fetch_sub(by.as_millis() as u64, Ordering::SeqCst);
    }
}

/// Small options with this clock, and no rest between walks for expired objects.
pub fn timed_options(dir: &Path, hands: &Hands) -> Options {
    Options {
        clock: hands.clock(),
        ..small_options(dir)
    }
    .tuned(|tuning| tuning.expire_interval = Duration::ZERO)
}

/// Waits for something that the background does.
pub fn eventually(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "{what} does not come about");
        std::thread::sleep(Duration::from_millis(5));
    }
}
