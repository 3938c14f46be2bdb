//! The ring: states, contents after a power cut, and pinning against freeing.

use super::{
    super::{
        reserve::Left,
        segments::{Segment, SegmentState},
    },
    *,
};
use crate::{
    Error,
    io::{PAGE_BYTES, Survival},
};
use std::{
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

fn drain(segments: &Segments, segment: &Segment, seq: u64) {
    segments.seal(segment, seq, SEGMENT_BYTES);
    segments.start_draining(segment);
    segments.drained(segment, seq);
}

#[test]
fn a_segment_goes_round() {
    let segments = ring(&SimDisk::new(1), 8);
    assert_eq!(
        (segments.created(), segments.available(), segments.capacity()),
        (0, 8, 8)
    );
    let segment = segments.take(100, 0).unwrap();
    assert_eq!((segment.state(), segment.first_seq()), (SegmentState::Open, 100));
    assert_eq!((segments.created(), segments.available(), segments.free()), (1, 7, 0));
    assert!(segments.oldest_sealed(u64::MAX, |_| true).is_none());
    segments.seal(segment, 120, 50_000);
    assert_eq!(
        (segment.state(), segment.last_seq(), segment.end_bytes()),
        (SegmentState::Sealed, 120, 50_000)
    );
    assert!(
        segments.oldest_sealed(119, |_| true).is_none(),
        "not everything in it is applied"
    );
    assert_eq!(segments.oldest_sealed(120, |_| true).unwrap().number, segment.number);
    segments.start_draining(segment);
    assert!(segments.oldest_sealed(u64::MAX, |_| true).is_none());
    segments.stop_draining(segment);
    assert_eq!(segment.state(), SegmentState::Sealed);
    segments.start_draining(segment);
    segments.drained(segment, 130);
    assert_eq!((segment.state(), segment.drained_seq()), (SegmentState::Drained, 130));
    let generation = segment.generation();
    assert!(segments.free_drained(segment));
    assert_eq!(
        (segment.state(), segments.free(), segments.available()),
        (SegmentState::Free, 1, 8)
    );
    let again = segments.take(131, 0).unwrap();
    assert_eq!((again.number, again.generation()), (segment.number, generation + 1));
    assert_eq!(
        segments.place(u64::from(again.number) * SEGMENT_BYTES + 77),
        Some((generation + 1, 77))
    );
    segments.quarantine(again);
    assert!(segments.oldest_sealed(u64::MAX, |_| true).is_none());
}

#[test]
fn the_oldest_use_is_recycled_first() {
    let segments = ring(&SimDisk::new(1), 8);
    for seq in 1..=3 {
        let segment = segments.take(seq, 0).unwrap();
        segments.seal(segment, seq, SEGMENT_BYTES);
    }
    let first = segments.oldest_sealed(9, |_| true).unwrap();
    drain(&segments, first, 1);
    assert!(segments.free_drained(first));
    let reused = segments.take(4, 0).unwrap();
    segments.seal(reused, 4, SEGMENT_BYTES);
    assert_eq!(reused.number, first.number);
    assert_eq!(segments.oldest_sealed(9, |_| true).unwrap().number, 1);
}

#[test]
fn a_header_survives_a_power_cut_before_anything_is_written_behind_it() {
    for survival in Survival::ALL {
        let disk = SimDisk::new(5);
        let segments = ring(&disk, 8);
        let generations: Vec<_> = (1..=3).map(|seq| segments.take(seq, 0).unwrap().generation()).collect();
        disk.power_cycle(survival);
        let segments = ring(&disk, 8);
        for (number, generation) in (0..).zip(generations) {
            let segment = segments.get(number).unwrap();
            assert_eq!(
                (segment.state(), segment.generation()),
                (SegmentState::Sealed, generation)
            );
            assert_eq!(segment.first_seq(), u64::from(number) + 1);
        }
        let next = segments.take(9, 0).unwrap();
        assert_eq!((next.number, next.generation()), (3, 4), "no generation is given twice");
    }
}

/// A history of the model test ended in a first use whose header survived a power cut and whose
/// length did not: one sector long, with a valid header, and reported as damage although nothing
/// was lost.
#[test]
fn a_power_cut_while_a_file_is_made_is_no_damage() {
    for survival in Survival::ALL {
        for (seed, operations) in (0..400).map(|round| (round / 20, round % 20)) {
            let disk = SimDisk::new(seed);
            let open = |disk: &SimDisk| {
                let disk = Arc::new(disk.clone());
                Segments::open(disk, STORE, SEGMENT_BYTES, 8 * SEGMENT_BYTES, true, false)
            };
            disk.cut_after(operations);
            for _ in 0..3 {
                if let Ok(segments) = open(&disk) {
                    assert_eq!(
                        segments.take_damage(),
                        [""; 0],
                        "{survival:?}, seed {seed}, {operations}"
                    );
                    let _ = segments.take(1, 1);
                }
                disk.power_cycle(survival);
                disk.cut_after(seed + operations / 2);
            }
        }
    }
}

#[test]
fn files_that_are_no_segments_of_this_store_are_not_used() {
    let disk = SimDisk::new(6);
    ring(&disk, 8).take(1, 0).unwrap();
    for name in ["ffffffff.seg", "1.seg", "00000002.tmp", "notes.txt"] {
        disk.put_file(&format!("segments/{name}"), b"x").unwrap();
    }
    let segments = ring(&disk, 8);
    assert_eq!((segments.created(), segments.capacity()), (1, 8));
    let foreign = Segments::open(Arc::new(disk), STORE + 1, SEGMENT_BYTES, 8 * SEGMENT_BYTES, true, true).unwrap();
    assert_eq!(foreign.get(0).unwrap().state(), SegmentState::Quarantined);
}

#[test]
fn a_full_ring_and_a_full_device_say_so() {
    let disk = SimDisk::new(7);
    let segments = ring(&disk, 2);
    segments.take(1, 0).unwrap();
    segments.take(2, 0).unwrap();
    assert!(matches!(segments.take(3, 0), Err(Error::OutOfSpace { .. })));
    assert_eq!(segments.available(), 0);

    let disk = SimDisk::new(7);
    let segments = ring(&disk, 8);
    segments.take(1, 0).unwrap();
    disk.set_capacity(Some(SEGMENT_BYTES * 3 / 2));
    assert!(matches!(segments.take(2, 0), Err(Error::OutOfSpace { .. })));
    assert_eq!((segments.available(), segments.created()), (0, 1));
    disk.set_capacity(None);
    segments.retry_device();
    assert_eq!(segments.available(), 7);
    assert_eq!(segments.take(2, 0).unwrap().number, 1);
}

#[test]
fn of_a_full_device_with_its_reserve_used_one_segment_is_made_and_no_other() {
    let disk = SimDisk::new(10);
    let mut segments = ring(&disk, 8);
    let left = Left::default();
    segments.leave_of_reserve(left.clone());
    disk.set_capacity(Some(3 * SEGMENT_BYTES));
    segments.take(1, 0).unwrap();
    // Others may need all the space there is.
    left.by_segments.store(2 * SEGMENT_BYTES, Ordering::Release);
    for keep_free in [0, 1] {
        assert!(matches!(segments.take(2, keep_free), Err(Error::OutOfSpace { .. })));
        assert!(segments.is_device_full());
    }
    let beside_others = || segments.left_of_reserve_bytes();
    assert!(segments.add_free(beside_others).is_err());
    segments.add_free(|| 0).unwrap();
    assert_eq!((segments.free(), segments.created()), (1, 2));
    // While the reserve exists, the others may use the device's space.
    left.by_segments.store(0, Ordering::Release);
    segments.add_free(beside_others).unwrap();
}

/// Regression: each thread checked the device, found room for one segment in addition to what
/// others may need, and created one.
#[test]
fn threads_that_make_segments_at_once_leave_the_same_room_to_others() {
    let disk = SimDisk::new(11);
    let mut segments = ring(&disk, 64);
    let left = Left::default();
    segments.leave_of_reserve(left.clone());
    segments.take(1, 0).unwrap();
    left.by_segments.store(2 * SEGMENT_BYTES, Ordering::Release);
    for round in 0..50 {
        let created = segments.created();
        disk.set_capacity(Some((u64::from(created) + 3) * SEGMENT_BYTES));
        // With a barrier the threads would start too far apart.
        let ready = AtomicUsize::new(0);
        let make = || {
            ready.fetch_add(1, Ordering::AcqRel);
            while ready.load(Ordering::Acquire) < 2 {
                std::hint::spin_loop();
            }
            segments.add_free(|| segments.left_of_reserve_bytes()).is_ok()
        };
        let made = std::thread::scope(|scope| {
            let one = scope.spawn(make);
            [make(), one.join().unwrap()]
        });
        assert!(made[0] != made[1], "round {round}: {made:?}");
        assert_eq!(segments.created(), created + 1);
    }
}

/// Regression: on two full devices nothing had room again before nearly everything was deleted: for
/// each freed block the flash device counted as one with room, and the ring as one that can grow,
/// and so log GC waited to be needed.
#[test]
fn what_the_device_has_no_room_for_does_not_count_as_available() {
    let disk = SimDisk::new(11);
    let segments = ring(&disk, 8);
    segments.take(1, 0).unwrap();
    disk.set_capacity(Some(SEGMENT_BYTES * 3 / 2));
    segments.retry_device();
    assert_eq!(
        (segments.available(), segments.capacity()),
        (7, 8),
        "it was not asked yet"
    );
    assert_eq!((segments.available_now(), segments.capacity_now()), (0, 1));
    disk.set_capacity(Some(SEGMENT_BYTES * 4));
    assert_eq!((segments.available_now(), segments.capacity_now()), (7, 8));
}

#[test]
fn a_pinned_segment_is_not_freed() {
    let segments = ring(&SimDisk::new(8), 8);
    let segment = segments.take(1, 0).unwrap();
    let pin = segments.pin(segment.number).unwrap();
    let second = segments.pin(segment.number).unwrap();
    drain(&segments, segment, 1);
    assert!(!segments.free_drained(segment));
    assert_eq!((segment.state(), segments.free()), (SegmentState::Drained, 0));
    drop(pin);
    assert!(!segments.free_drained(segment));
    drop(second);
    assert!(segments.free_drained(segment));
    assert!(segments.pin(segment.number).is_none() && segments.pin(77).is_none());
    assert_eq!(
        segments.take(2, 0).unwrap().number,
        segment.number,
        "a refused pin holds nothing back"
    );
}

#[test]
fn nobody_reads_a_segment_while_it_is_used_anew() {
    let segments = ring(&SimDisk::new(9), 1);
    let mut rounds = 0_u64;
    let done = AtomicBool::new(false);
    let pinned = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    let Some(pin) = segments.pin(0) else {
                        std::thread::yield_now();
                        continue;
                    };
                    let generation = pin.generation();
                    for _ in 0..50 {
                        std::hint::spin_loop();
                        assert_eq!(pin.generation(), generation, "used anew under a pin");
                    }
                    pinned.fetch_add(1, Ordering::Relaxed);
                    drop(pin);
                    // Readers pause; if one were always there, nothing could ever be freed.
                    std::thread::sleep(Duration::from_micros(50));
                }
            });
        }
        while rounds < 300 || pinned.load(Ordering::Relaxed) < 50 {
            rounds += 1;
            let segment = segments.take(rounds, 0).unwrap();
            drain(&segments, segment, rounds);
            while !segments.free_drained(segment) {
                std::thread::yield_now();
            }
        }
        done.store(true, Ordering::Release);
    });
    assert_eq!(segments.take(1, 0).unwrap().generation(), rounds + 1);
}

