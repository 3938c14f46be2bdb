//! `terrace-bench micro`: single operations, named as in the db_bench of LevelDB and RocksDB, with
//! several lengths of values.
//!
//! One run is one candidate and one length. `fillseq`, `fillrandom` and `fillsync`, where every
//! write is synced, each use an empty database. `overwrite`, `readrandom`, `readmissing`,
//! `readwhilewriting`, `scan` and `delete` follow one another on another database, with flushes in
//! between. It is filled before, without measurement, so all candidates have the same data.
//!
//! An operation ends after its count or its time. Writes have a larger count than reads: in a fifth
//! of a second no engine pays the deferred costs of its writes.

use super::{
    Contest, Meeting,
    data::{Objects, Order, ValueSize},
    step::{self, Bench, Done, Step},
    worker::{Task, Teller},
};
use crate::{
    Outcome,
    harness::{driver::timed_loop, setup::Setup},
    rivals::{Candidate, KeyValue, Opening},
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};
use terrace::Durability;

/// Experiment name in the results.
pub const EXPERIMENT: &str = "micro";

/// Fewest and most pairs of a scan; in between, as many as have this many bytes.
const SCAN_PAIRS: (u64, u64) = (10, 100);
const SCAN_BYTES: f64 = 8e6;
/// Limit of the time to fill the database for reads, as a multiple of an operation's time.
const FILL_TIMES: f64 = 20.0;

/// Amount of work: a part of the contest's file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Amount {
    /// Bytes of keys and values in the database for reads.
    pub data_bytes: u64,
    /// Most objects in it.
    pub objects_max: u64,
    /// Bytes of keys and values written by measured writes.
    pub written_bytes: u64,
    /// Longest time of a measured operation.
    pub seconds_max: f64,
    /// Lengths of values.
    pub sizes: Vec<ValueSize>,
}

/// Amount of work, and RAM, on two drives.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TwoDrives {
    /// As [`Amount::data_bytes`].
    pub data_bytes: u64,
    /// Share of the data that fits on flash.
    pub flash_share: f64,
    /// As the contest's own.
    pub cache_mib: u64,
    /// See `cache_mib`.
    pub terrace_cache_mib: u64,
    /// See `cache_mib`.
    pub memory_mib: u64,
    /// As [`Amount::seconds_max`].
    pub seconds_max: f64,
}

impl TwoDrives {
    /// Conditions of a candidate with this RAM, which is less than on one drive: otherwise the data
    /// would fit into it.
    fn meeting(&self, contest: &Contest, candidate: Candidate) -> Meeting {
        contest
            .meeting(candidate)
            .with_ram(self.cache_mib, self.terrace_cache_mib, self.memory_mib)
    }
}

/// Settings of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Settings {
    /// Candidate, drives and RAM.
    pub meeting: Meeting,
    /// Length of values.
    pub size: ValueSize,
    /// Objects in the database for reads.
    pub objects: u64,
    /// Objects written by measured writes.
    #[serde(default)]
    pub written: u64,
    /// Share of the data that fits on flash, on two drives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flash_share: Option<f64>,
    /// Longest time of a measured operation.
    pub seconds_max: f64,
    /// Threads that write without syncs, that write with syncs, and that read.
    pub write_threads: usize,
    /// See `write_threads`.
    pub sync_threads: usize,
    /// See `write_threads`.
    pub read_threads: usize,
    /// Seed of everything random.
    pub seed: u64,
}

/// Results of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    /// The operations.
    pub steps: Vec<Step>,
    /// Objects in the database for reads.
    pub stored: u64,
    /// Bytes on disk relative to bytes of keys and values, after `fillrandom` and after
    /// `overwrite`, each flushed.
    pub space_after_fill: f64,
    /// See `space_after_fill`.
    pub space_after_overwrite: f64,
    /// The engine's tuning, as the adapter reports it.
    pub engine_settings: String,
}

