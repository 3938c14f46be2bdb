//! Small values in blocks: which of them come back to the flash log, and where they wait for that.
//!
//! Recycling destages what was not used while the log went round once. What it destaged and is read
//! often later comes back, by a move that the thread `terrace-promote` commits. *Often* means: more
//! often than the least used value that recycling keeps. So the unit is a *round*, the reads
//! between the writing of a segment and its recycling: a value that is not used once in a round
//! would leave again, and if values leave that were used several times, one must be used more often
//! than these. Anything less strict makes values change places for ever, at a write to flash and
//! one to the large device each.
//!
//! Reads are counted in a sketch, which halves its counts about once a round. A value that comes
//! back is forgotten in the sketch: when it leaves the log again, it has to earn its place anew.
//!
//! Invariants: the queue is bounded in bytes, readers find what waits in it, and nobody waits for
//! it. A place in a block is written once and never reused, so a value found by its place is the
//! right one. All of this may be lost at any time.

use super::sketch::Sketch;
use bytes::Bytes;
use hashbrown::HashMap;
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Reads of a value before it may come back, however long a round is.
const COUNT_MIN: f64 = 2.0;
/// How much more often than the least used that stays it must be used.
const MARGIN: f64 = 1.2;
/// Counts are halved after so many reads at least,
const PERIOD_MIN: f64 = 10_000.0;
/// and after so many per counter of the sketch at most.
const PERIOD_PER_COUNTER_MAX: f64 = 8.0;
/// Share of the last drained segment in the average of what values were used that left.
const WEIGHT: f64 = 0.125;
/// What a value costs in RAM besides its bytes, about.
const OVERHEAD_BYTES: u64 = 192;
/// So much is waiting: the thread that moves it should not sleep on.
const WAKE_BYTES: u64 = 256 << 10;
/// Counters of the sketch.
const COUNTERS_MIN: usize = 1 << 18;
const COUNTERS_MAX: usize = 1 << 24;

/// A value on its way back to the log.
#[derive(Debug)]
pub struct SmallValue {
    /// Its key.
    pub key: Bytes,
    /// The version it has.
    pub version: u64,
    /// Attributes in stored form.
    pub attributes: Bytes,
    /// The value.
    pub value: Bytes,
    /// CRC-32C of the value.
    pub checksum: u32,
    /// Block and offset of its extent.
    pub place: (u64, u64),
}

impl SmallValue {
    fn ram_bytes(&self) -> u64 {
        OVERHEAD_BYTES + (self.key.len() + self.attributes.len() + self.value.len()) as u64
    }
}

/// What [`SmallValues::enqueue`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enqueued {
    /// It waits.
    Waits,
    /// It waits, and so much with it that it should be moved soon.
    Urgent,
    /// There is no room.
    Full,
    /// It waited already.
    Already,
}

/// The heat of small values in blocks.
#[derive(Debug)]
pub struct SmallValues {
    bytes_max: u64,
    policy: Mutex<Policy>,
    queue: Mutex<Queue>,
    /// Bytes of RAM in the queue.
    bytes: AtomicU64,
    /// Reads of small values in blocks.
    reads: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    by_place: HashMap<(u64, u64), Arc<SmallValue>>,
    waiting: VecDeque<Arc<SmallValue>>,
    /// Committed with this seq: until it is applied the old place answers.
    committed: VecDeque<(u64, Vec<Arc<SmallValue>>)>,
}

impl SmallValues {
    /// Nothing is known. `bytes_max` of RAM may be on the way; the log has `flash_bytes`.
    #[must_use]
    pub fn new(bytes_max: u64, flash_bytes: u64) -> Self {
        let wanted = usize::try_from(flash_bytes >> 14).unwrap_or(usize::MAX);
        let counters = wanted.clamp(COUNTERS_MIN, COUNTERS_MAX).next_power_of_two();
        Self {
            bytes_max,
            // Where nothing comes back nothing is counted.
            policy: Mutex::new(Policy::new(if bytes_max == 0 { 1 } else { counters })),
            queue: Mutex::default(),
            bytes: AtomicU64::new(0),
            reads: AtomicU64::new(0),
        }
    }

