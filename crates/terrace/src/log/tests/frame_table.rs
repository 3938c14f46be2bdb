//! Frames in RAM: which records are found in them, and for how long.

use super::{
    super::{
        format::FRAME_HEADER_BYTES,
        frame::{Heir, PlaceInLog},
        frame_table::FrameTable,
    },
    *,
};
use parking_lot::Mutex;
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Notes records it inherits, by offset and number, and lends as much as it is set to.
#[derive(Clone, Default)]
struct Notes {
    inherited: Arc<Mutex<Vec<(u64, u64)>>>,
    unused_bytes: Arc<AtomicU64>,
    borrowed_bytes: Arc<AtomicU64>,
}

impl Heir for Notes {
    fn inherit(&self, place: PlaceInLog, record: &Record<'_>) {
        assert_eq!(place.0, 7);
        self.inherited.lock().push((place.1, record.seq));
    }

    fn unused_bytes(&self) -> u64 {
        self.unused_bytes.load(Ordering::Relaxed)
    }

    fn borrowed_bytes(&self) -> u64 {
        self.borrowed_bytes.load(Ordering::Relaxed)
    }

    fn takes_unread(&self, bytes: u64) -> bool {
        self.unused_bytes() > bytes
    }
}

/// A sealed frame in segment 3 with one value of so many bytes.
fn frame_of(generation: u64, offset: u64, seq: u64, value_bytes: usize) -> Arc<Frame> {
    sealed(3, generation, offset, seq, &[noise(seq, value_bytes)])
}

/// Offsets of the frame's records in the segment, with their contents.
fn records(frame: &Frame) -> Vec<(u64, u64, Vec<u8>)> {
    let view = frame.view();
    let base = u64::from(frame.segment) * SEGMENT_BYTES;
    let all = view.records();
    all.map(|(address, record)| (address.bytes() - base, record.seq, record.body.value().to_vec()))
        .collect()
}

/// A table that is never full and retains so many bytes.
fn retaining(share_bytes: u64) -> FrameTable {
    FrameTable::starting_at(0, 1 << 30, share_bytes)
}

/// Adds a sealed frame that waits to be written and applied.
fn add(frames: &FrameTable, frame: &Arc<Frame>) {
    frames.push(Arc::clone(frame));
    frames.sealed(frame);
}

/// Adds a frame that is already written and applied, with live values.
fn keep(frames: &FrameTable, frame: &Arc<Frame>) {
    add(frames, frame);
    for (offset, _, value) in records(frame) {
        let at = usize::try_from(offset - frame.offset).unwrap();
        frame.sealed().unwrap().lives(at, value.len() as u64);
    }
    finish(frame);
    assert!(frames.settle());
}

fn finish(frame: &Frame) {
    frame.set_applied();
    frame.set_written();
}

fn value_at(frames: &FrameTable, place: (u64, u64)) -> Option<(u64, Vec<u8>)> {
    frames.at(place, |record| (record.seq, record.body.value().to_vec()))
}

#[test]
fn a_record_is_found_by_its_place_and_by_no_other() {
    let table = retaining(16 << 20);
    // One that is copied and one that is kept unchanged.
    let values = [noise(1, 700), noise(2, 5_000), vec![]];
    let frames = [
        sealed(3, 7, 4096, 10, &values),
        sealed(3, 7, 65_536, 20, &[noise(3, 90_000), noise(4, 20_000)]),
    ];
    for frame in &frames {
        keep(&table, frame);
    }
    for frame in &frames {
        for (offset, seq, value) in records(frame) {
            assert_eq!(value_at(&table, (7, offset)), Some((seq, value)));
            for other in [offset + 16, offset - 16, frame.offset, frame.end(), 0] {
                let other_is_one = records(frame).iter().any(|(offset, ..)| *offset == other);
                assert_eq!(value_at(&table, (7, other)).is_some(), other_is_one, "{other}");
            }
            assert_eq!(value_at(&table, (6, offset)), None);
            assert_eq!(value_at(&table, (8, offset)), None);
        }
    }
}

