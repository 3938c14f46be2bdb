//! Full devices and failing ones.

use super::*;
use crate::io::{Fault, FaultKind, SimDisk, Survival};
use std::sync::atomic::Ordering;

#[test]
fn a_full_device_fails_the_write_and_keeps_the_rest() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 1 << 20);
    let value = pattern(300_000, 1);
    disk.shared.capacity.store(3 << 20, Ordering::SeqCst);
    let mut kept = Vec::new();
    let error = loop {
        match space.write(b"key", b"", &value, 1) {
            Ok(found) => {
                space.sync_all(&[found]).unwrap();
                space.committed(&found, 2);
                kept.push(found);
            }
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::OutOfSpace { tier: Tier::Large, .. }), "{error}");
    // Three blocks of three values each would be 3 MiB: a quarter of them is kept for cleaning, and
    // six fit into the rest beside headers and LargeMeta.
    assert!(kept.len() >= 6, "{}", kept.len());
    assert!(matches!(
        stream(&space, b"key", &pattern(2 << 20, 1), 65_536),
        Err(Error::OutOfSpace { .. })
    ));
    assert_eq!(space.failure(), None);
    for found in &kept {
        assert_eq!(read(&space, b"key", found).unwrap(), value[..]);
    }
    disk.shared.capacity.store(30 << 20, Ordering::SeqCst);
    let found = space.write(b"key", b"", &value, 1).unwrap();
    space.committed(&found, 2);
    space.close().unwrap();
    for found in kept.iter().chain([&found]) {
        assert_eq!(
            read(&space, b"key", found).unwrap(),
            value[..],
            "after there was room again"
        );
    }
    let scanned = space
        .blocks()
        .into_iter()
        .flat_map(|block| space.scan_block(block.number).unwrap())
        .count();
    assert_eq!(scanned, kept.len() + 1, "failed writes left nothing but space");
}

/// Regression: if there was no room to drop the deleted blocks from LargeMeta, the deletion failed,
/// although their room was free: writers that waited for it were not told.
#[test]
fn a_deletion_without_room_for_large_meta_deletes_all_or_nothing() {
    let disk = SimDisk::new(1);
    let (space, _) = LargeSpace::open(Arc::new(disk.clone()), options(64 << 10)).unwrap();
    for version in 1..=3 {
        let found = space.write(b"key", b"", &pattern(70_000, version), version).unwrap();
        space.abandoned(&found);
    }
    space.seal_ready().unwrap();
    drop(space);
    let mut outcomes = Vec::new();
    for passed in 0.. {
        let disk = disk.fork(passed);
        let (space, _) = LargeSpace::open(Arc::new(disk.clone()), options(64 << 10)).unwrap();
        space.accounting_complete();
        let before = space.totals().rest_bytes;
        let blocks: Vec<(u64, u64)> = space.dead_blocks().into_iter().map(|number| (number, 9)).collect();
        assert_eq!(blocks.len(), 3);
        let growths = disk.growths();
        disk.refuse_growth(passed, u64::MAX / 2);
        let deleted = space.delete(&blocks);
        let is_over = disk.growths() - growths <= passed;
        disk.refuse_growth(0, 0);
        assert_eq!(space.failure(), None);
        match &deleted {
            Ok(numbers) => {
                assert_eq!(numbers.len(), 3);
                assert_eq!((space.totals().rest_bytes, space.dead_blocks()), (0, vec![]));
            }
            Err(Error::OutOfSpace { .. }) => {
                assert_eq!((space.totals().rest_bytes, space.dead_blocks().len()), (before, 3));
                assert_eq!(space.delete(&blocks).unwrap().len(), 3);
            }
            Err(error) => panic!("{error}"),
        }
        // Whatever LargeMeta has of them goes with its next change.
        space.write(b"key", b"", b"1", 1).unwrap();
        assert_eq!(space.space.table.lock().meta.blocks.len(), 1);
        drop(space);
        let (_, report) = LargeSpace::open(Arc::new(disk), options(64 << 10)).unwrap();
        assert_eq!((report.missing, report.unlisted), (vec![], vec![]));
        outcomes.push(deleted.is_ok());
        if is_over {
            break;
        }
    }
    assert!(outcomes.is_sorted() && outcomes.len() >= 3, "{outcomes:?}");
    assert!(!outcomes[0] && outcomes[outcomes.len() - 2], "{outcomes:?}");
}

