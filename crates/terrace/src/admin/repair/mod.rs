//! Repair: rebuilds the ordered index and LargeMeta of a store that is not open, from segments and
//! blocks, and reports what could not be recovered.
//!
//! In reading order: [`identity`] (which store this is), [`mend`] (segment files), [`survey`] (each
//! key's newest known version and its place), [`build`] (the new index, from values that verify),
//! [`install`] (its place on flash). [`rebuild`] does the same with the log alone, for an open that
//! meets a damaged index.
//!
//! Rules:
//! - Where the log still has a commit, the log decides. A version that a block claims for a commit
//!   in the log counts only if the log agrees; a version beyond the log's end counts only if the
//!   log's end may be lost.
//! - Up to its last commit the old index, if it can be read to its end, decides about everything
//!   that the log no longer has: a key that is not in it is deleted, and an entry in it is the
//!   newest version.
//! - The newest version of a key wins; a delete is a version, too. A range deletion removes the
//!   versions that it hides. Of several places of that version, the one named last in the log is
//!   taken if its value verifies, else any other that does.
//! - A value of the newest version that verifies nowhere is not replaced by an older one: its entry
//!   is kept, so that reading it is an error and its intact parts can still be read. It is named in
//!   the report.
//! - Only manifests, broken segment headers, LargeMeta and the index are written.
//!
//! Memory: one small struct per key, deleted ones included: some 100 bytes and the key.
//!
//! On failure: the old index stays in place. The new one is written to `index.new`, which the next
//! repair removes; it is swapped in by renames, and the old one is kept as `index.old-N` until that
//! is durable.

mod build;
mod identity;
mod install;
mod mend;
mod notes;
pub mod rebuild;
mod survey;

use crate::{
    Error, Options, Result, Tier,
    admin::open,
    blocks::OpenReport,
    hash_index::checkpoint,
    manifest::{self, Manifest},
};
use build::Builder;
use notes::Notes;
use std::sync::Arc;
use survey::Survey;

/// Result of `repair`.
#[derive(Debug, Clone, Default)]
pub struct RepairReport {
    /// Objects found again.
    pub objects: u64,
    /// Losses and unreadable data, as messages.
    pub notes: Vec<String>,
}

/// Repairs a store that is not open.
///
/// # Errors
/// [`Error::Locked`], [`Error::NotAStore`], [`Error::Invalid`] if a tier has nothing of a store and
/// [`Options::repair_without_tier`] is off, the devices'.
pub fn repair(mut options: Options) -> Result<RepairReport> {
    options.read_only = false;
    refuse_absent(&options)?;
    // The directory of a tier that is lost may be missing.
    options.create = true;
    let _lock = manifest::lock(&options)?;
    options.create = false;
    let (flash_disk, large_disk) = open::disks(&mut options)?;
    let mut notes = Notes::default();
    let manifest = identity::mend(&options, &*flash_disk, &*large_disk, &mut notes)?;
    options.segment_bytes = manifest.segment_bytes;
    install::remove_unfinished(&options.flash_dir)?;
    // The checkpoint belongs to the former index, and is deleted before there is another.
    checkpoint::remove(&*flash_disk).map_err(|error| Error::io("remove the checkpoint of the hash index", &error))?;
    let mended = mend::segments(&*flash_disk, &manifest, options.tuning.direct_io, &mut notes)?;
    let unbounded = unbounded(&options);
    let segments = open::open_segments(&only_read(&unbounded), &manifest, &flash_disk)?;
    let (large, opened) = open::open_large(&unbounded, &manifest, &large_disk)?;
    note_large(&opened, &mut notes);
    let mut survey = Survey::of_log(&segments, mended, &mut notes);
    survey.add_blocks(&large, &mut notes);
    let old = install::open_old(&options.flash_dir, manifest.store_id, &survey, &mut notes)?;
    if let Some(old) = &old {
        survey.compare_end(old.applied_seq(), &mut notes);
    }
    // If the log is complete, no other source is needed.
    let old = old.filter(|_| !survey.log_is_complete());
    if let Some(old) = &old {
        survey.add_old_ranges(old);
        survey.add_old_index(old, &mut notes);
    }
    survey.settle(&mut notes);
    let directory = install::new_directory(&options.flash_dir);
    let mut builder = Builder::new(&directory, &options, &segments, &large)?;
    builder.add_from_log(&mut survey, &mut notes)?;
    builder.add_from_blocks(&mut survey, &mut notes)?;
    if let Some(old) = &old {
        builder.add_from_old_index(old, &mut survey, &mut notes)?;
    }
    drop(old);
    builder.add_from_elsewhere(&mut notes)?;
    survey.note_unread(&mut notes);
    let objects = builder.finish(survey.highest_seq())?;
    install::install(&options.flash_dir)?;
    // Last: an open before would take values that are not in the new index for dead ones.
    manifest.settle_opens(&*flash_disk, &*large_disk)?;
    Ok(RepairReport {
        objects,
        notes: notes.into_lines(),
    })
}

/// Refuses a store of which a tier has nothing, unless the options permit it: it is more likely
/// that a path is wrong, or a file system not mounted, than that all of it is lost.
fn refuse_absent(options: &Options) -> Result<()> {
    let tiers = [
        (Tier::Flash, &options.flash_dir, options.flash_disk.as_ref()),
        (Tier::Large, &options.large_dir, options.large_disk.as_ref()),
    ];
    let mut absent = Vec::new();
    for (tier, dir, disk) in tiers {
        let is_there = disk.is_some() || dir.is_dir();
        if !is_there || (!dir.join("index").exists() && Manifest::is_unused(&*open::disk(disk, dir, false)?)) {
            absent.push((tier, dir));
        }
    }
    match absent[..] {
        [] => Ok(()),
        [_] if options.repair_without_tier => Ok(()),
        [(tier, dir)] => Err(Error::invalid(format!(
            "the {tier} tier is not here: {} is empty or missing; is its file system mounted, and the path right? If the \
             tier is lost for good, repair with `--without-tier` (`Options::repair_without_tier`), which keeps only what \
             the other tier has",
            dir.display()
        ))),
        _ => Err(Error::not_a_store(
            &options.flash_dir,
            "no manifest, segment or block of a store is here; check the paths",
        )),
    }
}

/// Options without a capacity: existing values are kept even if the large tier exceeds it.
fn unbounded(options: &Options) -> Options {
    Options {
        large_capacity_bytes: None,
        ..options.clone()
    }
}

fn only_read(options: &Options) -> Options {
    Options {
        read_only: true,
        ..options.clone()
    }
}

fn note_large(opened: &OpenReport, notes: &mut Notes) {
    if opened.rebuilt {
        notes.add("LargeMeta was written anew from the blocks");
    }
    for number in &opened.damaged_meta {
        notes.add(format!("LargeMeta {number:016x} is damaged and was passed over"));
    }
    opened.losses().for_each(|loss| notes.add(loss));
    for name in &opened.foreign {
        notes.add(format!(
            "file {name} among the blocks is not of this store and was left alone"
        ));
    }
}

/// An index as the survey and the builder read it.
type OldIndex = Arc<crate::ordered_index::OrderedIndex>;
