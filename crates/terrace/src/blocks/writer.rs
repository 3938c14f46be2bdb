//! Writes one value: in one call, or as a stream of known or unknown length; a caller's, or a moved
//! one.
//!
//! Invariants:
//! - A value of unknown length has a block of its own until it ends; its first page, which holds
//!   its length, is written last.
//! - A value is written here, by its caller, unless it fits in one write and its caller does not
//!   wait for it (`behind`).
//! - Nothing is written once the space has failed.
//!
//! On failure, or when a writer is dropped unfinished, the extent is abandoned: dead bytes, never
//! reused.

use super::{
    LargeSpace, LargeValue, Space,
    block::Block,
    capacity::Origin,
    extent::{ExtentWriter, with_writing},
    format::{ChunkEncoder, PAGE, RecordKind, encode_record_header, extent_bytes, stored_bytes},
};
use crate::{ATTRIBUTES_BYTES_MAX, Error, KEY_BYTES_MAX, Result, VALUE_BYTES_MAX, io::AlignedBuffer};
use std::{
    io,
    sync::{Arc, atomic::Ordering},
};

const WAS_ABANDONED: Error = Error::Unavailable("the value was abandoned after an error");

pub(super) fn check_lengths(key: &[u8], attributes: &[u8], length: Option<u64>) -> Result<()> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err(Error::invalid(format!(
            "a key has 1 to {KEY_BYTES_MAX} bytes, this one {}",
            key.len()
        )));
    }
    if attributes.len() > ATTRIBUTES_BYTES_MAX {
        return Err(Error::invalid(format!(
            "attributes are longer than {ATTRIBUTES_BYTES_MAX} bytes"
        )));
    }
    if length.is_some_and(|length| length > VALUE_BYTES_MAX) {
        return Err(Error::invalid(format!(
            "the value is longer than {VALUE_BYTES_MAX} bytes"
        )));
    }
    Ok(())
}

/// How long a value will be.
#[derive(Debug, Clone, Copy)]
pub enum Length {
    /// This many bytes.
    Known(u64),
    /// Unknown; room for this many bytes is needed immediately.
    AtLeast(u64),
}

impl LargeSpace {
    /// Starts a caller's value. `ticket` is a lower bound of its version. If `length` is known, the
    /// space is reserved here. The value must still be synced and committed after `finish`.
    ///
    /// # Errors
    /// `Invalid`, `OutOfSpace`, `Failed`, I/O errors.
    pub fn writer(&self, key: &[u8], attributes: &[u8], length: Length, ticket: u64) -> Result<LargeWriter> {
        self.begin(key, attributes, length, ticket, Origin::User)
    }

    /// Starts a value. One that is moved (`origin`) has its version as its `ticket`.
    pub(super) fn begin(
        &self,
        key: &[u8],
        attributes: &[u8],
        length: Length,
        ticket: u64,
        origin: Origin,
    ) -> Result<LargeWriter> {
        let space = &self.space;
        let expected = match length {
            Length::Known(length) => Some(length),
            Length::AtLeast(_) => None,
        };
        check_lengths(key, attributes, expected)?;
        space.check_writable()?;
        let bytes_of = |length| extent_bytes(key.len(), attributes.len(), length);
        let (block, offset) = match length {
            Length::Known(length) => space.reserve(bytes_of(length), origin)?,
            Length::AtLeast(bytes) => space.reserve_unknown(bytes_of(0) + room_for(bytes), origin)?,
        };
        let place = space.place(block.number, offset);
        let extent = ExtentWriter::new(&block, offset, expected.map(bytes_of));
        let mut extent = extent.map_err(|error| {
            block.settle(offset, 0);
            Space::write_error(&block, &error)
        })?;
        let length = expected.unwrap_or_default();
        encode_record_header(
            &mut extent.buffer,
            place,
            origin.kind(),
            ticket,
            length,
            key,
            attributes,
        );
        let placed = Placed {
            block,
            extent,
            chunks: ChunkEncoder::new(place),
        };
        Ok(LargeWriter {
            space: Arc::clone(space),
            key: key.to_vec(),
            attributes: attributes.to_vec(),
            ticket,
            expected,
            origin,
            behind: false,
            placed: Some(Box::new(placed)),
        })
    }
}