/// Regression: a dead block whose file could not be removed ended all writes until the next open.
#[test]
fn a_block_that_cannot_be_removed_is_removed_by_the_next_open() {
    let disk = SimDisk::new(1);
    let open = || LargeSpace::open(Arc::new(disk.clone()), options(64 << 10)).unwrap();
    let (space, _) = open();
    for version in 1..=3 {
        let found = space.write(b"key", b"", &pattern(70_000, version), version).unwrap();
        space.abandoned(&found);
    }
    space.seal_ready().unwrap();
    space.accounting_complete();
    let dead = space.dead_blocks();
    let before = space.totals().rest_bytes;
    disk.set_fault(Some(Fault::new(FaultKind::Write).on(format!("{:016x}.blk", dead[1]))));
    let deleted = space
        .delete(&dead.iter().map(|&number| (number, 9)).collect::<Vec<_>>())
        .unwrap();
    disk.set_fault(None);
    assert_eq!(deleted, [dead[0], dead[2]]);
    assert_eq!(space.totals().rest_bytes, before / 3, "its space is in use");
    assert_eq!((space.failure(), space.dead_blocks()), (None, vec![]));
    space.write(b"key", b"", b"1", 4).unwrap();
    let exists = || {
        disk.files()
            .iter()
            .any(|file| file.ends_with(&format!("{:016x}.blk", dead[1])))
    };
    assert!(exists());
    drop(space);
    let (space, report) = open();
    assert_eq!((report.missing, report.unlisted), (vec![], vec![]));
    assert!(!exists() && space.totals().rest_bytes < before / 3);
}

#[test]
fn a_footer_that_does_not_fit_is_written_later() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 1 << 20);
    let found = space
        .write(b"key", b"", &pattern((1 << 20) - 4096 - 200, 1), 1)
        .unwrap();
    space.committed(&found, 2);
    disk.shared
        .capacity
        .store(disk.shared.used.load(Ordering::SeqCst), Ordering::SeqCst);
    assert!(matches!(space.close(), Err(Error::OutOfSpace { .. })));
    disk.shared.capacity.store(u64::MAX, Ordering::SeqCst);
    space.seal_ready().unwrap();
    assert!(space.scan_block(1).unwrap().has_footer());
}

#[test]
fn after_a_failed_sync_nothing_is_written_and_all_is_readable() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 1 << 20);
    let value = pattern(10_000, 1);
    let first = space.write(b"key", b"", &value, 1).unwrap();
    space.sync_all(&[first]).unwrap();
    space.committed(&first, 1);
    let second = space.write(b"key", b"", &value, 1).unwrap();
    disk.shared.fail_syncs.store(true, Ordering::SeqCst);
    assert!(matches!(space.sync_all(&[second]), Err(Error::Failed(_))));
    disk.shared.fail_syncs.store(false, Ordering::SeqCst);
    assert!(space.sync_all(&[second]).is_err(), "a later sync would only pretend");
    assert!(matches!(space.write(b"key", b"", &value, 1), Err(Error::Failed(_))));
    assert!(matches!(
        space.writer(b"key", b"", Length::AtLeast(0), 1),
        Err(Error::Failed(_))
    ));
    assert!(space.failure().unwrap().contains("lost its cache"));
    assert_eq!(read(&space, b"key", &first).unwrap(), value[..]);
    let before = disk.shared.writes.load(Ordering::SeqCst);
    space.abandoned(&second);
    let _ = space.close();
    assert_eq!(
        disk.shared.writes.load(Ordering::SeqCst),
        before,
        "the block is never written again"
    );
    drop(space);
    let (space, report) = LargeSpace::open(Arc::<MemoryDisk>::clone(&disk), options(1 << 20)).unwrap();
    assert_eq!(report.left_open, [1]);
    assert_eq!(read(&space, b"key", &first).unwrap(), value[..]);
    assert_eq!(space.write(b"key", b"", &value, 1).unwrap().block, 2);
}

