//! Tests of the simulated disk: what survives a power cut, what faults do.
#![allow(clippy::unwrap_used)]

use super::{super::AlignedBuffer, inode::SECTOR_BYTES, random::Random, *};
use std::{collections::BTreeSet, io::ErrorKind};

mod names;

fn path(path: &str) -> &Path {
    Path::new(path)
}

/// A file that is there after any cut.
fn create(disk: &SimDisk, name: &str) -> Arc<dyn DiskFile> {
    let file = disk.open(path(name), OpenMode::CREATE).unwrap();
    disk.sync_dir(path(names::parent(name))).unwrap();
    file
}

fn sector_of(content: &[u8], sector: usize) -> Vec<u8> {
    let mut bytes = vec![0; SECTOR_BYTES];
    let rest = content.get(sector * SECTOR_BYTES..).unwrap_or_default();
    let present = rest.len().min(SECTOR_BYTES);
    bytes[..present].copy_from_slice(&rest[..present]);
    bytes
}

/// Random writes and syncs of one file; then a cut. Every sector must be one that was there at the
/// last sync or was written since, and a file at rest must be untouched.
#[test]
fn what_was_synced_survives_every_cut() {
    const SECTORS: usize = 64;
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let disk = SimDisk::new(seed);
        let (file, rest) = (create(&disk, "file"), create(&disk, "rest"));
        rest.write_all_at(&[7; 10_000], 0).unwrap();
        rest.sync_data().unwrap();
        let mut versions = vec![vec![sector_of(&[], 0)]; SECTORS];
        let mut synced = Vec::new();
        for _ in 0..random.below(60) {
            if random.below(6) == 0 {
                file.sync_data().unwrap();
                synced = disk.read_file("file").unwrap();
                versions
                    .iter_mut()
                    .for_each(|versions| drop(versions.drain(..versions.len() - 1)));
                continue;
            }
            // Any alignment, over several sectors.
            let offset = random.below(((SECTORS - 8) * SECTOR_BYTES) as u64);
            let bytes = vec![random.next() as u8; random.below(7 * SECTOR_BYTES as u64) as usize];
            file.write_all_at(&bytes, offset).unwrap();
            let content = disk.read_file("file").unwrap();
            for (sector, versions) in versions.iter_mut().enumerate() {
                let now = sector_of(&content, sector);
                if versions.last() != Some(&now) {
                    versions.push(now);
                }
            }
        }
        let live = disk.read_file("file").unwrap();
        for survival in Survival::ALL {
            let disk = disk.fork(seed);
            disk.power_cycle(survival);
            assert_eq!(disk.read_file("rest").unwrap(), [7; 10_000], "seed {seed} {survival:?}");
            let content = disk.read_file("file").unwrap();
            for (sector, versions) in versions.iter().enumerate() {
                let survived = sector_of(&content, sector);
                assert!(versions.contains(&survived), "seed {seed} {survival:?} sector {sector}");
            }
            assert!(content.len() >= synced.len(), "seed {seed} {survival:?}");
            match survival {
                Survival::Nothing => assert_eq!(content, synced, "seed {seed}"),
                Survival::Everything => assert_eq!(content, live, "seed {seed}"),
                Survival::Prefix | Survival::Random => {}
            }
            // What a cut left is durable.
            disk.power_cycle(Survival::Nothing);
            assert_eq!(disk.read_file("file").unwrap(), content, "seed {seed} {survival:?}");
        }
    }
}

