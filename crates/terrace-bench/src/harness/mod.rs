//! Not built yet.

use crate::Outcome;

/// Arguments of the subcommand.
#[derive(Debug, clap::Args)]
pub struct Arguments {}

/// Runs it.
///
/// # Errors
/// Always, until it is built.
pub fn run(_arguments: Arguments) -> Outcome {
    Err("not built yet".into())
}
