//! What is in the cache and what leaves it: values in segments of RAM, in two queues.
//!
//! Short values are copied into segments of records; a long one is a segment of its own. What comes
//! is behind the others in the queue of newcomers. When there is no room the first segment of a
//! queue leaves: of the newcomers', if those have more than a tenth of the room, else of the
//! others'. Of what it has, whatever was read since it came gets a second chance, behind all others
//! in the second queue; what comes back soon after it has left goes there at once. So what is read
//! once drives out nothing that is read often. (S3-FIFO, Yang and others, SOSP 2023; that records
//! leave by segment is from Segcache, Yang and others, NSDI 2021.)
//!
//! One lock for all who put something in or let it leave; who reads takes none (`index`).
//!
//! Invariants:
//! - Segments and the index together take no more than the capacity. A segment of records is always
//!   free: what gets a second chance may need it before the room of its old segment is free.
//! - A record is written before a slot leads to it, and not changed before its segment is in use
//!   again, which is when no reader has it any more.

use super::{
    CachedValue, Place,
    index::{Contents, Index, Segment},
    record::{Item, WORD_BYTES},
    table::{SEGMENT_WORDS_MAX, SEGMENTS_MAX, Slot},
};
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// There are at least so many segments of records, if all room is theirs.
const SEGMENTS_MIN: u64 = 64;
/// A segment of records has at least so many words.
const WORDS_MIN: usize = 512;
/// A record takes at most one part in so many of a segment, so little is left over at the end.
const PART_OF_SEGMENT: usize = 16;
/// Longer records are not copied: sharing them costs less.
const RECORD_BYTES_MAX: usize = 4 << 10;
/// One part in so many of the room is for newcomers.
const NEWCOMERS_PART: u64 = 10;
/// What a long value costs besides its bytes.
const WHOLE_OVERHEAD_BYTES: u64 = 160;
/// So many long values get a second chance before one leaves all the same,
const CHANCES_MAX: usize = 64;
/// or one in so many segments of records, of which then half leaves all the same.
const CHANCES_OF_SEGMENT: usize = 8;

/// Segments that have left before their turn are forgotten when there are more than so many.
const LEFT_EARLY_MIN: usize = 64;

/// What a general allocator takes for so many bytes. It has four lengths for each power of two, as
/// jemalloc's size classes are; the C library's takes less.
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
    /// Nothing is known of it.
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
    /// What it takes.
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
    /// What it takes, the open one included.
    bytes: u64,
}

/// What only one may change at a time.
#[derive(Debug, Default)]
struct State {
    newcomers: Queue,
    known: Queue,
    numbers: Vec<u32>,
    /// Memory of a segment that has left.
    spare: Option<Box<[AtomicU64]>>,
    /// Segments that were taken out, and of which a queue knows still.
    left_early: usize,
    /// Where a record is put together.
    encoded: Vec<u8>,
}

