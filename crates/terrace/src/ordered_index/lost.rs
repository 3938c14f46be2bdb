//! Ranges of keys whose entries the index has lost, since a table of it is damaged.
//!
//! A lost range says: of the keys within it, entries and deletes that were committed up to a seq
//! may be missing. So an entry, or a tombstone, of a later commit is the newest of its key, and is
//! shown. Anything else, an older entry or none, may be what a lost one replaced: reading it is
//! `Corruption`. This depends on the seqs of items alone, not on where tables are; merges therefore
//! treat an index with lost ranges like any other.
//!
//! Each range is an item of the tree behind the mark. It is in the tables from the state on that
//! leaves the damaged table out ([`super::set_aside`]), and no merge drops it: it is the only item
//! of its key. A new index, from `repair`, has none.
//!
//! On failure: a range that cannot be read makes the open fail with `Corruption`; nothing is
//! guessed.

use super::{OrderedIndex, UPGRADE_BITS, entry::Entry, entry_of, errors, mark::MARK_KEY};
use crate::{
    Error, Result,
    codec::{Reader, push_sized},
};
use lsm_tree::{AbstractTree as _, Guard as _, InternalValue, IterGuardImpl, SeqNo, Tree};
use std::{fmt::Write as _, ops::Bound};

const MAGIC: [u8; 4] = *b"TIXL";
/// Format u16, then two zero bytes.
const FORMAT_WORD: [u8; 4] = [1, 0, 0, 0];
const CHECKSUM_BYTES: usize = 4;
/// Bytes of a key in a message.
const KEY_SHOWN_MAX: usize = 60;

/// Keys from `first` to before `end`, of which commits up to `seq` may be missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostRange {
    /// The last commit that may be missing.
    pub seq: u64,
    /// The first key; empty for the first of all.
    pub first: Vec<u8>,
    /// The first key behind it; never behind the mark's.
    pub end: Vec<u8>,
}

impl LostRange {
    /// The stored form: `magic, format u16, zero u16, seq u64, length u32 of the first key, the
    /// first key, length u32 of the end, the end, CRC-32C u32 of all before`.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = [MAGIC, FORMAT_WORD].concat();
        out.extend_from_slice(&self.seq.to_le_bytes());
        for key in [&self.first, &self.end] {
            push_sized(&mut out, key);
        }
        let checksum = crc32c::crc32c(&out);
        out.extend_from_slice(&checksum.to_le_bytes());
        out
    }

    /// Reads the stored form. `None` if the bytes are not one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let covered = bytes.split_at_checked(bytes.len().checked_sub(CHECKSUM_BYTES)?)?.0;
        let mut rest = Reader(bytes);
        if rest.array()? != MAGIC || rest.array()? != FORMAT_WORD {
            return None;
        }
        let seq = rest.u64()?;
        let (first, end) = (rest.sized()?.to_vec(), rest.sized()?.to_vec());
        let checksum = rest.u32()?;
        let is_whole = rest.0.is_empty() && checksum == crc32c::crc32c(covered);
        (is_whole && first < end).then_some(Self { seq, first, end })
    }

    fn has(&self, key: &[u8]) -> bool {
        self.first.as_slice() <= key && key < self.end.as_slice()
    }

    /// The entry of a key whose newest item is this one, if no lost one can be newer.
    fn answer(&self, key: &[u8], found: Option<InternalValue>) -> Result<Option<Entry>> {
        match found {
            Some(item) if item.key.seqno >> UPGRADE_BITS > self.seq => {
                let value = (!item.is_tombstone()).then_some(item.value);
                entry_of(key, value)
            }
            _ => Err(lost(self)),
        }
    }

    /// What to tell of it.
    pub fn message(&self) -> String {
        let first = if self.first.is_empty() {
            "the first key".to_owned()
        } else {
            shown(&self.first)
        };
        let end = if self.end.as_slice() >= MARK_KEY.as_slice() {
            "the last key".to_owned()
        } else {
            format!("before {}", shown(&self.end))
        };
        format!(
            "the ordered index has lost entries from {first} to {end}, of commits up to {}: of these keys, only those written or deleted since can be read; run `terrace repair`, or restore these objects from a copy",
            self.seq
        )
    }
}

