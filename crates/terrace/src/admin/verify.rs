//! Reads everything and checks it: each entry's value, what the hash index says of it, each
//! segment's frames, the account of each block, the checkpoint, copies of the index's tables; and
//! what nothing points to.

use crate::{
    Result, Tier,
    admin::open::count_live,
    engine::Engine,
    hash_index::checkpoint,
    key_hash,
    log::{
        reader::{Found, read_record},
        scan::SegmentImage,
        segments::SegmentState,
    },
    manifest::Manifest,
    ordered_index::{Entry, Home, KeyBounds},
    read::{decode_attributes, not_there, stored_value},
    visibility::presence::Presence,
};
use std::sync::Arc;

/// Maximum number of repeated comparisons of the account, if commits were made in between.
const RECOUNTS_MAX: usize = 20;

/// Result of `verify`.
#[derive(Debug, Clone, Default)]
pub struct VerifyReport {
    /// Objects whose values were read and matched.
    pub objects: u64,
    /// Bytes of their values.
    pub bytes: u64,
    /// Findings that mean loss or damage: corrupt values, entries that lead nowhere, bad frames.
    pub errors: Vec<String>,
    /// Bytes in blocks that no entry points to: overwritten, abandoned or orphaned. Block GC
    /// reclaims them. (Expired and range-deleted values are not included until they are swept.)
    pub orphaned_bytes: u64,
}

/// Verifies a store as of now.
///
/// # Errors
/// If the index cannot be walked.
pub fn verify(engine: &Arc<Engine>) -> Result<VerifyReport> {
    let mut report = VerifyReport {
        errors: engine.damage.clone(),
        ..VerifyReport::default()
    };
    check_manifests(engine, &mut report);
    engine.log.wait_applied()?;
    let register = || engine.snapshots.register(false, || engine.log.applied_seq());
    let (ranges, snapshot) = engine.log.ranges.current_with(register);
    let presence = engine.presence_at(ranges, snapshot.seq);
    let mut live_block_bytes = 0;
    // The ranges between them are among the damage.
    for bounds in engine.index.sound_bounds() {
        check_entries(
            engine,
            bounds,
            snapshot.seq,
            &presence,
            &mut live_block_bytes,
            &mut report,
        )?;
    }
    check_segments(engine, &mut report);
    if let Err(error) = checkpoint::file::verify(&*engine.flash_disk, engine.options.tuning.direct_io) {
        report
            .errors
            .push(format!("{error}; it costs the next open time, and no data"));
    }
    report.errors.extend(engine.index.check_mirror());
    check_account(engine, &mut report)?;
    let allocated: u64 = engine.large.blocks().iter().map(|block| block.bytes).sum();
    report.orphaned_bytes = allocated.saturating_sub(live_block_bytes);
    Ok(report)
}

/// Checks the entries within bounds; ends at the first that cannot be read.
fn check_entries(
    engine: &Engine,
    bounds: KeyBounds,
    seq: u64,
    presence: &Presence<'_>,
    live_block_bytes: &mut u64,
    report: &mut VerifyReport,
) -> Result<()> {
    for item in engine.index.scan(bounds, seq)? {
        let (key, entry) = match item {
            Ok(item) => item,
            Err(error) => {
                engine.index.note_damage(&error);
                report.errors.push(format!("the ordered index: {error}"));
                break;
            }
        };
        if let Home::Block(extent) = entry.home {
            *live_block_bytes += extent.extent_bytes;
        }
        if presence.dead(&key, entry.version.0, &entry.attributes).is_some() {
            continue;
        }
        match check_value(engine, &key, &entry).and_then(|()| check_slot(engine, &key, &entry)) {
            Ok(()) => {
                report.objects += 1;
                report.bytes += entry.length;
            }
            Err(reason) => report
                .errors
                .push(format!("key {:?}: {reason}", String::from_utf8_lossy(&key))),
        }
    }
    Ok(())
}

/// Both places of both manifests. A store that is opened read-only may come from a version that
/// made no copies.
fn check_manifests(engine: &Engine, report: &mut VerifyReport) {
    let wants_copy = !engine.options.read_only;
    for (tier, disk) in [(Tier::Flash, &engine.flash_disk), (Tier::Large, engine.large.disk())] {
        report.errors.extend(Manifest::check(&**disk, tier, wants_copy));
    }
}

