//! What the evaluation aimed at, and whether it was reached. Of what was not measured nothing is
//! said.

use super::{evaluation::Contender, model::Model, paper::Paper};
use crate::harness::{setup::Setup, target::Target};

/// What Terrace's rate stands over, at a ratio.
type Base<'a> = &'a dyn Fn(u64) -> Option<f64>;

/// The aims for which there are figures.
#[must_use]
pub fn targets(model: &Model, paper: &Paper) -> Vec<Target> {
    let terrace = |setup, ratio| Some(model.reads_per_second(Contender::terrace(setup), ratio)?.mean);
    let published = |ratio| paper.table3.reads_per_second(Setup::Hybrid, ratio as f64);
    let aims: [(&str, f64, Base<'_>); 3] = [
        ("HDD", 1.0, &|ratio| terrace(Setup::Hdd, ratio)),
        ("the drives' limit", 0.9, &|ratio| model.limit(ratio)),
        ("the paper's Hybrid", 2.0, &|ratio| Some(published(ratio))),
    ];
    let mut targets = Vec::new();
    for (what, wanted, base) in aims {
        for ratio in model.ratios() {
            let found = || Some((terrace(Setup::Hybrid, ratio)?, base(ratio).filter(|base| *base > 0.0)?));
            targets.extend(found().map(|(hybrid, base)| Target {
                name: format!("MRIS, ratio {ratio:>2}: Hybrid over {what}"),
                wanted,
                at_most: false,
                measured: hybrid / base,
            }));
        }
    }
    targets
}
