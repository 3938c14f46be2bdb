//! Failing devices.

use super::bench::{AT_ONCE, Bench, Values, assert_all, bytes, eventually};
use crate::in_own_process;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::time::{Duration, Instant};
use terrace::{
    Durability, Error, PutOptions, Store,
    io::{Disk, Fault, FaultKind, SimDisk, Survival},
};

fn fill(store: &Store, values: &mut Values, count: u64) {
    for n in 0..count {
        let length = [40, 2_000, 20_000][n as usize % 3];
        put(
            store,
            values,
            &format!("{:03}", n % 70),
            bytes(n, length),
            Durability::Sync,
        )
        .unwrap();
    }
}

fn put(store: &Store, values: &mut Values, key: &str, value: Vec<u8>, durability: Durability) -> Result<(), Error> {
    let options = PutOptions {
        durability,
        ..PutOptions::default()
    };
    store.put_with(key, &value, &options)?;
    values.entry(key.to_owned()).or_default().push(value);
    Ok(())
}

#[test]
fn a_read_error_concerns_what_was_read() {
    let bench = Bench::new(1);
    let store = bench.open().unwrap();
    let mut values = Values::new();
    fill(&store, &mut values, 60);
    store.flush().unwrap();
    let block = bench
        .large
        .files()
        .into_iter()
        .find(|file| file.ends_with(".blk"))
        .unwrap();
    bench.large.set_fault(Some(Fault::new(FaultKind::Read).on(block)));
    let failed = values.keys().filter(|key| store.get(key).is_err()).count();
    assert!(failed > 0 && failed < 20, "{failed} of 20 large objects fail");
    assert!(!store.verify().unwrap().errors.is_empty());
    put(&store, &mut values, "still written", bytes(1, 30_000), Durability::Sync).unwrap();
    bench.large.set_fault(None);
    assert_all(&store, &values);
    bench.flash.set_fault(Some(Fault::new(FaultKind::Read).on("segments")));
    assert!(store.get("001").is_err(), "its value is on the failing device");
    assert!(store.get("000").unwrap().is_some(), "its value is in the index");
    bench.flash.set_fault(None);
    assert_all(&store, &values);
}

/// Makes a disk fail after some more requests of a kind, writes until that shows, and opens the
/// store again.
fn break_and_reopen(seed: u64, is_flash: bool, kind: FaultKind, after: u64, survival: Survival) {
    let what = format!("seed {seed}, flash {is_flash}, {kind:?} after {after}, {survival:?}");
    let bench = Bench::new(seed);
    let store = bench.open().unwrap();
    let mut values = Values::new();
    fill(&store, &mut values, 30);
    let disk: &SimDisk = if is_flash { &bench.flash } else { &bench.large };
    disk.set_fault(Some(Fault::new(kind).after(after)));
    let mut unknown: Option<(String, Vec<u8>)> = None;
    for n in 0..400_u64 {
        let key = format!("{:03}", n % 70);
        let value = bytes(n + 5_000, [40, 2_000, 20_000][n as usize % 3]);
        if put(&store, &mut values, &key, value.clone(), Durability::Sync).is_err() {
            unknown = Some((key, value));
            break;
        }
    }
    let (key, value) = unknown.unwrap_or_else(|| panic!("{what}: nothing failed"));
    if is_flash {
        // The log has failed, so nothing is written any more, even on a repaired device.
        disk.set_fault(None);
        for durability in [Durability::Sync, Durability::Buffered] {
            let refused = put(&store, &mut values, "after", bytes(1, 100), durability);
            assert!(matches!(refused, Err(Error::Failed(_))), "{what}: {refused:?}");
        }
        assert!(store.stats().failed.is_some());
        assert!(store.flush().is_err(), "{what}");
    }
    // Reads continue; the failed write may be visible or not.
    for (other, versions) in &values {
        let found = store
            .get(other)
            .unwrap_or_else(|error| panic!("{what}: {other}: {error}"));
        let found = found.unwrap_or_else(|| panic!("{what}: {other} is gone"));
        assert!(
            found.value == versions.last().unwrap() || (*other == key && found.value == value),
            "{what}: {other}"
        );
    }
    let start = Instant::now();
    let _ = store.close();
    drop(store);
    assert!(start.elapsed() < AT_ONCE, "{what}: closing took {:?}", start.elapsed());
    disk.set_fault(None);
    bench.flash.power_cycle(survival);
    bench.large.power_cycle(survival);
    let store = bench.open().unwrap_or_else(|error| panic!("{what}: {error}"));
    if store.get(&key).unwrap().is_some_and(|object| object.value == value) {
        values.entry(key).or_default().push(value);
    }
    assert_all(&store, &values);
    let report = store.verify().unwrap();
    assert!(report.errors.is_empty(), "{what}: {:#?}", report.errors);
    fill(&store, &mut values, 20);
    assert_all(&store, &values);
}

#[test]
fn failed_writes_and_syncs_lose_nothing_acknowledged() {
    let mut seed = 100;
    for is_flash in [true, false] {
        for kind in [FaultKind::Write, FaultKind::Sync] {
            for after in [0, 1, 2, 5, 11] {
                seed += 1;
                break_and_reopen(seed, is_flash, kind, after, Survival::ALL[seed as usize % 4]);
            }
        }
    }
}

