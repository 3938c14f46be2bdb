//! Batches of reads of one call.
//!
//! A batch is submitted to the kernel by one call, through the calling thread's ring (`ring`), and
//! the call waits for all of it. So sixteen reads cost one context switch instead of some dozens,
//! and the queue depth of a device is not limited by the number of threads. Without a ring the
//! threads of `read_pool` make the reads in parallel: on kernels that refuse, and for files without
//! a descriptor, such as those of simulated disks.
//!
//! A read that a ring does not complete, for whatever reason, is repeated by the file itself: it
//! continues after a short read, disables direct I/O where a file system refuses it, and reports
//! errors.
//!
//! Invariant: a read exposes its bytes only when all of them are present.

mod ring;
#[cfg(test)]
mod tests;

use super::{AlignedBuffer, DiskFile, read_pool::ReadPool};
use ring::Ring;
use std::{
    cell::RefCell,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Instant,
};

thread_local! {
    /// This thread's, once it has read a batch. The kernel lets only one thread use it, and does
    /// less for each read for that.
    static RING: RefCell<Option<Ring>> = const { RefCell::new(None) };
}

/// Reads under way at a time, by all batches, while they share the device with work that callers
/// wait for ([`ReadQueue::share`]). A device gives each request about the same: beside 64 reads of
/// 1 KiB under way on an NVMe drive sixteen threads had 780 MiB/s, beside 224 430. With 64 the
/// drive made 86,000 reads a second, with 256 93,000.
const TOGETHER: usize = 64;
/// And by one batch, however many there are.
const TOGETHER_MIN: usize = 4;
/// Length of the reads that fill a long buffer together.
const PART_BYTES: usize = 128 << 10;

/// See the module.
#[derive(Default)]
pub struct ReadQueue {
    pool: ReadPool,
    /// The kernel has no rings for this process.
    is_refused: AtomicBool,
    /// Batches that are being read.
    batches: AtomicUsize,
    /// How many [`Shared`] there are.
    sharing: AtomicUsize,
}

/// Batches leave a part of the device to others, for as long as this is there.
pub struct Shared<'a>(&'a ReadQueue);

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        self.0.sharing.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One read of a batch.
#[derive(Debug)]
pub struct QueuedRead {
    file: Arc<dyn DiskFile>,
    offset: u64,
    buffer: AlignedBuffer,
    /// `None` until it is made.
    outcome: Option<io::Result<()>>,
}

impl QueuedRead {
    /// Is to fill `buffer` from `offset`.
    #[must_use]
    pub const fn new(file: Arc<dyn DiskFile>, offset: u64, buffer: AlignedBuffer) -> Self {
        Self {
            file,
            offset,
            buffer,
            outcome: None,
        }
    }

    /// What was read.
    ///
    /// # Errors
    /// The file's. None while the read is not made: then there are no bytes.
    pub fn bytes(&self) -> Result<&[u8], &io::Error> {
        match &self.outcome {
            Some(Ok(())) => Ok(&self.buffer),
            Some(Err(error)) => Err(error),
            None => Ok(&[]),
        }
    }

    /// The buffer, for another read.
    #[must_use]
    pub fn into_buffer(self) -> AlignedBuffer {
        self.buffer
    }

    /// Makes it on this thread.
    fn make(mut self) -> Self {
        self.outcome = Some(self.file.read_exact_at(&mut self.buffer, self.offset));
        self
    }

    const fn is_made(&self) -> bool {
        self.outcome.is_some()
    }
}

