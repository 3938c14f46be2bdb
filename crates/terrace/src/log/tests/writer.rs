//! Group commit: which thread syncs for which, in which order commits become durable, and the state
//! after a failure.

use super::{super::writer::FrameWriter, *};
use crate::{
    Error,
    io::{Disk as _, Fault, FaultKind, FileDisk, PAGE_BYTES, Survival},
};
use parking_lot::Mutex;
use std::sync::{
    Barrier,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

fn no_large() -> FrameWriter {
    FrameWriter::starting_at(0, Box::new(|_| Ok(())))
}

/// A log of one segment like that of the commit log: an open frame, sealed on request.
struct Log {
    segments: Segments,
    writer: FrameWriter,
    open: Mutex<(u64, u64, Option<Arc<Frame>>)>,
}

impl Log {
    fn new(disk: &SimDisk) -> Self {
        let segments = ring(disk, 8);
        segments.take(1, 0).unwrap();
        Self {
            segments,
            writer: no_large(),
            open: Mutex::new((1, PAGE_BYTES as u64, None)),
        }
    }

    fn append(&self, value: &[u8]) -> u64 {
        let mut open = self.open.lock();
        let (seq, offset) = (open.0, open.1);
        let frame = open.2.get_or_insert_with(|| {
            let pool = Arc::new(FramePool::for_overlay(0));
            Arc::new(Frame::open(0, 1, SEGMENT_BYTES, offset, pool))
        });
        frame.append(seq, &[put(&seq.to_le_bytes(), value)], Durability::Buffered);
        open.0 += 1;
        seq
    }

    fn seal(&self) -> u64 {
        let mut open = self.open.lock();
        if let Some(frame) = open.2.take() {
            open.1 = frame.seal(self.writer.durable_seq());
            self.writer.push(frame);
        }
        open.0 - 1
    }

    fn make_durable(&self, seq: u64) -> crate::Result<()> {
        self.writer.make_durable(&self.segments, seq, || self.seal()).map(drop)
    }
}

#[test]
fn one_sync_serves_all_commits_before_it() {
    let disk = SimDisk::new(1);
    let log = Log::new(&disk);
    let before = disk.counters();
    let threads = 32;
    let barrier = Barrier::new(threads);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let seq = log.append(b"value");
                barrier.wait();
                log.make_durable(seq).unwrap();
                assert!(log.writer.durable_seq() >= seq);
            });
        }
    });
    let after = disk.counters();
    assert_eq!((after.syncs - before.syncs, after.writes - before.writes), (1, 1));
    assert_eq!(log.writer.durable_seq(), threads as u64);
    let (written, padding) = (
        log.writer.written().records.load(Ordering::Relaxed),
        log.writer.written().padding.load(Ordering::Relaxed),
    );
    assert_eq!((written, (written + padding) % 4096), (threads as u64 * 48, 0));
    log.make_durable(1).unwrap();
    assert_eq!(disk.counters(), after, "what is durable costs nothing more");
}

#[test]
fn acknowledged_commits_survive_whatever_the_threads_do() {
    let disk = SimDisk::new(2);
    let log = Log::new(&disk);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..8 {
                    let seq = log.append(&noise(1, 100));
                    if seq.is_multiple_of(3) {
                        log.make_durable(seq).unwrap();
                    } else if seq % 3 == 1 {
                        log.seal();
                        log.writer.write_sealed(&log.segments).unwrap();
                    }
                }
            });
        }
    });
    let durable = log.writer.durable_seq();
    assert_eq!(durable, 48, "the last commit was acknowledged");
    disk.power_cycle(Survival::Nothing);
    let segments = ring(&disk, 8);
    let image = super::super::scan::SegmentImage::read(segments.get(0).unwrap(), SEGMENT_BYTES).unwrap();
    let mut next = 1;
    for frame in image.frames() {
        assert_eq!(frame.header.first_seq, next, "frames follow each other");
        assert!(frame.header.durable_seq < next);
        next = frame.header.last_seq + 1;
    }
    assert!(next > durable, "{durable} were acknowledged, {next} is missing");
}

#[test]
fn a_segment_is_synced_before_the_next_one_is_written() {
    let disk = SimDisk::new(3);
    let segments = ring(&disk, 8);
    segments.take(1, 0).unwrap();
    segments.take(2, 0).unwrap();
    let writer = no_large();
    writer.push(sealed(0, 1, 4096, 1, &[noise(1, 100)]));
    writer.write_sealed(&segments).unwrap();
    assert_eq!((writer.durable_seq(), writer.backlog()), (0, (0, 4096)));
    writer.push(sealed(1, 2, 4096, 2, &[noise(2, 100)]));
    assert_eq!(writer.backlog().0, 1);
    writer.write_sealed(&segments).unwrap();
    assert_eq!(writer.durable_seq(), 1, "the first is durable, though no caller asked");
    disk.power_cycle(Survival::Nothing);
    let segments = ring(&disk, 8);
    let frames = |number| {
        let image = super::super::scan::SegmentImage::read(segments.get(number).unwrap(), SEGMENT_BYTES).unwrap();
        image.frames().count()
    };
    assert_eq!((frames(0), frames(1)), (1, 0));
}

