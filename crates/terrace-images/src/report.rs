//! Result of an import, as numbers and as text.
//!
//! Invariant: every file handled is in exactly one of the counts; files not reached after a stop
//! are in none.

use std::{fmt, path::PathBuf, time::Duration};
use terrace::Error;

/// A file that could not be imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedFile {
    /// Its path.
    pub path: PathBuf,
    /// The reason, as text.
    pub reason: String,
}

/// How an import ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Outcome {
    /// Every file was handled.
    #[default]
    Finished,
    /// It was stopped. Groups in flight were committed.
    Stopped,
    /// The store failed. Groups committed before stay.
    StoreFailed(Error),
}

/// Result of an import.
#[derive(Debug, Clone, Default)]
pub struct ImportReport {
    /// How it ended.
    pub outcome: Outcome,
    /// Images stored.
    pub imported: u64,
    /// Files whose content the store already had.
    pub already_stored: u64,
    /// Files with the same content as another in this import: the file, and the one imported in its
    /// place.
    pub duplicates: Vec<(PathBuf, PathBuf)>,
    /// Files whose content and name are not an image's.
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
    /// Files whose content was stored already, or came from another file of this import.
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
            // Names may contain any bytes, including terminal control sequences.
            write!(f, "\n  {}: {reason}", path.display().to_string().escape_debug())?;
        }
        Ok(())
    }
}
