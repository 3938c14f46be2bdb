//! The life of a block file: created, sealed with a footer, deleted. LargeMeta records each step.
//!
//! Invariants:
//! - A block is handed to writers only after its header and its name are durable.
//! - A footer is written only when every extent is committed or abandoned, so it is exact.
//! - A block comes to rest, with a footer or without, only after a sync of everything written to
//!   it: unwritten frames may have commits that point there, and values of a block without an open
//!   file count as durable.
//! - `drained` is durable in LargeMeta before the file is removed; an open that finds it finishes
//!   the removal.
//!
//! On failure: a block that gets no footer (device full, sync failed, crash) stays readable without
//! one.

use super::{
    BLOCK_DIR, LargeSpace, Space,
    block::Block,
    block_path,
    capacity::Origin,
    format::{BlockHeader, FooterEntry, PAGE, encode_block_header, encode_footer},
    meta::{BlockState, MetaBlock},
};
use crate::{
    Error, Result, Tier,
    io::{DiskFile, OpenMode},
    metrics::{count, subtract},
    mutation::{Mutation, unless},
};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    io,
    path::Path,
    sync::{Arc, atomic::Ordering},
};

impl LargeSpace {
    /// Seals full blocks whose extents are all committed or abandoned. The store calls this
    /// periodically, outside its commit path.
    ///
    /// # Errors
    /// `OutOfSpace` if there is no room for a footer (tried again next time), `Failed`, I/O errors.
    pub fn seal_ready(&self) -> Result<()> {
        let space = &self.space;
        space.check_writable()?;
        let settled = |block: &Arc<Block>| block.writing.lock().as_ref().is_none_or(|writing| writing.pending == 0);
        let ready: Vec<Arc<Block>> = space.full.lock().extract_if(.., |block| settled(block)).collect();
        let mut result = Ok(());
        for block in ready {
            let sealed = space.seal(&block);
            match &sealed {
                // There may be room for a footer later.
                Err(Error::OutOfSpace { .. }) if !block.has_nothing_live() => space.full.lock().push(block),
                // Deleting it frees room, and needs no footer. A failed footer is not tried again:
                // a block at rest can be read, drained and deleted without one.
                Err(_) if space.check_writable().is_ok() => {
                    result = result.and(space.rest_without_footer(&block));
                }
                _ => {}
            }
            result = result.and(sealed);
        }
        result
    }

    /// Seals every block that is no longer written, at a clean shutdown. Values neither committed
    /// nor abandoned keep their block from getting a footer. The space can still be used
    /// afterwards.
    ///
    /// # Errors
    /// As [`LargeSpace::seal_ready`].
    pub fn close(&self) -> Result<()> {
        if self.space.options.read_only {
            return Ok(());
        }
        let shared = self.space.shared.iter();
        let open: Vec<Arc<Block>> = shared.filter_map(|block| block.lock().take()).collect();
        let idle = std::mem::take(&mut *self.space.idle.lock());
        for block in open.into_iter().chain(idle) {
            block.close();
            self.space.full.lock().push(block);
        }
        self.seal_ready()
    }

    /// Blocks without live values. The store deletes them once the index has persisted everything
    /// up to the commit that made them dead and no snapshot is older. None before
    /// [`LargeSpace::accounting_complete`].
    pub fn dead_blocks(&self) -> Vec<u64> {
        if !self.space.accounted.load(Ordering::Acquire) {
            return Vec::new();
        }
        let blocks = self.space.blocks.read();
        let dead = blocks.values().filter(|block| block.is_dead());
        dead.map(|block| block.number).collect()
    }