/// Regression: a process killed while a full device had allocated a part of a segment's length left
/// a short file of zeros. The open extended it to its full length, for which there was no room, so
/// the store did not open.
#[test]
fn a_short_unused_file_needs_no_room_at_an_open() {
    let disk = SimDisk::new(12);
    let segments = ring(&disk, 8);
    segments.take(1, 0).unwrap();
    drop(segments);
    let short = vec![0; 3 * PAGE_BYTES];
    disk.put_file("segments/00000001.seg", &short).unwrap();
    disk.set_capacity(Some(SEGMENT_BYTES + 3 * PAGE_BYTES as u64));
    let segments = ring(&disk, 8);
    assert_eq!(segments.take_damage(), [""; 0]);
    assert_eq!((segments.created(), segments.free()), (1, 0));
    assert_eq!(
        disk.read_file("segments/00000001.seg").unwrap().len(),
        0,
        "its room is others'"
    );
    assert!(matches!(segments.take(2, 0), Err(Error::OutOfSpace { .. })));
    disk.set_capacity(None);
    segments.retry_device();
    assert_eq!(segments.take(2, 0).unwrap().number, 1);
    assert_eq!(segments.created(), 2);
}

/// The same for a segment that was cut: the rest of it can be read, the log does not continue in
/// it, and before its next use it gets its full length.
#[test]
fn a_cut_segment_needs_no_room_at_an_open() {
    let disk = SimDisk::new(13);
    let segments = ring(&disk, 2);
    segments.take(1, 0).unwrap();
    drop(segments);
    let cut = disk.read_file("segments/00000000.seg").unwrap()[..PAGE_BYTES].to_vec();
    disk.put_file("segments/00000000.seg", &cut).unwrap();
    disk.set_capacity(Some(2 * PAGE_BYTES as u64));
    let segments = ring(&disk, 2);
    assert_eq!(segments.take_damage().len(), 1);
    let segment = segments.get(0).unwrap();
    assert!(segment.lacks_room() && segment.state() == SegmentState::Sealed);
    assert_eq!(segment.file.len().unwrap(), SEGMENT_BYTES);
    drain(&segments, segment, 1);
    assert!(segments.free_drained(segment));
    assert!(matches!(segments.take(2, 0), Err(Error::OutOfSpace { .. })));
    disk.set_capacity(None);
    segments.retry_device();
    assert_eq!(segments.take(2, 0).unwrap().number, 0);
    assert!(!segment.lacks_room());
}
