//! Decoders that nothing outside needs, as plain functions, for the fuzz targets. No part of the interface.

use crate::{
    accounting::Accounting,
    backup::{BackupManifest, end_line},
    flash::free_list::{decode_free_list, encode_free_list},
    manifest::Manifest,
};
use std::path::Path;

/// Reads a manifest; gives what it encodes to.
#[must_use]
pub fn manifest(bytes: &[u8]) -> Option<Vec<u8>> {
    Manifest::decode(bytes).ok().map(|manifest| manifest.encode().to_vec())
}

/// Reads the manifest of a backup; gives what it encodes to.
#[must_use]
pub fn backup_manifest(bytes: &[u8]) -> Option<Vec<u8>> {
    let manifest = BackupManifest::decode(bytes, Path::new("BACKUP")).ok()?;
    Some(manifest.encode().into_bytes())
}

/// The last line of a backup's manifest, behind everything before it.
#[must_use]
pub fn backup_manifest_end(before: &[u8], files: usize) -> String {
    end_line(before, files)
}

/// Reads the store's own part of a mark's payload; gives what it encodes to and what follows it.
#[must_use]
pub fn accounting(bytes: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let accounting = Accounting::default();
    let rest = accounting.restore(bytes)?;
    Some((accounting.encode().to_vec(), rest))
}

/// Reads the list of free segments in a mark's payload; gives what it encodes to (nothing where there is none) and what
/// follows it.
#[must_use]
pub fn free_list(bytes: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let (list, rest) = decode_free_list(bytes)?;
    let encoded = if rest.len() == bytes.len() {
        Vec::new()
    } else {
        encode_free_list(&list)
    };
    Some((encoded, rest))
}
