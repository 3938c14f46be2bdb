//! Reads of small values from their blocks: hot ones are promoted to the log
//! (`flash_cache::small`).

use crate::{
    engine::Engine,
    flash_cache::COPY_BYTES_MIN,
    key_hash,
    log::{
        format::Extent,
        move_queue::{Enqueued, Moving},
    },
    metrics::count,
    ordered_index::Entry,
};
use bytes::Bytes;

/// Whether the value of an extent may be promoted to the log, rather than copied.
pub fn may_move_to_log(engine: &Engine, key: &[u8], extent: &Extent) -> bool {
    extent.extent_bytes < COPY_BYTES_MIN
        && extent.length < engine.placement.large_from(key)
        && engine.flash_cache.small.queue.is_on()
        && !engine.options.read_only
}

/// Counts a read of a small value from its block, and queues it for promotion if it is hot.
pub fn small_read(engine: &Engine, key: &[u8], entry: &Entry, value: &Bytes) {
    let (cache, hash) = (&engine.flash_cache, key_hash(key));
    if !cache.small.read(hash, engine.small_reads()) {
        return;
    }
    match cache.small.enqueue(moving(Bytes::copy_from_slice(key), entry, value)) {
        (Enqueued::Waits(_), true) => cache.wake(),
        (Enqueued::Waits(_), false) => cache.images.rouse(),
        (Enqueued::Full, _) => count(&cache.counters.dropped_full, 1),
        (Enqueued::Already, _) => {}
    }
}

/// A value that was read, to be written to the log again.
pub fn moving(key: Bytes, entry: &Entry, value: &Bytes) -> Moving {
    Moving {
        hash: key_hash(&key),
        key,
        version: entry.version.0,
        attributes: entry.attributes.clone(),
        value: value.clone(),
        checksum: entry.checksum,
        place: None,
    }
}
