//! Goals of the evaluation, and whether they are met. Goals without measurements are left out.

use super::{evaluation::Contender, model::Model, paper::Paper};
use crate::harness::{setup::Setup, target::Target};

/// The rate relative to which Terrace's is expressed, by ratio.
type Base<'a> = &'a dyn Fn(u64) -> Option<f64>;

/// The goals with measurements.
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
            let name = || format!("MRIS, ratio {ratio:>2}: Hybrid over {what}");
            targets.extend(found().map(|(hybrid, base)| Target::at_least(name(), wanted, hybrid / base)));
        }
    }
    targets
}
