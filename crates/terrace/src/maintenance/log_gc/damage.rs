//! Segments that are not as they were written: they are left as they are, and not drained.

use super::LogGc;
use crate::{
    Error, Result,
    engine::go_on_if,
    io::{AlignedBuffer, PAGE_BYTES},
    log::{
        format::FrameHeader,
        scan::Walked,
        segments::{Segment, SegmentState},
    },
    ordered_index::Home,
};
use std::ops::Bound;

impl LogGc {
    /// Whether a segment contains damage that entries still point to. It is quarantined then.
    pub(super) fn refuses_damage(&self, segment: &Segment, walked: &Walked) -> Result<bool> {
        let mut damaged = walked.damaged.clone();
        if !self.tail_is_whole(segment, walked)? {
            damaged.push((walked.end, self.segment_bytes()));
        }
        if damaged.is_empty() {
            return Ok(false);
        }
        let engine = &self.engine;
        let base = u64::from(segment.number) * engine.log.segments.segment_bytes();
        let mut needed_for = None;
        let walked = engine.walk((Bound::Unbounded, Bound::Unbounded), |key, entry| {
            let hit = |address: u64| {
                let within = |&(from, to): &(usize, usize)| (base + from as u64..base + to as u64).contains(&address);
                damaged.iter().any(within)
            };
            if matches!(entry.home, Home::Flash { address } if hit(address)) {
                needed_for = Some(String::from_utf8_lossy(key).into_owned());
            }
            go_on_if(needed_for.is_none())
        });
        match walked {
            // An entry that cannot be read may be one.
            Err(Error::Corruption { .. }) => needed_for = Some("an unreadable one".to_owned()),
            walked => drop(walked?),
        }
        if let Some(key) = needed_for {
            tracing::error!(
                segment = segment.number,
                key,
                "the segment is damaged and still needed: quarantined"
            );
            engine.log.segments.quarantine(segment);
            return Ok(true);
        }
        tracing::warn!(
            segment = segment.number,
            "the segment has damaged frames, but nothing points into them"
        );
        Ok(false)
    }

    /// Whether the last sound frame of a segment is its last one.
    fn tail_is_whole(&self, segment: &Segment, walked: &Walked) -> Result<bool> {
        if walked.looks_used_at_end {
            return Ok(false);
        }
        // The next segment records where this one ended, unless it has been reused since.
        let segments = &self.engine.log.segments;
        let next = segments
            .iter()
            .find(|other| other.generation() == segment.generation() + 1 && other.state() != SegmentState::Free);
        let (Some(next), Some(last)) = (next, walked.last) else {
            return Ok(true);
        };
        let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
        next.read(&mut page, PAGE_BYTES as u64)?;
        let first = FrameHeader::decode(&page).filter(|header| header.generation == next.generation());
        Ok(first.is_none_or(|header| header.first_seq == last.last_seq + 1))
    }
}
