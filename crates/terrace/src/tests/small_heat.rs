//! Small values between the log and the blocks: second chance, coming back, and what both cost.

use super::{bytes, eventually, small_options};
use crate::{Durability, HomeKind, Options, PutOptions, Store, io::SimDisk};
use std::{path::Path, sync::Arc};

const BUFFERED: PutOptions = PutOptions {
    attributes: crate::Attributes::new(),
    durability: Durability::Buffered,
    condition: crate::Condition::None,
    expiry: crate::Expiry::Never,
};
const VALUE_BYTES: usize = 1000;

/// No cache in RAM, so that every read is one of flash or of a block.
fn options(dir: &Path) -> Options {
    Options {
        cache_bytes: 0,
        ..small_options(dir)
    }
}

/// The same in RAM, for tests that read very much.
fn options_in_ram(dir: &Path) -> Options {
    Options {
        flash_disk: Some(Arc::new(SimDisk::new(1))),
        large_disk: Some(Arc::new(SimDisk::new(2))),
        ..options(dir)
    }
}

fn key(number: u64) -> String {
    format!("{number:06}")
}

fn put(store: &Store, numbers: std::ops::Range<u64>) {
    for number in numbers {
        store
            .put_with(key(number), bytes(number, VALUE_BYTES), &BUFFERED)
            .unwrap();
    }
    store.flush().unwrap();
}

fn read(store: &Store, number: u64) {
    let found = store.get(key(number)).unwrap().unwrap();
    assert!(found.value == bytes(number, VALUE_BYTES), "{number}");
}

fn home(store: &Store, number: u64) -> HomeKind {
    store.head(key(number)).unwrap().unwrap().home
}

/// The first objects: with twice as many as the log holds they are in blocks.
const COUNT: u64 = 40;

const fn some() -> std::ops::Range<u64> {
    0..COUNT
}

/// A store whose first objects are in blocks.
fn destaged(dir: &Path) -> Store {
    let store = Store::open(options(dir)).unwrap();
    put(&store, 0..8_000);
    eventually("destaging", || {
        some().all(|number| home(&store, number) == HomeKind::Block)
    });
    store
}

/// Reads until they are back.
fn bring_back(store: &Store) {
    eventually("coming back", || {
        some().for_each(|number| read(store, number));
        some().all(|number| home(store, number) == HomeKind::Flash)
    });
}

#[test]
fn a_destaged_value_that_is_read_often_comes_back_and_stays_over_an_open() {
    let dir = tempfile::tempdir().unwrap();
    let store = destaged(dir.path());
    let versions: Vec<_> = some()
        .map(|number| store.head(key(number)).unwrap().unwrap().version)
        .collect();
    bring_back(&store);
    let stats = store.stats();
    assert!(stats.log.eviction_age.is_some(), "{:?}", stats.log);
    assert!(stats.flash_cache.moved >= COUNT, "{:?}", stats.flash_cache);
    assert!(stats.flash_cache.moved_bytes >= COUNT * VALUE_BYTES as u64);
    assert!(stats.written.flash_moved_bytes > stats.flash_cache.moved_bytes);
    // Until the moves are written they are read where they wait.
    store.flush().unwrap();
    eventually("writing", || store.stats().queue.overlay_bytes == 0);
    let before = store.stats().reads;
    some().for_each(|number| read(&store, number));
    let after = store.stats().reads;
    assert_eq!(after.flash_hits - before.flash_hits, COUNT);
    assert!(
        after.flash_bytes - before.flash_bytes >= COUNT * VALUE_BYTES as u64,
        "{after:?}"
    );
    assert_eq!(after.large_bytes, before.large_bytes);
    assert_eq!(after.block_reads, before.block_reads);
    for (number, version) in some().zip(versions) {
        assert_eq!(
            store.head(key(number)).unwrap().unwrap().version,
            version,
            "a move keeps it"
        );
    }
    eventually("letting go", || store.stats().flash_cache.moving_bytes == 0);
    assert!(store.verify().unwrap().errors.is_empty());
    store.close().unwrap();
    drop(store);
    let store = Store::open(options(dir.path())).unwrap();
    assert!(some().all(|number| home(&store, number) == HomeKind::Flash));
    some().for_each(|number| read(&store, number));
    assert!(store.verify().unwrap().errors.is_empty());
}

#[test]
fn one_read_moves_nothing_and_a_scan_does_not_either() {
    let dir = tempfile::tempdir().unwrap();
    let store = destaged(dir.path());
    some().for_each(|number| read(&store, number));
    for _ in 0..3 {
        let range = crate::ScanRange::range(key(100)..key(140));
        for (_, value) in store.scan(range).unwrap().next_values(100).unwrap() {
            assert_eq!(value.unwrap().len(), VALUE_BYTES);
        }
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(store.stats().flash_cache.moved, 0);
}

#[test]
fn what_leaves_again_does_not_come_back_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = destaged(dir.path());
    bring_back(&store);
    let moved = store.stats().flash_cache.moved;
    // They are not read while the log goes round, so they leave.
    put(&store, 10_000..22_000);
    eventually("destaging", || {
        some().all(|number| home(&store, number) == HomeKind::Block)
    });
    some().for_each(|number| read(&store, number));
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(store.stats().flash_cache.moved, moved, "one read is not enough again");
    bring_back(&store);
}

