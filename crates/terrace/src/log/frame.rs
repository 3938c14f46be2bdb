//! A frame in memory: the unit of group commit, of lookups in the overlay, and of applying.
//!
//! Commits append records to the open frame, and a hash table by key makes them readable
//! immediately. When the frame is sealed it is written to its place in a segment and applied to the
//! index, in either order; after both no reader looks up a key in it any more, and its bytes may be
//! kept.
//!
//! Invariants:
//! - A frame's place is fixed when it is opened, so every record's address is known when it is
//!   committed.
//! - Everything that commits change is in `open` until the frame is sealed and in `sealed` from
//!   then on; it moves once, under the write lock. So a thread that holds the read lock finds it in
//!   one of the two. `sealed` is immutable, and a thread that sees it set also sees everything
//!   appended before. So it is read without a lock; only the open frame is read under one.

mod sealed;

use super::{
    address::Address,
    format::{FRAME_HEADER_BYTES, FrameHeader, Record},
};
use crate::{
    Durability,
    io::{AlignedBuffer, PAGE_BYTES},
    mutation::{Mutation, active},
};
use hashbrown::HashTable;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
pub use sealed::{EmptiestFrames, Heir, Heritage, PlaceInLog, Sealed};
use std::{
    ops::Deref,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
};

/// Keeps the memory of finished frames for reuse.
#[derive(Debug)]
pub struct FramePool {
    /// Maximum number of buffers and of tables kept; more are freed.
    parts_max: usize,
    buffers: Mutex<Vec<AlignedBuffer>>,
    /// Length of recent frames, in bytes: a new buffer is allocated with this length at once, and
    /// does not grow in steps.
    frame_bytes: AtomicUsize,
    tables: Mutex<Vec<Table>>,
}

/// From a key's hash to the offset of its newest record in the buffer.
type Table = HashTable<(u64, u32)>;

/// Longer parts are not pooled.
const POOLED_BYTES_MAX: usize = 2 << 20;
/// Buffers prepared in advance.
const READY: usize = 2;

impl FramePool {
    /// Keeps as many parts as an overlay of so many bytes has frames of 1 MiB: with fewer, frames
    /// after a full overlay would be written to memory that the kernel must map and clear first.
    pub fn for_overlay(overlay_bytes: u64) -> Self {
        Self {
            parts_max: usize::try_from(overlay_bytes >> 20).unwrap_or(usize::MAX).max(4),
            buffers: Mutex::default(),
            frame_bytes: AtomicUsize::new(0),
            tables: Mutex::default(),
        }
    }

    fn take_buffer(&self) -> AlignedBuffer {
        let spare = self.buffers.lock().pop();
        spare.unwrap_or_else(|| AlignedBuffer::with_capacity(self.frame_bytes.load(Ordering::Relaxed)))
    }

    /// Prepares a buffer for the next frame, in memory that the kernel has mapped and cleared
    /// already: for a caller that fills frame after frame this would be half of its time. Called by
    /// a thread that has time.
    pub fn make_ready(&self) {
        let bytes = self.frame_bytes.load(Ordering::Relaxed);
        if self.buffers.lock().len() >= READY {
            return;
        }
        let mut buffer = AlignedBuffer::zeroed(bytes);
        buffer.iter_mut().step_by(PAGE_BYTES).for_each(|first| *first = 0);
        self.put_buffer(std::hint::black_box(buffer));
    }

    /// Frees all parts except those for the next few frames: nothing is written for now.
    pub fn trim(&self) {
        self.buffers.lock().truncate(READY);
        self.tables.lock().truncate(READY);
    }

    /// RAM kept for the next frames, in bytes.
    pub fn spare_bytes(&self) -> u64 {
        let buffers: usize = self.buffers.lock().iter().map(AlignedBuffer::capacity).sum();
        let tables: usize = self.tables.lock().iter().map(Table::allocation_size).sum();
        (buffers + tables) as u64
    }

    /// Length of each buffer kept for a frame.
    #[cfg(test)]
    pub fn waiting(&self) -> Vec<usize> {
        self.buffers.lock().iter().map(AlignedBuffer::capacity).collect()
    }

    /// Notes the length of a frame. Since buffers grow by doubling, those for frames like it have a
    /// power of two.
    fn note_length(&self, bytes: usize) {
        let bytes = bytes.next_power_of_two().min(POOLED_BYTES_MAX);
        self.frame_bytes.store(bytes, Ordering::Relaxed);
    }

    fn take_table(&self) -> Table {
        self.tables.lock().pop().unwrap_or_default()
    }

    fn put_buffer(&self, mut buffer: AlignedBuffer) {
        if (1..=POOLED_BYTES_MAX).contains(&buffer.capacity()) {
            buffer.clear();
            self.keep(&self.buffers, buffer);
        }
    }

