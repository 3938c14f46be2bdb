//! Workloads from TOML files: objects, operations and pace.
//!
//! Unknown fields are refused, so that a misspelt one is noticed. `Workload::validate` refuses
//! workloads that cannot be run.

use super::driver::Arrivals;
use crate::Outcome;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Size of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Ends within 30 minutes on two cores.
    Small,
    /// As large as the original.
    Full,
}

/// Reads a TOML file, or the built-in text.
///
/// # Errors
/// If the file cannot be read or is malformed; the message has the position.
pub fn read_toml<T: for<'de> Deserialize<'de>>(file: Option<&Path>, built_in: &str) -> Outcome<T> {
    let Some(file) = file else {
        return Ok(toml::from_str(built_in)?);
    };
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    toml::from_str(&text).map_err(|error| format!("{}: {error}", file.display()).into())
}

/// A workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Name in the report.
    pub name: String,
    /// Seed of keys, kinds and arrivals.
    pub seed: u64,
    /// Distribution of objects.
    pub keys: Keys,
    /// Lengths of values, with weights.
    pub values: Vec<ValueSize>,
    /// Shares of the operations.
    pub operations: Shares,
    /// Writes wait for the device.
    pub sync: bool,
    /// Values of at least this length go to the large directory.
    pub size_threshold_bytes: u64,
    /// RAM for cached values.
    pub cache_bytes: u64,
    /// Pace of the operations.
    pub pace: Pace,
    /// Amount at small scale.
    pub small: Amount,
    /// Amount at full scale.
    pub full: Amount,
}

/// Distribution of the objects that operations choose.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "distribution", deny_unknown_fields)]
pub enum Keys {
    /// Uniform.
    Uniform,
    /// Zipf's law.
    Zipf {
        /// Exponent, above 0.
        exponent: f64,
    },
}

/// A length of values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValueSize {
    /// Length.
    pub bytes: u64,
    /// Share of the objects, relative to the others.
    pub weight: f64,
}

/// Shares of the operations, relative to each other.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shares {
    /// Reads of whole values.
    pub get: f64,
    /// Overwrites of existing objects.
    pub put: f64,
}

/// Pace of operations.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "loop", deny_unknown_fields)]
pub enum Pace {
    /// Each thread waits for its operation.
    Closed {
        /// Concurrent operations.
        threads: usize,
    },
    /// Operations arrive on a schedule.
    Open {
        /// Most concurrent operations.
        threads: usize,
        /// Arrivals per second.
        per_second: f64,
        /// Distribution of arrivals.
        arrivals: Arrivals,
    },
}

/// Amount of objects and operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Amount {
    /// Objects stored before the measurement.
    pub objects: u64,
    /// Measured operations.
    pub operations: u64,
    /// Number of runs.
    pub runs: u32,
}

impl Workload {
    /// The amount at a scale.
    #[must_use]
    pub fn amount(&self, scale: Scale) -> Amount {
        match scale {
            Scale::Small => self.small,
            Scale::Full => self.full,
        }
    }

    /// Checks the values.
    ///
    /// # Errors
    /// The field and its allowed values.
    pub fn validate(&self) -> Outcome {
        let fail = |message: &str| Err(format!("workload \"{}\": {message}", self.name).into());
        let is_share = |share: f64| share.is_finite() && share >= 0.0;
        let Shares { get, put } = self.operations;
        if !(is_share(get) && is_share(put) && get + put > 0.0) {
            return fail("operations: get and put must be at least 0, and one above");
        }
        let sizes = &self.values;
        if !sizes.iter().all(|size| is_share(size.weight)) || sizes.iter().map(|size| size.weight).sum::<f64>() <= 0.0 {
            return fail("values: needs a length with a weight above 0");
        }
        if sizes.iter().any(|size| size.bytes > 256 << 20) {
            return fail("values: bytes may be at most 268435456");
        }
        if matches!(self.keys, Keys::Zipf { exponent } if !(exponent > 0.0 && exponent.is_finite())) {
            return fail("keys: the exponent must be above 0");
        }
        let (Pace::Closed { threads } | Pace::Open { threads, .. }) = self.pace;
        if !(1..=1024).contains(&threads) {
            return fail("pace: threads must be from 1 to 1024");
        }
        if [self.small, self.full]
            .iter()
            .any(|amount| amount.objects == 0 || amount.runs == 0)
        {
            return fail("small and full: objects and runs must be at least 1");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const MIXED: &str = include_str!("../../workloads/mixed-open.toml");

    #[test]
    fn the_files_in_the_repository_are_workloads() {
        for text in [MIXED, include_str!("../../workloads/small-reads-closed.toml")] {
            let workload: Workload = read_toml(None, text).unwrap();
            workload.validate().unwrap();
            assert!(workload.amount(Scale::Small).objects <= workload.amount(Scale::Full).objects);
        }
    }

    #[test]
    fn misspelt_fields_are_refused() {
        let text = MIXED.replace("seed =", "sead =");
        let error = read_toml::<Workload>(None, &text).unwrap_err().to_string();
        assert!(error.contains("sead"), "{error}");
    }

    #[test]
    fn what_cannot_be_run_is_refused() {
        let good: Workload = read_toml(None, MIXED).unwrap();
        let broken = |change: fn(&mut Workload)| {
            let mut workload = good.clone();
            change(&mut workload);
            workload.validate().unwrap_err().to_string()
        };
        assert!(broken(|workload| workload.values.clear()).contains("values"));
        assert!(broken(|workload| workload.operations = Shares { get: 0.0, put: 0.0 }).contains("operations"));
        assert!(broken(|workload| workload.operations.get = f64::NAN).contains("operations"));
        assert!(broken(|workload| workload.keys = Keys::Zipf { exponent: -1.0 }).contains("exponent"));
        assert!(broken(|workload| workload.pace = Pace::Closed { threads: 0 }).contains("threads"));
        assert!(broken(|workload| workload.small.runs = 0).contains("runs"));
    }
}
