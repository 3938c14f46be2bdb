//! Writing behind: reads of what is not written, failures, the bound on memory, power cuts.

use super::*;
use crate::{
    blocks::queue::{LARGE_GATHER_BYTES, LARGE_GATHER_MAX},
    io::{FaultKind, SimDisk, Survival},
};
use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

fn eventually(what: &str, done: impl Fn() -> bool) {
    for _ in 0..12_000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("{what} did not happen");
}

#[test]
fn a_value_is_read_whole_and_by_range_before_it_is_written() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 64 << 20);
    for length in [0, 1, 4000, 131_072, 1 << 20] {
        let gate = disk.shared.gate.lock();
        let value = pattern(length, 3);
        let found = write_behind(&space, b"key", &value).unwrap();
        let before = disk.shared.reads.load(Ordering::SeqCst);
        assert_eq!(read(&space, b"key", &found).unwrap(), value);
        let reader = space.open_value(&found.extent()).unwrap();
        assert_eq!(reader.header().unwrap().key, b"key");
        for (start, end) in [(0, length), (length / 3, length / 2), (length, length)] {
            let mut out = Vec::new();
            reader.read_range(start as u64..end as u64, &mut out).unwrap();
            assert_eq!(out, value[start..end]);
        }
        if length > 4096 {
            assert_eq!(
                disk.shared.reads.load(Ordering::SeqCst),
                before,
                "it is not on the device"
            );
        }
        assert!(matches!(read(&space, b"other", &found), Err(Error::Corruption { .. })));
        let longer = LargeValue {
            extent_bytes: found.extent_bytes + (1 << 20),
            length: found.length + (1 << 20) - 64,
            ..found
        };
        assert!(matches!(read(&space, b"key", &longer), Err(Error::Corruption { .. })));
        // The same reader finds it on the device afterwards.
        drop(gate);
        space.sync_all(&[found]).unwrap();
        let before = disk.shared.reads.load(Ordering::SeqCst);
        assert_eq!(reader.read_all(b"key").unwrap(), value);
        assert!(disk.shared.reads.load(Ordering::SeqCst) > before);
    }
}

/// A batch that was to be durable had its values synced one by one: most of those written behind
/// were not all written at the first sync, so each sync found only some, and there was one for
/// nearly each of them.
#[test]
fn values_of_one_batch_are_synced_at_once_when_all_are_written() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 64 << 20);
    let gate = disk.shared.gate.lock();
    let found: Vec<_> = (0..10_u64)
        .map(|seed| write_behind(&space, b"key", &pattern(600_000, seed)).unwrap())
        .collect();
    assert!(found.iter().all(|value| value.block == found[0].block));
    let before = disk.shared.syncs.load(Ordering::SeqCst);
    std::thread::scope(|scope| {
        let synced = scope.spawn(|| space.sync_all(&found));
        drop(gate);
        synced.join().unwrap().unwrap();
    });
    assert_eq!(disk.shared.syncs.load(Ordering::SeqCst) - before, 1);
}

#[test]
fn neighbours_are_written_in_one_request_and_once() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 64 << 20);
    let gate = disk.shared.gate.lock();
    let values: Vec<_> = (0..40_u64).map(|seed| pattern(131_072, seed)).collect();
    let found: Vec<_> = values
        .iter()
        .map(|value| write_behind(&space, b"key", value).unwrap())
        .collect();
    let before = disk.shared.writes.load(Ordering::SeqCst);
    drop(gate);
    space.sync_all(&found).unwrap();
    // Two writes were under way, of one extent or a few; the others went out by seven, which is all
    // a mebibyte holds.
    assert!(disk.shared.requests.load(Ordering::SeqCst) <= 8);
    assert_eq!(disk.shared.longest.load(Ordering::SeqCst), 7 * 33 * 4096);
    assert!(disk.shared.writes.load(Ordering::SeqCst) - before <= 40);
    assert_eq!(space.counters().user_bytes, 40 * 33 * 4096);
    drop(space);
    let (space, _) = LargeSpace::open(Arc::<MemoryDisk>::clone(&disk), options(64 << 20)).unwrap();
    for (value, found) in values.iter().zip(&found) {
        assert_eq!(read(&space, b"key", found).unwrap(), value[..]);
    }
}

