//! Decoders that nothing outside needs, as plain functions, for the fuzz targets. No part of the
//! interface.

use crate::{
    Attributes, Tier,
    admin::backup::{BackupManifest, end_line},
    api::expiry,
    engine::mark::MarkPayload,
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
    log::address::Address,
    manifest::{Manifest, opens},
    visibility::range_tombstones::DeletedRange,
};
use std::{ops::Range, path::Path};

/// Decodes a manifest; returns its encoding.
#[must_use]
pub fn manifest(bytes: &[u8]) -> Option<Vec<u8>> {
    Manifest::decode(bytes).ok().map(|manifest| manifest.encode().to_vec())
}

/// Decodes a count of opens, of the store and the tier that it says it is of; returns its encoding.
#[must_use]
pub fn open_count(bytes: &[u8]) -> Option<Vec<u8>> {
    let store_id = u64::from_le_bytes(*bytes.get(16..)?.first_chunk()?);
    let tier = if bytes.get(12) == Some(&2) {
        Tier::Large
    } else {
        Tier::Flash
    };
    let count = opens::decode(bytes, store_id, tier)?;
    Some(opens::encode(store_id, tier, count).to_vec())
}

/// Decodes the manifest of a backup; returns its encoding.
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

/// Decodes the payload of a mark, in the current or a former form; returns its encoding.
#[must_use]
pub fn mark_payload(bytes: &[u8]) -> Option<Vec<u8>> {
    MarkPayload::decode(bytes).map(|payload| payload.encode())
}

/// What a mark holds, for the seeds: segments as number and generation, runs of segments in use,
/// ranges as seq, first key and end, blocks as number and live bytes.
#[must_use]
pub fn encode_mark_payload(
    over_uses: &[(u32, u64)],
    in_use: &[Range<u32>],
    ranges: &[(u64, &[u8], &[u8])],
    live: &[(u64, u64)],
) -> Vec<u8> {
    let range = |(seq, start, end): &(u64, &[u8], &[u8])| DeletedRange {
        seq: *seq,
        start: (*start).into(),
        end: (*end).into(),
    };
    MarkPayload {
        store_id: 7,
        over_uses: over_uses.to_vec(),
        in_use: in_use.to_vec(),
        ranges: ranges.iter().map(range).collect(),
        live: Some(live.to_vec()),
        ..MarkPayload::empty()
    }
    .encode()
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

/// Decodes a checkpoint of a small hash index to its end; returns its encoding.
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
        was_crowded: false,
        file_bytes: 0,
    };
    write_checkpoint(&header, &index, &filter)
}
