//! Finds the end of the log after a crash, and the frames that the ordered index has not persisted.
//!
//! Seqs are contiguous: each commit takes the next one. Generations rise in log order. So
//! consecutive frames are valid as long as the first seq of each follows the last seq of the one
//! before. Where this ends, there are three cases:
//!
//! ```text
//! 1-4 │ 5-9 │ torn                 the log ends at 9
//! 1-4 │ 5-9 │ ?     │ 13-20        10 to 12 were never durable: ends at 9, 13-20 is wiped
//! 1-4 │ 5-9 │ ?     │ 13-20 (12)   12 was durable: damage, goes on at 20
//! ```
//!
//! - no valid frame follows: the log ends here (a torn tail);
//! - valid frames follow in the same segment, and there is no evidence that the missing seqs were
//!   durable: these frames were written, never synced, and reached the device out of order. The log
//!   ends here too; their headers are wiped, so that a later recovery does not take them for its
//!   own;
//! - there is evidence that the missing seqs were durable: damage. The loss is reported, the
//!   segment is kept, and the log continues after it. Nothing is dropped silently.
//!
//! Evidence is a later frame's `durable_seq`, or any valid frame in a later segment, since a
//! segment is synced before the next one gets its first frame.
//!
//! A log that begins after the state of the index is not opened: objects would silently have old
//! values. This happens if the index is gone, or is from a backup older than the log. A gap between
//! valid frames is a segment that was cut, emptied or removed: if a file, or a missing one,
//! accounts for it, only its contents are lost, which is reported.

use super::{
    format::{FrameHeader, check_frame, looks_like_a_frame},
    frame::{Frame, FramePool},
    parallel_scan,
    scan::{FoundFrame, SegmentImage},
    segments::{Segment, SegmentState, Segments},
};
use crate::{
    Error, Result,
    io::{AlignedBuffer, PAGE_BYTES},
    mutation::{Mutation, active, unless},
};
use std::{collections::BTreeSet, sync::Arc};

/// Result of recovery.
#[derive(Debug)]
pub struct RecoveredLog {
    /// Frames with commits after the persisted seq, in order.
    pub frames: Vec<Arc<Frame>>,
    /// The last seq of the log.
    pub last_seq: u64,
    /// Segment and offset of the log's end: new frames go there. `None` if a new segment must be
    /// taken.
    pub tail: Option<(u32, u64)>,
    /// Damage found, as messages.
    pub damage: Vec<String>,
}

