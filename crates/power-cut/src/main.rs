//! `power-cut`: repeatedly cuts the power of a store on two emulated drives.

use clap::Parser;
use std::process::ExitCode;

/// Repeatedly cuts the power of a store on two emulated drives and checks what is left.
#[derive(Debug, Parser)]
#[command(name = "power-cut", version, about, args_conflicts_with_subcommands = true)]
struct Program {
    #[command(subcommand)]
    writer: Option<Writer>,
    #[command(flatten)]
    arguments: power_cut::Arguments,
}

#[derive(Debug, clap::Subcommand)]
enum Writer {
    /// The writer process, which this program starts and kills.
    #[command(hide = true)]
    PowerCutWriter,
}

fn main() -> ExitCode {
    emulated_drives::prepare("power-cut");
    let Program { writer, arguments } = Program::parse();
    let outcome = match writer {
        Some(Writer::PowerCutWriter) => power_cut::run_writer(),
        None => power_cut::run(arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
