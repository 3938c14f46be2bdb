//! Figure 9: groups inserted in key order and in random order, for every contender.
//!
//! A group is acknowledged at once (LevelDB's default, and Terrace's `Buffered`); at the end
//! everything is made durable, and that time counts. Bytes per drive are read after the store is
//! closed and the file system synced, so they include background work.

use super::{
    engine::EngineFigures,
    evaluation::{Contender, Evaluation, Surroundings},
};
use crate::{
    Outcome,
    harness::{driver::LoopOutcome, latency::LatencySummary, progress::Progress, results::Plan, setup::BothTraffic},
};
use rand::{SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Experiment name in the results.
pub const EXPERIMENT: &str = "mris-insert";

/// Groups per call of the engine.
const CHUNK: usize = 64;

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
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Random => "random",
        }
    }

    /// The groups in this order.
    #[must_use]
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
    pub engine: EngineFigures,
}

/// Inserts groups into an open engine, in chunks.
///
/// # Errors
/// The engine's.
pub fn insert_all(engine: &mut dyn super::engine::Engine, groups: &[u64], progress: &Progress) -> Outcome<LoopOutcome> {
    let mut outcome = LoopOutcome::empty(1);
    for (done, chunk) in groups.chunks(CHUNK).enumerate() {
        outcome.add(&engine.insert(chunk)?);
        progress.share((done * CHUNK) as f64 / groups.len() as f64);
    }
    Ok(outcome)
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

/// Expected duration of all runs.
#[must_use]
pub fn expected_seconds(evaluation: &Evaluation) -> f64 {
    plans(evaluation).iter().map(|plan| plan.expected_seconds).sum()
}

/// Does all runs of figure 9, whose time must have been added to the progress bar.
///
/// # Errors
/// The error of the first run that fails.
pub fn run(evaluation: &Evaluation) -> Outcome {
    for plan in &plans(evaluation) {
        evaluation.bench.run(plan, |progress| {
            measure(evaluation, &plan.settings, plan.seed, progress)
        })?;
    }
    Ok(())
}

fn measure(evaluation: &Evaluation, settings: &Settings, seed: u64, progress: &Progress) -> Outcome<Inserted> {
    const NAME: &str = "mris-insert";
    let groups = settings.order.groups(settings.groups, seed);
    evaluation.places.fresh(NAME)?;
    let mut engine = evaluation.engine(settings.contender, NAME)?;
    let before = evaluation.places.traffic()?;
    let measured = insert_all(engine.as_mut(), &groups, progress)?;
    let flushing = Instant::now();
    engine.flush()?;
    let flush_seconds = flushing.elapsed().as_secs_f64();
    let figures = engine.close()?;
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
