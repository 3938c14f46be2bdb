//! Takes a checkpoint of the hash index while others read and write: when one is due, or at close.
//!
//! Order of events: (1) the applied seq is recorded, (2) the highest generation of a segment, (3)
//! the partitions of the hash index are copied and written one after the other, then the filter,
//! (4) the committed seq is recorded, (5) the ordered index persists everything up to it, (6) the
//! header is written, the file synced, renamed, and the directory synced.
//!
//! On failure: the written file is removed. A failed sync says nothing about any other file, and no
//! caller depends on this one; so the store continues.

use crate::{
    Error, Result, Tier,
    engine::Engine,
    hash_index::checkpoint::{FILE, NEW_FILE, Newest, file::Sink, format::Header},
    maintenance::workers::Next,
    metrics::bucket::Bucket,
    mutation::{Mutation, unless},
};
use std::{path::Path, time::Duration};

/// Rate of writes under load, in bytes per second.
const GENTLE_BYTES_PER_SECOND: u64 = 64 << 20;
/// Memtables for which the device must have room in addition to the checkpoint.
const MEMTABLES_LEFT: u64 = 4;

/// At least this many times a checkpoint's length is written to the log before the next one.
/// Checkpoints thus stay below a quarter of the log's writes, and replaying the log behind one
/// takes no longer than loading it.
const LOG_PER_CHECKPOINT: u64 = 4;
/// One is also due if more than this fraction (1/n) of the log's files is dead and waits only for
/// it. With [`LOG_PER_CHECKPOINT`], its writing costs less than the space that it gives back.
const LOG_PER_WAITING: u64 = 8;
/// One is due after this part of the log at the latest: not so seldom that the log behind it is
/// recycled before the next one.
const RING_PART: u64 = 2;
/// Without a checkpoint one is written immediately if it has this many bytes, since the walk that
/// it saves takes long.
const FIRST_BYTES: u64 = 1 << 20;
/// How often the background looks whether one is due.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Wait after one that failed.
const RETRY: Duration = Duration::from_secs(30);

/// How fast it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Haste {
    /// In the background: below a rate, and given up when the store is closed.
    Gently,
    /// A caller waits for it.
    AtOnce,
}

/// Takes a checkpoint if one is due.
pub fn turn(engine: &Engine) -> Next {
    match take_if(engine, Haste::Gently, |newest| is_due(engine, newest)) {
        Ok(_) => Next::look(LOOK_INTERVAL),
        Err(_) if engine.log.is_closing() => Next::In(LOOK_INTERVAL),
        Err(error) => {
            tracing::warn!(%error, "no checkpoint of the hash index could be written; trying again");
            Next::In(RETRY)
        }
    }
}

/// Takes one at a proper close when everything is persisted, unless reading the log after the
/// newest one costs less than writing it again.
pub fn at_close(engine: &Engine) {
    if engine.options.tuning.checkpoint_log_bytes == 0 {
        return;
    }
    let is_due = |newest: Option<&Newest>| {
        newest.is_none_or(|newest| engine.checkpoints.behind_bytes(newest) > newest.file_bytes)
    };
    if let Err(error) = take_if(engine, Haste::AtOnce, is_due) {
        tracing::warn!(%error, "no checkpoint of the hash index could be written; the next open takes longer");
    }
}

/// Bytes a checkpoint taken now would have, about.
fn expected_bytes(engine: &Engine) -> u64 {
    let filter = engine.checkpoints.filter().map_or(0, |filter| filter.bytes());
    engine.hash_index.image_bytes() + filter
}

/// Whether so much was written to the log that the next checkpoint is due.
fn is_due(engine: &Engine, newest: Option<&Newest>) -> bool {
    let wanted = engine.options.tuning.checkpoint_log_bytes;
    if wanted == 0 {
        return false;
    }
    let ring = engine.log.segments.capacity_bytes();
    let every = |least: u64| wanted.max(least).min(ring / RING_PART);
    match newest {
        None => {
            let applied = engine.checkpoints.applied_bytes();
            applied >= every(0) || expected_bytes(engine) >= FIRST_BYTES
        }
        Some(newest) => {
            let least = newest.file_bytes * LOG_PER_CHECKPOINT;
            let segments = &engine.log.segments;
            let files_bytes = u64::from(segments.created()) * segments.segment_bytes();
            let waits = || engine.dead_log_behind_checkpoint_bytes() > least.max(files_bytes / LOG_PER_WAITING);
            engine.checkpoints.behind_bytes(newest) >= every(least) || (engine.log_crowds_device() && waits())
        }
    }
}

