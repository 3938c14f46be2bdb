//! Range deletions that are not swept yet: which versions they hide.
//!
//! A [`DeletedRange`] says that every object with a key in it and a version before its seq is
//! deleted as of its seq. This stays true, so a reader may hold a [`RangeSet`] for any time; it
//! takes the set before it looks a key up. [`Ranges`] is the set of an open store: the log adds to
//! it inside the commit, and expiry removes ranges that hide nothing any more. Why that is safe:
//! docs/durability.md, section 7.
//!
//! Invariants: a set is immutable; a change of [`Ranges`] replaces it. A start is before its end.
//!
//! On failure: nothing here can fail. If there are too many ranges, the caller waits
//! ([`Ranges::has_room`]).

#[cfg(test)]
mod tests;

use crate::{Durability, KEY_BYTES_MAX, ScanRange};
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::{
    collections::BTreeSet,
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Ranges outstanding before a call waits for expiry,
pub const RANGES_MAX: usize = 256;
/// or bytes of their keys: all of it is written with every mark.
pub const RANGES_BYTES_MAX: usize = 64 << 10;

/// One range deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletedRange {
    /// Seq of its commit.
    pub seq: u64,
    /// The first key, 1 to 4096 bytes.
    pub start: Box<[u8]>,
    /// The first key behind it, at most 4096 bytes; empty: no end.
    pub end: Box<[u8]>,
}

impl DeletedRange {
    fn key_bytes(&self) -> usize {
        self.start.len() + self.end.len()
    }
}

/// The key that follows `key` among keys of at most 4096 bytes. `None` behind the last.
pub fn successor(key: &[u8]) -> Option<Vec<u8>> {
    let mut next = key.to_vec();
    if next.len() < KEY_BYTES_MAX {
        next.push(0);
        return Some(next);
    }
    next.truncate(KEY_BYTES_MAX);
    while next.pop_if(|byte| *byte == 0xff).is_some() {}
    *next.last_mut()? += 1;
    Some(next)
}

/// The first key of a range and the first key after it (empty: no end), as a record stores them.
/// `None` if no key can be in the range. A bound longer than the longest key is shortened to the
/// equivalent bound for keys.
pub fn first_and_end(range: &ScanRange) -> Option<(Vec<u8>, Vec<u8>)> {
    // A key as a lower bound: longer ones begin behind what their first 4096 bytes spell.
    let from = |key: &[u8], inclusive: bool| {
        if key.is_empty() {
            Some(vec![0])
        } else if inclusive && key.len() <= KEY_BYTES_MAX {
            Some(key.to_vec())
        } else {
            successor(key)
        }
    };
    let start = match &range.start {
        Bound::Unbounded => vec![0],
        Bound::Included(key) => from(key, true)?,
        Bound::Excluded(key) => from(key, false)?,
    };
    let end = match &range.end {
        Bound::Unbounded => None,
        Bound::Included(key) => successor(key),
        Bound::Excluded(key) if key.is_empty() => return None,
        Bound::Excluded(key) if key.len() > KEY_BYTES_MAX => successor(key),
        Bound::Excluded(key) => Some(key.clone()),
    };
    match end {
        None => Some((start, Vec::new())),
        Some(end) => (start < end).then_some((start, end)),
    }
}

/// A set of range deletions, made for looking keys up.
#[derive(Debug, Default)]
pub struct RangeSet {
    /// By seq, ascending.
    ranges: Vec<Arc<DeletedRange>>,
    /// The key space cut at every start and end, from the first start on.
    pieces: Vec<Piece>,
    /// Seqs of ranges that become visible when they are durable, ascending.
    sync_seqs: Vec<u64>,
}

/// Keys up to the next piece, all covered by the same ranges.
#[derive(Debug)]
struct Piece {
    start: Box<[u8]>,
    /// Seqs of the ranges, ascending.
    seqs: Box<[u64]>,
}

impl RangeSet {
    /// A set of these, by seq, ascending.
    pub fn new(ranges: Vec<Arc<DeletedRange>>) -> Self {
        let mut cuts: Vec<&[u8]> = Vec::with_capacity(ranges.len() * 2);
        for range in &ranges {
            cuts.push(&range.start);
            if !range.end.is_empty() {
                cuts.push(&range.end);
            }
        }
        cuts.sort_unstable();
        cuts.dedup();
        let mut starting: Vec<_> = ranges.iter().collect();
        starting.sort_by(|one, other| one.start.cmp(&other.start));
        let mut ending: Vec<_> = ranges.iter().filter(|range| !range.end.is_empty()).collect();
        ending.sort_by(|one, other| one.end.cmp(&other.end));
        let (mut starting, mut ending) = (starting.into_iter().peekable(), ending.into_iter().peekable());
        let mut covering = BTreeSet::new();
        let mut pieces = Vec::with_capacity(cuts.len());
        for cut in cuts {
            while let Some(range) = ending.next_if(|range| *range.end == *cut) {
                covering.remove(&range.seq);
            }
            while let Some(range) = starting.next_if(|range| *range.start == *cut) {
                covering.insert(range.seq);
            }
            pieces.push(Piece {
                start: cut.into(),
                seqs: covering.iter().copied().collect(),
            });
        }
        Self {
            ranges,
            pieces,
            sync_seqs: Vec::new(),
        }
    }

