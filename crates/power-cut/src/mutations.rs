//! The mutation run: each rule of docs/durability.md is broken in turn, on a new store, and is to
//! be noticed.
//!
//! The engine breaks the rule that an environment variable names, in a build with the feature
//! `mutations`. The fsyncs of lsm-tree are left out from outside: a seccomp filter answers every
//! fsync of the writer with success and does nothing. (The engine's own files are synced by
//! fdatasync; what else the filter takes are its directory syncs, each of which is a mutation of
//! its own as well.)

use super::{history, journal::Check, machine::Place};
use crate::Outcome;
use std::{
    io::Write,
    process::Command,
    time::{Duration, Instant},
};
use terrace::mutation::{ALL, POSSIBLE, VARIABLE};

/// Name of the mutation that is none of the engine's.
const FSYNC: &str = "index-fsync";

/// Which lives there shall be more of, so that a rule's absence shows within a few dozen cycles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Focus {
    /// Long frames torn by a cut.
    TornFrames,
    /// Several cuts of a store where nothing is recycled yet.
    Young,
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
    ("wipe-hole", Focus::Young),
    ("manifest-sync", Focus::Young),
    ("large-before-sync-record", Focus::LargeUnflushed),
    ("replayed-sync", Focus::Killed),
    ("large-meta-sync", Focus::Neighbour),
];

/// A rule to break.
#[derive(Debug, Clone, Copy)]
pub struct Mutant {
    name: &'static str,
    rule: &'static str,
    what: &'static str,
    /// Whether the engine knows of it.
    is_engine: bool,
}

impl Mutant {
    /// All there are.
    fn all() -> Vec<Self> {
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

/// Rules whose absence no power cut under this file system can show, and why. Argued in
/// docs/durability.md, section 8.
const UNOBSERVABLE: &[(&str, &str)] = &[
    (
        "wipe-sync",
        "the sync of what is replayed, most often from the same segment, covers it",
    ),
    (
        "segment-length",
        "the header's sync commits the length with ext4's journal",
    ),
    (
        "segment-header",
        "the sync of the segment before flushes the drive, header included",
    ),
    ("block-seal", "LargeMeta's sync right after flushes the drive"),
    ("block-header", "redundant: the first value's sync covers it"),
    (
        "segment-while-pinned",
        "redundant: records carry key, version and generation",
    ),
    ("segment-directory", "ext4's sync of the new file commits its name"),
    ("block-directory", "ext4's sync of the new file commits its name"),
    (
        "block-removal",
        "redundant: a block that comes back is dead, and deleted again",
    ),
    ("large-meta-directory", "ext4's sync of the new file commits its name"),
    ("large-meta-in-place", "redundant: the blocks are the truth"),
    (
        "manifest-directory",
        "ext4's sync of the next new file commits the name",
    ),
    ("new-directory", "ext4's sync of the first file in it commits its name"),
    (
        "index-directory",
        "ext4's sync of the first file in it commits its name",
    ),
];

/// Runs the mutations named: `all`, or names with commas between.
///
/// # Errors
/// If one was not noticed that should be; if there is no such mutation; if this build has none.
pub fn run(names: &str, place: &Place, cycles: u64, seed: u64, verbose: bool) -> Outcome {
    if !POSSIBLE {
        return Err("this build breaks no rules; build with `--features mutations`".into());
    }
    let mut chosen = Mutant::all();
    if names != "all" {
        for name in names.split(',') {
            if !chosen.iter().any(|mutant| mutant.name == name) {
                let all: Vec<&str> = Mutant::all().iter().map(|mutant| mutant.name).collect();
                return Err(format!("there is no mutation {name:?}; there are {}", all.join(", ")).into());
            }
        }
        chosen.retain(|mutant| names.split(',').any(|name| name == mutant.name));
    }
    println!("seed {seed}, at most {cycles} cycles each, {place}");
    println!("{:30} {:10} {:>6}  noticed by", "left out", "rule", "cycle");
    let mut survivors = Vec::new();
    for mutant in &chosen {
        let started = Instant::now();
        let ended = history::run(place, cycles, seed, Some(mutant), verbose)?;
        if let Some(caught) = ended
            .caught
            .as_ref()
            .filter(|caught| caught.violation.check == Check::Hang)
        {
            // Of the machine, more likely than of the rule; either way it is nothing the checks
            // noticed.
            return Err(format!("{}: cycle {}: {}", mutant.name, caught.cycle, caught.violation).into());
        }
        let (cycle, by) = match &ended.caught {
            Some(caught) => (caught.cycle.to_string(), shorten(&caught.violation.to_string())),
            None => ("-".to_owned(), survival(mutant, &mut survivors)),
        };
        print_line(mutant, &cycle, &by, started.elapsed());
    }
    if survivors.is_empty() {
        println!("PASS: each was noticed, or cannot be seen on this file system");
        return Ok(());
    }
    Err(format!(
        "not noticed within {cycles} cycles: {} (seed {seed})",
        survivors.join(", ")
    )
    .into())
}

/// What to say of a mutation nothing noticed.
fn survival(mutant: &Mutant, survivors: &mut Vec<&'static str>) -> String {
    match UNOBSERVABLE.iter().find(|(name, _)| *name == mutant.name) {
        Some((_, why)) => format!("not seen, as expected: {why}"),
        None => {
            survivors.push(mutant.name);
            format!("SURVIVED ({})", mutant.what)
        }
    }
}

fn print_line(mutant: &Mutant, cycle: &str, by: &str, took: Duration) {
    println!(
        "{:30} {:10} {cycle:>6}  {by} [{:.0} s]",
        mutant.name,
        mutant.rule,
        took.as_secs_f64()
    );
    // Runs are long; who watches shall see each line as it comes.
    let _ = std::io::stdout().flush();
}

fn shorten(text: &str) -> String {
    const LENGTH_MAX: usize = 150;
    if text.chars().count() <= LENGTH_MAX {
        return text.to_owned();
    }
    text.chars().take(LENGTH_MAX).chain(['…']).collect()
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
