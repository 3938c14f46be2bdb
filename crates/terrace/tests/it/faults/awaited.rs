//! Asynchronous writes: they are durable, visible and answered like blocking ones, and a write that
//! would have to block is refused.

use super::{
    bench::{BUFFERED, Bench, bytes, eventually},
    visible::{Held, get, read, value},
};
use crate::common::block_on;
use std::{
    pin::pin,
    sync::atomic::{AtomicUsize, Ordering},
    task::{Context, Waker},
    thread,
    time::{Duration, Instant},
};
use terrace::{
    Batch, Committing, Condition, Durability, Error, Options, Store,
    io::{Fault, FaultKind, Survival},
};

fn one(key: &str, value: impl Into<Vec<u8>>, condition: Condition) -> Batch {
    let mut batch = Batch::new();
    batch.put_with(key, value.into(), terrace::Attributes::new(), condition);
    batch
}

fn try_put(store: &Store, key: &str, value: &str, condition: Condition) -> Option<Committing> {
    store.try_write(&one(key, value, condition), Durability::Sync)
}

/// Retries until the write is accepted: right after an open, absence is unknown until the index is
/// filled, and another thread may hold the log's lock.
fn committing(store: &Store, key: &str, value: &str, condition: Condition) -> Committing {
    begun(store, &one(key, value, condition), Durability::Sync)
}

fn begun(store: &Store, batch: &Batch, durability: Durability) -> Committing {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(committing) = store.try_write(batch, durability) {
            return committing;
        }
        assert!(Instant::now() < until, "it is never committed");
        thread::yield_now();
    }
}

/// Whether it is ready; polled without a waker.
fn is_ready(committing: &mut Committing) -> bool {
    let polled = pin!(committing).poll(&mut Context::from_waker(Waker::noop()));
    polled.is_ready()
}

#[test]
fn what_is_awaited_is_durable_without_a_thread_that_waits() {
    let held = Held::new(1);
    let store = &held.store;
    store.put("key", "old").unwrap();
    held.log.hold();
    let mut first = committing(store, "key", "new", Condition::None);
    held.log.wait_for_sync();
    assert!(!is_ready(&mut first));
    assert_eq!(read(store, "key"), value("old"), "it is not durable");
    // Dropped, polled or not, it is written.
    let mut asked = committing(store, "asked", "there", Condition::Absent);
    assert!(!is_ready(&mut asked));
    drop(asked);
    drop(committing(store, "dropped", "there", Condition::None));
    let last = committing(store, "last", "there", Condition::None);
    held.log.release();
    let version = block_on(first).unwrap();
    assert_eq!(store.head("key").unwrap().unwrap().version, version);
    block_on(last).unwrap();
    for (key, is) in [
        ("key", "new"),
        ("asked", "there"),
        ("dropped", "there"),
        ("last", "there"),
    ] {
        assert_eq!(read(store, key), value(is), "{key}");
    }
    let mut committing = begun(store, &one("buffered", "there", Condition::None), Durability::Buffered);
    assert!(is_ready(&mut committing), "nothing is to be awaited");
}

/// These are never polled, and no other write leads a round.
#[test]
fn writes_that_are_not_polled_become_durable() {
    let bench = Bench::new(2);
    let store = bench.open().unwrap();
    store.put("first segment", "").unwrap();
    let before = store.stats().queue.durable_seq;
    drop(committing(&store, "key", "value", Condition::None));
    eventually("the sync", &store, |stats| stats.queue.durable_seq > before);
    assert_eq!(get(&store, "key"), value("value"));
}

#[test]
fn what_rests_on_others_is_left_to_those_that_may_wait() {
    let held = Held::new(3);
    let store = &held.store;
    store.put("first segment", "").unwrap();
    held.log.hold();
    let first = committing(store, "key", "first", Condition::Absent);
    let committed = store.stats().queue.committed_seq;
    let began = Instant::now();
    // For readers there is no key, for commits there is.
    assert!(try_put(store, "key", "second", Condition::Absent).is_none());
    assert!(began.elapsed() < Duration::from_secs(5), "it waited");
    assert_eq!(store.stats().queue.committed_seq, committed);
    // An overwrite without a condition depends on nothing.
    let second = committing(store, "key", "second", Condition::Present);
    held.log.release();
    assert!(block_on(first).unwrap() < block_on(second).unwrap());
    assert_eq!(read(store, "key"), value("second"));
}

