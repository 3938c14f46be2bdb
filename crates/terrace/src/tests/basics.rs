//! What a caller expects of a store: every home, every kind of write, snapshots, scans, recycling,
//! refusals.

use super::{buffered, bytes, open, small_options};
use crate::{
    Attributes, Batch, Condition, Durability, Error, HomeKind, Options, PutOptions, ScanRange, Store, WriterOptions,
};
use std::io::{Read, Write};

const SIZES: [usize; 9] = [0, 1, 64, 65, 1000, 5000, (16 << 10) - 1, 16 << 10, 300_000];

#[test]
fn values_of_every_home_come_back_before_and_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let check = |store: &Store| {
        for (seed, size) in SIZES.into_iter().enumerate() {
            let key = format!("key-{size}");
            let object = store.get(&key).unwrap().unwrap();
            assert_eq!(object.value, bytes(seed as u64, size), "{size} bytes");
            assert_eq!(object.attributes.get_str("size"), Some(&*size.to_string()));
            let info = store.head(&key).unwrap().unwrap();
            let home = match size {
                0..=64 => HomeKind::Inline,
                65..16384 => HomeKind::Flash,
                _ => HomeKind::Block,
            };
            assert_eq!((info.length, info.home), (size as u64, home));
            assert_eq!(info.version, object.version);
        }
        assert_eq!(store.get("nothing").unwrap(), None);
        assert_eq!(store.head("nothing").unwrap(), None);
    };
    let store = open(dir.path());
    for (seed, size) in SIZES.into_iter().enumerate() {
        let options = PutOptions {
            attributes: Attributes::new().with("size", size.to_string()),
            ..PutOptions::default()
        };
        store
            .put_with(format!("key-{size}"), bytes(seed as u64, size), &options)
            .unwrap();
    }
    check(&store);
    store.flush().unwrap();
    check(&store);
    store.close().unwrap();
    assert!(matches!(store.put("a", "b"), Err(Error::Unavailable(_))));
    drop(store);
    let store = open(dir.path());
    check(&store);
    let report = store.verify().unwrap();
    assert_eq!((report.objects, report.errors.len()), (SIZES.len() as u64, 0));
}

#[test]
fn overwrites_deletes_and_scans_agree() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for n in 0..500_u32 {
        store
            .put_with(format!("{n:04}"), bytes(n.into(), 200), &buffered())
            .unwrap();
    }
    for n in (0..500_u32).step_by(3) {
        store
            .delete_with(format!("{n:04}"), Condition::None, Durability::Buffered)
            .unwrap();
    }
    for n in (0..500_u32).step_by(5) {
        store
            .put_with(format!("{n:04}"), bytes(u64::from(n) + 9, 30_000), &buffered())
            .unwrap();
    }
    let expected: Vec<_> = (0..500_u32)
        .filter(|n| n % 5 == 0 || n % 3 != 0)
        .map(|n| format!("{n:04}"))
        .collect();
    let keys = |scan: crate::Scan| {
        scan.map(|item| String::from_utf8(item.unwrap().key.to_vec()).unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(keys(store.scan(ScanRange::all()).unwrap()), expected);
    let mut back: Vec<_> = store
        .scan(ScanRange::all())
        .unwrap()
        .rev()
        .map(|item| item.unwrap().key)
        .collect();
    back.reverse();
    assert_eq!(
        back.iter()
            .map(|key| String::from_utf8_lossy(key).into_owned())
            .collect::<Vec<_>>(),
        expected
    );
    let prefixed = keys(store.scan(ScanRange::prefix("01")).unwrap());
    assert_eq!(
        prefixed,
        expected
            .iter()
            .filter(|key| key.starts_with("01"))
            .cloned()
            .collect::<Vec<_>>()
    );
    let page = keys(store.scan(ScanRange::prefix("01").after("0150")).unwrap());
    assert_eq!(
        page,
        expected
            .iter()
            .filter(|key| key.starts_with("01") && ***key > *"0150")
            .cloned()
            .collect::<Vec<_>>()
    );
    for (item, value) in store.scan(ScanRange::all()).unwrap().next_values(1000).unwrap() {
        let n: u64 = String::from_utf8_lossy(&item.key).parse().unwrap();
        let expected = if n.is_multiple_of(5) {
            bytes(n + 9, 30_000)
        } else {
            bytes(n, 200)
        };
        assert_eq!(value.unwrap(), expected);
    }
    let objects = store.multi_get(&expected);
    assert!(objects.iter().all(|object| object.as_ref().unwrap().is_some()));
}

#[test]
fn a_batch_is_whole_or_absent_and_has_one_version() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut batch = Batch::new();
    batch
        .put("a", "first")
        .put("b", bytes(1, 50_000))
        .delete("c")
        .put("a", "second");
    let version = store.write(batch, Durability::Sync).unwrap();
    assert_eq!(&store.get("a").unwrap().unwrap()[..], b"second");
    assert_eq!(store.get("b").unwrap().unwrap().version, version);
    assert_eq!(store.get("a").unwrap().unwrap().version, version);
    let mut batch = Batch::new();
    batch
        .put("d", "x")
        .put_with("a", "third", Attributes::new(), Condition::Absent);
    assert!(matches!(
        store.write(batch, Durability::Sync),
        Err(Error::ConditionFailed { .. })
    ));
    assert_eq!(store.get("d").unwrap(), None);
    assert!(matches!(
        store.write(Batch::new(), Durability::Sync),
        Err(Error::Invalid(_))
    ));
}