/// Two writes of eight sectors each over zeros, not synced: which sectors survive, over many seeds?
#[test]
fn cuts_tear_reorder_and_lose() {
    let outcomes = |survival| {
        let mut outcomes = BTreeSet::new();
        for seed in 0..300 {
            let disk = SimDisk::new(seed);
            let file = create(&disk, "file");
            file.allocate(16 * SECTOR_BYTES as u64).unwrap();
            file.sync_data().unwrap();
            file.write_all_at(&[1; 8 * SECTOR_BYTES], 0).unwrap();
            file.write_all_at(&[1; 8 * SECTOR_BYTES], 8 * SECTOR_BYTES as u64)
                .unwrap();
            disk.power_cycle(survival);
            let content = disk.read_file("file").unwrap();
            assert_eq!(content.len(), 16 * SECTOR_BYTES);
            let mut kept = 0_u16;
            for (number, sector) in content.chunks(SECTOR_BYTES).enumerate() {
                assert!(sector.iter().all(|byte| byte == &sector[0]), "a sector is never torn");
                kept |= u16::from(sector[0]) << number;
            }
            outcomes.insert(kept);
        }
        outcomes
    };
    assert_eq!(outcomes(Survival::Nothing), BTreeSet::from([0]));
    assert_eq!(outcomes(Survival::Everything), BTreeSet::from([u16::MAX]));
    let every_prefix: BTreeSet<u16> = (0..=16).map(|sectors| ((1_u32 << sectors) - 1) as u16).collect();
    assert_eq!(outcomes(Survival::Prefix), every_prefix);

    let random = outcomes(Survival::Random);
    let torn = |write: u16| write != 0 && write != 0xFF;
    assert!(random.iter().any(|kept| torn(kept & 0xFF)), "a write torn");
    assert!(
        random.iter().any(|kept| kept & 1 == 0 && kept & 0b10 != 0),
        "a later sector of a write without an earlier one"
    );
    assert!(
        random.iter().any(|kept| kept & 0xFF != 0xFF && kept >> 8 != 0),
        "a later write without an earlier one"
    );
    assert!(random.iter().any(|kept| kept.count_ones() <= 3), "nearly all lost");
    assert!(random.iter().any(|kept| kept.count_ones() >= 13), "nearly all kept");
}

#[test]
fn an_overwritten_sector_may_show_any_version() {
    let mut seen = BTreeSet::new();
    for seed in 0..100 {
        let disk = SimDisk::new(seed);
        let file = create(&disk, "file");
        for version in 0..4 {
            file.write_all_at(&[version; SECTOR_BYTES], 0).unwrap();
            if version == 0 {
                file.sync_data().unwrap();
            }
        }
        disk.power_cycle(Survival::Random);
        seen.insert(disk.read_file("file").unwrap()[0]);
    }
    assert_eq!(seen, BTreeSet::from([0, 1, 2, 3]));
}

#[test]
fn lengths_may_be_lost() {
    let lengths = |change: fn(&dyn DiskFile)| {
        let mut lengths = BTreeSet::new();
        for seed in 0..60 {
            let disk = SimDisk::new(seed);
            let file = create(&disk, "file");
            file.write_all_at(&[1; 1000], 0).unwrap();
            file.sync_data().unwrap();
            change(file.as_ref());
            let synced = disk.fork(seed);
            disk.power_cycle(Survival::Random);
            let content = disk.read_file("file").unwrap();
            assert!(content[..content.len().min(500)].iter().all(|&byte| byte == 1));
            lengths.insert(content.len());

            let file = synced.open(path("file"), OpenMode::WRITE).unwrap();
            let len = file.len().unwrap();
            file.sync_data().unwrap();
            synced.power_cycle(Survival::Random);
            assert_eq!(synced.read_file("file").unwrap().len() as u64, len);
        }
        lengths
    };
    assert_eq!(
        lengths(|file| file.allocate(5000).unwrap()),
        BTreeSet::from([1000, 5000])
    );
    assert_eq!(lengths(|file| file.set_len(500).unwrap()), BTreeSet::from([500, 1000]));
    // Appending 600 bytes changes the sectors that end at 1024, 1536 and 1600, and the length.
    let appended = lengths(|file| file.write_all_at(&[1; 600], 1000).unwrap());
    assert_eq!(appended, BTreeSet::from([1000, 1024, 1536, 1600]));
}

