//! Opens the space: compares LargeMeta with the existing blocks.
//!
//! Invariants:
//! - The block files are the truth; LargeMeta is corrected to match them and the differences are
//!   reported.
//! - A block that was open is only read from now on. Its preallocated unused space is given back.
//! - Only blocks that LargeMeta lists as drained are deleted.

use super::{
    BLOCK_DIR, Counters, LargeOptions, LargeSpace, OpenReport, READ_HANDLES_MAX, Space, Table,
    account::Totals,
    block::Block,
    block_path,
    capacity::Room,
    format::{PAGE, decode_block_header},
    meta::{self, BlockState, META_DIR, Meta, MetaBlock},
    queue::{Buffers, Failure, WriteQueue},
};
use crate::{
    Error, Result,
    io::{AlignedBuffer, Disk, OpenMode, PAGE_BYTES},
    mutation::{Mutation, unless},
};
use parking_lot::{Mutex, RwLock};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64},
    },
};

/// At most this much of the end of an open block is searched for space to trim.
const TRIM_BYTES_MAX: u64 = 32 << 20;
/// Zeros kept after the last byte that is not: a chunk of zeros may, in theory, have checksum zero.
const TRIM_MARGIN_BYTES: u64 = 128 << 10;

impl LargeSpace {
    /// Opens the space on `disk`, creating its directories if they are absent.
    ///
    /// # Errors
    /// I/O errors; `OutOfSpace` if a repaired LargeMeta cannot be written.
    pub fn open(disk: Arc<dyn Disk>, options: LargeOptions) -> Result<(Self, OpenReport)> {
        if !options.read_only {
            prepare_directories(&*disk).map_err(|error| Error::io("making the large space's directories", &error))?;
        }
        let mut report = OpenReport::default();
        let present = present_blocks(&*disk, &mut report)?;
        let loaded = meta::load(&*disk, options.store_id)?;
        let number = loaded.files.last().copied().unwrap_or(0);
        report.damaged_meta = loaded.damaged;
        report.rebuilt = loaded.meta.is_none() && !(present.is_empty() && loaded.files.is_empty());
        let mut listed = loaded.meta.unwrap_or_else(|| Meta::empty(options.store_id));
        if report.rebuilt {
            // Each block cost a LargeMeta version at least, so no block number above the version's
            // was given out.
            listed.next_block = number + 1;
        }
        listed.next_block = listed.next_block.max(present.last().map_or(1, |&last| last + 1));
        let reconciled = reconcile(&*disk, &options, &listed, &present, &mut report)?;
        let changed = reconciled != listed.blocks || !report.damaged_meta.is_empty();
        listed.blocks = reconciled;
        let blocks = listed
            .blocks
            .iter()
            .map(|(&number, listed)| (number, Arc::new(Block::at_rest(number, listed.bytes))))
            .collect();
        let used_bytes = listed.blocks.values().map(|listed| listed.bytes).sum();
        let buffers = Arc::<Buffers>::default();
        let failure = Arc::<Failure>::default();
        let queue = WriteQueue::start(Arc::clone(&buffers), Arc::clone(&failure), options.read_only)?;
        let space = Space {
            nearer: OnceLock::new(),
            options,
            blocks: RwLock::new(blocks),
            table: Mutex::new(Table {
                number,
                next_block: listed.next_block,
                gone: BTreeSet::new(),
                files: loaded.files,
                meta: listed,
            }),
            shared: Default::default(),
            room: Arc::new(Room::new(
                Arc::clone(&disk),
                used_bytes,
                options.capacity_bytes,
                options.split_threshold_bytes,
            )),
            disk,
            totals: Totals::starting_with(used_bytes),
            prepared_for: AtomicU64::new(0),
            idle: Mutex::default(),
            full: Mutex::default(),
            failure,
            accounted: AtomicBool::new(false),
            leaving: AtomicU64::new(0),
            handles: quick_cache::sync::Cache::new(READ_HANDLES_MAX),
            buffers,
            queue,
            counters: Counters::default(),
        };
        if changed && !options.read_only {
            space.change_meta(|_| {})?;
        }
        if report != OpenReport::default() {
            tracing::warn!(?report, "the large space was not closed cleanly");
        }
        Ok((Self { space: Arc::new(space) }, report))
    }
}

/// Numbers of the block files that are there.
fn present_blocks(disk: &dyn Disk, report: &mut OpenReport) -> Result<BTreeSet<u64>> {
    let names = disk
        .list(Path::new(BLOCK_DIR))
        .map_err(|error| Error::io("listing blocks", &error))?;
    let mut present = BTreeSet::new();
    for name in names {
        match meta::numbered(&name, "blk") {
            Some(number) => {
                present.insert(number);
            }
            None => report.foreign.push(name),
        }
    }
    Ok(present)
}

fn prepare_directories(disk: &dyn Disk) -> io::Result<()> {
    disk.create_dir_all(Path::new(BLOCK_DIR))?;
    disk.create_dir_all(Path::new(META_DIR))?;
    unless(Mutation::NewDirectory, || disk.sync_dir(Path::new("")))
}

