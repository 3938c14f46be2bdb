//! Finds the end of the log after a crash, and the frames the ordered index has not persisted.
//!
//! Seqs are contiguous: each commit takes the next one. So the log is sound from frame to frame exactly as long as a
//! frame's first seq follows the last one's. Where that ends:
//! - nothing sound after it: the log ends here (a torn tail);
//! - sound frames after it, none of which says that the missing seqs were durable: they were written, never synced,
//!   and reached the device out of order. The log ends here too; their headers are wiped, so that a later recovery does
//!   not take them for its own;
//! - a later frame says the missing seqs were durable: damage. What is missing is reported, the segment is kept, and
//!   the log goes on behind it. Nothing is dropped silently.

use super::{
    frame::{Frame, FramePool},
    scan::SegmentImage,
    segments::{Segment, SegmentState, Segments},
};
use crate::{
    Error, Result,
    io::{AlignedBuffer, PAGE_BYTES},
};
use std::sync::Arc;

/// What recovery found.
#[derive(Debug)]
pub struct RecoveredLog {
    /// Frames with commits after the persisted seq, in order.
    pub frames: Vec<Arc<Frame>>,
    /// The last seq of the log.
    pub last_seq: u64,
    /// The segment the log ends in and where: new frames go there. `None` for an empty log.
    pub tail: Option<(u32, u64)>,
    /// Damage found, in words.
    pub damage: Vec<String>,
}

struct Recovery<'a> {
    segments: &'a Segments,
    persisted_seq: u64,
    pool: Arc<FramePool>,
    log: RecoveredLog,
    /// Seq of the last sound frame, once one was seen.
    reached: Option<u64>,
    read_only: bool,
}

/// Recovers the log. `persisted_seq` is what the ordered index holds for certain.
///
/// # Errors
/// The device's.
pub fn recover(segments: &Segments, persisted_seq: u64, pool: Arc<FramePool>, read_only: bool) -> Result<RecoveredLog> {
    let mut used: Vec<&Segment> = segments
        .iter()
        .filter(|segment| segment.state() == SegmentState::Sealed)
        .collect();
    used.sort_by_key(|segment| segment.generation());
    // A header's first seq is a lower bound taken when the segment was prepared, so the segment before may still
    // hold later commits.
    let after = used.partition_point(|segment| segment.first_seq() <= persisted_seq + 1);
    let start = after.saturating_sub(2);
    let mut recovery = Recovery {
        segments,
        persisted_seq,
        pool,
        log: RecoveredLog {
            frames: Vec::new(),
            last_seq: persisted_seq,
            tail: None,
            damage: Vec::new(),
        },
        reached: None,
        read_only,
    };
    let images_from = used.split_off(start);
    let mut ended = false;
    for segment in &images_from {
        let image = SegmentImage::read(segment, segments.segment_bytes())?;
        if ended {
            recovery.drop_rest(segment, &image, PAGE_BYTES)?;
            continue;
        }
        ended = recovery.segment(segment, &image, &images_from)?;
    }
    let log = recovery.log;
    // After a process crash the frames may still be on their way to the device; from here on they count as durable.
    for number in log
        .frames
        .iter()
        .map(|frame| frame.segment)
        .collect::<std::collections::BTreeSet<_>>()
    {
        if let Some(segment) = segments.get(number).filter(|_| !read_only) {
            segment
                .file
                .sync_data()
                .map_err(|error| Error::io(format!("sync segment {number:08x}"), &error))?;
        }
    }
    for segment in used.iter().chain(&images_from) {
        if segment.state() == SegmentState::Sealed {
            let end = log
                .tail
                .filter(|tail| tail.0 == segment.number)
                .map_or(segments.segment_bytes(), |tail| tail.1);
            segments.seal(segment, log.last_seq, end);
        }
    }
    Ok(log)
}

