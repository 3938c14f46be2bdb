//! Flashcache, as described in its documentation (facebookarchive/flashcache,
//! doc/flashcache-doc.txt), reads only: blocks of 4 KiB in sets of 512. Adjacent blocks of the disk
//! are in one set; in a set the oldest block is evicted. A missing block is read from the disk and
//! written to flash before it is returned.

use super::{BLOCK_BYTES, CacheFile, Flash, Shelf};
use crate::Outcome;
use parking_lot::Mutex;
use std::{collections::HashMap, ops::Range, path::Path};

const SET_BLOCKS: usize = 512;

/// A set: the blocks of the disk in its slots.
#[derive(Debug)]
struct Set {
    slot_of: HashMap<u64, usize>,
    slots: Vec<Slot>,
    /// The next slot to be evicted.
    next: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    block: Option<u64>,
    is_being_written: bool,
    /// How often the slot was reused.
    uses: u64,
}

/// A block found in a slot of its set, at the time of the look-up.
#[derive(Debug, Clone, Copy)]
struct Found {
    block: u64,
    slot: usize,
    uses: u64,
}

impl Set {
    fn new() -> Self {
        Self {
            slot_of: HashMap::new(),
            slots: vec![Slot::default(); SET_BLOCKS],
            next: 0,
        }
    }

    fn find(&self, block: u64) -> Option<Found> {
        let slot = *self.slot_of.get(&block)?;
        let uses = self.slots[slot].uses;
        (!self.slots[slot].is_being_written).then_some(Found { block, slot, uses })
    }

    /// Takes a slot for a missing block. `None` if all are being written.
    fn take(&mut self, block: u64) -> Option<Found> {
        let slot = (0..SET_BLOCKS)
            .map(|step| (self.next + step) % SET_BLOCKS)
            .find(|&slot| !self.slots[slot].is_being_written)?;
        self.next = (slot + 1) % SET_BLOCKS;
        if let Some(old) = self.slots[slot].block {
            self.slot_of.remove(&old);
        }
        let uses = self.slots[slot].uses + 1;
        self.slots[slot] = Slot {
            block: Some(block),
            is_being_written: true,
            uses,
        };
        self.slot_of.insert(block, slot);
        Some(Found { block, slot, uses })
    }
}

/// The cache.
#[derive(Debug)]
pub struct Flashcache {
    file: CacheFile,
    sets: Vec<Mutex<Set>>,
}

impl Flashcache {
    /// A cache in a file of this size, rounded down to whole sets, at least one.
    pub fn new(directory: &Path, bytes: u64) -> Outcome<Self> {
        let sets = (bytes as usize / (SET_BLOCKS * BLOCK_BYTES)).max(1);
        Ok(Self {
            file: CacheFile::create(directory, (sets * SET_BLOCKS * BLOCK_BYTES) as u64)?,
            sets: (0..sets).map(|_| Mutex::new(Set::new())).collect(),
        })
    }

    fn position(set: usize, slot: usize) -> u64 {
        ((set * SET_BLOCKS + slot) * BLOCK_BYTES) as u64
    }

    /// Reads blocks of one set.
    fn read_of_set(&self, shelf: &Shelf, object: usize, part: Range<usize>, into: &mut [u8], first: u64) -> Outcome {
        let number = (first / SET_BLOCKS as u64) as usize % self.sets.len();
        let set = &self.sets[number];
        let blocks = first..first + (into.len() / BLOCK_BYTES) as u64;
        let mut found: Vec<Option<Found>> = {
            let set = set.lock();
            blocks.clone().map(|block| set.find(block)).collect()
        };
        let there: Vec<Found> = found.iter().copied().flatten().collect();
        for run in runs(&there) {
            let bytes = bytes_of(run, first);
            self.file.read(&mut into[bytes], Self::position(number, run[0].slot))?;
        }
        {
            // A slot that was reused meanwhile may have been read with other contents.
            let set = set.lock();
            for place in &mut found {
                *place = place.filter(|place| set.slots[place.slot].uses == place.uses);
            }
        }
        let missing: Vec<u64> = blocks
            .zip(&found)
            .filter(|(_, place)| place.is_none())
            .map(|pair| pair.0)
            .collect();
        for run in missing.chunk_by(|one, other| one + 1 == *other) {
            let start = (run[0] - first) as usize * BLOCK_BYTES;
            let bytes = start..start + run.len() * BLOCK_BYTES;
            let on_disk = part.start + bytes.start..part.start + bytes.end;
            shelf.read(object, on_disk, &mut into[bytes])?;
        }
        let taken: Vec<Found> = {
            let mut set = set.lock();
            let absent = missing
                .into_iter()
                .filter(|block| !set.slot_of.contains_key(block))
                .collect::<Vec<_>>();
            absent.into_iter().filter_map(|block| set.take(block)).collect()
        };
        let mut written = Ok(());
        for run in runs(&taken) {
            let bytes = bytes_of(run, first);
            written = written.and_then(|()| self.file.write(&into[bytes], Self::position(number, run[0].slot)));
        }
        let mut set = set.lock();
        for place in &taken {
            set.slots[place.slot].is_being_written = false;
        }
        written
    }
}

/// Blocks that are adjacent on the disk and on flash.
fn runs(found: &[Found]) -> impl Iterator<Item = &[Found]> {
    found.chunk_by(|one, other| one.block + 1 == other.block && one.slot + 1 == other.slot)
}

/// The range of a run in a buffer that begins with block `first`.
fn bytes_of(run: &[Found], first: u64) -> Range<usize> {
    let start = (run[0].block - first) as usize * BLOCK_BYTES;
    start..start + run.len() * BLOCK_BYTES
}

impl Flash for Flashcache {
    fn read(&self, shelf: &Shelf, object: usize, part: Range<usize>, into: &mut [u8]) -> Outcome {
        let mut done = 0;
        while done < into.len() {
            let first = (shelf.position(object) + (part.start + done) as u64) / BLOCK_BYTES as u64;
            let left_of_set = SET_BLOCKS - (first % SET_BLOCKS as u64) as usize;
            let end = into.len().min(done + left_of_set * BLOCK_BYTES);
            let here = part.start + done..part.start + end;
            self.read_of_set(shelf, object, here, &mut into[done..end], first)?;
            done = end;
        }
        Ok(())
    }

    fn written_bytes(&self) -> u64 {
        self.file.written_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_that_came_first_leaves_its_set() {
        let mut set = Set::new();
        for block in 0..512 {
            let place = set.take(block).expect("there is room");
            assert_eq!(place.slot as u64, block);
            assert!(set.find(block).is_none(), "it is not written yet");
            set.slots[place.slot].is_being_written = false;
        }
        let old = set.find(0).expect("all are there");
        let new = set.take(600).expect("one may leave");
        assert_eq!(
            (new.slot, set.find(0).is_none(), set.find(1).is_some()),
            (0, true, true)
        );
        assert_ne!(set.slots[old.slot].uses, old.uses);
        // A slot being written stays: the next one is evicted instead.
        set.next = 0;
        assert_eq!(set.take(601).map(|place| place.slot), Some(1));
    }

    #[test]
    fn runs_are_neighbours_on_both() {
        let found = |block, slot| Found { block, slot, uses: 1 };
        let all = [found(10, 3), found(11, 4), found(12, 9), found(14, 10), found(15, 11)];
        let lengths: Vec<usize> = runs(&all).map(<[Found]>::len).collect();
        assert_eq!(lengths, [2, 1, 2]);
        assert_eq!(bytes_of(&all[3..], 10), 4 * BLOCK_BYTES..6 * BLOCK_BYTES);
    }
}
