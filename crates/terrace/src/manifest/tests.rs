//! Tests of manifests: bytes, damage, formats, the lock.
#![allow(clippy::unwrap_used)]
use super::{
    lock::{LOCK_PATIENCE, lock_file, lock_within},
    *,
};
use std::time::Duration;

const MANIFEST: Manifest = Manifest {
    store_id: 0x1122_3344_5566_7788,
    tier: 1,
    segment_bytes: 0x4_0000,
    format_version: 5,
    placed: None,
};

fn open(options: &Options, flash: &dyn Disk, large: &dyn Disk) -> Result<Manifest> {
    Manifest::open(options, flash, large, |_| Ok(()), &mut Vec::new())
}

#[test]
fn golden_bytes_of_all_formats() {
    let tail = "887766554433221100000400000000000100000000000000000000000000000000000000000000000000000000000000";
    for (format_version, head) in [
        (1, "5445525241434531536a86d401000000"),
        (2, "54455252414345315c01d93d02000000"),
        (3, "5445525241434531f6f5b79903000000"),
        (4, "5445525241434531b3a18bea04000000"),
        (5, "54455252414345311955e54e05000000"),
    ] {
        let manifest = Manifest {
            format_version,
            ..MANIFEST
        };
        let bytes = manifest.encode();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, [head, tail].concat());
        assert_eq!(Manifest::decode(&bytes), Ok(manifest));
    }
}

const PLACED: Placed = Placed {
    fingerprint: 0x1122_3344_5566_7788,
    is_settled: true,
};

#[test]
fn the_flash_tiers_says_how_values_are_placed() {
    for (is_settled, head, flag) in [(false, "651fd91e", "01"), (true, "f2be3097", "02")] {
        let placed = Placed { is_settled, ..PLACED };
        let manifest = Manifest {
            format_version: 4,
            placed: Some(placed),
            ..MANIFEST
        };
        let bytes = manifest.encode();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let identity = "8877665544332211000004000000000001";
        let zeros = "00000000000000000000000000000000";
        assert_eq!(
            hex,
            format!("5445525241434531{head}04000000{identity}{flag}0000000000008877665544332211{zeros}")
        );
        assert_eq!(Manifest::decode(&bytes), Ok(manifest));
        // Neither on the large tier nor in an older format.
        for wrong in [
            Manifest { tier: 2, ..manifest },
            Manifest {
                format_version: 3,
                ..manifest
            },
        ] {
            assert_eq!(Manifest::decode(&wrong.encode()), Err(NotAManifest::Unreadable));
        }
        assert_eq!(manifest.of(Tier::Large).placed, None);
    }
}

#[test]
fn after_a_power_cut_the_rules_are_those_before_or_the_new_ones() {
    let later = Placed {
        fingerprint: 7,
        is_settled: false,
    };
    for survival in crate::io::Survival::ALL {
        for operations in 0..16 {
            let disk = crate::io::SimDisk::new(operations);
            MANIFEST.note_placed(&disk, PLACED).unwrap();
            disk.cut_after(operations);
            let wrote = MANIFEST.note_placed(&disk, later).is_ok();
            disk.power_cut();
            disk.set_survival(survival);
            disk.restore_power();
            let found = Manifest::read(&disk, Tier::Flash, Path::new(""))
                .unwrap()
                .unwrap()
                .placed;
            assert!(found == Some(later) || !wrote && found == Some(PLACED), "{found:?}");
        }
    }
}

#[test]
fn an_older_store_is_raised_when_it_is_written_and_only_then() {
    let (flash, large) = (crate::io::SimDisk::new(1), crate::io::SimDisk::new(2));
    let old = |tier| Manifest {
        format_version: 1,
        tier,
        ..MANIFEST
    };
    let read = |disk: &dyn Disk, tier| {
        Manifest::read(disk, tier, Path::new(""))
            .unwrap()
            .unwrap()
            .format_version
    };
    let options = Options::new("nowhere");
    let looking = Options {
        read_only: true,
        ..options.clone()
    };
    old(1).write(&flash, Tier::Flash).unwrap();
    old(2).write(&large, Tier::Large).unwrap();
    assert_eq!(open(&looking, &flash, &large).unwrap().store_id, MANIFEST.store_id);
    assert_eq!((read(&flash, Tier::Flash), read(&large, Tier::Large)), (1, 1));
    for operations in 0..12 {
        old(1).write(&flash, Tier::Flash).unwrap();
        old(2).write(&large, Tier::Large).unwrap();
        for disk in [&flash, &large] {
            disk.cut_after(operations);
        }
        let _ = open(&options, &flash, &large);
        for disk in [&flash, &large] {
            disk.power_cut();
            disk.restore_power();
        }
        assert!(
            read(&flash, Tier::Flash) <= read(&large, Tier::Large),
            "{operations} operations"
        );
        open(&options, &flash, &large).unwrap();
        assert_eq!((read(&flash, Tier::Flash), read(&large, Tier::Large)), (5, 5));
    }
}

