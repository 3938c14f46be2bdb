//! One thread's ring: `io_uring`.
//!
//! Invariants:
//! - [`Ring::read`] returns with nothing in flight: every read that the kernel has accepted is
//!   complete, and no entry that it has not accepted is left in the ring, where a later call would
//!   submit it.
//! - While a read is in flight nothing else accesses its buffer: the batch is borrowed by
//!   [`Flight`], whose `drop` waits for reads in flight, and leaks the buffer if that fails. That
//!   holds for a panic too.
//!
//! On failure: an incomplete read is left as not made. A ring to which the kernel has refused a
//! call is not used again.

#![expect(unsafe_code, reason = "buffers that the kernel writes to")]

use super::QueuedRead;
use crate::io::{AlignedBuffer, checks::is_aligned};
use io_uring::{EnterFlags, IoUring, opcode, types};
use std::{
    io,
    mem::{self, ManuallyDrop},
    os::fd::AsRawFd as _,
    process, thread,
    time::Duration,
};

/// Reads under way at a time by one thread. A batch that has more is made in parts.
const ENTRIES: usize = 64;
/// How often a refused wait is tried again before buffers are given away, and how long after each.
const WAITS_MAX: u32 = 1000;
const WAIT: Duration = Duration::from_millis(1);

/// See the module.
pub(super) struct Ring {
    ring: ManuallyDrop<IoUring>,
    /// The process that made it: a child has no part in it.
    process: u32,
    is_broken: bool,
}

impl Ring {
    /// # Errors
    /// The kernel's. `Unsupported` by one that has no reads for it (before 5.7).
    pub(super) fn new() -> io::Result<Self> {
        let entries = u32::try_from(ENTRIES).unwrap_or(u32::MAX);
        let mut builder = IoUring::builder();
        builder.dontfork();
        // Since 6.1: a thread that waits for sixteen reads is woken once and not sixteen times.
        let ring = builder
            .clone()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(entries)
            .or_else(|error| match error.raw_os_error() {
                Some(code) if code == rustix::io::Errno::INVAL.raw_os_error() => builder.build(entries),
                _ => Err(error),
            })?;
        if !ring.params().is_feature_fast_poll() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Self {
            ring: ManuallyDrop::new(ring),
            process: process::id(),
            is_broken: false,
        })
    }

    /// Whether another batch may go through it.
    pub(super) fn is_usable(&self) -> bool {
        !self.is_broken && self.process == process::id()
    }

    /// Makes the reads that have a descriptor and can be handed to the kernel as they are, so many
    /// together.
    pub(super) fn read(&mut self, reads: &mut [QueuedRead], together: usize) {
        for part in reads.chunks_mut(together.clamp(1, ENTRIES)) {
            if self.is_broken {
                return;
            }
            let mut flight = Flight {
                ring: self,
                reads: part,
                under_way: 0,
            };
            flight.begin();
            flight.finish();
        }
    }
}

/// Reads under way, at most [`ENTRIES`].
struct Flight<'a> {
    ring: &'a mut Ring,
    reads: &'a mut [QueuedRead],
    /// A bit for each read whose buffer the kernel may write to.
    under_way: u64,
}

impl Flight<'_> {
    /// Puts the reads into the ring.
    fn begin(&mut self) {
        for (number, read) in self.reads.iter_mut().enumerate() {
            let Some(descriptor) = read.file.descriptor() else {
                continue;
            };
            let length = u32::try_from(read.buffer.len()).ok().filter(|length| *length > 0);
            let fits = is_aligned(&read.buffer, read.offset, read.file.read_unit_bytes());
            let Some(length) = length.filter(|_| fits) else {
                continue;
            };
            let entry = opcode::Read::new(types::Fd(descriptor.as_raw_fd()), read.buffer.as_mut_ptr(), length)
                .offset(read.offset)
                .build()
                .user_data(number as u64);
            // SAFETY: the kernel writes `length` bytes, all of them the buffer's, from when it
            // accepts the entry until it reports completion. During that time the bit in
            // `under_way` is set, and the buffer is neither moved nor freed: `self` borrows the
            // read, touches no buffer whose bit is set, and when it is dropped, in a panic too, it
            // waits for these bits or leaks the buffers (`drop`). The file is kept open by the
            // read, and by the kernel once it has the entry. An entry that the kernel has not
            // accepted is accepted by no later call, since a ring with such entries is closed
            // (`retreat`).
            let pushed = unsafe { self.ring.ring.submission().push(&entry) };
            if pushed.is_err() {
                break;
            }
            self.under_way |= 1 << number;
        }
    }

    /// Submits all entries of the ring and waits for them.
    fn finish(&mut self) {
        while self.under_way != 0 {
            let wanted = self.under_way.count_ones() as usize;
            match self.ring.ring.submit_and_wait(wanted) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    tracing::debug!(%error, "io_uring refuses a call");
                    self.retreat();
                    return;
                }
                _ => self.take_ended(),
            }
        }
    }

    /// Waits for the entries that the kernel has accepted, and takes the others back. The ring is
    /// unusable then: it still has the entries.
    fn retreat(&mut self) {
        self.ring.is_broken = true;
        let mut left = self.ring.ring.submission().len();
        // The kernel takes entries in their order.
        for number in (0..self.reads.len()).rev() {
            if left > 0 && self.under_way & (1 << number) != 0 {
                self.under_way &= !(1 << number);
                left -= 1;
            }
        }
        for _ in 0..WAITS_MAX {
            self.take_ended();
            if self.under_way == 0 {
                return;
            }
            let (wanted, flags) = (self.under_way.count_ones(), EnterFlags::GETEVENTS.bits());
            // SAFETY: hands nothing over and passes no argument, so the kernel reads and writes no
            // memory of ours but the ring's.
            let waited = unsafe { self.ring.ring.submitter().enter::<()>(0, wanted, flags, None) };
            if waited.is_err() {
                thread::sleep(WAIT);
            }
        }
    }

    /// Notes which reads have ended. One that is not whole stays as not made.
    fn take_ended(&mut self) {
        for ended in self.ring.ring.completion() {
            let number = usize::try_from(ended.user_data()).unwrap_or(usize::MAX);
            let Some(read) = self.reads.get_mut(number) else {
                continue;
            };
            self.under_way &= !(1 << number);
            let is_whole = usize::try_from(ended.result()).is_ok_and(|bytes| bytes == read.buffer.len());
            read.outcome = is_whole.then_some(Ok(()));
        }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if self.under_way != 0 && !self.ring.is_broken {
            self.retreat();
        }
        for (number, read) in self.reads.iter_mut().enumerate() {
            if self.under_way & (1 << number) != 0 {
                let other = AlignedBuffer::zeroed(read.buffer.len());
                mem::forget(mem::replace(&mut read.buffer, other));
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // A child process does not have the ring's memory (`dontfork`), and may have mapped
        // something else at its address, which must not be unmapped.
        if self.process == process::id() {
            // SAFETY: here only, and nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.ring) };
        }
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
