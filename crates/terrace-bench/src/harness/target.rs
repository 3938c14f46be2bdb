//! Goals, and whether they are met.

use super::page::Section;
use std::fmt;

/// A goal.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    /// Description.
    pub name: String,
    /// The wanted value, a minimum or a maximum.
    pub wanted: f64,
    /// Whether it is a maximum.
    pub at_most: bool,
    /// The measured value.
    pub measured: f64,
}

impl Target {
    /// A minimum.
    pub fn at_least(name: impl Into<String>, wanted: f64, measured: f64) -> Self {
        Self {
            name: name.into(),
            wanted,
            at_most: false,
            measured,
        }
    }

    /// A maximum.
    pub fn at_most(name: impl Into<String>, wanted: f64, measured: f64) -> Self {
        Self {
            at_most: true,
            ..Self::at_least(name, wanted, measured)
        }
    }

    /// Whether it is met.
    pub fn is_met(&self) -> bool {
        if self.at_most {
            self.measured <= self.wanted
        } else {
            self.measured >= self.wanted
        }
    }

    /// The verdict as a word.
    pub fn verdict(&self) -> &'static str {
        if self.is_met() { "met" } else { "MISSED" }
    }

    /// The wanted value with its direction.
    pub fn wanted_in_words(&self) -> String {
        let direction = if self.at_most { "at most" } else { "at least" };
        format!("{direction} {:.2}", self.wanted)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wanted = self.wanted_in_words();
        write!(f, "{:6}  {}: {:.3}, {wanted}", self.verdict(), self.name, self.measured)
    }
}

/// Adds a table of goals to a section, if there are any.
pub fn table(section: &mut Section, targets: &[Target]) {
    section.columns(
        "Targets",
        targets,
        &[
            ("target", &|target| target.name.clone()),
            ("wanted", &|target| target.wanted_in_words()),
            ("measured", &|target| format!("{:.2}", target.measured)),
            ("", &|target| target.verdict().to_owned()),
        ],
    );
}
