//! Mutations of byte strings that decoders find hard: flipped bits, cut and spliced inputs, edited
//! lengths.
//!
//! Invariant: everything follows from the seed of the [`Generator`]; the same seed over the same
//! seed inputs gives the same inputs again. No input grows beyond [`INPUT_BYTES_MAX`].

/// Longest input made.
pub const INPUT_BYTES_MAX: usize = 1 << 17;
/// Most accepted inputs kept beside the seeds.
const POOL_INPUTS_MAX: usize = 4096;
/// Longest accepted input kept.
const POOL_BYTES_MAX: usize = 4096;

/// Numbers that sit at the edges of lengths, offsets and counts.
const EDGES: [u64; 16] = [
    0,
    1,
    2,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x0fff,
    0x1000,
    0x7fff,
    0xffff,
    0x0001_0000,
    0x7fff_ffff,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    u64::MAX,
];

/// A small pseudo-random generator (SplitMix64, Steele, Lea and Flood 2014).
#[derive(Debug, Clone)]
pub struct Generator(u64);

impl Generator {
    /// A generator that always gives the same numbers for a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, or 0 if the limit is 0.
    pub const fn below(&mut self, limit: usize) -> usize {
        if limit == 0 {
            0
        } else {
            (self.next() % limit as u64) as usize
        }
    }
}

/// The inputs that mutations start from: the seeds, and inputs accepted since.
#[derive(Debug)]
pub struct Pool {
    inputs: Vec<Vec<u8>>,
    seed_count: usize,
}

impl Pool {
    /// A pool of seeds, and of the empty input.
    #[must_use]
    pub fn new(mut seeds: Vec<Vec<u8>>) -> Self {
        seeds.push(Vec::new());
        Self {
            seed_count: seeds.len(),
            inputs: seeds,
        }
    }

    /// Keeps an accepted input now and then; a full pool forgets one for it, never a seed.
    pub fn keep(&mut self, input: &[u8], generator: &mut Generator) {
        if input.len() > POOL_BYTES_MAX || generator.below(16) != 0 {
            return;
        }
        if self.inputs.len() < self.seed_count + POOL_INPUTS_MAX {
            self.inputs.push(input.to_vec());
        } else {
            let index = self.seed_count + generator.below(POOL_INPUTS_MAX);
            self.inputs[index] = input.to_vec();
        }
    }

    /// Makes the next input, in `out`.
    pub fn next_input(&self, out: &mut Vec<u8>, generator: &mut Generator) {
        out.clear();
        // Every other input starts from a seed, so that a pool of descendants never crowds them
        // out.
        let among = if generator.below(2) == 0 {
            self.seed_count
        } else {
            self.inputs.len()
        };
        out.extend_from_slice(&self.inputs[generator.below(among)]);
        for _ in 0..=generator.below(5) {
            let other = &self.inputs[generator.below(self.inputs.len())];
            mutate(out, other, generator);
        }
        out.truncate(INPUT_BYTES_MAX);
    }
}

/// Changes `data` in one way; `other` is an input to splice from.
pub fn mutate(data: &mut Vec<u8>, other: &[u8], generator: &mut Generator) {
    match generator.below(10) {
        0 => flip_bit(data, generator),
        1 => set_byte(data, generator),
        2 => {
            let length = generator.below(data.len() + 1);
            data.truncate(length);
        }
        3 => append(data, generator),
        4 => insert(data, generator),
        5 => remove(data, generator),
        6 => duplicate(data, generator),
        7 => splice(data, other, generator),
        _ => edit_number(data, generator),
    }
}

fn flip_bit(data: &mut [u8], generator: &mut Generator) {
    let index = generator.below(data.len());
    if let Some(byte) = data.get_mut(index) {
        *byte ^= 1 << generator.below(8);
    }
}

fn set_byte(data: &mut [u8], generator: &mut Generator) {
    let index = generator.below(data.len());
    if let Some(byte) = data.get_mut(index) {
        *byte = generator.next().to_le_bytes()[0];
    }
}

/// Appends zeros or noise: what is behind a record in a file.
fn append(data: &mut Vec<u8>, generator: &mut Generator) {
    let mask = if generator.below(2) == 0 { 0 } else { 0xff };
    for _ in 0..=generator.below(64) {
        data.push(generator.next().to_le_bytes()[0] & mask);
    }
}

