//! What the statistics count.

use super::open;
use crate::{OperationStats, Store, WriterOptions};
use std::{
    io::{Read, Write},
    time::{Duration, Instant},
};

fn operation(store: &Store, name: &str) -> OperationStats {
    let operations = store.stats().operations;
    operations.into_iter().find(|operation| operation.name == name).unwrap()
}

/// Calls that succeeded and that failed; the former are all in a bucket.
fn calls(store: &Store, name: &str) -> (u64, u64) {
    let operation = operation(store, name);
    let in_buckets: u64 = operation.buckets.iter().map(|(_, count)| count).sum();
    assert_eq!(operation.count, in_buckets, "{name}");
    (operation.count, operation.errors)
}

#[test]
fn a_multi_get_counts_once_however_many_keys_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.put("a", "1").unwrap();
    store.multi_get(&["a", "b", "a"]);
    assert_eq!(calls(&store, "multi_get"), (1, 0));
    store.multi_get(&["a", ""]);
    assert_eq!(calls(&store, "multi_get"), (1, 1), "an empty key is refused");
    assert_eq!(calls(&store, "get"), (0, 0));
}

#[test]
fn a_stream_counts_when_it_ends_with_the_time_of_its_calls() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for (count, size) in [(1, 100), (2, 300_000)] {
        let start = Instant::now();
        let mut writer = store.writer("key", WriterOptions::default()).unwrap();
        let pause = Duration::from_secs(1);
        std::thread::sleep(pause);
        writer.write_all(&vec![1; size]).unwrap();
        assert_eq!(calls(&store, "writer"), (count - 1, 0));
        let before = operation(&store, "writer").total_ns;
        writer.finish().unwrap();
        let most = start.elapsed() - pause;
        assert_eq!(calls(&store, "writer"), (count, 0));
        let spent = operation(&store, "writer").total_ns - before;
        assert!(spent > 0 && u128::from(spent) <= most.as_nanos(), "{spent} of {most:?}");

        let mut reader = store.reader("key").unwrap().unwrap();
        reader.read_to_end(&mut Vec::new()).unwrap();
        assert_eq!(calls(&store, "reader"), (count - 1, 0));
        drop(reader);
        assert_eq!(calls(&store, "reader"), (count, 0));
    }
    assert_eq!(calls(&store, "put"), (0, 0));
    assert_eq!(calls(&store, "get_range"), (0, 0));
}

#[test]
fn streams_that_fail_are_errors_and_those_given_up_are_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    drop(store.writer("key", WriterOptions::default()).unwrap());
    assert_eq!(calls(&store, "writer"), (0, 0));
    let announced = |length| WriterOptions {
        length: Some(length),
        ..WriterOptions::default()
    };
    assert!(store.writer("", announced(1)).is_err());
    assert_eq!(calls(&store, "writer"), (0, 1));
    let mut long = store.writer("key", announced(1)).unwrap();
    assert!(long.write_all(b"more").is_err());
    drop(long);
    assert_eq!(calls(&store, "writer"), (0, 2));
    let short = store.writer("key", announced(1)).unwrap();
    assert!(short.finish().is_err());
    assert_eq!(calls(&store, "writer"), (0, 3));

    assert!(store.reader("key").unwrap().is_none());
    assert_eq!(calls(&store, "reader"), (1, 0), "a miss is an answer");
    assert!(store.reader("").is_err());
    assert_eq!(calls(&store, "reader"), (1, 1));
}
