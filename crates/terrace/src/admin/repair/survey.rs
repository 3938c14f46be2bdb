//! The survey: each key's newest known version, and where its value is said to be.
//!
//! Sources, by their accuracy: the log (every commit and move that is still in a segment), blocks
//! with a footer and destaged records (exact versions), blocks without a footer (a lower bound of
//! the version), the old index if it can be read (inline values, which are nowhere else). Reclaimed
//! segments that were not rewritten yet are walked like all others: versions tell which records are
//! old.
//!
//! Invariant: after [`Survey::settle`] each key has one version and one place, and no value was
//! read yet except those inside the log's frames, which were verified with them.

mod old;

use super::{OldIndex, notes::Notes};
use crate::{
    Result,
    blocks::{LargeSpace, ScannedExtent},
    log::{
        address::Address,
        format::{Body, FrameHeader, Record},
        scan::SegmentImage,
        segments::{Segment, SegmentState, Segments},
    },
    ordered_index::VERSION_LIMIT,
    visibility::range_tombstones::{DeletedRange, RangeSet},
};
use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

/// Seqs from here on are taken for damage: no store gets there.
const SEQ_LIMIT: u64 = VERSION_LIMIT / 2;
/// If the log's end may be lost, new commits start this much later, so that no version is given
/// twice.
const LOST_SEQS: u64 = 1 << 20;

/// Where the newest version of a key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Nowhere: the newest version is a delete.
    Deleted,
    /// In the record of seq `rank`, or where that record says.
    Log,
    /// In this block, by its own header; no record in the log names it.
    Extent {
        block: u64,
        /// Where its record starts.
        offset: u64,
    },
    OldIndex,
    /// It is in the new index, or known to be nowhere.
    Settled,
}

/// State of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// The newest version.
    pub version: u64,
    /// Seq of the record that names the place; 0 if none does.
    pub rank: u64,
    /// The place.
    pub place: Place,
    /// The old index has the key.
    pub is_indexed: bool,
}

/// An extent of which only the lowest possible version is known.
#[derive(Debug, Clone, Copy)]
struct Orphan {
    ticket: u64,
    block: u64,
    offset: u64,
}

/// Everything known.
#[derive(Debug, Default)]
pub struct Survey {
    /// By key.
    pub keys: HashMap<Box<[u8]>, Known>,
    orphans: HashMap<Box<[u8]>, Orphan>,
    covered: Covered,
    /// Last seq in the log.
    last_seq: u64,
    /// Highest seq seen anywhere.
    seen_seq: u64,
    /// Range deletions, in any order.
    ranges: Vec<DeletedRange>,
    /// The log has damage, so its end may be elsewhere than it seems.
    log_is_damaged: bool,
    /// Up to where the old index was read whole, if it was.
    indexed_seq: Option<u64>,
}

impl Survey {
    /// Walks the log.
    pub fn of_log(segments: &Segments, damaged: bool, notes: &mut Notes) -> Self {
        let mut survey = Self {
            log_is_damaged: damaged,
            ..Self::default()
        };
        let mut before: Option<(u32, u64, u64)> = None;
        for segment in used(segments) {
            let image = match SegmentImage::read(segment, segments.segment_bytes()) {
                Ok(image) => image,
                Err(error) => {
                    survey.damage(notes, format!("{error}; what is in the segment is lost"));
                    continue;
                }
            };
            survey.seen(segment.first_seq().saturating_sub(1));
            let Some((first_seq, last_seq)) = survey.add_segment(segment, &image, notes) else {
                continue;
            };
            // A segment between two that follow each other in time was recycled and used again, and
            // lies later.
            if let Some((number, generation, reached)) = before
                && generation + 1 == image.generation
                && reached + 1 < first_seq
            {
                survey.damage(
                    notes,
                    format!(
                        "commits {} to {} are missing between segments {number:08x} and {:08x}",
                        reached + 1,
                        first_seq - 1,
                        segment.number
                    ),
                );
            }
            before = Some((segment.number, image.generation, last_seq));
        }
        survey.covered.sort();
        if survey.last_seq == 0 {
            survey.log_is_damaged = true;
        }
        survey
    }