/// A value being written into the space. If it is dropped before [`LargeWriter::finish`], it is
/// abandoned.
#[derive(Debug)]
pub struct LargeWriter {
    space: Arc<Space>,
    key: Vec<u8>,
    attributes: Vec<u8>,
    ticket: u64,
    /// The length that was announced. Without one the block is this value's alone, and its extent
    /// is reserved when it ends.
    expected: Option<u64>,
    origin: Origin,
    behind: bool,
    /// `None` once it has ended or was abandoned.
    placed: Option<Box<Placed>>,
}

#[derive(Debug)]
struct Placed {
    block: Arc<Block>,
    extent: ExtentWriter,
    chunks: ChunkEncoder,
}

impl LargeWriter {
    /// Lets [`LargeWriter::finish`] return before the value is written, if it is a short one. For
    /// values that no caller waits for.
    #[must_use]
    pub const fn behind(mut self) -> Self {
        self.behind = true;
        self
    }

    /// Appends to the value.
    ///
    /// # Errors
    /// `Invalid` if it gets longer than announced or allowed, `OutOfSpace`, I/O errors. The value
    /// is then abandoned; further calls fail.
    pub fn write(&mut self, data: &[u8]) -> Result<()> {
        let result = self.write_inner(data);
        if result.is_err() {
            self.abandon();
        }
        result
    }

    /// Writes the buffered bytes and frees their memory, except for less than a page, until more
    /// are appended.
    ///
    /// # Errors
    /// As [`LargeWriter::write`].
    pub fn rest(&mut self) -> Result<()> {
        self.space.check_writable()?;
        let placed = self.placed.as_mut().ok_or(WAS_ABANDONED)?;
        let rested = placed.extent.rest(&self.space);
        let rested = rested.map_err(|error| Space::write_error(&placed.block, &error));
        if rested.is_err() {
            self.abandon();
        }
        rested
    }

    /// RAM that it takes.
    #[cfg(test)]
    pub fn buffer_bytes(&self) -> usize {
        self.placed.as_ref().map_or(0, |placed| placed.extent.buffer.capacity())
    }

    /// Ends the value: all of it is written (or will be, see [`LargeWriter::behind`]), but not yet
    /// durable. Commit or abandon it; sync it before its record is written.
    ///
    /// # Errors
    /// `Invalid` if there were fewer bytes than announced, `OutOfSpace`, I/O errors. The value is
    /// then abandoned. [`LargeSpace::sync_all`] returns failures of write-behind.
    pub fn finish(mut self) -> Result<LargeValue> {
        // On an error `drop` abandons.
        self.finish_inner()
    }

    fn write_inner(&mut self, data: &[u8]) -> Result<()> {
        let written = self.placed.as_ref().map_or(0, |placed| placed.chunks.length);
        let limit = self.expected.unwrap_or(VALUE_BYTES_MAX);
        if written + data.len() as u64 > limit {
            return Err(Error::invalid(format!(
                "the value is longer than the {limit} bytes announced or allowed"
            )));
        }
        self.make_room(data.len() as u64)?;
        // After a failed sync a block is not written again, not even by those already at it.
        self.space.check_writable()?;
        let placed = self.placed.as_mut().ok_or(WAS_ABANDONED)?;
        let Placed { block, extent, chunks } = &mut **placed;
        extent.go_on(&self.space);
        let pushed = extent.push(data, chunks);
        pushed.map_err(|error| Space::write_error(block, &error))
    }

    /// Reserves the space that [`LargeWriter::write`] needs for this many bytes. Does nothing if
    /// there is room for them; may be called again after a failure.
    ///
    /// # Errors
    /// `OutOfSpace`, I/O errors. What was written stays.
    pub fn make_room(&self, bytes: u64) -> Result<()> {
        match &self.placed {
            Some(placed) if self.expected.is_none() => {
                self.space.check_writable()?;
                let end = placed.extent.offset + placed.extent.bytes() + room_for(bytes);
                self.space.allocate(&placed.block, end, self.origin)
            }
            _ => Ok(()),
        }
    }

