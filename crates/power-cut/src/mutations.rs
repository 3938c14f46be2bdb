//! Rules of docs/durability.md that can be broken; [`super::trial`] breaks each in turn.
//!
//! The engine breaks the rule that an environment variable names, in a build with the feature
//! `mutations`. The fsyncs of lsm-tree are left out from outside: a seccomp filter answers every
//! fsync of the writer with success and does nothing. (The engine's own files are synced by
//! fdatasync; what else the filter takes are its directory syncs, each of which is a mutation of
//! its own as well.)

use crate::Outcome;
use std::process::Command;
use terrace::mutation::{ALL, VARIABLE};

/// Name of the mutation that is none of the engine's.
const FSYNC: &str = "index-fsync";

/// Which lives there shall be more of, so that a rule's absence shows within a few dozen cycles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Focus {
    /// Long frames torn by a cut.
    TornFrames,
    /// Several cuts of a store where nothing is recycled yet.
    Young,
    /// Holes in the log, then lives that write just a few frames into them.
    Holes,
    /// Cuts with values of the large space unflushed.
    LargeUnflushed,
    /// Kills without a cut, then cuts.
    Killed,
    /// Somebody else syncs the file systems.
    Neighbour,
}

/// Mutations with a focus; the others show in any history.
const FOCUSED: &[(&str, Focus)] = &[
    ("frame-checksum", Focus::TornFrames),
    ("hole-ends-log", Focus::TornFrames),
    ("wipe-hole", Focus::Holes),
    ("manifest-sync", Focus::Young),
    ("large-before-sync-record", Focus::LargeUnflushed),
    ("replayed-sync", Focus::Killed),
    ("large-meta-sync", Focus::Neighbour),
];

/// A rule to break.
#[derive(Debug, Clone, Copy)]
pub struct Mutant {
    /// Its name.
    pub name: &'static str,
    /// The rule.
    pub rule: &'static str,
    /// What is left out.
    pub what: &'static str,
    /// Whether the engine knows of it.
    is_engine: bool,
}

impl Mutant {
    /// All there are.
    pub fn all() -> Vec<Self> {
        let engine = ALL.iter().map(|described| Self {
            name: described.name,
            rule: described.rule,
            what: described.what,
            is_engine: true,
        });
        let fsync = Self {
            name: FSYNC,
            rule: "R10",
            what: "every fsync: those of lsm-tree, and of directories",
            is_engine: false,
        };
        engine.chain([fsync]).collect()
    }

    /// What its histories shall have more of.
    pub fn focus(&self) -> Option<Focus> {
        let found = FOCUSED.iter().find(|(name, _)| *name == self.name);
        found.map(|(_, focus)| *focus)
    }

    /// Has a writer break the rule.
    pub fn prepare(&self, command: &mut Command) {
        if self.is_engine {
            command.env(VARIABLE, self.name);
        } else {
            command.arg("--without-fsync");
        }
    }
}

/// From here on this process's fsyncs do nothing and succeed.
///
/// # Errors
/// If this build or this machine has no such filter.
#[cfg(feature = "mutations")]
pub fn leave_out_fsync() -> Outcome {
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
    let architecture = std::env::consts::ARCH.try_into()?;
    let nothing = SeccompAction::Errno(0);
    let rules = [(libc::SYS_fsync, Vec::new())].into_iter().collect();
    let filter: BpfProgram = SeccompFilter::new(rules, SeccompAction::Allow, nothing, architecture)?.try_into()?;
    seccompiler::apply_filter_all_threads(&filter)?;
    Ok(())
}

/// From here on this process's fsyncs do nothing and succeed.
///
/// # Errors
/// Always: this build cannot.
#[cfg(not(feature = "mutations"))]
pub fn leave_out_fsync() -> Outcome {
    Err("this build leaves out nothing; build with `--features mutations`".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::UNOBSERVABLE;

    #[test]
    fn what_is_said_of_a_mutation_is_of_one_that_exists() {
        for (name, _) in FOCUSED {
            assert!(Mutant::all().iter().any(|mutant| mutant.name == *name), "{name}");
        }
        for (name, why) in UNOBSERVABLE {
            assert!(Mutant::all().iter().any(|mutant| mutant.name == *name), "{name}");
            assert!(!why.is_empty());
        }
    }
}
