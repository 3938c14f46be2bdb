//! Loops that do and measure operations: each thread starts its next operation when the previous
//! one is done. A latency is the duration of the operation. The first error ends the loop and is
//! returned.

use super::latency::Latencies;
use crate::Outcome;
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
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
    pub fn empty(kinds: usize) -> Self {
        Self {
            seconds: 0.0,
            kinds: vec![Latencies::default(); kinds],
        }
    }

    /// Operations of the first kind.
    pub fn count(&self) -> u64 {
        self.kinds[0].count()
    }

    /// Operations of the first kind per second.
    pub fn rate(&self) -> f64 {
        self.count() as f64 / self.seconds.max(1e-9)
    }

    /// Adds a loop that ran after this one.
    pub fn add(&mut self, later: &Self) {
        self.seconds += later.seconds;
        for (mine, theirs) in self.kinds.iter_mut().zip(&later.kinds) {
            mine.add(theirs);
        }
    }
}

/// Does work in threads, which get their numbers. The first error is returned when all have ended.
///
/// # Errors
/// That of a thread, or that one panicked.
pub fn in_threads<T: Send>(threads: usize, work: impl Fn(usize) -> Outcome<T> + Sync) -> Outcome<Vec<T>> {
    std::thread::scope(|scope| {
        let work = &work;
        let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        let done: Vec<Outcome<T>> = handles
            .into_iter()
            .map(|handle| handle.join().unwrap_or_else(|_| Err("a thread panicked".into())))
            .collect();
        done.into_iter().collect()
    })
}

/// Does operations 0 to `count`, each thread one after the other; none starts after `time_max`. The
/// operation returns its kind, below `kinds`.
pub fn timed_loop(
    threads: usize,
    count: u64,
    time_max: Option<Duration>,
    kinds: usize,
    operation: impl Fn(u64) -> Outcome<usize> + Sync,
) -> Outcome<LoopOutcome> {
    let (stop, next, begun) = (AtomicBool::new(false), AtomicU64::new(0), Instant::now());
    let done = in_threads(threads.max(1), |_| {
        let mut latencies = vec![Latencies::default(); kinds];
        while !stop.load(Ordering::Relaxed) {
            let start = Instant::now();
            if time_max.is_some_and(|time| start.duration_since(begun) >= time) {
                break;
            }
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                break;
            }
            let kind = operation(number).inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
            latencies[kind].record(start.elapsed());
        }
        Ok(latencies)
    })?;
    let mut outcome = LoopOutcome::empty(kinds);
    outcome.seconds = begun.elapsed().as_secs_f64();
    for latencies in done {
        for (sum, part) in outcome.kinds.iter_mut().zip(&latencies) {
            sum.add(part);
        }
    }
    Ok(outcome)
}

/// Waits until a count has not changed for `quiet`.
pub fn settle(quiet: Duration, count: impl Fn() -> Outcome<u64>) -> Outcome {
    let (mut last, mut since) = (count()?, Instant::now());
    while since.elapsed() < quiet {
        std::thread::sleep(quiet / 20);
        let now = count()?;
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_loop_makes_each_operation_once() {
        let seen: Vec<AtomicU64> = (0..1000).map(|_| AtomicU64::new(0)).collect();
        let outcome = timed_loop(4, 1000, None, 2, |number| {
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
        let outcome = timed_loop(2, u64::MAX, None, 1, |number| match number {
            10 => Err("broken".into()),
            _ => Ok(0),
        });
        assert_eq!(outcome.unwrap_err().to_string(), "broken");
    }

    #[test]
    fn settling_waits_until_the_count_stays() {
        let (changes, start) = (Cell::new(0_u64), Instant::now());
        let bytes = || {
            changes.set((changes.get() + 1).min(30));
            Ok(changes.get())
        };
        settle(Duration::from_millis(40), bytes).unwrap();
        assert_eq!(changes.get(), 30);
        // 29 changes at intervals of 2 ms, then the quiet time.
        assert!(start.elapsed() >= Duration::from_millis(29 * 2 + 40));
    }
}
