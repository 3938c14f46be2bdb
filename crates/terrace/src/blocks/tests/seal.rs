//! The life of blocks, LargeMeta, accounting.

use super::{
    meta::{decode_meta, meta_path},
    *,
};
use crate::io::SimDisk;

fn reopen(disk: &Arc<MemoryDisk>) -> (LargeSpace, OpenReport) {
    LargeSpace::open(Arc::<MemoryDisk>::clone(disk), options(1 << 20)).unwrap()
}

fn fill(space: &LargeSpace, blocks: u64) -> Vec<LargeValue> {
    let value = pattern(900_000, 1);
    let write = |version| {
        let found = space.write(b"key", b"", &value, version).unwrap();
        space.sync_all(&[found]).unwrap();
        space.committed(&found, version);
        found
    };
    (1..=blocks).map(write).collect()
}

#[test]
fn blocks_are_sealed_when_their_extents_are_settled() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 1 << 20);
    let mut pending = space.writer(b"slow", b"", Length::Known(3), 1).unwrap();
    let found = fill(&space, 3);
    space.seal_ready().unwrap();
    let states: Vec<BlockState> = space.blocks().iter().map(|block| block.state).collect();
    // The last one is ready for what comes next.
    let [open, sealed] = [BlockState::Open, BlockState::Sealed];
    assert_eq!(states, [open, sealed, open, open]);
    pending.write(b"abc").unwrap();
    let slow = pending.finish().unwrap();
    space.committed(&slow, 50);
    space.seal_ready().unwrap();
    assert_eq!(space.blocks()[0].state, BlockState::Sealed);
    assert_eq!(read(&space, b"slow", &slow).unwrap(), &b"abc"[..]);
    let versions: Vec<_> = space
        .scan_block(1)
        .unwrap()
        .map(|extent| extent.unwrap().version.unwrap())
        .collect();
    assert_eq!(versions, [50, 1]);
    let sealed = disk.file(&block_path(found[1].block)).bytes.lock().len() as u64;
    assert_eq!(space.blocks()[1].bytes, sealed);
    assert!(
        sealed < 900_000 + 5 * 4096,
        "what was preallocated and not used is given back: {sealed}"
    );
}

/// Regression: three values of 16 MiB, with their checksums, fit into a block of 64 MiB, and no
/// fourth does. The block stayed open, so each three values left another one: 47 of them behind 139
/// PUTs that overwrote 256 MiB. They could neither be drained nor deleted, until shorter values
/// filled them up and all of them counted at once.
#[test]
fn a_block_without_room_for_the_next_long_value_is_sealed_and_deleted() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 40 << 20);
    space.accounting_complete();
    for _ in 0..6 {
        drop(space.writer(b"key", b"", Length::Known(17 << 20), 1).unwrap());
    }
    space.seal_ready().unwrap();
    let states: Vec<BlockState> = space.blocks().iter().map(|block| block.state).collect();
    let [open, sealed] = [BlockState::Open, BlockState::Sealed];
    assert_eq!(states, [sealed, sealed, open]);
    assert_eq!(space.dead_blocks(), [1, 2]);
}

/// Regression: blocks of a length that is no multiple of a page, such as 100 MB. A value that fits
/// into the last part of one, though its last page does not, was refused with `Unavailable`.
#[test]
fn a_value_whose_last_page_does_not_fit_gets_another_block() {
    const SPLIT_BYTES: u64 = (40 << 20) + 1000;
    let disk = MemoryDisk::new();
    let space = open(&disk, SPLIT_BYTES);
    drop(space.writer(b"key", b"", Length::Known(20 << 20), 1).unwrap());
    let tail = 4096 + format::extent_bytes(3, 0, 20 << 20).next_multiple_of(4096);
    let ends_in_last_page = |length: &u64| tail + format::extent_bytes(3, 0, *length) == SPLIT_BYTES - 1;
    let length = (17 << 20..20 << 20).find(ends_in_last_page).unwrap();
    drop(space.writer(b"key", b"", Length::Known(length), 1).unwrap());
    space.close().unwrap();
    assert_eq!(space.blocks().len(), 2);
}

