//! The two processes of a run: one grows a database and is killed, the other opens it.

use super::Settings;
use crate::{
    Outcome,
    contest::{
        data::{KEY_BYTES, Objects, Order, ValueSize, mix},
        step::{self, Bench, Done, Step},
        usage::Usage,
        worker::Teller,
    },
    harness::driver::{LoopOutcome, timed_loop},
    rivals::{Figures, KeyValue, Opening},
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Zipf};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};
use terrace::Durability;

/// Exponent of the popularity.
const EXPONENT: f64 = 0.99;
/// Number of parts of the filling with a rate each.
const SLICES: u64 = 20;
/// Number of intervals of reading the reopened database, with a rate each.
const INTERVALS: u32 = 120;
/// Objects checked after the kill, in addition to those read.
const SAMPLE: u64 = 1000;
const NAME: &str = "scale";

/// A part of the filling.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// Objects at its end.
    pub objects: u64,
    /// Objects put.
    pub put: u64,
    /// How long that took.
    pub seconds: f64,
}

/// Reads of a kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reads {
    /// Latencies and usage.
    pub step: Step,
    /// Device reads per get, as counted by the engine.
    pub device_reads: Option<f64>,
}

/// Measurements at a number of objects.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Level {
    /// That number.
    pub objects: u64,
    /// Filling, from the step before.
    pub fill: Step,
    /// Uniform reads.
    pub uniform: Reads,
    /// By Zipf's law.
    pub popular: Reads,
    /// Reads of absent keys.
    pub absent: Reads,
    /// The engine's figures after the reads.
    pub figures: Figures,
    /// The process's RAM after the reads.
    pub ram_bytes: Option<u64>,
    /// Bytes of its files.
    pub disk_bytes: u64,
}

impl Level {
    /// The process's RAM per object, without its caches' contents.
    pub fn other_ram_per_object(&self) -> Option<f64> {
        let other = self.ram_bytes?.saturating_sub(self.figures.cache_bytes?);
        Some(other as f64 / self.objects.max(1) as f64)
    }
}

/// Measurements until the kill.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Grown {
    /// The steps.
    pub levels: Vec<Level>,
    /// The filling in small parts.
    pub slices: Vec<Slice>,
    /// The engine's tuning, as the adapter reports it.
    pub engine_settings: String,
}

impl Grown {
    /// Objects that had been synced at the kill.
    pub fn stored(&self) -> u64 {
        self.levels.last().map_or(0, |level| level.objects)
    }
}

/// Measurements after the kill.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Reopened {
    /// Duration of the open call.
    pub open_seconds: f64,
    /// Time from the open call to the first value read.
    pub first_read_seconds: f64,
    /// Time from the open call to the end of each interval, and its gets per second.
    pub rates: Vec<(f64, f64)>,
    /// Synced objects checked in addition; all were there.
    pub looked_for: u64,
    /// The process's RAM at the end.
    pub ram_bytes: Option<u64>,
}

impl Reopened {
    /// Gets per second in the last quarter of the time.
    pub fn steady_rate(&self) -> f64 {
        let last = &self.rates[self.rates.len() - self.rates.len().div_ceil(4)..];
        last.iter().map(|interval| interval.1).sum::<f64>() / last.len().max(1) as f64
    }

    /// Time from the open call to the end of the first interval with at least this rate; `None` if
    /// there was none.
    pub fn seconds_to(&self, rate: f64) -> Option<f64> {
        let reached = self.rates.iter().find(|interval| interval.1 >= rate);
        reached.map(|interval| interval.0)
    }
}

/// An engine and its contents.
struct Run<'a> {
    settings: &'a Settings,
    engine: &'a dyn KeyValue,
    objects: Objects,
    order: Order,
}

fn opening(settings: &Settings) -> Opening {
    let object_bytes = (settings.value_bytes + KEY_BYTES) as u64;
    let opening = settings.meeting.opening(settings.most().unwrap_or(0), object_bytes);
    step::below(&opening, NAME)
}

