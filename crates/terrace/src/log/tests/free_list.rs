//! The list of segments that may be written again: its bytes, what goes into it, and what an open
//! makes of it.

use super::{
    super::{
        free_list::{LISTED_MAX, decode_free_list, encode_free_list},
        segments::SegmentState,
    },
    *,
};

#[test]
fn golden_bytes() {
    let bytes = encode_free_list(&[(5, 6), (0x0403_0201, 0x1817_1615_1413_1211)]);
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        hex,
        concat!(
            "54524653",
            "01000000",
            "02000000",
            "050000000600000000000000",
            "010203041112131415161718"
        )
    );
    let followed = [&bytes[..], b"rest"].concat();
    let (list, rest) = decode_free_list(&followed).unwrap();
    assert_eq!(list, [(5, 6), (0x0403_0201, 0x1817_1615_1413_1211)]);
    assert_eq!(rest, b"rest");
}

#[test]
fn what_is_no_list_is_left_and_what_no_writer_writes_is_refused() {
    assert_eq!(
        decode_free_list(b"TRCA and more"),
        Some((vec![], &b"TRCA and more"[..]))
    );
    assert_eq!(decode_free_list(b""), Some((vec![], &b""[..])));
    let bytes = encode_free_list(&[(1, 2), (3, 4)]);
    for length in 4..bytes.len() {
        assert_eq!(decode_free_list(&bytes[..length]), None, "{length} bytes");
    }
    for list in [[(3, 4), (1, 2)], [(1, 2), (1, 3)], [(1, 0), (3, 4)]] {
        assert_eq!(decode_free_list(&encode_free_list(&list)), None, "{list:?}");
    }
    let mut newer = bytes.clone();
    newer[4] = 2;
    assert_eq!(decode_free_list(&newer), None);
    let mut huge = bytes;
    huge[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(decode_free_list(&huge), None);
}

#[test]
fn a_list_is_of_bounded_length() {
    let long: Vec<_> = (0..LISTED_MAX as u32 + 10).map(|number| (number, 7)).collect();
    let bytes = encode_free_list(&long);
    let (list, rest) = decode_free_list(&bytes).unwrap();
    assert_eq!((list.len(), rest.len()), (LISTED_MAX, 0));
}

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
    segments.reopen(open);
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
        // The lowest number goes first.
        assert_eq!(taken.take(30, 0).unwrap().number, list[0].0);
    }
    let again = ring(&disk, 16);
    again.free_over_uses(&list);
    assert_eq!(again.get(list[0].0).unwrap().state(), SegmentState::Sealed);
    assert_eq!(again.get(list[1].0).unwrap().state(), SegmentState::Free);
}

#[test]
fn a_generation_that_is_listed_is_never_given_out_again() {
    // Were the file of the segment with the highest generation lost, its generation would be the
    // next one; and a list that speaks of the use before would take the new one for over.
    let segments = ring(&SimDisk::new(1), 16);
    segments.free_over_uses(&[(0, 41), (70_000, 5)]);
    assert_eq!(segments.take(1, 0).unwrap().generation(), 42);
}