/// The length of a value does not close a block in which little is.
#[test]
fn a_block_that_is_less_than_half_full_waits_for_values_that_fit() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 40 << 20);
    let short = stream(&space, b"short", &pattern(100_000, 1), 50_000).unwrap();
    drop(space.writer(b"key", b"", Length::Known(40 << 20), 1).unwrap());
    let next = stream(&space, b"next", &pattern(100_000, 2), 50_000).unwrap();
    assert_eq!((short.block, next.block), (1, 1));
}

#[test]
fn a_huge_value_makes_a_large_block() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 1 << 20);
    let value = pattern(30 << 20, 1);
    let small = space.write(b"small", b"", &[1; 100], 1).unwrap();
    let known = space.write(b"key", b"", &value, 1).unwrap();
    let unknown = stream(&space, b"key", &value, 1 << 20).unwrap();
    assert_ne!(known.block, unknown.block);
    assert_ne!(small.block, known.block);
    for found in [small, known, unknown] {
        space.committed(&found, 1);
    }
    space.close().unwrap();
    assert_eq!(read(&space, b"key", &known).unwrap(), value[..]);
    assert_eq!(read(&space, b"key", &unknown).unwrap(), value[..]);
}

#[test]
fn dead_blocks_are_deleted_once_nobody_reads_them() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 1 << 20);
    let found = fill(&space, 3);
    space.close().unwrap();
    assert_eq!(
        space.dead_blocks(),
        [] as [u64; 0],
        "not before the accounting is complete"
    );
    assert!(!space.delete_one(found[0].block, 9).unwrap());
    space.accounting_complete();
    assert_eq!(space.dead_blocks(), [] as [u64; 0], "written, but not applied yet");
    found
        .iter()
        .for_each(|value| space.account_live(value.block, value.extent_bytes));
    assert_eq!(space.dead_blocks(), [] as [u64; 0]);
    assert!(!space.delete_one(found[0].block, 9).unwrap());
    space.account_dead(found[0].block, found[0].extent_bytes);
    assert_eq!(space.dead_blocks(), [found[0].block]);
    let block = found[0].block;
    let reader = space.open_value(&found[0].extent()).unwrap();
    assert!(!space.delete_one(block, 9).unwrap(), "it is being read");
    assert_eq!(reader.read_all(b"key").unwrap().len(), 900_000);
    drop(reader);
    assert!(space.delete_one(block, 9).unwrap());
    assert!(!disk.files.lock().contains_key(&block_path(block)));
    assert!(read(&space, b"key", &found[0]).is_err());
    assert_eq!(read(&space, b"key", &found[1]).unwrap().len(), 900_000);
    drop(space);
    let space = open(&disk, 1 << 20);
    let next = space.write(b"key", b"", b"1", 1).unwrap();
    assert_eq!(
        next.block, 5,
        "numbers are not reused, not even that of a block nothing came into"
    );
}

/// Each deletion had five syncs of its own, which writers that were held by some dozens of dead
/// blocks waited for.
#[test]
fn blocks_that_are_deleted_together_cost_the_syncs_of_one() {
    let disk = SimDisk::new(1);
    let (space, _) = LargeSpace::open(Arc::new(disk.clone()), options(64 << 10)).unwrap();
    space.accounting_complete();
    for version in 1..=5 {
        let found = space.write(b"key", b"", &pattern(70_000, version), version).unwrap();
        space.abandoned(&found);
    }
    space.seal_ready().unwrap();
    let dead = space.dead_blocks();
    assert_eq!(dead.len(), 5);
    let syncs = |blocks: &[u64]| {
        let before = disk.counters().syncs;
        let asked: Vec<(u64, u64)> = blocks.iter().map(|&block| (block, 9)).collect();
        assert_eq!(space.delete(&asked).unwrap(), blocks);
        disk.counters().syncs - before
    };
    let of_one = syncs(&dead[..1]);
    assert!(of_one > 0);
    assert_eq!(syncs(&dead[1..]), of_one);
    assert_eq!(space.blocks(), []);
    drop(space);
    let (_, report) = LargeSpace::open(Arc::new(disk), options(64 << 10)).unwrap();
    assert_eq!(report, OpenReport::default());
}