    fn put_table(&self, mut table: Table) {
        if (1..=POOLED_BYTES_MAX).contains(&table.allocation_size()) {
            table.clear();
            self.keep(&self.tables, table);
        }
    }

    fn keep<T>(&self, spare: &Mutex<Vec<T>>, part: T) {
        let mut spare = spare.lock();
        if spare.len() < self.parts_max {
            spare.push(part);
        }
    }
}

/// A frame that is being filled, written or applied.
#[derive(Debug)]
pub struct Frame {
    /// Number of its segment.
    pub segment: u32,
    /// Generation of that segment's present use.
    pub generation: u64,
    /// Its offset in the segment.
    pub offset: u64,
    segment_bytes: u64,
    open: RwLock<Contents>,
    /// The same, once no more records are appended.
    sealed: OnceLock<Contents>,
    written: AtomicBool,
    applied: AtomicBool,
    large_turn: AtomicU64,
    filter_bit: AtomicU32,
    /// Seq of its last commit that is visible only when it is durable; 0 if there is none.
    sync_seq: AtomicU64,
    pool: Arc<FramePool>,
}

/// For a frame without a bit in the filter.
const NO_BIT: u32 = u32::MAX;

#[derive(Debug, Default)]
struct Contents {
    /// The buffer that commits are appended to.
    buffer: AlignedBuffer,
    /// The same bytes after the frame was sealed.
    bytes: Option<Arc<Sealed>>,
    table: Table,
    first_seq: u64,
    last_seq: u64,
    record_count: u32,
    padding_bytes: usize,
    /// At least one of its records is the home of its value.
    has_homes: bool,
    /// Commits that are visible only when they are durable, ascending.
    sync_seqs: Vec<u64>,
    /// Where a record of such a commit replaced an earlier record in the table: the offsets of
    /// both, sorted by the later one.
    replaced: Vec<(u32, u32)>,
}

/// Read access to a frame's records.
pub struct FrameView<'a> {
    frame: &'a Frame,
    contents: Shown<'a>,
}

enum Shown<'a> {
    Open(RwLockReadGuard<'a, Contents>),
    Sealed(&'a Contents),
}

impl Deref for Shown<'_> {
    type Target = Contents;

    fn deref(&self) -> &Contents {
        match self {
            Self::Open(contents) => contents,
            Self::Sealed(contents) => contents,
        }
    }
}

impl Frame {
    /// Opens an empty frame at an address.
    pub fn open(segment: u32, generation: u64, segment_bytes: u64, offset: u64, pool: Arc<FramePool>) -> Self {
        let mut buffer = pool.take_buffer();
        let table = pool.take_table();
        buffer.set_len(FRAME_HEADER_BYTES);
        buffer.fill(0);
        Self {
            segment,
            generation,
            offset,
            segment_bytes,
            open: RwLock::new(Contents {
                buffer,
                table,
                ..Contents::default()
            }),
            sealed: OnceLock::new(),
            written: AtomicBool::new(false),
            applied: AtomicBool::new(false),
            large_turn: AtomicU64::new(0),
            filter_bit: AtomicU32::new(NO_BIT),
            sync_seq: AtomicU64::new(0),
            pool,
        }
    }

    /// Rebuilds a frame that recovery has read from its segment: durable, not applied.
    pub fn recovered(
        segment: u32,
        header: &FrameHeader,
        segment_bytes: u64,
        offset: u64,
        bytes: &[u8],
        pool: Arc<FramePool>,
    ) -> Self {
        let frame = Self::open(segment, header.generation, segment_bytes, offset, pool);
        {
            let mut contents = frame.open.write();
            let payload = &bytes[FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + header.payload_bytes as usize];
            contents.buffer.extend_from_slice(payload);
            contents.first_seq = header.first_seq;
            contents.last_seq = header.last_seq;
            contents.record_count = header.record_count;
            let mut at = FRAME_HEADER_BYTES;
            let Contents {
                buffer,
                table,
                has_homes,
                ..
            } = &mut *contents;
            while let Some(record) = buffer.get(at..).and_then(Record::parse) {
                if record.body.answers_for_key() {
                    let _ = insert(table, buffer, crate::key_hash(record.key), at);
                }
                *has_homes |= record.body.is_home();
                at += record.record_bytes();
            }
            frame.settle(&mut contents);
        }
        frame.written.store(true, Ordering::Release);
        frame
    }

    /// Length so far, header included.
    pub fn len_bytes(&self) -> usize {
        self.view().bytes().len()
    }

    /// Its bytes, if it is sealed.
    pub fn sealed(&self) -> Option<&Arc<Sealed>> {
        self.sealed.get()?.bytes.as_ref()
    }