/// A value above 16 MiB gives its block back before it is written. When its write failed, the block
/// was closed in the list of idle ones: the next such value was refused, and a stream of unknown
/// length was written into it.
#[test]
fn a_block_whose_write_failed_gets_no_other_value() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 128 << 20);
    let value = pattern(17 << 20, 1);
    for unknown in [false, true] {
        let mut writer = space.writer(b"key", b"", Length::Known(value.len() as u64), 1).unwrap();
        disk.shared.fail_writes.store(true, Ordering::SeqCst);
        assert!(writer.write(&value).is_err());
        disk.shared.fail_writes.store(false, Ordering::SeqCst);
        drop(writer);
        let closed = space.blocks().len() as u64;
        let found = match unknown {
            false => space.write(b"key", b"", &value, 1),
            true => stream(&space, b"key", &pattern(3 << 20, 1), 100_000),
        }
        .unwrap();
        assert_eq!(found.block, closed + 1, "another block, unknown length: {unknown}");
        space.sync_all(&[found]).unwrap();
        space.committed(&found, 2);
    }
    space.seal_ready().unwrap();
    let states = space.blocks().into_iter().map(|block| block.state);
    let sealed = states.filter(|state| *state == BlockState::Sealed).count();
    assert_eq!(sealed, 2, "those that are closed get their footers");
}

/// A region of which only a part was written stayed a region in the footer: cleaning and repair
/// walked it byte by byte, and took records whose values are not there for records.
#[test]
fn a_region_that_was_not_written_is_passed_over() {
    let disk = SimDisk::new(1);
    let (space, _) = LargeSpace::open(Arc::new(disk.clone()), options(8 << 20)).unwrap();
    let values: Vec<Vec<u8>> = (0..40).map(|seed| pattern(70_000, seed)).collect();
    let items = |version| {
        let item = move |value| DestageItem {
            key: b"key",
            attributes: b"",
            value,
            version,
        };
        values.iter().map(|value| item(value)).collect::<Vec<_>>()
    };
    let found = space.write_batch(&items(7), Origin::Recycling).unwrap();
    space.sync_all(&found).unwrap();
    // The first mebibyte gets there.
    disk.set_fault(Some(Fault::new(FaultKind::Write).on(".blk").after(1)));
    assert!(space.write_batch(&items(8), Origin::Recycling).is_err());
    disk.set_fault(None);
    space.close().unwrap();
    let scan = space.scan_block(found[0].block).unwrap();
    assert!(scan.has_footer());
    let versions: Vec<_> = scan.map(|extent| extent.unwrap().version).collect();
    assert_eq!(versions, vec![Some(7); 40]);
}

#[test]
fn a_failed_write_fails_its_value_and_closes_its_block() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 8 << 20);
    let value = pattern(10_000, 1);
    let first = space.write(b"key", b"", &value, 1).unwrap();
    space.committed(&first, 1);
    for unknown in [false, true] {
        disk.shared.fail_writes.store(true, Ordering::SeqCst);
        let failed = match unknown {
            false => space.write(b"key", b"", &value, 1),
            true => stream(&space, b"key", &pattern(3 << 20, 1), 100_000),
        };
        assert!(failed.is_err());
        disk.shared.fail_writes.store(false, Ordering::SeqCst);
    }
    if let Some(reason) = space.failure() {
        // Making the next block failed too, with the device silent: that stops the space.
        assert!(reason.contains("does not answer"));
        return;
    }
    let next = space.write(b"key", b"", &value, 1).unwrap();
    assert_ne!(next.block, first.block);
}

/// A block whose footer could not be written came to rest, and nothing had synced it. A caller that
/// asked for its values to be durable after that was told that the footer's sync had seen to it. So
/// the frame of their commits was written, and a power cut left an index that pointed behind the
/// end of the file.
#[test]
fn what_is_said_to_be_durable_is_so_although_its_block_got_no_footer() {
    let value = pattern(70_000, 1);
    for (trouble, is_durable) in [("a write fails", true), ("no room", true), ("no power", false)] {
        let disk = SimDisk::new(1);
        let (space, _) = LargeSpace::open(Arc::new(disk.clone()), options(64 << 10)).unwrap();
        let found = space.write(b"key", b"", &value, 1).unwrap();
        space.committed(&found, 2);
        // It was replaced meanwhile, by a commit that a power cut may take back.
        space.account_live(found.block, found.extent_bytes);
        space.account_dead(found.block, found.extent_bytes);
        match trouble {
            "a write fails" => disk.set_fault(Some(Fault::new(FaultKind::Write).on(".blk"))),
            "no room" => disk.refuse_growth(0, 1),
            _ => disk.power_cut(),
        }
        assert!(space.seal_ready().is_err(), "{trouble}");
        disk.set_fault(None);
        assert_eq!(space.sync_all(&[found]).is_ok(), is_durable, "{trouble}");
        assert_eq!(space.failure().is_none(), is_durable, "{trouble}");
        drop(space);
        disk.power_cycle(Survival::Nothing);
        let (space, _) = LargeSpace::open(Arc::new(disk.clone()), options(64 << 10)).unwrap();
        let found = read(&space, b"key", &found);
        assert_eq!(found.is_ok_and(|found| found == value[..]), is_durable, "{trouble}");
    }
}

