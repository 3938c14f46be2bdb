//! Decoders that nothing outside needs, as plain functions, for the fuzz targets. No part of the
//! interface.

use crate::{
    Attributes,
    accounting::Accounting,
    admin::backup::{BackupManifest, end_line},
    api::expiry,
    hash_index::{
        Config, HashIndex,
        checkpoint::{
            FILE, NEW_FILE,
            file::{Sink, Source},
            format::Header,
        },
        key_filter::KeyFilter,
    },
    io::SimDisk,
    log::{
        address::Address,
        free_list::{decode_free_list, encode_free_list},
    },
    maintenance::migrate,
    manifest::Manifest,
    visibility::range_tombstones::{DeletedRange, stored},
};
use std::path::Path;

/// Reads a manifest; gives what it encodes to.
#[must_use]
pub fn manifest(bytes: &[u8]) -> Option<Vec<u8>> {
    Manifest::decode(bytes).ok().map(|manifest| manifest.encode().to_vec())
}

/// Reads the file that says by which rules values were placed; gives what it encodes to.
#[must_use]
pub fn placed(bytes: &[u8]) -> Option<Vec<u8>> {
    migrate::recode_record(bytes)
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

/// Reads the list of free segments in a mark's payload; gives what it encodes to (nothing where
/// there is none) and what follows it.
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

/// Reads the deleted ranges in a mark's payload; gives what they encode to (nothing where there are
/// none) and what follows.
#[must_use]
pub fn deleted_ranges(bytes: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let (stored, rest) = stored::decode(bytes)?;
    let encoded = stored.map_or_else(Vec::new, |stored| {
        stored::encode(stored.earliest_ms, stored.ranges.iter())
    });
    Some((encoded, rest))
}

/// The stored form of ranges given by seq, first key and end, for the seeds.
#[must_use]
pub fn encode_deleted_ranges(earliest_ms: u64, ranges: &[(u64, &[u8], &[u8])]) -> Vec<u8> {
    let range = |(seq, start, end): &(u64, &[u8], &[u8])| DeletedRange {
        seq: *seq,
        start: (*start).into(),
        end: (*end).into(),
    };
    let ranges: Vec<_> = ranges.iter().map(range).collect();
    stored::encode(earliest_ms, ranges.iter())
}

/// Splits stored attributes into their expiry and the rest.
#[must_use]
pub fn split_expiry(bytes: &[u8]) -> Option<(Option<u64>, &[u8])> {
    expiry::split(bytes)
}

/// The stored form of attributes with an expiry; `None` if it is too long.
#[must_use]
pub fn encode_expiring(attributes: &Attributes, expires_ms: Option<u64>) -> Option<Vec<u8>> {
    expiry::encode(attributes, expires_ms).ok()
}

/// A hash index larger than this is not made for a checkpoint that only claims to be of one.
const CHECKPOINT_BUCKETS_MAX: usize = 1 << 10;

/// Reads a checkpoint of a small hash index to its end; gives what it is when it is written again.
#[must_use]
pub fn checkpoint(bytes: &[u8]) -> Option<Vec<u8>> {
    let disk = SimDisk::new(1);
    disk.put_file(FILE, bytes).ok()?;
    let mut source = Source::open(&disk, false).ok()??;
    let header = *source.header();
    let (partitions, buckets_min) = (header.partitions as usize, header.buckets_min as usize);
    let buckets = partitions.checked_mul(buckets_min)?;
    if buckets > CHECKPOINT_BUCKETS_MAX {
        return None;
    }
    let index = HashIndex::new(Config {
        partitions,
        buckets_min,
        ram_bytes_max: usize::MAX,
    });
    let index = index.ok()?;
    while !source.step(Some(&index), |_| true).ok()? {}
    Some(write_checkpoint(&header, &index, &source.into_filter()))
}

fn write_checkpoint(header: &Header, index: &HashIndex, filter: &KeyFilter) -> Vec<u8> {
    let disk = SimDisk::new(1);
    let write = || {
        let mut sink = Sink::create(&disk, false)?;
        let filter_layers = sink.write_contents(index, filter, |_| Ok(()))?;
        sink.finish(&Header {
            filter_layers,
            ..*header
        })
    };
    // The disk is empty, has no bound and no faults.
    write()
        .ok()
        .and_then(|_| disk.read_file(NEW_FILE).ok())
        .unwrap_or_default()
}

/// A checkpoint with a slot for each of some hashes, and some hashes elsewhere, for the seeds.
#[must_use]
pub fn encode_checkpoint(slots: &[u64], elsewhere: &[u64]) -> Vec<u8> {
    let config = Config {
        partitions: 2,
        buckets_min: 2,
        ram_bytes_max: usize::MAX,
    };
    let (Ok(index), filter) = (HashIndex::new(config), KeyFilter::default()) else {
        return Vec::new();
    };
    for (hash, number) in slots.iter().zip(1..) {
        if let Some(address) = Address::from_packed(number) {
            index.insert(*hash, address, 100 * number);
        }
    }
    elsewhere.iter().for_each(|hash| filter.insert(*hash));
    let header = Header {
        store_id: 7,
        segment_bytes: 256 << 10,
        partitions: 2,
        buckets_min: 2,
        begun_seq: 41,
        ended_seq: 45,
        generation_max: 9,
        filter_layers: 0,
        file_bytes: 0,
    };
    write_checkpoint(&header, &index, &filter)
}
