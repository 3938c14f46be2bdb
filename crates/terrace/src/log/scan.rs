//! Walks the frames of one segment, for recovery, log GC, verify and repair.

use super::{
    address::Address,
    format::{FRAME_HEADER_BYTES, FrameHeader, Record, check_frame, looks_like_a_frame, records},
    segments::Segment,
};
use crate::{
    Error, Result,
    io::{AlignedBuffer, PAGE_BYTES},
};
use std::sync::OnceLock;

/// The bytes of a segment, read as a whole.
#[derive(Debug)]
pub struct SegmentImage {
    /// Its number.
    pub number: u32,
    /// Generation of its present use.
    pub generation: u64,
    bytes: AlignedBuffer,
    /// Valid frames, once a caller asked for all: the offset and the header of each. Checksums are
    /// computed once.
    sound: OnceLock<Vec<(usize, FrameHeader)>>,
}

/// A frame found in an image.
#[derive(Debug, Clone, Copy)]
pub struct FoundFrame<'a> {
    /// Where it starts in the segment.
    pub offset: usize,
    /// Its header.
    pub header: FrameHeader,
    /// Its bytes, header and padding included.
    pub bytes: &'a [u8],
}

impl FoundFrame<'_> {
    /// Where it ends in the segment.
    pub const fn end(&self) -> usize {
        self.offset + self.bytes.len()
    }
}

/// Bytes per read request.
pub const READ_BYTES: usize = 1 << 20;

impl SegmentImage {
    /// Reads a segment.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn read(segment: &Segment, segment_bytes: u64) -> Result<Self> {
        let mut bytes = AlignedBuffer::new();
        // At most 1 GiB.
        bytes.set_len(segment_bytes as usize);
        let mut at = 0;
        for part in bytes.chunks_mut(READ_BYTES) {
            segment.read(part, at)?;
            at += part.len() as u64;
        }
        Ok(Self::of(segment, bytes))
    }

    /// An image of bytes that were read.
    pub fn of(segment: &Segment, bytes: AlignedBuffer) -> Self {
        Self {
            number: segment.number,
            generation: segment.generation(),
            bytes,
            sound: OnceLock::new(),
        }
    }

    /// Its memory.
    pub fn into_memory(self) -> AlignedBuffer {
        self.bytes
    }

    /// The valid frame that starts at `offset`, if any.
    pub fn frame_at(&self, offset: usize) -> Option<FoundFrame<'_>> {
        let bytes = self.bytes.get(offset..)?;
        let header = check_frame(bytes, self.generation)?;
        Some(FoundFrame {
            offset,
            header,
            bytes: bytes.get(..header.frame_bytes())?,
        })
    }

    /// The frame header at `offset`, if it is of this use of the segment, whether or not its frame
    /// is valid.
    pub fn header_at(&self, offset: usize) -> Option<FrameHeader> {
        FrameHeader::decode(self.bytes.get(offset..)?).filter(|header| header.generation == self.generation)
    }

    /// The first valid frame at or after `offset`.
    pub fn next_frame(&self, offset: usize) -> Option<FoundFrame<'_>> {
        (offset..self.bytes.len())
            .step_by(PAGE_BYTES)
            .find_map(|at| self.frame_at(at))
    }

    /// The valid frames at or after `offset`, in order.
    pub fn frames_from(&self, offset: usize) -> impl Iterator<Item = FoundFrame<'_>> {
        std::iter::successors(self.next_frame(offset), |frame| self.next_frame(frame.end()))
    }

    /// All valid frames, in order; searched once.
    pub fn frames(&self) -> impl Iterator<Item = FoundFrame<'_>> {
        let found = || self.frames_from(PAGE_BYTES).map(|frame| (frame.offset, frame.header));
        let sound = self.sound.get_or_init(|| found().collect());
        sound.iter().map(|&(offset, header)| FoundFrame {
            offset,
            header,
            bytes: &self.bytes[offset..offset + header.frame_bytes()],
        })
    }

    /// The records of one of its frames, each with its address.
    pub fn records<'a>(&self, frame: &FoundFrame<'a>) -> impl Iterator<Item = (Address, Record<'a>)> + use<'a> {
        let base = (self.number as usize * self.bytes.len() + frame.offset + FRAME_HEADER_BYTES) as u64;
        let payload = &frame.bytes[FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + frame.header.payload_bytes as usize];
        records(payload).filter_map(move |(at, record)| Some((Address::new(base + at as u64)?, record)))
    }

    /// Parts between frames that are not zero, without the rest after the last frame: `(from, to)`
    /// in bytes. Each had a frame, which is damaged.
    pub fn damaged(&self) -> Vec<(usize, usize)> {
        let mut damaged = Vec::new();
        let mut at = PAGE_BYTES;
        for frame in self.frames() {
            if frame.offset > at {
                damaged.push((at, frame.offset));
            }
            at = frame.end();
        }
        damaged
    }
}

