//! Power cuts on the whole stack: a store on two emulated drives whose power is cut at random
//! times, repeatedly.
//!
//! A writer process (the same program, with its hidden subcommand `power-cut-writer`) opens the
//! store, lists all objects in it, and then runs several kinds of writers until it is killed. Over
//! a pipe it reports each operation that it is about to do and each acknowledgement, so these are
//! known outside the drives. The parent process cuts the power, at a random time or right after
//! some report, switches the drives on again, and checks what the next writer finds:
//!
//! - every acknowledged `Sync` write is there, or a later one of its key;
//! - batches are whole or absent;
//! - what is missing is the end of the history, in the order of commits;
//! - values and attributes are what was written, `verify` finds no error, and the store's
//!   statistics are plausible.
//!
//! Then the history continues with the same store. A history that does not exercise a mechanism
//! proves nothing about it, so one without recycling, index flushes, compactions, destaged values
//! and deleted blocks fails.
//!
//! Reading order: `protocol` (reports), `workload` (keys and values), `writer` (the process),
//! `journal` (what may be missing), `machine` (drives), `life` (from one start of the writer to its
//! end), `history` (many lives), `mutations`, `trial`.

mod history;
mod journal;
mod life;
mod machine;
mod mutations;
mod plan;
mod protocol;
mod trial;
mod workload;
mod writer;

pub use writer::run as run_writer;

use machine::Place;
use std::path::PathBuf;

/// Results of this crate; errors are messages.
pub type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Arguments of the subcommand.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Number of power cuts.
    #[arg(long, default_value_t = 200)]
    cycles: u64,
    /// Seed; printed, so that a failure can be repeated.
    #[arg(long)]
    seed: Option<u64>,
    /// Profiles of the two emulated drives, flash and large: one for both, or two with a comma
    /// between. Needs root.
    #[arg(long, default_value = "nvme", conflicts_with_all = ["flash", "large"])]
    emulate: String,
    /// Directory for the backing files of the emulated drives; by default the one for temporary
    /// files.
    #[arg(long)]
    directory: Option<PathBuf>,
    /// An empty directory for the flash tier, instead of an emulated drive: the writer is killed,
    /// no power is cut.
    #[arg(long, requires = "large")]
    flash: Option<PathBuf>,
    /// An empty directory for the large tier.
    #[arg(long, requires = "flash")]
    large: Option<PathBuf>,
    /// Breaks one rule of docs/durability.md and expects a failure; needs a build with the feature
    /// `mutations`.
    #[arg(long, conflicts_with = "mutations")]
    mutation: Option<String>,
    /// Breaks several rules in turn, each on a new store: `all`, or names separated by commas.
    #[arg(long)]
    mutations: Option<String>,
    /// Prints a line per cycle.
    #[arg(long)]
    verbose: bool,
}

impl Arguments {
    fn place(&self) -> Place {
        match (&self.flash, &self.large) {
            (Some(flash), Some(large)) => Place::Directories {
                flash: flash.clone(),
                large: large.clone(),
            },
            _ => {
                let (flash, large) = self.emulate.split_once(',').unwrap_or((&self.emulate, &self.emulate));
                Place::Drives {
                    flash: flash.to_owned(),
                    large: large.to_owned(),
                    directory: self.directory.clone().unwrap_or_else(std::env::temp_dir),
                }
            }
        }
    }
}

/// Runs the program.
///
/// # Errors
/// If something was lost, or a mutation was not detected, with the seed; if the drives cannot be
/// made.
pub fn run(arguments: Arguments) -> Outcome {
    let seed = arguments.seed.unwrap_or_else(|| rand::random::<u64>() >> 32);
    let place = arguments.place();
    if let Some(names) = &arguments.mutations {
        return trial::run(names, &place, arguments.cycles, seed, arguments.verbose);
    }
    if let Some(name) = &arguments.mutation {
        return trial::run(name, &place, arguments.cycles, seed, arguments.verbose);
    }
    println!("seed {seed}, {} cycles, {place}", arguments.cycles);
    let ended = history::run(&place, arguments.cycles, seed, None, arguments.verbose)?;
    print!("{}", ended.tally);
    if let Some(caught) = ended.caught {
        println!("FAIL with seed {seed}");
        return Err(format!("cycle {}: {}", caught.cycle, caught.violation).into());
    }
    ended.tally.is_meaningful(place.is_cut())?;
    println!("PASS with seed {seed}");
    Ok(())
}
