//! Latencies of one kind of operation: an HdrHistogram during the run, percentiles in the results.
//!
//! In nanoseconds, with three significant digits; times beyond an hour count as an hour.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::time::Duration;

const HOUR_NS: u64 = 3_600_000_000_000;

/// Percentiles that go into the results.
const PERCENTILES: [f64; 12] = [1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 100.0];

/// Latencies while they are recorded.
#[derive(Debug, Clone)]
pub struct Latencies {
    histogram: Histogram<u64>,
    /// Exact, unlike the histogram.
    sum_ns: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, HOUR_NS, 3).expect("the bounds are constants that fit");
        Self { histogram, sum_ns: 0 }
    }
}

impl Latencies {
    /// Records one.
    pub fn record(&mut self, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(HOUR_NS).min(HOUR_NS);
        self.histogram.saturating_record(ns.max(1));
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Adds the latencies of another.
    pub fn add(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("both have the same bounds");
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    /// The summary for the results.
    pub fn summary(&self) -> LatencySummary {
        let count = self.histogram.len();
        LatencySummary {
            count,
            mean_us: self.sum_ns as f64 / count.max(1) as f64 / 1e3,
            deviation_us: if count == 0 { 0.0 } else { self.histogram.stdev() / 1e3 },
            percentiles_us: PERCENTILES
                .iter()
                .map(|&percentile| (percentile, self.histogram.value_at_percentile(percentile) as f64 / 1e3))
                .collect(),
        }
    }
}

/// Latencies in the results, in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    /// How many.
    pub count: u64,
    /// Mean.
    pub mean_us: f64,
    /// Standard deviation.
    pub deviation_us: f64,
    /// Percentile and its latency.
    pub percentiles_us: Vec<(f64, f64)>,
}

impl LatencySummary {
    /// The latency at a percentile that is in the results.
    pub fn percentile_us(&self, wanted: f64) -> Option<f64> {
        let found = self
            .percentiles_us
            .iter()
            .find(|(percentile, _)| (percentile - wanted).abs() < 1e-9);
        found.map(|(_, latency)| *latency)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn percentiles_are_those_of_what_was_recorded() {
        let mut latencies = Latencies::default();
        for ms in 1..=1000 {
            latencies.record(Duration::from_millis(ms));
        }
        let summary = latencies.summary();
        assert_eq!(summary.count, 1000);
        assert!((summary.mean_us - 500_500.0).abs() < 1.0, "{summary:?}");
        let median = summary.percentile_us(50.0).unwrap();
        assert!((median - 500_000.0).abs() / 500_000.0 < 0.002, "{median}");
        assert!(summary.percentile_us(100.0).unwrap() >= 999_000.0);
        assert_eq!(summary.percentile_us(33.0), None);
    }

    #[test]
    fn extremes_are_kept_within_bounds() {
        let mut latencies = Latencies::default();
        latencies.record(Duration::ZERO);
        latencies.record(Duration::from_secs(1 << 40));
        let mut sum = Latencies::default();
        sum.add(&latencies);
        assert_eq!(sum.summary().count, 2);
        assert!((sum.summary().mean_us - 1.8e9).abs() < 1.0);
    }
}
