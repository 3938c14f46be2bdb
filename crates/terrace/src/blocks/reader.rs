//! Reading values: whole, by range, or as a stream. Every byte handed out was verified.
//!
//! Invariants:
//! - A value up to 1 MiB is read whole in one device read; a range reads only the chunks it
//!   touches, in one device read per 18 chunks.
//! - A reader pins its block: the file is not deleted under it.
//!
//! On failure: bytes that do not match are an `Error::Corruption` that names block and offset;
//! nothing of the damaged chunk is handed out.

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
    io::{AlignedBuffer, DiskFile},
};
use bytes::Bytes;
use std::{
    io,
    ops::Range,
    sync::{Arc, atomic::Ordering},
};

/// Values up to this length are read whole in one device read.
const ONE_READ_BYTES_MAX: u64 = 1 << 20;
/// Chunks per device read of a range: 1 MiB of value, wherever it starts.
const CHUNKS_PER_READ: u64 = 18;
/// Chunks per device read of a stream, once it is under way.
const CHUNKS_AHEAD_MAX: u64 = 16;
const CHUNK_DATA: u64 = CHUNK_DATA_BYTES as u64;
/// Bytes of a piece: a quarter of what one device read brings. A value's pieces lie on a grid, its
/// last one is shorter.
pub const PIECE_BYTES: u64 = 4 * CHUNK_DATA;
/// Most pieces of one device read.
pub const PIECES_PER_READ: u64 = 4;

impl LargeSpace {
    /// Opens a value for reading and pins its block. The arguments come from the value's entry;
    /// nothing is read yet.
    ///
    /// # Errors
    /// `Corruption` if they cannot be right or there is no such block, I/O errors.
    pub fn open_value(&self, block: u64, offset: u64, extent_bytes: u64, length: u64) -> Result<ValueReader> {
        let place = self.space.place(block, offset);
        let block = self.space.block(block)?;
        let head_bytes = extent_bytes.checked_sub(if length > VALUE_BYTES_MAX {
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
            position: 0,
            window: Vec::new(),
            window_start: 0,
            chunks_ahead: 1,
            near: None,
            is_callers: false,
        })
    }

    /// The same for a caller who wants the value of `key`: it counts as a read of it, and comes
    /// from a copy if there is one.
    ///
    /// # Errors
    /// As [`LargeSpace::open_value`].
    pub fn open_for(&self, key: &[u8], block: u64, offset: u64, extent_bytes: u64, length: u64) -> Result<ValueReader> {
        let mut reader = self.open_value(block, offset, extent_bytes, length)?;
        reader.is_callers = true;
        let nearer = self.space.nearer.get().map(Arc::clone);
        reader.near = nearer.and_then(|nearer| nearer.begin(&reader.wanted(key)));
        Ok(reader)
    }

    /// The same to read the value before anybody has asked for it. `None` if that is of no use.
    ///
    /// # Errors
    /// As [`LargeSpace::open_value`].
    pub fn open_ahead(
        &self,
        key: &[u8],
        block: u64,
        offset: u64,
        extent_bytes: u64,
        length: u64,
    ) -> Result<Option<ValueReader>> {
        let mut reader = self.open_value(block, offset, extent_bytes, length)?;
        let nearer = self.space.nearer.get().map(Arc::clone);
        reader.near = nearer.and_then(|nearer| nearer.begin_ahead(&reader.wanted(key)));
        Ok(reader.near.is_some().then_some(reader))
    }
}

impl LargeSpace {
    /// Reads a whole value from its block and checks that it is the one of `key`.
    ///
    /// # Errors
    /// `Corruption`, I/O errors.
    pub fn read_all(&self, key: &[u8], block: u64, offset: u64, extent_bytes: u64, length: u64) -> Result<Bytes> {
        self.open_value(block, offset, extent_bytes, length)?.read_all(key)
    }
}

fn corrupt(place: Place, reason: &str) -> Error {
    Error::corruption(
        format!("{} at offset {}", block_path(place.block).display(), place.offset),
        reason,
    )
}

/// Pieces that come chunk by chunk.
struct Collected {
    pieces: Vec<Vec<u8>>,
    /// Bytes still to come.
    left: usize,
}

impl Collected {
    /// Of so many bytes.
    const fn of(bytes: usize) -> Self {
        Self {
            pieces: Vec::new(),
            left: bytes,
        }
    }

