//! The harness of the evaluations: workloads, drivers, results, charts, the report.
//!
//! In the order of use: [`workload`] says what to do, [`setup`], [`place`] and [`emulated`] where;
//! [`driver`] does it and [`latency`] keeps the times; [`results`] keeps each run as a file, with
//! [`host`]; [`report`] makes a page of what each evaluation says of the files, with [`page`],
//! [`chart`] and [`target`]. A run that fails leaves no result.

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
pub mod run;
pub mod setup;
pub mod statistics;
pub mod target;
pub mod values;
pub mod workload;

/// The arguments of a subcommand as if none were given.
///
/// # Errors
/// If it cannot do without.
pub fn defaults<A: clap::Args>() -> Outcome<A> {
    let nothing = A::augment_args(clap::Command::new("")).try_get_matches_from([""])?;
    Ok(A::from_arg_matches(&nothing)?)
}
