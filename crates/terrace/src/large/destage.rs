//! Destaging: many cold values in one sequential write, packed at 64-byte alignment into page-aligned regions.
//!
//! Invariants:
//! - A region lies in one block; its records carry their exact versions, so its footer entry needs none and
//!   the block need not wait for the moves to commit.
//!
//! On failure all values of the batch are abandoned; the flash log still has them.

use super::{
    LargeSpace, LargeValue, Space,
    block::Block,
    extent::{ExtentWriter, with_writing},
    format::{ChunkEncoder, ExtentKind, RECORD_ALIGNMENT, RecordKind, encode_record_header, extent_bytes},
    writer::check_lengths,
};
use crate::Result;
use std::{io, sync::atomic::Ordering};

/// Destaged values are written in regions of about this size.
const REGION_BYTES: u64 = 8 << 20;

/// A small value on its way to a block.
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
    /// Writes many values in few sequential writes, packed. In the order of `items`. They must still be synced
    /// ([`LargeSpace::sync_all`]) before a record points to them.
    ///
    /// # Errors
    /// As [`LargeSpace::writer`]; all of them are then abandoned.
    pub fn write_batch(&self, items: &[DestageItem<'_>]) -> Result<Vec<LargeValue>> {
        self.space.check_writable()?;
        for item in items {
            check_lengths(item.key, item.attributes, Some(item.value.len() as u64))?;
        }
        let mut values = Vec::with_capacity(items.len());
        for now in regions(items) {
            if let Err(error) = self.space.write_region(now, region(now).1, &mut values) {
                values.iter().for_each(|value| self.abandoned(value));
                return Err(error);
            }
        }
        Ok(values)
    }
}

/// Divides items into those of one region each: what is written in one burst.
pub fn regions<'a, 'b>(items: &'a [DestageItem<'b>]) -> impl Iterator<Item = &'a [DestageItem<'b>]> {
    let mut rest = items;
    std::iter::from_fn(move || {
        let (now, later) = rest.split_at(region(rest).0);
        rest = later;
        (!now.is_empty()).then_some(now)
    })
}

fn record_bytes(item: &DestageItem<'_>) -> u64 {
    extent_bytes(item.key.len(), item.attributes.len(), item.value.len() as u64)
}

/// How many items go into the next region, and its bytes.
fn region(items: &[DestageItem<'_>]) -> (usize, u64) {
    let mut bytes = 0_u64;
    for (count, item) in items.iter().enumerate() {
        let end = bytes.next_multiple_of(RECORD_ALIGNMENT) + record_bytes(item);
        if count > 0 && end > REGION_BYTES {
            return (count, bytes);
        }
        bytes = end;
    }
    (items.len(), bytes)
}

impl Space {
    fn write_region(&self, items: &[DestageItem<'_>], bytes: u64, values: &mut Vec<LargeValue>) -> Result<()> {
        let (block, start) = self.reserve(bytes)?;
        let _ = with_writing(&block, |writing| {
            let found = writing.extents.iter_mut().rfind(|extent| extent.entry.offset == start);
            found
                .into_iter()
                .for_each(|extent| extent.entry.kind = ExtentKind::Region);
            Ok(())
        });
        let first = values.len();
        let written = self.write_records(&block, start, bytes, items, values);
        // The records carry their versions, so the footer need not wait for the moves to commit.
        block.settle(start, 0);
        let ordinal = block.group.mark();
        for value in &mut values[first..] {
            value.ordinal = ordinal;
            block.unapplied_bytes.fetch_add(value.extent_bytes, Ordering::AcqRel);
        }
        let device_bytes = written.map_err(|error| Self::write_error(&block, &error))?;
        self.counters.destaged_bytes.fetch_add(device_bytes, Ordering::Relaxed);
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
        let mut extent = ExtentWriter::new(self, block, start, Some(bytes))?;
        for item in items {
            extent.buffer.pad_to(RECORD_ALIGNMENT as usize);
            let place = self.place(block.number, start + extent.bytes());
            let length = item.value.len() as u64;
            encode_record_header(
                &mut extent.buffer,
                place,
                RecordKind::Destaged,
                item.version,
                length,
                item.key,
                item.attributes,
            );
            let mut chunks = ChunkEncoder::new(place);
            extent.push(item.value, &mut chunks)?;
            chunks.finish(&mut extent.buffer);
            values.push(LargeValue {
                block: block.number,
                offset: place.offset,
                extent_bytes: record_bytes(item),
                length,
                checksum: chunks.checksum,
                kind: RecordKind::Destaged,
                ordinal: 0,
            });
        }
        let device_bytes = extent.flush_rest()?;
        self.buffers.give_back(extent.buffer);
        Ok(device_bytes)
    }
}
