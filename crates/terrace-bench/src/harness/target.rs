//! What was aimed at, and whether it was reached.

use super::page::Section;
use std::fmt;

/// One aim.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    /// What was aimed at.
    pub name: String,
    /// At least this, or at most.
    pub wanted: f64,
    /// Whether less is better.
    pub at_most: bool,
    /// This was measured.
    pub measured: f64,
}

impl Target {
    /// Whether it was reached.
    #[must_use]
    pub fn is_met(&self) -> bool {
        if self.at_most {
            self.measured <= self.wanted
        } else {
            self.measured >= self.wanted
        }
    }

    /// In a word.
    #[must_use]
    pub fn verdict(&self) -> &'static str {
        if self.is_met() { "met" } else { "MISSED" }
    }

    /// With its direction.
    #[must_use]
    pub fn wanted_in_words(&self) -> String {
        format!(
            "{} {:.2}",
            if self.at_most { "at most" } else { "at least" },
            self.wanted
        )
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wanted = self.wanted_in_words();
        write!(f, "{:6}  {}: {:.3}, {wanted}", self.verdict(), self.name, self.measured)
    }
}

/// Adds a table of them to a section, if there are any.
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
