//! Cleaning of blocks, and what the figures say of space.

use super::{Hands, buffered, bytes, eventually, open, small_options, timed_options};
use crate::{
    Durability, Expiry, HomeKind, Options, PutOptions, StallReason, Stats, Store, Tier, WriterOptions,
    io::{Disk as _, SimDisk},
};
use std::{collections::BTreeMap, os::unix::fs::MetadataExt, path::Path, sync::Arc, time::Duration};

/// Beside the blocks at rest up to four are open.
fn is_tidy(stats: &Stats, split_bytes: u64) -> bool {
    stats.large.allocated_bytes <= stats.large.live_bytes * 13 / 10 + 5 * split_bytes
}

fn tidied(store: &Store, split_bytes: u64) -> Stats {
    eventually("cleaning", || is_tidy(&store.stats(), split_bytes));
    store.stats()
}

fn assert_holds(store: &Store, values: &BTreeMap<String, Vec<u8>>) {
    for (key, value) in values {
        assert!(store.get(key).unwrap().unwrap().value == *value, "{key}");
    }
    let report = store.verify().unwrap();
    assert_eq!(report.errors, [""; 0]);
}

#[test]
fn small_pairs_that_were_destaged_are_moved_with_their_attributes_and_versions() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut values = BTreeMap::new();
    for n in 0..60_000_u64 {
        let options = PutOptions {
            attributes: crate::Attributes::new().with("n", n.to_string()),
            ..buffered()
        };
        // Some are overwritten often, most are not: blocks die here and there.
        let number = if n % 3 == 0 { n % 18_000 } else { n % 300 + 30_000 };
        let (key, value) = (format!("{number:05}"), bytes(n, 700 + n as usize % 900));
        store.put_with(&key, &value, &options).unwrap();
        values.insert(key, value);
    }
    for number in (0..18_000).filter(|number| number % 9 != 0) {
        let key = format!("{number:05}");
        store
            .delete_with(&key, crate::Condition::None, Durability::Buffered)
            .unwrap();
        values.remove(&key);
    }
    let before: BTreeMap<&String, _> = values
        .keys()
        .map(|key| (key, store.head(key).unwrap().unwrap()))
        .collect();
    let stats = tidied(&store, 256 << 10);
    assert!(stats.written.large_cleaned_bytes > 0, "{stats:#?}");
    for (key, info) in before {
        let now = store.head(key).unwrap().unwrap();
        assert_eq!((now.version, now.attributes), (info.version, info.attributes), "{key}");
    }
    assert_holds(&store, &values);
}

#[test]
fn a_value_too_long_for_ram_is_moved_piece_by_piece() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        split_threshold_bytes: 16 << 20,
        ..small_options(dir.path())
    };
    let store = Store::open(options).unwrap();
    let mut values = BTreeMap::new();
    for n in 0..3 {
        let value = bytes(n, 9_000_000);
        store.put(format!("stays{n}"), &value).unwrap();
        store.put(format!("goes{n}"), bytes(n + 9, 6_000_000)).unwrap();
        values.insert(format!("stays{n}"), value);
    }
    // Blocks are sealed when the next value does not fit.
    store.put("last", bytes(5, 2_000_000)).unwrap();
    values.insert("last".to_owned(), bytes(5, 2_000_000));
    for n in 0..3 {
        store.delete(format!("goes{n}")).unwrap();
    }
    eventually("cleaning", || store.stats().large.blocks_reclaimed >= 1);
    let stats = store.stats();
    assert!(stats.written.large_cleaned_bytes >= 9_000_000, "{stats:#?}");
    assert_holds(&store, &values);
    store.close().unwrap();
    drop(store);
    assert_holds(&open(dir.path()), &values);
}

#[test]
fn a_huge_value_alone_in_its_block_stays_there() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let huge = bytes(1, 20 << 20);
    store.put("huge", &huge).unwrap();
    let mut values = BTreeMap::from([("huge".to_owned(), huge)]);
    for n in 0..400_u64 {
        let (key, value) = (format!("{:02}", n * 7 % 90), bytes(n, 60_000));
        store.put(&key, &value).unwrap();
        values.insert(key, value);
    }
    for n in (0..90).filter(|n| n % 4 != 0) {
        store.delete(format!("{n:02}")).unwrap();
        values.remove(&format!("{n:02}"));
    }
    let stats = tidied(&store, 256 << 10);
    assert!(stats.written.large_cleaned_bytes < 10 << 20, "{stats:#?}");
    assert_holds(&store, &values);
}