    /// Adds the frames of a segment; returns their first and last seq.
    fn add_segment(&mut self, segment: &Segment, image: &SegmentImage, notes: &mut Notes) -> Option<(u64, u64)> {
        for (from, to) in image.damaged() {
            self.damage(
                notes,
                format!(
                    "segment {:08x}: bytes {from} to {to} hold no sound frame; keys written there appear as they were before, or not at all",
                    segment.number
                ),
            );
        }
        let mut range: Option<(u64, u64)> = None;
        let mut end = crate::io::PAGE_BYTES;
        for frame in image.frames() {
            let FrameHeader {
                first_seq, last_seq, ..
            } = frame.header;
            end = frame.end();
            if last_seq >= SEQ_LIMIT {
                self.damage(
                    notes,
                    format!("segment {:08x}: a frame has impossible seqs", segment.number),
                );
                continue;
            }
            self.seen(frame.header.durable_seq);
            self.covered.add(first_seq, last_seq);
            self.last_seq = self.last_seq.max(last_seq);
            range = Some((range.map_or(first_seq, |range| range.0), last_seq));
            for (_, record) in image.records(&frame) {
                self.add_record(&record);
            }
        }
        if let Some(broken) = image.header_at(end) {
            self.damage(
                notes,
                format!(
                    "segment {:08x}: the frame at byte {end}, commits {} to {}, is damaged or was never whole",
                    segment.number, broken.first_seq, broken.last_seq
                ),
            );
        }
        range
    }

    fn add_record(&mut self, record: &Record<'_>) {
        let version = record.version();
        if version > record.seq {
            return;
        }
        let (rank, place) = match record.body {
            Body::DeleteRange { end } => {
                self.ranges.push(DeletedRange {
                    seq: record.seq,
                    start: record.key.into(),
                    end: end.into(),
                });
                return;
            }
            Body::Delete => (record.seq, Place::Deleted),
            // Final for its version: a later move takes no effect.
            Body::Drop { .. } => (u64::MAX, Place::Deleted),
            _ => (record.seq, Place::Log),
        };
        let known = Known {
            version,
            rank,
            place,
            is_indexed: false,
        };
        self.offer(record.key, known);
    }

    fn offer(&mut self, key: &[u8], offered: Known) {
        match self.keys.get_mut(key) {
            Some(known) if (known.version, known.rank) < (offered.version, offered.rank) => {
                let is_indexed = known.is_indexed || offered.is_indexed;
                *known = Known { is_indexed, ..offered };
            }
            Some(known) => known.is_indexed |= offered.is_indexed,
            None => {
                self.keys.insert(key.into(), offered);
            }
        }
    }

    /// Walks the blocks' headers.
    pub fn add_blocks(&mut self, large: &LargeSpace, notes: &mut Notes) {
        for block in large.blocks() {
            let scan = match large.scan_block(block.number) {
                Ok(scan) => scan,
                Err(error) => {
                    notes.add(format!("{error}; what is in the block and not in the log is lost"));
                    continue;
                }
            };
            for extent in scan {
                match extent {
                    Ok(extent) => self.add_extent(block.number, &extent),
                    Err(error) => notes.add(format!("{error}; what was there and is not in the log is lost")),
                }
            }
        }
    }

    fn add_extent(&mut self, block: u64, extent: &ScannedExtent) {
        let key = &extent.header.key[..];
        let offset = extent.offset;
        let ticket = extent.version.unwrap_or(extent.header.ticket);
        if ticket >= SEQ_LIMIT {
            return;
        }
        self.seen(ticket);
        if extent.version.is_some() {
            self.offer_outside(key, ticket, Place::Extent { block, offset });
            return;
        }
        // A value is committed after its ticket was drawn. If the log has every commit since, and
        // none of them names this place, none ever will.
        let end_is_known = ticket <= self.last_seq || !self.log_is_damaged;
        if end_is_known && self.covered.contains(ticket, self.last_seq) {
            return;
        }
        let orphan = Orphan { ticket, block, offset };
        match self.orphans.get_mut(key) {
            Some(known) if known.ticket < ticket => *known = orphan,
            Some(_) => {}
            None => {
                self.orphans.insert(key.into(), orphan);
            }
        }
    }