    /// Deletes dead blocks, each with the seq at which its last live value died. Together they cost
    /// what one costs: two versions of LargeMeta and a sync of the directory. Returns those that
    /// were deleted; one that is not dead, or is being read, is left for later, and one whose file
    /// the system does not remove for the next open.
    ///
    /// # Errors
    /// `OutOfSpace`: LargeMeta could not be written, and nothing was deleted. `Failed`, I/O errors:
    /// the blocks may be gone or not.
    pub fn delete(&self, dead: &[(u64, u64)]) -> Result<Vec<u64>> {
        let space = &self.space;
        space.check_writable()?;
        if !space.accounted.load(Ordering::Acquire) {
            return Ok(Vec::new());
        }
        // Before they leave the table; see [`LargeSpace::is_giving_room`].
        let _leaving = Leaving::begin(space);
        let mut leaving: Vec<(Arc<Block>, u64)> = {
            let mut blocks = space.blocks.write();
            let taken = dead
                .iter()
                .filter_map(|&(number, seq)| Some((take_dead(&mut blocks, number)?, seq)));
            taken.collect()
        };
        if leaving.is_empty() {
            return Ok(Vec::new());
        }
        let drained = space.change_meta(|meta| {
            for (block, seq) in &leaving {
                if let Some(listed) = meta.blocks.get_mut(&block.number) {
                    listed.state = BlockState::Drained(*seq);
                }
            }
        });
        if let Err(error) = drained {
            let back = leaving.into_iter().map(|(block, _)| (block.number, block));
            space.blocks.write().extend(back);
            return Err(error);
        }
        leaving.retain(|(block, _)| {
            space.handles.remove(&block.number);
            space.remove_file(block.number)
        });
        space.sync_removals()?;
        for (block, _) in &leaving {
            space.forget(block);
        }
        let numbers: Vec<u64> = leaving.iter().map(|(block, _)| block.number).collect();
        space.unlist(numbers.iter().copied())?;
        Ok(numbers)
    }
}

/// Takes a block out of the table, unless something lives in it or it is being read.
fn take_dead(blocks: &mut BTreeMap<u64, Arc<Block>>, number: u64) -> Option<Arc<Block>> {
    let Entry::Occupied(listed) = blocks.entry(number) else {
        return None;
    };
    // With the table locked no reader can pin it, so the only reference is the table's own.
    let may_go = Arc::strong_count(listed.get()) == 1 && listed.get().is_dead();
    may_go.then(|| listed.remove())
}

/// A block is being deleted, for as long as this is there.
struct Leaving<'a>(&'a Space);