#[test]
fn streams_and_ranges_of_small_values_bring_them_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = destaged(dir.path());
    eventually("coming back", || {
        let mut streamed = Vec::new();
        std::io::copy(&mut store.reader(key(3)).unwrap().unwrap(), &mut streamed).unwrap();
        assert!(streamed == bytes(3, VALUE_BYTES));
        let range = store.get_range(key(4), 100..300).unwrap().unwrap();
        assert!(range == bytes(4, VALUE_BYTES)[100..300]);
        [3, 4].into_iter().all(|number| home(&store, number) == HomeKind::Flash)
    });
}

#[test]
fn an_overwrite_or_a_delete_beats_a_value_that_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = destaged(dir.path());
    for round in 0..30_u64 {
        for number in some() {
            let _ = store.get(key(number)).unwrap();
            if (number + round) % 3 == 0 {
                store
                    .put_with(key(number), bytes(number + round, 700), &BUFFERED)
                    .unwrap();
            } else if (number + round) % 7 == 0 {
                store
                    .delete_with(key(number), crate::Condition::None, Durability::Buffered)
                    .unwrap();
            }
        }
        put(&store, 20_000 + round * 400..20_400 + round * 400);
        for number in some() {
            let last = (0..=round)
                .rev()
                .find(|round| (number + round) % 3 == 0 || (number + round) % 7 == 0);
            let expected = match last {
                None => Some(bytes(number, VALUE_BYTES)),
                Some(last) if (number + last) % 3 == 0 => Some(bytes(number + last, 700)),
                Some(_) => None,
            };
            let found = store.get(key(number)).unwrap().map(|object| object.value);
            assert!(found.as_deref() == expected.as_deref(), "{number} in round {round}");
        }
    }
    assert!(store.verify().unwrap().errors.is_empty());
}

#[test]
fn the_daily_budget_holds_for_values_that_come_back() {
    let dir = tempfile::tempdir().unwrap();
    drop(destaged(dir.path()));
    let store = Store::open(Options {
        // An hour's share is ten values.
        promotion_bytes_per_day: Some(24 * 10 * VALUE_BYTES as u64),
        ..options(dir.path())
    })
    .unwrap();
    eventually("refusing", || {
        some().for_each(|number| read(&store, number));
        store.stats().flash_cache.dropped_budget >= 20
    });
    let heat = store.stats().flash_cache;
    assert!((1..=10).contains(&heat.moved), "{heat:?}");
}

#[test]
fn without_staging_nothing_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    drop(destaged(dir.path()));
    let store = Store::open(options(dir.path()).tuned(|tuning| tuning.staging_bytes = 0)).unwrap();
    for _ in 0..5 {
        some().for_each(|number| read(&store, number));
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(store.stats().flash_cache.moved, 0);
}

#[test]
fn a_log_that_is_hot_all_over_makes_room_at_a_bounded_cost() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options_in_ram(dir.path())).unwrap();
    let window = 2_500;
    for round in 0..45_u64 {
        let end = (round + 1) * 200;
        for number in end - 200..end {
            store
                .put_with(key(number), bytes(number, VALUE_BYTES), &BUFFERED)
                .unwrap();
        }
        // Everything that is in the log is used between two segments.
        for number in end.saturating_sub(window)..end {
            read(&store, number);
        }
    }
    let (written, log) = (store.stats().written, store.stats().log);
    assert!(log.segments_reclaimed > 16, "{log:?}");
    assert!(written.flash_reinserted_bytes > 500_000, "{written:?}");
    let paid = written.flash_user_bytes / 2 + written.flash_moved_bytes * 3 + (256 << 10);
    assert!(written.flash_reinserted_bytes <= paid, "{written:?}");
    assert!(written.large_destaged_bytes > 1_000_000, "{written:?}");
    (0..9_000).for_each(|number| read(&store, number));
}

#[test]
fn a_bounded_flash_index_has_recycling_make_room_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        log_capacity_bytes: Some(16 << 20),
        ..options_in_ram(dir.path())
    }
    .tuned(|tuning| tuning.hash_index_bytes_max = Some(256 << 10));
    let store = Store::open(options).unwrap();
    let slots = store.stats().hash_index.slots_max.unwrap();
    let count = slots + slots / 2;
    for number in 0..count {
        store.put_with(key(number), bytes(number, 80), &BUFFERED).unwrap();
        if number % 1000 == 999 {
            // No writer waits for room in the index; without it values are found by a longer way.
            eventually("recycling", || store.stats().hash_index.entries * 20 <= slots * 19);
        }
    }
    store.flush().unwrap();
    let log = store.stats().log;
    assert!(
        log.segments_free * 4 > log.capacity_bytes / (256 << 10),
        "the log itself has room: {log:?}"
    );
    eventually("room in the index", || {
        store.stats().hash_index.entries * 10 <= slots * 9
    });
    let stats = store.stats();
    assert!(stats.hash_index.ram_bytes <= 256 << 10, "{:?}", stats.hash_index);
    let without_slot = stats.block.objects + stats.hash_index.evicted;
    assert!(without_slot >= count - slots, "{stats:?}");
    // Some slots were overwritten first: partitions do not fill alike.
    assert!(stats.block.objects >= (count - slots) / 10, "{:?}", stats.block);
    for number in 0..count {
        assert!(
            store.get(key(number)).unwrap().unwrap().value == bytes(number, 80),
            "{number}"
        );
    }
}
