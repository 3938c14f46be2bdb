//! Writing values: one of known or unknown length as a stream, one at once, many small ones in one go.
//!
//! Invariants:
//! - An extent is reserved under a short lock and written without one.
//! - A value of unknown length that outgrows the spool has a block of its own until it ends; its first page,
//!   which holds its length, is written last.
//!
//! On failure, or when a writer is dropped unfinished, the extent is abandoned: dead bytes, never reused.

use super::{
    LargeSpace, LargeValue, Space,
    block::{Block, Writing},
    format::{ChunkEncoder, ExtentKind, PAGE, RecordKind, encode_record_header, extent_bytes},
};
use crate::{
    ATTRIBUTES_BYTES_MAX, Error, KEY_BYTES_MAX, Result, Tier, VALUE_BYTES_MAX,
    io::{AlignedBuffer, DiskFile, PAGE_BYTES},
};
use std::{
    io,
    sync::{Arc, atomic::Ordering},
};

/// A stream of unknown length is kept in RAM up to this size.
const SPOOL_BYTES_MAX: usize = 1 << 20;
/// Size of one write of a longer extent.
const STEP_BYTES: usize = 1 << 20;
/// An extent up to this size is one write.
const ONE_WRITE_BYTES_MAX: u64 = (STEP_BYTES + STEP_BYTES / 4) as u64;
/// A longer extent is reserved in a block of its own, so that finding space for it holds up nobody.
const SHARED_EXTENT_BYTES_MAX: u64 = 16 << 20;
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

fn check_lengths(key: &[u8], attributes: &[u8], length: Option<u64>) -> Result<()> {
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
    /// Starts a value. `ticket` is a number no later than its version will be; with a known `length` the
    /// space for it is reserved here. The value must still be synced and committed after `finish`.
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
            stage: Stage::Spool(Vec::new()),
        };
        if let Some(length) = length {
            writer.place_known(length)?;
        }
        Ok(writer)
    }

    /// Writes a whole value. See [`LargeSpace::writer`].
    ///
    /// # Errors
    /// As [`LargeSpace::writer`].
    pub fn write(&self, key: &[u8], attributes: &[u8], value: &[u8], ticket: u64) -> Result<LargeValue> {
        let mut writer = self.writer(key, attributes, Some(value.len() as u64), ticket)?;
        writer.write(value)?;
        writer.finish()
    }

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
        let mut rest = items;
        while !rest.is_empty() {
            let (count, bytes) = region(rest);
            let (now, later) = rest.split_at(count);
            if let Err(error) = self.space.write_region(now, bytes, &mut values) {
                values.iter().for_each(|value| self.abandoned(value));
                return Err(error);
            }
            rest = later;
        }
        Ok(values)
    }
}

fn record_bytes(item: &DestageItem<'_>) -> u64 {
    extent_bytes(item.key.len(), item.attributes.len(), item.value.len() as u64)
}

/// How many items go into the next region, and its bytes.
fn region(items: &[DestageItem<'_>]) -> (usize, u64) {
    let mut bytes = 0_u64;
    for (count, item) in items.iter().enumerate() {
        let end = bytes.next_multiple_of(super::format::RECORD_ALIGNMENT) + record_bytes(item);
        if count > 0 && end > REGION_BYTES {
            return (count, bytes);
        }
        bytes = end;
    }
    (items.len(), bytes)
}

impl Space {
    /// Reserves an extent of known size.
    fn reserve(&self, bytes: u64) -> Result<(Arc<Block>, u64)> {
        self.check_writable()?;
        let split_bytes = self.options.split_threshold_bytes;
        if bytes > SHARED_EXTENT_BYTES_MAX.min(split_bytes) {
            let block = self.take_exclusive(bytes)?;
            let reserved = with_writing(&block, |writing| writing.reserve(bytes, split_bytes));
            self.give_back(&block);
            let offset = reserved.map_err(|error| out_of_space(&block, &error))?;
            let refused = || Error::Unavailable("a block closed while an extent was reserved in it; write again");
            return Ok((block, offset.ok_or_else(refused)?));
        }
        let mut shared = self.shared.lock();
        loop {
            if let Some(block) = shared.as_ref().map(Arc::clone) {
                let reserved = with_writing(&block, |writing| {
                    let offset = writing.reserve(bytes, split_bytes);
                    offset.map(|offset| (offset, writing.closed))
                });
                let (offset, closed) = reserved.map_err(|error| out_of_space(&block, &error))?;
                if closed {
                    self.full.lock().extend(shared.take());
                }
                if let Some(offset) = offset {
                    return Ok((block, offset));
                }
            }
            let idle = self.idle.lock().pop();
            *shared = Some(idle.map_or_else(|| self.create_block(), Ok)?);
        }
    }

    /// An open block for one writer: an idle one that has room for `bytes`, or a new one.
    fn take_exclusive(&self, bytes: u64) -> Result<Arc<Block>> {
        let fits = |block: &Arc<Block>| {
            let end = |writing: &mut Writing| Ok(writing.tail + bytes);
            with_writing(block, end).is_ok_and(|end| end <= self.options.split_threshold_bytes)
        };
        let mut idle = self.idle.lock();
        if let Some(at) = idle.iter().position(fits) {
            return Ok(idle.swap_remove(at));
        }
        drop(idle);
        self.create_block()
    }

    fn give_back(&self, block: &Arc<Block>) {
        let closed = with_writing(block, |writing| Ok(writing.closed)).unwrap_or(true);
        let list = if closed { &self.full } else { &self.idle };
        list.lock().push(Arc::clone(block));
    }

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
        let mark = block.group.mark();
        for value in &mut values[first..] {
            value.sync_mark = mark;
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
            extent.buffer.pad_to(super::format::RECORD_ALIGNMENT as usize);
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
                sync_mark: 0,
            });
        }
        let device_bytes = extent.flush_rest()?;
        self.give_buffer_back(extent.buffer);
        Ok(device_bytes)
    }
}