    /// Whether anything may come back.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.bytes_max > 0
    }

    /// Reads of small values in blocks so far.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Counts a read of a value in a block, with the store's reads of small values so far. Whether
    /// it should come back.
    #[must_use]
    pub fn read(&self, hash: u64, reads: u64) -> bool {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.policy.lock().read(hash, reads)
    }

    /// A segment was recycled when so many reads had been made; the log has `segments`. Of what
    /// left it, `left` values, the uses add up to `uses`.
    pub fn drained(&self, reads: u64, segments: usize, left: u64, uses: u64) {
        self.policy.lock().drained(reads, segments, left, uses);
    }

    /// Bytes of RAM that wait.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The value of an extent, if it is on its way.
    #[must_use]
    pub fn find(&self, block: u64, offset: u64) -> Option<Arc<SmallValue>> {
        if self.bytes() == 0 {
            return None;
        }
        self.queue.lock().by_place.get(&(block, offset)).map(Arc::clone)
    }

    /// Has a value come back. Its reads are forgotten.
    pub fn enqueue(&self, hash: u64, value: SmallValue) -> Enqueued {
        let ram_bytes = value.ram_bytes();
        let before = {
            let mut queue = self.queue.lock();
            if queue.by_place.contains_key(&value.place) {
                return Enqueued::Already;
            }
            let before = self.bytes();
            if before + ram_bytes > self.bytes_max {
                return Enqueued::Full;
            }
            let value = Arc::new(value);
            queue.by_place.insert(value.place, Arc::clone(&value));
            queue.waiting.push_back(value);
            self.bytes.fetch_add(ram_bytes, Ordering::Relaxed);
            before
        };
        self.policy.lock().forget(hash);
        if before < WAKE_BYTES && before + ram_bytes >= WAKE_BYTES {
            Enqueued::Urgent
        } else {
            Enqueued::Waits
        }
    }

    /// The next values to move, of about so many bytes in all. Readers still find them.
    #[must_use]
    pub fn take(&self, bytes_max: usize) -> Vec<Arc<SmallValue>> {
        let mut queue = self.queue.lock();
        let mut taken: Vec<Arc<SmallValue>> = Vec::new();
        let mut bytes = 0;
        while let Some(next) = queue.waiting.front() {
            bytes += next.value.len() + next.key.len() + next.attributes.len();
            if bytes > bytes_max && !taken.is_empty() {
                break;
            }
            taken.extend(queue.waiting.pop_front());
        }
        taken
    }

    /// Values that were taken are committed, with this seq.
    pub fn committed(&self, seq: u64, values: Vec<Arc<SmallValue>>) {
        self.queue.lock().committed.push_back((seq, values));
    }

    /// Everything up to this seq is applied: what was committed by then is found in the log.
    pub fn applied(&self, seq: u64) {
        let mut over = Vec::new();
        {
            let mut queue = self.queue.lock();
            while queue.committed.front().is_some_and(|(committed, _)| *committed <= seq) {
                over.extend(queue.committed.pop_front().into_iter().flat_map(|(_, values)| values));
            }
        }
        over.iter().for_each(|value| self.forget(value));
    }

    /// A value waits no more.
    pub fn forget(&self, value: &SmallValue) {
        if self.queue.lock().by_place.remove(&value.place).is_some() {
            self.bytes.fetch_sub(value.ram_bytes(), Ordering::Relaxed);
        }
    }
}

/// Who may come back. Time is counted in reads of small values, wherever they are.
#[derive(Debug)]
pub(super) struct Policy {
    sketch: Sketch,
    /// Counts are halved after so many reads.
    period: f64,
    period_max: f64,
    halved_at: f64,
    /// The period before the last halving: half of its counts are still there.
    last_period: f64,
    /// When segments were recycled, as many as the log has.
    drains: VecDeque<f64>,
    segments: usize,
    /// Uses in a round of what left the log, on average.
    left_uses: f64,
}

impl Policy {
    pub(super) fn new(counters: usize) -> Self {
        #[allow(clippy::cast_precision_loss)]
        let period_max = (counters as f64 * PERIOD_PER_COUNTER_MAX).max(PERIOD_MIN);
        Self {
            sketch: Sketch::with_counters(counters, f64::INFINITY),
            period: PERIOD_MIN,
            period_max,
            halved_at: 0.0,
            last_period: 0.0,
            drains: VecDeque::new(),
            segments: 1,
            left_uses: 0.0,
        }
    }

    /// Reads in a round.
    #[allow(clippy::cast_precision_loss)]
    fn round(&self, now: f64) -> f64 {
        let Some(first) = self.drains.front() else {
            // Nothing had to leave so far.
            return f64::INFINITY;
        };
        (now - first) * self.segments as f64 / self.drains.len() as f64
    }

