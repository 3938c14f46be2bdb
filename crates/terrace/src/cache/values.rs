//! Admission and eviction: values in segments of RAM, in two queues.
//!
//! ```text
//!  new ────▶ newcomers ── read ───▶ known ◀──┐
//!                │ not                │ └────┘ read
//!                ▼                    ▼ not
//!             evicted              evicted      and if it returns soon: known
//! ```
//!
//! Short values are copied into segments of records; a long value is a segment of its own. New
//! values are appended to the queue of newcomers. When there is no room the first segment of a
//! queue is evicted: of the newcomers, if those have more than a tenth of the room, else of the
//! known. Its records that were read since they were added get a second chance, at the end of the
//! second queue; a record that returns soon after its eviction goes there directly. So values read
//! once do not evict values that are read often. (S3-FIFO, Yang and others, SOSP 2023; eviction by
//! segment is from Segcache, Yang and others, NSDI 2021.) Before the head of either queue, a
//! segment is evicted of which much is dead or has moved elsewhere: all its live records stay.
//!
//! One lock for all threads that add or evict; readers take none (`index`).
//!
//! Invariants:
//! - The segments and the index together take no more than the capacity. One segment of records is
//!   always free: second chances may need it before the old segment's room is free.
//! - A record is written before a slot leads to it, and not changed before its segment is reused,
//!   when no reader has it any more.

mod chunks;
mod eviction;

use super::{
    CachedValue, Place,
    index::{CHUNK_AT, Contents, Index, Segment},
    record::{HEAD_BYTES_MAX, Item, WORD_BYTES},
    table::{SEGMENT_WORDS_MAX, SEGMENTS_MAX, Slot},
};
use crate::log::{emptiest::Emptiest, frame_table::FrameTable};
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Minimum number of segments of records, if they have all the room.
const SEGMENTS_MIN: u64 = 64;
/// Minimum words of a segment of records.
const WORDS_MIN: usize = 512;
/// A record takes at most this fraction (1/n) of a segment, so little is wasted at its end.
const PART_OF_SEGMENT: usize = 16;
/// Longer records are not copied: sharing them costs less.
const RECORD_BYTES_MAX: usize = 4 << 10;
/// A device read earns credit for this many copies of values of its length in RAM: for 1 KiB a read
/// takes some 15 µs of processor time and 150 µs of its caller's, a copy less than 1 µs. With 16
/// copies per read, half of the gain was lost.
const COPIES_FOR_READ: u64 = 64;
/// Maximum of saved credit, as a fraction (1/n) of the room.
const CREDIT_PART: u64 = 8;
/// Frames keep this fraction (1/n) of their share, however much is in chunks: recently written
/// values are often read soon, and with many writers each frame is a MiB.
const FRAMES_KEEP_PART: u64 = 4;
/// Overhead of a long value.
const WHOLE_OVERHEAD_BYTES: u64 = 160;
/// Segments that left out of turn are removed from the queues when there are more than this many,
const STALE_MIN: usize = 64;
/// and more than this fraction (1/n) of the segments in the queues.
const STALE_PART: usize = 8;

/// Bytes that a general allocator takes for this many bytes. It has four sizes per power of two,
/// like the size classes of jemalloc; the C library's takes less.
pub const fn allocated_bytes(bytes: usize) -> u64 {
    let step = if bytes <= 128 {
        16
    } else {
        bytes.next_power_of_two() / 8
    };
    bytes.next_multiple_of(step) as u64
}

/// Where something is put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rank {
    /// Unknown key.
    Newcomer,
    /// It was here before.
    Known,
}

/// A segment in a queue.
#[derive(Debug)]
struct Queued {
    number: u32,
    /// Words with records.
    words: usize,
    /// Its size.
    bytes: u64,
}

#[derive(Debug)]
struct Open {
    number: u32,
    segment: Arc<Segment>,
    words: usize,
}

#[derive(Debug, Default)]
struct Queue {
    sealed: VecDeque<Queued>,
    /// Where records are appended.
    open: Option<Open>,
    /// Its size, including the open segment.
    bytes: u64,
}

/// Segments of records and chunks by their numbers. One that is more than half live is emptied only
/// if reads have earned the credit.
type EmptiestSegments = Emptiest<u32, 7>;