#[test]
fn a_segment_that_is_used_anew_has_other_records_at_its_places() {
    let table = retaining(1 << 20);
    let (old, new) = (frame_of(7, 4096, 10, 500), frame_of(12, 4096, 90, 600));
    keep(&table, &old);
    let place = |generation| (generation, 4096 + FRAME_HEADER_BYTES as u64);
    assert_eq!(value_at(&table, place(12)), None, "the old use's is not the new one's");
    keep(&table, &new);
    assert_eq!(value_at(&table, place(7)), Some((10, noise(10, 500))));
    assert_eq!(value_at(&table, place(12)), Some((90, noise(90, 600))));
}

/// Regression: recently written frames of a store of inline values took all of its RAM for values,
/// and were never read: in a trace of short values 300 MB, which the kernel could have used for the
/// index's tables.
#[test]
fn frames_that_are_no_values_home_take_no_room() {
    let table = retaining(1 << 20);
    let frame = |seq: u64, body| {
        let frame = Frame::open(3, 7, SEGMENT_BYTES, 4096 * seq, Arc::new(FramePool::for_overlay(0)));
        frame.append(
            seq,
            &[(1, record(b"key", Body::PutInline { value: b"short" }))],
            Durability::Buffered,
        );
        frame.append(seq + 1, &[(2, record(b"other", body))], Durability::Buffered);
        frame.seal(seq);
        Arc::new(frame)
    };
    keep(&table, &frame(1, Body::Delete));
    keep(&table, &frame(3, Body::PutLarge { extent: EXTENT }));
    assert_eq!(table.retained_bytes(), 0);
    let value = noise(1, 100);
    keep(&table, &frame(5, Body::Put { value: &value }));
    assert!(table.retained_bytes() > 0);
    let moved = Body::MoveToFlash {
        version: 2,
        value: &value,
    };
    let before = table.retained_bytes();
    keep(&table, &frame(7, moved));
    assert!(table.retained_bytes() > before);
}

#[test]
fn the_oldest_leave_and_nothing_takes_more_than_is_allowed() {
    const CAPACITY_BYTES: u64 = 100_000;
    let table = retaining(CAPACITY_BYTES);
    let place = |number: u64| (7, number * 8192 + FRAME_HEADER_BYTES as u64);
    for number in 1..=30 {
        keep(&table, &frame_of(7, number * 8192, number, 5_000));
        assert!(table.retained_bytes() <= CAPACITY_BYTES);
    }
    let kept: Vec<u64> = (1..=30)
        .filter(|&number| value_at(&table, place(number)).is_some())
        .collect();
    let first = kept[0];
    assert_eq!(kept, (first..=30).collect::<Vec<_>>());
    assert!((10..14).contains(&first), "{first}: 19 frames of 5.2 kB fit");
    // Longer than the whole share: neither kept, nor a reason to evict others.
    keep(&table, &frame_of(8, 4096, 31, 150_000));
    assert_eq!(value_at(&table, place(first)), Some((first, noise(first, 5_000))));
    assert_eq!(value_at(&table, (8, 4096 + FRAME_HEADER_BYTES as u64)), None);
}

#[test]
fn frames_may_come_in_another_order() {
    let table = retaining(1 << 20);
    let numbers = [3, 1, 2, 5, 4];
    for number in numbers {
        keep(&table, &frame_of(number, 4096, number, 100));
    }
    for number in numbers {
        let place = (number, 4096 + FRAME_HEADER_BYTES as u64);
        assert_eq!(value_at(&table, place), Some((number, noise(number, 100))));
    }
}

#[test]
fn a_short_frame_does_not_hold_the_memory_of_a_long_one() {
    let pool = Arc::new(FramePool::for_overlay(0));
    let open = |generation| Frame::open(3, generation, SEGMENT_BYTES, 4096, Arc::clone(&pool));
    let table = retaining(1 << 20);
    let long = open(6);
    long.append(1, &[put(b"long", &noise(1, 200_000))], Durability::Buffered);
    drop(long);
    assert!(pool.waiting()[0] > 200_000);
    let short = open(7);
    assert!(pool.waiting().is_empty(), "it has the long one's");
    short.append(2, &[put(b"short", &noise(2, 100))], Durability::Buffered);
    short.seal(1);
    keep(&table, &Arc::new(short));
    assert!(table.retained_bytes() < 400, "{}", table.retained_bytes());
    assert!(pool.waiting()[0] > 200_000, "and the next one has it again");
}

