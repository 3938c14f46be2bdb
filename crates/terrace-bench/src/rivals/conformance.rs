//! Checks every candidate in this build before anything is measured.
#![allow(clippy::unwrap_used)]

use super::{Candidate, KeyValue, Opening};
use crate::harness::values::Values;
use ::terrace::Durability::{Buffered, Sync};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Runs a test on an empty database of each candidate.
fn each(test: impl Fn(Candidate, &Opening)) {
    for candidate in Candidate::compiled_in() {
        let directory = tempfile::tempdir().unwrap();
        eprintln!("- {}", candidate.name());
        test(candidate, &Opening::new(&directory.path().join("store")));
    }
}

fn open(candidate: Candidate, opening: &Opening) -> Box<dyn KeyValue> {
    candidate
        .open(opening)
        .unwrap_or_else(|error| panic!("{}: {error}", candidate.name()))
}

fn get(store: &dyn KeyValue, key: &[u8]) -> Option<Vec<u8>> {
    // The buffer's former contents must not be seen.
    let mut value = b"left over".to_vec();
    let found = store.get(key, &mut value).unwrap();
    assert!(found || value.is_empty());
    found.then_some(value)
}

fn scan(store: &dyn KeyValue, from: &[u8], count: usize) -> Pairs {
    let mut pairs = Pairs::new();
    store
        .scan(from, count, &mut |key, value| {
            pairs.push((key.to_vec(), value.to_vec()))
        })
        .unwrap();
    pairs
}

#[test]
fn overwriting_deleting_and_absent_keys() {
    each(|candidate, opening| {
        let store = open(candidate, opening);
        assert_eq!(get(&*store, b"absent"), None);
        for durability in [Buffered, Sync] {
            store.put(b"key", b"one", durability).unwrap();
            store.put(b"key2", b"other", durability).unwrap();
            store.put(b"key", b"the second", durability).unwrap();
            assert_eq!(get(&*store, b"key").as_deref(), Some(&b"the second"[..]));
            store.delete(b"key", durability).unwrap();
            store.delete(b"key", durability).unwrap();
            assert_eq!(get(&*store, b"key"), None);
            assert_eq!(get(&*store, b"key2").as_deref(), Some(&b"other"[..]));
            store.put(b"key", b"again", durability).unwrap();
            assert_eq!(get(&*store, b"key").as_deref(), Some(&b"again"[..]));
        }
        store.close().unwrap();
    });
}

#[test]
fn empty_and_large_values_and_keys_of_any_bytes() {
    each(|candidate, opening| {
        let store = open(candidate, opening);
        let values = Values::new(7, 1 << 20);
        let lengths = [0, 1, 44, 1024, 4095, 4096, 8192, 128 << 10, (1 << 20) - 7, 1 << 20];
        let key = |number: usize| [&[0, 255, b' ', b'\n', b'%'][..], &number.to_be_bytes()].concat();
        for (number, &length) in lengths.iter().enumerate() {
            store
                .put(&key(number), values.piece(number as u64, length), Buffered)
                .unwrap();
        }
        store.flush().unwrap();
        for (number, &length) in lengths.iter().enumerate() {
            let found = get(&*store, &key(number)).expect("it was put");
            assert_eq!(found, values.piece(number as u64, length), "{length} bytes");
        }
        store.close().unwrap();
    });
}

#[test]
fn scans_are_in_order_or_refused() {
    each(|candidate, opening| {
        let store = open(candidate, opening);
        let numbers = [7_u32, 3, 256, 1, 65_536, 255];
        let value = |number: u32| vec![number as u8; if number == 256 { 200_000 } else { number as usize % 1000 }];
        for number in numbers {
            store.put(&number.to_be_bytes(), &value(number), Buffered).unwrap();
        }
        store.put(&255_u32.to_be_bytes(), b"old", Buffered).unwrap();
        store.put(&255_u32.to_be_bytes(), &value(255), Buffered).unwrap();
        store.delete(&3_u32.to_be_bytes(), Buffered).unwrap();
        if candidate.abilities().scans {
            let expected = |numbers: &[u32]| -> Pairs {
                let pair = |&number: &u32| (number.to_be_bytes().to_vec(), value(number));
                numbers.iter().map(pair).collect()
            };
            assert_eq!(scan(&*store, &[], 100), expected(&[1, 7, 255, 256, 65_536]));
            assert_eq!(scan(&*store, &2_u32.to_be_bytes(), 2), expected(&[7, 255]));
            assert_eq!(scan(&*store, &255_u32.to_be_bytes(), 2), expected(&[255, 256]));
            assert_eq!(scan(&*store, &[255], 2), Pairs::new());
            assert_eq!(scan(&*store, &[], 0), Pairs::new());
        } else {
            assert!(store.scan(&[], 1, &mut |_, _| {}).is_err());
        }
        store.close().unwrap();
    });
}

