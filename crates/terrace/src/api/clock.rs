//! The clock of a store and of what is built on it: the operating system's, or one that a test
//! sets.
//!
//! Invariant: in the engine only expiry uses the time of day. Durations are measured by the
//! monotonic clock.
//!
//! On failure: a time before 1970 counts as 1970.

use std::{
    fmt,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

/// No object expires at this time or later.
pub const NEVER_MS: u64 = u64::MAX;

/// Milliseconds since 1970.
pub fn to_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(NEVER_MS - 1)
}

/// The time of day, which expiries are compared with. Clones share it.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> SystemTime + Send + Sync>);

impl Clock {
    /// A clock that calls `now`. It is called often, from many threads, and should be fast.
    pub fn new(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// Its present time.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        (self.0)()
    }

    /// The same in milliseconds since 1970.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        to_ms(self.now())
    }
}

impl Default for Clock {
    /// The operating system's clock.
    fn default() -> Self {
        Self::new(SystemTime::now)
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock").finish_non_exhaustive()
    }
}

/// Seconds since 1970, for dates shown to people; 0 if the clock is before that. No correctness
/// depends on it.
pub fn unix_seconds() -> u64 {
    to_ms(SystemTime::now()) / 1000
}
