//! State of a simulated disk behind its one lock: files, names, power, faults and space.

use super::{Fault, FaultKind, Survival, inode::Inode, names::Names, random::Random};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    ops::Range,
    time::Duration,
};

#[derive(Clone)]
pub(super) struct State {
    pub(super) random: Random,
    pub(super) survival: Survival,
    powered: bool,
    /// Counts power cuts. Handles remember the one they were opened in.
    pub(super) epoch: u64,
    pub(super) operations: u64,
    /// The change that finds this many operations done is cut off.
    pub(super) cut_at: Option<u64>,
    pub(super) fault: Option<Fault>,
    pub(super) capacity_bytes: Option<u64>,
    /// Requests so far that needed more space, and which of them are refused it.
    pub(super) growths: u64,
    pub(super) refused: Range<u64>,
    /// How long each read of a file takes at least.
    pub(super) read_time: Duration,
    pub(super) names: Names,
    pub(super) inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    next_order: u64,
}

impl State {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            survival: Survival::Random,
            powered: true,
            epoch: 0,
            operations: 0,
            cut_at: None,
            fault: None,
            capacity_bytes: None,
            growths: 0,
            refused: 0..0,
            read_time: Duration::ZERO,
            names: Names::default(),
            inodes: BTreeMap::new(),
            next_inode: 0,
            next_order: 0,
        }
    }

    pub(super) fn is_powered(&self) -> bool {
        self.powered
    }

    pub(super) fn check_power(&self) -> io::Result<()> {
        if self.powered {
            return Ok(());
        }
        Err(io::Error::other("power is off"))
    }

    /// Every request passes here first: fails it if the power is off or goes off now, or if a fault
    /// is due. `paths` are those it is about.
    pub(super) fn begin(&mut self, kind: FaultKind, paths: &[&str]) -> io::Result<()> {
        self.check_power()?;
        // Reads are not counted: they leave nothing behind that a cut could change.
        if kind != FaultKind::Read {
            if self.cut_at == Some(self.operations) {
                self.power_cut();
                self.check_power()?;
            }
            self.operations += 1;
        }
        let strikes = self.fault.as_mut().is_some_and(|fault| fault.strikes(kind, paths));
        if strikes {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        Ok(())
    }

    pub(super) fn power_cut(&mut self) {
        self.powered = false;
        self.cut_at = None;
    }

    pub(super) fn restore_power(&mut self) {
        if self.powered {
            return;
        }
        let journals = self.inodes.values().filter_map(Inode::oldest_order);
        let oldest = journals
            .chain(self.names.oldest_order())
            .min()
            .unwrap_or(self.next_order);
        let random = &mut self.random;
        // Mostly lost, mostly kept and everything between should all be seen.
        let kept_of_16 = 1 + random.below(15);
        let prefix_end = oldest + random.below(self.next_order - oldest + 1);
        let mut keep = |order: u64| match self.survival {
            Survival::Nothing => false,
            Survival::Everything => true,
            Survival::Prefix => order < prefix_end,
            Survival::Random => random.below(16) < kept_of_16,
        };
        for inode in self.inodes.values_mut() {
            inode.settle(&mut keep);
            inode.live = inode.durable.clone();
            inode.handles = 0;
        }
        self.names.settle(&mut keep);
        self.epoch += 1;
        self.powered = true;
        self.drop_unreachable();
    }

    pub(super) fn next_order(&mut self) -> u64 {
        self.next_order += 1;
        self.next_order - 1
    }

    pub(super) fn new_inode(&mut self) -> u64 {
        let number = self.next_inode;
        self.next_inode += 1;
        self.inodes.insert(number, Inode::default());
        number
    }

    /// A file by number. Files that are still referenced are never dropped, so absence is a bug
    /// here, reported as an error rather than a panic inside the program under test.
    pub(super) fn inode(&mut self, number: u64) -> io::Result<(&mut Inode, &mut Random, &mut u64)> {
        match self.inodes.get_mut(&number) {
            Some(inode) => Ok((inode, &mut self.random, &mut self.next_order)),
            None => Err(io::Error::other("the simulated disk lost track of the file")),
        }
    }

    /// Forgets files without name or handle.
    pub(super) fn drop_unreachable(&mut self) {
        let reachable = self.names.reachable();
        self.inodes
            .retain(|number, inode| inode.handles > 0 || reachable.contains(number));
    }

    /// Space not taken up. Removed files give theirs back at once, though a cut may bring them
    /// back.
    pub(super) fn available_bytes(&self) -> u64 {
        let Some(capacity_bytes) = self.capacity_bytes else {
            return UNLIMITED_BYTES;
        };
        let named: BTreeSet<u64> = self.names.live().values().copied().collect();
        let used = self
            .inodes
            .iter()
            .filter(|(number, inode)| inode.handles > 0 || named.contains(number));
        let used_bytes = used.map(|(_, inode)| inode.live.used_bytes()).sum();
        capacity_bytes.saturating_sub(used_bytes)
    }

    /// Fails as a full device does if `growth_bytes` more do not fit.
    pub(super) fn check_space(&mut self, growth_bytes: u64) -> io::Result<()> {
        // Writing in place goes on even when a lowered capacity is exceeded already.
        if growth_bytes == 0 {
            return Ok(());
        }
        self.growths += 1;
        let is_full = self.capacity_bytes.is_some() && growth_bytes > self.available_bytes();
        if is_full || self.refused.contains(&(self.growths - 1)) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

/// What a disk without a capacity says it has left.
const UNLIMITED_BYTES: u64 = 1 << 50;

/// The error number of a failed transfer, the same on every Unix.
const EIO: i32 = 5;
