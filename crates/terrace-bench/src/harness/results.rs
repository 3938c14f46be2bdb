//! Results: one JSON file per run, with all information to assess and repeat it.
//!
//! A run is identified by its experiment and settings; the hash of both is in the file's name, and
//! `--resume` skips a run whose file exists. A file is written beside and renamed, so it is
//! complete. Reports are made from these files only.

use super::{
    host::{Host, commit},
    progress::Progress,
    workload::Scale,
};
use crate::Outcome;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

/// Version of the file format.
const FORMAT: u32 = 1;

/// One run and what it measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Version of the format.
    pub format: u32,
    /// Experiment, which determines the form of settings and outcome.
    pub experiment: String,
    /// Name of the run, as text.
    pub name: String,
    /// Hash of experiment and settings, in hexadecimal.
    pub settings_hash: String,
    /// The settings.
    pub settings: Value,
    /// Seed of everything random.
    pub seed: u64,
    /// Start time in UTC.
    pub started: String,
    /// Duration.
    pub seconds: f64,
    /// The machine.
    pub host: Host,
    /// Commit of the program.
    pub commit: String,
    /// The measurements.
    pub outcome: Value,
}

impl Record {
    /// A result for a test.
    #[cfg(test)]
    pub fn made_up(experiment: &str, settings: Value, outcome: Value) -> Self {
        Self {
            format: FORMAT,
            experiment: experiment.to_owned(),
            name: String::new(),
            settings_hash: String::new(),
            settings,
            seed: 1,
            started: String::new(),
            seconds: 1.0,
            host: Host::here(),
            commit: String::new(),
            outcome,
        }
    }

    /// Parses the outcome.
    pub fn outcome<T: DeserializeOwned>(&self) -> Outcome<T> {
        T::deserialize(&self.outcome).map_err(|error| self.unreadable("outcome", &error))
    }

    /// Parses the settings.
    pub fn settings<T: DeserializeOwned>(&self) -> Outcome<T> {
        T::deserialize(&self.settings).map_err(|error| self.unreadable("settings", &error))
    }

    fn unreadable(&self, part: &str, error: &serde_json::Error) -> Box<dyn std::error::Error + Send + Sync> {
        let Self { experiment, name, .. } = self;
        format!("result of {experiment} \"{name}\": the {part} cannot be read ({error}); remove the file and run again")
            .into()
    }
}

/// The hash that identifies a run.
fn settings_hash(experiment: &str, settings: &Value) -> String {
    let text = format!("{experiment}\n{settings}");
    format!("{:032x}", xxhash_rust::xxh3::xxh3_128(text.as_bytes()))
}

/// A directory of results.
#[derive(Debug, Clone)]
pub struct Results {
    directory: PathBuf,
}

impl Results {
    /// Opens a directory of results, which is created if it does not exist.
    pub fn create(directory: &Path) -> Outcome<Self> {
        fs::create_dir_all(directory).map_err(|error| format!("{} cannot be made: {error}", directory.display()))?;
        Ok(Self {
            directory: directory.to_owned(),
        })
    }

    fn path(&self, experiment: &str, hash: &str) -> PathBuf {
        self.directory.join(format!("{experiment}-{}.json", &hash[..16]))
    }

    fn read(path: &Path) -> Outcome<Record> {
        let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let record: Record = serde_json::from_str(&text)
            .map_err(|error| format!("{} is not a result ({error}); remove it", path.display()))?;
        if record.format != FORMAT {
            let found = record.format;
            return Err(format!("{} has format {found}, this program reads {FORMAT}", path.display()).into());
        }
        Ok(record)
    }

    /// The result of a run, if it exists.
    pub fn find(&self, experiment: &str, settings: &Value) -> Outcome<Option<Record>> {
        let hash = settings_hash(experiment, settings);
        let path = self.path(experiment, &hash);
        if !path.exists() {
            return Ok(None);
        }
        let record = Self::read(&path)?;
        Ok((record.settings_hash == hash).then_some(record))
    }

