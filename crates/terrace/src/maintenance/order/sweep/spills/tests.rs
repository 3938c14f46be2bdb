//! Spills of a sweep on a simulated disk.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::{
    io::{FaultKind, SimDisk},
    log::format::{Body, Record},
};

const COUNT: usize = 20_000;

/// Keys of all lengths up to the longest.
fn key(number: usize) -> Vec<u8> {
    let mut key = format!("{number:05}").into_bytes();
    if number.is_multiple_of(100) {
        key.resize(crate::KEY_BYTES_MAX - number / 100, b'k');
    }
    key
}

fn value(number: usize) -> Vec<u8> {
    vec![number as u8; 1 + number * 31 % 256]
}

fn add(values: &mut Values, number: usize, version: u64) {
    let (key, value) = (key(number), value(number));
    values.add(&Record::new(&key, &[], Body::MoveToFlash { version, value: &value }));
}

fn spill(spills: &Spills, values: &mut Values) -> Result<u64> {
    spills.spill(values, |write| write())
}

/// All numbers, in no order, from several threads with little RAM.
fn spilled(disk: &SimDisk) -> Spills {
    let spills = Spills::create(disk, true).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let spills = &spills;
            scope.spawn(move || {
                let mut values = Values::of(64 << 10);
                for number in (thread..COUNT).step_by(3).map(|number| number * 7919 % COUNT) {
                    add(&mut values, number, number as u64);
                    if values.is_full() {
                        assert!(spill(spills, &mut values).unwrap() >= 60 << 10);
                    }
                }
                spill(spills, &mut values).unwrap();
                assert_eq!(spill(spills, &mut values).unwrap(), 0, "none is left");
            });
        }
    });
    assert!(spills.spills.lock().len() > 50);
    spills
}

fn found(values: &mut InOrder, number: usize) -> Result<Option<Bytes>> {
    let checksum = crc32c::crc32c(&value(number));
    let of_entry = (&key(number)[..], number as u64, checksum);
    values.value(of_entry, &ReadQueue::default(), 1 + number % 5)
}

#[test]
fn all_values_come_in_the_order_of_their_keys() {
    let disk = SimDisk::new(1);
    for (ram_bytes, together) in [
        (0, 1),
        (0, 8),
        (1 << 20, 1),
        (1 << 20, 8),
        (1 << 20, 1000),
        (1 << 30, 8),
    ] {
        let mut values = spilled(&disk)
            .in_order(ram_bytes, &ReadQueue::default(), together)
            .unwrap();
        for number in 0..COUNT {
            // Some keys are not looked up.
            if number % 10 != 3 {
                assert_eq!(found(&mut values, number).unwrap().unwrap(), value(number), "{number}");
            }
        }
        assert_eq!(
            values.value((b"z", 1, 1), &ReadQueue::default(), together).unwrap(),
            None
        );
    }
}

#[test]
fn another_version_of_a_key_is_not_given() {
    let spills = Spills::create(&SimDisk::new(1), true).unwrap();
    let mut values = Values::of(1 << 20);
    for (number, version) in [(1, 5), (2, 6), (3, 7), (4, 8)] {
        add(&mut values, number, version);
    }
    spill(&spills, &mut values).unwrap();
    // Versions of one key, from two threads.
    add(&mut values, 3, 9);
    spill(&spills, &mut values).unwrap();
    let mut values = spills.in_order(1 << 20, &ReadQueue::default(), 3).unwrap();
    let mut value_of = |number, version, checksum| {
        let of_entry = (&key(number)[..], version, checksum);
        values.value(of_entry, &ReadQueue::default(), 1).unwrap()
    };
    let checksum = |number| crc32c::crc32c(&value(number));
    assert_eq!(value_of(1, 4, checksum(1)), None);
    assert_eq!(value_of(2, 6, checksum(2) + 1), None);
    assert_eq!(value_of(3, 7, checksum(3)).unwrap(), value(3));
    assert_eq!(value_of(4, 8, checksum(4)).unwrap(), value(4));
}

/// The file takes space of the device while it is in use, and has no name that a crash, or another
/// sweep, could meet.
#[test]
fn the_file_gives_its_space_back_when_it_is_closed() {
    let disk = SimDisk::new(1);
    disk.set_capacity(Some(64 << 20));
    let free_bytes = || disk.available_bytes().unwrap();
    let before = free_bytes();
    // As a crash between making and removing would leave it.
    let left = disk.open(Path::new(FILE), OpenMode::CREATE).unwrap();
    left.write_all_at(&[1; 8192], 0).unwrap();
    drop(left);
    let spills = spilled(&disk);
    assert_eq!(disk.list(Path::new("")).unwrap(), [""; 0]);
    assert!(free_bytes() < before - (2 << 20));
    let values = spills.in_order(0, &ReadQueue::default(), 1).unwrap();
    assert!(free_bytes() < before - (2 << 20));
    drop(values);
    assert_eq!(free_bytes(), before);
}

/// Whatever bytes come back from the device, no wrong value is given.
#[test]
fn damage_is_detected_or_costs_copies() {
    let disk = SimDisk::new(1);
    let mut is_detected = 0;
    for flipped in (0..120_000).step_by(4999) {
        let spills = spilled(&disk);
        let mut page = vec![0; 4096];
        let at = flipped as u64 / 4096 * 4096;
        spills.file.read_exact_at(&mut page, at).unwrap();
        page[flipped % 4096] ^= 0x41;
        let mut aligned = AlignedBuffer::new();
        aligned.extend_from_slice(&page);
        spills.file.write_all_at(&aligned, at).unwrap();
        let Ok(mut values) = spills.in_order(1 << 20, &ReadQueue::default(), 3) else {
            is_detected += 1;
            continue;
        };
        for number in 0..COUNT {
            match found(&mut values, number) {
                Ok(found) => assert!(found.is_none_or(|found| found == value(number)), "{number}"),
                Err(error) => {
                    assert!(matches!(error, Error::Corruption { .. }), "{error}");
                    is_detected += 1;
                    break;
                }
            }
        }
    }
    assert!(is_detected > 10, "{is_detected}");
}

#[test]
fn errors_of_the_device_are_told() {
    let disk = SimDisk::new(1);
    for kind in [FaultKind::Write, FaultKind::Sync] {
        disk.fail_after(0, kind);
        assert!(Spills::create(&disk, true).is_err(), "{kind:?}");
        disk.set_fault(None);
    }
    let spills = Spills::create(&disk, true).unwrap();
    let mut values = Values::of(1 << 20);
    add(&mut values, 1, 1);
    disk.fail_after(0, FaultKind::Write);
    assert!(spill(&spills, &mut values).is_err());
    disk.set_fault(None);
    spill(&spills, &mut values).unwrap();
    disk.fail_after(0, FaultKind::Read);
    assert!(spills.in_order(0, &ReadQueue::default(), 1).is_err());
}
