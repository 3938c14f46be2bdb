//! Maps a place to the segment of RAM with its record: eight bytes per slot.
//!
//! A place may be in one of two sets of eight slots, a cache line each, and goes to the less full
//! one, so a table may be nearly full before a slot is lost. A slot has some bits of the place's
//! hash, and the record is compared: a lost or wrong slot costs only a device read. The slot of an
//! evicted record stays until it is needed, as a *ghost*: a value that returns soon is recognised
//! by it.
//!
//! The sets are determined by the hash bits in a slot and eight more. In a table with many sets,
//! the position of a slot gives these eight, so a table is copied without reading the records.
//!
//! Slots are read and changed without a lock. A full table is replaced by a longer one, with the
//! owner's lock held; concurrent changes to the old one are lost, which is allowed.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Slots of a set.
const WAYS: usize = 8;
/// Bits of a slot: how often it was read, where in the segment, which segment, and of the hash.
const USES_BITS: u32 = 2;
const AT_BITS: u32 = 14;
const SEGMENT_BITS: u32 = 24;
const TAG_BITS: u32 = 64 - USES_BITS - AT_BITS - SEGMENT_BITS;
/// Bits of the number by which a set is found: those that a slot has, and above them as many more.
const HIGH_BITS: u32 = 8;
const HIGH_MASK: u64 = ((1 << HIGH_BITS) - 1) << TAG_BITS;
/// From this many sets on, the number of a slot's set gives the higher bits: no two numbers that
/// differ only in these have the same set.
const SETS_THAT_SAY: usize = 1 << HIGH_BITS;
/// More reads are not counted.
const USES_MAX: u64 = (1 << USES_BITS) - 1;
/// Segments have smaller numbers; none has 0, which is a ghost's.
pub const SEGMENTS_MAX: usize = 1 << SEGMENT_BITS;
/// Words of a segment.
pub const SEGMENT_WORDS_MAX: usize = 1 << AT_BITS;

/// Contents of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot(u64);

const EMPTY: u64 = 0;

const fn tag(hash: u64) -> u64 {
    hash >> (64 - TAG_BITS) << (64 - TAG_BITS)
}

/// The two set numbers of a place. Their difference is computed from the hash bits that a slot has,
/// so either gives the other.
const fn set_numbers(hash: u64) -> [u64; 2] {
    let tag = hash >> (64 - TAG_BITS);
    let number = hash & HIGH_MASK | tag;
    // Not 0, so it is another.
    let difference = tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - HIGH_BITS) | 1;
    [number, number ^ difference << TAG_BITS]
}

impl Slot {
    /// Of the record at a word of a segment, for a place with this hash.
    pub const fn new(hash: u64, segment: u32, at: usize, uses: u64) -> Self {
        let place = (segment as u64) << AT_BITS | at as u64;
        Self(tag(hash) | place << USES_BITS | uses)
    }

    /// Of one that was there. The lowest bit makes it another than an empty one.
    const fn ghost(hash: u64) -> Self {
        Self(tag(hash) | 1)
    }

    /// The segment, 0 for a ghost.
    pub const fn segment(self) -> u32 {
        ((self.0 << TAG_BITS) >> (64 - SEGMENT_BITS)) as u32
    }

    /// The word in the segment.
    pub const fn at(self) -> usize {
        ((self.0 << (TAG_BITS + SEGMENT_BITS)) >> (64 - AT_BITS)) as usize
    }

    /// How often it was read, as far as that is counted.
    pub const fn uses(self) -> u64 {
        self.0 & USES_MAX
    }

    const fn is_live(self) -> bool {
        self.segment() > 0
    }

    const fn is_of(self, hash: u64) -> bool {
        self.0 & !((1 << (64 - TAG_BITS)) - 1) == tag(hash)
    }

    /// Whether both lead to the same record.
    pub const fn is_same(self, other: Self) -> bool {
        (self.0 ^ other.0) >> USES_BITS == 0
    }
}

/// A slot of the table, and its value.
#[derive(Debug, Clone, Copy)]
pub struct Found<'a> {
    cell: &'a AtomicU64,
    /// Its value when it was found.
    pub slot: Slot,
}

impl Found<'_> {
    /// Whether it still leads to the same record.
    pub fn is_so_still(&self) -> bool {
        Slot(self.cell.load(Ordering::Acquire)).is_same(self.slot)
    }

    /// Counts a read. The count of a hot value is saturated, so its slot is not written any more,
    /// and its cache line stays shared by all cores.
    pub fn count_use(&self) {
        if self.slot.uses() < USES_MAX {
            // A thread that counted in between has counted for both.
            let (from, to) = (self.slot.0, self.slot.0 + 1);
            let _ = self
                .cell
                .compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Has it lead elsewhere, if it still leads to the same record. Says whether.
    pub fn replace(&self, to: Option<Slot>) -> bool {
        let to = to.map_or(EMPTY, |slot| slot.0);
        let set = |now| Slot(now).is_same(self.slot).then_some(to);
        self.cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, set).is_ok()
    }

    /// The place is a ghost from now on, if it still leads to the same record. Says whether.
    pub fn leave(&self, hash: u64) -> bool {
        self.replace(Some(Slot::ghost(hash)))
    }
}

/// Result of an insertion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inserted {
    /// In a slot that led nowhere.
    Added,
    /// In the place of another, which is lost.
    Displaced,
}

