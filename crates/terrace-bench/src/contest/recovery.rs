//! Recovery time after a kill: a worker fills a database, syncs, continues to write and is killed
//! with SIGKILL; another worker opens the database and reads. All synced objects must be there.
//!
//! It runs after the single operations of `terrace-bench micro`. A killed process leaves its data
//! in the kernel; this is not a power cut.

use super::{
    Contest, Meeting,
    data::{KEY_BYTES, Objects, ValueSize},
    step,
    worker::{Task, Teller},
};
use crate::Outcome;
use serde::{Deserialize, Serialize};
use std::time::Instant;
use terrace::Durability;

/// Experiment name in the results.
pub const EXPERIMENT: &str = "recovery";
const VALUE_BYTES: usize = 1 << 10;
/// Objects per batch.
const BATCH: usize = 100;
/// Writes after the sync, before the kill.
const UNSYNCED: u64 = 10_000;
/// Synced objects to check.
const SAMPLE: u64 = 1000;

/// Amount of work: a part of the contest's file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Amount {
    /// Objects in the database.
    pub objects: u64,
}

/// Settings of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Settings {
    /// Candidate, drives and RAM.
    pub meeting: Meeting,
    /// Objects in the database.
    pub objects: u64,
    /// Seed of the values.
    pub seed: u64,
}

/// Results of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    /// Duration of the open call.
    pub open_seconds: f64,
    /// Time from the open call to the first value read.
    pub first_read_seconds: f64,
    /// Synced objects checked; all were there.
    pub looked_for: u64,
    /// Bytes on disk at the open.
    pub disk_bytes: u64,
}

/// Runs all candidates that survive a kill.
///
/// # Errors
/// If no run can start; failed runs, for example with missing synced objects, are listed at the end
/// ([`Contest::failed`]).
pub fn measure_all(contest: &Contest) -> Outcome {
    let objects = contest.amount().recovery.objects;
    let candidates = contest
        .candidates()
        .into_iter()
        .filter(|candidate| candidate.abilities().survives_kill);
    let plan = |candidate: crate::rivals::Candidate| {
        let settings = Settings {
            meeting: contest.meeting(candidate),
            objects,
            seed: contest.workload.seed,
        };
        contest.plan(
            EXPERIMENT,
            candidate.name().to_owned(),
            2.0 + objects as f64 / 5e4,
            settings,
        )
    };
    contest.make_by(&candidates.map(plan).collect::<Vec<_>>(), |settings, _| {
        let filling = contest.worker(Task::Fill(settings.clone()), &settings.meeting)?;
        let memory_bounded = filling.is_bounded();
        filling.killed_when_ready::<()>(|_| {})?;
        contest.places.drop_caches()?;
        let mut opening = contest.worker(Task::Recover(settings.clone()), &settings.meeting)?;
        let measured: Measured = opening.outcome(|_| {})?;
        Ok(super::Bounded {
            memory_bounded,
            measured,
        })
    })
}

fn opening(settings: &Settings) -> crate::rivals::Opening {
    let opening = settings
        .meeting
        .opening(settings.objects, (VALUE_BYTES + KEY_BYTES) as u64);
    step::below(&opening, "killed")
}

/// Fills a database, then writes until it is killed.
pub fn fill(settings: &Settings, teller: &Teller) -> Outcome {
    let engine = settings.meeting.candidate.open(&opening(settings))?;
    let objects = Objects::new(ValueSize::Bytes(VALUE_BYTES), settings.seed);
    for first in (0..settings.objects).step_by(BATCH) {
        let numbers: Vec<u64> = (first..settings.objects).take(BATCH).collect();
        let keys: Vec<_> = numbers.iter().map(|&number| Objects::key(number)).collect();
        let values = numbers.iter().map(|&number| objects.value(number));
        let pairs: Vec<(&[u8], &[u8])> = keys.iter().map(|key| &key[..]).zip(values).collect();
        engine.put_all(&pairs, Durability::Buffered)?;
    }
    let put = |number: u64| engine.put(&Objects::key(number), objects.value(number), Durability::Buffered);
    engine.sync()?;
    (settings.objects..settings.objects + UNSYNCED).try_for_each(put)?;
    teller.ready(serde_json::Value::Null);
    // The parent kills this process while it writes.
    (settings.objects + UNSYNCED..).try_for_each(put)
}

/// Opens the database after the kill.
pub fn recover(settings: &Settings) -> Outcome<Measured> {
    let opening = opening(settings);
    let objects = Objects::new(ValueSize::Bytes(VALUE_BYTES), settings.seed);
    let disk_bytes = opening.disk_bytes()?;
    let start = Instant::now();
    let engine = settings.meeting.candidate.open(&opening)?;
    let open_seconds = start.elapsed().as_secs_f64();
    let look = |number: u64| {
        step::get(&*engine, &Objects::key(number), |found| match found {
            Some(value) => objects.check(number, value),
            None => Err(format!("object {number} was synced before the kill and is gone").into()),
        })
    };
    look(settings.objects / 2)?;
    let first_read_seconds = start.elapsed().as_secs_f64();
    let looked_for = settings.objects.min(SAMPLE);
    (0..looked_for)
        .map(|at| at * settings.objects / looked_for)
        .try_for_each(look)?;
    engine.close()?;
    Ok(Measured {
        open_seconds,
        first_read_seconds,
        looked_for,
        disk_bytes,
    })
}
