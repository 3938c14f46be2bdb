//! I/O throttle: the share of a device's time that background work may have.
//!
//! Promotion, log GC, destaging and block GC work in steps of a few hundred kilobytes to a few
//! megabytes. After a step the thread rests, the longer the smaller its *share* of the device is.
//! The share follows the latencies of callers' reads: latencies without background work are
//! recorded (calm), and when more than a few of the reads are slower than nearly all of the calm
//! ones, the share is halved; otherwise it grows. Without readers, background work has the whole
//! device.
//!
//! A rest ends early when callers stop reading. There is none where waiting would cost more than it
//! gains: the log is about to run out of segments, the store is being closed.
//!
//! Invariants: nothing here affects correctness; a step is never refused, only delayed, by
//! [`REST_MAX`] at most.

use crate::{io::SEEKS_NS, metrics::moving_average::MovingAverage};
use parking_lot::Mutex;
use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// How background work shares a device with callers' reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThrottleStats {
    /// Share of the device's time that background work may have at the moment, per mille.
    pub share_per_mille: u32,
    /// From how many nanoseconds on a caller's read of the device counts as slow; 0 while that is
    /// not known.
    pub slow_ns: u64,
    /// Microseconds that background threads rested for callers, since open.
    pub rested_us: u64,
}

/// Least share of a device that background work has, per mille: it must get on.
const SHARE_MIN: u32 = 30;
/// Share it has at most while callers read: the rest is when calm reads can be seen.
const SHARE_MAX: u32 = 900;
/// Minimum share of work that callers have paid for: they wait for it.
const SHARE_PAID: u32 = 900;
/// Share without readers.
const SHARE_WHOLE: u32 = 1000;
/// Of calm reads all but this many per mille are no slower than what counts as calm.
const CALM_REST_PER_MILLE: u64 = 10;
/// A read is slow if it takes this many times as long, in per cent.
const SLOW_PERCENT: u64 = 150;
/// More slow reads than this, per mille, and background work is slowed down;
const SLOW_SHARE_MAX: u64 = 15;
/// with fewer than this it is sped up.
const SLOW_SHARE_MIN: u64 = 10;
/// Calm reads that must have been seen before anything counts as slow.
const CALM_READS_MIN: u64 = 100;
/// At this many calm reads the counts are halved: devices change.
const CALM_READS_MAX: u64 = 20_000;
/// The share is adjusted after this many reads,
const WINDOW_READS: u64 = 200;
/// or after this time,
const WINDOW: Duration = Duration::from_secs(1);
/// if there are at least this many reads by then.
const WINDOW_READS_MIN: u64 = 20;
/// A device counts as without readers if no read ended for so long.
const QUIET: Duration = Duration::from_millis(50);
/// Longest rest after a step.
const REST_MAX: Duration = Duration::from_millis(500);
/// A rest looks this often whether it is still needed.
const REST_SLICE: Duration = Duration::from_millis(5);
/// Weight (1/n) of the latest read in the mean time of reads.
const MEAN_PARTS: u64 = 8;
/// The mean is forgotten when no read has ended for so long.
const MEAN_LASTS: Duration = Duration::from_secs(10);
/// What a device is taken to need for bytes that another thread, or the kernel, writes later.
const BYTES_PER_SECOND: u64 = 256 << 20;

/// Latency buckets: four to an octave, from 1 µs to 17 s.
const BUCKETS: usize = 96;
const FIRST_OCTAVE: u32 = 10;

/// The pace of background work on one device.
#[derive(Debug)]
pub struct Pace {
    born: Instant,
    /// Callers' reads under way.
    reading: AtomicU32,
    /// When a read ended last, in microseconds after `born`.
    read_ended_us: AtomicU64,
    /// When the reads under way began after none were, likewise.
    reads_began_us: AtomicU64,
    /// Mean time of the latest reads, in nanoseconds.
    mean_ns: MovingAverage<MEAN_PARTS>,
    /// Steps under way, and how many were begun.
    stepping: AtomicU32,
    steps: AtomicU64,
    /// Latencies of reads during which no step ran.
    calm: [AtomicU32; BUCKETS],
    /// From where on a read is slow, in nanoseconds.
    slow_ns: AtomicU64,
    /// Reads in this window, and slow ones.
    reads: AtomicU64,
    slow: AtomicU64,
    /// Per mille of the device's time.
    share: AtomicU32,
    rested_us: AtomicU64,
    window_began: Mutex<Instant>,
}

