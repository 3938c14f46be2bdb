//! Moves values to blocks: many in one sequential write, packed at 64-byte alignment into
//! page-aligned regions. Log GC destages cold values from flash, block GC moves live values of
//! mostly dead blocks.
//!
//! Invariants:
//! - A region is in one block; its records have their exact versions, so its footer entry needs
//!   none and the block need not wait for the moves to commit.
//! - A region fits in an empty block, unless a single value does not.
//!
//! On failure all values of the batch are abandoned; their former homes still have them.

use super::{
    LargeSpace, LargeValue, Space,
    block::Block,
    capacity::Origin,
    extent::ExtentWriter,
    format::{CHUNK_DATA_BYTES, ChunkEncoder, PAGE, RECORD_ALIGNMENT, RecordKind, encode_record_header, extent_bytes},
    writer::{Length, check_lengths},
};
use crate::Result;
use std::{io, ops::Range, sync::atomic::Ordering};

/// Moved values are written in regions of about this size.
const REGION_BYTES: u64 = 8 << 20;
/// Of a value that is not in RAM this much is read and written at a time.
const PIECE_BYTES: u64 = 16 * CHUNK_DATA_BYTES as u64;

/// A value to be written to a block.
#[derive(Debug, Clone, Copy)]
pub struct DestageItem<'a> {
    /// The object's key.
    pub key: &'a [u8],
    /// Its attributes, in stored form.
    pub attributes: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// Its version.
    pub version: u64,
}

impl LargeSpace {
    /// Writes many values in few sequential writes, packed. In the order of `items`. They must
    /// still be synced ([`LargeSpace::sync_all`]) before a record points to them.
    ///
    /// # Errors
    /// As [`LargeSpace::writer`]; all of them are then abandoned.
    pub fn write_batch(&self, items: &[DestageItem<'_>], origin: Origin) -> Result<Vec<LargeValue>> {
        self.space.check_writable()?;
        for item in items {
            check_lengths(item.key, item.attributes, Some(item.value.len() as u64))?;
        }
        let mut values = Vec::with_capacity(items.len());
        for now in self.regions(items) {
            let (_, bytes) = region(now, self.region_bytes());
            if let Err(error) = self.space.write_region(now, bytes, origin, &mut values) {
                values.iter().for_each(|value| self.abandoned(value));
                return Err(error);
            }
        }
        Ok(values)
    }

    /// Groups items by region: the unit of one burst of writes.
    pub fn regions<'a, 'b>(
        &self,
        items: &'a [DestageItem<'b>],
    ) -> impl Iterator<Item = &'a [DestageItem<'b>]> + use<'a, 'b> {
        let limit = self.region_bytes();
        let mut rest = items;
        std::iter::from_fn(move || {
            let (now, later) = rest.split_at(region(rest, limit).0);
            rest = later;
            (!now.is_empty()).then_some(now)
        })
    }

    /// Bytes that one region has at most, a single longer value left out.
    pub fn region_bytes(&self) -> u64 {
        let split_bytes = self.space.options.split_threshold_bytes;
        REGION_BYTES.min(split_bytes.saturating_sub(PAGE).max(PAGE))
    }

    /// Writes one value of this length piece by piece, as a region of its own: it is too long to be
    /// held in RAM, and is not in `item`. `read` appends a range of it to a buffer; the outer error
    /// is that of writing, the inner one that of reading. The value must be synced like those of a
    /// batch.
    ///
    /// # Errors
    /// As [`LargeSpace::write_batch`]; the value is then abandoned.
    pub fn write_streamed(
        &self,
        item: &DestageItem<'_>,
        length: u64,
        origin: Origin,
        mut read: impl FnMut(Range<u64>, &mut Vec<u8>) -> Result<()>,
    ) -> Result<Result<LargeValue>> {
        let known = Length::Known(length);
        let mut writer = self.begin(item.key, item.attributes, known, item.version, origin)?;
        let mut piece = Vec::new();
        for at in (0..length).step_by(PIECE_BYTES as usize) {
            piece.clear();
            if let Err(error) = read(at..length.min(at + PIECE_BYTES), &mut piece) {
                return Ok(Err(error));
            }
            writer.write(&piece)?;
        }
        writer.finish().map(Ok)
    }
}

fn record_bytes(item: &DestageItem<'_>) -> u64 {
    extent_bytes(item.key.len(), item.attributes.len(), item.value.len() as u64)
}

/// How many items go into the next region of at most `limit` bytes, and its bytes.
fn region(items: &[DestageItem<'_>], limit: u64) -> (usize, u64) {
    let mut bytes = 0_u64;
    for (count, item) in items.iter().enumerate() {
        let end = bytes.next_multiple_of(RECORD_ALIGNMENT) + record_bytes(item);
        if count > 0 && end > limit {
            return (count, bytes);
        }
        bytes = end;
    }
    (items.len(), bytes)
}

impl Space {
    fn write_region(
        &self,
        items: &[DestageItem<'_>],
        bytes: u64,
        origin: Origin,
        values: &mut Vec<LargeValue>,
    ) -> Result<()> {
        let (block, start) = self.reserve(bytes, origin)?;
        let first = values.len();
        let written = self.write_records(&block, start, bytes, items, values);
        // Before the extent is settled: the block must not look dead in between.
        for value in &values[first..] {
            block.unapplied_bytes.fetch_add(value.extent_bytes, Ordering::AcqRel);
        }
        match written {
            Ok(_) => block.settle_region(start),
            Err(_) => block.settle(start, 0),
        }
        let ordinal = block.group.mark();
        values[first..].iter_mut().for_each(|value| value.ordinal = ordinal);
        let device_bytes = written.map_err(|error| Self::write_error(&block, &error))?;
        self.count_written(origin, device_bytes);
        Ok(())
    }

    fn write_records(
        &self,
        block: &Block,
        start: u64,
        bytes: u64,
        items: &[DestageItem<'_>],
        values: &mut Vec<LargeValue>,
    ) -> io::Result<u64> {
        let mut extent = ExtentWriter::new(block, start, Some(bytes))?;
        extent.go_on(self);
        for item in items {
            extent.buffer.pad_to(RECORD_ALIGNMENT as usize);
            let place = self.place(block.number, start + extent.bytes());
            let (kind, length) = (RecordKind::Destaged, item.value.len() as u64);
            let (key, attributes) = (item.key, item.attributes);
            encode_record_header(&mut extent.buffer, place, kind, item.version, length, key, attributes);
            let mut chunks = ChunkEncoder::new(place);
            extent.push(item.value, &mut chunks)?;
            chunks.finish(&mut extent.buffer);
            values.push(LargeValue {
                block: block.number,
                offset: place.offset,
                extent_bytes: record_bytes(item),
                length,
                checksum: chunks.checksum,
                kind,
                ordinal: 0,
            });
        }
        let device_bytes = extent.flush_rest()?;
        self.buffers.give_back(extent.buffer);
        Ok(device_bytes)
    }
}
