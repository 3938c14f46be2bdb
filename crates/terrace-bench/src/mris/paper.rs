//! The paper's figures, from `workloads/mris-paper.toml`, and its equations 1 to 5.

use crate::{
    Outcome,
    harness::{setup::Setup, workload::read_toml},
};
use serde::Deserialize;

/// All figures in the paper.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// Section 4.2.
    pub figure8: Figure8,
    /// Section 4.3.
    pub figure9: Figure9,
    /// Speed-ups in operations.
    pub table2: Speedups,
    /// Costs of reads.
    pub table3: Costs,
    /// Speed-ups in bytes.
    pub table4: Speedups,
}

/// Section 4.2: image requests to Wikipedia.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure8 {
    /// Place in the paper.
    pub source: String,
    /// Requests over 4 up to 64 KB.
    pub between_4k_and_64k_percent: f64,
    /// Requests up to 128 KB.
    pub up_to_128k_percent: f64,
    /// Their traffic.
    pub up_to_128k_traffic_percent: f64,
    /// Requests of 8 KB images over those of 128 KB images.
    pub ratio_8k_to_128k: f64,
}

/// Section 4.3: insertion.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure9 {
    /// Place in the paper.
    pub source: String,
    hdd_random_mb_per_second: f64,
    ssd_over_hdd_random: f64,
    hybrid_over_hdd_random: f64,
    ssd_over_hdd_sequential: f64,
    hybrid_over_hdd_sequential: f64,
    ssd_sequential_over_random: f64,
    hybrid_sequential_over_random: f64,
    hdd_sequential_over_random: f64,
}

impl Figure9 {
    /// MB/s of random insertion.
    pub fn random(&self, setup: Setup) -> f64 {
        self.hdd_random_mb_per_second
            * match setup {
                Setup::Ssd => self.ssd_over_hdd_random,
                Setup::Hybrid => self.hybrid_over_hdd_random,
                Setup::Hdd => 1.0,
            }
    }

    /// MB/s of sequential insertion. The text also gives ratios to HDD, which agree within
    /// rounding.
    pub fn sequential(&self, setup: Setup) -> f64 {
        self.random(setup)
            * match setup {
                Setup::Ssd => self.ssd_sequential_over_random,
                Setup::Hybrid => self.hybrid_sequential_over_random,
                Setup::Hdd => self.hdd_sequential_over_random,
            }
    }

    /// Sequential insertion relative to HDD, from the text.
    pub fn sequential_over_hdd(&self, setup: Setup) -> f64 {
        match setup {
            Setup::Ssd => self.ssd_over_hdd_sequential,
            Setup::Hybrid => self.hybrid_over_hdd_sequential,
            Setup::Hdd => 1.0,
        }
    }
}

/// Tables 2 and 4: speed-ups over HDD.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Speedups {
    /// Place in the paper.
    pub source: String,
    /// Small reads per large read.
    pub ratios: Vec<u64>,
    /// Speed-up of the setup SSD.
    pub ssd: Vec<f64>,
    /// Speed-up of the setup Hybrid.
    pub hybrid: Vec<f64>,
}

impl Speedups {
    /// The speed-up of a setup at a ratio, if it is in the table.
    pub fn at(&self, setup: Setup, ratio: u64) -> Option<f64> {
        let column = self.ratios.iter().position(|&found| found == ratio)?;
        match setup {
            Setup::Ssd => self.ssd.get(column).copied(),
            Setup::Hybrid => self.hybrid.get(column).copied(),
            Setup::Hdd => Some(1.0),
        }
    }
}

/// Table 3: what a read costs, in microseconds.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// Place in the paper, or method.
    pub source: String,
    /// Small, from the SSD: t_SF.
    pub small_ssd_us: f64,
    /// Large, from the SSD: t_LF.
    pub large_ssd_us: f64,
    /// Small, from the disk: t_SH.
    pub small_hdd_us: f64,
    /// Large, from the disk: t_LH.
    pub large_hdd_us: f64,
}

impl Costs {
    /// Microseconds of `ratio` small reads and a large one: the denominators of equations 1 to 3.
    pub fn cycle_us(&self, setup: Setup, ratio: f64) -> f64 {
        let (small, large) = match setup {
            Setup::Ssd => (self.small_ssd_us, self.large_ssd_us),
            Setup::Hybrid => (self.small_ssd_us, self.large_hdd_us),
            Setup::Hdd => (self.small_hdd_us, self.large_hdd_us),
        };
        small * ratio + large
    }

    /// Reads per second: equations 1 (SSD), 2 (HDD) and 3 (Hybrid).
    pub fn reads_per_second(&self, setup: Setup, ratio: f64) -> f64 {
        1e6 * (ratio + 1.0) / self.cycle_us(setup, ratio)
    }
}

/// Mean bytes of a read: equation 4. With the reads per second it gives equation 5.
pub fn mean_read_bytes(small: f64, large: f64, ratio: f64) -> f64 {
    small + (large - small) / (ratio + 1.0)
}

impl Paper {
    /// The built-in figures.
    pub fn published() -> Outcome<Self> {
        read_toml(None, include_str!("../../workloads/mris-paper.toml"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn equations_give_what_the_issue_and_the_paper_say() {
        let paper = Paper::published().unwrap();
        let hybrid = paper.table3.reads_per_second(Setup::Hybrid, 16.0);
        assert!((hybrid - 277.3).abs() < 0.1, "{hybrid}");
        let by_5 = 1e6 * (16.0 * 8192.0 + 131_072.0) / (1482.0 * 16.0 + 37599.0);
        assert!((hybrid * mean_read_bytes(8192.0, 131_072.0, 16.0) - by_5).abs() < 1e-6);
        // The regression agrees with table 2 as well as the paper says: SSD relative to HDD at
        // ratio 4.
        let speedup = paper.table3.reads_per_second(Setup::Ssd, 4.0) / paper.table3.reads_per_second(Setup::Hdd, 4.0);
        assert!(
            (speedup / paper.table2.at(Setup::Ssd, 4).unwrap() - 1.0).abs() < 0.3,
            "{speedup}"
        );
    }

    #[test]
    fn tables_are_whole() {
        let paper = Paper::published().unwrap();
        for table in [&paper.table2, &paper.table4] {
            assert_eq!((table.ratios.len(), table.ssd.len(), table.hybrid.len()), (7, 7, 7));
        }
        assert_eq!(paper.table4.at(Setup::Hybrid, 64), Some(5.86));
        assert_eq!(paper.table2.at(Setup::Hybrid, 3), None);
    }

    /// The text gives the sequential figures in two ways; ours are computed from one and must agree
    /// with the other.
    #[test]
    fn figure_9_agrees_with_itself() {
        let figure9 = Paper::published().unwrap().figure9;
        for setup in Setup::ALL {
            let built = figure9.sequential(setup) / figure9.sequential(Setup::Hdd);
            assert!(
                (built / figure9.sequential_over_hdd(setup) - 1.0).abs() < 0.02,
                "{setup:?} {built}"
            );
        }
    }
}
