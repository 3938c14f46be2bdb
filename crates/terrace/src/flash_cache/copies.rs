//! The copies on flash: their table, and reads of them.
//!
//! Invariants: a slice has at most one copy. The table may point to bytes that have been replaced
//! (the segment was reused while a reader was about to read): a reader verifies the bytes and drops
//! copies that do not match.

use super::Slice;
use crate::io::DiskFile;
use hashbrown::HashMap;
use parking_lot::RwLock;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

/// Where a copy is.
#[derive(Debug, Clone)]
pub struct Copy {
    /// Number of the segment.
    pub segment: u32,
    /// Where in the segment, in bytes.
    pub at: u64,
    /// How long.
    pub bytes: u32,
    /// The object's key.
    pub key: Arc<[u8]>,
}

/// A segment of copies.
#[derive(Debug)]
struct Used {
    file: Arc<dyn DiskFile>,
    slices: Vec<Slice>,
    /// Bytes of the copies that the table has in it.
    bytes: u64,
    is_passing: bool,
    /// It is still being written.
    is_open: bool,
}

/// The table.
#[derive(Debug, Default)]
pub struct Copies {
    table: RwLock<Table>,
    /// Where the next look for a segment to clean begins.
    looked_to: AtomicU32,
}

/// Segments compared to find the one of least value: nearly as good as comparing all, and fast for
/// any number.
const LOOKED_AT: usize = 64;

#[derive(Debug, Default)]
struct Table {
    copies: HashMap<Slice, Copy>,
    segments: BTreeMap<u32, Used>,
}

impl Table {
    /// The copy of a slice, if it is in this segment.
    fn copy_in(&self, segment: u32, slice: &Slice) -> Option<&Copy> {
        self.copies.get(slice).filter(|copy| copy.segment == segment)
    }

    fn remove(&mut self, slice: Slice, segment: u32) -> Option<Copy> {
        self.copy_in(segment, &slice)?;
        let copy = self.copies.remove(&slice)?;
        if let Some(used) = self.segments.get_mut(&copy.segment) {
            used.bytes -= u64::from(copy.bytes);
        }
        Some(copy)
    }
}

impl Copies {
    /// Segments, copies and their bytes.
    pub fn size(&self) -> (u64, u64, u64) {
        let table = self.table.read();
        let bytes = table.segments.values().map(|used| used.bytes).sum();
        (table.segments.len() as u64, table.copies.len() as u64, bytes)
    }

    /// Number of segments, and bytes in those for passing copies.
    pub fn segments(&self) -> (u32, u64) {
        let table = self.table.read();
        let passing = table
            .segments
            .values()
            .filter(|used| used.is_passing)
            .map(|used| used.bytes);
        // Segment numbers are 32 bits.
        (table.segments.len() as u32, passing.sum())
    }

    /// Whether there is a copy of a slice.
    pub fn has(&self, slice: Slice) -> bool {
        self.table.read().copies.contains_key(&slice)
    }

    /// Whether the copy of a slice is in this segment. If so it was all the time since it was seen
    /// there: the segment was not freed.
    pub fn holds(&self, slice: Slice, segment: u32) -> bool {
        self.table.read().copy_in(segment, &slice).is_some()
    }

    /// The file with this many bytes of the copy of a slice, starting at `from`, and the position
    /// in it. `None` if there is no copy of that length.
    pub fn find(&self, slice: Slice, from: u64, bytes: usize) -> Option<(Arc<dyn DiskFile>, u64)> {
        let table = self.table.read();
        let copy = table.copies.get(&slice)?;
        let is_within = from + bytes as u64 <= u64::from(copy.bytes);
        let used = table.segments.get(&copy.segment).filter(|_| is_within)?;
        Some((Arc::clone(&used.file), copy.at + from))
    }

    /// Forgets a copy.
    pub fn forget(&self, slice: Slice) -> bool {
        let mut table = self.table.write();
        let segment = table.copies.get(&slice).map(|copy| copy.segment);
        segment.is_some_and(|segment| table.remove(slice, segment).is_some())
    }

    /// A segment is for copies from now on.
    pub fn begin(&self, segment: u32, file: Arc<dyn DiskFile>, is_passing: bool) {
        let used = Used {
            file,
            slices: Vec::new(),
            bytes: 0,
            is_passing,
            is_open: true,
        };
        self.table.write().segments.insert(segment, used);
    }

    /// It is full.
    pub fn seal(&self, segment: u32) {
        if let Some(used) = self.table.write().segments.get_mut(&segment) {
            used.is_open = false;
        }
    }

    /// A copy was written.
    pub fn insert(&self, slice: Slice, copy: Copy) {
        let mut table = self.table.write();
        if let Some(before) = table.copies.get(&slice).map(|before| before.segment) {
            table.remove(slice, before);
        }
        if let Some(used) = table.segments.get_mut(&copy.segment) {
            used.slices.push(slice);
            used.bytes += u64::from(copy.bytes);
            table.copies.insert(slice, copy);
        }
    }

