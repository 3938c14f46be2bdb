//! The buckets of one partition: an array that grows in place and never moves or frees a bucket.
//!
//! Buckets come in segments. The first holds the smallest table; after it, each doubling of the
//! table is divided into 32 segments (fewer while a doubling has fewer buckets). A reader with a
//! bucket number reaches its bucket through two set-once cells, so reading takes no lock and no
//! reference count, and a stale number still names an existing bucket.
//!
//! Invariants: an existing segment stays; only the partition's writer calls `reserve`, before it
//! publishes the larger number of buckets. The only failure is lack of memory.

use super::sync::AtomicU64;
use std::sync::{
    OnceLock,
    atomic::Ordering::{Acquire, Release},
};

/// Slots of a bucket.
pub(super) const SLOTS: usize = 8;

/// Doublings a table can make.
pub(super) const DOUBLINGS_MAX: usize = 15;

/// Segments per doubling, as a power of two.
const SEGMENTS_LOG2: u32 = 5;

/// Growth per step, in per cent, rounded down to whole segments. Each growth rebuilds a whole
/// partition, and searches for room take longer in a fuller one: smaller steps save RAM and cost
/// insertion time (docs/adr/0026-a-hundred-million-objects.md).
const GROWTH_PERCENT: usize = 7;

/// One cache line of slots.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Bucket([AtomicU64; SLOTS]);

impl Bucket {
    fn empty() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// The word of a slot. Acquire: a thread that sees a word sees what was written before it.
    #[inline]
    pub(super) fn load(&self, slot: usize) -> u64 {
        self.0[slot].load(Acquire)
    }

    /// Writes a slot. Only the partition's writer does.
    #[inline]
    pub(super) fn store(&self, slot: usize, word: u64) {
        self.0[slot].store(word, Release);
    }

    /// Replaces `old` by `new` unless the slot has changed since `old` was read.
    #[inline]
    pub(super) fn replace(&self, slot: usize, old: u64, new: u64) -> bool {
        self.0[slot].compare_exchange(old, new, Release, Acquire).is_ok()
    }

    pub(super) fn words(&self) -> [u64; SLOTS] {
        std::array::from_fn(|slot| self.load(slot))
    }

    /// The first empty slot.
    #[inline]
    pub(super) fn vacancy(&self) -> Option<usize> {
        (0..SLOTS).find(|slot| self.load(*slot) == 0)
    }
}

/// Buckets, once they are needed.
type Segment = OnceLock<Box<[Bucket]>>;

#[derive(Debug)]
struct Doubling {
    /// Number of its first bucket.
    first: usize,
    /// Log2 of the buckets per segment.
    segment_log2: u32,
    segments: Box<[Segment]>,
}

/// The array of buckets.
#[derive(Debug)]
pub(super) struct Table {
    buckets_min_log2: u32,
    /// Entry 0 is the smallest table, entry i the i-th doubling of it.
    doublings: [OnceLock<Doubling>; DOUBLINGS_MAX + 1],
}

impl Table {
    /// A table of `buckets_min` empty buckets, a power of two.
    pub(super) fn new(buckets_min: usize) -> Self {
        debug_assert!(buckets_min.is_power_of_two());
        let table = Self {
            buckets_min_log2: buckets_min.ilog2(),
            doublings: std::array::from_fn(|_| OnceLock::new()),
        };
        table.reserve(0, buckets_min);
        table
    }

    /// The number of buckets after the next growth: about 7 % more, in whole segments.
    pub(super) fn next_buckets(buckets: usize) -> usize {
        let segment = segment_buckets(buckets.ilog2());
        let more = (buckets * GROWTH_PERCENT / 100 / segment * segment).max(segment);
        let next = buckets + more;
        next / segment_buckets(next.ilog2()) * segment_buckets(next.ilog2())
    }

    /// The sequence of bucket counts of a growing table, starting at this many.
    pub(super) fn ladder(buckets: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(buckets), |rung| Some(Self::next_buckets(*rung)))
    }

    /// The largest number of buckets, on the [ladder](Table::ladder) from `buckets_min`, with which
    /// a table takes at most `ram_bytes`; `buckets_min` if none does.
    pub(super) fn buckets_within(buckets_min: usize, ram_bytes: usize) -> usize {
        let fits =
            |buckets| buckets <= buckets_min << DOUBLINGS_MAX && Self::ram_bytes_of(buckets_min, buckets) <= ram_bytes;
        let fitting = Self::ladder(buckets_min).take_while(|buckets| fits(*buckets));
        fitting.last().unwrap_or(buckets_min)
    }

    /// Bytes on the heap of a table of `buckets` buckets.
    pub(super) fn ram_bytes_of(buckets_min: usize, buckets: usize) -> usize {
        let doublings = (0..)
            .map(|doubling| buckets_min << doubling)
            .take_while(|first| *first < buckets);
        let segments = 1 + doublings
            .map(|first| first / segment_buckets(first.ilog2()))
            .sum::<usize>();
        segments * size_of::<Segment>() + buckets * size_of::<Bucket>()
    }

    #[inline]
    fn doubling_of(&self, bucket: usize) -> usize {
        (usize::BITS - (bucket >> self.buckets_min_log2).leading_zeros()) as usize
    }

    /// The bucket of that number.
    ///
    /// # Panics
    ///
    /// If the table never had that many buckets.
    #[inline(always)]
    pub(super) fn bucket(&self, bucket: usize) -> &Bucket {
        if let Some(doubling) = self.doublings[self.doubling_of(bucket)].get() {
            let inside = bucket - doubling.first;
            if let Some(segment) = doubling.segments[inside >> doubling.segment_log2].get() {
                return &segment[inside & ((1 << doubling.segment_log2) - 1)];
            }
        }
        unreachable!("bucket {bucket} was never reserved")
    }

    /// Makes buckets `from..to` exist, empty where they are new.
    pub(super) fn reserve(&self, from: usize, to: usize) {
        let mut bucket = from;
        while bucket < to {
            let number = self.doubling_of(bucket);
            let doubling = self.doublings[number].get_or_init(|| self.doubling(number));
            let segment_buckets = 1 << doubling.segment_log2;
            let segment = (bucket - doubling.first) >> doubling.segment_log2;
            doubling.segments[segment].get_or_init(|| (0..segment_buckets).map(|_| Bucket::empty()).collect());
            bucket = doubling.first + (segment + 1) * segment_buckets;
        }
    }

    fn doubling(&self, number: usize) -> Doubling {
        let (first, segment_log2, segments) = match number {
            0 => (0, self.buckets_min_log2, 1),
            _ => {
                let log2 = self.buckets_min_log2 + number as u32 - 1;
                (
                    1 << log2,
                    segment_buckets(log2).ilog2(),
                    (1 << log2) / segment_buckets(log2),
                )
            }
        };
        Doubling {
            first,
            segment_log2,
            segments: (0..segments).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Bytes on the heap.
    pub(super) fn ram_bytes(&self) -> usize {
        let doublings = self.doublings.iter().filter_map(OnceLock::get);
        doublings
            .map(|doubling| {
                let buckets: usize = doubling
                    .segments
                    .iter()
                    .filter_map(OnceLock::get)
                    .map(|segment| segment.len())
                    .sum();
                size_of_val(&*doubling.segments) + buckets * size_of::<Bucket>()
            })
            .sum()
    }
}

/// Buckets per segment in the doubling that starts at bucket `2^log2`.
fn segment_buckets(log2: u32) -> usize {
    1 << log2.saturating_sub(SEGMENTS_LOG2)
}
