//! What an open finds of the store before: which segments may be written again.

use super::{bytes, open, small_options};
use crate::{Durability, Expiry, PutOptions, ScanRange, Store};
use std::{
    path::Path,
    time::{Duration, Instant},
};

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
    assert!(store.stats().log.segments_reclaimed > 16, "the ring went round");
    // Until recycling rests; the last commit then has the index persist a mark that knows of all it
    // did.
    let mut last = None;
    let deadline = Instant::now() + Duration::from_secs(60);
    let rested = loop {
        std::thread::sleep(Duration::from_millis(500));
        let log = store.stats().log;
        if last == Some((log.segments_reclaimed, log.segments_free)) {
            break log.segments_free;
        }
        assert!(Instant::now() < deadline, "recycling never rests");
        last = Some((log.segments_reclaimed, log.segments_free));
    };
    assert!(rested >= 4, "{rested} segments are free");
    store.put("last", "one").unwrap();
    store.close().unwrap();
    drop(store);
    let store = open(dir.path());
    let log = store.stats().log;
    assert_eq!(log.segments_reclaimed, 0, "there was no need to");
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

/// The format version in a tier's manifest.
fn format_version(manifest: &Path) -> u32 {
    let bytes = std::fs::read(manifest).unwrap();
    u32::from_le_bytes(bytes[12..16].try_into().unwrap())
}

#[test]
fn a_store_of_format_1_is_read_and_then_raised() {
    let dir = tempfile::tempdir().unwrap();
    let manifests = ["flash", "large"].map(|tier| dir.path().join(tier).join("TERRACE"));
    let store = open(dir.path());
    for (n, size) in [10, 500, 20_000, 300_000].into_iter().enumerate() {
        store.put(format!("{n}"), bytes(n as u64, size)).unwrap();
    }
    store.close().unwrap();
    drop(store);
    // A repair's mark has nothing in it that format 1 did not have, and nothing expires here.
    Store::repair(small_options(dir.path())).unwrap();
    for manifest in &manifests {
        let mut bytes = std::fs::read(manifest).unwrap();
        assert_eq!(bytes[12], 3);
        bytes[12] = 1;
        let checksum = crc32c::crc32c(&bytes[12..]);
        bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
        std::fs::write(manifest, bytes).unwrap();
    }
    let looking = crate::Options {
        read_only: true,
        ..small_options(dir.path())
    };
    let count = |store: &Store| {
        store
            .scan(ScanRange::all())
            .unwrap()
            .filter(|item| item.is_ok())
            .count()
    };
    assert_eq!(count(&Store::open(looking).unwrap()), 4);
    assert_eq!(manifests.each_ref().map(|path| format_version(path)), [1, 1]);
    let store = open(dir.path());
    assert_eq!(count(&store), 4);
    assert_eq!(manifests.each_ref().map(|path| format_version(path)), [3, 3]);
    let brief = PutOptions {
        expiry: Expiry::After(Duration::from_secs(3600)),
        ..PutOptions::default()
    };
    store.put_with("brief", "v", &brief).unwrap();
    store.delete_prefix("0", Durability::Sync).unwrap();
    store.close().unwrap();
    drop(store);
    let store = open(dir.path());
    assert_eq!(count(&store), 4);
    assert!(store.head("brief").unwrap().unwrap().expires_at.is_some());
    assert_eq!(store.verify().unwrap().errors, [""; 0]);
}