/// The paces of a store.
#[derive(Debug, Default)]
pub struct Paces {
    /// Of the flash tier's device.
    pub flash: Pace,
    /// Of the large tier's device.
    pub large: Pace,
}

/// A caller's read that is under way.
#[derive(Debug)]
pub struct CallersRead<'a> {
    pace: &'a Pace,
    began: Instant,
    steps: u64,
    was_calm: bool,
}

impl Default for Pace {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            born: now,
            reading: AtomicU32::new(0),
            read_ended_us: AtomicU64::new(0),
            reads_began_us: AtomicU64::new(0),
            mean_ns: MovingAverage::default(),
            stepping: AtomicU32::new(0),
            steps: AtomicU64::new(0),
            calm: std::array::from_fn(|_| AtomicU32::new(0)),
            slow_ns: AtomicU64::new(u64::MAX),
            reads: AtomicU64::new(0),
            slow: AtomicU64::new(0),
            share: AtomicU32::new(SHARE_WHOLE),
            rested_us: AtomicU64::new(0),
            window_began: Mutex::new(now),
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// The bucket of a latency.
fn bucket(ns: u64) -> usize {
    let octave = ns.max(1).ilog2().max(FIRST_OCTAVE);
    let quarter = (ns >> (octave - 2)) & 3;
    let at = (octave - FIRST_OCTAVE) as usize * 4 + usize::try_from(quarter).unwrap_or(3);
    at.min(BUCKETS - 1)
}

/// The latency from which on one belongs into a later bucket.
fn bucket_end_ns(bucket: usize) -> u64 {
    let (octave, quarter) = (bucket as u64 / 4, bucket as u64 % 4);
    (5 + quarter) << (u64::from(FIRST_OCTAVE) - 2 + octave)
}

impl Pace {
    /// A caller begins to read the device.
    #[must_use]
    pub fn read(&self) -> CallersRead<'_> {
        let began = Instant::now();
        if self.reading.fetch_add(1, Ordering::Relaxed) == 0 {
            let now_us = micros(began - self.born);
            self.reads_began_us.store(now_us, Ordering::Relaxed);
            if now_us.saturating_sub(self.read_ended_us.load(Ordering::Relaxed)) > micros(MEAN_LASTS) {
                self.mean_ns.reset();
            }
        }
        CallersRead {
            pace: self,
            steps: self.steps.load(Ordering::Relaxed),
            was_calm: self.stepping.load(Ordering::Relaxed) == 0,
            began,
        }
    }

    /// Whether reads are under way, and recent reads take longer than `wait_max`, or none has ended
    /// for that time. With no read under way a device is not busy, however slow it was: so after a
    /// stall, readers are admitted one at a time until the mean has fallen.
    pub fn is_busy(&self, wait_max: Duration) -> bool {
        self.is_busy_at(Instant::now(), wait_max)
    }

    fn is_busy_at(&self, now: Instant, wait_max: Duration) -> bool {
        if self.reading.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let ended_us = self.read_ended_us.load(Ordering::Relaxed);
        let since_us = ended_us.max(self.reads_began_us.load(Ordering::Relaxed));
        let stuck_us = micros(now - self.born).saturating_sub(since_us);
        Duration::from_nanos(self.mean_ns.get()).max(Duration::from_micros(stuck_us)) > wait_max
    }

    /// Whether callers read it, and that takes so long that it must be a disk, or as busy as one.
    pub fn seeks(&self) -> bool {
        self.seeks_at(Instant::now())
    }

    fn seeks_at(&self, now: Instant) -> bool {
        let ended_us = self.read_ended_us.load(Ordering::Relaxed);
        let since_us = micros(now - self.born).saturating_sub(ended_us);
        ended_us > 0 && since_us <= micros(MEAN_LASTS) && self.mean_ns.get() > SEEKS_NS
    }

