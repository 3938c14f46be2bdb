//! The temporary file of a sweep: *spills*, each of which has short values in the order of their
//! keys, and the reader that merges them.
//!
//! This is an external merge sort: the log, which has values in commit order, is read once, and its
//! values come back in key order, with little RAM for any number of them.
//!
//! The file has no name while it is in use, so the system frees its space when it is closed, also
//! after a crash. Nothing in it has to be durable.
//!
//! Format of an item, little-endian: version (8 bytes), checksum of the value (4), length of the
//! key (2), length of the value (2), key, value. A spill begins at a page.
//!
//! On failure, of which a value that does not match its checksum is one: the sweep ends without
//! further copies.

use super::values::{Item, Values};
use crate::{
    Error, Result, Tier,
    io::{AlignedBuffer, Disk, DiskFile, OpenMode, PAGE_BYTES, read_queue::ReadQueue},
};
use bytes::Bytes;
use parking_lot::Mutex;
use std::{
    cmp::{Ordering, Reverse},
    collections::{BinaryHeap, binary_heap::PeekMut},
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering as Memory},
    },
};

/// The file's name, before it loses it.
const FILE: &str = "TERRACE.sweep";
/// Bytes of an item other than key and value.
const ITEM_BYTES: usize = 16;
/// Bytes per write request.
const WRITE_BYTES: usize = 1 << 20;
/// RAM for reading a spill, at most, and at least: for the longest item, and a page at each end.
const READ_BYTES_MAX: usize = 256 << 10;
const READ_BYTES_MIN: usize = crate::scan_order::SweepRam::SPILL_READ_BYTES;
/// A spill that can wait is read on if there is room for this much.
const READ_PART_BYTES_MIN: usize = 64 << 10;
const _: () = assert!(READ_BYTES_MIN >= ITEM_BYTES + crate::KEY_BYTES_MAX + 256 + 2 * PAGE_BYTES);

/// The file while it is written, by several threads.
pub(super) struct Spills {
    file: Arc<dyn DiskFile>,
    end: AtomicU64,
    /// Position and length of each spill.
    spills: Mutex<Vec<(u64, u64)>>,
}

fn failed(what: &str, error: &io::Error) -> Error {
    Error::io_on(Tier::Flash, format!("{what} a sweep's temporary file"), error)
}

impl Spills {
    /// An empty file.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn create(disk: &dyn Disk, is_direct: bool) -> Result<Self> {
        let path = Path::new(FILE);
        // A crash may have left the name.
        let removed = || match disk.remove(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        let create = || {
            removed()?;
            let file = disk.open(path, OpenMode::CREATE.with_direct(is_direct))?;
            removed()?;
            // Otherwise a crash might bring it back with what was written to it.
            disk.sync_dir(Path::new(""))?;
            Ok(file)
        };
        Ok(Self {
            file: create().map_err(|error| failed("create", &error))?,
            end: AtomicU64::new(0),
            spills: Mutex::default(),
        })
    }