#[test]
fn nobody_waits_for_what_others_are_writing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    // Each longer than a block, so its block is full from the beginning, and long before it holds
    // anything.
    let begin = |n: u64| {
        let value = bytes(n, 1 << 20);
        let options = WriterOptions {
            length: Some(1 << 20),
            put: buffered(),
        };
        let mut writer = store.writer(format!("{n}"), options).unwrap();
        writer.append(&value[..500_000]).unwrap();
        (n, value, writer)
    };
    let mut values = BTreeMap::new();
    for (n, value, mut writer) in (0..12).map(begin).collect::<Vec<_>>() {
        writer.append(&value[500_000..]).unwrap();
        writer.finish().unwrap();
        values.insert(format!("{n}"), value);
    }
    let stats = store.stats();
    let held = [StallReason::BlockSpace, StallReason::BlockRoom].map(|reason| stats.stalls[reason as usize].count);
    assert_eq!(
        (held.iter().sum(), stats.large.writers_let_go),
        (0_u64, 0),
        "{stats:#?}"
    );
    assert_holds(&store, &values);
}

/// Regression: each value was left in a block that had no room for the next, stayed open, and could
/// not be deleted: writes were refused with 17 MiB alive of 100.
#[test]
fn overwriting_a_long_value_in_a_small_tier_is_never_refused() {
    let dir = tempfile::tempdir().unwrap();
    let split_bytes = 20 << 20;
    let store = Store::open(Options {
        split_threshold_bytes: split_bytes,
        large_capacity_bytes: Some(5 * split_bytes),
        ..small_options(dir.path())
    })
    .unwrap();
    let value = bytes(1, 17 << 20);
    for _ in 0..8 {
        store.put_with("key", &value, &buffered()).unwrap();
    }
    assert!(store.get("key").unwrap().unwrap().value == value);
}

#[test]
fn what_has_expired_or_was_deleted_by_a_range_is_not_carried_along() {
    let dir = tempfile::tempdir().unwrap();
    let hands = Hands::new();
    let store = Store::open(timed_options(dir.path(), &hands)).unwrap();
    let mut values = BTreeMap::new();
    for n in 0..120_u64 {
        let options = PutOptions {
            expiry: if n % 4 == 1 {
                Expiry::After(Duration::from_secs(10))
            } else {
                Expiry::Never
            },
            ..buffered()
        };
        let key = match n % 4 {
            0 => format!("stays/{n:03}"),
            1 => format!("expires/{n:03}"),
            2 => format!("range/{n:03}"),
            _ => format!("single/{n:03}"),
        };
        store.put_with(&key, bytes(n, 50_000), &options).unwrap();
        if n % 4 == 0 {
            values.insert(key, bytes(n, 50_000));
        }
    }
    hands.advance(Duration::from_secs(11));
    store.delete_prefix("range/", Durability::Sync).unwrap();
    for n in (0..120).filter(|n| n % 4 == 3) {
        store.delete(format!("single/{n:03}")).unwrap();
    }
    // Until all are applied the figure is on its way up.
    store.flush().unwrap();
    eventually("the end of what is gone", || store.stats().block.objects == 30);
    let stats = tidied(&store, 256 << 10);
    assert_eq!(
        stats.expire.dropped_expired, 30,
        "each once, whichever thread met it first"
    );
    assert_eq!(stats.expire.dropped_deleted, 30);
    assert_holds(&store, &values);
}

