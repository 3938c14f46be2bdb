//! What an open finds of the store before: which segments may be written again.

use super::{Hands, bytes, eventually, open, small_options, timed_options};
use crate::{Durability, Expiry, PutOptions, ScanRange, Store};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

const KEYS: u64 = 300;

/// Overwrites until the ring has gone round a few times.
fn overwrite(store: &Store, seed: u64) {
    let buffered = PutOptions {
        durability: Durability::Buffered,
        ..PutOptions::default()
    };
    for n in 0..4_000_u64 {
        let value = bytes(n + seed, 4_000);
        store.put_with(format!("{:03}", n % KEYS), value, &buffered).unwrap();
    }
}

/// A store on a full device was killed after everything was deleted. Opened again it did nothing,
/// and 250 MB of dead segments were there for ever: each counted as full of life.
#[test]
fn segments_that_died_before_an_open_are_freed_while_nothing_happens() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for n in 0..500_u64 {
        store.put(format!("{n:03}"), bytes(n, 4_000)).unwrap();
    }
    for n in 1..500 {
        store.delete(format!("{n:03}")).unwrap();
    }
    let used = store.stats().log.segments_used;
    assert!(used >= 8, "{used} segments");
    drop(store);
    let store = open(dir.path());
    eventually("their room", || store.stats().log.segments_used <= 2);
    assert_eq!(store.get("000").unwrap().unwrap().value, bytes(0, 4_000));
}

#[test]
fn recycled_segments_are_free_again_after_an_open() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    overwrite(&store, 0);
    assert!(store.stats().log.segments_reclaimed > 16, "the ring went round");
    // Until recycling rests; the last commit then has the index persist a mark that knows of all it
    // did.
    let mut last = None;
    let deadline = Instant::now() + Duration::from_secs(60);
    let rested = loop {
        std::thread::sleep(Duration::from_millis(500));
        let log = store.stats().log;
        if last == Some((log.segments_reclaimed, log.segments_free)) {
            break log.segments_free;
        }
        assert!(Instant::now() < deadline, "recycling never rests");
        last = Some((log.segments_reclaimed, log.segments_free));
    };
    assert!(rested >= 4, "{rested} segments are free");
    store.put("last", "one").unwrap();
    // It may have begun a segment.
    let rested = rested.min(store.stats().log.segments_free);
    store.close().unwrap();
    drop(store);
    let store = open(dir.path());
    let log = store.stats().log;
    assert_eq!(log.segments_reclaimed, 0, "there was no need to");
    assert!(log.segments_free >= rested, "{rested} were free, now {log:?}");
    drop(store);

    // A list that is out of date by more than a round must free nothing that is in use.
    for round in 1..4 {
        let store = open(dir.path());
        overwrite(&store, round);
        drop(store);
        let store = open(dir.path());
        for n in 4_000 - KEYS..4_000 {
            let key = format!("{:03}", n % KEYS);
            assert_eq!(
                store.get(&key).unwrap().unwrap().value,
                bytes(n + round, 4_000),
                "{key}"
            );
        }
        assert_eq!(store.verify().unwrap().errors, Vec::<String>::new());
    }
}

/// The format version in a tier's manifest.
fn format_version(manifest: &Path) -> u32 {
    let bytes = std::fs::read(manifest).unwrap();
    u32::from_le_bytes(bytes[12..16].try_into().unwrap())
}

