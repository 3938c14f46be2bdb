//! Objects of a run: keys, values, orders. The same seed and number give the same object in every
//! run.

use crate::harness::values::Values;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Lengths of mixed values, and their percentages.
const MIXED: [(usize, u64); 5] = [(100, 40), (1 << 10, 30), (8 << 10, 20), (128 << 10, 9), (1 << 20, 1)];

/// Lengths of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ValueSize {
    /// All of this length.
    Bytes(usize),
    /// From 100 B to 1 MiB: most values are short, most bytes are in long ones.
    Mixed(Mixed),
}

/// For the settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mixed {
    /// See [`ValueSize::Mixed`].
    Mixed,
}

impl ValueSize {
    /// Longest value.
    pub fn longest(self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Mixed(_) => MIXED.iter().map(|&(bytes, _)| bytes).max().unwrap_or(0),
        }
    }

    /// Mean length.
    pub fn mean(self) -> f64 {
        match self {
            Self::Bytes(bytes) => bytes as f64,
            Self::Mixed(_) => {
                MIXED
                    .iter()
                    .map(|&(bytes, share)| bytes as f64 * share as f64)
                    .sum::<f64>()
                    / 100.0
            }
        }
    }

    /// Length of an object's value.
    pub fn of(self, number: u64) -> usize {
        let Self::Bytes(bytes) = self else {
            let mut left = mix(number) % 100;
            for (bytes, share) in MIXED {
                if left < share {
                    return bytes;
                }
                left -= share;
            }
            return 0;
        };
        bytes
    }
}

impl fmt::Display for ValueSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Bytes(bytes) if bytes >= 1 << 20 && bytes % (1 << 20) == 0 => write!(f, "{} MiB", bytes >> 20),
            Self::Bytes(bytes) if bytes >= 1 << 10 && bytes % (1 << 10) == 0 => write!(f, "{} KiB", bytes >> 10),
            Self::Bytes(bytes) => write!(f, "{bytes} B"),
            Self::Mixed(_) => write!(f, "mixed"),
        }
    }
}

/// A bijection on numbers (the finalizer of SplitMix64, Steele and others, 2014).
pub const fn mix(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A pseudo-random permutation: a Feistel network over the next power of four, applied until the
/// number is below the count (Black and Rogaway, 2002).
#[derive(Debug, Clone, Copy)]
pub struct Order {
    count: u64,
    half_bits: u32,
    seed: u64,
}

impl Order {
    /// A permutation of `count` numbers.
    pub const fn new(count: u64, seed: u64) -> Self {
        let bits = u64::BITS - count.saturating_sub(1).leading_zeros();
        let half_bits = if bits < 2 { 1 } else { bits.div_ceil(2) };
        Self { count, half_bits, seed }
    }

    /// The number at a position.
    pub const fn at(&self, place: u64) -> u64 {
        let mut number = self.encrypt(place % self.count);
        while number >= self.count {
            number = self.encrypt(number);
        }
        number
    }

    const fn encrypt(&self, number: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (number >> self.half_bits, number & mask);
        let mut round = 0;
        while round < 4 {
            (left, right) = (right, left ^ (mix(right ^ mix(self.seed ^ round)) & mask));
            round += 1;
        }
        left << self.half_bits | right
    }
}

/// The objects.
#[derive(Debug)]
pub struct Objects {
    /// Lengths of the values.
    pub size: ValueSize,
    values: Values,
}

/// Bytes of a key.
pub const KEY_BYTES: usize = 16;

impl Objects {
    /// Objects of a seed.
    pub fn new(size: ValueSize, seed: u64) -> Self {
        Self {
            size,
            values: Values::new(seed, size.longest()),
        }
    }

    /// The key of an object: keys are in the order of the numbers.
    pub fn key(number: u64) -> [u8; KEY_BYTES] {
        let mut key = [b'0'; KEY_BYTES];
        let mut rest = number;
        for digit in key.iter_mut().rev() {
            *digit += (rest % 10) as u8;
            rest /= 10;
        }
        key
    }

    /// An absent key, directly after an object's.
    pub fn absent_key(number: u64) -> [u8; KEY_BYTES + 1] {
        let mut key = [b'x'; KEY_BYTES + 1];
        key[..KEY_BYTES].copy_from_slice(&Self::key(number));
        key
    }

    /// The value of an object.
    pub fn value(&self, number: u64) -> &[u8] {
        self.values.piece(number, self.size.of(number))
    }

    /// Checks a value that was read.
    pub fn check(&self, number: u64, found: &[u8]) -> crate::Outcome {
        self.values.check(number, self.size.of(number), found)
    }

    /// Bytes of key and value.
    pub fn pair_bytes(&self, number: u64) -> u64 {
        (KEY_BYTES + self.size.of(number)) as u64
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn an_order_has_every_number_once_and_no_pattern() {
        for count in [1, 2, 3, 100, 4096, 10_007] {
            let order = Order::new(count, 9);
            let numbers: HashSet<u64> = (0..count).map(|place| order.at(place)).collect();
            assert_eq!(numbers.len() as u64, count);
            assert!(numbers.iter().all(|number| *number < count));
        }
        let order = Order::new(100_000, 9);
        let rising = (1..100_000)
            .filter(|&place| order.at(place) > order.at(place - 1))
            .count();
        assert!((49_000..51_000).contains(&rising), "{rising}");
        let steps: HashSet<u64> = (1..1000)
            .map(|place| order.at(place).wrapping_sub(order.at(place - 1)))
            .collect();
        assert!(steps.len() > 950, "{}", steps.len());
    }

    #[test]
    fn mixed_lengths_are_in_their_shares() {
        let size = ValueSize::Mixed(Mixed::Mixed);
        let mut short = 0;
        let bytes: usize = (0..100_000)
            .map(|number| size.of(number))
            .inspect(|&bytes| short += usize::from(bytes == 100))
            .sum();
        assert!((39_000..41_000).contains(&short), "{short}");
        assert!((bytes as f64 / 1e5 / size.mean() - 1.0).abs() < 0.05, "{bytes}");
        assert_eq!(size.longest(), 1 << 20);
    }

    #[test]
    fn keys_are_in_order_and_absent_ones_between_them() {
        assert_eq!(&Objects::key(120_345), b"0000000000120345");
        assert!(Objects::key(9)[..] < Objects::absent_key(9)[..] && Objects::absent_key(9)[..] < Objects::key(10)[..]);
    }

    #[test]
    fn sizes_are_read_as_they_are_written() {
        for (size, text, name) in [
            (ValueSize::Bytes(1 << 10), "1024", "1 KiB"),
            (ValueSize::Bytes(100), "100", "100 B"),
            (ValueSize::Mixed(Mixed::Mixed), "\"mixed\"", "mixed"),
        ] {
            assert_eq!(serde_json::to_string(&size).unwrap(), text);
            assert_eq!(serde_json::from_str::<ValueSize>(text).unwrap(), size);
            assert_eq!(size.to_string(), name);
        }
    }
}