impl Segment {
    /// Reads a part of it.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn read(&self, part: &mut [u8], at: u64) -> Result<()> {
        let read = self.file.read_exact_at(part, at);
        read.map_err(|error| Error::io(format!("read segment {:08x} at {at}", self.number), &error))
    }

    /// Makes everything written to it durable.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn sync(&self) -> Result<()> {
        let synced = self.file.sync_data();
        synced.map_err(|error| Error::io(format!("sync segment {:08x}", self.number), &error))
    }
}

/// State of a walk.
#[derive(Debug, Default)]
pub struct Walked {
    /// Header of the last valid frame.
    pub last: Option<FrameHeader>,
    /// End of that frame, or where the first one would begin.
    pub end: usize,
    /// Bytes of all valid frames.
    pub held_bytes: usize,
    /// As [`SegmentImage::damaged`].
    pub damaged: Vec<(usize, usize)>,
    /// The bytes at `end` look like a frame of this use that is not valid.
    pub looks_used_at_end: bool,
}

/// Walks the valid frames of a segment with only a frame and a request in RAM.
pub struct FrameWalk<'a, S> {
    segment: &'a Segment,
    /// Each read is made through it; its argument is the length of the request.
    step: S,
    segment_bytes: usize,
    window: AlignedBuffer,
    /// Offset of the window in the segment.
    window_at: usize,
    walked: Walked,
}

impl<'a, S: FnMut(usize, &mut dyn FnMut() -> Result<()>) -> Result<()>> FrameWalk<'a, S> {
    /// Begins a walk.
    // A segment has at most 1 GiB.
    pub fn new(segment: &'a Segment, segment_bytes: u64, step: S) -> Self {
        Self {
            segment,
            step,
            segment_bytes: segment_bytes as usize,
            window: AlignedBuffer::new(),
            window_at: PAGE_BYTES,
            walked: Walked {
                end: PAGE_BYTES,
                ..Walked::default()
            },
        }
    }

    /// The next valid frame.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn next_frame(&mut self) -> Result<Option<FoundFrame<'_>>> {
        let mut offset = self.walked.end;
        while offset < self.segment_bytes {
            if let Some(header) = self.sound_at(offset)? {
                self.found(offset, header);
                let bytes = &self.window[offset - self.window_at..][..header.frame_bytes()];
                return Ok(Some(FoundFrame { offset, header, bytes }));
            }
            offset += PAGE_BYTES;
        }
        Ok(None)
    }

    /// Bytes of the segment in RAM.
    #[cfg(test)]
    pub fn window_bytes(&self) -> usize {
        self.window.len()
    }

    /// The result.
    pub fn into_walked(self) -> Walked {
        self.walked
    }

    fn found(&mut self, offset: usize, header: FrameHeader) {
        let walked = &mut self.walked;
        if offset > walked.end {
            walked.damaged.push((walked.end, offset));
        }
        walked.end = offset + header.frame_bytes();
        walked.held_bytes += header.frame_bytes();
        walked.last = Some(header);
        walked.looks_used_at_end = false;
    }

    /// The header of the frame at `offset`, if it is valid; all of the frame is in the window then.
    fn sound_at(&mut self, offset: usize) -> Result<Option<FrameHeader>> {
        let generation = self.segment.generation();
        let page = self.bytes(offset, PAGE_BYTES)?;
        let header = FrameHeader::decode(page).filter(|header| header.generation == generation);
        let looks_used = looks_like_a_frame(page, generation);
        if offset == self.walked.end {
            self.walked.looks_used_at_end = looks_used;
        }
        let Some(header) = header.filter(|header| offset + header.frame_bytes() <= self.segment_bytes) else {
            return Ok(None);
        };
        Ok(check_frame(self.bytes(offset, header.frame_bytes())?, generation))
    }

    /// Bytes at `offset`, which must not be before those requested last.
    fn bytes(&mut self, offset: usize, length: usize) -> Result<&[u8]> {
        let behind = offset - self.window_at;
        if behind + length > self.window.len() {
            self.window.copy_within(behind.., 0);
            self.window.set_len(self.window.len() - behind);
            self.window_at = offset;
            while self.window.len() < length {
                self.read_on()?;
            }
        }
        Ok(&self.window[offset - self.window_at..][..length])
    }

    /// Reads the bytes after the window.
    fn read_on(&mut self) -> Result<()> {
        let (length, segment) = (self.window.len(), self.segment);
        let at = self.window_at + length;
        self.window
            .set_len(length + READ_BYTES.min(self.segment_bytes.saturating_sub(at)));
        let part = &mut self.window[length..];
        (self.step)(part.len(), &mut || segment.read(part, at as u64))
    }
}