/// Runs `action` on a block's writable side. A block that has none any more counts as closed.
fn with_writing<T>(block: &Block, action: impl FnOnce(&mut Writing) -> io::Result<T>) -> io::Result<T> {
    match block.writing.lock().as_mut() {
        Some(writing) => action(writing),
        None => Err(io::Error::other("the block was sealed")),
    }
}

fn out_of_space(block: &Block, error: &io::Error) -> Error {
    let path = super::block_path(block.number);
    Error::io_on(Tier::Large, format!("reserving space in {}", path.display()), error)
}

/// The bytes of one extent on their way to the device, in aligned steps.
#[derive(Debug)]
struct ExtentWriter {
    file: Arc<dyn DiskFile>,
    offset: u64,
    /// Bytes of the extent before the buffer.
    flushed: u64,
    buffer: AlignedBuffer,
    /// Whole pages are written once the buffer is this long.
    step_bytes: usize,
    /// For an unknown length: keep the first page back until [`ExtentWriter::flush_first`].
    first_page: Option<AlignedBuffer>,
    device_bytes: u64,
}

impl ExtentWriter {
    fn new(space: &Space, block: &Block, offset: u64, bytes: Option<u64>) -> io::Result<Self> {
        let file = block
            .writing_file()
            .ok_or_else(|| io::Error::other("the block was sealed"))?;
        let one_write = bytes
            .filter(|&bytes| bytes <= ONE_WRITE_BYTES_MAX)
            .and_then(|bytes| bytes.try_into().ok());
        let mut buffer = space.buffer();
        buffer.clear();
        // One chunk checksum may follow the last byte that fits.
        buffer.reserve(one_write.unwrap_or(STEP_BYTES) + 2 * PAGE_BYTES);
        Ok(Self {
            file,
            offset,
            flushed: 0,
            buffer,
            step_bytes: one_write.map_or(STEP_BYTES, |bytes: usize| {
                bytes.next_multiple_of(PAGE_BYTES) + PAGE_BYTES
            }),
            first_page: bytes.is_none().then(AlignedBuffer::new),
            device_bytes: 0,
        })
    }

    /// Bytes of the extent so far.
    fn bytes(&self) -> u64 {
        self.flushed + self.buffer.len() as u64
    }

    fn push(&mut self, mut data: &[u8], chunks: &mut ChunkEncoder) -> io::Result<()> {
        while !data.is_empty() {
            // A whole step may be followed by a checksum; what exceeds a page multiple is carried over.
            let room = self.step_bytes.saturating_sub(self.buffer.len()).max(1);
            let taken = chunks.push(&data[..data.len().min(room)], &mut self.buffer);
            data = &data[taken..];
            if self.buffer.len() >= self.step_bytes {
                self.flush_pages()?;
            }
        }
        Ok(())
    }

    fn flush_pages(&mut self) -> io::Result<()> {
        let whole = self.buffer.len() / PAGE_BYTES * PAGE_BYTES;
        let mut start = 0;
        if self.flushed == 0
            && whole > 0
            && let Some(first) = &mut self.first_page
        {
            first.clear();
            first.extend_from_slice(&self.buffer[..PAGE_BYTES]);
            start = PAGE_BYTES;
        }
        if start < whole {
            self.file
                .write_all_at(&self.buffer[start..whole], self.offset + self.flushed + start as u64)?;
            self.device_bytes += (whole - start) as u64;
        }
        let rest = self.buffer.len() - whole;
        self.buffer.copy_within(whole.., 0);
        self.buffer.set_len(rest);
        self.flushed += whole as u64;
        Ok(())
    }

