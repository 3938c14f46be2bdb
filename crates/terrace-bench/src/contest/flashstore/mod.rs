//! `terrace-bench flashstore`: section 5 of the FlashStore paper, with Terrace in place of
//! FlashStore and more rivals than Berkeley DB.
//!
//! [`trace`] makes the two traces. A run replays one of them on one candidate, either with one
//! caller and a sync after every 4 KiB of writes, as in the paper (section 5.2), or with 64 callers
//! and every write synced. [`report`] makes the paper's figures and tables.

pub mod report;
pub mod trace;

use super::{
    Contest, Meeting,
    step::{self, Bench, Done, Step},
    worker::{Task, Teller},
};
use crate::{
    Outcome,
    harness::{driver::timed_loop, setup::Setup, values::Values},
    rivals::{Candidate, KeyValue, Opening},
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::{
    cell::RefCell,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use terrace::Durability;
use trace::{Kind, Operation, Trace};

/// Experiment name in the results.
pub const EXPERIMENT: &str = "flashstore";

/// Name of the record with the machines of tables 4 and 5, so that the results are self-contained.
pub const PLATFORMS: &str = "platforms";

/// Bytes of writes per sync (section 5.2: a page of flash).
const SYNC_BYTES: u64 = 4096;
/// Callers if every write is synced.
const CALLERS: usize = 64;

/// Amount of work: a part of the contest's file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Amount {
    /// Operations of the Xbox trace.
    pub xbox_operations: u64,
    /// Operations of the dedup trace.
    pub dedup_operations: u64,
    /// Longest time of a trace.
    pub seconds_max: f64,
    /// Flash sizes as shares of the data, for figure 7.
    pub flash_shares: Vec<f64>,
}

impl Amount {
    /// Checks that it can be run.
    ///
    /// # Errors
    /// The field and its allowed values.
    pub fn validate(&self) -> Outcome {
        if self.flash_shares.iter().any(|share| !(0.05..=1.0).contains(share)) {
            return Err("flashstore: flash_shares must be from 0.05 to 1".into());
        }
        if self.xbox_operations < 1000 || self.dedup_operations < 1000 {
            return Err("flashstore: at least 1000 operations of each trace".into());
        }
        Ok(())
    }

    const fn operations(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Xbox => self.xbox_operations,
            Kind::Dedup => self.dedup_operations,
        }
    }
}

/// Power and price of a machine (the paper's table 2), in watts and dollars.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Platform {
    /// Name in the tables.
    pub name: String,
    cpu_watts: f64,
    ram_watts: f64,
    ssd_watts: f64,
    hdd_watts: f64,
    chassis_price: f64,
    ssd_price: f64,
    hdd_price: f64,
}

impl Platform {
    /// Operations per joule, with the drive in use (section 5.8).
    pub fn per_joule(&self, rate: f64, setup: Setup) -> f64 {
        rate / (self.cpu_watts + self.ram_watts + self.of(setup, self.ssd_watts, self.hdd_watts))
    }

    /// Operations per second and dollar, with the drive in use (section 5.8).
    pub fn per_dollar(&self, rate: f64, setup: Setup) -> f64 {
        rate / (self.chassis_price + self.of(setup, self.ssd_price, self.hdd_price))
    }

    fn of(&self, setup: Setup, ssd: f64, hdd: f64) -> f64 {
        match setup {
            Setup::Ssd => ssd,
            Setup::Hdd => hdd,
            Setup::Hybrid => ssd + hdd,
        }
    }
}

/// When writes are synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Syncing {
    /// After every 4 KiB; one caller.
    EveryPage,
    /// Each write; 64 callers.
    EveryWrite,
}

impl Syncing {
    /// As text.
    pub const fn name(self) -> &'static str {
        match self {
            Self::EveryPage => "4 KiB",
            Self::EveryWrite => "each write",
        }
    }
}

/// Settings of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Settings {
    /// Candidate, drives and RAM.
    pub meeting: Meeting,
    /// The trace.
    pub trace: Kind,
    /// Its operations.
    pub operations: u64,
    /// When writes are synced.
    pub syncing: Syncing,
    /// Flash as a share of the data, for figure 7; `None` for space for all data.
    pub flash_share: Option<f64>,
    /// Longest time of the trace.
    pub seconds_max: f64,
    /// Seed of the trace.
    pub seed: u64,
}