    fn write(&self, record: &Record) -> Outcome {
        let path = self.path(&record.experiment, &record.settings_hash);
        let beside = path.with_extension("tmp");
        fs::write(&beside, serde_json::to_string_pretty(record)? + "\n")?;
        fs::rename(beside, path)?;
        Ok(())
    }

    /// All results, by name and start time.
    ///
    /// # Errors
    /// If a file that ends in `.json` is not a result.
    pub fn all(&self) -> Outcome<Vec<Record>> {
        let entries = fs::read_dir(&self.directory)
            .map_err(|error| format!("{} cannot be read: {error}", self.directory.display()))?;
        let mut records = Vec::new();
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                records.push(Self::read(&path)?);
            }
        }
        records
            .sort_by_cached_key(|record| [&record.experiment, &record.name, &record.settings_hash].map(String::clone));
        Ok(records)
    }
}

/// Options for results and the size of runs.
#[derive(Debug, Clone, clap::Args)]
pub struct ResultArguments {
    /// Directory for the results, one JSON file per run.
    #[arg(long, value_name = "DIR", default_value = "results")]
    pub results: PathBuf,
    /// Skip runs that have a result with the same settings.
    #[arg(long)]
    pub resume: bool,
    /// Size of the runs: small ends within 30 minutes on two cores, full is as large as the
    /// original.
    #[arg(long, value_enum, default_value = "small")]
    pub scale: Scale,
}

/// A run to make.
#[derive(Debug, Clone)]
pub struct Plan<'a, S> {
    /// The experiment.
    pub experiment: &'a str,
    /// Name of the run, as text.
    pub name: String,
    /// The settings.
    pub settings: S,
    /// Seed of everything random.
    pub seed: u64,
    /// Expected duration, for the progress bar.
    pub expected_seconds: f64,
}

/// Runs plans and stores their results.
#[derive(Debug)]
pub struct Bench {
    /// The results so far.
    pub results: Results,
    resume: bool,
    host: Host,
    commit: String,
    /// The bar.
    pub progress: Progress,
}

impl Bench {
    /// Stores results in a directory; with `resume`, runs with a result are skipped.
    pub fn new(results: &Path, resume: bool) -> Outcome<Self> {
        Ok(Self {
            results: Results::create(results)?,
            resume,
            host: Host::here(),
            commit: commit(),
            progress: Progress::new(),
        })
    }

    /// Whether this run has a result.
    pub fn is_done<S: Serialize>(&self, plan: &Plan<'_, S>) -> Outcome<bool> {
        Ok(self.resume
            && self
                .results
                .find(plan.experiment, &serde_json::to_value(&plan.settings)?)?
                .is_some())
    }

    /// Runs a plan and stores its result, unless it has one. Its time must have been added to the
    /// progress bar.
    pub fn run<S: Serialize, T: Serialize>(
        &self,
        plan: &Plan<'_, S>,
        measure: impl FnOnce(&Progress) -> Outcome<T>,
    ) -> Outcome {
        if self.is_done(plan)? {
            self.progress.skipped(&plan.name, plan.expected_seconds);
            return Ok(());
        }
        let started = jiff::Timestamp::now().to_string();
        let clock = Instant::now();
        self.progress.start(&plan.name, plan.expected_seconds);
        let outcome = measure(&self.progress).map_err(|error| format!("{}: {error}", plan.name))?;
        self.progress.end();
        let settings = serde_json::to_value(&plan.settings)?;
        self.results.write(&Record {
            format: FORMAT,
            experiment: plan.experiment.to_owned(),
            name: plan.name.clone(),
            settings_hash: settings_hash(plan.experiment, &settings),
            settings,
            seed: plan.seed,
            started,
            seconds: clock.elapsed().as_secs_f64(),
            host: self.host.clone(),
            commit: self.commit.clone(),
            outcome: serde_json::to_value(outcome)?,
        })
    }

