//! A segment longer than one request, read by several.

use super::super::{
    parallel_scan,
    scan::{FrameWalk, READ_BYTES, SegmentImage},
    segments::Segment,
};

use super::*;
use crate::io::{AlignedBuffer, Fault, FaultKind, PAGE_BYTES};

/// Four requests and a short one.
const LONG_BYTES: u64 = (4 << 20) + (256 << 10);

/// Two segments full of frames, with different contents.
fn full(disk: &SimDisk) -> Segments {
    let disk = Arc::new(disk.clone());
    let segments = Segments::open(disk, STORE, LONG_BYTES, 2 * LONG_BYTES, true, false).unwrap();
    for round in 0..2 {
        let segment = segments.take(1, 0).unwrap();
        let mut at = PAGE_BYTES as u64;
        for seq in (1..).map(|part| round * 100 + part) {
            let frame = sealed(segment.number, segment.generation(), at, seq, &[noise(seq, 200_000)]);
            let view = frame.view();
            if at + view.bytes().len() as u64 > LONG_BYTES {
                break;
            }
            segment.file.write_all_at(view.bytes(), at).unwrap();
            at += view.bytes().len() as u64;
        }
    }
    segments
}

fn frames(image: &SegmentImage) -> Vec<(usize, &[u8])> {
    image.frames().map(|frame| (frame.offset, frame.bytes)).collect()
}

#[test]
fn it_is_the_same_as_by_one_with_the_memory_of_another() {
    let segments = full(&SimDisk::new(1));
    let mut memory = AlignedBuffer::new();
    for segment in segments.iter() {
        let by_one = SegmentImage::read(segment, LONG_BYTES).unwrap();
        let image = parallel_scan::read(memory, segment, LONG_BYTES).unwrap();
        assert_eq!((image.number, image.generation), (by_one.number, by_one.generation));
        assert!(frames(&image) == frames(&by_one) && image.frames().count() > 20);
        memory = image.into_memory();
        assert_eq!(memory.len() as u64, LONG_BYTES);
    }
}

#[test]
fn a_request_that_fails_is_told() {
    let disk = SimDisk::new(1);
    let segments = full(&disk);
    let read = |segment: &Segment, after| {
        disk.set_fault(Some(Fault::new(FaultKind::Read).on("00000001.seg").after(after)));
        parallel_scan::read(AlignedBuffer::new(), segment, LONG_BYTES)
    };
    let (sound, failing) = (segments.get(0).unwrap(), segments.get(1).unwrap());
    for after in 0..5 {
        let error = read(failing, after).unwrap_err().to_string();
        assert!(error.contains("read segment 00000001 at"), "{error}");
        read(sound, after).unwrap();
    }
    read(failing, 5).unwrap();
}

#[test]
fn a_walk_finds_the_same_with_a_frame_and_a_request_in_ram() {
    for segment in full(&SimDisk::new(4)).iter() {
        let image = SegmentImage::read(segment, LONG_BYTES).unwrap();
        let mut read_bytes = 0;
        let mut walk = FrameWalk::new(
            segment,
            LONG_BYTES,
            |bytes, read: &mut dyn FnMut() -> crate::Result<()>| {
                read_bytes += bytes;
                read()
            },
        );
        for (offset, bytes) in frames(&image) {
            let frame = walk.next_frame().unwrap().unwrap();
            assert_eq!(frame.offset, offset);
            assert!(frame.bytes == bytes);
            assert!(walk.window_bytes() <= bytes.len() + READ_BYTES);
        }
        assert!(walk.next_frame().unwrap().is_none());
        drop(walk);
        assert_eq!(read_bytes, LONG_BYTES as usize - PAGE_BYTES, "each byte is read once");
    }
}