/// Results of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    /// The trace.
    pub step: Step,
    /// Whether the trace was replayed to its end.
    pub complete: bool,
    /// Gets that found a value.
    pub found: u64,
    /// Sets.
    pub sets: u64,
    /// Bytes on disk at the end relative to the bytes of keys and newest values, if the trace was
    /// replayed completely.
    pub space: Option<f64>,
    /// The engine's tuning, as the adapter reports it.
    pub engine_settings: String,
}

/// Runs all candidates on the fast drive, Berkeley DB and Terrace on the disk, and Terrace with
/// less and less flash in front of the disk. The figures need all three, so the arguments' setup is
/// ignored; without a disk, the last two are skipped.
///
/// # Errors
/// If no run can start; failed runs are listed at the end ([`Contest::failed`]).
pub fn measure_all(contest: &Contest) -> Outcome {
    let amount = &contest.amount().flashstore;
    let mut plans = Vec::new();
    for kind in Kind::ALL {
        let mut add = |candidate: Candidate, setup: Setup, syncing, flash_share: Option<f64>| {
            let share = flash_share.map_or_else(String::new, |share| format!(", {:.0} % flash", share * 100.0));
            let how = if syncing == Syncing::EveryPage {
                ""
            } else {
                ", each write synced"
            };
            let settings = Settings {
                meeting: contest.meeting_on(candidate, setup),
                trace: kind,
                operations: amount.operations(kind),
                syncing,
                flash_share,
                seconds_max: amount.seconds_max,
                seed: contest.workload.seed,
            };
            let name = format!("{}, {} on {}{how}{share}", kind.name(), candidate.name(), setup.name());
            plans.push(contest.plan(EXPERIMENT, name, amount.seconds_max, settings));
        };
        for syncing in [Syncing::EveryPage, Syncing::EveryWrite] {
            for candidate in contest.candidates_on(Setup::Ssd) {
                add(candidate, Setup::Ssd, syncing, None);
            }
        }
        // Berkeley DB would not be slow on the same device.
        let on_disk = if contest.places.share_a_device() {
            Vec::new()
        } else {
            contest.candidates_on(Setup::Hdd)
        };
        for candidate in on_disk {
            if matches!(candidate, Candidate::BerkeleyDb | Candidate::TerraceUncached) {
                add(candidate, Setup::Hdd, Syncing::EveryPage, None);
            }
        }
        for candidate in contest.candidates_on(Setup::Hybrid) {
            if candidate == Candidate::TerraceUncached {
                for &share in &amount.flash_shares {
                    add(candidate, Setup::Hybrid, Syncing::EveryPage, Some(share));
                }
            }
        }
    }
    contest.make::<_, Measured>(
        &plans,
        |settings| &settings.meeting,
        |settings| Task::FlashStore(settings.clone()),
    )?;
    let platforms = contest.plan(
        PLATFORMS,
        "power and prices".to_owned(),
        0.0,
        contest.workload.platforms.clone(),
    );
    contest.bench.run(&platforms, |_| Ok(()))?;
    for section in report::sections(&contest.bench.results.all()?)? {
        println!("{}", section.markdown());
    }
    Ok(())
}

fn opening(settings: &Settings, extent: trace::Extent) -> Opening {
    let opening = settings.meeting.opening(extent.objects, settings.trace.pair_bytes());
    Opening {
        every_write_is_synced: settings.syncing == Syncing::EveryWrite,
        flash_capacity_bytes: settings.flash_share.map(|share| (share * extent.bytes as f64) as u64),
        // Inline values would be on flash whatever the capacity of the log, and nothing would be
        // destaged.
        inline_bytes_max: settings.flash_share.map(|_| 0),
        ..opening
    }
}