impl<'a> Run<'a> {
    fn new(settings: &'a Settings, engine: &'a dyn KeyValue) -> Outcome<Self> {
        Ok(Self {
            settings,
            engine,
            objects: Objects::new(ValueSize::Bytes(settings.value_bytes), settings.seed),
            order: Order::new(settings.most().ok_or("no objects to put")?, settings.seed),
        })
    }

    fn put(&self, number: u64) -> Outcome {
        let (key, value) = (Objects::key(number), self.objects.value(number));
        self.engine.put(&key, value, Durability::Buffered)
    }

    fn look(&self, number: u64) -> Outcome {
        step::get(self.engine, &Objects::key(number), |found| match found {
            Some(value) => self.objects.check(number, value),
            None => Err(format!("object {number} was put and is gone").into()),
        })
    }

    /// Puts the objects in a range of the order, or as many as the time allows.
    fn fill(&self, from: u64, to: u64, until: Instant) -> Outcome<LoopOutcome> {
        let left = until.saturating_duration_since(Instant::now());
        timed_loop(self.settings.pace.writers, to - from, Some(left), 1, |place| {
            self.put(self.order.at(from + place))?;
            Ok(0)
        })
    }

    /// Grows to a number of objects, in slices; returns the number reached.
    fn grow(&self, range: [u64; 2], until: Instant, slices: &mut Vec<Slice>, teller: &Teller) -> Outcome<(Done, u64)> {
        let [mut stored, to] = range;
        let most = self.settings.most().unwrap_or(to);
        let slice = most.div_ceil(SLICES);
        let mut times = LoopOutcome::empty(1);
        while stored < to {
            let next = ((stored / slice + 1) * slice).min(to);
            let part = self.fill(stored, next, until)?;
            let put = part.count();
            times.add(&part);
            stored += put;
            if put > 0 {
                slices.push(Slice {
                    objects: stored,
                    put,
                    seconds: part.seconds,
                });
            }
            teller.share(stored as f64 / most as f64);
            if stored < next {
                break;
            }
        }
        let put = stored - range[0];
        let user_bytes = put * (KEY_BYTES + self.settings.value_bytes) as u64;
        Ok((Done::of(times, put, user_bytes), stored))
    }

    /// Reads for some time the objects that `get` chooses.
    fn read(&self, bench: &Bench<'_>, name: &str, get: impl Fn(u64) -> Outcome + Sync) -> Outcome<Reads> {
        let before = self.engine.figures();
        let step = bench.step(name, || {
            let times = self.read_for(Duration::from_secs_f64(self.settings.pace.read_seconds), &get)?;
            Ok(Done::reads(times))
        })?;
        let reads = |figures: &Figures| figures.device_reads;
        let device_reads = reads(&self.engine.figures())
            .zip(reads(&before))
            .map(|(after, before)| after.saturating_sub(before) as f64 / step.operations.max(1) as f64);
        Ok(Reads { step, device_reads })
    }

    fn read_for(&self, time: Duration, get: impl Fn(u64) -> Outcome + Sync) -> Outcome<LoopOutcome> {
        timed_loop(self.settings.pace.readers, u64::MAX, Some(time), 1, |number| {
            get(number)?;
            Ok(0)
        })
    }

    /// One of the first `stored` objects, for the number of a read.
    fn any(&self, number: u64, stored: u64) -> u64 {
        self.order.at(mix(number ^ self.settings.seed << 32) % stored)
    }

    /// Measures reads of `stored` objects.
    fn level(&self, bench: &Bench<'_>, fill: Step, stored: u64, opening: &Opening) -> Outcome<Level> {
        let popularity = Zipf::new(stored as f64, EXPONENT)?;
        let uniform = self.read(bench, "uniform", |number| self.look(self.any(number, stored)))?;
        let popular = self.read(bench, "popular", |number| {
            let mut random = ChaCha8Rng::seed_from_u64(self.settings.seed);
            random.set_stream(number);
            let rank = popularity.sample(&mut random) as u64 - 1;
            self.look(self.any(rank, stored))
        })?;
        let absent = self.read(bench, "absent", |number| {
            let key = Objects::absent_key(self.any(number, stored));
            step::get(self.engine, &key, |found| match found {
                Some(_) => Err("a key that was never put is there".into()),
                None => Ok(()),
            })
        })?;
        Ok(Level {
            objects: stored,
            fill,
            uniform,
            popular,
            ram_bytes: absent.step.usage.ram_bytes,
            absent,
            figures: self.engine.figures(),
            disk_bytes: opening.disk_bytes()?,
        })
    }
}

