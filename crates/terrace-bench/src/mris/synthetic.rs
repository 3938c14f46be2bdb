//! Image requests with the shape the paper publishes for Wikipedia in January 2012 (section 4.2,
//! figure 8).
//!
//! Published are three sums: 81.58 % of requests over 4 up to 64 KB, 94.57 % up to 128 KB, and
//! those 2.96 % of the traffic; and that 8 KB images are asked for 9.5 times as often as 128 KB
//! ones (section 4.4). How the sums divide into single sizes is our choice. Sizes over 128 KB fall
//! off geometrically per doubling; the slope is solved for, so that the traffic comes out. Within a
//! size, lengths are uniform. The generator writes lines of the pagecounts format, so that what is
//! counted goes through the parser.

use super::{pagecounts::EXPONENT_MAX, paper::Figure8};
use crate::Outcome;
use rand::{Rng, SeedableRng, distr::Distribution, distr::weighted::WeightedIndex};
use rand_chacha::ChaCha8Rng;
use std::io::Write;

/// Of requests up to 4 KB: 1, 2 and 4 KB.
const UP_TO_4K: [f64; 3] = [0.2, 0.3, 0.5];
/// Of requests over 8 up to 64 KB: 16, 32 and 64 KB.
const OVER_8K: [f64; 3] = [0.49, 0.32, 0.19];
/// Share of all requests that is up to 4 KB.
const UP_TO_4K_SHARE: f64 = 0.1;
/// First exponent over 128 KB.
const TAIL: usize = 18;

/// The generator.
#[derive(Debug)]
pub struct Synthetic {
    random: ChaCha8Rng,
    exponents: WeightedIndex<f64>,
    next: u64,
}

/// Mean length in a bin, lengths being uniform in it.
fn mean_bytes(exponent: usize) -> f64 {
    0.75 * 2.0_f64.powi(exponent as i32)
}

/// Weights of the tail, of sum 1, each this multiple of the one before.
fn tail(slope: f64) -> Vec<f64> {
    let weights: Vec<f64> = (TAIL..=EXPONENT_MAX)
        .map(|exponent| slope.powi((exponent - TAIL) as i32))
        .collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

fn tail_mean_bytes(slope: f64) -> f64 {
    tail(slope)
        .iter()
        .enumerate()
        .map(|(index, weight)| weight * mean_bytes(TAIL + index))
        .sum()
}

/// The probability of each bin.
fn shares(published: &Figure8) -> Outcome<Vec<f64>> {
    let (middle, small) = (
        published.between_4k_and_64k_percent / 100.0,
        published.up_to_128k_percent / 100.0,
    );
    let at_128k = small - middle - UP_TO_4K_SHARE;
    let at_8k = published.ratio_8k_to_128k * at_128k;
    let mut shares = vec![0.0; EXPONENT_MAX + 1];
    for (index, part) in UP_TO_4K.iter().enumerate() {
        shares[10 + index] = part * UP_TO_4K_SHARE;
    }
    shares[13] = at_8k;
    for (index, part) in OVER_8K.iter().enumerate() {
        shares[14 + index] = part * (middle - at_8k);
    }
    shares[17] = at_128k;
    let traffic: f64 = shares
        .iter()
        .enumerate()
        .map(|(exponent, share)| share * mean_bytes(exponent))
        .sum();
    let traffic_share = published.up_to_128k_traffic_percent / 100.0;
    let wanted = traffic * (1.0 - traffic_share) / traffic_share / (1.0 - small);
    let (mut low, mut high) = (0.01, 100.0);
    if !(at_128k > 0.0 && at_8k < middle && tail_mean_bytes(low) < wanted && wanted < tail_mean_bytes(high)) {
        return Err("no distribution has the published sums; correct [figure8] of the paper's figures".into());
    }
    for _ in 0..200 {
        let slope = f64::midpoint(low, high);
        *(if tail_mean_bytes(slope) < wanted {
            &mut low
        } else {
            &mut high
        }) = slope;
    }
    for (index, weight) in tail(low).iter().enumerate() {
        shares[TAIL + index] = weight * (1.0 - small);
    }
    Ok(shares)
}

impl Synthetic {
    /// A generator; the same seed gives the same requests.
    ///
    /// # Errors
    /// If no distribution has the published sums.
    pub fn new(published: &Figure8, seed: u64) -> Outcome<Self> {
        Ok(Self {
            random: ChaCha8Rng::seed_from_u64(seed),
            exponents: WeightedIndex::new(shares(published)?)?,
            next: 0,
        })
    }

    fn size(&mut self) -> u64 {
        let exponent = self.exponents.sample(&mut self.random);
        self.random.random_range((1_u64 << exponent) / 2 + 1..=1 << exponent)
    }

    /// Writes so many lines of one request each.
    ///
    /// # Errors
    /// The writer's.
    pub fn write(&mut self, requests: u64, mut to: impl Write) -> Outcome {
        for _ in 0..requests {
            let (number, size) = (self.next, self.size());
            self.next += 1;
            writeln!(to, "en File:Synthetic_{number}.jpg 1 {size}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{pagecounts::Counts, paper::Paper};
    use super::*;

    fn generated(seed: u64, requests: u64) -> Counts {
        let mut counts = Counts::default();
        let mut lines = Vec::new();
        Synthetic::new(&Paper::published().unwrap().figure8, seed)
            .unwrap()
            .write(requests, &mut lines)
            .unwrap();
        counts.read(&lines[..]).unwrap();
        counts
    }

    #[test]
    fn the_published_sums_come_out_of_the_parser() {
        let counts = generated(1, 1_000_000);
        assert_eq!((counts.requests(), counts.hostile_lines), (1_000_000, 0));
        let shares = counts.shares().unwrap();
        assert!((shares.between_4k_and_64k - 81.58).abs() < 0.2, "{shares:?}");
        assert!((shares.up_to_128k - 94.57).abs() < 0.1, "{shares:?}");
        assert!((shares.up_to_128k_traffic - 2.96).abs() < 0.15, "{shares:?}");
        let ratio = counts.bins[13].requests as f64 / counts.bins[17].requests as f64;
        assert!((ratio - 9.5).abs() < 0.3, "{ratio}");
    }

    #[test]
    fn the_distribution_itself_has_the_published_sums() {
        let shares = shares(&Paper::published().unwrap().figure8).unwrap();
        let traffic = |bins: std::ops::Range<usize>| bins.map(|bin| shares[bin] * mean_bytes(bin)).sum::<f64>();
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        assert!((shares[13..=16].iter().sum::<f64>() - 0.8158).abs() < 1e-9);
        assert!((traffic(0..18) / traffic(0..29) - 0.0296).abs() < 1e-6);
        assert!(shares.iter().all(|share| *share >= 0.0));
    }

    #[test]
    fn a_seed_repeats_and_another_differs() {
        assert_eq!(generated(7, 1000), generated(7, 1000));
        assert_ne!(generated(7, 1000), generated(8, 1000));
    }

    #[test]
    fn impossible_sums_are_refused() {
        let mut published = Paper::published().unwrap().figure8;
        published.up_to_128k_traffic_percent = 99.9;
        assert!(Synthetic::new(&published, 1).is_err());
    }
}