#[test]
fn with_the_bound_far_off_nothing_is_moved() {
    let dir = tempfile::tempdir().unwrap();
    let options = small_options(dir.path()).tuned(|tuning| {
        tuning.space_amplification_percent = 1_000_000;
        tuning.space_amplification_max_percent = 2_000_000;
    });
    let store = Store::open(options).unwrap();
    for n in 0..60_u64 {
        store.put_with(format!("{n}"), bytes(n, 50_000), &buffered()).unwrap();
    }
    for n in (0..60).filter(|n| n % 4 != 0) {
        store.delete(format!("{n}")).unwrap();
    }
    store.flush().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let stats = store.stats();
    assert_eq!(
        (stats.large.blocks_reclaimed, stats.written.large_cleaned_bytes),
        (0, 0)
    );
    assert!(stats.space(Tier::Large).amplification() > 2.0, "{stats:#?}");
    store.close().unwrap();
    drop(store);
    // With the usual one they are cleaned after an open as well: by the account that the mark
    // holds.
    let store = open(dir.path());
    let stats = tidied(&store, 256 << 10);
    assert!(stats.large.blocks_reclaimed > 3, "{stats:#?}");
}

/// Bytes that the files below `dir` take on the device.
fn disk_usage(dir: &Path) -> u64 {
    let files = crate::test_common::files(dir);
    files
        .iter()
        .map(|file| file.metadata().map_or(0, |file| file.blocks() * 512))
        .sum()
}

#[test]
fn the_figures_say_what_du_says() {
    /// Manifests, the lock, the small files that name the index's state, what the file system keeps
    /// beside the data; and tables that a compaction replaced, which the next one removes.
    const BESIDE: u64 = 500 << 10;
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut values = BTreeMap::new();
    for n in 0..3_000_u64 {
        let length = [100, 3_000, 40_000][n as usize % 3];
        let (key, value) = (format!("{:03}", n * 11 % 900), bytes(n, length));
        store.put_with(&key, &value, &buffered()).unwrap();
        values.insert(key, value);
    }
    store.flush().unwrap();
    let stats = tidied(&store, 256 << 10);
    assert!(stats.block.objects > 100, "{stats:#?}");
    for (tier, name) in [(Tier::Flash, "flash"), (Tier::Large, "large")] {
        let is_told = || {
            let told = store.stats().space(tier).disk_bytes;
            let found = disk_usage(&dir.path().join(name));
            told.abs_diff(found) <= found / 100 + BESIDE
        };
        // Tables that compactions replaced go a little later.
        eventually(
            &format!("what du says of {name}: {}", disk_usage(&dir.path().join(name))),
            is_told,
        );
    }
    // Recycling may move something to a block between the two looks.
    eventually("what the objects say of the large tier", || {
        let large = store.stats().space(Tier::Large);
        let live: u64 = values
            .keys()
            .map(|key| store.head(key).unwrap().unwrap())
            .filter(|info| info.home == HomeKind::Block)
            .map(|info| info.length)
            .sum();
        let is_live = large.live_bytes >= live && large.live_bytes < live + live / 20;
        is_live && large.amplification() > 1.0 && large.amplification() < 1.6
    });
    assert_holds(&store, &values);
}

/// To delete a dead block its headers are looked at once more, and to look for each of them on a
/// disk that callers read from took twenty seconds a block: writers that waited for cleaning waited
/// for minutes.
#[test]
fn on_a_disk_that_seeks_a_block_is_walked_in_bursts() {
    let (dir, large) = (tempfile::tempdir().unwrap(), SimDisk::new(1));
    let split_bytes = 16 << 20;
    let store = Store::open(Options {
        large_disk: Some(Arc::new(large.clone())),
        split_threshold_bytes: split_bytes,
        ..small_options(dir.path())
    })
    .unwrap();
    for n in 0..2 * split_bytes / 100_000 {
        store.put_with(format!("{n}"), bytes(n, 100_000), &buffered()).unwrap();
    }
    store.flush().unwrap();
    let space = &store.engine().large;
    let block = space.blocks()[0].number;
    let walk = || {
        let before = large.counters().reads;
        let found = space.scan_headers(block).unwrap().filter_map(Result::ok).count() as u64;
        (found, large.counters().reads - before)
    };
    let (found, reads) = walk();
    assert!(found > 100 && reads > found, "{found} by {reads} reads");
    for _ in 0..40 {
        let read = store.engine().paces.large.read();
        std::thread::sleep(Duration::from_millis(5));
        drop(read);
    }
    let (again, reads) = walk();
    assert!(again == found && reads < 12, "{again} by {reads} reads");
}
