//! Values that scans have paid for lie in the order of their keys, short ones in their entries.

use super::{buffered, bytes, eventually, small_options};
use crate::{HomeKind, Options, ScanRange, Stats, Store, ordered_index::Entry};
use std::{cell::Cell, path::Path};

const OBJECTS: u64 = 600;

/// Nothing is in RAM once it is written and applied.
fn options(dir: &Path) -> Options {
    Options {
        cache_bytes: 0,
        log_capacity_bytes: Some(16 << 20),
        ..small_options(dir)
    }
    .tuned(|tuning| tuning.order_bytes_per_second = 1 << 30)
}

fn key(number: u64) -> String {
    format!("k/{number:04}")
}

fn put(store: &Store, number: u64, round: u64, length: usize) {
    store
        .put_with(key(number), bytes(round << 32 | number, length), &buffered())
        .unwrap();
}

/// A store whose values are in the log in no order, nothing of them in RAM.
fn shuffled(dir: &Path, length: usize) -> Store {
    let store = Store::open(options(dir)).unwrap();
    (0..OBJECTS).for_each(|n| put(&store, n * 251 % OBJECTS, 0, length));
    store.flush().unwrap();
    store
}

/// Scans everything in batches as callers do, and checks each value against its round.
fn scan(store: &Store, length: usize, round_of: impl Fn(u64) -> u64) {
    let mut scan = store.scan(ScanRange::all()).unwrap();
    let mut next = 0;
    loop {
        let found = scan.next_values(50).unwrap();
        if found.is_empty() {
            break;
        }
        for (item, value) in found {
            assert_eq!(item.key, key(next));
            assert_eq!(item.info.home, HomeKind::Flash);
            assert!(value.unwrap() == bytes(round_of(next) << 32 | next, length), "{next}");
            next += 1;
        }
    }
    assert_eq!(next, OBJECTS);
}

/// What a scan of everything reads of the log.
fn reads_of(store: &Store, scan: impl FnOnce()) -> u64 {
    let before = store.stats().reads.flash_reads;
    scan();
    store.stats().reads.flash_reads - before
}

fn entry(store: &Store, number: u64) -> Entry {
    store.engine().index.get(key(number).as_bytes()).unwrap().unwrap()
}

fn ordered(store: &Store) -> u64 {
    let order = store.stats().scan_order;
    order.moved + order.copied
}

/// All that was committed is applied. What was taken from the queue last counts a moment later.
fn settle(store: &Store) {
    let engine = store.engine();
    store.flush().unwrap();
    eventually("nothing is in flight", || {
        engine.scan_order.queue.is_idle(engine.log.applied_seq())
    });
    store.flush().unwrap();
}

fn assert_sound(store: &Store) {
    let report = store.verify().unwrap();
    assert!(report.errors.is_empty(), "{:#?}", report.errors);
}

#[test]
fn short_values_that_were_scanned_are_read_without_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let store = shuffled(dir.path(), 100);
    assert!(reads_of(&store, || scan(&store, 100, |_| 0)) > 0);
    eventually("every value is copied", || {
        scan(&store, 100, |_| 0);
        (0..OBJECTS).all(|number| entry(&store, number).copy.is_some())
    });
    settle(&store);
    assert_eq!(reads_of(&store, || scan(&store, 100, |_| 0)), 0);
    let bought = ordered(&store);
    (0..20).for_each(|_| scan(&store, 100, |_| 0));
    settle(&store);
    assert_eq!(ordered(&store), bought, "what is in order is not paid for");
    // It is a home in the log all the same: gets and overwrites go there.
    assert_eq!(store.stats().flash.objects, OBJECTS);
    put(&store, 7, 1, 100);
    store.flush().unwrap();
    assert!(entry(&store, 7).copy.is_none(), "an overwrite writes no more than ever");
    scan(&store, 100, |number| u64::from(number == 7));
    assert_sound(&store);
    store.close().unwrap();
    drop(store);
    let store = Store::open(options(dir.path())).unwrap();
    assert!(entry(&store, 8).copy.is_some());
    scan(&store, 100, |number| u64::from(number == 7));
    assert_sound(&store);
}

#[test]
fn longer_values_that_were_scanned_are_read_together() {
    let dir = tempfile::tempdir().unwrap();
    let store = shuffled(dir.path(), 4_000);
    // So far from each other that each is a read by itself.
    let apart = reads_of(&store, || scan(&store, 4_000, |_| 0));
    assert!(apart > OBJECTS / 4, "{apart}");
    let scans = OBJECTS / 50;
    eventually("scans are in few reads", || {
        settle(&store);
        // Of each scan two reads, since what lies together has an end.
        reads_of(&store, || scan(&store, 4_000, |_| 0)) <= 3 * scans
    });
    let stats = store.stats();
    assert_eq!(stats.scan_order.copied, 0, "they are too long for their entries");
    assert_eq!(stats.written.flash_ordered_bytes, stats.scan_order.log_bytes);
    assert_sound(&store);
}

