//! Flashcache, as its document describes it (facebookarchive/flashcache, doc/flashcache-doc.txt),
//! as far as reads go: blocks of 4 KiB in sets of 512. Neighbours on the disk are in one set; in a
//! set the block that came first leaves. What is not there is read from the disk and written to
//! flash before the reader has it.

use super::{BLOCK_BYTES, CacheFile, Flash, Shelf};
use crate::Outcome;
use parking_lot::Mutex;
use std::{collections::HashMap, ops::Range, path::Path};

const SET_BLOCKS: usize = 512;

/// A set: which blocks of the disk are in which of its slots.
#[derive(Debug)]
struct Set {
    slot_of: HashMap<u64, usize>,
    slots: Vec<Slot>,
    /// Whose turn it is to leave.
    next: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    block: Option<u64>,
    is_being_written: bool,
    /// How often it was used for another block.
    uses: u64,
}

/// A block of the disk in a slot of its set, as it was then.
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

    /// A slot for a block that is not there. None if all are being written.
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
    /// On a file of so many bytes, rounded down to whole sets; one at least.
    ///
    /// # Errors
    /// The drive's.
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

    /// Reads blocks that are all of one set.
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
            // What left meanwhile may have been read as something else.
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

/// Blocks that are neighbours on the disk and on flash.
fn runs(found: &[Found]) -> impl Iterator<Item = &[Found]> {
    found.chunk_by(|one, other| one.block + 1 == other.block && one.slot + 1 == other.slot)
}

/// Where a run is in a buffer that begins with a block.
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
        // What is being written stays: the next in turn leaves instead.
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