/// How much of a segment is live after an item in it has lost its slot.
enum Occupancy {
    /// Too much, or as little as was noted before.
    Dense,
    /// This many live words of this many in total: the rest of its room should be reused.
    Sparse(u64, u64),
    /// Nothing, and nothing is appended to it.
    Empty,
}

impl Occupancy {
    /// For a segment in which the item at a word has lost its slot.
    fn of(segment: &Segment, at: usize) -> Self {
        let (before, after) = segment.remove_live(at);
        let is_full = match &segment.contents {
            Contents::Records(_) => false,
            Contents::Whole { .. } | Contents::Chunk { .. } => true,
        };
        let all = segment.all_words();
        if is_full && after == 0 {
            Self::Empty
        } else if EmptiestSegments::has_fallen(before, after, all) {
            Self::Sparse(after, all)
        } else {
            Self::Dense
        }
    }
}

/// State that one thread at a time may change.
#[derive(Debug, Default)]
struct State {
    newcomers: Queue,
    known: Queue,
    numbers: Vec<u32>,
    /// Memory of a segment that has left.
    spare: Option<Box<[AtomicU64]>>,
    /// Segments with many dead or moved words; some may have been evicted since.
    emptiest: EmptiestSegments,
    /// Segments that were removed out of turn and are still in a queue.
    stale_queued: usize,
    /// Where a record is put together.
    encoded: Vec<u8>,
}

/// See the module.
#[derive(Debug)]
pub struct Values {
    index: Index,
    state: Mutex<State>,
    capacity_bytes: AtomicU64,
    segment_words: usize,
    held_bytes: AtomicU64,
    /// RAM of other lookup structures, part of the capacity.
    beside_bytes: AtomicU64,
    /// This part of the capacity is lent ([`Values::lend`]) for a while.
    lent_bytes: AtomicU64,
    /// RAM of chunks that are the home of values.
    homes_bytes: AtomicU64,
    /// This part of the frames' share may be borrowed for them.
    lendable_bytes: AtomicU64,
    /// Credit: bytes that may be copied here without having been read since they were written.
    /// Earned by device reads.
    credit_bytes: AtomicU64,
}

impl State {
    fn queue(&mut self, rank: Rank) -> &mut Queue {
        match rank {
            Rank::Newcomer => &mut self.newcomers,
            Rank::Known => &mut self.known,
        }
    }
}

impl Values {
    /// With this much RAM. With none it never keeps anything.
    pub fn new(capacity_bytes: u64) -> Self {
        let words = usize::try_from(capacity_bytes / SEGMENTS_MIN).unwrap_or(usize::MAX) / WORD_BYTES;
        let segment_words = words.clamp(WORDS_MIN, SEGMENT_WORDS_MAX);
        let segment_words = 1 << segment_words.ilog2();
        let record_bytes_max = Self::record_bytes_max_of(segment_words) as u64;
        let numbers = capacity_bytes / (WHOLE_OVERHEAD_BYTES + record_bytes_max) + 2 * SEGMENTS_MIN;
        let numbers = usize::try_from(numbers).unwrap_or(usize::MAX).min(SEGMENTS_MAX);
        let numbers = if capacity_bytes == 0 { 0 } else { numbers };
        let index = Index::new(capacity_bytes, numbers);
        let state = State {
            numbers: index.numbers().rev().collect(),
            ..State::default()
        };
        Self {
            index,
            state: Mutex::new(state),
            capacity_bytes: AtomicU64::new(capacity_bytes),
            segment_words,
            held_bytes: AtomicU64::new(0),
            beside_bytes: AtomicU64::new(0),
            lent_bytes: AtomicU64::new(0),
            homes_bytes: AtomicU64::new(0),
            lendable_bytes: AtomicU64::new(0),
            credit_bytes: AtomicU64::new(0),
        }
    }

    /// The value of `key` at a place.
    pub fn get(&self, place: Place, key: &[u8]) -> Option<CachedValue> {
        self.index.get(place, key)
    }

    /// Whether it has the value of a place. This does not count as a read.
    pub fn has(&self, place: Place) -> bool {
        self.index.with_slot(place, |_, _| ()).is_some()
    }