#[test]
fn without_memory_nothing_is_kept() {
    let table = retaining(0);
    keep(&table, &frame_of(7, 4096, 1, 100));
    assert_eq!((table.retained_bytes(), value_at(&table, (7, 4160))), (0, None));
}

#[test]
fn what_was_read_is_handed_on_when_it_leaves() {
    let table = retaining(500_000);
    let notes = Notes::default();
    table.hand_on_to(Box::new(notes.clone()));
    // Short ones and long ones.
    let values = [
        noise(1, 300),
        noise(2, 0),
        noise(3, 5_000),
        noise(4, 60_000),
        noise(5, 90_000),
    ];
    let frames = [sealed(3, 7, 4096, 10, &values[..3]), sealed(3, 7, 16_384, 20, &values)];
    let mut places: Vec<(u64, u64)> = Vec::new();
    for frame in &frames {
        keep(&table, frame);
        places.extend(records(frame).iter().map(|(offset, seq, _)| (*offset, *seq)));
    }
    let read = [0, 2, 3, 6, 7];
    for &at in &read {
        for _ in 0..2 {
            assert!(value_at(&table, (7, places[at].0)).is_some());
        }
    }
    // Overwritten.
    let take = |place| table.take_read(place, |record| record.seq);
    assert_eq!(take((7, places[2].0)), Some(places[2].1));
    assert_eq!(take((7, places[6].0)), Some(places[6].1));
    assert_eq!(take((7, places[2].0)), None, "not again");
    assert_eq!(take((7, places[1].0)), None, "it was not read");
    assert_eq!((take((7, 1 << 40)), take((9, places[0].0))), (None, None));
    assert!(notes.inherited.lock().is_empty());
    for number in 0..4 {
        keep(&table, &frame_of(8, 4096 + (number << 18), 30 + number, 150_000));
    }
    assert_eq!(*notes.inherited.lock(), [places[0], places[3], places[7]]);
}

/// Regression: 193,583 values of 1 KiB were written and then read, each once from the device,
/// though the cache had been empty all the time.
#[test]
fn what_the_heir_does_not_use_is_lent_until_it_is() {
    let table = retaining(50_000);
    let notes = Notes::default();
    table.hand_on_to(Box::new(notes.clone()));
    notes.unused_bytes.store(100_000, Ordering::Relaxed);
    let place = |number: u64| (7, number * 8192 + FRAME_HEADER_BYTES as u64);
    for number in 1..=40 {
        keep(&table, &frame_of(7, number * 8192, number, 5_000));
    }
    assert!(
        (140_000..=150_000).contains(&table.retained_bytes()),
        "{}",
        table.retained_bytes()
    );
    assert!(value_at(&table, place(14)).is_some() && value_at(&table, place(35)).is_some());
    notes.unused_bytes.store(0, Ordering::Relaxed);
    table.give_back(0);
    assert!(
        (40_000..=50_000).contains(&table.retained_bytes()),
        "{}",
        table.retained_bytes()
    );
    assert_eq!(
        *notes.inherited.lock(),
        [(place(14).1, 14)],
        "the other one is still here"
    );
    assert!(value_at(&table, place(35)).is_some());
}

/// The part of the share that the heir has borrowed is returned.
#[test]
fn what_the_heir_borrows_frames_do_not_keep() {
    let table = retaining(100_000);
    let notes = Notes::default();
    table.hand_on_to(Box::new(notes.clone()));
    let mut next = 1..;
    let mut keep_more = |count| {
        for number in next.by_ref().take(count) {
            keep(&table, &frame_of(7, number * 8192, number, 5_000));
        }
        table.retained_bytes()
    };
    for (borrowed_bytes, kept) in [
        (0, 85_000..=100_000),
        (60_000, 25_000..=40_000),
        (200_000, 0..=0),
        (0, 85_000..=100_000),
    ] {
        notes.borrowed_bytes.store(borrowed_bytes, Ordering::Relaxed);
        table.give_back(0);
        let bytes = keep_more(40);
        assert!(kept.contains(&bytes), "{bytes} with {borrowed_bytes} borrowed");
    }
}

