//! What the index's mark holds of the store: its payload, one format for all of it.
//!
//! The applier makes one for each memtable, so what it says is on flash exactly when all entries up
//! to the mark's seq are. An open takes from it what it would else have to count or to find out.
//!
//! Invariants: segments, ranges and blocks come in order, each once. Each of them is as of the
//! mark's seq, and what comes after it is in the log.
//!
//! On failure: bytes that are no payload are refused, and the store does not open: an object that
//! was deleted must not be back because of a bad byte. (The mark has a checksum; only a repair can
//! help then.)

use super::Engine;
use crate::{
    Error, HomeStats, KEY_BYTES_MAX, Result,
    api::clock::NEVER_MS,
    codec::{Reader, push_varint},
    log::free_list::OverUse,
    ordered_index::IndexMark,
    visibility::range_tombstones::DeletedRange,
};

/// Read as a number it is more objects than there can be in the index, which is what older payloads
/// begin with.
const MAGIC: [u8; 8] = *b"TRCMARKP";
const FORMAT_VERSION: u32 = 1;
/// Most segments that are listed: there is a mark per memtable, so it must stay small. More count
/// as used until they are drained.
pub const LISTED_MAX: usize = 4096;

/// What a mark holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkPayload {
    /// No object expires before this.
    pub earliest_ms: u64,
    /// Objects and bytes in the index, in the flash log, and in blocks.
    pub homes: [HomeStats; 3],
    /// Segments that may be written again, by number.
    pub over_uses: Vec<OverUse>,
    /// Range deletions that may still hide entries, by seq.
    pub ranges: Vec<DeletedRange>,
    /// Live bytes of blocks, by number; blocks that are not listed have none. `None`: they must be
    /// counted, since older formats counted extents differently.
    pub live: Option<Vec<(u64, u64)>>,
}

impl Engine {
    /// What a mark of this seq holds, which is what is applied. Only the applier asks.
    pub fn mark_payload(&self, applied_seq: u64) -> MarkPayload {
        let ranges = self.log.ranges.up_to(applied_seq);
        MarkPayload {
            earliest_ms: self.expiring.earliest_ms(),
            homes: self.accounting.homes(),
            over_uses: self.log.segments.over_uses(applied_seq),
            ranges: ranges.iter().map(|range| DeletedRange::clone(range)).collect(),
            live: Some(self.large.account()),
        }
    }
}

impl MarkPayload {
    /// Of a store that has nothing.
    pub const fn empty() -> Self {
        Self {
            earliest_ms: NEVER_MS,
            homes: [HomeStats { objects: 0, bytes: 0 }; 3],
            over_uses: Vec::new(),
            ranges: Vec::new(),
            live: Some(Vec::new()),
        }
    }

    /// What a mark holds.
    ///
    /// # Errors
    /// [`Error::Corruption`].
    pub fn of(mark: &IndexMark) -> Result<Self> {
        Self::decode(&mark.payload).ok_or_else(|| {
            Error::corruption(
                "the index's mark",
                "what it holds is cut short or of another format; run `terrace repair`",
            )
        })
    }

