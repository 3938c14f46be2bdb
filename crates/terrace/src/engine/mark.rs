//! The payload of the index's mark: the state of the store that it carries, in one format.
//!
//! The applier writes one for each memtable, so its contents are on flash exactly when all entries
//! up to the mark's seq are. An open reads from it what it would otherwise have to count or search
//! for.
//!
//! Invariants: segments, ranges and blocks are in ascending order without duplicates. All of them
//! are as of the mark's seq; later changes are in the log.
//!
//! On failure: invalid bytes are refused, and the store does not open: a corrupt byte must not
//! bring back a deleted object. (The mark has a checksum; only a repair helps then.)

use super::Engine;
use crate::{
    Error, HomeStats, KEY_BYTES_MAX, Result,
    api::clock::NEVER_MS,
    codec::{Reader, push_varint},
    log::free_list::Use,
    ordered_index::IndexMark,
    visibility::range_tombstones::DeletedRange,
};
use std::{ops::Range, path::Path};

/// Older payloads begin with a number of objects. Read as such a number, the magic is more than an
/// index can have.
const MAGIC: [u8; 8] = *b"TRCMARKP";
const FORMAT_VERSION: u32 = 2;
/// It has neither the store nor the segments in use or swept.
const VERSION_WITHOUT_STORE: u32 = 1;
/// Maximum number of segments listed, and of runs of segments in use: there is a mark per memtable,
/// so it must stay small. Free segments that are not listed count as used until they are drained;
/// runs that are not listed are not missed if their files are gone.
pub const LISTED_MAX: usize = 4096;

/// Numbers of segments that follow each other.
pub type Run = Range<u32>;

/// Contents of a mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkPayload {
    /// The store that the index belongs to; 0 in older formats, which do not say.
    pub store_id: u64,
    /// No object expires before this.
    pub earliest_ms: u64,
    /// Objects and bytes in the index, in the flash log, and in blocks.
    pub homes: [HomeStats; 3],
    /// Segments that may be written again, by number.
    pub over_uses: Vec<Use>,
    /// Segments that may have live records, by number: entries may lead into them.
    pub in_use: Vec<Run>,
    /// Uses of segments whose short values were all copied by sweeps, by number.
    pub swept: Vec<Use>,
    /// Range deletions that may still hide entries, by seq.
    pub ranges: Vec<DeletedRange>,
    /// Live bytes of blocks, by number; blocks that are not listed have none. `None`: they must be
    /// counted, since older formats counted extents differently.
    pub live: Option<Vec<(u64, u64)>>,
}

impl Engine {
    /// Contents of a mark with this seq, which must be the applied one. Only the applier calls it.
    pub fn mark_payload(&self, applied_seq: u64) -> MarkPayload {
        let ranges = self.log.ranges.up_to(applied_seq);
        MarkPayload {
            store_id: self.manifest.store_id,
            earliest_ms: self.expiring.earliest_ms(),
            homes: self.accounting.homes(),
            over_uses: self.log.segments.over_uses(applied_seq),
            in_use: self.log.segments.in_use(applied_seq),
            swept: self.log.segments.swept_uses(),
            ranges: ranges.iter().map(|range| DeletedRange::clone(range)).collect(),
            live: Some(self.large.account()),
        }
    }
}

impl MarkPayload {
    /// The payload of an empty store.
    pub const fn empty() -> Self {
        Self {
            store_id: 0,
            earliest_ms: NEVER_MS,
            homes: [HomeStats { objects: 0, bytes: 0 }; 3],
            over_uses: Vec::new(),
            in_use: Vec::new(),
            swept: Vec::new(),
            ranges: Vec::new(),
            live: Some(Vec::new()),
        }
    }

    /// Contents of a mark.
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

    /// Refuses the index of another store, by its mark: nothing of it may be read or removed here.
    /// A mark that cannot be read does not say.
    ///
    /// # Errors
    /// [`Error::NotAStore`].
    pub fn check_store(mark: &IndexMark, store_id: u64, index_dir: &Path) -> Result<()> {
        let found = Self::decode(&mark.payload).map_or(0, |payload| payload.store_id);
        if found == store_id || found == 0 {
            return Ok(());
        }
        Err(Error::not_a_store(
            index_dir,
            format!(
                "this index belongs to the store {found:016x}, and the directory around it to {store_id:016x}; put the right index there, or move this one away and run `terrace repair`, which makes another from segments and blocks",
            ),
        ))
    }

