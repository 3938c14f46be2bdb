//! The large space (MRIS section 3): values appended to blocks, blocks listed in LargeMeta.
//!
//! Invariants:
//! - A value is in one block, in one extent; an extent is written once and never moved or reused.
//! - After [`LargeSpace::sync_all`] returned, the value survives a power cut: its bytes, its
//!   block's length and its block's name are durable.
//! - A block's file is removed only by [`LargeSpace::delete`], only when nothing in it is live,
//!   about to become live, or being read. Block numbers are never reused.
//! - A block is written only by the process that created it. Blocks that a crash leaves unsealed
//!   are only read.
//!
//! On failure: a full device fails the one write with `OutOfSpace` and leaves reclaimable space. A
//! failed write closes its block. A failed sync stops all writes to the space until it is opened
//! again; reads continue. Bytes that do not match their checksums are an `Error::Corruption` of
//! that value alone.
//!
//! Reading order: `format` (bytes), `block` (one block in RAM), `capacity` (the limit of all of
//! them), `group` (what of it is durable), `writer`, `queue` (write-behind), `reader`, `seal`,
//! `meta`, `recover`.

mod account;
mod block;
mod capacity;
mod destage;
mod extent;
pub mod format;
pub(crate) mod gc;
mod group;
mod image;
pub mod meta;
mod nearer;
mod queue;
mod reader;
mod recover;
mod scan;
mod seal;
#[cfg(test)]
mod tests;
pub mod unsynced;
mod writer;

pub use account::{BlockShare, LargeTotals, live_bytes_of};
pub use capacity::Origin;
pub use destage::DestageItem;
pub use image::HeldBlock;
pub use nearer::{NearReader, Nearer, Source, Wanted};
pub use queue::LARGE_GATHER_MAX;
pub use reader::{CHUNK_DATA, PIECE_BYTES, PIECES_PER_READ, ValueReader};
pub use scan::{BlockScan, ScannedExtent};
pub use writer::{LargeWriter, Length};

use crate::{
    Error, Result, Tier,
    api::object::Extent,
    io::{Disk, DiskFile, OpenMode, throttle::Paces},
    metrics::{count, counted, subtract},
};
use account::Totals;
use block::Block;
use capacity::{Room, STREAMS};
use format::RecordKind;
use group::NotDurable;
use meta::{BlockState, Meta};
use parking_lot::{Mutex, RwLock};
use queue::{Buffers, Failure, WriteQueue};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

/// Directory of the block files.
const BLOCK_DIR: &str = "blocks";
/// Handles of blocks at rest that are kept open.
const READ_HANDLES_MAX: usize = 256;

/// How the space is opened.
#[derive(Debug, Clone, Copy)]
pub struct LargeOptions {
    /// Identity of the store; blocks of another store are not taken for ours.
    pub store_id: u64,
    /// *SplitThreshold* (MRIS section 3), in bytes.
    pub split_threshold_bytes: u64,
    /// Bypass the page cache where possible.
    pub direct_io: bool,
    /// Write nothing, not even a repaired LargeMeta.
    pub read_only: bool,
    /// Most bytes that the block files may take; `None`: what the device has.
    pub capacity_bytes: Option<u64>,
}

/// A value written to the space, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LargeValue {
    /// Number of its block.
    pub block: u64,
    /// Where its record starts in the block.
    pub offset: u64,
    /// Bytes of its record, without the padding after it.
    pub extent_bytes: u64,
    /// Length of the value.
    pub length: u64,
    /// CRC-32C of the value.
    pub checksum: u32,
    kind: RecordKind,
    /// Its write's ordinal in the block's group.
    ordinal: u64,
}

impl LargeValue {
    /// Where it lies.
    pub const fn extent(&self) -> Extent {
        Extent {
            block: self.block,
            offset: self.offset,
            extent_bytes: self.extent_bytes,
            length: self.length,
        }
    }
}