    /// A version found in a source other than the log.
    fn offer_outside(&mut self, key: &[u8], version: u64, place: Place) {
        let log_knows = self.covered.contains(version, version);
        let log_agrees = || self.keys.get(key).is_some_and(|known| known.version == version);
        let beyond = version > self.last_seq && !self.log_is_damaged;
        if version == 0 || beyond || (log_knows && !log_agrees()) {
            return;
        }
        let known = Known {
            version,
            rank: 0,
            place,
            is_indexed: place == Place::OldIndex,
        };
        self.offer(key, known);
    }

    /// Whether the log still has every commit ever made, as far as can be told.
    pub fn log_is_complete(&self) -> bool {
        !self.log_is_damaged && self.covered.contains(1, self.last_seq)
    }

    /// Decides about extents of unknown version, and notes those that cannot be decided.
    pub fn settle(&mut self, notes: &mut Notes) {
        let deleted = self.hide_deleted();
        for (key, orphan) in std::mem::take(&mut self.orphans) {
            let Orphan { ticket, block, offset } = orphan;
            match self.keys.get(&key) {
                Some(known) if known.version < ticket => notes.add_key(
                    &key,
                    &format!(
                        "block {block:016x} at {offset} has a value of unknown version, {ticket} or later; version {} is known and was taken",
                        known.version
                    ),
                ),
                Some(_) => {}
                None if deleted.hides(&key, ticket, u64::MAX) => notes.add_key(
                    &key,
                    &format!(
                        "block {block:016x} at {offset} has a value of unknown version, {ticket} or later; its range was deleted after {ticket}, so it was not taken"
                    ),
                ),
                None => {
                    notes.add_key(
                        &key,
                        &format!("taken from block {block:016x} at {offset}, of unknown version: it may never have been committed, or been deleted"),
                    );
                    let known = Known {
                        version: ticket,
                        rank: 0,
                        place: Place::Extent { block, offset },
                        is_indexed: false,
                    };
                    self.keys.insert(key, known);
                }
            }
        }
        if !self.all_is_known() {
            notes.add(
                "the log does not have every commit any more (recycled or damaged): whether a key was deleted or overwritten by one of those cannot be known, so deleted objects and older values may be back",
            );
        }
    }

    /// Removes keys that range deletions hide; returns the ranges.
    fn hide_deleted(&mut self) -> RangeSet {
        let mut ranges = std::mem::take(&mut self.ranges);
        ranges.sort_unstable_by_key(|range| range.seq);
        ranges.dedup_by_key(|range| range.seq);
        let set = RangeSet::new(ranges.into_iter().map(Arc::new).collect());
        if !set.ranges().is_empty() {
            for (key, known) in &mut self.keys {
                if set.hides(key, known.version, u64::MAX) {
                    known.place = Place::Deleted;
                }
            }
        }
        set
    }

    /// Notes values found in the first pass and not in the second.
    pub fn note_unread(&self, notes: &mut Notes) {
        for (key, known) in &self.keys {
            if !matches!(known.place, Place::Settled | Place::Deleted) {
                notes.add_key(
                    key,
                    &format!("version {} could not be read again; it is lost", known.version),
                );
            }
        }
    }

    /// The blocks that hold places no record names.
    pub fn blocks_wanted(&self) -> BTreeSet<u64> {
        self.keys
            .values()
            .filter_map(|known| match known.place {
                Place::Extent { block, .. } => Some(block),
                _ => None,
            })
            .collect()
    }

    /// The seq the new index has reached: nothing at or below it is replayed, and new commits come
    /// after it.
    pub fn highest_seq(&self) -> u64 {
        let highest = self.last_seq.max(self.seen_seq);
        highest + if self.log_is_damaged { LOST_SEQS } else { 0 }
    }