    /// Begins to get what reading these values needs from memory, if they are here: a value by
    /// itself is little work and a long wait.
    pub fn fetch(&self, wanted: &[(Place, usize)]) {
        self.index.fetch(wanted);
    }

    /// Inserts a value, unless it would take more than an eighth of the room. Returns by how much
    /// the total RAM grew.
    pub fn insert(&self, item: &Item<'_>, rank: Rank, whole: impl FnOnce() -> CachedValue) -> u64 {
        if item.bytes() as u64 > self.capacity_bytes() / 8 {
            return 0;
        }
        let mut state = self.state.lock();
        // Of two readers that have read the same from a device the second finds it here.
        if self.has(item.place) {
            return 0;
        }
        let before = self.bytes();
        let rank = if self.index.was_here(item.place) {
            Rank::Known
        } else {
            rank
        };
        let mut record = std::mem::take(&mut state.encoded);
        let is_record = item.bytes() <= RECORD_BYTES_MAX
            && item.encode(&mut record).is_some()
            && record.len() <= Self::record_bytes_max_of(self.segment_words);
        let put = if is_record {
            self.append(&mut state, rank, record.len() / WORD_BYTES, |segment, at| {
                segment.words(at).write(&record);
            })
        } else {
            self.put_whole(&mut state, rank, item, whole).map(|number| (number, 0))
        };
        state.encoded = record;
        if let Some((number, at)) = put {
            self.index.insert(item.place, number, at);
        }
        self.bytes().saturating_sub(before)
    }

    /// Appends a record of this many words to a queue, and returns its position.
    fn append(
        &self,
        state: &mut State,
        rank: Rank,
        words: usize,
        write: impl FnOnce(&Segment, usize),
    ) -> Option<(u32, usize)> {
        if !self.has_open(state, rank, words) {
            let has_room = self.make_room(state, self.segment_bytes());
            // What got a second chance may have opened one.
            if !self.has_open(state, rank, words) {
                has_room.then(|| self.open(state, rank))??;
            }
        }
        Self::append_to_open(state, rank, words, write)
    }

    fn has_open(&self, state: &mut State, rank: Rank, words: usize) -> bool {
        let open = &state.queue(rank).open;
        open.as_ref()
            .is_some_and(|open| open.words + words <= self.segment_words)
    }

    fn append_to_open(
        state: &mut State,
        rank: Rank,
        words: usize,
        write: impl FnOnce(&Segment, usize),
    ) -> Option<(u32, usize)> {
        let open = state.queue(rank).open.as_mut()?;
        let at = open.words;
        open.words += words;
        open.segment.add_live(words);
        write(&open.segment, at);
        Some((open.number, at))
    }

    /// Opens a segment for records, and seals the one before.
    fn open(&self, state: &mut State, rank: Rank) -> Option<()> {
        let number = state.numbers.pop()?;
        let fresh = || (0..self.segment_words).map(|_| AtomicU64::new(0)).collect();
        let memory = state.spare.take().unwrap_or_else(fresh);
        let segment = Arc::new(Segment::new(Contents::Records(memory)));
        self.index.put_segment(number, Arc::clone(&segment));
        let bytes = self.segment_bytes();
        self.held_bytes.fetch_add(bytes, Ordering::Relaxed);
        let queue = state.queue(rank);
        queue.bytes += bytes;
        let open = Open {
            number,
            segment,
            words: 0,
        };
        if let Some(full) = queue.open.replace(open) {
            queue.sealed.push_back(Queued {
                number: full.number,
                words: full.words,
                bytes,
            });
            let live_words = full.segment.live_words();
            state.emptiest.note(full.number, live_words, self.segment_words as u64);
        }
        Some(())
    }

    fn put_whole(
        &self,
        state: &mut State,
        rank: Rank,
        item: &Item<'_>,
        whole: impl FnOnce() -> CachedValue,
    ) -> Option<u32> {
        let bytes = WHOLE_OVERHEAD_BYTES
            + allocated_bytes(item.value.len())
            + allocated_bytes(item.key.len() + item.attributes.len());
        if !self.make_room(state, bytes) {
            return None;
        }
        let contents = Contents::Whole {
            place: item.place,
            key: item.key.into(),
            value: whole(),
            bytes,
        };
        self.put_segment(state, rank, Segment::new(contents))
    }

