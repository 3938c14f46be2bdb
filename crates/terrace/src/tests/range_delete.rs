//! Range deletions: hidden at once, by seqs; swept later; across opens and repairs.

use super::{buffered, bytes, eventually, open, small_options};
use crate::{Batch, Condition, Durability, Error, PutOptions, ScanRange, Store, Version};
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

const SIZES: [usize; 3] = [10, 2_000, 40_000];

fn fill(store: &Store, prefix: &str, count: u64) {
    for n in 0..count {
        let size = SIZES[n as usize % 3];
        store
            .put_with(format!("{prefix}{n:05}"), bytes(n, size), &buffered())
            .unwrap();
    }
}

fn count(store: &Store, prefix: &str) -> usize {
    let items: Result<Vec<_>, _> = store.scan(ScanRange::prefix(prefix)).unwrap().collect();
    items.unwrap().len()
}

fn objects(store: &Store) -> u64 {
    let stats = store.stats();
    stats.inline.objects + stats.flash.objects + stats.block.objects
}

fn swept(store: &Store) {
    eventually("the sweep", || store.stats().expire.ranges_outstanding == 0);
}

#[test]
fn a_range_is_gone_at_once_and_later_objects_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for part in ["a/", "b/", "c/"] {
        fill(&store, part, 60);
    }
    store.flush().unwrap();
    store.put_with("b/in the overlay", "v", &buffered()).unwrap();
    let before = store.snapshot().unwrap();
    let deleted = store.delete_prefix("b/", Durability::Buffered).unwrap();
    let after = store.snapshot().unwrap();
    for n in 0..60 {
        let key = format!("b/{n:05}");
        assert_eq!(store.get(&key).unwrap(), None, "{key}");
        assert_eq!(store.head(&key).unwrap(), None, "{key}");
        assert!(store.reader(&key).unwrap().is_none(), "{key}");
        assert_eq!(after.get(&key).unwrap(), None, "{key}");
        assert_eq!(
            before.get(&key).unwrap().unwrap().value,
            bytes(n, SIZES[n as usize % 3])
        );
    }
    assert_eq!(store.get("b/in the overlay").unwrap(), None);
    assert_eq!(
        (count(&store, "a/"), count(&store, "b/"), count(&store, "c/")),
        (60, 0, 60)
    );
    let absent = PutOptions {
        condition: Condition::Absent,
        ..buffered()
    };
    let again = store.put_with("b/00007", "back", &absent).unwrap();
    assert!(again > deleted);
    assert_eq!(&store.get("b/00007").unwrap().unwrap()[..], b"back");
    assert_eq!(after.get("b/00007").unwrap(), None);
    swept(&store);
    assert_eq!((count(&store, ""), objects(&store)), (121, 121));
    // One of the 61 is dropped, or replaced before.
    assert!((60..=61).contains(&store.stats().expire.dropped_deleted));
    // Snapshots have the set of when they were taken.
    assert_eq!(before.scan(ScanRange::prefix("b/")).unwrap().count(), 61);
    assert_eq!(after.scan(ScanRange::prefix("b/")).unwrap().count(), 0);
    assert_eq!(before.get("b/00007").unwrap().unwrap().value, bytes(7, SIZES[1]));
    assert_eq!(&store.get("b/00007").unwrap().unwrap()[..], b"back");
    assert_eq!(store.verify().unwrap().errors, [""; 0]);
}

#[test]
fn conditions_see_a_range_deletion() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for flushed in [false, true] {
        let version = store.put("k", "v").unwrap();
        if flushed {
            store.flush().unwrap();
        }
        store
            .delete_range(ScanRange::range("a".."z"), Durability::Buffered)
            .unwrap();
        let with = |condition| PutOptions {
            condition,
            ..buffered()
        };
        for condition in [Condition::Present, Condition::VersionIs(version)] {
            let refused = store.put_with("k", "w", &with(condition));
            assert!(matches!(refused, Err(Error::ConditionFailed { .. })), "{refused:?}");
        }
        let mut batch = Batch::new();
        batch.delete_if("k", Condition::Present);
        assert!(store.write(batch, Durability::Sync).is_err());
        store.put_with("k", "w", &with(Condition::Absent)).unwrap();
        assert!(store.put_with("k", "x", &with(Condition::Absent)).is_err());
    }
}

