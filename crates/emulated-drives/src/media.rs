//! A drive's contents: the media (a sparse file) and the writes that are not on it yet.
//!
//! A write stays in memory until the model says that it has settled; only then is it written to the
//! file. At a cut, seed and [`Survival`] decide which of the writes in memory reach the file; the
//! others are dropped.
//!
//! Invariants: a read sees every write accepted before it. A settled write stays on the media: a
//! cut never replaces it by an older one. Surviving writes are applied in the order of arrival,
//! sector by sector. Failure: an error of the file is returned, and the drive answers EIO; no write
//! in memory is dropped because of it.

use super::random::Random;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Which unflushed writes survive a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Survival {
    /// One of the other kinds, chosen by the seed.
    Any,
    /// None of them.
    None,
    /// All of them.
    All,
    /// Each one or not, independently: later writes may survive earlier ones.
    Random,
    /// The first ones, up to some point.
    Prefix,
    /// Each one whole, or not, or only some of its sectors.
    Torn,
}

/// Result of a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutReport {
    /// The kind used; never `Any`.
    pub survival: Survival,
    /// Writes that were not on the media.
    pub pending_writes: u64,
    /// Their length in bytes.
    pub pending_bytes: u64,
    /// How many of these bytes reached the media.
    pub survived_bytes: u64,
}

/// A write in memory.
#[derive(Debug)]
struct Pending {
    offset: u64,
    data: Arc<[u8]>,
    /// Ranges that no later settled write covers.
    live: Vec<Range<u64>>,
}

impl Pending {
    fn slice(&self, range: &Range<u64>) -> &[u8] {
        &self.data[(range.start - self.offset) as usize..(range.end - self.offset) as usize]
    }
}

#[derive(Debug, Default)]
struct Volatile {
    pending: BTreeMap<u64, Pending>,
    /// The newest pending write of each byte that has one: start to (end, write).
    newest: BTreeMap<u64, (u64, u64)>,
    /// Number of changes of the file.
    settled: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Media {
    file: File,
    sector_bytes: u64,
    volatile: Mutex<Volatile>,
}

impl Media {
    /// Media in a file of the drive's length.
    pub fn new(file: File, sector_bytes: u64) -> Self {
        Self {
            file,
            sector_bytes,
            volatile: Mutex::default(),
        }
    }

    /// Bytes as the host sees them.
    pub fn read(&self, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let mut data = vec![0; bytes];
        let before = self.volatile.lock().settled;
        self.file.read_exact_at(&mut data, offset)?;
        let volatile = self.volatile.lock();
        if volatile.settled != before {
            // A write has moved from memory to the file meanwhile and might be missing from both
            // reads.
            self.file.read_exact_at(&mut data, offset)?;
        }
        let end = offset + bytes as u64;
        for (range, id) in volatile.overlapping(offset, end) {
            if let Some(pending) = volatile.pending.get(&id) {
                let target = (range.start - offset) as usize..(range.end - offset) as usize;
                data[target].copy_from_slice(pending.slice(&range));
            }
        }
        Ok(data)
    }

    /// Adds a write to memory. IDs ascend.
    pub fn write(&self, id: u64, offset: u64, data: Arc<[u8]>) {
        let end = offset + data.len() as u64;
        let mut volatile = self.volatile.lock();
        volatile.replace(offset, end, id);
        let live = std::iter::once(offset..end).collect();
        volatile.pending.insert(id, Pending { offset, data, live });
    }

    /// Settles a write; no effect if it has settled.
    pub fn settle(&self, id: u64) -> io::Result<()> {
        let mut volatile = self.volatile.lock();
        self.settle_locked(&mut volatile, id)
    }

    /// Settles all writes up to `id`: a flush has completed.
    pub fn settle_until(&self, id: u64) -> io::Result<()> {
        let mut volatile = self.volatile.lock();
        while let Some(first) = volatile.pending.keys().next().copied().filter(|first| *first <= id) {
            self.settle_locked(&mut volatile, first)?;
        }
        Ok(())
    }

    fn settle_locked(&self, volatile: &mut Volatile, id: u64) -> io::Result<()> {
        let Some(pending) = volatile.pending.get(&id) else {
            return Ok(());
        };
        for range in &pending.live {
            self.file.write_all_at(pending.slice(range), range.start)?;
        }
        volatile.settled += 1;
        let Some(Pending { offset, data, .. }) = volatile.pending.remove(&id) else {
            return Ok(());
        };
        let end = offset + data.len() as u64;
        for (range, newest) in volatile.overlapping(offset, end) {
            if newest == id {
                volatile.newest.remove(&range.start);
            }
        }
        for (_, older) in volatile.pending.range_mut(..id) {
            subtract(&mut older.live, &(offset..end));
        }
        Ok(())
    }

    /// Cuts the power: some of the writes in memory reach the media, the others are dropped.
    pub fn cut(&self, survival: Survival, random: &mut Random) -> io::Result<CutReport> {
        let mut volatile = self.volatile.lock();
        let volatile = std::mem::take(&mut *volatile);
        let survival = match survival {
            Survival::Any => {
                let modes = [
                    Survival::None,
                    Survival::Random,
                    Survival::Prefix,
                    Survival::Torn,
                    Survival::Torn,
                ];
                modes[random.below(modes.len() as u64) as usize]
            }
            chosen => chosen,
        };
        let mut report = CutReport {
            survival,
            pending_writes: volatile.pending.len() as u64,
            pending_bytes: volatile.pending.values().map(|pending| pending.data.len() as u64).sum(),
            survived_bytes: 0,
        };
        let prefix = random.below(report.pending_writes + 1);
        for (index, pending) in volatile.pending.values().enumerate() {
            let sectors = self.surviving(survival, (index as u64) < prefix, pending, random);
            for range in sectors {
                let mut parts = pending.live.clone();
                intersect(&mut parts, &range);
                for part in parts {
                    self.file.write_all_at(pending.slice(&part), part.start)?;
                    report.survived_bytes += part.end - part.start;
                }
            }
        }
        Ok(report)
    }

