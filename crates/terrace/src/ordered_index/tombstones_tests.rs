//! 600,000 of a million keys of a bucket were deleted, and then nothing was written: what was left
//! was never merged, and each listing stepped over all of it, for a quarter of a second.
#![allow(clippy::unwrap_used)]

use super::background::Choice;
use super::{
    tests::{flash_entry, mark, open},
    *,
};
use lsm_tree::compaction::PullDown;
use std::{
    ops::{Bound, Range},
    time::{Duration, Instant},
};

const ALL: KeyBounds = (Bound::Unbounded, Bound::Unbounded);
const KEYS: u64 = 40_000;
/// Enough to pay for a merge with everything there is.
const DELETED: Range<u64> = 5_000..30_000;

fn commit(applier: &mut Applier, keys: Range<u64>, change: impl Fn(&mut Applier, &[u8], u64)) {
    let seq = applier.applied_seq() + 1;
    for key in keys {
        change(applier, &key.to_be_bytes(), seq);
    }
    applier.applied(seq);
}

fn put(applier: &mut Applier, keys: Range<u64>) {
    commit(applier, keys, |applier, key, seq| {
        applier.insert(key, &flash_entry(seq), seq);
    });
}

fn delete(applier: &mut Applier, keys: Range<u64>) {
    commit(applier, keys, Applier::remove);
}

fn flush(index: &OrderedIndex, applier: &mut Applier) {
    flush_for(index, applier, applier.applied_seq());
}

/// With a snapshot at `watermark_seq`.
fn flush_for(index: &OrderedIndex, applier: &mut Applier, watermark_seq: u64) {
    applier.rotate(mark(applier.applied_seq())).unwrap();
    index.flush_sealed(watermark_seq).unwrap();
}

/// Does what there is to do; says how many merges were made for tombstones.
fn merge(index: &OrderedIndex, watermark_seq: u64) -> u32 {
    let mut merges = 0;
    loop {
        while index.compact(watermark_seq).unwrap() {}
        if !index.merge_for_tombstones(watermark_seq).unwrap() {
            return merges;
        }
        merges += 1;
        assert!(merges < 20, "it does not end");
    }
}

/// An index with all keys, merged.
fn full(dir: &std::path::Path) -> (Arc<OrderedIndex>, Applier) {
    let (index, _) = open(dir);
    let mut applier = index.applier().unwrap();
    put(&mut applier, 0..KEYS);
    flush(&index, &mut applier);
    assert_eq!(merge(&index, applier.applied_seq()), 0);
    (index, applier)
}

fn count(index: &OrderedIndex, seq: u64) -> u64 {
    index.scan(ALL, seq).unwrap().map(Result::unwrap).count() as u64
}

#[test]
fn deletions_that_nobody_writes_after_are_merged_away() {
    let dir = tempfile::tempdir().unwrap();
    let (index, mut applier) = full(dir.path());
    let before = index.stats();
    delete(&mut applier, DELETED);
    let deleted = DELETED.end - DELETED.start;
    assert_eq!(index.tombstones(), deleted);
    assert!(index.wants_tombstones_flushed());
    flush(&index, &mut applier);
    assert!(!index.wants_tombstones_flushed());
    assert_eq!(index.tombstones(), deleted);
    let seq = applier.applied_seq();
    assert!(merge(&index, seq) > 0);
    assert_eq!(index.tombstones(), 0);
    assert_eq!(count(&index, seq), KEYS - deleted);
    let after = index.stats();
    assert!(after.bytes < before.bytes, "{} of {}", after.bytes, before.bytes);
    assert_eq!(merge(&index, seq), 0, "there is nothing to be had");
}

#[test]
fn few_deletions_and_those_that_cannot_pay_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (index, mut applier) = full(dir.path());
    delete(&mut applier, 0..8_000);
    assert!(!index.wants_tombstones_flushed());
    flush(&index, &mut applier);
    assert_eq!(merge(&index, applier.applied_seq()), 0);
    assert_eq!(index.tombstones(), 8_000);
}

