//! Objects that expire: absent for all readers at once, and later gone.

use super::{Hands, bytes, eventually, timed_options};
use crate::{Attributes, Batch, Condition, Durability, Error, Expiry, PutOptions, ScanRange, Store, WriterOptions};
use std::{
    io::Read,
    path::Path,
    time::{Duration, UNIX_EPOCH},
};

const SIZES: [usize; 4] = [10, 3_000, 16 << 10, 300_000];
const HOUR: Duration = Duration::from_secs(3600);

fn for_an_hour() -> PutOptions {
    PutOptions {
        expiry: Expiry::After(HOUR),
        attributes: Attributes::new().with("kind", "passing"),
        ..PutOptions::default()
    }
}

fn key(size: usize) -> String {
    format!("passing/{size}")
}

fn open(dir: &Path, hands: &Hands) -> Store {
    Store::open(timed_options(dir, hands)).unwrap()
}

/// A store that never looks for expired objects, so that nothing but the clock makes them absent.
fn open_unswept(dir: &Path, hands: &Hands) -> Store {
    let options = timed_options(dir, hands).tuned(|tuning| tuning.expire_interval = Duration::from_secs(1 << 20));
    let store = Store::open(options).unwrap();
    // The first walk comes at once, if something has expired.
    let brief = PutOptions {
        expiry: Expiry::At(UNIX_EPOCH),
        ..PutOptions::default()
    };
    store.put_with("brief", "", &brief).unwrap();
    eventually("the first walk", || store.stats().expire.expiry_passes == 1);
    store
}

fn fill(store: &Store) {
    for size in SIZES {
        store
            .put_with(key(size), bytes(size as u64, size), &for_an_hour())
            .unwrap();
        store.put(format!("staying/{size}"), bytes(size as u64, size)).unwrap();
    }
}

fn keys(scan: crate::Scan) -> Vec<String> {
    scan.map(|item| String::from_utf8(item.unwrap().key.to_vec()).unwrap())
        .collect()
}

fn assert_absent(store: &Store, snapshot: &crate::Snapshot) {
    for size in SIZES {
        let key = key(size);
        assert_eq!(store.get(&key).unwrap(), None, "{key}");
        assert_eq!(store.head(&key).unwrap(), None, "{key}");
        assert_eq!(store.get_range(&key, 0..5).unwrap(), None, "{key}");
        assert!(store.reader(&key).unwrap().is_none(), "{key}");
        assert!(matches!(&store.multi_get(&[&key])[..], [Ok(None)]), "{key}");
        assert_eq!(snapshot.get(&key).unwrap(), None, "{key}");
        assert_eq!(snapshot.head(&key).unwrap(), None, "{key}");
        assert!(snapshot.reader(&key).unwrap().is_none(), "{key}");
        assert!(store.get(format!("staying/{size}")).unwrap().is_some());
    }
    assert_eq!(keys(store.scan(ScanRange::prefix("passing/")).unwrap()), [""; 0]);
    assert_eq!(keys(snapshot.scan(ScanRange::all()).unwrap()).len(), SIZES.len());
    assert_eq!(store.scan(ScanRange::all()).unwrap().rev().count(), SIZES.len());
}

#[test]
fn an_expired_object_is_absent_for_every_read_at_once() {
    for flushed in [false, true] {
        let (dir, hands) = (tempfile::tempdir().unwrap(), Hands::new());
        let store = open_unswept(dir.path(), &hands);
        fill(&store);
        if flushed {
            store.flush().unwrap();
        }
        let snapshot = store.snapshot().unwrap();
        hands.advance(HOUR - Duration::from_millis(1));
        for size in SIZES {
            let info = store.head(key(size)).unwrap().unwrap();
            let expected = hands.clock().now() + Duration::from_millis(1);
            assert_eq!(info.expires_at, Some(expected));
            assert_eq!(info.attributes.get_str("kind"), Some("passing"));
            assert_eq!(store.get(key(size)).unwrap().unwrap().attributes, info.attributes);
            let reader = store.reader(key(size)).unwrap().unwrap();
            assert_eq!(reader.info().expires_at, Some(expected));
            assert_eq!(store.head(format!("staying/{size}")).unwrap().unwrap().expires_at, None);
        }
        let mut begun = store.reader(key(SIZES[3])).unwrap().unwrap();
        let scan = store.scan(ScanRange::prefix("passing/")).unwrap();
        hands.advance(Duration::from_millis(1));
        assert_absent(&store, &snapshot);
        let mut read = Vec::new();
        begun.read_to_end(&mut read).unwrap();
        assert!(
            read == bytes(SIZES[3] as u64, SIZES[3]),
            "a stream that was begun reads on"
        );
        assert_eq!(keys(scan).len(), SIZES.len(), "a scan compares with one moment");
        // A clock that is put back shows them again, as long as they are not swept.
        hands.turn_back(Duration::from_millis(1));
        assert_eq!(
            keys(store.scan(ScanRange::prefix("passing/")).unwrap()).len(),
            SIZES.len()
        );
        assert_eq!(store.verify().unwrap().errors, [""; 0]);
    }
}

