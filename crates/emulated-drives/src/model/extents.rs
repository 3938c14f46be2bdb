//! The dirty extents of a disk's cache, each with its writes.
//!
//! Invariants: extents neither overlap nor touch. Each write is in exactly one extent or taken.

use super::Request;
use std::collections::BTreeMap;

/// A dirty range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub start: u64,
    /// First byte after it.
    pub end: u64,
    /// Writes that end in this extent, with their ends.
    members: Vec<(u64, u64)>,
}

impl Extent {
    /// The writes that are complete with this extent, in the order of arrival.
    pub fn writes(&self) -> Vec<u64> {
        let mut ids: Vec<u64> = self.members.iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Dirty {
    extents: BTreeMap<u64, Extent>,
    bytes: u64,
}

impl Dirty {
    /// Dirty bytes; overwritten bytes count once.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether there is nothing to write back.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Whether all of a range is dirty.
    pub fn covers(&self, start: u64, end: u64) -> bool {
        let before = self.extents.range(..=start).next_back();
        before.is_some_and(|(_, extent)| end <= extent.end)
    }

    /// Adds a write.
    pub fn insert(&mut self, request: Request) {
        let (start, end) = (request.offset, request.end());
        let mut merged = Extent {
            start,
            end,
            members: Vec::new(),
        };
        let before = self
            .extents
            .range(..=start)
            .next_back()
            .map(|(from, extent)| (*from, extent.end));
        if let Some((from, _)) = before.filter(|(_, to)| *to >= start) {
            self.absorb(&mut merged, from);
        }
        while let Some(from) = self.extents.range(start..=merged.end).next().map(|(from, _)| *from) {
            self.absorb(&mut merged, from);
        }
        merged.members.push((request.id, end));
        self.bytes += merged.end - merged.start;
        self.extents.insert(merged.start, merged);
    }

    fn absorb(&mut self, merged: &mut Extent, from: u64) {
        if let Some(extent) = self.extents.remove(&from) {
            self.bytes -= extent.end - extent.start;
            merged.start = merged.start.min(extent.start);
            merged.end = merged.end.max(extent.end);
            // The longer list stays in place: a sequential writer adds one write to many.
            let mut shorter = extent.members;
            if shorter.len() > merged.members.len() {
                std::mem::swap(&mut shorter, &mut merged.members);
            }
            merged.members.append(&mut shorter);
        }
    }

    /// Takes up to `bytes` from the start of the extent that begins at `start`.
    pub fn take(&mut self, start: u64, bytes: u64) -> Option<Extent> {
        let mut extent = self.extents.remove(&start)?;
        let cut = extent.end.min(start + bytes);
        self.bytes -= cut - start;
        if cut < extent.end {
            let (done, rest) = extent.members.into_iter().partition(|(_, end)| *end <= cut);
            let left = Extent {
                start: cut,
                end: extent.end,
                members: rest,
            };
            self.extents.insert(cut, left);
            extent = Extent {
                start,
                end: cut,
                members: done,
            };
        }
        Some(extent)
    }

    /// Starts of the extents nearest to a position: `count` on each side.
    pub fn near(&self, place: u64, count: usize) -> impl Iterator<Item = u64> {
        let after = self.extents.range(place..).take(count);
        let before = self.extents.range(..place).rev().take(count);
        after.chain(before).map(|(start, _)| *start)
    }
}
