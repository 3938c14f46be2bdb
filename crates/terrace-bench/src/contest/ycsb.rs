//! `terrace-bench ycsb`: workloads A to F of the Yahoo! Cloud Serving Benchmark (Cooper and others,
//! 2010), with values of 1 KiB unless the workload file has another length.
//!
//! One run is one candidate: the records are loaded in the order of the hash of their numbers and
//! flushed, then A, B, C, F, D and E run in this order, as YCSB's documentation asks. Popularity
//! follows Zipf's law with exponent 0.99, spread over the records by a hash; in D the newest
//! records are the most popular. A read-modify-write is one operation. A scan starts at a popular
//! record and has 1 to 100 pairs, uniformly. Candidates without order skip E.

use super::{
    Contest, Meeting,
    data::{KEY_BYTES, Objects, ValueSize, mix},
    step::{self, Bench, Done, Step},
    worker::{Task, Teller},
};
use crate::{Outcome, harness::driver::timed_loop, rivals::KeyValue};
use parking_lot::Mutex;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Zipf};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use terrace::Durability;

/// Experiment name in the results.
pub const EXPERIMENT: &str = "ycsb";
/// Exponent of the popularity.
const EXPONENT: f64 = 0.99;
const SCAN_PAIRS_MAX: u64 = 100;

/// Amount of work: a part of the contest's file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Amount {
    /// Records loaded.
    pub records: u64,
    /// Most operations of a workload.
    pub operations: u64,
    /// Longest time of a workload.
    pub seconds_max: f64,
    /// Concurrent operations.
    pub threads: usize,
    /// Length of a value.
    #[serde(default = "usual_value_bytes")]
    pub value_bytes: usize,
}

/// YCSB's length.
const fn usual_value_bytes() -> usize {
    1 << 10
}

impl Amount {
    /// Length of a record with its key.
    const fn record_bytes(&self) -> u64 {
        (self.value_bytes + KEY_BYTES) as u64
    }
}

/// Settings of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Settings {
    /// Candidate, drives and RAM.
    pub meeting: Meeting,
    /// Amount of work.
    pub amount: Amount,
    /// Seed of everything random.
    pub seed: u64,
}

/// Results of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    /// Loading, then the workloads.
    pub steps: Vec<Step>,
    /// Bytes on disk relative to bytes of keys and values at the end, flushed.
    pub space: f64,
    /// The engine's tuning, as the adapter reports it.
    pub engine_settings: String,
}

/// A workload, in percent of its operations (Cooper and others, table 2; F is YCSB's workloadf).
#[derive(Debug, Clone, Copy)]
struct Workload {
    name: &'static str,
    reads: u64,
    updates: u64,
    inserts: u64,
    scans: u64,
    /// The newest records are the most popular. (The remaining operations are read-modify-writes.)
    latest: bool,
}

/// The workloads, with their shares of reads, updates, inserts and scans.
const WORKLOADS: [Workload; 6] = [
    Workload::of("A", [50, 50, 0, 0], false),
    Workload::of("B", [95, 5, 0, 0], false),
    Workload::of("C", [100, 0, 0, 0], false),
    Workload::of("F", [50, 0, 0, 0], false),
    Workload::of("D", [95, 0, 5, 0], true),
    Workload::of("E", [0, 0, 5, 95], false),
];

impl Workload {
    const fn of(name: &'static str, [reads, updates, inserts, scans]: [u64; 4], latest: bool) -> Self {
        Self {
            name,
            reads,
            updates,
            inserts,
            scans,
            latest,
        }
    }
}