#[test]
fn a_flipped_bit_or_another_length_is_refused() {
    let bytes = MANIFEST.encode();
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes;
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(Manifest::decode(&flipped), Err(NotAManifest::Unreadable), "bit {bit}");
    }
    for length in 0..bytes.len() {
        assert_eq!(Manifest::decode(&bytes[..length]), Err(NotAManifest::Unreadable));
    }
}

#[test]
fn a_newer_format_is_told_from_damage() {
    let mut bytes = MANIFEST.encode();
    for (version, expected) in [(0, NotAManifest::Unreadable), (6, NotAManifest::Newer(6))] {
        bytes[12] = version;
        let checksum = crc32c::crc32c(&bytes[12..]);
        bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
        assert_eq!(Manifest::decode(&bytes), Err(expected));
    }
}

/// A store was closed and could not be opened again: meanwhile the process had started another
/// program, which held its lock.
#[test]
fn a_lock_that_goes_soon_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new(dir.path());
    let held = lock(&options).unwrap();
    assert!(matches!(lock(&options), Err(Error::Locked(_))));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(LOCK_PATIENCE / 10);
            drop(held);
        });
        assert!(lock_within(&options, Duration::from_secs(60)).is_ok());
    });
}

/// The lock was retried for half a second, until a started child process has closed the file
/// descriptors that it inherited. On a busy machine that was not enough, and a closed store could
/// not be opened again.
#[test]
fn a_lock_is_given_back_though_a_copy_of_its_file_is_still_open() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new(dir.path());
    let held = lock(&options).unwrap().unwrap();
    let _of_another_process: Vec<_> = held.0.iter().map(|file| file.try_clone().unwrap()).collect();
    drop(held);
    assert!(lock_within(&options, Duration::ZERO).is_ok());
}

/// A copy of the flash tier was opened with the large tier of a store in use. Each writer deleted
/// the blocks of the other as unreferenced: only the flash tier was locked.
#[test]
fn a_large_tier_has_one_writer() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new(dir.path());
    let copied = Options {
        flash_dir: dir.path().join("copy"),
        ..options.clone()
    };
    let held = lock(&options).unwrap();
    let second = lock_within(&copied, Duration::ZERO);
    assert!(matches!(&second, Err(Error::Locked(path)) if *path == options.large_dir));
    let reading = Options {
        read_only: true,
        ..copied.clone()
    };
    assert!(matches!(lock_within(&reading, Duration::ZERO), Err(Error::Locked(_))));
    drop(held);
    let readers = [(); 2].map(|()| lock_within(&reading, Duration::ZERO).unwrap());
    assert!(matches!(lock_within(&options, Duration::ZERO), Err(Error::Locked(_))));
    drop(readers);
    assert!(lock_within(&copied, Duration::ZERO).is_ok());
}

/// After `LOCK` was deleted under a server, a second writer made its own and was admitted.
#[test]
fn a_deleted_lock_file_admits_no_second_writer() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new(dir.path());
    let _held = lock(&options).unwrap();
    std::fs::remove_file(options.flash_dir.join(LOCK_FILE)).unwrap();
    assert!(matches!(lock_within(&options, Duration::ZERO), Err(Error::Locked(_))));
}

#[test]
fn one_directory_for_both_tiers_does_not_wait_for_itself() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = Options::new(dir.path());
    options.large_dir.clone_from(&options.flash_dir);
    assert!(lock_within(&options, Duration::ZERO).is_ok());
}

/// On a file system that was remounted read-only after errors nothing could be read from a store:
/// a reader opened `LOCK` for writing.
#[test]
fn a_reader_needs_no_right_to_write() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new(dir.path());
    drop(lock(&options).unwrap());
    let opened = lock_file(&Options {
        read_only: true,
        ..options
    });
    // The superuser, as which tests may run, is refused nothing on a writable file system. What is
    // asked of the kernel is the mode of the file descriptor.
    let refused = opened.unwrap().unwrap().set_len(1);
    assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
}