#[test]
fn more_than_the_queue_holds_has_to_wait() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 64 << 20);
    let value = pattern(1 << 20, 5);
    let gate = disk.shared.gate.lock();
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..6 {
                    write_behind(&space, b"key", &value).unwrap();
                    written.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        eventually("the queue filling up", || {
            space.space.queue.bytes() + (1 << 20) > crate::blocks::queue::QUEUED_BYTES_MAX
        });
        // Each may have handed one over and not counted it yet.
        eventually("counting", || written.load(Ordering::SeqCst) >= 5);
        std::thread::sleep(Duration::from_millis(50));
        assert!(space.space.queue.bytes() <= crate::blocks::queue::QUEUED_BYTES_MAX);
        let waiting = written.load(Ordering::SeqCst);
        assert!(
            (5..8).contains(&waiting),
            "{waiting} values of a mebibyte and a page wait"
        );
        drop(gate);
    });
    assert_eq!(written.load(Ordering::SeqCst), 18);
    space.close().unwrap();
    eventually("the queue being empty", || space.space.queue.bytes() == 0);
}

#[test]
fn a_failed_write_behind_fails_its_values_and_no_others() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 64 << 20);
    let value = pattern(100_000, 1);
    let good = write_behind(&space, b"good", &value).unwrap();
    space.sync_all(&[good]).unwrap();
    space.committed(&good, 3);
    let gate = disk.shared.gate.lock();
    let bad = write_behind(&space, b"bad", &value).unwrap();
    let given_up = write_behind(&space, b"given up", &value).unwrap();
    disk.shared.fail_writes.store(true, Ordering::SeqCst);
    // As a buffered commit does: before it is known whether the value can be written.
    space.committed(&bad, 4);
    drop(gate);
    let error = space.sync_all(&[bad]).unwrap_err();
    assert!(error.to_string().contains("does not answer"), "{error}");
    assert!(space.sync_all(&[good, bad]).is_err());
    assert!(space.sync_all(&[given_up]).is_err());
    space.abandoned(&given_up);
    disk.shared.fail_writes.store(false, Ordering::SeqCst);
    space.sync_all(&[good]).unwrap();
    assert!(space.sync_all(&[bad]).is_err(), "it stays failed");
    assert_eq!(read(&space, b"bad", &bad).unwrap(), value, "reads go on");
    assert!(
        read(&space, b"given up", &given_up).is_err(),
        "no reader has it, so its memory is free"
    );
    assert_eq!(space.failure(), None);
    let next = write_behind(&space, b"next", &value).unwrap();
    assert_ne!(next.block, good.block, "the block gets no more values");
    space.sync_all(&[next]).unwrap();
    space.committed(&next, 5);
    space.close().unwrap();
    let scan = space.scan_block(good.block).unwrap();
    assert!(scan.has_footer());
    let versions: Vec<_> = scan.map(|extent| extent.unwrap().version).collect();
    assert_eq!(
        versions,
        [Some(3)],
        "a value that was not written has no version, committed or not"
    );
}

#[test]
fn after_a_failed_sync_nothing_that_waits_is_written() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 64 << 20);
    let value = pattern(100_000, 1);
    let first = space.write(b"first", b"", &value, 1).unwrap();
    let gate = disk.shared.gate.lock();
    let under_way: Vec<_> = (0..60).map(|_| write_behind(&space, b"key", &value).unwrap()).collect();
    eventually("a write being under way", || space.space.queue.waiting() < 60);
    disk.shared.fail_syncs.store(true, Ordering::SeqCst);
    assert!(matches!(space.sync_all(&[first]), Err(Error::Failed(_))));
    let before = disk.shared.writes.load(Ordering::SeqCst);
    drop(gate);
    for value in &under_way {
        assert!(space.sync_all(std::slice::from_ref(value)).is_err());
    }
    // The two writes that were under way when the sync failed may end, each of ten at most; what
    // waited is not written.
    let written = disk.shared.writes.load(Ordering::SeqCst) - before;
    assert!(written <= 20, "{written}");
    assert!(write_behind(&space, b"key", &value).is_err());
}