    /// Puts a segment that is full behind the others of a queue.
    fn put_segment(&self, state: &mut State, rank: Rank, segment: Segment) -> Option<u32> {
        let number = state.numbers.pop()?;
        let bytes = segment.bytes();
        if segment.is_home() {
            self.homes_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        self.index.put_segment(number, Arc::new(segment));
        self.held_bytes.fetch_add(bytes, Ordering::Relaxed);
        let queue = state.queue(rank);
        queue.bytes += bytes;
        queue.sealed.push_back(Queued {
            number,
            words: 0,
            bytes,
        });
        Some(number)
    }

    /// Removes the value at a place. Returns whether it was there, and how often it was read.
    pub fn take(&self, place: Place) -> Option<u64> {
        let (slot, occupancy) = self.redirect(place, |_| None)?;
        self.index.note_gone(place);
        if !matches!(occupancy, Occupancy::Dense) {
            self.note_lost_item(&mut self.state.lock(), place, slot, &occupancy);
        }
        Some(slot.uses())
    }

    /// Points the slot of a place, if there is one, to the result of `to`, or removes it. Returns
    /// its former value, and how much of the segment is live now.
    fn redirect(&self, place: Place, to: impl Fn(Slot) -> Option<Slot>) -> Option<(Slot, Occupancy)> {
        let attempt = || {
            self.index.with_slot(place, |found, segment| {
                let slot = found.slot;
                let is_redirected = found.replace(to(slot));
                is_redirected.then(|| (slot, Occupancy::of(segment, slot.at())))
            })
        };
        // Again, if another thread redirected it meanwhile.
        match attempt() {
            Some(None) => attempt().flatten(),
            redirected => redirected.flatten(),
        }
    }

    /// An item of a segment has lost its slot.
    fn note_lost_item(&self, state: &mut State, place: Place, slot: Slot, occupancy: &Occupancy) {
        let number = slot.segment();
        match *occupancy {
            Occupancy::Dense => {}
            Occupancy::Sparse(live_words, all_words) => state.emptiest.note(number, live_words, all_words),
            Occupancy::Empty => {
                // It may have left meanwhile, its number be another's, or more have moved there.
                let is_here = self.index.segment(number);
                let is_so_still =
                    |segment: Arc<Segment>| segment.place(slot.at()) == Some(place) && segment.live_words() == 0;
                if is_here.is_some_and(is_so_still) {
                    self.release_empty(state, number);
                    self.drop_stale(state);
                }
            }
        }
    }

    /// The same for a segment with no item, or only a chunk whose values are gone.
    fn release_empty(&self, state: &mut State, number: u32) {
        if let Some(segment) = self.release(number)
            && let Contents::Chunk { place, .. } = &segment.contents
        {
            self.leave(*place, number, CHUNK_AT);
        }
        state.stale_queued += 1;
    }

    /// Removes a segment to which no slot leads. Its number stays with its place in the queue.
    fn release(&self, number: u32) -> Option<Arc<Segment>> {
        let segment = self.index.take_segment(number)?;
        self.held_bytes.fetch_sub(segment.bytes(), Ordering::Relaxed);
        if segment.is_home() {
            self.homes_bytes.fetch_sub(segment.bytes(), Ordering::Relaxed);
        }
        Some(segment)
    }

    /// Removes segments that left out of turn from the queues, once they are many.
    fn drop_stale(&self, state: &mut State) {
        let queued = state.newcomers.sealed.len() + state.known.sealed.len();
        if state.stale_queued < STALE_MIN || state.stale_queued < queued / STALE_PART {
            return;
        }
        state.stale_queued = 0;
        let State {
            newcomers,
            known,
            numbers,
            ..
        } = state;
        for queue in [newcomers, known] {
            let bytes = &mut queue.bytes;
            queue.sealed.retain(|queued| {
                let is_here = self.index.segment(queued.number).is_some();
                if !is_here {
                    numbers.push(queued.number);
                    *bytes -= queued.bytes;
                }
                is_here
            });
        }
    }

    /// Records that a value of this many bytes was read from a device.
    pub fn note_read(&self, bytes: usize) {
        self.earn(bytes.min(RECORD_BYTES_MAX) as u64 * COPIES_FOR_READ);
    }

    /// Earns credit for this many bytes.
    fn earn(&self, bytes: u64) {
        let credit_bytes = self.credit_bytes.load(Ordering::Relaxed) + bytes;
        let most_bytes = self.capacity_bytes() / CREDIT_PART;
        self.credit_bytes.store(credit_bytes.min(most_bytes), Ordering::Relaxed);
    }

    /// Whether this many unread bytes are copied here: no live value has to be evicted for them,
    /// and reads have earned the credit. Where evicted values are not read again, keeping them
    /// would be useless work.
    pub fn takes_unread(&self, bytes: u64) -> bool {
        let has_room = self.unused_bytes() > bytes || !self.state.lock().emptiest.is_empty();
        has_room && self.spend(bytes)
    }

    /// Spends credit for this many bytes. `false` if there is not enough.
    fn spend(&self, bytes: u64) -> bool {
        let rest = |credit_bytes: u64| credit_bytes.checked_sub(bytes);
        let spent = self
            .credit_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest);
        spent.is_ok()
    }