#[test]
fn of_fifty_threads_that_create_one_key_one_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for round in 0..20 {
        let options = PutOptions {
            condition: Condition::Absent,
            durability: Durability::Buffered,
            ..PutOptions::default()
        };
        let key = format!("key {round}");
        let wins: usize = std::thread::scope(|scope| {
            let racers: Vec<_> = (0..50_u8)
                .map(|racer| {
                    let (store, key, options) = (&store, &key, &options);
                    // Some values are large: they must be placed before it is decided which write
                    // wins.
                    scope.spawn(move || {
                        store
                            .put_with(key, vec![racer; 10 + 400 * usize::from(racer)], options)
                            .is_ok()
                    })
                })
                .collect();
            racers.into_iter().map(|racer| usize::from(racer.join().unwrap())).sum()
        });
        assert_eq!(wins, 1);
    }
}

#[test]
fn conditions_on_versions() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let with = |condition| PutOptions {
        condition,
        ..PutOptions::default()
    };
    assert!(store.put_with("k", "0", &with(Condition::Present)).is_err());
    let first = store.put_with("k", "1", &with(Condition::Absent)).unwrap();
    let second = store.put_with("k", "2", &with(Condition::VersionIs(first))).unwrap();
    let error = store
        .put_with("k", "3", &with(Condition::VersionIs(first)))
        .unwrap_err();
    assert!(error.to_string().contains(&second.to_string()), "{error}");
    store.flush().unwrap();
    assert!(
        store
            .delete_with("k", Condition::VersionIs(first), Durability::Sync)
            .is_err()
    );
    store
        .delete_with("k", Condition::VersionIs(second), Durability::Sync)
        .unwrap();
    assert!(store.delete_with("k", Condition::Present, Durability::Sync).is_err());
}

/// Bytes of a piece of a long value.
const PIECE_BYTES: usize = 4 * 65_532;

/// From somewhere in the middle, in pieces.
fn reads_on_in_pieces(store: &Store, value: &[u8], wanted: usize) {
    let mut reader = store.reader("stream").unwrap().unwrap();
    let start = value.len() / 5;
    reader.seek_to(start as u64).unwrap();
    let mut read = Vec::new();
    // A byte at a time would take long where that is what one gets.
    while read.len() < 200_000 {
        let piece = reader.read_piece(wanted).unwrap();
        if piece.is_empty() {
            break;
        }
        // As much as is wanted, or up to where a piece ends; and a small value whole.
        let end = start + read.len() + piece.len();
        let is_enough = piece.len() >= wanted || end.is_multiple_of(PIECE_BYTES) || end == value.len();
        assert!(is_enough, "{} of {wanted}", piece.len());
        let at_most = wanted.saturating_add(65_532).max(PIECE_BYTES);
        assert!(piece.len() <= at_most, "{} of {wanted}", piece.len());
        read.extend_from_slice(&piece);
    }
    assert_eq!(read, value[start..][..read.len()]);
    assert!(read.len() >= 200_000 || start + read.len() == value.len());
}

