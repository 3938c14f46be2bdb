//! `terrace-bench run`: a workload from a TOML file on one setup.
//!
//! The objects are stored first and the store is opened again with cold caches; then the operations
//! are measured. A wrong value ends the run with an error.

use super::{
    driver::{self, LoopOutcome},
    latency::LatencySummary,
    page::{Section, number},
    progress::Progress,
    report::Evaluation,
    results::{Bench, Plan, Record, ResultArguments},
    setup::{BothTraffic, PlaceArguments, Places, Setup},
    values::Values,
    workload::{Amount, Keys, Pace, Shares, Workload, read_toml},
};
use crate::Outcome;
use rand::{Rng, SeedableRng, distr::Distribution, distr::weighted::WeightedIndex};
use rand_chacha::ChaCha8Rng;
use rand_distr::Zipf;
use serde::{Deserialize, Serialize};
use std::{
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
};
use terrace::{Durability, PutOptions, Store};

/// Experiment name in the results.
pub const EXPERIMENT: &str = "workload";

/// Arguments of the subcommand.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The workload, a TOML file.
    workload: PathBuf,
    /// Placement of small and large values.
    #[arg(long, value_enum, default_value = "hybrid")]
    setup: Setup,
    #[command(flatten)]
    places: PlaceArguments,
    #[command(flatten)]
    results: ResultArguments,
}

/// Settings of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Settings {
    /// The whole workload.
    pub workload: Workload,
    /// Amount of it.
    pub amount: Amount,
    /// Placement of small and large values.
    pub setup: Setup,
    /// The fast drive.
    pub ssd: String,
    /// The disk.
    pub hdd: String,
    /// Number of the run, from 1.
    pub run: u32,
}

/// Measurements of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    /// From the start of the first operation to the end of the last.
    pub seconds: f64,
    /// Reads.
    pub get: LatencySummary,
    /// Writes.
    pub put: LatencySummary,
    /// Traffic of the drives during the operations.
    pub traffic: BothTraffic,
    /// Whether the kernel's caches were cold.
    pub caches_dropped: bool,
}

/// Runs a workload the given number of times.
///
/// # Errors
/// If the workload cannot be read or a run fails.
pub fn run(arguments: Arguments) -> Outcome {
    let workload: Workload = read_toml(Some(&arguments.workload), "")?;
    workload.validate()?;
    let places = Places::open(&arguments.places, workload.seed)?;
    let bench = Bench::new(&arguments.results.results, arguments.results.resume)?;
    let amount = workload.amount(arguments.results.scale);
    let plans: Vec<_> = (1..=amount.runs)
        .map(|run| Plan {
            experiment: EXPERIMENT,
            name: format!("{}, {}, run {run}", workload.name, arguments.setup.name()),
            seed: workload.seed + u64::from(run),
            expected_seconds: expected_seconds(&workload, amount),
            settings: Settings {
                workload: workload.clone(),
                amount,
                setup: arguments.setup,
                ssd: places.ssd.description.clone(),
                hdd: places.hdd.description.clone(),
                run,
            },
        })
        .collect();
    bench
        .progress
        .expect(plans.iter().map(|plan| plan.expected_seconds).sum());
    for plan in &plans {
        bench.run(plan, |progress| measure(&plan.settings, plan.seed, &places, progress))?;
    }
    bench.progress.finish();
    Ok(())
}

/// Runs of workload files in the report.
pub struct Workloads;

