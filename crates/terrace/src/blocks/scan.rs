//! Walks the records of a block, for `verify`, `repair` and block GC.
//!
//! With a footer the walk is exact and skips abandoned extents. Without one, or where a header is
//! damaged, it searches for the next valid record header; abandoned extents may then appear, so the
//! caller verifies values before it trusts them. Damage is an `Err` item, and the walk continues
//! after it.

use super::{
    LargeSpace, Space,
    block::Block,
    block_path,
    format::{
        BlockHeader, CHUNK_DATA_BYTES, ExtentKind, FOOTER_ENTRY_BYTES, FooterEntry, PAGE, RECORD_ALIGNMENT,
        RecordHeader, RecordKind, Trailer, decode_chunk, decode_footer, decode_record_header, decode_trailer,
        record_head_bytes, stored_bytes,
    },
};
use crate::{
    Error, Result,
    api::object::Extent,
    io::{AlignedBuffer, DiskFile, PAGE_BYTES},
};
use std::{io, sync::Arc};

/// Bytes read at a step from header to header; a search reads more at once.
const STEP_BYTES: u64 = 32 << 10;
const SEARCH_BYTES: u64 = 1 << 20;
/// Bytes read at once by a reader of the values,
const BURST_BYTES: u64 = 1 << 20;
/// and this much on a disk that seeks, where callers' reads come between any two;
const BURST_BYTES_OF_DISK: u64 = 8 << 20;
/// unless extents are longer than this: then dead ones are skipped.
const BURST_EXTENT_BYTES_MAX: u64 = 256 << 10;

/// A record found in a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScannedExtent {
    /// Where its header starts.
    pub offset: u64,
    /// Bytes of the record, without the padding after it.
    pub extent_bytes: u64,
    /// Its header.
    pub header: RecordHeader,
    /// Its version, if that is known: from the footer, or from the header of a destaged record.
    pub version: Option<u64>,
}

impl ScannedExtent {
    /// Where its value lies, in the block it was found in.
    pub const fn at(&self, block: u64) -> Extent {
        Extent {
            block,
            offset: self.offset,
            extent_bytes: self.extent_bytes,
            length: self.header.length,
        }
    }
}

/// The records of one block, in order of offset. Pins the block.
#[derive(Debug)]
pub struct BlockScan {
    space: Arc<Space>,
    block: Arc<Block>,
    file: Arc<dyn DiskFile>,
    footer: Option<std::vec::IntoIter<FooterEntry>>,
    position: u64,
    end: u64,
    /// A record, or zeros, must stand at `position`.
    expected: bool,
    /// Bytes read at once, if it reads in bursts.
    burst_bytes: Option<u64>,
    step_bytes: u64,
    window: AlignedBuffer,
    window_start: u64,
}

impl LargeSpace {
    /// The same as [`LargeSpace::scan_block`] for a caller that reads most values: with fewer,
    /// longer reads.
    ///
    /// # Errors
    /// As [`LargeSpace::scan_block`].
    pub fn scan_in_bursts(&self, number: u64) -> Result<BlockScan> {
        let mut scan = self.scan_block(number)?;
        let burst_bytes = if self.seeks() { BURST_BYTES_OF_DISK } else { BURST_BYTES };
        scan.burst_bytes = Some(burst_bytes);
        scan.step_bytes = burst_bytes;
        Ok(scan)
    }

    /// The same for a caller that needs headers only. On a disk that seeks it still reads the
    /// values between them: seeking to each of five hundred headers among callers' reads takes
    /// twenty seconds, reading a block of 64 MiB in bursts takes two.
    ///
    /// # Errors
    /// As [`LargeSpace::scan_block`].
    pub fn scan_headers(&self, number: u64) -> Result<BlockScan> {
        if self.seeks() {
            self.scan_in_bursts(number)
        } else {
            self.scan_block(number)
        }
    }

