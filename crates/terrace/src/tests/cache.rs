//! What the cache in RAM has, while values are overwritten and moved.

use super::{bytes, open, small_options};
use crate::{Durability, Options, PutOptions, Store, ordered_index::Home};
use std::{fs::OpenOptions, os::unix::fs::FileExt};

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

/// Writes as much else as RAM has room for: nothing of what was written before is recent then.
fn put_others(store: &Store, round: u64) {
    let others = store.stats().cache.capacity_bytes as usize / VALUE_BYTES + 2;
    for number in 0..others as u64 {
        let value = bytes(1_000 * round + number, VALUE_BYTES);
        store.put(format!("other {round} {number}"), value).unwrap();
    }
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

/// Where the values are, by names that are given once: an address of the log is used again.
fn places(store: &Store) -> Vec<(u64, u64)> {
    let place = |home| match home {
        Home::Flash { address } => store.engine().log.segments.place(address).unwrap(),
        Home::Block(extent) => (u64::MAX - extent.block, extent.offset),
        Home::Inline(_) => panic!("they are longer"),
    };
    homes(store).into_iter().map(place).collect()
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
    put_others(&store, 0);
    assert_eq!(read_all(&store, 0), 0, "they have not been read yet");
    let bytes_before = store.engine().cache.bytes();
    for round in 1..5 {
        put_all(&store, round);
        put_others(&store, round);
        assert_eq!(read_all(&store, round), COUNT);
    }
    assert_eq!(
        store.engine().cache.bytes(),
        bytes_before,
        "what was overwritten is out"
    );
}

#[test]
fn what_was_just_written_is_read_from_ram() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for round in 0..3 {
        put_all(&store, round);
        assert_eq!(read_all(&store, round), COUNT);
    }
    let snapshot = store.snapshot().unwrap();
    for number in 0..COUNT {
        let found = snapshot.get(key(number)).unwrap().unwrap();
        assert!(found.value == bytes(2 * COUNT + number, VALUE_BYTES), "{number}");
    }
    assert_eq!(store.stats().reads.flash_reads, 0);
    let held = store.stats().cache;
    assert!(held.bytes > COUNT * VALUE_BYTES as u64 && held.bytes <= held.capacity_bytes);
    assert_eq!(held.capacity_bytes, small_options(dir.path()).cache_bytes);
}

/// A server gives RAM back while it runs, and takes it again.
#[test]
fn a_running_store_takes_another_size_of_its_cache() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    put_all(&store, 0);
    put_others(&store, 0);
    read_all(&store, 0);
    read_all(&store, 0);
    let held = store.stats().cache;
    assert!(held.bytes > held.capacity_bytes / 2, "{held:?}");
    let smaller = held.capacity_bytes / 8;
    store.set_cache_bytes(smaller);
    let left = store.stats().cache;
    assert_eq!(left.capacity_bytes, smaller);
    assert!(left.bytes <= smaller, "what is too much has left: {left:?}");
    read_all(&store, 0);
    put_others(&store, 1);
    let left = store.stats().cache;
    assert!(left.bytes <= smaller, "and does not come back: {left:?}");
    store.set_cache_bytes(held.capacity_bytes);
    read_all(&store, 0);
    assert_eq!(read_all(&store, 0), COUNT, "what is taken again is used");
    let grown = store.stats().cache;
    assert!(
        grown.bytes > smaller && grown.bytes <= grown.capacity_bytes,
        "{grown:?}"
    );
}

#[test]
fn a_cache_that_is_off_stays_off() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(Options {
        cache_bytes: 0,
        ..small_options(dir.path())
    })
    .unwrap();
    store.set_cache_bytes(1 << 20);
    put_all(&store, 0);
    read_all(&store, 0);
    let held = store.stats().cache;
    assert_eq!((held.bytes, held.capacity_bytes), (0, 0));
}

/// Frames have what the cache does not use.
#[test]
fn a_store_that_fits_into_ram_is_read_from_there_even_the_first_time() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for round in 0..5 {
        put_others(&store, round);
    }
    let name = |number| format!("fitting {number}");
    let fitting = 0..store.stats().cache.capacity_bytes * 9 / 10 / VALUE_BYTES as u64;
    for number in fitting.clone() {
        store.put(name(number), bytes(number, VALUE_BYTES)).unwrap();
    }
    store.flush().unwrap();
    for number in fitting {
        let found = store.get(name(number)).unwrap().unwrap();
        assert!(found.value == bytes(number, VALUE_BYTES), "{number}");
    }
    assert_eq!(store.stats().reads.flash_reads, 0);
    assert_eq!(store.engine().cache.bytes(), 0);
}

#[test]
fn what_was_read_while_it_was_new_stays_in_ram() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    put_all(&store, 0);
    for number in 0..COUNT / 2 {
        store.get(key(number)).unwrap().unwrap();
    }
    assert_eq!(store.engine().cache.bytes(), 0, "not twice");
    put_others(&store, 0);
    assert_eq!(read_all(&store, 0), COUNT / 2, "and the others are read from flash");
}

#[test]
fn what_is_deleted_while_it_is_new_does_not_go_to_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    put_all(&store, 0);
    read_all(&store, 0);
    for number in 0..COUNT {
        store.delete(key(number)).unwrap();
    }
    store.flush().unwrap();
    put_others(&store, 0);
    assert_eq!(store.engine().cache.bytes(), 0);
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
    put_others(&store, 0);
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
    check_that_moves_keep_what_is_read(1 << 20, "in the cache");
    check_that_moves_keep_what_is_read(16 << 20, "in a frame");
}

fn check_that_moves_keep_what_is_read(cache_bytes: u64, where_it_is: &str) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(Options {
        cache_bytes,
        ..small_options(dir.path())
    })
    .unwrap();
    put_all(&store, 0);
    if where_it_is == "in the cache" {
        put_others(&store, 0);
    }
    for _ in 0..2 {
        read_all(&store, 0);
    }
    let before = places(&store);
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
    let after = places(&store);
    assert!(
        before.iter().zip(&after).all(|(before, after)| before != after),
        "{after:?}"
    );
    assert_eq!(read_all(&store, 0), COUNT, "{where_it_is}: {after:?}");
}

#[test]
fn verifying_asks_the_device_and_not_ram() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    put_all(&store, 0);
    read_all(&store, 0);
    let report = store.verify().unwrap();
    assert_eq!((report.objects, report.errors.len()), (COUNT, 0), "{:?}", report.errors);
    let Home::Flash { address } = homes(&store)[3] else {
        panic!("{:?}", homes(&store)[3]);
    };
    let segment_bytes = small_options(dir.path()).segment_bytes;
    let path = dir
        .path()
        .join(format!("flash/segments/{:08x}.seg", address / segment_bytes));
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(b"damage", address % segment_bytes + 1_000).unwrap();
    file.sync_all().unwrap();
    assert_eq!(read_all(&store, 0), COUNT, "RAM has them");
    let report = store.verify().unwrap();
    assert!(
        report.errors.iter().any(|error| error.contains("k03")),
        "{:?}",
        report.errors
    );
}
