//! What RAM says is not there: never of an object that is.

use super::{bytes, eventually, open, small_options};
use crate::{Batch, Durability, FilledFrom, PutOptions, Store, key_hash};
use std::{collections::HashMap, path::Path};

/// Two keys that share a slot of the hash index.
fn two_of_a_class(store: &Store) -> [String; 2] {
    let mut seen = HashMap::new();
    for n in 0_u64.. {
        let key = format!("key {n}");
        let class = store.engine().hash_index.class_hash(key_hash(key.as_bytes()));
        if let Some(other) = seen.insert(class, n) {
            return [format!("key {other}"), key];
        }
    }
    unreachable!("there are fewer classes than numbers")
}

fn put(store: &Store, key: &str, value: Vec<u8>) {
    let options = PutOptions {
        durability: Durability::Buffered,
        ..PutOptions::default()
    };
    store.put_with(key, value, &options).unwrap();
}

fn knows_absent(store: &Store, key: &str) -> bool {
    store.engine().knows_absent(key_hash(key.as_bytes()))
}

fn filled(store: &Store) -> Option<FilledFrom> {
    eventually("a filled hash index", || !store.stats().hash_index.refilling);
    store.stats().hash_index.checkpoint.filled_from
}

/// Applies everything, so that no frame answers.
fn settle(store: &Store) {
    store.flush().unwrap();
}

#[test]
fn a_key_that_never_was_is_known_to_be_absent() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    filled(&store);
    let lengths = [30, 1_000, 40_000];
    let keys: Vec<String> = (0..300).map(|n| format!("{n:03}")).collect();
    for (n, key) in keys.iter().enumerate() {
        put(&store, key, bytes(n as u64, lengths[n % 3]));
    }
    settle(&store);
    // Of the few others a table may have to be read: its filter is wrong about one in a hundred.
    let absent: Vec<String> = (0..1_000).map(|n| format!("absent {n}")).collect();
    let known: Vec<_> = absent.iter().filter(|key| knows_absent(&store, key)).collect();
    assert!(known.len() > 950, "{} of 1,000", known.len());
    let before = store.stats().index.block_reads;
    for key in known {
        assert_eq!(store.get(key).unwrap(), None);
        assert!(store.head(key).unwrap().is_none());
    }
    assert_eq!(store.stats().index.block_reads, before, "no table was read");
    for key in &keys {
        assert!(!knows_absent(&store, key), "{key} is there");
    }
    // Deleted ones are asked for in the ordered index: another key may share their slot.
    for key in &keys {
        store.delete(key).unwrap();
    }
    settle(&store);
    assert!(
        keys.iter()
            .all(|key| store.get(key).unwrap().is_none() && !knows_absent(&store, key))
    );
}

/// Of two keys of a class the later has the slot. When it is deleted there is none, and the other
/// one is still there: found by the ordered index, in this life and in later ones, whether the hash
/// index is filled from a checkpoint, from the log behind it, or by a walk.
#[test]
fn a_key_whose_slot_went_with_another_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_bare(dir.path());
    let [first, second] = two_of_a_class(&store);
    let is_found = |store: &Store| {
        assert!(!knows_absent(store, &first));
        assert_eq!(store.get(&first).unwrap().unwrap().len(), 1_000);
        assert!(store.head(&first).unwrap().is_some());
        assert_eq!(store.get(&second).unwrap(), None);
    };
    filled(&store);
    put(&store, &first, bytes(1, 1_000));
    put(&store, &second, bytes(2, 2_000));
    settle(&store);
    // Deleted behind the checkpoint: the log tells.
    assert!(store.checkpoint().unwrap());
    store.delete(&second).unwrap();
    settle(&store);
    is_found(&store);
    drop(store);
    let store = open_bare(dir.path());
    assert_eq!(filled(&store), Some(FilledFrom::Checkpoint));
    is_found(&store);
    // Deleted before it: the filter in it tells.
    assert!(store.checkpoint().unwrap());
    put(&store, "other", bytes(3, 100));
    settle(&store);
    drop(store);
    let store = open_bare(dir.path());
    assert_eq!(filled(&store), Some(FilledFrom::Checkpoint));
    is_found(&store);
    // A walk finds it and gives it the slot.
    drop(store);
    std::fs::remove_file(dir.path().join("flash").join("CHECKPOINT")).unwrap();
    let store = open_bare(dir.path());
    assert_eq!(filled(&store), Some(FilledFrom::Index));
    is_found(&store);
}

/// Without checkpoints but those that are asked for.
fn open_bare(dir: &Path) -> Store {
    Store::open(small_options(dir).tuned(|tuning| tuning.checkpoint_log_bytes = 0)).unwrap()
}

/// Values that move, change their homes and are deleted, many at once, while others look for them:
/// what is there all the time is found all the time.
#[test]
fn what_moves_between_homes_is_found_all_the_time() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(small_options(dir.path())).unwrap();
    filled(&store);
    let keys: Vec<String> = (0..40).map(|n| format!("{n:02}")).collect();
    let write = |round: u64| {
        let mut batch = Batch::new();
        for (n, key) in (0..).zip(&keys) {
            // Inline, in the log, in a block.
            let length = [20, 900, 20_000][((round + n) % 3) as usize];
            batch.put(key, bytes(round + n, length));
        }
        store.write(batch, Durability::Buffered).unwrap();
    };
    write(0);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut rounds = 0;
            while !done.load(std::sync::atomic::Ordering::Acquire) {
                for key in &keys {
                    assert!(store.get(key).unwrap().is_some(), "{key} is gone in round {rounds}");
                    assert!(store.head(key).unwrap().is_some(), "{key} is gone in round {rounds}");
                }
                rounds += 1;
            }
            rounds
        });
        (1..400).for_each(write);
        done.store(true, std::sync::atomic::Ordering::Release);
        assert!(reader.join().unwrap() > 0);
    });
}
