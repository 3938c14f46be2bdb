//! Batched reads of values in the log: several parallel reads of the device
//! ([`crate::io::read_queue`]), and one for adjacent records, such as those of one commit.

use super::{Hit, is_wanted, take_read};
use crate::{
    Version,
    cache::{CachedValue, Place},
    engine::Engine,
    log::{address::Address, reader::read_stretches},
    metrics::count,
};
use std::ops::Range;

/// Records this near to each other are read at once: to read on costs a device less than another
/// request.
pub const GAP_BYTES_MAX: u64 = 16 << 10;
/// One read for several records has at most so much, so that several are under way.
const STRETCH_BYTES_MAX: u64 = 256 << 10;

/// A value to be read.
pub struct Wanted<'a> {
    /// Its index in the call.
    pub at: usize,
    pub key: &'a [u8],
    /// Any will do if there is none.
    pub version: Option<Version>,
    /// Where in the ring its record is, at most.
    pub bytes: Range<u64>,
}

/// Reads these values and passes those that are at their addresses to `found`, with their numbers.
/// The others have moved, or their records are damaged or could not be read: the caller reads each
/// of them alone, which gives its own error. Returns for each read the number of the first value
/// that it was for.
pub fn read(engine: &Engine, mut wanted: Vec<Wanted<'_>>, mut found: impl FnMut(usize, Hit)) -> Vec<usize> {
    if wanted.is_empty() {
        return Vec::new();
    }
    wanted.sort_unstable_by_key(|wanted| (wanted.bytes.start, wanted.at));
    let segments = &engine.log.segments;
    let stretches = stretches(&wanted, segments.segment_bytes());
    let bytes: Vec<Range<u64>> = stretches.iter().map(|(bytes, _)| bytes.clone()).collect();
    // However many reads there are, the caller waits as long as for the longest.
    let timed = engine.paces.flash.read();
    let reads = read_stretches(segments, &engine.read_queue, &bytes, |number, stretch| {
        for wanted in &wanted[stretches[number].1.clone()] {
            let Some(address) = Address::new(wanted.bytes.start) else {
                continue;
            };
            let record = stretch.record(address);
            if let Some(record) = record.filter(|record| is_wanted(record, wanted.key, wanted.version)) {
                let place = Place::in_log(segments, address);
                let value = CachedValue::of_record(&record);
                found(wanted.at, take_read(engine, place, wanted.key, value));
            }
        }
    });
    drop(timed);
    count(&engine.metrics.flash_reads, reads);
    stretches.into_iter().map(|(_, of)| wanted[of.start].at).collect()
}

/// The ranges to read, each with its values, which are in the order of their places.
fn stretches(wanted: &[Wanted<'_>], segment_bytes: u64) -> Vec<(Range<u64>, Range<usize>)> {
    let mut stretches: Vec<(Range<u64>, Range<usize>)> = Vec::with_capacity(wanted.len());
    for (number, wanted) in wanted.iter().enumerate() {
        match stretches.last_mut() {
            Some((bytes, of)) if goes_on(bytes, &wanted.bytes, segment_bytes) => {
                bytes.end = bytes.end.max(wanted.bytes.end);
                of.end = number + 1;
            }
            _ => stretches.push((wanted.bytes.clone(), number..number + 1)),
        }
    }
    stretches
}

/// Whether `next`, which begins no earlier, is read with `stretch`.
fn goes_on(stretch: &Range<u64>, next: &Range<u64>, segment_bytes: u64) -> bool {
    stretch.start / segment_bytes == next.start / segment_bytes
        && next.start <= stretch.end + GAP_BYTES_MAX
        && next.end <= stretch.start + STRETCH_BYTES_MAX
}
