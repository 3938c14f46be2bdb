//! Sequential writing and reading of a checkpoint's bytes.
//!
//! Invariants: the file is written in long, aligned writes, bypassing the page cache. Its header is
//! written last. Lengths are compared with the length of the file before memory is allocated.
//!
//! On failure: errors of the device, or `Corruption` that describes the damage of the file.

use super::{
    FILE, NEW_FILE,
    format::{
        CHUNK_HEAD_BYTES, ChunkKind, FILTER_LINES, FilterHead, Header, NotAHeader, chunk_bytes, open_chunk,
        payload_bytes, seal_chunk,
    },
};
use crate::{
    Error, Result, Tier,
    hash_index::{
        HashIndex,
        key_filter::{KeyFilter, LINE_WORDS, layer_lines},
    },
    io::{AlignedBuffer, Disk, DiskFile, OpenMode, PAGE_BYTES},
    log::address::Address,
};
use std::{io, path::Path, sync::Arc};

/// Bytes per request.
const REQUEST_BYTES: usize = 1 << 20;

fn failed(what: &str, error: &io::Error) -> Error {
    Error::io_on(Tier::Flash, format!("{what} the checkpoint of the hash index"), error)
}

fn damaged(reason: impl Into<String>) -> Error {
    Error::corruption("the checkpoint of the hash index", reason)
}

/// A checkpoint that is being written.
#[derive(Debug)]
pub struct Sink {
    file: Arc<dyn DiskFile>,
    buffer: AlignedBuffer,
    /// Bytes written, with the room for the header.
    written_bytes: u64,
    chunks: u32,
}

impl Sink {
    /// Begins a file, replacing an unfinished one.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn create(disk: &dyn Disk, direct_io: bool) -> Result<Self> {
        let path = Path::new(NEW_FILE);
        let _ = disk.remove(path);
        let file = disk
            .open(path, OpenMode::CREATE.with_direct(direct_io))
            .map_err(|error| failed("begin", &error))?;
        Ok(Self {
            file,
            buffer: AlignedBuffer::with_capacity(REQUEST_BYTES),
            written_bytes: PAGE_BYTES as u64,
            chunks: 0,
        })
    }

    /// Bytes written so far.
    pub const fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Appends a chunk: [`CHUNK_HEAD_BYTES`] bytes of room and the payload.
    fn push(&mut self, kind: ChunkKind, chunk: &mut Vec<u8>) -> Result<()> {
        seal_chunk(kind, self.chunks, chunk).ok_or_else(|| damaged("a part of it is too long"))?;
        self.chunks += 1;
        let mut rest = &chunk[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(REQUEST_BYTES - self.buffer.len()));
            self.buffer.extend_from_slice(now);
            rest = later;
            if self.buffer.len() == REQUEST_BYTES {
                self.write()?;
            }
        }
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        self.file
            .write_all_at(&self.buffer, self.written_bytes)
            .map_err(|error| failed("write", &error))?;
        self.written_bytes += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Writes the slots of a table and the filter, each part as of the time when it is written;
    /// reports the bytes of each chunk to `after_chunk`. Returns the number of layers of the
    /// filter.
    ///
    /// # Errors
    /// Errors of the device, and `after_chunk`'s.
    pub fn write_contents(
        &mut self,
        index: &HashIndex,
        filter: &KeyFilter,
        mut after_chunk: impl FnMut(usize) -> Result<()>,
    ) -> Result<u32> {
        let mut chunk = Vec::new();
        let begin = |chunk: &mut Vec<u8>| {
            chunk.clear();
            chunk.resize(CHUNK_HEAD_BYTES, 0);
        };
        for partition in 0..index.shape().0 {
            begin(&mut chunk);
            index.append_image(partition, &mut chunk);
            self.push(ChunkKind::Slots, &mut chunk)?;
            after_chunk(chunk.len())?;
        }
        let layers = filter.layers();
        for layer in 0..layers {
            for first in (0..layer_lines(layer)).step_by(FILTER_LINES) {
                begin(&mut chunk);
                let lines = first..layer_lines(layer).min(first + FILTER_LINES);
                // A layer that is in memory has below 2^32 lines.
                let head = FilterHead {
                    layer: layer as u32,
                    line: first as u32,
                    room: if first == 0 { filter.room(layer) } else { 0 },
                };
                chunk.extend_from_slice(&head.encode());
                filter
                    .words(layer, lines)
                    .for_each(|word| chunk.extend_from_slice(&word.to_le_bytes()));
                self.push(ChunkKind::Filter, &mut chunk)?;
                after_chunk(chunk.len())?;
            }
        }
        // A few.
        Ok(layers as u32)
    }

    /// Writes the rest, and the header with the file's length. Durable on return, except for its
    /// name.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn finish(&mut self, header: &Header) -> Result<u64> {
        self.buffer.pad_to_page();
        if !self.buffer.is_empty() {
            self.write()?;
        }
        let file_bytes = self.written_bytes;
        self.buffer
            .extend_from_slice(&Header { file_bytes, ..*header }.encode());
        self.file
            .write_all_at(&self.buffer, 0)
            .map_err(|error| failed("write", &error))?;
        self.file.sync_data().map_err(|error| failed("sync", &error))?;
        Ok(file_bytes)
    }
}

