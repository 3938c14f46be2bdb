//! Large values that go to the flash log because the large tier is full.
//!
//! A value may do so up to a quarter of a segment, which is as long as a value in the log may be by the rules anyway, and while
//! recycling has nothing to do: small values, which have nowhere else to go, keep what it keeps free. Recycling moves it
//! to the large tier like any other value of the log, once there is room. The other way round the tiers help each other
//! all the time: that is destaging.

use crate::{
    Error, Result, Tier, engine::Engine, flash::segments::RESERVED_SEGMENTS, heat::lent_by_copies, recycle::wanted_free,
};
use std::sync::atomic::Ordering;

/// Whether the log takes values of so many bytes in all.
fn takes(engine: &Engine, bytes: u64) -> bool {
    let segments = &engine.log.segments;
    let available = segments.available();
    let soon = available + lent_by_copies(engine);
    bytes <= segments.segment_bytes() / 4 && soon > wanted_free(segments) && available > RESERVED_SEGMENTS + 1
}

/// Decides about a value of so many bytes for which `error` says that it could not be placed. With `beside` further bytes that
/// go to the log in the same commit.
///
/// # Errors
/// `error`, if the value cannot go to the log instead.
pub fn to_flash(engine: &Engine, error: Error, bytes: u64, beside: u64) -> Result<()> {
    let is_full = matches!(error, Error::OutOfSpace { tier: Tier::Large, .. });
    if !is_full || !takes(engine, bytes + beside) {
        return Err(error);
    }
    let metrics = &engine.metrics;
    metrics.fallback_bytes.fetch_add(bytes, Ordering::Relaxed);
    if metrics.fallback_values.fetch_add(1, Ordering::Relaxed) == 0 {
        tracing::warn!(%error, "large values go to the flash log while that has room");
    }
    Ok(())
}
