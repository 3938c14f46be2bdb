//! The table of segments by number. It grows while it is read: a lookup takes no lock, and no entry
//! moves.

use super::{SEGMENTS_MAX, Segment};
use std::sync::OnceLock;

/// Slots of the first part; each further part has twice as many as the one before.
const FIRST: u32 = 64;
/// Number of parts for the maximum number of segments.
const PARTS: usize = (SEGMENTS_MAX / FIRST).ilog2() as usize + 1;

type Part = Box<[OnceLock<Segment>]>;

/// See the module.
#[derive(Debug, Default)]
pub(in crate::log) struct Slots([OnceLock<Part>; PARTS]);

/// The part of a number, and the slot in it.
const fn place(number: u32) -> (usize, usize) {
    // Part p begins with FIRST * (2^p - 1).
    let shifted = number as usize + FIRST as usize;
    let part = (shifted / FIRST as usize).ilog2() as usize;
    (part, shifted - (FIRST as usize) * (1 << part))
}

impl Slots {
    /// The segment with this number.
    pub fn get(&self, number: u32) -> Option<&Segment> {
        let (part, at) = place(number);
        self.0.get(part)?.get()?.get(at)?.get()
    }

    /// Inserts a segment, unless there is one, or its number is beyond any ring.
    pub fn set(&self, segment: Segment) {
        let (part, at) = place(segment.number);
        let Some(slots) = self.0.get(part) else { return };
        let slots = slots.get_or_init(|| (0..(FIRST as usize) << part).map(|_| OnceLock::new()).collect());
        if let Some(slot) = slots.get(at) {
            let _ = slot.set(segment);
        }
    }

    /// All segments, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &Segment> {
        let parts = self.0.iter().filter_map(OnceLock::get);
        parts.flatten().filter_map(OnceLock::get)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_a_place_of_its_own_and_they_follow_each_other() {
        let mut expected = (0, 0);
        for number in 0..FIRST * 40 {
            assert_eq!(place(number), expected, "{number}");
            expected.1 += 1;
            if expected.1 == (FIRST as usize) << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        assert!(place(SEGMENTS_MAX - 1).0 < PARTS);
    }
}
