//! Terrace beside its rivals: the same work, on the same drives, with the same RAM, each in a
//! process of its own.
//!
//! [`micro`], [`ycsb`], [`recovery`], [`flashstore`] and [`scale`] are the works; [`worker`] is
//! the process, [`memory`] its bound and [`usage`] what it used; [`step`] is what is measured of a
//! part, [`data`] the objects. [`targets`] says what was aimed at, [`report`] makes the pages. A
//! run that fails leaves no result and is named at the end; the others go on. `--resume` makes only
//! those that are missing.

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
        workload::{Scale, read_toml},
    },
    rivals::{Candidate, Opening},
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::path::{Path, PathBuf};
use worker::{Errand, Task, Worker};

/// Name of a store's directories.
const NAME: &str = "contest";
/// Below the directory given, if none is given for each drive.
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
    /// What lies where: with "hybrid" those take part that can use two drives.
    #[arg(long, value_enum, default_value = "ssd")]
    pub setup: Setup,
    /// Only these.
    #[arg(long = "only", value_enum, value_name = "CANDIDATE")]
    pub only: Vec<Candidate>,
    /// Sizes, counts, power and prices, instead of those in the program.
    #[arg(long, value_name = "FILE")]
    pub workload: Option<PathBuf>,
}

/// The file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadFile {
    /// Of everything random.
    seed: u64,
    small: Amount,
    full: Amount,
    /// Machines, for tables 4 and 5 of the FlashStore paper.
    #[serde(rename = "platform")]
    platforms: Vec<flashstore::Platform>,
}

/// How much is done at a scale.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Amount {
    /// RAM for each engine's caches, beside which the kernel caches.
    cache_mib: u64,
    /// RAM for Terrace's: it reads past the kernel's cache, so that what the bound leaves would lie
    /// idle.
    terrace_cache_mib: u64,
    /// The same for YCSB, none of whose steps takes as much memory beside the caches as overwriting
    /// of some lengths does.
    ycsb_terrace_cache_mib: u64,
    /// RAM for the whole process, with what the kernel caches for it.
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
    /// The file, or the one in the program.
    ///
    /// # Errors
    /// If it has not the form or cannot be run.
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

    /// Power and prices.
    #[must_use]
    pub fn platforms(&self) -> Vec<flashstore::Platform> {
        self.platforms.clone()
    }
}

/// Who works where with what RAM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meeting {
    /// Who.
    pub candidate: Candidate,
    /// Where its data lie.
    pub setup: Setup,
    /// The fast drive.
    pub ssd: String,
    /// The disk.
    pub hdd: String,
    /// RAM for its caches.
    pub cache_bytes: u64,
    /// RAM for its process, with what the kernel caches for it.
    pub memory_bytes: u64,
    /// Where the two drives are. They are known by what is said of them above.
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
    /// The same with this RAM, of which a candidate's caches have a rival's share or Terrace's.
    #[must_use]
    pub const fn with_ram(mut self, cache_mib: u64, terrace_cache_mib: u64, memory_mib: u64) -> Self {
        let cache_mib = if self.candidate.is_terrace() {
            terrace_cache_mib
        } else {
            cache_mib
        };
        self.cache_bytes = cache_mib << 20;
        self.memory_bytes = memory_mib << 20;
        self
    }

    /// How a database of so many objects is opened.
    #[must_use]
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

/// What was measured, and whether the RAM was bounded.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Bounded<T> {
    /// Whether the process had no more RAM than it was to have.
    pub memory_bounded: bool,
    /// What the task measured.
    #[serde(flatten)]
    pub measured: T,
}

/// A contest on two drives.
#[derive(Debug)]
pub struct Contest {
    /// Where results go.
    pub bench: Bench,
    /// The drives.
    pub places: Places,
    workload: WorkloadFile,
    scale: Scale,
    common: Common,
    /// Runs that failed, and why.
    failed: Mutex<Vec<String>>,
}

