//! Reads records by their addresses: one device read when the caller knows how long a record may
//! be, and one for several that lie together.

use super::{
    address::Address,
    format::{RECORD_HEADER_BYTES, Record, RecordLayout},
    segments::{Segment, Segments},
};
use crate::{Error, Result, io::AlignedBuffer};
use std::{cell::RefCell, ops::Range};

thread_local! {
    /// Direct reads need aligned memory; one buffer per reading thread saves an allocation per
    /// read.
    static BUFFER: RefCell<AlignedBuffer> = const { RefCell::new(AlignedBuffer::new()) };
}

/// A thread's read buffer is given back to the allocator after a read longer than this.
const KEPT_BUFFER_BYTES_MAX: usize = 1 << 20;

/// What a place held.
#[derive(Debug)]
pub enum Found<R> {
    /// A record whose header and value are sound.
    Record(R),
    /// Nothing that can be trusted: the place was reused, or is damaged. Look the key up again.
    NotARecord,
}

/// Reads the record at `address` and hands it to `use_record`. `expected_bytes` is what to read at
/// once; a longer record costs a second read. Returns the number of device reads made too.
///
/// # Errors
/// The device's.
pub fn read_record<R>(
    segments: &Segments,
    address: Address,
    expected_bytes: usize,
    use_record: impl FnOnce(&Record<'_>) -> R,
) -> Result<(Found<R>, u64)> {
    let position = address.bytes();
    let segment_bytes = segments.segment_bytes();
    let (number, offset) = (position / segment_bytes, position % segment_bytes);
    let Some(segment) = u32::try_from(number).ok().and_then(|number| segments.pin(number)) else {
        return Ok((Found::NotARecord, 0));
    };
    BUFFER.with_borrow_mut(|buffer| {
        let unit = segment.file.read_unit_bytes() as u64;
        let start = offset / unit * unit;
        #[allow(clippy::cast_possible_truncation)] // below a unit
        let within = (offset - start) as usize;
        let mut reads = 0;
        let mut wanted = within + expected_bytes.max(RECORD_HEADER_BYTES);
        loop {
            fill(buffer, &segment, start, start + wanted as u64, segment_bytes)?;
            reads += 1;
            let bytes = &buffer[within..];
            let needed = RecordLayout::read(bytes).map(|layout| layout.record_bytes());
            match needed {
                Some(needed) if needed > bytes.len() && offset + needed as u64 <= segment_bytes && reads == 1 => {
                    wanted = within + needed;
                }
                _ => break,
            }
        }
        let found = sound_record(&segment, &buffer[within..])
            .map_or(Found::NotARecord, |record| Found::Record(use_record(&record)));
        give_back(buffer);
        Ok((found, reads))
    })
}

/// Reads a stretch of the ring at once and hands the records at `places`, which lie in it and in
/// one segment, to `use_record` with their number in the list. Those that are no sound record are
/// left out: look them up one by one. Returns the number of device reads made.
///
/// # Errors
/// The device's.
pub fn read_stretch(
    segments: &Segments,
    stretch: &Range<u64>,
    places: &[Address],
    mut use_record: impl FnMut(usize, &Record<'_>),
) -> Result<u64> {
    let segment_bytes = segments.segment_bytes();
    let (number, offset) = (stretch.start / segment_bytes, stretch.start % segment_bytes);
    let Some(segment) = u32::try_from(number).ok().and_then(|number| segments.pin(number)) else {
        return Ok(0);
    };
    BUFFER.with_borrow_mut(|buffer| {
        let unit = segment.file.read_unit_bytes() as u64;
        let start = offset / unit * unit;
        fill(
            buffer,
            &segment,
            start,
            offset + (stretch.end - stretch.start),
            segment_bytes,
        )?;
        let first = number * segment_bytes + start;
        for (at, place) in places.iter().enumerate() {
            let bytes = place
                .bytes()
                .checked_sub(first)
                .and_then(|within| buffer.get(usize::try_from(within).ok()?..));
            if let Some(record) = bytes.and_then(|bytes| sound_record(&segment, bytes)) {
                use_record(at, &record);
            }
        }
        give_back(buffer);
        Ok(1)
    })
}

/// Reads a segment from `start`, which is a multiple of the file's unit, to `end` and to the end of
/// the unit there.
fn fill(buffer: &mut AlignedBuffer, segment: &Segment, start: u64, end: u64, segment_bytes: u64) -> Result<()> {
    let end = end
        .next_multiple_of(segment.file.read_unit_bytes() as u64)
        .min(segment_bytes);
    #[allow(clippy::cast_possible_truncation)] // at most a segment
    buffer.set_len((end - start) as usize);
    segment
        .file
        .read_exact_at(buffer, start)
        .map_err(|error| Error::io(format!("read segment {:08x} at {start}", segment.number), &error))
}

/// The record at the start of `bytes`, if it is one of the segment's present use and its checksums
/// match.
fn sound_record<'a>(segment: &Segment, bytes: &'a [u8]) -> Option<Record<'a>> {
    #[allow(clippy::cast_possible_truncation)] // the low half, by definition
    let generation = segment.generation() as u32;
    Record::decode(bytes).filter(|record| record.generation == generation && record.value_matches())
}

fn give_back(buffer: &mut AlignedBuffer) {
    if buffer.capacity() > KEPT_BUFFER_BYTES_MAX {
        *buffer = AlignedBuffer::new();
    }
}