#[test]
fn golden_bytes_of_a_count() {
    let bytes = opens::encode(MANIFEST.store_id, Tier::Large, 6);
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "544552524f50454e8934a64f0200000088776655443322110600000000000000");
    assert_eq!(opens::decode(&bytes, MANIFEST.store_id, Tier::Large), Some(6));
    assert_eq!(opens::decode(&bytes, MANIFEST.store_id, Tier::Flash), None);
    assert_eq!(opens::decode(&bytes, 1, Tier::Large), None);
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes;
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(opens::decode(&flipped, MANIFEST.store_id, Tier::Large), None);
    }
}

const COUNTS: [&str; 2] = ["TERRACE.opens", "TERRACE.opens.copy"];

/// A tier's count and its copy.
fn counts(disk: &crate::io::SimDisk) -> [Option<Vec<u8>>; 2] {
    COUNTS.map(|name| disk.read_file(name).ok())
}

fn set_counts(disk: &crate::io::SimDisk, counts: [Option<Vec<u8>>; 2]) {
    for (name, bytes) in COUNTS.into_iter().zip(counts) {
        match bytes {
            Some(bytes) => disk.put_file(name, &bytes).unwrap(),
            None => drop(disk.remove(Path::new(name))),
        }
    }
}

/// Whatever a power cut leaves of the counts, the tiers are accepted, and copies of before the open
/// that was cut, and of after it, are told from those of after the next one.
#[test]
fn a_power_cut_while_an_open_is_counted_is_no_obstacle() {
    let options = Options::new("nowhere");
    for survival in crate::io::Survival::ALL {
        for earlier in 0..2 {
            for operations in 0..40 {
                let (flash, large) = (crate::io::SimDisk::new(operations), crate::io::SimDisk::new(99));
                MANIFEST.write(&flash, Tier::Flash).unwrap();
                MANIFEST.write_large(&large).unwrap();
                for _ in 0..earlier {
                    open(&options, &flash, &large).unwrap();
                }
                // The power of both goes at the same operation of each: before, within, or after.
                for disk in [&flash, &large] {
                    disk.set_survival(survival);
                    disk.cut_after(operations);
                }
                let _ = open(&options, &flash, &large);
                for disk in [&flash, &large] {
                    disk.power_cut();
                    disk.restore_power();
                }
                let copies = [&flash, &large].map(counts);
                open(&options, &flash, &large).unwrap();
                for (disk, copied) in [&flash, &large].into_iter().zip(copies) {
                    let newer = counts(disk);
                    set_counts(disk, copied);
                    let refused = open(&options, &flash, &large).unwrap_err();
                    assert!(refused.to_string().contains("is an older copy"), "{refused}");
                    set_counts(disk, newer);
                }
                open(&options, &flash, &large).unwrap();
            }
        }
    }
}

/// A damaged count proves nothing, and is no reason to keep a store closed; nor is a file that is
/// gone, or an older one, while the tier has the other.
#[test]
fn damaged_counts_are_mended_and_one_of_two_is_enough() {
    let options = Options::new("nowhere");
    let one = |file: usize, bytes: Option<Vec<u8>>| {
        move |mut counts: [Option<Vec<u8>>; 2]| {
            counts[file] = bytes.clone();
            counts
        }
    };
    for tier in 0..2 {
        let disks = [crate::io::SimDisk::new(1), crate::io::SimDisk::new(2)];
        let [flash, large] = &disks;
        MANIFEST.write(flash, Tier::Flash).unwrap();
        MANIFEST.write_large(large).unwrap();
        open(&options, flash, large).unwrap();
        let older = counts(&disks[tier]);
        open(&options, flash, large).unwrap();
        for (file, older) in older.iter().enumerate() {
            for bytes in [None, Some(Vec::new()), older.clone()] {
                set_counts(&disks[tier], one(file, bytes)(counts(&disks[tier])));
                let mut mended = Vec::new();
                Manifest::open(&options, flash, large, |_| Ok(()), &mut mended).unwrap();
                assert_eq!(mended, Vec::<String>::new());
                assert_eq!(counts(&disks[tier])[0], counts(&disks[tier])[1]);
            }
        }
        set_counts(&disks[tier], [Some(Vec::new()), Some(Vec::new())]);
        let mut mended = Vec::new();
        Manifest::open(&options, flash, large, |_| Ok(()), &mut mended).unwrap();
        assert_eq!(mended, ["TERRACE.opens was damaged and was written anew"]);
        open(&options, flash, large).unwrap();
    }
}
