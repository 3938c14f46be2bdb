//! Copies of short values into their entries: what sweeps bring, and that none is made of a value
//! that is its key's no more.

use super::{bytes, eventually, small_options};
use crate::{
    Durability, HomeKind, Options, PutOptions, ScanRange, Store, key_hash,
    log::{address::Address, move_queue::Moving},
    maintenance::order::make_turn,
    ordered_index::{Entry, Home},
    scan_order::Copied,
};
use std::{cell::Cell, path::Path};

const OBJECTS: u64 = 4_000;

/// Nothing is in RAM once it is written and applied, and scans buy nothing by themselves before
/// they have bought a sweep.
fn options(dir: &Path, sweep_price_percent: u32) -> Options {
    Options {
        cache_bytes: 0,
        log_capacity_bytes: Some(16 << 20),
        ..small_options(dir)
    }
    .tuned(|tuning| {
        tuning.order_bytes_per_second = 1 << 30;
        tuning.sweep_price_percent = sweep_price_percent;
    })
}

fn key(number: u64) -> String {
    format!("k/{number:04}")
}

fn fill(store: &Store) {
    let buffered = PutOptions {
        durability: Durability::Buffered,
        ..PutOptions::default()
    };
    for number in (0..OBJECTS).map(|n| n * 1009 % OBJECTS) {
        store.put_with(key(number), bytes(number, 100), &buffered).unwrap();
    }
    store.flush().unwrap();
}

fn scan(store: &Store, from: u64, count: usize) {
    let from = key(from);
    let mut scan = store.scan(ScanRange::range(from.as_bytes()..)).unwrap();
    for (item, value) in scan.next_values(count).unwrap() {
        let number: u64 = std::str::from_utf8(&item.key[2..]).unwrap().parse().unwrap();
        assert_eq!(item.info.home, HomeKind::Flash);
        assert!(value.unwrap() == bytes(number, 100), "{number}");
    }
}

fn entry(store: &Store, key: &str) -> Option<Entry> {
    store.engine().index.get(key.as_bytes()).unwrap()
}

fn copies(store: &Store) -> u64 {
    let has_copy = |number: &u64| entry(store, &key(*number)).is_some_and(|entry| entry.copy.is_some());
    (0..OBJECTS).filter(has_copy).count() as u64
}

fn assert_sound(store: &Store) {
    let report = store.verify().unwrap();
    assert!(report.errors.is_empty(), "{:#?}", report.errors);
}

/// What a sweep would hand over of a key as it is now.
fn as_it_is(store: &Store, key: &str) -> Moving {
    store.flush().unwrap();
    let entry = entry(store, key).unwrap();
    let Home::Flash { address } = entry.home else {
        panic!("{key} is not in the log");
    };
    let generation = store.engine().log.segments.place(address).unwrap().0;
    Moving {
        key: key.to_owned().into(),
        hash: key_hash(key.as_bytes()),
        version: entry.version.0,
        attributes: entry.attributes,
        value: store.get(key).unwrap().unwrap().value,
        checksum: entry.checksum,
        place: Some((Address::new(address).unwrap(), generation)),
    }
}

/// Has the applier copy values now, and says how many it did.
fn copy(store: &Store, values: &[Moving]) -> u64 {
    let engine = store.engine();
    let wake = || make_turn(engine, &values[0].key);
    let copied: Copied = engine.scan_order.copies.hand_over(values.to_vec(), wake, || false);
    copied.values
}

/// The same without what is known of their places.
fn without_places(values: &[Moving]) -> Vec<Moving> {
    let without = |value: &Moving| Moving {
        place: None,
        ..value.clone()
    };
    values.iter().map(without).collect()
}

