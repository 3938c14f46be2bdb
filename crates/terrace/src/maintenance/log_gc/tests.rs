//! Tests that run log GC step by step.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::{
    Durability, Options, PutOptions, Store,
    log::format::SegmentUse,
    tests::{bytes, small_options},
};

/// The credit for rewritten values was spent when they were chosen: a drain that failed, for lack
/// of room or because of a device error, spent it again at each retry, and hot values were moved
/// out of the log although credit for them had been earned.
#[test]
fn a_drain_that_writes_nothing_again_costs_no_second_chances() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        cache_bytes: 0,
        ..small_options(dir.path())
    };
    let store = Store::open(options).unwrap();
    let buffered = PutOptions {
        durability: Durability::Buffered,
        ..PutOptions::default()
    };
    let key = |n: u64| format!("{n:03}");
    for n in 0..200 {
        store.put_with(key(n), bytes(n, 2_000), &buffered).unwrap();
    }
    store.flush().unwrap();
    for _ in 0..2 {
        for n in 0..200 {
            assert!(store.get(key(n)).unwrap().is_some());
        }
    }
    let engine = Arc::clone(store.engine());
    let segment = engine
        .log
        .segments
        .oldest_sealed(engine.log.committed_seq(), |_| true)
        .unwrap();
    // Nothing can be rewritten.
    engine.log.refuse_commits();
    let mut gc = LogGc::new(Arc::clone(&engine));
    for _ in 0..4 {
        gc.drain(segment).unwrap_err();
    }
    let whole = second_chance::Drained {
        length: usize::MAX / 100,
        held: 0,
        live_bytes: 0,
        is_crowded: false,
        is_short: false,
    };
    let left = gc.credit.limits(whole).all as u64;
    assert!(
        left >= engine.log.segments.segment_bytes(),
        "{left} bytes of credit are left"
    );
}

/// After each commit to a full store all segments were read, only to find out that blocks have no
/// room: writers waited for as long, 0.4 s where the log had 600 MB.
#[test]
fn while_blocks_refuse_only_segments_with_enough_dead_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(small_options(dir.path())).unwrap();
    let key = |n: u64| format!("{n:03}");
    let buffered = PutOptions {
        durability: Durability::Buffered,
        ..PutOptions::default()
    };
    for n in 0..300 {
        store.put_with(key(n), bytes(n, 2_000), &buffered).unwrap();
    }
    store.flush().unwrap();
    let engine = Arc::clone(store.engine());
    let segments = &engine.log.segments;
    let mut gc = LogGc::new(Arc::clone(&engine));
    let oldest = gc.next_segment(segments, false).unwrap().number;
    gc.blocks_refused_in = Some(gc.round);
    assert!(gc.next_segment(segments, false).is_none(), "all of it lives");
    gc.made_room();
    assert_eq!(gc.next_segment(segments, false).unwrap().number, oldest);
    gc.blocks_refused_in = Some(gc.round);
    let mut deleted = 0;
    while !gc.may_be_reinserted(segments.get(oldest).unwrap()) {
        store.delete(key(deleted)).unwrap();
        store.flush().unwrap();
        deleted += 1;
    }
    let in_segment = segments.segment_bytes() / 2_000;
    assert!(
        deleted > in_segment / 6 && deleted < in_segment / 3,
        "{deleted} of {in_segment}"
    );
    assert_eq!(
        gc.next_segment(segments, false).unwrap().number,
        oldest,
        "a fifth of it is dead"
    );
}

/// Half of a small log was copies, and besides the segment that was written and the next three were
/// free. None was sealed that could be drained, so recycling was stuck; the commit that then took a
/// segment had the reserve given up, and what came after it was refused, though nothing had been
/// tried. The model found it beside heavy load.
#[test]
fn recycling_is_not_stuck_while_callers_can_have_a_segment() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(small_options(dir.path())).unwrap();
    store.put("key", "value").unwrap();
    let engine = Arc::clone(store.engine());
    let (log, segments) = (&engine.log, &engine.log.segments);
    let mut gc = LogGc::new(Arc::clone(&engine));
    while segments.available() > RESERVED_SEGMENTS {
        assert!(gc.next_segment(segments, false).is_none());
        assert!(!log.recycling_is_stuck() && !log.has_been_full());
        segments
            .take_for(SegmentUse::Copies, log.committed_seq(), RESERVED_SEGMENTS)
            .unwrap();
    }
    assert!(!log.has_been_full(), "no segment is left, but none was tried");
    assert!(gc.next_segment(segments, false).is_none());
    assert!(log.recycling_is_stuck() && log.has_been_full());
}
