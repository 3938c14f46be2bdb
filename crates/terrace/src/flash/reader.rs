//! Reads one record by its address: one device read when the caller knows how long it may be.

use super::{
    address::Address,
    format::{RECORD_HEADER_BYTES, Record, RecordLayout},
    segments::Segments,
};
use crate::{Error, Result, io::AlignedBuffer};
use std::cell::RefCell;

thread_local! {
    /// Direct reads need aligned memory; one buffer per reading thread saves an allocation per read.
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

/// Reads the record at `address` and hands it to `use_record`. `expected_bytes` is what to read at once; a longer
/// record costs a second read. Returns the number of device reads made too.
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
            let end = (start + wanted as u64).next_multiple_of(unit).min(segment_bytes);
            #[allow(clippy::cast_possible_truncation)] // at most a segment
            buffer.set_len((end - start) as usize);
            segment
                .file
                .read_exact_at(buffer, start)
                .map_err(|error| Error::io(format!("read segment {number:08x} at {start}"), &error))?;
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
        #[allow(clippy::cast_possible_truncation)] // the low half, by definition
        let generation = segment.generation() as u32;
        let found = match Record::decode(&buffer[within..]) {
            Some(record) if record.generation == generation && record.value_matches() => {
                Found::Record(use_record(&record))
            }
            _ => Found::NotARecord,
        };
        if buffer.capacity() > KEPT_BUFFER_BYTES_MAX {
            *buffer = AlignedBuffer::new();
        }
        Ok((found, reads))
    })
}
