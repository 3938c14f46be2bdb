//! Not built yet.

use crate::Outcome;

/// The report's part.
pub mod report {
    use crate::{
        Outcome,
        harness::{page::Section, results::Record},
    };
    /// None.
    pub fn sections(_records: &[Record]) -> Outcome<Vec<Section>> {
        Ok(Vec::new())
    }
}

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
