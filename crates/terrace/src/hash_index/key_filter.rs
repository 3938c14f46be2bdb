//! Which keys may have their home outside the flash log (FlashStore's disk-presence bloom filter,
//! section 4.2).
//!
//! A Bloom filter that grows by layers, each for twice the keys of the previous one, without
//! removal; it is rebuilt from time to time. The applier alone adds keys; the checkpoint copies
//! layers meanwhile. Bits are only ever set, so a copy has every key that was added before it was
//! begun, and perhaps later ones.
//!
//! On failure: a false positive costs a lookup in the ordered index.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Bits per key of a filter layer.
const BITS_PER_KEY: u64 = 12;
/// Keys of the first layer; each further one doubles.
const FIRST_LAYER_KEYS: u64 = 1 << 16;
/// More layers than any store fills.
pub const LAYERS_MAX: usize = 24;
/// Bits set per key, all in one line.
const PROBES: u32 = 6;
/// Words of a line.
pub const LINE_WORDS: usize = 8;

type Line = [AtomicU64; LINE_WORDS];

/// The filter.
#[derive(Debug, Default)]
pub struct KeyFilter {
    layers: [OnceLock<Layer>; LAYERS_MAX],
    keys: AtomicU64,
}

#[derive(Debug)]
struct Layer {
    lines: Box<[Line]>,
    /// Keys that may still be added.
    room: AtomicU64,
}

/// Keys a layer is made for.
const fn layer_keys(layer: usize) -> u64 {
    FIRST_LAYER_KEYS << layer
}

/// Lines of a layer.
// It is in memory, or compared with what is.
pub const fn layer_lines(layer: usize) -> usize {
    (layer_keys(layer) * BITS_PER_KEY).div_ceil(LINE_WORDS as u64 * 64) as usize
}

impl Layer {
    fn new(layer: usize) -> Self {
        Self {
            lines: (0..layer_lines(layer)).map(|_| Line::default()).collect(),
            room: AtomicU64::new(layer_keys(layer)),
        }
    }

    /// The line of a hash and the bits in it, as `(word, mask)`.
    fn bits(&self, hash: u64) -> (usize, impl Iterator<Item = (usize, u64)> + use<>) {
        // Below the number of lines.
        let line = ((u128::from(hash) * self.lines.len() as u128) >> 64) as usize;
        let mut mixed = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let bits = (0..PROBES).map(move |_| {
            mixed = mixed.rotate_left(9).wrapping_mul(0xd6e8_feb8_6659_fd93);
            // Nine bits.
            let bit = (mixed >> 55) as usize;
            (bit / 64, 1_u64 << (bit % 64))
        });
        (line, bits)
    }

    fn contains(&self, hash: u64) -> bool {
        let (line, mut bits) = self.bits(hash);
        bits.all(|(word, mask)| self.lines[line][word].load(Relaxed) & mask != 0)
    }

    /// For one thread at a time: a load and a store cost a tenth of what a processor takes for the
    /// two as one.
    fn add(&self, hash: u64) {
        let (line, bits) = self.bits(hash);
        let words = &self.lines[line];
        for (word, mask) in bits {
            words[word].store(words[word].load(Relaxed) | mask, Relaxed);
        }
        let room = self.room.load(Relaxed);
        self.room.store(room.saturating_sub(1), Relaxed);
    }
}

impl KeyFilter {
    /// Whether the key may be in it.
    pub fn may_contain(&self, hash: u64) -> bool {
        self.made().any(|layer| layer.contains(hash))
    }

    fn made(&self) -> impl Iterator<Item = &Layer> {
        self.layers.iter().map_while(OnceLock::get)
    }

    /// Adds a key. For one thread at a time.
    pub fn insert(&self, hash: u64) {
        if self.may_contain(hash) {
            return;
        }
        let made = self.layers();
        let last = made.checked_sub(1).and_then(|last| self.layers[last].get());
        let layer = match last {
            Some(layer) if layer.room.load(Relaxed) > 0 || made == LAYERS_MAX => layer,
            _ => self.layers[made].get_or_init(|| Layer::new(made)),
        };
        layer.add(hash);
        self.keys.fetch_add(1, Relaxed);
    }

