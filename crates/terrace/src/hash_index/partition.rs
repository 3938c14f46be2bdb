//! One partition of the hash index: lock-free readers, one writer at a time, growth in place.
//!
//! Writers hold the partition's mutex. Readers hold nothing; they detect races by two counters:
//!
//! - `moves` counts displacements. Each writes the slot to its new position, counts, then
//!   overwrites the old one. A reader that missed a class which was present throughout has
//!   therefore read a word written after a count it had not seen at the start: a miss counts only
//!   if `moves` has not changed; otherwise the reader retries.
//! - `generation` is odd while the table is being rebuilt (growth, clearing) and never returns to
//!   an earlier value. A result, hit or miss, counts only if it has not changed; while it is odd,
//!   readers use `frozen`, a copy of the table before the rebuild.
//!
//! All loads of slots and counters acquire and all stores release. So a thread that reads a word
//! that was written during a rebuild also sees the odd generation, and one that reads the even
//! generation after it sees the whole new layout.
//!
//! Readers raise recency with a compare-and-swap on the word they saw, so a slot that has been
//! replaced, moved or removed meanwhile is not changed; then one use is not counted. Only the
//! writer changes anything else in a slot.
//!
//! The only failure is lack of memory: where no growth is allowed any more, or where it would not
//! help because the keys were made to collide, an insertion overwrites the least used of its 16
//! candidate slots. Lookups of the key that lost it take the longer way; no data is lost.

use super::{
    displace::{Cell, make_room, vacancy},
    geometry::{Geometry, Place},
    slot::{SizeClass, Slot},
    sync::{AtomicU64, Mutex, RwLock, pause},
    table::{Bucket, SLOTS, Table},
};
use crate::log::address::Address;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Above this share of its slots in use, in per cent, a partition grows.
pub(super) const LOAD_PERCENT_MAX: u64 = 97;

/// Below it a partition does not grow only because there was no room at one place. Hashes spread
/// evenly never come to that; keys chosen to collide must not inflate the table.
const LOAD_PERCENT_MIN: u64 = 80;

/// A partition.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Partition {
    generation: AtomicU64,
    moves: AtomicU64,
    buckets: AtomicU64,
    geometry: Geometry,
    buckets_min: usize,
    buckets_max: usize,
    table: Table,
    counts: Counts,
    /// The former table, while it is being rebuilt.
    frozen: RwLock<Option<Frozen>>,
    writer: Mutex<()>,
}

/// Written with every insertion, so kept off the lines every lookup reads.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Counts {
    entries: AtomicU64,
    evicted: AtomicU64,
    growths: AtomicU64,
}

/// The slots of a partition as they were at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frozen {
    pub(super) buckets: usize,
    /// [`SLOTS`] words per bucket.
    pub(super) words: Vec<u64>,
}

/// A slot as a reader saw it, and where, unless it was in the frozen copy.
struct Seen<'a> {
    slot: Slot,
    cell: Option<(&'a Bucket, usize)>,
}

impl Partition {
    /// An empty partition that may grow from `buckets_min` (a power of two above 1) to
    /// `buckets_max`.
    pub(super) fn new(buckets_min: usize, buckets_max: usize) -> Self {
        Self {
            generation: AtomicU64::new(0),
            moves: AtomicU64::new(0),
            buckets: AtomicU64::new(buckets_min as u64),
            geometry: Geometry::new(buckets_min),
            buckets_min,
            buckets_max,
            table: Table::new(buckets_min),
            counts: Counts::default(),
            frozen: RwLock::new(None),
            writer: Mutex::new(()),
        }
    }

    /// The slot of `class`, marked as used once more.
    #[inline]
    pub(super) fn lookup(&self, class: u64) -> Option<Slot> {
        let seen = self.search(class)?;
        if let (Some((bucket, slot)), Some(used)) = (seen.cell, seen.slot.used()) {
            // If the slot changed meanwhile, the mark is lost, which is acceptable.
            bucket.replace(slot, seen.slot.word(), used.word());
        }
        Some(seen.slot)
    }

