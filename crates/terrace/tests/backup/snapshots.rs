//! Snapshots that grow too old, and what the statistics say of those that hold something back.

use crate::{contents, fill, options};
use std::time::{Duration, Instant};
use terrace::{Error, Options, ScanRange, Store};

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
    let recycled = store.stats().log.segments_recycled;
    write_until(&store, || store.stats().log.segments_recycled > recycled + 30);
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
