//! One block in RAM: its unwritten space, its live extents, and its queued writes.
//!
//! Invariants:
//! - Every byte of a block is given out to one writer once; an abandoned extent is never written
//!   again.
//! - `Writing` exists only while this process may write the block; after a restart it never exists
//!   again.
//! - After a failed write or sync no further extent is reserved in the block.
//! - A queued extent (`queue`) is found in `behind` from before any reader can know its place until
//!   it is written.
//! - The size of its file is counted in `Room` before the file has it.

use super::{
    capacity::{Origin, Room},
    format::{ExtentKind, FooterEntry, PAGE},
    group::GroupSync,
};
use crate::io::{AlignedBuffer, DiskFile};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

/// Space is allocated from the file system in steps, so that a full disk fails at a reservation.
/// Steps double, within these bounds: during an allocation no thread can write to the file. A block
/// that is prepared before its first write has all of its space.
const ALLOCATION_STEP_BYTES_MIN: u64 = 8 << 20;
const ALLOCATION_STEP_BYTES_MAX: u64 = 32 << 20;

/// A block and its state. An `Arc` clone other than the one in the space's table pins it.
#[derive(Debug)]
pub(super) struct Block {
    pub number: u64,
    /// Bytes of extents that entries of the index point to, as [`super::live_bytes_of`] has them.
    pub live_bytes: AtomicU64,
    /// Bytes of its file once it is no longer written; 0 before.
    pub rest_bytes: AtomicU64,
    /// It has no live bytes, but a snapshot or a reader holds it.
    pub is_held: AtomicBool,
    /// Bytes of extents written but not yet accounted by the applier. While there are any, the
    /// block is not dead.
    pub unapplied_bytes: AtomicU64,
    pub writing: Mutex<Option<Writing>>,
    pub group: GroupSync,
    /// Queued extents that are not on the device yet, with their padding, by offset. One whose
    /// write failed stays until it is abandoned: a visible commit may point to it.
    pub behind: Mutex<BTreeMap<u64, Arc<AlignedBuffer>>>,
}

impl Block {
    /// A block that this process will not write, with a file of this many bytes.
    pub fn at_rest(number: u64, bytes: u64) -> Self {
        Self {
            number,
            live_bytes: AtomicU64::new(0),
            rest_bytes: AtomicU64::new(bytes),
            is_held: AtomicBool::new(false),
            unapplied_bytes: AtomicU64::new(0),
            writing: Mutex::new(None),
            group: GroupSync::default(),
            behind: Mutex::default(),
        }
    }

    /// A new block whose header is written, and counted in `room`.
    pub fn open(number: u64, file: Arc<dyn DiskFile>, room: Arc<Room>) -> Self {
        let block = Self::at_rest(number, 0);
        *block.writing.lock() = Some(Writing {
            room,
            file,
            tail: PAGE,
            allocated_bytes: PAGE,
            extents: Vec::new(),
            pending: 0,
            closed: false,
        });
        block
    }

    /// The file, while the block may be written.
    pub fn writing_file(&self) -> Option<Arc<dyn DiskFile>> {
        self.writing.lock().as_ref().map(|writing| Arc::clone(&writing.file))
    }

    /// Bytes that its file has allocated, while the block may be written.
    pub fn allocated_bytes(&self) -> u64 {
        self.writing
            .lock()
            .as_ref()
            .map_or(0, |writing| writing.allocated_bytes)
    }

    /// Sets the final length of the file by `write`, and counts its bytes from then on: once, even
    /// if sealing is tried again.
    pub fn note_length(&self, bytes: u64, write: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let allocated_bytes = self.allocated_bytes();
        let Some(room) = self.writing.lock().as_ref().map(|writing| Arc::clone(&writing.room)) else {
            return write();
        };
        let more = bytes.saturating_sub(allocated_bytes);
        room.note(more);
        write().inspect_err(|_| room.give_back(more))?;
        room.give_back(allocated_bytes.saturating_sub(bytes));
        if let Some(writing) = self.writing.lock().as_mut() {
            writing.allocated_bytes = bytes;
        }
        Ok(())
    }

    /// No more extents are added to this block.
    pub fn close(&self) {
        if let Some(writing) = self.writing.lock().as_mut() {
            writing.closed = true;
        }
    }

    /// Settles the extent at `offset`: 0 abandons it, anything else is its version.
    pub fn settle(&self, offset: u64, version: u64) {
        self.settle_as(offset, ExtentKind::Put, version);
    }

    /// Settles the extent at `offset`, which is a whole region. Its records have their versions, so
    /// the footer need not wait for the moves to commit. An incomplete one is abandoned: the footer
    /// then names a value without a version, which is skipped.
    pub fn settle_region(&self, offset: u64) {
        self.settle_as(offset, ExtentKind::Region, 0);
    }

