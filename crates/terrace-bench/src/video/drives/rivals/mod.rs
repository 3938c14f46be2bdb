//! The rivals: a cache of records in RAM, below it a use of flash, below that the catalogue in one
//! file on the disk.
//!
//! [`ram`] is the same for all. [`flashcache`], [`l2arc`] and [`object_lru`] use flash: each has a
//! file there, which is really read and written with direct I/O. Adjacent blocks are read with one
//! request, which is an advantage over the real systems.

mod flashcache;
mod l2arc;
mod object_lru;
pub mod ram;

use super::{Scene, Segment, Server, Settings, System};
use crate::{Outcome, harness::values::Values};
use flashcache::Flashcache;
use l2arc::L2Arc;
use object_lru::ObjectLru;
use ram::{Ram, Record};
use std::{ops::Range, path::Path, sync::Arc, time::Duration};
use terrace::io::{AlignedBuffer, Disk, DiskFile, FileDisk, OpenMode};

/// Records per segment: the original's 2.3 MB are 18 of ZFS's 128 KiB.
pub const RECORDS: usize = 18;
/// Lengths of segments are multiples of this, so that every record has whole 4 KiB blocks.
pub const UNIT_BYTES: usize = RECORDS * BLOCK_BYTES;
/// Flashcache's block, and the unit of direct I/O.
pub const BLOCK_BYTES: usize = 4096;

/// The catalogue in one file on the disk, title by title.
#[derive(Debug)]
pub struct Shelf {
    disk: FileDisk,
    file: Arc<dyn DiskFile>,
    segment_bytes: usize,
}

impl Shelf {
    /// Writes the catalogue.
    pub fn fill(directory: &Path, scene: &Scene, values: &Values) -> Outcome<Self> {
        let disk = FileDisk::new(directory)?;
        let file = disk.open(Path::new("catalogue"), OpenMode::CREATE.with_direct(true))?;
        file.allocate(scene.bytes())?;
        let mut buffer = AlignedBuffer::new();
        for object in 0..scene.catalogue.objects() {
            buffer.clear();
            buffer.extend_from_slice(values.piece(object as u64, scene.segment_bytes));
            file.write_all_at(&buffer, (object * scene.segment_bytes) as u64)?;
        }
        file.sync_data()?;
        let segment_bytes = scene.segment_bytes;
        Ok(Self {
            disk,
            file,
            segment_bytes,
        })
    }

    /// Reads a part of a segment.
    pub fn read(&self, object: usize, part: Range<usize>, into: &mut [u8]) -> Outcome {
        Ok(self
            .file
            .read_exact_at(into, self.position(object) + part.start as u64)?)
    }

    /// Offset of a segment on the disk.
    pub fn position(&self, object: usize) -> u64 {
        (object * self.segment_bytes) as u64
    }
}

/// A file on flash.
#[derive(Debug)]
pub struct CacheFile {
    disk: FileDisk,
    file: Arc<dyn DiskFile>,
}

impl CacheFile {
    /// Creates the file.
    pub fn create(directory: &Path, bytes: u64) -> Outcome<Self> {
        let disk = FileDisk::new(directory)?;
        let file = disk.open(Path::new("cache"), OpenMode::CREATE.with_direct(true))?;
        file.allocate(bytes)?;
        Ok(Self { disk, file })
    }

    /// Fills a buffer.
    pub fn read(&self, into: &mut [u8], position: u64) -> Outcome {
        Ok(self.file.read_exact_at(into, position)?)
    }

    /// Writes page-aligned memory.
    pub fn write(&self, data: &[u8], position: u64) -> Outcome {
        Ok(self.file.write_all_at(data, position)?)
    }

    fn written_bytes(&self) -> u64 {
        self.disk.counters().bytes_written
    }
}

/// A use of flash.
pub trait Flash: Send + Sync {
    /// Reads a part of a segment, in whole records, from flash or from the disk.
    fn read(&self, shelf: &Shelf, object: usize, part: Range<usize>, into: &mut [u8]) -> Outcome;

