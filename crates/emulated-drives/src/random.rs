//! Random numbers that depend only on the seed, in every version: splitmix64.
//!
//! Source of the constants: Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
//! OOPSLA 2014.

/// A sequence of numbers from a seed.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The sequence of branch `number` of a seed, independent of the other branches.
    pub fn branch(seed: u64, number: u64) -> Self {
        let mut random = Self::new(seed ^ number.wrapping_mul(0xD134_2543_DE82_EF95));
        random.next();
        random
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`; 0 if that is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }

    /// True with this probability.
    pub fn happens(&mut self, chance: f64) -> bool {
        ((self.next() >> 11) as f64) < chance * (1_u64 << 53) as f64
    }
}
