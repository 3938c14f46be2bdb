//! Reads a whole segment by several parallel requests, for a caller that waits for it: a device
//! serves several in little more time than one. (Reading the next segment in advance gained nothing
//! where it was tried: its memory took as long as it saved.)
//!
//! On failure: the error at the lowest offset that could not be read. If a thread cannot be
//! started, the others do its work.

use super::{
    scan::{READ_BYTES, SegmentImage},
    segments::Segment,
};
use crate::{Error, Result, io::AlignedBuffer};
use parking_lot::Mutex;
use std::thread::{Builder, scope};

/// Parallel requests.
const REQUESTS: usize = 4;

/// Reads a segment into the memory of another image: allocating it anew costs as much as the read.
///
/// # Errors
/// Errors of the device.
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
            // The other threads do the work of those that cannot be started.
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
