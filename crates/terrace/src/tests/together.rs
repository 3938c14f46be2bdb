//! Reading many values for one call.

use super::{bytes, open, small_options};
use crate::{Batch, Durability, Error, Options, PutOptions, ScanRange, Store, log::segments::Segments};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::OpenOptions,
    os::unix::fs::FileExt,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

fn uncached(dir: &Path) -> Store {
    let options = Options {
        cache_bytes: 0,
        ..small_options(dir)
    };
    Store::open(options).unwrap()
}

/// Eighty values of 1 KiB, put as one commit.
fn group() -> BTreeMap<String, Vec<u8>> {
    (0..80).map(|n| (format!("group/{n:02}"), bytes(n, 1 << 10))).collect()
}

fn put_group(store: &Store) {
    let mut batch = Batch::new();
    for (key, value) in group() {
        batch.put(key, value);
    }
    store.write(batch, Durability::Sync).unwrap();
    store.flush().unwrap();
}

fn flash_reads(store: &Store) -> u64 {
    store
        .engine()
        .metrics
        .flash_reads
        .load(std::sync::atomic::Ordering::Relaxed)
}

#[test]
fn values_that_lie_together_are_read_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = uncached(dir.path());
    put_group(&store);
    let before = flash_reads(&store);
    let found = store
        .scan(ScanRange::prefix("group/"))
        .unwrap()
        .next_values(100)
        .unwrap();
    assert_eq!(flash_reads(&store) - before, 1, "85 KiB in one piece");
    let found: BTreeMap<String, Vec<u8>> = found
        .into_iter()
        .map(|(item, value)| (String::from_utf8(item.key.to_vec()).unwrap(), value.unwrap().to_vec()))
        .collect();
    assert_eq!(found, group());
}

#[test]
fn values_far_apart_are_read_one_by_one_and_every_home_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = uncached(dir.path());
    let lengths = [0, 40, 1 << 10, 9 << 10, 40 << 10];
    let keys: Vec<String> = (0..300).map(|n| format!("{:03}", n * 7 % 300)).collect();
    for (n, key) in keys.iter().enumerate() {
        let value = bytes(n as u64, lengths[n % lengths.len()]);
        store.put(key, value).unwrap();
    }
    store.flush().unwrap();
    let before = flash_reads(&store);
    let few = store.scan(ScanRange::prefix("00")).unwrap().next_values(1000).unwrap();
    assert_eq!(few.len(), 10);
    assert_eq!(
        flash_reads(&store) - before,
        4,
        "the ones of 1 and 9 KiB, 43 puts apart"
    );
    let found = store.scan(ScanRange::all()).unwrap().next_values(1000).unwrap();
    assert_eq!(found.len(), keys.len());
    let all = store.multi_get(&keys);
    for (n, (key, object)) in keys.iter().zip(all).enumerate() {
        let expected = bytes(n as u64, lengths[n % lengths.len()]);
        assert_eq!(object.unwrap().unwrap().value, expected, "{key}");
        let (_, value) = &found[key.parse::<usize>().unwrap()];
        assert_eq!(value.as_ref().unwrap(), &expected, "{key}");
    }
    let absent = store.multi_get(&["000", "absent", "001"]);
    let is_there: Vec<bool> = absent.into_iter().map(|object| object.unwrap().is_some()).collect();
    assert_eq!(is_there, [true, false, true]);
}

#[test]
fn a_multi_get_reads_what_lies_together_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = uncached(dir.path());
    put_group(&store);
    let before = flash_reads(&store);
    let found = store.multi_get(&group().into_keys().collect::<Vec<_>>());
    assert_eq!(flash_reads(&store) - before, 1, "85 KiB in one piece");
    let found: Vec<_> = found.into_iter().map(|object| object.unwrap().unwrap().value).collect();
    assert_eq!(found, group().into_values().collect::<Vec<_>>());
}

/// More reads than are made at once, by rings where the kernel has them and by threads.
#[test]
fn values_far_apart_are_all_read_whichever_way_batches_go() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(Options {
        cache_bytes: 0,
        log_capacity_bytes: Some(16 << 20),
        ..small_options(dir.path())
    })
    .unwrap();
    let buffered = PutOptions {
        durability: Durability::Buffered,
        ..PutOptions::default()
    };
    let value = |number: usize| bytes(number as u64, 3000 + number % 7 * 100);
    for number in 0..2000 {
        store
            .put_with(format!("{number:04}"), value(number), &buffered)
            .unwrap();
    }
    store.flush().unwrap();
    for is_refused in [false, true] {
        if is_refused {
            store.engine().read_queue.refuse();
        }
        // Each 30 KiB from the next, in no order.
        let numbers: Vec<usize> = (0..200).map(|at| at * 7 % 200 * 10).collect();
        let before = flash_reads(&store);
        let found = store.multi_get(&numbers.iter().map(|n| format!("{n:04}")).collect::<Vec<_>>());
        for (number, object) in numbers.iter().zip(found) {
            assert_eq!(object.unwrap().unwrap().value, value(*number), "{number}");
        }
        assert!(flash_reads(&store) - before > 128, "several batches");
    }
}

