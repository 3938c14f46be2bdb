//! Walks the frames of one segment, for recovery, recycling, verifying and repair.

use super::{
    format::{FrameHeader, Record, check_frame, looks_like_a_frame},
    segments::Segment,
};
use crate::{
    Error, Result,
    io::{AlignedBuffer, PAGE_BYTES},
};
use std::{io, sync::OnceLock};

/// A segment's bytes, read at once.
#[derive(Debug)]
pub struct SegmentImage {
    /// Its number.
    pub number: u32,
    /// Generation of its present use.
    pub generation: u64,
    bytes: AlignedBuffer,
    /// Sound frames, once somebody asked for all: where each starts, and its header. Checksums are
    /// looked at once.
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
    /// The device's.
    pub fn read(segment: &Segment, segment_bytes: u64) -> Result<Self> {
        Self::read_in_steps(segment, segment_bytes, |_, read| read())
    }

    /// Of bytes that were read.
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

    /// The same, each request by way of `step`, which is told how long it is.
    ///
    /// # Errors
    /// The device's.
    pub fn read_in_steps(
        segment: &Segment,
        segment_bytes: u64,
        step: impl Fn(usize, &mut dyn FnMut() -> io::Result<()>) -> io::Result<()>,
    ) -> Result<Self> {
        let mut bytes = AlignedBuffer::new();
        #[allow(clippy::cast_possible_truncation)] // at most 1 GiB
        bytes.set_len(segment_bytes as usize);
        let mut at = 0;
        for part in bytes.chunks_mut(READ_BYTES) {
            step(part.len(), &mut || segment.file.read_exact_at(part, at))
                .map_err(|error| Error::io(format!("read segment {:08x} at {at}", segment.number), &error))?;
            at += part.len() as u64;
        }
        Ok(Self::of(segment, bytes))
    }

    /// Length of the segment.
    pub fn len_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The sound frame that starts at `offset`, if there is one.
    pub fn frame_at(&self, offset: usize) -> Option<FoundFrame<'_>> {
        let bytes = self.bytes.get(offset..)?;
        let header = check_frame(bytes, self.generation)?;
        Some(FoundFrame {
            offset,
            header,
            bytes: bytes.get(..header.frame_bytes())?,
        })
    }

    /// The record at `offset` of a sound frame.
    ///
    /// # Panics
    /// If none is there.
    pub fn record_at(&self, offset: usize) -> Record<'_> {
        Record::parse(&self.bytes[offset..]).expect("a sound frame has a record there")
    }

    /// Whether a frame of this use begins at `offset`, sound or not. No single flipped bit hides
    /// both the magic and the generation.
    pub fn looks_used_at(&self, offset: usize) -> bool {
        self.bytes
            .get(offset..)
            .is_some_and(|bytes| looks_like_a_frame(bytes, self.generation))
    }

    /// The frame header at `offset`, if it is one of this use of the segment, whether or not its
    /// frame is sound.
    pub fn header_at(&self, offset: usize) -> Option<FrameHeader> {
        FrameHeader::decode(self.bytes.get(offset..)?).filter(|header| header.generation == self.generation)
    }

    /// The first sound frame at or after `offset`.
    pub fn next_frame(&self, offset: usize) -> Option<FoundFrame<'_>> {
        (offset..self.bytes.len())
            .step_by(PAGE_BYTES)
            .find_map(|at| self.frame_at(at))
    }

    /// All sound frames, in order.
    pub fn frames(&self) -> impl Iterator<Item = FoundFrame<'_>> {
        let sound = self.sound.get_or_init(|| {
            let mut at = PAGE_BYTES;
            let walk = std::iter::from_fn(|| {
                let frame = self.next_frame(at)?;
                at = frame.end();
                Some((frame.offset, frame.header))
            });
            walk.collect()
        });
        sound.iter().map(|&(offset, header)| FoundFrame {
            offset,
            header,
            bytes: &self.bytes[offset..offset + header.frame_bytes()],
        })
    }

    /// Parts between frames that are not zero and not the rest after the last frame: `(from, to)`
    /// in bytes. A frame was there once and is damaged.
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
