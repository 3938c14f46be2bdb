//! Merges that readers have paid for, and those that no reader pays for.
#![allow(clippy::unwrap_used)]

use super::{
    read_triggered::{BYTES_PER_LOOK, LAST_LEVEL, MergeOfRuns},
    tests::{flash_entry, mark, open},
    *,
};
use std::ops::Bound;

const ALL: KeyBounds = (Bound::Unbounded, Bound::Unbounded);
/// Keys of a run.
const KEYS: u64 = 100;

/// Adds a run with every key anew.
fn add_run(index: &OrderedIndex, applier: &mut Applier) {
    let seq = applier.applied_seq() + 1;
    for key in 0..KEYS {
        applier.insert(&key.to_be_bytes(), &flash_entry(seq), seq);
    }
    applier.applied(seq);
    applier.rotate(mark(seq)).unwrap();
    index.flush_sealed(seq).unwrap();
}

/// An index with this many runs in the first level and one below.
fn with_runs(dir: &std::path::Path, runs: usize) -> (Arc<OrderedIndex>, Applier) {
    let (index, _) = open(dir);
    let mut applier = index.applier().unwrap();
    add_run(&index, &mut applier);
    assert!(index.compact(1).unwrap(), "the first run is moved");
    for _ in 0..runs {
        add_run(&index, &mut applier);
    }
    assert!(!index.compact(applier.applied_seq()).unwrap());
    assert_eq!(index.l0_runs(), runs);
    (index, applier)
}

fn versions(scan: IndexScan) -> Vec<u64> {
    scan.map(|item| item.unwrap().1.version.0).collect()
}

#[test]
fn runs_are_merged_once_readers_have_paid_as_much_as_that_costs() {
    let dir = tempfile::tempdir().unwrap();
    let (index, mut applier) = with_runs(dir.path(), 3);
    let seq = applier.applied_seq();
    let merge = index.merge_of_runs().unwrap();
    assert_eq!(
        (u64::from(merge.into), merge.bytes),
        (LAST_LEVEL as u64, index.stats().bytes)
    );
    let before = index.stats();
    let mut paid = 0;
    let mut scans = 0;
    while !index.merge_for_readers(seq).unwrap() {
        // The store's own walks pay nothing.
        assert_eq!(versions(index.scan(ALL, seq).unwrap()), vec![seq; KEYS as usize]);
        assert_eq!(index.stats().compacted_bytes, before.compacted_bytes);
        assert!(paid * BYTES_PER_LOOK < merge.bytes, "{paid} looks for {}", merge.bytes);
        let scan = index.scan_for_caller(ALL, seq).unwrap();
        assert_eq!(versions(scan), vec![seq; KEYS as usize]);
        // Three runs more than there would be, at each step and to begin.
        paid += 3 * KEYS;
        scans += 1;
    }
    assert!(scans > 2, "{scans}: it is not cheap");
    assert_eq!(index.l0_runs(), 0);
    let after = index.stats();
    assert_eq!(after.compactions, before.compactions + 1);
    let written = after.compacted_bytes - before.compacted_bytes;
    assert!(written <= merge.bytes, "{written}");
    assert_eq!(versions(index.scan(ALL, seq).unwrap()), vec![seq; KEYS as usize]);
    // It was spent; and there is nothing to merge, whatever was paid.
    add_run(&index, &mut applier);
    assert!(!index.merge_for_readers(seq + 1).unwrap());
    index.looks.pay_for_runs(merge.bytes);
    assert!(index.merge_for_readers(seq + 1).unwrap());
    index.looks.pay_for_runs(merge.bytes);
    assert!(!index.merge_for_readers(seq + 1).unwrap());
}

#[test]
fn writes_alone_merge_nothing_sooner() {
    let written = |readers_thread: bool| {
        let dir = tempfile::tempdir().unwrap();
        let (index, mut applier) = with_runs(dir.path(), 0);
        for _ in 0..30 {
            add_run(&index, &mut applier);
            let seq = applier.applied_seq();
            // As the store's own threads look at it.
            index.get(&7_u64.to_be_bytes()).unwrap();
            assert_eq!(index.scan(ALL, seq).unwrap().count(), KEYS as usize);
            while index.compact(seq).unwrap() || readers_thread && index.merge_for_readers(seq).unwrap() {}
        }
        (index.stats().compacted_bytes, index.stats().compactions)
    };
    assert_eq!(written(true), written(false));
    assert!(written(true).1 > 2);
}