#[test]
fn a_store_of_format_1_is_read_and_then_raised() {
    let dir = tempfile::tempdir().unwrap();
    let manifests = ["flash", "large"].map(|tier| dir.path().join(tier).join("TERRACE"));
    let store = open(dir.path());
    for (n, size) in [10, 500, 20_000, 300_000].into_iter().enumerate() {
        store.put(format!("{n}"), bytes(n as u64, size)).unwrap();
    }
    store.close().unwrap();
    drop(store);
    // Nothing expires here, and how values are placed is not known after a repair.
    Store::repair(small_options(dir.path())).unwrap();
    for manifest in &manifests {
        let mut bytes = std::fs::read(manifest).unwrap();
        assert_eq!(bytes[12], 5);
        bytes[12] = 1;
        bytes[33..].fill(0);
        let checksum = crc32c::crc32c(&bytes[12..]);
        bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
        std::fs::write(manifest, bytes).unwrap();
    }
    let looking = crate::Options {
        read_only: true,
        ..small_options(dir.path())
    };
    let count = |store: &Store| {
        store
            .scan(ScanRange::all())
            .unwrap()
            .filter(|item| item.is_ok())
            .count()
    };
    assert_eq!(count(&Store::open(looking).unwrap()), 4);
    assert_eq!(manifests.each_ref().map(|path| format_version(path)), [1, 1]);
    let store = open(dir.path());
    assert_eq!(count(&store), 4);
    assert_eq!(manifests.each_ref().map(|path| format_version(path)), [5, 5]);
    let brief = PutOptions {
        expiry: Expiry::After(Duration::from_secs(3600)),
        ..PutOptions::default()
    };
    store.put_with("brief", "v", &brief).unwrap();
    store.delete_prefix("0", Durability::Sync).unwrap();
    store.close().unwrap();
    drop(store);
    let store = open(dir.path());
    assert_eq!(count(&store), 4);
    assert!(store.head("brief").unwrap().unwrap().expires_at.is_some());
    assert_eq!(store.verify().unwrap().errors, [""; 0]);
}

/// Writes the files of a store that was kept as text: names behind `=`, bytes in hexadecimal, of
/// long runs of one byte its number.
fn unpack(text: &str, dir: &Path) {
    let byte = |hex: &str| u8::from_str_radix(hex, 16).unwrap();
    let mut files: Vec<(&str, Vec<u8>)> = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("= ") {
            files.push((name, Vec::new()));
            continue;
        }
        let (_, bytes) = files.last_mut().unwrap();
        match line.split_once(" * ") {
            Some((hex, count)) => bytes.extend(vec![byte(hex); count.parse().unwrap()]),
            None => bytes.extend((0..line.len()).step_by(2).map(|at| byte(&line[at..at + 2]))),
        }
    }
    for (name, bytes) in files {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
}

/// What the store of format 3 has in it.
fn check_format_3(store: &Store, brief_lives: bool) {
    let get = |key: &str| store.get(key).unwrap().map(|found| found.value.to_vec());
    assert_eq!(get("inline").unwrap(), b"tiny");
    assert_eq!(get("large").unwrap(), vec![7; 20_000]);
    assert_eq!(get("brief").is_some(), brief_lives);
    assert_eq!(get("last").unwrap(), b"one");
    for n in 156..160_u8 {
        assert_eq!(get(&format!("fill/{}", n % 4)).unwrap(), vec![n; 12_000]);
    }
    for n in 0..10 {
        assert_eq!(get(&format!("gone/{n}")), None, "its deletion is in the mark alone");
    }
}

