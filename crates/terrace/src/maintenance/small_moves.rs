//! Moves small values that wait back to the log.
//!
//! A move is a record like any other: it holds the value, and counts only if the entry still has
//! the version that moved. Until it is applied the value's old place answers. So nothing here has
//! to be ordered with anything (docs/durability.md, section 5).
//!
//! On failure: the value stays where it is.

use crate::{
    Error, Result,
    engine::Engine,
    flash_cache::{count, small::SmallValue},
    log::commit::Committer,
    maintenance::moves::{self, Moved, commit_bytes},
    metrics::bucket::Bucket,
    ordered_index::Home,
};
use std::sync::Arc;

/// Bytes of one commit of moves.
const COMMIT_BYTES: usize = 256 << 10;

/// Moves what waits, a commit at a time, as long as the log has room to spare. What it has none for
/// waits on.
pub fn move_waiting(engine: &Engine, budget: &mut Bucket) {
    let small = &engine.flash_cache.small;
    small.applied(engine.log.applied_seq());
    while engine.log.has_room_for_moves() {
        let taken = small.take(COMMIT_BYTES.min(commit_bytes(engine)));
        if taken.is_empty() {
            return;
        }
        let (moving, others): (Vec<_>, Vec<_>) = taken.into_iter().partition(|value| may_move(engine, value, budget));
        others.iter().for_each(|value| small.forget(value));
        if let Err(error) = commit(engine, moving) {
            tracing::debug!(%error, "small values stay in their blocks");
        }
    }
}

/// Whether a value is still what its entry points to, and there is budget for it.
fn may_move(engine: &Engine, value: &SmallValue, budget: &mut Bucket) -> bool {
    // Taken before the key is looked up.
    let presence = engine.presence();
    let current = engine.index.get(&value.key).ok().flatten();
    let is_current = current
        .is_some_and(|entry| entry.version.0 == value.version && matches!(entry.home, Home::Block(_)))
        && presence.dead(&value.key, value.version, &value.attributes).is_none();
    if is_current && !budget.take(value.value.len() as u64) {
        count(&engine.flash_cache.counters.dropped_budget, 1);
        return false;
    }
    is_current
}

fn commit(engine: &Engine, mut moving: Vec<Arc<SmallValue>>) -> Result<()> {
    let cache = &engine.flash_cache;
    let values: Vec<_> = moving.iter().map(|value| moved(value)).collect();
    let done = moves::commit(
        engine,
        Committer::Background,
        values.iter().copied().map(Moved::to_flash),
    );
    drop(values);
    let others = moving.split_off(done.moves);
    if let Some(seq) = done.last_seq {
        let bytes = moving.iter().map(|value| value.value.len() as u64).sum();
        count(&cache.counters.moved, moving.len() as u64);
        count(&cache.counters.moved_bytes, bytes);
        count(&cache.moved_log_bytes, done.bytes as u64);
        cache.small.committed(seq, moving);
    }
    if matches!(done.outcome, Err(Error::OutOfSpace { .. })) {
        count(&cache.counters.dropped_no_room, others.len() as u64);
    }
    others.iter().for_each(|value| cache.small.forget(value));
    done.outcome
}

fn moved(value: &SmallValue) -> Moved<'_> {
    Moved {
        key: &value.key,
        attributes: &value.attributes,
        value: &value.value,
        version: value.version,
        checksum: value.checksum,
    }
}