impl Evaluation for Workloads {
    fn name(&self) -> &'static str {
        "workloads"
    }

    fn sections(&self, records: &[Record]) -> Outcome<Vec<Section>> {
        let mut rows = Vec::new();
        for record in records.iter().filter(|record| record.experiment == EXPERIMENT) {
            let measured: Measured = record.outcome()?;
            let settings: Settings = record.settings()?;
            for (kind, summary) in [("get", measured.get), ("put", measured.put)] {
                if summary.count > 0 {
                    rows.push((&record.name, settings.setup, kind, summary, measured.seconds));
                }
            }
        }
        let mut section = Section::new("Workloads");
        section.text("In an open loop a latency counts from the moment the operation was due, so waiting is included.");
        let found = !rows.is_empty();
        section.columns(
            "Operations",
            rows,
            &[
                ("run", &|(run, ..)| (*run).clone()),
                ("setup", &|(_, setup, ..)| setup.name().to_owned()),
                ("operation", &|(_, _, kind, ..)| (*kind).to_owned()),
                ("per second", &|(.., summary, seconds)| {
                    format!("{:.1}", summary.count as f64 / seconds)
                }),
                ("mean µs", &|(.., summary, _)| format!("{:.0}", summary.mean_us)),
                ("median µs", &|(.., summary, _)| number(summary.percentile_us(50.0), 0)),
                ("99 % µs", &|(.., summary, _)| number(summary.percentile_us(99.0), 0)),
                ("99.9 % µs", &|(.., summary, _)| number(summary.percentile_us(99.9), 0)),
            ],
        );
        Ok(found.then_some(section).into_iter().collect())
    }
}

/// An estimate for the progress bar: storing at 100 MB/s, then the schedule, or half a millisecond
/// per operation.
fn expected_seconds(workload: &Workload, amount: Amount) -> f64 {
    let weight: f64 = workload.values.iter().map(|size| size.weight).sum();
    let bytes: f64 = workload
        .values
        .iter()
        .map(|size| size.bytes as f64 * size.weight)
        .sum::<f64>()
        / weight;
    let load = amount.objects as f64 * bytes / 1e8;
    let operations = amount.operations as f64;
    load + match workload.pace {
        Pace::Open { per_second, .. } => operations / per_second,
        Pace::Closed { threads } => operations * 5e-4 / threads as f64,
    }
}

/// The objects of a workload: their keys and lengths.
struct Objects {
    values: Values,
    lengths: Vec<u64>,
    weights: WeightedIndex<f64>,
    seed: u64,
}

impl Objects {
    fn new(workload: &Workload) -> Outcome<Self> {
        let lengths: Vec<u64> = workload.values.iter().map(|size| size.bytes).collect();
        Ok(Self {
            values: Values::new(workload.seed, lengths.iter().max().map_or(0, |&length| length as usize)),
            weights: WeightedIndex::new(workload.values.iter().map(|size| size.weight))?,
            lengths,
            seed: workload.seed,
        })
    }

    fn key(number: u64) -> String {
        format!("object/{number:012}")
    }

    /// The same for an object, independent of other draws.
    fn length(&self, number: u64) -> usize {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        self.lengths[self.weights.sample(&mut random)] as usize
    }
}

/// Chooses operations: operation n is the same in every run with the same seed.
struct Choice {
    seed: u64,
    objects: u64,
    keys: Option<Zipf<f64>>,
    put_share: f64,
}

impl Choice {
    fn new(workload: &Workload, amount: Amount, seed: u64) -> Outcome<Self> {
        let keys = match workload.keys {
            Keys::Uniform => None,
            Keys::Zipf { exponent } => Some(Zipf::new(amount.objects as f64, exponent)?),
        };
        let Shares { get, put } = workload.operations;
        Ok(Self {
            seed,
            objects: amount.objects,
            keys,
            put_share: put / (get + put),
        })
    }

    /// The object, and whether it is written.
    fn operation(&self, number: u64) -> (u64, bool) {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        random.set_stream(number);
        let put = random.random::<f64>() < self.put_share;
        let object = match &self.keys {
            None => random.random_range(0..self.objects),
            Some(zipf) => {
                // Popular objects are spread over the key space.
                let rank = (zipf.sample(&mut random) as u64).saturating_sub(1);
                rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.objects
            }
        };
        (object, put)
    }
}

fn store(settings: &Settings, places: &Places, create: bool) -> Outcome<Store> {
    Ok(Store::open(terrace::Options {
        create,
        size_threshold_bytes: settings.workload.size_threshold_bytes,
        cache_bytes: settings.workload.cache_bytes,
        ..settings.setup.options(places, "workload")
    })?)
}