/// Takes a checkpoint, if it is still due when earlier ones are done. Returns whether it did: not
/// before the hash index is filled, nor if nothing was ever committed.
///
/// # Errors
/// [`Error::OutOfSpace`] if the device is nearly full, errors of the device, or those of persisting
/// the index.
pub fn take_if(engine: &Engine, haste: Haste, is_wanted: impl FnOnce(Option<&Newest>) -> bool) -> Result<bool> {
    engine.checkpoints.take_next(|newest| {
        if !is_wanted(newest) {
            return Ok(None);
        }
        take(engine, haste).inspect_err(|_| drop(engine.flash_disk.remove(Path::new(NEW_FILE))))
    })
}

fn take(engine: &Engine, haste: Haste) -> Result<Option<Newest>> {
    let checkpoints = &engine.checkpoints;
    // First: later records may or may not be in the copies, and are looked up in the log when the
    // checkpoint is loaded.
    let begun_seq = engine.log.applied_seq();
    let applied_bytes = checkpoints.applied_bytes();
    // After it: so it has every key that was elsewhere as of then, and the hash index is filled.
    let Some(filter) = checkpoints.filter() else {
        return Ok(None);
    };
    // After it: so it covers the records of all commits up to then.
    let generation_max = engine.log.segments.last_generation();
    if begun_seq == 0 {
        return Ok(None);
    }
    check_room(engine)?;
    let disk = &*engine.flash_disk;
    let mut sink = Sink::create(disk, engine.options.tuning.direct_io)?;
    let rate = (haste == Haste::Gently).then_some(GENTLE_BYTES_PER_SECOND);
    let mut bucket = Bucket::per_second(rate);
    let written = sink.write_contents(&engine.hash_index, &filter, |bytes| {
        engine.log.writer.check()?;
        bucket.wait(bytes as u64, || engine.log.is_closing());
        if haste == Haste::Gently && engine.log.is_closing() {
            return Err(Error::Unavailable("the store is closed"));
        }
        Ok(())
    });
    let persisted = written.and_then(|filter_layers| {
        let ended_seq = engine.log.committed_seq();
        unless(Mutation::CheckpointPersisted, || engine.persist_index(ended_seq))?;
        Ok((filter_layers, ended_seq))
    });
    let outcome = persisted.and_then(|(filter_layers, ended_seq)| {
        let (partitions, buckets_min) = engine.hash_index.shape();
        // Within the limits of its configuration.
        let header = Header {
            store_id: engine.manifest.store_id,
            segment_bytes: engine.log.segments.segment_bytes(),
            partitions: partitions as u32,
            buckets_min: buckets_min as u32,
            begun_seq,
            ended_seq,
            generation_max,
            filter_layers,
            // After the copies: slots evicted before this are missing in them.
            was_crowded: engine.hash_index.gave_slots_up(),
            file_bytes: 0,
        };
        sink.finish(&header)
    });
    checkpoints.wrote(sink.written_bytes());
    let file_bytes = outcome?;
    disk.rename(Path::new(NEW_FILE), Path::new(FILE))
        .and_then(|()| disk.sync_dir(Path::new("")))
        .map_err(|error| Error::io_on(Tier::Flash, "name the checkpoint of the hash index", &error))?;
    tracing::debug!(bytes = file_bytes, "wrote a checkpoint of the hash index");
    Ok(Some(Newest {
        begun_seq,
        file_bytes,
        behind_bytes: 0,
        applied_bytes,
    }))
}

/// The last room on a device is the index's and the log's.
fn check_room(engine: &Engine) -> Result<()> {
    let expected = expected_bytes(engine);
    let available = engine
        .flash_disk
        .available_bytes()
        .map_err(|error| Error::io("ask for the room on the flash device", &error))?;
    if available < 2 * expected + MEMTABLES_LEFT * engine.options.tuning.memtable_bytes {
        let reason =
            format!("a checkpoint of {expected} bytes would leave too little of the {available} bytes that are left");
        return Err(Error::no_room(Tier::Flash, reason));
    }
    Ok(())
}