    /// Whether a range up to `seq` hides `version` of a key.
    pub fn hides(&self, key: &[u8], version: u64, seq: u64) -> bool {
        self.hides_visibly(key, version, seq, u64::MAX)
    }

    /// The same, of the ranges that are visible when everything up to `durable_seq` is durable.
    pub fn hides_visibly(&self, key: &[u8], version: u64, seq: u64, durable_seq: u64) -> bool {
        let after = self.pieces.partition_point(|piece| *piece.start <= *key);
        let Some(Piece { seqs, .. }) = after.checked_sub(1).and_then(|at| self.pieces.get(at)) else {
            return false;
        };
        let seen = seqs.partition_point(|&range_seq| range_seq <= seq);
        let mut later = seqs[..seen].iter().rev().take_while(|&&range_seq| range_seq > version);
        later.any(|&range_seq| self.is_visible(range_seq, durable_seq))
    }

    fn is_visible(&self, range_seq: u64, durable_seq: u64) -> bool {
        range_seq <= durable_seq || self.sync_seqs.binary_search(&range_seq).is_err()
    }

    /// Seq of the last range that is not visible yet with everything up to `durable_seq` durable; 0
    /// if there is none.
    pub fn unfinished_seq(&self, durable_seq: u64) -> u64 {
        self.sync_seqs
            .last()
            .copied()
            .filter(|seq| *seq > durable_seq)
            .unwrap_or(0)
    }

    /// The ranges, by seq, ascending.
    pub fn ranges(&self) -> &[Arc<DeletedRange>] {
        &self.ranges
    }
}

/// The range deletions of an open store that are not swept yet.
#[derive(Debug, Default)]
pub struct Ranges {
    set: RwLock<Arc<RangeSet>>,
    /// Whether there are any: usually there are none, and reads should not pay for a lookup.
    any: AtomicBool,
    /// Held by a call from its look for room to its commit.
    admission: Mutex<()>,
}

impl Ranges {
    /// Starts with the recovered ranges.
    pub fn starting_with(mut ranges: Vec<DeletedRange>) -> Self {
        ranges.sort_unstable_by_key(|range| range.seq);
        ranges.dedup_by_key(|range| range.seq);
        let any = AtomicBool::new(!ranges.is_empty());
        let set = RangeSet::new(ranges.into_iter().map(Arc::new).collect());
        Self {
            set: RwLock::new(Arc::new(set)),
            any,
            admission: Mutex::default(),
        }
    }

    /// The set as it is now; `None` if it is empty.
    #[inline]
    pub fn current(&self) -> Option<Arc<RangeSet>> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        Some(Arc::clone(&self.set.read()))
    }

    /// The present set, and the result of `take`, with no range forgotten in between.
    pub fn current_with<T>(&self, take: impl FnOnce() -> T) -> (Option<Arc<RangeSet>>, T) {
        let set = self.set.read();
        let taken = take();
        ((!set.ranges.is_empty()).then(|| Arc::clone(&set)), taken)
    }

    /// Adds a range; to be called inside its commit, so in the order of seqs. One of a `Sync`
    /// commit is visible when it is durable.
    pub fn add(&self, range: DeletedRange, durability: Durability) {
        let mut set = self.set.write();
        let mut ranges = set.ranges.clone();
        let mut sync_seqs = set.sync_seqs.clone();
        if durability == Durability::Sync {
            sync_seqs.push(range.seq);
        }
        ranges.push(Arc::new(range));
        *set = Arc::new(RangeSet {
            sync_seqs,
            ..RangeSet::new(ranges)
        });
        self.any.store(true, Ordering::Release);
    }

    /// As [`RangeSet::unfinished_seq`].
    pub fn unfinished_seq(&self, durable_seq: u64) -> u64 {
        self.current().map_or(0, |set| set.unfinished_seq(durable_seq))
    }

    /// Forgets the ranges of these seqs: nothing is hidden by them any more.
    pub fn forget(&self, seqs: &[u64]) {
        let mut set = self.set.write();
        let stays = |range: &&Arc<DeletedRange>| !seqs.contains(&range.seq);
        let ranges: Vec<_> = set.ranges.iter().filter(stays).cloned().collect();
        let sync_seqs = set
            .sync_seqs
            .iter()
            .copied()
            .filter(|seq| !seqs.contains(seq))
            .collect();
        self.any.store(!ranges.is_empty(), Ordering::Release);
        *set = Arc::new(RangeSet {
            sync_seqs,
            ..RangeSet::new(ranges)
        });
    }

    /// The ranges up to a seq.
    pub fn up_to(&self, seq: u64) -> Vec<Arc<DeletedRange>> {
        let set = self.set.read();
        set.ranges.iter().filter(|range| range.seq <= seq).cloned().collect()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.set.read().ranges.len()
    }

    /// Lets calls that add a range look for room and commit one at a time.
    pub fn admit(&self) -> MutexGuard<'_, ()> {
        self.admission.lock()
    }

    /// Whether another range may be added without waiting for expiry. (After a crash there may be
    /// more at first: those that were swept since the last mark are there again.)
    pub fn has_room(&self) -> bool {
        let set = self.set.read();
        let bytes: usize = set.ranges.iter().map(|range| range.key_bytes()).sum();
        set.ranges.len() < RANGES_MAX && bytes < RANGES_BYTES_MAX
    }
}