impl Recovery<'_> {
    /// Walks one segment. Returns whether the log ends in it.
    fn segment(&mut self, segment: &Segment, image: &SegmentImage, all: &[&Segment]) -> Result<bool> {
        let mut at = PAGE_BYTES;
        let mut frames = 0;
        loop {
            if let Some(frame) = image.frame_at(at) {
                let follows = self.reached.is_none_or(|reached| frame.header.first_seq == reached + 1);
                if follows || frame.header.first_seq <= self.persisted_seq + 1 {
                    self.take(image.number, &frame);
                    at = frame.end();
                    frames += 1;
                    continue;
                }
            }
            // Not a sound continuation. Is there one further on?
            let next = image.next_frame(at);
            let missing_from = self
                .reached
                .map_or(self.persisted_seq, |reached| reached.max(self.persisted_seq))
                + 1;
            match next {
                Some(frame) if frame.header.first_seq <= self.persisted_seq + 1 => {
                    self.report(image.number, at, frame.offset, "commits the index has persisted");
                    self.take(image.number, &frame);
                    at = frame.end();
                    frames += 1;
                }
                Some(frame) if frame.header.durable_seq >= missing_from => {
                    let lost = format!("durable commits {missing_from} to {}", frame.header.first_seq - 1);
                    self.report(image.number, at, frame.offset, &lost);
                    self.segments.quarantine(segment);
                    self.take(image.number, &frame);
                    at = frame.end();
                    frames += 1;
                }
                Some(_) => {
                    self.drop_rest(segment, image, at)?;
                    self.end(segment, at, frames);
                    return Ok(true);
                }
                None => return self.rest_is_empty(segment, at, frames, all),
            }
        }
    }

    /// Nothing sound after `at` in this segment: the log goes on in the next segment, or ends here.
    fn rest_is_empty(&mut self, segment: &Segment, at: usize, frames: usize, all: &[&Segment]) -> Result<bool> {
        let missing_from = self.log.last_seq + 1;
        let position = all.iter().position(|other| other.number == segment.number).unwrap_or(0);
        for later in &all[position + 1..] {
            let image = SegmentImage::read(later, self.segments.segment_bytes())?;
            if let Some(frame) = image.next_frame(PAGE_BYTES) {
                if frame.header.first_seq <= missing_from {
                    self.end(segment, at, frames);
                    return Ok(false);
                }
                if frame.header.durable_seq >= missing_from {
                    let lost = format!("durable commits {missing_from} to {}", frame.header.first_seq - 1);
                    self.report(segment.number, at, at, &lost);
                    self.segments.quarantine(segment);
                    self.reached = Some(frame.header.first_seq - 1);
                    return Ok(false);
                }
                self.end(segment, at, frames);
                return Ok(true);
            }
        }
        self.end(segment, at, frames);
        Ok(true)
    }

    fn take(&mut self, number: u32, frame: &super::scan::FoundFrame<'_>) {
        self.reached = Some(frame.header.last_seq);
        self.log.last_seq = self.log.last_seq.max(frame.header.last_seq);
        if frame.header.last_seq > self.persisted_seq {
            self.log.frames.push(Arc::new(Frame::recovered(
                number,
                &frame.header,
                self.segments.segment_bytes(),
                frame.offset as u64,
                frame.bytes,
                Arc::clone(&self.pool),
            )));
        }
    }

    fn end(&mut self, segment: &Segment, at: usize, frames: usize) {
        if frames > 0 && segment.state() == SegmentState::Sealed {
            self.log.tail = Some((segment.number, at as u64));
        } else if frames == 0 && segment.state() == SegmentState::Sealed && !self.read_only {
            self.segments.free_unused(segment);
        }
    }

    /// Wipes the headers of frames that were never durable.
    fn drop_rest(&mut self, segment: &Segment, image: &SegmentImage, from: usize) -> Result<()> {
        let mut at = from;
        let mut wiped = 0;
        let zeros = AlignedBuffer::zeroed(PAGE_BYTES);
        while let Some(frame) = image.next_frame(at) {
            tracing::info!(
                segment = segment.number,
                offset = frame.offset,
                "dropping a frame that was never durable"
            );
            at = frame.end();
            wiped += 1;
            if !self.read_only {
                self.wipe(segment, &zeros, frame.offset as u64)?;
            }
        }
        if wiped > 0 && !self.read_only {
            segment
                .file
                .sync_data()
                .map_err(|error| Error::io(format!("sync segment {:08x}", segment.number), &error))?;
        }
        if from == PAGE_BYTES && segment.state() == SegmentState::Sealed && !self.read_only {
            self.segments.free_unused(segment);
        }
        Ok(())
    }

    fn wipe(&self, segment: &Segment, zeros: &AlignedBuffer, offset: u64) -> Result<()> {
        segment.file.write_all_at(zeros, offset).map_err(|error| {
            Error::io(
                format!("wipe a frame in segment {:08x} at {offset}", segment.number),
                &error,
            )
        })
    }

    fn report(&mut self, number: u32, from: usize, to: usize, lost: &str) {
        let message = format!("segment {number:08x}: bytes {from} to {to} are damaged: {lost}");
        tracing::error!("{message}");
        self.log.damage.push(message);
    }
}