#[test]
fn the_next_block_is_made_when_one_is_half_full() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 1 << 20);
    let value = pattern(400_000, 1);
    let first = space.write(b"key", b"", &value, 1).unwrap();
    assert_eq!(space.blocks().len(), 1);
    // No room for another block: writers that use this one are not affected.
    let used = disk.shared.used.load(Ordering::SeqCst);
    disk.shared.capacity.store(used, Ordering::SeqCst);
    let second = space.write(b"key", b"", &value, 1).unwrap();
    assert_eq!((first.block, second.block, space.blocks().len()), (1, 1, 1));
    assert!(matches!(
        space.write(b"key", b"", &value, 1),
        Err(Error::OutOfSpace { .. })
    ));
    disk.shared.capacity.store(u64::MAX, Ordering::SeqCst);
    for _ in 0..2 {
        space.write(b"key", b"", &value, 1).unwrap();
    }
    let numbers: Vec<u64> = space.blocks().iter().map(|block| block.number).collect();
    assert_eq!(numbers.len(), 3);
    let last = (0..2).map(|_| space.write(b"key", b"", &value, 1).unwrap().block).min();
    assert_eq!(last, numbers.last().copied(), "it is the one that is used next");
}

#[test]
fn an_interrupted_deletion_is_finished() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 1 << 20);
    let found = fill(&space, 1);
    space.close().unwrap();
    let file = disk.file(&block_path(found[0].block));
    space.accounting_complete();
    space.account_live(1, found[0].extent_bytes);
    space.account_dead(1, found[0].extent_bytes);
    assert!(space.delete_one(1, 9).unwrap());
    let newest = space.meta_version();
    drop(space);
    // As if the crash came before the removal and the last LargeMeta were durable.
    disk.files.lock().insert(block_path(1), file);
    disk.remove(&meta_path(newest)).unwrap();
    let space = open(&disk, 1 << 20);
    assert!(space.blocks().is_empty());
    assert!(!disk.files.lock().contains_key(&block_path(1)));
}

#[test]
fn meta_is_rebuilt_from_blocks() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 1 << 20);
    let found = fill(&space, 4);
    space.close().unwrap();
    let before = space.blocks();
    drop(space);
    let metas: Vec<PathBuf> = disk
        .files
        .lock()
        .keys()
        .filter(|path| path.starts_with("meta"))
        .cloned()
        .collect();
    assert_eq!(metas.len(), 4, "the last four versions are kept");
    let numbers: Vec<u64> = metas
        .iter()
        .map(|path| decode_meta(&disk.file(path).bytes.lock()).unwrap().number)
        .collect();
    assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{numbers:?}");
    // The newest is damaged: the one before it and the blocks say the same.
    disk.file(&metas[3]).bytes.lock()[20] ^= 1;
    let (space, report) = reopen(&disk);
    assert_eq!((report.damaged_meta.len(), report.rebuilt), (1, false));
    assert_eq!(space.blocks(), before);
    drop(space);
    // All are gone.
    disk.files.lock().retain(|path, _| !path.starts_with("meta"));
    let (space, report) = reopen(&disk);
    assert!(report.rebuilt && report.unlisted.len() == 4, "{report:?}");
    assert_eq!(space.blocks(), before);
    for value in &found {
        assert_eq!(read(&space, b"key", value).unwrap().len(), 900_000);
    }
    drop(space);
    let space = open(&disk, 1 << 20);
    assert!(space.write(b"key", b"", b"1", 1).unwrap().block > 4);
}

#[test]
fn what_does_not_match_is_reported() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 1 << 20);
    let found = fill(&space, 3);
    space.close().unwrap();
    drop(space);
    let moved = disk.files.lock().remove(&block_path(2)).unwrap();
    disk.files.lock().insert(block_path(77), moved);
    disk.open(Path::new("blocks/notes.txt"), OpenMode::CREATE).unwrap();
    let (space, mut report) = reopen(&disk);
    report.foreign.sort();
    assert_eq!(report.missing, [2]);
    assert_eq!(report.foreign, ["000000000000004d.blk", "notes.txt"]);
    assert!(matches!(read(&space, b"key", &found[1]), Err(Error::Corruption { .. })));
    assert_eq!(read(&space, b"key", &found[2]).unwrap().len(), 900_000);
    assert!(
        disk.files.lock().contains_key(&block_path(77)),
        "what is not ours is left alone"
    );
}

