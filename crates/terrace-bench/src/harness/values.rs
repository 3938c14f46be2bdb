//! Values that do not compress, are cheap to make, and can be checked when read.
//!
//! A value is a piece of a pool of random bytes, with the object's number at both ends. The same
//! seed and number give the same bytes.

use crate::Outcome;
use bytes::Bytes;
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

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

    /// The value of an object. Lengths are limited to the pool's.
    pub fn value(&self, number: u64, length: usize) -> Bytes {
        let mut value = self.piece(number, length).to_vec();
        let length = value.len();
        let stamp = number.to_le_bytes();
        if let Some(head) = value.get_mut(..8) {
            head.copy_from_slice(&stamp);
            value[length - 8..].copy_from_slice(&stamp);
        }
        Bytes::from(value)
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
    pub fn check_piece(&self, number: u64, length: usize, found: &[u8]) -> Outcome {
        let expected = self.piece(number, length);
        let end = length.min(8);
        if found.len() != length || found[..end] != expected[..end] || found[length - end..] != expected[length - end..]
        {
            let found = found.len();
            return Err(format!("object {number}: {found} bytes that are not the {length} bytes written").into());
        }
        Ok(())
    }

    /// Checks length and both ends of a value.
    pub fn check(number: u64, length: usize, value: &[u8]) -> Outcome {
        let stamp = number.to_le_bytes();
        if value.len() != length || length >= 8 && !(value.starts_with(&stamp) && value.ends_with(&stamp)) {
            let found = value.len();
            return Err(format!("object {number}: {found} bytes that are not the {length} bytes written").into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write;

    #[test]
    fn values_are_known_again() {
        let values = Values::new(1, 128 << 10);
        for (number, length) in [(0, 8192), (77, 128 << 10), (u64::MAX, 8), (5, 3), (6, 0)] {
            let value = values.value(number, length);
            Values::check(number, length, &value).unwrap();
            assert!(Values::check(number, length + 1, &value).is_err());
        }
        assert!(Values::check(2, 8192, &values.value(3, 8192)).is_err());
        assert_eq!(values.value(3, 8192), Values::new(1, 128 << 10).value(3, 8192));
    }

    #[test]
    fn pieces_are_known_again() {
        let values = Values::new(1, 1024);
        for (number, length) in [(0, 1024), (77, 100), (5, 3), (6, 0)] {
            let piece = values.piece(number, length);
            values.check_piece(number, length, piece).unwrap();
            assert!(values.check_piece(number, length + 1, piece).is_err());
        }
        assert!(values.check_piece(2, 100, values.piece(3, 100)).is_err());
    }

    #[test]
    fn values_do_not_compress() {
        let values = Values::new(1, 8192);
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        for number in 0..100 {
            encoder.write_all(&values.value(number, 8192)).unwrap();
        }
        assert!(encoder.finish().unwrap().len() > 8192 * 99);
    }
}