/// Regression: a panic ended one of the writing threads, and its writes never ended: a caller that
/// synced them waited forever, such as the thread that writes the log.
#[test]
fn a_panic_of_a_write_behind_fails_the_space_and_nobody_waits() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 64 << 20);
    let value = pattern(100_000, 1);
    let gate = disk.shared.gate.lock();
    let found: Vec<_> = (0..30).map(|_| write_behind(&space, b"key", &value).unwrap()).collect();
    disk.shared.panics.store(true, Ordering::SeqCst);
    drop(gate);
    let (ended, ends) = std::sync::mpsc::channel();
    let syncing = space.clone();
    std::thread::spawn(move || {
        let errors: Vec<String> = found
            .iter()
            .map(|value| syncing.sync_all(std::slice::from_ref(value)).unwrap_err().to_string())
            .collect();
        ended.send(errors)
    });
    let errors = ends.recv_timeout(Duration::from_secs(60)).expect("a sync waits");
    assert!(errors.iter().all(|error| error.contains("panicked")), "{errors:?}");
    disk.shared.panics.store(false, Ordering::SeqCst);
    assert!(matches!(space.write(b"key", b"", &value, 1), Err(Error::Failed(_))));
    assert!(matches!(write_behind(&space, b"key", &value), Err(Error::Failed(_))));
    drop(space);
}

#[test]
fn dropping_the_space_ends_its_threads_and_writes_what_was_accepted() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 64 << 20);
    let value = pattern(200_000, 9);
    let found: Vec<_> = (0..10).map(|_| write_behind(&space, b"key", &value).unwrap()).collect();
    drop(space);
    assert_eq!(Arc::strong_count(&disk), 1, "nothing holds the disk any more");
    let (space, _) = LargeSpace::open(Arc::<MemoryDisk>::clone(&disk), options(64 << 20)).unwrap();
    for found in &found {
        assert_eq!(read(&space, b"key", found).unwrap(), value);
    }
}

/// Writes values behind and syncs groups of them; keeps what was synced, and what may be there.
fn write_groups(
    space: &LargeSpace,
    synced: &mut Vec<(u64, LargeValue)>,
    possible: &mut Vec<(u64, LargeValue)>,
) -> Result<()> {
    for group in 0..8_u64 {
        let mut found = Vec::new();
        for number in group * 10..group * 10 + 1 + group {
            let value = write_behind(space, b"key", &pattern(3_000 * (number as usize % 7) + 5_000, number))?;
            possible.push((number, value));
            found.push((number, value));
        }
        // One that no caller waits for is on its way while the others are synced.
        let ahead = write_behind(space, b"key", &pattern(20_000, 999))?;
        space.sync_all(&found.iter().map(|(_, value)| *value).collect::<Vec<_>>())?;
        for (number, value) in &found {
            space.committed(value, number + 1);
        }
        synced.append(&mut found);
        space.abandoned(&ahead);
        space.seal_ready()?;
    }
    space.close()
}

#[test]
fn a_power_cut_takes_nothing_that_was_synced() {
    let whole = SimDisk::new(1);
    let open_sim = |disk: &SimDisk| LargeSpace::open(Arc::new(disk.clone()), options(256 << 10));
    write_groups(&open_sim(&whole).unwrap().0, &mut Vec::new(), &mut Vec::new()).unwrap();
    let operations = whole.operations();
    assert!(operations > 80, "{operations}");
    for cut in 0..operations {
        let disk = SimDisk::new(cut);
        let survival = Survival::ALL[cut as usize % Survival::ALL.len()];
        let context = format!("cut after {cut} operations, {survival:?} survives");
        disk.set_survival(survival);
        disk.cut_after(cut);
        let (mut synced, mut possible) = (Vec::new(), Vec::new());
        let _ = open_sim(&disk).and_then(|(space, _)| write_groups(&space, &mut synced, &mut possible));
        disk.power_cut();
        disk.restore_power();
        let (space, report) = open_sim(&disk).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert!(report.missing.is_empty(), "{context}");
        let expected = |number: u64| pattern(3_000 * (number as usize % 7) + 5_000, number);
        for (number, value) in &synced {
            assert_eq!(read(&space, b"key", value).unwrap(), expected(*number), "{context}");
        }
        for (number, value) in &possible {
            match read(&space, b"key", value) {
                Ok(bytes) => assert_eq!(bytes, expected(*number), "{context}"),
                Err(error) => assert!(matches!(error, Error::Corruption { .. }), "{context}: {error}"),
            }
        }
        for block in space.blocks() {
            for extent in space.scan_block(block.number).unwrap().filter_map(Result::ok) {
                let known = |(number, value): &(u64, LargeValue)| {
                    (value.block, value.offset) == (block.number, extent.offset) && extent.version == Some(number + 1)
                };
                assert!(
                    extent.version.is_none() || synced.iter().any(known),
                    "{context}: {extent:?}"
                );
            }
        }
    }
}