/// Runs all candidates of a contest.
///
/// # Errors
/// If no run can start; failed runs are listed at the end ([`Contest::failed`]).
pub fn measure_all(contest: &Contest) -> Outcome {
    let amount = &contest.amount().ycsb;
    let plan = |candidate| {
        let settings = Settings {
            meeting: contest.ycsb_meeting(candidate),
            amount: amount.clone(),
            seed: contest.workload.seed,
        };
        let seconds = 6.0 * amount.seconds_max + amount.records as f64 / 5e4;
        contest.plan(EXPERIMENT, candidate.name().to_owned(), seconds, settings)
    };
    let plans: Vec<_> = contest.candidates().into_iter().map(plan).collect();
    contest.make::<_, Measured>(
        &plans,
        |settings| &settings.meeting,
        |settings| Task::Ycsb(settings.clone()),
    )
}

/// Stored records: all below a number, which advances although later ones are still being written.
struct Records {
    next: AtomicU64,
    /// All records below are stored.
    stored: AtomicU64,
    on_their_way: Mutex<BTreeSet<u64>>,
}

impl Records {
    fn new(count: u64) -> Self {
        Self {
            next: AtomicU64::new(count),
            stored: AtomicU64::new(count),
            on_their_way: Mutex::new(BTreeSet::new()),
        }
    }

    fn insert(&self, put: impl FnOnce(u64) -> Outcome) -> Outcome {
        let number = {
            let mut on_their_way = self.on_their_way.lock();
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            on_their_way.insert(number);
            number
        };
        put(number)?;
        let mut on_their_way = self.on_their_way.lock();
        on_their_way.remove(&number);
        let stored = on_their_way
            .first()
            .copied()
            .unwrap_or_else(|| self.next.load(Ordering::Relaxed));
        self.stored.fetch_max(stored, Ordering::Release);
        Ok(())
    }

    fn stored(&self) -> u64 {
        self.stored.load(Ordering::Acquire)
    }
}

struct Run<'a> {
    settings: &'a Settings,
    engine: &'a dyn KeyValue,
    objects: Objects,
    popularity: Zipf<f64>,
    records: Records,
}

/// The key of a record, in YCSB's "hashed" order of inserts.
fn key(number: u64) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    let mut rest = mix(number);
    for digit in &mut key {
        *digit = b"0123456789abcdef"[(rest >> 60) as usize];
        rest <<= 4;
    }
    key
}

/// Does a run.
pub fn measure(settings: &Settings, teller: &Teller) -> Outcome<Measured> {
    let amount = &settings.amount;
    let opening = settings.meeting.opening(amount.records, amount.record_bytes());
    let (engine, opening) = step::open_fresh(settings.meeting.candidate, &opening, "ycsb")?;
    let bench = Bench::new(&*engine, &opening)?;
    let run = Run {
        settings,
        engine: &*engine,
        objects: Objects::new(ValueSize::Bytes(amount.value_bytes), settings.seed),
        popularity: Zipf::new(amount.records as f64, EXPONENT)?,
        records: Records::new(amount.records),
    };
    let mut steps = vec![bench.step("load", || run.load(teller))?];
    engine.flush()?;
    for (done, workload) in WORKLOADS.into_iter().enumerate() {
        if workload.scans == 0 || settings.meeting.candidate.abilities().scans {
            steps.push(bench.step(workload.name, || run.work(workload, done as u64))?);
        }
        teller.share(0.4 + 0.1 * (done + 1) as f64);
    }
    engine.flush()?;
    let live_bytes = run.records.stored() * amount.record_bytes();
    let space = opening.disk_bytes()? as f64 / live_bytes as f64;
    let engine_settings = engine.settings();
    engine.close()?;
    step::remove(&opening)?;
    Ok(Measured {
        steps,
        space,
        engine_settings,
    })
}

