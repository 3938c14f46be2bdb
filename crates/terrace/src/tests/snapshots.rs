//! Snapshots that grow too old.

use super::{bytes, small_options};
use crate::{Durability, Error, Options, PutOptions, ScanRange, Store};
use std::{collections::BTreeMap, io::Read as _, time::Duration};

const MAX_AGE: Duration = Duration::from_secs(3600);

/// Puts small, tiny and large values, `count` in all.
fn fill(store: &Store, count: u64) {
    let buffered = PutOptions {
        durability: Durability::Buffered,
        ..PutOptions::default()
    };
    for n in 0..count {
        let length = [40, 3_000, 9_000, 40_000][n as usize % 4];
        let value = bytes(n + length as u64, length);
        store.put_with(format!("k/{n:04}"), value, &buffered).unwrap();
    }
}

fn contents(store: &Store) -> BTreeMap<String, Vec<u8>> {
    let items = store.scan(ScanRange::all()).unwrap().map(|item| item.unwrap());
    items
        .map(|item| {
            (
                String::from_utf8(item.key.to_vec()).unwrap(),
                item.value().unwrap().to_vec(),
            )
        })
        .collect()
}

#[test]
fn a_snapshot_that_is_too_old_says_so_and_holds_nothing_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(Options {
        snapshot_max_age: Some(MAX_AGE),
        cache_bytes: 0,
        ..small_options(dir.path())
    })
    .unwrap();
    fill(&store, 200);
    let seen = contents(&store);
    let snapshot = store.snapshot().unwrap();
    let mut scan = snapshot.scan(ScanRange::all()).unwrap();
    let item = scan.next().unwrap().unwrap();
    let mut stream = snapshot.reader("k/0003").unwrap().unwrap();
    let (first, rest) = seen["k/0003"].split_at(1_000);
    let mut start = vec![0; first.len()];
    stream.read_exact(&mut start).unwrap();
    assert_eq!(start, first);
    let snapshots = &store.engine().snapshots;
    snapshots.look_older_by(MAX_AGE.as_secs() + 1);
    // Enough to stop all writers if it still counted.
    let recycled = store.stats().log.segments_reclaimed;
    let mut rounds = 0;
    while store.stats().log.segments_reclaimed <= recycled + 30 {
        fill(&store, 60);
        store.flush().unwrap();
        rounds += 1;
        assert!(rounds < 1_000, "{:#?}", store.stats());
    }
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
    stream.read_to_end(&mut end).unwrap();
    assert_eq!(end, rest);
    assert!(store.stats().snapshots.expired >= 1);
    // What the store takes for itself does not age, and new ones are read as ever.
    assert_eq!(store.verify().unwrap().errors, [""; 0]);
    snapshots.look_older_by(0);
    assert_eq!(contents(&store).len(), seen.len());
}
