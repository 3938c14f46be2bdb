//! `terrace-bench all`: every evaluation, and one report.
//!
//! What needs root, two drives or a program that is not there says so and is left out.

use crate::{
    Outcome,
    contest::{self, targets},
    harness::{self, results::Results, target::Target},
    mris, video, zipf,
};
use clap::ValueEnum;

/// The parts, in the order in which they are made.
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
    /// Leave a part out.
    #[arg(long, value_enum, value_name = "PART")]
    without: Vec<Part>,
}

/// Makes all parts and the report.
///
/// # Errors
/// Those of the runs that failed, of video and the MRIS paper the first one's.
pub fn run(arguments: &Arguments) -> Outcome {
    let Missing { left_out, failed } = measure(arguments)?;
    left_out.iter().for_each(|what| println!("left out: {what}"));
    let results = &arguments.common.results.results;
    let page = results.join("report.html");
    harness::report::write(results, &page, Some(&results.join("charts")))?;
    let records = Results::create(results)?.all()?;
    let reached: Vec<Target> = [targets::targets(&records)?, video::targets(&records)?].concat();
    reached.iter().for_each(|target| println!("{target}"));
    mris::verdicts(&records)?.iter().for_each(|line| println!("{line}"));
    println!("{}", page.display());
    contest::none_failed(&failed)
}

/// What is not in the report, and why.
#[derive(Debug, Default)]
struct Missing {
    /// It cannot be measured here.
    left_out: Vec<String>,
    /// A run failed.
    failed: Vec<String>,
}

/// Makes all parts.
fn measure(arguments: &Arguments) -> Outcome<Missing> {
    let common = &arguments.common;
    let is_wanted = |part: Part| !arguments.without.contains(&part);
    let mut missing = Missing::default();
    if [Part::Micro, Part::Ycsb, Part::Flashstore].into_iter().any(is_wanted) {
        missing.failed = contest::measure(common, is_wanted)?;
    }
    let (places, results) = (&common.places, &common.results);
    if is_wanted(Part::Video) {
        missing
            .left_out
            .extend(video::run_all(&common.directory, places, results)?);
    }
    if is_wanted(Part::Zipf) {
        zipf::run(&zipf::Arguments::plain(common.directory.clone(), results.clone()))?;
    }
    if is_wanted(Part::Mris) {
        missing.left_out.extend(mris::measure_what_can_be(places, results)?);
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn what_needs_two_drives_is_left_out_with_a_word() {
        let directory = tempfile::tempdir().unwrap();
        let results = directory.path().join("results");
        let mut line = vec!["all", "--results", results.to_str().unwrap()];
        for part in ["micro", "ycsb", "flashstore", "video", "zipf"] {
            line.extend(["--without", part]);
        }
        let arguments = Line::try_parse_from(line).unwrap().arguments;
        let left_out = measure(&arguments).unwrap().left_out;
        assert!(left_out.len() == 1 && left_out[0].contains("--emulate"), "{left_out:?}");
        let nothing = run(&arguments).unwrap_err().to_string();
        assert!(nothing.contains("no directory of results"), "{nothing}");
    }
}
