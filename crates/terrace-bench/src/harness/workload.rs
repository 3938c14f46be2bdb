//! Workload files, in TOML, and the size of an evaluation. The types of the files refuse unknown
//! fields, so that a misspelt one is noticed.

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

impl Scale {
    /// One of two, by the size.
    pub fn of<T>(self, small: T, full: T) -> T {
        match self {
            Self::Small => small,
            Self::Full => full,
        }
    }
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