/// Unusual findings of [`LargeSpace::open`]. All empty after a clean close.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpenReport {
    /// LargeMeta was rebuilt from the blocks.
    pub rebuilt: bool,
    /// LargeMeta versions that are damaged and were passed over.
    pub damaged_meta: Vec<u64>,
    /// Blocks that were open when the store stopped; they are only read from now on.
    pub left_open: Vec<u64>,
    /// Blocks LargeMeta did not list.
    pub unlisted: Vec<u64>,
    /// Blocks in LargeMeta without a file: their values are lost.
    pub missing: Vec<u64>,
    /// Blocks whose files are shorter than LargeMeta says, with their length: values at their ends
    /// are lost.
    pub cut: Vec<(u64, u64)>,
    /// Files in the block directory that belong to another store, or to none. They are left alone.
    pub foreign: Vec<String>,
}

impl OpenReport {
    /// What is lost, as messages.
    pub fn losses(&self) -> impl Iterator<Item = String> {
        let gone = |block| format!("block {block:016x} is gone; the values in it are lost");
        let cut = |(block, at)| format!("block {block:016x} ends at byte {at}; the values behind that are lost");
        let missing = self.missing.iter().copied().map(gone);
        missing.chain(self.cut.iter().copied().map(cut))
    }
}

/// A block, for statistics and repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockInfo {
    /// Its number.
    pub number: u64,
    /// Its state.
    pub state: BlockState,
    /// Bytes of its file; for an open block those it has taken from the device.
    pub bytes: u64,
    /// Bytes of live extents in it.
    pub live_bytes: u64,
}

counted! {
    /// Reads and writes since the space was opened. Bytes are those on the device.
    pub struct LargeCounters {}
    /// As they are counted.
    struct Counters {
        /// Extents of users' writes with their padding, those that wait to be written included.
        user_bytes,
        /// Regions of destaged values with their padding.
        destaged_bytes,
        /// Regions of values that cleaning moved, with their padding.
        cleaned_bytes,
        /// Block headers, footers and LargeMeta.
        overhead_bytes,
        /// Device reads of values.
        reads,
    }
}

#[derive(Debug)]
struct Table {
    meta: Meta,
    /// Numbers of the LargeMeta files, ascending.
    files: Vec<u64>,
    /// Highest LargeMeta number ever tried.
    number: u64,
    /// Next block number.
    next_block: u64,
    /// Blocks without a file that LargeMeta still lists, for lack of room.
    gone: BTreeSet<u64>,
}

/// The state behind every [`LargeSpace`] handle.
#[derive(Debug)]
struct Space {
    disk: Arc<dyn Disk>,
    options: LargeOptions,
    blocks: RwLock<BTreeMap<u64, Arc<Block>>>,
    table: Mutex<Table>,
    /// The blocks extents of known length go to, by [`Origin::stream`].
    shared: [Mutex<Option<Arc<Block>>>; STREAMS],
    /// Number of the shared block whose successor has been created, or tried.
    prepared_for: AtomicU64,
    /// Open blocks that are not written at the moment.
    idle: Mutex<Vec<Arc<Block>>>,
    /// Closed blocks waiting for their last extent to be settled, and for their footer.
    full: Mutex<Vec<Arc<Block>>>,
    failure: Arc<Failure>,
    room: Arc<Room>,
    totals: Totals,
    accounted: AtomicBool,
    /// Blocks that are being deleted and whose room is not given back yet.
    leaving: AtomicU64,
    handles: quick_cache::sync::Cache<u64, Arc<dyn DiskFile>>,
    buffers: Arc<Buffers>,
    /// The cache in front of the blocks.
    nearer: OnceLock<Arc<dyn Nearer>>,
    queue: WriteQueue,
    counters: Counters,
}

/// The large space. Cheap to clone; all clones are the same space.
#[derive(Debug, Clone)]
pub struct LargeSpace {
    space: Arc<Space>,
}

