//! The blocks at one moment, held for a copy of them.
//!
//! Invariants: a held block is not deleted. `bytes` of a held block are those that were given out
//! when it was taken, or its whole file once it is sealed; the part of them that was durable then
//! never changes again. A block with a footer is never written again.
//!
//! On failure: nothing was changed.

use super::{
    LargeSpace,
    block::Block,
    block_path,
    format::PAGE,
    meta::{BlockState, Meta, MetaBlock, encode_meta, meta_path},
};
use crate::{Error, Result, io::DiskFile};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
};

/// A block that is not deleted while this is held.
#[derive(Debug)]
pub struct HeldBlock {
    /// Its number.
    pub number: u64,
    /// Bytes to copy from its start.
    pub bytes: u64,
    /// It is sealed: no longer written. Whether it has a footer says [`LargeSpace::has_footer`].
    pub sealed: bool,
    block: Arc<Block>,
}

impl LargeSpace {
    /// Pins all blocks.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn hold_blocks(&self) -> Result<Vec<HeldBlock>> {
        let held: Vec<(Arc<Block>, Option<u64>)> = {
            let blocks = self.space.blocks.read();
            let open_bytes = |block: &Block| block.writing.lock().as_ref().map(|writing| writing.tail);
            blocks
                .values()
                .map(|block| (Arc::clone(block), open_bytes(block)))
                .collect()
        };
        // Read afterwards: sealing lists a block before it closes it.
        let listed = self.space.table.lock().meta.blocks.clone();
        let mut found = Vec::with_capacity(held.len());
        for (block, open_bytes) in held {
            let Some(listed) = listed.get(&block.number) else {
                // It was created, never used and removed.
                continue;
            };
            if open_bytes == Some(PAGE) {
                // No extent was reserved in it; it may be removed.
                continue;
            }
            let sealed = open_bytes.is_none() && listed.state != BlockState::Open;
            let bytes = match open_bytes {
                Some(tail) => tail,
                None if sealed => listed.bytes,
                // It has no footer, for lack of room.
                None => self.file_bytes(&block)?,
            };
            found.push(HeldBlock {
                number: block.number,
                bytes,
                sealed,
                block,
            });
        }
        Ok(found)
    }

    fn file_bytes(&self, block: &Block) -> Result<u64> {
        let length = self.space.file(block)?.len();
        length.map_err(|error| Error::io(format!("reading {}", block_path(block.number).display()), &error))
    }

    /// The file of a held block, for reading.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn held_file(&self, held: &HeldBlock) -> Result<Arc<dyn DiskFile>> {
        self.space.file(&held.block)
    }

    /// Where a file of the space is in the operating system's file system, if it is there.
    pub fn host_path(&self, path: &Path) -> Option<PathBuf> {
        self.space.disk.host_path(path)
    }

    /// Whether a sealed block's footer is present and valid, at the very end of its file.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn has_footer(&self, held: &HeldBlock) -> Result<bool> {
        let bytes = self.file_bytes(&held.block)?;
        Ok(held.sealed && bytes == held.bytes && self.scan_block(held.number)?.has_footer())
    }

    /// The path and bytes of a LargeMeta that lists these blocks and no others, all at rest.
    pub fn meta_of(&self, blocks: &[(u64, u64)]) -> (PathBuf, Vec<u8>) {
        let table = self.space.table.lock();
        let at_rest = |&(number, bytes): &(u64, u64)| {
            let state = BlockState::Sealed;
            (number, MetaBlock { state, bytes })
        };
        let meta = Meta {
            number: table.number.max(1),
            store_id: self.space.options.store_id,
            next_block: table.next_block,
            blocks: blocks.iter().map(at_rest).collect::<BTreeMap<_, _>>(),
        };
        (meta_path(meta.number), encode_meta(&meta))
    }

    /// Bytes of the files of these blocks, which are at rest; missing ones are not counted.
    pub fn bytes_of(&self, numbers: &[u64]) -> u64 {
        let blocks = self.space.blocks.read();
        let found = numbers.iter().filter_map(|number| blocks.get(number));
        found.map(|block| block.rest_bytes.load(Ordering::Acquire)).sum()
    }
}
