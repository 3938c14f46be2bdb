//! The ring of segments: which exist, their states, and their readers.
//!
//! ```text
//!       take         seal           start_draining            drained          free_drained
//! Free ──────▶ Open ──────▶ Sealed ◀──────────────▶ Draining ─────────▶ Drained ──────▶ Free
//!  ▲ │                       │       stop_draining
//!  │ └ take_for ▶ Copies     └ quarantine ▶ Quarantined: damaged, kept as it is
//!  └─────────────────┘ no longer needed
//! ```
//!
//! One owner per file: this table. Only the transition from `Free` writes the file: its new header,
//! with a new generation, is durable before the first frame goes in, so a crash leaves either the
//! old use or the new one, never a mixture.
//!
//! A reader pins a segment; a pinned one is not freed. Pinning and freeing each write their own
//! word and then read the other's (both sequentially consistent), so at least one of the two sees
//! the other's and backs off.

mod kept;
mod room;
mod segment;
mod slots;

pub use kept::{LEFT_BY_COPIES, RESERVED_SEGMENTS, SCARCE_SEGMENTS, WANTED_SEGMENTS};
pub use segment::{Segment, SegmentPin, SegmentState};

use super::{
    format::{SegmentHeader, SegmentUse},
    reserve::Left,
};
use crate::{
    Error, Result, Tier,
    io::{AlignedBuffer, Disk, DiskFile, OpenMode, PAGE_BYTES},
    mutation::{Mutation, active, unless},
};
use parking_lot::Mutex;
use slots::Slots;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Instant,
};

const DIRECTORY: &str = "segments";
/// Maximum number of segments: those of the largest log (1 TiB) with the smallest segments (256
/// KiB).
const SEGMENTS_MAX: u32 = 1 << 22;

/// The ring.
#[derive(Debug)]
pub struct Segments {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) store_id: u64,
    pub(super) segment_bytes: u64,
    pub(super) direct_io: bool,
    pub(super) slots: Slots,
    /// Maximum number of segments of full length; see `room`.
    limit: AtomicU32,
    /// The log exceeds its limit, and callers have taken a segment since it last gave one back.
    pub(super) owes: AtomicBool,
    /// Space that the shortest log lacks, unless a merge of the index may give it.
    lacking_bytes: AtomicU64,
    awaits_merge: AtomicBool,
    pub(super) created: AtomicU32,
    pub(super) free: Mutex<BTreeSet<u32>>,
    pub(super) free_count: AtomicU32,
    /// Segments whose files are empty: free ones that returned their space.
    pub(super) hollow: Mutex<BTreeSet<u32>>,
    /// One file is created at a time: a commit and the flusher may both need one.
    pub(super) creating: Mutex<()>,
    pub(super) next_generation: AtomicU64,
    device_full: AtomicBool,
    /// Space of the device that is left to others by creating a segment that is not needed to free
    /// space.
    left_to_others_bytes: AtomicU64,
    /// The same for a segment that is.
    left_of_reserve: Left,
    /// Damage found by the open, as messages.
    damage: Mutex<Vec<String>>,
}

impl Segments {
    /// Opens the ring: reads every segment's header.
    pub fn open(
        disk: Arc<dyn Disk>,
        store_id: u64,
        segment_bytes: u64,
        capacity_bytes: u64,
        direct_io: bool,
        read_only: bool,
    ) -> Result<Self> {
        let directory = Path::new(DIRECTORY);
        let numbers = Self::numbers(&*disk)?;
        let ring = Self {
            disk,
            store_id,
            segment_bytes,
            direct_io,
            slots: Slots::default(),
            limit: AtomicU32::new(Self::limit_of(capacity_bytes, segment_bytes)),
            lacking_bytes: AtomicU64::new(0),
            awaits_merge: AtomicBool::new(false),
            owes: AtomicBool::new(false),
            created: AtomicU32::new(0),
            free: Mutex::default(),
            free_count: AtomicU32::new(0),
            hollow: Mutex::default(),
            creating: Mutex::new(()),
            next_generation: AtomicU64::new(1),
            device_full: AtomicBool::new(false),
            left_to_others_bytes: AtomicU64::new(0),
            left_of_reserve: Left::default(),
            damage: Mutex::default(),
        };
        if !read_only {
            ring.disk
                .create_dir_all(directory)
                .map_err(|error| Error::io_on(Tier::Flash, "create segments", &error))?;
        }
        for number in numbers {
            ring.open_segment(number, read_only)?;
        }
        Ok(ring)
    }