#[test]
fn nothing_is_written_that_would_have_to_wait_or_be_refused() {
    let bench = Bench::new(4);
    let store = bench.open().unwrap();
    let version = store.put("key", "value").unwrap();
    store.put("other", "value").unwrap();
    let committed = |store: &Store| store.stats().queue.committed_seq;
    let before = committed(&store);
    let refused = [
        Batch::new(),
        one("", "no key", Condition::None),
        one("key", "taken", Condition::Absent),
        one("none", "absent", Condition::Present),
        one("other", "another version", Condition::VersionIs(version)),
        one("large", bytes(4, 1 << 20), Condition::None),
    ];
    for (number, batch) in refused.iter().enumerate() {
        for durability in [Durability::Sync, Durability::Buffered] {
            assert!(store.try_write(batch, durability).is_none(), "{number}");
        }
    }
    assert_eq!(committed(&store), before);
    drop(store);
    // Without a cache RAM knows nothing of values on flash.
    let options = Options {
        cache_bytes: 0,
        ..bench.options()
    };
    let store = Store::open(options).unwrap();
    eventually("a filled index", &store, |stats| !stats.hash_index.refilling);
    let before = committed(&store);
    assert!(try_put(&store, "key", "new", Condition::VersionIs(version)).is_none());
    assert_eq!(committed(&store), before);
    block_on(committing(&store, "key", "new", Condition::None)).unwrap();
    block_on(committing(&store, "new", "new", Condition::Absent)).unwrap();
    let store_again = store.clone();
    store.close().unwrap();
    assert!(try_put(&store_again, "key", "closed", Condition::None).is_none());
}

/// All awaited writes get the failure, and their values are not visible.
#[test]
fn a_failed_sync_is_told_to_all_that_is_awaited() {
    for survival in Survival::ALL {
        let bench = Bench::new(5);
        let store = bench.open().unwrap();
        store.put("key", "old").unwrap();
        bench.flash.set_fault(Some(Fault::new(FaultKind::Sync).on("segments")));
        let first = committing(&store, "key", "new", Condition::None);
        let others = (1..5).map_while(|number| try_put(&store, "key", &format!("new {number}"), Condition::None));
        let others: Vec<_> = others.collect();
        for committing in others.into_iter().chain([first]) {
            let failed = block_on(committing);
            assert!(matches!(failed, Err(Error::Failed(_))), "{failed:?}");
        }
        assert_eq!(read(&store, "key"), value("old"));
        assert!(try_put(&store, "key", "later", Condition::None).is_none());
        drop(store);
        bench.flash.set_fault(None);
        bench.flash.power_cycle(survival);
        bench.large.power_cycle(survival);
        let store = bench.open().unwrap();
        assert!(read(&store, "key").is_some_and(|found| found == "old" || found.starts_with("new")));
    }
}

#[test]
fn a_close_makes_durable_what_is_awaited() {
    let held = Held::new(6);
    held.store.put("key", "old").unwrap();
    held.log.hold();
    let committing = committing(&held.store, "key", "value", Condition::None);
    let store = held.store.clone();
    let closing = thread::spawn(move || store.close());
    held.log.wait_for_sync();
    held.log.release();
    block_on(committing).unwrap();
    closing.join().unwrap().unwrap();
}

/// A round led by a blocking write completes asynchronous ones, and the other way round. Each must
/// be woken, or this test never ends.
#[test]
fn threads_and_tasks_wait_for_the_same_rounds() {
    const ROUNDS: usize = 300;
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(Options::new(dir.path())).unwrap();
    let awaited = AtomicUsize::new(0);
    thread::scope(|scope| {
        for number in 0..8 {
            let (store, awaited) = (&store, &awaited);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let (key, text) = (format!("{number}/{}", round % 7), round.to_string());
                    match number % 3 {
                        0 => drop(store.put(&key, &text).unwrap()),
                        1 => match try_put(store, &key, &text, Condition::None) {
                            Some(committing) => {
                                block_on(committing).unwrap();
                                awaited.fetch_add(1, Ordering::Relaxed);
                            }
                            // Another write begins a segment.
                            None => drop(store.put(&key, &text).unwrap()),
                        },
                        _ => drop(store.put_with(&key, &text, &BUFFERED).unwrap()),
                    }
                    assert_eq!(get(store, &key), value(&text));
                }
            });
        }
    });
    assert!(awaited.into_inner() > ROUNDS, "of {} in three threads", 3 * ROUNDS);
}

/// Regression: a new segment is made and synced before use, and a write that must not block was
/// blocked by that, with all others behind the log's lock.
#[test]
fn no_segment_is_begun_at_once() {
    let held = Held::new(8);
    held.log.hold();
    assert!(try_put(&held.store, "key", "value", Condition::None).is_none());
    // Nor does it wait for one that another thread makes, which holds the log's lock meanwhile.
    let store = held.store.clone();
    let begins = thread::spawn(move || store.put("key", "value").unwrap());
    held.log.wait_for_sync();
    assert!(try_put(&held.store, "key", "value", Condition::None).is_none());
    held.log.release();
    begins.join().unwrap();
    block_on(committing(&held.store, "key", "new", Condition::None)).unwrap();
}

/// The last waker counts: another executor may poll the task next.
#[test]
fn the_last_that_polled_is_woken() {
    let held = Held::new(7);
    held.store.put("key", "old").unwrap();
    held.log.hold();
    let mut committing = committing(&held.store, "key", "value", Condition::None);
    assert!(!is_ready(&mut committing));
    let waiting = thread::spawn(move || block_on(committing));
    held.log.wait_for_sync();
    held.log.release();
    waiting.join().unwrap().unwrap();
}