    /// Whether it was made with no RAM.
    pub fn is_off(&self) -> bool {
        self.index.numbers().is_empty()
    }

    /// RAM it may have now.
    pub fn capacity_bytes(&self) -> u64 {
        let lent_bytes = self.lent_bytes.load(Ordering::Relaxed);
        let bytes = self.capacity_bytes.load(Ordering::Relaxed) + self.borrowed_bytes();
        bytes.saturating_sub(lent_bytes)
    }

    /// RAM of the frames' share that the cache uses now. Frames have a fraction of all RAM for
    /// values, but none of the RAM of longer values in chunks, for which they keep nothing.
    pub fn borrowed_bytes(&self) -> u64 {
        let homes_bytes = self.homes_bytes.load(Ordering::Relaxed);
        let lendable_bytes = self.lendable_bytes.load(Ordering::Relaxed);
        FrameTable::share_of(homes_bytes).min(lendable_bytes)
    }

    /// Sets the frames' share.
    pub fn set_frames_share(&self, share_bytes: u64) {
        let lendable_bytes = share_bytes - share_bytes / FRAMES_KEEP_PART;
        self.lendable_bytes.store(lendable_bytes, Ordering::Relaxed);
    }

    /// Changes the capacity. Excess segments are evicted before this returns, except those that are
    /// being filled. The number of segments is limited by the initial capacity.
    pub fn set_capacity(&self, bytes: u64) {
        self.capacity_bytes.store(bytes, Ordering::Relaxed);
        self.shrink();
    }

    /// The same for a part of the capacity that another user has until this is called again.
    pub fn lend(&self, bytes: u64) {
        self.lent_bytes.store(bytes, Ordering::Relaxed);
        self.shrink();
    }

    fn shrink(&self) {
        let mut state = self.state.lock();
        self.make_room(&mut state, 0);
        state.spare = None;
    }

    /// RAM it may have and does not.
    pub fn unused_bytes(&self) -> u64 {
        self.capacity_bytes().saturating_sub(self.bytes() + self.index_bytes())
    }

    /// RAM that segments take.
    pub fn bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }

    /// RAM that finding them takes. The half a KiB that one has which is off is not counted.
    pub fn index_bytes(&self) -> u64 {
        if self.is_off() {
            return 0;
        }
        self.index.bytes() + self.beside_bytes.load(Ordering::Relaxed)
    }

    /// Sets the RAM of other lookup structures.
    pub fn set_beside_bytes(&self, bytes: u64) {
        self.beside_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Bytes of a segment of records.
    pub const fn segment_bytes(&self) -> u64 {
        (self.segment_words * WORD_BYTES) as u64
    }

    /// Bytes of key, attributes and value of which a record can be made, whatever its numbers are.
    pub const fn copied_bytes_max(&self) -> usize {
        Self::record_bytes_max_of(self.segment_words) - HEAD_BYTES_MAX
    }

    const fn record_bytes_max_of(segment_words: usize) -> usize {
        let bytes = segment_words * WORD_BYTES / PART_OF_SEGMENT;
        if bytes < RECORD_BYTES_MAX {
            bytes
        } else {
            RECORD_BYTES_MAX
        }
    }
}