#[test]
fn everything_fails_without_power_and_old_handles_stay_dead() {
    let disk = SimDisk::new(1);
    let file = create(&disk, "file");
    file.write_all_at(&[1; 100], 0).unwrap();
    file.sync_data().unwrap();
    let clone = disk.clone();
    clone.power_cut();
    assert!(!disk.is_powered());
    let dead = |file: &dyn DiskFile| {
        let calls = [
            file.read_exact_at(&mut [0], 0),
            file.read_up_to_at(&mut [0], 0).map(drop),
            file.write_all_at(&[0], 0),
            file.sync_data(),
            file.allocate(1),
            file.set_len(1),
            file.len().map(drop),
        ];
        for call in calls {
            let error = call.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Other);
            assert!(error.to_string().contains("power"), "{error}");
        }
    };
    dead(file.as_ref());
    let calls = [
        disk.open(path("file"), OpenMode::READ).map(drop),
        disk.open(path("new"), OpenMode::CREATE).map(drop),
        disk.create_dir_all(path("d")),
        disk.list(path("")).map(drop),
        disk.remove(path("file")),
        disk.rename(path("file"), path("b")),
        disk.sync_dir(path("")),
        disk.available_bytes().map(drop),
    ];
    for call in calls {
        assert!(call.unwrap_err().to_string().contains("power is off"));
    }
    assert_eq!(disk.files(), ["file"], "the test still sees the platters");

    disk.restore_power();
    assert!(disk.is_powered());
    dead(file.as_ref());
    let file_again = disk.open(path("file"), OpenMode::WRITE).unwrap();
    drop(file);
    file_again.read_exact_at(&mut [0; 100], 0).unwrap();
    disk.restore_power();
    file_again.len().unwrap();
}

/// Steps that are one operation each, for counting.
fn ten_operations(disk: &SimDisk) -> io::Result<()> {
    disk.create_dir_all(path("d"))?;
    let file = disk.open(path("d/x"), OpenMode::CREATE)?;
    disk.sync_dir(path("d"))?;
    file.allocate(100)?;
    file.write_all_at(&[1; 50], 0)?;
    file.read_exact_at(&mut [0; 100], 0)?;
    file.sync_data()?;
    file.set_len(50)?;
    disk.open(path("d/x"), OpenMode::READ)?.len()?;
    disk.rename(path("d/x"), path("d/y"))?;
    disk.list(path("d"))?;
    disk.remove(path("d/y"))?;
    disk.sync_dir(path("d"))
}

#[test]
fn power_is_cut_after_exactly_so_many_operations() {
    let disk = SimDisk::new(1);
    disk.cut_after(10);
    ten_operations(&disk).unwrap();
    assert_eq!(disk.operations(), 10);
    assert!(disk.is_powered());
    disk.create_dir_all(path("e")).unwrap_err();
    assert!(!disk.is_powered());
    for operations in 0..10 {
        let disk = SimDisk::new(1);
        disk.cut_after(operations);
        ten_operations(&disk).unwrap_err();
        assert_eq!((disk.operations(), disk.is_powered()), (operations, false));
        disk.restore_power();
        disk.create_dir_all(path("e")).expect("the cut is over");
    }
}

#[test]
fn a_write_cut_off_may_be_there_in_part() {
    let mut sectors = BTreeSet::new();
    for seed in 0..100 {
        let disk = SimDisk::new(seed);
        let file = create(&disk, "file");
        file.allocate(4096).unwrap();
        file.sync_data().unwrap();
        disk.cut_after(0);
        file.write_all_at(&[1; 4096], 0).unwrap_err();
        disk.set_survival(Survival::Everything);
        disk.restore_power();
        let content = disk.read_file("file").unwrap();
        sectors.insert(content.iter().filter(|&&byte| byte == 1).count() / SECTOR_BYTES);
    }
    assert!(sectors.len() > 4, "{sectors:?}");
}

