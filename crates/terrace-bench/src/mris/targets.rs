//! What the evaluation aimed at, and whether it was reached. Of what was not measured nothing is
//! said.

use super::{evaluation::Contender, model::Model, paper::Paper};
use crate::harness::setup::Setup;
use std::fmt;

/// One aim at one ratio.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    /// What was aimed at.
    pub name: &'static str,
    /// Small reads per large one.
    pub ratio: u64,
    /// At least this.
    pub wanted: f64,
    /// This was measured.
    pub measured: f64,
    /// The figure it is a multiple of, in reads per second.
    pub base: f64,
}

impl Target {
    /// Whether it was reached.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.measured >= self.wanted
    }

    /// In a word.
    #[must_use]
    pub fn verdict(&self) -> &'static str {
        if self.is_met() { "met" } else { "MISSED" }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            ratio,
            wanted,
            measured,
            ..
        } = self;
        write!(
            f,
            "{:6}  ratio {ratio:>2}: {name}: {measured:.3}, at least {wanted:.2}",
            self.verdict()
        )
    }
}

/// The aims for which there are figures.
#[must_use]
pub fn targets(model: &Model, paper: &Paper) -> Vec<Target> {
    let mut targets = Vec::new();
    for ratio in model.ratios() {
        let rate = |setup| {
            model
                .reads_per_second(Contender::terrace(setup), ratio)
                .map(|summary| summary.mean)
        };
        let Some(hybrid) = rate(Setup::Hybrid) else { continue };
        let mut add = |name, wanted, base: Option<f64>| {
            if let Some(base) = base.filter(|base| *base > 0.0) {
                targets.push(Target {
                    name,
                    ratio,
                    wanted,
                    measured: hybrid / base,
                    base,
                });
            }
        };
        add("Hybrid over HDD", 1.0, rate(Setup::Hdd));
        add(
            "Hybrid over the paper's Hybrid",
            2.0,
            Some(paper.table3.reads_per_second(Setup::Hybrid, ratio as f64)),
        );
        add("Hybrid over the drives' limit", 0.9, model.limit(ratio));
    }
    targets.sort_by_key(|target| (target.name, target.ratio));
    targets
}