#[test]
fn a_sweep_copies_what_no_scan_has_read_and_writes_nothing_to_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path(), 0)).unwrap();
    fill(&store);
    let (log_bytes, sealed) = (
        store.stats().written.flash_bytes(),
        store.stats().written.flash_ordered_bytes,
    );
    eventually("a sweep", || {
        scan(&store, 7, 10);
        store.stats().scan_order.sweeps > 0
    });
    let order = store.stats().scan_order;
    // What lies in the log's last segment is left to the scans.
    assert!(copies(&store) > OBJECTS / 2, "{}", copies(&store));
    assert!(order.sweep_bytes > 100 * OBJECTS / 2, "{order:?}");
    assert_eq!((order.moved, order.log_bytes), (0, 0));
    assert_eq!(store.stats().written.flash_ordered_bytes, sealed);
    assert!(store.stats().written.flash_bytes() >= log_bytes);
    // Segments that were swept are not read again, however much is paid.
    let swept_bytes = store.stats().scan_order.sweep_bytes;
    store.engine().scan_order.sweep.pay(1_000_000);
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(store.stats().scan_order.sweep_bytes, swept_bytes);
    assert_sound(&store);
    store.flush().unwrap();
    let before = copies(&store);
    store.close().unwrap();
    drop(store);
    // They are persisted though no commit came with them.
    let store = Store::open(options(dir.path(), 0)).unwrap();
    assert_eq!(copies(&store), before);
    (0..OBJECTS / 50).for_each(|part| scan(&store, part * 50, 50));
    assert_sound(&store);
}

/// A log that is much larger than what is scanned: batches bring that in order, and it stops to
/// pay long before the price of the whole is together.
#[test]
fn a_small_range_that_is_scanned_does_not_pay_for_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path(), 100)).unwrap();
    fill(&store);
    eventually("the range is in order", || {
        scan(&store, 100, 40);
        (100..140).all(|number| entry(&store, &key(number)).unwrap().copy.is_some())
    });
    (0..200).for_each(|_| scan(&store, 100, 40));
    let order = store.stats().scan_order;
    assert_eq!((order.sweeps, order.sweep_bytes), (0, 0), "{order:?}");
    assert!(copies(&store) < 60, "{}", copies(&store));
}

/// Each of these values was read, and its key was changed before the applier came to it. A copy of
/// it would have brought it back. Its place tells, and where that is not known its version.
#[test]
fn of_what_was_overwritten_or_deleted_meanwhile_no_copy_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path(), 100)).unwrap();
    for name in ["over", "gone", "hid", "longer", "stays"] {
        store.put(name, bytes(1, 100)).unwrap();
    }
    let read = ["over", "gone", "hid", "longer", "stays"].map(|name| as_it_is(&store, name));
    store.put("over", bytes(2, 100)).unwrap();
    store.delete("gone").unwrap();
    store.delete_range(ScanRange::prefix("hid"), Durability::Sync).unwrap();
    store.put("longer", bytes(2, 90_000)).unwrap();
    store.flush().unwrap();
    eventually("the range is swept", || entry(&store, "hid").is_none());
    assert_eq!(copy(&store, &read[..4]), 0);
    assert_eq!(copy(&store, &without_places(&read[..4])), 0);
    for name in ["gone", "hid"] {
        assert!(
            store.get(name).unwrap().is_none() && entry(&store, name).is_none(),
            "{name}"
        );
    }
    assert!(*store.get("over").unwrap().unwrap() == bytes(2, 100)[..]);
    assert_eq!(entry(&store, "over").unwrap().copy, None);
    let shown: Vec<_> = store
        .scan(ScanRange::all())
        .unwrap()
        .map(|item| item.unwrap().key)
        .collect();
    assert_eq!(shown, ["longer", "over", "stays"]);
    // What is as it was gets one, once.
    assert_eq!(copy(&store, &without_places(&read[4..])), 1);
    assert_eq!(entry(&store, "stays").unwrap().copy.unwrap(), bytes(1, 100));
    assert_eq!(copy(&store, &without_places(&read[4..])), 0, "it has one");
    assert_sound(&store);
}

/// An overwrite that is committed and not applied yet comes after the copy, whatever was copied.
#[test]
fn an_overwrite_that_waits_for_the_applier_wins() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path(), 100)).unwrap();
    store.put("k0", bytes(1, 100)).unwrap();
    let read = [as_it_is(&store, "k0")];
    store.put("k1", bytes(5, 100)).unwrap();
    for round in 2..200 {
        std::thread::scope(|scope| {
            scope.spawn(|| copy(&store, &read));
            store.put("k0", bytes(round, 100)).unwrap();
        });
        assert!(*store.get("k0").unwrap().unwrap() == bytes(round, 100)[..]);
        store.flush().unwrap();
        assert_eq!(entry(&store, "k0").unwrap().copy, None);
    }
    assert_sound(&store);
}

