//! Stores that are full of live data.

use super::{
    bench::{AT_ONCE, BUFFERED, Bench, Values, assert_all, bytes, eventually},
    space::{fill_up, limited},
};
use crate::common::block_on;
use std::time::{Duration, Instant};
use terrace::{Batch, Durability, Error, Options, Store, Tier};

/// A store with both tiers at their capacities and nothing dead, and its contents.
fn full_of_what_lives(bench: &Bench) -> (Store, Values) {
    let options = Options {
        segment_bytes: 1 << 20,
        log_capacity_bytes: Some(8 << 20),
        size_threshold_bytes: 64 << 10,
        split_threshold_bytes: 256 << 10,
        ..limited(bench, 4 << 20)
    };
    let store = Store::open(options).unwrap();
    let mut values = Values::new();
    assert_eq!(fill_up(&store, &mut values, 20_000), Tier::Flash);
    eventually("it is called full", &store, |stats| {
        // Segments about to be recycled may still accept some.
        let (key, value) = (format!("more {:05}", values.len()), bytes(values.len() as u64, 20_000));
        if store.put_with(&key, &value, &BUFFERED).is_ok() {
            values.insert(key, vec![value]);
        }
        let is_it = |reason: &String| reason.contains("free segment");
        stats.full.as_ref().is_some_and(is_it)
    });
    (store, values)
}

/// Regression: a delete was first tried like any write, and waited until recycling had found again
/// that it could free nothing.
#[test]
fn overwrites_that_shrink_wait_for_nothing_on_a_full_store() {
    let bench = Bench::new(14);
    let (store, mut values) = full_of_what_lives(&bench);
    let keys: Vec<String> = values.keys().take(40).cloned().collect();
    let start = Instant::now();
    for (n, key) in keys.into_iter().enumerate() {
        let value = bytes(n as u64, 4_000);
        store.put_with(&key, &value, &BUFFERED).unwrap();
        values.insert(key, vec![value]);
    }
    let took = start.elapsed();
    eprintln!("40 overwrites took {took:?}");
    assert!(took < Duration::from_millis(400), "{took:?}");
    assert_all(&store, &values);
    assert_eq!(store.verify().unwrap().errors, [""; 0]);
}

/// Regression: deletes were left to threads that may block, so a full store did fewer deletes per
/// second than one that is not full. New objects still are, and are refused there.
#[test]
fn a_full_store_takes_deletes_where_they_arrive() {
    let bench = Bench::new(15);
    let (store, mut values) = full_of_what_lives(&bench);
    let mut new = Batch::new();
    new.put("new", bytes(1, 20_000));
    assert!(store.try_write(&new, Durability::Buffered).is_none());
    let doomed: Vec<String> = values.keys().step_by(4).cloned().collect();
    let mut at_once = 0;
    for key in &doomed {
        let mut delete = Batch::new();
        delete.delete(key);
        match store.try_write(&delete, Durability::Sync) {
            Some(committing) => {
                block_on(committing).unwrap();
                at_once += 1;
            }
            None => store.delete(key).map(drop).unwrap(),
        }
        values.remove(key);
    }
    // A segment is begun by threads that may block.
    assert!(at_once * 10 > doomed.len() * 9, "{at_once} of {}", doomed.len());
    assert_all(&store, &values);
    assert_eq!(store.verify().unwrap().errors, [""; 0]);
}

/// Regression: block GC that waits for its deletions, and recycling that waits for block GC, had
/// nothing to wait for in a store full of live data: it was never reported as full, and each
/// refusal took ten seconds.
#[test]
fn a_store_that_is_full_of_what_lives_says_so_and_refuses_at_once() {
    let bench = Bench::new(13);
    let (store, values) = full_of_what_lives(&bench);
    let mut times: Vec<Duration> = (0..100)
        .map(|n| {
            let start = Instant::now();
            let refused = store.put_with("one more", bytes(n, 20_000), &BUFFERED);
            assert!(matches!(refused, Err(Error::OutOfSpace { .. })), "{refused:?}");
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    eprintln!("refused in {:?}, at most {:?}", times[50], times[99]);
    assert!(times[50] < Duration::from_millis(10), "{times:?}");
    assert!(times[99] < AT_ONCE, "{times:?}");
    assert_all(&store, &values);
    assert_eq!(store.verify().unwrap().errors, [""; 0]);
}

/// Regression: a refusal contained only the tier and the reason.
#[test]
fn a_refusal_says_what_the_tier_has_and_may_have() {
    let (full_log, full_blocks) = (Bench::new(16), Bench::new(17));
    let (log, _) = full_of_what_lives(&full_log);
    let blocks = Store::open(limited(&full_blocks, 4 << 20)).unwrap();
    let cases = [
        (log, Tier::Flash, 20_000, 8 << 20),
        (blocks, Tier::Large, 100_000, 4 << 20),
    ];
    for (store, wanted, length, values_bytes) in cases {
        let put = |n: u64| store.put_with(format!("more {n}"), bytes(n, length), &BUFFERED);
        let refused = (0..100).find_map(|n| put(n).err()).expect("there is an end of room");
        let Error::OutOfSpace { tier, room, .. } = &refused else {
            panic!("{refused}");
        };
        let room = room.expect("the store is open");
        assert_eq!(*tier, wanted);
        // The index, its checkpoint and the reserve are on flash as well.
        let beside = room.capacity_bytes - values_bytes;
        let is_flash = wanted == Tier::Flash;
        let reserve_bytes = if is_flash { store.stats().reserve_bytes } else { 0 };
        assert_eq!(room.reserve_bytes, reserve_bytes, "{room:?}");
        assert!(
            (reserve_bytes..=reserve_bytes + (1 << 20)).contains(&beside),
            "{room:?}"
        );
        // Footers of blocks may exceed the capacity.
        assert!(room.used_bytes <= room.capacity_bytes + (64 << 10), "{room:?}");
        assert!(room.used_bytes * 10 > room.capacity_bytes * 8, "{room:?}");
        let text = refused.to_string();
        for bytes in [room.used_bytes, room.capacity_bytes, room.reserve_bytes] {
            assert!(text.contains(&bytes.to_string()), "{text}");
        }
    }
}
