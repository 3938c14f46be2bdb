//! Which store this is, when manifests are missing: from the other tier's, else from segment and
//! block headers.
//!
//! It does not guess: headers of two stores in one directory are refused.

use super::notes::Notes;
use crate::{
    Error, Options, Result,
    admin::open,
    blocks::format::decode_block_header,
    io::{AlignedBuffer, Disk, OpenMode, PAGE_BYTES},
    log::format::SegmentHeader,
    manifest::Manifest,
};
use std::path::Path;

/// The store's manifest; missing and damaged ones are rewritten.
///
/// # Errors
/// [`Error::NotAStore`] if the identity of the store cannot be determined, or sources disagree;
/// [`Error::Invalid`] if the options do not fit the store.
pub fn mend(options: &Options, flash: &dyn Disk, large: &dyn Disk, notes: &mut Notes) -> Result<Manifest> {
    let otherwise = || from_headers(options, flash, large);
    let check = |segment_bytes| open::check_options(options, segment_bytes, large);
    let (manifest, written) = Manifest::mend(options, flash, large, otherwise, check)?;
    for tier in written {
        notes.add(format!(
            "the manifest of the {tier} tier was missing or damaged; it was written anew"
        ));
    }
    Ok(manifest)
}

/// Store id and segment length, as the headers of segments and blocks have them.
fn from_headers(options: &Options, flash: &dyn Disk, large: &dyn Disk) -> Result<Option<(u64, u64)>> {
    let mut found: Option<(u64, u64)> = None;
    let segments = first_pages(flash, "segments", ".seg", |page| {
        SegmentHeader::decode(page).map(|header| (header.store_id, header.segment_bytes))
    })?;
    let blocks = first_pages(large, "blocks", ".blk", |page| {
        decode_block_header(page).map(|header| (header.store_id, options.segment_bytes))
    })?;
    for (store_id, segment_bytes) in segments.into_iter().chain(blocks) {
        let (known, _) = *found.get_or_insert((store_id, segment_bytes));
        if known != store_id {
            return Err(Error::NotAStore {
                path: options.flash_dir.clone(),
                reason: format!(
                    "segments and blocks belong to the stores {known:016x} and {store_id:016x}, and no manifest says which is meant; move the other's files away"
                ),
            });
        }
    }
    Ok(found)
}

fn first_pages<T>(
    disk: &dyn Disk,
    directory: &str,
    suffix: &str,
    decode: impl Fn(&[u8]) -> Option<T>,
) -> Result<Vec<T>> {
    let directory = Path::new(directory);
    let mut names = disk
        .list(directory)
        .map_err(|error| Error::io(format!("list {}", directory.display()), &error))?;
    names.sort();
    let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
    let mut decoded = Vec::new();
    for name in names.iter().filter(|name| name.ends_with(suffix)) {
        let read = disk
            .open(&directory.join(name), OpenMode::READ)
            .and_then(|file| file.read_exact_at(&mut page, 0));
        // One that cannot be read says nothing; others may.
        if read.is_ok() {
            decoded.extend(decode(&page));
        }
    }
    Ok(decoded)
}
