//! What becomes of large values while the large tier is full: they go to the flash log, or wait for room that deletions are about to give
//! back.
//!
//! A value may go to the log up to a quarter of a segment, which is as long as a value in the log may be by the rules anyway, and while
//! recycling has nothing to do: small values, which have nowhere else to go, keep what it keeps free. Recycling moves it
//! to the large tier like any other value of the log, once there is room. The other way round the tiers help each other
//! all the time: that is destaging.

use crate::{
    Error, Result, Tier, engine::Engine, flash_cache::lent_by_copies, log::segments::RESERVED_SEGMENTS,
    maintenance::log_gc::wanted_free,
};
use std::sync::atomic::Ordering;

/// Whether the log takes values of so many bytes in all.
fn takes(engine: &Engine, bytes: u64) -> bool {
    let segments = &engine.log.segments;
    let available = segments.available();
    let soon = available + lent_by_copies(engine);
    bytes <= segments.segment_bytes() / 4 && soon > wanted_free(segments) && available > RESERVED_SEGMENTS + 1
}

/// Places a value of so many bytes by `attempt`. `None` if it is to go to the log instead, with `beside` further bytes that go there in the
/// same commit.
///
/// # Errors
/// Those of `attempt`, if the value cannot go to the log and no room comes.
pub fn place<T>(engine: &Engine, bytes: u64, beside: u64, mut attempt: impl FnMut() -> Result<T>) -> Result<Option<T>> {
    let seen = engine.cleaning.progress_so_far();
    let error = match attempt() {
        Ok(placed) => return Ok(Some(placed)),
        Err(error) => error,
    };
    match to_flash(engine, error, bytes, beside) {
        Ok(()) => Ok(None),
        Err(error) => engine.cleaning.try_again(engine, seen, error, attempt).map(Some),
    }
}

/// Decides about a value of so many bytes for which `error` says that it could not be placed. With `beside` further bytes that
/// go to the log in the same commit.
///
/// # Errors
/// `error`, if the value cannot go to the log instead.
fn to_flash(engine: &Engine, error: Error, bytes: u64, beside: u64) -> Result<()> {
    if !error.is_out_of_space_on(Tier::Large) || !takes(engine, bytes + beside) {
        return Err(error);
    }
    let metrics = &engine.metrics;
    metrics.fallback_bytes.fetch_add(bytes, Ordering::Relaxed);
    if metrics.fallback_values.fetch_add(1, Ordering::Relaxed) == 0 {
        tracing::warn!(%error, "large values go to the flash log while that has room");
    }
    Ok(())
}