    fn settle_as(&self, offset: u64, kind: ExtentKind, version: u64) {
        let mut guard = self.writing.lock();
        let Some(writing) = guard.as_mut() else { return };
        let Ok(at) = writing.find(offset) else { return };
        let extent = &mut writing.extents[at];
        if !extent.settled {
            extent.settled = true;
            (extent.entry.kind, extent.entry.version) = (kind, version);
            writing.pending -= 1;
        }
    }

    /// Writing the extent at `offset` failed: no footer shall name a version of it, whatever was
    /// committed.
    pub fn forget_version(&self, offset: u64) {
        self.settle(offset, 0);
        if let Some(writing) = self.writing.lock().as_mut()
            && let Ok(at) = writing.find(offset)
        {
            writing.extents[at].entry.version = 0;
        }
    }

    pub fn is_dead(&self) -> bool {
        self.has_nothing_live() && self.writing.lock().is_none()
    }

    /// It will be deleted soon: nothing lives in it, and it is neither written nor held. One that
    /// is full may still be written for long, by a slow writer.
    pub fn is_doomed(&self) -> bool {
        let is_written = || {
            let writing = self.writing.lock();
            writing
                .as_ref()
                .is_some_and(|writing| !writing.closed || writing.pending > 0)
        };
        self.has_nothing_live() && !self.is_held.load(Ordering::Acquire) && !is_written()
    }

    /// No entry points into it, nor will one that is on its way.
    pub fn has_nothing_live(&self) -> bool {
        // In this order: an extent becomes live before it is no longer counted as unapplied.
        self.unapplied_bytes.load(Ordering::Acquire) == 0 && self.live_bytes.load(Ordering::Acquire) == 0
    }
}

/// The writable side of an open block.
#[derive(Debug)]
pub(super) struct Writing {
    room: Arc<Room>,
    pub file: Arc<dyn DiskFile>,
    /// Where the next extent starts; page-aligned.
    pub tail: u64,
    pub allocated_bytes: u64,
    pub extents: Vec<Extent>,
    /// Extents not yet settled.
    pub pending: usize,
    /// No further reservation.
    pub closed: bool,
}

/// An extent of an open block.
#[derive(Debug)]
pub(super) struct Extent {
    pub entry: FooterEntry,
    pub settled: bool,
}

impl Writing {
    /// Which extent starts at `offset`; where it would be, if none does.
    fn find(&self, offset: u64) -> Result<usize, usize> {
        self.extents.binary_search_by_key(&offset, |extent| extent.entry.offset)
    }

    /// Where an extent of `bytes` at the tail would end, with its padding. Blocks need not end with
    /// a page.
    pub const fn end_of(&self, bytes: u64) -> u64 {
        (self.tail + bytes).next_multiple_of(PAGE)
    }

    /// Reserves an extent of `bytes`. `None`: the block is full, take another.
    pub fn reserve(&mut self, bytes: u64, split_bytes: u64, origin: Origin) -> io::Result<Option<u64>> {
        let end = self.end_of(bytes);
        if self.closed || (end > split_bytes && !self.extents.is_empty()) {
            self.closed = true;
            return Ok(None);
        }
        self.allocate(end, split_bytes, origin)?;
        let offset = self.tail;
        self.push(offset, bytes, split_bytes);
        Ok(Some(offset))
    }

    /// Notes an extent at the tail, not settled yet.
    pub fn push(&mut self, offset: u64, bytes: u64, split_bytes: u64) {
        self.extents.push(Extent {
            entry: FooterEntry {
                kind: ExtentKind::Put,
                offset,
                extent_bytes: bytes,
                version: 0,
            },
            settled: false,
        });
        self.pending += 1;
        self.tail = (offset + bytes).next_multiple_of(PAGE);
        self.closed |= self.tail >= split_bytes;
    }

    /// Makes sure of space up to `end`: in steps, or exactly if the device has no room for a step.
    pub fn allocate(&mut self, end: u64, split_bytes: u64, origin: Origin) -> io::Result<()> {
        if end <= self.allocated_bytes {
            return Ok(());
        }
        let growth = (self.allocated_bytes).clamp(ALLOCATION_STEP_BYTES_MIN, ALLOCATION_STEP_BYTES_MAX);
        let ahead = self.allocated_bytes.max(end) + growth;
        // A block that is longer than the threshold already is one huge value's: there is no other
        // limit.
        let limit = split_bytes.next_multiple_of(PAGE);
        let step = if end > limit { ahead } else { ahead.min(limit) };
        match self.grow(step, origin) {
            Err(_) if step > end => self.grow(end, origin),
            outcome => outcome,
        }
    }

    fn grow(&mut self, end: u64, origin: Origin) -> io::Result<()> {
        let more = end.saturating_sub(self.allocated_bytes);
        self.room.take(more, origin)?;
        if let Err(error) = self.file.allocate(end) {
            self.room.give_back(more);
            return Err(error);
        }
        self.allocated_bytes = end;
        Ok(())
    }
}
