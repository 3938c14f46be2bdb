//! Decoders that nothing outside needs, as plain functions, for the fuzz targets. No part of the interface.

use crate::{
    accounting::Accounting,
    flash::free_list::{decode_free_list, encode_free_list},
    manifest::Manifest,
};

/// Reads a manifest; gives what it encodes to.
#[must_use]
pub fn manifest(bytes: &[u8]) -> Option<Vec<u8>> {
    Manifest::decode(bytes).ok().map(|manifest| manifest.encode().to_vec())
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
