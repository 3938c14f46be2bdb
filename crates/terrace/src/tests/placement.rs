//! *SizeThreshold* and pins that change on an existing store.

use super::{buffered, bytes, eventually, small_options};
use crate::{
    Durability, HomeKind, Options, Pin, Pinning, Store,
    io::{SimDisk, Survival},
};
use std::{path::Path, sync::Arc};

const VALUE_BYTES: usize = 6_000;
const COUNT: u64 = 150;

fn options(dir: &Path, size_threshold_bytes: u64) -> Options {
    Options {
        size_threshold_bytes,
        cache_bytes: 0,
        ..small_options(dir)
    }
    .tuned(|tuning| tuning.migrate_bytes_per_second = 1 << 30)
}

fn put(store: &Store, prefix: &str, count: u64, length: usize) {
    for number in 0..count {
        let key = format!("{prefix}{number:05}");
        store.put_with(key, bytes(number, length), &buffered()).unwrap();
    }
    store.flush().unwrap();
}

fn check(store: &Store, prefix: &str, count: u64, length: usize) {
    for number in 0..count {
        let found = store.get(format!("{prefix}{number:05}")).unwrap().unwrap();
        assert!(found.value == bytes(number, length), "{prefix}{number}");
    }
}

fn count_in(store: &Store, prefix: &str, count: u64, home: HomeKind) -> u64 {
    let home_of = |number: &u64| store.head(format!("{prefix}{number:05}")).unwrap().unwrap().home;
    (0..count).filter(|number| home_of(number) == home).count() as u64
}

fn all_in(store: &Store, prefix: &str, count: u64, home: HomeKind) -> bool {
    count_in(store, prefix, count, home) == count
}

fn settled(store: &Store) {
    eventually("migrating", || !store.stats().placement.migrating);
}

#[test]
fn a_lower_threshold_moves_old_values_to_blocks_and_is_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path(), 16 << 10)).unwrap();
    put(&store, "k", COUNT, VALUE_BYTES);
    assert!(all_in(&store, "k", COUNT, HomeKind::Flash) && !store.stats().placement.migrating);
    drop(store);
    let store = Store::open(options(dir.path(), 4 << 10)).unwrap();
    settled(&store);
    assert!(all_in(&store, "k", COUNT, HomeKind::Block));
    let placement = store.stats().placement;
    assert_eq!((placement.walked, placement.moved), (COUNT, COUNT));
    assert_eq!(placement.moved_bytes, COUNT * VALUE_BYTES as u64);
    check(&store, "k", COUNT, VALUE_BYTES);
    put(&store, "new", 3, VALUE_BYTES);
    assert!(all_in(&store, "new", 3, HomeKind::Block), "new values follow at once");
    assert!(store.verify().unwrap().errors.is_empty());
    drop(store);
    let store = Store::open(options(dir.path(), 4 << 10)).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(store.stats().placement.walked, 0, "it is done");
    check(&store, "k", COUNT, VALUE_BYTES);
}

#[test]
fn a_higher_threshold_moves_only_what_is_read_often() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path(), 4 << 10)).unwrap();
    put(&store, "k", COUNT, VALUE_BYTES);
    assert!(all_in(&store, "k", COUNT, HomeKind::Block));
    drop(store);
    let store = Store::open(options(dir.path(), 16 << 10)).unwrap();
    put(&store, "new", 3, VALUE_BYTES);
    assert!(all_in(&store, "new", 3, HomeKind::Flash));
    settled(&store);
    assert!(all_in(&store, "k", COUNT, HomeKind::Block), "they are not read");
    eventually("coming back", || {
        check(&store, "k", 10, VALUE_BYTES);
        all_in(&store, "k", 10, HomeKind::Flash)
    });
    let others = (10..COUNT).filter(|number| {
        let info = store.head(format!("k{number:05}")).unwrap().unwrap();
        info.home == HomeKind::Block
    });
    assert_eq!(others.count() as u64, COUNT - 10);
    check(&store, "k", COUNT, VALUE_BYTES);
}

/// A step that moved nothing because the store was being closed counted as done, and the walk as
/// over.
#[test]
fn a_close_in_the_middle_of_settling_does_not_end_it() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..10 {
        let store = Store::open(options(dir.path(), 16 << 10)).unwrap();
        put(&store, "k", COUNT, VALUE_BYTES);
        drop(store);
        let store = Store::open(options(dir.path(), 4 << 10)).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(round % 8));
        drop(store);
        let store = Store::open(options(dir.path(), 4 << 10)).unwrap();
        settled(&store);
        assert!(all_in(&store, "k", COUNT, HomeKind::Block), "round {round}");
    }
}

