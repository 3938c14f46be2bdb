//! The operating system's clock, for what is dated for people. Nothing that must be right depends on it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970; 0 if the clock is set before that.
pub fn unix_seconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs())
}