    /// Writes what is left, padded with zeros to a page. Returns the bytes written to the device in all.
    fn flush_rest(&mut self) -> io::Result<u64> {
        self.buffer.pad_to_page();
        self.flush_pages()?;
        Ok(self.device_bytes)
    }

    /// Writes the first page, its start replaced by `head`.
    fn flush_first(&mut self, head: &[u8]) -> io::Result<u64> {
        if let Some(first) = &mut self.first_page {
            let bytes = head.len().min(PAGE_BYTES);
            first[..bytes].copy_from_slice(&head[..bytes]);
            self.file.write_all_at(first, self.offset)?;
            self.device_bytes += PAGE;
        }
        Ok(self.device_bytes)
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
    /// Appends to the value.
    ///
    /// # Errors
    /// `Invalid` if it gets longer than announced or allowed, `OutOfSpace`, I/O errors. The value is then
    /// abandoned; further calls fail.
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

    /// Ends the value: all of it is written, but not yet durable. Sync it, then commit or abandon it.
    ///
    /// # Errors
    /// `Invalid` if fewer bytes came than announced, `OutOfSpace`, I/O errors. The value is then abandoned.
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
        match &mut self.stage {
            Stage::Spool(spool) if spool.len() + data.len() <= SPOOL_BYTES_MAX => {
                spool.extend_from_slice(data);
                Ok(())
            }
            Stage::Spool(spool) => {
                let spooled = std::mem::take(spool);
                self.place_unknown()?;
                self.push(&spooled)?;
                self.push(data)
            }
            Stage::Placed(_) => self.push(data),
            Stage::Ended => Err(Error::Unavailable("the value was abandoned after an error")),
        }
    }

    fn place_known(&mut self, length: u64) -> Result<()> {
        let bytes = extent_bytes(self.key.len(), self.attributes.len(), length);
        let (block, offset) = self.space.reserve(bytes)?;
        self.start_extent(block, offset, Some((bytes, length)))
    }

    fn place_unknown(&mut self) -> Result<()> {
        self.space.check_writable()?;
        let block = self.space.take_exclusive(SPOOL_BYTES_MAX as u64)?;
        let offset = with_writing(&block, |writing| Ok(writing.tail)).unwrap_or(PAGE);
        self.start_extent(block, offset, None)
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

    fn push(&mut self, data: &[u8]) -> Result<()> {
        let split_bytes = self.space.options.split_threshold_bytes;
        let Stage::Placed(placed) = &mut self.stage else {
            return Ok(());
        };
        let Placed {
            block,
            extent,
            chunks,
            exclusive,
        } = &mut **placed;
        if *exclusive {
            // Room for all of it before any of it is written, checksums and padding included.
            let end = extent.offset + extent.bytes() + super::format::stored_bytes(data.len() as u64) + 2 * PAGE;
            let allocated = with_writing(block, |writing| {
                writing.allocate(end.next_multiple_of(PAGE), split_bytes)
            });
            allocated.map_err(|error| out_of_space(block, &error))?;
        }
        extent
            .push(data, chunks)
            .map_err(|error| Space::write_error(block, &error))
    }

    fn finish_inner(&mut self) -> Result<LargeValue> {
        if let Stage::Spool(spool) = &mut self.stage {
            let spooled = std::mem::take(spool);
            self.place_known(spooled.len() as u64)?;
            self.push(&spooled)?;
        }
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
        let mut device_bytes = extent.flush_rest().map_err(|error| Space::write_error(block, &error))?;
        if *exclusive {
            let mut head = AlignedBuffer::new();
            encode_record_header(
                &mut head,
                place,
                RecordKind::Put,
                self.ticket,
                length,
                &self.key,
                &self.attributes,
            );
            device_bytes = extent
                .flush_first(&head)
                .map_err(|error| Space::write_error(block, &error))?;
            let split_bytes = self.space.options.split_threshold_bytes;
            let noted = with_writing(block, |writing| {
                writing.push(place.offset, bytes, split_bytes);
                Ok(())
            });
            noted.map_err(|error| Space::write_error(block, &error))?;
            self.space.give_back(block);
        }
        self.space
            .counters
            .user_bytes
            .fetch_add(device_bytes, Ordering::Relaxed);
        block.unapplied_bytes.fetch_add(bytes, Ordering::AcqRel);
        let value = LargeValue {
            block: block.number,
            offset: place.offset,
            extent_bytes: bytes,
            length,
            checksum: chunks.checksum,
            kind: RecordKind::Put,
            sync_mark: block.group.mark(),
        };
        if let Stage::Placed(placed) = std::mem::replace(&mut self.stage, Stage::Ended) {
            self.space.give_buffer_back(placed.extent.buffer);
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
                // Even bytes of a write that failed may have reached the device: what was allocated is dead.
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
        self.space.give_buffer_back(extent.buffer);
    }
}

impl Drop for LargeWriter {
    fn drop(&mut self) {
        self.abandon();
    }
}
