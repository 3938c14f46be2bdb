//! Rebuilds the ordered index during an open, if the log alone has all of its contents.
//!
//! This holds as long as the log has every commit ever made, without damage. Once segments were
//! reclaimed it does not: tiny values are in the index alone, and the deletes that hide old values
//! in blocks are known to the index alone. Then nothing is built, and the reason is returned;
//! `terrace repair` recovers what exists and reports what it could not determine.
//!
//! Only the new index is written, beside the old one, and nothing is removed before it is complete.
//! If this is interrupted, the next open finds the same state and starts over: see
//! docs/durability.md.
//!
//! Blocks are not read: the log has checksum and place of every value in them, and reads verify.

use super::{build::Builder, install, notes::Notes, only_read, survey::Survey, unbounded};
use crate::{Error, Options, Result, admin::open, hash_index::checkpoint, io::Disk, manifest::Manifest};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Result of a rebuild.
#[derive(Debug)]
pub enum Rebuilt {
    /// There is a new index.
    Done {
        objects: u64,
        /// How long it took.
        elapsed: Duration,
        /// Losses that remain, as messages.
        notes: Vec<String>,
    },
    /// The log does not have all commits, for this reason. Nothing was written.
    NotPossible(String),
}

/// Whether an exchange of the index for a new one was cut short: then there is none.
pub fn was_cut_short(options: &Options) -> Result<bool> {
    install::is_between(&options.flash_dir)
}

/// Rebuilds the index from the log, if the log has all of it, and replaces the existing one.
///
/// # Errors
/// The devices'. The old index is where it was, or nothing is.
pub fn rebuild(
    options: &Options,
    manifest: &Manifest,
    flash_disk: &Arc<dyn Disk>,
    large_disk: &Arc<dyn Disk>,
) -> Result<Rebuilt> {
    let begun = Instant::now();
    // Only read: damage in the log stays for `repair` to find.
    let looking = only_read(&unbounded(options));
    let segments = open::open_segments(&looking, manifest, flash_disk)?;
    if let Some(damage) = segments.take_damage().first() {
        return Ok(Rebuilt::NotPossible(format!("the log is damaged, too: {damage}")));
    }
    let mut notes = Notes::default();
    let mut survey = Survey::of_log(&segments, false, &mut notes);
    if !survey.log_is_complete() {
        let reason = notes.into_lines().into_iter().next().unwrap_or_else(|| {
            "the log does not have every commit any more, and tiny values and deletes of those that were recycled are in the index alone"
                .to_owned()
        });
        return Ok(Rebuilt::NotPossible(reason));
    }
    survey.settle(&mut notes);
    install::remove_unfinished(&options.flash_dir)?;
    // The checkpoint belongs to the former index, and is deleted before there is another.
    checkpoint::remove(&**flash_disk).map_err(|error| Error::io("remove the checkpoint of the hash index", &error))?;
    let (large, _) = open::open_large(&looking, manifest, large_disk)?;
    let mut builder = Builder::new(&install::new_directory(&options.flash_dir), options, &segments, &large)?;
    builder.trust_the_log();
    builder.add_from_log(&mut survey, &mut notes)?;
    survey.note_unread(&mut notes);
    let objects = builder.finish(survey.highest_seq())?;
    install::install(&options.flash_dir)?;
    Ok(Rebuilt::Done {
        objects,
        elapsed: begun.elapsed(),
        notes: notes.into_lines(),
    })
}
