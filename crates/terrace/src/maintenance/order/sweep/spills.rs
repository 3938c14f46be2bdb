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
    cmp::Ordering,
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

    /// Reads all of it in the order of keys, with this much RAM.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn in_order(self, ram_bytes: usize, queue: &ReadQueue) -> Result<InOrder> {
        let spills = self.spills.into_inner();
        let share = ram_bytes / spills.len().max(1) / PAGE_BYTES * PAGE_BYTES;
        let read_bytes = share.clamp(READ_BYTES_MIN, READ_BYTES_MAX);
        let mut heads = BinaryHeap::with_capacity(spills.len());
        for (at, left) in spills {
            let mut head = Head {
                key: Vec::new(),
                length: 0,
                buffer: AlignedBuffer::with_capacity(read_bytes),
                passed: 0,
                at,
                left,
            };
            if head.next(&self.file, queue)? {
                heads.push(head);
            }
        }
        Ok(InOrder { file: self.file, heads })
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
    /// for a key finds a value.
    ///
    /// # Errors
    /// Errors of the device, or [`Error::Corruption`].
    pub fn value(&mut self, key: &[u8], version: u64, checksum: u32, queue: &ReadQueue) -> Result<Option<Bytes>> {
        let mut found = None;
        while let Some(mut head) = self.heads.peek_mut() {
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
            if !head.next(&self.file, queue)? {
                PeekMut::pop(head);
            }
        }
        Ok(found)
    }
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

    /// Goes on to the next item. `false`: there is none.
    fn next(&mut self, file: &Arc<dyn DiskFile>, queue: &ReadQueue) -> Result<bool> {
        self.passed += self.length;
        self.left -= self.length as u64;
        self.length = 0;
        if self.left == 0 {
            return Ok(false);
        }
        if parse(&self.buffer[self.passed..]).is_none() {
            self.read_on(file, queue)?;
        }
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
        Ok(true)
    }

    /// Fills the buffer, without the pages that are passed.
    fn read_on(&mut self, file: &Arc<dyn DiskFile>, queue: &ReadQueue) -> Result<()> {
        let dropped = self.passed / PAGE_BYTES * PAGE_BYTES;
        let kept = self.buffer.len() - dropped;
        self.buffer.copy_within(dropped.., 0);
        self.passed -= dropped;
        let behind = self.left.saturating_sub((kept - self.passed) as u64);
        let room = self.buffer.capacity() - kept;
        let part = room.min(usize::try_from(behind).unwrap_or(room).next_multiple_of(PAGE_BYTES));
        self.buffer.set_len(kept + part);
        let read = queue.fill(file, &mut self.buffer[kept..], self.at);
        read.map_err(|error| failed("read", &error))?;
        self.at += part as u64;
        Ok(())
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
