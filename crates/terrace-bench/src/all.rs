//! `terrace-bench all`: every evaluation, and one report.
//!
//! This module lists all [`Evaluation`]s. Those that need root, two drives or a missing program
//! report it and are skipped.

use crate::{
    Outcome,
    contest::{self, Works},
    harness::{defaults, report, report::Evaluation},
    mris, soak, video, zipf,
};
use clap::ValueEnum;
use std::path::{Path, PathBuf};

/// All evaluations, in the order of the report.
pub const EVALUATIONS: [&dyn Evaluation; 6] = [
    &mris::Mris,
    &contest::Rivals,
    &contest::scale::Growth,
    &video::Video,
    &zipf::Reads,
    &soak::Soak,
];

/// The parts, in the order in which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Single operations, and opening after a kill.
    Micro,
    /// YCSB.
    Ycsb,
    /// The FlashStore paper.
    Flashstore,
    /// Reads of video.
    Video,
    /// Reads of small objects by Zipf's law.
    Zipf,
    /// The MRIS paper.
    Mris,
}

/// Arguments of the subcommand.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    common: contest::Common,
    /// Skip a part.
    #[arg(long, value_enum, value_name = "PART")]
    without: Vec<Part>,
}

/// Arguments of `terrace-bench report`.
#[derive(Debug, clap::Args)]
pub struct ReportArguments {
    /// Directory of the results.
    results: PathBuf,
    /// The page to write.
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
    /// Also write every chart as SVG into this directory.
    #[arg(long, value_name = "DIR")]
    charts: Option<PathBuf>,
}

/// Makes a report from existing results.
pub fn report(arguments: &ReportArguments) -> Outcome {
    let page = &arguments.output;
    report::write(&EVALUATIONS, &arguments.results, page, arguments.charts.as_deref())?;
    println!("{}", page.display());
    Ok(())
}

/// Ends an evaluation: writes the report beside its results, and prints the targets.
///
/// # Errors
/// If the report cannot be made, or these runs failed.
pub fn conclude(results: &Path, failed: &[String]) -> Outcome {
    let page = results.join("report.html");
    let reached = report::write(&EVALUATIONS, results, &page, Some(&results.join("charts")))?;
    reached.iter().for_each(|target| println!("{target}"));
    println!("{}", page.display());
    contest::none_failed(failed)
}

/// Runs comparisons of Terrace with its rivals, and makes the report.
pub fn run_contest(common: &contest::Common, works: &Works) -> Outcome {
    let failed = contest::measure(common, works)?;
    conclude(&common.results.results, &failed)
}

/// Runs all parts and makes the report.
///
/// # Errors
/// Those of failed runs; of video and the MRIS paper only the first.
pub fn run(arguments: &Arguments) -> Outcome {
    let (left_out, failed) = measure(arguments)?;
    left_out.iter().for_each(|what| println!("left out: {what}"));
    conclude(&arguments.common.results.results, &failed)
}

/// Runs all parts. Returns those that cannot be measured here, and failed runs, with the reasons.
fn measure(arguments: &Arguments) -> Outcome<(Vec<String>, Vec<String>)> {
    let common = &arguments.common;
    let is_wanted = |part: Part| !arguments.without.contains(&part);
    let (mut left_out, mut failed) = (Vec::new(), Vec::new());
    let works: Vec<_> = [
        (Part::Micro, contest::MICRO),
        (Part::Ycsb, contest::YCSB),
        (Part::Flashstore, contest::FLASHSTORE),
    ]
    .into_iter()
    .filter(|(part, _)| is_wanted(*part))
    .flat_map(|(_, works)| works.iter().copied())
    .collect();
    if !works.is_empty() {
        failed = contest::measure(common, &works)?;
    }
    let (places, results) = (&common.places, &common.results);
    if is_wanted(Part::Video) {
        left_out.extend(video::run_all(&common.directory, places, results)?);
    }
    if is_wanted(Part::Zipf) {
        zipf::run(&zipf::Arguments {
            directory: common.directory.clone(),
            results: results.clone(),
            ..defaults()?
        })?;
    }
    if is_wanted(Part::Mris) {
        left_out.extend(mris::measure_what_can_be(places, results)?);
    }
    Ok((left_out, failed))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_needs_two_drives_is_left_out_with_a_word() {
        let directory = tempfile::tempdir().unwrap();
        let results = directory.path().join("results");
        let mut line = vec!["--results", results.to_str().unwrap()];
        for part in ["micro", "ycsb", "flashstore", "video", "zipf"] {
            line.extend(["--without", part]);
        }
        let arguments: Arguments = crate::harness::parse(&line).unwrap();
        let left_out = measure(&arguments).unwrap().0;
        assert!(left_out.len() == 1 && left_out[0].contains("--emulate"), "{left_out:?}");
        let nothing = run(&arguments).unwrap_err().to_string();
        assert!(nothing.contains("no directory of results"), "{nothing}");
    }
}
