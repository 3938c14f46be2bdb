//! Batches of reads, by rings and by threads.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::io::{Disk, Fault, FaultKind, FileDisk, OpenMode, PAGE_BYTES, SimDisk, Survival};
use std::{io::ErrorKind, path::Path};

const FILE_BYTES: usize = 1 << 20;

/// The byte at an offset of the file.
// Wanted.
const fn byte(offset: usize) -> u8 {
    ((offset / 13) ^ offset) as u8
}

fn file(disk: &dyn Disk, direct: bool) -> Arc<dyn DiskFile> {
    let name = format!("file-{direct}");
    let file = disk
        .open(Path::new(&name), OpenMode::CREATE.with_direct(direct))
        .unwrap();
    let mut content = AlignedBuffer::zeroed(FILE_BYTES);
    content
        .iter_mut()
        .enumerate()
        .for_each(|(offset, at)| *at = byte(offset));
    file.write_all_at(&content, 0).unwrap();
    file.sync_data().unwrap();
    file
}

fn read(file: &Arc<dyn DiskFile>, offset: usize, bytes: usize) -> QueuedRead {
    let mut buffer = AlignedBuffer::new();
    buffer.set_len(bytes);
    QueuedRead::new(Arc::clone(file), offset as u64, buffer)
}

/// One that reads by rings where there are any, and one that never does.
fn queues() -> [ReadQueue; 2] {
    let refused = ReadQueue::default();
    refused.refuse();
    assert!(refused.is_refused.load(Ordering::Relaxed));
    [ReadQueue::default(), refused]
}

fn with_disks(test: impl Fn(&dyn Disk)) {
    test(&SimDisk::new(1));
    // Beside the test binary: the temporary directory may be in memory, too.
    let binary = std::env::current_exe().unwrap();
    let directory = tempfile::tempdir_in(binary.parent().unwrap()).unwrap();
    test(&FileDisk::new(directory.path()).unwrap());
    if Path::new("/dev/shm").is_dir() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        test(&FileDisk::new(directory.path()).unwrap());
    }
}