#[test]
fn settling_survives_power_cuts_at_any_moment() {
    let dir = tempfile::tempdir().unwrap();
    let (flash, large) = (SimDisk::new(1), SimDisk::new(2));
    let with = |size_threshold_bytes| Options {
        flash_disk: Some(Arc::new(flash.clone())),
        large_disk: Some(Arc::new(large.clone())),
        ..options(dir.path(), size_threshold_bytes)
    };
    let store = Store::open(with(16 << 10)).unwrap();
    put(&store, "k", COUNT, VALUE_BYTES);
    drop(store);
    for (round, survival) in (0..24).zip(Survival::ALL.into_iter().cycle()) {
        // Down and up again; what is up there is put there, so that there is always something to
        // move.
        let threshold = [4 << 10, 16 << 10][round as usize % 2];
        let disk = if round % 3 == 0 { &large } else { &flash };
        disk.cut_after(round * 7);
        if let Ok(store) = Store::open(with(threshold)) {
            std::thread::sleep(std::time::Duration::from_millis(30));
            drop(store);
        }
        for disk in [&flash, &large] {
            disk.power_cut();
            disk.set_survival(survival);
            disk.restore_power();
        }
        let store = Store::open(with(threshold)).unwrap();
        check(&store, "k", COUNT, VALUE_BYTES);
        settled(&store);
        assert!(threshold > 4 << 10 || all_in(&store, "k", COUNT, HomeKind::Block));
        check(&store, "k", COUNT, VALUE_BYTES);
        assert!(store.verify().unwrap().errors.is_empty());
        if threshold > 4 << 10 {
            put(&store, "k", COUNT, VALUE_BYTES);
        }
    }
}

#[test]
fn rules_that_were_tried_for_a_while_leave_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let (flash, large) = (SimDisk::new(3), SimDisk::new(4));
    let with = |size_threshold_bytes, migrate_bytes_per_second| {
        Options {
            flash_disk: Some(Arc::new(flash.clone())),
            large_disk: Some(Arc::new(large.clone())),
            ..options(dir.path(), size_threshold_bytes)
        }
        .tuned(|tuning| tuning.migrate_bytes_per_second = migrate_bytes_per_second)
    };
    drop(Store::open(with(4 << 10, 1 << 30)).unwrap());
    // By other rules, which are not settled when the power goes.
    let store = Store::open(with(16 << 10, 0)).unwrap();
    put(&store, "k", COUNT, VALUE_BYTES);
    assert!(all_in(&store, "k", COUNT, HomeKind::Flash));
    flash.power_cut();
    large.power_cut();
    drop(store);
    flash.restore_power();
    large.restore_power();
    let store = Store::open(with(4 << 10, 1 << 30)).unwrap();
    settled(&store);
    assert!(all_in(&store, "k", COUNT, HomeKind::Block));
    check(&store, "k", COUNT, VALUE_BYTES);
}

fn pin(prefix: &str, to: Pinning) -> Pin {
    Pin {
        prefix: prefix.into(),
        to,
    }
}

fn pinned(dir: &Path, pins: &[(&str, Pinning)]) -> Options {
    Options {
        pins: pins.iter().map(|(prefix, to)| pin(prefix, *to)).collect(),
        ..options(dir, 16 << 10)
    }
}

