//! `terrace-bench scale`: what becomes of a store as it grows, from millions of small objects to a
//! hundred million, with the same RAM.
//!
//! One run is one candidate and one length of values. The objects are put in an order that has
//! nothing to do with that of their keys; at each step filling pauses, what is in RAM is flushed,
//! and objects are read: each as often, by Zipf's law, and keys that are not there. After the last
//! step everything is synced and the process is killed with SIGKILL while it goes on writing;
//! another one opens what is left and reads.
//!
//! [`grow`] is what the processes do, [`report`] the tables and the charts.

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
        workload::Scale,
    },
    rivals::Candidate,
};
use grow::{Grown, Reopened, Reopening};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What kind of run this is, in the results.
pub const EXPERIMENT: &str = "scale";

/// Arguments of the subcommand.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    common: contest::Common,
    /// Lengths of the values; a run each.
    #[arg(long, value_name = "BYTES", default_values_t = [100, 1024])]
    value_bytes: Vec<usize>,
    /// Objects at each step; 10, 30 and 100 million, or a tenth of that at small scale.
    #[arg(long, value_name = "COUNT")]
    objects: Vec<u64>,
    /// RAM for each process, with what the kernel caches for it.
    #[arg(long, value_name = "MIB", default_value = "4096")]
    memory_mib: u64,
    /// Of that, RAM for a rival's caches.
    #[arg(long, value_name = "MIB", default_value = "2048")]
    cache_mib: u64,
    /// And for Terrace's, beside which its hash index and the filters of its ordered index grow: it
    /// reads past the kernel's cache.
    #[arg(long, value_name = "MIB", default_value = "2304")]
    terrace_cache_mib: u64,
    /// How long each kind of read is measured at each step.
    #[arg(long, value_name = "SECONDS", default_value = "8")]
    read_seconds: f64,
    /// How long what was killed is read once it is open again.
    #[arg(long, value_name = "SECONDS", default_value = "30")]
    reopened_seconds: f64,
    /// After so long no more is put, however little it is: the last step is then what there is.
    #[arg(long, value_name = "SECONDS", default_value = "3600")]
    fill_seconds_max: f64,
    /// Threads that put.
    #[arg(long, default_value = "1")]
    writers: usize,
    /// Threads that read.
    #[arg(long, default_value = "8")]
    readers: usize,
}

impl Arguments {
    /// Where the results lie.
    pub fn results(&self) -> &Path {
        &self.common.results.results
    }

    fn steps(&self) -> Vec<u64> {
        let unit = match self.common.results.scale {
            Scale::Small => 1_000_000,
            Scale::Full => 10_000_000,
        };
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
        let threads = [self.writers, self.readers];
        if threads.iter().any(|threads| !(1..=1024).contains(threads)) {
            return Err("--writers and --readers must be from 1 to 1024".into());
        }
        let seconds = [self.read_seconds, self.reopened_seconds, self.fill_seconds_max];
        if seconds.iter().any(|seconds| !(0.001..=1e6).contains(seconds)) {
            return Err("seconds must be from 0.001 to a million".into());
        }
        Ok(())
    }
}

/// What was chosen for a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Who, where, with what RAM.
    pub meeting: Meeting,
    /// Length of a value.
    pub value_bytes: usize,
    /// Objects at each step, rising.
    pub objects: Vec<u64>,
    /// How long each kind of read is measured.
    pub read_seconds: f64,
    /// How long the reopened one is read.
    pub reopened_seconds: f64,
    /// Longest that is filled.
    pub fill_seconds_max: f64,
    /// Threads that put.
    pub writers: usize,
    /// Threads that read.
    pub readers: usize,
    /// Of everything random.
    pub seed: u64,
}

impl Settings {
    /// Objects at the last step.
    #[must_use]
    pub fn most(&self) -> Option<u64> {
        self.objects.last().copied()
    }
}

/// What was measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    /// Until it was killed.
    pub grown: Grown,
    /// After that.
    pub reopened: Reopened,
}

/// Makes the runs, of those that survive a kill, and the report.
///
/// # Errors
/// Those of the runs that failed, or why none could be made.
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
        let grown: Grown = growing.measured_then_killed(|share| progress.share(share))?;
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

/// How stores grow, in the report.
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
    let reads = 3.0 * arguments.read_seconds * steps.len() as f64 + arguments.reopened_seconds;
    let settings = Settings {
        meeting: contest.meeting(candidate).with_ram(
            arguments.cache_mib,
            arguments.terrace_cache_mib,
            arguments.memory_mib,
        ),
        value_bytes,
        objects: steps,
        read_seconds: arguments.read_seconds,
        reopened_seconds: arguments.reopened_seconds,
        fill_seconds_max: arguments.fill_seconds_max,
        writers: arguments.writers,
        readers: arguments.readers,
        seed: contest.seed(),
    };
    let name = format!("{}, {value_bytes} B", candidate.name());
    let fill = (most / 2e5).min(arguments.fill_seconds_max);
    contest.plan(EXPERIMENT, name, fill + reads, settings)
}