/// A record of a segment that leaves.
struct Leaving {
    place: Place,
    at: usize,
    words: usize,
    uses: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Values {
    index: Index,
    state: Mutex<State>,
    capacity_bytes: AtomicU64,
    segment_words: usize,
    held_bytes: AtomicU64,
    /// What finding values by other ways takes: of the capacity as well.
    beside_bytes: AtomicU64,
    /// Somebody else has so much of the capacity for a while.
    lent_bytes: AtomicU64,
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
        }
    }

    /// Whether it was made with no RAM.
    pub fn is_off(&self) -> bool {
        self.index.numbers().is_empty()
    }

    const fn record_bytes_max_of(segment_words: usize) -> usize {
        let bytes = segment_words * WORD_BYTES / PART_OF_SEGMENT;
        if bytes < RECORD_BYTES_MAX {
            bytes
        } else {
            RECORD_BYTES_MAX
        }
    }

    const fn segment_bytes(&self) -> u64 {
        (self.segment_words * WORD_BYTES) as u64
    }

    /// RAM it may have now.
    pub fn capacity_bytes(&self) -> u64 {
        let lent_bytes = self.lent_bytes.load(Ordering::Relaxed);
        self.capacity_bytes.load(Ordering::Relaxed).saturating_sub(lent_bytes)
    }

    /// Changes how much RAM it may have. What is too much then leaves before this returns, but for
    /// the segments that are being filled. It never has more segments than the first capacity is
    /// enough for.
    pub fn set_capacity(&self, bytes: u64) {
        self.capacity_bytes.store(bytes, Ordering::Relaxed);
        self.shrink();
    }

    /// Leaves so much of its RAM to somebody else, until it is told another amount: what is too
    /// much leaves as for [`Values::set_capacity`].
    pub fn lend(&self, bytes: u64) {
        self.lent_bytes.store(bytes, Ordering::Relaxed);
        self.shrink();
    }

    fn shrink(&self) {
        let mut state = self.state.lock();
        self.make_room(&mut state, 0);
        state.spare = None;
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

    /// Takes note of what finding values by other ways takes.
    pub fn set_beside_bytes(&self, bytes: u64) {
        self.beside_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Whether it has the value of a place. This does not count as a read.
    pub fn has(&self, place: Place) -> bool {
        self.index.with_slot(place, |_, _| ()).is_some()
    }

    /// RAM it may have and does not.
    pub fn unused_bytes(&self) -> u64 {
        self.capacity_bytes().saturating_sub(self.bytes() + self.index_bytes())
    }

    /// The value of `key` at a place.
    pub fn get(&self, place: Place, key: &[u8]) -> Option<CachedValue> {
        self.index.get(place, key)
    }

    /// Keeps a value, unless it would take more than an eighth of the room. Says how much more RAM
    /// it all takes.
    pub fn insert(&self, item: &Item<'_>, rank: Rank, whole: impl FnOnce() -> CachedValue) -> u64 {
        if item.bytes() as u64 > self.capacity_bytes() / 8 {
            return 0;
        }
        let mut state = self.state.lock();
        // Of two who have read the same from a device the second finds it here.
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

    /// Takes the value at a place out. Says whether it was there, and how often it was read.
    pub fn take(&self, place: Place) -> Option<u64> {
        let (taken, segment) = self.index.with_slot(place, |found, segment| {
            let taken = found.replace(None).then_some(found.slot);
            (
                taken,
                matches!(segment.contents, Contents::Whole { .. }).then_some(found.slot.segment()),
            )
        })?;
        let slot = taken?;
        self.index.note_gone(place);
        if let Some(number) = segment {
            let mut state = self.state.lock();
            // It may have left meanwhile, and its number be another's.
            let is_here = self.index.segment(number);
            if is_here.is_some_and(|segment| segment.place(0) == Some(place)) {
                self.let_go(number);
                state.left_early += 1;
                self.forget_left(&mut state);
            }
        }
        Some(slot.uses())
    }

    /// A segment that is led to no more. Its number stays with its place in the queue.
    fn let_go(&self, number: u32) -> Option<Arc<Segment>> {
        let segment = self.index.take_segment(number)?;
        let bytes = match &segment.contents {
            Contents::Records(words) => (words.len() * WORD_BYTES) as u64,
            Contents::Whole { bytes, .. } => *bytes,
        };
        self.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
        Some(segment)
    }

    /// Takes those out of the queues that have left before their turn, once they are most of them.
    fn forget_left(&self, state: &mut State) {
        let queued = state.newcomers.sealed.len() + state.known.sealed.len();
        if state.left_early < LEFT_EARLY_MIN || state.left_early < queued / 2 {
            return;
        }
        state.left_early = 0;
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

    /// Appends a record of so many words to a queue, and says where it is.
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
        let number = state.numbers.pop()?;
        let contents = Contents::Whole {
            place: item.place,
            key: item.key.into(),
            value: whole(),
            bytes,
        };
        self.index.put_segment(number, Arc::new(Segment::new(contents)));
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

    /// Lets segments leave until there is room for so many bytes more, and numbers for what comes
    /// and for what gets a second chance. Says whether there is room now.
    fn make_room(&self, state: &mut State, bytes: u64) -> bool {
        let room = self.capacity_bytes().saturating_sub(self.segment_bytes() + bytes);
        let mut chances = CHANCES_MAX;
        let is_full = |state: &State| state.numbers.len() < 2 || self.bytes() + self.index_bytes() > room;
        while is_full(state) && self.evict(state, &mut chances) {}
        if self.bytes() + self.index_bytes() + self.segment_bytes() <= room {
            state.spare = None;
        }
        self.bytes() + self.index_bytes() + bytes <= self.capacity_bytes()
    }

    /// Lets the first segment of a queue leave. `false` if there is none.
    fn evict(&self, state: &mut State, chances: &mut usize) -> bool {
        let newcomers_have_much = state.newcomers.bytes > self.capacity_bytes() / NEWCOMERS_PART;
        let rank = match (state.newcomers.sealed.is_empty(), state.known.sealed.is_empty()) {
            (true, true) => return false,
            (false, true) => Rank::Newcomer,
            (true, false) => Rank::Known,
            (false, false) if newcomers_have_much => Rank::Newcomer,
            (false, false) => Rank::Known,
        };
        let queue = state.queue(rank);
        let Some(first) = queue.sealed.pop_front() else {
            return false;
        };
        queue.bytes -= first.bytes;
        let segment = self.index.segment(first.number);
        match segment.as_ref().map(|segment| &segment.contents) {
            Some(Contents::Records(_)) => self.empty(state, rank, &first, segment.as_deref(), chances),
            Some(Contents::Whole { place, .. }) if self.has_chance(*place, &first, chances) => {
                state.known.bytes += first.bytes;
                state.known.sealed.push_back(first);
                return true;
            }
            Some(Contents::Whole { place, .. }) => self.leave(*place, first.number, 0),
            // Taken out before.
            None => state.left_early = state.left_early.saturating_sub(1),
        }
        drop(segment);
        if let Some(left) = self.let_go(first.number).and_then(Arc::into_inner)
            && let Contents::Records(memory) = left.contents
        {
            state.spare = Some(memory);
        }
        state.numbers.push(first.number);
        true
    }

    /// Whether a long value was read, and may stay for that.
    fn has_chance(&self, place: Place, queued: &Queued, chances: &mut usize) -> bool {
        let was_read = self.index.with_slot_of(place, queued.number, 0, |found| {
            let uses = found.slot.uses();
            uses > 0 && found.replace(Some(Slot::new(place.hash(), queued.number, 0, uses - 1)))
        });
        let may_stay = *chances > 0 && was_read == Some(true);
        *chances -= usize::from(may_stay);
        may_stay
    }

    fn leave(&self, place: Place, number: u32, at: usize) {
        let left = self
            .index
            .with_slot_of(place, number, at, |found| found.leave(place.hash()));
        if left == Some(true) {
            self.index.note_gone(place);
        }
    }

    /// Takes the records that were read out of a segment that leaves, those that were read most
    /// first; the others are gone. Once many have been given a chance, half of a segment's are gone
    /// whatever was read. Of a segment of which most was overwritten the rest stays, read or not:
    /// its room is free all the same.
    fn empty(&self, state: &mut State, rank: Rank, queued: &Queued, segment: Option<&Segment>, chances: &mut usize) {
        let Some(segment) = segment else { return };
        let mut records = self.records(queued, segment);
        records.sort_by_key(|record| std::cmp::Reverse(record.uses));
        let mut words_left = if *chances < CHANCES_OF_SEGMENT {
            self.segment_words / 2
        } else {
            self.segment_words
        };
        *chances = chances.saturating_sub(CHANCES_OF_SEGMENT);
        let live_words: usize = records.iter().map(|record| record.words).sum();
        let is_sparse = live_words <= self.segment_words / 2;
        for record in &records {
            let stays = (record.uses > 0 || is_sparse)
                && record.words <= words_left
                && self.give_chance(state, rank, queued.number, segment, record);
            if stays {
                words_left -= record.words;
            } else {
                self.leave(record.place, queued.number, record.at);
            }
        }
    }

    /// The records of a segment that a slot leads to.
    fn records(&self, queued: &Queued, segment: &Segment) -> Vec<Leaving> {
        let (mut records, mut at) = (Vec::new(), 0);
        while at < queued.words
            && let Some(head) = segment.head(at)
        {
            let uses = self
                .index
                .with_slot_of(head.place, queued.number, at, |found| found.slot.uses());
            if let Some(uses) = uses {
                records.push(Leaving {
                    place: head.place,
                    at,
                    words: head.words(),
                    uses,
                });
            }
            at += head.words();
        }
        records
    }

    /// Copies a record behind the others of the second queue.
    fn give_chance(&self, state: &mut State, rank: Rank, number: u32, segment: &Segment, record: &Leaving) -> bool {
        if !self.has_open(state, Rank::Known, record.words) && self.open(state, Rank::Known).is_none() {
            return false;
        }
        let copied = Self::append_to_open(state, Rank::Known, record.words, |to, at| {
            let mut words = segment.words(record.at);
            words.0 = &words.0[..record.words];
            to.words(at).copy_from(words);
        });
        let Some((to, at)) = copied else { return false };
        let uses = if rank == Rank::Newcomer {
            0
        } else {
            record.uses.saturating_sub(1)
        };
        let slot = Slot::new(record.place.hash(), to, at, uses);
        let moved = self
            .index
            .with_slot_of(record.place, number, record.at, |found| found.replace(Some(slot)));
        moved == Some(true)
    }
}
