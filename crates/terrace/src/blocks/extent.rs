//! Extents: allocation, and writing.
//!
//! Invariants:
//! - An extent is reserved under a short lock and written without one, in whole pages.
//! - Room is taken from the file system before anything is written into it.

use super::{
    Space,
    block::{Block, Writing},
    capacity::Origin,
    format::{ChunkEncoder, PAGE},
};
use crate::{
    Error, Result, Tier,
    io::{AlignedBuffer, DiskFile, PAGE_BYTES},
};
use std::{
    io,
    sync::{Arc, atomic::Ordering},
};

/// Size of one write of a longer extent.
const STEP_BYTES: usize = 1 << 20;
/// An extent up to this size is one write.
const ONE_WRITE_BYTES_MAX: u64 = (STEP_BYTES + STEP_BYTES / 4) as u64;
/// A longer extent is reserved in a block of its own, so that finding space for it delays no other
/// writer.
const SHARED_EXTENT_BYTES_MAX: u64 = 16 << 20;

impl Space {
    /// Reserves an extent of known size.
    pub(super) fn reserve(&self, bytes: u64, origin: Origin) -> Result<(Arc<Block>, u64)> {
        self.check_writable()?;
        let split_bytes = self.options.split_threshold_bytes;
        if bytes > SHARED_EXTENT_BYTES_MAX.min(split_bytes) {
            let block = self.take_exclusive(bytes, origin)?;
            let reserved = with_writing(&block, |writing| writing.reserve(bytes, split_bytes, origin));
            self.give_back(&block);
            let offset = reserved.map_err(|error| out_of_space(&block, &error))?;
            let refused = || Error::Unavailable("a block closed while an extent was reserved in it; write again");
            return Ok((block, offset.ok_or_else(refused)?));
        }
        let (block, offset, is_half_full) = self.reserve_shared(bytes, origin)?;
        // No caller waits for moved values.
        if is_half_full && origin == Origin::User {
            self.prepare_next(block.number);
        }
        Ok((block, offset))
    }

    /// Reserves an extent in the shared block. Returns whether that is half full now.
    fn reserve_shared(&self, bytes: u64, origin: Origin) -> Result<(Arc<Block>, u64, bool)> {
        let split_bytes = self.options.split_threshold_bytes;
        let mut shared = self.shared[origin.stream()].lock();
        loop {
            if let Some(block) = shared.as_ref().map(Arc::clone) {
                let reserved = with_writing(&block, |writing| {
                    let offset = writing.reserve(bytes, split_bytes, origin);
                    offset.map(|offset| (offset, writing.closed, writing.tail > split_bytes / 2))
                });
                let (offset, closed, is_half_full) = reserved.map_err(|error| out_of_space(&block, &error))?;
                if closed {
                    self.full.lock().extend(shared.take());
                }
                if let Some(offset) = offset {
                    return Ok((block, offset, is_half_full));
                }
            }
            let idle = self.idle.lock().pop();
            *shared = Some(idle.map_or_else(|| self.create_block(origin), Ok)?);
        }
    }

    /// Creates the block after the shared one, which is `number`, ahead of need: creating one takes
    /// several syncs, for which every writer that needs it would wait. Tried once; if it fails, the
    /// writer that needs a block gets the error.
    fn prepare_next(&self, number: u64) {
        if self.prepared_for.swap(number, Ordering::AcqRel) == number || !self.idle.lock().is_empty() {
            return;
        }
        match self.create_block(Origin::User) {
            Ok(block) => {
                self.take_whole(&block);
                self.idle.lock().push(block);
            }
            Err(error) => tracing::debug!(%error, "the next block cannot be made yet"),
        }
    }

    /// Allocates all of a new block's space in one step, if there is plenty: allocated in several
    /// steps, file systems scatter it. Only for a block that is not written yet, since a writer
    /// would have to wait. Space not allocated here is allocated on demand.
    fn take_whole(&self, block: &Block) {
        let split_bytes = self.options.split_threshold_bytes;
        if self.room.lacks(2 * split_bytes) {
            return;
        }
        if let Err(error) = self.allocate(block, split_bytes, Origin::User) {
            tracing::debug!(%error, "the next block takes its space in steps");
        }
    }