    #[allow(clippy::cast_precision_loss)]
    pub(super) fn read(&mut self, hash: u64, reads: u64) -> bool {
        let now = reads as f64;
        let round = self.round(now);
        if now - self.halved_at >= self.period {
            self.sketch.halve();
            self.halved_at = now;
            self.last_period = self.period;
            self.period = round.clamp(PERIOD_MIN, self.period_max);
        }
        self.sketch.count(hash);
        let count = self.sketch.estimate(hash);
        let counted_over = now - self.halved_at + self.last_period;
        count >= COUNT_MIN && count * round >= (self.left_uses + 1.0) * MARGIN * counted_over
    }

    /// Forgets the reads of a value.
    pub(super) fn forget(&mut self, hash: u64) {
        self.sketch.forget(hash);
    }

    #[allow(clippy::cast_precision_loss)]
    pub(super) fn drained(&mut self, reads: u64, segments: usize, left: u64, uses: u64) {
        self.segments = segments.max(1);
        self.drains.push_back(reads as f64);
        while self.drains.len() > self.segments {
            self.drains.pop_front();
        }
        if left > 0 {
            self.left_uses += (uses as f64 / left as f64 - self.left_uses) * WEIGHT;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(offset: u64, bytes: usize) -> SmallValue {
        SmallValue {
            key: Bytes::from(offset.to_string()),
            version: offset,
            attributes: Bytes::new(),
            value: Bytes::from(vec![7; bytes]),
            checksum: 0,
            place: (1, offset),
        }
    }

    #[test]
    fn what_waits_is_found_until_its_move_is_applied() {
        let small = SmallValues::new(1 << 20, 1 << 30);
        assert_eq!(small.enqueue(1, value(64, 1000)), Enqueued::Waits);
        assert_eq!(small.enqueue(1, value(64, 1000)), Enqueued::Already);
        assert_eq!(small.enqueue(2, value(128, 1000)), Enqueued::Waits);
        let taken = small.take(1500);
        assert_eq!(taken.len(), 1, "the second is too much for one commit");
        small.committed(9, taken);
        small.applied(8);
        assert!(small.find(1, 64).is_some());
        small.applied(9);
        assert!(small.find(1, 64).is_none() && small.find(1, 128).is_some());
        small.take(1500).iter().for_each(|value| small.forget(value));
        assert_eq!(small.bytes(), 0);
        assert!(small.find(1, 128).is_none());
    }

    #[test]
    fn the_queue_is_bounded_and_says_when_it_should_be_worked_off() {
        let small = SmallValues::new(600 << 10, 1 << 30);
        let mut said = Vec::new();
        for number in 0..100 {
            said.push(small.enqueue(number, value(number * 64, 10_000)));
            assert!(small.bytes() <= 600 << 10);
        }
        assert_eq!(said.iter().filter(|said| **said == Enqueued::Urgent).count(), 1);
        assert_eq!(said.last(), Some(&Enqueued::Full));
        assert!(!SmallValues::new(0, 1 << 30).is_on());
    }

    #[test]
    fn one_read_is_not_enough_and_two_are_where_nothing_had_to_leave() {
        let mut policy = Policy::new(1 << 12);
        assert!(!policy.read(7, 10));
        assert!(policy.read(7, 20));
    }

    #[test]
    fn a_value_is_measured_by_what_stays_in_the_log() {
        // 10 segments, one recycled every 1000 reads: a round has 10,000 reads.
        let mut policy = Policy::new(1 << 12);
        (0..20).for_each(|drain| policy.drained(drain * 1000, 10, 100, 0));
        // Once in a round is as often as the least used that stays: not often enough.
        assert!(!policy.read(7, 5_000));
        assert!(!policy.read(7, 19_900));
        assert!(policy.read(7, 19_950), "twice is");
        // Where what leaves was used twice in a round, more is asked for.
        let mut policy = Policy::new(1 << 12);
        (0..40).for_each(|drain| policy.drained(drain * 500, 10, 100, 200));
        let earned = (0..40).find(|read| policy.read(7, 19_600 + read));
        assert!(earned.is_some_and(|read| (6..10).contains(&read)), "{earned:?}");
    }

    #[test]
    fn what_left_again_has_to_earn_its_place_anew() {
        let small = SmallValues::new(1 << 20, 1 << 30);
        (0..10).for_each(|drain| small.drained(drain * 100, 10, 1, 0));
        assert!((0..10).any(|read| small.read(7, 1000 + read)));
        assert_eq!(small.enqueue(7, value(64, 100)), Enqueued::Waits);
        // A round later it was destaged: to another place, with the same key.
        (10..20).for_each(|drain| small.drained(drain * 100, 10, 1, 0));
        assert!(!small.read(7, 2000), "one read is not enough again");
    }
}