impl Measured {
    /// An operation by name.
    pub fn step(&self, name: &str) -> Option<&Step> {
        self.steps.iter().find(|step| step.name == name)
    }
}

/// Runs all candidates of a contest.
///
/// # Errors
/// If no run can start; failed runs are listed at the end ([`Contest::failed`]).
pub fn measure_all(contest: &Contest) -> Outcome {
    let amount = &contest.amount().micro;
    let two_drives = Some(&contest.amount().two_drives).filter(|_| contest.common.setup == Setup::Hybrid);
    let (data_bytes, written_bytes, seconds_max) = two_drives.map_or(
        (amount.data_bytes, amount.written_bytes, amount.seconds_max),
        |amount| (amount.data_bytes, amount.data_bytes, amount.seconds_max),
    );
    let mut plans = Vec::new();
    for &size in &amount.sizes {
        for candidate in contest.candidates() {
            let pair_bytes = size.mean() + super::data::KEY_BYTES as f64;
            let objects = ((data_bytes as f64 / pair_bytes) as u64).clamp(64, amount.objects_max.max(64));
            plans.push(contest.plan(
                EXPERIMENT,
                format!("{} {size}", candidate.name()),
                15.0 * seconds_max,
                Settings {
                    meeting: match two_drives {
                        Some(amount) => amount.meeting(contest, candidate),
                        None => contest.meeting(candidate),
                    },
                    size,
                    objects,
                    written: objects.max((written_bytes as f64 / pair_bytes) as u64),
                    flash_share: two_drives.map(|amount| amount.flash_share),
                    seconds_max,
                    write_threads: 1,
                    sync_threads: 64,
                    read_threads: 8,
                    seed: contest.workload.seed,
                },
            ));
        }
    }
    contest.make::<_, Measured>(
        &plans,
        |settings| &settings.meeting,
        |settings| Task::Micro(settings.clone()),
    )
}

/// A run, in its own process.
struct Run<'a> {
    settings: &'a Settings,
    objects: Objects,
    /// The order of the objects in the database for reads.
    order: Order,
    teller: &'a Teller,
    /// Objects in the database: a prefix of the order.
    stored: u64,
}

/// Does a run.
pub fn measure(settings: &Settings, teller: &Teller) -> Outcome<Measured> {
    let mut run = Run {
        settings,
        objects: Objects::new(settings.size, settings.seed),
        order: Order::new(settings.objects, settings.seed),
        teller,
        stored: 0,
    };
    let candidate = settings.meeting.candidate;
    let pair_bytes = settings.size.mean() as u64 + super::data::KEY_BYTES as u64;
    let data_bytes = (settings.objects * pair_bytes) as f64;
    let opening = Opening {
        flash_capacity_bytes: settings.flash_share.map(|share| (share * data_bytes) as u64),
        ..settings.meeting.opening(settings.objects, pair_bytes)
    };
    let writing = Opening {
        expected_objects: settings.written,
        ..opening.clone()
    };
    let random = Order::new(settings.written, settings.seed);
    let mut steps = vec![
        run.fill_fresh("fillseq", &writing, |place| place)?,
        run.fill_fresh("fillrandom", &writing, |place| random.at(place))?,
    ];
    teller.share(0.2);
    let (engine, second) = step::open_fresh(candidate, &opening, "random")?;
    let bench = Bench::new(&*engine, &second)?;
    let loaded = run.load(bench.engine)?;
    run.stored = loaded.pairs;
    engine.flush()?;
    let space = || {
        Ok::<f64, Box<dyn std::error::Error + Send + Sync>>(
            second.disk_bytes()? as f64 / loaded.user_bytes.max(1) as f64,
        )
    };
    let space_after_fill = space()?;
    teller.share(0.3);
    steps.push(bench.step("overwrite", || run.overwrite(bench.engine))?);
    engine.flush()?;
    let space_after_overwrite = space()?;
    teller.share(0.4);
    run.read_steps(&bench, &mut steps)?;
    steps.push(bench.step("delete", || run.delete(bench.engine))?);
    let engine_settings = engine.settings();
    engine.close()?;
    step::remove(&second)?;
    teller.share(0.9);
    let synced = Opening {
        every_write_is_synced: true,
        ..writing
    };
    steps.push(run.fill_fresh("fillsync", &synced, |place| random.at(place))?);
    Ok(Measured {
        steps,
        stored: run.stored,
        space_after_fill,
        space_after_overwrite,
        engine_settings,
    })
}

