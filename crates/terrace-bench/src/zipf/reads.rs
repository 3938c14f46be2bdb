//! Reads of objects by Zipf's law, from several threads.

use crate::{Outcome, harness::values::Values};
use rand::{Rng, SeedableRng, rngs::StdRng};
use rand_distr::{Distribution, Zipf};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};
use terrace::Store;

/// Spreads the ranks over the objects: an odd prime, so that popular objects were not stored first.
const SPREAD: u64 = 7_368_787;

/// The objects of a run.
#[derive(Debug, Clone, Copy)]
pub struct Objects {
    /// How many.
    pub count: u64,
    /// Length of a value.
    pub value_bytes: usize,
    /// Zipf's exponent.
    pub exponent: f64,
}

impl Objects {
    /// The key of an object.
    #[must_use]
    pub fn key(number: u64) -> [u8; 16] {
        let mut key = *b"object/000000000";
        let mut rest = number;
        for digit in key[7..].iter_mut().rev() {
            *digit += (rest % 10) as u8;
            rest /= 10;
        }
        key
    }

    /// The object of a rank, from 0.
    #[must_use]
    pub const fn of_rank(&self, rank: u64) -> u64 {
        rank.wrapping_mul(SPREAD) % self.count
    }

    /// Hit ratio of a cache that always holds this share of the objects, the most popular ones.
    #[must_use]
    pub fn perfect_hits(&self, share: f64) -> f64 {
        let fitting = (share * self.count as f64) as u64;
        let (mut inside, mut all) = (0.0, 0.0);
        for rank in 1..=self.count {
            let weight = (rank as f64).powf(-self.exponent);
            all += weight;
            if rank <= fitting {
                inside += weight;
            }
        }
        inside / all
    }
}

/// Number and duration of reads.
#[derive(Debug, Clone, Copy)]
pub struct Rate {
    /// How many.
    pub reads: u64,
    /// Duration.
    pub seconds: f64,
}

impl Rate {
    /// Reads per second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        self.reads as f64 / self.seconds.max(1e-9)
    }
}

/// Reads and checks `count` objects by Zipf's law from `threads` threads.
///
/// # Errors
/// The store's, or a wrong value.
pub fn by_popularity(
    store: &Store,
    objects: Objects,
    threads: u64,
    count: u64,
    seed: u64,
    progress: impl Fn(u64) + Sync,
) -> Outcome<Rate> {
    let zipf = Zipf::new(objects.count as f64, objects.exponent)?;
    let done = AtomicU64::new(0);
    let started = Instant::now();
    in_threads(threads, |thread| {
        let mut rng = StdRng::seed_from_u64(seed ^ (thread + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for read in 0..count / threads {
            let rank = zipf.sample(&mut rng) as u64 - 1;
            read_one(store, objects, objects.of_rank(rank.min(objects.count - 1)))?;
            if read % 1024 == 1023 {
                progress(done.fetch_add(1024, Ordering::Relaxed));
            }
        }
        Ok(())
    })?;
    Ok(Rate {
        reads: count / threads * threads,
        seconds: started.elapsed().as_secs_f64(),
    })
}

/// Reads the objects of a list once each, in random order, from `threads` threads.
///
/// # Errors
/// As [`by_popularity`].
pub fn each_once(store: &Store, objects: Objects, threads: u64, numbers: &[u64], seed: u64) -> Outcome<Rate> {
    let part = numbers.len().div_ceil(threads as usize).max(1);
    let started = Instant::now();
    in_threads(threads, |thread| {
        let mut own: Vec<u64> = numbers.chunks(part).nth(thread as usize).unwrap_or_default().to_vec();
        let mut rng = StdRng::seed_from_u64(seed + thread);
        for at in (1..own.len()).rev() {
            own.swap(at, rng.random_range(0..=at));
        }
        own.into_iter().try_for_each(|number| read_one(store, objects, number))
    })?;
    Ok(Rate {
        reads: numbers.len() as u64,
        seconds: started.elapsed().as_secs_f64(),
    })
}

fn read_one(store: &Store, objects: Objects, number: u64) -> Outcome {
    let found = store
        .get(Objects::key(number))?
        .ok_or_else(|| format!("object {number} is gone"))?;
    Values::check(number, objects.value_bytes, &found.value)
}

fn in_threads(threads: u64, work: impl Fn(u64) -> Outcome + Sync) -> Outcome {
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let work = &work;
                scope.spawn(move || work(thread))
            })
            .collect();
        for worker in workers {
            worker.join().map_err(|_| "a reading thread panicked")??;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const OBJECTS: Objects = Objects {
        count: 20_000,
        value_bytes: 100,
        exponent: 0.99,
    };

    #[test]
    fn every_object_has_one_rank_and_a_key_of_its_own() {
        let numbers: HashSet<u64> = (0..OBJECTS.count).map(|rank| OBJECTS.of_rank(rank)).collect();
        assert_eq!(numbers.len() as u64, OBJECTS.count);
        assert_eq!(&Objects::key(120_345), b"object/000120345");
    }

    #[test]
    fn a_perfect_cache_answers_what_zipf_says() {
        assert!((OBJECTS.perfect_hits(1.0) - 1.0).abs() < 1e-9);
        let tenth = OBJECTS.perfect_hits(0.1);
        assert!((0.75..0.82).contains(&tenth), "{tenth}");
        // The sampler and the sum must follow the same law.
        let zipf = Zipf::new(OBJECTS.count as f64, OBJECTS.exponent).expect("sound parameters");
        let mut rng = StdRng::seed_from_u64(1);
        let inside = (0..100_000).filter(|_| zipf.sample(&mut rng) <= 2_000.0).count();
        assert!((inside as f64 / 100_000.0 - tenth).abs() < 0.01, "{inside}");
    }
}
