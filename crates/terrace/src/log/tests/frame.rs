//! Frames in memory: which records are found in them, and when.

use super::{
    super::format::{FRAME_HEADER_BYTES, check_frame},
    *,
};
use crate::{io::PAGE_BYTES, key_hash};
use std::sync::atomic::{AtomicBool, Ordering};

fn open() -> Frame {
    Frame::open(2, 7, SEGMENT_BYTES, 8192, Arc::new(FramePool::for_overlay(0)))
}

fn value_of(frame: &Frame, key: &[u8]) -> Option<(u64, Vec<u8>)> {
    let view = frame.view();
    let record = view.find(key_hash(key), key)?;
    Some((record.seq, record.body.value().to_vec()))
}

#[test]
fn the_newest_record_of_a_key_is_found() {
    let frame = open();
    assert_eq!(value_of(&frame, b"a"), None);
    frame.append(10, &[put(b"a", b"one"), put(b"b", b"two")], Durability::Buffered);
    frame.append(11, &[put(b"a", b"three")], Durability::Buffered);
    assert_eq!(value_of(&frame, b"a"), Some((11, b"three".to_vec())));
    assert_eq!(value_of(&frame, b"b"), Some((10, b"two".to_vec())));
    let delete = (key_hash(b"a"), record(b"a", Body::Delete));
    frame.append(12, &[delete], Durability::Buffered);
    let view = frame.view();
    assert_eq!(view.find(key_hash(b"a"), b"a").unwrap().body, Body::Delete);
    assert_eq!((view.last_seq(), view.record_count()), (12, 4));
}

#[test]
fn what_is_not_durable_leaves_the_record_before_it_visible() {
    let frame = open();
    frame.append(10, &[put(b"a", b"one")], Durability::Buffered);
    frame.append(11, &[put(b"a", b"two"), put(b"b", b"two")], Durability::Sync);
    frame.append(12, &[put(b"a", b"three")], Durability::Sync);
    frame.append(13, &[put(b"c", b"four")], Durability::Buffered);
    let seen = |key: &[u8], durable_seq| {
        let view = frame.view();
        view.find_visible(key_hash(key), key, durable_seq)
            .map(|record| record.seq)
    };
    let expected = [(9, 10), (10, 10), (11, 11), (12, 12), (13, 12)];
    for (durable_seq, seq) in expected {
        assert_eq!(seen(b"a", durable_seq), Some(seq), "durable up to {durable_seq}");
    }
    assert_eq!((seen(b"b", 10), seen(b"b", 11)), (None, Some(11)));
    assert_eq!(seen(b"c", 0), Some(13));
    assert_eq!(frame.sync_seq(), 12);
    frame.seal(9);
    assert_eq!((seen(b"a", 10), seen(b"a", 11)), (Some(10), Some(11)));
}

#[test]
fn keys_with_the_same_hash_do_not_hide_each_other() {
    let frame = open();
    let (_, first) = put(b"first", b"1");
    let (_, second) = put(b"second", b"2");
    frame.append(1, &[(99, first)], Durability::Buffered);
    frame.append(2, &[(99, second)], Durability::Buffered);
    let view = frame.view();
    assert_eq!(view.find(99, b"first").unwrap().seq, 1);
    assert_eq!(view.find(99, b"second").unwrap().seq, 2);
    assert!(view.find(99, b"third").is_none() && view.find(98, b"first").is_none());
}

#[test]
fn a_move_does_not_answer_for_its_key() {
    let frame = open();
    let hash = key_hash(b"k");
    let moved = |body| [(hash, record(b"k", body))];
    frame.append(
        5,
        &moved(Body::MoveToFlash {
            version: 2,
            value: b"old",
        }),
        Durability::Buffered,
    );
    frame.append(
        6,
        &moved(Body::MoveToBlock {
            version: 2,
            extent: EXTENT,
        }),
        Durability::Buffered,
    );
    assert_eq!(
        value_of(&frame, b"k"),
        None,
        "the old home answers until the move is applied"
    );
    frame.append(7, &[put(b"k", b"new")], Durability::Buffered);
    frame.append(
        8,
        &moved(Body::MoveToFlash {
            version: 2,
            value: b"old",
        }),
        Durability::Buffered,
    );
    frame.append(9, &moved(Body::Drop { version: 7 }), Durability::Buffered);
    frame.append(10, &moved(Body::DeleteRange { end: b"l" }), Durability::Buffered);
    assert_eq!(value_of(&frame, b"k"), Some((7, b"new".to_vec())));
    assert_eq!(frame.view().records().count(), 6, "the applier sees them all");
}

#[test]
fn a_batch_becomes_visible_at_once() {
    let frame = open();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    let view = frame.view();
                    let seq = |key: &[u8]| view.find(key_hash(key), key).map(|record| record.seq);
                    assert_eq!(seq(b"left"), seq(b"right"));
                }
            });
        }
        for seq in 1..500 {
            let value = noise(seq, 40);
            frame.append(
                seq,
                &[put(b"left", &value), put(b"right", &value)],
                Durability::Buffered,
            );
        }
        done.store(true, Ordering::Release);
    });
    assert_eq!(frame.view().last_seq(), 499);
}