    /// Makes the contents immutable.
    fn settle(&self, contents: &mut Contents) {
        let buffer = std::mem::take(&mut contents.buffer);
        let used_bytes = buffer.len() - contents.padding_bytes.saturating_sub(FRAME_HEADER_BYTES);
        contents.bytes = Some(Arc::new(Sealed::new(buffer, used_bytes, Arc::clone(&self.pool))));
        let settled = self.sealed.set(std::mem::take(contents));
        debug_assert!(settled.is_ok(), "a frame is sealed once");
    }

    /// Its place in the log.
    pub const fn place(&self) -> PlaceInLog {
        (self.generation, self.offset)
    }

    /// Offset in the segment of its present end.
    pub fn end(&self) -> u64 {
        self.offset + self.len_bytes() as u64
    }

    /// Whether it may have this length: whether it fits in the segment then.
    pub fn may_have(&self, bytes: usize) -> bool {
        let end = self.offset as usize + bytes;
        end.next_multiple_of(PAGE_BYTES) as u64 <= self.segment_bytes
    }

    /// Appends the records of one commit and makes them visible together: immediately, or when the
    /// commit is durable.
    pub fn append(&self, seq: u64, records: &[(u64, Record<'_>)], durability: Durability) {
        let unfinished = durability == Durability::Sync;
        let mut contents = self.open.write();
        let contents = &mut *contents;
        if unfinished {
            contents.sync_seqs.push(seq);
            self.sync_seq.store(seq, Ordering::Release);
        }
        for (hash, record) in records {
            let at = contents.buffer.len();
            contents.buffer.set_len(at + record.record_bytes());
            // The low half, as the format defines.
            let record = Record {
                seq,
                generation: self.generation as u32,
                ..*record
            };
            record.encode_into(&mut contents.buffer[at..]);
            contents.has_homes |= record.body.is_home();
            // Until the applier decides about a move, the old home is valid; range deletions are
            // compared by versions.
            if record.body.answers_for_key()
                && let Some(replaced) = insert(&mut contents.table, &contents.buffer, *hash, at)
                && unfinished
            {
                // A frame is shorter than a segment.
                contents.replaced.push((at as u32, replaced));
            }
        }
        if contents.record_count == 0 {
            contents.first_seq = seq;
        }
        contents.last_seq = seq;
        contents.record_count += records.len() as u32;
    }

    /// Writes the header and the padding; no records may follow. Returns the end of the frame in
    /// the segment.
    pub fn seal(&self, durable_seq: u64) -> u64 {
        let mut contents = self.open.write();
        let payload_bytes = contents.buffer.len() - FRAME_HEADER_BYTES;
        // A frame is shorter than a segment.
        let header = FrameHeader {
            generation: self.generation,
            first_seq: contents.first_seq,
            last_seq: contents.last_seq,
            payload_bytes: payload_bytes as u32,
            record_count: contents.record_count,
            durable_seq,
        };
        let before = contents.buffer.len();
        contents.buffer[..FRAME_HEADER_BYTES].copy_from_slice(&header.encode());
        contents.buffer.pad_to_page();
        contents.padding_bytes = FRAME_HEADER_BYTES + contents.buffer.len() - before;
        let bytes = contents.buffer.len();
        self.pool.note_length(bytes);
        self.settle(&mut contents);
        self.offset + bytes as u64
    }

    /// Read access to the records.
    pub fn view(&self) -> FrameView<'_> {
        let contents = self.sealed.get().map_or_else(|| self.open_or_sealed(), Shown::Sealed);
        FrameView { frame: self, contents }
    }

    fn open_or_sealed(&self) -> Shown<'_> {
        let open = self.open.read();
        // It may have been sealed before the lock was acquired.
        self.sealed.get().map_or(Shown::Open(open), Shown::Sealed)
    }

    /// Its records point to values in the large space that may not be durable yet, the last of them
    /// with this turn (above 0).
    pub fn needs_large_sync(&self, turn: u64) {
        self.large_turn.fetch_max(turn, Ordering::AcqRel);
    }

    /// The turn up to which the large space must be synced before this frame may be written; 0 if
    /// none.
    pub fn large_turn(&self) -> u64 {
        self.large_turn.load(Ordering::Acquire)
    }

    /// Sets its bit in the filter of pending frames.
    pub fn set_filter_bit(&self, bit: u32) {
        self.filter_bit.store(bit, Ordering::Release);
    }

    /// Its bit in the filter.
    pub fn filter_bit(&self) -> Option<u32> {
        Some(self.filter_bit.load(Ordering::Acquire)).filter(|bit| *bit != NO_BIT)
    }

    /// Seq of its last commit that is visible only when it is durable; 0 if there is none.
    pub fn sync_seq(&self) -> u64 {
        self.sync_seq.load(Ordering::Acquire)
    }