    /// Called after a whole segment was read; the buffer is page-aligned.
    fn was_read(&self, _object: usize, _segment: &AlignedBuffer) -> Outcome {
        Ok(())
    }

    /// See [`Server::warm_up_passed`].
    fn warm_up_passed(&self, _time: Option<Duration>) -> Outcome {
        Ok(())
    }

    /// Bytes written to flash so far.
    fn written_bytes(&self) -> u64;

    /// Ends background work.
    fn close(&self) -> Outcome {
        Ok(())
    }
}

/// No flash.
struct NoFlash;

impl Flash for NoFlash {
    fn read(&self, shelf: &Shelf, object: usize, part: Range<usize>, into: &mut [u8]) -> Outcome {
        shelf.read(object, part, into)
    }

    fn written_bytes(&self) -> u64 {
        0
    }
}

/// A rival.
pub struct Rival {
    ram: Arc<Ram>,
    flash: Box<dyn Flash>,
    shelf: Arc<Shelf>,
    /// Bytes read from the disk before.
    disk_read_before: u64,
    segment_bytes: usize,
    asked_records: usize,
}

impl Rival {
    /// With an empty directory on flash.
    pub fn new(system: System, shelf: Arc<Shelf>, directory: &Path, settings: &Settings) -> Outcome<Self> {
        let scene = &settings.scene;
        let record_bytes = scene.segment_bytes / RECORDS;
        let ram = Arc::new(Ram::new((scene.ram_bytes / record_bytes as u64) as usize));
        let bytes = (scene.bytes() as f64 * settings.share.unwrap_or_default()) as u64;
        let flash: Box<dyn Flash> = match system {
            System::Terrace | System::DiskOnly => Box::new(NoFlash),
            System::ObjectLru => Box::new(ObjectLru::new(directory, bytes, scene.segment_bytes)?),
            System::Flashcache => Box::new(Flashcache::new(directory, bytes)?),
            System::L2Arc => Box::new(L2Arc::new(directory, bytes, scene, &ram)?),
        };
        Ok(Self {
            ram,
            flash,
            disk_read_before: shelf.disk.counters().bytes_read,
            shelf,
            segment_bytes: scene.segment_bytes,
            asked_records: scene.asked_records,
        })
    }

    fn bytes_of(&self, records: &Range<usize>) -> Range<usize> {
        let record_bytes = self.segment_bytes / RECORDS;
        records.start * record_bytes..records.end * record_bytes
    }
}

impl Server for Rival {
    fn read(&self, object: usize) -> Outcome<Segment> {
        let mut buffer = AlignedBuffer::zeroed(self.segment_bytes);
        let record = |number| Record { object, number };
        // Ranges that are not in RAM, with adjacent records joined.
        let mut missing: Vec<Range<usize>> = Vec::new();
        for number in 0..RECORDS {
            let bytes = self.bytes_of(&(number..number + 1));
            if self.ram.get(record(number), &mut buffer[bytes]) {
                continue;
            }
            match missing.last_mut().filter(|run| run.end == number) {
                Some(run) => run.end += 1,
                None => missing.push(number..number + 1),
            }
        }
        for run in &missing {
            let bytes = self.bytes_of(run);
            self.flash
                .read(&self.shelf, object, bytes.clone(), &mut buffer[bytes])?;
        }
        for number in missing.into_iter().flatten() {
            let bytes = self.bytes_of(&(number..number + 1));
            self.ram
                .put(record(number), &buffer[bytes], number >= self.asked_records);
        }
        self.flash.was_read(object, &buffer)?;
        Ok(Box::new(buffer))
    }

    fn disk_read_bytes(&self) -> u64 {
        self.shelf.disk.counters().bytes_read - self.disk_read_before
    }

    fn flash_written_bytes(&self) -> u64 {
        self.flash.written_bytes()
    }

    fn warm_up_passed(&self, time: Option<Duration>) -> Outcome {
        self.flash.warm_up_passed(time)
    }

    fn close(self: Box<Self>) -> Outcome {
        self.flash.close()
    }
}
