//! A disk in RAM with a capacity and failures on demand.

use crate::io::{Disk, DiskCounters, DiskFile, OpenMode, PAGE_BYTES};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

#[derive(Debug)]
pub struct Shared {
    pub capacity: AtomicU64,
    pub used: AtomicU64,
    pub fail_syncs: AtomicBool,
    pub fail_writes: AtomicBool,
    /// Writes of two pages and more panic.
    pub panics: AtomicBool,
    /// There is no room for another file.
    pub fail_new_files: AtomicBool,
    /// The process has no free file descriptor.
    pub lacks_descriptor: AtomicBool,
    /// Held by a test, writes of two pages and more wait.
    pub gate: Mutex<()>,
    /// Requests of writes, several buffers in one counting once; the longest of them.
    pub requests: AtomicU64,
    pub longest: AtomicU64,
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    pub syncs: AtomicU64,
}

#[derive(Debug)]
pub struct MemoryDisk {
    pub files: Mutex<BTreeMap<PathBuf, Arc<MemoryFile>>>,
    pub shared: Arc<Shared>,
}

#[derive(Debug)]
pub struct MemoryFile {
    pub bytes: Mutex<Vec<u8>>,
    direct: bool,
    shared: Arc<Shared>,
}

impl MemoryDisk {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            files: Mutex::default(),
            shared: Arc::new(Shared {
                capacity: AtomicU64::new(u64::MAX),
                used: AtomicU64::new(0),
                fail_syncs: AtomicBool::new(false),
                fail_writes: AtomicBool::new(false),
                panics: AtomicBool::new(false),
                fail_new_files: AtomicBool::new(false),
                lacks_descriptor: AtomicBool::new(false),
                gate: Mutex::default(),
                requests: AtomicU64::new(0),
                longest: AtomicU64::new(0),
                syncs: AtomicU64::new(0),
                reads: AtomicU64::new(0),
                writes: AtomicU64::new(0),
            }),
        })
    }

    pub fn file(&self, path: &Path) -> Arc<MemoryFile> {
        Arc::clone(&self.files.lock()[path])
    }
}

impl MemoryFile {
    /// Checks what direct I/O would refuse.
    fn check_aligned(&self, buffer: &[u8], offset: u64) {
        if self.direct {
            assert_eq!(buffer.as_ptr() as usize % PAGE_BYTES, 0);
            assert_eq!(buffer.len() % PAGE_BYTES, 0);
            assert_eq!(offset as usize % PAGE_BYTES, 0);
        }
    }

    fn resize(&self, bytes: &mut Vec<u8>, len: usize) -> io::Result<()> {
        let used = self.shared.used.load(Ordering::SeqCst) + len as u64 - bytes.len().min(len) as u64;
        if len > bytes.len() && used > self.shared.capacity.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let freed = bytes.len().saturating_sub(len) as u64;
        self.shared.used.store(used - freed, Ordering::SeqCst);
        bytes.resize(len, 0);
        Ok(())
    }
}

impl Disk for MemoryDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let mut files = self.files.lock();
        if self.shared.lacks_descriptor.load(Ordering::SeqCst) {
            return Err(Errno::MFILE.into());
        }
        if mode.create_new {
            if files.contains_key(path) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            if self.shared.fail_new_files.load(Ordering::SeqCst) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let file = MemoryFile {
                bytes: Mutex::default(),
                direct: mode.direct,
                shared: Arc::clone(&self.shared),
            };
            files.insert(path.to_owned(), Arc::new(file));
        }
        let file = files.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::<MemoryFile>::clone(file))
    }
    fn create_dir_all(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let files = self.files.lock();
        let inside = files.keys().filter(|file| file.parent() == Some(path));
        Ok(inside
            .map(|file| file.file_name().unwrap().to_str().unwrap().to_owned())
            .collect())
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        let file = self.files.lock().remove(path).ok_or(io::ErrorKind::NotFound)?;
        self.shared
            .used
            .fetch_sub(file.bytes.lock().len() as u64, Ordering::SeqCst);
        Ok(())
    }
    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
    fn available_bytes(&self) -> io::Result<u64> {
        let used = self.shared.used.load(Ordering::SeqCst);
        Ok(self.shared.capacity.load(Ordering::SeqCst).saturating_sub(used))
    }
    fn counters(&self) -> DiskCounters {
        DiskCounters::default()
    }
}

impl DiskFile for MemoryFile {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        if self.read_up_to_at(buffer, offset)? < buffer.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }
    fn read_up_to_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.shared.reads.fetch_add(1, Ordering::SeqCst);
        self.check_aligned(buffer, offset);
        let bytes = self.bytes.lock();
        let from = bytes.len().min(offset as usize);
        let count = buffer.len().min(bytes.len() - from);
        buffer[..count].copy_from_slice(&bytes[from..from + count]);
        Ok(count)
    }
    fn write_all_vectored_at(&self, buffers: &[&[u8]], offset: u64) -> io::Result<()> {
        let bytes: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        self.shared.requests.fetch_add(1, Ordering::SeqCst);
        self.shared.longest.fetch_max(bytes as u64, Ordering::SeqCst);
        let mut position = offset;
        for buffer in buffers {
            self.write_all_at(buffer, position)?;
            position += buffer.len() as u64;
        }
        Ok(())
    }
    fn write_all_at(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        if buffer.len() >= 2 * PAGE_BYTES {
            drop(self.shared.gate.lock());
            assert!(!self.shared.panics.load(Ordering::SeqCst), "a bug in the device");
        }
        self.shared.writes.fetch_add(1, Ordering::SeqCst);
        if self.shared.fail_writes.load(Ordering::SeqCst) {
            return Err(io::Error::other("the device does not answer"));
        }
        let mut bytes = self.bytes.lock();
        let end = offset as usize + buffer.len();
        self.check_aligned(buffer, offset);
        if end > bytes.len() {
            self.resize(&mut bytes, end)?;
        }
        bytes[offset as usize..end].copy_from_slice(buffer);
        Ok(())
    }
    fn sync_data(&self) -> io::Result<()> {
        self.shared.syncs.fetch_add(1, Ordering::SeqCst);
        if self.shared.fail_syncs.load(Ordering::SeqCst) {
            return Err(io::Error::other("the device lost its cache"));
        }
        Ok(())
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        let mut bytes = self.bytes.lock();
        let len = bytes.len().max(len as usize);
        self.resize(&mut bytes, len)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.resize(&mut self.bytes.lock(), len as usize)
    }
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.lock().len() as u64)
    }
    fn is_direct(&self) -> bool {
        false
    }
}