    /// Keys added.
    pub fn len(&self) -> u64 {
        self.keys.load(Relaxed)
    }

    /// Layers made.
    pub fn layers(&self) -> usize {
        self.made().count()
    }

    /// Bytes of the layers.
    pub fn bytes(&self) -> u64 {
        self.made().map(|layer| size_of_val(&*layer.lines) as u64).sum()
    }

    /// Keys that may still be added to a layer; 0 if there is none of that number.
    pub fn room(&self, layer: usize) -> u64 {
        let layer = self.layers.get(layer).and_then(OnceLock::get);
        layer.map_or(0, |layer| layer.room.load(Relaxed))
    }

    /// Words of some lines of a layer.
    ///
    /// # Panics
    /// If there are no such lines.
    pub fn words(&self, layer: usize, lines: std::ops::Range<usize>) -> impl Iterator<Item = u64> {
        let layer = self.layers[layer].get().expect("the layer was made");
        layer.lines[lines].iter().flatten().map(|word| word.load(Relaxed))
    }

    /// Makes the next layer, empty, with this room left. `false`, and nothing done, if it cannot
    /// have so much, or there are enough layers. For a filter that is put together from a copy.
    pub fn restore_layer(&self, room: u64) -> bool {
        let number = self.layers();
        if number == LAYERS_MAX || room > layer_keys(number) {
            return false;
        }
        let layer = self.layers[number].get_or_init(|| Layer::new(number));
        layer.room.store(room, Relaxed);
        self.keys.fetch_add(layer_keys(number) - room, Relaxed);
        true
    }

    /// Stores words in the lines of the last layer from `first` on. `false`, and nothing done, if
    /// it does not have that many.
    pub fn restore_words(&self, first: usize, words: &[u64]) -> bool {
        let Some(layer) = self.made().last() else {
            return false;
        };
        let count = words.len() / LINE_WORDS;
        let Some(lines) = first.checked_add(count).and_then(|end| layer.lines.get(first..end)) else {
            return false;
        };
        for (cell, word) in lines.iter().flatten().zip(words) {
            cell.store(*word, Relaxed);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(n: u64) -> u64 {
        crate::key_hash(&n.to_le_bytes())
    }

    #[test]
    fn a_filter_knows_its_keys_and_few_others() {
        let filter = KeyFilter::default();
        for n in 0..300_000 {
            filter.insert(hash(n));
        }
        assert!((0..300_000).all(|n| filter.may_contain(hash(n))));
        let wrong = (1_000_000..1_100_000).filter(|n| filter.may_contain(hash(*n))).count();
        assert!(wrong < 4_000, "{wrong} of 100,000 absent keys pass");
    }

    #[test]
    fn a_copy_goes_on_like_the_filter() {
        let filter = KeyFilter::default();
        (0..100_000).for_each(|n| filter.insert(hash(n)));
        let copy = KeyFilter::default();
        assert_eq!(filter.layers(), 2);
        for layer in 0..filter.layers() {
            assert!(copy.restore_layer(filter.room(layer)));
            let lines = layer_lines(layer);
            for first in (0..lines).step_by(1000) {
                let words: Vec<u64> = filter.words(layer, first..(first + 1000).min(lines)).collect();
                assert!(copy.restore_words(first, &words));
            }
        }
        assert_eq!((copy.len(), copy.bytes()), (filter.len(), filter.bytes()));
        for n in 100_000..150_000 {
            filter.insert(hash(n));
            copy.insert(hash(n));
        }
        assert!((0..150_000).all(|n| copy.may_contain(hash(n))));
        assert_eq!((copy.len(), copy.room(1)), (filter.len(), filter.room(1)));
        assert!(!copy.restore_layer(layer_keys(2) + 1), "more room than a layer has");
        assert!(!copy.restore_words(layer_lines(1), &[0; LINE_WORDS]), "beyond its end");
    }
}
