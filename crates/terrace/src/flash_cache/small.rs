//! Small values in blocks: which of them return to the flash log, and the queue of those.
//!
//! Log GC destages values that were not used while the log was written once around. A destaged
//! value that is read often later returns, by a move that the thread `terrace-promote` commits.
//! *Often* means: more often than the least used value that log GC keeps. The unit is a *round*,
//! the reads between the writing of a segment and its reclamation: a value that is not used once in
//! a round would leave again, and if values leave that were used several times, a value must be
//! used more often than these. With a weaker condition values would change places for ever, each
//! time with a write to flash and one to the large device.
//!
//! Reads are counted in a sketch, which halves its counts about once a round. A returning value is
//! removed from the sketch: when it leaves the log again, it has to qualify anew.
//!
//! Readers do not look into the queue: a queued value was just read, so the value cache has it at
//! its block's place. All of this may be lost at any time.

use super::sketch::Sketch;
use crate::log::move_queue::{Enqueued, MoveQueue, Moving};
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU64, Ordering},
};

/// Minimum reads of a value before it may be promoted, however long a round is.
const COUNT_MIN: f64 = 2.0;
/// How much more often than the least used that stays it must be used.
const MARGIN: f64 = 1.2;
/// Minimum reads between two halvings of the counts,
const PERIOD_MIN: f64 = 10_000.0;
/// and maximum reads per counter of the sketch.
const PERIOD_PER_COUNTER_MAX: f64 = 8.0;
/// Share of the last drained segment in the average of what values were used that left.
const WEIGHT: f64 = 0.125;
/// With this many bytes waiting, the thread that moves them is woken.
const WAKE_BYTES: u64 = 256 << 10;
/// Counters of the sketch.
const COUNTERS_MIN: usize = 1 << 18;
const COUNTERS_MAX: usize = 1 << 24;

/// The heat of small values in blocks.
#[derive(Debug)]
pub struct SmallValues {
    policy: Mutex<Policy>,
    /// The values being moved back.
    pub queue: MoveQueue,
    /// Reads of small values in blocks.
    reads: AtomicU64,
}

impl SmallValues {
    /// An empty state. `bytes_max` of RAM may be queued; the log has `flash_bytes`.
    pub fn new(bytes_max: u64, flash_bytes: u64) -> Self {
        let wanted = usize::try_from(flash_bytes >> 14).unwrap_or(usize::MAX);
        let counters = wanted.clamp(COUNTERS_MIN, COUNTERS_MAX).next_power_of_two();
        Self {
            // Nothing is counted if promotion is off.
            policy: Mutex::new(Policy::new(if bytes_max == 0 { 1 } else { counters })),
            queue: MoveQueue::new(bytes_max),
            reads: AtomicU64::new(0),
        }
    }

    /// Reads of small values in blocks so far.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Counts a read of a value in a block, with the store's reads of small values so far. Returns
    /// whether the value should be promoted.
    #[must_use]
    pub fn read(&self, hash: u64, reads: u64) -> bool {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.policy.lock().read(hash, reads)
    }

    /// Log GC drained a segment after this many reads; the log has `segments`. The `left` values
    /// that left it have `uses` in total.
    pub fn drained(&self, reads: u64, segments: usize, left: u64, uses: u64) {
        self.policy.lock().drained(reads, segments, left, uses);
    }

    /// Queues a value for promotion and resets its read count. Also returns whether the queue is
    /// long enough to be moved soon.
    pub fn enqueue(&self, value: Moving) -> (Enqueued, bool) {
        let (hash, before) = (value.hash, self.queue.bytes());
        let enqueued = self.queue.enqueue(value);
        let Enqueued::Waits(bytes) = enqueued else {
            return (enqueued, false);
        };
        self.policy.lock().forget(hash);
        (enqueued, before < WAKE_BYTES && bytes >= WAKE_BYTES)
    }
}

/// Decides which values are promoted. Time is counted in reads of small values in any home.
#[derive(Debug)]
pub(super) struct Policy {
    sketch: Sketch,
    /// Counts are halved after this many reads.
    period: f64,
    period_max: f64,
    halved_at: f64,
    /// The period before the last halving: half of its counts are still there.
    last_period: f64,
    /// When segments were recycled, as many as the log has.
    drains: VecDeque<f64>,
    segments: usize,
    /// Mean uses per round of the values that left the log.
    left_uses: f64,
}

impl Policy {
    pub(super) fn new(counters: usize) -> Self {
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
    fn round(&self, now: f64) -> f64 {
        let Some(first) = self.drains.front() else {
            // Nothing was evicted so far.
            return f64::INFINITY;
        };
        (now - first) * self.segments as f64 / self.drains.len() as f64
    }

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
    use bytes::Bytes;

    fn value(number: u64, bytes: usize) -> Moving {
        Moving {
            key: Bytes::from(number.to_string()),
            hash: number,
            version: number,
            attributes: Bytes::new(),
            value: Bytes::from(vec![7; bytes]),
            checksum: 0,
            place: None,
        }
    }

    #[test]
    fn the_queue_says_when_it_should_be_worked_off() {
        let small = SmallValues::new(600 << 10, 1 << 30);
        let said: Vec<_> = (0..100).map(|number| small.enqueue(value(number, 10_000))).collect();
        assert_eq!(said.iter().filter(|(_, is_urgent)| *is_urgent).count(), 1);
        assert_eq!(said.last(), Some(&(Enqueued::Full, false)));
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
        // If the values that leave were used twice in a round, the threshold is higher.
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
        assert!(matches!(small.enqueue(value(7, 100)), (Enqueued::Waits(_), false)));
        // A round later it was destaged: to another place, with the same key.
        (10..20).for_each(|drain| small.drained(drain * 100, 10, 1, 0));
        assert!(!small.read(7, 2000), "one read is not enough again");
    }
}
