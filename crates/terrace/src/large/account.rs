//! Live bytes per block: exact in RAM, persisted through the index's mark.
//!
//! Invariants:
//! - Every value that was not abandoned is accounted live once, when its commit is applied, and dead once,
//!   when the entry that points to it is gone. Overwritten before it was applied: both, in this order.
//! - No block counts as dead before [`LargeSpace::accounting_complete`], which the store calls after replay.

use super::{LargeSpace, block::subtract, format::u32_at, format::u64_at};
use crate::{Error, Result};
use crc32c::crc32c;
use std::sync::atomic::Ordering;

const MAGIC: [u8; 4] = *b"TRCA";
const FORMAT_VERSION: u32 = 1;
const HEAD_BYTES: usize = 16;

/// Live bytes by block number, ascending, as bytes for the index's mark.
#[must_use]
pub fn encode_accounting(live: &[(u64, u64)]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD_BYTES + live.len() * 8 + 4);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    out.extend_from_slice(&(live.len() as u64).to_le_bytes());
    let mut last = 0;
    for &(block, bytes) in live {
        push_varint(&mut out, block - last);
        push_varint(&mut out, bytes);
        last = block;
    }
    let checksum = crc32c(&out);
    out.extend_from_slice(&checksum.to_le_bytes());
    out
}

/// Reads what [`encode_accounting`] wrote.
#[must_use]
pub fn decode_accounting(bytes: &[u8]) -> Option<Vec<(u64, u64)>> {
    let (body, checksum) = bytes.split_last_chunk::<4>()?;
    let valid = body.len() >= HEAD_BYTES
        && crc32c(body) == u32::from_le_bytes(*checksum)
        && body[..4] == MAGIC
        && u32_at(body, 4)? == FORMAT_VERSION;
    if !valid {
        return None;
    }
    let count = u64_at(body, 8)?;
    let mut rest = &body[HEAD_BYTES..];
    // Each pair takes two bytes at least.
    if count > rest.len() as u64 / 2 {
        return None;
    }
    let mut live = Vec::new();
    let mut last = 0_u64;
    for index in 0..count {
        let step = take_varint(&mut rest)?;
        if step == 0 && index > 0 {
            return None;
        }
        last = last.checked_add(step)?;
        live.push((last, take_varint(&mut rest)?));
    }
    rest.is_empty().then_some(live)
}

#[allow(clippy::cast_possible_truncation)] // seven bits at a time
fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let part = u64::from(byte & 0x7f);
        if (part << shift) >> shift != part {
            return None;
        }
        value |= part << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

impl LargeSpace {
    /// A commit that points to an extent was applied to the index.
    pub fn account_live(&self, block: u64, extent_bytes: u64) {
        match self.space.block(block) {
            Ok(block) => {
                // Live first: a block must never look dead in between.
                block.live_bytes.fetch_add(extent_bytes, Ordering::AcqRel);
                subtract(&block.unapplied_bytes, extent_bytes);
            }
            Err(error) => tracing::error!(%error, "an entry points to a block that is gone"),
        }
    }

    /// The entry that pointed to an extent was replaced or deleted.
    pub fn account_dead(&self, block: u64, extent_bytes: u64) {
        if let Ok(block) = self.space.block(block) {
            subtract(&block.live_bytes, extent_bytes);
        }
    }

    /// Live bytes of all blocks, to be persisted with the index's mark.
    #[must_use]
    pub fn accounting(&self) -> Vec<u8> {
        let blocks = self.space.blocks.read();
        let live = blocks
            .iter()
            .map(|(&number, block)| (number, block.live_bytes.load(Ordering::Acquire)));
        encode_accounting(&live.filter(|&(_, bytes)| bytes > 0).collect::<Vec<_>>())
    }

    /// Takes over what [`LargeSpace::accounting`] gave at the mark the index is opened at. Blocks that are gone
    /// are passed over: `open` reported them.
    ///
    /// # Errors
    /// [`Error::Corruption`]; the store then counts by walking the index.
    pub fn restore_accounting(&self, bytes: &[u8]) -> Result<()> {
        let live = decode_accounting(bytes)
            .ok_or_else(|| Error::corruption("accounting of the large space", "its checksum or layout is wrong"))?;
        let blocks = self.space.blocks.read();
        for block in blocks.values() {
            block.live_bytes.store(0, Ordering::Release);
        }
        for (number, bytes) in live {
            if let Some(block) = blocks.get(&number) {
                block.live_bytes.store(bytes, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Replay is done: from now on a block without live bytes is dead.
    pub fn accounting_complete(&self) {
        self.space.accounted.store(true, Ordering::Release);
    }

    /// Bytes of all live extents.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        let blocks = self.space.blocks.read();
        blocks
            .values()
            .map(|block| block.live_bytes.load(Ordering::Acquire))
            .sum()
    }
}