    /// An open block for one writer: an idle one that has room for `bytes`, or a new one. Idle ones
    /// that are more than half full and have no room are closed, as the shared one is. Otherwise
    /// values of a quarter of a block, of which three fit in, would leave a block behind for every
    /// three of them, and what died in it could neither be drained nor deleted.
    pub(super) fn take_exclusive(&self, bytes: u64, origin: Origin) -> Result<Arc<Block>> {
        let split_bytes = self.options.split_threshold_bytes;
        // An empty block takes any length; otherwise each attempt on a full device would create
        // another.
        let fits = |writing: &Writing| writing.extents.is_empty() || writing.end_of(bytes) <= split_bytes;
        let is_closed = |block: &Arc<Block>| {
            let close = |writing: &mut Writing| {
                writing.closed |= !fits(writing) && writing.tail > split_bytes / 2;
                Ok(writing.closed)
            };
            with_writing(block, close).unwrap_or(true)
        };
        let takes = |block: &Arc<Block>| with_writing(block, |writing| Ok(fits(writing))).unwrap_or(false);
        let mut idle = self.idle.lock();
        // A write that failed has closed its block wherever that was by then.
        let closed: Vec<_> = idle.extract_if(.., |block| is_closed(block)).collect();
        let found = idle.iter().position(takes).map(|at| idle.swap_remove(at));
        drop(idle);
        self.full.lock().extend(closed);
        found.map_or_else(|| self.create_block(origin), Ok)
    }

    /// Makes sure that a block has space up to `end`.
    pub(super) fn allocate(&self, block: &Block, end: u64, origin: Origin) -> Result<()> {
        let split_bytes = self.options.split_threshold_bytes;
        let end = end.next_multiple_of(PAGE);
        with_writing(block, |writing| writing.allocate(end, split_bytes, origin))
            .map_err(|error| out_of_space(block, &error))
    }

    pub(super) fn give_back(&self, block: &Arc<Block>) {
        let list = if is_closed(block) { &self.full } else { &self.idle };
        list.lock().push(Arc::clone(block));
    }
}

fn is_closed(block: &Block) -> bool {
    with_writing(block, |writing| Ok(writing.closed)).unwrap_or(true)
}

/// Runs `action` on a block's writable side. A block that has none any more counts as closed.
pub(super) fn with_writing<T>(block: &Block, action: impl FnOnce(&mut Writing) -> io::Result<T>) -> io::Result<T> {
    match block.writing.lock().as_mut() {
        Some(writing) => action(writing),
        None => Err(io::Error::other("the block was sealed")),
    }
}

pub(super) fn out_of_space(block: &Block, error: &io::Error) -> Error {
    let path = super::block_path(block.number);
    Error::io_on(Tier::Large, format!("reserving space in {}", path.display()), error)
}

/// The bytes of one extent on their way to the device, in aligned steps.
#[derive(Debug)]
pub(super) struct ExtentWriter {
    pub file: Arc<dyn DiskFile>,
    pub offset: u64,
    /// Bytes of the extent before the buffer.
    flushed: u64,
    pub buffer: AlignedBuffer,
    /// Whole pages are written once the buffer is this long.
    step_bytes: usize,
    /// For an unknown length: keep the first page back until [`ExtentWriter::flush_first`].
    first_page: Option<AlignedBuffer>,
    device_bytes: u64,
    /// It has no memory, but for less than a page: nothing has come yet, or not for a while.
    rests: bool,
}

