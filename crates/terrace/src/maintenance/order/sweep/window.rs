//! Values of a key range that are read in any order and looked up in key order.
//!
//! Invariants: it has all values that were added since [`Window::begin`] from its first key up to
//! its end, and no more bytes than allowed: if they become too many, the end is lowered. Its RAM
//! comes in blocks, so that an allocator can serve it from memory that the value cache has
//! released, and nothing is held twice while it grows.
//!
//! In RAM only; nothing here can fail.

use crate::log::format::Record;
use bytes::Bytes;

/// Fraction (1/n) of a full window that is dropped, from its last keys.
const LET_GO_PART: usize = 4;
/// Keys and values are in blocks of this many bytes: even with the longest keys several fit in
/// each.
const BLOCK_BYTES: usize = 256 << 10;
/// The list of places grows by this many.
const PLACES_TOGETHER: usize = 16 << 10;

/// See the module.
#[derive(Debug)]
pub(super) struct Window {
    bytes_max: usize,
    range: Range,
    bytes: Blocks,
    /// In the order of their keys once it is filled.
    values: Vec<Place>,
    /// The first value that is not passed yet.
    next: usize,
}

/// Keys from the first one up to an end.
#[derive(Debug, Clone)]
pub(super) struct Range {
    first: Vec<u8>,
    /// The first key behind it; `None`: no end.
    end: Option<Vec<u8>>,
}

impl Range {
    fn reaches(&self, key: &[u8]) -> bool {
        self.end.as_ref().is_none_or(|end| key < end.as_slice())
    }

    /// Whether a key is in it.
    pub fn has(&self, key: &[u8]) -> bool {
        key >= self.first.as_slice() && self.reaches(key)
    }
}

/// Position of a value in the window, and its identity.
#[derive(Debug, Clone, Copy)]
struct Place {
    version: u64,
    checksum: u32,
    at: u32,
    key_bytes: u16,
    value_bytes: u16,
}

impl Place {
    fn key(self, blocks: &Blocks) -> &[u8] {
        &blocks.at(self.at)[..usize::from(self.key_bytes)]
    }

    fn value(self, blocks: &Blocks) -> &[u8] {
        &blocks.at(self.at)[usize::from(self.key_bytes)..][..usize::from(self.value_bytes)]
    }

    const fn bytes(self) -> usize {
        self.key_bytes as usize + self.value_bytes as usize
    }
}

/// Keys and values, each behind its key and in one block with it.
#[derive(Debug, Default)]
struct Blocks {
    blocks: Vec<Box<[u8]>>,
    /// Where they end.
    end: usize,
}

impl Blocks {
    fn at(&self, at: u32) -> &[u8] {
        let at = at as usize;
        &self.blocks[at / BLOCK_BYTES][at % BLOCK_BYTES..]
    }

    /// Position of the next item of this many bytes: at the end, or at the next block.
    // Within a window.
    fn next(&mut self, bytes: usize) -> u32 {
        if self.end % BLOCK_BYTES + bytes > BLOCK_BYTES {
            self.end = self.end.next_multiple_of(BLOCK_BYTES);
        }
        let at = self.end;
        self.end += bytes;
        if at / BLOCK_BYTES == self.blocks.len() {
            self.blocks.push(vec![0; BLOCK_BYTES].into());
        }
        at as u32
    }

    fn add(&mut self, key: &[u8], value: &[u8]) -> u32 {
        let at = self.next(key.len() + value.len());
        let block = &mut self.blocks[at as usize / BLOCK_BYTES][at as usize % BLOCK_BYTES..];
        block[..key.len()].copy_from_slice(key);
        block[key.len()..][..value.len()].copy_from_slice(value);
        at
    }

    /// Moves the item at `from` to the end, which is not after it. Returns its position.
    fn move_down(&mut self, from: u32, bytes: usize) -> u32 {
        let to = self.next(bytes);
        let (from_block, from_at) = (from as usize / BLOCK_BYTES, from as usize % BLOCK_BYTES);
        let (to_block, to_at) = (to as usize / BLOCK_BYTES, to as usize % BLOCK_BYTES);
        if from_block == to_block {
            self.blocks[to_block].copy_within(from_at..from_at + bytes, to_at);
        } else {
            let (before, behind) = self.blocks.split_at_mut(from_block);
            before[to_block][to_at..][..bytes].copy_from_slice(&behind[0][from_at..][..bytes]);
        }
        to
    }
}

impl Window {
    /// An empty one, which reaches nothing yet.
    pub fn of(bytes_max: usize) -> Self {
        Self {
            bytes_max: bytes_max.min(u32::MAX as usize),
            range: Range {
                first: Vec::new(),
                end: Some(Vec::new()),
            },
            bytes: Blocks::default(),
            values: Vec::new(),
            next: 0,
        }
    }

    /// Whether a key lies before its end.
    pub fn reaches(&self, key: &[u8]) -> bool {
        self.range.reaches(key)
    }

