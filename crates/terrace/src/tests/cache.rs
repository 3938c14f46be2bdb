//! What the cache in RAM has, while values are overwritten and moved.

use super::{bytes, open};
use crate::{Durability, PutOptions, Store, index::Home};

const VALUE_BYTES: usize = 6_000;
const COUNT: u64 = 20;

fn key(number: u64) -> String {
    format!("k{number:02}")
}

fn put_all(store: &Store, round: u64) {
    for number in 0..COUNT {
        store
            .put(key(number), bytes(round * COUNT + number, VALUE_BYTES))
            .unwrap();
    }
    // Out of the overlay.
    store.flush().unwrap();
}

/// Reads everything, and says how many of the values the cache had.
fn read_all(store: &Store, round: u64) -> u64 {
    let before = store.stats().reads.cache_hits;
    for number in 0..COUNT {
        let found = store.get(key(number)).unwrap().unwrap();
        assert!(found.value == bytes(round * COUNT + number, VALUE_BYTES), "{number}");
    }
    store.stats().reads.cache_hits - before
}

fn homes(store: &Store) -> Vec<Home> {
    let home = |number| store.engine().index.get(key(number).as_bytes()).unwrap().unwrap().home;
    (0..COUNT).map(home).collect()
}

#[test]
fn what_is_read_stays_in_ram_when_it_is_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    put_all(&store, 0);
    assert_eq!(read_all(&store, 0), 0, "nobody has read them yet");
    let bytes_before = store.engine().cache.bytes();
    for round in 1..5 {
        put_all(&store, round);
        assert_eq!(read_all(&store, round), COUNT);
    }
    assert_eq!(
        store.engine().cache.bytes(),
        bytes_before,
        "what was overwritten is out"
    );
}

#[test]
fn what_nobody_reads_stays_out_of_ram() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for round in 0..3 {
        put_all(&store, round);
    }
    assert_eq!(store.engine().cache.bytes(), 0);
}

#[test]
fn what_is_deleted_or_put_elsewhere_leaves_ram() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    put_all(&store, 0);
    read_all(&store, 0);
    for number in 0..COUNT / 2 {
        store.delete(key(number)).unwrap();
    }
    for number in COUNT / 2..COUNT {
        store.put(key(number), bytes(number, 40 << 10)).unwrap();
    }
    store.flush().unwrap();
    assert_eq!(store.engine().cache.bytes(), 0);
}

#[test]
fn what_is_read_stays_in_ram_when_it_is_moved() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    put_all(&store, 0);
    for _ in 0..2 {
        read_all(&store, 0);
    }
    let before = homes(&store);
    let buffered = PutOptions {
        durability: Durability::Buffered,
        ..PutOptions::default()
    };
    // Three times the log.
    for number in 0..2_000 {
        let value = bytes(number, VALUE_BYTES);
        store.put_with(format!("cold{number:04}"), value, &buffered).unwrap();
    }
    store.flush().unwrap();
    let after = homes(&store);
    assert!(
        before.iter().zip(&after).all(|(before, after)| before != after),
        "{after:?}"
    );
    assert_eq!(read_all(&store, 0), COUNT, "{after:?}");
}