/// Regression: values that had not been read were evicted with the oldest frame, and each read of
/// one went to the device, while most values in younger frames were overwritten.
#[test]
fn what_is_dead_leaves_before_what_lives() {
    let table = retaining(1 << 20);
    let notes = Notes::default();
    table.hand_on_to(Box::new(notes.clone()));
    let values = |seq| [noise(seq, 60_000), noise(seq + 1, 50_000), noise(seq + 2, 40_000)];
    let frames = [1, 11, 21].map(|seq| sealed(3, 7, seq << 18, seq, &values(seq)));
    let places = frames.each_ref().map(|frame| {
        records(frame)
            .iter()
            .map(|(offset, ..)| (7, *offset))
            .collect::<Vec<_>>()
    });
    for frame in &frames {
        keep(&table, frame);
    }
    let frame_bytes = table.retained_bytes() / 3;
    // The second frame has most dead bytes; the third has one dead value, which was read before.
    for (place, bytes) in [(places[1][0], 60_000), (places[1][2], 40_000), (places[2][2], 40_000)] {
        assert!(value_at(&table, place).is_some());
        table.value_died(place, bytes);
        table.value_died(place, bytes);
    }
    let is_here = |place| value_at(&table, place).is_some();
    notes.unused_bytes.store(51_000, Ordering::Relaxed);
    table.set_share(2 * frame_bytes + frame_bytes / 4);
    assert_eq!(
        *notes.inherited.lock(),
        [(places[1][1].1, 12)],
        "what lives, though it was not read"
    );
    assert_eq!(places.each_ref().map(|of| is_here(of[1])), [true, false, true]);
    // Without unused room only records that were read are kept; the first frame was read above.
    table.value_died(places[2][0], 60_000);
    notes.unused_bytes.store(1_000, Ordering::Relaxed);
    table.set_share(frame_bytes + frame_bytes / 4);
    assert_eq!(notes.inherited.lock()[1..], [(places[2][1].1, 22)]);
    assert_eq!(places.each_ref().map(|of| is_here(of[1])), [true, false, false]);
    // Then the oldest, as usual.
    table.set_share(frame_bytes / 4);
    assert_eq!(notes.inherited.lock()[2..], [(places[0][1].1, 2)]);
}

/// An heir that lends less after it was given a record, by more than that took before.
struct Miser(Arc<AtomicU64>);

impl Heir for Miser {
    fn inherit(&self, _: PlaceInLog, record: &Record<'_>) {
        let taken = record.body.value().len() as u64 * 6 / 5;
        self.0.fetch_sub(taken, Ordering::Relaxed);
    }

    fn unused_bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn borrowed_bytes(&self) -> u64 {
        0
    }

    fn takes_unread(&self, bytes: u64) -> bool {
        self.unused_bytes() > bytes
    }
}

/// Regression: each frame that is passed on takes the room of the next one: the first reader that
/// needed a little room would have moved everything.
#[test]
fn for_a_little_room_not_everything_is_moved() {
    const VALUE_BYTES: usize = 200_000;
    let table = retaining(1 << 20);
    let unused_bytes = Arc::new(AtomicU64::new(12 << 20));
    table.hand_on_to(Box::new(Miser(Arc::clone(&unused_bytes))));
    for number in 1..=50 {
        let frame = frame_of(7, number << 18, number, VALUE_BYTES);
        let place = (7, frame.offset + FRAME_HEADER_BYTES as u64);
        keep(&table, &frame);
        assert!(value_at(&table, place).is_some(), "and it is marked");
    }
    let all_bytes = table.retained_bytes();
    unused_bytes.store(all_bytes - (2 << 20), Ordering::Relaxed);
    let mut calls = 0;
    while table.retained_bytes() > 4 << 20 {
        let bytes_before = table.retained_bytes();
        table.give_back(1_000);
        let left_bytes = bytes_before - table.retained_bytes();
        assert!((1..=5 << 19).contains(&left_bytes), "{left_bytes} of {bytes_before}");
        calls += 1;
    }
    assert!(calls > 3, "{calls} for {all_bytes}");
}

