//! The flash log's capacity, changed while the store is open and between two openings.

use super::{bytes, eventually, small_options};
use crate::{Durability, Options, PutOptions, Store};
use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

const MIB: u64 = 1 << 20;
const KEYS: u64 = 3_000;
const LENGTH: usize = 5_000;

fn put(store: &Store, n: u64) {
    let buffered = PutOptions {
        durability: Durability::Buffered,
        ..PutOptions::default()
    };
    store
        .put_with(format!("{:05}", n % KEYS), bytes(n % KEYS, LENGTH), &buffered)
        .unwrap();
}

/// What the segment files take by `du`.
fn log_bytes(dir: &Path) -> u64 {
    let files = fs::read_dir(dir.join("flash/segments")).unwrap();
    files.map(|file| file.unwrap().metadata().unwrap().blocks() * 512).sum()
}

fn assert_holds_all(store: &Store) {
    for n in 0..KEYS {
        let object = store.get(format!("{n:05}")).unwrap();
        assert!(object.unwrap().value == bytes(n, LENGTH), "{n}");
    }
    assert_eq!(store.verify().unwrap().errors, [""; 0]);
}

/// A lower capacity never gave back the segments that were there.
#[test]
fn the_log_follows_its_capacity_down_and_up_while_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        flash_capacity_bytes: 8 * MIB,
        ..small_options(dir.path())
    };
    let store = Store::open(options.clone()).unwrap();
    (0..KEYS).for_each(|n| put(&store, n));
    assert!(log_bytes(dir.path()) > 5 * MIB, "{}", log_bytes(dir.path()));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // None of these is refused.
            for n in 0.. {
                if is_over.load(Ordering::Acquire) {
                    break;
                }
                put(&store, n);
            }
        });
        for error in [2 * MIB - 1, MIB << 30] {
            store.set_flash_capacity(error).unwrap_err();
        }
        store.set_flash_capacity(2 * MIB).unwrap();
        assert_eq!(store.stats().log.capacity_bytes, 2 * MIB);
        eventually("the log within 2 MiB", || {
            store.stats().log.allocated_bytes <= 2 * MIB && log_bytes(dir.path()) <= 2 * MIB
        });
        store.set_flash_capacity(16 * MIB).unwrap();
        eventually("a longer log", || log_bytes(dir.path()) > 4 * MIB);
        is_over.store(true, Ordering::Release);
    });
    assert_holds_all(&store);
    store.close().unwrap();
    drop(store);
    let lower = Options {
        flash_capacity_bytes: 2 * MIB,
        ..options
    };
    let store = Store::open(lower).unwrap();
    eventually("the log within what it was opened with", || {
        store.stats().log.allocated_bytes <= 2 * MIB && log_bytes(dir.path()) <= 2 * MIB
    });
    assert_holds_all(&store);
}