/// The store was written and closed by the last program of format 3, but for its checkpoint. Its
/// mark lists free segments, a range deletion that was not swept, when the first object expires,
/// and a block's live bytes, each in a part of its own; the last as they were, not rounded.
#[test]
fn a_store_of_format_3_is_read_and_then_raised() {
    let dir = tempfile::tempdir().unwrap();
    unpack(include_str!("stores/format-3.txt"), dir.path());
    let manifests = ["flash", "large"].map(|tier| dir.path().join(tier).join("TERRACE"));
    let placed = dir.path().join("flash/TERRACE.placed");
    let hands = Hands::new();
    let options = crate::Options {
        log_capacity_bytes: Some(2 << 20),
        ..timed_options(dir.path(), &hands)
    };
    let looking = crate::Options {
        read_only: true,
        ..options.clone()
    };
    let store = Store::open(looking).unwrap();
    check_format_3(&store, true);
    let stats = store.stats();
    let homes = [stats.inline, stats.flash, stats.block].map(|home| (home.objects, home.bytes));
    assert_eq!(homes, [(3, 8), (14, 168_000), (1, 20_000)]);
    assert_eq!((stats.log.segments_used, stats.log.segments_free), (6, 2));
    drop(store);
    assert_eq!(manifests.each_ref().map(|path| format_version(path)), [3, 3]);
    assert!(placed.exists());
    let store = Store::open(options.clone()).unwrap();
    check_format_3(&store, true);
    assert_eq!(manifests.each_ref().map(|path| format_version(path)), [5, 5]);
    assert!(!placed.exists());
    eventually("looking for misplaced values", || !store.stats().placement.migrating);
    store.put("new", "one").unwrap();
    store.close().unwrap();
    drop(store);
    hands.advance(Duration::from_secs(20 * 365 * 86_400));
    let store = Store::open(options).unwrap();
    check_format_3(&store, false);
    assert!(
        !store.stats().placement.migrating,
        "how values are placed is remembered"
    );
    assert_eq!(store.verify().unwrap().errors, [""; 0]);
}

/// All files of a store but its locks, which say nothing.
fn files_of(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for item in std::fs::read_dir(dir).unwrap() {
        let path = item.unwrap().path();
        if path.is_dir() {
            found.extend(files_of(&path));
        } else if path.file_name().unwrap() != "LOCK" {
            let bytes = std::fs::read(&path).unwrap();
            found.insert(path, bytes);
        }
    }
    found
}

/// Regression: an open, or a repair, whose settings do not fit the store was refused after it had
/// raised the store to the newest format: the program that wrote the store did not open it any
/// more, though the store had never been opened by a newer one. What is refused has written
/// nothing.
#[test]
fn a_refused_open_leaves_a_store_of_format_3_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    unpack(include_str!("stores/format-3.txt"), dir.path());
    let before = files_of(dir.path());
    let fitting = crate::Options {
        log_capacity_bytes: Some(2 << 20),
        ..timed_options(dir.path(), &Hands::new())
    };
    // Too large for a segment of this store, though not for the one in the settings.
    let wide = crate::Options {
        segment_bytes: 1 << 20,
        log_capacity_bytes: None,
        size_threshold_bytes: 200 << 10,
        ..fitting.clone()
    };
    // The shortest log, and nothing beside it.
    let short = crate::Options {
        flash_capacity_bytes: 8 * fitting.segment_bytes,
        ..fitting.clone()
    };
    for (option, options) in [("size threshold", wide.clone()), ("flash capacity", short)] {
        let refused = Store::open(options).map(drop);
        assert!(
            matches!(&refused, Err(crate::Error::Invalid(reason)) if reason.contains(option)),
            "{refused:?}"
        );
        assert!(files_of(dir.path()) == before, "{option}: something was written");
    }
    let refused = Store::repair(wide);
    assert!(matches!(refused, Err(crate::Error::Invalid(_))), "{refused:?}");
    assert!(files_of(dir.path()) == before, "a repair wrote something");
    check_format_3(&Store::open(fitting).unwrap(), true);
}

/// A repair writes a mark of the newest format, so it raises the store before.
#[test]
fn a_store_of_format_3_is_repaired_and_raised() {
    let dir = tempfile::tempdir().unwrap();
    unpack(include_str!("stores/format-3.txt"), dir.path());
    let hands = Hands::new();
    let options = crate::Options {
        log_capacity_bytes: Some(2 << 20),
        ..timed_options(dir.path(), &hands)
    };
    Store::repair(options.clone()).unwrap();
    let manifests = ["flash", "large"].map(|tier| dir.path().join(tier).join("TERRACE"));
    assert_eq!(manifests.each_ref().map(|path| format_version(path)), [5, 5]);
    let store = Store::open(options).unwrap();
    check_format_3(&store, true);
    assert_eq!(store.verify().unwrap().errors, [""; 0]);
}