    /// Numbers of the segment files that are there, ascending.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn numbers(disk: &dyn Disk) -> Result<Vec<u32>> {
        let mut names = disk
            .list(Path::new(DIRECTORY))
            .map_err(|error| Error::io("list segments", &error))?;
        names.sort();
        // Other names do not belong to the ring; a number beyond the largest ring would only make
        // the table huge.
        Ok(names
            .iter()
            .filter(|name| name.len() == "00000000.seg".len())
            .filter_map(|name| u32::from_str_radix(name.strip_suffix(".seg")?, 16).ok())
            .filter(|number| *number < SEGMENTS_MAX)
            .collect())
    }

    /// The path of a segment's file.
    pub fn path(number: u32) -> PathBuf {
        Path::new(DIRECTORY).join(format!("{number:08x}.seg"))
    }

    /// Takes a free segment (or creates one) and begins its next use: its header is durable on
    /// return. Leaves `keep_free` other free ones with their files: space that the device had at a
    /// check may be gone when it is needed.
    ///
    /// # Errors
    /// [`Error::OutOfSpace`] if none is free and none can be created.
    pub fn take(&self, first_seq: u64, keep_free: u32) -> Result<&Segment> {
        self.take_for(SegmentUse::Log, first_seq, keep_free)
    }

    /// The same for a use; copies have no seq.
    ///
    /// # Errors
    /// As [`Segments::take`].
    pub fn take_for(&self, segment_use: SegmentUse, first_seq: u64, keep_free: u32) -> Result<&Segment> {
        let is_for_callers = self.check_owed(segment_use, keep_free)?;
        let number = loop {
            // The lowest number first, so that a young log is sequential.
            match self.pop_free(keep_free, BTreeSet::pop_first) {
                Some(lowest) => break lowest,
                None => self.add_free(|| self.left_beside(keep_free))?,
            }
        };
        let segment = self
            .get(number)
            .ok_or_else(|| Error::corruption(format!("segment {number}"), "vanished"))?;
        let generation = self.next_generation.fetch_add(1, Ordering::AcqRel);
        match self.begin_use(segment, segment_use, generation, first_seq) {
            Ok(()) => {
                self.owes.fetch_or(is_for_callers, Ordering::AcqRel);
                Ok(segment)
            }
            Err(error) => {
                self.push_free(number);
                Err(error)
            }
        }
    }

    fn begin_use(&self, segment: &Segment, segment_use: SegmentUse, generation: u64, first_seq: u64) -> Result<()> {
        let header = SegmentHeader {
            store_id: self.store_id,
            number: segment.number,
            generation,
            first_seq,
            segment_bytes: self.segment_bytes,
            segment_use,
        };
        if segment.lacks_room() {
            self.allocate(&*segment.file)
                .map_err(|error| self.not_made(&Self::path(segment.number), &error))?;
            segment.lacks_room.store(false, Ordering::Release);
        }
        let mut page = AlignedBuffer::with_capacity(PAGE_BYTES);
        page.extend_from_slice(&header.encode());
        segment
            .file
            .write_all_at(&page, 0)
            .and_then(|()| unless(Mutation::SegmentHeader, || segment.file.sync_data()))
            .map_err(|error| Error::io_on(Tier::Flash, format!("start segment {:08x}", segment.number), &error))?;
        segment.generation.store(generation, Ordering::Release);
        segment.first_seq.store(first_seq, Ordering::Release);
        segment.last_seq.store(first_seq, Ordering::Release);
        segment.end_bytes.store(PAGE_BYTES as u64, Ordering::Release);
        segment.live_bytes.store(0, Ordering::Relaxed);
        segment.is_former.store(false, Ordering::Release);
        *segment.refused.lock() = None;
        *segment.begun.lock() = Instant::now();
        segment.set_state(match segment_use {
            SegmentUse::Log => SegmentState::Open,
            SegmentUse::Copies => SegmentState::Copies,
        });
        tracing::debug!(segment = segment.number, ?segment_use, "began a segment");
        Ok(())
    }

    fn create(&self, is_within_capacity: bool, left_bytes: impl FnOnce() -> Result<u64>) -> Result<u32> {
        let _creating = self.creating.lock();
        if is_within_capacity && !self.may_grow() {
            let reason = format!("all {} segments of the log are in use", self.limit());
            return Err(Error::no_room(Tier::Flash, reason));
        }
        self.check_device(left_bytes()?)?;
        if let Some(number) = self.refill()? {
            return Ok(number);
        }
        let number = (0..SEGMENTS_MAX).find(|number| self.get(*number).is_none());
        let number = number.ok_or(Error::Unavailable("the ring has no number left"))?;
        let path = Self::path(number);
        let made = self
            .disk
            .open(&path, OpenMode::CREATE.with_direct(self.direct_io))
            .and_then(|file| {
                let outcome = self
                    .allocate(&*file)
                    .and_then(|()| unless(Mutation::SegmentDirectory, || self.disk.sync_dir(Path::new(DIRECTORY))));
                if outcome.is_err() {
                    let _ = self.disk.remove(&path);
                }
                outcome.map(|()| file)
            });
        match made {
            Ok(file) => {
                self.slots.set(Segment::new(number, file));
                self.created.fetch_add(1, Ordering::AcqRel);
                Ok(number)
            }
            Err(error) => Err(self.not_made(&path, &error)),
        }
    }

    /// Gives a file its full length, durably: if the header of its first use survived a crash and
    /// its length did not, it would look like a segment that lost its frames.
    pub(super) fn allocate(&self, file: &dyn DiskFile) -> std::io::Result<()> {
        file.allocate(self.segment_bytes)?;
        unless(Mutation::SegmentLength, || file.sync_data())
    }

    /// The error of a segment whose file cannot get its length.
    pub(super) fn not_made(&self, path: &Path, error: &std::io::Error) -> Error {
        let error = Error::io_on(Tier::Flash, format!("create segment {}", path.display()), error);
        if matches!(error, Error::OutOfSpace { .. }) {
            self.device_full.store(true, Ordering::Release);
        }
        error
    }

    /// The tail has moved to another segment.
    pub fn seal(&self, segment: &Segment, last_seq: u64, end_bytes: u64) {
        segment.last_seq.store(last_seq, Ordering::Release);
        segment.end_bytes.store(end_bytes, Ordering::Release);
        segment.set_state(SegmentState::Sealed);
    }

    /// The oldest sealed segment of those with nothing after `finished_seq`, up to which everything
    /// is written and applied, that satisfy `is_wanted`.
    pub fn oldest_sealed(&self, finished_seq: u64, is_wanted: impl Fn(&Segment) -> bool) -> Option<&Segment> {
        self.finished(finished_seq)
            .filter(|segment| is_wanted(segment))
            .min_by_key(|segment| segment.generation())
    }

    /// Log GC starts to move its live values.
    pub fn start_draining(&self, segment: &Segment) {
        segment.set_state(SegmentState::Draining);
    }

    /// Log GC gave up on it for now.
    pub fn stop_draining(&self, segment: &Segment) {
        segment.set_state(SegmentState::Sealed);
    }

    /// Everything in it is dead or moved as of `seq`.
    pub fn drained(&self, segment: &Segment, seq: u64) {
        segment.drained_seq.store(seq, Ordering::Release);
        segment.set_state(SegmentState::Drained);
    }

    /// Frees a drained segment unless it is pinned. The caller must ensure that no reader can find
    /// an address in it any more: the index has persisted its drained seq and no snapshot is older.
    pub fn free_drained(&self, segment: &Segment) -> bool {
        segment.set_state(SegmentState::Free);
        if segment.pins.load(Ordering::SeqCst) > 0 && !active(Mutation::SegmentWhilePinned) {
            segment.set_state(SegmentState::Drained);
            return false;
        }
        self.push_free(segment.number);
        true
    }

    /// Recovery found nothing of use in it.
    pub fn free_unused(&self, segment: &Segment) {
        segment.set_state(SegmentState::Free);
        self.push_free(segment.number);
    }

    /// It has damaged records that entries still point to.
    pub fn quarantine(&self, segment: &Segment) {
        segment.set_state(SegmentState::Quarantined);
    }

    /// The segment with this number.
    pub fn get(&self, number: u32) -> Option<&Segment> {
        self.slots.get(number)
    }

    /// All segments that exist.
    pub fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.slots.iter()
    }

    /// Segments in a state.
    pub fn in_state(&self, state: SegmentState) -> impl Iterator<Item = &Segment> {
        self.iter().filter(move |segment| segment.state() == state)
    }

    /// Segments in one of these states, in log order.
    pub fn in_log_order(&self, states: &[SegmentState]) -> Vec<&Segment> {
        let mut found: Vec<_> = self
            .iter()
            .filter(|segment| states.contains(&segment.state()))
            .collect();
        found.sort_by_key(|segment| segment.generation());
        found
    }

    /// Generation and offset of a position in the ring: never reused.
    pub fn place(&self, position: u64) -> Option<(u64, u64)> {
        let number = u32::try_from(position / self.segment_bytes).ok()?;
        Some((self.get(number)?.generation(), position % self.segment_bytes))
    }

    /// Pins a segment for reading. `None` if it is free or does not exist.
    pub fn pin(&self, number: u32) -> Option<SegmentPin<'_>> {
        let segment = self.get(number)?;
        segment.pins.fetch_add(1, Ordering::SeqCst);
        let pin = SegmentPin(segment);
        (segment.state() != SegmentState::Free).then_some(pin)
    }

    /// Segments that may still be taken: free ones and those not created yet.
    pub fn available(&self) -> u32 {
        let creatable = if self.is_device_full() {
            0
        } else {
            self.limit().saturating_sub(self.created())
        };
        self.free() + creatable
    }

    /// Maximum number of segments of the ring.
    pub fn capacity(&self) -> u32 {
        if self.is_device_full() {
            self.created().min(self.limit())
        } else {
            self.limit()
        }
    }

    /// Segment files that exist with their full length.
    pub fn created(&self) -> u32 {
        self.created.load(Ordering::Acquire)
    }

    /// Free segments among the existing ones.
    pub fn free(&self) -> u32 {
        self.free_count.load(Ordering::Acquire)
    }

    /// The highest generation that was assigned. It counts the uses of segments that were begun:
    /// while it rises, segments become free or can be created.
    pub fn last_generation(&self) -> u64 {
        self.next_generation.load(Ordering::Acquire) - 1
    }

    /// Whether the device had no room for another segment at the last check.
    pub fn is_device_full(&self) -> bool {
        self.device_full.load(Ordering::Acquire)
    }

    /// Checks again whether a full device has room (after space on it was freed).
    pub fn retry_device(&self) {
        self.device_full.store(false, Ordering::Release);
    }

    /// The store they belong to.
    pub const fn store_id(&self) -> u64 {
        self.store_id
    }

    /// Length of a segment in bytes.
    pub const fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    pub(super) fn push_free(&self, number: u32) {
        let mut free = self.free.lock();
        free.insert(number);
        self.free_count.fetch_add(1, Ordering::AcqRel);
    }

    /// Removes a number from the free ones, if there are more than `keep` of them.
    pub(super) fn pop_free(&self, keep: u32, pop: fn(&mut BTreeSet<u32>) -> Option<u32>) -> Option<u32> {
        let mut free = self.free.lock();
        let number = (free.len() > keep as usize).then(|| pop(&mut free))??;
        self.free_count.fetch_sub(1, Ordering::AcqRel);
        Some(number)
    }

    pub(super) fn note_damage(&self, number: u32, what: &str) {
        tracing::error!(segment = number, what, "a segment is damaged");
        self.damage.lock().push(format!("segment {number:08x}: {what}"));
    }

    /// Damage found in headers since the last call, as messages.
    pub fn take_damage(&self) -> Vec<String> {
        std::mem::take(&mut *self.damage.lock())
    }
}