    /// Walks the records of a block. A block still being written is walked without a footer.
    ///
    /// # Errors
    /// `Corruption` if there is no such block, I/O errors.
    pub fn scan_block(&self, number: u64) -> Result<BlockScan> {
        let block = self.space.block(number)?;
        self.space.queue.wait_written(&block.group);
        let file = self.space.file(&block)?;
        let io_error = |error: io::Error| Error::io(format!("reading {}", block_path(number).display()), &error);
        let file_bytes = file.len().map_err(io_error)? / PAGE * PAGE;
        let header = self.space.header(number);
        // A crash may have undone the trimming after the footer; LargeMeta has the length.
        let listed = self
            .space
            .table
            .lock()
            .meta
            .blocks
            .get(&number)
            .map_or(0, |listed| listed.bytes);
        let footer = [file_bytes, listed]
            .into_iter()
            .find_map(|end| {
                read_footer(&*file, header, end.min(file_bytes))
                    .map_err(io_error)
                    .transpose()
            })
            .transpose()?;
        Ok(BlockScan {
            space: Arc::clone(&self.space),
            file,
            position: PAGE,
            end: if footer.is_some() { 0 } else { file_bytes },
            footer: footer.map(Vec::into_iter),
            block,
            expected: true,
            burst_bytes: None,
            step_bytes: STEP_BYTES,
            window: AlignedBuffer::new(),
            window_start: 0,
        })
    }
}

/// The footer of a block file that ends at `end`, if it has a valid one.
fn read_footer(file: &dyn DiskFile, header: BlockHeader, end: u64) -> io::Result<Option<Vec<FooterEntry>>> {
    if end < 2 * PAGE || !end.is_multiple_of(PAGE) {
        return Ok(None);
    }
    let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
    file.read_exact_at(&mut page, end - PAGE)?;
    let Some(trailer) = decode_trailer(&page, header, end) else {
        return Ok(None);
    };
    let Trailer {
        footer_offset, entries, ..
    } = trailer;
    let bytes = (entries as usize * FOOTER_ENTRY_BYTES).next_multiple_of(PAGE_BYTES);
    let mut buffer = AlignedBuffer::zeroed(bytes);
    file.read_exact_at(&mut buffer, footer_offset)?;
    Ok(decode_footer(&buffer, &trailer))
}

impl BlockScan {
    /// Whether the block has a footer, so that the walk is exact.
    pub fn has_footer(&self) -> bool {
        self.footer.is_some()
    }

    /// The bytes from `offset`: at least `wanted` of them if the file has them.
    fn bytes_at(&mut self, offset: u64, wanted: u64, read_bytes: u64) -> io::Result<&[u8]> {
        let window_end = self.window_start + self.window.len() as u64;
        if offset < self.window_start || offset + wanted > window_end {
            self.window_start = offset / PAGE * PAGE;
            let end = (offset + wanted)
                .next_multiple_of(PAGE)
                .max(self.window_start + read_bytes);
            self.window.clear();
            self.window
                .set_len(usize::try_from(end - self.window_start).map_err(io::Error::other)?);
            let count = self.file.read_up_to_at(&mut self.window, self.window_start);
            self.window.set_len(*count.as_ref().unwrap_or(&0));
            count?;
        }
        let from = usize::try_from(offset - self.window_start).map_err(io::Error::other)?;
        Ok(self.window.get(from..).unwrap_or_default())
    }

    /// The valid record header at `offset`, if there is one.
    fn header_at(&mut self, offset: u64) -> io::Result<Option<RecordHeader>> {
        let place = self.space.place(self.block.number, offset);
        let step_bytes = self.step_bytes;
        let Some(head_bytes) = record_head_bytes(self.bytes_at(offset, RECORD_ALIGNMENT, step_bytes)?) else {
            return Ok(None);
        };
        let bytes = self.bytes_at(offset, head_bytes as u64, step_bytes)?;
        Ok(decode_record_header(bytes, place))
    }

