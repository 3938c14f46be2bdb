//! Writing one value: at once, or as a stream of known or unknown length.
//!
//! Invariants:
//! - A value of unknown length that outgrows the spool has a block of its own until it ends; its
//!   first page, which holds its length, is written last.
//! - A value is written here, by its caller, unless it fits one write and its caller does not wait
//!   for it (`behind`).
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

/// A stream of unknown length is kept in RAM up to this size.
const SPOOL_BYTES_MAX: usize = 1 << 20;

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

impl LargeSpace {
    /// Starts a value. `ticket` is a number no later than its version will be; with a known
    /// `length` the space for it is reserved here. The value must still be synced and committed
    /// after `finish`.
    ///
    /// # Errors
    /// `Invalid`, `OutOfSpace`, `Failed`, I/O errors.
    pub fn writer(&self, key: &[u8], attributes: &[u8], length: Option<u64>, ticket: u64) -> Result<LargeWriter> {
        check_lengths(key, attributes, length)?;
        self.space.check_writable()?;
        let mut writer = LargeWriter {
            space: Arc::clone(&self.space),
            key: key.to_vec(),
            attributes: attributes.to_vec(),
            ticket,
            expected: length,
            behind: false,
            stage: Stage::Spool(Vec::new()),
        };
        if let Some(length) = length {
            writer.place_known(length)?;
        }
        Ok(writer)
    }
}

/// One value on its way into the space. Dropped before [`LargeWriter::finish`], it is abandoned.
#[derive(Debug)]
pub struct LargeWriter {
    space: Arc<Space>,
    key: Vec<u8>,
    attributes: Vec<u8>,
    ticket: u64,
    expected: Option<u64>,
    behind: bool,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Unknown length, still in RAM.
    Spool(Vec<u8>),
    Placed(Box<Placed>),
    Ended,
}

#[derive(Debug)]
struct Placed {
    block: Arc<Block>,
    extent: ExtentWriter,
    chunks: ChunkEncoder,
    /// The block is ours alone and the extent is not reserved yet.
    exclusive: bool,
}

impl LargeWriter {
    /// Lets [`LargeWriter::finish`] return before the value is written, if it is a short one. For
    /// values nobody waits for.
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

    /// Bytes written so far.
    #[must_use]
    pub fn length(&self) -> u64 {
        match &self.stage {
            Stage::Spool(spool) => spool.len() as u64,
            Stage::Placed(placed) => placed.chunks.length,
            Stage::Ended => 0,
        }
    }

    /// Ends the value: all of it is written (or will be, see [`LargeWriter::behind`]), but not yet
    /// durable. Commit or abandon it; sync it before its record is written.
    ///
    /// # Errors
    /// `Invalid` if fewer bytes came than announced, `OutOfSpace`, I/O errors. The value is then
    /// abandoned. Whether writing behind failed says [`LargeSpace::sync`].
    pub fn finish(mut self) -> Result<LargeValue> {
        // On an error `drop` abandons.
        self.finish_inner()
    }

    fn write_inner(&mut self, data: &[u8]) -> Result<()> {
        let length = self.length() + data.len() as u64;
        if length > self.expected.unwrap_or(VALUE_BYTES_MAX) {
            let limit = self.expected.unwrap_or(VALUE_BYTES_MAX);
            return Err(Error::invalid(format!(
                "the value is longer than the {limit} bytes announced or allowed"
            )));
        }
        self.make_room(data.len())?;
        match &mut self.stage {
            Stage::Spool(spool) => {
                spool.extend_from_slice(data);
                Ok(())
            }
            Stage::Placed(_) => self.push(data),
            Stage::Ended => Err(Error::Unavailable("the value was abandoned after an error")),
        }
    }

    /// Reserves what [`LargeWriter::write`] will need for so many bytes. Does nothing if there is
    /// room for them; may be called again when it failed.
    ///
    /// # Errors
    /// `OutOfSpace`, I/O errors. What was written stays.
    pub fn make_room(&mut self, bytes: usize) -> Result<()> {
        match &mut self.stage {
            Stage::Spool(spool) if spool.len() + bytes <= SPOOL_BYTES_MAX => Ok(()),
            Stage::Spool(spool) => {
                let spool_bytes = spool.len();
                let (block, offset) = self.reserve_unknown(room_for(spool_bytes) + room_for(bytes))?;
                self.leave_spool(|writer| writer.start_extent(block, offset, None))
            }
            Stage::Placed(placed) if placed.exclusive => {
                self.space.check_writable()?;
                let end = placed.extent.offset + placed.extent.bytes() + room_for(bytes);
                self.space.allocate(&placed.block, end)
            }
            Stage::Placed(_) | Stage::Ended => Ok(()),
        }
    }

    /// Reserves what [`LargeWriter::finish`] will need. May be called again when it failed.
    ///
    /// # Errors
    /// As [`LargeWriter::make_room`].
    pub fn make_room_for_end(&mut self) -> Result<()> {
        let Stage::Spool(spool) = &self.stage else {
            return Ok(());
        };
        let length = spool.len() as u64;
        self.leave_spool(|writer| writer.place_known(length))
    }

    /// Places the value by `place`, and then writes there what is spooled. If it cannot be placed
    /// it stays spooled.
    fn leave_spool(&mut self, place: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let Stage::Spool(spool) = &mut self.stage else {
            return Ok(());
        };
        let spooled = std::mem::take(spool);
        match place(self) {
            Ok(()) => self.push(&spooled),
            Err(error) => {
                self.stage = Stage::Spool(spooled);
                Err(error)
            }
        }
    }

