//! `terrace-bench mris`: the evaluation of the MRIS paper (Ming Chen, 2012), section 4, on Terrace
//! and LevelDB.
//!
//! [`figure8`] counts the image requests of a log ([`pagecounts`]); [`insert`] makes figure 9,
//! [`read`] figures 10 to 14, and [`heat`] repeats the reads with popular images. [`engine`] opens
//! the two stores, [`paper`] has the paper's figures, [`model`] evaluates the results, [`targets`]
//! has the goals, and [`report`] makes the pages. A failed run ends the evaluation and leaves no
//! result; `--resume` continues from there.

mod engine;
mod evaluation;
mod figure8;
mod heat;
mod insert;
mod model;
mod pagecounts;
mod paper;
mod read;
mod report;
mod targets;
#[cfg(test)]
mod tests;

use crate::{
    Outcome,
    harness::{
        self, fio,
        page::Section,
        results::{Record, ResultArguments},
        setup::PlaceArguments,
        target::Target,
    },
    rivals::Candidate,
};
use evaluation::{Common, Evaluation};
use std::path::PathBuf;

/// Arguments of the subcommand.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, clap::Subcommand)]
enum Part {
    /// Figure 8: image requests by size, from pagecounts files.
    Figure8(figure8::Arguments),
    /// Figure 9: insertion.
    Insert(Common),
    /// Figures 10 to 14, tables 2 to 4: reads.
    Read(Common),
    /// The reads with images of different popularity, with the flash cache off and on.
    Heat(Common),
    /// Figures 9 to 14 and everything else that two drives can show, with a report.
    All(Common),
}

/// Runs a part. Returns the directory of its results.
pub fn run(arguments: Arguments) -> Outcome<PathBuf> {
    let (common, works): (_, &[Work]) = match &arguments.part {
        Part::Figure8(arguments) => {
            figure8::run(arguments)?;
            return Ok(arguments.results.results.clone());
        }
        Part::Insert(common) => (common, &[insert::run]),
        Part::Read(common) => (common, &[read::run]),
        Part::Heat(common) => (common, &[heat::run]),
        Part::All(common) => (common, &ALL),
    };
    measure(common, works)?;
    Ok(common.results.results.clone())
}

/// A part.
type Work = fn(&Evaluation) -> Outcome;

const ALL: [Work; 3] = [insert::run, read::run, heat::run];

fn measure(common: &Common, works: &[Work]) -> Outcome {
    let evaluation = Evaluation::new(common)?;
    works.iter().try_for_each(|run| run(&evaluation))?;
    evaluation.bench.progress.finish();
    Ok(())
}

/// Runs, as a part of all evaluations, what can be measured here. Returns what cannot, and why.
pub fn measure_what_can_be(places: &PlaceArguments, results: &ResultArguments) -> Outcome<Vec<String>> {
    if !places.are_given() {
        return Ok(vec![
            "the MRIS paper's inserts and reads need two drives: --emulate as root, or --ssd and --hdd".to_owned(),
        ]);
    }
    let mut left_out = Vec::new();
    let mut has = |what: &str, is_there: bool| {
        if !is_there {
            left_out.push(what.to_owned());
        }
        is_there
    };
    let fio = has("the drives by themselves: fio is not installed", fio::is_installed());
    has(
        "LevelDB in the MRIS paper's inserts and reads: build with --features rival-leveldb",
        Candidate::compiled_in().contains(&Candidate::LevelDb),
    );
    let common = Common {
        places: places.clone(),
        results: results.clone(),
        no_raw: !fio,
        ..harness::defaults()?
    };
    measure(&common, &ALL)?;
    Ok(left_out)
}

/// The paper's figures and tables, and the goals, in the report.
pub struct Mris;

impl harness::report::Evaluation for Mris {
    fn name(&self) -> &'static str {
        "the MRIS paper"
    }

    fn sections(&self, records: &[Record]) -> Outcome<Vec<Section>> {
        report::sections(records)
    }

    fn targets(&self, records: &[Record]) -> Outcome<Vec<Target>> {
        Ok(targets::targets(
            &model::Model::of(records)?,
            &paper::Paper::published()?,
        ))
    }
}
