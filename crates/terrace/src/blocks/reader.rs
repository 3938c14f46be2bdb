//! Reads values: whole, by range, or in pieces. Every returned byte was verified.
//!
//! Invariants:
//! - A value up to 1 MiB is read whole in one device read; a range reads only the chunks it
//!   touches, in one device read per 18 chunks.
//! - A reader pins its block: the file is not deleted while it is read.
//!
//! On failure: bytes that do not match are an `Error::Corruption` that names block and offset;
//! nothing of the damaged chunk is returned.

use super::{
    LargeSpace, Space,
    block::Block,
    block_path,
    format::{
        CHUNK_BYTES, CHUNK_DATA_BYTES, PAGE, Place, RECORD_ALIGNMENT, RECORD_HEADER_BYTES, RecordHeader, decode_chunk,
        decode_record_header, stored_bytes,
    },
    nearer::{NearReader, Source, Wanted},
};
use crate::{
    ATTRIBUTES_BYTES_MAX, Error, KEY_BYTES_MAX, Result, VALUE_BYTES_MAX,
    api::object::Extent,
    io::{AlignedBuffer, DiskFile},
    metrics::count,
};
use bytes::Bytes;
use std::{io, ops::Range, sync::Arc};

/// Values up to this length are read whole in one device read.
const ONE_READ_BYTES_MAX: u64 = 1 << 20;
/// Chunks per device read of a range: 1 MiB of value, wherever it starts.
const CHUNKS_PER_READ: u64 = 18;
/// Bytes of a chunk, the unit of verification.
pub const CHUNK_DATA: u64 = CHUNK_DATA_BYTES as u64;
/// Bytes of a piece: a quarter of what one device read brings. A value's pieces lie on a grid, its
/// last one is shorter.
pub const PIECE_BYTES: u64 = 4 * CHUNK_DATA;
/// Most pieces of one device read.
pub const PIECES_PER_READ: u64 = 4;

impl LargeSpace {
    /// Opens a value for reading and pins its block. Its place comes from its entry; nothing is
    /// read yet.
    ///
    /// # Errors
    /// `Corruption` if it cannot be there or there is no such block, I/O errors.
    pub fn open_value(&self, extent: &Extent) -> Result<ValueReader> {
        let Extent { offset, length, .. } = *extent;
        let place = self.space.place(extent.block, offset);
        let block = self.space.block(extent.block)?;
        let head_bytes = extent.extent_bytes.checked_sub(if length > VALUE_BYTES_MAX {
            u64::MAX
        } else {
            stored_bytes(length)
        });
        let head_bytes_max = (RECORD_HEADER_BYTES + KEY_BYTES_MAX + ATTRIBUTES_BYTES_MAX) as u64;
        let plausible = head_bytes.filter(|bytes| (RECORD_HEADER_BYTES as u64 + 1..=head_bytes_max).contains(bytes));
        let aligned = offset >= PAGE && offset.is_multiple_of(RECORD_ALIGNMENT) && offset < 1 << 62;
        let Some(head_bytes) = plausible.filter(|_| aligned) else {
            return Err(corrupt(place, "an entry points to an extent that cannot be"));
        };
        Ok(ValueReader {
            file: self.space.file(&block)?,
            space: Arc::clone(&self.space),
            block,
            place,
            head_bytes,
            length,
            near: None,
            is_callers: false,
        })
    }

    /// The same for a caller's read of `key`: it is counted, and served from a copy if there is
    /// one.
    ///
    /// # Errors
    /// As [`LargeSpace::open_value`].
    pub fn open_for(&self, key: &[u8], extent: &Extent) -> Result<ValueReader> {
        let mut reader = self.open_value(extent)?;
        reader.is_callers = true;
        let nearer = self.space.nearer.get().map(Arc::clone);
        reader.near = nearer.and_then(|nearer| nearer.begin(&reader.wanted(key)));
        Ok(reader)
    }

    /// The same for read-ahead. `None` if that would be useless.
    ///
    /// # Errors
    /// As [`LargeSpace::open_value`].
    pub fn open_ahead(&self, key: &[u8], extent: &Extent) -> Result<Option<ValueReader>> {
        let mut reader = self.open_value(extent)?;
        let nearer = self.space.nearer.get().map(Arc::clone);
        reader.near = nearer.and_then(|nearer| nearer.begin_ahead(&reader.wanted(key)));
        Ok(reader.near.is_some().then_some(reader))
    }

