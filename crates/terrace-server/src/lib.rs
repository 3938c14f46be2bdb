//! The `terrace` command: reads its arguments and settings, runs one command, and exits with a
//! documented code.
//!
//! Standard output has only results; all messages go to standard error.
//!
//! It is a library so that fuzz targets reach the decoders of data from the network (`fuzzing`,
//! with the feature of that name), and that tests start servers in their own process ([`Serving`]).
//! [`run`] is for `main.rs` alone.

mod admin;
mod bench;
mod cli;
mod commands;
mod failure;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod http;
mod key_text;
mod memory;
mod output;
mod report;
mod s3;
mod server;
mod settings;
mod signals;
mod size;
mod time_span;

pub use server::Serving;

use clap::FromArgMatches as _;
use failure::{Code, Outcome};
use std::{io::IsTerminal as _, process::ExitCode};
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

/// A transfer allocates buffers of up to a MiB on one thread and frees them on another. The C
/// library's allocator keeps several times the memory in use then, in a heap per thread
/// (docs/s3.md, Tests); this one returns memory that is unused for some seconds. Fuzz targets keep
/// the allocator of their program, which libFuzzer watches.
#[cfg(not(feature = "fuzzing"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Runs the command that the arguments name, to its end.
#[must_use]
pub fn run() -> ExitCode {
    // clap prints its own errors and exits with code 2, or 0 after --help and --version.
    let matches = cli::command().get_matches();
    let cli = cli::Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    start_logging(cli.verbose);
    match execute(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                output::tell(format_args!("error: {failure}"));
            }
            if failure.code == Code::Usage {
                output::tell("See `terrace --help`.");
            }
            failure.exit_code()
        }
    }
}

fn execute(cli: cli::Cli) -> Outcome {
    let mut warn = |message| output::tell(format_args!("warning: {message}"));
    let settings = settings::gather(cli.layer, cli.config, std::env::vars_os(), &mut warn)?.resolve()?;
    commands::run(cli.command, settings)
}

/// Logs to standard error: warnings, more with `-v`, or what `TERRACE_LOG` or `RUST_LOG` asks for.
fn start_logging(verbose: u8) {
    let default = match verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    let asked = ["TERRACE_LOG", "RUST_LOG"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|text| !text.is_empty()));
    let asked = asked.and_then(|text| match text.parse::<Targets>() {
        Ok(filter) => Some(filter),
        Err(error) => {
            output::tell(format_args!("warning: log filter `{text}` is ignored: {error}"));
            None
        }
    });
    let filter = asked.unwrap_or_else(|| Targets::new().with_default(default));
    // For a failed request the S3 library logs the signature that would have been right.
    let names_it = filter.iter().any(|(target, _)| target.starts_with("s3s"));
    let filter = if names_it {
        filter
    } else {
        filter.with_target("s3s", LevelFilter::OFF)
    };
    // Colours only on a terminal, not in a file or a journal. https://no-color.org
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(colours);
    tracing_subscriber::registry().with(lines).with(filter).init();
}