impl ExtentWriter {
    pub fn new(block: &Block, offset: u64, bytes: Option<u64>) -> io::Result<Self> {
        let file = block
            .writing_file()
            .ok_or_else(|| io::Error::other("the block was sealed"))?;
        let one_write = bytes
            .filter(|&bytes| bytes <= ONE_WRITE_BYTES_MAX)
            .and_then(|bytes| bytes.try_into().ok());
        Ok(Self {
            file,
            offset,
            flushed: 0,
            buffer: AlignedBuffer::new(),
            step_bytes: one_write.map_or(STEP_BYTES, |bytes: usize| {
                bytes.next_multiple_of(PAGE_BYTES) + PAGE_BYTES
            }),
            first_page: bytes.is_none().then(AlignedBuffer::new),
            device_bytes: 0,
            rests: true,
        })
    }

    /// Writes all complete pages, and releases the memory until more data comes.
    pub fn rest(&mut self, space: &Space) -> io::Result<()> {
        if !self.rests {
            self.flush_pages()?;
            let mut rest = AlignedBuffer::with_capacity(PAGE_BYTES);
            rest.extend_from_slice(&self.buffer);
            space.buffers.give_back(std::mem::replace(&mut self.buffer, rest));
            self.rests = true;
        }
        Ok(())
    }

    /// Allocates memory for the next bytes.
    pub fn go_on(&mut self, space: &Space) {
        if self.rests {
            let mut buffer = space.buffers.take();
            buffer.clear();
            // One chunk checksum may follow the last byte that fits.
            buffer.reserve(self.step_bytes + 2 * PAGE_BYTES);
            buffer.extend_from_slice(&self.buffer);
            self.buffer = buffer;
            self.rests = false;
        }
    }

    /// Bytes of the extent so far.
    pub fn bytes(&self) -> u64 {
        self.flushed + self.buffer.len() as u64
    }

    pub fn push(&mut self, mut data: &[u8], chunks: &mut ChunkEncoder) -> io::Result<()> {
        while !data.is_empty() {
            // A whole step may be followed by a checksum; what exceeds a page multiple is carried
            // over.
            let room = self.step_bytes.saturating_sub(self.buffer.len()).max(1);
            let taken = chunks.push(&data[..data.len().min(room)], &mut self.buffer);
            data = &data[taken..];
            if self.buffer.len() >= self.step_bytes {
                self.flush_pages()?;
            }
        }
        Ok(())
    }

    fn flush_pages(&mut self) -> io::Result<()> {
        let whole = self.buffer.len() / PAGE_BYTES * PAGE_BYTES;
        let mut start = 0;
        if self.flushed == 0
            && whole > 0
            && let Some(first) = &mut self.first_page
        {
            first.clear();
            first.extend_from_slice(&self.buffer[..PAGE_BYTES]);
            start = PAGE_BYTES;
        }
        if start < whole {
            self.file
                .write_all_at(&self.buffer[start..whole], self.offset + self.flushed + start as u64)?;
            self.device_bytes += (whole - start) as u64;
        }
        let rest = self.buffer.len() - whole;
        self.buffer.copy_within(whole.., 0);
        self.buffer.set_len(rest);
        self.flushed += whole as u64;
        Ok(())
    }

    /// All of the extent with its padding, if none of it was written: instead of
    /// [`ExtentWriter::flush_rest`].
    pub fn take_whole(&mut self) -> Option<AlignedBuffer> {
        let whole = self.flushed == 0 && self.first_page.is_none();
        whole.then(|| {
            self.buffer.pad_to_page();
            std::mem::take(&mut self.buffer)
        })
    }

    /// Writes the rest, padded with zeros to a page. Returns the total bytes written to the device.
    pub fn flush_rest(&mut self) -> io::Result<u64> {
        self.buffer.pad_to_page();
        self.flush_pages()?;
        Ok(self.device_bytes)
    }

    /// Writes the first page, its start replaced by `head`.
    pub fn flush_first(&mut self, head: &[u8]) -> io::Result<u64> {
        if let Some(first) = &mut self.first_page {
            let bytes = head.len().min(PAGE_BYTES);
            first[..bytes].copy_from_slice(&head[..bytes]);
            self.file.write_all_at(first, self.offset)?;
            self.device_bytes += PAGE;
        }
        Ok(self.device_bytes)
    }
}