/// Copies were inserted at the seq that was applied last, so open scans saw them. The memtable had
/// shown nothing to a scan's first step, and the front had shown all keys; then the other end met
/// the copy, and the key came twice. They come with a later commit, which no open scan sees.
#[test]
fn a_scan_from_both_ends_meets_no_copy_of_what_it_has_shown() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path(), 100)).unwrap();
    let keys: Vec<String> = (0..8).map(key).collect();
    for (number, key) in (0..).zip(&keys) {
        store.put(key, bytes(number, 100)).unwrap();
    }
    let read = as_it_is(&store, &keys[1]);
    // That has flushed the index as well.
    assert_eq!(store.stats().index.memtable_bytes, 0);
    let mut scan = store.scan(ScanRange::all()).unwrap();
    let mut shown: Vec<_> = scan.by_ref().take(keys.len()).map(|item| item.unwrap().key).collect();
    assert_eq!(copy(&store, &[read]), 1);
    shown.extend(scan.next_back().map(|item| item.unwrap().key));
    assert_eq!(shown, keys);
}

/// Log GC has moved the value: its copy stands beside the new place. And where the old place is
/// another record's by now, its generation tells.
#[test]
fn a_value_that_recycling_moved_gets_its_copy_at_its_new_place() {
    let dir = tempfile::tempdir().unwrap();
    let small = Options {
        log_capacity_bytes: Some(4 << 20),
        ..options(dir.path(), 100)
    };
    let store = Store::open(small).unwrap();
    store.put("k", bytes(1, 100)).unwrap();
    let read = as_it_is(&store, "k");
    let fillers = Cell::new(0);
    eventually("the value was moved within the log", || {
        for _ in 0..100 {
            let filler = fillers.get() + 1;
            fillers.set(filler);
            store.put(format!("z/{}", filler % 300), bytes(filler, 4_000)).unwrap();
            store.get("k").unwrap().unwrap();
        }
        store.flush().unwrap();
        let home = entry(&store, "k").unwrap().home;
        matches!(home, Home::Flash { address } if Some(address) != read.place.map(|(at, _)| at.bytes()))
    });
    let moved = as_it_is(&store, "k");
    // As if another version had been read there, in an earlier use of the segment.
    let (address, generation) = moved.place.unwrap();
    let stale = Moving {
        version: read.version - 1,
        value: bytes(9, 100).into(),
        place: Some((address, generation - 1)),
        ..moved.clone()
    };
    assert_eq!(copy(&store, &[stale]), 0);
    assert_eq!(copy(&store, &[read]), 1);
    let entry = entry(&store, "k").unwrap();
    assert_eq!(entry.copy.unwrap(), bytes(1, 100));
    assert_eq!(
        entry.home,
        Home::Flash {
            address: address.bytes()
        }
    );
    assert_sound(&store);
}

/// Snapshots from before a copy, and from after it, show the same; so does what is read while
/// copies are made of all.
#[test]
fn snapshots_do_not_notice_copies() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path(), 100)).unwrap();
    fill(&store);
    let before = store.snapshot().unwrap();
    let values: Vec<_> = (0..OBJECTS).map(|number| as_it_is(&store, &key(number))).collect();
    // All but what the last commit wrote, which is in the memtable as of it, unless it was flushed.
    assert!(copy(&store, &values) >= OBJECTS - 1);
    let after = store.snapshot().unwrap();
    for snapshot in [before, after] {
        let mut scan = snapshot.scan(ScanRange::all()).unwrap();
        let mut shown = 0;
        loop {
            let found = scan.next_values(100).unwrap();
            if found.is_empty() {
                break;
            }
            for (item, value) in found {
                assert_eq!(item.key, key(shown));
                assert!(value.unwrap() == bytes(shown, 100));
                shown += 1;
            }
        }
        assert_eq!(shown, OBJECTS);
    }
    store.flush().unwrap();
    assert_sound(&store);
}
