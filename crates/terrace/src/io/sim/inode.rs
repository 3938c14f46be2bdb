//! A simulated file without its name: what readers see, what is durable, and every change in
//! between.
//!
//! Invariant: `durable` plus all of `journal`, in order, is `live`, unless a sync failed: what that
//! sync lost stays visible in `live` until the power is cut, and no later sync brings it back.

use super::{image::Image, random::Random};

/// What a device writes whole or not at all, in bytes.
pub(super) const SECTOR_BYTES: usize = 512;

#[derive(Clone, Default)]
pub(super) struct Inode {
    pub(super) live: Image,
    pub(super) durable: Image,
    journal: Vec<Change>,
    /// Open handles.
    pub(super) handles: u64,
}

/// A change since the last sync. `order` counts all changes of the disk; a write takes one per
/// sector.
#[derive(Clone)]
struct Change {
    order: u64,
    kind: ChangeKind,
}

#[derive(Clone)]
enum ChangeKind {
    /// Whole sectors, as they stood right after the write; the last may end early, at the file's
    /// end.
    Write {
        offset: u64,
        bytes: Vec<u8>,
    },
    /// A write behind the end made the file longer. May survive without the data: then there are
    /// zeros.
    Extend(u64),
    SetLen(u64),
    Allocate(u64),
}

impl Inode {
    /// Writes, and records the sectors that now differ from the durable state.
    pub(super) fn write(&mut self, bytes: &[u8], offset: u64, next_order: &mut u64) {
        if bytes.is_empty() {
            return;
        }
        let len_before = self.live.len();
        self.live.write(bytes, offset);
        if self.live.len() > len_before {
            self.remember(ChangeKind::Extend(self.live.len()), 1, next_order);
        }
        let sector = SECTOR_BYTES as u64;
        let start = offset - offset % sector;
        let end = (offset + bytes.len() as u64).next_multiple_of(sector);
        // The cache writes back whole sectors, together with what earlier writes left in them.
        let mut sectors = vec![0; (end - start) as usize];
        let present = self.live.read(&mut sectors, start);
        sectors.truncate(present);
        let change = ChangeKind::Write {
            offset: start,
            bytes: sectors,
        };
        self.remember(change, (end - start) / sector, next_order);
    }

    /// Writes some sectors of `bytes` and not others: a write that failed or was cut off.
    pub(super) fn write_torn(&mut self, bytes: &[u8], offset: u64, random: &mut Random, next_order: &mut u64) {
        let mut position = 0;
        while position < bytes.len() {
            let within = ((offset + position as u64) % SECTOR_BYTES as u64) as usize;
            let end = bytes.len().min(position + SECTOR_BYTES - within);
            if random.coin() {
                self.write(&bytes[position..end], offset + position as u64, next_order);
            }
            position = end;
        }
    }

    pub(super) fn set_len(&mut self, bytes: u64, next_order: &mut u64) {
        self.live.set_len(bytes);
        self.remember(ChangeKind::SetLen(bytes), 1, next_order);
    }

    pub(super) fn allocate(&mut self, bytes: u64, next_order: &mut u64) {
        self.live.allocate(bytes);
        self.remember(ChangeKind::Allocate(bytes), 1, next_order);
    }

    fn remember(&mut self, kind: ChangeKind, orders: u64, next_order: &mut u64) {
        let order = *next_order;
        self.journal.push(Change { order, kind });
        *next_order += orders;
    }

    /// Makes the changes that `keep` chooses by their order durable, and drops the others
    /// permanently.
    pub(super) fn settle(&mut self, mut keep: impl FnMut(u64) -> bool) {
        for change in std::mem::take(&mut self.journal) {
            match change.kind {
                ChangeKind::Write { offset, bytes } => {
                    for (number, sector) in (0..).zip(bytes.chunks(SECTOR_BYTES)) {
                        if keep(change.order + number) {
                            self.durable.write(sector, offset + number * SECTOR_BYTES as u64);
                        }
                    }
                }
                ChangeKind::Extend(bytes) if keep(change.order) => self.durable.extend(bytes),
                ChangeKind::SetLen(bytes) if keep(change.order) => self.durable.set_len(bytes),
                ChangeKind::Allocate(bytes) if keep(change.order) => self.durable.allocate(bytes),
                ChangeKind::Extend(_) | ChangeKind::SetLen(_) | ChangeKind::Allocate(_) => {}
            }
        }
    }

    /// The order of the oldest change that is not durable.
    pub(super) fn oldest_order(&self) -> Option<u64> {
        self.journal.first().map(|change| change.order)
    }
}
