//! Compares Terrace with its rivals: the same work, on the same drives, with the same RAM, each in
//! a process of its own.
//!
//! [`micro`], [`ycsb`], [`recovery`], [`flashstore`] and [`scale`] are the experiments; [`worker`]
//! is the process, [`memory`] its limit and [`usage`] its resource usage; [`step`] measures a part,
//! [`data`] has the objects. [`targets`] compares with the goals, [`report`] makes the pages. A
//! failed run leaves no result and is listed at the end; the others continue. `--resume` runs only
//! those without a result.

pub mod data;
pub mod flashstore;
pub mod memory;
pub mod micro;
pub mod recovery;
pub mod report;
pub mod scale;
pub mod step;
pub mod targets;
#[cfg(test)]
mod tests;
pub mod usage;
pub mod worker;
pub mod ycsb;

use crate::{
    Outcome,
    harness::{
        page::Section,
        progress::Progress,
        report::Evaluation,
        results::{Bench, Plan, Record, ResultArguments},
        setup::{PlaceArguments, Places, Setup},
        target::Target,
        workload::read_toml,
    },
    rivals::{Candidate, Opening},
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::path::{Path, PathBuf};
use worker::{Errand, Task, Worker};

/// Name of a store's directories.
const NAME: &str = "contest";
/// Below the given directory, if there are no separate drives.
const WITHOUT_DRIVES: &str = "terrace-bench-contest";

/// Arguments of the parts.
#[derive(Debug, Clone, clap::Args)]
pub struct Common {
    #[command(flatten)]
    pub places: PlaceArguments,
    /// Directory for the databases if neither two directories nor emulated drives are given.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub directory: PathBuf,
    #[command(flatten)]
    pub results: ResultArguments,
    /// Placement of data; with "hybrid", candidates that can use two drives take part.
    #[arg(long, value_enum, default_value = "ssd")]
    pub setup: Setup,
    /// Only these candidates.
    #[arg(long = "only", value_enum, value_name = "CANDIDATE")]
    pub only: Vec<Candidate>,
    /// File with sizes, counts, power and prices, instead of the built-in one.
    #[arg(long, value_name = "FILE")]
    pub workload: Option<PathBuf>,
}

/// The file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadFile {
    /// Seed of everything random.
    seed: u64,
    small: Amount,
    full: Amount,
    /// Machines, for tables 4 and 5 of the FlashStore paper.
    #[serde(rename = "platform")]
    platforms: Vec<flashstore::Platform>,
}

/// Amount of work at a scale.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Amount {
    /// RAM for each engine's caches, in addition to the kernel's cache.
    cache_mib: u64,
    /// RAM for Terrace's caches: it uses direct I/O, so RAM left to the kernel's cache would be
    /// unused.
    terrace_cache_mib: u64,
    /// The same for YCSB, whose steps need less other memory than overwrites of some lengths do.
    ycsb_terrace_cache_mib: u64,
    /// RAM for the whole process and the kernel's cache of its files.
    memory_mib: u64,
    /// Single operations.
    pub micro: micro::Amount,
    /// The same on two drives.
    pub two_drives: micro::TwoDrives,
    /// The six workloads.
    pub ycsb: ycsb::Amount,
    /// After a kill.
    pub recovery: recovery::Amount,
    /// The two traces.
    pub flashstore: flashstore::Amount,
}

impl WorkloadFile {
    /// Reads the file, or the built-in one.
    pub fn read(file: Option<&Path>) -> Outcome<Self> {
        let workload: Self = read_toml(file, include_str!("../../workloads/contest.toml"))?;
        for amount in [&workload.small, &workload.full] {
            let Amount { micro, ycsb, .. } = amount;
            let two = &amount.two_drives;
            for (caches, memory) in [
                ([amount.cache_mib, amount.terrace_cache_mib], amount.memory_mib),
                ([amount.cache_mib, amount.ycsb_terrace_cache_mib], amount.memory_mib),
                ([two.cache_mib, two.terrace_cache_mib], two.memory_mib),
            ] {
                if caches.iter().any(|&mib| mib < 16 || memory < mib) {
                    return Err(
                        "cache_mib and terrace_cache_mib must be at least 16, and memory_mib at least as much".into(),
                    );
                }
            }
            if !(0.01..=1.0).contains(&two.flash_share) {
                return Err("two_drives: flash_share must be from 0.01 to 1".into());
            }
            if micro
                .sizes
                .iter()
                .any(|size| size.longest() == 0 || size.longest() > 256 << 20)
            {
                return Err("micro: sizes must be from 1 to 268435456".into());
            }
            if ycsb.records == 0 || ycsb.value_bytes == 0 || !(1..=1024).contains(&ycsb.threads) {
                return Err("ycsb: at least 1 record, values of at least 1 byte, and from 1 to 1024 threads".into());
            }
            amount.flashstore.validate()?;
        }
        Ok(workload)
    }
}

