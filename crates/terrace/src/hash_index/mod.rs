//! The hash index: maps the hash of a key to the record's address on flash, in RAM, at most 9 bytes
//! per record, so that a lookup costs one flash read (FlashStore, sections 4.3 and 4.4).
//!
//! It is a bucketised cuckoo hash table. A slot is one 64-bit word, a bucket is eight slots in one
//! cache line, and a key has two buckets, each computed from the other and the slot's tag. The
//! table is divided into partitions by the top bits of the hash; each has a writer's mutex of its
//! own and grows by itself, a few per cent at a time. Readers take no lock. See docs/design.md for
//! figures and the room's files for the parts: `slot.rs` the word, `geometry.rs` hash to bucket and
//! back, `table.rs` the memory, `displace.rs` making room, `partition.rs` readers against the
//! writer.
//!
//! # Lossy, but never outdated
//!
//! Losing a slot costs time, never data: the ordered index has every object. A present slot must
//! not be outdated, though: it may belong to another key (the record's key tells), never to an
//! older version of the same key. Why it does not:
//!
//! 1. The bits of the hash that the table uses (partition and class) split all keys into *classes*.
//!    Bucket, tag and alternate flag name the class exactly, at every table size, so two classes
//!    are never confused.
//! 2. There is at most one slot per class: [`HashIndex::insert`] overwrites the existing one.
//! 3. Every put and every delete of any key of the class overwrites or removes that slot. So if the
//!    slot's record has key K, no put or delete of K was applied after it: it is K's newest record.
//!
//! Two different keys in one class share its slot; the later insertion wins, and the other key is
//! found by the ordered index. The argument depends on the callers: puts, deletes and moves come in
//! commit order, from one applier, and a thread that refills the index (after an open) inserts what
//! it read from the ordered index *under the applier's exclusion*; otherwise an old address could
//! be inserted after its key was overwritten or deleted. An old address that a reader got before a
//! change may still be used for as long as the reader pins the segment.
//!
//! # Absence
//!
//! If a class has no slot, and none of its slots was removed ([`HashIndex::class_hash`] names it
//! for the callers' filter), no key of it is on flash ([`HashIndex::has_none`]): the first key of a
//! class on flash makes a slot, and later ones take it over. Slots given up for lack of room are
//! the exception, so a partition that ever gave up a slot no longer gives this answer.
//!
//! # False matches
//!
//! A key that is not on flash finds a slot of its class with probability `entries /
//! 2^(partition_bits + 19 + log2 buckets_min)`: with the defaults `entries / 2^35`, or 0.03 % with
//! ten million entries, one wasted flash read each. The same share of the keys on flash has lost
//! its slot to a key of the same class.

pub(crate) mod checkpoint;
mod displace;
mod geometry;
mod image;
pub(crate) mod key_filter;
mod partition;
mod slot;
mod sync;
mod table;

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;

use super::log::address::Address;
use crate::{Error, Result};
use geometry::Geometry;
use partition::Partition;
use slot::{SizeClass, Slot};
use std::sync::atomic::{AtomicBool, Ordering};
use table::Table;

/// Buckets that a partition begins with at least, however little RAM there is: fewer make false
/// matches more frequent.
const BUCKETS_MIN_MIN: usize = 16;

/// The shape of a hash index, fixed for its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Parts that are locked and grow by themselves: a power of two, at most 65536. More of them
    /// make each growth shorter.
    pub partitions: usize,
    /// Buckets of 64 bytes a partition starts with: a power of two, 2 to 16384. Each doubling of
    /// it, as of `partitions`, halves the share of false matches.
    pub buckets_min: usize,
    /// RAM above which insertions overwrite little-used slots instead of growing the table.
    pub ram_bytes_max: usize,
}

impl Default for Config {
    /// 4 MiB to begin with, no bound on RAM.
    fn default() -> Self {
        Self {
            partitions: 64,
            buckets_min: 1024,
            ram_bytes_max: usize::MAX,
        }
    }
}

