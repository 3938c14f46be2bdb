//! `terrace-bench video`: reads of video segments, with flash for a part of the catalogue.
//!
//! [`counts`] counts hits and flash writes in one directory, with the published numbers of titles
//! and segments. [`drives`] measures throughput, start-up times and pauses on two drives, and
//! compares with other uses of flash. [`sessions`] generates the reads.

mod counts;
mod drives;
mod rules;
mod sessions;

use crate::{
    Outcome,
    harness::{
        defaults,
        page::Section,
        report::Evaluation,
        results::{Record, ResultArguments},
        setup::PlaceArguments,
        target::Target,
        workload::Scale,
    },
};
use std::path::{Path, PathBuf};

/// Arguments of the subcommand.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// Directory for counting hits and writes, which is done without two drives; it needs space for
    /// one and a half catalogues.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub directory: PathBuf,
    /// With two drives Terrace and its rivals are timed.
    #[command(flatten)]
    pub places: PlaceArguments,
    #[command(flatten)]
    pub results: ResultArguments,
    /// Counting: bytes of a segment of video; 2,300,000 is the original.
    #[arg(long, value_name = "BYTES", default_value = "36000")]
    pub part_bytes: usize,
    /// Flash as a share of the catalogue; by default, several from 0.05 to 0.5.
    #[arg(long = "share", value_name = "SHARE")]
    pub shares: Vec<f64>,
    /// Zipf's exponents; by default 0.271 and 0.729.
    #[arg(long = "exponent", value_name = "EXPONENT")]
    pub exponents: Vec<f64>,
    /// Counting: number of sessions after which two titles swap their ranks.
    #[arg(long, value_name = "SESSIONS", default_value = "0")]
    pub swap_every: u64,
    /// Two drives: only these systems, once for every share and exponent; by default, all.
    #[arg(long = "only", value_enum, value_name = "SYSTEM")]
    pub only: Vec<drives::System>,
    /// Seed of the sessions; by default, the workload's.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Two drives: file with sizes, times and counts, instead of the built-in one.
    #[arg(long, value_name = "FILE")]
    pub workload: Option<PathBuf>,
}

impl Arguments {}

fn given_or<'a>(given: &'a [f64], usual: &'a [f64]) -> &'a [f64] {
    if given.is_empty() { usual } else { given }
}

/// Does the runs and prints the tables: timed with two drives, otherwise counted.
pub fn run(arguments: &Arguments) -> Outcome {
    if arguments.shares.iter().any(|share| !(0.01..=0.8).contains(share)) {
        return Err("--share must be between 0.01 and 0.8".into());
    }
    if arguments.places.are_given() {
        drives::run(arguments)
    } else if arguments.only.is_empty() {
        counts::run(arguments)
    } else {
        Err(
            "--only needs two drives: --emulate as root, or --ssd and --hdd; without them Terrace alone is counted"
                .into(),
        )
    }
}

/// Runs both, as a part of all evaluations. At small scale only one share is counted. Returns what
/// was skipped, and why.
pub fn run_all(directory: &Path, places: &PlaceArguments, results: &ResultArguments) -> Outcome<Option<String>> {
    let mut arguments = Arguments {
        directory: directory.to_owned(),
        places: places.clone(),
        results: results.clone(),
        ..defaults()?
    };
    let is_timed = places.are_given();
    if is_timed {
        drives::run(&arguments)?;
    }
    if results.scale == Scale::Small {
        arguments.shares = vec![0.2];
    }
    counts::run(&arguments)?;
    let why = "video beside Flashcache, L2ARC and others needs two drives: --emulate as root, or --ssd and --hdd";
    Ok((!is_timed).then(|| why.to_owned()))
}

/// All sections and goals, in the report.
pub struct Video;

impl Evaluation for Video {
    fn name(&self) -> &'static str {
        "video on two drives"
    }

    fn sections(&self, records: &[Record]) -> Outcome<Vec<Section>> {
        let mut sections = drives::report::sections(records)?;
        sections.extend(counts::sections(records)?);
        Ok(sections)
    }

    fn targets(&self, records: &[Record]) -> Outcome<Vec<Target>> {
        drives::targets::targets(records)
    }
}
