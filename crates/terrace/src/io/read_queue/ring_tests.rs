//! What owns a buffer while the kernel may write to it.
//!
//! Where the kernel has no rings there is nothing to test: each test ends at once.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::io::{
    DiskFile,
    read_queue::{RING, ReadQueue},
};
use std::{
    io::Write as _,
    os::fd::{AsFd as _, BorrowedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

/// A pipe's end: a read of it is under way until the other end is written to.
#[derive(Debug)]
struct Pipe(io::PipeReader);

impl DiskFile for Pipe {
    /// What only the file itself gives.
    fn read_exact_at(&self, buffer: &mut [u8], _: u64) -> io::Result<()> {
        buffer.fill(b'f');
        Ok(())
    }
    fn read_up_to_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read_exact_at(buffer, offset).map(|()| buffer.len())
    }
    fn write_all_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
    fn allocate(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn len(&self) -> io::Result<u64> {
        Ok(0)
    }
    fn is_direct(&self) -> bool {
        false
    }
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

const BYTES: usize = 4096;

/// A ring, if there are any; a read of a pipe, and the pipe's other end.
fn one_read() -> Option<(Ring, Vec<QueuedRead>, io::PipeWriter)> {
    let ring = Ring::new().ok()?;
    let (reader, writer) = io::pipe().unwrap();
    let read = QueuedRead::new(Arc::new(Pipe(reader)), 0, AlignedBuffer::zeroed(BYTES));
    Some((ring, vec![read], writer))
}

fn flight<'a>(ring: &'a mut Ring, reads: &'a mut [QueuedRead]) -> Flight<'a> {
    let mut flight = Flight {
        ring,
        reads,
        under_way: 0,
    };
    flight.begin();
    assert_eq!(flight.under_way, 1);
    flight
}

#[test]
fn a_panic_waits_for_what_is_under_way() {
    let Some((mut ring, mut reads, mut writer)) = one_read() else {
        return;
    };
    let late = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        writer.write_all(&[7; BYTES]).unwrap();
    });
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let flight = flight(&mut ring, &mut reads);
        flight.ring.ring.submit().unwrap();
        panic!("wanted");
    }));
    assert!(outcome.is_err());
    assert_eq!(reads[0].bytes().unwrap(), [7; BYTES], "it was waited for");
    assert!(!ring.is_usable());
    late.join().unwrap();
}

#[test]
fn what_was_not_handed_over_is_never_read() {
    let Some((mut ring, mut reads, mut writer)) = one_read() else {
        return;
    };
    let buffer = reads[0].buffer.as_ptr();
    // Nothing is written, so to wait for it would take for ever.
    drop(flight(&mut ring, &mut reads));
    assert!(!ring.is_usable(), "another call would hand the entry over");
    writer.write_all(&[7; BYTES]).unwrap();
    ring.read(&mut reads, ENTRIES);
    drop(ring);
    assert_eq!(reads[0].buffer.as_ptr(), buffer, "nothing else has it");
    assert!(!reads[0].is_made());
    assert_eq!(reads[0].buffer[..], [0; BYTES]);
    drop(reads);
    assert!(writer.write_all(&[7; BYTES]).is_err(), "nothing keeps the pipe open");
}

#[test]
fn a_buffer_that_the_kernel_does_not_give_back_is_given_away() {
    let Some((mut ring, mut reads, mut writer)) = one_read() else {
        return;
    };
    if !ring.ring.params().is_setup_single_issuer() {
        return;
    }
    let before = reads[0].buffer.as_ptr().addr();
    let begun = flight(&mut ring, &mut reads);
    begun.ring.ring.submit().unwrap();
    // The kernel answers this thread only, so another cannot wait.
    thread::scope(|scope| scope.spawn(move || drop(begun)).join().unwrap());
    assert_ne!(reads[0].buffer.as_ptr().addr(), before);
    assert!(!reads[0].is_made());
    // It comes after all, to memory that nothing else has.
    writer.write_all(&[7; BYTES]).unwrap();
    ring.ring.submit_and_wait(1).unwrap();
    assert_eq!(ring.ring.completion().next().unwrap().result(), 4096);
    assert_eq!(reads[0].buffer[..], [0; BYTES]);
}

#[test]
fn a_short_read_is_the_files_to_finish() {
    let Some((_, mut reads, mut writer)) = one_read() else {
        return;
    };
    let (reader, mut other) = io::pipe().unwrap();
    reads.push(QueuedRead::new(Arc::new(Pipe(reader)), 0, AlignedBuffer::zeroed(BYTES)));
    writer.write_all(&[7; BYTES / 2]).unwrap();
    other.write_all(&[8; BYTES]).unwrap();
    let reads = ReadQueue::default().read(reads);
    assert_eq!(reads[0].bytes().unwrap(), [b'f'; BYTES]);
    assert_eq!(reads[1].bytes().unwrap(), [8; BYTES]);
}

/// A child process that goes on with its parent's memory must not touch its parent's ring.
#[test]
fn another_process_has_a_ring_of_its_own() {
    let read_both = || {
        let (one, other) = (one_read()?, one_read()?);
        let ((_, mut reads, mut writer), (_, more, mut to_more)) = (one, other);
        reads.extend(more);
        writer.write_all(&[7; BYTES]).unwrap();
        to_more.write_all(&[8; BYTES]).unwrap();
        let reads = ReadQueue::default().read(reads);
        assert_eq!(reads[0].bytes().unwrap(), [7; BYTES]);
        assert_eq!(reads[1].bytes().unwrap(), [8; BYTES]);
        Some(())
    };
    if read_both().is_none() {
        return;
    }
    let parents = RING.with_borrow_mut(|slot| {
        let ring = slot.as_mut().unwrap();
        ring.process += 1;
        std::os::fd::AsRawFd::as_raw_fd(&*ring.ring)
    });
    read_both().unwrap();
    RING.with_borrow(|slot| {
        let ring = slot.as_ref().unwrap();
        assert!(ring.is_usable());
        let own = std::os::fd::AsRawFd::as_raw_fd(&*ring.ring);
        assert_ne!(own, parents, "the parent's is left as it is");
    });
}