/// A slot of the hash index may be missing, or be another key's; it must not lead to an older
/// version.
fn check_slot(engine: &Engine, key: &[u8], entry: &Entry) -> std::result::Result<(), String> {
    let Some(found) = engine.hash_index.peek(key_hash(key)) else {
        return Ok(());
    };
    if matches!(entry.home, Home::Flash { address } if address == found.address.bytes()) {
        return Ok(());
    }
    // At most 16 MiB.
    let expected_bytes = found.read_bytes_max as usize;
    let read = read_record(&engine.log.segments, found.address, expected_bytes, |record| {
        (record.key == key).then(|| record.version())
    });
    match read {
        Ok((Found::Record(Some(version)), _)) if version < entry.version.0 => Err(format!(
            "the hash index leads to version {version}, its entry has {}",
            entry.version.0
        )),
        // Another key's; or the same version, or a later one, as the entry is of a moment ago.
        // Damage is found with the segments.
        _ => Ok(()),
    }
}

fn check_value(engine: &Engine, key: &[u8], entry: &Entry) -> std::result::Result<(), String> {
    if entry.copy.is_some() && entry.sound_copy().is_none() {
        return Err("the copy in its entry does not match its checksum".to_owned());
    }
    let checksum = match &entry.home {
        Home::Block(extent) => {
            let reader = engine.large.open_value(extent).map_err(|error| error.to_string())?;
            if reader.header().map_err(|error| error.to_string())?.key != key {
                return Err("its entry leads to another key's value".to_owned());
            }
            reader.verify().map_err(|error| error.to_string())?
        }
        _ => {
            decode_attributes(&entry.attributes).map_err(|error| error.to_string())?;
            // The value is read from the device, not from RAM.
            let value = stored_value(engine, key, entry).map_err(|error| error.to_string())?;
            let value = match (value, &entry.home) {
                (Some(value), _) => value,
                (None, Home::Flash { address }) => return Err(not_there(engine, key, *address).to_string()),
                (None, _) => return Err("it is not there".to_owned()),
            };
            if value.len() as u64 != entry.length {
                return Err(format!(
                    "its value has {} bytes, its entry says {}",
                    value.len(),
                    entry.length
                ));
            }
            crc32c::crc32c(&value)
        }
    };
    if checksum == entry.checksum {
        Ok(())
    } else {
        Err("its value does not match the checksum in its entry".to_owned())
    }
}

/// Compares the live bytes of each block with the entries that point to it. While there are
/// commits, moves included, the two are of different seqs: then it gives up.
fn check_account(engine: &Arc<Engine>, report: &mut VerifyReport) -> Result<()> {
    for _ in 0..RECOUNTS_MAX {
        engine.log.wait_applied()?;
        let held = engine.snapshots.register(false, || engine.log.applied_seq());
        // The damage has been reported.
        let Ok(counted) = count_live(&engine.index, held.seq) else {
            return Ok(());
        };
        let account = engine.large.account();
        if engine.log.committed_seq() != held.seq {
            continue;
        }
        for (block, live_bytes) in account {
            let found = counted.get(&block).copied().unwrap_or_default();
            if found != live_bytes {
                report.errors.push(format!(
                    "block {block:016x}: its account has {live_bytes} live bytes, entries point to {found}"
                ));
            }
        }
        return Ok(());
    }
    Ok(())
}

fn check_segments(engine: &Engine, report: &mut VerifyReport) {
    for segment in engine.log.segments.iter() {
        if !matches!(segment.state(), SegmentState::Sealed | SegmentState::Quarantined) {
            continue;
        }
        // Pinned, so that it is not recycled and overwritten while it is read.
        let Some(_pin) = engine.log.segments.pin(segment.number) else {
            continue;
        };
        match SegmentImage::read(segment, engine.log.segments.segment_bytes()) {
            Ok(image) => {
                for (from, to) in image.damaged() {
                    report.errors.push(format!(
                        "segment {:08x}: bytes {from} to {to} hold no sound frame",
                        segment.number
                    ));
                }
            }
            Err(error) => report.errors.push(format!("segment {:08x}: {error}", segment.number)),
        }
    }
}
