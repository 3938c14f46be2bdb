//! MD5 of one stream or of several in parallel.
//!
//! Each step of MD5 depends on the step before, so one stream uses only part of a processor. Up to
//! [`LANES`] independent streams, one in each lane of the vector registers, take little longer than
//! one. They are written as arrays, which the compiler turns into vector instructions of its
//! target.
//!
//! Invariant: the result depends neither on which streams were computed together, nor on how their
//! bytes were split.

use ::md5::block_api::compress;
use bytes::Bytes;
use std::array::from_fn;

/// Streams computed together.
pub const LANES: usize = 4;
/// Fewer streams than this are faster one after the other.
const LANES_MIN: usize = 2;
/// Bytes of a block.
const BLOCK_BYTES: usize = 64;
/// Initial state (RFC 1321).
const BEGINNING: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

type Block = [u8; BLOCK_BYTES];
/// A word of each stream.
type Words = [u32; LANES];

/// The state of a stream.
#[derive(Clone)]
pub struct Md5 {
    state: [u32; 4],
    /// The last bytes, less than a block.
    rest: Block,
    length: u64,
}

impl Default for Md5 {
    fn default() -> Self {
        Self {
            state: BEGINNING,
            rest: [0; BLOCK_BYTES],
            length: 0,
        }
    }
}

impl Md5 {
    /// Adds bytes.
    pub fn update(&mut self, data: &[u8]) {
        let blocks = self.begin(data);
        compress(&mut self.state, blocks);
    }

    /// Completes the partial block, stores the bytes after the last whole block, and returns the
    /// blocks between, which the caller compresses next.
    fn begin<'d>(&mut self, mut data: &'d [u8]) -> &'d [Block] {
        let filled = self.filled();
        self.length += data.len() as u64;
        if filled > 0 {
            let (more, behind) = data.split_at(data.len().min(BLOCK_BYTES - filled));
            self.rest[filled..filled + more.len()].copy_from_slice(more);
            if filled + more.len() < BLOCK_BYTES {
                return &[];
            }
            compress(&mut self.state, &[self.rest]);
            data = behind;
        }
        let (blocks, rest) = data.as_chunks();
        self.rest[..rest.len()].copy_from_slice(rest);
        blocks
    }

    /// Bytes in the partial block.
    const fn filled(&self) -> usize {
        (self.length % BLOCK_BYTES as u64) as usize
    }

    /// The digest.
    #[must_use]
    pub fn finish(mut self) -> [u8; 16] {
        let bits = self.length.wrapping_mul(8);
        let filled = self.filled();
        // Padding: a set bit, zeros, and the length at the end of a block.
        let zeros = (BLOCK_BYTES * 2 - 9 - filled) % BLOCK_BYTES;
        let mut end = [0; BLOCK_BYTES * 2];
        end[0] = 0x80;
        end[1 + zeros..9 + zeros].copy_from_slice(&bits.to_le_bytes());
        self.update(&end[..9 + zeros]);
        let mut digest = [0; 16];
        for (bytes, word) in digest.chunks_exact_mut(4).zip(self.state) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        digest
    }
}

/// A stream and its remaining bytes.
struct Lane<'s> {
    md5: &'s mut Md5,
    runs: std::slice::Iter<'s, Bytes>,
    blocks: &'s [Block],
}

impl Lane<'_> {
    /// Advances to a run that has whole blocks. `false` if there is none.
    fn advance(&mut self) -> bool {
        while self.blocks.is_empty() {
            let Some(run) = self.runs.next() else { return false };
            self.blocks = self.md5.begin(run);
        }
        true
    }
}