/// A key with escapes, and without the rest of a long one.
fn shown(key: &[u8]) -> String {
    let mut text = format!("\"{}", key[..key.len().min(KEY_SHOWN_MAX)].escape_ascii());
    let _ = write!(text, "\"{}", if key.len() > KEY_SHOWN_MAX { "..." } else { "" });
    text
}

/// The key of the lost range with this number.
pub(super) fn item_key(number: u32) -> Vec<u8> {
    [MARK_KEY.as_slice(), &number.to_be_bytes()].concat()
}

/// The number in a key behind the mark's. `None` if it is no lost range's.
pub(super) fn number_of(key: &[u8]) -> Option<u32> {
    let number = key.strip_prefix(MARK_KEY.as_slice())?;
    number.try_into().ok().map(u32::from_be_bytes)
}

/// Reads the lost ranges of a tree, with the numbers of their items.
pub(super) fn read(tree: &Tree, context: &str) -> Result<Vec<(u32, LostRange)>> {
    let items = errors::guarded_read(context, || {
        let behind = (Bound::Excluded(MARK_KEY.to_vec()), Bound::Unbounded);
        let items = tree.range::<Vec<u8>, _>(behind, SeqNo::MAX, None);
        items
            .map(IterGuardImpl::into_inner)
            .collect::<lsm_tree::Result<Vec<_>>>()
    })?;
    let damaged = || Error::corruption(context, "a lost range in it cannot be read");
    items
        .into_iter()
        .map(|(key, value)| {
            let number = number_of(&key).ok_or_else(damaged)?;
            Ok((number, LostRange::decode(&value).ok_or_else(damaged)?))
        })
        .collect()
}

/// The error for a key whose entry may be lost.
fn lost(range: &LostRange) -> Error {
    Error::corruption("the ordered index", range.message())
}

impl OrderedIndex {
    /// The ranges of keys of which entries are lost.
    pub fn lost_ranges(&self) -> impl Iterator<Item = &LostRange> {
        self.lost.iter().map(|(_, range)| range)
    }

    /// Whether entries of a key may be lost.
    pub fn has_lost(&self, key: &[u8]) -> bool {
        self.lost_of(key).is_some()
    }

    /// The last commit that may be missing of a key, and its range.
    pub(super) fn lost_of(&self, key: &[u8]) -> Option<&LostRange> {
        let of_key = self.lost_ranges().filter(|range| range.has(key));
        of_key.max_by_key(|range| range.seq)
    }

    /// The newest entry of a key in a lost range, if it is newer than what was lost.
    pub(super) fn read_in_lost(&self, range: &LostRange, key: &[u8], hash: u64) -> Result<Option<Entry>> {
        let memtables: Vec<_> = self.memtables(&self.marks.lock()).collect();
        // The active one is the last and the newest.
        let in_memtable = memtables
            .iter()
            .rev()
            .find_map(|memtable| memtable.get(key, SeqNo::MAX));
        let found = match in_memtable {
            Some(item) => Some(item),
            None => {
                let state = self.tree.current_version();
                errors::guarded_read("reading the index", || {
                    let runs = state.iter_levels().flat_map(|level| level.iter());
                    for table in runs.filter_map(|run| run.get_for_key(key)) {
                        if let Some(item) = table.get(key, SeqNo::MAX, hash)? {
                            return Ok(Some(item));
                        }
                    }
                    Ok(None)
                })
                .inspect_err(|error| self.note_damage(error))?
            }
        };
        range.answer(key, found)
    }

    /// The same as of a snapshot. Its state is the library's to choose, which does not return
    /// tombstones: a key that was deleted since is not told from a lost one.
    pub(super) fn read_in_lost_at(&self, range: &LostRange, key: &[u8], seqno: SeqNo) -> Result<Option<Entry>> {
        let found = errors::guarded_read("reading the index", || self.tree.get_internal_entry(key, seqno))
            .inspect_err(|error| self.note_damage(error))?;
        range.answer(key, found)
    }