/// Grows a database step by step, reports the measurements, and continues to write until killed.
pub fn grow(settings: &Settings, teller: &Teller) -> Outcome {
    let opening = opening(settings);
    let engine = settings.meeting.candidate.open(&opening)?;
    let bench = Bench::new(&*engine, &opening)?;
    let run = Run::new(settings, &*engine)?;
    let until = Instant::now() + Duration::from_secs_f64(settings.pace.fill_seconds_max);
    // Time of reads, which does not count as filling.
    let mut paused = Duration::ZERO;
    let (mut levels, mut slices, mut stored) = (Vec::new(), Vec::new(), 0);
    for &objects in &settings.objects {
        let fill = bench.step("fill", || {
            let (done, now) = run.grow([stored, objects], until + paused, &mut slices, teller)?;
            stored = now;
            Ok(done)
        })?;
        let pause = Instant::now();
        engine.flush()?;
        if fill.operations > 0 {
            levels.push(run.level(&bench, fill, stored, &opening)?);
        }
        paused += pause.elapsed();
        if stored < objects {
            break;
        }
    }
    engine.sync()?;
    teller.ready(serde_json::to_value(Grown {
        levels,
        slices,
        engine_settings: engine.settings(),
    })?);
    // The parent kills this process while it writes.
    (settings.most().unwrap_or(0)..).try_for_each(|number| run.put(number))
}

/// Task of the second process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Reopening {
    /// Settings of the first process.
    pub settings: Settings,
    /// Objects that it had synced.
    pub stored: u64,
}

/// Opens the database after the kill and reads it.
pub fn reopen(reopening: &Reopening) -> Outcome<Reopened> {
    let Reopening { settings, stored } = reopening;
    let stored = (*stored).max(1);
    let opening = opening(settings);
    let start = Instant::now();
    let engine = settings.meeting.candidate.open(&opening)?;
    let open_seconds = start.elapsed().as_secs_f64();
    let run = Run::new(settings, &*engine)?;
    run.look(run.order.at(stored / 2))?;
    let first_read_seconds = start.elapsed().as_secs_f64();
    let interval = Duration::from_secs_f64(settings.pace.reopened_seconds) / INTERVALS;
    let mut rates = Vec::new();
    for part in 0..u64::from(INTERVALS) {
        let times = run.read_for(interval, |number| run.look(run.any(part << 48 | number, stored)))?;
        rates.push((start.elapsed().as_secs_f64(), times.rate()));
    }
    let looked_for = stored.min(SAMPLE);
    (0..looked_for)
        .map(|at| run.order.at(at * stored / looked_for))
        .try_for_each(|number| run.look(number))?;
    let ram_bytes = Usage::now(engine.process()).ram_bytes;
    engine.close()?;
    Ok(Reopened {
        open_seconds,
        first_read_seconds,
        rates,
        looked_for,
        ram_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_when_the_reopened_one_is_itself_again() {
        let rates = [(1.0, 10.0), (2.0, 40.0), (3.0, 100.0), (4.0, 80.0)];
        let reopened = Reopened {
            open_seconds: 0.1,
            first_read_seconds: 0.2,
            rates: rates.to_vec(),
            looked_for: 0,
            ram_bytes: None,
        };
        assert!((reopened.steady_rate() - 80.0).abs() < 1e-9);
        assert_eq!(reopened.seconds_to(reopened.steady_rate() / 2.0), Some(2.0));
        assert_eq!(reopened.seconds_to(101.0), None);
    }
}
