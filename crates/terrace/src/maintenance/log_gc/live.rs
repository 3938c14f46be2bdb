//! What lives in a segment that is drained: where in its image, and how it was used.
//!
//! A segment of short values has half a million of them. A record with its borrowed parts is as
//! long as they are, so lists of records took three times the segment's length in RAM, which no
//! figure told of. This is 16 bytes a value, and the record is parsed again where it is asked for.

use crate::log::{format::Record, scan::SegmentImage};

/// Record bytes of values that move to blocks together: what their descriptions take in RAM
/// follows from it. Eight of a segment of the usual length, so a disk syncs each eight times.
const PART_BYTES: usize = 8 << 20;

/// A value found in a segment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Live {
    /// Where its record begins in the image,
    at: u32,
    /// and the record's length. A segment has at most 1 GiB.
    record_bytes: u32,
    /// Lookups since it was written there, counted up to 3.
    pub uses: u8,
    /// It counts as used most.
    pub is_pinned: bool,
}

impl Live {
    /// The value of a record that begins there.
    #[allow(clippy::cast_possible_truncation)] // a segment has at most 1 GiB
    pub fn at(at: usize, record: &Record<'_>, uses: u8, is_pinned: bool) -> Self {
        Self {
            at: at as u32,
            record_bytes: record.record_bytes() as u32,
            uses,
            is_pinned,
        }
    }

    /// Where its record begins in the segment.
    pub fn offset(&self) -> u64 {
        u64::from(self.at)
    }

    /// What it takes in the log.
    pub const fn record_bytes(&self) -> usize {
        self.record_bytes as usize
    }

    /// Its record; `image` is the one that it was found in.
    pub fn record<'a>(&self, image: &'a SegmentImage) -> Record<'a> {
        image.record_at(self.at as usize)
    }
}

/// What values take in the log.
pub(super) fn record_bytes(values: &[&[Live]]) -> usize {
    values.iter().copied().flatten().map(Live::record_bytes).sum()
}

/// Values in parts of [`PART_BYTES`], in their order; a longer value is one of its own.
pub(super) fn parts(values: &[Live]) -> impl Iterator<Item = &[Live]> {
    let mut rest = values;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |live: &&Live| {
            bytes += live.record_bytes();
            bytes <= PART_BYTES
        };
        let length = rest.iter().take_while(fits).count().max(1).min(rest.len());
        let (now, later) = rest.split_at(length);
        rest = later;
        (!now.is_empty()).then_some(now)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_length(record_bytes: u32) -> Live {
        Live {
            at: 0,
            record_bytes,
            uses: 0,
            is_pinned: false,
        }
    }

    /// A segment of half a million values of 100 B: lists of whole records took 60 MiB each, beside
    /// the image, and a store with 384 MiB of caches was ended in a control group of 512.
    #[test]
    fn a_list_of_values_is_a_tenth_of_short_records() {
        let record = Record::new(&[0; 16], &[], crate::log::format::Body::Put { value: &[0; 100] });
        assert!(10 * size_of::<Live>() <= record.record_bytes(), "{}", size_of::<Live>());
    }

    #[test]
    fn parts_are_all_values_in_order_and_bounded() {
        let lengths = [1, PART_BYTES as u32, PART_BYTES as u32 - 1, 1, 2 * PART_BYTES as u32, 3];
        let values: Vec<_> = lengths.into_iter().map(of_length).collect();
        let found: Vec<Vec<u32>> = parts(&values)
            .map(|part| part.iter().map(|live| live.record_bytes).collect())
            .collect();
        let expected = [
            &lengths[..1],
            &lengths[1..2],
            &lengths[2..4],
            &lengths[4..5],
            &lengths[5..],
        ];
        assert_eq!(found, expected);
        assert_eq!(parts(&[]).count(), 0);
    }
}