impl Run<'_> {
    /// Fills an empty database.
    fn fill_fresh(&self, name: &str, opening: &Opening, order: impl Fn(u64) -> u64 + Sync) -> Outcome<Step> {
        let settings = self.settings;
        let (threads, durability) = if opening.every_write_is_synced {
            (settings.sync_threads, Durability::Sync)
        } else {
            (settings.write_threads, Durability::Buffered)
        };
        let (engine, opening) = step::open_fresh(settings.meeting.candidate, opening, "fill")?;
        let fill = || {
            self.put(
                &*engine,
                threads,
                durability,
                (settings.written, self.time_max()),
                order,
            )
        };
        let measured = Bench::new(&*engine, &opening)?.step(name, fill)?;
        engine.close()?;
        step::remove(&opening)?;
        Ok(measured)
    }

    fn time_max(&self) -> Option<Duration> {
        Some(Duration::from_secs_f64(self.settings.seconds_max))
    }

    /// A random number for an operation.
    fn random(&self, kind: u64, number: u64) -> ChaCha8Rng {
        let mut random = ChaCha8Rng::seed_from_u64(self.settings.seed ^ kind << 32);
        random.set_stream(number);
        random
    }

    /// A stored object for an operation.
    fn any(&self, kind: u64, number: u64) -> u64 {
        self.order
            .at(self.random(kind, number).random_range(0..self.stored.max(1)))
    }

    /// Puts `count` objects in an order, or as many as the time allows.
    fn put(
        &self,
        engine: &dyn KeyValue,
        threads: usize,
        durability: Durability,
        (count, time_max): (u64, Option<Duration>),
        order: impl Fn(u64) -> u64 + Sync,
    ) -> Outcome<Done> {
        let times = timed_loop(threads, count, time_max, 1, |place| {
            let number = order(place);
            engine.put(&Objects::key(number), self.objects.value(number), durability)?;
            Ok(0)
        })?;
        let count = times.count();
        let user_bytes = (0..count).map(|place| self.objects.pair_bytes(order(place))).sum();
        Ok(Done::of(times, count, user_bytes))
    }

    /// Fills the database for reads, with fewer objects only if it would take very long.
    fn load(&self, engine: &dyn KeyValue) -> Outcome<Done> {
        let time_max = Duration::from_secs_f64(FILL_TIMES * self.settings.seconds_max);
        let amount = (self.settings.objects, Some(time_max));
        self.put(engine, 1, Durability::Buffered, amount, |place| self.order.at(place))
    }

    fn overwrite(&self, engine: &dyn KeyValue) -> Outcome<Done> {
        let (threads, amount) = (self.settings.write_threads, (self.settings.written, self.time_max()));
        self.put(engine, threads, Durability::Buffered, amount, |place| {
            self.any(1, place)
        })
    }

    fn read_steps(&self, bench: &Bench<'_>, steps: &mut Vec<Step>) -> Outcome {
        let (engine, candidate) = (bench.engine, self.settings.meeting.candidate);
        self.warm_up(engine)?;
        steps.push(bench.step("readrandom", || self.read(engine, 3, &AtomicBool::new(false)))?);
        self.teller.share(0.55);
        steps.push(bench.step("readmissing", || self.read_missing(engine))?);
        self.teller.share(0.65);
        steps.push(bench.step("readwhilewriting", || self.read_while_writing(engine))?);
        self.teller.share(0.75);
        if candidate.abilities().scans {
            steps.push(bench.step("scan", || self.scan(engine))?);
        }
        Ok(())
    }

    /// Reads everything once, if there is time, without measurement, to fill the caches.
    fn warm_up(&self, engine: &dyn KeyValue) -> Outcome {
        let time_max = self.time_max().map(|time| 10 * time);
        timed_loop(self.settings.read_threads, self.stored, time_max, 1, |place| {
            step::get(engine, &Objects::key(self.order.at(place)), |_| Ok(0))
        })
        .map(drop)
    }

    fn read(&self, engine: &dyn KeyValue, kind: u64, ended: &AtomicBool) -> Outcome<Done> {
        let forgets = !self.settings.meeting.candidate.abilities().persists;
        let times = timed_loop(self.settings.read_threads, u64::MAX, self.time_max(), 1, |operation| {
            let number = self.any(kind, operation);
            step::get(engine, &Objects::key(number), |found| match found {
                Some(value) => self.objects.check(number, value),
                None if forgets => Ok(()),
                None => Err(format!("object {number} is gone").into()),
            })?;
            Ok(0)
        });
        ended.store(true, Ordering::Relaxed);
        times.map(Done::reads)
    }

    fn read_missing(&self, engine: &dyn KeyValue) -> Outcome<Done> {
        let times = timed_loop(self.settings.read_threads, u64::MAX, self.time_max(), 1, |operation| {
            let number = self.any(4, operation);
            step::get(engine, &Objects::absent_key(number), |found| match found {
                Some(_) => Err(format!("a key behind object {number} is there, and was never put").into()),
                None => Ok(0),
            })
        })?;
        Ok(Done::reads(times))
    }

    fn read_while_writing(&self, engine: &dyn KeyValue) -> Outcome<Done> {
        let (ended, written) = (AtomicBool::new(false), AtomicU64::new(0));
        let mut done = std::thread::scope(|scope| {
            let writer = scope.spawn(|| -> Outcome {
                let mut operation = 0;
                while !ended.load(Ordering::Relaxed) {
                    let number = self.any(5, operation);
                    engine.put(&Objects::key(number), self.objects.value(number), Durability::Buffered)?;
                    written.fetch_add(self.objects.pair_bytes(number), Ordering::Relaxed);
                    operation += 1;
                }
                Ok(())
            });
            let done = self.read(engine, 6, &ended);
            writer.join().map_err(|_| "the writer panicked")??;
            done
        })?;
        done.user_bytes = written.into_inner();
        Ok(done)
    }

    fn scan(&self, engine: &dyn KeyValue) -> Outcome<Done> {
        let length = ((SCAN_BYTES / self.settings.size.mean()) as u64).clamp(SCAN_PAIRS.0, SCAN_PAIRS.1);
        let pairs = AtomicU64::new(0);
        let times = timed_loop(1, u64::MAX, self.time_max(), 1, |operation| {
            let (mut seen, mut last) = (0, None);
            let mut sound: Outcome = Ok(());
            let from = Objects::key(self.any(7, operation));
            engine.scan(&from, length as usize, &mut |key, value| {
                let number = std::str::from_utf8(key).ok().and_then(|text| text.parse::<u64>().ok());
                if sound.is_ok() {
                    sound = match number {
                        Some(number) if last < Some(number) => self.objects.check(number, value),
                        _ => Err("a scan shows keys out of order".into()),
                    };
                }
                (seen, last) = (seen + 1, number);
            })?;
            sound?;
            pairs.fetch_add(seen, Ordering::Relaxed);
            Ok(0)
        })?;
        Ok(Done::of(times, pairs.into_inner(), 0))
    }

    fn delete(&self, engine: &dyn KeyValue) -> Outcome<Done> {
        let threads = self.settings.write_threads;
        let times = timed_loop(threads, self.stored / 2, self.time_max(), 1, |place| {
            engine.delete(&Objects::key(self.order.at(place)), Durability::Buffered)?;
            Ok(0)
        })?;
        let count = times.count();
        Ok(Done::of(times, count, count * super::data::KEY_BYTES as u64))
    }
}