/// Entries of objects written over S3 are some 150 bytes long. With a limit in bytes, the last
/// 71,000 tombstones did not justify merging the 471,000 entries beside them: a minute after
/// 600,000 of a million keys of a bucket were deleted, each listing still stepped over them, for 50
/// ms.
#[test]
fn deletions_of_long_entries_pay_as_those_of_short_ones_do() {
    let dir = tempfile::tempdir().unwrap();
    let (index, _) = open(dir.path());
    let mut applier = index.applier().unwrap();
    commit(&mut applier, 0..KEYS, |applier, key, seq| {
        let mut entry = flash_entry(seq);
        entry.attributes = vec![7; 200].into();
        applier.insert(key, &entry, seq);
    });
    flush(&index, &mut applier);
    assert_eq!(merge(&index, applier.applied_seq()), 0);
    let deleted = 8_500;
    assert!(
        deleted * 512 < index.stats().bytes,
        "{} bytes: they would pay by bytes",
        index.stats().bytes
    );
    delete(&mut applier, 0..deleted);
    assert!(index.wants_tombstones_flushed());
    flush(&index, &mut applier);
    assert!(merge(&index, applier.applied_seq()) > 0);
    assert_eq!(index.tombstones(), 0);
    assert_eq!(count(&index, applier.applied_seq()), KEYS - deleted);
}

/// The runs are merged for them once in a while: a caller that deletes without pause has them
/// merged together.
#[test]
fn deletions_that_go_on_are_merged_together() {
    let dir = tempfile::tempdir().unwrap();
    let (index, mut applier) = full(dir.path());
    delete(&mut applier, 0..12_000);
    flush(&index, &mut applier);
    assert!(merge(&index, applier.applied_seq()) > 0);
    // Just now, however long the rest of this takes.
    *index.tombstones.merged_at.lock() = Some(Instant::now() + Duration::from_secs(3600));
    delete(&mut applier, 12_000..24_000);
    assert!(!index.wants_tombstones_flushed());
    flush(&index, &mut applier);
    assert!(!index.merge_for_tombstones(applier.applied_seq()).unwrap());
    assert_eq!(index.tombstones(), 12_000);
}

/// What a snapshot sees stays, in the state it sees.
#[test]
fn a_snapshot_keeps_what_was_deleted_and_nothing_is_merged_in_vain() {
    let dir = tempfile::tempdir().unwrap();
    let (index, mut applier) = full(dir.path());
    let seen = applier.applied_seq();
    delete(&mut applier, 0..KEYS);
    put(&mut applier, 0..KEYS);
    delete(&mut applier, DELETED);
    flush_for(&index, &mut applier, seen);
    merge(&index, seen);
    assert_eq!(merge(&index, seen), 0);
    let seq = applier.applied_seq();
    let left = KEYS - (DELETED.end - DELETED.start);
    assert_eq!([count(&index, seen), count(&index, seq)], [KEYS, left]);
    merge(&index, seq);
    assert_eq!(index.tombstones(), 0);
    assert_eq!(count(&index, seq), left);
}

/// Regression: such a merge emptied a level between two others. When the level above it was full,
/// the library's debug build panicked, and the index could not be written until it was opened anew.
#[test]
fn a_level_that_a_merge_has_emptied_is_filled_from_the_level_above() {
    let dir = tempfile::tempdir().unwrap();
    let (index, mut applier) = full(dir.path());
    for level in [5, 4] {
        put(&mut applier, 0..KEYS);
        flush(&index, &mut applier);
        let seq = applier.applied_seq();
        index.compact_by(seq, || Some(Choice::by(PullDown(0, level)))).unwrap();
    }
    let seq = applier.applied_seq();
    index.compact_by(seq, || Some(Choice::by(PullDown(5, 6)))).unwrap();
    let has_tables = || -> Vec<bool> {
        let state = index.tree.current_version();
        state.iter_levels().map(|level| !level.is_empty()).collect()
    };
    assert_eq!(has_tables(), [false, false, false, false, true, false, true]);
    assert!(index.compact(seq).unwrap());
    assert_eq!(has_tables(), [false, false, false, false, false, true, true]);
    merge(&index, seq);
    assert_eq!(count(&index, seq), KEYS);
}