impl LargeSpace {
    /// The device it is on.
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.space.disk
    }

    /// Attaches the cache in front of the blocks; from now on reads for callers are counted and use
    /// it.
    pub fn attach(&self, nearer: Arc<dyn Nearer>) {
        let _ = self.space.nearer.set(nearer);
    }

    /// What callers' reads take of the devices: of this one they are timed.
    pub fn paces(&self) -> &Arc<Paces> {
        self.space.queue.paces()
    }

    /// After an open: loads the file system's metadata of the blocks before they are read. On a
    /// disk the first read of each block costs two or three reads otherwise. Opens the newest, as
    /// many as are kept open; until `is_over`. `step` does the work of each.
    pub fn warm(&self, is_over: impl Fn() -> bool, step: impl Fn(&dyn Fn())) {
        let newest: Vec<Arc<Block>> = {
            let blocks = self.space.blocks.read();
            blocks.values().rev().take(READ_HANDLES_MAX).map(Arc::clone).collect()
        };
        // In order of their names: the file system's metadata of them is in about that order.
        for block in newest.iter().rev().filter(|_| !is_over()) {
            step(&|| {
                // A read of it will report the error.
                if let Ok(file) = self.space.file(block) {
                    file.warm();
                }
            });
        }
    }

    /// From now on block GC leaves this many bytes of the device free.
    pub fn leave_to_index(&self, bytes: Arc<AtomicU64>) {
        let _ = self.space.room.left_to_index_bytes.set(bytes);
    }

    /// Makes values durable with one sync per block, waiting for their writes if these are not
    /// done. Values that finish together share one sync.
    ///
    /// # Errors
    /// If writing one of them failed, or the device's sync. After the latter the space refuses
    /// writes until it is opened again.
    pub fn sync_all(&self, values: &[LargeValue]) -> Result<()> {
        let mut ordinals: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for value in values {
            ordinals.entry(value.block).or_default().push(value.ordinal);
        }
        ordinals
            .iter()
            .try_for_each(|(&block, ordinals)| self.sync_writes(block, ordinals))
    }

    fn sync_writes(&self, block: u64, ordinals: &[u64]) -> Result<()> {
        let block = self.space.block(block)?;
        let file = block.writing_file();
        let _hurry = self.space.queue.hurry();
        let durable = block.group.wait(ordinals, file.as_ref());
        durable.map_err(|error| match error {
            NotDurable::Write(error) => Space::write_error(&block, &error),
            NotDurable::Sync(error) => {
                block.close();
                self.space
                    .fail(format!("syncing {}: {error}", block_path(block.number).display()))
            }
        })
    }

    /// Whether callers' reads show that the device seeks.
    pub fn seeks(&self) -> bool {
        self.paces().large.seeks()
    }

    /// Writes queued extents, and ends the threads of write-behind. Later queued writes fail.
    pub fn stop(&self) {
        self.space.queue.close();
    }

    /// The commit that points to `value` got `version` (above 0). Must be called for every value
    /// that was not abandoned: without it the block gets no footer. Bytes stay protected until they
    /// are accounted live.
    pub fn committed(&self, value: &LargeValue, version: u64) {
        if let (RecordKind::Put, Ok(block)) = (value.kind, self.space.block(value.block)) {
            block.settle(value.offset, version);
        }
    }

    /// No commit will point to `value`: its bytes are dead.
    pub fn abandoned(&self, value: &LargeValue) {
        if let Ok(block) = self.space.block(value.block) {
            if value.kind == RecordKind::Put {
                block.settle(value.offset, 0);
                // It will not be read; the queue has its own reference until it is written.
                block.behind.lock().remove(&value.offset);
            }
            subtract(&block.unapplied_bytes, value.extent_bytes);
        }
    }

    /// Counters of reads and writes since the space was opened.
    pub fn counters(&self) -> LargeCounters {
        self.space.counters.picture()
    }

    /// RAM of values on their way to blocks, and of buffers for the next ones and for reads, in
    /// bytes.
    pub fn transfer_bytes(&self) -> u64 {
        (self.space.queue.bytes() + self.space.buffers.spare_bytes()) as u64
    }

    /// All blocks, by number.
    pub fn blocks(&self) -> Vec<BlockInfo> {
        let listed = self.space.table.lock().meta.blocks.clone();
        let blocks = self.space.blocks.read();
        let info = |(&number, block): (&u64, &Arc<Block>)| {
            let listed = listed.get(&number)?;
            let open_bytes = block.writing.lock().as_ref().map(|writing| writing.allocated_bytes);
            Some(BlockInfo {
                number,
                state: listed.state,
                bytes: open_bytes.unwrap_or(listed.bytes),
                live_bytes: block.live_bytes.load(Ordering::Acquire),
            })
        };
        blocks.iter().filter_map(info).collect()
    }

    /// Bytes of the LargeMeta files, taken all to be as long as the newest.
    pub fn meta_bytes(&self) -> u64 {
        let table = self.space.table.lock();
        table.files.len() as u64 * meta::meta_bytes(&table.meta)
    }

    /// Number of the newest LargeMeta.
    pub fn meta_version(&self) -> u64 {
        self.space.table.lock().meta.number
    }

    /// Why the space refuses writes, if it does.
    pub fn failure(&self) -> Option<String> {
        self.space.failure.reason()
    }
}

