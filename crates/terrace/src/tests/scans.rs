//! Scans of a store: from both ends, by any bounds, and what they say of an object.

use super::{buffered, open, small_options};
use crate::{Durability, HomeKind, Scan, ScanRange, Store, Version};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    collections::{BTreeMap, VecDeque},
    io::Read,
    ops::Bound,
};

fn put(store: &Store, key: &str, value: impl AsRef<[u8]>) -> Version {
    store.put_with(key, value, &buffered()).unwrap()
}

/// A flush seals the memtable that a scan reads. The mark that goes in then made a scan from both
/// ends lose d, and show what had been deleted or end early in other orders of calls.
#[test]
fn a_flush_takes_nothing_from_a_scan_from_both_ends() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for key in ["a", "b", "e", "f"] {
        put(&store, key, key);
    }
    store.flush().unwrap();
    put(&store, "d", "d");
    let mut scan = store.scan(ScanRange::all()).unwrap();
    let key = |item: Option<crate::Result<crate::ScanItem>>| item.map(|item| item.unwrap().key);
    assert_eq!(key(scan.next()).as_deref(), Some(&b"a"[..]));
    assert_eq!(key(scan.next_back()).as_deref(), Some(&b"f"[..]));
    store.flush().unwrap();
    assert_eq!(key(scan.next_back()).as_deref(), Some(&b"e"[..]));
    assert_eq!(key(scan.next_back()).as_deref(), Some(&b"d"[..]));
    assert_eq!(key(scan.next_back()).as_deref(), Some(&b"b"[..]));
    assert_eq!(key(scan.next_back()), None);
}

type State = BTreeMap<String, Version>;

fn change(store: &Store, rng: &mut StdRng, state: &mut State) {
    let key = format!("{}/{:02}", ["k", "l"][rng.random_range(0..2)], rng.random_range(0..30));
    match rng.random_range(0..8) {
        0..4 => {
            let value = vec![7; [3, 300, 20_000][rng.random_range(0..3)]];
            state.insert(key.clone(), put(store, &key, value));
        }
        4..6 => {
            store
                .delete_with(&key, crate::Condition::None, Durability::Buffered)
                .unwrap();
            state.remove(&key);
        }
        _ => store.flush().unwrap(),
    }
}

/// Any order of steps from both ends, with writes and flushes between any two of them, shows the
/// moment of the scan, or of the snapshot.
#[test]
fn scans_show_their_moment_from_both_ends_whatever_comes_between() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut rng = StdRng::seed_from_u64(51);
    let mut now = State::new();
    for _ in 0..300 {
        let (snapshot, then) = (store.snapshot().unwrap(), now.clone());
        for _ in 0..rng.random_range(0..6) {
            change(&store, &mut rng, &mut now);
        }
        let (range, prefix) = match rng.random_range(0..3) {
            0 => (ScanRange::all(), ""),
            1 => (ScanRange::prefix("k/"), "k/"),
            _ => (ScanRange::prefix("l/"), "l/"),
        };
        let of_snapshot = rng.random_bool(0.5);
        let mut scan: Scan = if of_snapshot {
            snapshot.scan(range).unwrap()
        } else {
            store.scan(range).unwrap()
        };
        let expected = if of_snapshot { &then } else { &now };
        let mut expected: VecDeque<(String, Version)> = expected
            .iter()
            .filter(|(key, _)| key.starts_with(prefix))
            .map(|(key, version)| (key.clone(), *version))
            .collect();
        loop {
            if rng.random_bool(0.3) {
                change(&store, &mut rng, &mut now);
            }
            let (item, wanted) = if rng.random_bool(0.5) {
                (scan.next(), expected.pop_front())
            } else {
                (scan.next_back(), expected.pop_back())
            };
            let item = item.map(|item| {
                let item = item.unwrap();
                (String::from_utf8(item.key.to_vec()).unwrap(), item.info.version)
            });
            assert_eq!(item, wanted);
            if wanted.is_none() {
                break;
            }
        }
    }
}