/// Recovers the log. `persisted_seq` is the seq that the ordered index has persisted.
///
/// # Errors
/// [`Error::Corruption`] if the log begins after the state of the index; errors of the device.
pub fn recover(segments: &Segments, persisted_seq: u64, pool: Arc<FramePool>, read_only: bool) -> Result<RecoveredLog> {
    let mut used = segments.in_log_order(&[SegmentState::Sealed]);
    let start = first_needed(&used, persisted_seq, segments.segment_bytes())?;
    let mut recovery = Recovery {
        segments,
        walked: used.split_off(start),
        persisted_seq,
        pool,
        log: RecoveredLog {
            frames: Vec::new(),
            last_seq: persisted_seq,
            tail: None,
            damage: segments.take_damage(),
        },
        reached: None,
        torn: Vec::new(),
        read_only,
    };
    recovery.walk()?;
    let Recovery { log, walked, .. } = recovery;
    if !read_only {
        sync_taken_frames(segments, &log)?;
    }
    for segment in used.into_iter().chain(walked) {
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

/// The last segment that begins with commits that the index has: all others are in it or after it.
/// Only a valid frame proves that. A segment's header is written ahead of need, and segments that
/// were prepared before a crash and never used have one too. A torn first frame may be from before
/// an earlier crash, when the log ended before it and continued in the previous segment.
///
/// # Errors
/// Errors of the device.
pub fn first_needed(used: &[&Segment], persisted_seq: u64, segment_bytes: u64) -> Result<usize> {
    for (at, segment) in used.iter().enumerate().rev() {
        let page = read(segment, PAGE_BYTES, PAGE_BYTES)?;
        let begins_early =
            |header: &FrameHeader| header.generation == segment.generation() && header.first_seq <= persisted_seq + 1;
        let Some(header) = FrameHeader::decode(&page).filter(begins_early) else {
            continue;
        };
        let is_within = (PAGE_BYTES + header.frame_bytes()) as u64 <= segment_bytes;
        if is_within && check_frame(&read(segment, PAGE_BYTES, header.frame_bytes())?, segment.generation()).is_some() {
            return Ok(at);
        }
    }
    Ok(0)
}

/// After a crash of the process the frames may not be on the device yet; from here on they count as
/// durable.
fn sync_taken_frames(segments: &Segments, log: &RecoveredLog) -> Result<()> {
    let numbers: BTreeSet<u32> = log.frames.iter().map(|frame| frame.segment).collect();
    for segment in numbers.into_iter().filter_map(|number| segments.get(number)) {
        unless(Mutation::ReplayedSync, || segment.sync())?;
    }
    Ok(())
}

struct Recovery<'a> {
    segments: &'a Segments,
    /// The segments to walk, in log order.
    walked: Vec<&'a Segment>,
    persisted_seq: u64,
    pool: Arc<FramePool>,
    log: RecoveredLog,
    /// Last seq of the last valid frame, once there was one.
    reached: Option<u64>,
    /// Segments after that frame in which a frame was begun that the index does not have, and none
    /// is valid.
    torn: Vec<&'a Segment>,
    read_only: bool,
}

impl<'a> Recovery<'a> {
    /// Walks all segments, and decides where the log continues.
    fn walk(&mut self) -> Result<()> {
        self.walk_segments()?;
        let reached = self.reached.unwrap_or(self.persisted_seq);
        let is_whole = reached >= self.persisted_seq;
        if is_whole {
            self.free_torn()?;
        } else {
            self.report_lost_end(reached)?;
        }
        let goes_on = |&(number, _): &(u32, u64)| {
            let segment = self.segments.get(number);
            segment.is_some_and(|segment| segment.state() == SegmentState::Sealed && !segment.lacks_room())
        };
        self.log.tail = self.log.tail.filter(|tail| is_whole && goes_on(tail));
        Ok(())
    }

    /// Walks the segments up to the end of the log, and wipes what follows it.
    fn walk_segments(&mut self) -> Result<()> {
        let mut ended = false;
        let mut memory = AlignedBuffer::new();
        for at in 0..self.walked.len() {
            let segment = self.walked[at];
            let image = parallel_scan::read(memory, segment, self.segments.segment_bytes())?;
            if ended {
                self.wipe_rest(segment, &image, PAGE_BYTES)?;
            } else {
                ended = self.walk_segment(at, &image)?;
            }
            memory = image.into_memory();
        }
        Ok(())
    }

    /// Walks one segment. Returns whether the log ends in it, with more frames after its end.
    fn walk_segment(&mut self, position: usize, image: &SegmentImage) -> Result<bool> {
        let segment = self.walked[position];
        let mut at = PAGE_BYTES;
        while let Some(frame) = image.next_frame(at) {
            let missing_from = self.missing_from();
            if active(Mutation::HoleEndsLog) {
                // The missing seqs are not needed.
            } else if frame.header.first_seq > missing_from {
                if frame.offset == PAGE_BYTES {
                    self.gap_before(position, missing_from, &frame)?;
                } else if self.was_durable(position, image, at, missing_from)? {
                    self.report(segment.number, at, &lost_durable(missing_from, &frame));
                    self.segments.quarantine(segment);
                } else {
                    self.wipe_rest(segment, image, at)?;
                    return Ok(true);
                }
            } else if frame.offset > at {
                self.report(segment.number, at, "commits the index has persisted");
            }
            self.take_frame(segment.number, &frame);
            at = frame.end();
        }
        if at == PAGE_BYTES && !self.read_only {
            if !self.is_used_at(segment, PAGE_BYTES)? {
                // Prepared and never used.
                self.segments.free_unused(segment);
            } else if image
                .header_at(PAGE_BYTES)
                .is_some_and(|first| first.first_seq > self.persisted_seq)
            {
                self.torn.push(segment);
            } // else something the index has may be in it: recycling looks.
        }
        Ok(false)
    }

    /// The first seq that is neither persisted nor found yet.
    fn missing_from(&self) -> u64 {
        self.reached.unwrap_or(0).max(self.persisted_seq) + 1
    }

    /// Whether the missing commits between `at` and the next sound frame were durable.
    fn was_durable(&self, position: usize, image: &SegmentImage, at: usize, missing_from: u64) -> Result<bool> {
        let mut others = image.frames_from(at);
        if others.any(|frame| frame.header.durable_seq >= missing_from) {
            return Ok(true);
        }
        for later in &self.walked[position + 1..] {
            let image = SegmentImage::read(later, self.segments.segment_bytes())?;
            if image.next_frame(PAGE_BYTES).is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A segment's first frame is valid and does not follow: the missing seqs were before it, and
    /// durable. The contents of a damaged or emptied segment are lost, if there is one.
    fn gap_before(&mut self, position: usize, missing_from: u64, frame: &FoundFrame<'_>) -> Result<()> {
        let lost = lost_durable(missing_from, frame);
        if let Some((damaged, end)) = self.damaged_before(position)? {
            self.report(damaged.number, end, &lost);
            self.segments.quarantine(damaged);
        } else if let Some(emptied) = self.reached.and_then(|_| self.emptied()) {
            self.report(emptied, 0, &lost);
        } else {
            return Err(Error::corruption(
                "the flash log",
                format!(
                    "the index ends with commit {}, and the log lacks {lost}: a segment is missing, or the index is gone or older than the log; put back what is missing, or run `terrace repair`",
                    self.persisted_seq
                ),
            ));
        }
        Ok(())
    }

    /// The last segment before `position` in which a frame was begun after the last valid one, and
    /// its offset.
    fn damaged_before(&self, position: usize) -> Result<Option<(&'a Segment, usize)>> {
        for before in self.walked[..position].iter().rev() {
            let end = self.log.tail.filter(|tail| tail.0 == before.number);
            let end = end.map_or(PAGE_BYTES, |tail| tail.1 as usize);
            // A file that was cut at the end of a frame looks as if nothing had ever followed.
            if before.cut_at().is_some() || self.is_used_at(before, end)? {
                return Ok(Some((before, end)));
            }
        }
        Ok(None)
    }

    /// The segment whose file is missing or empty.
    fn emptied(&self) -> Option<u32> {
        let is_empty = |number: &u32| {
            self.segments.get(*number).is_none_or(|segment| {
                segment.state() == SegmentState::Free
                    || (segment.cut_at().is_some() && segment.state() == SegmentState::Quarantined)
            })
        };
        let end = self.segments.iter().map(|segment| segment.number + 1).max()?;
        (0..end).find(is_empty)
    }

    /// Whether a frame of the segment's present use begins at `offset`, valid or not.
    fn is_used_at(&self, segment: &Segment, offset: usize) -> Result<bool> {
        if offset as u64 >= self.segments.segment_bytes() {
            return Ok(false);
        }
        Ok(looks_like_a_frame(
            &read(segment, offset, PAGE_BYTES)?,
            segment.generation(),
        ))
    }

    fn take_frame(&mut self, number: u32, frame: &FoundFrame<'_>) {
        // In the middle of the log they are left to log GC.
        self.torn.clear();
        self.reached = Some(frame.header.last_seq);
        self.log.last_seq = self.log.last_seq.max(frame.header.last_seq);
        self.log.tail = Some((number, frame.end() as u64));
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

    /// Wipes the headers of frames that were never durable.
    fn wipe_rest(&self, segment: &Segment, image: &SegmentImage, from: usize) -> Result<()> {
        if self.read_only || active(Mutation::WipeHole) {
            return Ok(());
        }
        let context = |error| Error::io(format!("wipe frames in segment {:08x}", segment.number), &error);
        let zeros = AlignedBuffer::zeroed(PAGE_BYTES);
        let mut wiped = false;
        for frame in image.frames_from(from) {
            // This looks the same as damage of durable frames, if nothing written later proves that
            // they were durable.
            tracing::warn!(
                segment = segment.number,
                offset = frame.offset,
                first_seq = frame.header.first_seq,
                last_seq = frame.header.last_seq,
                "dropping a frame behind a hole in the log, as a power cut leaves it"
            );
            segment
                .file
                .write_all_at(&zeros, frame.offset as u64)
                .map_err(context)?;
            wiped = true;
        }
        if wiped {
            unless(Mutation::WipeSync, || segment.file.sync_data()).map_err(context)?;
        }
        if from == PAGE_BYTES && segment.state() == SegmentState::Sealed {
            self.segments.free_unused(segment);
        }
        Ok(())
    }

    /// Frees the segments after the log's end whose first frame was torn. The frame is wiped, since
    /// its seqs will be assigned again.
    fn free_torn(&mut self) -> Result<()> {
        for segment in std::mem::take(&mut self.torn) {
            let zeros = AlignedBuffer::zeroed(PAGE_BYTES);
            let wiped = segment.file.write_all_at(&zeros, PAGE_BYTES as u64);
            wiped
                .and_then(|()| segment.file.sync_data())
                .map_err(|error| Error::io(format!("wipe segment {:08x}", segment.number), &error))?;
            self.segments.free_unused(segment);
        }
        Ok(())
    }

    /// The index is ahead of the log: if a frame was begun after the last valid one, it is damaged.
    /// It is not overwritten: some of its records may be valid.
    fn report_lost_end(&mut self, reached: u64) -> Result<()> {
        let Some((number, end)) = self.log.tail else {
            return Ok(());
        };
        let Some(segment) = self.segments.get(number) else {
            return Ok(());
        };
        if self.is_used_at(segment, end as usize)? {
            let (from, to) = (reached + 1, self.persisted_seq);
            let lost = format!("commits {from} to {to}, which the index has persisted");
            self.report(number, end as usize, &lost);
        }
        Ok(())
    }

    fn report(&mut self, number: u32, from: usize, lost: &str) {
        let message = format!("segment {number:08x}: damaged from byte {from} on: {lost}");
        tracing::error!("{message}");
        self.log.damage.push(message);
    }
}

/// The loss before a frame, as a message. Which objects it changed cannot be known.
fn lost_durable(from: u64, next: &FoundFrame<'_>) -> String {
    format!(
        "durable commits {from} to {}; the objects that they changed are as they were before, without an error of their own",
        next.header.first_seq - 1
    )
}

fn read(segment: &Segment, offset: usize, bytes: usize) -> Result<AlignedBuffer> {
    let mut buffer = AlignedBuffer::zeroed(bytes);
    segment.read(&mut buffer, offset as u64)?;
    Ok(buffer)
}
