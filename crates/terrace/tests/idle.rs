//! Wake-ups of an idle store. In a process of its own, since all of its threads are counted.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod common;

use common::bytes;
use std::{
    fs,
    time::{Duration, Instant},
};
use terrace::{Durability, Options, ScanRange, Store};

/// Most wake-ups per second of an idle store.
const WAKE_UPS_MAX: u64 = 5;
const WINDOW: Duration = Duration::from_secs(3);

/// Wake-ups of the store's threads so far. Threads that have ended are not included, so it may
/// decrease.
fn wake_ups() -> u64 {
    let tasks = fs::read_dir("/proc/self/task")
        .unwrap()
        .map(|task| task.unwrap().path());
    let own = tasks.filter(|task| fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("terrace-")));
    let switches = |status: String| {
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"));
        line.unwrap().split_whitespace().last().unwrap().parse::<u64>().unwrap()
    };
    own.filter_map(|task| fs::read_to_string(task.join("status")).ok())
        .map(switches)
        .sum()
}

/// Returns once a whole window had few wake-ups.
fn wait_for_rest() {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let before = wake_ups();
        std::thread::sleep(WINDOW);
        let woken = wake_ups().saturating_sub(before);
        if woken <= WAKE_UPS_MAX * WINDOW.as_secs() {
            return;
        }
        assert!(Instant::now() < until, "{woken} wake-ups in {WINDOW:?}");
    }
}

/// Regression: each of thirteen threads polled ten to twenty times a second.
#[test]
fn an_idle_store_sleeps_and_wakes_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        segment_bytes: 1 << 20,
        log_capacity_bytes: Some(16 << 20),
        split_threshold_bytes: 1 << 20,
        ..Options::new(dir.path())
    };
    let store = Store::open(options).unwrap();
    for n in 0..60 {
        let length = [40, 3_000, 300_000][n as usize % 3];
        store.put(format!("titles/{n:03}"), bytes(n, length)).unwrap();
    }
    for n in 0..60 {
        store.get(format!("titles/{n:03}")).unwrap().unwrap();
    }
    store.delete("titles/005").unwrap();
    wait_for_rest();

    // The applier, the flusher, the index's threads and the expirer are woken by events.
    let start = Instant::now();
    store.put("titles/100", bytes(1, 3_000)).unwrap();
    store
        .delete_range(ScanRange::prefix("titles/00"), Durability::Sync)
        .unwrap();
    store.flush().unwrap();
    while store.stats().expire.ranges_outstanding > 0 {
        assert!(start.elapsed() < Duration::from_secs(4), "no thread was woken");
        std::thread::sleep(Duration::from_millis(5));
    }
    wait_for_rest();
    let start = Instant::now();
    store.close().unwrap();
    assert!(start.elapsed() < Duration::from_secs(4), "a thread slept on");
}