fn insert(data: &mut Vec<u8>, generator: &mut Generator) {
    let index = generator.below(data.len() + 1);
    let count = 1 + generator.below(8);
    let bytes = generator.next().to_le_bytes();
    data.splice(index..index, bytes.into_iter().take(count));
}

fn remove(data: &mut Vec<u8>, generator: &mut Generator) {
    let start = generator.below(data.len());
    let count = 1 + generator.below(16);
    data.drain(start..(start + count).min(data.len()));
}

fn duplicate(data: &mut Vec<u8>, generator: &mut Generator) {
    let start = generator.below(data.len());
    let end = start + generator.below(data.len() + 1 - start);
    let copy = data[start..end].to_vec();
    let index = generator.below(data.len() + 1);
    data.splice(index..index, copy);
    data.truncate(INPUT_BYTES_MAX);
}

/// Keeps a beginning of `data` and continues with an end of `other`.
fn splice(data: &mut Vec<u8>, other: &[u8], generator: &mut Generator) {
    let length = generator.below(data.len() + 1);
    data.truncate(length);
    data.extend_from_slice(&other[generator.below(other.len() + 1)..]);
}

/// Edits 1, 2, 4 or 8 bytes as a number: to an edge, to the bytes that remain behind it, or by a
/// little.
fn edit_number(data: &mut [u8], generator: &mut Generator) {
    let width = 1 << generator.below(4);
    let Some(last) = data.len().checked_sub(width) else {
        return;
    };
    let start = generator.below(last + 1);
    let remaining = (data.len() - start - width) as u64;
    let field = &mut data[start..start + width];
    let mut bytes = [0; 8];
    bytes[..width].copy_from_slice(field);
    let little = (generator.below(5) as u64).wrapping_sub(2);
    let number = match generator.below(3) {
        0 => EDGES[generator.below(EDGES.len())],
        1 => remaining.wrapping_add(little),
        _ => u64::from_le_bytes(bytes).wrapping_add(little),
    };
    field.copy_from_slice(&number.to_le_bytes()[..width]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(seed: u64, count: usize) -> Vec<Vec<u8>> {
        let mut generator = Generator::new(seed);
        let mut pool = Pool::new(vec![b"one seed".to_vec(), vec![7; 300]]);
        let mut out = Vec::new();
        let next = |_| {
            pool.next_input(&mut out, &mut generator);
            pool.keep(&out, &mut generator);
            out.clone()
        };
        (0..count).map(next).collect()
    }

    #[test]
    fn a_seed_gives_the_same_inputs_again() {
        assert_eq!(inputs(1, 500), inputs(1, 500));
        assert_ne!(inputs(1, 500), inputs(2, 500));
    }

    #[test]
    fn inputs_differ_and_stay_within_bounds() {
        let inputs = inputs(3, 20_000);
        assert!(inputs.iter().all(|input| input.len() <= INPUT_BYTES_MAX));
        let distinct: std::collections::BTreeSet<_> = inputs.iter().collect();
        assert!(distinct.len() > 15_000, "{} distinct", distinct.len());
    }

    #[test]
    fn lengths_are_edited_to_what_remains() {
        // A decoder behind an exact 32-bit length is reached from a seed with a wrong one.
        let mut generator = Generator::new(4);
        let pool = Pool::new(vec![vec![0xaa; 40]]);
        let mut out = Vec::new();
        let reached = (0..200_000).any(|_| {
            pool.next_input(&mut out, &mut generator);
            out.len() > 20 && out[..4] == u32::to_le_bytes(out.len() as u32 - 4)
        });
        assert!(reached);
    }

    #[test]
    fn a_full_pool_keeps_its_seeds() {
        let mut generator = Generator::new(5);
        let mut pool = Pool::new(vec![b"seed".to_vec()]);
        for number in 0..200_000_u32 {
            pool.keep(&number.to_le_bytes(), &mut generator);
        }
        assert_eq!(pool.inputs.len(), 2 + POOL_INPUTS_MAX);
        assert_eq!(pool.inputs[..2], [b"seed".to_vec(), Vec::new()]);
    }
}