    /// The slot of `class`, not marked as used.
    #[inline]
    pub(super) fn peek(&self, class: u64) -> Option<Slot> {
        self.search(class).map(|seen| seen.slot)
    }

    #[inline]
    fn search(&self, class: u64) -> Option<Seen<'_>> {
        loop {
            let generation = self.generation.load(Acquire);
            if generation % 2 == 1 {
                if let Some(frozen) = &*self.frozen.read() {
                    return frozen.find(self.geometry.place(class, frozen.buckets));
                }
                pause();
                continue;
            }
            let moves = self.moves.load(Acquire);
            let place = self.place(class);
            let found = self.find(&place);
            if self.generation.load(Acquire) != generation {
                continue;
            }
            if let Some((cell, slot)) = found {
                let cell = Some((self.table.bucket(cell.0), cell.1));
                return Some(Seen { slot, cell });
            }
            if self.moves.load(Acquire) == moves {
                return None;
            }
        }
    }

    #[inline]
    fn place(&self, class: u64) -> Place {
        self.geometry.place(class, self.buckets.load(Acquire) as usize)
    }

    /// The class in its primary bucket, else in its alternate one: the order readers and the writer
    /// both go by.
    #[inline(always)]
    fn find(&self, place: &Place) -> Option<(Cell, Slot)> {
        for (number, identity) in place.sides() {
            let bucket = self.table.bucket(number);
            for slot in 0..SLOTS {
                let word = bucket.load(slot);
                if identity.matches(word) {
                    return Slot::from_word(word).map(|found| ((number, slot), found));
                }
            }
        }
        None
    }

    /// A word of each of the two buckets of `class`, mixed.
    #[inline]
    pub(super) fn touch(&self, class: u64) -> u64 {
        let place = self.place(class);
        self.table.bucket(place.primary).load(0) ^ self.table.bucket(place.alternate).load(0)
    }

    /// Makes `address` the place of `class`. Returns the slot it replaced.
    pub(super) fn insert(&self, class: u64, size: SizeClass, address: Address) -> Option<Slot> {
        let _writer = self.writer.lock();
        if let Some(((bucket, slot), old)) = self.find(&self.place(class)) {
            self.table
                .bucket(bucket)
                .store(slot, Slot::new(old.identity(), size, address).word());
            return Some(old);
        }
        self.add(class, size, address);
        None
    }

    /// Adds a class that is not there yet. The caller holds the writer's mutex.
    fn add(&self, class: u64, size: SizeClass, address: Address) {
        let full = (self.entries() + 1) * 100 > self.slots() * LOAD_PERCENT_MAX;
        // A full table that may not grow is not searched either: the search would be long, and
        // mostly in vain.
        let may_displace = !full || self.grow();
        loop {
            let place = self.place(class);
            let buckets = self.buckets.load(Relaxed) as usize;
            let count_move = || self.moves.store(self.moves.load(Relaxed) + 1, Release);
            let room = match may_displace {
                true => make_room(&self.table, &place, buckets, count_move),
                false => vacancy(&self.table, &place),
            };
            if let Some(cell) = room {
                self.write(cell, &place, size, address);
                self.counts.entries.store(self.entries() + 1, Relaxed);
                return;
            }
            let crowded = self.entries() * 100 >= self.slots() * LOAD_PERCENT_MIN;
            if !crowded || !self.grow() {
                // Counted first: a reader that misses the overwritten slot sees the count.
                self.counts.evicted.store(self.evicted() + 1, Release);
                self.write(self.least_used(&place, address), &place, size, address);
                return;
            }
        }
    }

    fn write(&self, (bucket, slot): Cell, place: &Place, size: SizeClass, address: Address) {
        let word = Slot::new(place.identity_in(bucket), size, address).word();
        self.table.bucket(bucket).store(slot, word);
    }

    /// The slot at `place` that has been used least; among equals one that `address` chooses.
    fn least_used(&self, place: &Place, address: Address) -> Cell {
        let start = address.packed() as usize;
        let cells = (0..2 * SLOTS)
            .map(|number| (start + number) % (2 * SLOTS))
            .map(|number| {
                let bucket = if number < SLOTS { place.primary } else { place.alternate };
                (bucket, number % SLOTS)
            });
        let recency =
            |(bucket, slot): &Cell| Slot::from_word(self.table.bucket(*bucket).load(*slot)).map(Slot::recency);
        cells.min_by_key(recency).unwrap_or((place.primary, 0))
    }

    /// Removes `class`. Returns its slot.
    pub(super) fn remove(&self, class: u64) -> Option<Slot> {
        let _writer = self.writer.lock();
        let ((bucket, slot), old) = self.find(&self.place(class))?;
        self.table.bucket(bucket).store(slot, 0);
        self.counts.entries.store(self.entries() - 1, Relaxed);
        Some(old)
    }

    /// Grows to the next larger number of buckets. `false`, and nothing done, at the largest.
    fn grow(&self) -> bool {
        let buckets = self.buckets.load(Relaxed) as usize;
        let next = Table::next_buckets(buckets);
        if next > self.buckets_max {
            return false;
        }
        self.grow_to(next);
        true
    }

    /// Grows in one step to a size for this many used slots, or to the largest: expected insertions
    /// then need no growth, and find room faster.
    pub(super) fn make_room_for(&self, entries: u64) {
        let _writer = self.writer.lock();
        let buckets = self.buckets.load(Relaxed) as usize;
        let mut allowed = Table::ladder(buckets).take_while(|rung| *rung <= self.buckets_max);
        let is_enough = |rung: &usize| entries * 100 <= (*rung * SLOTS) as u64 * LOAD_PERCENT_MAX;
        if let Some(next) = allowed.find(is_enough).filter(|next| *next > buckets) {
            self.grow_to(next);
        }
    }

    fn grow_to(&self, next: usize) {
        let frozen = self.freeze();
        self.table.reserve(frozen.buckets, next);
        self.rebuild(frozen, |frozen| self.rehash(frozen, next));
        self.counts.growths.store(self.growths() + 1, Relaxed);
    }

    /// Distributes the slots of `frozen` over `next` buckets: first in plain memory, where a slot
    /// goes to the first of its buckets with room at the cost of two stores; then, in the table,
    /// the few that found both full.
    fn rehash(&self, frozen: &Frozen, next: usize) {
        let (layout, overflow) = self.rehash_in_memory(frozen, next);
        self.fill_buckets(&layout);
        self.buckets.store(next as u64, Release);
        let mut lost = 0;
        for (place, slot) in overflow {
            if let Some((bucket, free)) = make_room(&self.table, &place, next, || ()) {
                let word = slot.with_identity(place.identity_in(bucket)).word();
                self.table.bucket(bucket).store(free, word);
            } else {
                // Evenly spread classes always find room at this load. Of those made to collide,
                // some are lost: their keys are found by the longer way.
                lost += 1;
            }
        }
        self.counts.entries.store(self.entries() - lost, Relaxed);
        // Before the layout counts as whole.
        self.counts.evicted.store(self.evicted() + lost, Release);
    }

    /// The words of `next` buckets with the slots of `frozen`, and the slots for which both buckets
    /// were full. They come in the order of their primary buckets, nearly, and keep it, so memory
    /// is written front to back.
    fn rehash_in_memory(&self, frozen: &Frozen, next: usize) -> (Vec<u64>, Vec<(Place, Slot)>) {
        let mut words = vec![0; next * SLOTS];
        let mut filled = vec![0_u8; next];
        let mut overflow = Vec::new();
        for (number, bucket) in frozen.words.chunks_exact(SLOTS).enumerate() {
            for slot in bucket.iter().filter_map(|word| Slot::from_word(*word)) {
                let class = self.geometry.class(number, slot.identity(), frozen.buckets);
                let place = self.geometry.place(class, next);
                let room = [place.primary, place.alternate]
                    .into_iter()
                    .find(|bucket| usize::from(filled[*bucket]) < SLOTS);
                let Some(bucket) = room else {
                    overflow.push((place, slot));
                    continue;
                };
                let free = usize::from(filled[bucket]);
                words[bucket * SLOTS + free] = slot.with_identity(place.identity_in(bucket)).word();
                filled[bucket] += 1;
            }
        }
        (words, overflow)
    }

    /// Runs `lay_out` while readers use `frozen`.
    fn rebuild(&self, frozen: Frozen, lay_out: impl FnOnce(&Frozen)) {
        *self.frozen.write() = Some(frozen);
        let generation = self.generation.load(Relaxed);
        self.generation.store(generation + 1, Release);
        if let Some(frozen) = &*self.frozen.read() {
            lay_out(frozen);
        }
        self.generation.store(generation + 2, Release);
        *self.frozen.write() = None;
    }

    /// The same, while no thread writes.
    fn freeze(&self) -> Frozen {
        let buckets = self.buckets.load(Relaxed) as usize;
        let mut words = Vec::with_capacity(buckets * SLOTS);
        (0..buckets).for_each(|bucket| words.extend_from_slice(&self.table.bucket(bucket).words()));
        Frozen { buckets, words }
    }

    fn fill_buckets(&self, words: &[u64]) {
        for (number, words) in words.chunks_exact(SLOTS).enumerate() {
            let bucket = self.table.bucket(number);
            words
                .iter()
                .enumerate()
                .for_each(|(slot, word)| bucket.store(slot, *word));
        }
    }

    /// The slots as they are at one moment. Writers wait while they are copied.
    pub(super) fn image(&self) -> Frozen {
        let _writer = self.writer.lock();
        self.freeze()
    }

    /// Replaces the slots by those of an image. The caller has checked that each is where a
    /// partition of this shape would have it.
    pub(super) fn restore(&self, image: &Frozen) {
        let _writer = self.writer.lock();
        self.table.reserve(self.buckets.load(Relaxed) as usize, image.buckets);
        self.rebuild(self.nothing(), |_| {
            self.fill_buckets(&image.words);
            self.buckets.store(image.buckets as u64, Release);
        });
        let entries = image.words.iter().filter(|word| **word != 0).count();
        self.counts.entries.store(entries as u64, Relaxed);
    }

    /// Removes all slots. Keeps the memory for reuse.
    pub(super) fn clear(&self) {
        self.restore(&self.nothing());
    }

    fn nothing(&self) -> Frozen {
        Frozen {
            buckets: self.buckets_min,
            words: vec![0; self.buckets_min * SLOTS],
        }
    }

    /// Whether a partition of this shape can have this many buckets.
    pub(super) fn can_have(&self, buckets: usize) -> bool {
        let ladder = Table::ladder(self.buckets_min);
        buckets <= self.buckets_max && ladder.take_while(|rung| *rung <= buckets).last() == Some(buckets)
    }

    /// The arithmetic of its classes.
    pub(super) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Slots in use.
    pub(super) fn entries(&self) -> u64 {
        self.counts.entries.load(Relaxed)
    }

    /// Slots overwritten for lack of room.
    pub(super) fn evicted(&self) -> u64 {
        self.counts.evicted.load(Acquire)
    }

    /// Growths so far.
    pub(super) fn growths(&self) -> u64 {
        self.counts.growths.load(Relaxed)
    }

    /// Displacements so far.
    #[cfg(test)]
    pub(super) fn moves(&self) -> u64 {
        self.moves.load(Relaxed)
    }

    pub(super) fn slots(&self) -> u64 {
        self.buckets.load(Relaxed) * SLOTS as u64
    }

    /// Bytes on the heap, [`Partition`] itself not included.
    pub(super) fn ram_bytes(&self) -> usize {
        self.table.ram_bytes()
    }
}

impl Frozen {
    fn find(&self, place: Place) -> Option<Seen<'static>> {
        place.sides().into_iter().find_map(|(bucket, identity)| {
            let words = &self.words[bucket * SLOTS..][..SLOTS];
            let word = words.iter().find(|word| identity.matches(**word))?;
            Slot::from_word(*word).map(|slot| Seen { slot, cell: None })
        })
    }
}
