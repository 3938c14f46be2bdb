//! Power cuts on the whole stack: a store on two emulated drives, whose power goes at a random
//! moment, again and again.
//!
//! A writer process (the same program, its hidden subcommand `power-cut-writer`) opens the store,
//! shows all that it holds, and then runs writers of every kind until it is killed. It tells this
//! process by a pipe what it is about to do and what was acknowledged, so that is known outside the
//! drives. This process cuts the power, at a random moment or right after something it was told,
//! brings the drives back and judges what the next writer finds:
//!
//! - every acknowledged `Sync` write is there, or what a later write made of it;
//! - batches are whole or absent;
//! - what is missing is the end of the history, in the order of commits;
//! - values and attributes are what was written, `verify` finds nothing, the figures of the store
//!   are sane.
//!
//! Then the history goes on with the same store. A history that meets no mechanism proves nothing:
//! one without recycling, index flushes, compactions, destaged values and deleted blocks is a
//! failure.
//!
//! Reading order: `protocol` (what is said), `workload` (what is written), `writer` (the process),
//! `journal` (what may be left), `machine` (drives), `life` (from one start of the writer to its
//! end), `history` (many of them), `mutations`, `trial`.

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

pub use writer::{WriterArguments, run as run_writer};

use machine::Place;
use std::path::PathBuf;

/// What the parts return; the error says in words what went wrong.
pub type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Arguments of the subcommand.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Power cuts to make.
    #[arg(long, default_value_t = 200)]
    cycles: u64,
    /// Where the random choices start; printed, so that a failure can be tried again.
    #[arg(long)]
    seed: Option<u64>,
    /// Profiles of the two emulated drives, flash and large: one for both, or two with a comma
    /// between. Needs root.
    #[arg(long, default_value = "nvme", conflicts_with_all = ["flash", "large"])]
    emulate: String,
    /// Where the emulated drives keep what they hold; by default the directory for temporary files.
    #[arg(long)]
    directory: Option<PathBuf>,
    /// An empty directory for the flash tier, instead of an emulated drive: the writer is killed,
    /// no power is cut.
    #[arg(long, requires = "large")]
    flash: Option<PathBuf>,
    /// An empty directory for the large tier.
    #[arg(long, requires = "flash")]
    large: Option<PathBuf>,
    /// Breaks one rule of docs/durability.md and expects to be caught; needs a build with the
    /// feature `mutations`.
    #[arg(long, conflicts_with = "mutations")]
    mutation: Option<String>,
    /// Breaks each of the rules in turn, on a new store each: `all`, or names with commas between.
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

/// Runs it.
///
/// # Errors
/// If something was lost, or a mutation was not noticed; with the seed. If the drives cannot be
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