impl Contest {
    /// As the arguments say.
    ///
    /// # Errors
    /// If the drives cannot be had or the file not be read.
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
            scale: common.results.scale,
            common: common.clone(),
            workload,
            failed: Mutex::default(),
        })
    }

    /// How much is done.
    #[must_use]
    pub const fn amount(&self) -> &Amount {
        match self.scale {
            Scale::Small => &self.workload.small,
            Scale::Full => &self.workload.full,
        }
    }

    /// What lies where.
    #[must_use]
    pub const fn setup(&self) -> Setup {
        self.common.setup
    }

    /// Of everything random.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.workload.seed
    }

    /// Power and prices.
    #[must_use]
    pub fn platforms(&self) -> Vec<flashstore::Platform> {
        self.workload.platforms()
    }

    /// Who takes part: everybody who can, or those who were named. Terrace without its cache only
    /// in the traces of the FlashStore paper, unless it is named.
    #[must_use]
    pub fn candidates(&self) -> Vec<Candidate> {
        let mut candidates = self.candidates_on(self.common.setup);
        if self.common.only.is_empty() {
            candidates.retain(|candidate| *candidate != Candidate::TerraceUncached);
        }
        candidates
    }

    /// Who can take part on a setup.
    #[must_use]
    pub fn candidates_on(&self, setup: Setup) -> Vec<Candidate> {
        let mut candidates = Candidate::compiled_in();
        candidates.retain(|candidate| setup != Setup::Hybrid || candidate.abilities().two_drives);
        candidates.retain(|candidate| self.common.only.is_empty() || self.common.only.contains(candidate));
        candidates
    }

    /// A candidate on the setup of the arguments.
    #[must_use]
    pub fn meeting(&self, candidate: Candidate) -> Meeting {
        self.meeting_on(candidate, self.common.setup)
    }

    /// A candidate with the RAM for YCSB.
    #[must_use]
    pub fn ycsb_meeting(&self, candidate: Candidate) -> Meeting {
        let amount = self.amount();
        self.meeting(candidate)
            .with_ram(amount.cache_mib, amount.ycsb_terrace_cache_mib, amount.memory_mib)
    }

    /// A candidate on a setup.
    #[must_use]
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
    #[must_use]
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

    /// Makes runs, each in its own process and in empty directories.
    ///
    /// # Errors
    /// As [`Self::make_by`].
    pub fn make<S: Serialize, T: Serialize + DeserializeOwned>(
        &self,
        plans: &[Plan<'_, S>],
        meeting: impl Fn(&S) -> &Meeting,
        task: impl Fn(&S) -> Task,
        _measured: impl Fn(&T),
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

    /// Makes runs in empty directories. One that fails does not keep the others from being made: it
    /// may be a rival's fault.
    ///
    /// # Errors
    /// The directories'.
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

    /// The runs that failed, and why.
    #[must_use]
    pub fn failed(&self) -> Vec<String> {
        self.failed.lock().clone()
    }

    /// A process at work.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn worker(&self, task: Task, meeting: &Meeting) -> Outcome<Worker> {
        let errand = Errand {
            paths: self.paths(),
            task,
        };
        Worker::start(&errand, Some(meeting.memory_bytes))
    }
}

/// An error that names the runs that failed, if any did.
///
/// # Errors
/// Those.
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

/// Works to make, one after the other.
pub type Works = [fn(&Contest) -> Outcome];

/// Single operations, and opening after a kill.
pub const MICRO: &Works = &[micro::measure_all, recovery::measure_all];
/// YCSB.
pub const YCSB: &Works = &[ycsb::measure_all];
/// The FlashStore paper's traces.
pub const FLASHSTORE: &Works = &[flashstore::measure_all];

/// Makes works. Returns the runs that failed.
///
/// # Errors
/// If they cannot be made at all.
pub fn measure(common: &Common, works: &Works) -> Outcome<Vec<String>> {
    let contest = Contest::open(common)?;
    works.iter().try_for_each(|work| work(&contest))?;
    contest.bench.progress.finish();
    Ok(contest.failed())
}

/// All works in the report.
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