#[test]
fn a_merge_that_the_library_makes_is_not_made_again_with_what_was_paid_before() {
    let dir = tempfile::tempdir().unwrap();
    let (index, mut applier) = with_runs(dir.path(), 7);
    index.looks.pay_for_runs(1 << 30);
    add_run(&index, &mut applier);
    let seq = applier.applied_seq();
    assert!(index.compact(seq).unwrap(), "there are eight now");
    assert_eq!(index.l0_runs(), 0);
    add_run(&index, &mut applier);
    assert!(!index.merge_for_readers(seq + 1).unwrap());
}

#[test]
fn a_last_level_that_has_outgrown_the_first_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (index, _) = open(dir.path());
    let mut applier = index.applier().unwrap();
    let mut seq = 0;
    let mut add = |keys: std::ops::Range<u64>, applier: &mut Applier| {
        seq += 1;
        for key in keys {
            applier.insert(&key.to_be_bytes(), &flash_entry(seq), seq);
        }
        applier.applied(seq);
        applier.rotate(mark(seq)).unwrap();
        index.flush_sealed(seq).unwrap();
        seq
    };
    let first = add(0..3_000, &mut applier);
    while index.compact(first).unwrap() {}
    let last_bytes = index.stats().bytes;
    assert!(last_bytes > index.shape().level_bytes(), "{last_bytes}");
    add(10..30, &mut applier);
    assert_eq!(index.merge_of_runs(), None, "one run in a level of its own is as good");
    let newest = add(20..40, &mut applier);
    index.looks.pay_for_runs(1 << 30);
    let merge = index.merge_of_runs().unwrap();
    let into = LAST_LEVEL as u8 - 1;
    assert_eq!(
        merge,
        MergeOfRuns {
            into,
            bytes: index.stats().bytes - last_bytes
        }
    );
    assert!(index.merge_for_readers(newest).unwrap());
    assert_eq!(index.l0_runs(), 0);
    assert!(!index.compact(newest).unwrap(), "the library finds it as it should be");
    let third = add(0..5, &mut applier);
    let merge = index.merge_of_runs().unwrap();
    assert_eq!((merge.into, merge.bytes), (into, index.stats().bytes - last_bytes));
    let expected = (0..3_000).map(|key| match key {
        0..5 => 4,
        10..20 => 2,
        20..40 => 3,
        _ => 1,
    });
    assert_eq!(
        versions(index.scan(ALL, third).unwrap()),
        expected.collect::<Vec<u64>>()
    );
}

#[test]
fn scans_pay_for_the_memtables_they_look_at() {
    let dir = tempfile::tempdir().unwrap();
    let (index, mut applier) = with_runs(dir.path(), 0);
    let seq = applier.applied_seq() + 1;
    index.looks.pay_for_runs(1 << 30);
    assert!(
        !index.take_fare_of_flush(),
        "there is no memtable, and that was for runs"
    );
    applier.insert(b"k", &flash_entry(seq), seq);
    applier.applied(seq);
    assert!(!index.take_fare_of_flush(), "no reader has paid");
    assert_eq!(index.scan(ALL, seq).unwrap().count() as u64, KEYS + 1);
    assert!(!index.take_fare_of_flush(), "that was one of the store's own");
    let scans = (0..100).take_while(|_| {
        assert_eq!(index.scan_for_caller(ALL, seq).unwrap().count() as u64, KEYS + 1);
        !index.take_fare_of_flush()
    });
    assert!(scans.count() < 99);
    assert!(!index.take_fare_of_flush(), "it is spent");
}

/// Objects of a bucket were overwritten thirty times each: a listing stepped over thirty versions
/// of each and paid for one, so that it took a second of listings until the memtable was flushed.
#[test]
fn scans_pay_for_versions_that_they_step_over() {
    let scans_until_flush = |versions_of_each: u64| {
        let dir = tempfile::tempdir().unwrap();
        let (index, _) = open(dir.path());
        let mut applier = index.applier().unwrap();
        let keys = 6_000 / versions_of_each;
        let commits = (1..=versions_of_each).inspect(|seq| {
            for key in 0..keys {
                applier.insert(&key.to_be_bytes(), &flash_entry(*seq), *seq);
            }
            applier.applied(*seq);
        });
        let newest = commits.last().unwrap();
        // Of the same keys, however many there are.
        let bounds = (Bound::Unbounded, Bound::Excluded(200_u64.to_be_bytes().to_vec()));
        let scans = (1..10_000).find(|_| {
            let scan = index.scan_for_caller(bounds.clone(), newest).unwrap();
            assert_eq!(versions(scan), vec![newest; 200]);
            index.take_fare_of_flush()
        });
        scans.unwrap()
    };
    let (once, often) = (scans_until_flush(1), scans_until_flush(30));
    assert!(often * 20 < once && once < often * 40, "{once} and {often} scans");
}
