//! Short values in RAM, with their keys, which are sorted once there are enough of them.
//!
//! The RAM comes in blocks, so that an allocator can serve it from memory that the value cache has
//! released, and nothing is held twice while it grows.
//!
//! In RAM only; nothing here can fail.

use crate::log::format::Record;

/// Keys and values are in blocks of this many bytes: even with the longest keys several fit in
/// each.
const BLOCK_BYTES: usize = 256 << 10;
/// The list of places grows by this many.
const PLACES_TOGETHER: usize = 4 << 10;

/// See the module.
#[derive(Debug)]
pub(super) struct Values {
    bytes_max: usize,
    blocks: Vec<Box<[u8]>>,
    /// Where the last value ends.
    end: usize,
    places: Vec<Place>,
}

/// A value, and what identifies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Item<'a> {
    pub key: &'a [u8],
    pub version: u64,
    /// CRC-32C of the value.
    pub checksum: u32,
    pub value: &'a [u8],
}

/// Position of an item. Its value is behind its key, in the same block.
#[derive(Debug, Clone, Copy)]
struct Place {
    version: u64,
    checksum: u32,
    at: u32,
    key_bytes: u16,
    value_bytes: u16,
}

impl Place {
    fn item(self, blocks: &[Box<[u8]>]) -> Item<'_> {
        let at = self.at as usize;
        let block = &blocks[at / BLOCK_BYTES][at % BLOCK_BYTES..];
        let (key, behind) = block.split_at(usize::from(self.key_bytes));
        Item {
            key,
            version: self.version,
            checksum: self.checksum,
            value: &behind[..usize::from(self.value_bytes)],
        }
    }
}

impl Values {
    /// None yet; room for this many bytes, places included.
    pub fn of(bytes_max: usize) -> Self {
        Self {
            bytes_max: bytes_max.min(u32::MAX as usize),
            blocks: Vec::new(),
            end: 0,
            places: Vec::new(),
        }
    }

    /// Adds the short value of a record.
    // A key and a short value, within a u32 of bytes.
    pub fn add(&mut self, record: &Record<'_>) {
        let (key, value) = (record.key, record.body.value());
        let bytes = key.len() + value.len();
        if self.end % BLOCK_BYTES + bytes > BLOCK_BYTES {
            self.end = self.end.next_multiple_of(BLOCK_BYTES);
        }
        let at = self.end;
        self.end += bytes;
        if at / BLOCK_BYTES == self.blocks.len() {
            self.blocks.push(vec![0; BLOCK_BYTES].into());
        }
        let (key_part, value_part) = self.blocks[at / BLOCK_BYTES][at % BLOCK_BYTES..][..bytes].split_at_mut(key.len());
        key_part.copy_from_slice(key);
        value_part.copy_from_slice(value);
        if self.places.len() == self.places.capacity() {
            self.places.reserve_exact(PLACES_TOGETHER);
        }
        self.places.push(Place {
            version: record.version(),
            checksum: record.checksum,
            at: at as u32,
            key_bytes: key.len() as u16,
            value_bytes: value.len() as u16,
        });
    }

    /// Whether its room is used up.
    pub fn is_full(&self) -> bool {
        self.end + self.places.len() * size_of::<Place>() >= self.bytes_max
    }

    /// Puts them in the order of their keys.
    pub fn sort(&mut self) {
        let blocks = &self.blocks;
        self.places
            .sort_unstable_by(|one, other| one.item(blocks).key.cmp(other.item(blocks).key));
    }

    /// The items.
    pub fn items(&self) -> impl Iterator<Item = Item<'_>> {
        self.places.iter().map(|place| place.item(&self.blocks))
    }

    /// Drops all, and keeps the RAM.
    pub fn clear(&mut self) {
        self.end = 0;
        self.places.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::format::Body;

    /// Long keys and values, so that they meet the ends of blocks.
    #[test]
    fn they_leave_in_the_order_of_their_keys() {
        let key = |number: usize| format!("{number:05}").repeat(1 + number % 50).into_bytes();
        let value = |number: usize| vec![number as u8; 1 + number % 250];
        let mut values = Values::of(1 << 20);
        for round in 0..2 {
            let mut added = 0;
            while !values.is_full() {
                let number = (added * 7919) % 10_007;
                let (key, value) = (key(number), value(number));
                values.add(&Record::new(
                    &key,
                    &[],
                    Body::MoveToFlash {
                        version: number as u64,
                        value: &value,
                    },
                ));
                added += 1;
            }
            assert!((3_000..10_007).contains(&added), "{added}");
            let mut expected: Vec<_> = (0..added).map(|number| number * 7919 % 10_007).collect();
            expected.sort_by_key(|number| key(*number));
            values.sort();
            let mut sorted = values.items();
            for number in expected {
                let (key, value) = (key(number), value(number));
                let item = Item {
                    key: &key,
                    version: number as u64,
                    checksum: crc32c::crc32c(&value),
                    value: &value,
                };
                assert_eq!(sorted.next(), Some(item), "{number} in round {round}");
            }
            assert_eq!(sorted.next(), None);
            drop(sorted);
            values.clear();
        }
    }
}