#[test]
fn what_is_pinned_to_flash_stays_there_whatever_its_heat() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(pinned(dir.path(), &[("pin/", Pinning::Flash)])).unwrap();
    put(&store, "pin/", 300, 1_000);
    put(&store, "pin/large/", 5, 40_000);
    put(&store, "other/", 300, 1_000);
    // Until nothing but what is pinned is left of the beginning.
    for round in 0.. {
        assert!(round < 50, "what is not pinned leaves the log in the end");
        put(&store, "fill/", 3_000, 1_000);
        if all_in(&store, "other/", 300, HomeKind::Block) {
            break;
        }
    }
    // Of a segment of nothing else a quarter leaves, and half where room is short; later they lie
    // among others and stay.
    let kept = count_in(&store, "pin/", 300, HomeKind::Flash);
    assert!(kept >= 150, "{kept} of 300 are kept");
    let kept = count_in(&store, "pin/large/", 5, HomeKind::Flash);
    assert!(kept >= 2, "{kept} of 5 long ones are kept");
    check(&store, "pin/", 300, 1_000);
    check(&store, "pin/large/", 5, 40_000);
    assert!(store.verify().unwrap().errors.is_empty());
    drop(store);
    // Rules that come later move what is in blocks, and those that go let it be recycled.
    let store = Store::open(pinned(dir.path(), &[("other/", Pinning::Flash)])).unwrap();
    eventually("moving to flash", || all_in(&store, "other/", 300, HomeKind::Flash));
    settled(&store);
    assert!(
        all_in(&store, "pin/large/", 5, HomeKind::Block),
        "they are large without their rule"
    );
    put(&store, "fill/", 9_000, 1_000);
    eventually("destaging", || all_in(&store, "pin/", 300, HomeKind::Block));
    let kept = count_in(&store, "other/", 300, HomeKind::Flash);
    assert!(kept >= 100, "{kept} of 300 are kept");
    check(&store, "other/", 300, 1_000);
}

#[test]
fn what_is_pinned_to_disk_is_never_on_flash() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(pinned(dir.path(), &[])).unwrap();
    put(&store, "cold/old/", 100, 1_000);
    assert!(all_in(&store, "cold/old/", 100, HomeKind::Flash));
    drop(store);
    let rules = [("cold/", Pinning::Disk), ("cold/not/", Pinning::None)];
    let store = Store::open(pinned(dir.path(), &rules)).unwrap();
    put(&store, "cold/new/", 20, 1_000);
    put(&store, "cold/large/", 8, 40_000);
    put(&store, "cold/not/", 20, 1_000);
    put(&store, "cold/tiny/", 5, 20);
    let mut batch = crate::Batch::new();
    batch.put("cold/batch", bytes(1, 500));
    store.write(batch, Durability::Sync).unwrap();
    assert_eq!(store.head("cold/batch").unwrap().unwrap().home, HomeKind::Block);
    assert!(all_in(&store, "cold/new/", 20, HomeKind::Block));
    assert!(
        all_in(&store, "cold/not/", 20, HomeKind::Flash),
        "the longer prefix counts"
    );
    assert!(
        all_in(&store, "cold/tiny/", 5, HomeKind::Inline),
        "the index is another matter"
    );
    eventually("moving to disk", || all_in(&store, "cold/old/", 100, HomeKind::Block));
    for _ in 0..30 {
        check(&store, "cold/new/", 20, 1_000);
        check(&store, "cold/large/", 8, 40_000);
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    let heat = store.stats().flash_cache;
    assert_eq!((heat.moved, heat.copies, heat.promoted), (0, 0, 0));
    assert!(all_in(&store, "cold/new/", 20, HomeKind::Block));
}

/// One walk moves to the log at most what log GC would keep of it: with a rule for more than that
/// it would write all of it to flash for nothing. And it ends: a step that found no room for some
/// of its values was made again, every five seconds, and log GC had moved out meanwhile what it had
/// moved.
#[test]
fn a_pin_of_more_than_the_log_is_moved_there_in_part() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(pinned(dir.path(), &[("pin/", Pinning::Disk)])).unwrap();
    put(&store, "pin/", 5_000, 1_000);
    assert!(all_in(&store, "pin/", 5_000, HomeKind::Block));
    drop(store);
    let store = Store::open(pinned(dir.path(), &[("pin/", Pinning::Flash)])).unwrap();
    settled(&store);
    let placement = store.stats().placement;
    let log_bytes = store.stats().log.capacity_bytes;
    assert!(
        log_bytes < 5_000_000,
        "{log_bytes} bytes of log are too many for this test"
    );
    let moved = placement.moved_bytes;
    assert!(
        moved > 0 && moved <= log_bytes * 3 / 4,
        "{moved} of {log_bytes} bytes of log"
    );
    assert_eq!(placement.walked, 5_000);
    put(&store, "fill/", 3_000, 1_000);
    check(&store, "pin/", 5_000, 1_000);
    check(&store, "fill/", 3_000, 1_000);
    assert!(store.verify().unwrap().errors.is_empty());
}

#[test]
fn a_log_full_of_what_is_pinned_still_takes_writes() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(pinned(dir.path(), &[("", Pinning::Flash)])).unwrap();
    // Before they were counted.
    put(&store, "k", 8_000, 1_000);
    check(&store, "k", 8_000, 1_000);
    assert!(store.stats().written.large_destaged_bytes > 1_000_000);
}