/// Adds runs of bytes to several streams.
pub fn update_side_by_side<'s>(streams: impl Iterator<Item = (&'s mut Md5, &'s [Bytes])>) {
    let mut waiting = streams.map(|(md5, runs)| Lane {
        md5,
        runs: runs.iter(),
        blocks: &[],
    });
    let mut lanes: Vec<Lane<'s>> = Vec::with_capacity(LANES);
    loop {
        lanes.retain_mut(Lane::advance);
        while lanes.len() < LANES
            && let Some(mut next) = waiting.next()
        {
            if next.advance() {
                lanes.push(next);
            }
        }
        if lanes.len() < LANES_MIN {
            break;
        }
        let together = lanes.iter().map(|lane| lane.blocks.len()).min().unwrap_or(0);
        compress_side_by_side(&mut lanes, together);
    }
    for lane in &mut lanes {
        while lane.advance() {
            compress(&mut lane.md5.state, std::mem::take(&mut lane.blocks));
        }
    }
}

/// Compresses this many blocks of each stream.
fn compress_side_by_side(lanes: &mut [Lane<'_>], blocks: usize) {
    // Unused lanes compute the first stream again; their result is dropped.
    let at = |lane: usize| if lane < lanes.len() { lane } else { 0 };
    let runs: [&[Block]; LANES] = from_fn(|lane| &lanes[at(lane)].blocks[..blocks]);
    let mut state: [Words; 4] = from_fn(|word| from_fn(|lane| lanes[at(lane)].md5.state[word]));
    for block in 0..blocks {
        compress_one_of_each(&mut state, runs.map(|run| &run[block]));
    }
    for (number, lane) in lanes.iter_mut().enumerate() {
        lane.md5.state = state.map(|words| words[number]);
        lane.blocks = &lane.blocks[blocks..];
    }
}

#[rustfmt::skip]
const SINES: [[u32; 16]; 4] = [
    [
        0xd76a_a478, 0xe8c7_b756, 0x2420_70db, 0xc1bd_ceee, 0xf57c_0faf, 0x4787_c62a, 0xa830_4613, 0xfd46_9501,
        0x6980_98d8, 0x8b44_f7af, 0xffff_5bb1, 0x895c_d7be, 0x6b90_1122, 0xfd98_7193, 0xa679_438e, 0x49b4_0821,
    ],
    [
        0xf61e_2562, 0xc040_b340, 0x265e_5a51, 0xe9b6_c7aa, 0xd62f_105d, 0x0244_1453, 0xd8a1_e681, 0xe7d3_fbc8,
        0x21e1_cde6, 0xc337_07d6, 0xf4d5_0d87, 0x455a_14ed, 0xa9e3_e905, 0xfcef_a3f8, 0x676f_02d9, 0x8d2a_4c8a,
    ],
    [
        0xfffa_3942, 0x8771_f681, 0x6d9d_6122, 0xfde5_380c, 0xa4be_ea44, 0x4bde_cfa9, 0xf6bb_4b60, 0xbebf_bc70,
        0x289b_7ec6, 0xeaa1_27fa, 0xd4ef_3085, 0x0488_1d05, 0xd9d4_d039, 0xe6db_99e5, 0x1fa2_7cf8, 0xc4ac_5665,
    ],
    [
        0xf429_2244, 0x432a_ff97, 0xab94_23a7, 0xfc93_a039, 0x655b_59c3, 0x8f0c_cc92, 0xffef_f47d, 0x8584_5dd1,
        0x6fa8_7e4f, 0xfe2c_e6e0, 0xa301_4314, 0x4e08_11a1, 0xf753_7e82, 0xbd3a_f235, 0x2ad7_d2bb, 0xeb86_d391,
    ],
];

/// Compresses a block of each stream into its state.
#[inline]
fn compress_one_of_each(state: &mut [Words; 4], blocks: [&Block; LANES]) {
    let word = |block: &Block, at: usize| {
        block
            .as_chunks()
            .0
            .get(at)
            .map_or(0, |bytes| u32::from_le_bytes(*bytes))
    };
    let message: [Words; 16] = from_fn(|at| from_fn(|lane| word(blocks[lane], at)));
    let mut mixed = *state;
    round::<7, 12, 17, 22>(&mut mixed, &message, &SINES[0], (0, 1), |b, c, d| d ^ (b & (c ^ d)));
    // A sum where RFC 1321 has an "or": no bit is set in both terms, and the second does not depend
    // on `b`.
    round::<5, 9, 14, 20>(&mut mixed, &message, &SINES[1], (1, 5), |b, c, d| {
        (b & d).wrapping_add(c & !d)
    });
    round::<4, 11, 16, 23>(&mut mixed, &message, &SINES[2], (5, 3), |b, c, d| b ^ (c ^ d));
    round::<6, 10, 15, 21>(&mut mixed, &message, &SINES[3], (0, 7), |b, c, d| c ^ (b | !d));
    for (words, mixed) in state.iter_mut().zip(mixed) {
        *words = from_fn(|lane| words[lane].wrapping_add(mixed[lane]));
    }
}

/// A round of sixteen steps with these rotations. `first` and `stride` select the words of the
/// message.
#[inline]
fn round<const A: u32, const B: u32, const C: u32, const D: u32>(
    state: &mut [Words; 4],
    message: &[Words; 16],
    sines: &[u32; 16],
    (first, next): (usize, usize),
    mix: impl Fn(u32, u32, u32) -> u32,
) {
    let [mut a, mut b, mut c, mut d] = *state;
    let added = |step: usize| -> Words {
        let word = message[(first + next * step) % 16];
        from_fn(|lane| word[lane].wrapping_add(sines[step]))
    };
    for step in [0, 4, 8, 12] {
        a = one_step::<A>([a, b, c, d], added(step), &mix);
        d = one_step::<B>([d, a, b, c], added(step + 1), &mix);
        c = one_step::<C>([c, d, a, b], added(step + 2), &mix);
        b = one_step::<D>([b, c, d, a], added(step + 3), &mix);
    }
    *state = [a, b, c, d];
}

#[inline]
fn one_step<const ROTATION: u32>([a, b, c, d]: [Words; 4], added: Words, mix: &impl Fn(u32, u32, u32) -> u32) -> Words {
    from_fn(|lane| {
        let sum = a[lane].wrapping_add(added[lane]);
        let sum = sum.wrapping_add(mix(b[lane], c[lane], d[lane]));
        sum.rotate_left(ROTATION).wrapping_add(b[lane])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::md5::Digest as _;

    /// Pseudo-random bytes.
    fn bytes(length: usize, seed: u32) -> Vec<u8> {
        let next = |state: &mut u32| {
            *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            Some(state.to_be_bytes()[0])
        };
        std::iter::repeat_n((), length)
            .scan(seed, |state, ()| next(state))
            .collect()
    }

    fn of_library(data: &[u8]) -> [u8; 16] {
        ::md5::Md5::digest(data).into()
    }

    #[test]
    fn one_stream_is_what_the_library_says() {
        for length in (0..200).chain([1_000, 4_096, 100_003]) {
            let data = bytes(length, 7);
            for cut in [0, 1, 55, 56, 63, 64, 65, length] {
                let (first, second) = data.split_at(cut.min(length));
                let mut md5 = Md5::default();
                md5.update(first);
                md5.update(second);
                assert_eq!(md5.finish(), of_library(&data), "{length} cut at {cut}");
            }
        }
    }

    /// No stream to more than [`LANES`], of different lengths, split in different ways, some empty.
    #[test]
    fn streams_side_by_side_do_not_know_of_each_other() {
        for streams in 0..3 * LANES {
            let mut state = 0_u32;
            let mut chance = |below: usize| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as usize % below
            };
            let mut all: Vec<(Md5, Vec<u8>)> = vec![(Md5::default(), Vec::new()); streams];
            for _ in 0..5 {
                let runs: Vec<Vec<Bytes>> = all
                    .iter_mut()
                    .map(|(_, whole)| {
                        let runs = (0..chance(4)).map(|number| Bytes::from(bytes(chance(700), number as u32)));
                        let runs: Vec<Bytes> = runs.collect();
                        runs.iter().for_each(|run| whole.extend_from_slice(run));
                        runs
                    })
                    .collect();
                update_side_by_side(all.iter_mut().map(|(md5, _)| md5).zip(runs.iter().map(Vec::as_slice)));
            }
            for (number, (md5, whole)) in all.into_iter().enumerate() {
                assert_eq!(md5.finish(), of_library(&whole), "{number} of {streams}");
            }
        }
    }
}