impl Config {
    /// For a flash log of up to `flash_bytes`: initially 64 bytes of RAM per MiB of flash, between
    /// 4 MiB and 256 MiB. False matches and the duration of one growth are then constant from 64
    /// GiB up.
    ///
    /// With a bound on RAM it begins with less than half of that bound, if necessary with fewer
    /// partitions.
    pub fn for_flash_bytes(flash_bytes: u64, ram_bytes_max: Option<u64>) -> Self {
        let default = Self::default();
        let wanted = usize::try_from(flash_bytes >> 30).unwrap_or(usize::MAX);
        let mut config = Self {
            partitions: wanted.clamp(default.partitions, 4096).next_power_of_two(),
            ram_bytes_max: ram_bytes_max.map_or(usize::MAX, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
            ..default
        };
        while config.initial_bytes() > config.ram_bytes_max / 2 && config.buckets_min > BUCKETS_MIN_MIN {
            config.buckets_min /= 2;
        }
        while config.initial_bytes() > config.ram_bytes_max / 2 && config.partitions > 1 {
            config.partitions /= 2;
        }
        config
    }

    /// RAM of an empty table.
    fn initial_bytes(&self) -> usize {
        let partition_bytes = size_of::<Partition>() + Table::ram_bytes_of(self.buckets_min, self.buckets_min);
        size_of::<HashIndex>() + self.partitions * partition_bytes
    }

    fn check(&self) -> Result<()> {
        if !self.partitions.is_power_of_two() || self.partitions > 1 << 16 {
            return Err(Error::invalid(
                "hash index: partitions must be a power of two, at most 65536",
            ));
        }
        if !self.buckets_min.is_power_of_two() || !(2..=1 << 14).contains(&self.buckets_min) {
            return Err(Error::invalid(
                "hash index: buckets_min must be a power of two from 2 to 16384",
            ));
        }
        let initial_bytes = self.initial_bytes();
        if self.ram_bytes_max < initial_bytes {
            return Err(Error::invalid(format!(
                "hash index: ram_bytes_max must be at least {initial_bytes}, or give it fewer partitions"
            )));
        }
        Ok(())
    }

    /// Most buckets of one partition.
    fn buckets_max(&self) -> usize {
        let partition_bytes = (self.ram_bytes_max - size_of::<HashIndex>()) / self.partitions;
        Table::buckets_within(self.buckets_min, partition_bytes - size_of::<Partition>())
    }
}

/// Result of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Where the record is.
    pub address: Address,
    /// Bytes from there that hold the whole record, if it is not longer than 16 MiB; the
    /// rest of a longer one takes a second read.
    pub read_bytes_max: u64,
}

/// The hash index. See the [module](self) for what it promises.
///
/// Keys are given by a 64-bit hash of good quality (xxh3), of which the upper bits are used.
#[derive(Debug)]
pub struct HashIndex {
    partitions: Box<[Partition]>,
    partition_bits: u32,
    class_bits: u32,
    buckets_min: usize,
    /// Whether lookups find nothing.
    hidden: AtomicBool,
    /// Whether slots were given up for lack of room by the table that this one was restored from.
    was_crowded: AtomicBool,
    /// Slots it may have, if its RAM is bounded.
    slots_max: Option<u64>,
}

impl HashIndex {
    /// An empty index.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the numbers in `config` are out of their ranges.
    pub fn new(config: Config) -> Result<Self> {
        config.check()?;
        let (buckets_min, buckets_max) = (config.buckets_min, config.buckets_max());
        Ok(Self {
            partitions: (0..config.partitions)
                .map(|_| Partition::new(buckets_min, buckets_max))
                .collect(),
            partition_bits: config.partitions.ilog2(),
            class_bits: Geometry::new(buckets_min).class_bits(),
            buckets_min,
            hidden: AtomicBool::new(false),
            was_crowded: AtomicBool::new(false),
            slots_max: (config.ram_bytes_max != usize::MAX)
                .then_some((config.partitions * buckets_max * table::SLOTS) as u64),
        })
    }

    /// The partition of a hash, and the class in it: the bits below those that chose the partition.
    #[inline]
    fn route(&self, hash: u64) -> (&Partition, u64) {
        let used = hash >> (64 - self.partition_bits - self.class_bits);
        let partition = (used >> self.class_bits) as usize;
        (&self.partitions[partition], used & ((1 << self.class_bits) - 1))
    }

    /// The same for a lookup: `None` while the table is hidden.
    #[inline]
    fn route_visible(&self, hash: u64) -> Option<(&Partition, u64)> {
        (!self.hidden.load(Ordering::Acquire)).then(|| self.route(hash))
    }