#[test]
fn a_segments_use_that_is_over_takes_no_memory() {
    let table = retaining(1 << 20);
    let uses = [(5, 0), (6, 0), (7, 0), (7, 8192), (8, 0)];
    for (generation, offset) in uses {
        keep(&table, &frame_of(generation, offset, generation, 500));
    }
    let place = |(generation, offset)| (generation, offset + FRAME_HEADER_BYTES as u64);
    let are_found = || uses.map(|frame| value_at(&table, place(frame)).is_some());
    let bytes_before = table.retained_bytes();
    table.forget_use(7);
    assert_eq!(are_found(), [true, true, false, false, true]);
    assert_eq!(table.retained_bytes(), bytes_before / 5 * 3);
    table.forget_use(4);
    assert_eq!(table.retained_bytes(), bytes_before / 5 * 3);
}

#[test]
fn many_are_found_as_each_by_itself_is() {
    let (one, other) = (retaining(500_000), retaining(500_000));
    let (notes, other_notes) = (Notes::default(), Notes::default());
    one.hand_on_to(Box::new(notes.clone()));
    other.hand_on_to(Box::new(other_notes.clone()));
    let short: Vec<_> = (0..60).map(|seq| noise(seq, 30 * seq as usize)).collect();
    let frames = [
        sealed(3, 7, 4096, 10, &short),
        sealed(3, 7, 131_072, 100, &[noise(3, 90_000), vec![], noise(4, 20_000)]),
    ];
    let mut places = Vec::new();
    for frame in &frames {
        keep(&one, frame);
        keep(&other, frame);
        for (offset, _, value) in records(frame) {
            places.extend([Some(((7, offset), value.len() + 64)), Some(((6, offset), 100)), None]);
        }
    }
    // In no order, like lookups of scans, and some of it twice.
    places.sort_by_key(|place| place.map(|((_, offset), _)| offset.wrapping_mul(0x9e37_79b9)));
    places.extend_from_within(100..120);
    places.push(Some(((7, 1 << 40), usize::MAX)));
    places.retain(|place| place.is_none_or(|((_, offset), _)| offset % 5 != 0));
    let mut found = vec![None; places.len()];
    one.at_each(&places, |number, record| {
        found[number] = Some((record.seq, record.body.value().to_vec()));
    });
    let by_itself = |place: &Option<(PlaceInLog, usize)>| place.and_then(|(place, _)| value_at(&other, place));
    let expected: Vec<_> = places.iter().map(by_itself).collect();
    assert!(expected.iter().flatten().count() > 40);
    assert_eq!(found, expected);
    // And they are marked like the others.
    for number in 0..3 {
        for frames in [&one, &other] {
            keep(frames, &frame_of(8, 4096 + (number << 18), 30 + number, 150_000));
        }
    }
    let inherited = notes.inherited.lock();
    assert!(inherited.len() > 30, "{}", inherited.len());
    assert_eq!(*inherited, *other_notes.inherited.lock());
}

