//! A simulated disk, for tests: in memory, deterministic from a seed, and adversarial within the
//! guarantees of a disk.
//!
//! For every file it keeps the durable state and each change since the last sync, for the
//! directories the durable names and the changes since. A power cut decides for each change whether
//! it survives.
//!
//! Invariants:
//! - Data written before a successful `sync_data` survives, under its name if the directory was
//!   synced too. Nothing else is guaranteed, except that a sector (512 bytes) is whole, old or new.
//!   A removal, a rename, a length may be undone; a new file may vanish although its data was
//!   synced.
//! - The same calls in the same order with the same seed give the same results.
//!
//! On failure: with the power off every call fails, and files opened before a cut fail forever.
//! Tests inject faults; see [`FaultKind`] for what these leave behind.

mod fault;
mod file;
mod image;
mod inode;
mod names;
mod random;
mod state;
#[cfg(test)]
mod tests;

pub use fault::{Fault, FaultKind, Survival};
#[cfg(test)]
pub(super) use random::Random as TestRandom;

use super::{
    Disk, DiskCounters, DiskFile, OpenMode,
    checks::{at, check_len, check_range, relative},
    counters::Counters,
};
use crate::metrics::count;
use file::SimFile;
use inode::Inode;
use parking_lot::Mutex;
use state::State;
use std::{fmt, io, path::Path, sync::Arc, time::Duration};

/// A simulated disk, for tests. Clones are the same disk.
///
/// ```
/// use std::path::Path;
/// use terrace::io::{Disk, OpenMode, SimDisk, Survival};
///
/// let disk = SimDisk::new(7);
/// let file = disk.open(Path::new("a"), OpenMode::CREATE)?;
/// file.write_all_at(b"kept", 0)?;
/// file.sync_data()?;
/// disk.sync_dir(Path::new(""))?;
/// file.write_all_at(b"lost", 0)?;
///
/// disk.power_cycle(Survival::Nothing);
/// assert!(file.len().is_err());
/// assert_eq!(disk.read_file("a")?, b"kept");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct SimDisk {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    counters: Counters,
}