    /// Runs plans.
    pub fn run_all<'a, S: Serialize, T: Serialize>(
        &self,
        plans: &[Plan<'a, S>],
        mut measure: impl FnMut(&Plan<'a, S>, &Progress) -> Outcome<T>,
    ) -> Outcome {
        self.progress
            .expect(plans.iter().map(|plan| plan.expected_seconds).sum());
        plans
            .iter()
            .try_for_each(|plan| self.run(plan, |progress| measure(plan, progress)))
    }

    /// Runs plans, each in its own temporary directory below `directory`.
    pub fn run_each_in<S: Serialize, T: Serialize>(
        &self,
        directory: &Path,
        plans: &[Plan<'_, S>],
        measure: impl Fn(&Path, &S, &Progress) -> Outcome<T>,
    ) -> Outcome {
        self.run_all(plans, |plan, progress| {
            let own = tempfile::Builder::new()
                .prefix("terrace-bench-")
                .tempdir_in(directory)?;
            measure(own.path(), &plan.settings, progress)
        })?;
        self.progress.finish();
        Ok(())
    }
}

/// Settings and outcomes of all runs of an experiment.
pub fn rows<S: DeserializeOwned, T: DeserializeOwned>(records: &[Record], experiment: &str) -> Outcome<Vec<(S, T)>> {
    let of_kind = records.iter().filter(|record| record.experiment == experiment);
    of_kind
        .map(|record| Ok((record.settings()?, record.outcome()?)))
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn plan(threads: u64) -> Plan<'static, Value> {
        Plan {
            experiment: "sample",
            name: format!("{threads} threads"),
            settings: json!({ "threads": threads }),
            seed: 7,
            expected_seconds: 1.0,
        }
    }

    #[test]
    fn a_run_is_kept_with_its_surroundings() {
        let directory = tempfile::tempdir().unwrap();
        let bench = Bench::new(directory.path(), false).unwrap();
        bench.run(&plan(2), |_| Ok(json!({ "rate": 5.5 }))).unwrap();
        let records = bench.results.all().unwrap();
        let [record] = &records[..] else { panic!("{records:?}") };
        assert_eq!((record.seed, record.name.as_str()), (7, "2 threads"));
        assert_eq!(record.host, Host::here());
        assert!(
            record.started.ends_with('Z') && record.started.contains('T'),
            "{}",
            record.started
        );
        assert_eq!(record.outcome["rate"], 5.5);
    }

    #[test]
    fn resume_skips_what_is_there_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let first = Bench::new(directory.path(), false).unwrap();
        first.run(&plan(2), |_| Ok(json!(1))).unwrap();
        let again = Bench::new(directory.path(), true).unwrap();
        assert!(again.is_done(&plan(2)).unwrap() && !again.is_done(&plan(3)).unwrap());
        again
            .run(&plan(2), |_| -> Outcome<Value> { panic!("made again") })
            .unwrap();
        again.run(&plan(3), |_| Ok(json!(3))).unwrap();
        assert_eq!(again.results.all().unwrap().len(), 2);
        first.run(&plan(2), |_| Ok(json!(9))).unwrap();
        assert_eq!(
            first
                .results
                .find("sample", &plan(2).settings)
                .unwrap()
                .unwrap()
                .outcome,
            json!(9)
        );
    }

    #[test]
    fn a_failed_run_leaves_no_result() {
        let directory = tempfile::tempdir().unwrap();
        let bench = Bench::new(directory.path(), false).unwrap();
        let error = bench
            .run(&plan(1), |_| -> Outcome<Value> { Err("no room".into()) })
            .unwrap_err();
        assert_eq!(error.to_string(), "1 threads: no room");
        assert_eq!(bench.results.all().unwrap(), []);
    }

    #[test]
    fn a_file_that_is_no_result_is_named() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("odd.json"), "{}").unwrap();
        let error = Results::create(directory.path())
            .unwrap()
            .all()
            .unwrap_err()
            .to_string();
        assert!(error.contains("odd.json") && error.contains("remove it"), "{error}");
    }
}
