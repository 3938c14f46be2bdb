//! An open file of a simulated disk.

use super::{
    FaultKind, Shared,
    inode::{Inode, SECTOR_BYTES},
    state::State,
};
use crate::{
    io::{
        DiskFile,
        checks::{at, check_aligned, check_len, check_range, check_writable, ends_early},
    },
    metrics::count,
};
use std::{fmt, io, path::Path, sync::Arc};

pub(super) struct SimFile {
    pub(super) shared: Arc<Shared>,
    pub(super) path: String,
    pub(super) inode: u64,
    /// The power cut count at opening; after the next cut the handle is dead.
    pub(super) epoch: u64,
    pub(super) writable: bool,
    pub(super) direct: bool,
}

impl SimFile {
    fn with<T>(&self, operation: &'static str, act: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.shared.state.lock();
        let alive = match state.check_power() {
            Ok(()) if state.epoch != self.epoch => Err(io::Error::other("power was cut since the file was opened")),
            result => result,
        };
        alive
            .and_then(|()| act(&mut state))
            .map_err(|error| at(operation, self.path(), error))
    }

    fn path(&self) -> &Path {
        Path::new(&self.path)
    }

    /// Changes the file's length if there is room for what `growth_bytes` says it takes.
    fn resize(
        &self,
        operation: &'static str,
        growth_bytes: impl FnOnce(&Inode) -> u64,
        change: impl FnOnce(&mut Inode, &mut u64),
    ) -> io::Result<()> {
        check_writable(operation, self.path(), self.writable)?;
        self.with(operation, |state| {
            state.begin(FaultKind::Write, &[&self.path])?;
            let growth_bytes = growth_bytes(state.inode(self.inode)?.0);
            state.check_space(growth_bytes)?;
            let (inode, _, next_order) = state.inode(self.inode)?;
            change(inode, next_order);
            Ok(())
        })
    }
}

impl DiskFile for SimFile {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let wanted = buffer.len();
        match self.read_up_to_at(buffer, offset)? {
            bytes if bytes < wanted => Err(ends_early(self.path(), offset, wanted, bytes)),
            _ => Ok(()),
        }
    }

    fn read_up_to_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        check_range(self.path(), offset, buffer.len())?;
        count(&self.shared.counters.reads, 1);
        let (bytes, time) = self.with("read", |state| {
            state.begin(FaultKind::Read, &[&self.path])?;
            Ok((state.inode(self.inode)?.0.live.read(buffer, offset), state.read_time))
        })?;
        if !time.is_zero() {
            std::thread::sleep(time);
        }
        count(&self.shared.counters.bytes_read, bytes as u64);
        Ok(bytes)
    }

    fn write_all_at(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        check_range(self.path(), offset, buffer.len())?;
        check_writable("write", self.path(), self.writable)?;
        if self.direct {
            check_aligned(self.path(), buffer, offset)?;
        }
        count(&self.shared.counters.writes, 1);
        self.with("write", |state| {
            let begun = state.begin(FaultKind::Write, &[&self.path]);
            let growth_bytes = state.inode(self.inode)?.0.live.growth_by_write(offset, buffer.len());
            let space = state.check_space(growth_bytes);
            let (inode, random, next_order) = state.inode(self.inode)?;
            if begun.is_err() && space.is_ok() {
                // The device fails, or loses power, in the midst of it.
                inode.write_torn(buffer, offset, random, next_order);
            }
            begun.and(space)?;
            inode.write(buffer, offset, next_order);
            Ok(())
        })?;
        count(&self.shared.counters.bytes_written, buffer.len() as u64);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        count(&self.shared.counters.syncs, 1);
        self.with("sync", |state| {
            let begun = state.begin(FaultKind::Sync, &[&self.path]);
            // A cut leaves everything to what survives it.
            if state.is_powered() {
                let (inode, random, _) = state.inode(self.inode)?;
                inode.settle(|_| begun.is_ok() || random.coin());
            }
            begun
        })
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        check_len(self.path(), bytes)?;
        let growth_bytes = |inode: &Inode| inode.live.growth_by_allocate(bytes);
        self.resize("allocate", growth_bytes, |inode, next_order| {
            inode.allocate(bytes, next_order);
        })
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        check_len(self.path(), bytes)?;
        self.resize(
            "set the length of",
            |_| 0,
            |inode, next_order| inode.set_len(bytes, next_order),
        )
    }

    fn len(&self) -> io::Result<u64> {
        self.with("stat", |state| Ok(state.inode(self.inode)?.0.live.len()))
    }

    fn is_direct(&self) -> bool {
        self.direct
    }

    fn read_unit_bytes(&self) -> usize {
        SECTOR_BYTES
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        if state.epoch != self.epoch {
            return;
        }
        if let Ok((inode, ..)) = state.inode(self.inode) {
            inode.handles -= 1;
            if inode.handles == 0 {
                state.drop_unreachable();
            }
        }
    }
}

impl fmt::Debug for SimFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimFile({}, opened after {} power cuts)", self.path, self.epoch)
    }
}
