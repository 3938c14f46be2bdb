//! Recovery of the log, frame by frame: where it starts, where it ends, and what it reports as
//! damage.

use super::{SEGMENT_BYTES, ring as shared_ring};
use crate::{
    Durability, Error, Result,
    io::{PAGE_BYTES, SimDisk, Survival},
    key_hash,
    log::{
        format::{Body, Record},
        frame::{Frame, FramePool},
        recover::{RecoveredLog, recover},
        segments::{Segment, SegmentState, Segments},
    },
};
use std::{ops::RangeInclusive, sync::Arc};

struct Log {
    disk: SimDisk,
    ring: Segments,
    pool: Arc<FramePool>,
}

impl Log {
    fn new() -> Self {
        let disk = SimDisk::new(1);
        Self {
            ring: shared_ring(&disk, 8),
            disk,
            pool: Arc::new(FramePool::for_overlay(0)),
        }
    }

    fn segment(&self, first_seq: u64) -> &Segment {
        self.ring.take(first_seq, 0).unwrap()
    }

    /// Writes a frame of one page per seq in `seqs`; returns its end. It states that everything up
    /// to `durable_seq` was durable.
    fn frame(&self, segment: &Segment, at: u64, seqs: RangeInclusive<u64>, durable_seq: u64) -> u64 {
        let end = self.unsynced_frame(segment, at, seqs, durable_seq);
        segment.file.sync_data().unwrap();
        end
    }

    /// A segment with the commits 1 to 6, of which 3 and 4 are lost and none after 2 was ever
    /// durable. Also returns where the lost ones began.
    fn hole(&self) -> (&Segment, u64) {
        let segment = self.segment(1);
        let second = self.frame(segment, START, 1..=2, 0);
        let third = self.frame(segment, second, 3..=4, 2);
        self.frame(segment, third, 5..=6, 2);
        self.damage(segment, second);
        (segment, second)
    }

    /// The same as [`Log::frame`], not synced.
    fn unsynced_frame(&self, segment: &Segment, at: u64, seqs: RangeInclusive<u64>, durable_seq: u64) -> u64 {
        let frame = Frame::open(
            segment.number,
            segment.generation(),
            SEGMENT_BYTES,
            at,
            Arc::clone(&self.pool),
        );
        for seq in seqs {
            let key = seq.to_le_bytes();
            let value = vec![3; PAGE_BYTES - 200];
            let record = Record {
                seq: 0,
                generation: 0,
                key: &key,
                attributes: &[],
                checksum: crc32c::crc32c(&value),
                body: Body::Put { value: &value },
            };
            frame.append(seq, &[(key_hash(&key), record)], Durability::Buffered);
        }
        let end = frame.seal(durable_seq);
        segment.file.write_all_at(frame.view().bytes(), at).unwrap();
        end
    }

    fn path(segment: &Segment) -> String {
        format!("segments/{:08x}.seg", segment.number)
    }

    fn damage(&self, segment: &Segment, at: u64) {
        self.disk.flip_bit(&Self::path(segment), (at + 100) * 8).unwrap();
    }

    fn recover(&self, persisted_seq: u64) -> (Segments, Result<RecoveredLog>) {
        let ring = shared_ring(&self.disk, 8);
        let log = recover(&ring, persisted_seq, Arc::clone(&self.pool), false);
        (ring, log)
    }
}

const START: u64 = PAGE_BYTES as u64;

fn seqs(log: &RecoveredLog) -> Vec<(u64, u64)> {
    let seqs = |frame: &Arc<Frame>| {
        let view = frame.view();
        (
            view.records().next().map_or(0, |(_, record)| record.seq),
            view.last_seq(),
        )
    };
    log.frames.iter().map(seqs).collect()
}

/// Found by the model test: a segment was prepared, the power was cut, another one was prepared and
/// used. The headers of both said "5 or later", so recovery began with the later one and used its
/// first frame as the log's first.
#[test]
fn segments_made_ready_and_never_used_hide_nothing() {
    let log = Log::new();
    let first = log.segment(1);
    let end = log.frame(first, START, 1..=6, 0);
    log.segment(5);
    let third = log.segment(5);
    log.frame(first, end, 7..=9, 6);
    log.frame(third, START, 10..=12, 9);
    let (_, recovered) = log.recover(6);
    let recovered = recovered.unwrap();
    assert_eq!(seqs(&recovered), [(7, 9), (10, 12)]);
    assert_eq!((recovered.last_seq, recovered.damage.len()), (12, 0));
    assert_eq!(recovered.tail.unwrap().0, third.number);
}