    /// Does one step of background work on `bytes` of the device, and rests. `is_urgent` says that
    /// there is no time for that.
    pub fn step<T>(&self, bytes: u64, is_urgent: impl Fn() -> bool, work: impl FnOnce() -> T) -> T {
        self.step_with(bytes, SHARE_MIN, is_urgent, work)
    }

    /// Runs a step that callers have paid for, and whose bytes are all written during the step.
    pub fn paid_step<T>(&self, is_urgent: impl Fn() -> bool, work: impl FnOnce() -> T) -> T {
        self.step_with(0, SHARE_PAID, is_urgent, work)
    }

    fn step_with<T>(&self, bytes: u64, share_min: u32, is_urgent: impl Fn() -> bool, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.stepping.fetch_add(1, Ordering::Relaxed);
        let outcome = work();
        self.stepping.fetch_sub(1, Ordering::Relaxed);
        let ended = Instant::now();
        let busy = (ended - began).max(Duration::from_micros(bytes * 1_000_000 / BYTES_PER_SECOND));
        let share = self.control(ended).max(share_min);
        self.rest(rest_after(busy, share), is_urgent);
        outcome
    }

    fn rest(&self, rest: Duration, is_urgent: impl Fn() -> bool) {
        let began = Instant::now();
        while began.elapsed() < rest && !self.is_quiet(Instant::now()) && !is_urgent() {
            std::thread::sleep(REST_SLICE.min(rest.saturating_sub(began.elapsed())));
        }
        self.rested_us.fetch_add(micros(began.elapsed()), Ordering::Relaxed);
    }

    /// Whether there are no readers.
    fn is_quiet(&self, now: Instant) -> bool {
        let ended = self.born + Duration::from_micros(self.read_ended_us.load(Ordering::Relaxed));
        self.reading.load(Ordering::Relaxed) == 0 && now.saturating_duration_since(ended) > QUIET
    }

    /// Takes note of a read.
    fn record(&self, ns: u64, was_calm: bool) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.mean_ns.add(ns);
        if ns > self.slow_ns.load(Ordering::Relaxed) {
            self.slow.fetch_add(1, Ordering::Relaxed);
        }
        if was_calm {
            self.calm[bucket(ns)].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Looks at the reads since the last time, if they are enough to judge by. Returns the share.
    fn control(&self, now: Instant) -> u32 {
        let share = self.share.load(Ordering::Relaxed);
        if self.is_quiet(now) {
            self.share.store(SHARE_WHOLE, Ordering::Relaxed);
            return SHARE_WHOLE;
        }
        let Some(mut window_began) = self.window_began.try_lock() else {
            return share;
        };
        let reads = self.reads.load(Ordering::Relaxed);
        let is_over = now.saturating_duration_since(*window_began) >= WINDOW && reads >= WINDOW_READS_MIN;
        if reads < WINDOW_READS && !is_over {
            return share.min(SHARE_MAX);
        }
        *window_began = now;
        let slow = self.slow.swap(0, Ordering::Relaxed);
        self.reads.fetch_sub(reads, Ordering::Relaxed);
        self.learn_calm();
        let slow_per_mille = slow * 1000 / reads;
        let share = if slow_per_mille > SLOW_SHARE_MAX {
            (share / 2).max(SHARE_MIN)
        } else if slow_per_mille < SLOW_SHARE_MIN {
            (share + share / 8 + 5).min(SHARE_MAX)
        } else {
            share.min(SHARE_MAX)
        };
        self.share.store(share, Ordering::Relaxed);
        share
    }

    /// Updates the threshold above which a read is slow.
    fn learn_calm(&self) {
        let counts: Vec<u64> = self
            .calm
            .iter()
            .map(|count| u64::from(count.load(Ordering::Relaxed)))
            .collect();
        let total: u64 = counts.iter().sum();
        if total < CALM_READS_MIN {
            return;
        }
        let mut rest = total * CALM_REST_PER_MILLE / 1000;
        let mut at = BUCKETS - 1;
        while at > 0 && counts[at] <= rest {
            rest -= counts[at];
            at -= 1;
        }
        self.slow_ns
            .store(bucket_end_ns(at) * SLOW_PERCENT / 100, Ordering::Relaxed);
        if total > CALM_READS_MAX {
            for (count, seen) in self.calm.iter().zip(counts) {
                // Reads counted meanwhile are kept.
                count.fetch_sub(u32::try_from(seen / 2).unwrap_or(0), Ordering::Relaxed);
            }
        }
    }

    /// A picture.
    pub fn stats(&self) -> ThrottleStats {
        let slow_ns = self.slow_ns.load(Ordering::Relaxed);
        ThrottleStats {
            share_per_mille: self.share.load(Ordering::Relaxed),
            slow_ns: if slow_ns == u64::MAX { 0 } else { slow_ns },
            rested_us: self.rested_us.load(Ordering::Relaxed),
        }
    }
}

/// How long to rest after having been busy, so that the share is kept.
fn rest_after(busy: Duration, share: u32) -> Duration {
    let rest = busy * (SHARE_WHOLE - share.min(SHARE_WHOLE)) / share.max(1);
    rest.min(REST_MAX)
}

impl Drop for CallersRead<'_> {
    fn drop(&mut self) {
        let pace = self.pace;
        let elapsed = self.began.elapsed();
        let was_calm = self.was_calm
            && pace.stepping.load(Ordering::Relaxed) == 0
            && pace.steps.load(Ordering::Relaxed) == self.steps;
        pace.record(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX), was_calm);
        pace.read_ended_us.store(micros(pace.born.elapsed()), Ordering::Relaxed);
        pace.reading.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: u64 = 1_000_000;

