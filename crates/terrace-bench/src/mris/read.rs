//! Figures 10 to 14, tables 2 to 4: random reads of small images, and, after every *ratio* of them,
//! the large image of the last one.
//!
//! Groups are inserted once per contender (without the emulated drives' delays), in random order,
//! except for LevelDB, where they are inserted in key order. It would otherwise write each value
//! nine times, 120 GB in all; its reads can only gain from tables in order. For each run the store
//! is closed, the kernel's caches are dropped, the store is opened without a RAM cache for values,
//! and the reads follow one another. The reads of a run are the same for every contender. Then
//! `fio` measures the drives themselves (the limit).

use super::{
    engine::Groups,
    evaluation::{Contender, Evaluation, Surroundings},
    insert::Order,
};
use crate::{
    Outcome,
    harness::{
        fio::{self, RandomReads},
        latency::LatencySummary,
        place::HASTE,
        progress::Progress,
        results::Plan,
        setup::{BothTraffic, Setup},
    },
    rivals::{Candidate, Figures},
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Experiment name in the results.
pub const EXPERIMENT: &str = "mris-read";
/// Experiment name of fio's reads of the drives.
pub const RAW_EXPERIMENT: &str = "mris-raw";

const NAME: &str = "mris-read";
/// After loading, files must have been unchanged for this time, which is longer than a step of a
/// compaction on an old disk.
const QUIET: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });

/// Settings of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Settings {
    /// The contender.
    pub contender: Contender,
    /// Small reads per large one.
    pub ratio: u64,
    /// Groups stored.
    pub groups: u64,
    /// Small reads.
    pub small_reads: u64,
    /// Sizes and drives.
    pub surroundings: Surroundings,
    /// Number of the run, from 1.
    pub run: u32,
}

/// Measurements of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Read {
    /// From the start of the first read to the end of the last.
    pub seconds: f64,
    /// Reads of small objects.
    pub small: LatencySummary,
    /// Reads of large objects.
    pub large: LatencySummary,
    /// Traffic of the drives during the reads.
    pub traffic: BothTraffic,
    /// The engine's statistics since it was opened.
    pub engine: Figures,
    /// Whether the kernel's caches were cold.
    pub caches_dropped: bool,
    /// Time until the store was open and its indexes filled.
    pub open_seconds: f64,
}

impl Read {
    /// Reads of both kinds.
    pub fn per_second(&self) -> f64 {
        (self.small.count + self.large.count) as f64 / self.seconds
    }

    /// Small reads and microseconds per large read, if there was one.
    pub fn cycle(&self) -> Option<(f64, f64)> {
        let cycles = self.large.count as f64;
        (cycles > 0.0).then(|| (self.small.count as f64 / cycles, self.seconds * 1e6 / cycles))
    }
}

/// Settings of fio's reads of a drive.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RawSettings {
    /// SSD or HDD.
    pub drive: Setup,
    /// The drive.
    pub description: String,
    /// Parameters of the reads.
    pub reads: RandomReads,
    /// Number of the run, from 1.
    pub run: u32,
}

/// The objects to read, in order, with uniformly distributed groups.
fn objects(groups: u64, small_reads: u64, ratio: u64, seed: u64) -> Vec<u64> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    objects_of(small_reads, ratio, || random.random_range(0..groups))
}

/// The objects to read, in order, with groups from `group`.
pub fn objects_of(small_reads: u64, ratio: u64, mut group: impl FnMut() -> u64) -> Vec<u64> {
    let mut objects = Vec::new();
    for number in 1..=small_reads {
        let group = group();
        objects.push(2 * group);
        if number % ratio == 0 {
            objects.push(2 * group + 1);
        }
    }
    objects
}

fn plans(evaluation: &Evaluation, contender: Contender) -> Vec<Plan<'static, Settings>> {
    let amount = &evaluation.amount;
    let (small_us, large_us) = match (contender.engine, contender.setup) {
        (Candidate::LevelDb, Setup::Hdd) => (13_000.0, 30_000.0),
        (_, Setup::Hdd) => (10_000.0, 14_000.0),
        (_, Setup::Hybrid) => (500.0, 14_000.0),
        (_, Setup::Ssd) => (500.0, 2_000.0),
    };
    let mut plans = Vec::new();
    for run in 1..=amount.runs {
        for &ratio in &amount.ratios {
            let reads = amount.small_reads as f64;
            plans.push(Plan {
                experiment: EXPERIMENT,
                name: format!("{}, ratio {ratio:>2}, run {run}", contender.name()),
                seed: evaluation.seed + u64::from(run),
                expected_seconds: reads * (small_us + large_us / ratio as f64) / 1e6 + 1.0,
                settings: Settings {
                    contender,
                    ratio,
                    groups: amount.read_groups,
                    small_reads: amount.small_reads,
                    surroundings: evaluation.surroundings.clone(),
                    run,
                },
            });
        }
    }
    plans
}

