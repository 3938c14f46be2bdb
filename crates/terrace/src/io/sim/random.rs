//! A tiny deterministic generator: splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom
//! number generators", OOPSLA 2014). What a simulated disk loses is a function of its seed.

#[derive(Debug, Clone)]
pub(in crate::io) struct Random(u64);

impl Random {
    pub(in crate::io) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(in crate::io) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Less than `bound`, which must not be zero. The bias of the remainder does not matter here.
    pub(in crate::io) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(in crate::io) fn coin(&mut self) -> bool {
        self.next() >> 63 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn matches_the_reference() {
        // First outputs of the reference implementation for seed 1234567.
        let mut random = Random::new(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
        assert_eq!(random.next(), 9_817_491_932_198_370_423);
    }
}
