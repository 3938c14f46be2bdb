//! Opening a store: index, large space, log, in this order, each by its own recovery; then the parts together.
//!
//! The ordered index says up to which seq it has persisted everything. The log's frames after that become the
//! overlay, as if they had just been committed, and the applier works them off in the background: so the store serves
//! at once.

use crate::{
    Error, Options, Result,
    accounting::Accounting,
    api::expiry::Expiring,
    blocks::{LargeOptions, LargeSpace},
    engine::{Engine, Parts},
    io::{Disk, FileDisk},
    log::{
        self,
        commit::CommitLog,
        format::Body,
        frame::{Frame, FramePool},
        free_list::{OverUse, decode_free_list},
        recent::RecentFrames,
        segments::Segments,
    },
    manifest::Manifest,
    ordered_index::{IndexMark, IndexOptions, OrderedIndex},
    visibility::range_tombstones::{
        DeletedRange, Ranges,
        stored::{self, Stored},
    },
    write::stream::UnsyncedLarge,
};
use std::{path::Path, sync::Arc};

fn disk(given: Option<&Arc<dyn Disk>>, dir: &Path, read_only: bool) -> Result<Arc<dyn Disk>> {
    if let Some(disk) = given {
        return Ok(Arc::clone(disk));
    }
    if read_only && !dir.is_dir() {
        return Err(Error::NotAStore {
            path: dir.to_owned(),
            reason: "there is no such directory; check the path".to_owned(),
        });
    }
    let disk = FileDisk::new(dir).map_err(|error| Error::io(format!("open {}", dir.display()), &error))?;
    Ok(Arc::new(disk))
}

/// The disks under both tiers.
///
/// # Errors
/// The operating system's.
pub fn disks(options: &Options) -> Result<(Arc<dyn Disk>, Arc<dyn Disk>)> {
    Ok((
        disk(options.flash_disk.as_ref(), &options.flash_dir, options.read_only)?,
        disk(options.large_disk.as_ref(), &options.large_dir, options.read_only)?,
    ))
}

fn open_index(options: &Options) -> Result<(OrderedIndex, Option<IndexMark>)> {
    let index_options = IndexOptions {
        cache_bytes: options.index_cache_bytes,
        memtable_bytes: options.memtable_bytes,
        ..IndexOptions::default()
    };
    OrderedIndex::open(&options.flash_dir.join("index"), index_options).map_err(|error| match error {
        Error::Corruption { place, reason } => Error::Corruption {
            place,
            reason: format!("{reason}; run `terrace repair` to build the index anew from segments and blocks"),
        },
        other => other,
    })
}

/// Opens everything. No thread runs yet.
///
/// # Errors
/// [`Error::NotAStore`], [`Error::Corruption`], the devices'.
pub fn open(mut options: Options) -> Result<Engine> {
    let (flash_disk, large_disk) = disks(&options)?;
    let manifest = Manifest::open(&options, &*flash_disk, &*large_disk)?;
    options.segment_bytes = manifest.segment_bytes;
    options.validate()?;
    let (index, mark) = open_index(&options)?;
    let (large, report) = LargeSpace::open(
        Arc::clone(&large_disk),
        LargeOptions {
            store_id: manifest.store_id,
            split_threshold_bytes: options.split_threshold_bytes,
            direct_io: options.direct_io,
            read_only: options.read_only,
            capacity_bytes: options.large_capacity_bytes,
        },
    )?;
    let gone = |block: &u64| format!("block {block:016x} is gone; the values in it are lost");
    let mut damage: Vec<String> = report.missing.iter().map(gone).collect();
    let accounting = Accounting::default();
    let persisted_seq = mark.as_ref().map_or(0, |mark| mark.applied_seq);
    let restored = mark
        .map(|mark| restore(&mark.payload, &accounting, &large))
        .transpose()?;
    let (over_uses, mut stored) = restored.unwrap_or_else(|| (Vec::new(), Stored::none()));
    let segments = Segments::open(
        Arc::clone(&flash_disk),
        manifest.store_id,
        manifest.segment_bytes,
        options.flash_capacity_bytes,
        options.direct_io,
        options.read_only,
    )?;
    segments.free_over_uses(&over_uses);
    let pool = Arc::new(FramePool::for_overlay(options.overlay_bytes));
    let mut recovered = log::recover::recover(&segments, persisted_seq, Arc::clone(&pool), options.read_only)?;
    damage.append(&mut recovered.damage);
    stored.ranges.extend(
        recovered
            .frames
            .iter()
            .flat_map(|frame| replayed_ranges(frame, persisted_seq)),
    );
    let unsynced = Arc::new(UnsyncedLarge::new(large.clone()));
    let syncing = Arc::clone(&unsynced);
    let large_sync = Box::new(move |turn| syncing.sync(turn));
    let mut log = CommitLog::new(
        segments,
        pool,
        options.overlay_bytes,
        Arc::new(RecentFrames::new(RecentFrames::share_of(options.cache_bytes))),
        recovered,
        persisted_seq,
        large_sync,
    );
    log.ranges = Ranges::starting_with(stored.ranges);
    Engine::new(Parts {
        options,
        manifest,
        flash_disk,
        log,
        index: Arc::new(index),
        large,
        unsynced,
        accounting,
        expiring: Expiring::starting_at(stored.earliest_ms),
        persisted_seq,
        damage,
    })
}

/// Takes the accounting out of a mark's payload; gives the free segments, and the ranges deleted and the earliest expiry.
fn restore(payload: &[u8], accounting: &Accounting, large: &LargeSpace) -> Result<(Vec<OverUse>, Stored)> {
    let parts = accounting.restore(payload).and_then(decode_free_list);
    let parts = parts.and_then(|(list, rest)| Some((list, stored::decode(rest)?)));
    let (list, (stored, large_part)) = parts.ok_or_else(|| {
        Error::corruption(
            "the index's mark",
            "its accounting is too short or of another format; run `terrace repair`",
        )
    })?;
    large.restore_accounting(large_part)?;
    // A mark without it is a repair's or of format 1: something may have expired already.
    Ok((
        list,
        stored.unwrap_or_else(|| Stored {
            earliest_ms: 0,
            ..Stored::none()
        }),
    ))
}

/// Range deletions in a frame that are not in the index's mark.
fn replayed_ranges(frame: &Frame, persisted_seq: u64) -> Vec<DeletedRange> {
    let view = frame.view();
    let records = view.records().filter(|(_, record)| record.seq > persisted_seq);
    records
        .filter_map(|(_, record)| match record.body {
            Body::DeleteRange { end } => Some(DeletedRange {
                seq: record.seq,
                start: record.key.into(),
                end: end.into(),
            }),
            _ => None,
        })
        .collect()
}
