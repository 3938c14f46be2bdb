//! Figure 8: image requests by size, from pagecounts files, or synthetic with the published shape.

use super::{evaluation::WorkloadFile, pagecounts::Counts, paper::Paper, synthetic::Synthetic};
use crate::{
    Outcome,
    harness::results::{Bench, Plan, ResultArguments},
};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What kind of run this is, in the results.
pub const EXPERIMENT: &str = "mris-figure8";

/// Arguments of the subcommand.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// Files of pagecounts-raw, plain or gzip; without any, synthetic requests are counted.
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub results: ResultArguments,
    /// Sizes and counts, instead of those in the program.
    #[arg(long, value_name = "FILE")]
    pub workload: Option<PathBuf>,
}

/// What was chosen.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Generated requests.
    Synthetic {
        /// How many.
        requests: u64,
        /// Of the generator.
        seed: u64,
    },
    /// Files, by name and length.
    Files(Vec<(String, u64)>),
}

/// Counts requests and keeps the result.
///
/// # Errors
/// If a file cannot be read.
pub fn run(arguments: &Arguments) -> Outcome {
    let workload = WorkloadFile::read(arguments.workload.as_deref())?;
    let bench = Bench::new(&arguments.results.results, arguments.results.resume)?;
    let requests = workload.amount(arguments.results.scale).figure8_requests;
    let (name, settings) = if arguments.files.is_empty() {
        let seed = workload.seed;
        (
            "image requests, synthetic".to_owned(),
            Source::Synthetic { requests, seed },
        )
    } else {
        let described = arguments.files.iter().map(|path| -> Outcome<(String, u64)> {
            let length = std::fs::metadata(path)
                .map_err(|error| format!("{}: {error}", path.display()))?
                .len();
            Ok((
                path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
                length,
            ))
        });
        (
            format!("image requests, {} files", arguments.files.len()),
            Source::Files(described.collect::<Outcome<_>>()?),
        )
    };
    let expected_seconds = match &settings {
        Source::Synthetic { requests, .. } => *requests as f64 / 2e6,
        Source::Files(files) => files.iter().map(|file| file.1 as f64).sum::<f64>() / 5e7,
    };
    let plan = Plan {
        experiment: EXPERIMENT,
        name,
        settings,
        seed: workload.seed,
        expected_seconds,
    };
    bench.progress.expect(expected_seconds);
    bench.run(&plan, |progress| {
        let mut counts = Counts::default();
        for (done, path) in arguments.files.iter().enumerate() {
            counts.read_file(path)?;
            progress.share((done + 1) as f64 / arguments.files.len() as f64);
        }
        if let Source::Synthetic { requests, seed } = plan.settings {
            let mut generator = Synthetic::new(&Paper::published()?.figure8, seed)?;
            let mut lines = Vec::new();
            let mut left = requests;
            while left > 0 {
                let part = left.min(10_000);
                lines.clear();
                generator.write(part, &mut lines)?;
                counts.read(&lines[..])?;
                left -= part;
                progress.share(1.0 - left as f64 / requests as f64);
            }
        }
        Ok(counts)
    })?;
    bench.progress.finish();
    Ok(())
}
