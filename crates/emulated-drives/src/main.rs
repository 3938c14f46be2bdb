//! `emulated-drives`: creates, mounts, damages, cuts, removes and measures drives.

use clap::Parser;
use std::process::ExitCode;

/// Block devices with the timing of a disk or an old SSD, whose power can be cut.
#[derive(Debug, Parser)]
#[command(name = "emulated-drives", version, about)]
struct Program {
    #[command(flatten)]
    arguments: emulated_drives::Arguments,
}

fn main() -> ExitCode {
    emulated_drives::prepare("emulated-drives");
    match emulated_drives::run(Program::parse().arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
