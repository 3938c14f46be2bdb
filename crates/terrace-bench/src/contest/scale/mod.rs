//! `terrace-bench scale`: a store as it grows, from millions of small objects to a hundred million,
//! with the same RAM.
//!
//! One run is one candidate and one length of values. Objects are put in an order that is
//! independent of the order of their keys. At each step filling pauses, RAM is flushed, and objects
//! are read: uniformly, by Zipf's law, and absent keys. After the last step everything is synced
//! and the process is killed with SIGKILL while it continues to write; another process opens the
//! database and reads.
//!
//! [`grow`] has the two processes, [`report`] the tables and charts.

pub mod grow;
pub mod report;

use crate::{
    Outcome,
    contest::{self, Bounded, Contest, Meeting, worker::Task},
    harness::{
        page::Section,
        report::Evaluation,
        results::{Plan, Record},
        target::Target,
    },
    rivals::Candidate,
};
use grow::{Grown, Reopened, Reopening};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Experiment name in the results.
pub const EXPERIMENT: &str = "scale";

/// Arguments of the subcommand.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    common: contest::Common,
    /// Lengths of the values; one run each.
    #[arg(long, value_name = "BYTES", default_values_t = [100, 1024])]
    value_bytes: Vec<usize>,
    /// Objects at each step; 10, 30 and 100 million, or a tenth of this at small scale.
    #[arg(long, value_name = "COUNT")]
    objects: Vec<u64>,
    /// RAM for each process and the kernel's cache of its files.
    #[arg(long, value_name = "MIB", default_value = "4096")]
    memory_mib: u64,
    /// RAM for a rival's caches, as a part of that.
    #[arg(long, value_name = "MIB", default_value = "2048")]
    cache_mib: u64,
    /// RAM for Terrace's caches, besides which its hash index and the filters of its ordered index
    /// grow. It uses direct I/O.
    #[arg(long, value_name = "MIB", default_value = "2304")]
    terrace_cache_mib: u64,
    #[command(flatten)]
    pace: Pace,
}

/// Durations and threads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, clap::Args)]
pub struct Pace {
    /// Duration of each kind of read at each step.
    #[arg(long, value_name = "SECONDS", default_value = "8")]
    read_seconds: f64,
    /// Duration of reads after the reopening.
    #[arg(long, value_name = "SECONDS", default_value = "30")]
    reopened_seconds: f64,
    /// Longest time of filling; the last step has the objects put until then.
    #[arg(long, value_name = "SECONDS", default_value = "3600")]
    fill_seconds_max: f64,
    /// Writing threads.
    #[arg(long, default_value = "1")]
    writers: usize,
    /// Reading threads.
    #[arg(long, default_value = "8")]
    readers: usize,
}

impl Arguments {
    /// Directory of the results.
    pub fn results(&self) -> &Path {
        &self.common.results.results
    }

    fn steps(&self) -> Vec<u64> {
        let unit = self.common.results.scale.of(1_000_000, 10_000_000);
        let mut steps = self.objects.clone();
        if steps.is_empty() {
            steps = [1, 3, 10].map(|step| step * unit).to_vec();
        }
        steps.sort_unstable();
        steps.dedup();
        steps
    }

    fn validate(&self) -> Outcome {
        let caches = [self.cache_mib, self.terrace_cache_mib];
        if caches.iter().any(|&mib| mib < 16 || self.memory_mib < mib) {
            return Err(
                "--cache-mib and --terrace-cache-mib must be at least 16, and --memory-mib at least as much".into(),
            );
        }
        if self.steps().first().is_none_or(|&objects| objects == 0) {
            return Err("--objects must be above 0".into());
        }
        if self.value_bytes.iter().any(|&bytes| !(1..=1 << 20).contains(&bytes)) {
            return Err("--value-bytes must be from 1 to 1048576".into());
        }
        let pace = &self.pace;
        let threads = [pace.writers, pace.readers];
        if threads.iter().any(|threads| !(1..=1024).contains(threads)) {
            return Err("--writers and --readers must be from 1 to 1024".into());
        }
        let seconds = [pace.read_seconds, pace.reopened_seconds, pace.fill_seconds_max];
        if seconds.iter().any(|seconds| !(0.001..=1e6).contains(seconds)) {
            return Err("seconds must be from 0.001 to a million".into());
        }
        Ok(())
    }
}

/// Settings of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Candidate, drives and RAM.
    pub meeting: Meeting,
    /// Length of a value.
    pub value_bytes: usize,
    /// Objects at each step, ascending.
    pub objects: Vec<u64>,
    /// Durations and threads.
    #[serde(flatten)]
    pub pace: Pace,
    /// Seed of everything random.
    pub seed: u64,
}

impl Settings {
    /// Objects at the last step.
    pub fn most(&self) -> Option<u64> {
        self.objects.last().copied()
    }
}

/// Results of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    /// Until the kill.
    pub grown: Grown,
    /// After the kill.
    pub reopened: Reopened,
}

/// Runs all candidates that survive a kill, and makes the report.
pub fn run(arguments: &Arguments) -> Outcome<Vec<String>> {
    arguments.validate()?;
    let contest = Contest::open(&arguments.common)?;
    let candidates: Vec<Candidate> = contest
        .candidates()
        .into_iter()
        .filter(|candidate| candidate.abilities().survives_kill)
        .collect();
    let plans: Vec<_> = arguments
        .value_bytes
        .iter()
        .flat_map(|&bytes| candidates.iter().map(move |&candidate| (bytes, candidate)))
        .map(|(bytes, candidate)| plan(&contest, arguments, bytes, candidate))
        .collect();
    contest.make_by(&plans, |settings, progress| {
        let growing = contest.worker(Task::Grow(settings.clone()), &settings.meeting)?;
        let memory_bounded = growing.is_bounded();
        let grown: Grown = growing.killed_when_ready(|share| progress.share(share))?;
        contest.places.drop_caches()?;
        let reopen = Task::Reopen(Reopening {
            settings: settings.clone(),
            stored: grown.stored(),
        });
        let reopened: Reopened = contest.worker(reopen, &settings.meeting)?.outcome(|_| {})?;
        Ok(Bounded {
            memory_bounded,
            measured: Measured { grown, reopened },
        })
    })?;
    contest.bench.progress.finish();
    Ok(contest.failed())
}

/// The growth of stores, in the report.
pub struct Growth;

impl Evaluation for Growth {
    fn name(&self) -> &'static str {
        "of stores that grow"
    }

    fn sections(&self, records: &[Record]) -> Outcome<Vec<Section>> {
        Ok(report::sections(records)?.into_iter().collect())
    }

    fn targets(&self, records: &[Record]) -> Outcome<Vec<Target>> {
        report::targets(records)
    }
}

fn plan(contest: &Contest, arguments: &Arguments, value_bytes: usize, candidate: Candidate) -> Plan<'static, Settings> {
    let steps = arguments.steps();
    let most = steps.last().copied().unwrap_or(0) as f64;
    let reads = 3.0 * arguments.pace.read_seconds * steps.len() as f64 + arguments.pace.reopened_seconds;
    let settings = Settings {
        meeting: contest.meeting(candidate).with_ram(
            arguments.cache_mib,
            arguments.terrace_cache_mib,
            arguments.memory_mib,
        ),
        value_bytes,
        objects: steps,
        pace: arguments.pace.clone(),
        seed: contest.workload.seed,
    };
    let name = format!("{}, {value_bytes} B", candidate.name());
    let fill = (most / 2e5).min(arguments.pace.fill_seconds_max);
    contest.plan(EXPERIMENT, name, fill + reads, settings)
}