    /// The bits of a hash that determine its class, and zeros: common to all keys that share a
    /// slot.
    #[inline]
    pub const fn class_hash(&self, hash: u64) -> u64 {
        let others = 64 - self.partition_bits - self.class_bits;
        hash >> others << others
    }

    /// Whether there is no slot of this hash's class, and none was given up for lack of room. See
    /// the [module](self) for what follows from it.
    #[inline]
    pub fn has_none(&self, hash: u64) -> bool {
        // The count after the slots: a slot is counted before it is overwritten.
        self.route_visible(hash).is_some_and(|(partition, class)| {
            partition.peek(class).is_none() && partition.evicted() == 0 && !self.was_crowded.load(Ordering::Acquire)
        })
    }

    /// Whether slots were given up for lack of room, here or by the table whose images it has.
    pub fn gave_slots_up(&self) -> bool {
        self.evicted() > 0 || self.was_crowded.load(Ordering::Acquire)
    }

    /// The table whose images are restored here had evicted slots.
    pub fn restores_crowded(&self) {
        self.was_crowded.store(true, Ordering::Release);
    }

    /// Where the record of a key with this hash probably is, and marks it as used. Takes no lock.
    #[inline]
    pub fn lookup(&self, hash: u64) -> Option<Found> {
        let (partition, class) = self.route_visible(hash)?;
        partition.lookup(class).and_then(found)
    }

    /// The same as [`HashIndex::lookup`], but does not count as a use: for recycling and
    /// verification.
    #[inline]
    pub fn peek(&self, hash: u64) -> Option<Found> {
        self.slot(hash).and_then(found)
    }

    #[inline]
    fn slot(&self, hash: u64) -> Option<Slot> {
        let (partition, class) = self.route_visible(hash)?;
        partition.peek(class)
    }

    /// Prefetches the memory that insertions or lookups of these hashes will read, in parallel: one
    /// after the other, each would stall twice. Worth it for ten to twenty hashes.
    pub fn touch(&self, hashes: impl IntoIterator<Item = u64>) {
        let touched = hashes.into_iter().fold(0, |touched, hash| {
            let (partition, class) = self.route(hash);
            touched ^ partition.touch(class)
        });
        std::hint::black_box(touched);
    }

    /// Sets `address` as the place of the key with this hash; `record_bytes` is the record's length
    /// there. Returns the former value, which may be another key's. The slot starts unused.
    pub fn insert(&self, hash: u64, address: Address, record_bytes: u64) -> Option<Found> {
        let (partition, class) = self.route(hash);
        let replaced = partition.insert(class, SizeClass::of(record_bytes), address);
        replaced.and_then(found)
    }

    /// Removes the slot of this hash. Returns its value, which may be of another key.
    pub fn remove(&self, hash: u64) -> Option<Found> {
        let (partition, class) = self.route(hash);
        partition.remove(class).and_then(found)
    }

    /// The length of such a record as stored in its slot ([`Found::read_bytes_max`]).
    pub fn read_bytes_max(record_bytes: u64) -> u64 {
        SizeClass::of(record_bytes).read_bytes_max()
    }

    /// The same of the record of a value of which only the length is known, about.
    pub fn read_bytes_max_of_value(value_bytes: u64) -> u64 {
        Self::read_bytes_max(value_bytes + SizeClass::HEAD_BYTES)
    }

    /// Lookups of this hash since its slot was written or cleared, counted up to 3; `None` if the
    /// slot does not say `address`.
    pub fn recency(&self, hash: u64, address: Address) -> Option<u8> {
        let slot = self.slot(hash).filter(|slot| slot.address() == Some(address));
        slot.map(Slot::recency)
    }

    /// Removes all slots; it must be filled again. The memory is kept.
    pub fn clear(&self) {
        self.was_crowded.store(false, Ordering::Release);
        self.partitions.iter().for_each(Partition::clear);
    }

    /// From here on lookups find nothing, whatever the table holds.
    pub fn hide(&self) {
        self.hidden.store(true, Ordering::Release);
    }

    /// Makes the table visible again: lookups use its slots.
    pub fn show(&self) {
        self.hidden.store(false, Ordering::Release);
    }

