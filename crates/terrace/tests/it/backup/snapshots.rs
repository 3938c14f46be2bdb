//! Expired snapshots, and statistics of snapshots that retain segments.

use super::{PATIENCE, fill, options};
use crate::common::bytes;
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};
use terrace::{Batch, Durability, Error, Options, ScanRange, Snapshot, Store};

/// Writes until `done`, or for some seconds.
fn write_until(store: &Store, done: impl Fn() -> bool) {
    let start = Instant::now();
    let mut round = 0;
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{:#?}", store.stats());
        fill(store, "k/", 60);
        store.flush().unwrap();
        round += 1;
        assert!(round < 1_000);
    }
}

#[test]
fn what_a_snapshot_holds_back_shows_until_it_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path())).unwrap();
    fill(&store, "k/", 200);
    let snapshot = store.snapshot().unwrap();
    let expected = snapshot.get("k/0003").unwrap();
    let stats = store.stats().snapshots;
    assert_eq!((stats.open, stats.oldest_version), (1, Some(snapshot.version())));
    assert_eq!((stats.held_segment_bytes, stats.held_block_bytes), (0, 0));
    write_until(&store, || {
        let stats = store.stats().snapshots;
        stats.held_segment_bytes > 0 && stats.held_block_bytes > 0
    });
    let stats = store.stats().snapshots;
    assert!(stats.oldest_age.unwrap() > Duration::ZERO);
    assert_eq!(snapshot.get("k/0003").unwrap(), expected, "it still sees what it saw");
    drop(snapshot);
    let start = Instant::now();
    loop {
        let stats = store.stats().snapshots;
        // The store takes snapshots itself while it walks the index.
        let is_gone = (stats.open, stats.oldest_version, stats.oldest_age) == (0, None, None);
        if is_gone && (stats.held_segment_bytes, stats.held_block_bytes) == (0, 0) {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "{stats:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Regression: segments that wait only for a snapshot are persisted already, but the index was
/// flushed for them five times a second, and at each turn of recycling where segments were scarce,
/// as long as anything was written.
#[test]
fn what_a_snapshot_holds_back_needs_no_flushes() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(Options {
        log_capacity_bytes: Some(12 << 20),
        ..options(dir.path())
    })
    .unwrap();
    fill(&store, "k/", 60);
    let snapshot = store.snapshot().unwrap();
    write_until(&store, || store.stats().snapshots.held_segment_bytes > 0);
    store.flush().unwrap();
    let before = store.stats().index.flushes;
    for round in 0..100 {
        store.put(format!("trickle/{round}"), b"a value").unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
    // One for segments drained meanwhile, and one that was already requested.
    let flushes = store.stats().index.flushes - before;
    assert!(store.stats().snapshots.held_segment_bytes > 0);
    assert!(flushes <= 2, "{flushes} flushes of the index in a second");
    drop(snapshot);
}

const KEYS: u64 = 24;

/// Tiny, small and large values that encode their round.
fn value(key: u64, round: u64) -> Vec<u8> {
    let length = [40, 2_000, 7_000, 30_000][(key % 4) as usize];
    let mut value = bytes(key << 40 | round, length);
    value[..8].copy_from_slice(&round.to_le_bytes());
    value
}

fn round_of(key: u64, found: &[u8]) -> u64 {
    let round = u64::from_le_bytes(found[..8].try_into().unwrap());
    assert!(found == value(key, round), "key {key}: not what round {round} wrote");
    round
}

/// Reads through a snapshot until it expires: all values must be of one round.
fn read_until_too_old(snapshot: &Snapshot, reads: &AtomicU64) -> Error {
    let mut rounds = None;
    let mut check = |key: u64, found: &[u8]| {
        let round = round_of(key, found);
        assert_eq!(*rounds.get_or_insert(round), round, "key {key} of another round");
        reads.fetch_add(1, Ordering::Relaxed);
    };
    let mut all = || -> terrace::Result<()> {
        for key in 0..KEYS {
            let found = snapshot.get(format!("{key:02}"))?.expect("it was always there");
            check(key, &found.value);
        }
        let scan = snapshot.scan(ScanRange::all())?;
        for (key, item) in (0..KEYS).zip(scan) {
            check(key, &item?.value()?);
        }
        Ok(())
    };
    loop {
        if let Err(error) = all() {
            return error;
        }
    }
}

/// Each batch overwrites all keys, and the ring is so small that what a snapshot sees is gone soon
/// after it expires.
#[test]
fn what_is_read_by_a_snapshot_is_right_or_refused_at_whatever_moment_it_grows_too_old() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(Options {
        snapshot_max_age: Some(Duration::from_millis(15)),
        log_capacity_bytes: Some(3 << 20),
        ..options(dir.path())
    })
    .unwrap();
    let write = |round: u64| {
        let mut batch = Batch::new();
        for key in 0..KEYS {
            batch.put(format!("{key:02}"), value(key, round));
        }
        store.write(batch, Durability::Buffered).unwrap();
    };
    write(0);
    let (stop, reads, refused) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    // How often depends on the machine.
    let is_enough = || {
        let counts = [&refused, &reads].map(|count| count.load(Ordering::Relaxed));
        counts[0] > 20 && counts[1] > 500 && store.stats().log.segments_reclaimed > 5
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        match read_until_too_old(&store.snapshot().unwrap(), &reads) {
                            Error::SnapshotTooOld { .. } => refused.fetch_add(1, Ordering::Relaxed),
                            error => panic!("{error}"),
                        };
                    }
                })
            })
            .collect();
        let start = Instant::now();
        for round in 1.. {
            write(round);
            let is_over = start.elapsed() > Duration::from_secs(4) && is_enough();
            if is_over || start.elapsed() > PATIENCE || readers.iter().any(|reader| reader.is_finished()) {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    assert!(is_enough(), "{refused:?} {reads:?} {:?}", store.stats());
    assert_eq!(store.verify().unwrap().errors, [""; 0]);
}