    /// The stored form.
    // Far fewer; keys are at most 4096 bytes long.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&self.earliest_ms.to_le_bytes());
        for home in &self.homes {
            out.extend_from_slice(&home.objects.to_le_bytes());
            out.extend_from_slice(&home.bytes.to_le_bytes());
        }
        let over_uses = &self.over_uses[..self.over_uses.len().min(LISTED_MAX)];
        out.extend_from_slice(&(over_uses.len() as u32).to_le_bytes());
        for (number, generation) in over_uses {
            out.extend_from_slice(&number.to_le_bytes());
            out.extend_from_slice(&generation.to_le_bytes());
        }
        out.extend_from_slice(&(self.ranges.len() as u32).to_le_bytes());
        for range in &self.ranges {
            out.extend_from_slice(&range.seq.to_le_bytes());
            out.extend_from_slice(&(range.start.len() as u16).to_le_bytes());
            out.extend_from_slice(&(range.end.len() as u16).to_le_bytes());
            out.extend_from_slice(&range.start);
            out.extend_from_slice(&range.end);
        }
        let live = || self.live.iter().flatten().filter(|(_, bytes)| *bytes > 0);
        out.extend_from_slice(&(live().count() as u64).to_le_bytes());
        let mut last = 0;
        for &(block, bytes) in live() {
            push_varint(&mut out, block - last);
            push_varint(&mut out, bytes);
            last = block;
        }
        out
    }

    /// Reads the stored form, or that of formats before 4. `None` if the bytes are not one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = Reader(bytes);
        if !bytes.starts_with(&MAGIC) {
            return Self::decode_parts(rest);
        }
        rest.bytes(MAGIC.len())?;
        if rest.u32()? != FORMAT_VERSION {
            return None;
        }
        let payload = Self {
            earliest_ms: rest.u64()?,
            homes: homes(&mut rest)?,
            over_uses: over_uses(&mut rest)?,
            ranges: ranges(&mut rest)?,
            live: Some(live(&mut rest)?),
        };
        rest.0.is_empty().then_some(payload)
    }

    /// Reads what stores of formats before 4 have: the same in parts, each with a magic number and
    /// a version of its own. In marks of format 1 and of repairs the second and third are missing:
    /// then something may have expired already.
    fn decode_parts(mut rest: Reader<'_>) -> Option<Self> {
        let homes = homes(&mut rest)?;
        let mut payload = Self {
            earliest_ms: 0,
            homes,
            live: None,
            ..Self::empty()
        };
        if has_part(&mut rest, b"TRFS")? {
            payload.over_uses = over_uses(&mut rest)?;
        }
        if has_part(&mut rest, b"TRDR")? {
            payload.earliest_ms = rest.u64()?;
            payload.ranges = ranges(&mut rest)?;
        }
        // Of blocks it has the bytes of extents, without what rounding them adds.
        let (body, checksum) = rest.0.split_last_chunk::<4>()?;
        let is_sound = crc32c::crc32c(body) == u32::from_le_bytes(*checksum);
        (is_sound && has_part(&mut Reader(body), b"TRCA")?).then_some(payload)
    }
}

/// Passes over the head of a part, if that is what comes. `None` if it is of another version.
fn has_part(rest: &mut Reader<'_>, magic: &[u8; 4]) -> Option<bool> {
    if !rest.0.starts_with(magic) {
        return Some(false);
    }
    rest.bytes(magic.len())?;
    (rest.u32()? == 1).then_some(true)
}

fn homes(rest: &mut Reader<'_>) -> Option<[HomeStats; 3]> {
    let mut home = || {
        Some(HomeStats {
            objects: rest.u64()?,
            bytes: rest.u64()?,
        })
    };
    Some([home()?, home()?, home()?])
}

fn over_uses(rest: &mut Reader<'_>) -> Option<Vec<OverUse>> {
    let count = rest.u32()? as usize;
    if count > LISTED_MAX {
        return None;
    }
    let mut list: Vec<OverUse> = Vec::new();
    for _ in 0..count {
        let (number, generation) = (rest.u32()?, rest.u64()?);
        if generation == 0 || list.last().is_some_and(|(before, _)| *before >= number) {
            return None;
        }
        list.push((number, generation));
    }
    Some(list)
}

fn ranges(rest: &mut Reader<'_>) -> Option<Vec<DeletedRange>> {
    let mut ranges: Vec<DeletedRange> = Vec::new();
    for _ in 0..rest.u32()? {
        let (seq, start_bytes, end_bytes) = (rest.u64()?, rest.u16()?, rest.u16()?);
        let (start, end) = (rest.bytes(start_bytes.into())?, rest.bytes(end_bytes.into())?);
        let is_range = !start.is_empty()
            && start.len() <= KEY_BYTES_MAX
            && end.len() <= KEY_BYTES_MAX
            && (end.is_empty() || start < end);
        if !is_range || seq <= ranges.last().map_or(0, |before| before.seq) {
            return None;
        }
        ranges.push(DeletedRange {
            seq,
            start: start.into(),
            end: end.into(),
        });
    }
    Some(ranges)
}

fn live(rest: &mut Reader<'_>) -> Option<Vec<(u64, u64)>> {
    let count = rest.u64()?;
    let (mut live, mut last) = (Vec::new(), 0_u64);
    for number in 0..count {
        let step = rest.varint()?;
        if step == 0 && number > 0 {
            return None;
        }
        last = last.checked_add(step)?;
        live.push((last, rest.varint()?));
    }
    Some(live)
}

#[cfg(test)]
mod tests;