    /// Number of partitions, and of buckets each begins with: images fit only a table of the same
    /// shape.
    pub fn shape(&self) -> (usize, usize) {
        (self.partitions.len(), self.buckets_min)
    }

    /// Bytes of the images of all partitions, as they are now.
    pub fn image_bytes(&self) -> u64 {
        let bytes =
            |partition: &Partition| image::image_bytes(partition.slots() / table::SLOTS as u64, partition.entries());
        self.partitions.iter().map(bytes).sum()
    }

    /// Appends an image of one partition at one moment. Its writers wait meanwhile, for some
    /// milliseconds at most; readers do not.
    ///
    /// # Panics
    /// If there is no partition of that number.
    pub fn append_image(&self, partition: usize, out: &mut Vec<u8>) {
        image::encode(&self.partitions[partition].image(), out);
    }

    /// Calls `see` with the address of each record that has a slot, and its length at most: one
    /// partition after the other, each as it is at a moment.
    pub fn each_record(&self, mut see: impl FnMut(Address, u64)) {
        for partition in &self.partitions {
            let words = partition.image().words;
            for slot in words.iter().filter_map(|word| Slot::from_word(*word)) {
                if let Some(address) = slot.address() {
                    see(address, slot.size().read_bytes_max());
                }
            }
        }
    }

    /// Replaces a partition's slots by those of an image, except those whose address `keep`
    /// refuses: returns their classes ([`HashIndex::class_hash`]). `None`, and nothing done, if the
    /// bytes are no image of a partition of this shape. The caller has hidden the table.
    pub fn restore_image(&self, number: usize, image: &[u8], keep: impl Fn(Address) -> bool) -> Option<Vec<u64>> {
        let partition = self.partitions.get(number)?;
        let mut slots = image::decode(image, partition)?;
        let mut refused = Vec::new();
        let buckets = slots.buckets;
        for (at, word) in slots.words.iter_mut().enumerate() {
            let Some(slot) = Slot::from_word(*word) else { continue };
            if slot.address().is_some_and(|address| !keep(address)) {
                let class = partition.geometry().class(at / table::SLOTS, slot.identity(), buckets);
                let used = (number as u64) << self.class_bits | class;
                refused.push(used << (64 - self.partition_bits - self.class_bits));
                *word = 0;
            }
        }
        partition.restore(&slots);
        Some(refused)
    }

    /// Makes room in one partition for its share of this many entries, in one step.
    pub fn make_room(&self, partition: usize, entries: u64) {
        let share = entries / self.partitions.len() as u64;
        // Hashes are spread evenly, but for some.
        self.partitions[partition].make_room_for(share + share / 256);
    }

    /// Slots in use.
    pub fn len(&self) -> u64 {
        self.partitions.iter().map(Partition::entries).sum()
    }

    /// Whether no slot is in use.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// RAM held, in bytes. During a growth one partition is in RAM twice; the copy is not counted.
    pub fn ram_bytes(&self) -> u64 {
        let heap_bytes: usize = self.partitions.iter().map(Partition::ram_bytes).sum();
        (size_of::<Self>() + size_of_val(&*self.partitions) + heap_bytes) as u64
    }

    /// Share of the slots in use, 0 to 1.
    pub fn load(&self) -> f64 {
        let slots: u64 = self.partitions.iter().map(Partition::slots).sum();
        self.len() as f64 / slots as f64
    }

    /// Slots it may have, if its RAM is bounded.
    pub const fn slots_max(&self) -> Option<u64> {
        self.slots_max
    }

    /// Share in use of the slots it may have, 0 to 1; 0 if its RAM is not bounded.
    pub fn load_of_bound(&self) -> f64 {
        self.slots_max.map_or(0.0, |slots| self.len() as f64 / slots as f64)
    }

    /// Slots overwritten because the table could not grow any more, since the index was made.
    pub fn evicted(&self) -> u64 {
        self.partitions.iter().map(Partition::evicted).sum()
    }

    /// Growths of partitions since the index was made.
    pub fn growths(&self) -> u64 {
        self.partitions.iter().map(Partition::growths).sum()
    }
}

#[inline]
fn found(slot: Slot) -> Option<Found> {
    slot.address().map(|address| Found {
        address,
        read_bytes_max: slot.size().read_bytes_max(),
    })
}
