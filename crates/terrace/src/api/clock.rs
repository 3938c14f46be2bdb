//! The clock of a store and of what is built on it: the operating system's, or one that a test
//! sets.
//!
//! Invariant: in the engine only expiry uses the time of day. Durations are measured by the
//! monotonic clock.
//!
//! On failure: a clock before 1970 stands at its beginning, one after the year 9999 at its end, and
//! the log says so once: whatever writes dates has no others, and some of it panics.

use std::{
    fmt,
    sync::{Arc, Once},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// No object expires at this time or later.
pub const NEVER_MS: u64 = u64::MAX;

/// The last millisecond of the year 9999.
const LATEST_MS: u64 = 253_402_300_799_999;

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

    /// Its present time, or the nearest one that dates have ([`Clock::dated`]).
    #[must_use]
    pub fn now(&self) -> SystemTime {
        static WARNED: Once = Once::new();
        let now = (self.0)();
        let dated = Self::dated(now);
        if dated != now {
            WARNED.call_once(|| {
                tracing::warn!(
                    "the clock is set to a time before 1970 or after the year 9999: the nearest of them is used; set it right"
                );
            });
        }
        dated
    }

    /// The nearest time from 1970 to the year 9999: those that dates in texts and headers have.
    #[must_use]
    pub fn dated(time: SystemTime) -> SystemTime {
        time.clamp(UNIX_EPOCH, Self::of_ms(LATEST_MS))
    }

    /// The time so many milliseconds after 1970, at most the last one of the year 9999.
    #[must_use]
    pub fn of_ms(ms: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(ms.min(LATEST_MS))
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

/// Seconds since 1970, for dates shown to people. No correctness depends on it.
pub fn unix_seconds() -> u64 {
    Clock::default().now_ms() / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: with a clock beyond the dates that texts have, what wrote one panicked.
    #[test]
    fn a_clock_stays_within_dates() {
        const LATE: Duration = Duration::from_millis(LATEST_MS + 1);
        let latest = Clock::of_ms(LATEST_MS);
        for (time, expected) in [
            (UNIX_EPOCH - Duration::from_secs(1), UNIX_EPOCH),
            (UNIX_EPOCH, UNIX_EPOCH),
            (UNIX_EPOCH + LATE, latest),
            (UNIX_EPOCH + LATE * 30, latest),
            (latest, latest),
        ] {
            let clock = Clock::new(move || time);
            assert_eq!((clock.now(), clock.now_ms()), (expected, to_ms(expected)));
        }
        assert_eq!(Clock::of_ms(u64::MAX), latest);
        assert_eq!(to_ms(latest), LATEST_MS);
    }
}