/// Candidate, drives and RAM of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meeting {
    /// The candidate.
    pub candidate: Candidate,
    /// Placement of its data.
    pub setup: Setup,
    /// The fast drive.
    pub ssd: String,
    /// The disk.
    pub hdd: String,
    /// RAM for its caches.
    pub cache_bytes: u64,
    /// RAM for its process and the kernel's cache of its files.
    pub memory_bytes: u64,
    /// The drives' directories. Not in the settings, where the drives are described above.
    #[serde(skip)]
    pub paths: Paths,
}

/// Directories on the two drives.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paths {
    /// The fast one.
    pub ssd: PathBuf,
    /// The disk.
    pub hdd: PathBuf,
}

impl Meeting {
    /// The same with this RAM; a candidate's caches get a rival's share, or Terrace's if it leaves
    /// nothing to the kernel's cache, either.
    pub const fn with_ram(mut self, cache_mib: u64, terrace_cache_mib: u64, memory_mib: u64) -> Self {
        let cache_mib = if self.candidate.bypasses_page_cache() {
            terrace_cache_mib
        } else {
            cache_mib
        };
        self.cache_bytes = cache_mib << 20;
        self.memory_bytes = memory_mib << 20;
        self
    }

    /// Options for a database of this many objects.
    pub fn opening(&self, objects: u64, object_bytes: u64) -> Opening {
        let Paths { ssd, hdd } = &self.paths;
        let directory = if self.setup == Setup::Hdd { hdd } else { ssd };
        Opening {
            cache_bytes: self.cache_bytes,
            large_directory: (self.setup == Setup::Hybrid).then(|| hdd.clone()),
            expected_objects: objects,
            expected_object_bytes: object_bytes,
            ..Opening::new(directory)
        }
    }
}

/// Results of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Bounded<T> {
    /// Whether the process's RAM was limited.
    pub memory_bounded: bool,
    /// What the task measured.
    #[serde(flatten)]
    pub measured: T,
}

/// A contest on two drives.
#[derive(Debug)]
pub struct Contest {
    /// Destination of results.
    pub bench: Bench,
    /// The drives.
    pub places: Places,
    workload: WorkloadFile,
    common: Common,
    /// Failed runs and their errors.
    failed: Mutex<Vec<String>>,
}

impl Contest {
    /// Opens a contest with the arguments.
    pub fn open(common: &Common) -> Outcome<Self> {
        let workload = WorkloadFile::read(common.workload.as_deref())?;
        let mut places = common.places.clone();
        if !places.are_given() {
            let directory = common.directory.join(WITHOUT_DRIVES);
            places.ssd = Some(directory.join("ssd"));
            places.hdd = Some(directory.join("hdd"));
        }
        Ok(Self {
            bench: Bench::new(&common.results.results, common.results.resume)?,
            places: Places::open(&places, workload.seed)?,
            common: common.clone(),
            workload,
            failed: Mutex::default(),
        })
    }

    /// Amount of work.
    pub fn amount(&self) -> &Amount {
        self.common.results.scale.of(&self.workload.small, &self.workload.full)
    }

    /// The candidates: all that can take part, or those named. Terrace without its cache takes part
    /// only in the traces of the FlashStore paper, unless it is named.
    pub fn candidates(&self) -> Vec<Candidate> {
        let mut candidates = self.candidates_on(self.common.setup);
        if self.common.only.is_empty() {
            candidates.retain(|candidate| *candidate != Candidate::TerraceUncached);
        }
        candidates
    }

    /// The candidates that can take part on a setup.
    pub fn candidates_on(&self, setup: Setup) -> Vec<Candidate> {
        let mut candidates = Candidate::compiled_in();
        candidates.retain(|candidate| setup != Setup::Hybrid || candidate.abilities().two_drives);
        candidates.retain(|candidate| self.common.only.is_empty() || self.common.only.contains(candidate));
        candidates
    }

    /// A candidate on the setup of the arguments.
    pub fn meeting(&self, candidate: Candidate) -> Meeting {
        self.meeting_on(candidate, self.common.setup)
    }

