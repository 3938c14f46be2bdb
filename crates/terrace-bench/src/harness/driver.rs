//! Loops that do and measure operations.
//!
//! - *Closed*: each thread starts its next operation when the previous one is done. A latency is
//!   the duration of the operation.
//! - *Open*: operations arrive on a schedule, independent of the store. A latency is measured from
//!   the scheduled start, so operations that wait behind a slow one include the wait (no
//!   coordinated omission).
//!
//! The first error ends the loop and is returned.

use super::latency::Latencies;
use crate::Outcome;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Measurements of a loop.
#[derive(Debug, Clone)]
pub struct LoopOutcome {
    /// From the first start to the last end.
    pub seconds: f64,
    /// Latencies by kind of operation.
    pub kinds: Vec<Latencies>,
}

impl LoopOutcome {
    /// Empty, for this many kinds.
    #[must_use]
    pub fn empty(kinds: usize) -> Self {
        Self {
            seconds: 0.0,
            kinds: vec![Latencies::default(); kinds],
        }
    }

    /// Adds a loop that ran after this one.
    pub fn add(&mut self, later: &Self) {
        self.seconds += later.seconds;
        for (mine, theirs) in self.kinds.iter_mut().zip(&later.kinds) {
            mine.add(theirs);
        }
    }
}

/// Distribution of arrivals in an open loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// Evenly.
    Uniform,
    /// Poisson, as from many independent users.
    Poisson,
}

/// Numbers and start times of the remaining operations.
struct Schedule {
    next: u64,
    count: u64,
    at: Duration,
    gap: Duration,
    arrivals: Arrivals,
    random: ChaCha8Rng,
}

impl Schedule {
    fn next(&mut self) -> Option<(u64, Duration)> {
        if self.next == self.count {
            return None;
        }
        let (number, at) = (self.next, self.at);
        self.next += 1;
        self.at += match self.arrivals {
            Arrivals::Uniform => self.gap,
            // Intervals of a Poisson process are exponentially distributed.
            Arrivals::Poisson => self.gap.mul_f64(-(1.0 - self.random.random::<f64>()).ln()),
        };
        Some((number, at))
    }
}

/// Runs `threads` workers; each gets its latencies and a stop flag.
fn workers(
    threads: usize,
    kinds: usize,
    work: impl Fn(&mut [Latencies], &AtomicBool) -> Outcome + Sync,
) -> Outcome<LoopOutcome> {
    let (stop, start) = (AtomicBool::new(false), Instant::now());
    let done: Vec<Outcome<Vec<Latencies>>> = std::thread::scope(|scope| {
        let worker = || {
            let mut latencies = vec![Latencies::default(); kinds];
            let outcome = work(&mut latencies, &stop);
            if outcome.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            outcome.map(|()| latencies)
        };
        let handles: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(worker)).collect();
        let join = |handle: std::thread::ScopedJoinHandle<'_, _>| {
            handle
                .join()
                .unwrap_or_else(|_| Err("a worker of the loop panicked".into()))
        };
        handles.into_iter().map(join).collect()
    });
    let mut outcome = LoopOutcome::empty(kinds);
    outcome.seconds = start.elapsed().as_secs_f64();
    for latencies in done {
        for (sum, part) in outcome.kinds.iter_mut().zip(latencies?) {
            sum.add(&part);
        }
    }
    Ok(outcome)
}

fn record(latencies: &mut [Latencies], kind: usize, latency: Duration) {
    if let Some(latencies) = latencies.get_mut(kind) {
        latencies.record(latency);
    }
}

/// Does operations 0 to `count`, each thread one after the other. The operation returns its kind,
/// below `kinds`.
///
/// # Errors
/// The error of the first operation that failed.
pub fn closed_loop(
    threads: usize,
    count: u64,
    kinds: usize,
    operation: impl Fn(u64) -> Outcome<usize> + Sync,
) -> Outcome<LoopOutcome> {
    timed_loop(threads, count, None, kinds, operation)
}

/// Like [`closed_loop`], but no operation starts after `end`.
///
/// # Errors
/// As [`closed_loop`].
pub fn timed_loop(
    threads: usize,
    count: u64,
    time_max: Option<Duration>,
    kinds: usize,
    operation: impl Fn(u64) -> Outcome<usize> + Sync,
) -> Outcome<LoopOutcome> {
    let (next, begun) = (AtomicU64::new(0), Instant::now());
    workers(threads, kinds, |latencies, stop| {
        while !stop.load(Ordering::Relaxed) {
            let start = Instant::now();
            if time_max.is_some_and(|time| start.duration_since(begun) >= time) {
                break;
            }
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                break;
            }
            let kind = operation(number)?;
            record(latencies, kind, start.elapsed());
        }
        Ok(())
    })
}

/// Pace of an open loop.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Arrivals per second.
    pub per_second: f64,
    /// Distribution.
    pub arrivals: Arrivals,
    /// Seed of a random distribution.
    pub seed: u64,
}