    /// The bounds between which nothing is lost, in order.
    pub fn sound_bounds(&self) -> Vec<super::KeyBounds> {
        let mut ranges: Vec<_> = self.lost_ranges().collect();
        ranges.sort_by(|one, other| one.first.cmp(&other.first));
        let mut bounds = Vec::new();
        let mut from: Vec<u8> = Vec::new();
        let lower = |from: &Vec<u8>| match from.is_empty() {
            true => Bound::Unbounded,
            false => Bound::Included(from.clone()),
        };
        for range in ranges {
            if from < range.first {
                bounds.push((lower(&from), Bound::Excluded(range.first.clone())));
            }
            from = from.max(range.end.clone());
        }
        if from.as_slice() < MARK_KEY.as_slice() {
            bounds.push((lower(&from), Bound::Unbounded));
        }
        bounds
    }

    /// The part of a scan's bounds in which entries are lost, from where to where, if there is any.
    pub(super) fn lost_within(&self, bounds: &super::KeyBounds) -> Option<Gap> {
        let overlaps = |range: &&LostRange| {
            let begins = match &bounds.1 {
                Bound::Included(upper) => range.first <= *upper,
                Bound::Excluded(upper) => range.first < *upper,
                Bound::Unbounded => true,
            };
            let ends = match &bounds.0 {
                Bound::Included(lower) | Bound::Excluded(lower) => range.end > *lower,
                Bound::Unbounded => true,
            };
            begins && ends
        };
        let within = || self.lost_ranges().filter(overlaps);
        let first = within().min_by(|one, other| one.first.cmp(&other.first))?;
        let last = within().max_by(|one, other| one.end.cmp(&other.end))?;
        Some(Gap {
            first: first.clone(),
            last: last.clone(),
        })
    }
}

/// Where a scan must end: before the first lost range from the front, and before the last from the
/// back.
pub(super) struct Gap {
    first: LostRange,
    last: LostRange,
}

impl Gap {
    /// The error of a step from the front that found this key, or the end.
    pub fn hit_by_next(&self, key: Option<&[u8]>) -> Option<Error> {
        let is_hit = key.is_none_or(|key| key >= self.first.first.as_slice());
        is_hit.then(|| lost(&self.first))
    }

    /// The same from the back.
    pub fn hit_by_next_back(&self, key: Option<&[u8]>) -> Option<Error> {
        let is_hit = key.is_none_or(|key| key < self.last.end.as_slice());
        is_hit.then(|| lost(&self.last))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn range(seq: u64, first: &[u8], end: &[u8]) -> LostRange {
        LostRange {
            seq,
            first: first.to_vec(),
            end: end.to_vec(),
        }
    }

    #[test]
    fn golden_bytes() {
        let bytes = range(0x0102, b"a", b"bc").encode();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let parts = [
            "5449584c01000000",
            "0201000000000000",
            "01000000",
            "61",
            "02000000",
            "6263",
            "179f5619",
        ];
        assert_eq!(hex, parts.concat());
        assert_eq!(LostRange::decode(&bytes), Some(range(0x0102, b"a", b"bc")));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(LostRange::decode(&damaged), None, "byte {at}");
            assert_eq!(LostRange::decode(&bytes[..at]), None, "{at} bytes");
        }
        assert_eq!(
            LostRange::decode(&range(1, b"b", b"a").encode()),
            None,
            "it has no keys"
        );
    }

    #[test]
    fn messages_name_the_keys() {
        let whole = range(7, b"", &MARK_KEY).message();
        assert!(
            whole.contains("from the first key to the last key, of commits up to 7"),
            "{whole}"
        );
        let part = range(7, b"a\n", &[b'x'; 100]).message();
        let end = format!("before \"{}\"...", "x".repeat(KEY_SHOWN_MAX));
        assert!(part.contains("from \"a\\n\" to ") && part.contains(&end), "{part}");
    }
}
