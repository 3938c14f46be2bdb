//! Tests of the large space, by subject.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod crash;
mod damage;
mod faults;
mod golden;
mod memory;
mod queue;
mod round_trip;
mod seal;

use super::*;
use crate::io::AlignedBuffer;
use memory::MemoryDisk;

pub(super) const STORE: u64 = 0x5EED_0F57_0AED_5701;

pub(super) fn options(split_threshold_bytes: u64) -> LargeOptions {
    LargeOptions {
        store_id: STORE,
        split_threshold_bytes,
        direct_io: true,
        read_only: false,
        capacity_bytes: None,
    }
}

pub(super) fn open(disk: &Arc<MemoryDisk>, split_threshold_bytes: u64) -> LargeSpace {
    let (space, report) = LargeSpace::open(Arc::<MemoryDisk>::clone(disk), options(split_threshold_bytes)).unwrap();
    assert_eq!(report, OpenReport::default());
    space
}

impl LargeSpace {
    /// Writes a whole value.
    pub(super) fn write(&self, key: &[u8], attributes: &[u8], value: &[u8], ticket: u64) -> Result<LargeValue> {
        let mut writer = self.writer(key, attributes, Length::Known(value.len() as u64), ticket)?;
        writer.write(value)?;
        writer.finish()
    }
}

impl LargeSpace {
    /// Deletes a block. `false`: it is not dead, or it is being read.
    pub(super) fn delete_one(&self, number: u64, drained_seq: u64) -> Result<bool> {
        self.delete(&[(number, drained_seq)]).map(|deleted| deleted == [number])
    }
}

/// Bytes that differ from place to place and from value to value.
pub(super) fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

pub(super) fn read(space: &LargeSpace, key: &[u8], value: &LargeValue) -> Result<bytes::Bytes> {
    space.read_all(key, &value.extent())
}

/// Writes a whole value without waiting for it to be written.
pub(super) fn write_behind(space: &LargeSpace, key: &[u8], value: &[u8]) -> Result<LargeValue> {
    let mut writer = space.writer(key, b"", Length::Known(value.len() as u64), 1)?.behind();
    writer.write(value)?;
    writer.finish()
}

/// Writes a value of unknown length in pieces.
pub(super) fn stream(space: &LargeSpace, key: &[u8], value: &[u8], piece: usize) -> Result<LargeValue> {
    let mut writer = space.writer(key, b"", Length::AtLeast(0), 1)?;
    for part in value.chunks(piece) {
        writer.write(part)?;
    }
    writer.finish()
}
