//! Mutation run: breaks each rule of docs/durability.md in turn, on a new store, and expects it to
//! be detected.

use super::{
    history::{self, Caught},
    journal::Check,
    machine::Place,
    mutations::Mutant,
};
use crate::Outcome;
use std::{
    io::Write,
    time::{Duration, Instant},
};
use terrace::mutation::POSSIBLE;

/// Most histories for a mutation. Some show only if the cut comes within a few milliseconds: three
/// were not detected by one history of fifty cycles, 28 November 2026.
const HISTORIES_MAX: u64 = 6;

/// Rules whose violation no power cut on this file system can show, and why. docs/durability.md,
/// section 8, has the arguments.
#[rustfmt::skip]
pub const UNOBSERVABLE: &[(&str, &str)] = &[
    ("wipe-sync", "the sync of what is replayed, most often from the same segment, covers it"),
    ("segment-length", "the header's sync commits the length with ext4's journal"),
    ("segment-header", "the sync of the segment before flushes the drive, header included"),
    ("block-seal", "LargeMeta's sync right after flushes the drive"),
    ("block-header", "redundant: the first value's sync covers it"),
    ("segment-while-pinned", "redundant: records carry key, version and generation"),
    ("segment-directory", "ext4's sync of the new file commits its name"),
    ("block-directory", "ext4's sync of the new file commits its name"),
    ("block-removal", "redundant: a block that comes back is dead, and deleted again"),
    ("large-meta-directory", "ext4's sync of the new file commits its name"),
    ("large-meta-in-place", "redundant: the blocks are the truth"),
    ("manifest-directory", "ext4's sync of the next new file commits the name"),
    ("new-directory", "ext4's sync of the first file in it commits its name"),
    ("index-directory", "ext4's sync of the first file in it commits its name"),
    ("checkpoint-persisted", "a slot that leads to what the cut took is found out when it is read"),
    ("copy-of-present", "no reader scans while others write: nothing is copied"),
    ("scan-cache-drop", "chunks are in RAM: nothing of them is left"),
    ("scan-cache-begin", "chunks are in RAM: nothing of them is left"),
];

/// Runs the mutations named: `all`, or names separated by commas.
///
/// # Errors
/// If a mutation was not detected, does not exist, or is not in this build.
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
    println!("seed {seed}, at most {cycles} cycles each, up to {HISTORIES_MAX} times, {place}");
    println!("{:30} {:10} {:>6}  noticed by", "left out", "rule", "cycle");
    let mut survivors = Vec::new();
    for mutant in &chosen {
        let started = Instant::now();
        let (cycle, by) = match notice(mutant, place, cycles, seed, verbose)? {
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
        "not noticed within {HISTORIES_MAX} times {cycles} cycles: {} (seed {seed})",
        survivors.join(", ")
    )
    .into())
}

/// The violation that showed a mutation, and its cycle counted over all histories. A history may
/// not exercise the rule, so several are run; one for a mutation that cannot be observed.
fn notice(mutant: &Mutant, place: &Place, cycles: u64, seed: u64, verbose: bool) -> Outcome<Option<Caught>> {
    let histories = if why_unobservable(mutant).is_some() {
        1
    } else {
        HISTORIES_MAX
    };
    let mut cycles_before = 0;
    for number in 0..histories {
        let ended = history::run(place, cycles, seed.wrapping_add(number), Some(mutant), verbose)?;
        let Some(mut caught) = ended.caught else {
            cycles_before += ended.tally.cycles;
            continue;
        };
        caught.cycle += cycles_before;
        if caught.violation.check == Check::Hang {
            // Probably a failure of the machine; in any case no check detected it.
            return Err(format!("{}: cycle {}: {}", mutant.name, caught.cycle, caught.violation).into());
        }
        return Ok(Some(caught));
    }
    Ok(None)
}

/// Why no check can detect a mutation here; `None` if one should.
fn why_unobservable(mutant: &Mutant) -> Option<&'static str> {
    let found = UNOBSERVABLE.iter().find(|(name, _)| *name == mutant.name);
    found.map(|(_, why)| *why)
}

/// The output for an undetected mutation.
fn survival(mutant: &Mutant, survivors: &mut Vec<&'static str>) -> String {
    match why_unobservable(mutant) {
        Some(why) => format!("not seen, as expected: {why}"),
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
    // Runs are long: each line is to appear at once.
    let _ = std::io::stdout().flush();
}

fn shorten(text: &str) -> String {
    const LENGTH_MAX: usize = 150;
    if text.chars().count() <= LENGTH_MAX {
        return text.to_owned();
    }
    text.chars().take(LENGTH_MAX).chain(['…']).collect()
}
