//! A bitmap of the records that live in some segments, by the hash index at a moment, without those
//! that are too long for short values.
//!
//! What is overwritten later is still marked; its copy would not be taken, since the entry has
//! another version by then. What is moved meanwhile is missed, and scans are charged for it again.
//!
//! In RAM only; nothing here can fail.

use crate::{engine::Engine, hash_index::HashIndex, log::address::Address, scan_order::SweepRam};
use std::ops::Range;

const BITS: usize = u64::BITS as usize;
/// Bytes of a segment for which there is a bit, and a word.
const BIT_BYTES: usize = Address::ALIGNMENT_BYTES as usize;
const WORD_BYTES: usize = BIT_BYTES * BITS;

/// See the module.
#[derive(Debug)]
pub(super) struct Marks {
    /// By number of the segment: where its words are, if it is one of them.
    segments: Vec<Option<usize>>,
    words_of_segment: usize,
    words: Vec<u64>,
}

/// The records of one segment.
#[derive(Debug, Clone, Copy)]
pub(super) struct OfSegment<'a>(&'a [u64]);

impl Marks {
    /// Words of a segment of this many bytes.
    // A segment has at most 1 GiB.
    fn words_of(segment_bytes: u64) -> usize {
        segment_bytes.div_ceil(WORD_BYTES as u64) as usize
    }

    /// How many of these segments, at least one, this much RAM suffices for, and what they need of
    /// it.
    pub fn fitting(ram_bytes: usize, segment_bytes: u64, segments: usize) -> (usize, usize) {
        let bytes = Self::words_of(segment_bytes) * size_of::<u64>();
        let together = (ram_bytes / bytes).min(segments).max(1);
        (together, together * bytes)
    }

    /// Marks what lives in these segments, by number and generation.
    pub fn of(engine: &Engine, places: &[(u32, u64)]) -> Self {
        let segment_bytes = engine.log.segments.segment_bytes();
        let mut marks = Self::none(segment_bytes, places.iter().map(|(number, _)| *number as usize));
        let bytes_max = HashIndex::read_bytes_max(SweepRam::RECORD_BYTES_MAX as u64);
        engine.hash_index.each_record(|address, bytes| {
            if bytes <= bytes_max {
                marks.add(address.bytes(), segment_bytes);
            }
        });
        marks
    }

    fn none(segment_bytes: u64, numbers: impl Iterator<Item = usize> + Clone) -> Self {
        let words_of_segment = Self::words_of(segment_bytes);
        let mut segments = vec![None; numbers.clone().max().map_or(0, |last| last + 1)];
        let mut words = 0;
        for number in numbers {
            segments[number] = Some(words);
            words += words_of_segment;
        }
        Self {
            segments,
            words_of_segment,
            words: vec![0; words],
        }
    }

    // An address is within 1 TiB, and a segment has at least a page.
    fn add(&mut self, address: u64, segment_bytes: u64) {
        let number = (address / segment_bytes) as usize;
        let Some(first) = self.segments.get(number).copied().flatten() else {
            return;
        };
        let unit = (address % segment_bytes) as usize / BIT_BYTES;
        self.words[first + unit / BITS] |= 1 << (unit % BITS);
    }

    /// Those of a segment, which is one of them.
    pub fn of_segment(&self, number: u32) -> OfSegment<'_> {
        let first = self.segments.get(number as usize).copied().flatten();
        OfSegment(first.map_or(&[], |first| &self.words[first..][..self.words_of_segment]))
    }
}

impl OfSegment<'_> {
    /// Offsets in the segment at which living records begin, in order, within a part of it that
    /// begins and ends at multiples of 1 KiB.
    pub fn within(self, part: Range<usize>) -> impl Iterator<Item = usize> {
        let words = part.start / WORD_BYTES..(part.end / WORD_BYTES).min(self.0.len());
        words.flat_map(move |word| {
            let mut bits = self.0[word];
            std::iter::from_fn(move || {
                let bit = bits.trailing_zeros() as usize;
                bits &= bits.checked_sub(1)?;
                Some((word * BITS + bit) * BIT_BYTES)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first and the last record of segments, and of segments that are not asked for.
    #[test]
    fn each_record_is_marked_where_it_is() {
        let segment_bytes = 1 << 20;
        let mut marks = Marks::none(segment_bytes, [5, 2].into_iter());
        let last = segment_bytes - 16;
        let living = [(2, 16), (2, 1008), (2, 1024), (5, 4096), (5, last)];
        for (number, offset) in living.into_iter().chain([(0, 16), (3, last), (4, 4096), (6, 16)]) {
            marks.add(number * segment_bytes + offset, segment_bytes);
        }
        for number in 0..8 {
            let of_segment = marks.of_segment(number);
            let parts = (0..segment_bytes as usize).step_by(4096);
            let found: Vec<_> = parts
                .flat_map(|at| of_segment.within(at..at + 4096))
                .map(|offset| (u64::from(number), offset as u64))
                .collect();
            let expected: Vec<_> = living
                .into_iter()
                .filter(|(other, _)| *other == u64::from(number))
                .collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_segment_takes_a_bit_for_each_16_bytes() {
        assert_eq!(Marks::fitting(16 << 20, 64 << 20, 100), (32, 16 << 20));
        assert_eq!(Marks::fitting(16 << 20, 64 << 20, 3), (3, 3 << 19));
        assert_eq!(Marks::fitting(1000, 64 << 20, 100), (1, 1 << 19));
        assert_eq!(Marks::words_of(4096), 4);
    }
}