impl SimDisk {
    /// An empty disk with its power on. The seed decides what cuts and faults leave behind.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with_state(State::new(seed))
    }

    fn with_state(state: State) -> Self {
        let shared = Shared {
            state: Mutex::new(state),
            counters: Counters::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// An independent disk in the same state, except for open files and with a seed of its own: one
    /// history can be cut in many ways. Cheap, as content is shared until either side writes.
    #[must_use]
    pub fn fork(&self, seed: u64) -> Self {
        let mut state = self.shared.state.lock().clone();
        state.random = random::Random::new(seed);
        for inode in state.inodes.values_mut() {
            inode.handles = 0;
        }
        state.drop_unreachable();
        Self::with_state(state)
    }

    /// Turns the power off: every call fails until [`SimDisk::restore_power`].
    pub fn power_cut(&self) {
        self.shared.state.lock().power_cut();
    }

    /// Cuts the power when `operations` more have been done. The next one after them fails; of a
    /// write, some sectors may have been written. Reads are no operations.
    pub fn cut_after(&self, operations: u64) {
        let mut state = self.shared.state.lock();
        state.cut_at = Some(state.operations.saturating_add(operations));
    }

    /// Whether the power is on.
    #[must_use]
    pub fn is_powered(&self) -> bool {
        self.shared.state.lock().is_powered()
    }

    /// Sets what survives the next power cuts; [`Survival::Random`] by default.
    pub fn set_survival(&self, survival: Survival) {
        self.shared.state.lock().survival = survival;
    }

    /// Decides what survived, makes it durable and turns the power on. Faults and capacity stay.
    /// Does nothing if the power is on.
    pub fn restore_power(&self) {
        self.shared.state.lock().restore_power();
    }

    /// Cuts the power if it is on, and restores it.
    pub fn power_cycle(&self, survival: Survival) {
        let mut state = self.shared.state.lock();
        state.survival = survival;
        state.power_cut();
        state.restore_power();
    }

    /// Operations done so far: writes, allocations, changes of length, creations, removals, renames
    /// and syncs. Reads and openings are not counted, as no cut could tell them apart.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.shared.state.lock().operations
    }

    /// Lets `requests` of the kind pass and fails all later ones, until [`SimDisk::set_fault`].
    pub fn fail_after(&self, requests: u64, kind: FaultKind) {
        self.set_fault(Some(Fault::new(kind).after(requests)));
    }

    /// Replaces or removes the fault.
    pub fn set_fault(&self, fault: Option<Fault>) {
        self.shared.state.lock().fault = fault;
    }

    /// Limits the space; without a limit at first. Writes and allocations that do not fit fail with
    /// `StorageFull` and change nothing.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.shared.state.lock().capacity_bytes = bytes;
    }

    /// Requests so far that needed more space: writes and allocations by which a file grows.
    #[must_use]
    pub fn growths(&self) -> u64 {
        self.shared.state.lock().growths
    }

    /// Lets `requests` more that need space pass and refuses it to the `count` after them, as a
    /// full device does, whatever the capacity says.
    pub fn refuse_growth(&self, requests: u64, count: u64) {
        let mut state = self.shared.state.lock();
        let first = state.growths.saturating_add(requests);
        state.refused = first..first.saturating_add(count);
    }

    /// Has each read of a file take so long at least, as on a disk that seeks.
    pub fn set_read_time(&self, time: Duration) {
        self.shared.state.lock().read_time = time;
    }

    /// Flips one bit of a file, in its visible and in its durable state.
    ///
    /// # Errors
    /// If the file is absent or has no such bit.
    pub fn flip_bit(&self, path: &str, bit: u64) -> io::Result<()> {
        self.tamper(path, bit / 8, 1, |byte| byte[0] ^= 1 << (bit % 8))
    }

    /// Overwrites a part of a file, in its visible and in its durable state.
    ///
    /// # Errors
    /// If the file is absent or ends before the last byte.
    pub fn corrupt(&self, path: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.tamper(path, offset, bytes.len(), |present| present.copy_from_slice(bytes))
    }

    fn tamper(&self, path: &str, offset: u64, bytes: usize, change: impl Fn(&mut [u8])) -> io::Result<()> {
        check_range(Path::new(path), offset, bytes)?;
        self.with_inode(path, |inode| {
            let end = offset + bytes as u64;
            if end > inode.live.len() {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "the file ends before"));
            }
            for image in [&mut inode.live, &mut inode.durable] {
                // Bytes that were never synced may be missing.
                let mut present = vec![0; bytes];
                if image.read(&mut present, offset) == bytes {
                    change(&mut present);
                    image.write(&present, offset);
                }
            }
            Ok(())
        })
    }

    /// Truncates or extends a file, in its visible and in its durable state. Unsynced data becomes
    /// durable, too.
    ///
    /// # Errors
    /// If the file is absent.
    pub fn truncate(&self, path: &str, bytes: u64) -> io::Result<()> {
        check_len(Path::new(path), bytes)?;
        self.with_inode(path, |inode| {
            inode.settle(|_| true);
            inode.live.set_len(bytes);
            inode.durable.set_len(bytes);
            Ok(())
        })
    }

    /// The content of a file, as a reader sees it; also with the power off.
    ///
    /// # Errors
    /// If the file is absent.
    pub fn read_file(&self, path: &str) -> io::Result<Vec<u8>> {
        self.with_inode(path, |inode| {
            let bytes = usize::try_from(inode.live.len()).map_err(io::Error::other)?;
            let mut content = vec![0; bytes];
            inode.live.read(&mut content, 0);
            Ok(content)
        })
    }

    /// Creates or replaces a file with this content, durably; creates directories as needed. For
    /// feeding arbitrary bytes to readers.
    ///
    /// # Errors
    /// If the path is a directory or below a file.
    pub fn put_file(&self, path: &str, content: &[u8]) -> io::Result<()> {
        let path = key(Path::new(path))?;
        let mut state = self.shared.state.lock();
        state
            .names
            .create_dir_all(names::parent(&path))
            .and_then(|()| match state.names.get(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                result => result.map(drop),
            })
            .map_err(|error| at("create", Path::new(&path), error))?;
        let number = state.new_inode();
        let (inode, ..) = state.inode(number)?;
        inode.live.write(content, 0);
        inode.durable = inode.live.clone();
        state.names.place(&path, number);
        state.drop_unreachable();
        Ok(())
    }

    /// Paths of all files, sorted; also with the power off.
    #[must_use]
    pub fn files(&self) -> Vec<String> {
        self.shared.state.lock().names.live().keys().cloned().collect()
    }

    /// Acts on a file from outside: without power, faults or counting.
    fn with_inode<T>(&self, path: &str, act: impl FnOnce(&mut Inode) -> io::Result<T>) -> io::Result<T> {
        let path = key(Path::new(path))?;
        let mut state = self.shared.state.lock();
        let number = state.names.get(&path);
        number
            .and_then(|number| act(state.inode(number)?.0))
            .map_err(|error| at("reach", Path::new(&path), error))
    }

    /// One request about a path.
    fn request<T>(
        &self,
        operation: &'static str,
        path: &Path,
        act: impl FnOnce(&mut State, &str) -> io::Result<T>,
    ) -> io::Result<T> {
        let path = key(path)?;
        let mut state = self.shared.state.lock();
        act(&mut state, &path).map_err(|error| at(operation, Path::new(&path), error))
    }
}