/// A bound longer than 65,535 bytes was answered with "corrupt data": the index library had
/// panicked.
#[test]
fn bounds_may_be_longer_than_keys() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let last_of_a = vec![b'a'; crate::KEY_BYTES_MAX];
    store.put("a", "").unwrap();
    store.put(&last_of_a, "").unwrap();
    store.put("b", "").unwrap();
    let count = |range: ScanRange| store.scan(range).unwrap().map(Result::unwrap).count();
    for length in [4_097, 65_535, 65_536, 1 << 20] {
        let long = vec![b'a'; length];
        assert_eq!(count(ScanRange::range(long.clone()..)), 1, "{length}");
        assert_eq!(count(ScanRange::range(..=long.clone())), 2, "{length}");
        assert_eq!(count(ScanRange::range(..long.clone())), 2, "{length}");
        assert_eq!(count(ScanRange::all().after(&long)), 1, "{length}");
        assert_eq!(count(ScanRange::prefix(&long)), 0, "{length}");
        let snapshot = store.snapshot().unwrap();
        assert_eq!(snapshot.scan(ScanRange::range(long.clone()..)).unwrap().count(), 1);
        let range = ScanRange {
            start: Bound::Excluded(last_of_a.clone()),
            end: Bound::Included(long.clone()),
        };
        assert_eq!(count(range.clone()), 0, "{length}");
        store.delete_range(range, Durability::Buffered).unwrap();
        store.delete_prefix(&long, Durability::Buffered).unwrap();
    }
    assert_eq!(count(ScanRange::all()), 3, "nothing was in what was deleted");
}

/// What each kind of read answers to where an object lives.
fn homes(store: &Store, key: &str) -> [HomeKind; 5] {
    let mut reader = store.reader(key).unwrap().unwrap();
    reader.read_to_end(&mut Vec::new()).unwrap();
    let snapshot = store.snapshot().unwrap();
    let mut scan = store.scan(ScanRange::prefix(key)).unwrap();
    [
        store.head(key).unwrap().unwrap().home,
        reader.info().home,
        scan.next().unwrap().unwrap().info.home,
        snapshot.head(key).unwrap().unwrap().home,
        snapshot.reader(key).unwrap().unwrap().info().home,
    ]
}

/// Where a small value lives was guessed from the limit of today: once that was lowered, `head`
/// said flash and a scan said inline.
#[test]
fn where_a_value_lives_is_told_by_where_it_was_put() {
    let dir = tempfile::tempdir().unwrap();
    let with_limit = |inline_bytes_max| {
        let options = small_options(dir.path()).tuned(|tuning| tuning.inline_bytes_max = inline_bytes_max);
        Store::open(options).unwrap()
    };
    let value = [7; 50];
    let store = with_limit(100);
    put(&store, "high", value);
    assert_eq!(store.head("high").unwrap().unwrap().home, HomeKind::Inline);
    assert_eq!(homes(&store, "high"), [HomeKind::Inline; 5]);
    store.close().unwrap();
    drop(store);
    let store = with_limit(10);
    assert_eq!(homes(&store, "high"), [HomeKind::Inline; 5]);
    put(&store, "low", value);
    // From the overlay, as like as not.
    assert_eq!(store.head("low").unwrap().unwrap().home, HomeKind::Flash);
    assert_eq!(store.reader("low").unwrap().unwrap().info().home, HomeKind::Flash);
    assert_eq!(homes(&store, "low"), [HomeKind::Flash; 5]);
    store.flush().unwrap();
    assert_eq!(homes(&store, "low"), [HomeKind::Flash; 5]);
    store.close().unwrap();
    drop(store);
    let store = with_limit(100);
    assert_eq!(homes(&store, "high"), [HomeKind::Inline; 5]);
    assert_eq!(homes(&store, "low"), [HomeKind::Flash; 5]);
}
