//! Rebuilds the ordered index and LargeMeta from segments and blocks alone, and says what could not be known.

use crate::{Error, Options, Result};

/// What `repair` did.
#[derive(Debug, Clone, Default)]
pub struct RepairReport {
    /// Objects found again.
    pub objects: u64,
    /// What could not be known or read, in words.
    pub notes: Vec<String>,
}

/// Repairs a store that is not open.
///
/// # Errors
/// [`Error::Locked`], [`Error::NotAStore`], the devices'.
pub fn repair(options: Options) -> Result<RepairReport> {
    let _ = options;
    Err(Error::Unavailable("repair"))
}