/// Regression: a block whose footer could not be written was in no list any more: it was never
/// sealed, drained or deleted, even without live values, until the next open.
#[test]
fn a_block_whose_footer_cannot_be_written_is_read_without_it_and_deleted_once_it_is_dead() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 1 << 20);
    space.accounting_complete();
    let value = pattern((1 << 20) - 4096 - 200, 1);
    let found = space.write(b"key", b"", &value, 1).unwrap();
    space.committed(&found, 2);
    space.account_live(found.block, found.extent_bytes);
    disk.shared.fail_writes.store(true, Ordering::SeqCst);
    let failed = space.seal_ready();
    assert!(matches!(failed, Err(Error::Io { .. })), "{failed:?}");
    disk.shared.fail_writes.store(false, Ordering::SeqCst);
    assert_eq!(space.failure(), None);
    assert_eq!(read(&space, b"key", &found).unwrap(), value[..]);
    assert_eq!(space.shares().len(), 1, "it is at rest");
    assert!(!space.is_giving_room());
    space.account_dead(found.block, found.extent_bytes);
    assert!(space.is_giving_room());
    assert_eq!(space.dead_blocks(), [found.block]);
    assert!(space.delete_one(found.block, 3).unwrap());
    assert!(!space.is_giving_room());
    assert!(!space.blocks().iter().any(|block| block.number == found.block));
}

/// A block that was full of values on their way, as that of a slow upload, looked as if it were
/// about to be deleted: writers without room waited for it in vain.
#[test]
fn a_full_block_with_a_value_on_its_way_gives_no_room() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 1 << 20);
    space.accounting_complete();
    let value = pattern((1 << 20) - 4096 - 200, 1);
    let found = space.write(b"key", b"", &value, 1).unwrap();
    assert!(!space.is_giving_room());
    space.abandoned(&found);
    assert!(space.is_giving_room(), "it will not be asked for");
    space.seal_ready().unwrap();
    assert_eq!(space.dead_blocks(), [found.block]);
    assert!(space.delete_one(found.block, 1).unwrap());
    assert!(!space.is_giving_room());
}

/// Whenever LargeMeta had no room for a block that was sealed, the footer was counted once more: a
/// store with a capacity said in the end that it was full.
#[test]
fn a_block_that_is_sealed_again_and_again_counts_once() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 1 << 20);
    let found = space
        .write(b"key", b"", &pattern((1 << 20) - 4096 - 200, 1), 1)
        .unwrap();
    space.committed(&found, 2);
    // There is room for the footer, and for no LargeMeta.
    let before = space.totals().allocated_bytes;
    disk.shared.fail_new_files.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        assert!(matches!(space.seal_ready(), Err(Error::OutOfSpace { .. })));
    }
    let counted = space.totals().allocated_bytes;
    assert!((before..=before + 4096).contains(&counted), "{before} {counted}");
    disk.shared.fail_new_files.store(false, Ordering::SeqCst);
    space.seal_ready().unwrap();
    assert!(space.scan_block(1).unwrap().has_footer());
    let files: u64 = space.blocks().iter().map(|block| block.bytes).sum();
    assert_eq!(space.totals().allocated_bytes, files);
}

/// Connections took all file descriptors of a server. The next block could not be made, and the
/// store refused writes until it was opened again, although nothing had been written.
#[test]
fn without_a_file_descriptor_a_write_is_refused_and_the_next_one_is_not() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 1 << 20);
    let value = pattern(300_000, 1);
    for number in 0..8 {
        disk.shared.lacks_descriptor.store(true, Ordering::SeqCst);
        // Those that fit into the block that is open need none.
        let refused = space.write(b"refused", b"", &value, 1);
        assert!(
            matches!(refused, Ok(_) | Err(Error::Unavailable(_))),
            "{number}: {refused:?}"
        );
        disk.shared.lacks_descriptor.store(false, Ordering::SeqCst);
        let written = space.write(b"key", b"", &value, 1).unwrap();
        space.committed(&written, 2);
    }
    let files: u64 = space.blocks().iter().map(|block| block.bytes).sum();
    assert_eq!(space.totals().allocated_bytes, files);
}
