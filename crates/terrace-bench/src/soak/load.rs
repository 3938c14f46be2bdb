//! The load of a soak test: overwrites, deletes, reads and scans from several threads, without
//! pause.
//!
//! Each thread has its own keys and knows their values, so every result is checked.

use crate::{
    Outcome,
    harness::{
        latency::Latencies,
        values::{Values, buffered},
    },
};
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::sync::atomic::{AtomicBool, Ordering};
use terrace::{Durability, ScanRange, Store};

/// Fewest bytes of a small value: its ends, by which it is checked, do not overlap.
const SMALL_BYTES_MIN: usize = 16;
/// Most bytes of a small value.
const SMALL_BYTES_MAX: usize = 16 << 10;
/// Bytes of a large value; the minimum is the threshold.
const LARGE_BYTES: std::ops::RangeInclusive<usize> = 128 << 10..=512 << 10;
/// One value in this many is large.
const LARGE_EVERY: u64 = 10;
/// Pairs of a scan.
const SCANNED: usize = 20;

/// Longest value.
pub const VALUE_BYTES_MAX: usize = *LARGE_BYTES.end();

/// Mean length of a value.
pub const VALUE_BYTES_MEAN: u64 = ((SMALL_BYTES_MAX as u64 / 2) * (LARGE_EVERY - 1)
    + ((*LARGE_BYTES.start() + *LARGE_BYTES.end()) / 2) as u64)
    / LARGE_EVERY;

/// Operations since the last reading.
#[derive(Debug, Default)]
pub struct Done {
    /// Latencies of reads.
    pub reads: Latencies,
    /// Latencies of writes.
    pub writes: Latencies,
    /// Number of operations of all kinds.
    pub operations: u64,
    /// Bytes of values put.
    pub written_bytes: u64,
}

/// The load on a store.
#[derive(Debug)]
pub struct Load<'a> {
    /// The store.
    pub store: &'a Store,
    /// Values.
    pub values: &'a Values,
    /// Number of keys of a thread.
    pub keys: u64,
    /// Finished operations.
    pub done: &'a Mutex<Done>,
    /// Set at the end.
    pub end: &'a AtomicBool,
}

/// What a thread knows of its keys: the number of each one's value, if there is one.
type Known = Vec<Option<u64>>;

fn key(thread: u64, key: u64) -> String {
    format!("soak/{thread:02}/{key:08}")
}

/// Length of a value, from its number.
fn length(number: u64) -> usize {
    let mut rng = StdRng::seed_from_u64(number);
    if rng.random_range(0..LARGE_EVERY) == 0 {
        rng.random_range(LARGE_BYTES)
    } else {
        rng.random_range(SMALL_BYTES_MIN..=SMALL_BYTES_MAX)
    }
}

impl Load<'_> {
    /// One thread's load, until the end.
    pub fn run(&self, thread: u64) -> Outcome {
        let mut rng = StdRng::seed_from_u64(thread);
        let mut known: Known = vec![None; self.keys as usize];
        let mut number = thread << 48;
        for at in 0..self.keys {
            if self.end.load(Ordering::Relaxed) {
                return Ok(());
            }
            number += 1;
            self.put(thread, at, number, &mut known)?;
        }
        while !self.end.load(Ordering::Relaxed) {
            let at = rng.random_range(0..self.keys);
            match rng.random_range(0..100) {
                0..50 => self.get(thread, at, &known)?,
                50..90 => {
                    number += 1;
                    self.put(thread, at, number, &mut known)?;
                }
                90..95 => self.delete(thread, at, &mut known)?,
                _ => self.scan(thread, at, &known)?,
            }
        }
        Ok(())
    }

    fn put(&self, thread: u64, at: u64, number: u64, known: &mut Known) -> Outcome {
        let length = length(number);
        let value = self.values.piece(number, length);
        let started = std::time::Instant::now();
        self.store.put_with(key(thread, at), value, &buffered())?;
        let time = started.elapsed();
        known[at as usize] = Some(number);
        let mut done = self.done.lock();
        done.writes.record(time);
        done.operations += 1;
        done.written_bytes += length as u64;
        Ok(())
    }

    fn get(&self, thread: u64, at: u64, known: &Known) -> Outcome {
        let started = std::time::Instant::now();
        let found = self.store.get(key(thread, at))?;
        let time = started.elapsed();
        check(
            self.values,
            known[at as usize],
            found.as_ref().map(|object| &object.value[..]),
        )?;
        let mut done = self.done.lock();
        done.reads.record(time);
        done.operations += 1;
        Ok(())
    }

    fn delete(&self, thread: u64, at: u64, known: &mut Known) -> Outcome {
        self.store
            .delete_with(key(thread, at), terrace::Condition::None, Durability::Buffered)?;
        known[at as usize] = None;
        self.done.lock().operations += 1;
        Ok(())
    }

    /// Scans the pairs from a key on, reading only the first value.
    fn scan(&self, thread: u64, from: u64, known: &Known) -> Outcome {
        let mut expected = (from..self.keys).filter_map(|at| Some((at, known[at as usize]?)));
        let range = ScanRange::range(key(thread, from)..key(thread, self.keys));
        let mut shown = 0;
        for (position, item) in self.store.scan(range)?.take(SCANNED).enumerate() {
            let item = item?;
            let (at, number) = expected.next().ok_or("a scan shows a key that was deleted")?;
            if item.key[..] != *key(thread, at).as_bytes() || item.info.length != length(number) as u64 {
                return Err(format!(
                    "a scan shows {} where {} is due",
                    String::from_utf8_lossy(&item.key),
                    key(thread, at)
                )
                .into());
            }
            if position == 0 {
                check(self.values, Some(number), Some(&item.value()?[..]))?;
            }
            shown += 1;
        }
        if let Some((at, _)) = expected.next().filter(|_| shown < SCANNED) {
            return Err(format!("a scan ends before {}", key(thread, at)).into());
        }
        self.done.lock().operations += 1;
        Ok(())
    }
}

fn check(values: &Values, known: Option<u64>, found: Option<&[u8]>) -> Outcome {
    match (known, found) {
        (None, None) => Ok(()),
        (Some(number), Some(value)) => values.check(number, length(number), value),
        (Some(number), None) => Err(format!("value {number} is gone").into()),
        (None, Some(_)) => Err("a deleted value is there".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_what_the_mean_says() {
        let sum: usize = (0..20_000).map(length).sum();
        let ratio = sum as f64 / 20_000.0 / VALUE_BYTES_MEAN as f64;
        assert!((0.95..1.05).contains(&ratio), "{ratio}");
        assert!((0..20_000).all(|number| (SMALL_BYTES_MIN..=VALUE_BYTES_MAX).contains(&length(number))));
    }

    #[test]
    fn wrong_answers_are_noticed() {
        let values = Values::new(1, VALUE_BYTES_MAX);
        let value = values.piece(7, length(7));
        let is_right = |known, found| check(&values, known, found).is_ok();
        assert!(is_right(Some(7), Some(value)) && is_right(None, None));
        assert!(!is_right(Some(8), Some(value)) && !is_right(Some(7), None) && !is_right(None, Some(value)));
        // The shortest values, too.
        let shortest = values.piece(9, SMALL_BYTES_MIN);
        assert!(values.check(9, SMALL_BYTES_MIN, shortest).is_ok());
        assert!(values.check(8, SMALL_BYTES_MIN, shortest).is_err());
    }
}