#[test]
fn streams_of_known_and_unknown_length() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for size in [0, 10, 16_383, 16_384, 100_000, 3_000_000] {
        let value = bytes(size as u64, size);
        for length in [None, Some(size as u64)] {
            let options = WriterOptions {
                length,
                ..WriterOptions::default()
            };
            let mut writer = store.writer("stream", options).unwrap();
            for part in value.chunks(10_007) {
                writer.write_all(part).unwrap();
            }
            writer.finish().unwrap();
            assert_eq!(store.get("stream").unwrap().unwrap().value, value);
            let mut reader = store.reader("stream").unwrap().unwrap();
            let mut read = Vec::new();
            reader.read_to_end(&mut read).unwrap();
            assert_eq!(read, value);
            reader.seek_to(size as u64 / 2).unwrap();
            read.clear();
            reader.read_to_end(&mut read).unwrap();
            assert_eq!(read, value[size / 2..]);
            let range = (size as u64 / 3)..(size as u64 / 3 + 70_000);
            let expected = &value[size / 3..(size / 3 + 70_000).min(size)];
            assert_eq!(store.get_range("stream", range).unwrap().unwrap(), expected);
            for wanted in [1, 65_532, 65_533, 300_000, usize::MAX] {
                reads_on_in_pieces(&store, &value, wanted);
            }
        }
    }
    let mut writer = store
        .writer(
            "short",
            WriterOptions {
                length: Some(50_000),
                ..WriterOptions::default()
            },
        )
        .unwrap();
    writer.write_all(&[1; 100]).unwrap();
    assert!(matches!(writer.finish(), Err(Error::Invalid(_))));
    let mut writer = store
        .writer(
            "long",
            WriterOptions {
                length: Some(10),
                ..WriterOptions::default()
            },
        )
        .unwrap();
    assert!(writer.write_all(&[1; 100]).is_err());
    drop(writer);
    assert_eq!(store.get("short").unwrap(), None);
    assert_eq!(store.get("long").unwrap(), None);
}

#[test]
fn a_snapshot_does_not_see_what_comes_later() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for n in 0..50_u64 {
        store.put(format!("{n:03}"), bytes(n, 3000)).unwrap();
    }
    let snapshot = store.snapshot().unwrap();
    for n in 0..50_u64 {
        if n % 2 == 0 {
            store.delete(format!("{n:03}")).unwrap();
        } else {
            store.put(format!("{n:03}"), bytes(n + 100, 20_000)).unwrap();
        }
        store.put(format!("new {n:03}"), "x").unwrap();
    }
    store.flush().unwrap();
    assert_eq!(snapshot.scan(ScanRange::all()).unwrap().count(), 50);
    for n in 0..50_u64 {
        assert_eq!(snapshot.get(format!("{n:03}")).unwrap().unwrap().value, bytes(n, 3000));
    }
    assert_eq!(store.scan(ScanRange::all()).unwrap().count(), 75);
}

#[test]
fn a_log_far_smaller_than_the_data_recycles_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    // 4 MiB of flash, 24 MiB of live values, overwritten three times.
    for round in 0..3_u64 {
        for n in 0..6_000_u64 {
            store
                .put_with(format!("{n:05}"), bytes(n + round * 7, 4000), &buffered())
                .unwrap();
        }
    }
    let check = |store: &Store| {
        for n in (0..6_000_u64).step_by(7) {
            assert_eq!(
                store.get(format!("{n:05}")).unwrap().unwrap().value,
                bytes(n + 14, 4000),
                "{n}"
            );
        }
    };
    check(&store);
    let stats = store.stats();
    assert!(stats.log.segments_reclaimed > 200, "{stats:?}");
    assert!(stats.log.allocated_bytes <= 4 << 20);
    assert!(stats.block.objects > 4000, "{stats:?}");
    store.close().unwrap();
    drop(store);
    let store = open(dir.path());
    check(&store);
    let report = store.verify().unwrap();
    assert_eq!((report.objects, report.errors), (6_000, vec![]));
}

#[test]
fn one_process_has_the_store_and_bad_input_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    assert!(matches!(Store::open(small_options(dir.path())), Err(Error::Locked(_))));
    assert!(matches!(store.put("", "x"), Err(Error::Invalid(_))));
    assert!(matches!(store.get(vec![1; 4097]), Err(Error::Invalid(_))));
    store.put(vec![0xff; 4096], "longest key").unwrap();
    let attributes = Attributes::new().with("a", vec![1; 70_000]);
    let options = PutOptions {
        attributes,
        ..PutOptions::default()
    };
    assert!(matches!(store.put_with("k", "v", &options), Err(Error::Invalid(_))));
    let too_long = WriterOptions {
        length: Some(6 << 30),
        ..WriterOptions::default()
    };
    assert!(matches!(store.writer("k", too_long), Err(Error::Invalid(_))));
    drop(store);
    let other = tempfile::tempdir().unwrap();
    std::fs::create_dir(other.path().join("flash")).unwrap();
    std::fs::write(other.path().join("flash/photo.jpg"), "x").unwrap();
    assert!(matches!(
        Store::open(small_options(other.path())),
        Err(Error::NotAStore { .. })
    ));
    let no_create = Options {
        create: false,
        ..Options::new(other.path().join("absent"))
    };
    assert!(matches!(Store::open(no_create), Err(Error::NotAStore { .. })));
    let bad = Options {
        size_threshold_bytes: 0,
        ..Options::new(other.path().join("x"))
    };
    assert!(matches!(Store::open(bad), Err(Error::Invalid(_))));
}