/// A path as the simulated disk keeps it: relative, with slashes.
fn key(path: &Path) -> io::Result<String> {
    let text = relative(path)?.into_os_string().into_string();
    text.map_err(|_| {
        let error = io::Error::new(io::ErrorKind::InvalidInput, "the path must be UTF-8");
        at("use", path, error)
    })
}

impl Disk for SimDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let operation = if mode.create_new { "create" } else { "open" };
        let shared = self.shared.clone();
        self.request(operation, path, |state, path| {
            state.check_power()?;
            let number = if mode.create_new {
                state.begin(FaultKind::Write, &[path])?;
                state.names.check_absent(path)?;
                let (number, order) = (state.new_inode(), state.next_order());
                state.names.create(path, number, order);
                number
            } else {
                state.names.get(path)?
            };
            state.inode(number)?.0.handles += 1;
            let file = SimFile {
                shared,
                path: path.to_owned(),
                inode: number,
                epoch: state.epoch,
                writable: mode.write || mode.create_new,
                direct: mode.direct,
            };
            Ok(Arc::new(file) as Arc<dyn DiskFile>)
        })
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.request("create directory", path, |state, path| {
            state.begin(FaultKind::Write, &[path])?;
            state.names.create_dir_all(path)
        })
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.request("list", path, |state, path| {
            state.begin(FaultKind::Read, &[path])?;
            state.names.list(path)
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.request("remove", path, |state, path| {
            state.begin(FaultKind::Write, &[path])?;
            let order = state.next_order();
            state.names.remove(path, order)?;
            state.drop_unreachable();
            Ok(())
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let to = key(to)?;
        self.request("rename", from, |state, from| {
            state.begin(FaultKind::Write, &[from, &to])?;
            let order = state.next_order();
            state.names.rename(from, &to, order)?;
            state.drop_unreachable();
            Ok(())
        })
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        count(&self.shared.counters.syncs, 1);
        self.request("sync directory", path, |state, path| {
            let begun = state.begin(FaultKind::Sync, &[path]);
            if state.is_powered() {
                state.names.check_directory(path)?;
                let random = &mut state.random;
                state.names.sync(path, || begun.is_ok() || random.coin());
                state.drop_unreachable();
            }
            begun
        })
    }

    fn available_bytes(&self) -> io::Result<u64> {
        let state = self.shared.state.lock();
        state.check_power()?;
        Ok(state.available_bytes())
    }

    fn counters(&self) -> DiskCounters {
        self.shared.counters.picture()
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.state.lock();
        let power = if state.is_powered() { "on" } else { "off" };
        let files = state.names.live().len();
        write!(
            f,
            "SimDisk({files} files, {} operations, power {power})",
            state.operations
        )
    }
}