    /// A candidate with the RAM for YCSB.
    pub fn ycsb_meeting(&self, candidate: Candidate) -> Meeting {
        let amount = self.amount();
        self.meeting(candidate)
            .with_ram(amount.cache_mib, amount.ycsb_terrace_cache_mib, amount.memory_mib)
    }

    /// A candidate on a setup.
    pub fn meeting_on(&self, candidate: Candidate, setup: Setup) -> Meeting {
        let amount = self.amount();
        Meeting {
            candidate,
            setup,
            ssd: self.places.ssd.description.clone(),
            hdd: self.places.hdd.description.clone(),
            cache_bytes: 0,
            memory_bytes: 0,
            paths: self.paths(),
        }
        .with_ram(amount.cache_mib, amount.terrace_cache_mib, amount.memory_mib)
    }

    fn paths(&self) -> Paths {
        Paths {
            ssd: self.places.ssd.path.join(NAME),
            hdd: self.places.hdd.path.join(NAME),
        }
    }

    /// A run to make.
    pub fn plan<S>(
        &self,
        experiment: &'static str,
        name: String,
        expected_seconds: f64,
        settings: S,
    ) -> Plan<'static, S> {
        Plan {
            experiment,
            name,
            settings,
            seed: self.workload.seed,
            expected_seconds,
        }
    }

    /// Runs plans, each in its own process and in empty directories.
    pub fn make<S: Serialize, T: Serialize + DeserializeOwned>(
        &self,
        plans: &[Plan<'_, S>],
        meeting: impl Fn(&S) -> &Meeting,
        task: impl Fn(&S) -> Task,
    ) -> Outcome {
        self.make_by(plans, |settings, progress| {
            let mut worker = self.worker(task(settings), meeting(settings))?;
            let memory_bounded = worker.is_bounded();
            let measured: T = worker.outcome(|share| progress.share(share))?;
            Ok(Bounded {
                memory_bounded,
                measured,
            })
        })
    }

    /// Runs plans in empty directories. The others continue after a failure, which may be a rival's
    /// fault.
    pub fn make_by<S: Serialize, T: Serialize>(
        &self,
        plans: &[Plan<'_, S>],
        measure: impl Fn(&S, &Progress) -> Outcome<T>,
    ) -> Outcome {
        self.bench
            .progress
            .expect(plans.iter().map(|plan| plan.expected_seconds).sum());
        for plan in plans {
            self.places.fresh(NAME)?;
            let made = self.bench.run(plan, |progress| measure(&plan.settings, progress));
            self.places.remove(NAME)?;
            if let Err(error) = made {
                eprintln!("failed: {error}");
                self.failed.lock().push(error.to_string());
            }
        }
        Ok(())
    }

    /// Failed runs and their errors.
    pub fn failed(&self) -> Vec<String> {
        self.failed.lock().clone()
    }

    /// Starts a worker process.
    pub fn worker(&self, task: Task, meeting: &Meeting) -> Outcome<Worker> {
        let errand = Errand {
            paths: self.paths(),
            task,
        };
        Worker::start(&errand, Some(meeting.memory_bytes))
    }
}

/// An error that lists the failed runs, if there are any.
pub fn none_failed(failed: &[String]) -> Outcome {
    match failed.len() {
        0 => Ok(()),
        runs => Err(format!(
            "{runs} run(s) failed; --resume makes them again, and no others:\n{}",
            failed.join("\n")
        )
        .into()),
    }
}

/// Experiments to run, in order.
pub type Works = [fn(&Contest) -> Outcome];

/// Single operations, and opening after a kill.
pub const MICRO: &Works = &[micro::measure_all, recovery::measure_all];
/// YCSB.
pub const YCSB: &Works = &[ycsb::measure_all];
/// The FlashStore paper's traces.
pub const FLASHSTORE: &Works = &[flashstore::measure_all];

/// Runs experiments. Returns the failed runs.
pub fn measure(common: &Common, works: &Works) -> Outcome<Vec<String>> {
    let contest = Contest::open(common)?;
    works.iter().try_for_each(|work| work(&contest))?;
    contest.bench.progress.finish();
    Ok(contest.failed())
}

/// All experiments in the report.
pub struct Rivals;

impl Evaluation for Rivals {
    fn name(&self) -> &'static str {
        "against the rivals"
    }

    fn sections(&self, records: &[Record]) -> Outcome<Vec<Section>> {
        Ok([flashstore::report::sections(records)?, report::sections(records)?].concat())
    }

    fn targets(&self, records: &[Record]) -> Outcome<Vec<Target>> {
        targets::targets(records)
    }
}