#[test]
fn a_damaged_value_is_an_error_in_its_place_and_its_neighbours_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = uncached(dir.path());
    put_group(&store);
    store.close().unwrap();
    let store = open(dir.path());
    // In the middle of the value of "group/40", wherever that is.
    let wanted = bytes(40, 1 << 10);
    let log = dir.path().join("flash");
    let mut damaged = 0;
    for number in Segments::numbers(&*store.engine().flash_disk).unwrap() {
        let path = log.join(Segments::path(number));
        let found = std::fs::read(&path).unwrap();
        if let Some(at) = found.windows(wanted.len()).position(|bytes| bytes == wanted) {
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(&[!wanted[500]], at as u64 + 500).unwrap();
            damaged += 1;
        }
    }
    assert_eq!(damaged, 1);
    let found = store
        .scan(ScanRange::prefix("group/"))
        .unwrap()
        .next_values(100)
        .unwrap();
    for (item, value) in found {
        let key = String::from_utf8(item.key.to_vec()).unwrap();
        if key == "group/40" {
            assert!(matches!(value, Err(Error::Corruption { .. })), "{value:?}");
        } else {
            assert_eq!(value.unwrap(), group()[&key], "{key}");
        }
    }
    let keys: Vec<String> = group().into_keys().collect();
    for (key, object) in keys.iter().zip(store.multi_get(&keys)) {
        if key == "group/40" {
            assert!(matches!(object, Err(Error::Corruption { .. })), "{object:?}");
        } else {
            assert_eq!(object.unwrap().unwrap().value, group()[key], "{key}");
        }
    }
}

/// Scans go on over a store that is no longer written: what the last writes left in memtables and
/// runs is merged for them, and for nothing else.
#[test]
fn what_lies_in_runs_is_merged_when_somebody_scans() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        // Nothing is recycled, since all is in the first segment: that has the memtable sealed as
        // well, and what is dead is recycled once it is quiet.
        segment_bytes: 4 << 20,
        log_capacity_bytes: Some(64 << 20),
        // Each scan asks the index.
        cache_bytes: 0,
        ..small_options(dir.path())
    }
    .tuned(|tuning| tuning.memtable_bytes = 16 << 20);
    let store = Store::open(options).unwrap();
    let buffered = PutOptions {
        durability: Durability::Buffered,
        ..PutOptions::default()
    };
    for round in 0..4 {
        for n in 0..500 {
            let value = bytes(round * 1000 + n, 100);
            store.put_with(format!("{n:03}"), value, &buffered).unwrap();
        }
        // The last round stays in its memtable.
        if round < 3 {
            store.flush().unwrap();
        }
    }
    let index = &store.engine().index;
    let newest = |store: &Store| {
        let found = store.scan(ScanRange::all()).unwrap().next_values(1000).unwrap();
        assert_eq!(found.len(), 500);
        for (n, (_, value)) in found.into_iter().enumerate() {
            assert_eq!(value.unwrap(), bytes(3000 + n as u64, 100));
        }
    };
    store.engine().log.wait_applied().unwrap();
    let before = store.stats().index;
    std::thread::sleep(std::time::Duration::from_millis(700));
    let after = store.stats().index;
    assert_eq!((after.flushes, after.compactions), (before.flushes, before.compactions));
    assert_eq!(store.stats().log.segments_reclaimed, 0);
    assert!(index.l0_runs() > 0 && after.memtable_bytes > 0);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while index.l0_runs() > 0 || store.stats().index.memtable_bytes > 0 {
        newest(&store);
        assert!(std::time::Instant::now() < deadline, "{:?}", store.stats().index);
    }
    newest(&store);
}

/// One call for several keys showed a batch in part: each key was read at a moment of its own.
#[test]
fn a_batch_is_seen_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let keys: Vec<String> = (0..100).map(|n| format!("one/{n:02}")).collect();
    let done = AtomicBool::new(false);
    let began = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0_u64;
            while !done.load(Ordering::Acquire) {
                round += 1;
                let mut batch = Batch::new();
                for key in &keys {
                    // All are there with one value, or none is.
                    if round.is_multiple_of(3) {
                        batch.delete(key);
                    } else {
                        batch.put(key, round.to_string());
                    }
                }
                if round.is_multiple_of(7) {
                    store.delete_prefix("one/", Durability::Buffered).unwrap();
                } else {
                    store.write(batch, Durability::Buffered).unwrap();
                }
                began.store(true, Ordering::Release);
            }
        });
        while !began.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let mut different = BTreeSet::new();
        let deadline = Instant::now() + Duration::from_secs(60);
        while different.len() < 50 {
            let found = store.multi_get(&keys);
            let versions: BTreeSet<_> = found
                .into_iter()
                .map(|object| object.unwrap().map(|object| (object.version, object.value)))
                .collect();
            if versions.len() > 1 || Instant::now() > deadline {
                done.store(true, Ordering::Release);
            }
            assert_eq!(versions.len(), 1, "{versions:?}");
            assert!(Instant::now() < deadline, "the writer is at work");
            different.extend(versions);
        }
        done.store(true, Ordering::Release);
    });
}