impl ReadQueue {
    /// Has batches leave a part of the device to work that callers wait for.
    pub fn share(&self) -> Shared<'_> {
        self.sharing.fetch_add(1, Ordering::Relaxed);
        Shared(self)
    }

    /// Reads of one batch under way at a time, with so many batches.
    fn together(&self, batches: usize) -> usize {
        match self.sharing.load(Ordering::Relaxed) {
            0 => usize::MAX,
            _ => (TOGETHER / batches).max(TOGETHER_MIN),
        }
    }

    /// Makes all of these reads and returns them in the same order.
    pub fn read(&self, mut reads: Vec<QueuedRead>) -> Vec<QueuedRead> {
        if reads.len() > 1 {
            self.read_by_ring(&mut reads);
        }
        if reads.iter().all(QueuedRead::is_made) {
            return reads;
        }
        let numbered = reads.into_iter().enumerate();
        let (mut made, left): (Vec<_>, Vec<_>) = numbered.partition(|(_, read)| read.is_made());
        made.extend(self.each(left, |(number, read)| (number, read.make())));
        made.sort_unstable_by_key(|(number, _)| *number);
        made.into_iter().map(|(_, read)| read).collect()
    }

    /// Fills a long buffer from `offset`, by several reads at a time. Beside callers' reads, a
    /// device gives each request about the same: one at a time would get a small share of it.
    ///
    /// # Errors
    /// As [`DiskFile::read_exact_at`]; what the buffer has is then unknown.
    pub fn fill(&self, file: &Arc<dyn DiskFile>, buffers: &mut [(&mut [u8], u64)]) -> io::Result<()> {
        let reads = buffers.iter().flat_map(|(buffer, offset)| {
            let parts = (0..buffer.len()).step_by(PART_BYTES);
            parts.map(move |at| {
                let part = AlignedBuffer::zeroed(PART_BYTES.min(buffer.len() - at));
                QueuedRead::new(Arc::clone(file), offset + at as u64, part)
            })
        });
        let reads = self.read(reads.collect());
        let parts = buffers.iter_mut().flat_map(|(buffer, _)| buffer.chunks_mut(PART_BYTES));
        for (part, read) in parts.zip(reads) {
            read.outcome.unwrap_or_else(|| Err(io::ErrorKind::Interrupted.into()))?;
            part.copy_from_slice(&read.buffer);
        }
        Ok(())
    }

    /// Runs `run` on every item, in parallel, for work other than reads: the results are in no
    /// order.
    pub fn each<T: Send + 'static, R: Send + 'static>(&self, items: Vec<T>, run: fn(T) -> R) -> Vec<R> {
        self.pool.each(items, run)
    }

    /// From here on as where the kernel has no rings.
    #[cfg(test)]
    pub fn refuse(&self) {
        self.refused(&rustix::io::Errno::PERM.into());
    }

    /// Makes those that a ring can make.
    fn read_by_ring(&self, reads: &mut [QueuedRead]) {
        if self.is_refused.load(Ordering::Relaxed) || !reads.iter().any(|read| read.file.descriptor().is_some()) {
            return;
        }
        let began = Instant::now();
        let together = self.together(self.batches.fetch_add(1, Ordering::Relaxed) + 1);
        // A thread that is ending has none any more.
        let _ = RING.try_with(|slot| {
            let Ok(mut slot) = slot.try_borrow_mut() else { return };
            if let Some(ring) = self.usable(&mut slot) {
                ring.read(reads, together);
            }
        });
        self.batches.fetch_sub(1, Ordering::Relaxed);
        let made = reads.iter().filter(|read| read.is_made());
        // The device's time for each: the wait for the others does not count.
        let took = began.elapsed() / u32::try_from(made.clone().count().max(1)).unwrap_or(u32::MAX);
        for read in made {
            read.file.was_read(read.buffer.len(), took);
        }
    }

    /// This thread's ring, if it has or gets one.
    fn usable<'a>(&self, slot: &'a mut Option<Ring>) -> Option<&'a mut Ring> {
        if !slot.as_ref().is_some_and(Ring::is_usable) {
            *slot = None;
            match Ring::new() {
                Ok(ring) => *slot = Some(ring),
                Err(error) => self.refused(&error),
            }
        }
        slot.as_mut()
    }

    /// Whether to try again depends on why the kernel refused a ring: descriptors and memory may be
    /// available later.
    fn refused(&self, error: &io::Error) {
        use rustix::io::Errno;
        let later = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN];
        if later
            .iter()
            .any(|later| Some(later.raw_os_error()) == error.raw_os_error())
        {
            return;
        }
        if !self.is_refused.swap(true, Ordering::Relaxed) {
            tracing::info!(%error, "no io_uring: batches of reads are made by threads");
        }
    }
}