/// A checkpoint that is being read, part by part.
#[derive(Debug)]
pub struct Source {
    file: Arc<dyn DiskFile>,
    header: Header,
    /// Where the next chunk begins.
    at: u64,
    chunks: u32,
    window: AlignedBuffer,
    window_at: u64,
    part: Part,
    filter: KeyFilter,
    /// Classes of slots that were refused: the filter gets them once it is read.
    refused: Vec<u64>,
}

/// The next part of the file.
#[derive(Debug, Clone, Copy)]
enum Part {
    Slots { partition: usize },
    Filter { layer: usize, line: usize },
    End,
}

impl Source {
    /// Opens the newest checkpoint and reads its header. `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Corruption`] if it is not whole or of a format this version does not know, errors
    /// of the device.
    pub fn open(disk: &dyn Disk, direct_io: bool) -> Result<Option<Self>> {
        let file = match disk.open(Path::new(FILE), OpenMode::READ.with_direct(direct_io)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("open", &error)),
        };
        let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
        let read = file
            .read_up_to_at(&mut page, 0)
            .map_err(|error| failed("read", &error))?;
        let header = Header::decode(&page[..read]).map_err(|flaw| match flaw {
            NotAHeader::Unreadable => damaged("its header is damaged"),
            NotAHeader::Version(version) => {
                damaged(format!("it has format {version}, which this program does not know"))
            }
        })?;
        let length = file.len().map_err(|error| failed("read", &error))?;
        if length != header.file_bytes {
            return Err(damaged(format!(
                "it has {length} bytes instead of {}",
                header.file_bytes
            )));
        }
        Ok(Some(Self {
            file,
            header,
            at: PAGE_BYTES as u64,
            chunks: 0,
            window: AlignedBuffer::new(),
            window_at: 0,
            part: Part::Slots { partition: 0 },
            filter: KeyFilter::default(),
            refused: Vec::new(),
        }))
    }

    /// Its header.
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// The filter, as far as it has been read.
    pub const fn filter(&self) -> &KeyFilter {
        &self.filter
    }

    /// The filter, once everything was read.
    pub fn into_filter(self) -> KeyFilter {
        self.filter
    }

    /// Reads the next part: slots go to `index`, if there is one, except those whose address `keep`
    /// refuses; the filter finally has their keys. Returns whether that was the last part.
    ///
    /// # Errors
    /// [`Error::Corruption`], errors of the device.
    pub fn step(&mut self, index: Option<&HashIndex>, keep: impl Fn(Address) -> bool) -> Result<bool> {
        match self.part {
            Part::Slots { partition } if partition < self.header.partitions as usize => {
                let chunk = self.chunk(ChunkKind::Slots)?;
                let slots = open_chunk(&chunk, ChunkKind::Slots, self.chunks).ok_or_else(|| self.bad_chunk())?;
                if let Some(index) = index {
                    let refused = index.restore_image(partition, slots, keep);
                    let none = || damaged(format!("partition {partition} is none"));
                    self.refused.extend(refused.ok_or_else(none)?);
                }
                self.part = Part::Slots {
                    partition: partition + 1,
                };
                self.chunks += 1;
            }
            Part::Slots { .. } => self.part = Part::Filter { layer: 0, line: 0 },
            Part::Filter { layer, line } if layer < self.header.filter_layers as usize => {
                let chunk = self.chunk(ChunkKind::Filter)?;
                let payload = open_chunk(&chunk, ChunkKind::Filter, self.chunks);
                self.part = payload
                    .and_then(|payload| self.add_to_filter(payload, layer, line))
                    .ok_or_else(|| self.bad_chunk())?;
                self.chunks += 1;
            }
            Part::Filter { .. } => {
                self.check_end()?;
                self.refused.drain(..).for_each(|hash| self.filter.insert(hash));
                self.part = Part::End;
            }
            Part::End => {}
        }
        Ok(matches!(self.part, Part::End))
    }

    fn bad_chunk(&self) -> Error {
        damaged(format!("part {} at byte {} is damaged", self.chunks, self.at))
    }

    /// Adds lines to the filter; returns the part that follows. `None` if they are not the expected
    /// lines.
    fn add_to_filter(&self, payload: &[u8], layer: usize, line: usize) -> Option<Part> {
        let (head, words) = FilterHead::decode(payload)?;
        let lines = layer_lines(layer);
        let wanted = (lines - line).min(FILTER_LINES);
        if (head.layer as usize, head.line as usize, words.len()) != (layer, line, wanted * LINE_WORDS) {
            return None;
        }
        if line == 0 {
            // No more memory than the file has bytes.
            let fits = (lines * LINE_WORDS * 8) as u64 <= self.header.file_bytes;
            (fits && self.filter.restore_layer(head.room)).then_some(())?;
        } else if head.room != 0 {
            return None;
        }
        self.filter.restore_words(line, &words).then_some(())?;
        Some(if line + wanted < lines {
            Part::Filter {
                layer,
                line: line + wanted,
            }
        } else {
            Part::Filter {
                layer: layer + 1,
                line: 0,
            }
        })
    }

    /// The bytes of the next chunk.
    fn chunk(&mut self, kind: ChunkKind) -> Result<Vec<u8>> {
        let from = self.at;
        let mut chunk = Vec::with_capacity(CHUNK_HEAD_BYTES);
        self.read(CHUNK_HEAD_BYTES, &mut chunk)?;
        let Some(payload_bytes) = payload_bytes(&chunk, kind, self.chunks) else {
            self.at = from;
            return Err(self.bad_chunk());
        };
        // Below 2^32.
        let rest = chunk_bytes(u64::from(payload_bytes)) as usize - CHUNK_HEAD_BYTES;
        self.read(rest, &mut chunk)?;
        Ok(chunk)
    }

    /// After the last chunk there are only zeros up to the end of the page.
    fn check_end(&mut self) -> Result<()> {
        let end = self.at.next_multiple_of(PAGE_BYTES as u64);
        let mut rest = Vec::new();
        if end == self.header.file_bytes {
            // Below a page.
            self.read((end - self.at) as usize, &mut rest)?;
        }
        if end != self.header.file_bytes || rest.iter().any(|&byte| byte != 0) {
            return Err(damaged("something stands behind its end"));
        }
        Ok(())
    }

    /// Appends the next bytes of the file.
    fn read(&mut self, bytes: usize, out: &mut Vec<u8>) -> Result<()> {
        if bytes as u64 > self.header.file_bytes - self.at {
            return Err(damaged(format!("part {} is longer than the file", self.chunks)));
        }
        out.reserve(bytes);
        let mut left = bytes;
        while left > 0 {
            if !(self.window_at..self.window_at + self.window.len() as u64).contains(&self.at) {
                self.window_at = self.at / REQUEST_BYTES as u64 * REQUEST_BYTES as u64;
                let length = (self.header.file_bytes - self.window_at).min(REQUEST_BYTES as u64);
                // At most a request.
                self.window.set_len(length as usize);
                self.file
                    .read_exact_at(&mut self.window, self.window_at)
                    .map_err(|error| failed("read", &error))?;
            }
            // Within the window.
            let within = &self.window[(self.at - self.window_at) as usize..];
            let now = within.len().min(left);
            out.extend_from_slice(&within[..now]);
            self.at += now as u64;
            left -= now;
        }
        Ok(())
    }
}

/// Reads a checkpoint and verifies its checksums, for `verify`.
///
/// # Errors
/// A description of the damage; errors of the device.
pub fn verify(disk: &dyn Disk, direct_io: bool) -> Result<()> {
    let Some(mut source) = Source::open(disk, direct_io)? else {
        return Ok(());
    };
    while !source.step(None, |_| true)? {}
    Ok(())
}