    fn place_known(&mut self, length: u64) -> Result<()> {
        let bytes = extent_bytes(self.key.len(), self.attributes.len(), length);
        let (block, offset) = self.space.reserve(bytes, Origin::User)?;
        self.start_extent(block, offset, Some((bytes, length)))
    }

    /// A place in a block of its own for a value of unknown length, with so much room behind its
    /// header.
    fn reserve_unknown(&self, room: u64) -> Result<(Arc<Block>, u64)> {
        self.space.check_writable()?;
        let block = self.space.take_exclusive(SPOOL_BYTES_MAX as u64, Origin::User)?;
        let offset = with_writing(&block, |writing| Ok(writing.tail)).unwrap_or(PAGE);
        let header_bytes = extent_bytes(self.key.len(), self.attributes.len(), 0);
        match self.space.allocate(&block, offset + header_bytes + room) {
            Ok(()) => Ok((block, offset)),
            Err(error) => {
                self.space.give_back(&block);
                Err(error)
            }
        }
    }

    /// `known` is the extent's bytes and the value's length.
    fn start_extent(&mut self, block: Arc<Block>, offset: u64, known: Option<(u64, u64)>) -> Result<()> {
        let place = self.space.place(block.number, offset);
        let mut extent = match ExtentWriter::new(&self.space, &block, offset, known.map(|(bytes, _)| bytes)) {
            Ok(extent) => extent,
            Err(error) => {
                block.settle(offset, 0);
                return Err(Space::write_error(&block, &error));
            }
        };
        let length = known.map_or(0, |(_, length)| length);
        let kind = RecordKind::Put;
        encode_record_header(
            &mut extent.buffer,
            place,
            kind,
            self.ticket,
            length,
            &self.key,
            &self.attributes,
        );
        self.stage = Stage::Placed(Box::new(Placed {
            block,
            extent,
            chunks: ChunkEncoder::new(place),
            exclusive: known.is_none(),
        }));
        Ok(())
    }

    /// Writes where there is room for it already.
    fn push(&mut self, data: &[u8]) -> Result<()> {
        // After a failed sync a block is not written again, not even by those already at it.
        self.space.check_writable()?;
        let Stage::Placed(placed) = &mut self.stage else {
            return Ok(());
        };
        let Placed {
            block, extent, chunks, ..
        } = &mut **placed;
        extent
            .push(data, chunks)
            .map_err(|error| Space::write_error(block, &error))
    }

    fn finish_inner(&mut self) -> Result<LargeValue> {
        self.space.check_writable()?;
        self.make_room_for_end()?;
        let Stage::Placed(placed) = &mut self.stage else {
            return Err(Error::Unavailable("the value was abandoned after an error"));
        };
        let length = placed.chunks.length;
        if self.expected.is_some_and(|expected| expected != length) {
            let expected = self.expected.unwrap_or_default();
            return Err(Error::invalid(format!(
                "{expected} bytes were announced and {length} came"
            )));
        }
        let Placed {
            block,
            extent,
            chunks,
            exclusive,
        } = &mut **placed;
        let place = self.space.place(block.number, extent.offset);
        chunks.finish(&mut extent.buffer);
        let bytes = extent_bytes(self.key.len(), self.attributes.len(), length);
        let whole = if self.behind { extent.take_whole() } else { None };
        let (ordinal, device_bytes) = if let Some(buffer) = whole {
            let device_bytes = buffer.len() as u64;
            block.unapplied_bytes.fetch_add(bytes, Ordering::AcqRel);
            let ordinal = self.space.queue.push(block, &extent.file, place.offset, buffer);
            (ordinal, device_bytes)
        } else {
            let head = exclusive.then(|| {
                let (mut head, kind) = (AlignedBuffer::new(), RecordKind::Put);
                let (key, attributes) = (&self.key, &self.attributes);
                encode_record_header(&mut head, place, kind, self.ticket, length, key, attributes);
                head
            });
            let device_bytes = self.space.write_rest(block, extent, head, bytes)?;
            block.unapplied_bytes.fetch_add(bytes, Ordering::AcqRel);
            (block.group.mark(), device_bytes)
        };
        self.space
            .counters
            .user_bytes
            .fetch_add(device_bytes, Ordering::Relaxed);
        let value = LargeValue {
            block: block.number,
            offset: place.offset,
            extent_bytes: bytes,
            length,
            checksum: chunks.checksum,
            kind: RecordKind::Put,
            ordinal,
        };
        if let Stage::Placed(placed) = std::mem::replace(&mut self.stage, Stage::Ended) {
            self.space.buffers.give_back(placed.extent.buffer);
        }
        Ok(value)
    }

    fn abandon(&mut self) {
        let Stage::Placed(placed) = std::mem::replace(&mut self.stage, Stage::Ended) else {
            return;
        };
        let Placed {
            block,
            extent,
            exclusive,
            ..
        } = *placed;
        if exclusive {
            let split_bytes = self.space.options.split_threshold_bytes;
            let _ = with_writing(&block, |writing| {
                // Even bytes of a write that failed may have reached the device: what was allocated
                // is dead.
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

/// What so many more bytes of a value take at most, checksums and padding included.
const fn room_for(bytes: usize) -> u64 {
    stored_bytes(bytes as u64) + 2 * PAGE
}