    /// The parts of a write that survive a cut.
    fn surviving(
        &self,
        survival: Survival,
        in_prefix: bool,
        pending: &Pending,
        random: &mut Random,
    ) -> Vec<Range<u64>> {
        let whole = pending.offset..pending.offset + pending.data.len() as u64;
        match survival {
            Survival::None | Survival::Any => Vec::new(),
            Survival::All => vec![whole],
            Survival::Random => random.happens(0.5).then_some(whole).into_iter().collect(),
            Survival::Prefix => in_prefix.then_some(whole).into_iter().collect(),
            Survival::Torn => {
                let sectors = split(&whole, self.sector_bytes);
                match random.below(4) {
                    0 => Vec::new(),
                    1 => vec![whole],
                    2 => {
                        let kept = random.below(sectors.len() as u64 + 1) as usize;
                        sectors.into_iter().take(kept).collect()
                    }
                    _ => sectors.into_iter().filter(|_| random.happens(0.5)).collect(),
                }
            }
        }
    }

    /// Number and bytes of the writes in memory.
    pub fn pending(&self) -> (u64, u64) {
        let volatile = self.volatile.lock();
        let bytes = volatile.pending.values().map(|pending| pending.data.len() as u64).sum();
        (volatile.pending.len() as u64, bytes)
    }

    /// Flips one bit in each of `count` sectors that hold data, and returns where. Fewer if there
    /// is not enough data.
    pub fn rot(&self, count: u64, random: &mut Random) -> io::Result<Vec<u64>> {
        let extents = data_extents(&self.file)?;
        let total: u64 = extents.iter().map(|extent| extent.end - extent.start).sum();
        let mut flipped = Vec::new();
        let mut volatile = self.volatile.lock();
        for _ in 0..if total == 0 { 0 } else { count } {
            let mut position = random.below(total);
            for extent in &extents {
                let length = extent.end - extent.start;
                if position < length {
                    let mut byte = [0];
                    self.file.read_exact_at(&mut byte, extent.start + position)?;
                    byte[0] ^= 1 << random.below(8);
                    self.file.write_all_at(&byte, extent.start + position)?;
                    flipped.push(extent.start + position);
                    break;
                }
                position -= length;
            }
        }
        volatile.settled += 1;
        Ok(flipped)
    }
}

impl Volatile {
    /// The parts of `start..end` with a pending write, and their newest write.
    fn overlapping(&self, start: u64, end: u64) -> Vec<(Range<u64>, u64)> {
        let before = self.newest.range(..start).next_back();
        let pieces = before.into_iter().chain(self.newest.range(start..end));
        let clipped = pieces.map(|(from, (to, id))| ((*from).max(start)..(*to).min(end), *id));
        clipped.filter(|(range, _)| range.start < range.end).collect()
    }

    /// Makes `id` the newest write of `start..end`.
    fn replace(&mut self, start: u64, end: u64, id: u64) {
        let before = self
            .newest
            .range(..start)
            .next_back()
            .map(|(from, piece)| (*from, *piece));
        if let Some((from, (to, older))) = before.filter(|(_, (to, _))| *to > start) {
            self.newest.insert(from, (start, older));
            if to > end {
                self.newest.insert(end, (to, older));
            }
        }
        let inside: Vec<_> = self
            .newest
            .range(start..end)
            .map(|(from, piece)| (*from, *piece))
            .collect();
        for (from, (to, older)) in inside {
            self.newest.remove(&from);
            if to > end {
                self.newest.insert(end, (to, older));
            }
        }
        self.newest.insert(start, (end, id));
    }
}

/// Removes `hole` from ranges.
fn subtract(ranges: &mut Vec<Range<u64>>, hole: &Range<u64>) {
    if ranges
        .iter()
        .all(|range| range.end <= hole.start || hole.end <= range.start)
    {
        return;
    }
    let parts = ranges.iter().flat_map(|range| {
        let left = range.start..range.end.min(hole.start);
        let right = range.start.max(hole.end)..range.end;
        [left, right]
    });
    *ranges = parts.filter(|part| part.start < part.end).collect();
}

/// Cuts ranges to `window`.
fn intersect(ranges: &mut Vec<Range<u64>>, window: &Range<u64>) {
    for range in ranges.iter_mut() {
        *range = range.start.max(window.start)..range.end.min(window.end);
    }
    ranges.retain(|range| range.start < range.end);
}

/// Splits a range at sector boundaries.
fn split(range: &Range<u64>, sector_bytes: u64) -> Vec<Range<u64>> {
    let mut pieces = Vec::new();
    let mut start = range.start;
    while start < range.end {
        let end = ((start / sector_bytes + 1) * sector_bytes).min(range.end);
        pieces.push(start..end);
        start = end;
    }
    pieces
}

/// The data ranges of a sparse file.
fn data_extents(file: &File) -> io::Result<Vec<Range<u64>>> {
    use rustix::fs::{SeekFrom, seek};
    let mut extents = Vec::new();
    let mut position = 0;
    loop {
        match seek(file, SeekFrom::Data(position)) {
            Ok(start) => {
                let end = seek(file, SeekFrom::Hole(start))?;
                extents.push(start..end);
                position = end;
            }
            Err(rustix::io::Errno::NXIO) => return Ok(extents),
            Err(error) => return Err(error.into()),
        }
    }
}