/// Taken in steps ext4 scatters a block, and each step keeps its writers waiting.
#[test]
fn the_next_block_takes_its_space_at_once_before_anybody_writes_it() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 32 << 20);
    let taken = |number| disk.file(&block_path(number)).bytes.lock().len();
    let mut lengths = Vec::new();
    while disk.open(&block_path(2), OpenMode::READ).is_err() {
        space.write(b"key", b"", &pattern(500_000, 1), 1).unwrap();
        if lengths.last() != Some(&taken(1)) {
            lengths.push(taken(1));
        }
    }
    assert!(
        lengths[0] < 10 << 20 && lengths.len() > 1,
        "a store of one small value needs no whole block: {lengths:?}"
    );
    assert_eq!(taken(2), 32 << 20);
}

#[test]
fn a_block_left_open_is_only_read_and_trimmed() {
    let disk = MemoryDisk::new();
    let space = LargeSpace::open(Arc::<MemoryDisk>::clone(&disk), options(64 << 20))
        .unwrap()
        .0;
    let found = space.write(b"key", b"", &pattern(100_000, 1), 1).unwrap();
    space.sync_all(&[found]).unwrap();
    drop(space);
    assert!(disk.file(&block_path(1)).bytes.lock().len() >= 8 << 20);
    let read_only = LargeOptions {
        read_only: true,
        ..options(64 << 20)
    };
    let (space, report) = LargeSpace::open(Arc::<MemoryDisk>::clone(&disk), read_only).unwrap();
    assert_eq!(report.left_open, [1]);
    assert!(matches!(space.write(b"key", b"", b"1", 1), Err(Error::Unavailable(_))));
    assert_eq!(read(&space, b"key", &found).unwrap().len(), 100_000);
    drop(space);
    let (space, report) = reopen(&disk);
    assert_eq!(report.left_open, [1], "opening read-only changed nothing");
    assert_eq!(read(&space, b"key", &found).unwrap().len(), 100_000);
    assert!(disk.file(&block_path(1)).bytes.lock().len() < 300_000);
    assert_eq!(space.write(b"key", b"", b"1", 1).unwrap().block, 2);
    let scanned: Vec<_> = space.scan_block(1).unwrap().map(Result::unwrap).collect();
    assert_eq!(
        (scanned.len(), scanned[0].offset, scanned[0].version),
        (1, found.offset, None)
    );
}

#[test]
fn accounting_survives() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 1 << 20);
    let found = fill(&space, 3);
    for value in &found {
        space.account_live(value.block, value.extent_bytes);
    }
    space.account_dead(2, found[1].extent_bytes);
    let live = space.account();
    let listed: Vec<_> = live.iter().copied().filter(|(_, bytes)| *bytes > 0).collect();
    let of = |value: &LargeValue| live_bytes_of(value.extent_bytes);
    assert_eq!(listed, [(1, of(&found[0])), (3, of(&found[2]))]);
    space.close().unwrap();
    drop(space);
    let space = open(&disk, 1 << 20);
    space.restore_live(&live);
    space.accounting_complete();
    assert_eq!(space.dead_blocks(), [2]);
    assert_eq!(space.totals().live_bytes, of(&found[0]) + of(&found[2]));
}

#[test]
fn a_block_never_used_is_taken_back() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 1 << 20);
    // Reserving makes the block; the reservation itself fails for lack of space.
    disk.shared.capacity.store(20_000, Ordering::SeqCst);
    assert!(space.write(b"key", b"", &pattern(100_000, 1), 1).is_err());
    space.close().unwrap();
    assert!(disk.files.lock().keys().all(|path| path.starts_with("meta")));
    drop(space);
    open(&disk, 1 << 20);
}

#[test]
fn numbers_of_deleted_blocks_are_not_reused_even_if_all_meta_is_damaged() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 1 << 20);
    let found = fill(&space, 3);
    space.close().unwrap();
    found
        .iter()
        .for_each(|value| space.account_live(value.block, value.extent_bytes));
    space.account_dead(3, found[2].extent_bytes);
    space.accounting_complete();
    assert!(space.delete_one(3, 9).unwrap());
    drop(space);
    let files = disk.files.lock();
    let metas = files.iter().filter(|(path, _)| path.starts_with("meta"));
    metas.for_each(|(_, file)| file.bytes.lock()[9] ^= 1);
    drop(files);
    let (space, report) = reopen(&disk);
    assert!(report.rebuilt && report.damaged_meta.len() == 4, "{report:?}");
    assert!(space.write(b"key", b"", b"1", 1).unwrap().block > 3);
}