    fn seen(&mut self, seq: u64) {
        if seq < SEQ_LIMIT {
            self.seen_seq = self.seen_seq.max(seq);
        }
    }

    fn damage(&mut self, notes: &mut Notes, note: String) {
        self.log_is_damaged = true;
        notes.add(note);
    }
}

/// The segments that hold frames, oldest first.
pub fn used(segments: &Segments) -> Vec<&Segment> {
    segments.in_log_order(&[SegmentState::Sealed])
}

/// Walks every record of the log again, skipping those that the survey could not read.
pub fn for_each_record(segments: &Segments, mut visit: impl FnMut(Address, &Record<'_>) -> Result<()>) -> Result<()> {
    for segment in used(segments) {
        let Ok(image) = SegmentImage::read(segment, segments.segment_bytes()) else {
            continue;
        };
        for frame in image.frames().filter(|frame| frame.header.last_seq < SEQ_LIMIT) {
            for (address, record) in image.records(&frame) {
                visit(address, &record)?;
            }
        }
    }
    Ok(())
}

/// The seqs whose commits are in the log, as ranges.
#[derive(Debug, Default)]
struct Covered {
    ranges: Vec<(u64, u64)>,
}

impl Covered {
    fn add(&mut self, first: u64, last: u64) {
        match self.ranges.last_mut() {
            Some(range) if range.1 + 1 == first => range.1 = last,
            _ => self.ranges.push((first, last)),
        }
    }

    /// Brings the ranges into order and joins those that touch.
    fn sort(&mut self) {
        let mut ranges = std::mem::take(&mut self.ranges);
        ranges.sort_unstable();
        for (first, last) in ranges {
            match self.ranges.last_mut() {
                Some(range) if range.1 + 1 >= first => range.1 = range.1.max(last),
                _ => self.ranges.push((first, last)),
            }
        }
    }

    /// Whether all of `first..=last` are there; an empty range is.
    fn contains(&self, first: u64, last: u64) -> bool {
        if first > last {
            return true;
        }
        let after = self.ranges.partition_point(|range| range.0 <= first);
        after > 0 && self.ranges[after - 1].1 >= last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_and_holes_stay() {
        let mut covered = Covered::default();
        for (first, last) in [(20, 25), (26, 30), (1, 4), (5, 9), (8, 8)] {
            covered.add(first, last);
        }
        covered.sort();
        assert_eq!(covered.ranges, [(1, 9), (20, 30)]);
        assert!(covered.contains(1, 9) && covered.contains(22, 30) && covered.contains(7, 6));
        assert!(!covered.contains(9, 10) && !covered.contains(0, 1) && !covered.contains(5, 25));
    }

    #[test]
    fn the_newest_version_wins_and_then_the_newest_record() {
        let mut survey = Survey::default();
        let known = |version, rank, place| Known {
            version,
            rank,
            place,
            is_indexed: false,
        };
        survey.offer(b"k", known(5, 9, Place::Log));
        survey.offer(b"k", known(4, 20, Place::Log));
        survey.offer(b"k", known(5, 5, Place::Log));
        assert_eq!(survey.keys[&b"k"[..]].rank, 9);
        survey.offer(b"k", known(6, 6, Place::Deleted));
        survey.offer(b"k", known(5, 30, Place::Log));
        assert_eq!(survey.keys[&b"k"[..]].place, Place::Deleted);
    }

    #[test]
    fn where_the_log_has_a_commit_the_log_decides() {
        let mut survey = Survey {
            last_seq: 20,
            ..Survey::default()
        };
        survey.covered.add(10, 20);
        let place = Place::Extent { block: 1, offset: 4096 };
        survey.offer_outside(b"never committed", 15, place);
        survey.offer_outside(b"beyond the end", 21, place);
        survey.offer_outside(b"recycled", 9, place);
        assert_eq!(survey.keys.len(), 1);
        survey.log_is_damaged = true;
        survey.offer_outside(b"beyond the end", 21, place);
        assert_eq!(survey.keys.len(), 2);
    }
}
