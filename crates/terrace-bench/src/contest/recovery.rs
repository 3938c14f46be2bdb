//! How soon a database is there again after its process was killed: a worker fills it, syncs, goes
//! on writing and is killed with SIGKILL; another one opens it and reads. Everything that was
//! synced must be there.
//!
//! It runs after the single operations of `terrace-bench micro`. A kill leaves what the kernel had;
//! nobody's power was cut.

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

/// What kind of run this is, in the results.
pub const EXPERIMENT: &str = "recovery";
const VALUE_BYTES: usize = 1 << 10;
/// Objects put together.
const BATCH: usize = 100;
/// Writes after the sync, before the kill.
const UNSYNCED: u64 = 10_000;
/// Synced objects that are looked for.
const SAMPLE: u64 = 1000;

/// How much is done: a part of the contest's file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Amount {
    /// Objects in the database.
    pub objects: u64,
}

/// What was chosen for a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Settings {
    /// Who, where, with what RAM.
    pub meeting: Meeting,
    /// Objects in the database.
    pub objects: u64,
    /// Of the values.
    pub seed: u64,
}

/// What was measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    /// From the call to open until it returned.
    pub open_seconds: f64,
    /// From the call to open until the first value was read.
    pub first_read_seconds: f64,
    /// Synced objects looked for; all were there.
    pub looked_for: u64,
    /// Bytes on disk when it was opened.
    pub disk_bytes: u64,
}

/// Makes the runs of a contest, of those that survive a kill.
///
/// # Errors
/// If they cannot be made at all; runs that fail, as where synced objects are gone, are named at
/// the end ([`Contest::failed`]).
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
            seed: contest.seed(),
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
        filling.kill_when_ready()?;
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

/// Fills a database and waits for the end.
///
/// # Errors
/// The engine's.
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
    teller.ready();
    // Whoever started this kills it while it writes.
    (settings.objects + UNSYNCED..).try_for_each(put)
}

/// Opens what was left.
///
/// # Errors
/// The engine's, or that a synced object is gone.
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
