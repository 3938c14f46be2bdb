//! What an import did, in numbers and in words.
//!
//! Invariant: every file dealt with is in exactly one of the counts; files not reached after a stop
//! are in none. On failure: not applicable.

use std::{fmt, path::PathBuf, time::Duration};
use terrace::Error;

/// A file that could not be imported, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedFile {
    /// Where it is.
    pub path: PathBuf,
    /// Why, in words.
    pub reason: String,
}

/// How an import ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Outcome {
    /// Every file was dealt with.
    #[default]
    Finished,
    /// It was told to stop. What was in flight is committed.
    Stopped,
    /// The store refused. What was committed before stays.
    StoreFailed(Error),
}

/// What an import did.
#[derive(Debug, Clone, Default)]
pub struct ImportReport {
    /// How it ended.
    pub outcome: Outcome,
    /// Images stored.
    pub imported: u64,
    /// Files whose content the store already had.
    pub already_stored: u64,
    /// Files with the same content as another in this run: the file, and the one that stands for
    /// it.
    pub duplicates: Vec<(PathBuf, PathBuf)>,
    /// Files that are not images and do not claim to be.
    pub not_images: u64,
    /// Files that could not be imported, in path order.
    pub failed: Vec<FailedFile>,
    /// Bytes of the originals stored.
    pub original_bytes: u64,
    /// Bytes of the resolutions stored.
    pub resolution_bytes: u64,
    /// How long it took.
    pub elapsed: Duration,
}

impl ImportReport {
    /// Files skipped since their content is stored already, or by another file of the run.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.already_stored + self.duplicates.len() as u64
    }
}

impl fmt::Display for ImportReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Outcome::Finished => {}
            Outcome::Stopped => f.write_str("stopped early; import again to go on. ")?,
            Outcome::StoreFailed(error) => write!(f, "the store failed: {error}. Until then: ")?,
        }
        write!(f, "imported {}", self.imported)?;
        write!(f, ", skipped {}", self.skipped())?;
        let mut why = Vec::new();
        if self.already_stored > 0 {
            why.push(format!("{} already stored", self.already_stored));
        }
        if !self.duplicates.is_empty() {
            why.push(format!("{} duplicates", self.duplicates.len()));
        }
        if !why.is_empty() {
            write!(f, " ({})", why.join(", "))?;
        }
        if self.not_images > 0 {
            write!(
                f,
                ", passed over {} that are not JPEG, PNG, WebP, TIFF or GIF",
                self.not_images
            )?;
        }
        write!(f, ", failed {}", self.failed.len())?;
        write!(f, " in {:.1} s", self.elapsed.as_secs_f64())?;
        if !self.failed.is_empty() {
            f.write_str(":")?;
        }
        for FailedFile { path, reason } in &self.failed {
            // Names may hold anything, also what moves the cursor of a terminal.
            write!(f, "\n  {}: {reason}", path.display().to_string().escape_debug())?;
        }
        Ok(())
    }
}