/// The path of a block's file.
pub fn block_path(number: u64) -> PathBuf {
    Path::new(BLOCK_DIR).join(format!("{number:016x}.blk"))
}

impl Space {
    fn block(&self, number: u64) -> Result<Arc<Block>> {
        let found = self.blocks.read().get(&number).map(Arc::clone);
        found.ok_or_else(|| Error::corruption(block_path(number).display().to_string(), "there is no such block"))
    }

    /// The file to read a block from.
    fn file(&self, block: &Block) -> Result<Arc<dyn DiskFile>> {
        if let Some(file) = block.writing_file() {
            return Ok(file);
        }
        let path = block_path(block.number);
        let open = || {
            self.disk
                .open(&path, OpenMode::READ.with_direct(self.options.direct_io))
        };
        self.handles
            .get_or_insert_with(&block.number, open)
            .map_err(|error| Error::io(format!("opening {}", path.display()), &error))
    }

    fn place(&self, block: u64, offset: u64) -> format::Place {
        format::Place {
            store_id: self.options.store_id,
            block,
            offset,
        }
    }

    fn count_written(&self, origin: Origin, device_bytes: u64) {
        let counter = match origin {
            Origin::User => &self.counters.user_bytes,
            Origin::Recycling => &self.counters.destaged_bytes,
            Origin::Cleaning => &self.counters.cleaned_bytes,
        };
        count(counter, device_bytes);
    }

    /// Stops all writes and returns the error for that.
    fn fail(&self, reason: String) -> Error {
        Error::Failed(self.failure.set(reason))
    }

    fn check_writable(&self) -> Result<()> {
        if self.options.read_only {
            return Err(Error::Unavailable("the large space is open read-only"));
        }
        self.failure
            .reason()
            .map_or(Ok(()), |reason| Err(Error::Failed(reason)))
    }

    /// Writes the next LargeMeta, durable when this returns.
    fn change_meta(&self, change: impl FnOnce(&mut Meta)) -> Result<()> {
        let mut table = self.table.lock();
        table.number += 1;
        let mut next = table.meta.clone();
        change(&mut next);
        next.blocks.retain(|number, _| !table.gone.contains(number));
        next.number = table.number;
        next.next_block = table.next_block;
        let bytes = match meta::store(&*self.disk, &next, &mut table.files) {
            Ok(bytes) => bytes,
            Err(error @ (Error::OutOfSpace { .. } | Error::Unavailable(_))) => return Err(error),
            Err(error) => return Err(self.fail(error.to_string())),
        };
        count(&self.counters.overhead_bytes, bytes);
        table.meta = next;
        table.gone.clear();
        Ok(())
    }

    /// Drops blocks without a file from LargeMeta. If there is no room for that, the next
    /// change does it, or the next open: their room is free either way.
    fn unlist(&self, numbers: impl IntoIterator<Item = u64>) -> Result<()> {
        self.table.lock().gone.extend(numbers);
        match self.change_meta(|_| {}) {
            Err(Error::OutOfSpace { .. }) => Ok(()),
            changed => changed,
        }
    }

    /// The error of a failed write: a full device is the caller's matter, anything else closes the
    /// block.
    fn write_error(block: &Block, error: &io::Error) -> Error {
        let error = Error::io_on(
            Tier::Large,
            format!("writing {}", block_path(block.number).display()),
            error,
        );
        if !matches!(error, Error::OutOfSpace { .. }) {
            block.close();
        }
        error
    }
}