/// The contents that LargeMeta should have, by its present contents and the files found.
fn reconcile(
    disk: &dyn Disk,
    options: &LargeOptions,
    listed: &Meta,
    present: &BTreeSet<u64>,
    report: &mut OpenReport,
) -> Result<BTreeMap<u64, MetaBlock>> {
    let mut blocks = BTreeMap::new();
    let mut removed = false;
    for &number in present {
        match listed.blocks.get(&number) {
            Some(block) if matches!(block.state, BlockState::Sealed | BlockState::Draining) => {
                let bytes = file_bytes(disk, number)?.min(block.bytes);
                if bytes < block.bytes {
                    report.cut.push((number, bytes));
                }
                blocks.insert(number, MetaBlock { bytes, ..*block });
                continue;
            }
            Some(block) if matches!(block.state, BlockState::Drained(_)) => {
                if !options.read_only {
                    let path = block_path(number);
                    let failed = |error| Error::io(format!("removing {}", path.display()), &error);
                    disk.remove(&path).map_err(failed)?;
                    removed = true;
                }
                continue;
            }
            Some(_) => report.left_open.push(number),
            None if is_foreign(disk, options, number) => {
                report.foreign.push(format!("{number:016x}.blk"));
                continue;
            }
            None => report.unlisted.push(number),
        }
        let block = MetaBlock {
            state: BlockState::Sealed,
            bytes: trimmed_bytes(disk, options, number)?,
        };
        blocks.insert(number, block);
    }
    if removed {
        // Durable before LargeMeta drops them, or they would reappear unlisted.
        let synced = unless(Mutation::BlockRemoval, || disk.sync_dir(Path::new(BLOCK_DIR)));
        synced.map_err(|error| Error::io("syncing the block directory", &error))?;
    }
    let gone = listed.blocks.iter().filter(|(number, _)| !present.contains(number));
    let lost = gone.filter(|(_, block)| !matches!(block.state, BlockState::Drained(_)));
    report.missing.extend(lost.map(|(&number, _)| number));
    Ok(blocks)
}

/// The length of a block's file. Asked of each block by an open: 6 µs a block, 12 from a device.
fn file_bytes(disk: &dyn Disk, number: u64) -> Result<u64> {
    let path = block_path(number);
    let length = disk.open(&path, OpenMode::READ).and_then(|file| file.len());
    length.map_err(|error| Error::io(format!("asking for the length of {}", path.display()), &error))
}

/// Whether a block's header says it is another store's. A damaged header is no evidence of that.
fn is_foreign(disk: &dyn Disk, options: &LargeOptions, number: u64) -> bool {
    let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
    let read = disk
        .open(&block_path(number), OpenMode::READ)
        .and_then(|file| file.read_exact_at(&mut page, 0));
    let header = read.ok().and_then(|()| decode_block_header(&page));
    header.is_some_and(|header| header.store_id != options.store_id || header.block != number)
}

/// The last byte that is not zero. Pages of zeros are compared as a whole, which is as fast as
/// memory is read; byte by byte it was a third of the time of opening many small stores.
fn last_used(bytes: &[u8]) -> Option<usize> {
    const ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];
    let mut rest = bytes;
    while let Some(before) = rest.strip_suffix(&ZEROS) {
        rest = before;
    }
    rest.iter().rposition(|&byte| byte != 0)
}

/// The length of a block left open, after giving back the zeros it was preallocated with.
fn trimmed_bytes(disk: &dyn Disk, options: &LargeOptions, number: u64) -> Result<u64> {
    let path = block_path(number);
    let context = || format!("trimming {}", path.display());
    let file = disk
        .open(&path, OpenMode::READ)
        .map_err(|error| Error::io(context(), &error))?;
    let bytes = file.len().map_err(|error| Error::io(context(), &error))?;
    if options.read_only {
        return Ok(bytes);
    }
    let used = (|| {
        let mut end = bytes;
        let mut window = AlignedBuffer::new();
        while end > PAGE && bytes - end < TRIM_BYTES_MAX {
            let start = end.saturating_sub(1 << 20) / PAGE * PAGE;
            window.set_len(usize::try_from(end - start).map_err(io::Error::other)?);
            file.read_exact_at(&mut window, start)?;
            if let Some(last) = last_used(&window) {
                return Ok(start + last as u64 + 1);
            }
            end = start;
        }
        Ok(end)
    })();
    // If it cannot be read, leave it unchanged: reads of its values will report the error.
    let Ok::<u64, io::Error>(used) = used else {
        return Ok(bytes);
    };
    let keep = (used + TRIM_MARGIN_BYTES).next_multiple_of(PAGE);
    if keep >= bytes {
        return Ok(bytes);
    }
    let trimmed = disk.open(&path, OpenMode::WRITE).and_then(|file| {
        file.set_len(keep)?;
        file.sync_data()
    });
    trimmed.map_err(|error| Error::io(context(), &error))?;
    Ok(keep)
}
