//! `terrace-bench`: the evaluations of Terrace, and, as subcommands, emulated drives and power
//! cuts, which are separate crates.
//!
//! One module per subcommand, with its arguments and a `run` that returns errors as messages.
//!
//! Nothing outside calls these modules. A comment has a section on errors where they are others
//! than one expects: those of the engine, the drives, or a result that cannot be read.

mod all;
mod contest;
mod harness;
mod mris;
mod rivals;
mod soak;
mod video;
mod zipf;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// The server's allocator.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Result of a subcommand; an error is printed with its causes, and the exit code is 1.
pub type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[derive(Debug, Parser)]
#[command(name = "terrace-bench", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Emulated drives: create, mount, damage, cut and remove them.
    Drive(emulated_drives::Arguments),
    /// Measures the profiles of the drives with fio: figures 6 and 7 of the MRIS paper.
    Drives(emulated_drives::MeasureArguments),
    /// Repeatedly cuts the power of a store on two emulated drives, and checks what is left.
    PowerCut(power_cut::Arguments),
    /// The writer process of `power-cut`.
    #[command(hide = true)]
    PowerCutWriter,
    /// The evaluation of the MRIS paper.
    Mris(mris::Arguments),
    /// Reads of video: hits on flash, and their cost in flash writes.
    Video(video::Arguments),
    /// Reads of small objects by Zipf's law, with a flash tier smaller than the data: figure 7 of
    /// the FlashStore paper.
    Zipf(zipf::Arguments),
    /// Compares Terrace with its rivals: single operations.
    Micro(contest::Common),
    /// Compares Terrace with its rivals: YCSB.
    Ycsb(contest::Common),
    /// Compares Terrace with its rivals: the evaluation of the FlashStore paper.
    Flashstore(contest::Common),
    /// A store that grows to a hundred million objects, and its recovery from a kill.
    Scale(contest::scale::Arguments),
    /// All evaluations, with one report.
    All(all::Arguments),
    /// The worker process of a run.
    #[command(hide = true)]
    ContestWorker,
    /// Full load on a small flash tier for hours, with checks for growth of RAM, handles and files.
    Soak(soak::Arguments),
    /// Makes an HTML page from existing results.
    Report(all::ReportArguments),
}

fn main() -> ExitCode {
    emulated_drives::prepare("terrace-bench");
    let outcome = match Arguments::parse().command {
        Command::Drive(arguments) => emulated_drives::run(arguments),
        Command::Drives(arguments) => emulated_drives::measure(arguments),
        Command::PowerCut(arguments) => power_cut::run(arguments),
        Command::PowerCutWriter => power_cut::run_writer(),
        Command::Mris(arguments) => mris::run(arguments).and_then(|results| all::conclude(&results, &[])),
        Command::Video(arguments) => video::run(&arguments),
        Command::Zipf(arguments) => zipf::run(&arguments),
        Command::Micro(common) => all::run_contest(&common, contest::MICRO),
        Command::Ycsb(common) => all::run_contest(&common, contest::YCSB),
        Command::Flashstore(common) => all::run_contest(&common, contest::FLASHSTORE),
        Command::Scale(arguments) => {
            contest::scale::run(&arguments).and_then(|failed| all::conclude(arguments.results(), &failed))
        }
        Command::All(arguments) => all::run(&arguments),
        Command::ContestWorker => contest::worker::run(),
        Command::Soak(arguments) => soak::run(&arguments),
        Command::Report(arguments) => all::report(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