    /// Writes a spill of all these values, and drops them. Each request is made through `step`.
    /// Returns the bytes written.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn spill(
        &self,
        values: &mut Values,
        mut step: impl FnMut(&mut dyn FnMut() -> io::Result<()>) -> io::Result<()>,
    ) -> Result<u64> {
        values.sort();
        let bytes: usize = values.items().map(|item| item_bytes(&item)).sum();
        if bytes == 0 {
            return Ok(0);
        }
        let written = bytes.next_multiple_of(PAGE_BYTES) as u64;
        let begin = self.end.fetch_add(written, Memory::Relaxed);
        let mut at = begin;
        let mut buffer = AlignedBuffer::with_capacity(WRITE_BYTES + READ_BYTES_MIN);
        let mut write = |part: &[u8]| {
            step(&mut || self.file.write_all_at(part, at)).map_err(|error| failed("write", &error))?;
            at += part.len() as u64;
            Ok::<_, Error>(())
        };
        for item in values.items() {
            append(&mut buffer, &item);
            if buffer.len() >= WRITE_BYTES {
                write(&buffer[..WRITE_BYTES])?;
                buffer.copy_within(WRITE_BYTES.., 0);
                buffer.set_len(buffer.len() - WRITE_BYTES);
            }
        }
        buffer.pad_to_page();
        write(&buffer)?;
        self.spills.lock().push((begin, bytes as u64));
        values.clear();
        Ok(written)
    }

    /// Reads all of it in the order of keys, with this much RAM, so many spills at a time.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn in_order(self, ram_bytes: usize, queue: &ReadQueue, together: usize) -> Result<InOrder> {
        let spills = self.spills.into_inner();
        // What is being read is in RAM twice.
        let share = ram_bytes / (spills.len() + together) / PAGE_BYTES * PAGE_BYTES;
        let read_bytes = share.clamp(READ_BYTES_MIN, READ_BYTES_MAX);
        let head = |(at, left)| Head {
            key: Vec::new(),
            length: 0,
            buffer: AlignedBuffer::with_capacity(read_bytes),
            passed: 0,
            at,
            left,
        };
        let mut heads: Vec<_> = spills.into_iter().map(head).collect();
        for group in heads.chunks_mut(together) {
            read_on(&self.file, queue, group.iter_mut())?;
            for head in group {
                head.take()?;
            }
        }
        Ok(InOrder {
            file: self.file,
            heads: heads.into(),
        })
    }
}

// The lengths of a key and of a short value fit.
fn append(buffer: &mut AlignedBuffer, item: &Item<'_>) {
    buffer.extend_from_slice(&item.version.to_le_bytes());
    buffer.extend_from_slice(&item.checksum.to_le_bytes());
    buffer.extend_from_slice(&(item.key.len() as u16).to_le_bytes());
    buffer.extend_from_slice(&(item.value.len() as u16).to_le_bytes());
    buffer.extend_from_slice(item.key);
    buffer.extend_from_slice(item.value);
}

const fn item_bytes(item: &Item<'_>) -> usize {
    ITEM_BYTES + item.key.len() + item.value.len()
}

/// The item at the begin of these bytes.
fn parse(bytes: &[u8]) -> Option<Item<'_>> {
    let (version, bytes) = bytes.split_first_chunk()?;
    let (checksum, bytes) = bytes.split_first_chunk()?;
    let (key_bytes, bytes) = bytes.split_first_chunk()?;
    let (value_bytes, bytes) = bytes.split_first_chunk()?;
    let (key, bytes) = bytes.split_at_checked(u16::from_le_bytes(*key_bytes).into())?;
    Some(Item {
        key,
        version: u64::from_le_bytes(*version),
        checksum: u32::from_le_bytes(*checksum),
        value: bytes.get(..u16::from_le_bytes(*value_bytes).into())?,
    })
}

/// The values of all spills in the order of their keys.
pub(super) struct InOrder {
    file: Arc<dyn DiskFile>,
    /// The first that is not passed yet of each.
    heads: BinaryHeap<Head>,
}

impl InOrder {
    /// The value of this version of a key. Keys ascend from call to call, and only the first call
    /// for a key finds a value. Where a spill has to be read, that is done by `queue`, of so many
    /// spills at a time.
    ///
    /// # Errors
    /// Errors of the device, or [`Error::Corruption`].
    pub fn value(
        &mut self,
        (key, version, checksum): (&[u8], u64, u32),
        queue: &ReadQueue,
        together: usize,
    ) -> Result<Option<Bytes>> {
        let mut found = None;
        while let Some(head) = self.heads.peek() {
            if head.key.as_slice() > key {
                break;
            }
            let item = head.item()?;
            if (item.key, item.version, item.checksum) == (key, version, checksum) {
                if crc32c::crc32c(item.value) != checksum {
                    return Err(damaged());
                }
                found = Some(Bytes::copy_from_slice(item.value));
            }
            if let Some(head) = self.pass_first()? {
                self.read_on(head, queue, together)?;
            }
        }
        Ok(found)
    }

    /// Passes the first item. Returns its head, taken out, if its spill has to be read on.
    fn pass_first(&mut self) -> Result<Option<Head>> {
        let Some(mut head) = self.heads.peek_mut() else {
            return Ok(None);
        };
        head.pass();
        if head.left > 0 && head.has_next() {
            head.take()?;
            return Ok(None);
        }
        Ok(Some(PeekMut::pop(head)).filter(|head| head.left > 0))
    }

