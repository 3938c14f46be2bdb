//! Moves queued small values back to the log.
//!
//! A move is a record like any other: it holds the value, and counts only if the entry still has
//! the version that moved. Until it is applied the value's old place serves reads. So nothing here
//! has to be ordered with anything (docs/durability.md, section 5).
//!
//! On failure: the value stays where it is.

use crate::{
    Error,
    engine::Engine,
    log::move_queue::Moving,
    maintenance::moves::{self, commit_bytes},
    metrics::{bucket::Bucket, count},
    ordered_index::Home,
};

/// Moves queued values, a commit at a time, while the log has room to spare. The others stay
/// queued.
pub fn move_waiting(engine: &Engine, budget: &mut Bucket) {
    let cache = &engine.flash_cache;
    let queue = &cache.small.queue;
    queue.applied(engine.log.applied_seq());
    while engine.log.has_room_for_moves() {
        let taken = queue.take(commit_bytes(engine) as u64);
        if taken.is_empty() {
            return;
        }
        let (moving, others): (Vec<_>, Vec<_>) = taken.into_iter().partition(|value| may_move(engine, value, budget));
        queue.forget(&others);
        let done = moves::commit_taken(engine, queue, &moving);
        let (moved, left) = moving.split_at(done.moves);
        count(&cache.counters.moved, moved.len() as u64);
        count(
            &cache.counters.moved_bytes,
            moved.iter().map(|value| value.value.len() as u64).sum(),
        );
        count(&cache.moved_log_bytes, done.bytes as u64);
        if let Err(error) = done.outcome {
            tracing::debug!(%error, "small values stay in their blocks");
            if matches!(error, Error::OutOfSpace { .. }) {
                count(&cache.counters.dropped_no_room, left.len() as u64);
            }
        }
    }
}

/// Whether a value is still what its entry points to, and there is budget for it.
fn may_move(engine: &Engine, value: &Moving, budget: &mut Bucket) -> bool {
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
