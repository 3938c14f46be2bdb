//! Snapshots that grow too old, and what the statistics say of those that hold something back.

use crate::{common::bytes, contents, fill, options};
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};
use terrace::{Batch, Durability, Error, Options, ScanRange, Snapshot, Store};

/// Writes until something is held back, or for some seconds.
fn write_until(store: &Store, done: impl Fn() -> bool) {
    let start = Instant::now();
    let mut round = 0;
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "{:#?}", store.stats());
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
        if (stats.held_segment_bytes, stats.held_block_bytes) == (0, 0) {
            assert_eq!((stats.open, stats.oldest_version, stats.oldest_age), (0, None, None));
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{stats:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_snapshot_that_is_too_old_says_so_and_holds_nothing_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(Options {
        snapshot_max_age: Some(Duration::from_millis(300)),
        ..options(dir.path())
    })
    .unwrap();
    fill(&store, "k/", 200);
    let seen = contents(&store);
    let snapshot = store.snapshot().unwrap();
    let mut scan = snapshot.scan(ScanRange::all()).unwrap();
    let item = scan.next().unwrap().unwrap();
    let mut stream = snapshot.reader("k/0003").unwrap().unwrap();
    let (first, rest) = seen["k/0003"].split_at(1_000);
    let mut start = vec![0; first.len()];
    std::io::Read::read_exact(&mut stream, &mut start).unwrap();
    assert_eq!(start, first);
    // Enough to stop all writers if it still counted.
    let recycled = store.stats().log.segments_reclaimed;
    write_until(&store, || store.stats().log.segments_reclaimed > recycled + 30);
    let too_old = |error: Error| {
        assert!(matches!(error, Error::SnapshotTooOld { .. }), "{error}");
        assert!(error.to_string().contains("take a new one"), "{error}");
    };
    too_old(snapshot.get("k/0003").unwrap_err());
    too_old(snapshot.head("k/0003").unwrap_err());
    too_old(snapshot.reader("k/0003").unwrap_err());
    too_old(snapshot.scan(ScanRange::all()).unwrap_err());
    too_old(item.value().unwrap_err());
    too_old(scan.next().unwrap().unwrap_err());
    assert!(scan.next().is_none() && scan.next_back().is_none(), "the scan is over");
    // A stream that was open has what it reads pinned.
    let mut end = Vec::new();
    std::io::Read::read_to_end(&mut stream, &mut end).unwrap();
    assert_eq!(end, rest);
    assert!(store.stats().snapshots.expired >= 1);
    // New ones are read as ever, and what the store takes for itself does not age.
    assert_eq!(contents(&store).len(), seen.len());
    assert_eq!(store.verify().unwrap().errors, [""; 0]);
}

const KEYS: u64 = 24;

/// Tiny, small and large values that say which round they are of.
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

/// Reads by a snapshot until it is too old: everything it sees is of one round.
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

/// Each batch writes all keys anew, and the ring is so small that what a snapshot sees is gone soon
/// after it is too old.
#[test]
fn what_is_read_by_a_snapshot_is_right_or_refused_at_whatever_moment_it_grows_too_old() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(Options {
        snapshot_max_age: Some(Duration::from_millis(15)),
        flash_capacity_bytes: 3 << 20,
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
    let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    let refused: u64 = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut refused = 0;
                    while !stop.load(Ordering::Relaxed) {
                        match read_until_too_old(&store.snapshot().unwrap(), &reads) {
                            Error::SnapshotTooOld { .. } => refused += 1,
                            error => panic!("{error}"),
                        }
                    }
                    refused
                })
            })
            .collect();
        let start = Instant::now();
        for round in 1.. {
            write(round);
            if start.elapsed() > Duration::from_secs(4) || readers.iter().any(|reader| reader.is_finished()) {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        readers.into_iter().map(|reader| reader.join().unwrap()).sum()
    });
    let stats = store.stats();
    assert!(
        refused > 20 && reads.load(Ordering::Relaxed) > 500,
        "{refused} {reads:?}"
    );
    assert!(stats.log.segments_reclaimed > 5, "{stats:?}");
    assert_eq!(store.verify().unwrap().errors, [""; 0]);
}