    fn take(&mut self, data: &[u8]) {
        // Pieces end with chunks.
        if self.pieces.last().is_none_or(|piece| piece.len() as u64 == PIECE_BYTES) {
            self.pieces
                .push(Vec::with_capacity(self.left.min(PIECE_BYTES as usize)));
        }
        if let Some(piece) = self.pieces.last_mut() {
            piece.extend_from_slice(data);
        }
        self.left -= data.len();
    }

    fn into_bytes(self) -> Vec<Bytes> {
        self.pieces.into_iter().map(Bytes::from).collect()
    }
}

/// Reads one value. Ranges may be read from any thread; the stream has one position.
#[derive(Debug)]
pub struct ValueReader {
    space: Arc<Space>,
    /// Pins the block.
    block: Arc<Block>,
    file: Arc<dyn DiskFile>,
    place: Place,
    head_bytes: u64,
    length: u64,
    position: u64,
    /// Verified bytes of the stream, from `window_start`.
    window: Vec<u8>,
    window_start: u64,
    chunks_ahead: u64,
    /// What may be nearer than the block.
    near: Option<Box<dyn NearReader>>,
    /// A caller waits for what is read.
    is_callers: bool,
}

impl ValueReader {
    /// Length of the value.
    #[must_use]
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

    /// The farthest that anything read so far came from; `None` if that was not looked at.
    #[must_use]
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
            let mut buffer = self.space.buffers.take();
            let value = self.again_without_copy(|| self.read_extent(key, &mut buffer));
            self.space.buffers.give_back(buffer);
            return value.map(Bytes::from);
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