#[test]
fn conditions_go_by_the_clock_inside_the_commit() {
    for (size, flushed) in SIZES.into_iter().flat_map(|size| [(size, false), (size, true)]) {
        let (dir, hands) = (tempfile::tempdir().unwrap(), Hands::new());
        let store = open_unswept(dir.path(), &hands);
        let first = store.put_with("k", bytes(1, size), &for_an_hour()).unwrap();
        if flushed {
            store.flush().unwrap();
        }
        let with = |condition| PutOptions {
            condition,
            ..for_an_hour()
        };
        let refused = |result| assert!(matches!(result, Err(Error::ConditionFailed { .. })), "{size} {flushed}");
        refused(store.put_with("k", "v", &with(Condition::Absent)));
        hands.advance(HOUR);
        refused(store.put_with("k", "v", &with(Condition::Present)));
        refused(store.delete_with("k", Condition::VersionIs(first), Durability::Sync));
        let mut batch = Batch::new();
        batch.delete_if("k", Condition::Present).put("other", "v");
        refused(store.write(batch, Durability::Sync));
        let again = store.put_with("k", bytes(2, size), &with(Condition::Absent)).unwrap();
        assert_eq!(store.get("k").unwrap().unwrap().version, again);
        refused(store.put_with("k", "v", &with(Condition::Absent)));
    }
}

#[test]
fn streams_and_batches_take_an_expiry_too() {
    let (dir, hands) = (tempfile::tempdir().unwrap(), Hands::new());
    let store = open_unswept(dir.path(), &hands);
    for (size, known) in SIZES.into_iter().flat_map(|size| [(size, false), (size, true)]) {
        let options = WriterOptions {
            length: known.then_some(size as u64),
            put: for_an_hour(),
        };
        let mut writer = store.writer(format!("stream/{size}/{known}"), options).unwrap();
        hands.advance(Duration::from_secs(1));
        writer.append(&bytes(7, size)).unwrap();
        writer.finish().unwrap();
        hands.turn_back(Duration::from_secs(1));
        let mut batch = Batch::new();
        let (no_attributes, at) = (Attributes::new(), Expiry::At(hands.clock().now() + HOUR));
        batch.put_expiring(
            format!("batch/{size}"),
            bytes(8, size),
            no_attributes,
            Condition::None,
            at,
        );
        store.write(batch, Durability::Sync).unwrap();
    }
    for item in store.scan(ScanRange::all()).unwrap() {
        let item = item.unwrap();
        assert_eq!(item.info.expires_at, Some(hands.clock().now() + HOUR), "{:?}", item.key);
    }
    assert_eq!(store.scan(ScanRange::all()).unwrap().count(), 3 * SIZES.len());
    hands.advance(HOUR);
    assert_eq!(store.scan(ScanRange::all()).unwrap().count(), 0);
}

#[test]
fn a_put_whose_time_has_come_hides_what_was_there() {
    let (dir, hands) = (tempfile::tempdir().unwrap(), Hands::new());
    let store = open(dir.path(), &hands);
    store.put("k", "v").unwrap();
    let over = PutOptions {
        expiry: Expiry::At(hands.clock().now()),
        ..PutOptions::default()
    };
    store.put_with("k", "w", &over).unwrap();
    assert_eq!(store.get("k").unwrap(), None);
    eventually("the drop", || store.stats().expire.dropped_expired == 1);
    assert_eq!(store.get("k").unwrap(), None);
}

fn objects(store: &Store) -> u64 {
    let stats = store.stats();
    stats.inline.objects + stats.flash.objects + stats.block.objects
}

#[test]
fn what_has_expired_is_swept_and_its_blocks_are_deleted() {
    let (dir, hands) = (tempfile::tempdir().unwrap(), Hands::new());
    let store = open(dir.path(), &hands);
    assert_eq!(store.stats().expire.earliest_expiry, None);
    for n in 0..2_000_u64 {
        let options = PutOptions {
            durability: Durability::Buffered,
            ..for_an_hour()
        };
        let size = [20, 900, 20_000][n as usize % 3];
        store.put_with(format!("{n:05}"), bytes(n, size), &options).unwrap();
        if n % 10 == 0 {
            // In the index: once it is quiet, recycling moves the little that lives in the log.
            store.put(format!("{n:05}/stays"), bytes(n, 50)).unwrap();
        }
    }
    store.flush().unwrap();
    assert_eq!(store.stats().expire.earliest_expiry, Some(hands.clock().now() + HOUR));
    assert_eq!((objects(&store), store.stats().expire.expiry_passes), (2_200, 0));
    let blocks = store.stats().large.blocks;
    assert!(blocks > 20);
    hands.advance(HOUR);
    eventually("the sweep", || objects(&store) == 200);
    eventually("the count", || store.stats().expire.dropped_expired >= 2_000);
    eventually("the end of the walk", || store.stats().expire.earliest_expiry.is_none());
    assert_eq!(store.stats().expire.dropped_deleted, 0);
    eventually("the deletion of blocks", || store.stats().large.blocks <= 3);
    assert_eq!(store.stats().large.live_bytes, 0);
    let passes = store.stats().expire.expiry_passes;
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(
        store.stats().expire.expiry_passes,
        passes,
        "nothing expires: no pass is made"
    );
    assert_eq!(store.verify().unwrap().errors, [""; 0]);
}

