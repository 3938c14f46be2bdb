//! Visibility of writes: a `Buffered` one at once, a `Sync` one when it is durable.
//!
//! Regression: a reader got a `Sync` put before it was synced, and a crash then took it back: 105
//! of 90,609 reads in 114 kills saw a value that was gone afterwards. Here the test blocks the
//! syncs of the log.

use super::{
    bench::{Bench, eventually},
    held::HeldDisk,
};
use std::{
    io::Read,
    sync::{Arc, mpsc},
    thread::{JoinHandle, spawn},
    time::Duration,
};
use terrace::{
    Batch, Condition, Durability, Error, Options, PutOptions, Result, ScanRange, Store, Version,
    io::{Fault, FaultKind, Survival},
};

/// Long enough for an operation that does not wait.
const MOMENT: Duration = Duration::from_millis(100);

/// A store whose log is on a disk with syncs that can be blocked.
pub struct Held {
    pub bench: Bench,
    pub log: HeldDisk,
    pub store: Store,
}

impl Held {
    pub fn new(seed: u64) -> Self {
        let bench = Bench::new(seed);
        let log = HeldDisk::new(bench.flash.clone());
        let options = Options {
            flash_disk: Some(Arc::new(log.clone())),
            ..bench.options()
        };
        let store = Store::open(options).unwrap();
        Self { bench, log, store }
    }

    /// Starts a call on another thread, and returns when it has committed.
    fn commits<T: Send + 'static>(&self, call: impl FnOnce(&Store) -> T + Send + 'static) -> JoinHandle<T> {
        let before = self.store.stats().queue.committed_seq;
        let store = self.store.clone();
        let running = spawn(move || call(&store));
        eventually("the commit", &self.store, |stats| stats.queue.committed_seq > before);
        running
    }

    /// The same for a durable put.
    pub fn puts(&self, key: &'static str, value: &'static str) -> JoinHandle<Version> {
        self.commits(move |store| put(store, key, value, Durability::Sync, Condition::None).unwrap())
    }
}

fn put(store: &Store, key: &str, value: &str, durability: Durability, condition: Condition) -> Result<Version> {
    let options = PutOptions {
        durability,
        condition,
        ..PutOptions::default()
    };
    store.put_with(key, value, &options)
}

pub fn get(store: &Store, key: &str) -> Option<String> {
    store
        .get(key)
        .unwrap()
        .map(|object| String::from_utf8(object.value.to_vec()).unwrap())
}

/// Reads a key in every way, checks that the results agree, and returns the value.
pub fn read(store: &Store, key: &str) -> Option<String> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let got = get(store, key);
    let mut streamed = None;
    if let Some(mut reader) = store.reader(key).unwrap() {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        streamed = Some(text(&bytes));
    }
    assert_eq!(streamed, got, "a stream and a get of {key}");
    let many = store.multi_get(&[key]).pop().unwrap().unwrap();
    assert_eq!(many.map(|object| text(&object.value)), got, "multi_get of {key}");
    let head = store.head(key).unwrap();
    assert_eq!(
        head.map(|info| info.length),
        got.as_ref().map(|got| got.len() as u64),
        "head of {key}"
    );
    let snapshot = store.snapshot().unwrap().get(key).unwrap();
    assert_eq!(snapshot.map(|object| text(&object.value)), got, "a snapshot of {key}");
    let listed = store
        .scan(ScanRange::prefix(key))
        .unwrap()
        .next_values(1)
        .unwrap()
        .pop();
    assert_eq!(listed.map(|(_, value)| text(&value.unwrap())), got, "a scan of {key}");
    got
}

