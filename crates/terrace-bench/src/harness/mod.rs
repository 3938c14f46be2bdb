//! The harness of the evaluations: drives, drivers, results, charts, the report.
//!
//! In the order of use: [`workload`] reads the files, [`setup`], [`place`] and [`emulated`] have
//! the drives; [`driver`] does the operations and [`latency`] records the times; [`results`] stores
//! each run as a file, with [`host`]; [`report`] makes a page from the files and each evaluation's
//! sections, with [`page`], [`chart`] and [`target`]. A failed run leaves no result.

use crate::Outcome;

pub mod chart;
pub mod driver;
pub mod emulated;
pub mod fio;
pub mod host;
pub mod latency;
pub mod page;
pub mod place;
pub mod progress;
pub mod report;
pub mod results;
pub mod setup;
pub mod statistics;
pub mod target;
pub mod values;
pub mod workload;

/// The arguments of a subcommand in a command line, without its name.
///
/// # Errors
/// If one is unknown, or a required one is missing.
pub fn parse<A: clap::Args>(line: &[&str]) -> Outcome<A> {
    let command = A::augment_args(clap::Command::new("").no_binary_name(true));
    Ok(A::from_arg_matches(&command.try_get_matches_from(line)?)?)
}

/// The default arguments of a subcommand.
pub fn defaults<A: clap::Args>() -> Outcome<A> {
    parse(&[])
}
