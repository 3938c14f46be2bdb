//! The list of segments that may be written again: its contents, and their use by an open.

use super::{super::segments::SegmentState, *};

/// A ring with a segment in every state, and its free list as of seq 20.
fn with_every_state(disk: &SimDisk) -> Vec<(u32, u64)> {
    let segments = ring(disk, 16);
    let [free, drained, late, draining, sealed, quarantined, open] = [1, 2, 3, 4, 5, 6, 7].map(|seq| {
        let segment = segments.take(seq, 0).unwrap();
        segments.seal(segment, seq, SEGMENT_BYTES);
        segment
    });
    segments.drained(free, 10);
    assert!(segments.free_drained(free));
    segments.drained(drained, 20);
    segments.drained(late, 21);
    segments.start_draining(draining);
    segments.quarantine(quarantined);
    open.set_state(SegmentState::Open);
    let list = segments.over_uses(20);
    let expected = [free, drained].map(|segment| (segment.number, segment.generation()));
    assert_eq!(list, expected);
    assert_eq!(sealed.state(), SegmentState::Sealed);
    list
}

#[test]
fn free_and_drained_segments_are_listed_and_free_after_an_open() {
    let disk = SimDisk::new(1);
    let list = with_every_state(&disk);
    let again = ring(&disk, 16);
    assert_eq!(again.free(), 0);
    again.free_over_uses(&list);
    assert_eq!(again.free(), 2);
    for (number, _) in list {
        assert_eq!(again.get(number).unwrap().state(), SegmentState::Free);
    }
    let used = again.iter().filter(|segment| segment.state() == SegmentState::Sealed);
    assert_eq!(used.count(), 5);
}

#[test]
fn a_segment_in_a_later_use_is_not_freed() {
    let disk = SimDisk::new(1);
    let list = with_every_state(&disk);
    {
        let taken = ring(&disk, 16);
        taken.free_over_uses(&list);
        // The lowest number is taken first.
        assert_eq!(taken.take(30, 0).unwrap().number, list[0].0);
    }
    let again = ring(&disk, 16);
    again.free_over_uses(&list);
    assert_eq!(again.get(list[0].0).unwrap().state(), SegmentState::Sealed);
    assert_eq!(again.get(list[1].0).unwrap().state(), SegmentState::Free);
}

#[test]
fn a_generation_that_is_listed_is_never_given_out_again() {
    // If the file of the segment with the highest generation were lost, its generation would be
    // assigned next; and a list with the use before would declare the new use ended.
    let segments = ring(&SimDisk::new(1), 16);
    segments.free_over_uses(&[(0, 41), (70_000, 5)]);
    assert_eq!(segments.take(1, 0).unwrap().generation(), 42);
}
