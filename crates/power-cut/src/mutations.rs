//! Rules of docs/durability.md that can be broken, one at a time; [`super::trial`] runs them all.
//!
//! In a build with the feature `mutations`, the engine breaks the rule named by an environment
//! variable. The fsyncs of lsm-tree are disabled from outside: a seccomp filter makes every fsync
//! of the writer succeed without effect. (The engine syncs its own files with fdatasync. The filter
//! also disables its directory syncs, each of which is a mutation of its own as well.)

use crate::Outcome;
use std::process::Command;
use terrace::mutation::{ALL, VARIABLE};

/// Name of the mutation outside the engine.
const FSYNC: &str = "index-fsync";

/// The kind of life that is made more frequent, so that a broken rule shows within a few dozen
/// cycles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Focus {
    /// Long frames, torn by a cut.
    TornFrames,
    /// Several cuts of a store that has not recycled yet.
    Young,
    /// Holes in the log, followed by lives that write just a few frames into them.
    Holes,
    /// Cuts with large values in the drive's cache.
    LargeUnflushed,
    /// Kills without a cut, followed by cuts.
    Killed,
    /// Another process syncs the file systems.
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
    /// Whether the engine implements it.
    is_engine: bool,
}

impl Mutant {
    /// All mutations.
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

    /// The kind of life that its histories need.
    pub fn focus(&self) -> Option<Focus> {
        let found = FOCUSED.iter().find(|(name, _)| *name == self.name);
        found.map(|(_, focus)| *focus)
    }

    /// Makes a writer's engine break the rule. True if it is to have no fsync instead.
    pub fn prepare(&self, command: &mut Command) -> bool {
        if self.is_engine {
            command.env(VARIABLE, self.name);
        }
        !self.is_engine
    }
}

/// Disables fsync in this process: it succeeds without effect.
///
/// # Errors
/// If this machine has no such filter.
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

/// Disables fsync in this process: not possible in this build.
///
/// # Errors
/// Always.
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
