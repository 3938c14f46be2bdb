//! Common to all parts of the evaluation: workload file, contenders, drives, results.

use super::engine::{Groups, Heat, Sizes, Tuning, open_leveldb, open_terrace};
use crate::{
    Outcome,
    harness::{
        results::{Bench, ResultArguments},
        setup::{PlaceArguments, Places, Setup},
        values::Values,
        workload::{Scale, read_toml},
    },
    rivals::{Candidate, KeyValue},
};
use serde::{Deserialize, Serialize};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Arguments of the parts that need drives.
#[derive(Debug, Clone, clap::Args)]
pub struct Common {
    #[command(flatten)]
    pub places: PlaceArguments,
    #[command(flatten)]
    pub results: ResultArguments,
    /// File with sizes and counts, instead of the built-in one.
    #[arg(long, value_name = "FILE")]
    pub workload: Option<PathBuf>,
    /// Only these, by their names in the report ("Terrace HDD"), and "raw" for the drives
    /// themselves. With `--resume` the runs of an evaluation can be made in several calls.
    #[arg(long = "only", value_name = "NAME")]
    pub only: Vec<String>,
    /// Without fio's measurement of the drives, and so without the limit.
    #[arg(long)]
    pub no_raw: bool,
}

/// The workload file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadFile {
    /// Seed of everything random.
    pub seed: u64,
    small_bytes: usize,
    large_bytes: usize,
    size_threshold_bytes: u64,
    segment_bytes: u64,
    split_threshold_bytes: u64,
    /// Zipf's exponent of the images' popularity, for the reads of `heat`.
    pub heat_exponent: f64,
    /// Space on flash for copies, as a share of the large images, for the reads of `heat`.
    pub heat_flash_share: f64,
    small: Amount,
    full: Amount,
}

/// Amount of work at a scale.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Amount {
    /// Runs per measurement.
    pub runs: u32,
    /// Groups inserted for figure 9.
    pub insert_groups: u64,
    /// Groups read from.
    pub read_groups: u64,
    /// Small reads per run.
    pub small_reads: u64,
    /// Small reads per large one.
    pub ratios: Vec<u64>,
    /// Duration of fio's reads.
    pub raw_seconds: u32,
    /// Small reads that warm up the flash cache.
    pub heat_reads: u64,
}

impl WorkloadFile {
    /// Reads the file, or the built-in one.
    pub fn read(file: Option<&Path>) -> Outcome<Self> {
        let workload: Self = read_toml(file, include_str!("../../workloads/mris.toml"))?;
        if workload.small_bytes < 8 || workload.large_bytes < 8 || workload.large_bytes > 256 << 20 {
            return Err("small_bytes and large_bytes must be from 8 to 268435456".into());
        }
        if !(0.01..=10.0).contains(&workload.heat_exponent) || !(0.01..=1.0).contains(&workload.heat_flash_share) {
            return Err("heat_exponent must be from 0.01 to 10, heat_flash_share from 0.01 to 1".into());
        }
        for amount in [&workload.small, &workload.full] {
            let ratios = &amount.ratios;
            if ratios.is_empty() || ratios.iter().any(|&ratio| ratio == 0 || ratio > amount.small_reads) {
                return Err("ratios: at least one, each from 1 to small_reads".into());
            }
            if amount.runs == 0 || amount.read_groups == 0 || amount.insert_groups == 0 || amount.raw_seconds == 0 {
                return Err("runs, insert_groups, read_groups and raw_seconds must be at least 1".into());
            }
        }
        Ok(workload)
    }

    /// The amount of work at a scale.
    pub fn amount(&self, scale: Scale) -> &Amount {
        scale.of(&self.small, &self.full)
    }
}

/// An engine on a setup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Contender {
    /// Which engine.
    pub engine: Candidate,
    /// Placement of its data.
    pub setup: Setup,
}

impl Contender {
    /// Terrace on the three setups, then LevelDB on each drive.
    pub const ALL: [Self; 5] = [
        Self::terrace(Setup::Ssd),
        Self::terrace(Setup::Hybrid),
        Self::terrace(Setup::Hdd),
        Self::leveldb(Setup::Ssd),
        Self::leveldb(Setup::Hdd),
    ];

    /// Terrace.
    pub const fn terrace(setup: Setup) -> Self {
        Self {
            engine: Candidate::Terrace,
            setup,
        }
    }

    /// LevelDB, all on one drive.
    pub const fn leveldb(setup: Setup) -> Self {
        Self {
            engine: Candidate::LevelDb,
            setup,
        }
    }

    /// Name, as text.
    pub fn name(self) -> String {
        format!("{} {}", self.engine.name(), self.setup.name())
    }
}

/// Settings of every run on drives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Surroundings {
    /// Bytes of a small object.
    pub small_bytes: usize,
    /// Bytes of a large object.
    pub large_bytes: usize,
    /// Terrace's own sizes.
    pub tuning: Tuning,
    /// The fast drive.
    pub ssd: String,
    /// The disk.
    pub hdd: String,
    /// Both are on one device, whose counters then include both.
    pub one_device: bool,
}

impl Surroundings {
    /// Lengths of the two objects of a group.
    pub const fn sizes(&self) -> Sizes {
        Sizes {
            small_bytes: self.small_bytes,
            large_bytes: self.large_bytes,
        }
    }
}

