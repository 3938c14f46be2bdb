//! A disk whose syncs a test can block.

use std::{
    io,
    path::Path,
    sync::{Arc, Condvar, Mutex},
};
use terrace::io::{Disk, DiskCounters, DiskFile, OpenMode, SimDisk};

/// A simulated disk. While it is held, syncs of files block.
#[derive(Debug, Clone)]
pub struct HeldDisk {
    pub disk: SimDisk,
    gate: Arc<Gate>,
}

#[derive(Debug, Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_held: bool,
    waiting: usize,
}

#[derive(Debug)]
struct HeldFile {
    file: Arc<dyn DiskFile>,
    gate: Arc<Gate>,
}

impl HeldDisk {
    pub fn new(disk: SimDisk) -> Self {
        Self {
            disk,
            gate: Arc::default(),
        }
    }

    /// Blocks syncs from now on.
    pub fn hold(&self) {
        self.gate.state.lock().unwrap().is_held = true;
    }

    /// Waits until a sync is blocked.
    pub fn wait_for_sync(&self) {
        let state = self.gate.state.lock().unwrap();
        drop(self.gate.changed.wait_while(state, |state| state.waiting == 0).unwrap());
    }

    /// Unblocks all syncs.
    pub fn release(&self) {
        self.gate.state.lock().unwrap().is_held = false;
        self.gate.changed.notify_all();
    }
}

impl Disk for HeldDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.disk.open(path, mode)?;
        let gate = Arc::clone(&self.gate);
        Ok(Arc::new(HeldFile { file, gate }))
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
}

impl DiskFile for HeldFile {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }
    fn read_up_to_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_up_to_at(buffer, offset)
    }
    fn write_all_at(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(buffer, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.gate.state.lock().unwrap();
        state.waiting += 1;
        self.gate.changed.notify_all();
        let mut state = self.gate.changed.wait_while(state, |state| state.is_held).unwrap();
        state.waiting -= 1;
        drop(state);
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
}
