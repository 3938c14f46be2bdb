//! Tests of the flash log, by file.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod format;
mod found_always;
mod frame;
mod frame_table;
mod free_list;
mod recover;
mod scan;
mod segments;
mod side_by_side;
mod writer;

use super::{
    format::{Body, Extent, Record},
    frame::{Frame, FramePool},
    segments::Segments,
};
pub(super) use crate::test_common::bytes as noise;
use crate::{Durability, io::SimDisk};
use std::sync::Arc;

pub(super) const STORE: u64 = 0x1122_3344_5566_7788;
pub(super) const SEGMENT_BYTES: u64 = 256 << 10;

/// A ring of at most `count` segments on a simulated disk.
pub(super) fn ring(disk: &SimDisk, count: u64) -> Segments {
    let disk = Arc::new(disk.clone());
    Segments::open(disk, STORE, SEGMENT_BYTES, count * SEGMENT_BYTES, true, false).unwrap()
}

pub(super) fn record<'a>(key: &'a [u8], body: Body<'a>) -> Record<'a> {
    let checksum = match body {
        Body::Put { value } | Body::PutInline { value } | Body::MoveToFlash { value, .. } => crc32c::crc32c(value),
        Body::Delete | Body::Drop { .. } => 0,
        Body::DeleteRange { end } => crc32c::crc32c(end),
        Body::PutLarge { .. } | Body::MoveToBlock { .. } => 0xCAFE_F00D,
    };
    Record {
        seq: 0,
        generation: 0,
        key,
        attributes: &[],
        checksum,
        body,
    }
}

pub(super) fn put<'a>(key: &'a [u8], value: &'a [u8]) -> (u64, Record<'a>) {
    (crate::key_hash(key), record(key, Body::Put { value }))
}

pub(super) const EXTENT: Extent = Extent {
    block: 0x0A0B,
    offset: 0x3000,
    extent_bytes: 0x456,
    length: 0x400,
};

/// A frame at `offset` of a segment, with one commit per value, from `seq` on. Sealed.
pub(super) fn sealed(segment: u32, generation: u64, offset: u64, seq: u64, values: &[Vec<u8>]) -> Arc<Frame> {
    let frame = Frame::open(
        segment,
        generation,
        SEGMENT_BYTES,
        offset,
        Arc::new(FramePool::for_overlay(0)),
    );
    for (seq, value) in (seq..).zip(values) {
        let key = format!("key {seq}");
        frame.append(seq, &[put(key.as_bytes(), value)], Durability::Buffered);
    }
    frame.seal(seq - 1);
    Arc::new(frame)
}
