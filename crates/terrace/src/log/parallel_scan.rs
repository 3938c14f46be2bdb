//! Reads a segment whole by several requests at a time, for a caller that waits for it: a device
//! answers several in little more time than one. (To read the next segment meanwhile gained nothing
//! where it was tried: its memory took as long as it saved.)
//!
//! On failure: the error of the first place that could not be read. A thread that cannot be started
//! is done without.

use super::{
    scan::{READ_BYTES, SegmentImage},
    segments::Segment,
};
use crate::{Error, Result, io::AlignedBuffer};
use parking_lot::Mutex;
use std::thread::{Builder, scope};

/// Requests under way.
const REQUESTS: usize = 4;

/// Reads a segment, with the memory of another image: to get that anew costs as much as the
/// reading.
///
/// # Errors
/// The device's.
pub fn read(mut memory: AlignedBuffer, segment: &Segment, segment_bytes: u64) -> Result<SegmentImage> {
    // At most 1 GiB.
    memory.set_len(segment_bytes as usize);
    let parts = Mutex::new((0..).step_by(READ_BYTES).zip(memory.chunks_mut(READ_BYTES)));
    let failed: Mutex<Option<(u64, Error)>> = Mutex::new(None);
    let read = || {
        while failed.lock().is_none() {
            let Some((at, part)) = parts.lock().next() else {
                break;
            };
            if let Err(error) = segment.read(part, at) {
                let mut failed = failed.lock();
                if failed.as_ref().is_none_or(|(first, _)| at < *first) {
                    *failed = Some((at, error));
                }
            }
        }
    };
    scope(|threads| {
        for _ in 1..REQUESTS {
            // What cannot be started the others do.
            let _ = Builder::new()
                .name("terrace-recover".to_owned())
                .spawn_scoped(threads, read);
        }
        read();
    });
    match failed.into_inner() {
        None => Ok(SegmentImage::of(segment, memory)),
        Some((_, error)) => Err(error),
    }
}
