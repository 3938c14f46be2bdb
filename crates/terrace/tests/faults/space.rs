//! Full devices.

use crate::bench::{BUFFERED, Bench, Values, assert_all, bytes};
use std::time::{Duration, Instant};
use terrace::{Error, Store, Tier};

/// Puts objects until a tier is full; returns that tier.
fn fill_up(store: &Store, values: &mut Values, length: usize) -> Tier {
    for n in 0..10_000_u64 {
        let (key, value) = (format!("{length} {n:05}"), bytes(n, length));
        match store.put_with(&key, &value, &BUFFERED) {
            Ok(_) => values.entry(key).or_default().push(value),
            Err(Error::OutOfSpace { tier, .. }) => return tier,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("there is no end of room");
}

/// Writes the same object until that works.
fn resumes(store: &Store, values: &mut Values, key: &str, length: usize) {
    let value = bytes(77, length);
    let start = Instant::now();
    while let Err(error) = store.put(key, &value) {
        assert!(matches!(error, Error::OutOfSpace { .. }), "{error}");
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "writes do not resume: {error}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    values.entry(key.to_owned()).or_default().push(value);
}

#[test]
fn a_full_large_tier_refuses_large_values_and_takes_them_again_after_deletes() {
    let bench = Bench::new(1);
    let store = bench.open().unwrap();
    let mut values = Values::new();
    bench.large.set_capacity(Some(1 << 20));
    assert_eq!(fill_up(&store, &mut values, 20_000), Tier::Large);
    assert_all(&store, &values);
    // Small ones still have room.
    resumes(&store, &mut values, "small", 500);
    let doomed: Vec<String> = values
        .keys()
        .filter(|key| key.starts_with("20000"))
        .take(20)
        .cloned()
        .collect();
    for key in doomed {
        store.delete(&key).unwrap();
        values.remove(&key);
    }
    resumes(&store, &mut values, "large", 20_000);
    assert_all(&store, &values);
    store.close().unwrap();
    drop(store);
    let store = bench.open().unwrap();
    assert_all(&store, &values);
    assert!(store.verify().unwrap().errors.is_empty());
}

#[test]
fn both_tiers_full_refuse_writes_keep_what_they_have_and_go_on_with_more_room() {
    let bench = Bench::new(2);
    let store = bench.open().unwrap();
    let mut values = Values::new();
    bench.large.set_capacity(Some(400 << 10));
    // Cold values go to the large tier until that is full, then the log fills up.
    assert_eq!(fill_up(&store, &mut values, 4_000), Tier::Flash);
    assert_all(&store, &values);
    let start = Instant::now();
    store.close().unwrap();
    drop(store);
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "closing took {:?}",
        start.elapsed()
    );
    let store = bench.open().unwrap();
    assert_all(&store, &values);
    bench.large.set_capacity(Some(4 << 20));
    resumes(&store, &mut values, "more", 4_000);
    assert_all(&store, &values);
    assert!(store.verify().unwrap().errors.is_empty());
}

#[test]
fn a_flash_device_smaller_than_the_log_may_be_is_recycled_within_its_size() {
    let bench = Bench::new(3);
    bench.flash.set_capacity(Some(6 * (256 << 10)));
    let store = bench.open().unwrap();
    let mut values = Values::new();
    for n in 0..2_000_u64 {
        let (key, value) = (format!("{:04}", n % 700), bytes(n, 3_000));
        store.put_with(&key, &value, &BUFFERED).unwrap();
        values.entry(key).or_default().push(value);
    }
    assert_all(&store, &values);
    assert!(store.stats().log.segments_recycled > 0);
    store.close().unwrap();
    drop(store);
    let store = bench.open().unwrap();
    assert_all(&store, &values);
    assert!(store.verify().unwrap().errors.is_empty());
}