/// A scan that began in what was in order and went on behind it had all of it written again: of
/// scans of 50 pairs from random keys twice as much as there is.
#[test]
fn what_lies_together_is_not_written_again_for_its_neighbours() {
    let dir = tempfile::tempdir().unwrap();
    let store = shuffled(dir.path(), 4_000);
    let scan = |from, to| {
        let mut scan = store.scan(ScanRange::range(key(from)..key(to))).unwrap();
        scan.visit_values(1_000, |_, value| assert_eq!(value.unwrap().len(), 4_000))
            .unwrap();
        settle(&store);
    };
    for (from, to, expected) in [(0, 100, 100), (50, 150, 150), (90, 110, 150), (20, 160, 160)] {
        scan(from, to);
        eventually("they are in order", || ordered(&store) >= expected);
        assert_eq!(ordered(&store), expected, "{from} to {to}");
    }
    // A value in between that was overwritten lies alone, but to read one costs less than order.
    put(&store, 70, 1, 4_000);
    store.flush().unwrap();
    scan(20, 120);
    assert_eq!(ordered(&store), 160);
    assert_sound(&store);
}

fn paid_and_moved(stats: &Stats) -> (u64, u64, u64) {
    let order = &stats.scan_order;
    let moved = order.moved + order.copied + order.sweeps;
    (order.paid_bytes, moved, stats.written.flash_ordered_bytes)
}

#[test]
fn without_scans_of_values_nothing_is_paid_and_nothing_written() {
    let dir = tempfile::tempdir().unwrap();
    let store = shuffled(dir.path(), 100);
    for number in 0..OBJECTS {
        store.get(key(number)).unwrap().unwrap();
        put(&store, number, 1, 100);
    }
    // Keys alone, and values that are asked for one by one.
    assert_eq!(store.scan(ScanRange::all()).unwrap().count() as u64, OBJECTS);
    for item in store.scan(ScanRange::all()).unwrap() {
        item.unwrap().value().unwrap();
    }
    settle(&store);
    assert_eq!(paid_and_moved(&store.stats()), (0, 0, 0));
}

/// Scans of what RAM answers for bought, too: in a store that was all in RAM a scan of 100 took
/// three times as long for as long as it was put in order, and no less afterwards.
#[test]
fn values_that_ram_has_are_not_put_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let cached = Options {
        cache_bytes: 16 << 20,
        ..options(dir.path())
    };
    let store = Store::open(cached).unwrap();
    (0..OBJECTS).for_each(|n| put(&store, n * 251 % OBJECTS, 0, 100));
    store.flush().unwrap();
    let reads = reads_of(&store, || (0..50).for_each(|_| scan(&store, 100, |_| 0)));
    settle(&store);
    assert_eq!((reads, paid_and_moved(&store.stats())), (0, (0, 0, 0)));
}

#[test]
fn without_a_rate_scans_pay_for_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { ..options(dir.path()) }.tuned(|tuning| tuning.order_bytes_per_second = 0);
    let store = Store::open(options).unwrap();
    (0..OBJECTS).for_each(|n| put(&store, n * 251 % OBJECTS, 0, 100));
    store.flush().unwrap();
    (0..5).for_each(|_| scan(&store, 100, |_| 0));
    settle(&store);
    assert_eq!(paid_and_moved(&store.stats()), (0, 0, 0));
}

/// A move of what was overwritten since it was bought counts for nothing, nor does its copy.
#[test]
fn an_overwrite_between_the_scan_and_the_move_wins() {
    let dir = tempfile::tempdir().unwrap();
    let store = shuffled(dir.path(), 100);
    for round in 1..60 {
        scan(&store, 100, |_| round - 1);
        (0..OBJECTS).for_each(|number| put(&store, number, round, 100));
        scan(&store, 100, |_| round);
    }
    settle(&store);
    assert!(ordered(&store) > 0);
    scan(&store, 100, |_| 59);
    for number in 0..OBJECTS {
        let found = store.get(key(number)).unwrap().unwrap();
        assert!(*found == bytes(59 << 32 | number, 100)[..]);
        let entry = entry(&store, number);
        assert!(entry.copy.is_none_or(|copy| copy == bytes(59 << 32 | number, 100)));
    }
    assert_sound(&store);
}

/// Recycling writes what is read often again in the log: the copy stays. What it moves to a block
/// has none.
#[test]
fn copies_stay_with_values_that_recycling_keeps_in_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let small = Options {
        log_capacity_bytes: Some(4 << 20),
        cache_bytes: 0,
        ..small_options(dir.path())
    }
    .tuned(|tuning| tuning.order_bytes_per_second = 1 << 30);
    let store = Store::open(small).unwrap();
    (0..OBJECTS).for_each(|n| put(&store, n * 251 % OBJECTS, 0, 100));
    store.flush().unwrap();
    eventually("every value is copied", || {
        scan(&store, 100, |_| 0);
        store.flush().unwrap();
        (0..OBJECTS).all(|number| entry(&store, number).copy.is_some())
    });
    let fillers = Cell::new(0);
    eventually("the log went round", || {
        for _ in 0..200 {
            let filler = fillers.get() + 1;
            fillers.set(filler);
            store.put(format!("z/{}", filler % 300), bytes(filler, 4_000)).unwrap();
            store.get(key(filler % 20)).unwrap().unwrap();
        }
        let stats = store.stats();
        stats.log.segments_reclaimed > 30 && stats.written.flash_reinserted_bytes > 0
    });
    settle(&store);
    let homes: Vec<_> = (0..OBJECTS).map(|number| entry(&store, number)).collect();
    for (number, entry) in (0..).zip(&homes) {
        let value = bytes(number, 100);
        assert!(*store.get(key(number)).unwrap().unwrap() == value[..]);
        match entry.home.kind() {
            HomeKind::Flash => assert_eq!(entry.copy.as_deref(), Some(&value[..])),
            _ => assert_eq!(entry.copy, None),
        }
    }
    assert!(homes.iter().any(|entry| entry.home.kind() == HomeKind::Flash));
    assert_sound(&store);
}