#[test]
fn a_sealed_frame_is_what_recovery_reads_back() {
    let frame = open();
    let values = [noise(1, 700), noise(2, 5_000), vec![]];
    for (seq, value) in (20..).zip(&values) {
        frame.append(seq, &[put(format!("k{seq}").as_bytes(), value)], Durability::Buffered);
    }
    let moved = Body::MoveToFlash {
        version: 3,
        value: b"x",
    };
    frame.append(
        23,
        &[(key_hash(b"moved"), record(b"moved", moved))],
        Durability::Buffered,
    );
    let may_grow_by = |bytes| frame.may_have(frame.len_bytes() + bytes);
    assert!(may_grow_by(200_000) && !may_grow_by(SEGMENT_BYTES as usize - 8192));
    let end = frame.seal(19);
    let view = frame.view();
    assert_eq!(end, 8192 + view.bytes().len() as u64);
    assert_eq!(view.bytes().len() % PAGE_BYTES, 0);
    let header = check_frame(view.bytes(), 7).unwrap();
    assert_eq!((header.first_seq, header.last_seq, header.record_count), (20, 23, 4));
    assert_eq!(
        view.padding_bytes() + header.payload_bytes as usize,
        view.bytes().len(),
        "header and padding are counted apart from records"
    );
    let recovered = Frame::recovered(
        2,
        &header,
        SEGMENT_BYTES,
        8192,
        view.bytes(),
        Arc::new(FramePool::for_overlay(0)),
    );
    let again = recovered.view();
    let all = |view: &super::super::frame::FrameView<'_>| -> Vec<_> {
        let own = |record: Record<'_>| (record.seq, record.key.to_vec(), record.body.value().to_vec());
        view.records().map(|(address, record)| (address, own(record))).collect()
    };
    assert_eq!(all(&again), all(&view));
    let base = 2 * SEGMENT_BYTES + 8192 + FRAME_HEADER_BYTES as u64;
    assert_eq!(all(&again)[0].0.bytes(), base);
    assert_eq!(again.find(key_hash(b"k21"), b"k21").unwrap().body.value(), values[1]);
    assert!(again.find(key_hash(b"moved"), b"moved").is_none());
    drop(again);
    assert!(!recovered.is_finished(), "it is durable and waits to be applied");
    recovered.set_applied();
    assert!(recovered.is_finished() && !frame.is_finished());
}

/// Its bytes move when it is sealed: no reader may read their former place.
#[test]
fn a_frame_is_read_while_it_is_sealed() {
    for round in 0..200 {
        let frame = open();
        let value = noise(round, 3_000);
        frame.append(1, &[put(b"k", &value)], Durability::Buffered);
        assert!(frame.sealed().is_none());
        let length = frame.len_bytes();
        let looks = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while frame.sealed().is_none() || looks.load(Ordering::Relaxed) < 10 {
                    assert_eq!(value_of(&frame, b"k"), Some((1, value.clone())));
                    assert!([length, length.next_multiple_of(PAGE_BYTES)].contains(&frame.len_bytes()));
                    looks.fetch_add(1, Ordering::Relaxed);
                }
            });
            while looks.load(Ordering::Relaxed) < 3 {
                std::thread::yield_now();
            }
            frame.seal(0);
        });
        assert_eq!(frame.sealed().map(|sealed| sealed.bytes()), Some(frame.view().bytes()));
    }
}

#[test]
fn memory_of_a_finished_frame_is_used_again_without_its_records() {
    let pool = Arc::new(FramePool::for_overlay(0));
    let frame = Frame::open(0, 1, SEGMENT_BYTES, 4096, Arc::clone(&pool));
    frame.append(1, &[put(b"k", &noise(1, 50_000))], Durability::Buffered);
    frame.seal(0);
    drop(frame);
    let frame = Frame::open(0, 1, SEGMENT_BYTES, 4096, pool);
    assert_eq!((frame.len_bytes(), value_of(&frame, b"k")), (FRAME_HEADER_BYTES, None));
    frame.append(2, &[put(b"z", b"")], Durability::Buffered);
    frame.seal(1);
    let view = frame.view();
    assert!(view.bytes()[FRAME_HEADER_BYTES + 48..].iter().all(|&byte| byte == 0));
}

#[test]
fn some_memory_is_ready_ahead_of_need_as_long_as_frames_are_lately() {
    let pool = Arc::new(FramePool::for_overlay(0));
    pool.make_ready();
    assert_eq!(pool.waiting(), [0; 0], "the length of frames is not known yet");
    let frame = Frame::open(0, 1, SEGMENT_BYTES, 4096, Arc::clone(&pool));
    frame.append(1, &[put(b"k", &noise(1, 50_000))], Durability::Buffered);
    frame.seal(0);
    (0..5).for_each(|_| pool.make_ready());
    assert_eq!(pool.waiting(), [64 << 10; 2]);
    let next = Frame::open(0, 1, SEGMENT_BYTES, 4096, Arc::clone(&pool));
    assert_eq!((next.len_bytes(), pool.waiting().len()), (FRAME_HEADER_BYTES, 1));
    drop((frame, next));
    assert_eq!(pool.waiting().len(), 3, "theirs came back");
    pool.make_ready();
    assert_eq!(pool.waiting().len(), 3);
    pool.trim();
    assert_eq!(
        pool.waiting().len(),
        2,
        "the next frames find memory, and more is not kept"
    );
}
