//! Tests of recycling that drive it by hand.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::{
    Durability, Options, PutOptions, Store,
    tests::{bytes, small_options},
};

/// What was written again was paid for when it was chosen: a drain that failed, for want of room or
/// of a device, paid again whenever it was tried again, and hot values left the log that others had
/// paid for.
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
    // Nothing can be written again.
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