pub fn value(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[test]
fn a_sync_write_is_read_when_it_is_durable_and_not_before() {
    let held = Held::new(1);
    let store = &held.store;
    for key in ["put", "deleted", "batch 1", "batch 2", "long"] {
        store.put(key, "old").unwrap();
    }
    held.log.hold();
    // The first one is on its way to the device, the others are in RAM.
    let mut calls = vec![held.puts("put", "new")];
    held.log.wait_for_sync();
    calls.push(held.commits(|store| store.delete("deleted").unwrap()));
    calls.push(held.puts("another", "new"));
    calls.push(held.puts("put", "newest"));
    calls.push(held.commits(|store| {
        let mut batch = Batch::new();
        batch.put("batch 1", "new");
        batch.put("batch 2", "new");
        store.write(batch, Durability::Sync).unwrap()
    }));
    calls.push(held.commits(|store| store.put("long", vec![b'x'; 20_000]).unwrap()));
    for key in ["put", "deleted", "batch 1", "batch 2", "long"] {
        assert_eq!(read(store, key), value("old"), "{key}");
    }
    assert_eq!(read(store, "another"), None);
    held.log.release();
    let versions: Vec<Version> = calls.into_iter().map(|call| call.join().unwrap()).collect();
    assert!(versions.is_sorted());
    assert_eq!(read(store, "put"), value("newest"));
    assert_eq!(read(store, "deleted"), None);
    assert_eq!(
        (read(store, "batch 1"), read(store, "batch 2")),
        (value("new"), value("new"))
    );
    assert_eq!(read(store, "another"), value("new"));
    assert_eq!(read(store, "long").unwrap().len(), 20_000);
}

#[test]
fn what_was_read_survives_a_power_cut_at_that_moment() {
    for survival in Survival::ALL {
        let held = Held::new(2);
        held.store.put("key", "old").unwrap();
        held.log.hold();
        let first = held.puts("key", "new");
        held.log.wait_for_sync();
        let second = held.puts("key", "newest");
        let seen = read(&held.store, "key");
        let left = held.bench.fork();
        held.log.release();
        first.join().unwrap();
        second.join().unwrap();
        left.flash.power_cycle(survival);
        left.large.power_cycle(survival);
        let found = get(&left.open().unwrap(), "key");
        assert_eq!(seen, value("old"));
        assert!([value("old"), value("new")].contains(&found), "{survival:?}: {found:?}");
    }
}

#[test]
fn a_buffered_write_is_visible_at_once_unless_it_replaces_what_is_not() {
    let held = Held::new(3);
    let store = &held.store;
    let buffered = |key, text| put(store, key, text, Durability::Buffered, Condition::None).unwrap();
    buffered("key", "first");
    store.put("other", "first").unwrap();
    held.log.hold();
    let sync = held.puts("key", "second");
    held.log.wait_for_sync();
    // In the open frame, one replacing the other.
    buffered("side", "first");
    let over = held.puts("side", "second");
    assert_eq!(get(store, "key"), value("first"));
    assert_eq!(get(store, "side"), value("first"));
    buffered("other", "second");
    assert_eq!(get(store, "other"), value("second"));
    // Otherwise a reader would see it with an older value of the batch that it replaces.
    let replacing = held.commits(|store| put(store, "key", "third", Durability::Buffered, Condition::None).unwrap());
    assert_eq!(get(store, "key"), value("first"));
    assert!(!replacing.is_finished());
    held.log.release();
    sync.join().unwrap();
    over.join().unwrap();
    replacing.join().unwrap();
    assert_eq!(
        (read(store, "key"), read(store, "side")),
        (value("third"), value("second"))
    );
}

#[test]
fn a_snapshot_waits_only_if_it_must_show_something_later() {
    let held = Held::new(4);
    let store = held.store.clone();
    store.put("key", "old").unwrap();
    held.log.hold();
    let sync = held.puts("key", "new");
    held.log.wait_for_sync();
    let before = store.snapshot().unwrap();
    put(&store, "later", "new", Durability::Buffered, Condition::None).unwrap();
    let (done, answer) = mpsc::channel();
    let listing = store.clone();
    let scan = spawn(move || {
        let keys: Vec<_> = listing
            .scan(ScanRange::all())
            .unwrap()
            .map(|item| item.unwrap().key)
            .collect();
        done.send(keys.len()).unwrap();
    });
    assert!(
        answer.recv_timeout(MOMENT).is_err(),
        "the listing has to show what is not durable"
    );
    held.log.release();
    assert_eq!(answer.recv().unwrap(), 2);
    sync.join().unwrap();
    scan.join().unwrap();
    assert_eq!(before.get("key").unwrap().unwrap().value, "old");
    assert!(before.get("later").unwrap().is_none());
}

#[test]
fn a_refusal_waits_for_what_it_tells_of() {
    let held = Held::new(5);
    let store = &held.store;
    store.put("key", "old").unwrap();
    held.log.hold();
    let sync = held.puts("new", "new");
    held.log.wait_for_sync();
    // Another key's condition has nothing to wait for.
    let refused = put(store, "key", "x", Durability::Sync, Condition::Absent);
    assert!(matches!(refused, Err(Error::ConditionFailed { .. })));
    let (done, answer) = mpsc::channel();
    for durability in [Durability::Sync, Durability::Buffered] {
        let (store, done) = (store.clone(), done.clone());
        spawn(move || {
            done.send(put(&store, "new", "x", durability, Condition::Absent))
                .unwrap()
        });
    }
    assert!(answer.recv_timeout(MOMENT).is_err());
    // Accepted because of a write that is not durable: not visible before that is.
    let accepted = held.commits(|store| put(store, "new", "newer", Durability::Buffered, Condition::Present).unwrap());
    assert_eq!(get(store, "new"), None);
    held.log.release();
    for _ in 0..2 {
        assert!(matches!(answer.recv().unwrap(), Err(Error::ConditionFailed { .. })));
    }
    assert!(sync.join().unwrap() < accepted.join().unwrap());
    assert_eq!(read(store, "new"), value("newer"));
}

#[test]
fn a_range_deletion_is_seen_when_it_is_durable() {
    let held = Held::new(6);
    let store = &held.store;
    for key in ["a1", "a2", "b1"] {
        store.put(key, "old").unwrap();
    }
    held.log.hold();
    let deletion = held.commits(|store| store.delete_range(ScanRange::prefix("a"), Durability::Sync).unwrap());
    held.log.wait_for_sync();
    for key in ["a1", "a2", "b1"] {
        assert_eq!(read(store, key), value("old"), "{key}");
    }
    let put_back = held.commits(|store| put(store, "a1", "new", Durability::Buffered, Condition::None).unwrap());
    assert_eq!((get(store, "a1"), get(store, "a2")), (value("old"), value("old")));
    held.log.release();
    assert!(deletion.join().unwrap() < put_back.join().unwrap());
    assert_eq!(
        (read(store, "a1"), read(store, "a2"), read(store, "b1")),
        (value("new"), None, value("old"))
    );
}

/// It is unknown whether the write is on the device: this store never shows it, and the next one
/// shows what is there.
#[test]
fn what_a_failed_sync_leaves_unknown_is_not_shown_and_reads_go_on() {
    for survival in Survival::ALL {
        let bench = Bench::new(7);
        let store = bench.open().unwrap();
        store.put("key", "old").unwrap();
        put(&store, "buffered", "there", Durability::Buffered, Condition::None).unwrap();
        bench.flash.set_fault(Some(Fault::new(FaultKind::Sync).on("segments")));
        let failed = put(&store, "key", "new", Durability::Sync, Condition::None);
        assert!(matches!(failed, Err(Error::Failed(_))), "{failed:?}");
        for _ in 0..3 {
            assert_eq!(read(&store, "key"), value("old"));
            assert_eq!(read(&store, "buffered"), value("there"));
        }
        assert_eq!(store.scan(ScanRange::all()).unwrap().count(), 2);
        drop(store);
        bench.flash.set_fault(None);
        bench.flash.power_cycle(survival);
        bench.large.power_cycle(survival);
        let store = bench.open().unwrap();
        assert!(read(&store, "key").is_some_and(|found| found == "old" || found == "new"));
    }
}