#[test]
fn the_earliest_expiry_is_known_after_an_open() {
    for flushed in [false, true] {
        let (dir, hands) = (tempfile::tempdir().unwrap(), Hands::new());
        let store = open(dir.path(), &hands);
        store.put_with("k", bytes(1, 500), &for_an_hour()).unwrap();
        store.put("stays", "v").unwrap();
        if flushed {
            store.flush().unwrap();
        }
        store.close().unwrap();
        drop(store);
        let store = open(dir.path(), &hands);
        eventually("the replay", || {
            store.stats().expire.earliest_expiry == Some(hands.clock().now() + HOUR)
        });
        hands.advance(HOUR);
        eventually("the sweep", || objects(&store) == 1);
        eventually("its count", || store.stats().expire.dropped_expired == 1);
    }
}

#[test]
fn recycling_drops_expired_values_and_moves_none_of_them() {
    let (dir, hands) = (tempfile::tempdir().unwrap(), Hands::new());
    let store = open_unswept(dir.path(), &hands);
    let buffered = PutOptions {
        durability: Durability::Buffered,
        ..for_an_hour()
    };
    for n in 0..300_u64 {
        store
            .put_with(format!("old/{n:03}"), bytes(n, 4_000), &buffered)
            .unwrap();
    }
    hands.advance(HOUR);
    let stays = PutOptions {
        durability: Durability::Buffered,
        ..PutOptions::default()
    };
    // All of them stay: a segment of dead values would be freed without draining older ones.
    for n in 0..3_000_u64 {
        store.put_with(format!("new/{n:04}"), bytes(n, 4_000), &stays).unwrap();
    }
    let stats = store.stats();
    assert!(stats.log.segments_reclaimed > 16, "the ring went round");
    assert!(
        stats.expire.dropped_expired > 300,
        "300 of them by recycling: {:?} {:?}",
        stats.expire,
        stats.log
    );
    eventually("the last commits are applied", || objects(&store) == 3_000);
    hands.turn_back(HOUR);
    assert_eq!(
        store.get("old/007").unwrap(),
        None,
        "no entry is left to lead into a segment"
    );
    assert_eq!(store.verify().unwrap().errors, [""; 0]);
}

#[test]
fn an_expiry_outlives_destaging_and_repair() {
    let (dir, hands) = (tempfile::tempdir().unwrap(), Hands::new());
    let store = open(dir.path(), &hands);
    let expires_at = hands.clock().now() + HOUR;
    let buffered = PutOptions {
        durability: Durability::Buffered,
        ..for_an_hour()
    };
    for n in 0..2_000_u64 {
        store.put_with(format!("{n:04}"), bytes(n, 4_000), &buffered).unwrap();
    }
    store.put_with("large", bytes(5, 100_000), &for_an_hour()).unwrap();
    let destaged = |store: &Store| {
        let items = store.scan(ScanRange::all()).unwrap();
        items
            .filter(|item| item.as_ref().unwrap().info.home == crate::HomeKind::Block)
            .count()
    };
    assert!(destaged(&store) > 500);
    store.close().unwrap();
    drop(store);
    let options = timed_options(dir.path(), &hands);
    std::fs::remove_dir_all(options.flash_dir.join("index")).unwrap();
    assert_eq!(Store::repair(options).unwrap().objects, 2_001);
    let store = open(dir.path(), &hands);
    for item in store.scan(ScanRange::all()).unwrap() {
        assert_eq!(item.unwrap().info.expires_at, Some(expires_at));
    }
    hands.advance(HOUR);
    assert_eq!(store.scan(ScanRange::all()).unwrap().count(), 0);
    eventually("the sweep", || objects(&store) == 0);
}

#[test]
fn deletions_without_end_do_not_keep_expired_objects_from_being_swept() {
    let (dir, hands) = (tempfile::tempdir().unwrap(), Hands::new());
    let store = open(dir.path(), &hands);
    let buffered = PutOptions {
        durability: Durability::Buffered,
        ..for_an_hour()
    };
    for n in 0..20_000_u64 {
        store.put_with(format!("passing/{n:05}"), "v", &buffered).unwrap();
    }
    hands.advance(HOUR);
    eventually("the sweep", || {
        // At least one range is outstanding all the time.
        for _ in 0..20 {
            store.delete_prefix("other/", Durability::Buffered).unwrap();
        }
        store.stats().expire.dropped_expired >= 20_000
    });
    eventually("the last drops", || objects(&store) == 0);
}
