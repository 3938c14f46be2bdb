//! Backups, restores and expired snapshots: what is linked and what is copied, what is refused,
//! what power cuts and full devices leave. `model` tests backups beside writers.

mod damage;
mod faults;
mod increments;
mod refusals;
mod snapshots;

use crate::common::bytes;
use std::{collections::BTreeMap, path::Path, time::Duration};
use terrace::{BackupOptions, BackupProgress, Durability, Options, PutOptions, RestoreOptions, ScanRange, Store};

/// Longest wait for background work.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub type Contents = BTreeMap<String, Vec<u8>>;

/// Options with a small ring and small blocks.
pub fn options(dir: &Path) -> Options {
    Options {
        segment_bytes: 256 << 10,
        log_capacity_bytes: Some(6 << 20),
        size_threshold_bytes: 16 << 10,
        split_threshold_bytes: 256 << 10,
        cache_bytes: 0,
        ..Options::new(dir)
    }
    .tuned(|tuning| {
        tuning.space_slack_bytes = 0;
        tuning.memtable_bytes = 64 << 10;
        tuning.overlay_bytes = 1 << 20;
    })
}

/// Puts `count` small, tiny and large values.
pub fn fill(store: &Store, prefix: &str, count: u64) {
    let buffered = PutOptions {
        durability: Durability::Buffered,
        ..PutOptions::default()
    };
    for n in 0..count {
        let length = [40, 3_000, 9_000, 40_000][(n % 4) as usize];
        store
            .put_with(format!("{prefix}{n:04}"), bytes(n + length as u64, length), &buffered)
            .unwrap();
    }
}

pub fn contents(store: &Store) -> Contents {
    store
        .scan(ScanRange::all())
        .unwrap()
        .map(|item| item.unwrap())
        .map(|item| {
            (
                String::from_utf8(item.key.to_vec()).unwrap(),
                item.value().unwrap().to_vec(),
            )
        })
        .collect()
}

/// A store with values of each kind, its blocks sealed.
pub fn filled(dir: &Path) -> Store {
    let store = Store::open(options(dir)).unwrap();
    fill(&store, "k/", 200);
    for n in (0..200).step_by(7) {
        store.delete(format!("k/{n:04}")).unwrap();
    }
    store.close().unwrap();
    drop(store);
    Store::open(options(dir)).unwrap()
}

/// Restores a backup and returns the store's contents, which must verify.
pub fn restored(backup: &Path) -> Contents {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path());
    Store::restore(backup, &options, &RestoreOptions::default()).unwrap();
    let store = Store::open(options).unwrap();
    assert_eq!(store.stats().damage, [""; 0]);
    assert_eq!(store.verify().unwrap().errors, [""; 0]);
    let filled_from = store.stats().hash_index.checkpoint.filled_from;
    assert_ne!(
        filled_from,
        Some(terrace::FilledFrom::Checkpoint),
        "none is in a backup"
    );
    contents(&store)
}

pub fn onto(earlier: &Path) -> BackupOptions {
    BackupOptions {
        onto: Some(earlier.to_owned()),
        ..BackupOptions::default()
    }
}

/// Expects an intact backup.
pub fn assert_verifies(backup: &Path) {
    let check = Store::verify_backup(backup, &BackupProgress::default()).unwrap();
    assert_eq!(check.errors, [""; 0]);
    assert!(check.store.is_some());
}
