//! Reads records by their addresses: with one device read if the caller knows the maximum length of
//! the record, or one for several adjacent records; many of them in parallel ([`read_stretches`]).

use super::{
    address::Address,
    format::{RECORD_HEADER_BYTES, Record, RecordLayout},
    segments::{Segment, SegmentPin, Segments},
};
use crate::{
    Result,
    io::{
        AlignedBuffer,
        read_queue::{QueuedRead, ReadQueue},
    },
};
use std::{cell::RefCell, ops::Range, sync::Arc};

thread_local! {
    /// Direct reads need aligned memory; a reading thread keeps its buffers for reuse.
    static BUFFERS: RefCell<Vec<AlignedBuffer>> = const { RefCell::new(Vec::new()) };
}

/// Maximum number of buffers that a thread keeps, none longer than this,
const KEPT_BUFFERS_MAX: usize = 64;
const KEPT_BUFFER_BYTES_MAX: usize = 16 << 10;
/// except one.
const LONG_BUFFER_BYTES_MAX: usize = 1 << 20;

/// Maximum number of parallel reads, and of their bytes.
const READS_AT_ONCE_MAX: usize = 64;
const BYTES_AT_ONCE_MAX: u64 = 4 << 20;

/// Result of a read.
#[derive(Debug)]
pub enum Found<R> {
    /// A record with valid header and value.
    Record(R),
    /// No valid record: the place was reused, or is damaged. Look the key up again.
    NotARecord,
}

/// Reads the record at `address` and passes it to `use_record`. `expected_bytes` is the length of
/// the first read; a longer record costs a second one. Also returns the number of device reads.
///
/// # Errors
/// Errors of the device.
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
    let mut buffer = take_buffer();
    let unit = segment.file.read_unit_bytes() as u64;
    let start = offset / unit * unit;
    // Below a unit.
    let within = (offset - start) as usize;
    let mut reads = 0;
    let mut wanted = within + expected_bytes.max(RECORD_HEADER_BYTES);
    loop {
        let end = end_of_read(&segment, start + wanted as u64, segment_bytes);
        // At most a segment.
        buffer.set_len((end - start) as usize);
        segment.read(&mut buffer, start)?;
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
}

/// Bytes of a segment that were read by one request.
pub struct Stretch<'a> {
    segment: &'a Segment,
    /// The address of its first byte.
    first: u64,
    bytes: &'a [u8],
}

impl Stretch<'_> {
    /// The record at an address, if it is valid. `None` says nothing about a record that does not
    /// end in the stretch.
    pub fn record(&self, address: Address) -> Option<Record<'_>> {
        let within = usize::try_from(address.bytes().checked_sub(self.first)?).ok()?;
        sound_record(self.segment, self.bytes.get(within..)?)
    }
}

/// A stretch being read: its number, its segment, and the address of the first byte read.
type UnderWay<'a> = (usize, SegmentPin<'a>, u64);

/// Reads stretches of the ring in parallel, each of which is in one segment, and passes each to
/// `use_stretch` with its index in the list. Those whose segment is free by now, or that could not
/// be read, are left out: look up their values one by one to get the error. Returns the number of
/// device reads.
pub fn read_stretches(
    segments: &Segments,
    queue: &ReadQueue,
    stretches: &[Range<u64>],
    mut use_stretch: impl FnMut(usize, &Stretch<'_>),
) -> u64 {
    let mut numbered = stretches.iter().enumerate();
    let mut made = 0;
    loop {
        let (reads, under_way) = begin(segments, &mut numbered);
        if reads.is_empty() {
            return made;
        }
        made += reads.len() as u64;
        for (read, (number, segment, first)) in queue.read(reads).into_iter().zip(under_way) {
            if let Ok(bytes) = read.bytes() {
                let segment = &segment;
                use_stretch(number, &Stretch { segment, first, bytes });
            }
            give_back(read.into_buffer());
        }
    }
}

/// Starts the reads of as many stretches as are read in parallel.
fn begin<'a>(
    segments: &'a Segments,
    stretches: &mut impl Iterator<Item = (usize, &'a Range<u64>)>,
) -> (Vec<QueuedRead>, Vec<UnderWay<'a>>) {
    let segment_bytes = segments.segment_bytes();
    let (mut reads, mut under_way, mut bytes) = (Vec::new(), Vec::new(), 0);
    while reads.len() < READS_AT_ONCE_MAX && bytes < BYTES_AT_ONCE_MAX {
        let Some((at, stretch)) = stretches.next() else {
            break;
        };
        let (number, offset) = (stretch.start / segment_bytes, stretch.start % segment_bytes);
        let Some(segment) = u32::try_from(number).ok().and_then(|number| segments.pin(number)) else {
            continue;
        };
        let unit = segment.file.read_unit_bytes() as u64;
        let start = offset / unit * unit;
        let end = end_of_read(&segment, offset + (stretch.end - stretch.start), segment_bytes);
        let mut buffer = take_buffer();
        // At most a segment.
        buffer.set_len((end - start) as usize);
        bytes += end - start;
        reads.push(QueuedRead::new(Arc::clone(&segment.file), start, buffer));
        under_way.push((at, segment, number * segment_bytes + start));
    }
    (reads, under_way)
}

/// End of a read of a segment that needs the bytes before `end`: the end of the unit that contains
/// it.
fn end_of_read(segment: &Segment, end: u64, segment_bytes: u64) -> u64 {
    end.next_multiple_of(segment.file.read_unit_bytes() as u64)
        .min(segment_bytes)
}

/// The record at the start of `bytes`, if it is one of the segment's present use and its checksums
/// match.
fn sound_record<'a>(segment: &Segment, bytes: &'a [u8]) -> Option<Record<'a>> {
    // The low half, as the format defines.
    let generation = segment.generation() as u32;
    Record::decode(bytes).filter(|record| record.generation == generation && record.value_matches())
}

fn take_buffer() -> AlignedBuffer {
    BUFFERS.with_borrow_mut(Vec::pop).unwrap_or_default()
}

fn give_back(buffer: AlignedBuffer) {
    BUFFERS.with_borrow_mut(|buffers| {
        let bytes_max = if buffers.is_empty() {
            LONG_BUFFER_BYTES_MAX
        } else {
            KEPT_BUFFER_BYTES_MAX
        };
        if buffers.len() < KEPT_BUFFERS_MAX && buffer.capacity() <= bytes_max {
            buffers.push(buffer);
        }
    });
}
