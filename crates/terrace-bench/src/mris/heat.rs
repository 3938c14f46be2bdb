//! The reads of figures 10 to 14 with images of different popularity: Hybrid, with the flash cache
//! off and on, and the same reads for both.
//!
//! The popularity of groups follows Zipf's law and is independent of their keys. Flash has space
//! for the small images and for a part of the large ones. With the flash cache on, reads with the
//! same distribution come first (without the emulated drives' delays), to warm it up, and
//! measurement follows without reopening. The results stand beside the static model: equation 3
//! with the costs of reads where only size decides.

use super::{
    engine::{Groups, Heat, Tuning},
    evaluation::{Contender, Evaluation, Surroundings},
    insert::Order,
    model::{Model, largest},
    read::{Read, objects_of, run_on_one},
};
use crate::{
    Outcome,
    harness::{
        page::{Section, number},
        results::{Plan, Record, rows},
        setup::Setup,
        statistics::regress,
    },
    rivals::Candidate,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Zipf};
use serde::{Deserialize, Serialize};

/// Experiment name in the results.
pub const EXPERIMENT: &str = "mris-heat";
const NAME: &str = "mris-heat";
/// Segment size of the log and the copies: small, since there is little flash.
const SEGMENT_BYTES: u64 = 4 << 20;
/// RAM for objects being copied to flash: the engine's default.
const STAGING_BYTES: u64 = 64 << 20;
/// Space for a small image with its metadata, relative to its length, including free segments.
const SMALL_ROOM: f64 = 1.3;

/// Settings of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Whether the flash cache is on.
    pub heat: bool,
    /// Zipf's exponent.
    pub exponent: f64,
    /// Space on flash for copies, as a share of the large images.
    pub flash_share: f64,
    /// Small reads per large one.
    pub ratio: u64,
    /// Groups stored.
    pub groups: u64,
    /// Small reads.
    pub small_reads: u64,
    /// Small reads for warming up, with the flash cache on.
    pub reads_before: u64,
    /// Sizes and drives.
    pub surroundings: Surroundings,
    /// Number of the run, from 1.
    pub run: u32,
}

fn plans(evaluation: &Evaluation) -> Vec<Plan<'static, Settings>> {
    let amount = &evaluation.amount;
    let (exponent, flash_share) = evaluation.heat;
    let mut plans = Vec::new();
    let is_wanted = evaluation
        .contenders()
        .any(|contender| contender == Contender::terrace(Setup::Hybrid));
    for run in 1..=if is_wanted { amount.runs } else { 0 } {
        for heat in [false, true] {
            for &ratio in &amount.ratios {
                let (reads, before) = (amount.small_reads as f64, if heat { amount.heat_reads } else { 0 });
                plans.push(Plan {
                    experiment: EXPERIMENT,
                    name: format!("popular images, heat {}, ratio {ratio:>2}, run {run}", on(heat)),
                    seed: evaluation.seed + u64::from(run),
                    expected_seconds: (reads + before as f64 / 10.0) * (500.0 + 14_000.0 / ratio as f64) / 1e6 + 1.0,
                    settings: Settings {
                        heat,
                        exponent,
                        flash_share,
                        ratio,
                        groups: amount.read_groups,
                        small_reads: amount.small_reads,
                        reads_before: before,
                        surroundings: evaluation.surroundings.clone(),
                        run,
                    },
                });
            }
        }
    }
    plans
}

const fn on(heat: bool) -> &'static str {
    if heat { "on" } else { "off" }
}

/// Does all runs. Those with the flash cache come last, since their copies stay in the store.
pub fn run(evaluation: &Evaluation) -> Outcome {
    let mut plans = plans(evaluation);
    plans.sort_by_key(|plan| plan.settings.heat);
    let open = |settings: &Settings| open(evaluation, settings);
    run_on_one(
        evaluation,
        "popular images",
        NAME,
        Order::Random,
        &plans,
        open,
        |plan| {
            let settings = &plan.settings;
            let mut before = Popular::new(settings, plan.seed ^ 0x5eed)?;
            let mut popular = Popular::new(settings, plan.seed)?;
            Ok((
                objects_of(settings.reads_before, settings.ratio, || before.next()),
                objects_of(settings.small_reads, settings.ratio, || popular.next()),
            ))
        },
    )
}

