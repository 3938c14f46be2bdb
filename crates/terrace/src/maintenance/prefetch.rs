//! The prefetch thread: reads objects from blocks to RAM ahead of readers that read a group in
//! order. `flash_cache::prefetch` decides which, and what happens to them.

use crate::{
    Result,
    blocks::PIECES_PER_READ,
    engine::Engine,
    metrics::count,
    ordered_index::Home,
    read::{Described, find_entry, is_cached},
};

/// Bytes of one read.
const STEP_BYTES: u64 = 1 << 20;

/// The thread: prefetches until the store is closed.
pub fn run(engine: &Engine) {
    let mut seen = 0;
    while !engine.log.is_closed() {
        let Some(key) = engine.flash_cache.next_ahead(&mut seen) else {
            continue;
        };
        if let Err(error) = read_one(engine, &key) {
            // A caller that reads it will get the error.
            tracing::debug!(%error, "an object could not be read ahead");
        }
    }
}

fn read_one(engine: &Engine, key: &[u8]) -> Result<()> {
    // It may have been written just now, and not be applied yet.
    let Some(Described { entry, .. }) = find_entry(engine, key)? else {
        return Ok(());
    };
    let Home::Block(extent) = entry.home else {
        return Ok(());
    };
    let Some(reader) = engine.large.open_ahead(key, &extent)? else {
        return Ok(());
    };
    let cache = &engine.flash_cache;
    // A reader in order of what it has read before would have all of it read again.
    if is_cached(engine, &reader) || !cache.make_room_ahead(extent.extent_bytes) {
        return Ok(());
    }
    // The bytes are gathered as an image; they are not needed here.
    let first = reader.read_pieces(key, 0..PIECES_PER_READ)?;
    let mut start = first.iter().map(|piece| piece.len() as u64).sum();
    let mut bytes = Vec::new();
    while start < entry.length && !engine.log.is_closing() {
        let end = entry.length.min(start + STEP_BYTES);
        bytes.clear();
        reader.read_range(start..end, &mut bytes)?;
        start = end;
    }
    count(&cache.counters.prefetch_objects, 1);
    count(&cache.counters.prefetch_bytes, entry.length);
    Ok(())
}