/// Shorter than a part, of several, and of several and a rest.
#[test]
fn a_long_buffer_is_filled_in_order_or_not_at_all() {
    with_disks(|disk| {
        for (queue, direct) in queues().iter().zip([false, true]) {
            let file = file(disk, direct);
            for bytes in [PAGE_BYTES, 2 * PART_BYTES, 3 * PART_BYTES + PAGE_BYTES] {
                let mut buffer = AlignedBuffer::zeroed(bytes);
                queue.fill(&file, &mut [(&mut buffer, 2 * PAGE_BYTES as u64)]).unwrap();
                let expected = (2 * PAGE_BYTES..).map(byte);
                assert!(buffer.iter().copied().eq(expected.take(bytes)), "{bytes}");
            }
            // Several, of which one is empty.
            let mut buffers = [3 * PART_BYTES + PAGE_BYTES, 0, PAGE_BYTES].map(AlignedBuffer::zeroed);
            let [one, none, other] = &mut buffers;
            queue
                .fill(&file, &mut [(one, PAGE_BYTES as u64), (none, 0), (other, 0)])
                .unwrap();
            for (buffer, from) in buffers.iter().zip([PAGE_BYTES, 0, 0]) {
                assert!(buffer.iter().copied().eq((from..).map(byte).take(buffer.len())));
            }
            let mut buffer = AlignedBuffer::zeroed(2 * PART_BYTES);
            let over_the_end = (FILE_BYTES - PART_BYTES - PAGE_BYTES) as u64;
            let error = queue.fill(&file, &mut [(&mut buffer, over_the_end)]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        }
    });
}

#[test]
fn every_read_of_a_batch_is_made_and_in_its_place() {
    with_disks(|disk| {
        for direct in [false, true] {
            let file = file(disk, direct);
            // More than a ring takes at a time: pages, parts of pages from anywhere, nothing, and
            // what is not there.
            let ranges: Vec<(usize, usize)> = (0..250)
                .map(|number| match number % 5 {
                    0 => (number * 613 + 1, number * 7),
                    1 => (FILE_BYTES - PAGE_BYTES, 2 * PAGE_BYTES),
                    2 => (number * PAGE_BYTES, 0),
                    _ => (number * PAGE_BYTES, (1 + number % 3) * PAGE_BYTES),
                })
                .collect();
            for queue in queues() {
                let before = disk.counters();
                let reads = ranges.iter().map(|(offset, bytes)| read(&file, *offset, *bytes));
                let made = queue.read(reads.collect());
                assert_eq!(made.len(), ranges.len());
                for (read, (offset, bytes)) in made.iter().zip(&ranges) {
                    let end = offset + bytes;
                    if end > FILE_BYTES {
                        assert_eq!(read.bytes().unwrap_err().kind(), ErrorKind::UnexpectedEof);
                        continue;
                    }
                    let wanted: Vec<u8> = (*offset..end).map(byte).collect();
                    assert!(read.bytes().unwrap() == wanted, "{bytes} bytes at {offset}");
                }
                let after = disk.counters();
                assert_eq!(after.reads - before.reads, ranges.len() as u64);
            }
        }
    });
}

#[test]
fn a_batch_may_be_of_several_disks() {
    let directory = tempfile::tempdir().unwrap();
    let (one, other) = (FileDisk::new(directory.path()).unwrap(), SimDisk::new(3));
    let files = [file(&one, true), file(&other, true), file(&one, false)];
    for queue in queues() {
        let reads = (0..30).map(|number| read(&files[number % 3], number * PAGE_BYTES, PAGE_BYTES));
        for (number, read) in queue.read(reads.collect()).iter().enumerate() {
            let start = number * PAGE_BYTES;
            let wanted: Vec<u8> = (start..start + PAGE_BYTES).map(byte).collect();
            assert!(read.bytes().unwrap() == wanted, "{number}");
        }
    }
}

#[test]
fn faults_and_power_cuts_of_a_simulated_disk_are_seen() {
    for queue in queues() {
        let disk = SimDisk::new(9);
        let file = file(&disk, true);
        let batch = || (0..20).map(|page| read(&file, page * PAGE_BYTES, PAGE_BYTES)).collect();
        disk.set_fault(Some(Fault::new(FaultKind::Read).after(5)));
        let made = queue.read(batch());
        let failed = made.iter().filter(|read| read.bytes().is_err()).count();
        assert_eq!(failed, 15);
        disk.set_fault(None);
        assert!(queue.read(batch()).iter().all(|read| read.bytes().is_ok()));
        disk.power_cycle(Survival::Everything);
        assert!(queue.read(batch()).iter().all(|read| read.bytes().is_err()));
    }
}

#[test]
fn threads_have_batches_at_once_and_end() {
    let directory = tempfile::tempdir().unwrap();
    let file = file(&FileDisk::new(directory.path()).unwrap(), true);
    for queue in queues() {
        std::thread::scope(|scope| {
            for thread in 0..16 {
                let (queue, file) = (&queue, &file);
                scope.spawn(move || {
                    for round in 0..20 {
                        let page = |number: usize| (thread * 31 + round * 7 + number * 11) % 256 * PAGE_BYTES;
                        let reads = (0..40).map(|number| read(file, page(number), PAGE_BYTES));
                        for (number, read) in queue.read(reads.collect()).iter().enumerate() {
                            assert_eq!(read.bytes().unwrap()[17], byte(page(number) + 17));
                        }
                    }
                });
            }
        });
    }
}

#[test]
fn what_the_kernel_lacks_for_the_moment_it_is_asked_for_again() {
    use rustix::io::Errno;
    let queue = ReadQueue::default();
    for later in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN] {
        queue.refused(&later.into());
        assert!(!queue.is_refused.load(Ordering::Relaxed), "{later}");
    }
    for never in [Errno::NOSYS, Errno::PERM, Errno::ACCESS] {
        let queue = ReadQueue::default();
        queue.refused(&never.into());
        assert!(queue.is_refused.load(Ordering::Relaxed), "{never}");
    }
}

/// Scans had two hundred reads under way, and the sweep that was to save them sixteen: at 70,000
/// reads a second it got 80 MiB/s of a device that gave it 600 otherwise.
#[test]
fn while_a_device_is_shared_batches_are_made_in_parts() {
    with_disks(|disk| {
        let file = file(disk, true);
        for queue in queues() {
            let batch = || {
                (0..100)
                    .map(|n| read(&file, n * 7 % 100 * PAGE_BYTES, PAGE_BYTES))
                    .collect()
            };
            let is_right = |made: Vec<QueuedRead>| {
                let first_bytes = made.iter().map(|read| read.bytes().unwrap()[1]);
                first_bytes.eq((0..100).map(|n| byte(n * 7 % 100 * PAGE_BYTES + 1)))
            };
            assert_eq!(queue.together(8), usize::MAX);
            let (one, other) = (queue.share(), queue.share());
            let together = [1, 8, 100].map(|batches| queue.together(batches));
            assert_eq!(together, [TOGETHER, TOGETHER / 8, TOGETHER_MIN]);
            assert!(is_right(queue.read(batch())));
            drop(one);
            assert_eq!(queue.together(8), TOGETHER / 8);
            drop(other);
            assert_eq!(queue.together(8), usize::MAX);
            assert!(is_right(queue.read(batch())));
            assert_eq!(queue.batches.load(Ordering::Relaxed), 0);
        }
    });
}