    /// Of the next full segments the one with the fewest bytes worth keeping, and their number:
    /// `worth` returns those of a copy.
    pub fn least_worth(&self, worth: impl Fn(&Copy) -> u64) -> Option<(u32, u64)> {
        let table = self.table.read();
        let mut least: Option<(u32, u64)> = None;
        let from = self.looked_to.load(Ordering::Relaxed);
        let sealed = table.segments.range(from..).chain(table.segments.range(..from));
        for (number, used) in sealed.filter(|(_, used)| !used.is_open).take(LOOKED_AT) {
            self.looked_to.store(number + 1, Ordering::Relaxed);
            let mut kept = 0;
            for slice in &used.slices {
                kept += table.copy_in(*number, slice).map_or(0, &worth);
                if least.is_some_and(|(_, least)| kept >= least) {
                    break;
                }
            }
            if least.is_none_or(|(_, least)| kept < least) {
                least = Some((*number, kept));
            }
            if kept == 0 {
                break;
            }
        }
        least
    }

    /// The copies in a segment, in the order they were written.
    pub fn in_segment(&self, segment: u32) -> Vec<(Slice, Copy)> {
        let table = self.table.read();
        let Some(used) = table.segments.get(&segment) else {
            return Vec::new();
        };
        let copy = |slice: &Slice| Some((*slice, table.copy_in(segment, slice)?.clone()));
        used.slices.iter().filter_map(copy).collect()
    }

    /// Drops a full segment with all its copies; returns their number. `None` if another thread
    /// did, or it is reused by now: of several threads that chose the same segment only one may
    /// free it.
    pub fn end(&self, segment: u32) -> Option<u64> {
        let mut table = self.table.write();
        let used = table.segments.get_mut(&segment).filter(|used| !used.is_open)?;
        let slices = std::mem::take(&mut used.slices).into_iter();
        let forgotten = slices.filter_map(|slice| table.remove(slice, segment)).count();
        table.segments.remove(&segment);
        Some(forgotten as u64)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::io::{Disk, OpenMode, SimDisk};
    use std::path::Path;

    fn file(disk: &SimDisk, name: &str, byte: u8) -> Arc<dyn DiskFile> {
        let file = disk.open(Path::new(name), OpenMode::CREATE).unwrap();
        file.write_all_at(&[byte; 65536], 0).unwrap();
        file
    }

    fn slice(block: u64) -> Slice {
        Slice {
            block,
            offset: 4096,
            number: 0,
        }
    }

    fn copy(segment: u32, at: u64) -> Copy {
        Copy {
            segment,
            at,
            bytes: 8192,
            key: Arc::from(&b"key"[..]),
        }
    }

    #[test]
    fn a_copy_is_found_until_it_is_replaced_forgotten_or_its_segment_ends() {
        let disk = SimDisk::new(1);
        let copies = Copies::default();
        copies.begin(1, file(&disk, "1", 1), false);
        copies.begin(2, file(&disk, "2", 2), true);
        copies.insert(slice(7), copy(1, 4096));
        copies.insert(slice(8), copy(1, 12_288));
        let read = |from| {
            let (file, at) = copies.find(slice(7), from, 4096)?;
            let mut out = [0; 4096];
            file.read_exact_at(&mut out, at).unwrap();
            Some(out[0])
        };
        assert_eq!(read(4096), Some(1));
        assert_eq!(read(8192), None, "it ends before");
        assert!(copies.holds(slice(7), 1) && !copies.holds(slice(7), 2) && !copies.holds(slice(9), 1));
        copies.insert(slice(7), copy(2, 4096));
        assert!(copies.holds(slice(7), 2) && !copies.holds(slice(7), 1));
        assert_eq!(read(0), Some(2));
        assert_eq!((copies.size(), copies.segments()), ((2, 2, 16_384), (2, 8192)));
        assert!(copies.forget(slice(8)) && !copies.forget(slice(8)));
        assert_eq!(copies.end(1), None, "it is being written");
        copies.seal(1);
        copies.seal(2);
        assert_eq!((copies.end(1), copies.end(2)), (Some(0), Some(1)));
        assert_eq!(copies.end(2), None, "it is free already");
        // Found by reading the code: bytes read from a segment that log GC had just freed were the
        // log's, and were written as a copy.
        assert!(!copies.holds(slice(7), 2));
        assert_eq!(copies.size(), (0, 0, 0));
    }

    #[test]
    fn the_segment_with_the_least_worth_is_found() {
        let disk = SimDisk::new(1);
        let copies = Copies::default();
        for segment in 1..=4 {
            copies.begin(segment, file(&disk, &segment.to_string(), 0), false);
            for number in 0..4 {
                copies.insert(slice(u64::from(segment * 10 + number)), copy(segment, 4096));
            }
        }
        (1..=3).for_each(|segment| copies.seal(segment));
        // `worth` is not called for the open segment.
        let worth = |copy: &Copy| {
            if copy.segment == 2 {
                10
            } else if copy.segment == 4 {
                0
            } else {
                20
            }
        };
        assert_eq!(copies.least_worth(worth), Some((2, 40)));
        assert_eq!(copies.in_segment(2).len(), 4);
    }
}