    fn finish_inner(&mut self) -> Result<LargeValue> {
        self.space.check_writable()?;
        let placed = self.placed.as_mut().ok_or(WAS_ABANDONED)?;
        let Placed { block, extent, chunks } = &mut **placed;
        let length = chunks.length;
        if let Some(expected) = self.expected.filter(|expected| *expected != length) {
            return Err(Error::invalid(format!(
                "{expected} bytes were announced and {length} came"
            )));
        }
        let (kind, place) = (self.origin.kind(), self.space.place(block.number, extent.offset));
        chunks.finish(&mut extent.buffer);
        let bytes = extent_bytes(self.key.len(), self.attributes.len(), length);
        let whole = if self.behind { extent.take_whole() } else { None };
        let (ordinal, device_bytes) = if let Some(buffer) = whole {
            let device_bytes = buffer.len() as u64;
            block.unapplied_bytes.fetch_add(bytes, Ordering::AcqRel);
            let ordinal = self.space.queue.push(block, &extent.file, place.offset, buffer);
            (ordinal, device_bytes)
        } else {
            let head = self.expected.is_none().then(|| {
                let mut head = AlignedBuffer::new();
                encode_record_header(&mut head, place, kind, self.ticket, length, &self.key, &self.attributes);
                head
            });
            let device_bytes = self.space.write_rest(block, extent, head, bytes)?;
            block.unapplied_bytes.fetch_add(bytes, Ordering::AcqRel);
            (block.group.mark(), device_bytes)
        };
        if kind == RecordKind::Destaged {
            block.settle_region(place.offset);
        }
        self.space.count_written(self.origin, device_bytes);
        let value = LargeValue {
            block: block.number,
            offset: place.offset,
            extent_bytes: bytes,
            length,
            checksum: chunks.checksum,
            kind,
            ordinal,
        };
        if let Some(placed) = self.placed.take() {
            self.space.buffers.give_back(placed.extent.buffer);
        }
        Ok(value)
    }

    fn abandon(&mut self) {
        let Some(placed) = self.placed.take() else { return };
        let Placed { block, extent, .. } = *placed;
        if self.expected.is_none() {
            let split_bytes = self.space.options.split_threshold_bytes;
            let _ = with_writing(&block, |writing| {
                // Even bytes of a failed write may have reached the device: the allocated range is
                // dead.
                let end = writing.allocated_bytes.max(extent.offset + PAGE);
                let touched = (extent.offset + extent.bytes() + PAGE).next_multiple_of(PAGE).min(end);
                writing.push(extent.offset, touched - extent.offset, split_bytes);
                Ok(())
            });
            block.settle(extent.offset, 0);
            self.space.give_back(&block);
        } else {
            block.settle(extent.offset, 0);
        }
        self.space.buffers.give_back(extent.buffer);
    }
}

impl Space {
    /// A place in a block of its own for a value of unknown length, with so much room.
    fn reserve_unknown(&self, room: u64, origin: Origin) -> Result<(Arc<Block>, u64)> {
        let block = self.take_exclusive(room, origin)?;
        let offset = with_writing(&block, |writing| Ok(writing.tail)).unwrap_or(PAGE);
        match self.allocate(&block, offset + room, origin) {
            Ok(()) => Ok((block, offset)),
            Err(error) => {
                self.give_back(&block);
                Err(error)
            }
        }
    }

    /// Ends an extent on the device: its last pages, and for one of unknown length the first, which
    /// begins with `head`. Returns the bytes written of it in all.
    fn write_rest(
        &self,
        block: &Arc<Block>,
        extent: &mut ExtentWriter,
        head: Option<AlignedBuffer>,
        bytes: u64,
    ) -> Result<u64> {
        let failed = |error: io::Error| Self::write_error(block, &error);
        let device_bytes = extent.flush_rest().map_err(failed)?;
        let Some(head) = head else { return Ok(device_bytes) };
        let device_bytes = extent.flush_first(&head).map_err(failed)?;
        let split_bytes = self.options.split_threshold_bytes;
        let noted = with_writing(block, |writing| {
            writing.push(extent.offset, bytes, split_bytes);
            Ok(())
        });
        noted.map_err(failed)?;
        self.give_back(block);
        Ok(device_bytes)
    }
}

impl Drop for LargeWriter {
    fn drop(&mut self) {
        self.abandon();
    }
}

/// Maximum bytes that this many more bytes of a value take, checksums and padding included.
const fn room_for(bytes: u64) -> u64 {
    stored_bytes(bytes) + 2 * PAGE
}