#[test]
fn what_was_synced_is_found_after_opening_again() {
    each(|candidate, opening| {
        if !candidate.abilities().persists {
            return;
        }
        let store = open(candidate, opening);
        store.put(b"gone", b"x", Sync).unwrap();
        store
            .put_all(&[(b"a", b"1"), (b"b", b"2"), (b"a", b"3")], Buffered)
            .unwrap();
        store.put(b"c", b"synced", Sync).unwrap();
        store.delete(b"gone", Sync).unwrap();
        store.close().unwrap();
        let store = open(candidate, opening);
        assert_eq!(get(&*store, b"a").as_deref(), Some(&b"3"[..]));
        assert_eq!(get(&*store, b"b").as_deref(), Some(&b"2"[..]));
        assert_eq!(get(&*store, b"c").as_deref(), Some(&b"synced"[..]));
        assert_eq!(get(&*store, b"gone"), None);
        store.put(b"d", b"more", Buffered).unwrap();
        store.flush().unwrap();
        store.close().unwrap();
        let store = open(candidate, opening);
        assert_eq!(get(&*store, b"d").as_deref(), Some(&b"more"[..]));
        assert!(opening.disk_bytes().unwrap() > 0);
    });
}

/// Random writes against a map, enough to fill memtables and to split pages.
#[test]
fn histories_end_as_in_a_model() {
    const SEED: u64 = 5;
    each(|candidate, opening| {
        let mut opening = opening.clone();
        opening.cache_bytes = 8 << 20;
        let mut store = open(candidate, &opening);
        let mut random = ChaCha8Rng::seed_from_u64(SEED);
        let values = Values::new(SEED, 40_000);
        let mut model = BTreeMap::new();
        for step in 0..6000_u64 {
            let key = format!("key/{:04}", random.random_range(0..1500)).into_bytes();
            let durability = if step % 500 == 0 { Sync } else { Buffered };
            if random.random_range(0..10) == 0 {
                store.delete(&key, durability).unwrap();
                model.remove(&key);
            } else {
                let length = random.random_range(0..200) * random.random_range(0..200);
                let value = values.piece(step, length);
                store.put(&key, value, durability).unwrap();
                model.insert(key, value);
            }
            if step == 3000 && candidate.abilities().persists {
                store.sync().unwrap();
                store.close().unwrap();
                store = open(candidate, &opening);
            }
        }
        for number in 0..1500 {
            let key = format!("key/{number:04}").into_bytes();
            let expected = model.get(&key).copied();
            assert_eq!(get(&*store, &key).as_deref(), expected, "seed {SEED}, {number}");
        }
        if candidate.abilities().scans {
            let expected: Pairs = model.iter().map(|(key, value)| (key.clone(), value.to_vec())).collect();
            assert!(
                scan(&*store, b"key/", 2000) == expected,
                "seed {SEED}: the scan differs"
            );
        }
        store.close().unwrap();
    });
}

#[test]
fn many_threads_read_and_write() {
    each(|candidate, opening| {
        let store = open(candidate, opening);
        std::thread::scope(|scope| {
            for thread in 0..8_u32 {
                let store = &*store;
                scope.spawn(move || {
                    for number in 0..100_u32 {
                        let key = format!("{thread}/{number}");
                        let durability = if number % 25 == 0 { Sync } else { Buffered };
                        store.put(key.as_bytes(), key.as_bytes(), durability).unwrap();
                        assert_eq!(get(store, key.as_bytes()).as_deref(), Some(key.as_bytes()));
                        let earlier = format!("{thread}/{}", number / 2);
                        assert_eq!(get(store, earlier.as_bytes()).as_deref(), Some(earlier.as_bytes()));
                    }
                });
            }
        });
        store.close().unwrap();
    });
}