/// Frames are read without their lock: a reader of one keeps its memory from being reused.
#[test]
fn what_is_read_while_frames_leave_is_what_was_written_there() {
    const FRAMES: u64 = 120;
    let pool = Arc::new(FramePool::for_overlay(0));
    let table = retaining(1 << 20);
    let place = |seq: u64| (7, (seq << 18) + FRAME_HEADER_BYTES as u64);
    let value_bytes = |seq: u64| 100_000 + 700 * (seq % 40) as usize;
    let (newest, found) = (AtomicU64::new(0), AtomicU64::new(0));
    let mut reused = 0;
    let patience = Instant::now() + Duration::from_secs(60);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while newest.load(Ordering::Acquire) < FRAMES {
                    let newest = newest.load(Ordering::Acquire);
                    let seqs: Vec<u64> = (newest.saturating_sub(12)..newest + 2).collect();
                    let places: Vec<_> = seqs.iter().map(|seq| Some((place(*seq), value_bytes(*seq)))).collect();
                    table.at_each(&places, |number, record| {
                        let seq = seqs[number];
                        assert_eq!(record.key, seq.to_le_bytes());
                        let value = record.body.value();
                        assert_eq!(value.len(), value_bytes(seq));
                        assert!(
                            value.iter().step_by(61).all(|byte| *byte == seq as u8),
                            "of frame {seq}"
                        );
                        found.fetch_add(1, Ordering::Relaxed);
                    });
                }
            });
        }
        for seq in 1..=FRAMES {
            // On a busy machine all frames would be written before a reader begins.
            while found.load(Ordering::Relaxed) + 8 < seq && Instant::now() < patience {
                std::thread::yield_now();
            }
            reused += usize::from(!pool.waiting().is_empty());
            let frame = Frame::open(3, 7, SEGMENT_BYTES, seq << 18, Arc::clone(&pool));
            let value = vec![seq as u8; value_bytes(seq)];
            frame.append(seq, &[put(&seq.to_le_bytes(), &value)], Durability::Buffered);
            frame.seal(seq - 1);
            keep(&table, &Arc::new(frame));
            newest.store(seq, Ordering::Release);
        }
    });
    assert!(found.into_inner() > 0);
    assert!(reused > 20, "{reused}: the memory of frames that left");
}

/// A sealed frame with a commit of so many empty values.
fn frame_with(seq: u64, records: usize) -> Arc<Frame> {
    let frame = Frame::open(0, 1, 1 << 20, seq << 16, Arc::new(FramePool::for_overlay(0)));
    frame.append(seq, &vec![put(b"k", b""); records], Durability::Buffered);
    frame.seal(0);
    Arc::new(frame)
}

#[test]
fn many_short_records_fill_it_before_their_bytes_do() {
    let table = FrameTable::starting_at(0, 1 << 20, 1 << 20);
    let add = |seq, records| {
        let frame = frame_with(seq, records);
        add(&table, &frame);
        frame
    };
    let first = add(1, 2_200);
    assert!(!table.is_full());
    let second = add(2, 2_200);
    assert!(table.is_full() && table.pending_bytes() < 300_000);
    finish(&second);
    assert!(!table.settle());
    assert!(table.is_full(), "the one before is not applied");
    finish(&first);
    assert!(table.settle());
    assert!(!table.is_full());
    assert_eq!(
        (table.pending_bytes(), table.pending_frames(), table.released_seq()),
        (0, 0, 2)
    );
    let seq_at = |seq: u64| table.at((1, (seq << 16) + 64), |record| record.seq);
    assert_eq!((seq_at(1), seq_at(2)), (Some(1), Some(2)));
}

/// Regression: a frame was no longer pending before it was retained, so recently written values
/// were read from the device for a moment.
#[test]
fn what_settles_is_in_ram_all_the_time() {
    let table = FrameTable::starting_at(0, 1 << 20, 16 << 20);
    let frames: Vec<_> = (1..=500).map(|seq| frame_with(seq, 20)).collect();
    for frame in &frames {
        add(&table, frame);
        finish(frame);
    }
    let (looks, missed) = (AtomicU64::new(0), AtomicU64::new(0));
    let look_for = |seq: u64| {
        let found = table.at((1, (seq << 16) + 64), |record| record.seq);
        missed.fetch_add(u64::from(found != Some(seq)), Ordering::Relaxed);
        looks.fetch_add(1, Ordering::Release);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while table.pending_frames() > 0 {
                (1..=500).rev().for_each(look_for);
            }
        });
        while looks.load(Ordering::Acquire) < 500 {
            std::thread::yield_now();
        }
        table.settle();
    });
    (1..=500).for_each(look_for);
    assert_eq!(missed.into_inner(), 0, "of {} looks", looks.into_inner());
}