#[test]
fn bounds_are_kept_to_the_byte() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let last = vec![0xff; 4096];
    let keys: [&[u8]; 7] = [&[0], b"a", b"a\0", b"b", b"b\0", b"c", &last];
    let left = |store: &Store| -> Vec<Vec<u8>> {
        let items = store.scan(ScanRange::all()).unwrap();
        items.map(|item| item.unwrap().key.to_vec()).collect()
    };
    for range in [
        ScanRange::range("a".."b"),
        ScanRange::range("a"..="b"),
        ScanRange::range("b"..),
        ScanRange::range(..="a"),
        ScanRange::all().after("a"),
        ScanRange::all(),
        ScanRange::prefix("a"),
        ScanRange::range(last.clone()..=last.clone()),
        ScanRange::range("b".."a"),
    ] {
        for key in keys {
            store.put(key, "v").unwrap();
        }
        let gone: Vec<_> = store
            .scan(range.clone())
            .unwrap()
            .map(|item| item.unwrap().key)
            .collect();
        store.delete_range(range.clone(), Durability::Sync).unwrap();
        let expected: Vec<_> = keys
            .iter()
            .filter(|key| !gone.iter().any(|gone| gone == *key))
            .collect();
        assert_eq!(
            left(&store),
            expected.into_iter().map(|key| key.to_vec()).collect::<Vec<_>>(),
            "{range:?}"
        );
    }
    let committed = store.stats().queue.committed_seq;
    let nothing = store
        .delete_range(ScanRange::range("b".."a"), Durability::Sync)
        .unwrap();
    assert!(nothing >= Version(committed));
}

#[test]
fn a_range_deletion_outlives_an_open_in_the_log_and_in_the_mark() {
    for persisted in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        fill(&store, "a/", 3_000);
        fill(&store, "b/", 30);
        store.flush().unwrap();
        // Enough that it is not swept by the time the store closes, most likely; the open must be
        // right in either case.
        store.delete_prefix("a/", Durability::Sync).unwrap();
        if persisted {
            store.put("after", "v").unwrap();
            store.flush().unwrap();
        }
        store.close().unwrap();
        drop(store);
        let options = crate::Options {
            read_only: true,
            ..small_options(dir.path())
        };
        let looking = Store::open(options).unwrap();
        assert_eq!((count(&looking, "a/"), count(&looking, "b/")), (0, 30));
        assert_eq!(looking.get("a/00001").unwrap(), None);
        drop(looking);
        let store = open(dir.path());
        assert_eq!((count(&store, "a/"), count(&store, "b/")), (0, 30));
        swept(&store);
        assert_eq!(objects(&store), 30 + u64::from(persisted));
        eventually("the deletion of blocks", || {
            let large = store.stats().large;
            large.live_bytes < 30 * 45_000 && large.allocated_bytes < 8 << 20
        });
        assert_eq!(store.verify().unwrap().errors, [""; 0]);
    }
}

#[test]
fn more_deletions_than_may_wait_all_take_effect() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for n in 0..3_000_u64 {
        store.put_with(format!("{n:05}"), bytes(n, 100), &buffered()).unwrap();
    }
    std::thread::scope(|scope| {
        for part in 0..3_u64 {
            let store = &store;
            scope.spawn(move || {
                for n in (part * 1_000..(part + 1) * 1_000).filter(|n| n % 2 == 0) {
                    store.delete_prefix(format!("{n:05}"), Durability::Buffered).unwrap();
                    assert!(store.stats().expire.ranges_outstanding <= 256);
                }
            });
        }
    });
    assert_eq!(count(&store, ""), 1_500);
    swept(&store);
    assert_eq!(objects(&store), 1_500);
    // After an open that replays them all there are more than may wait, at first.
    store.close().unwrap();
    drop(store);
    let store = open(dir.path());
    assert_eq!(count(&store, ""), 1_500);
    store.delete_prefix("", Durability::Sync).unwrap();
    assert_eq!(count(&store, ""), 0);
}

#[test]
fn recycling_drops_what_a_range_hides() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for round in 0..12 {
        for n in 0..300_u64 {
            let key = format!("{round}/{n:03}");
            store.put_with(key, bytes(n, 4_000), &buffered()).unwrap();
        }
        store.delete_prefix(format!("{round}/"), Durability::Buffered).unwrap();
    }
    assert!(store.stats().log.segments_reclaimed > 16, "the ring went round");
    swept(&store);
    eventually("all drops", || objects(&store) == 0);
    assert_eq!(store.stats().flash.objects, 0);
    assert_eq!(store.verify().unwrap().errors, [""; 0]);
}