    /// Reads a whole value from its block and checks that it is the one of `key`.
    ///
    /// # Errors
    /// `Corruption`, I/O errors.
    pub fn read_all(&self, key: &[u8], extent: &Extent) -> Result<Bytes> {
        self.open_value(extent)?.read_all(key)
    }
}

fn corrupt(place: Place, reason: &str) -> Error {
    Error::corruption(
        format!("{} at offset {}", block_path(place.block).display(), place.offset),
        reason,
    )
}

/// Reads one value, from any thread.
#[derive(Debug)]
pub struct ValueReader {
    space: Arc<Space>,
    /// Pins the block.
    block: Arc<Block>,
    file: Arc<dyn DiskFile>,
    place: Place,
    head_bytes: u64,
    length: u64,
    /// Reader of the cache in front of the block.
    near: Option<Box<dyn NearReader>>,
    /// The read is for a caller.
    is_callers: bool,
}

impl ValueReader {
    /// Length of the value.
    pub fn length(&self) -> u64 {
        self.length
    }

    fn wanted<'a>(&self, key: &'a [u8]) -> Wanted<'a> {
        let Place { block, offset, .. } = self.place;
        let end = offset + self.head_bytes + stored_bytes(self.length);
        Wanted {
            key,
            block,
            offset,
            page_bytes: end.next_multiple_of(PAGE) - offset / PAGE * PAGE,
            value_bytes: self.length,
        }
    }

    /// The slowest source of the bytes read so far; `None` if it was not recorded.
    pub fn source(&self) -> Option<Source> {
        self.near.as_ref().and_then(|near| near.source())
    }

    /// Reads and verifies the record header: key, attributes, ticket.
    ///
    /// # Errors
    /// `Corruption`, I/O errors.
    pub fn header(&self) -> Result<RecordHeader> {
        let mut buffer = self.space.buffers.take();
        let header = self.again_without_copy(|| {
            let skip = self.read_bytes(0..self.head_bytes, &mut buffer)?;
            self.decode_header(&buffer[skip..])
        });
        self.space.buffers.give_back(buffer);
        header
    }

    /// Makes sure, by the header, that the value is the one of `key`.
    ///
    /// # Errors
    /// `Corruption`, I/O errors.
    pub fn check_header(&self, key: &[u8]) -> Result<()> {
        self.check_key(&self.header()?, key)
    }

    /// Makes an attempt, and another if its bytes did not match and may have come from a copy,
    /// which is forgotten then.
    fn again_without_copy<T>(&self, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        match attempt() {
            Err(Error::Corruption { .. }) if self.near.as_ref().is_some_and(|near| near.blames_copy()) => attempt(),
            outcome => outcome,
        }
    }

    /// Reads the whole value, checking that it is the one of `key`.
    ///
    /// # Errors
    /// `Corruption`, I/O errors.
    pub fn read_all(&self, key: &[u8]) -> Result<Bytes> {
        if self.length <= ONE_READ_BYTES_MAX {
            let mut value = self.read_split(0..self.length, Some(key), ONE_READ_BYTES_MAX)?;
            return Ok(value.pop().unwrap_or_default());
        }
        self.check_header(key)?;
        // The length comes from an entry; do not allocate for it what the file cannot hold.
        let end = self.place.offset + self.head_bytes + stored_bytes(self.length);
        if self.file.len().map_err(|error| self.io_error(&error))? < end {
            return Err(corrupt(self.place, "the block ends before the value does"));
        }
        let mut value = Vec::with_capacity(usize::try_from(self.length).unwrap_or(0));
        self.read_range(0..self.length, &mut value)?;
        Ok(Bytes::from(value))
    }

    /// Appends a range of the value to `out`.
    ///
    /// # Errors
    /// `Invalid` if the range is not inside the value, `Corruption`, I/O errors. `out` may then
    /// have grown by verified bytes.
    pub fn read_range(&self, range: Range<u64>, out: &mut Vec<u8>) -> Result<()> {
        if range.start > range.end || range.end > self.length {
            return Err(Error::invalid(format!(
                "bytes {} to {} are not inside a value of {} bytes",
                range.start, range.end, self.length
            )));
        }
        let mut buffer = self.space.buffers.take();
        let mut start = range.start;
        let mut result = Ok(());
        while start < range.end && result.is_ok() {
            let end = range.end.min((start / CHUNK_DATA + CHUNKS_PER_READ) * CHUNK_DATA);
            let verified = out.len();
            result = self.again_without_copy(|| {
                out.truncate(verified);
                self.read_chunks(start..end, &mut buffer, |data| out.extend_from_slice(data))
            });
            start = end;
        }
        self.space.buffers.give_back(buffer);
        result
    }

    /// Reads the pieces with these numbers, at least one and at most [`PIECES_PER_READ`], into a
    /// buffer each. With the first piece the header is read, and compared with `key`: one device
    /// read, because two would be two seeks of a disk with other reads in between.
    ///
    /// # Errors
    /// `Corruption`, I/O errors.
    pub fn read_pieces(&self, key: &[u8], numbers: Range<u64>) -> Result<Vec<Bytes>> {
        let range = numbers.start * PIECE_BYTES..self.length.min(numbers.end * PIECE_BYTES);
        self.read_split(range, Some(key).filter(|_| numbers.start == 0), PIECE_BYTES)
    }

    /// Reads a range that begins with a chunk by one device read, into buffers of `piece_bytes`
    /// each, of which all but the last end with a chunk. With `key` it begins with the value, and
    /// the header before it must be the key's.
    fn read_split(&self, range: Range<u64>, key: Option<&[u8]>, piece_bytes: u64) -> Result<Vec<Bytes>> {
        let (_, stored) = self.chunks_of(&range);
        let from = key.map_or(self.head_bytes + stored.start, |_| 0);
        let mut buffer = self.space.buffers.take();
        let pieces = self.again_without_copy(|| {
            let skip = self.read_bytes(from..self.head_bytes + stored.end, &mut buffer)?;
            let mut read = &buffer[skip..];
            if let Some(key) = key {
                let (head, value) = read.split_at(self.usize(self.head_bytes)?);
                self.check_key(&self.decode_header(head)?, key)?;
                read = value;
            }
            let mut pieces = Vec::new();
            for start in range.clone().step_by(self.usize(piece_bytes)?) {
                let end = range.end.min(start + piece_bytes);
                let begin = self.usize(self.chunks_of(&(start..end)).1.start - stored.start)?;
                let mut piece = Vec::with_capacity(self.usize(end - start)?);
                self.take_chunks(start..end, &read[begin..], |data| piece.extend_from_slice(data))?;
                pieces.push(Bytes::from(piece));
            }
            Ok(pieces)
        });
        self.space.buffers.give_back(buffer);
        pieces
    }

    /// The name of a piece in a cache of places: that of the value if there is no other piece.
    pub const fn place_of_piece(&self, number: u64) -> (u64, u64) {
        let within = if self.length <= PIECE_BYTES {
            0
        } else {
            self.head_bytes + number * (PIECE_BYTES / CHUNK_DATA) * CHUNK_BYTES
        };
        (self.place.block, self.place.offset + within)
    }

    /// Reads all of the value and returns its CRC-32C: for `verify` and `repair`.
    ///
    /// # Errors
    /// `Corruption`, I/O errors.
    pub fn verify(&self) -> Result<u32> {
        let mut checksum = 0;
        let mut start = 0;
        let mut bytes = Vec::new();
        while start < self.length {
            let end = self.length.min(start + CHUNKS_PER_READ * CHUNK_DATA);
            bytes.clear();
            self.read_range(start..end, &mut bytes)?;
            checksum = crc32c::crc32c_append(checksum, &bytes);
            start = end;
        }
        Ok(checksum)
    }

    /// Hands a range within [`CHUNKS_PER_READ`] chunks to `take`, chunk by chunk, with one device
    /// read.
    fn read_chunks(&self, range: Range<u64>, buffer: &mut AlignedBuffer, take: impl FnMut(&[u8])) -> Result<()> {
        let (_, stored) = self.chunks_of(&range);
        let skip = self.read_bytes(self.head_bytes + stored.start..self.head_bytes + stored.end, buffer)?;
        self.take_chunks(range, &buffer[skip..], take)
    }

    /// The numbers of the chunks that hold a range, and where in the extent these are behind its
    /// head.
    fn chunks_of(&self, range: &Range<u64>) -> (Range<u64>, Range<u64>) {
        let chunks = range.start / CHUNK_DATA..range.end.div_ceil(CHUNK_DATA);
        let stored = chunks.start * CHUNK_BYTES..stored_bytes(self.length).min(chunks.end * CHUNK_BYTES);
        (chunks, stored)
    }

    /// Hands a range to `take`, chunk by chunk, once each is checked. `stored` begins with the
    /// range's first chunk and has all of them.
    fn take_chunks(&self, range: Range<u64>, stored: &[u8], mut take: impl FnMut(&[u8])) -> Result<()> {
        let (chunks, _) = self.chunks_of(&range);
        let seed = self.place.chunk_seed();
        for (index, chunk) in chunks.zip(stored.chunks(CHUNK_DATA_BYTES + 4)) {
            let stored_end = CHUNK_BYTES.min(stored_bytes(self.length) - index * CHUNK_BYTES);
            let data = decode_chunk(&chunk[..self.usize(stored_end)?], seed, index);
            let data = data.ok_or_else(|| self.bad_chunk(index))?;
            let start = range.start.saturating_sub(index * CHUNK_DATA);
            let end = (data.len() as u64).min(range.end - index * CHUNK_DATA);
            take(&data[self.usize(start)?..self.usize(end)?]);
        }
        Ok(())
    }

    /// Reads the pages that hold a range of the extent. Returns where in the buffer the range
    /// starts.
    fn read_bytes(&self, range: Range<u64>, buffer: &mut AlignedBuffer) -> Result<usize> {
        let start = self.place.offset + range.start;
        let page_start = start / PAGE * PAGE;
        let page_end = (self.place.offset + range.end).next_multiple_of(PAGE);
        buffer.clear();
        buffer.reserve(self.usize(page_end - page_start)?);
        buffer.set_len(self.usize(page_end - page_start)?);
        if self.copy_waiting(buffer, page_start)? {
            return self.usize(start - page_start);
        }
        let position = page_start - self.place.offset / PAGE * PAGE;
        if self.near.as_ref().is_some_and(|near| near.read(position, buffer)) {
            return self.usize(start - page_start);
        }
        let timed = self.is_callers.then(|| self.space.queue.paces().large.read());
        self.file
            .read_exact_at(buffer, page_start)
            .map_err(|error| self.io_error(&error))?;
        drop(timed);
        if let Some(near) = &self.near {
            near.gather(position, buffer);
        }
        count(&self.space.counters.reads, 1);
        self.usize(start - page_start)
    }

    /// Whether it begins in RAM or on flash.
    pub fn is_near(&self) -> bool {
        self.block.behind.lock().contains_key(&self.place.offset)
            || self.near.as_ref().is_some_and(|near| near.is_near())
    }

    /// Fills `buffer` from the extent's queued bytes in RAM, if they are not on the device yet.
    /// Queued bytes stay in RAM until they are written, so bytes that are not there are on the
    /// device.
    fn copy_waiting(&self, buffer: &mut AlignedBuffer, page_start: u64) -> Result<bool> {
        let waiting = self.block.behind.lock().get(&self.place.offset).map(Arc::clone);
        let Some(bytes) = waiting else { return Ok(false) };
        let from = self.usize(page_start - self.place.offset)?;
        let found = bytes.get(from..).and_then(|rest| rest.get(..buffer.len()));
        let found = found.ok_or_else(|| corrupt(self.place, "the value ends before"))?;
        buffer.copy_from_slice(found);
        Ok(true)
    }

    fn decode_header(&self, bytes: &[u8]) -> Result<RecordHeader> {
        let matches = |header: &RecordHeader| {
            header.length == self.length && header.extent_bytes() == self.head_bytes + stored_bytes(self.length)
        };
        decode_record_header(bytes, self.place)
            .filter(matches)
            .ok_or_else(|| corrupt(self.place, "the record header is damaged or another value's"))
    }

    fn check_key(&self, header: &RecordHeader, key: &[u8]) -> Result<()> {
        if header.key == key {
            return Ok(());
        }
        Err(corrupt(self.place, "the record there has another key"))
    }

    fn bad_chunk(&self, index: u64) -> Error {
        let at = self.place.offset + self.head_bytes + index * CHUNK_BYTES;
        corrupt(
            self.place,
            &format!("chunk {index} at offset {at} does not match its checksum"),
        )
    }

    fn io_error(&self, error: &io::Error) -> Error {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return corrupt(self.place, "the block ends before the value does");
        }
        Error::io(format!("reading {}", block_path(self.place.block).display()), error)
    }

    fn usize(&self, bytes: u64) -> Result<usize> {
        usize::try_from(bytes).map_err(|_| corrupt(self.place, "an impossible length"))
    }
}