impl Run<'_> {
    fn put(&self, number: u64) -> Outcome {
        self.engine
            .put(&key(number), self.objects.value(number), Durability::Buffered)
    }

    fn load(&self, teller: &Teller) -> Outcome<Done> {
        let records = self.settings.amount.records;
        let times = timed_loop(self.settings.amount.threads, records, None, 1, |number| {
            self.put(number)?;
            if number.is_multiple_of(4096) {
                teller.share(0.4 * number as f64 / records as f64);
            }
            Ok(0)
        })?;
        Ok(Done::of(times, records, records * self.settings.amount.record_bytes()))
    }

    /// Chooses a record by popularity.
    fn choose(&self, workload: Workload, random: &mut ChaCha8Rng) -> u64 {
        let rank = self.popularity.sample(random) as u64 - 1;
        let stored = self.records.stored();
        if workload.latest {
            stored - 1 - rank % stored
        } else {
            // Another hash than the keys', so that popular records are spread over the key space.
            mix(rank ^ self.settings.seed) % stored
        }
    }

    fn read(&self, number: u64) -> Outcome {
        let forgets = !self.settings.meeting.candidate.abilities().persists;
        step::get(self.engine, &key(number), |found| match found {
            Some(value) => self.objects.check(number, value),
            None if forgets => Ok(()),
            None => Err(format!("record {number} is gone").into()),
        })
    }

    fn work(&self, workload: Workload, stream: u64) -> Outcome<Done> {
        let amount = &self.settings.amount;
        let (pairs, written) = (AtomicU64::new(0), AtomicU64::new(0));
        let time_max = Some(Duration::from_secs_f64(amount.seconds_max));
        let times = timed_loop(amount.threads, amount.operations, time_max, 1, |operation| {
            let mut random = ChaCha8Rng::seed_from_u64(self.settings.seed ^ stream << 32);
            random.set_stream(operation);
            let (seen, puts) = self.operate(workload, &mut random)?;
            pairs.fetch_add(seen, Ordering::Relaxed);
            written.fetch_add(puts, Ordering::Relaxed);
            Ok(0)
        })?;
        let user_bytes = written.into_inner() * amount.record_bytes();
        Ok(Done::of(times, pairs.into_inner(), user_bytes))
    }

    /// Does an operation; returns its pairs, and how many of them it wrote.
    fn operate(&self, workload: Workload, random: &mut ChaCha8Rng) -> Outcome<(u64, u64)> {
        let kind = random.random_range(0..100);
        let scans = workload.inserts + workload.scans;
        let updates = scans + workload.updates;
        if kind < workload.inserts {
            self.records.insert(|number| self.put(number))?;
            return Ok((1, 1));
        }
        let number = self.choose(workload, random);
        if kind < scans {
            let count = random.random_range(1..=SCAN_PAIRS_MAX);
            let mut seen = 0;
            self.engine.scan(&key(number), count as usize, &mut |_, value| {
                seen += u64::from(value.len() == self.settings.amount.value_bytes)
            })?;
            return match seen {
                0 => Err("a scan from a key that is there shows nothing".into()),
                _ => Ok((seen, 0)),
            };
        }
        if kind < updates {
            self.put(number)?;
            return Ok((1, 1));
        }
        self.read(number)?;
        if kind >= updates + workload.reads {
            self.put(number)?;
            return Ok((1, 1));
        }
        Ok((1, 0))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn workloads_are_those_of_the_paper() {
        let names: String = WORKLOADS.iter().map(|workload| workload.name).collect();
        assert_eq!(names, "ABCFDE");
        for workload in WORKLOADS {
            let sum = workload.reads + workload.updates + workload.inserts + workload.scans;
            assert_eq!(sum, if workload.name == "F" { 50 } else { 100 }, "{}", workload.name);
        }
    }

    #[test]
    fn records_have_keys_of_their_own() {
        let keys: HashSet<_> = (0..200_000).map(key).collect();
        assert_eq!(keys.len(), 200_000);
        assert!(key(7).iter().all(u8::is_ascii_hexdigit));
    }

    /// A record is read only after it is stored.
    #[test]
    fn what_is_on_its_way_is_not_stored() {
        let records = Records::new(10);
        records
            .insert(|first| {
                records.insert(|second| {
                    assert_eq!((first, second), (10, 11));
                    Ok(())
                })?;
                assert_eq!(records.stored(), 10);
                Ok(())
            })
            .unwrap();
        assert_eq!(records.stored(), 12);
    }
}