/// Found by the model test: the power was cut while a segment's first frame was written, and the
/// log continued in the rest of the segment before. The torn frame's header still said "5 or
/// later", so a recovery after the next cut began after commits that were durable.
#[test]
fn a_torn_first_frame_hides_nothing() {
    let log = Log::new();
    let (first, second) = (log.segment(1), log.segment(5));
    let end = log.frame(first, START, 1..=4, 0);
    log.frame(second, START, 5..=9, 4);
    log.damage(second, START);
    let (ring, recovered) = log.recover(2);
    assert_eq!(recovered.unwrap().tail, Some((first.number, end)));
    // There is no more evidence that it was ever used.
    assert_eq!(ring.get(second.number).unwrap().state(), SegmentState::Free);
    let page = log.disk.read_file(&Log::path(second)).unwrap();
    assert_eq!(page[PAGE_BYTES..2 * PAGE_BYTES], [0; PAGE_BYTES]);
    log.frame(first, end, 5..=6, 4);
    let third = log.segment(7);
    log.frame(third, START, 7..=8, 6);
    // Also if the wiping was interrupted, or the frame was damaged later.
    for torn in [false, true] {
        if torn {
            log.frame(second, START, 5..=9, 4);
            log.damage(second, START);
        }
        let recovered = log.recover(4).1.unwrap();
        assert_eq!(seqs(&recovered), [(5, 6), (7, 8)]);
        assert!(recovered.damage.is_empty(), "{:?}", recovered.damage);
        assert_eq!(recovered.tail.unwrap().0, third.number);
    }
}

/// This looks the same, but the index has these commits: it may point to valid records.
#[test]
fn a_damaged_first_frame_that_the_index_has_is_not_wiped() {
    let log = Log::new();
    let segment = log.segment(5);
    log.frame(segment, START, 5..=9, 4);
    log.damage(segment, START);
    let before = log.disk.read_file(&Log::path(segment)).unwrap();
    let (ring, recovered) = log.recover(9);
    assert_eq!(recovered.unwrap().last_seq, 9);
    assert_eq!(ring.get(segment.number).unwrap().state(), SegmentState::Sealed);
    assert!(log.disk.read_file(&Log::path(segment)).unwrap() == before);
}

#[test]
fn what_was_never_synced_is_cut_off_and_wiped() {
    let log = Log::new();
    let (segment, second) = log.hole();
    let (_, recovered) = log.recover(0);
    let recovered = recovered.unwrap();
    assert_eq!(seqs(&recovered), [(1, 2)]);
    assert_eq!(recovered.tail, Some((segment.number, second)));
    assert!(recovered.damage.is_empty());
    // If it were not wiped, it would follow the frames written now.
    log.frame(segment, second, 3..=4, 2);
    let (_, recovered) = log.recover(0);
    assert_eq!(seqs(&recovered.unwrap()), [(1, 2), (3, 4)]);
}

/// Nothing is replayed here, so only the wiping itself causes the sync of the segment.
#[test]
fn what_was_wiped_does_not_come_back_with_a_power_cut() {
    let log = Log::new();
    let (segment, second) = log.hole();
    assert_eq!(seqs(&log.recover(2).1.unwrap()), []);
    log.disk.power_cycle(Survival::Nothing);
    let ring = shared_ring(&log.disk, 8);
    log.frame(ring.get(segment.number).unwrap(), second, 3..=4, 2);
    assert_eq!(seqs(&log.recover(2).1.unwrap()), [(3, 4)]);
}

/// A killed process leaves frames that are not on the device yet. Later recoveries must find the
/// frames that this one found, too.
#[test]
fn what_was_replayed_survives_a_power_cut() {
    let log = Log::new();
    let segment = log.segment(1);
    log.unsynced_frame(segment, START, 1..=3, 0);
    assert_eq!(seqs(&log.recover(0).1.unwrap()), [(1, 3)]);
    log.disk.power_cycle(Survival::Nothing);
    assert_eq!(seqs(&log.recover(0).1.unwrap()), [(1, 3)]);
}