    /// A pace with callers that read all the time, calmly in 1 ms.
    fn pace() -> Pace {
        let pace = Pace::default();
        pace.reading.store(1, Ordering::Relaxed);
        for _ in 0..1000 {
            pace.record(MILLI, true);
        }
        pace.control(Instant::now());
        pace
    }

    fn window(pace: &Pace, slow: u64) -> u32 {
        for number in 0..WINDOW_READS {
            pace.record(if number < slow { 10 * MILLI } else { MILLI }, false);
        }
        pace.control(Instant::now())
    }

    #[test]
    fn buckets_hold_what_they_say() {
        for ns in [1_024, 1_500, 2_000, 90_000, 1_000_000, 33_000_000, 9_000_000_000] {
            let at = bucket(ns);
            assert!(ns < bucket_end_ns(at), "{ns}");
            assert!(at == 0 || ns >= bucket_end_ns(at - 1), "{ns}");
        }
        assert_eq!((bucket(0), bucket(5), bucket(u64::MAX)), (0, 0, BUCKETS - 1));
    }

    #[test]
    fn slow_reads_take_share_away_and_calm_ones_give_it_back() {
        let pace = pace();
        let slow_ns = pace.stats().slow_ns;
        assert!((MILLI..2 * MILLI).contains(&slow_ns), "{slow_ns}");
        let first = window(&pace, 0);
        assert_eq!(first, SHARE_MAX);
        let mut share = first;
        for _ in 0..10 {
            let next = window(&pace, WINDOW_READS / 10);
            assert!(next < share || next == SHARE_MIN);
            share = next;
        }
        assert_eq!(share, SHARE_MIN);
        for _ in 0..60 {
            share = window(&pace, 0);
        }
        assert_eq!(share, SHARE_MAX);
    }

    #[test]
    fn reads_beside_steps_do_not_change_what_is_calm() {
        let pace = pace();
        let before = pace.stats().slow_ns;
        for _ in 0..50 {
            window(&pace, WINDOW_READS);
        }
        assert_eq!(pace.stats().slow_ns, before);
    }

    #[test]
    fn nothing_is_slow_before_calm_reads_were_seen() {
        let pace = Pace::default();
        pace.reading.store(1, Ordering::Relaxed);
        assert_eq!(window(&pace, WINDOW_READS), SHARE_MAX);
        assert_eq!(pace.stats().slow_ns, 0);
    }