    /// Reads the next bytes of the stream into `out`; 0 only at the end (or for an empty `out`).
    /// Reads ahead by 64 KiB at first, up to 1 MiB when more and more is asked for.
    ///
    /// # Errors
    /// `Corruption`, I/O errors.
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        if self.position >= self.length || out.is_empty() {
            return Ok(0);
        }
        let window_end = self.window_start + self.window.len() as u64;
        if !(self.window_start..window_end).contains(&self.position) {
            let first = self.position / CHUNK_DATA;
            let wanted = (out.len() as u64).div_ceil(CHUNK_DATA);
            let chunks = self.chunks_ahead.max(wanted).min(CHUNKS_AHEAD_MAX);
            let end = self.length.min((first + chunks) * CHUNK_DATA);
            let mut window = std::mem::take(&mut self.window);
            window.clear();
            self.read_range(first * CHUNK_DATA..end, &mut window)?;
            self.window = window;
            self.window_start = first * CHUNK_DATA;
            self.chunks_ahead = (chunks * 2).min(CHUNKS_AHEAD_MAX);
        }
        let from = usize::try_from(self.position - self.window_start).unwrap_or(usize::MAX);
        let available = self.window.get(from..).unwrap_or_default();
        let count = available.len().min(out.len());
        out[..count].copy_from_slice(&available[..count]);
        self.position += count as u64;
        Ok(count)
    }

    /// The next bytes of the stream in a buffer of their own: so many, or those up to the end of
    /// the chunk that has the last of them. Never more than one device read brings. Empty only at
    /// the end.
    ///
    /// # Errors
    /// `Corruption`, I/O errors.
    pub fn read_piece(&mut self, bytes: usize) -> Result<Bytes> {
        let start = self.position.min(self.length);
        let last_chunk = start.saturating_add(bytes as u64).div_ceil(CHUNK_DATA);
        let end = last_chunk.min(start / CHUNK_DATA + CHUNKS_PER_READ) * CHUNK_DATA;
        let end = end.min(self.length);
        let mut piece = Vec::with_capacity(self.usize(end - start)?);
        self.read_range(start..end, &mut piece)?;
        self.position = end;
        Ok(piece.into())
    }

    /// Reads the pieces with these numbers, of which there must be some and at most
    /// [`PIECES_PER_READ`], into a buffer each.
    ///
    /// # Errors
    /// `Corruption`, I/O errors.
    pub fn read_pieces(&self, numbers: Range<u64>) -> Result<Vec<Bytes>> {
        let range = numbers.start * PIECE_BYTES..self.length.min(numbers.end * PIECE_BYTES);
        let mut buffer = self.space.buffers.take();
        let pieces = self.again_without_copy(|| {
            let mut pieces = Collected::of(self.usize(range.end - range.start)?);
            self.read_chunks(range.clone(), &mut buffer, |data| pieces.take(data))?;
            Ok(pieces)
        });
        self.space.buffers.give_back(buffer);
        Ok(pieces?.into_bytes())
    }

    /// Reads the first pieces, some and at most [`PIECES_PER_READ`], and the header before them,
    /// which is checked to be that of `key`: one device read, where two would be two seeks of a
    /// disk with others in between.
    ///
    /// # Errors
    /// `Corruption`, I/O errors.
    pub fn read_first_pieces(&self, key: &[u8], count: u64) -> Result<Vec<Bytes>> {
        let range = 0..self.length.min(count * PIECE_BYTES);
        let stored = stored_bytes(self.length).min(range.end.div_ceil(CHUNK_DATA) * CHUNK_BYTES);
        let mut buffer = self.space.buffers.take();
        let pieces = self.again_without_copy(|| {
            let skip = self.read_bytes(0..self.head_bytes + stored, &mut buffer)?;
            let (head, stored) = buffer[skip..].split_at(self.usize(self.head_bytes)?);
            self.check_key(&self.decode_header(head)?, key)?;
            let mut pieces = Collected::of(self.usize(range.end)?);
            self.take_chunks(range.clone(), stored, |data| pieces.take(data))?;
            Ok(pieces)
        });
        self.space.buffers.give_back(buffer);
        Ok(pieces?.into_bytes())
    }

    /// The name of a piece in a cache of places: that of the value if there is no other piece.
    #[must_use]
    pub const fn place_of_piece(&self, number: u64) -> (u64, u64) {
        let within = if self.length <= PIECE_BYTES {
            0
        } else {
            self.head_bytes + number * (PIECE_BYTES / CHUNK_DATA) * CHUNK_BYTES
        };
        (self.place.block, self.place.offset + within)
    }

    /// Where the stream is.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// Moves the stream. Past the end, reads give nothing.
    pub fn seek(&mut self, position: u64) {
        if position != self.position {
            self.position = position;
            self.chunks_ahead = 1;
        }
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
            let end = self.length.min(start + CHUNKS_AHEAD_MAX * CHUNK_DATA);
            bytes.clear();
            self.read_range(start..end, &mut bytes)?;
            checksum = crc32c::crc32c_append(checksum, &bytes);
            start = end;
        }
        Ok(checksum)
    }

    fn read_extent(&self, key: &[u8], buffer: &mut AlignedBuffer) -> Result<Vec<u8>> {
        let skip = self.read_bytes(0..self.head_bytes + stored_bytes(self.length), buffer)?;
        let (head, stored) = buffer[skip..].split_at(self.usize(self.head_bytes)?);
        self.check_key(&self.decode_header(head)?, key)?;
        let mut value = Vec::with_capacity(self.usize(self.length)?);
        self.take_chunks(0..self.length, stored, |data| value.extend_from_slice(data))?;
        Ok(value)
    }

    /// Hands a range within [`CHUNKS_PER_READ`] chunks to `take`, chunk by chunk, with one device
    /// read.
    fn read_chunks(&self, range: Range<u64>, buffer: &mut AlignedBuffer, take: impl FnMut(&[u8])) -> Result<()> {
        let chunks = range.start / CHUNK_DATA..range.end.div_ceil(CHUNK_DATA);
        let stored = chunks.start * CHUNK_BYTES..stored_bytes(self.length).min(chunks.end * CHUNK_BYTES);
        let skip = self.read_bytes(self.head_bytes + stored.start..self.head_bytes + stored.end, buffer)?;
        self.take_chunks(range, &buffer[skip..], take)
    }

    /// Hands a range to `take`, chunk by chunk, once each is checked. `stored` begins with the
    /// range's first chunk and has all of them.
    fn take_chunks(&self, range: Range<u64>, stored: &[u8], mut take: impl FnMut(&[u8])) -> Result<()> {
        let chunks = range.start / CHUNK_DATA..range.end.div_ceil(CHUNK_DATA);
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
        let pace = self.space.paces.get().filter(|_| self.is_callers);
        let timed = pace.map(|paces| paces.large.read());
        self.file
            .read_exact_at(buffer, page_start)
            .map_err(|error| self.io_error(&error))?;
        drop(timed);
        if let Some(near) = &self.near {
            near.gather(position, buffer);
        }
        let counters = &self.space.counters;
        counters.reads.fetch_add(1, Ordering::Relaxed);
        counters.bytes_read.fetch_add(page_end - page_start, Ordering::Relaxed);
        self.usize(start - page_start)
    }

    /// Whether it begins in RAM or on flash.
    pub fn is_near(&self) -> bool {
        self.block.behind.lock().contains_key(&self.place.offset)
            || self.near.as_ref().is_some_and(|near| near.is_near())
    }

    /// Fills `buffer` from the extent's bytes in RAM, if it is not on the device. If they are not
    /// there it is: what was handed over stays there until it is written.
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
