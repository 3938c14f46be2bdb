//! Ranges of keys that have a chunk, and the changes in them.

use std::{collections::BTreeMap, ops::Bound};

/// Bytes of a range in the table besides its two keys: the share of a node, and two allocations.
pub(super) const RANGE_OVERHEAD_BYTES: u64 = 112;
/// Changed keys of a chunk that is the home of values before it is dropped: the next scan copies
/// the unchanged ones, which costs less than listing it.
pub(super) const CHANGED_MAX: usize = 8;

/// The same of a chunk of copies: enough where scans meet an insert now and then. With eight,
/// chunks of a store that is overwritten after it was scanned went one by one, and the freed pieces
/// among them took 47 MiB of 512.
pub(super) const CHANGED_SHORT_MAX: usize = 2;

/// Keys from where a range begins (which is its key in the table) up to an end.
#[derive(Debug)]
pub(super) struct Range {
    /// The first key behind it; empty: no end.
    pub(super) end: Box<[u8]>,
    /// Its chunk. Of a range that had one until a key in it was written only the borders are left:
    /// with them it is read anew as a whole, and not in ever smaller pieces.
    pub(super) chunk: Option<InRange>,
    /// Keys that have changed since the chunk was made.
    pub(super) changed: Vec<Box<[u8]>>,
}

/// The chunk of a range.
#[derive(Debug, Clone, Copy)]
pub(super) struct InRange {
    pub(super) number: u64,
    /// Its contents are valid from this seq on.
    pub(super) seq: u64,
    /// Whether it is the home of values in RAM.
    pub(super) is_home: bool,
}

impl Range {
    fn covers(&self, key: &[u8]) -> bool {
        self.end.is_empty() || *key < *self.end
    }

    /// Whether this key has changed since its chunk was made.
    pub(super) fn has_changed(&self, key: &[u8]) -> bool {
        self.changed.binary_search_by(|changed| (**changed).cmp(key)).is_ok()
    }

    fn changed_bytes(&self) -> u64 {
        self.changed.iter().map(|key| bytes_of_changed(key)).sum()
    }

    /// Its bytes in the table, if it begins at this key.
    pub(super) fn bytes(&self, start: &[u8]) -> u64 {
        bytes_of(start, &self.end) + self.changed_bytes()
    }

    /// Notes that a key has changed, if that takes no more bytes than allowed. `false` if the chunk
    /// is better dropped.
    fn notes_change(&mut self, key: &[u8], bytes_max: u64) -> bool {
        let Some(chunk) = self.chunk else { return false };
        let changed_max = if chunk.is_home { CHANGED_MAX } else { CHANGED_SHORT_MAX };
        let at = self.changed.partition_point(|changed| **changed < *key);
        if self.changed.get(at).is_some_and(|changed| **changed == *key) {
            return true;
        }
        let has_room = self.changed.len() < changed_max && self.changed_bytes() + bytes_of_changed(key) <= bytes_max;
        if has_room {
            // It has few keys, all of which are counted, and no room for more.
            self.changed.reserve_exact(1);
            self.changed.insert(at, key.into());
        }
        has_room
    }
}

/// A chunk that is being made.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) number: u64,
    pub(super) start: Box<[u8]>,
    /// The lowest key from `start` on that was changed since.
    pub(super) changed: Option<Box<[u8]>>,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) ranges: BTreeMap<Box<[u8]>, Range>,
    pub(super) begun: Vec<Begun>,
    pub(super) bytes: u64,
    /// Where the search for ranges of evicted chunks continues.
    pub(super) hand: Box<[u8]>,
}

pub(super) const fn bytes_of(start: &[u8], end: &[u8]) -> u64 {
    RANGE_OVERHEAD_BYTES + (start.len() + end.len()) as u64
}

/// Bytes of the note that a key has changed.
pub(super) const fn bytes_of_changed(key: &[u8]) -> u64 {
    (size_of::<Box<[u8]>>() + key.len()) as u64
}

impl Table {
    pub(super) fn at(&self, key: &[u8]) -> Option<(&[u8], &Range)> {
        let before = self.ranges.range::<[u8], _>((Bound::Unbounded, Bound::Included(key)));
        let (start, range) = before.into_iter().next_back()?;
        range.covers(key).then_some((start, range))
    }

    pub(super) fn remove(&mut self, start: &[u8]) {
        if let Some((start, range)) = self.ranges.remove_entry(start) {
            self.bytes -= range.bytes(&start);
        }
    }

    /// Notes that a key has changed, if the table does not exceed its limit then. Gives the number
    /// of the chunk that is none any more.
    pub(super) fn change(&mut self, key: &[u8], bytes_max: u64) -> Option<u64> {
        for begun in self.begun.iter_mut().filter(|begun| *begun.start <= *key) {
            if begun.changed.as_ref().is_none_or(|changed| *key < **changed) {
                begun.changed = Some(key.into());
            }
        }
        let before = self
            .ranges
            .range_mut::<[u8], _>((Bound::Unbounded, Bound::Included(key)));
        let (start, range) = before.into_iter().next_back().filter(|(_, range)| range.covers(key))?;
        self.bytes -= range.changed_bytes();
        let is_noted = range.notes_change(key, bytes_max.saturating_sub(self.bytes));
        if !is_noted {
            range.changed = Vec::new();
        }
        self.bytes += range.changed_bytes();
        if is_noted {
            return None;
        }
        let chunk = range.chunk.take();
        // Written in twice, and not read in between: it is not scanned.
        if chunk.is_none() {
            let start = start.clone();
            self.remove(&start);
        }
        chunk.map(|chunk| chunk.number)
    }

    /// Makes room for a range. Returns whether no range with a chunk is in the way.
    pub(super) fn clear(&mut self, start: &[u8], end: &[u8]) -> bool {
        let mut lost: Vec<Box<[u8]>> = Vec::new();
        if let Some((start, range)) = self.at(start) {
            if range.chunk.is_some() {
                return false;
            }
            lost.push(start.into());
        }
        for (start, range) in self
            .ranges
            .range::<[u8], _>((Bound::Excluded(start), Bound::Unbounded))
            .take_while(|(start, _)| end.is_empty() || ***start < *end)
        {
            if range.chunk.is_some() {
                return false;
            }
            lost.push(start.clone());
        }
        lost.iter().for_each(|start| self.remove(start));
        true
    }
}
