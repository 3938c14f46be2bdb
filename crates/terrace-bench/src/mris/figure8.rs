//! Figure 8: image requests by size, from pagecounts files, beside the paper's.

use super::pagecounts::Counts;
use crate::{
    Outcome,
    harness::results::{Bench, Plan, ResultArguments},
};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Experiment name in the results.
pub const EXPERIMENT: &str = "mris-figure8";

/// Arguments of the subcommand.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// Files of pagecounts-raw, plain or gzip.
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub results: ResultArguments,
}

/// The counted files: names and lengths.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Source {
    files: Vec<(String, u64)>,
}

/// Counts requests and stores the result.
pub fn run(arguments: &Arguments) -> Outcome {
    let bench = Bench::new(&arguments.results.results, arguments.results.resume)?;
    let described = arguments.files.iter().map(|path| -> Outcome<(String, u64)> {
        let length = std::fs::metadata(path)
            .map_err(|error| format!("{}: {error}", path.display()))?
            .len();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Ok((name.into_owned(), length))
    });
    let files = described.collect::<Outcome<Vec<_>>>()?;
    let expected_seconds = files.iter().map(|file| file.1 as f64).sum::<f64>() / 5e7;
    let plan = Plan {
        experiment: EXPERIMENT,
        name: format!("image requests, {} files", files.len()),
        settings: Source { files },
        seed: 0, // nothing is random
        expected_seconds,
    };
    bench.progress.expect(expected_seconds);
    bench.run(&plan, |progress| {
        let mut counts = Counts::default();
        for (done, path) in arguments.files.iter().enumerate() {
            counts.read_file(path)?;
            progress.share((done + 1) as f64 / arguments.files.len() as f64);
        }
        Ok(counts)
    })?;
    bench.progress.finish();
    Ok(())
}