/// Regression: callers waited up to 40 ms for room in RAM: until all frames that waited for the
/// device, 64 MiB, had been written.
#[test]
fn what_nobody_waits_for_is_written_in_small_goes() {
    let disk = SimDisk::new(5);
    let segments = ring(&disk, 8);
    segments.take(1, 0).unwrap();
    let writer = no_large();
    for seq in 1..=9 {
        writer.push(sealed(0, 1, 4096 * seq, seq, &[noise(seq, 100)]));
    }
    assert!(writer.write_sealed(&segments).unwrap(), "more is left");
    assert_eq!(writer.backlog(), (5, 4 * 4096));
    while writer.write_sealed(&segments).unwrap() {}
    assert_eq!((writer.backlog(), writer.durable_seq()), ((0, 9 * 4096), 0));
    for seq in 10..=20 {
        writer.push(sealed(0, 1, 4096 * seq, seq, &[noise(seq, 100)]));
    }
    writer.make_durable(&segments, 20, || 20).unwrap();
    assert_eq!((writer.backlog(), writer.durable_seq()), ((0, 0), 20));
}

#[test]
fn frames_side_by_side_are_one_write() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(FileDisk::new(directory.path()).unwrap());
    let segments = Segments::open(disk.clone(), STORE, SEGMENT_BYTES, 8 * SEGMENT_BYTES, true, false).unwrap();
    segments.take(1, 0).unwrap();
    segments.take(2, 0).unwrap();
    let writer = no_large();
    let writes_of = |places: &[(u32, u64)], first_seq: u64| {
        let before = disk.counters().writes;
        for (seq, (segment, page)) in (first_seq..).zip(places) {
            let generation = u64::from(*segment) + 1;
            writer.push(sealed(*segment, generation, 4096 * page, seq, &[noise(seq, 100)]));
        }
        let last_seq = first_seq + places.len() as u64 - 1;
        writer.make_durable(&segments, last_seq, || last_seq).unwrap();
        disk.counters().writes - before
    };
    assert_eq!(writes_of(&[(0, 1), (0, 2), (0, 3)], 1), 1);
    assert_eq!(writes_of(&[(0, 4), (0, 6), (0, 7)], 4), 2, "there is a gap");
    assert_eq!(writes_of(&[(0, 8), (1, 1), (1, 2)], 7), 2, "they are in two segments");
    let found = |number| {
        let image = super::super::scan::SegmentImage::read(segments.get(number).unwrap(), SEGMENT_BYTES).unwrap();
        image.frames().map(|frame| frame.header.first_seq).collect::<Vec<_>>()
    };
    assert_eq!((found(0), found(1)), (vec![1, 2, 3, 4, 5, 6, 7], vec![8, 9]));
}

#[test]
fn values_are_durable_before_the_frame_that_points_to_them_is_written() {
    let disk = SimDisk::new(4);
    let segments = ring(&disk, 8);
    segments.take(1, 0).unwrap();
    let (calls, fails) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let writer = {
        let (calls, fails, disk) = (Arc::clone(&calls), Arc::clone(&fails), disk.clone());
        FrameWriter::starting_at(
            0,
            Box::new(move |turn| {
                assert_eq!(turn, 7);
                calls.fetch_add(1, Ordering::SeqCst);
                let content = disk.read_file("segments/00000000.seg").unwrap();
                let at = 4096 * calls.load(Ordering::SeqCst) as usize;
                assert!(content[at..at + 64].iter().all(|&byte| byte == 0), "written too early");
                if fails.load(Ordering::SeqCst) {
                    return Err(Error::Failed("the large device is gone".to_owned()));
                }
                Ok(())
            }),
        )
    };
    let pointing = sealed(0, 1, 4096, 1, &[noise(1, 10)]);
    pointing.needs_large_sync(7);
    writer.push(pointing);
    writer.push(sealed(0, 1, 8192, 2, &[noise(2, 10)]));
    writer.make_durable(&segments, 2, || 2).unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 1, "only for the frame that needs it");
    fails.store(true, Ordering::SeqCst);
    calls.store(2, Ordering::SeqCst);
    let pointing = sealed(0, 1, 12_288, 3, &[noise(3, 10)]);
    pointing.needs_large_sync(7);
    writer.push(pointing);
    let error = writer.make_durable(&segments, 3, || 3).unwrap_err();
    assert!(error.to_string().contains("large device is gone"), "{error}");
    let content = disk.read_file("segments/00000000.seg").unwrap();
    assert!(content[12_288..].iter().all(|&byte| byte == 0));
    assert_eq!(writer.durable_seq(), 2);
}

#[test]
fn after_a_failure_nothing_is_written_any_more() {
    for kind in [FaultKind::Write, FaultKind::Sync] {
        let disk = SimDisk::new(5);
        let log = Log::new(&disk);
        let first = log.append(b"kept");
        log.make_durable(first).unwrap();
        disk.set_fault(Some(Fault::new(kind)));
        let barrier = Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let seq = log.append(b"lost?");
                    barrier.wait();
                    let error = log.make_durable(seq).unwrap_err();
                    assert!(matches!(error, Error::Failed(_)), "{error}");
                });
            }
        });
        disk.set_fault(None);
        let before = disk.counters();
        let seq = log.append(b"never");
        log.seal();
        assert!(matches!(log.make_durable(seq), Err(Error::Failed(_))));
        assert!(matches!(log.writer.write_sealed(&log.segments), Err(Error::Failed(_))));
        assert!(log.writer.failure().is_some());
        assert_eq!(disk.counters(), before, "the device was not touched again");
        assert_eq!(log.writer.durable_seq(), first);
        log.make_durable(first).unwrap();
    }
}

#[test]
fn a_failure_elsewhere_stops_the_log_and_the_first_reason_stays() {
    let disk = SimDisk::new(6);
    let log = Log::new(&disk);
    log.writer.fail("the index is gone");
    log.writer.fail("something later");
    let seq = log.append(b"value");
    let error = log.make_durable(seq).unwrap_err();
    assert!(error.to_string().contains("the index is gone"), "{error}");
}
