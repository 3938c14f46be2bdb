//! A lock-free exponentially weighted moving average.

use std::sync::atomic::{AtomicU64, Ordering};

/// A mean of which the latest value is one part in `PARTS`.
#[derive(Debug, Default)]
pub struct MovingAverage<const PARTS: u64>(AtomicU64);

impl<const PARTS: u64> MovingAverage<PARTS> {
    /// Takes note of a value. Values that come at the same moment may lose one another; the mean is
    /// none the worse for it.
    pub fn add(&self, value: u64) {
        let mean = self.get();
        self.0.store(mean - mean / PARTS + value / PARTS, Ordering::Relaxed);
    }

    /// The mean; 0 before there was a value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Forgets all values.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_what_comes_and_forgets() {
        let mean = MovingAverage::<8>::default();
        mean.add(800);
        assert_eq!(mean.get(), 100);
        (0..100).for_each(|_| mean.add(800));
        assert!((700..=800).contains(&mean.get()), "{}", mean.get());
        mean.reset();
        assert_eq!(mean.get(), 0);
    }
}