fn measure(settings: &Settings, seed: u64, places: &Places, progress: &Progress) -> Outcome<Measured> {
    let objects = Objects::new(&settings.workload)?;
    places.fresh("workload")?;
    let loading = store(settings, places, true)?;
    let buffered = PutOptions {
        durability: Durability::Buffered,
        ..PutOptions::default()
    };
    for number in 0..settings.amount.objects {
        let value = objects.values.value(number, objects.length(number));
        loading.put_with(Objects::key(number), value, &buffered)?;
        if number.is_multiple_of(256) {
            progress.share(0.4 * number as f64 / settings.amount.objects as f64);
        }
    }
    loading.flush()?;
    loading.close()?;
    drop(loading);
    let caches_dropped = places.drop_caches()?;
    let store = store(settings, places, false)?;
    let before = places.traffic()?;
    let measured = operate(settings, seed, &store, &objects, progress)?;
    store.close()?;
    drop(store);
    let traffic = places.traffic()?.since(&before);
    places.remove("workload")?;
    Ok(Measured {
        seconds: measured.seconds,
        get: measured.kinds[0].summary(),
        put: measured.kinds[1].summary(),
        traffic,
        caches_dropped,
    })
}

fn operate(
    settings: &Settings,
    seed: u64,
    store: &Store,
    objects: &Objects,
    progress: &Progress,
) -> Outcome<LoopOutcome> {
    let Settings { workload, amount, .. } = settings;
    let choice = Choice::new(workload, *amount, seed)?;
    let durability = if workload.sync {
        Durability::Sync
    } else {
        Durability::Buffered
    };
    let options = PutOptions {
        durability,
        ..PutOptions::default()
    };
    let done = AtomicU64::new(0);
    let operation = |number: u64| {
        let (object, put) = choice.operation(number);
        let length = objects.length(object);
        if put {
            store.put_with(Objects::key(object), objects.values.value(object, length), &options)?;
        } else {
            let found = store
                .get(Objects::key(object))?
                .ok_or_else(|| format!("object {object} is gone"))?;
            Values::check(object, length, &found)?;
        }
        let done = done.fetch_add(1, Ordering::Relaxed);
        if done.is_multiple_of(256) {
            progress.share(0.4 + 0.6 * done as f64 / amount.operations as f64);
        }
        Ok(usize::from(put))
    };
    match workload.pace {
        Pace::Closed { threads } => driver::closed_loop(threads, amount.operations, 2, operation),
        Pace::Open {
            threads,
            per_second,
            arrivals,
        } => {
            let pace = driver::Pace {
                per_second,
                arrivals,
                seed,
            };
            driver::open_loop(threads, amount.operations, pace, 2, operation)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn workload() -> Workload {
        read_toml(None, include_str!("../../workloads/mixed-open.toml")).unwrap()
    }

    #[test]
    fn choices_have_the_shares_of_the_workload_and_repeat() {
        let amount = Amount {
            objects: 1000,
            operations: 0,
            runs: 1,
        };
        let choice = Choice::new(&workload(), amount, 5).unwrap();
        let chosen: Vec<(u64, bool)> = (0..20_000).map(|number| choice.operation(number)).collect();
        let puts = chosen.iter().filter(|(_, put)| *put).count();
        assert!((800..1200).contains(&puts), "{puts}");
        let mut counts = vec![0; 1000];
        for (object, _) in &chosen {
            counts[*object as usize] += 1;
        }
        counts.sort_unstable();
        assert!(counts[999] > 20 * counts[500], "{counts:?}");
        assert_eq!(
            choice.operation(77),
            Choice::new(&workload(), amount, 5).unwrap().operation(77)
        );
    }

    #[test]
    fn lengths_have_the_weights_of_the_workload() {
        let objects = Objects::new(&workload()).unwrap();
        let large = (0..17_000).filter(|&number| objects.length(number) == 131_072).count();
        assert!((850..1150).contains(&large), "{large}");
        assert_eq!(objects.length(12), objects.length(12));
    }
}