    /// Reads on in the spill of this head, and in others that have used up most of what was read.
    fn read_on(&mut self, mut head: Head, queue: &ReadQueue, together: usize) -> Result<()> {
        // To look for others takes a time that grows with their number.
        if together == 1 || head.buffer.capacity() < READ_PART_BYTES_MIN {
            read_on(&self.file, queue, std::iter::once(&mut head))?;
            head.take()?;
            self.heads.push(head);
            return Ok(());
        }
        let mut others = std::mem::take(&mut self.heads).into_vec();
        let count = others.len().min(together - 1);
        if count > 0 {
            others.select_nth_unstable_by_key(count - 1, |head| Reverse(head.room()));
        }
        let worth = others[..count]
            .iter_mut()
            .filter(|head| head.room() >= READ_PART_BYTES_MIN);
        read_on(&self.file, queue, std::iter::once(&mut head).chain(worth))?;
        head.take()?;
        others.push(head);
        self.heads = others.into();
        Ok(())
    }
}

/// Fills the buffers of these heads.
fn read_on<'a>(file: &Arc<dyn DiskFile>, queue: &ReadQueue, heads: impl Iterator<Item = &'a mut Head>) -> Result<()> {
    let mut parts: Vec<_> = heads.map(Head::make_room).collect();
    let read = queue.fill(file, &mut parts);
    read.map_err(|error| failed("read", &error))
}

fn damaged() -> Error {
    Error::corruption("a sweep's temporary file", "a value does not match its checksum")
}

/// A spill that is being read. The first in a heap has the least key.
struct Head {
    /// Of the present item, by which heads are ordered.
    key: Vec<u8>,
    /// Length of the present item.
    length: usize,
    buffer: AlignedBuffer,
    /// Where the present item begins in the buffer.
    passed: usize,
    /// Position in the file of what is behind the buffer.
    at: u64,
    /// Bytes of items from the present one on.
    left: u64,
}

impl Head {
    fn item(&self) -> Result<Item<'_>> {
        parse(&self.buffer[self.passed..]).ok_or_else(damaged)
    }

    /// Passes the present item.
    fn pass(&mut self) {
        self.passed += self.length;
        self.left -= self.length as u64;
        self.length = 0;
    }

    /// Whether the buffer has the whole item that comes next.
    fn has_next(&self) -> bool {
        parse(&self.buffer[self.passed..]).is_some()
    }

    /// The next item in the buffer is the present one from now on.
    fn take(&mut self) -> Result<()> {
        let mut key = std::mem::take(&mut self.key);
        let item = self.item()?;
        let length = item_bytes(&item);
        key.clear();
        key.extend_from_slice(item.key);
        self.key = key;
        self.length = length;
        // Of a damaged item.
        if length as u64 > self.left {
            return Err(damaged());
        }
        Ok(())
    }

    /// Bytes that can be read into the buffer: behind what it has, without the pages that are
    /// passed.
    fn room(&self) -> usize {
        let kept = self.buffer.len() - self.passed / PAGE_BYTES * PAGE_BYTES;
        let behind = self.left.saturating_sub((self.buffer.len() - self.passed) as u64);
        let room = self.buffer.capacity() - kept;
        room.min(usize::try_from(behind).unwrap_or(room).next_multiple_of(PAGE_BYTES))
    }

    /// Drops the pages that are passed. Returns the room behind the others, which is to be filled,
    /// and where from.
    fn make_room(&mut self) -> (&mut [u8], u64) {
        let (room, from) = (self.room(), self.at);
        let dropped = self.passed / PAGE_BYTES * PAGE_BYTES;
        let kept = self.buffer.len() - dropped;
        self.buffer.copy_within(dropped.., 0);
        self.passed -= dropped;
        self.buffer.set_len(kept + room);
        self.at += room as u64;
        (&mut self.buffer[kept..], from)
    }
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key.cmp(&self.key)
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head {}

#[cfg(test)]
mod tests;