    /// The range that it covers now.
    pub fn range(&self) -> Range {
        self.range.clone()
    }

    /// Drops everything, and starts over at `key`.
    pub fn begin(&mut self, key: &[u8]) {
        self.range = Range {
            first: key.to_vec(),
            end: None,
        };
        self.bytes.end = 0;
        self.values.clear();
        self.next = 0;
    }

    /// Adds the value of a record, if it is wanted.
    // A key and a short value.
    pub fn add(&mut self, record: &Record<'_>) {
        let (key, value) = (record.key, record.body.value());
        if !self.range.has(key) {
            return;
        }
        if self.values.len() == self.values.capacity() {
            self.values.reserve_exact(PLACES_TOGETHER);
        }
        self.values.push(Place {
            version: record.version(),
            checksum: record.checksum,
            at: self.bytes.add(key, value),
            key_bytes: key.len() as u16,
            value_bytes: value.len() as u16,
        });
        if self.bytes.end + self.values.len() * size_of::<Place>() > self.bytes_max {
            self.let_go();
        }
    }

    /// Makes room: the end comes down. The first key stays in it, whatever comes.
    fn let_go(&mut self) {
        let kept = self.values.len() - self.values.len().div_ceil(LET_GO_PART);
        let bytes = &self.bytes;
        let (_, end, _) = self
            .values
            .select_nth_unstable_by(kept, |one, other| one.key(bytes).cmp(other.key(bytes)));
        let end = end.key(bytes).to_vec();
        if end <= self.range.first {
            return;
        }
        self.values.retain(|place| place.key(bytes) < end.as_slice());
        self.range.end = Some(end);
        self.values.sort_unstable_by_key(|place| place.at);
        self.bytes.end = 0;
        for place in &mut self.values {
            place.at = self.bytes.move_down(place.at, place.bytes());
        }
    }

    /// All that there is has been added.
    pub fn end(&mut self) {
        let bytes = &self.bytes;
        self.values
            .sort_unstable_by(|one, other| one.key(bytes).cmp(other.key(bytes)));
    }

    /// The value of this version of a key. Keys ascend from call to call.
    pub fn value(&mut self, key: &[u8], version: u64, checksum: u32) -> Option<Bytes> {
        while self
            .values
            .get(self.next)
            .is_some_and(|place| place.key(&self.bytes) < key)
        {
            self.next += 1;
        }
        let same_key = self.values[self.next..]
            .iter()
            .take_while(|place| place.key(&self.bytes) == key);
        let is_it = |place: &&Place| (place.version, place.checksum) == (version, checksum);
        let found = same_key.into_iter().find(is_it)?;
        Some(Bytes::copy_from_slice(found.value(&self.bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::format::{Body, Record};

    fn key(number: usize) -> Vec<u8> {
        format!("{number:05}").into()
    }

    fn value(number: usize) -> Vec<u8> {
        vec![number as u8; 1 + number * 31 % 250]
    }

    fn add(window: &mut Window, number: usize, version: u64) {
        let (key, value) = (key(number), value(number));
        window.add(&Record::new(&key, &[], Body::MoveToFlash { version, value: &value }));
    }

    /// A window that has room for a fifth of all values, which come in no order. Window after
    /// window each of them is found, in the order of keys.
    #[test]
    fn windows_have_all_values_one_after_the_other() {
        const COUNT: usize = 20_000;
        let mut window = Window::of(COUNT / 5 * (5 + 125 + size_of::<Place>()));
        let mut windows = 0;
        for number in 0..COUNT {
            let key = key(number);
            if !window.reaches(&key) {
                window.begin(&key);
                let numbers = (0..COUNT).map(|n| n * 7919 % COUNT);
                numbers.for_each(|number| add(&mut window, number, number as u64));
                window.end();
                windows += 1;
            }
            let found = window.value(&key, number as u64, crc32c::crc32c(&value(number)));
            assert_eq!(found.as_deref(), Some(&*value(number)), "{number}");
        }
        assert!((5..=8).contains(&windows), "{windows}");
    }

    #[test]
    fn another_version_of_a_key_is_not_given() {
        let mut window = Window::of(1 << 20);
        assert!(!window.reaches(b"a"), "nothing was read yet");
        window.begin(b"00002");
        for (number, version) in [(1, 5), (2, 6), (2, 7), (4, 8)] {
            add(&mut window, number, version);
        }
        window.end();
        let checksum = crc32c::crc32c(&value(2));
        assert!(!window.range().has(&key(1)) && window.range().has(&key(2)));
        assert_eq!(window.value(&key(2), 5, checksum), None);
        assert_eq!(window.value(&key(2), 7, checksum + 1), None);
        for version in [7, 6] {
            assert_eq!(window.value(&key(2), version, checksum).as_deref(), Some(&*value(2)));
        }
        assert_eq!(window.value(&key(3), 8, checksum), None);
        assert!(window.value(&key(4), 8, crc32c::crc32c(&value(4))).is_some());
    }
}
