//! Write stalls: where writers of large values wait for room, and the state of block GC that they
//! check.
//!
//! There are two reasons to wait. Blocks exceed their limit (`hold_back`): a writer waits before it
//! has reserved anything, until the space is within its limit again, until block GC reports that it
//! can do nothing, or for ten seconds in which nothing was moved or deleted. And there is no room
//! (`find_room`): a writer waits while an operation that frees room is under way, retries at each
//! progress, and is refused immediately if there is none.
//!
//! Freed room passes through these states, each entered before the previous one is left: a range
//! deletion that is not swept; a commit that is not applied; a block that is being drained; a block
//! without live values; a block that is being deleted, which leaves that state only after its room
//! was given back; where the log is on the same device, a segment with next to no live values, and
//! one that is free; a device with room for the reserve, which is about to be restored. So a writer
//! that checks them in this order and then tries to get room misses nothing: space that had left a
//! state before its check is found in a later one, or is free.
//!
//! Invariant: whatever the threads do or fail to do, a writer proceeds. A bound on space is not
//! worth a deadlock.

use crate::{
    Result, Tier,
    blocks::gc::Bounds,
    engine::Engine,
    metrics::stalls::{Patience, StallReason},
};
use std::time::{Duration, Instant};

/// How long a writer waits while nothing is moved or deleted.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a writer waits in total for room that deletions free, while other writers take it.
const ROOM_PATIENCE: Duration = Duration::from_secs(30);
/// Interval at which it checks all blocks while there is no progress: a reader may come to hold
/// a block that was about to be freed.
const BLOCKS_STEP: Duration = Duration::from_millis(200);
/// Why a writer proceeds immediately.
const NOTHING_TO_RECLAIM: &str =
    "nothing can be reclaimed now: it is held by snapshots or readers, being written, or damaged";

fn is_over(engine: &Engine) -> bool {
    Bounds::of(&engine.options).holds(&engine.large.totals(), engine.block_gc.finding().tolerated_bytes)
}

/// Called before large values are written: waits while blocks exceed their limit and block GC can
/// help.
pub fn hold_back(engine: &Engine) {
    if !is_over(engine) {
        return;
    }
    let gc = &engine.block_gc;
    let mut patience = Patience::new(PATIENCE, gc.progress_so_far());
    let held = engine.log.stall(StallReason::BlockSpace, &gc.changed, || {
        if !is_over(engine) {
            return Ok(Some(None));
        }
        if gc.finding().is_stuck {
            return Ok(Some(Some(NOTHING_TO_RECLAIM)));
        }
        let is_late = patience.is_over(gc.progress_so_far());
        Ok(is_late.then_some(Some("cleaning makes no progress")))
    });
    // If the store stops, the write itself fails.
    if let Ok(Some(why)) = held {
        gc.let_go(why);
    }
}

/// Retries to get room for a large value, whenever something was moved or deleted, as long as an
/// operation that frees room is under way.
///
/// # Errors
/// The error of the last attempt, or that of a closing store.
pub fn find_room<T>(engine: &Engine, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let mut attempt = || engine.log.refusal(Tier::Large).map_or_else(&mut attempt, Err);
    match attempt() {
        Err(error) if error.is_out_of_space_on(Tier::Large) => {}
        outcome => return outcome,
    }
    let gc = &engine.block_gc;
    let give_up = Instant::now() + ROOM_PATIENCE;
    let mut patience = Patience::new(PATIENCE, gc.progress_so_far());
    let mut last_look: Option<(u64, Instant)> = None;
    engine.log.stall(StallReason::BlockRoom, &gc.changed, || {
        let progress = gc.progress_so_far();
        if last_look.is_some_and(|(seen, at)| seen == progress && at.elapsed() < BLOCKS_STEP) {
            return Ok(None);
        }
        // Before the attempt: see the module.
        let is_coming = is_room_coming(engine);
        let outcome = match attempt() {
            Err(error) if error.is_out_of_space_on(Tier::Large) => {
                if !is_coming || Instant::now() >= give_up || patience.is_over(progress) {
                    return Err(error);
                }
                Ok(None)
            }
            outcome => outcome.map(Some),
        };
        last_look = Some((progress, Instant::now()));
        outcome
    })
}

/// Whether any deleted data will soon free room. Checks the states in their order.
fn is_room_coming(engine: &Engine) -> bool {
    if engine.log.index_full.reason().is_some() {
        // No block is freed before the index has persisted that it is dead.
        return false;
    }
    if engine.log.ranges.count() > 0 {
        return true;
    }
    let deleted_seq = engine.log.committed_seq();
    let is_applied = || Ok(engine.log.applied_seq() >= deleted_seq);
    let is_stopping = || engine.log.is_closing() || engine.log.writer.has_failed();
    // An error means that the store stops, which ends the wait.
    engine.log.wait_for(is_applied).is_ok()
        && (engine.blocks_give_room(is_stopping)
            || (engine.log.reserve.is_shared() && engine.log_gives_room())
            || (engine.log.segments.beyond_capacity() == 0 && engine.log.reserve.is_coming()))
}
