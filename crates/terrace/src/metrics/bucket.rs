//! A token bucket: bytes that may be written in a time, by all writers together.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

/// How often a wait looks whether it is to end.
const STEP: Duration = Duration::from_millis(20);

/// Bytes that are earned as time passes, and saved up to a bound.
#[derive(Debug)]
pub struct Bucket {
    /// Infinite without a limit.
    per_second: f64,
    most: f64,
    /// Below zero for bytes that were written before they were earned.
    left: f64,
    earned_at: Instant,
}

impl Bucket {
    /// For work that is done in one step or not at all, up to this many bytes a day: unused bytes
    /// expire after a day, and the first hour's share is available immediately. `None`: no limit.
    pub fn per_day(bytes: Option<u64>) -> Self {
        let most = bytes.map_or(f64::INFINITY, |bytes| bytes as f64);
        Self::new(most / 86_400.0, most, most / 24.0)
    }

    /// For background work that must not exceed this rate: at most the bytes of one second are
    /// saved up. `None` or 0: no limit.
    pub fn per_second(bytes: Option<u64>) -> Self {
        let rate = bytes
            .filter(|bytes| *bytes > 0)
            .map_or(f64::INFINITY, |bytes| bytes as f64);
        Self::new(rate, rate, 0.0)
    }

    fn new(per_second: f64, most: f64, left: f64) -> Self {
        Self {
            per_second,
            most,
            left,
            earned_at: Instant::now(),
        }
    }

    fn earn(&mut self) {
        let now = Instant::now();
        let seconds = now.duration_since(self.earned_at).as_secs_f64();
        self.earned_at = now;
        self.left = if self.per_second.is_finite() {
            (self.left + self.per_second * seconds).min(self.most)
        } else {
            self.most
        };
    }

    /// Takes this many bytes if they are available.
    pub fn take(&mut self, bytes: u64) -> bool {
        self.earn();
        let may = self.left >= bytes as f64;
        if may {
            self.left -= bytes as f64;
        }
        may
    }

    /// Takes this many bytes, available or not. Returns the time to earn the missing ones.
    pub fn overdraw(&mut self, bytes: u64) -> Duration {
        self.earn();
        self.left -= bytes as f64;
        Duration::try_from_secs_f64(-self.left / self.per_second).unwrap_or(Duration::ZERO)
    }

    /// Takes this many bytes, and waits until they are earned or the wait must end. Returns whether
    /// they are.
    pub fn wait(&mut self, bytes: u64, is_to_end: impl Fn() -> bool) -> bool {
        let until = Instant::now() + self.overdraw(bytes);
        while !is_to_end() {
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return true;
            }
            sleep(rest.min(STEP));
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_s_share_of_a_day_is_there_at_once_and_no_more() {
        let mut bucket = Bucket::per_day(Some(24_000));
        assert!(bucket.take(600) && bucket.take(400) && !bucket.take(100));
        bucket.earned_at -= Duration::from_secs(3600);
        assert!(bucket.take(1000) && !bucket.take(100));
        bucket.earned_at -= Duration::from_secs(30 * 86_400);
        assert!(
            bucket.take(24_000) && !bucket.take(100),
            "what a day did not use is lost"
        );
        assert!(Bucket::per_day(None).take(u64::MAX));
    }

    #[test]
    fn what_is_written_early_is_waited_for() {
        let mut bucket = Bucket::per_second(Some(1000));
        let wait = bucket.overdraw(5000);
        // However long this thread stood still, a second's bytes at most were there.
        assert!((4..=5).contains(&wait.as_secs()), "{wait:?}");
        bucket.earned_at -= Duration::from_secs(60);
        assert_eq!(bucket.overdraw(1000), Duration::ZERO, "a second's bytes were saved up");
        assert!(bucket.overdraw(5000) > Duration::ZERO);
        for none in [None, Some(0)] {
            assert_eq!(Bucket::per_second(none).overdraw(u64::MAX), Duration::ZERO);
        }
    }
}