#[test]
fn repair_does_not_bring_back_what_a_range_deletion_in_the_log_hides() {
    for sweep in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        fill(&store, "a/", 90);
        fill(&store, "b/", 30);
        store.delete_prefix("a/", Durability::Sync).unwrap();
        store.put("a/back", "v").unwrap();
        if sweep {
            swept(&store);
        }
        store.close().unwrap();
        drop(store);
        std::fs::remove_dir_all(dir.path().join("flash/index")).unwrap();
        assert_eq!(Store::repair(small_options(dir.path())).unwrap().objects, 31);
        let store = open(dir.path());
        assert_eq!((count(&store, "a/"), count(&store, "b/")), (1, 30));
        assert_eq!(&store.get("a/back").unwrap().unwrap()[..], b"v");
    }
}

#[test]
fn repair_takes_the_ranges_of_the_old_index_when_the_log_has_lost_them() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for n in 0..40_000_u64 {
        store.put_with(format!("a/{n:05}"), "tiny", &buffered()).unwrap();
    }
    store.put("b", "v").unwrap();
    store.flush().unwrap();
    // The sweep takes a snapshot first, and gets none before this ends; it commits nothing later.
    let engine = Arc::clone(store.engine());
    drop(engine.snapshots.register(false, || {
        store.delete_prefix("a/", Durability::Sync).unwrap();
        engine.log.refuse_commits();
        0
    }));
    store.close().unwrap();
    assert_eq!(store.stats().expire.ranges_outstanding, 1, "not swept yet");
    assert!(objects(&store) > 10_000);
    drop(store);
    // All segments are lost, and with them the record of the deletion; the old index is left.
    for file in std::fs::read_dir(dir.path().join("flash/segments")).unwrap() {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    assert_eq!(Store::repair(small_options(dir.path())).unwrap().objects, 1);
    let store = open(dir.path());
    assert_eq!((count(&store, "a/"), count(&store, "b")), (0, 1));
}

#[test]
fn a_deletion_that_is_not_flushed_is_durable_when_it_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.put("k", "v").unwrap();
    let version = store.delete_prefix("k", Durability::Sync).unwrap();
    assert!(store.stats().queue.durable_seq >= version.0);
    let operation = |name| {
        let operations = store.stats().operations;
        operations
            .into_iter()
            .find(|operation| operation.name == name)
            .unwrap()
            .count
    };
    assert_eq!(operation("delete_range"), 1);
    store.close().unwrap();
    let closed = store.delete_prefix("k", Durability::Sync);
    assert!(matches!(closed, Err(Error::Unavailable(_))), "{closed:?}");
}

/// Ranges are deleted, swept and forgotten as fast as can be while others read: none of them ever
/// finds what was deleted before it began.
#[test]
fn no_reader_finds_what_was_deleted_before_it_looked() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let (floor, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let key = |n: u64| format!("k/{}", n % 3);
    std::thread::scope(|scope| {
        let (store, floor, done) = (&store, &floor, &done);
        for reader in 0..3_u64 {
            scope.spawn(move || {
                for n in reader.. {
                    if done.load(Ordering::Acquire) {
                        break;
                    }
                    let before = floor.load(Ordering::Acquire);
                    let after_it = |version: Version| assert!(version.0 > before, "{version} was deleted by {before}");
                    match reader {
                        0 => drop(store.get(key(n)).unwrap().map(|object| after_it(object.version))),
                        1 => {
                            let snapshot = store.snapshot().unwrap();
                            for item in snapshot.scan(ScanRange::prefix("k/")).unwrap() {
                                after_it(item.unwrap().info.version);
                            }
                        }
                        _ => {
                            // Refused, or of an object that was put after.
                            if let Some(info) = store.head(key(n)).unwrap() {
                                after_it(info.version);
                            }
                            let present = PutOptions {
                                condition: Condition::Present,
                                ..buffered()
                            };
                            let _ = store.put_with("other", "v", &buffered());
                            if let Ok(version) = store.put_with(key(n), "again", &present) {
                                after_it(version);
                            }
                        }
                    }
                }
            });
        }
        for round in 0..400_u64 {
            for n in 0..3 {
                let size = SIZES[(round + n) as usize % 3];
                store.put_with(key(n), bytes(n, size), &buffered()).unwrap();
            }
            let deleted = store.delete_prefix("k/", Durability::Buffered).unwrap();
            floor.store(deleted.0, Ordering::Release);
            if round % 20 == 0 {
                // Else all could be overwritten before they are swept.
                swept(store);
            }
            if round % 50 == 0 {
                store.flush().unwrap();
            }
        }
        done.store(true, Ordering::Release);
    });
    let dropped = store.stats().expire.dropped_deleted;
    assert!(dropped > 50, "ranges were swept meanwhile: {dropped} drops");
}