    /// Its bytes are in the segment file.
    pub fn set_written(&self) {
        self.written.store(true, Ordering::Release);
    }

    /// Its records are in the index.
    pub fn set_applied(&self) {
        self.applied.store(true, Ordering::Release);
    }

    /// Whether readers no longer need to look up keys in it.
    pub fn is_finished(&self) -> bool {
        self.written.load(Ordering::Acquire) && self.applied.load(Ordering::Acquire)
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        let sealed = self.sealed.take();
        let mut contents = sealed.unwrap_or_else(|| std::mem::take(self.open.get_mut()));
        self.pool.put_buffer(contents.buffer);
        self.pool.put_table(std::mem::take(&mut contents.table));
    }
}

/// Points the table's slot for the key of the record at `at` to it, replacing an earlier record of
/// the same key. Returns the offset of that one.
// A frame is shorter than a segment.
fn insert(table: &mut Table, buffer: &AlignedBuffer, hash: u64, at: usize) -> Option<u32> {
    let key_at = |at: usize| Record::parse(&buffer[at..]).map_or(&[][..], |record| record.key);
    let key = key_at(at);
    let same = |slot: &(u64, u32)| slot.0 == hash && key_at(slot.1 as usize) == key;
    match table.entry(hash, same, |slot| slot.0) {
        hashbrown::hash_table::Entry::Occupied(mut slot) => Some(std::mem::replace(&mut slot.get_mut().1, at as u32)),
        hashbrown::hash_table::Entry::Vacant(slot) => {
            slot.insert((hash, at as u32));
            None
        }
    }
}

impl FrameView<'_> {
    fn buffer(&self) -> &[u8] {
        let contents = &*self.contents;
        contents
            .bytes
            .as_ref()
            .map_or(&contents.buffer, |sealed| sealed.bytes())
    }

    /// The newest record of a key in this frame, visible or not.
    pub fn find(&self, hash: u64, key: &[u8]) -> Option<Record<'_>> {
        self.record(self.find_offset(hash, key)?)
    }

    /// The newest record of a key in this frame among those that are visible when everything up to
    /// `durable_seq` is durable.
    pub fn find_visible(&self, hash: u64, key: &[u8], durable_seq: u64) -> Option<Record<'_>> {
        let mut at = self.find_offset(hash, key)?;
        loop {
            let record = self.record(at)?;
            if self.is_visible(record.seq, durable_seq) {
                return Some(record);
            }
            let replaced = &self.contents.replaced;
            let earlier = replaced.binary_search_by_key(&at, |(later, _)| *later).ok()?;
            at = replaced[earlier].1;
        }
    }

    /// Whether a commit of this frame is visible when everything up to `durable_seq` is durable.
    pub fn is_visible(&self, seq: u64, durable_seq: u64) -> bool {
        let is_sync = || self.contents.sync_seqs.binary_search(&seq).is_ok();
        seq <= durable_seq || active(Mutation::VisibleWhenDurable) || !is_sync()
    }

    fn find_offset(&self, hash: u64, key: &[u8]) -> Option<u32> {
        let is_key = |slot: &&(u64, u32)| slot.0 == hash && self.record(slot.1).is_some_and(|record| record.key == key);
        self.contents.table.find(hash, |slot| is_key(&slot)).map(|slot| slot.1)
    }

    fn record(&self, at: u32) -> Option<Record<'_>> {
        Record::parse(&self.buffer()[at as usize..])
    }

    /// Whether one of its records is the home of its value, so that it may be read by address.
    pub fn has_homes(&self) -> bool {
        self.contents.has_homes
    }

    /// Hashes of the keys in its table.
    pub fn hashes(&self) -> impl Iterator<Item = u64> {
        self.contents.table.iter().map(|slot| slot.0)
    }

    /// All records in order, each with its address.
    pub fn records(&self) -> impl Iterator<Item = (Address, Record<'_>)> {
        let base = u64::from(self.frame.segment) * self.frame.segment_bytes + self.frame.offset;
        let payload = &self.buffer()[FRAME_HEADER_BYTES..];
        super::format::records(payload)
            .take(self.contents.record_count as usize)
            .filter_map(move |(at, record)| Some((Address::new(base + (FRAME_HEADER_BYTES + at) as u64)?, record)))
    }

    /// The frame's bytes as written to the device, once sealed.
    pub fn bytes(&self) -> &[u8] {
        self.buffer()
    }

    /// Seq of the last commit in it (0 if it is empty).
    pub fn last_seq(&self) -> u64 {
        self.contents.last_seq
    }

    /// Number of records.
    pub fn record_count(&self) -> u32 {
        self.contents.record_count
    }

    /// Header and padding bytes, once sealed.
    pub fn padding_bytes(&self) -> usize {
        self.contents.padding_bytes
    }
}