fn open(evaluation: &Evaluation, settings: &Settings) -> Outcome<Groups> {
    let sizes = settings.surroundings.sizes();
    let bytes = sizes.small_bytes as f64 * SMALL_ROOM + sizes.large_bytes as f64 * settings.flash_share;
    let tuning = Tuning {
        segment_bytes: SEGMENT_BYTES.min(settings.surroundings.tuning.segment_bytes),
        ..settings.surroundings.tuning
    };
    let heat = Heat {
        staging_bytes: if settings.heat { STAGING_BYTES } else { 0 },
        flash_capacity_bytes: Some(((settings.groups as f64 * bytes) as u64).max(16 * tuning.segment_bytes)),
    };
    evaluation.open_terrace(Setup::Hybrid, NAME, tuning, heat)
}

/// Draws groups by their popularity.
struct Popular {
    zipf: Zipf<f64>,
    /// The group of each rank.
    groups: Vec<u64>,
    random: ChaCha8Rng,
}

impl Popular {
    /// The ranking does not depend on the seed of the draws.
    fn new(settings: &Settings, seed: u64) -> Outcome<Self> {
        Ok(Self {
            zipf: Zipf::new(settings.groups as f64, settings.exponent)?,
            groups: Order::Random.groups(settings.groups, settings.groups),
            random: ChaCha8Rng::seed_from_u64(seed),
        })
    }

    fn next(&mut self) -> u64 {
        let rank = self.zipf.sample(&mut self.random) as usize;
        self.groups[rank.clamp(1, self.groups.len()) - 1]
    }
}

/// Mean rates at a ratio.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Rates {
    ratio: u64,
    off: f64,
    on: f64,
    /// From equation 3.
    model: f64,
    /// Share of the reads of large images served by the disk.
    from_disk: Option<f64>,
}

