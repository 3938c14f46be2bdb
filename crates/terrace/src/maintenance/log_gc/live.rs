//! The live records of a segment that is being drained.
//!
//! A segment of short values has half a million of them, of which often few are live. Only the live
//! records are therefore kept in RAM, contiguous, and a list of their offsets; a record is parsed
//! again where it is needed. For records that are not in the hash index the keys are kept until the
//! ordered index has been looked up, in key order.

use super::{LogGc, sorting::sort_by_key};
use crate::{
    Error, Result, key_hash,
    log::{
        address::Address,
        format::{FRAME_HEADER_BYTES, Record, records},
        scan::{FoundFrame, FrameWalk, Walked},
        segments::Segment,
    },
    ordered_index::{Entry, Home},
};

/// Record bytes of values that move to blocks together: what their descriptions take in RAM
/// follows from it. Eight of a segment of the usual length, so a disk syncs each eight times.
const PART_BYTES: usize = 8 << 20;

/// A value found in a segment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Live {
    /// Offset of its record among the kept ones,
    at: u32,
    /// and the record's length. A segment has at most 1 GiB.
    record_bytes: u32,
    /// Lookups since it was written there, counted up to 3.
    pub uses: u8,
    /// It counts as the most used.
    pub is_pinned: bool,
}

impl Live {
    /// Bytes of its record in the log.
    pub const fn record_bytes(&self) -> usize {
        self.record_bytes as usize
    }

    /// Its record, which is among `kept`.
    pub fn record<'a>(&self, kept: &'a Kept) -> Record<'a> {
        Record::parse(&kept.records[self.at as usize..]).expect("a record is kept as it was parsed")
    }
}

/// Records of a segment that are kept in RAM.
#[derive(Debug, Default)]
pub(super) struct Kept {
    records: Vec<u8>,
}

impl Kept {
    // A segment has at most 1 GiB.
    fn keep(&mut self, record: &Record<'_>, bytes: &[u8], uses: u8, is_pinned: bool) -> Live {
        let at = self.records.len() as u32;
        self.records.extend_from_slice(bytes);
        Live {
            at,
            record_bytes: record.record_bytes() as u32,
            uses,
            is_pinned,
        }
    }

    /// Bytes of RAM.
    pub fn bytes(&self) -> u64 {
        self.records.len() as u64
    }
}

/// A segment that was walked.
pub(super) struct Survey {
    /// Its live values.
    pub live: Vec<Live>,
    /// The records of that.
    pub kept: Kept,
    /// Its frames.
    pub walked: Walked,
}

/// A value without a slot in the hash index.
struct Unknown {
    /// Where its record begins in the segment.
    offset: usize,
    version: u64,
    key_at: usize,
    key_bytes: u16,
}

/// Such values, and their keys, concatenated.
#[derive(Default)]
struct UnknownValues {
    keys: Vec<u8>,
    values: Vec<Unknown>,
}

impl UnknownValues {
    // A key has at most KEY_BYTES_MAX.
    fn push(&mut self, offset: usize, record: &Record<'_>) {
        self.values.push(Unknown {
            offset,
            version: record.version(),
            key_at: self.keys.len(),
            key_bytes: record.key.len() as u16,
        });
        self.keys.extend_from_slice(record.key);
    }
}

impl LogGc {
    /// Finds the live records of a segment.
    ///
    /// # Errors
    /// Errors of the device, or if the segment differs between the first and the second read.
    pub(super) fn survey(&self, segment: &Segment) -> Result<Survey> {
        let base = u64::from(segment.number) * self.engine.log.segments.segment_bytes();
        let (mut live, mut kept, mut unknown) = (Vec::new(), Kept::default(), UnknownValues::default());
        let walked = self.walk(segment, |offset, record, bytes| {
            let Some(address) = Address::new(base + offset as u64) else {
                return;
            };
            // A slot of the hash index is always right; if there is none, the ordered index must be
            // searched.
            match self.engine.hash_index.recency(key_hash(record.key), address) {
                Some(uses) => live.push(kept.keep(record, bytes, uses, self.is_pinned(record))),
                None => unknown.push(offset, record),
            }
        })?;
        let known_after_all = self.still_there(base, unknown)?;
        if !known_after_all.is_empty() {
            let known_before = live.len();
            self.walk(segment, |offset, record, bytes| {
                if known_after_all.binary_search(&offset).is_ok() {
                    live.push(kept.keep(record, bytes, 0, self.is_pinned(record)));
                }
            })?;
            if live.len() - known_before != known_after_all.len() {
                let reason = "frames that were sound are not, read again";
                return Err(Error::corruption(format!("segment {:08x}", segment.number), reason));
            }
        }
        Ok(Survey { live, kept, walked })
    }

    /// Shows each record that is a value's home: where it begins in the segment, and its bytes.
    fn walk(&self, segment: &Segment, mut show: impl FnMut(usize, &Record<'_>, &[u8])) -> Result<Walked> {
        let engine = &self.engine;
        let step = |bytes, read: &mut dyn FnMut() -> Result<()>| engine.flash_step(bytes, read);
        let mut walk = FrameWalk::new(segment, engine.log.segments.segment_bytes(), step);
        while let Some(FoundFrame { offset, header, bytes }) = walk.next_frame()? {
            let payload = &bytes[FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + header.payload_bytes as usize];
            for (at, record) in records(payload).filter(|(_, record)| record.body.is_home()) {
                let bytes = &payload[at..at + record.record_bytes()];
                show(offset + FRAME_HEADER_BYTES + at, &record, bytes);
            }
        }
        Ok(walk.into_walked())
    }

    /// The offsets at which the ordered index still has them in the segment, in order. Where it is
    /// damaged, or has lost entries, a value may be live: it is moved like one, and the applier
    /// keeps it where it goes to, for `repair`.
    fn still_there(&self, base: u64, unknown: UnknownValues) -> Result<Vec<usize>> {
        let UnknownValues { keys, mut values } = unknown;
        let key = |value: &Unknown| &keys[value.key_at..value.key_at + usize::from(value.key_bytes)];
        sort_by_key(&mut values, key);
        let mut there = Vec::new();
        for value in &values {
            let address = base + value.offset as u64;
            let is_this = |entry: Entry| entry.version.0 == value.version && entry.home == Home::Flash { address };
            let may_live = match self.engine.index.get(key(value)) {
                Err(Error::Corruption { .. }) => true,
                entry => entry?.is_some_and(is_this),
            };
            if may_live {
                there.push(value.offset);
            }
        }
        there.sort_unstable();
        Ok(there)
    }

    fn is_pinned(&self, record: &Record<'_>) -> bool {
        let length = record.body.value().len() as u64;
        self.engine.placement.is_pinned_to_log(record.key, length)
    }
}

/// Bytes of values' records in the log.
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

    /// A segment of half a million values of 100 B: lists of whole records took 60 MiB each,
    /// besides the segment's 64, and a store with 384 MiB of caches was killed in a control group
    /// of 512.
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