/// Does operations 0 to `count` when they are due, with at most `threads` at a time.
///
/// # Errors
/// A rate that is not positive, or the error of the first operation that failed.
pub fn open_loop(
    threads: usize,
    count: u64,
    pace: Pace,
    kinds: usize,
    operation: impl Fn(u64) -> Outcome<usize> + Sync,
) -> Outcome<LoopOutcome> {
    if !(pace.per_second > 1e-6 && pace.per_second < 1e9) {
        return Err(format!(
            "{} arrivals per second: choose between 0.000001 and 1e9",
            pace.per_second
        )
        .into());
    }
    let schedule = Mutex::new(Schedule {
        next: 0,
        count,
        at: Duration::ZERO,
        gap: Duration::from_secs_f64(1.0 / pace.per_second),
        arrivals: pace.arrivals,
        random: ChaCha8Rng::seed_from_u64(pace.seed),
    });
    let start = Instant::now();
    workers(threads, kinds, |latencies, stop| {
        while !stop.load(Ordering::Relaxed) {
            let due = schedule.lock().map_err(|_| "another worker panicked")?.next();
            let Some((number, at)) = due else {
                break;
            };
            let early = at.saturating_sub(start.elapsed());
            if !early.is_zero() {
                std::thread::sleep(early);
            }
            let kind = operation(number)?;
            record(latencies, kind, start.elapsed().saturating_sub(at));
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_closed_loop_makes_each_operation_once() {
        let seen: Vec<AtomicU64> = (0..1000).map(|_| AtomicU64::new(0)).collect();
        let outcome = closed_loop(4, 1000, 2, |number| {
            seen[number as usize].fetch_add(1, Ordering::Relaxed);
            Ok(usize::from(number % 10 == 0))
        })
        .unwrap();
        assert!(seen.iter().all(|count| count.load(Ordering::Relaxed) == 1));
        let counts: Vec<u64> = outcome.kinds.iter().map(|kind| kind.summary().count).collect();
        assert_eq!(counts, [900, 100]);
    }

    #[test]
    fn a_timed_loop_ends_in_time_and_counts_what_it_made() {
        let made = AtomicU64::new(0);
        let outcome = timed_loop(2, u64::MAX, Some(Duration::from_millis(100)), 1, |_| {
            made.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(1));
            Ok(0)
        })
        .unwrap();
        assert!(outcome.seconds >= 0.1);
        let count = outcome.kinds[0].summary().count;
        assert_eq!(count, made.load(Ordering::Relaxed));
        assert!((2..=200).contains(&count), "{count}");
    }

    #[test]
    fn an_error_ends_the_loop() {
        // Limited, since one thread may do any number of operations before the other reports its
        // failure.
        let outcome = closed_loop(
            2,
            u64::MAX,
            1,
            |number| {
                if number == 10 { Err("broken".into()) } else { Ok(0) }
            },
        );
        assert_eq!(outcome.unwrap_err().to_string(), "broken");
    }

    /// One operation stalls for 300 ms. The latencies of the twenty-nine due meanwhile must include
    /// the wait; measured from the actual start, only one operation would be slow.
    #[test]
    fn an_open_loop_does_not_omit_what_a_stall_delays() {
        let pace = Pace {
            per_second: 100.0,
            arrivals: Arrivals::Uniform,
            seed: 1,
        };
        let outcome = open_loop(1, 60, pace, 1, |number| {
            if number == 10 {
                std::thread::sleep(Duration::from_millis(300));
            }
            Ok(0)
        })
        .unwrap();
        let summary = outcome.kinds[0].summary();
        assert_eq!(summary.count, 60);
        // About half of the operations waited, for half of the stall on average.
        assert!(summary.mean_us > 50_000.0, "{summary:?}");
        assert!(summary.percentile_us(75.0).unwrap() > 100_000.0, "{summary:?}");
        assert!(outcome.seconds >= 0.59);
    }

    #[test]
    fn poisson_arrivals_keep_the_rate_and_vary() {
        let mut schedule = Schedule {
            next: 0,
            count: 20_000,
            at: Duration::ZERO,
            gap: Duration::from_millis(1),
            arrivals: Arrivals::Poisson,
            random: ChaCha8Rng::seed_from_u64(3),
        };
        let starts: Vec<f64> = std::iter::from_fn(|| schedule.next())
            .map(|(_, at)| at.as_secs_f64())
            .collect();
        assert_eq!(starts.len(), 20_000);
        let rate = 20_000.0 / starts[19_999];
        assert!((rate - 1000.0).abs() < 30.0, "{rate}");
        let gaps: Vec<f64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let summary = super::super::statistics::Summary::of(&gaps).unwrap();
        assert!((summary.deviation / summary.mean - 1.0).abs() < 0.05, "{summary:?}");
    }

    #[test]
    fn a_rate_of_zero_is_refused() {
        let pace = Pace {
            per_second: 0.0,
            arrivals: Arrivals::Uniform,
            seed: 1,
        };
        assert!(open_loop(1, 1, pace, 1, |_| Ok(0)).is_err());
    }
}