    /// The value of a record that was just found, verified. It is held in RAM whole.
    ///
    /// # Errors
    /// `Corruption`, I/O errors. The walk can continue after either.
    pub fn value(&mut self, found: &ScannedExtent) -> Result<Vec<u8>> {
        let number = self.block.number;
        let failed = |error: io::Error| Error::io(format!("reading {}", block_path(number).display()), &error);
        let corrupt = |what: &str| {
            let path = block_path(number);
            Error::corruption(format!("{} at offset {}", path.display(), found.offset), what)
        };
        let seed = self.space.place(number, found.offset).chunk_seed();
        let step_bytes = self.step_bytes;
        let bytes = self
            .bytes_at(found.offset, found.extent_bytes, step_bytes)
            .map_err(failed)?;
        let stored = usize::try_from(found.extent_bytes)
            .ok()
            .and_then(|extent_bytes| bytes.get(..extent_bytes))
            .and_then(|extent| {
                let stored = usize::try_from(stored_bytes(found.header.length)).ok()?;
                extent.get(extent.len().checked_sub(stored)?..)
            })
            .ok_or_else(|| corrupt("the block ends before the value does"))?;
        let mut value = Vec::with_capacity(stored.len());
        for (index, chunk) in (0..).zip(stored.chunks(CHUNK_DATA_BYTES + 4)) {
            let data = decode_chunk(chunk, seed, index);
            value.extend_from_slice(data.ok_or_else(|| corrupt("a chunk of the value does not match its checksum"))?);
        }
        Ok(value)
    }

    fn corrupt(&self, offset: u64) -> Error {
        let path = block_path(self.block.number);
        Error::corruption(
            format!("{} at offset {offset}", path.display()),
            "a record header is damaged",
        )
    }

    /// The next record between `position` and `end`.
    fn search(&mut self) -> io::Result<Option<Result<ScannedExtent>>> {
        while self.position < self.end {
            let offset = self.position;
            let expected = std::mem::take(&mut self.expected);
            let read_bytes = if expected { self.step_bytes } else { SEARCH_BYTES };
            let in_view = self.bytes_at(offset, RECORD_ALIGNMENT, read_bytes)?;
            let zero = in_view.iter().take(RECORD_ALIGNMENT as usize).all(|&byte| byte == 0);
            if !zero && let Some(header) = self.header_at(offset)? {
                let (alignment, version) = match header.kind {
                    RecordKind::Put => (PAGE, None),
                    RecordKind::Destaged => (RECORD_ALIGNMENT, Some(header.ticket)),
                };
                let extent_bytes = header.extent_bytes();
                self.position = (offset + extent_bytes).next_multiple_of(alignment);
                self.expected = true;
                return Ok(Some(Ok(ScannedExtent {
                    offset,
                    extent_bytes,
                    header,
                    version,
                })));
            }
            self.position += RECORD_ALIGNMENT;
            if expected && !zero {
                return Ok(Some(Err(self.corrupt(offset))));
            }
        }
        Ok(None)
    }

    /// The next record by the footer.
    fn next_listed(&mut self) -> io::Result<Option<Result<ScannedExtent>>> {
        loop {
            if let Some(found) = self.search()? {
                return Ok(Some(found));
            }
            let Some(entry) = self.footer.as_mut().and_then(Iterator::next) else {
                return Ok(None);
            };
            if let Some(burst_bytes) = self.burst_bytes {
                let is_long = entry.kind == ExtentKind::Put && entry.extent_bytes > BURST_EXTENT_BYTES_MAX;
                self.step_bytes = if is_long { STEP_BYTES } else { burst_bytes };
            }
            match entry.kind {
                ExtentKind::Put if entry.version == 0 => {}
                ExtentKind::Put => {
                    let header = self
                        .header_at(entry.offset)?
                        .filter(|h| h.extent_bytes() == entry.extent_bytes);
                    return Ok(Some(header.ok_or_else(|| self.corrupt(entry.offset)).map(|header| {
                        ScannedExtent {
                            offset: entry.offset,
                            extent_bytes: entry.extent_bytes,
                            header,
                            version: Some(entry.version),
                        }
                    })));
                }
                ExtentKind::Region => {
                    self.position = entry.offset;
                    self.end = entry.offset + entry.extent_bytes;
                    self.expected = true;
                }
            }
        }
    }
}

impl Iterator for BlockScan {
    type Item = Result<ScannedExtent>;

    fn next(&mut self) -> Option<Self::Item> {
        let found = if self.footer.is_some() {
            self.next_listed()
        } else {
            self.search()
        };
        found.unwrap_or_else(|error| {
            // A failed device read ends the walk: the rest is unknown.
            self.end = 0;
            self.footer = None;
            Some(Err(Error::io(
                format!("reading {}", block_path(self.block.number).display()),
                &error,
            )))
        })
    }
}