impl<'a> Leaving<'a> {
    fn begin(space: &'a Space) -> Self {
        space.leaving.fetch_add(1, Ordering::AcqRel);
        Self(space)
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.leaving.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Space {
    /// Creates a block: header and name durable, listed in LargeMeta.
    pub(super) fn create_block(&self, origin: Origin) -> Result<Arc<Block>> {
        let number = {
            let mut table = self.table.lock();
            let number = table.next_block;
            table.next_block += 1;
            number
        };
        let path = block_path(number);
        let header = self.header(number);
        self.room
            .take(PAGE, origin)
            .map_err(|error| Error::io_on(Tier::Large, format!("making {}", path.display()), &error))?;
        let made = (|| {
            let file = self
                .disk
                .open(&path, OpenMode::CREATE.with_direct(self.options.direct_io))?;
            file.write_all_at(&encode_block_header(header), 0)?;
            unless(Mutation::BlockHeader, || file.sync_data())?;
            unless(Mutation::BlockDirectory, || self.disk.sync_dir(Path::new(BLOCK_DIR)))?;
            Ok(file)
        })();
        let listed = made
            .map_err(
                |error| match Error::io_on(Tier::Large, format!("making {}", path.display()), &error) {
                    error @ (Error::OutOfSpace { .. } | Error::Unavailable(_)) => error,
                    error => self.fail(error.to_string()),
                },
            )
            .and_then(|file| self.list(number, BlockState::Open, 0).map(|()| file));
        match listed {
            Ok(file) => {
                count(&self.counters.overhead_bytes, PAGE);
                let block = Arc::new(Block::open(number, file, Arc::clone(&self.room)));
                self.blocks.write().insert(number, Arc::clone(&block));
                Ok(block)
            }
            Err(error) => {
                // After a failed sync LargeMeta may list the block or not. So it stays: an unlisted
                // file is a dead block at the next open, a listed one that is missing would look
                // like a loss.
                if matches!(error, Error::OutOfSpace { .. } | Error::Unavailable(_)) {
                    let _ = self.disk.remove(&path);
                    self.room.give_back(PAGE);
                }
                Err(error)
            }
        }
    }

    fn seal(&self, block: &Block) -> Result<()> {
        // The footer lists the extents that were written; a failed write removes its version from
        // it.
        self.queue.wait_written(&block.group);
        let Some((file, tail, entries)) = block.writing.lock().as_ref().map(|writing| {
            let entries: Vec<FooterEntry> = writing.extents.iter().map(|extent| extent.entry).collect();
            (Arc::clone(&writing.file), writing.tail, entries)
        }) else {
            return Ok(());
        };
        // The contents of a file after a failed sync are unknown; it is not written again.
        if block.group.failed() {
            return Ok(());
        }
        if entries.is_empty() {
            return self.remove_empty(block.number);
        }
        let header = self.header(block.number);
        let footer = encode_footer(header, tail, &entries);
        let bytes = tail + footer.len() as u64;
        let context = || format!("sealing {}", block_path(block.number).display());
        // Beyond the limit, if need be: a block without a footer is worse.
        block
            .note_length(bytes, || {
                file.write_all_at(&footer, tail).and_then(|()| file.set_len(bytes))
            })
            .map_err(|error| Error::io_on(Tier::Large, context(), &error))?;
        self.sync_written(block, &file)?;
        count(&self.counters.overhead_bytes, footer.len() as u64);
        self.list(block.number, BlockState::Sealed, bytes)?;
        self.rest(block);
        tracing::debug!(block = block.number, "sealed a block");
        Ok(())
    }

    /// Has LargeMeta list a block so.
    fn list(&self, number: u64, state: BlockState, bytes: u64) -> Result<()> {
        self.change_meta(|meta| {
            meta.blocks.insert(number, MetaBlock { state, bytes });
        })
    }

    /// A block's header.
    pub(super) fn header(&self, block: u64) -> BlockHeader {
        let store_id = self.options.store_id;
        BlockHeader { store_id, block }
    }

    /// Makes all that was written to a block durable.
    fn sync_written(&self, block: &Block, file: &Arc<dyn DiskFile>) -> Result<()> {
        let synced = unless(Mutation::BlockSeal, || {
            block.group.wait(&[block.group.mark()], Some(file))
        });
        synced.map_err(|error| self.fail(format!("sealing {}: {error}", block_path(block.number).display())))
    }

    /// Gives up a block whose footer could not be written.
    fn rest_without_footer(&self, block: &Block) -> Result<()> {
        if let Some(file) = block.writing_file() {
            self.sync_written(block, &file)?;
        }
        self.rest(block);
        Ok(())
    }

    /// The block is no longer written, and its contents are durable.
    fn rest(&self, block: &Block) {
        let bytes = block.allocated_bytes();
        block.rest_bytes.store(bytes, Ordering::Release);
        self.totals.rest_bytes.fetch_add(bytes, Ordering::AcqRel);
        *block.writing.lock() = None;
    }

    /// The file of a dead block was deleted.
    fn forget(&self, block: &Block) {
        let bytes = block.rest_bytes.load(Ordering::Acquire);
        self.room.give_back(bytes);
        subtract(&self.totals.rest_bytes, bytes);
    }

    /// Removes a block that was created and never used.
    fn remove_empty(&self, number: u64) -> Result<()> {
        let _leaving = Leaving::begin(self);
        self.change_meta(|meta| {
            if let Some(listed) = meta.blocks.get_mut(&number) {
                listed.state = BlockState::Drained(0);
            }
        })?;
        let block = self.blocks.write().remove(&number);
        let is_removed = self.remove_file(number);
        self.sync_removals()?;
        if !is_removed {
            return Ok(());
        }
        self.room.give_back(block.map_or(0, |block| block.allocated_bytes()));
        self.unlist([number])
    }

    /// Removes the file of a block that LargeMeta lists as drained. `false` if the system does not:
    /// then the block stays listed, and keeps its space until the next open, which tries again.
    /// Nothing reads it.
    fn remove_file(&self, number: u64) -> bool {
        let path = block_path(number);
        match self.disk.remove(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::error!(%error, path = %path.display(), "a dead block cannot be removed; the next open tries again");
                false
            }
            // Or another thread deleted it first; the deletion must still be made durable.
            _ => true,
        }
    }

    /// Makes removals durable.
    ///
    /// # Errors
    /// `Failed` if the directory cannot be synced: then the files may be there again after a crash.
    fn sync_removals(&self) -> Result<()> {
        unless(Mutation::BlockRemoval, || self.disk.sync_dir(Path::new(BLOCK_DIR)))
            .map_err(|error| self.fail(format!("removing blocks: {error}")))
    }
}