    /// Encodes the payload.
    // There are far fewer; keys are at most 4096 bytes long.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&self.store_id.to_le_bytes());
        out.extend_from_slice(&self.earliest_ms.to_le_bytes());
        for home in &self.homes {
            out.extend_from_slice(&home.objects.to_le_bytes());
            out.extend_from_slice(&home.bytes.to_le_bytes());
        }
        push_uses(&mut out, &self.over_uses);
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
        let in_use = &self.in_use[..self.in_use.len().min(LISTED_MAX)];
        out.extend_from_slice(&(in_use.len() as u32).to_le_bytes());
        let mut end = 0;
        for run in in_use {
            push_varint(&mut out, u64::from(run.start - end));
            push_varint(&mut out, u64::from(run.end - run.start));
            end = run.end;
        }
        push_uses(&mut out, &self.swept);
        out
    }

    /// Decodes a payload of this format, or of one before 4. `None` if the bytes are neither.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = Reader(bytes);
        if !bytes.starts_with(&MAGIC) {
            return Self::decode_parts(rest);
        }
        rest.bytes(MAGIC.len())?;
        let version = rest.u32()?;
        let has_store = version == FORMAT_VERSION;
        if !has_store && version != VERSION_WITHOUT_STORE {
            return None;
        }
        let payload = Self {
            store_id: if has_store { rest.u64()? } else { 0 },
            earliest_ms: rest.u64()?,
            homes: homes(&mut rest)?,
            over_uses: uses(&mut rest)?,
            ranges: ranges(&mut rest)?,
            live: Some(live(&mut rest)?),
            in_use: if has_store { in_use(&mut rest)? } else { Vec::new() },
            swept: if has_store { uses(&mut rest)? } else { Vec::new() },
        };
        rest.0.is_empty().then_some(payload)
    }

    /// Decodes the payload of formats before 4: the same contents in parts, each with its own magic
    /// number and version. Marks of format 1 and those of repairs lack the second and third part:
    /// then some objects may have expired already.
    fn decode_parts(mut rest: Reader<'_>) -> Option<Self> {
        let homes = homes(&mut rest)?;
        let mut payload = Self {
            earliest_ms: 0,
            homes,
            live: None,
            ..Self::empty()
        };
        if has_part(&mut rest, b"TRFS")? {
            payload.over_uses = uses(&mut rest)?;
        }
        if has_part(&mut rest, b"TRDR")? {
            payload.earliest_ms = rest.u64()?;
            payload.ranges = ranges(&mut rest)?;
        }
        // Of blocks it has the exact bytes of extents, not rounded up.
        let (body, checksum) = rest.0.split_last_chunk::<4>()?;
        let is_sound = crc32c::crc32c(body) == u32::from_le_bytes(*checksum);
        (is_sound && has_part(&mut Reader(body), b"TRCA")?).then_some(payload)
    }
}

/// Skips the header of a part, if one comes next. `None` if it is of another version.
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

fn in_use(rest: &mut Reader<'_>) -> Option<Vec<Run>> {
    let count = rest.u32()? as usize;
    if count > LISTED_MAX {
        return None;
    }
    let mut runs: Vec<Run> = Vec::new();
    for _ in 0..count {
        let before = runs.last().map(|run| run.end);
        let gap = u32::try_from(rest.varint()?).ok()?;
        let length = u32::try_from(rest.varint()?).ok()?;
        let start = before.unwrap_or(0).checked_add(gap)?;
        // Runs that touch are one run.
        if length == 0 || before.is_some() && gap == 0 {
            return None;
        }
        runs.push(start..start.checked_add(length)?);
    }
    Some(runs)
}

fn push_uses(out: &mut Vec<u8>, uses: &[Use]) {
    let uses = &uses[..uses.len().min(LISTED_MAX)];
    out.extend_from_slice(&(uses.len() as u32).to_le_bytes());
    for (number, generation) in uses {
        out.extend_from_slice(&number.to_le_bytes());
        out.extend_from_slice(&generation.to_le_bytes());
    }
}

fn uses(rest: &mut Reader<'_>) -> Option<Vec<Use>> {
    let count = rest.u32()? as usize;
    if count > LISTED_MAX {
        return None;
    }
    let mut list: Vec<Use> = Vec::new();
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
