//! Identifies each file of the ring by its header when the store is opened.
//!
//! On failure: a file of another store, or one that cannot be identified, is left alone, and
//! reported as damage.

use super::{
    format::{FrameHeader, SegmentHeader, SegmentUse},
    segments::{Segment, SegmentState, Segments},
};
use crate::{
    Error, Result,
    io::{AlignedBuffer, OpenMode, PAGE_BYTES},
};
use std::sync::atomic::Ordering;

/// Contents of a file of the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// A segment with this header, or one that implies the same.
    Used(SegmentHeader),
    /// Never written, or its header was never durable: no commit in it was acknowledged.
    Unused,
    /// Must not be changed.
    Unknown,
}

impl Segments {
    pub(super) fn open_segment(&self, number: u32, read_only: bool) -> Result<()> {
        let path = Self::path(number);
        let context = || format!("open segment {}", path.display());
        let mode = OpenMode {
            write: !read_only,
            direct: self.direct_io,
            create_new: false,
        };
        let io = |error| Error::io(context(), &error);
        let file = self.disk.open(&path, mode).map_err(io)?;
        let length = file.len().map_err(io)?;
        let segment = Segment::new(number, file);
        if length < self.segment_bytes {
            segment.cut_at.store(length, Ordering::Release);
        }
        let found = match self.identify(&segment, length) {
            Ok(found) => found,
            // A read-only open can still read the other segments.
            Err(error) if read_only => {
                self.note_damage(number, &format!("it cannot be read: {error}"));
                Found::Unknown
            }
            Err(error) => return Err(io(error)),
        };
        match found {
            Found::Used(header) => {
                segment.generation.store(header.generation, Ordering::Release);
                segment.live_bytes.store(self.segment_bytes, Ordering::Relaxed);
                segment.is_former.store(true, Ordering::Release);
                segment.first_seq.store(header.first_seq, Ordering::Release);
                segment.set_state(match header.segment_use {
                    SegmentUse::Log => SegmentState::Sealed,
                    SegmentUse::Copies => SegmentState::Copies,
                });
                self.next_generation.fetch_max(header.generation + 1, Ordering::AcqRel);
            }
            Found::Unknown => segment.set_state(SegmentState::Quarantined),
            Found::Unused => {}
        }
        let is_short = length < self.segment_bytes && !read_only;
        if is_short && found == Found::Unused {
            // It gets its length only when it is needed: a full device may have no room for that.
            segment.file.set_len(0).map_err(io)?;
            self.hollow.lock().insert(number);
            self.slots.set(segment);
            return Ok(());
        }
        if is_short && found != Found::Unknown {
            self.lengthen(&segment).map_err(io)?;
        }
        if found == Found::Unused && !read_only {
            self.push_free(number);
        }
        self.slots.set(segment);
        self.created.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Restores the length of a used segment's file: with allocated space behind its end if the
    /// device has room, and without it on a full device, since the store must open there as well.
    fn lengthen(&self, segment: &Segment) -> std::io::Result<()> {
        match self.allocate(&*segment.file) {
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {
                segment.lacks_room.store(true, Ordering::Release);
                segment.file.set_len(self.segment_bytes)
            }
            outcome => outcome,
        }
    }

    /// Contents of a segment's file, by its header. A new header fits in one sector, so a crash
    /// leaves it old or new and never torn; a new file is all zeros.
    fn identify(&self, segment: &Segment, length: u64) -> std::io::Result<Found> {
        let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
        segment.file.read_up_to_at(&mut page, 0)?;
        if let Some(header) = SegmentHeader::decode(&page) {
            if header.store_id != self.store_id
                || header.number != segment.number
                || header.segment_bytes != self.segment_bytes
            {
                self.note_damage(
                    segment.number,
                    "it belongs to another store or is another segment; it is left alone",
                );
                return Ok(Found::Unknown);
            }
            if length < self.segment_bytes {
                self.note_damage(segment.number, &format!("its file is cut short to {length} bytes"));
            }
            return Ok(Found::Used(header));
        }
        let header_is_zero = page.iter().all(|&byte| byte == 0);
        page.fill(0);
        segment.file.read_up_to_at(&mut page, PAGE_BYTES as u64)?;
        match FrameHeader::decode(&page) {
            Some(frame) => {
                self.note_damage(segment.number, "its header is damaged; its frames are used");
                Ok(Found::Used(SegmentHeader {
                    store_id: self.store_id,
                    number: segment.number,
                    generation: frame.generation,
                    first_seq: frame.first_seq,
                    segment_bytes: self.segment_bytes,
                    segment_use: SegmentUse::Log,
                }))
            }
            None if header_is_zero => Ok(Found::Unused),
            None => {
                self.note_damage(
                    segment.number,
                    "its header and its first frame are damaged; it is left alone",
                );
                Ok(Found::Unknown)
            }
        }
    }
}
