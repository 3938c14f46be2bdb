//! Full devices and failing ones.

use super::*;
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
                space.sync(&found).unwrap();
                space.committed(&found, 2);
                kept.push(found);
            }
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::OutOfSpace { tier: Tier::Large, .. }), "{error}");
    // Three blocks of three values each would be 3 MiB: eight fit beside headers and LargeMeta.
    assert!(kept.len() >= 8, "{}", kept.len());
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
    space.sync(&first).unwrap();
    space.committed(&first, 1);
    let second = space.write(b"key", b"", &value, 1).unwrap();
    disk.shared.fail_syncs.store(true, Ordering::SeqCst);
    assert!(matches!(space.sync(&second), Err(Error::Failed(_))));
    disk.shared.fail_syncs.store(false, Ordering::SeqCst);
    assert!(space.sync(&second).is_err(), "a later sync would only pretend");
    assert!(matches!(space.write(b"key", b"", &value, 1), Err(Error::Failed(_))));
    assert!(matches!(space.writer(b"key", b"", None, 1), Err(Error::Failed(_))));
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