/// Does a run, in its own process.
pub fn measure(settings: &Settings, teller: &Teller) -> Outcome<Measured> {
    let extent = trace::extent(settings.trace, settings.operations, settings.seed)?;
    let (engine, opening) = step::open_fresh(settings.meeting.candidate, &opening(settings, extent), "trace")?;
    let bench = Bench::new(&*engine, &opening)?;
    let play = Play {
        settings,
        engine: &*engine,
        values: Values::new(settings.seed, settings.trace.value_bytes_max()),
        trace: Mutex::new(trace::trace(settings.trace, settings.operations, settings.seed)?),
        unsynced_bytes: AtomicU64::new(0),
        found: AtomicU64::new(0),
        sets: AtomicU64::new(0),
        written: AtomicU64::new(0),
    };
    let step = bench.step("trace", || play.run(teller))?;
    let complete = step.operations >= settings.operations;
    engine.flush()?;
    let space = complete.then_some(opening.disk_bytes()? as f64 / extent.bytes.max(1) as f64);
    let (found, sets) = (play.found.load(Ordering::Relaxed), play.sets.load(Ordering::Relaxed));
    let engine_settings = engine.settings();
    engine.close()?;
    step::remove(&opening)?;
    Ok(Measured {
        step,
        complete,
        found,
        sets,
        space,
        engine_settings,
    })
}

struct Play<'a> {
    settings: &'a Settings,
    engine: &'a dyn KeyValue,
    values: Values,
    trace: Mutex<Trace>,
    unsynced_bytes: AtomicU64,
    found: AtomicU64,
    sets: AtomicU64,
    written: AtomicU64,
}

thread_local! {
    static KEY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Play<'_> {
    fn run(&self, teller: &Teller) -> Outcome<Done> {
        let callers = match self.settings.syncing {
            Syncing::EveryPage => 1,
            Syncing::EveryWrite => CALLERS,
        };
        let operations = self.settings.operations;
        let time_max = Some(Duration::from_secs_f64(self.settings.seconds_max));
        let times = timed_loop(callers, operations, time_max, 1, |number| {
            let operation = (self.trace.lock())();
            KEY.with_borrow_mut(|key| self.operate(operation, key))?;
            if number.is_multiple_of(1024) {
                teller.share(number as f64 / operations as f64);
            }
            Ok(0)
        })?;
        let pairs = times.count();
        Ok(Done::of(times, pairs, self.written.load(Ordering::Relaxed)))
    }

    fn operate(&self, operation: Operation, key: &mut Vec<u8>) -> Outcome {
        match operation {
            Operation::Get { number, version } => {
                self.settings.trace.key(number, key);
                self.get(number, version, key)
            }
            Operation::Set { number, version } => {
                self.settings.trace.key(number, key);
                self.set(key, self.value(number, version))
            }
        }
    }

    fn value(&self, number: u64, version: u32) -> &[u8] {
        let length = self.settings.trace.value_bytes(number, version);
        self.values.piece(number ^ u64::from(version) << 40, length)
    }

    fn get(&self, number: u64, version: u32, key: &[u8]) -> Outcome {
        let forgets = !self.settings.meeting.candidate.abilities().persists;
        // With several callers, a set before this get in the trace may still be under way, or a
        // later one be done.
        let is_exact = self.settings.syncing == Syncing::EveryPage;
        step::get(self.engine, key, |found| {
            self.found.fetch_add(u64::from(found.is_some()), Ordering::Relaxed);
            match found {
                None if version == 0 || forgets || !is_exact => Ok(()),
                None => Err(format!("key {number} is gone").into()),
                Some(value) if !is_exact => {
                    let (shortest, longest) = (1, self.settings.trace.value_bytes_max());
                    let is_possible = (shortest..=longest).contains(&value.len());
                    if is_possible {
                        Ok(())
                    } else {
                        Err(format!("key {number} has {} bytes", value.len()).into())
                    }
                }
                Some(_) if version == 0 => Err(format!("key {number} is there, and was never set").into()),
                Some(value) if value == self.value(number, version) => Ok(()),
                Some(_) => Err(format!("key {number} has not its version {version}").into()),
            }
        })
    }

    fn set(&self, key: &[u8], value: &[u8]) -> Outcome {
        let bytes = (key.len() + value.len()) as u64;
        let durability = match self.settings.syncing {
            Syncing::EveryWrite => Durability::Sync,
            Syncing::EveryPage => {
                let unsynced = self.unsynced_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
                if unsynced >= SYNC_BYTES {
                    self.unsynced_bytes.store(0, Ordering::Relaxed);
                    Durability::Sync
                } else {
                    Durability::Buffered
                }
            }
        };
        self.sets.fetch_add(1, Ordering::Relaxed);
        self.written.fetch_add(bytes, Ordering::Relaxed);
        self.engine.put(key, value, durability)
    }
}