#[test]
fn faults_fail_what_they_name() {
    let disk = SimDisk::new(1);
    let (one, two) = (create(&disk, "one"), create(&disk, "two"));
    one.write_all_at(&[1; 100], 0).unwrap();
    two.write_all_at(&[1; 100], 0).unwrap();
    disk.set_fault(Some(Fault::new(FaultKind::Read).on("two")));
    one.read_exact_at(&mut [0], 0).unwrap();
    let error = two.read_exact_at(&mut [0], 0).unwrap_err();
    let device_error = io::Error::from_raw_os_error(5);
    assert_eq!(error.kind(), device_error.kind());
    assert!(error.to_string().contains("two"), "{error}");
    two.write_all_at(&[1], 0).unwrap();

    disk.fail_after(2, FaultKind::Write);
    one.write_all_at(&[1], 0).unwrap();
    one.read_exact_at(&mut [0], 0).unwrap();
    disk.rename(path("two"), path("three")).unwrap();
    two.set_len(3).unwrap_err();
    disk.open(path("new"), OpenMode::CREATE).unwrap_err();
    disk.remove(path("one")).unwrap_err();
    disk.rename(path("one"), path("two")).unwrap_err();
    one.allocate(3).unwrap_err();
    one.sync_data().unwrap();
    assert_eq!(disk.files(), ["one", "three"]);

    disk.fail_after(0, FaultKind::Sync);
    one.sync_data().unwrap_err();
    disk.sync_dir(path("")).unwrap_err();
    disk.set_fault(None);
    one.sync_data().unwrap();
}

#[test]
fn a_failed_write_may_be_there_in_part() {
    let mut sectors = BTreeSet::new();
    for seed in 0..100 {
        let disk = SimDisk::new(seed);
        let file = create(&disk, "file");
        disk.fail_after(0, FaultKind::Write);
        file.write_all_at(&[1; 4096], 0).unwrap_err();
        let content = disk.read_file("file").unwrap();
        sectors.insert(content.iter().filter(|&&byte| byte == 1).count() / SECTOR_BYTES);
    }
    assert!(sectors.len() > 4, "{sectors:?}");
}

#[test]
fn no_later_sync_brings_back_what_a_failed_one_lost() {
    let (mut lost, mut kept) = (0, 0);
    for seed in 0..50 {
        let disk = SimDisk::new(seed);
        let file = create(&disk, "file");
        file.allocate(8 * SECTOR_BYTES as u64).unwrap();
        file.sync_data().unwrap();
        file.write_all_at(&[1; 4 * SECTOR_BYTES], 0).unwrap();
        disk.fail_after(0, FaultKind::Sync);
        file.sync_data().unwrap_err();
        disk.set_fault(None);
        assert_eq!(
            disk.read_file("file").unwrap()[..4 * SECTOR_BYTES],
            [1; 4 * SECTOR_BYTES]
        );
        file.write_all_at(&[2; SECTOR_BYTES], 4 * SECTOR_BYTES as u64).unwrap();
        file.sync_data().unwrap();
        disk.power_cycle(Survival::Everything);
        let content = disk.read_file("file").unwrap();
        assert_eq!(content[4 * SECTOR_BYTES], 2);
        for sector in content.chunks(SECTOR_BYTES).take(4) {
            match sector[0] {
                0 => lost += 1,
                _ => kept += 1,
            }
        }
    }
    assert!(lost > 20 && kept > 20, "{lost} {kept}");
}

