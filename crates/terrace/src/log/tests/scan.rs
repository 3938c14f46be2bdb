//! Walking a segment's frames: whole ones, damaged ones, those of an earlier use.

use super::{
    super::{
        format::looks_like_a_frame,
        scan::{FrameWalk, SegmentImage, Walked},
    },
    *,
};
use crate::io::PAGE_BYTES;

/// Writes consecutive frames; returns their offsets and the end.
fn write(segments: &Segments, number: u32, generation: u64, frames: &[(u64, usize)]) -> Vec<u64> {
    let segment = segments.get(number).unwrap();
    let mut offsets = vec![PAGE_BYTES as u64];
    for &(seq, length) in frames {
        let at = offsets[offsets.len() - 1];
        let frame = sealed(number, generation, at, seq, &[noise(seq, length)]);
        let view = frame.view();
        segment.file.write_all_at(view.bytes(), at).unwrap();
        offsets.push(at + view.bytes().len() as u64);
    }
    offsets
}

/// The seqs in the image; a walk that keeps little in RAM must find the same.
fn seqs(image: &SegmentImage, segment: &super::super::segments::Segment) -> Vec<u64> {
    let mut walk = FrameWalk::new(
        segment,
        SEGMENT_BYTES,
        |_, read: &mut dyn FnMut() -> crate::Result<()>| read(),
    );
    for frame in image.frames() {
        let found = walk.next_frame().unwrap().unwrap();
        assert_eq!((found.offset, found.bytes), (frame.offset, frame.bytes));
    }
    assert!(walk.next_frame().unwrap().is_none());
    let Walked {
        last,
        end,
        held_bytes,
        damaged,
        looks_used_at_end,
    } = walk.into_walked();
    let image_end = image.frames().last().map_or(PAGE_BYTES, |frame| frame.end());
    assert_eq!(last, image.frames().last().map(|frame| frame.header));
    assert_eq!((end, damaged), (image_end, image.damaged()));
    assert_eq!(held_bytes, image.frames().map(|frame| frame.bytes.len()).sum::<usize>());
    let mut page = [0; PAGE_BYTES];
    let read_bytes = segment.file.read_up_to_at(&mut page, end as u64).unwrap();
    let looks_used = looks_like_a_frame(&page[..read_bytes], segment.generation());
    assert_eq!(looks_used_at_end, looks_used);
    image.frames().map(|frame| frame.header.first_seq).collect()
}

#[test]
fn frames_are_walked_in_order_and_damage_is_told() {
    let disk = SimDisk::new(1);
    let segments = ring(&disk, 8);
    let segment = segments.take(1, 0).unwrap();
    let (number, generation) = (segment.number, segment.generation());
    let offsets = write(
        &segments,
        number,
        generation,
        &[(1, 100), (2, 9_000), (3, 0), (4, 20_000)],
    );
    let image = SegmentImage::read(segment, SEGMENT_BYTES).unwrap();
    assert_eq!((seqs(&image, segment), image.damaged()), (vec![1, 2, 3, 4], vec![]));
    let first = image.frame_at(PAGE_BYTES).unwrap();
    assert_eq!((first.offset, first.end() as u64), (PAGE_BYTES, offsets[1]));
    assert!(image.frame_at(PAGE_BYTES * 3).is_none());

    let path = "segments/00000000.seg";
    disk.flip_bit(path, (offsets[1] + 5_000) * 8 + 3).unwrap();
    let image = SegmentImage::read(segment, SEGMENT_BYTES).unwrap();
    assert_eq!(seqs(&image, segment), [1, 3, 4]);
    assert_eq!(image.damaged(), [(offsets[1] as usize, offsets[2] as usize)]);
    assert_eq!(image.next_frame(offsets[1] as usize).unwrap().header.first_seq, 3);
    assert_eq!(
        image.header_at(offsets[1] as usize).unwrap().first_seq,
        2,
        "its header is sound"
    );

    disk.flip_bit(path, (offsets[3] + 30) * 8).unwrap();
    let image = SegmentImage::read(segment, SEGMENT_BYTES).unwrap();
    assert_eq!(seqs(&image, segment), [1, 3]);
    assert_eq!(image.damaged().len(), 1, "what is behind the last frame is no gap");
    assert!(image.header_at(offsets[3] as usize).is_none());
    assert!(image.next_frame(SEGMENT_BYTES as usize).is_none() && image.frame_at(usize::MAX).is_none());
}

#[test]
fn frames_of_an_earlier_use_do_not_pass() {
    let disk = SimDisk::new(2);
    let segments = ring(&disk, 8);
    let segment = segments.take(1, 0).unwrap();
    let before = segment.generation();
    write(&segments, 0, before, &[(1, 100), (2, 100), (3, 100)]);
    segments.seal(segment, 3, SEGMENT_BYTES);
    segments.start_draining(segment);
    segments.drained(segment, 3);
    assert!(segments.free_drained(segment));
    let segment = segments.take(4, 0).unwrap();
    assert_eq!((segment.number, segment.generation()), (0, before + 1));
    let image = SegmentImage::read(segment, SEGMENT_BYTES).unwrap();
    assert_eq!(seqs(&image, segment), Vec::<u64>::new());
    let offsets = write(&segments, 0, before + 1, &[(4, 100)]);
    let image = SegmentImage::read(segment, SEGMENT_BYTES).unwrap();
    assert_eq!((seqs(&image, segment), image.damaged()), (vec![4], vec![]));
    assert!(
        image.header_at(offsets[1] as usize).is_none(),
        "it is the earlier use's"
    );
}

#[test]
fn a_segment_that_cannot_be_read_is_an_error() {
    let disk = SimDisk::new(3);
    let segments = ring(&disk, 8);
    let segment = segments.take(1, 0).unwrap();
    disk.truncate("segments/00000000.seg", SEGMENT_BYTES - 1).unwrap();
    let error = SegmentImage::read(segment, SEGMENT_BYTES).unwrap_err();
    assert!(error.to_string().contains("segment 00000000"), "{error}");
    let mut walk = FrameWalk::new(
        segment,
        SEGMENT_BYTES,
        |_, read: &mut dyn FnMut() -> crate::Result<()>| read(),
    );
    let error = walk.next_frame().unwrap_err();
    assert!(error.to_string().contains("segment 00000000"), "{error}");
}