    #[test]
    fn a_step_rests_for_readers_and_for_nobody_else() {
        let pace = pace();
        pace.share.store(100, Ordering::Relaxed);
        let busy = || std::thread::sleep(Duration::from_millis(4));
        // A rest checks before each of its slices whether it is still needed. Its duration would
        // depend on the machine.
        let asked = std::cell::Cell::new(0);
        let ask = |is_urgent: bool| {
            asked.set(asked.get() + 1);
            is_urgent
        };
        let began = Instant::now();
        pace.step(0, || ask(false), busy);
        // A tenth of the time: nine parts of rest, or somewhat fewer if the share has grown.
        assert!(began.elapsed() >= Duration::from_millis(20));
        asked.set(0);
        pace.share.store(100, Ordering::Relaxed);
        pace.step(0, || ask(true), busy);
        assert!(asked.take() <= 1, "urgent: it asks, and rests no more");
        pace.reading.store(0, Ordering::Relaxed);
        std::thread::sleep(QUIET);
        pace.step(0, || ask(false), busy);
        assert_eq!(asked.take(), 0, "quiet: there is nothing to ask");
        assert_eq!(pace.stats().share_per_mille, SHARE_WHOLE);
    }

    #[test]
    fn a_device_is_busy_while_slow_reads_are_under_way() {
        let wait_max = Duration::from_millis(50);
        let pace = Pace::default();
        for _ in 0..30 {
            pace.record(100 * MILLI, false);
        }
        assert!(!pace.is_busy(wait_max), "no readers");
        pace.reading.store(1, Ordering::Relaxed);
        let now = pace.born + Duration::from_secs(1);
        pace.read_ended_us.store(micros(now - pace.born), Ordering::Relaxed);
        assert!(pace.is_busy_at(now, wait_max) && !pace.is_busy_at(now, wait_max * 3));
        for _ in 0..30 {
            pace.record(MILLI, false);
        }
        assert!(!pace.is_busy_at(now, wait_max), "the mean has fallen");

        let pace = Pace::default();
        let stuck = pace.read();
        assert!(!pace.is_busy_at(stuck.began + wait_max, wait_max));
        let later = stuck.began + wait_max * 2;
        assert!(pace.is_busy_at(later, wait_max), "a read that does not end");
        drop(stuck);
        assert!(!pace.is_busy_at(later, wait_max));
    }

    #[test]
    fn a_read_beside_a_step_is_not_calm() {
        let pace = Pace::default();
        let calm = || -> u32 { pace.calm.iter().map(|count| count.load(Ordering::Relaxed)).sum() };
        drop(pace.read());
        assert_eq!(calm(), 1);
        let read = pace.read();
        pace.step(0, || true, || ());
        drop(read);
        assert_eq!(calm(), 1, "a step began and ended meanwhile");
        pace.step(0, || true, || drop(pace.read()));
        assert_eq!(calm(), 1);
        drop(pace.read());
        assert_eq!(calm(), 2);
    }

    #[test]
    fn a_device_seeks_if_reads_that_take_long_have_ended_lately() {
        let pace = Pace::default();
        assert!(!pace.seeks(), "not read yet");
        for _ in 0..30 {
            pace.record(10 * MILLI, false);
        }
        pace.read_ended_us.store(1, Ordering::Relaxed);
        let now = pace.born + MEAN_LASTS;
        assert!(pace.seeks_at(now) && !pace.seeks_at(now + MEAN_LASTS));
        for _ in 0..60 {
            pace.record(MILLI, false);
        }
        assert!(!pace.seeks_at(now));
    }

    #[test]
    fn rest_is_bounded() {
        assert_eq!(rest_after(Duration::from_millis(10), 500), Duration::from_millis(10));
        assert_eq!(rest_after(Duration::from_millis(10), SHARE_WHOLE), Duration::ZERO);
        assert_eq!(rest_after(Duration::from_secs(10), SHARE_MIN), REST_MAX);
    }
}
