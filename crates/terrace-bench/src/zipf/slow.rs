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

/// Methods that only pass their call on.
macro_rules! pass_on {
    ($below:ident: $(fn $name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($argument: $kind),*) -> $result {
            self.$below.$name($($argument),*)
        })*
    };
}

impl Disk for SlowDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.disk.open(path, mode)?;
        let read_us = Arc::clone(&self.read_us);
        Ok(Arc::new(SlowFile { file, read_us }))
    }

    pass_on! { disk:
        fn create_dir_all(path: &Path) -> io::Result<()>;
        fn list(path: &Path) -> io::Result<Vec<String>>;
        fn remove(path: &Path) -> io::Result<()>;
        fn rename(from: &Path, to: &Path) -> io::Result<()>;
        fn sync_dir(path: &Path) -> io::Result<()>;
        fn available_bytes() -> io::Result<u64>;
        fn counters() -> DiskCounters;
        fn host_path(path: &Path) -> Option<PathBuf>;
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

    pass_on! { file:
        fn write_all_at(buffer: &[u8], offset: u64) -> io::Result<()>;
        fn write_all_vectored_at(buffers: &[&[u8]], offset: u64) -> io::Result<()>;
        fn sync_data() -> io::Result<()>;
        fn allocate(bytes: u64) -> io::Result<()>;
        fn set_len(bytes: u64) -> io::Result<()>;
        fn len() -> io::Result<u64>;
        fn is_direct() -> bool;
        fn read_unit_bytes() -> usize;
    }
}
