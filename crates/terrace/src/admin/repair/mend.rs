//! Repairs segment files before they are opened: a damaged header or a truncated file must not make
//! the ring take a segment full of commits for a free one.
//!
//! Frames have the generation of their segment's use, so a header can be rebuilt from them. Among
//! frames of several uses the latest counts: only its frames are complete up to where the log
//! stopped or the segment ended.
//!
//! On failure of the device: the segment is not changed, and is reported.

use super::notes::Notes;
use crate::{
    Error, Result,
    io::{AlignedBuffer, Disk, DiskFile, OpenMode, PAGE_BYTES},
    log::{
        format::{FrameHeader, SegmentHeader, SegmentUse, check_frame},
        segments::Segments,
    },
    manifest::Manifest,
};
use std::{io, path::Path, sync::Arc};

/// Bytes per read request.
const READ_BYTES: usize = 4 << 20;

/// Repairs segment files where possible. Returns whether damage was found.
///
/// # Errors
/// If the segments cannot be listed.
pub fn segments(disk: &dyn Disk, manifest: &Manifest, direct_io: bool, notes: &mut Notes) -> Result<bool> {
    let mut numbers = Segments::numbers(disk)?;
    numbers.sort_unstable();
    let mut broken = false;
    for number in numbers {
        let path = Segments::path(number);
        let mode = OpenMode::WRITE.with_direct(direct_io);
        let outcome = disk
            .open(&path, mode)
            .and_then(|file| one(&file, &path, number, manifest));
        match outcome {
            Ok(None) => {}
            Ok(Some(note)) => {
                broken = true;
                notes.add(note);
            }
            Err(error) => {
                broken = true;
                notes.add(Error::io(format!("segment {number:08x} cannot be mended"), &error).to_string());
            }
        }
    }
    Ok(broken)
}

fn one(file: &Arc<dyn DiskFile>, path: &Path, number: u32, manifest: &Manifest) -> io::Result<Option<String>> {
    let length = file.len()?;
    if length < PAGE_BYTES as u64 {
        return Ok(None);
    }
    let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
    file.read_exact_at(&mut page, 0)?;
    let name = path.display();
    let sound = match SegmentHeader::decode(&page) {
        Some(header) if header.store_id != manifest.store_id => {
            return Ok(Some(format!("{name} belongs to another store; nothing in it was used")));
        }
        Some(header) => header.number == number && header.segment_bytes == manifest.segment_bytes,
        None => false,
    };
    let whole = length >= manifest.segment_bytes;
    if sound && whole {
        return Ok(None);
    }
    let header = if sound {
        None
    } else {
        match header_from_frames(&**file, length, number, manifest)? {
            Some(header) => Some(header),
            // Never used, or nothing left: free, as the ring will take it.
            None => return Ok(None),
        }
    };
    if !whole {
        file.allocate(manifest.segment_bytes)?;
    }
    if let Some(header) = header {
        page.copy_from_slice(&header.encode());
        file.write_all_at(&page, 0)?;
    }
    file.sync_data()?;
    Ok(Some(match header {
        Some(header) => format!(
            "{name}: its header was damaged and was written anew from its frames (generation {})",
            header.generation
        ),
        None => format!("{name} was cut short at byte {length}: what was behind is lost"),
    }))
}

/// The header that the frames in a file speak of.
fn header_from_frames(
    file: &dyn DiskFile,
    length: u64,
    number: u32,
    manifest: &Manifest,
) -> io::Result<Option<SegmentHeader>> {
    let bytes = usize::try_from(length.min(manifest.segment_bytes)).map_err(io::Error::other)?;
    let mut image = AlignedBuffer::zeroed(bytes / PAGE_BYTES * PAGE_BYTES);
    let mut at = 0;
    for part in image.chunks_mut(READ_BYTES) {
        file.read_exact_at(part, at)?;
        at += part.len() as u64;
    }
    let mut found: Option<FrameHeader> = None;
    for at in (PAGE_BYTES..image.len()).step_by(PAGE_BYTES) {
        let Some(claimed) = FrameHeader::decode(&image[at..]) else {
            continue;
        };
        // The first frame of a use has its lowest seq.
        let newer = found.is_none_or(|found| claimed.generation > found.generation);
        if newer && check_frame(&image[at..], claimed.generation).is_some() {
            found = Some(claimed);
        }
    }
    Ok(found.map(|frame| SegmentHeader {
        store_id: manifest.store_id,
        number,
        generation: frame.generation,
        first_seq: frame.first_seq,
        segment_bytes: manifest.segment_bytes,
        segment_use: SegmentUse::Log,
    }))
}
