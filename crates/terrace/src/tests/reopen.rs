//! What an open finds of the store before: which segments may be written again.

use super::{bytes, open};
use crate::{Durability, PutOptions, Store};
use std::time::{Duration, Instant};

const KEYS: u64 = 300;

/// Overwrites until the ring has gone round a few times.
fn overwrite(store: &Store, seed: u64) {
    let buffered = PutOptions {
        durability: Durability::Buffered,
        ..PutOptions::default()
    };
    for n in 0..4_000_u64 {
        let value = bytes(n + seed, 4_000);
        store.put_with(format!("{:03}", n % KEYS), value, &buffered).unwrap();
    }
}

#[test]
fn recycled_segments_are_free_again_after_an_open() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    overwrite(&store, 0);
    assert!(store.stats().log.segments_recycled > 16, "the ring went round");
    // Until recycling rests; the last commit then has the index persist a mark that knows of all it did.
    let mut last = None;
    let deadline = Instant::now() + Duration::from_secs(20);
    let rested = loop {
        std::thread::sleep(Duration::from_millis(500));
        let log = store.stats().log;
        if last == Some((log.segments_recycled, log.segments_free)) {
            break log.segments_free;
        }
        assert!(Instant::now() < deadline, "recycling never rests");
        last = Some((log.segments_recycled, log.segments_free));
    };
    assert!(rested >= 4, "{rested} segments are free");
    store.put("last", "one").unwrap();
    store.close().unwrap();
    drop(store);
    let store = open(dir.path());
    let log = store.stats().log;
    assert_eq!(log.segments_recycled, 0, "there was no need to");
    assert!(log.segments_free >= rested, "{rested} were free, now {log:?}");
    drop(store);

    // A list that is out of date by more than a round must free nothing that is in use.
    for round in 1..4 {
        let store = open(dir.path());
        overwrite(&store, round);
        drop(store);
        let store = open(dir.path());
        for n in 4_000 - KEYS..4_000 {
            let key = format!("{:03}", n % KEYS);
            assert_eq!(
                store.get(&key).unwrap().unwrap().value,
                bytes(n + round, 4_000),
                "{key}"
            );
        }
        assert_eq!(store.verify().unwrap().errors, Vec::<String>::new());
    }
}