/// The slots. Clones are the same.
#[derive(Debug, Clone)]
pub struct Table(Arc<[AtomicU64]>);

impl Table {
    /// A table with this many sets of slots.
    pub fn new(sets: usize) -> Self {
        Self((0..sets * WAYS).map(|_| AtomicU64::new(EMPTY)).collect())
    }

    /// An empty one that is a quarter longer.
    pub fn longer_than(table: &Self) -> Self {
        let sets = table.set_count();
        Self::new(sets + sets.div_ceil(4))
    }

    /// Slots it has.
    pub fn slots(&self) -> usize {
        self.0.len()
    }

    /// RAM it takes.
    pub fn bytes(&self) -> u64 {
        (self.0.len() * size_of::<AtomicU64>()) as u64
    }

    /// The two sets that a place may be in; they may be the same.
    fn sets(&self, hash: u64) -> [&[AtomicU64]; 2] {
        set_numbers(hash).map(|number| {
            let first = self.set_of(number) * WAYS;
            &self.0[first..first + WAYS]
        })
    }

    fn set_count(&self) -> usize {
        self.0.len() / WAYS
    }

    #[allow(clippy::cast_possible_truncation)] // fewer than the memory has
    fn set_of(&self, number: u64) -> usize {
        ((number * self.set_count() as u64) >> (HIGH_BITS + TAG_BITS)) as usize
    }

    /// A hash for which the slot would be in this set, if there are enough sets to say so. (One of
    /// two, with the same sets.)
    fn hash_in(&self, set: usize, slot: Slot) -> Option<u64> {
        if self.set_count() < SETS_THAT_SAY {
            return None;
        }
        let tag = slot.0 >> (64 - TAG_BITS);
        let lowest = ((set as u64) << (HIGH_BITS + TAG_BITS)).div_ceil(self.set_count() as u64);
        let number = lowest & HIGH_MASK | tag;
        let numbers = [number, number + (1 << TAG_BITS)];
        let number = numbers.into_iter().find(|number| self.set_of(*number) == set)?;
        Some(tag << (64 - TAG_BITS) | number & HIGH_MASK)
    }

    /// Prefetches the slots of a place. The result must be used, or the compiler removes the load.
    pub fn fetch(&self, hash: u64) -> u64 {
        let ends = |set: &[AtomicU64]| set[0].load(Ordering::Relaxed) ^ set[WAYS - 1].load(Ordering::Relaxed);
        let [one, other] = self.sets(hash);
        ends(one) ^ ends(other)
    }

    /// Slots that may lead to the record of a place.
    pub fn find(&self, hash: u64) -> impl Iterator<Item = Found<'_>> {
        let all = self.sets(hash).into_iter().flatten().map(|cell| Found {
            cell,
            slot: Slot(cell.load(Ordering::Acquire)),
        });
        all.filter(move |found| found.slot.is_of(hash) && found.slot.is_live())
    }

    /// The slot that leads to just this record.
    pub fn find_record(&self, hash: u64, segment: u32, at: usize) -> Option<Found<'_>> {
        self.find(hash)
            .find(|found| found.slot.is_same(Slot::new(hash, segment, at, 0)))
    }

    /// Whether a place was here not long ago.
    pub fn was_here(&self, hash: u64) -> bool {
        let ghost = Slot::ghost(hash);
        self.sets(hash)
            .into_iter()
            .flatten()
            .any(|cell| cell.load(Ordering::Relaxed) == ghost.0)
    }

    /// Adds a slot: in an empty one, else in place of a ghost, else of the least read one.
    pub fn insert(&self, hash: u64, slot: Slot) -> Inserted {
        let ghost = Slot::ghost(hash).0;
        let worth = |cell: &&AtomicU64| {
            let now = cell.load(Ordering::Relaxed);
            match Slot(now) {
                _ if now == ghost => 0,
                _ if now == EMPTY => 1,
                other if other.is_live() => 3 + other.uses(),
                _ => 2,
            }
        };
        let live = |set: &[AtomicU64]| {
            set.iter()
                .filter(|cell| Slot(cell.load(Ordering::Relaxed)).is_live())
                .count()
        };
        let [one, other] = self.sets(hash);
        let set = if live(other) < live(one) { other } else { one };
        // Several are equally good: the search begins at a place that depends on the hash.
        let (behind, first) = set.split_at((hash >> 32 & 7) as usize % WAYS);
        let Some(cell) = first.iter().chain(behind).min_by_key(worth) else {
            return Inserted::Displaced;
        };
        let before = Slot(cell.swap(slot.0, Ordering::AcqRel));
        if before.is_live() {
            Inserted::Displaced
        } else {
            Inserted::Added
        }
    }

    /// Copies its slots to a longer table; `hash_of` returns the hash of a slot's item, where the
    /// table does not have all bits. Returns the number of slots.
    pub fn copy_to(&self, longer: &Self, hash_of: impl Fn(Slot) -> Option<u64>) -> usize {
        let slots = self.0.iter().map(|cell| Slot(cell.load(Ordering::Acquire)));
        let live = slots.enumerate().filter(|(_, slot)| slot.is_live());
        let with_hash = live.filter_map(|(at, slot)| {
            let hash = self.hash_in(at / WAYS, slot).or_else(|| hash_of(slot))?;
            Some((hash, slot))
        });
        with_hash.fold(0, |count, (hash, slot)| {
            count + usize::from(longer.insert(hash, slot) == Inserted::Added)
        })
    }
}