/// Regression: it was treated as a torn tail if the very next frame had been sealed before it was
/// durable, and everything after it was wiped.
#[test]
fn a_bad_frame_that_any_later_one_calls_durable_is_damage() {
    let log = Log::new();
    let segment = log.segment(1);
    let second = log.frame(segment, START, 1..=2, 0);
    let third = log.frame(segment, second, 3..=4, 0);
    let fourth = log.frame(segment, third, 5..=6, 0);
    log.frame(segment, fourth, 7..=8, 6);
    log.damage(segment, second);
    let (ring, recovered) = log.recover(0);
    let recovered = recovered.unwrap();
    assert_eq!(seqs(&recovered), [(1, 2), (5, 6), (7, 8)]);
    assert!(recovered.damage[0].contains("commits 3 to 4"), "{:?}", recovered.damage);
    assert_eq!(ring.get(segment.number).unwrap().state(), SegmentState::Quarantined);
    assert_eq!(recovered.tail, None);
}

#[test]
fn a_segment_was_durable_once_the_next_one_has_a_frame() {
    for last in [false, true] {
        let log = Log::new();
        let (first, second) = (log.segment(1), log.segment(5));
        let end = log.frame(first, START, 1..=2, 0);
        let end = if last { end } else { log.frame(first, end, 3..=4, 0) };
        log.frame(first, end, 5..=6, 0);
        log.frame(second, START, 7..=8, 0);
        // The first frame, or the last one.
        log.damage(first, if last { end } else { START });
        let (_, recovered) = log.recover(0);
        let recovered = recovered.unwrap();
        let expected: &[(u64, u64)] = if last {
            &[(1, 2), (7, 8)]
        } else {
            &[(3, 4), (5, 6), (7, 8)]
        };
        assert_eq!(seqs(&recovered), expected);
        assert_eq!(recovered.damage.len(), 1, "{:?}", recovered.damage);
    }
}

/// Regression: the tail overwrote the other records of such a frame.
#[test]
fn a_damaged_last_frame_that_the_index_has_is_not_written_over() {
    let log = Log::new();
    let segment = log.segment(1);
    let second = log.frame(segment, START, 1..=2, 0);
    log.frame(segment, second, 3..=4, 2);
    log.damage(segment, second);
    let (_, recovered) = log.recover(4);
    let recovered = recovered.unwrap();
    assert_eq!((recovered.tail, recovered.last_seq), (None, 4));
    assert!(recovered.damage[0].contains("commits 3 to 4"), "{:?}", recovered.damage);
}

#[test]
fn a_log_that_begins_after_the_index_ends_is_refused() {
    let log = Log::new();
    let (first, second) = (log.segment(1), log.segment(3));
    log.frame(first, START, 1..=4, 0);
    log.frame(second, START, 5..=6, 4);
    log.disk.put_file(&Log::path(first), &[]).unwrap();
    for (persisted_seq, is_sound) in [(0, false), (3, false), (4, true), (6, true)] {
        let (_, recovered) = log.recover(persisted_seq);
        assert_eq!(recovered.is_ok(), is_sound, "{persisted_seq}");
        if let Err(error) = recovered {
            assert!(matches!(error, Error::Corruption { .. }), "{error}");
        }
    }
}

/// Regression: such a segment was treated as a free one, and overwritten.
#[test]
fn a_damaged_header_costs_the_segment_nothing() {
    let log = Log::new();
    let (first, second) = (log.segment(1), log.segment(3));
    log.frame(first, START, 1..=4, 0);
    log.frame(second, START, 5..=6, 4);
    log.disk.flip_bit(&Log::path(first), 300).unwrap();
    let (ring, recovered) = log.recover(0);
    let recovered = recovered.unwrap();
    assert_eq!(seqs(&recovered), [(1, 4), (5, 6)]);
    assert!(recovered.damage[0].contains("header"), "{:?}", recovered.damage);
    assert_eq!(ring.get(first.number).unwrap().state(), SegmentState::Sealed);
    // Without any evidence it is at least left alone.
    log.damage(first, START - 60);
    log.disk.flip_bit(&Log::path(first), (START + 10) * 8).unwrap();
    let ring = shared_ring(&log.disk, 8);
    assert_eq!(ring.get(first.number).unwrap().state(), SegmentState::Quarantined);
}
