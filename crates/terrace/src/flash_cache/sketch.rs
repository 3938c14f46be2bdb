//! How often single objects are read, about: a count-min sketch of small counters that are halved
//! now and then (as in TinyLFU).

/// Counters, if nothing else is said; a power of two.
const COUNTERS: usize = 1 << 20;
/// Counters an object has.
const DEPTH: u32 = 4;

/// The counters: a byte each.
#[derive(Debug)]
pub(super) struct Sketch {
    counters: Box<[u8]>,
    counted: f64,
    period: f64,
}

impl Default for Sketch {
    fn default() -> Self {
        Self::with_counters(COUNTERS, 100_000.0)
    }
}

impl Sketch {
    /// A sketch with this many counters, a power of two, which are halved after this many reads;
    /// infinity: only by [`Sketch::halve`].
    pub(super) fn with_counters(counters: usize, period: f64) -> Self {
        Self {
            counters: vec![0; counters].into_boxed_slice(),
            counted: 0.0,
            period,
        }
    }

    /// All counts are halved after this many.
    pub(super) fn set_period(&mut self, reads: f64) {
        self.period = reads;
    }

    fn places(&self, hash: u64) -> impl Iterator<Item = usize> + use<> {
        // Two halves of one good hash make as many as wanted.
        let (one, other, mask) = (hash as u32, (hash >> 32) as u32 | 1, self.counters.len() - 1);
        (0..DEPTH).map(move |number| one.wrapping_add(number.wrapping_mul(other)) as usize & mask)
    }

    /// Counts a read.
    pub(super) fn count(&mut self, hash: u64) {
        let least = self.places(hash).map(|place| self.counters[place]).min().unwrap_or(0);
        // Only the least ones: others count more than this object.
        for place in self.places(hash) {
            if self.counters[place] == least {
                self.counters[place] = least.saturating_add(1);
            }
        }
        self.counted += 1.0;
        if self.counted >= self.period {
            self.halve();
        }
    }

    /// Halves all counts.
    pub(super) fn halve(&mut self) {
        self.counted = 0.0;
        self.counters.iter_mut().for_each(|counter| *counter /= 2);
    }

    /// Subtracts the counts of an object. Objects that share its counters may then seem to have
    /// been read less often.
    pub(super) fn forget(&mut self, hash: u64) {
        let least = self.places(hash).map(|place| self.counters[place]).min().unwrap_or(0);
        for place in self.places(hash) {
            self.counters[place] = self.counters[place].saturating_sub(least);
        }
    }

    /// How often an object was read, about; never too few since the last halving.
    pub(super) fn estimate(&self, hash: u64) -> f64 {
        f64::from(self.places(hash).map(|place| self.counters[place]).min().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key_hash;

    #[test]
    fn counts_never_too_few_and_halves() {
        let mut sketch = Sketch::default();
        for round in 0..10_u32 {
            for object in 0..1000_u32 {
                if object % 10 >= round {
                    sketch.count(key_hash(&object.to_le_bytes()));
                }
            }
        }
        for object in 0..1000_u32 {
            let estimate = sketch.estimate(key_hash(&object.to_le_bytes()));
            assert!(estimate >= f64::from(object % 10 + 1).min(10.0), "{object}: {estimate}");
            assert!(estimate <= 14.0, "{object}: {estimate}");
        }
        let before = sketch.estimate(key_hash(&9_u32.to_le_bytes()));
        sketch.set_period(1.0);
        sketch.count(1);
        assert_eq!(sketch.estimate(key_hash(&9_u32.to_le_bytes())), (before / 2.0).floor());
        sketch.forget(key_hash(&9_u32.to_le_bytes()));
        assert_eq!(sketch.estimate(key_hash(&9_u32.to_le_bytes())), 0.0);
    }
}