fn raw_plans(evaluation: &Evaluation) -> Vec<Plan<'static, RawSettings>> {
    let (amount, surroundings) = (&evaluation.amount, &evaluation.surroundings);
    let mut plans = Vec::new();
    for run in 1..=amount.runs {
        for drive in [Setup::Ssd, Setup::Hdd] {
            let (read_bytes, description) = match drive {
                Setup::Hdd => (surroundings.large_bytes as u64, &surroundings.hdd),
                _ => (surroundings.small_bytes as u64, &surroundings.ssd),
            };
            let reads = RandomReads {
                read_bytes,
                file_bytes: read_bytes * amount.read_groups,
                seconds: amount.raw_seconds,
                seed: evaluation.seed + u64::from(run),
            };
            plans.push(Plan {
                experiment: RAW_EXPERIMENT,
                name: format!("raw {} reads of {read_bytes} B, run {run}", drive.name()),
                seed: reads.seed,
                expected_seconds: f64::from(reads.seconds) + reads.file_bytes as f64 / 50e6,
                settings: RawSettings {
                    drive,
                    description: description.clone(),
                    reads,
                    run,
                },
            });
        }
    }
    plans
}

/// Does all runs.
pub fn run(evaluation: &Evaluation) -> Outcome {
    if evaluation.raw {
        evaluation.bench.run_all(&raw_plans(evaluation), |plan, _| {
            fio::random_reads(plan.settings.drive.flash(&evaluation.places), plan.settings.reads)
        })?;
    }
    for contender in evaluation.contenders() {
        // In key order LevelDB's reads can only gain.
        let order = match contender.engine {
            Candidate::LevelDb => Order::Sequential,
            _ => Order::Random,
        };
        let open = |_: &Settings| evaluation.open(contender, NAME);
        let name = contender.name();
        run_on_one(
            evaluation,
            &name,
            NAME,
            order,
            &plans(evaluation, contender),
            open,
            |plan| {
                let settings = &plan.settings;
                let measured = objects(settings.groups, settings.small_reads, settings.ratio, plan.seed);
                Ok((Vec::new(), measured))
            },
        )?;
    }
    Ok(())
}

/// Does runs of reads on one store, which is filled before the first of them: all groups are
/// inserted in this order, and the store is closed after its background work. `objects` are those
/// to read before, without delays, and those to measure.
pub fn run_on_one<S: Serialize>(
    evaluation: &Evaluation,
    what: &str,
    name: &str,
    order: Order,
    plans: &[Plan<'_, S>],
    open: impl Fn(&S) -> Outcome<Groups>,
    objects: impl Fn(&Plan<'_, S>) -> Outcome<(Vec<u64>, Vec<u64>)>,
) -> Outcome {
    let (bench, groups) = (&evaluation.bench, evaluation.amount.read_groups);
    let Some(first) = plans.first() else { return Ok(()) };
    let done = plans
        .iter()
        .map(|plan| bench.is_done(plan))
        .collect::<Outcome<Vec<bool>>>()?;
    if done.contains(&false) {
        eprintln!("{what}: storing {groups} groups");
        let load = || {
            evaluation.places.fresh(name)?;
            let store = open(&first.settings)?;
            store.insert(&order.groups(groups, evaluation.seed), &bench.progress)?;
            store.engine.flush()?;
            store.settle(QUIET)?;
            store.close().map(drop)
        };
        in_haste(evaluation, load).map_err(|error| format!("{what}: storing {groups} groups: {error}"))?;
    }
    bench.run_all(plans, |plan, progress| {
        let (before, objects) = objects(plan)?;
        measure(evaluation, || open(&plan.settings), &before, &objects, progress)
    })?;
    evaluation.places.remove(name)
}

/// Does work without the emulated drives' delays: it is not measured, and would take hours on a
/// disk.
fn in_haste(evaluation: &Evaluation, work: impl FnOnce() -> Outcome) -> Outcome {
    evaluation.places.hurry(HASTE)?;
    let done = work();
    evaluation.places.hurry(1.0)?;
    done
}

/// Opens a store with cold caches and measures reads of `objects`, after reads of `before` without
/// delays.
fn measure(
    evaluation: &Evaluation,
    open: impl FnOnce() -> Outcome<Groups>,
    before: &[u64],
    objects: &[u64],
    progress: &Progress,
) -> Outcome<Read> {
    let caches_dropped = evaluation.places.drop_caches()?;
    let opening = Instant::now();
    let store = open()?;
    let open_seconds = opening.elapsed().as_secs_f64();
    if !before.is_empty() {
        in_haste(evaluation, || store.read(before, progress).map(drop))?;
    }
    let earlier = evaluation.places.traffic()?;
    let measured = store.read(objects, progress)?;
    let traffic = evaluation.places.traffic()?.since(&earlier);
    Ok(Read {
        seconds: measured.seconds,
        small: measured.kinds[0].summary(),
        large: measured.kinds[1].summary(),
        traffic,
        engine: store.close()?,
        caches_dropped,
        open_seconds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_read_follows_every_ratio_small_ones() {
        let objects = objects(1000, 10, 4, 5);
        let kinds: Vec<u64> = objects.iter().map(|object| object % 2).collect();
        assert_eq!(kinds, [0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!((objects[4], objects[9]), (objects[3] + 1, objects[8] + 1));
        assert!(objects.iter().all(|object| *object < 2000));
    }

    #[test]
    fn small_reads_do_not_depend_on_the_ratio() {
        let small = |ratio| {
            objects(50, 100, ratio, 9)
                .into_iter()
                .filter(|object| object % 2 == 0)
                .collect::<Vec<_>>()
        };
        assert_eq!(small(1), small(64));
        assert_eq!(objects(50, 100, 1, 9).len(), 200);
    }
}