/// Buffered values are written in the background: if that fails, the store stops writing, continues
/// reading, and has an earlier state when it is opened again.
#[test]
fn a_write_behind_that_fails_stops_writes_and_leaves_a_state_of_the_past() {
    for after in [0, 1, 3, 8, 20] {
        let bench = Bench::new(500 + after);
        let store = bench.open().unwrap();
        let mut values = Values::new();
        fill(&store, &mut values, 12);
        let durable = values.clone();
        bench.large.set_fault(Some(Fault::new(FaultKind::Write).after(after)));
        // In this order: those that survive must be the first ones.
        let mut buffered: Vec<(String, Vec<u8>)> = Vec::new();
        // A failure shows when the log is written, which other threads do.
        let until = Instant::now() + Duration::from_secs(60);
        let refused = (0_u64..).take_while(|_| Instant::now() < until).find_map(|n| {
            let (key, value) = (format!("b{n:04}"), bytes(n, [20_000, 100][n as usize % 2]));
            match put(&store, &mut values, &key, value.clone(), Durability::Buffered) {
                Ok(()) => {
                    buffered.push((key, value));
                    std::thread::sleep(Duration::from_millis(1));
                    None
                }
                // Space could not be reserved: only this put fails.
                Err(Error::Io { .. }) => None,
                Err(error) => Some(error),
            }
        });
        assert!(matches!(refused, Some(Error::Failed(_))), "after {after}: {refused:?}");
        assert!(put(&store, &mut values, "small", bytes(1, 10), Durability::Sync).is_err());
        assert!(store.flush().is_err());
        assert_all(&store, &values);
        let _ = store.close();
        drop(store);
        bench.large.set_fault(None);
        bench.flash.power_cycle(Survival::ALL[after as usize % 4]);
        bench.large.power_cycle(Survival::ALL[after as usize / 2 % 4]);
        let store = bench.open().unwrap();
        assert_all(&store, &durable);
        let there = |(key, _): &(String, Vec<u8>)| store.get(key).unwrap().is_some();
        let kept = buffered.iter().take_while(|item| there(item)).count();
        for (key, value) in &buffered[..kept] {
            assert!(store.get(key).unwrap().unwrap().value == value, "{key} has other bytes");
        }
        assert!(
            !buffered[kept..].iter().any(there),
            "after {after}: a hole behind {kept}"
        );
        assert!(store.verify().unwrap().errors.is_empty());
    }
}

/// Regression: each value of a `Sync` batch was synced separately, since only some of those written
/// in the background were there at each sync: up to as many fdatasyncs as values in one block.
#[test]
fn a_batch_of_large_values_is_synced_once() {
    let bench = Bench::new(700);
    // All of them are in the block that the first value opens.
    let options = terrace::Options {
        split_threshold_bytes: 8 << 20,
        ..bench.options()
    };
    let store = Store::open(options).unwrap();
    store.put("before", bytes(1, 20_000)).unwrap();
    for round in 0..5 {
        let mut batch = terrace::Batch::new();
        for n in 0..12 {
            batch.put(format!("{round}/{n}"), bytes(n, 20_000));
        }
        let before = bench.large.counters().syncs;
        store.write(batch, Durability::Sync).unwrap();
        assert_eq!(bench.large.counters().syncs - before, 1, "round {round}");
    }
}

/// Regression: a flush of the index for which the process had no file descriptor stopped all writes
/// until the store was opened again, and so did a merge, after which it was not known which state
/// the directory names. Connections may take all descriptors for a moment.
#[test]
fn without_a_file_descriptor_the_index_is_flushed_later() {
    in_own_process(
        "faults::device::without_a_file_descriptor_the_index_is_flushed_later",
        || {
            let bench = Bench::new(3);
            let options = bench.options().tuned(|tuning| tuning.memtable_bytes = 64 << 10);
            let store = Store::open(options).unwrap();
            let mut values = Values::new();
            let mut put_tiny = |range: std::ops::Range<u64>| {
                for n in range {
                    let (key, value) = (format!("{n:05}"), bytes(n, 40));
                    put(&store, &mut values, &key, value, Durability::Buffered).unwrap();
                }
            };
            // No flush is under way: without a descriptor behind the rename of `current` it would
            // be unknown whether that is durable.
            let limit = getrlimit(Resource::Nofile);
            let none = Rlimit {
                current: Some(3),
                ..limit
            };
            setrlimit(Resource::Nofile, none).unwrap();
            put_tiny(0..1_000);
            // Some attempts.
            std::thread::sleep(Duration::from_millis(1_500));
            let stats = store.stats().index;
            setrlimit(Resource::Nofile, limit).unwrap();
            assert_eq!((stats.persisted_seq, stats.flushes), (0, 0));
            eventually("a flush", &store, |stats| stats.index.persisted_seq > 0);
            put_tiny(1_000..5_000);
            assert_all(&store, &values);
            assert_eq!(store.verify().unwrap().errors, [""; 0]);
            store.close().unwrap();
            drop(store);
            assert_all(&bench.open().unwrap(), &values);
        },
    );
}

/// Nor does a close wait for a descriptor: what it does not persist is in the log.
#[test]
fn a_close_without_a_file_descriptor_ends() {
    in_own_process("faults::device::a_close_without_a_file_descriptor_ends", || {
        let bench = Bench::new(4);
        let store = bench.open().unwrap();
        let mut values = Values::new();
        for n in 0..100 {
            put(
                &store,
                &mut values,
                &format!("{n:05}"),
                bytes(n, 40),
                Durability::Buffered,
            )
            .unwrap();
        }
        let limit = getrlimit(Resource::Nofile);
        let none = Rlimit {
            current: Some(3),
            ..limit
        };
        setrlimit(Resource::Nofile, none).unwrap();
        let start = Instant::now();
        let closed = store.close();
        setrlimit(Resource::Nofile, limit).unwrap();
        assert!(closed.is_err() && start.elapsed() < AT_ONCE, "{closed:?}");
        drop(store);
        assert_all(&bench.open().unwrap(), &values);
    });
}