#[test]
fn a_full_disk_refuses_what_does_not_fit() {
    let disk = SimDisk::new(1);
    disk.set_capacity(Some(10 * 4096));
    let file = create(&disk, "file");
    file.allocate(8 * 4096).unwrap();
    assert_eq!(disk.available_bytes().unwrap(), 2 * 4096);
    let full = |result: io::Result<()>| assert_eq!(result.unwrap_err().kind(), ErrorKind::StorageFull);
    full(file.allocate(11 * 4096));
    assert_eq!(file.len().unwrap(), 8 * 4096);
    // Inside the reservation there is room whatever happens.
    let other = create(&disk, "other");
    other.write_all_at(&[1; 2 * 4096], 0).unwrap();
    full(other.write_all_at(&[1; 1], 2 * 4096));
    full(file.write_all_at(&[1; 4097], 8 * 4096 - 4096));
    file.write_all_at(&[1; 4096], 7 * 4096).unwrap();
    other.write_all_at(&[2; 4096], 100).unwrap();
    assert_eq!(disk.available_bytes().unwrap(), 0);
    // Space comes back by cutting, and by removing once the last handle is gone.
    file.set_len(4096).unwrap();
    assert_eq!(disk.available_bytes().unwrap(), 7 * 4096);
    disk.remove(path("other")).unwrap();
    assert_eq!(disk.available_bytes().unwrap(), 7 * 4096);
    drop(other);
    assert_eq!(disk.available_bytes().unwrap(), 9 * 4096);
    // Sparse lengths take nothing; existing content stays writable under a lowered limit.
    file.set_len(1 << 40).unwrap();
    disk.set_capacity(Some(0));
    file.write_all_at(&[3; 100], 0).unwrap();
    full(file.write_all_at(&[3; 100], 1 << 30));
    disk.set_capacity(None);
    file.write_all_at(&[3; 100], 1 << 30).unwrap();
}

#[test]
fn tampering_reaches_what_is_read_and_what_is_durable() {
    let disk = SimDisk::new(1);
    let file = create(&disk, "file");
    file.write_all_at(&[0; 10], 0).unwrap();
    file.sync_data().unwrap();
    disk.flip_bit("file", 3 * 8 + 7).unwrap();
    disk.corrupt("file", 5, b"bad").unwrap();
    let expected = b"\0\0\0\x80\0bad\0\0";
    assert_eq!(disk.read_file("file").unwrap(), expected);
    disk.power_cycle(Survival::Nothing);
    assert_eq!(disk.read_file("file").unwrap(), expected);
    disk.truncate("file", 4).unwrap();
    disk.power_cycle(Survival::Nothing);
    assert_eq!(disk.read_file("file").unwrap(), expected[..4]);
    assert!(disk.flip_bit("file", 32).is_err());
    assert!(disk.corrupt("file", 3, b"ab").is_err());
    assert!(disk.corrupt("absent", 0, b"").is_err());

    disk.put_file("d/e/new", b"anything").unwrap();
    disk.put_file("file", b"other").unwrap();
    disk.power_cycle(Survival::Nothing);
    assert_eq!(disk.files(), ["d/e/new", "file"]);
    assert_eq!(disk.read_file("d/e/new").unwrap(), b"anything");
    assert_eq!(disk.read_file("file").unwrap(), b"other");
    assert!(disk.put_file("d", b"").is_err());
    assert!(disk.put_file("file/below", b"").is_err());
}

#[test]
fn the_seed_decides() {
    let run = |seed| {
        let disk = SimDisk::new(seed);
        let file = create(&disk, "file");
        let mut contents = Vec::new();
        for round in 1..4 {
            let file = disk.open(path("file"), OpenMode::WRITE).unwrap();
            file.write_all_at(&[round; 64 * SECTOR_BYTES], 0).unwrap();
            disk.power_cycle(Survival::Random);
            contents.push(disk.read_file("file").unwrap());
        }
        drop(file);
        contents
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

#[test]
fn forks_go_their_own_ways() {
    let disk = SimDisk::new(1);
    let file = create(&disk, "file");
    file.write_all_at(&[1; 100], 0).unwrap();
    let fork = disk.fork(2);
    file.write_all_at(&[2; 100], 0).unwrap();
    assert_eq!(fork.read_file("file").unwrap(), [1; 100]);
    fork.power_cycle(Survival::Nothing);
    assert_eq!(fork.read_file("file").unwrap(), b"");
    file.sync_data().unwrap();
    assert_eq!(disk.read_file("file").unwrap(), [2; 100]);
}

#[test]
fn direct_files_are_direct() {
    let disk = SimDisk::new(1);
    let file = disk.open(path("file"), OpenMode::CREATE.with_direct(true)).unwrap();
    assert!(file.is_direct());
    file.write_all_at(&AlignedBuffer::zeroed(4096), 0).unwrap();
    assert!(!disk.open(path("file"), OpenMode::READ).unwrap().is_direct());
}
