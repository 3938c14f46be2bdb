//! A large tier with a configurable delay: a directory whose reads take longer.
//!
//! The delay is outside the device, so reads of several callers wait in parallel, as with an array
//! of disks or an object store.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use terrace::io::{Disk, DiskCounters, DiskFile, FileDisk, OpenMode};

/// The directory.
#[derive(Debug)]
pub struct SlowDisk {
    disk: FileDisk,
    read_us: Arc<AtomicU64>,
}

#[derive(Debug)]
struct SlowFile {
    file: Arc<dyn DiskFile>,
    read_us: Arc<AtomicU64>,
}

impl SlowDisk {
    /// Wraps a directory; each read is delayed by the current value of `read_us`, in microseconds.
    ///
    /// # Errors
    /// If the directory cannot be created.
    pub fn new(directory: &Path, read_us: &Arc<AtomicU64>) -> io::Result<Self> {
        Ok(Self {
            disk: FileDisk::new(directory)?,
            read_us: Arc::clone(read_us),
        })
    }
}

impl SlowFile {
    fn wait(&self) {
        let read_us = self.read_us.load(Ordering::Relaxed);
        if read_us > 0 {
            std::thread::sleep(Duration::from_micros(read_us));
        }
    }
}

impl Disk for SlowDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.disk.open(path, mode)?;
        let read_us = Arc::clone(&self.read_us);
        Ok(Arc::new(SlowFile { file, read_us }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.disk.create_dir_all(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.disk.list(path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.sync_dir(path)
    }

    fn available_bytes(&self) -> io::Result<u64> {
        self.disk.available_bytes()
    }

    fn counters(&self) -> DiskCounters {
        self.disk.counters()
    }

    fn host_path(&self, path: &Path) -> Option<PathBuf> {
        self.disk.host_path(path)
    }
}

impl DiskFile for SlowFile {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.wait();
        self.file.read_exact_at(buffer, offset)
    }

    fn read_up_to_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.wait();
        self.file.read_up_to_at(buffer, offset)
    }

    fn write_all_at(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(buffer, offset)
    }

    fn write_all_vectored_at(&self, buffers: &[&[u8]], offset: u64) -> io::Result<()> {
        self.file.write_all_vectored_at(buffers, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.file.allocate(bytes)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn is_direct(&self) -> bool {
        self.file.is_direct()
    }

    fn read_unit_bytes(&self) -> usize {
        self.file.read_unit_bytes()
    }
}
