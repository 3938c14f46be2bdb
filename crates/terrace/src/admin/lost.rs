//! Which objects are lost with a missing part of the store: a segment's end, a block. Used when a
//! store with missing parts is opened, so that the loss is reported by key and not only by file.
//! Memory: one string per key named.

use crate::{
    Result,
    api::object::Extent,
    log::{format::RECORD_HEADER_BYTES, frame::Frame, segments::Segments},
    ordered_index::{Entry, Home, OrderedIndex},
};
use std::{collections::HashSet, ops::Bound, sync::Arc};

/// Keys that are named before the rest is counted: a block may have a million.
const KEYS_NAMED_MAX: usize = 1000;

/// Names the objects whose values are lost: behind the end of a truncated segment file, or in one
/// of `blocks`. Objects that the log has changed since, in `frames`, are skipped. Walks the index
/// only if something is lost.
///
/// # Errors
/// None: an index that cannot be walked is a finding.
pub fn name_lost(index: &OrderedIndex, segments: &Segments, blocks: &[u64], frames: &[Arc<Frame>]) -> Vec<String> {
    if blocks.is_empty() && segments.iter().all(|segment| segment.cut_at().is_none()) {
        return Vec::new();
    }
    let mut changed = HashSet::new();
    for frame in frames {
        changed.extend(frame.view().records().map(|(_, record)| record.key.to_vec()));
    }
    let mut lost = Vec::new();
    let mut more = 0_u64;
    let walked = walk(index, |key, entry| {
        let Some(place) = place_gone(key, entry, segments, blocks) else {
            return;
        };
        if changed.contains(key) {
            return;
        }
        if lost.len() == KEYS_NAMED_MAX {
            more += 1;
            return;
        }
        lost.push(format!(
            "key {:?}: version {} is lost: it was in {place}",
            String::from_utf8_lossy(key),
            entry.version
        ));
    });
    if let Err(error) = walked {
        lost.push(format!("not all keys that are lost could be named: {error}"));
    }
    if more > 0 {
        lost.push(format!("{more} more keys are lost in these ways"));
    }
    lost
}

fn walk(index: &OrderedIndex, mut visit: impl FnMut(&[u8], &Entry)) -> Result<()> {
    for item in index.scan((Bound::Unbounded, Bound::Unbounded), index.applied_seq())? {
        let (key, entry) = item?;
        visit(&key, &entry);
    }
    Ok(())
}

fn place_gone(key: &[u8], entry: &Entry, segments: &Segments, blocks: &[u64]) -> Option<String> {
    match entry.home {
        Home::Inline(_) => None,
        Home::Block(Extent { block, .. }) => blocks.contains(&block).then(|| format!("block {block:016x}")),
        Home::Flash { address } => {
            let number = u32::try_from(address / segments.segment_bytes()).ok()?;
            let before_value = (RECORD_HEADER_BYTES + key.len() + entry.attributes.len()) as u64;
            let end = address % segments.segment_bytes() + before_value + entry.length;
            let cut_at = segments.get(number)?.cut_at()?;
            (end > cut_at).then(|| format!("segment {number:08x}, whose file ended at byte {cut_at}"))
        }
    }
}