#[test]
fn failing_devices_never_lose_what_was_synced() {
    for seed in 0..60 {
        let kind = if seed % 2 == 0 {
            FaultKind::Sync
        } else {
            FaultKind::Write
        };
        let disk = SimDisk::new(seed);
        disk.fail_after(seed / 2 + 4, kind);
        let (mut synced, mut possible) = (Vec::new(), Vec::new());
        let open_sim = || LargeSpace::open(Arc::new(disk.clone()), options(256 << 10));
        let (space, _) = match open_sim() {
            Ok(opened) => opened,
            Err(_) => continue,
        };
        assert!(write_groups(&space, &mut synced, &mut possible).is_err(), "seed {seed}");
        drop(space);
        disk.set_fault(None);
        disk.power_cycle(Survival::Nothing);
        let (space, _) = open_sim().unwrap();
        for (number, value) in &synced {
            let expected = pattern(3_000 * (*number as usize % 7) + 5_000, *number);
            assert_eq!(read(&space, b"key", value).unwrap(), expected, "seed {seed}, {kind:?}");
        }
    }
}

/// Each buffered value of 128 KiB was a write, a sync and so two or three seeks of its own: beside
/// 30 of them a second readers of a disk kept three tenths of their rate.
#[test]
fn beside_readers_of_a_disk_that_seeks_values_gather() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 64 << 20);
    while !space.seeks() {
        let slow = space.paces().large.read();
        std::thread::sleep(Duration::from_millis(20));
        drop(slow);
    }
    let value = pattern(100_000, 1);
    let begun = Instant::now();
    let found: Vec<_> = (0..8).map(|_| write_behind(&space, b"key", &value).unwrap()).collect();
    std::thread::sleep(Duration::from_millis(50));
    if begun.elapsed() < LARGE_GATHER_MAX {
        assert_eq!(space.space.queue.waiting(), 8);
    }
    assert_eq!(read(&space, b"key", &found[0]).unwrap(), value, "from RAM");

    // A caller that waits for one of them has all written, and not one by one.
    let begun = Instant::now();
    let before = disk.shared.requests.load(Ordering::SeqCst);
    space.sync_all(&[found[7]]).unwrap();
    assert!(begun.elapsed() < LARGE_GATHER_MAX, "no write waits for more to come");
    assert_eq!(space.space.queue.waiting(), 0);
    assert!(disk.shared.requests.load(Ordering::SeqCst) - before <= 2);

    // With enough of them, or after a while, they are written though no caller waits.
    let many = LARGE_GATHER_BYTES / value.len() + 1;
    let begun = Instant::now();
    for _ in 0..many {
        write_behind(&space, b"key", &value).unwrap();
    }
    eventually("they are enough", || space.space.queue.waiting() == 0);
    let at_once = begun.elapsed();
    let begun = Instant::now();
    write_behind(&space, b"key", &value).unwrap();
    eventually("it is old enough", || space.space.queue.waiting() == 0);
    assert!(begun.elapsed() >= LARGE_GATHER_MAX, "and {at_once:?} for many");

    // A block that comes to rest does not wait for more, either.
    write_behind(&space, b"key", &value).unwrap();
    let begun = Instant::now();
    space.close().unwrap();
    assert!(begun.elapsed() < LARGE_GATHER_MAX);
}
