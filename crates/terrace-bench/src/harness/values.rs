//! Values that do not compress, are cheap to make, and can be checked when read.
//!
//! A value is a piece of a pool of random bytes. The same seed and number give the same bytes.

use crate::Outcome;
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use terrace::{Durability, PutOptions};

/// The pool. Its length is a multiple of 8.
#[derive(Debug, Clone)]
pub struct Values {
    pool: Vec<u8>,
}

/// Spreads numbers over the pool: an odd multiplier, so that adjacent numbers get different pieces.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

impl Values {
    /// A pool for values up to this length.
    pub fn new(seed: u64, value_bytes_max: usize) -> Self {
        let mut pool = vec![0; (value_bytes_max + (4 << 20)).next_multiple_of(8)];
        ChaCha8Rng::seed_from_u64(seed).fill_bytes(&mut pool);
        Self { pool }
    }

    /// A piece of the pool for an object, without copying, where making a value must be free.
    /// Lengths are limited to the pool's. Two objects have the same piece with a probability of one
    /// in some millions.
    pub fn piece(&self, number: u64, length: usize) -> &[u8] {
        let length = length.min(self.pool.len());
        let room = (self.pool.len() - length + 1) as u64;
        let start = ((number.wrapping_mul(SPREAD) >> 20) % room) as usize;
        &self.pool[start..start + length]
    }

    /// Checks length and both ends of a piece.
    pub fn check(&self, number: u64, length: usize, found: &[u8]) -> Outcome {
        let expected = self.piece(number, length);
        let end = length.min(8);
        if found.len() != length || found[..end] != expected[..end] || found[length - end..] != expected[length - end..]
        {
            let found = found.len();
            return Err(format!("object {number}: {found} bytes that are not the {length} bytes written").into());
        }
        Ok(())
    }
}

/// Puts that are acknowledged at once.
pub fn buffered() -> PutOptions {
    PutOptions {
        durability: Durability::Buffered,
        ..PutOptions::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write;

    #[test]
    fn pieces_are_known_again() {
        let values = Values::new(1, 1024);
        for (number, length) in [(0, 1024), (77, 100), (5, 3), (6, 0)] {
            let piece = values.piece(number, length);
            values.check(number, length, piece).unwrap();
            assert!(values.check(number, length + 1, piece).is_err());
        }
        assert!(values.check(2, 100, values.piece(3, 100)).is_err());
        assert_eq!(values.piece(3, 100), Values::new(1, 1024).piece(3, 100));
    }

    #[test]
    fn values_do_not_compress() {
        let values = Values::new(1, 8192);
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        for number in 0..100 {
            encoder.write_all(values.piece(number, 8192)).unwrap();
        }
        assert!(encoder.finish().unwrap().len() > 8192 * 99);
    }
}
