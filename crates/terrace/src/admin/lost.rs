//! Which objects are lost with a missing part of the store: a segment, its end, a block. Used when
//! a store with missing parts is opened, so that the loss is reported by key and not only by file.
//! Memory: one string per key named.

use crate::{
    Result,
    api::object::Extent,
    blocks::OpenReport,
    engine::mark::Run,
    log::{format::RECORD_HEADER_BYTES, frame::Frame, segments::Segments},
    ordered_index::{Entry, Home, OrderedIndex},
};
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    ops::Bound,
    sync::Arc,
};

/// Keys that are named before the rest is counted: a block may have a million.
const KEYS_NAMED_MAX: usize = 1000;

/// Parts of a store that are missing.
#[derive(Debug)]
pub struct Gone {
    /// Segments without a file.
    segments: BTreeSet<u32>,
    /// A segment's file is shorter than a segment.
    has_cut_segments: bool,
    /// Blocks without a file or with a shorter one, and how many bytes are left.
    blocks: HashMap<u64, u64>,
}

impl Gone {
    /// Compares what should be there with what is. A segment that was in use as of the index's mark
    /// may have been emptied since: only an entry that leads into it shows that it is missed.
    pub fn of(in_use: &[Run], segments: &Segments, large: &OpenReport) -> Self {
        let missing = large.missing.iter().map(|&block| (block, 0));
        let is_gone = |number: &u32| segments.get(*number).is_none();
        Self {
            segments: in_use.iter().cloned().flatten().filter(is_gone).collect(),
            has_cut_segments: segments.iter().any(|segment| segment.cut_at().is_some()),
            blocks: missing.chain(large.cut.iter().copied()).collect(),
        }
    }

    /// Names the objects whose values are lost with it. Objects that the log has changed since, in
    /// `frames`, are skipped. Walks the index only if something may be lost.
    pub fn name_lost(&self, index: &OrderedIndex, segments: &Segments, frames: &[Arc<Frame>]) -> Vec<String> {
        if self.segments.is_empty() && !self.has_cut_segments && self.blocks.is_empty() {
            return Vec::new();
        }
        let mut changed = HashSet::new();
        for frame in frames {
            changed.extend(frame.view().records().map(|(_, record)| record.key.to_vec()));
        }
        let mut lost = Vec::new();
        let mut more = 0_u64;
        let mut missed = BTreeSet::new();
        let walked = walk(index, |key, entry| {
            let Some(place) = self.place_of(key, entry, segments) else {
                return;
            };
            if changed.contains(key) {
                return;
            }
            if let Missing::Segment(number) = place {
                missed.insert(number);
            }
            if lost.len() == KEYS_NAMED_MAX {
                more += 1;
                return;
            }
            let key = String::from_utf8_lossy(key);
            lost.push(format!(
                "key {key:?}: version {} is lost: it was in {place}",
                entry.version
            ));
        });
        if let Err(error) = walked {
            lost.push(format!("not all keys that are lost could be named: {error}"));
        }
        if more > 0 {
            lost.push(format!("{more} more keys are lost in these ways"));
        }
        let gone = |number| format!("segment {number:08x} is gone; the values in it are lost");
        missed.into_iter().map(gone).chain(lost).collect()
    }

    /// The missing part in which an entry's value was.
    fn place_of(&self, key: &[u8], entry: &Entry, segments: &Segments) -> Option<Missing> {
        match entry.home {
            Home::Inline(_) => None,
            Home::Block(Extent {
                block,
                offset,
                extent_bytes,
                ..
            }) => {
                let left_bytes = *self.blocks.get(&block)?;
                (offset.saturating_add(extent_bytes) > left_bytes).then_some(Missing::Block(block))
            }
            Home::Flash { address } => {
                let number = u32::try_from(address / segments.segment_bytes()).ok()?;
                if self.segments.contains(&number) {
                    return Some(Missing::Segment(number));
                }
                let before_value = (RECORD_HEADER_BYTES + key.len() + entry.attributes.len()) as u64;
                let end = address % segments.segment_bytes() + before_value + entry.length;
                let cut_at = segments.get(number)?.cut_at()?;
                (end > cut_at).then_some(Missing::EndOfSegment(number, cut_at))
            }
        }
    }
}

/// A missing part of the store.
enum Missing {
    Segment(u32),
    /// And where its file ended.
    EndOfSegment(u32, u64),
    Block(u64),
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Segment(number) => write!(f, "segment {number:08x}"),
            Self::EndOfSegment(number, cut_at) => write!(f, "segment {number:08x}, whose file ended at byte {cut_at}"),
            Self::Block(block) => write!(f, "block {block:016x}"),
        }
    }
}

fn walk(index: &OrderedIndex, mut visit: impl FnMut(&[u8], &Entry)) -> Result<()> {
    for item in index.scan((Bound::Unbounded, Bound::Unbounded), index.applied_seq())? {
        let (key, entry) = item?;
        visit(&key, &entry);
    }
    Ok(())
}
