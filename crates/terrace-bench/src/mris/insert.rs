//! Figure 9: groups inserted in key order and in random order, for every contender.
//!
//! A group is acknowledged at once (LevelDB's default, and Terrace's `Buffered`); at the end
//! everything is made durable, and that time counts. Bytes per drive are read after the store is
//! closed and the file system synced, so they include background work.

use super::evaluation::{Contender, Evaluation, Surroundings};
use crate::{
    Outcome,
    harness::{latency::LatencySummary, progress::Progress, results::Plan, setup::BothTraffic},
    rivals::Figures,
};
use rand::{SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Experiment name in the results.
pub const EXPERIMENT: &str = "mris-insert";

/// Order of insertions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Key order.
    Sequential,
    /// None.
    Random,
}

impl Order {
    /// As text.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Random => "random",
        }
    }

    /// The groups in this order.
    pub fn groups(self, count: u64, seed: u64) -> Vec<u64> {
        let mut groups: Vec<u64> = (0..count).collect();
        if self == Self::Random {
            groups.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
        }
        groups
    }
}

/// Settings of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Settings {
    /// The contender.
    pub contender: Contender,
    /// The order.
    pub order: Order,
    /// Number of groups.
    pub groups: u64,
    /// Sizes and drives.
    pub surroundings: Surroundings,
    /// Number of the run, from 1.
    pub run: u32,
}

/// Measurements of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Inserted {
    /// Time until all groups were acknowledged.
    pub acknowledged_seconds: f64,
    /// Time until everything was durable.
    pub durable_seconds: f64,
    /// Latencies of groups.
    pub write: LatencySummary,
    /// Traffic of the drives until the store was closed.
    pub traffic: BothTraffic,
    /// The engine's statistics.
    pub engine: Figures,
}

fn plans(evaluation: &Evaluation) -> Vec<Plan<'static, Settings>> {
    let mut plans = Vec::new();
    let groups = evaluation.amount.insert_groups;
    for run in 1..=evaluation.amount.runs {
        for contender in evaluation.contenders() {
            for order in [Order::Sequential, Order::Random] {
                plans.push(Plan {
                    experiment: EXPERIMENT,
                    name: format!("{}, {} insertion, run {run}", contender.name(), order.name()),
                    seed: evaluation.seed + u64::from(run),
                    expected_seconds: evaluation.insert_seconds(contender, groups),
                    settings: Settings {
                        contender,
                        order,
                        groups,
                        surroundings: evaluation.surroundings.clone(),
                        run,
                    },
                });
            }
        }
    }
    plans
}

/// Does all runs of figure 9.
pub fn run(evaluation: &Evaluation) -> Outcome {
    evaluation.bench.run_all(&plans(evaluation), |plan, progress| {
        measure(evaluation, &plan.settings, plan.seed, progress)
    })
}

fn measure(evaluation: &Evaluation, settings: &Settings, seed: u64, progress: &Progress) -> Outcome<Inserted> {
    const NAME: &str = "mris-insert";
    let groups = settings.order.groups(settings.groups, seed);
    evaluation.places.fresh(NAME)?;
    let store = evaluation.open(settings.contender, NAME)?;
    let before = evaluation.places.traffic()?;
    let measured = store.insert(&groups, progress)?;
    let flushing = Instant::now();
    store.engine.flush()?;
    let flush_seconds = flushing.elapsed().as_secs_f64();
    let figures = store.close()?;
    let traffic = evaluation.places.traffic()?.since(&before);
    evaluation.places.remove(NAME)?;
    Ok(Inserted {
        acknowledged_seconds: measured.seconds,
        durable_seconds: measured.seconds + flush_seconds,
        write: measured.kinds[0].summary(),
        traffic,
        engine: figures,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_order_is_another_order_of_the_same_groups() {
        let mut random = Order::Random.groups(1000, 3);
        assert_eq!(random, Order::Random.groups(1000, 3));
        assert_ne!(random, Order::Random.groups(1000, 4));
        assert_ne!(random, Order::Sequential.groups(1000, 3));
        random.sort_unstable();
        assert_eq!(random, Order::Sequential.groups(1000, 3));
    }
}