/// The evaluation on drives.
#[derive(Debug)]
pub struct Evaluation {
    /// Runs plans and stores results.
    pub bench: Bench,
    /// The drives.
    pub places: Places,
    /// Amount of work.
    pub amount: Amount,
    /// Seed of everything random.
    pub seed: u64,
    /// Zipf's exponent of the images' popularity, and the space for copies, for the reads of
    /// `heat`.
    pub heat: (f64, f64),
    /// Sizes and drives.
    pub surroundings: Surroundings,
    /// Whether the drives are measured by fio.
    pub raw: bool,
    values: Arc<Values>,
    only: Vec<String>,
}

/// Whether a name was selected by `--only`, or that option is absent.
fn is_chosen(only: &[String], name: &str) -> bool {
    only.is_empty() || only.iter().any(|chosen| chosen.eq_ignore_ascii_case(name))
}

/// Refuses unknown names.
fn check_names(only: &[String]) -> Outcome {
    let names: Vec<String> = Contender::ALL.iter().map(|contender| contender.name()).collect();
    let is_known = |name: &String| name.eq_ignore_ascii_case("raw") || is_chosen(&names, name);
    match only.iter().find(|name| !is_known(name)) {
        None => Ok(()),
        Some(unknown) => Err(format!("--only {unknown:?}: there are raw, {}", names.join(", ")).into()),
    }
}

impl Evaluation {
    /// Prepares drives and values.
    pub fn new(common: &Common) -> Outcome<Self> {
        check_names(&common.only)?;
        let file = WorkloadFile::read(common.workload.as_deref())?;
        let places = Places::open(&common.places, file.seed)?;
        Ok(Self {
            bench: Bench::new(&common.results.results, common.results.resume)?,
            amount: file.amount(common.results.scale).clone(),
            seed: file.seed,
            heat: (file.heat_exponent, file.heat_flash_share),
            surroundings: Surroundings {
                small_bytes: file.small_bytes,
                large_bytes: file.large_bytes,
                tuning: Tuning {
                    size_threshold_bytes: file.size_threshold_bytes,
                    segment_bytes: file.segment_bytes,
                    split_threshold_bytes: file.split_threshold_bytes,
                },
                ssd: places.ssd.description.clone(),
                hdd: places.hdd.description.clone(),
                one_device: places.share_a_device(),
            },
            places,
            raw: !common.no_raw && is_chosen(&common.only, "raw"),
            only: common.only.clone(),
            values: Arc::new(Values::new(file.seed, file.large_bytes.max(file.small_bytes))),
        })
    }

    /// The contenders of this evaluation: those in this build, or those chosen.
    pub fn contenders(&self) -> impl Iterator<Item = Contender> {
        let there = Candidate::compiled_in();
        Contender::ALL
            .into_iter()
            .filter(move |contender| !self.only.is_empty() || there.contains(&contender.engine))
            .filter(|contender| is_chosen(&self.only, &contender.name()))
    }

    /// Opens a contender's store of this name, or creates it in existing directories.
    pub fn open(&self, contender: Contender, name: &str) -> Outcome<Groups> {
        if contender.engine == Candidate::LevelDb {
            return Ok(self.groups(name, open_leveldb(contender.setup, &self.places, name)?));
        }
        self.open_terrace(contender.setup, name, self.surroundings.tuning, Heat::default())
    }

    /// Opens a store of Terrace with the given sizes.
    pub fn open_terrace(&self, setup: Setup, name: &str, tuning: Tuning, heat: Heat) -> Outcome<Groups> {
        let usual = setup.options(&self.places, name);
        Ok(self.groups(name, open_terrace(usual, tuning, heat)?))
    }

    fn groups(&self, name: &str, engine: Box<dyn KeyValue>) -> Groups {
        Groups {
            engine,
            directories: [&self.places.ssd, &self.places.hdd].map(|place| place.path.join(name)),
            values: Arc::clone(&self.values),
            sizes: self.surroundings.sizes(),
        }
    }

    /// Estimated time of insertions, for the progress bar: the paper's speed for the disk.
    pub fn insert_seconds(&self, contender: Contender, groups: u64) -> f64 {
        let rate = match (contender.engine, contender.setup) {
            (Candidate::Terrace, Setup::Ssd) => 100e6,
            (Candidate::LevelDb, Setup::Hdd) => 12e6,
            _ => 40e6,
        };
        groups as f64 * self.surroundings.sizes().group() as f64 / rate
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn full_is_the_papers_size() {
        let file = WorkloadFile::read(None).unwrap();
        let full = file.amount(Scale::Full);
        assert_eq!(
            (full.insert_groups, full.read_groups, full.small_reads, full.runs),
            (10_000, 100_000, 10_000, 3)
        );
        assert_eq!(full.ratios, [1, 2, 4, 8, 16, 32, 64]);
        assert_eq!(
            (file.small_bytes, file.large_bytes, file.size_threshold_bytes),
            (8192, 131_072, 131_072)
        );
    }

    #[test]
    fn names_are_those_of_the_report() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        assert!(check_names(&names(&[])).is_ok());
        assert!(check_names(&names(&["raw", "terrace hdd", "LevelDB SSD"])).is_ok());
        let error = check_names(&names(&["terrace tape"])).unwrap_err().to_string();
        assert!(error.contains("Terrace Hybrid"), "{error}");
        assert!(is_chosen(&[], "Terrace HDD") && !is_chosen(&names(&["raw"]), "Terrace HDD"));
    }

    #[test]
    fn a_ratio_of_zero_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mris.toml");
        let text = include_str!("../../workloads/mris.toml").replace("[1, 2,", "[0, 2,");
        std::fs::write(&path, text).unwrap();
        assert!(
            WorkloadFile::read(Some(&path))
                .unwrap_err()
                .to_string()
                .contains("ratios")
        );
    }
}