/// Rates from the largest set of runs that has both.
fn rates(records: &[Record]) -> Outcome<Vec<Rates>> {
    let rows = largest(rows(records, EXPERIMENT)?, &mut 0, |settings: &Settings| {
        let rest = (&settings.surroundings, settings.exponent, settings.flash_share);
        (settings.groups, settings.small_reads, format!("{rest:?}"))
    });
    let mut ratios: Vec<u64> = rows.iter().map(|row| row.0.ratio).collect();
    ratios.sort_unstable();
    ratios.dedup();
    let of = |ratio: u64, heat: bool| {
        rows.iter()
            .filter(move |row| row.0.ratio == ratio && row.0.heat == heat)
            .map(|row| &row.1)
    };
    let rate = |ratio, heat| mean(of(ratio, heat).map(Read::per_second));
    let model = Model::of(records)?;
    let static_rates = static_model(&model, &rows);
    let found = ratios.into_iter().filter_map(|ratio| {
        let reads_of_disk = of(ratio, true).map(|run| {
            Some(run.traffic.hdd.drive.or(run.traffic.hdd.device)?.reads as f64 / run.large.count.max(1) as f64)
        });
        Some(Rates {
            ratio,
            off: rate(ratio, false)?,
            on: rate(ratio, true)?,
            model: static_rates(ratio)?,
            from_disk: reads_of_disk
                .collect::<Option<Vec<f64>>>()
                .and_then(|shares| mean(shares.into_iter())),
        })
    });
    Ok(found.collect())
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

/// Equation 3 with the costs of reads where only size decides: from the uniform reads of all
/// setups, as in the paper, or, without these, from the popular ones with the flash cache off.
fn static_model(model: &Model, rows: &[(Settings, Read)]) -> impl Fn(u64) -> Option<f64> {
    let costs = model.costs(Candidate::Terrace);
    let cycles = rows.iter().filter(|row| !row.0.heat).filter_map(|row| row.1.cycle());
    let line = regress(&cycles.collect::<Vec<_>>());
    move |ratio| match (&costs, line) {
        (Some(costs), _) => Some(costs.reads_per_second(Setup::Hybrid, ratio as f64)),
        (None, Some(line)) => Some(1e6 * (ratio as f64 + 1.0) / (ratio as f64 * line.slope + line.intercept)),
        (None, None) => None,
    }
}

/// The section, if there are results.
pub fn section(records: &[Record]) -> Outcome<Option<Section>> {
    let rates = rates(records)?;
    let mut section = Section::new("Popular images, with heat");
    if let Some(record) = records.iter().find(|record| record.experiment == EXPERIMENT) {
        let settings: Settings = record.settings()?;
        section.text(format!(
            "Hybrid; groups popular by Zipf's law with exponent {}, flash with room for the small images and {:.0} % of the large ones. \
             The static model is equation 3 with what reads cost where size alone decides.",
            settings.exponent,
            settings.flash_share * 100.0
        ));
    }
    section.columns(
        "Reads per second",
        &rates,
        &[
            ("ratio", &|rates| rates.ratio.to_string()),
            ("static model, reads/s", &|rates| format!("{:.1}", rates.model)),
            ("heat off, reads/s", &|rates| format!("{:.1}", rates.off)),
            ("heat on, reads/s", &|rates| format!("{:.1}", rates.on)),
            ("over the model", &|rates| format!("{:.2}", rates.on / rates.model)),
            ("over heat off", &|rates| format!("{:.2}", rates.on / rates.off)),
            ("reads of the disk per large image", &|rates| number(rates.from_disk, 2)),
        ],
    );
    Ok((!rates.is_empty()).then_some(section))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn settings(heat: bool, ratio: u64) -> Settings {
        serde_json::from_value(json!({
            "heat": heat, "exponent": 0.99, "flash_share": 0.2, "ratio": ratio, "groups": 1000, "small_reads": 1600,
            "reads_before": 0, "run": 1,
            "surroundings": {
                "small_bytes": 8192, "large_bytes": 131_072, "ssd": "s", "hdd": "h", "one_device": false,
                "tuning": {"size_threshold_bytes": 131_072, "segment_bytes": 1 << 26, "split_threshold_bytes": 1 << 26},
            },
        }))
        .unwrap()
    }

    #[test]
    fn popular_groups_are_drawn_by_zipf_in_one_order() {
        let settings = settings(true, 4);
        let count = |seed| {
            let mut popular = Popular::new(&settings, seed).unwrap();
            let mut counts = vec![0_u32; 1000];
            (0..100_000).for_each(|_| counts[popular.next() as usize] += 1);
            counts
        };
        let (one, other) = (count(1), count(2));
        let first = |counts: &[u32]| (0..1000).max_by_key(|&group| counts[group]).unwrap();
        assert_eq!(first(&one), first(&other), "the draws differ, not the popularity");
        assert_ne!(one, other);
        // 1 over the sum of k^-0.99 up to 1000 is 0.130.
        let most = f64::from(one[first(&one)]) / 1e5;
        assert!((0.12..0.14).contains(&most), "{most}");
    }

    #[test]
    fn heat_stands_beside_the_model_of_the_same_costs() {
        // Off: 400 and 15,000 µs. On: half of the large ones cost as much as a small one.
        let mut records = Vec::new();
        for ratio in [1_u64, 4, 16] {
            for (heat, large_us) in [(false, 15_000.0), (true, 7_700.0)] {
                let large = 1600 / ratio;
                let latency =
                    |count: u64| json!({"count": count, "mean_us": 0.0, "deviation_us": 0.0, "percentiles_us": []});
                let disk =
                    json!({"reads": large / 2, "writes": 0, "read_bytes": 0, "written_bytes": 0, "busy_seconds": 0.0});
                let outcome = json!({
                    "seconds": (1600.0 * 400.0 + large as f64 * large_us) / 1e6, "small": latency(1600), "large": latency(large),
                    "traffic": {"ssd": {"device": null, "drive": null}, "hdd": {"device": disk, "drive": null}},
                    "engine": {}, "caches_dropped": true, "open_seconds": 0.0,
                });
                let record = Record::made_up(EXPERIMENT, json!(settings(heat, ratio)), outcome);
                records.push(record);
            }
        }
        let found = rates(&records).unwrap();
        assert_eq!(found.len(), 3);
        for rates in found {
            let ratio = rates.ratio as f64;
            let rate = |large_us: f64| 1e6 * (ratio + 1.0) / (ratio * 400.0 + large_us);
            for (found, expected) in [
                (rates.model, rate(15_000.0)),
                (rates.off, rate(15_000.0)),
                (rates.on, rate(7_700.0)),
            ] {
                assert!((found / expected - 1.0).abs() < 1e-6, "{rates:?}");
            }
            assert_eq!(
                rates.from_disk,
                Some((1600 / rates.ratio / 2) as f64 / (1600 / rates.ratio) as f64)
            );
        }
        let table = section(&records).unwrap().unwrap().markdown();
        assert!(table.contains("| 1.90 | 1.90 |"), "{table}");
        records.retain(|record| record.settings["heat"] == true);
        assert_eq!(
            rates(&records).unwrap(),
            [],
            "without runs of both there is nothing to say"
        );
        assert!(section(&records).unwrap().is_none());
    }
}
