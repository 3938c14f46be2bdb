//! `terrace-bench mris`: the evaluation of the MRIS paper (Ming Chen, 2012), section 4, on Terrace
//! and LevelDB.
//!
//! [`figure8`] counts the image requests of a log ([`pagecounts`]); [`insert`] makes figure 9;
//! [`read`] makes figures 10 to 14, and [`heat`] reads again with popular images. [`engine`] and
//! [`leveldb`] are the two stores, [`paper`] what the paper reports, [`model`] what follows from
//! the results, [`targets`] what was aimed at, and [`report`] the pages. A run that fails ends the
//! evaluation and leaves no result; `--resume` goes on from there.

mod engine;
mod evaluation;
mod figure8;
mod heat;
mod insert;
mod leveldb;
mod model;
mod pagecounts;
mod paper;
mod read;
pub mod report;
mod targets;
#[cfg(test)]
mod tests;

use crate::{
    Outcome,
    harness::{
        self, fio,
        results::{Record, ResultArguments, Results},
        setup::PlaceArguments,
    },
};
use evaluation::{Common, Evaluation};
use tempfile::TempDir;

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
    /// The reads again with images of different popularity, heat off and on.
    Heat(Common),
    /// Figures 9 to 14 and all else that two drives can show, with a report.
    All(Common),
}

/// Runs a part.
///
/// # Errors
/// If a run fails or a result cannot be kept.
pub fn run(arguments: Arguments) -> Outcome {
    let records = match arguments.part {
        Part::Figure8(arguments) => return figure8::run(&arguments),
        Part::Insert(common) => {
            let evaluation = Evaluation::open(&common)?;
            evaluation.bench.progress.expect(insert::expected_seconds(&evaluation));
            insert::run(&evaluation)?;
            evaluation.finish()?
        }
        Part::Read(common) => {
            let evaluation = Evaluation::open(&common)?;
            evaluation.bench.progress.expect(read::expected_seconds(&evaluation));
            read::run(&evaluation)?;
            evaluation.finish()?
        }
        Part::Heat(common) => {
            let evaluation = Evaluation::open(&common)?;
            evaluation.bench.progress.expect(heat::expected_seconds(&evaluation));
            heat::run(&evaluation)?;
            evaluation.finish()?
        }
        Part::All(common) => all(&common)?,
    };
    for line in verdicts(&records)? {
        println!("{line}");
    }
    Ok(())
}

fn all(common: &Common) -> Outcome<Vec<Record>> {
    measure(common)?;
    let results = &common.results.results;
    let page = results.join("report.html");
    harness::report::write(results, &page, Some(&results.join("charts")))?;
    println!("{}", page.display());
    Results::create(results)?.all()
}

fn measure(common: &Common) -> Outcome {
    let evaluation = Evaluation::open(common)?;
    let seconds = insert::expected_seconds(&evaluation)
        + read::expected_seconds(&evaluation)
        + heat::expected_seconds(&evaluation);
    evaluation.bench.progress.expect(seconds);
    insert::run(&evaluation)?;
    read::run(&evaluation)?;
    heat::run(&evaluation)?;
    evaluation.finish().map(drop)
}

/// As a part of all evaluations: what can be made here. Returns what cannot, and why.
///
/// # Errors
/// The first run's that fails.
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
    let compiles = leveldb::compile(TempDir::new()?.path()).is_ok();
    let leveldb = has(
        "LevelDB in the MRIS paper's inserts and reads: its driver does not compile here",
        compiles,
    );
    measure(&Common {
        places: places.clone(),
        results: results.clone(),
        workload: None,
        no_leveldb: !leveldb,
        only: Vec::new(),
        no_raw: !fio,
    })?;
    Ok(left_out)
}

/// What was aimed at with the runs of a directory, a line each.
///
/// # Errors
/// If a result has not its form.
pub fn verdicts(records: &[Record]) -> Outcome<Vec<String>> {
    let mut lines: Vec<String> = targets::targets(&model::Model::of(records)?, &paper::Paper::published()?)
        .iter()
        .map(ToString::to_string)
        .collect();
    lines.extend(heat::verdicts(records)?);
    Ok(lines)
}
