//! Reads return what was written, at all boundaries.

use super::*;
use crate::io::FileDisk;
use std::sync::atomic::Ordering;

const EDGES: &[usize] = &[
    0, 1, 47, 4000, 4047, 4048, 4049, 8192, 65_531, 65_532, 65_533, 131_063, 131_064, 131_065, 131_072, 1_048_575,
    1_048_576, 1_048_577, 1_310_000, 1_310_720, 1_310_800, 3_000_000, 5_242_880,
];

#[test]
fn every_edge_length_comes_back_however_it_is_written() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 4 << 20);
    let mut written = Vec::new();
    for (index, &length) in EDGES.iter().enumerate() {
        let value = pattern(length, index as u64);
        let attributes = pattern(index * 300, 99);
        let checksum = crc32c::crc32c(&value);
        let key = format!("key/{length}").into_bytes();
        let whole = space.write(&key, &attributes, &value, 7 + index as u64).unwrap();
        let mut writer = space
            .writer(&key, &attributes, Length::Known(length as u64), 7)
            .unwrap();
        value.chunks(9973).for_each(|part| writer.write(part).unwrap());
        let known = writer.finish().unwrap();
        let unknown = stream(&space, &key, &value, 70_001).unwrap();
        let rested = [Length::Known(length as u64), Length::AtLeast(0)].map(|announced| {
            let mut writer = space.writer(&key, &attributes, announced, 7).unwrap();
            for (number, part) in value.chunks(40_001).enumerate() {
                writer.write(part).unwrap();
                if number % 3 != 1 {
                    writer.rest().unwrap();
                }
            }
            writer.rest().unwrap();
            writer.finish().unwrap()
        });
        for found in [whole, known, unknown].into_iter().chain(rested) {
            assert_eq!((found.length, found.checksum), (length as u64, checksum));
            space.sync_all(&[found]).unwrap();
            space.committed(&found, 1000 + index as u64);
            written.push((key.clone(), value.clone(), found));
        }
    }
    for (key, value, found) in &written {
        assert_eq!(read(&space, key, found).unwrap(), value[..], "{} bytes", value.len());
    }
    space.close().unwrap();
    drop(space);
    let space = open(&disk, 4 << 20);
    for (key, value, found) in &written {
        assert_eq!(
            read(&space, key, found).unwrap(),
            value[..],
            "{} bytes after reopening",
            value.len()
        );
        let reader = space.open_value(&found.extent()).unwrap();
        assert_eq!(reader.verify().unwrap(), found.checksum);
        assert_eq!(reader.header().unwrap().key, *key);
    }
}

#[test]
fn ranges_are_slices_and_cost_one_read() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 64 << 20);
    let value = pattern(3_500_000, 5);
    let found = space.write(b"film/1", b"attributes", &value, 1).unwrap();
    let reader = space.open_value(&found.extent()).unwrap();
    let edges = [
        0, 1, 65_531, 65_532, 65_533, 131_064, 1_000_000, 1_048_576, 3_499_999, 3_500_000,
    ];
    for &start in &edges {
        for &end in edges.iter().filter(|&&end| end >= start) {
            let before = space.counters().reads;
            let mut out = Vec::new();
            reader.read_range(start as u64..end as u64, &mut out).unwrap();
            assert_eq!(out, value[start..end], "{start}..{end}");
            let reads = space.counters().reads - before;
            assert!(
                reads <= 1 + (end - start) as u64 / (1 << 20),
                "{start}..{end} took {reads} reads"
            );
        }
    }
    assert!(matches!(
        reader.read_range(1..3_500_001, &mut Vec::new()),
        Err(Error::Invalid(_))
    ));
}

#[test]
fn a_value_up_to_a_mebibyte_is_one_device_read() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 64 << 20);
    for length in [0, 1, 131_072, 1 << 20] {
        let value = pattern(length, 3);
        let found = space.write(b"key", &[7; 60_000], &value, 1).unwrap();
        let before = disk.shared.reads.load(Ordering::SeqCst);
        assert_eq!(read(&space, b"key", &found).unwrap(), value);
        assert_eq!(disk.shared.reads.load(Ordering::SeqCst) - before, 1);
    }
}

#[test]
fn a_large_value_costs_what_was_promised() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 64 << 20);
    let value = pattern(128 << 10, 1);
    for index in 0..400_u64 {
        let found = space
            .write(format!("photo/{index}/large").as_bytes(), &[1; 200], &value, index)
            .unwrap();
        space.committed(&found, index + 1);
    }
    space.close().unwrap();
    let files = disk.files.lock();
    let device: usize = files.values().map(|file| file.bytes.lock().len()).sum();
    let ratio = device as f64 / (400.0 * value.len() as f64);
    assert!(ratio <= 1.035, "{ratio}");
    let counters = space.counters();
    assert_eq!(counters.user_bytes, 400 * 33 * 4096);
    // One write per value, and a few for headers, footers and LargeMeta.
    assert!(disk.shared.writes.load(Ordering::SeqCst) < 420);
}

#[test]
fn a_value_of_the_wrong_length_is_refused_and_abandoned() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 1 << 20);
    let mut writer = space.writer(b"key", b"", Length::Known(10), 1).unwrap();
    writer.write(b"12345").unwrap();
    assert!(matches!(writer.finish(), Err(Error::Invalid(_))));
    let mut writer = space.writer(b"key", b"", Length::Known(3), 1).unwrap();
    assert!(matches!(writer.write(b"1234"), Err(Error::Invalid(_))));
    assert!(writer.write(b"1").is_err(), "an abandoned value takes no more bytes");
    assert!(writer.finish().is_err());
    assert!(matches!(
        space.writer(b"", b"", Length::AtLeast(0), 1),
        Err(Error::Invalid(_))
    ));
    assert!(matches!(
        space.writer(&[1; 4097], b"", Length::AtLeast(0), 1),
        Err(Error::Invalid(_))
    ));
    assert!(matches!(
        space.writer(b"k", b"", Length::Known(u64::MAX), 1),
        Err(Error::Invalid(_))
    ));
    space.close().unwrap();
    let records = space
        .blocks()
        .into_iter()
        .flat_map(|block| space.scan_block(block.number).unwrap())
        .count();
    assert_eq!(records, 0);
}

#[test]
fn destaged_values_are_packed() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 16 << 20);
    let values: Vec<Vec<u8>> = (0..20_000).map(|index| pattern(index % 1500, index as u64)).collect();
    let keys: Vec<Vec<u8>> = (0..20_000)
        .map(|index| format!("small/{index:05}").into_bytes())
        .collect();
    let items: Vec<DestageItem<'_>> = keys
        .iter()
        .zip(&values)
        .zip(1..)
        .map(|((key, value), version)| DestageItem {
            key,
            attributes: b"a",
            value,
            version,
        })
        .collect();
    let before = disk.shared.writes.load(Ordering::SeqCst);
    let found = space.write_batch(&items, Origin::Recycling).unwrap();
    space.sync_all(&found).unwrap();
    assert!(disk.shared.writes.load(Ordering::SeqCst) - before < 30);
    let user: usize = values.iter().map(Vec::len).sum();
    let ratio = space.counters().destaged_bytes as f64 / user as f64;
    assert!(ratio < 1.16, "{ratio}");
    for (item, found) in items.iter().zip(&found) {
        assert_eq!(read(&space, item.key, found).unwrap(), item.value);
    }
    space.close().unwrap();
    let scanned: Vec<ScannedExtent> = space
        .blocks()
        .into_iter()
        .flat_map(|block| space.scan_block(block.number).unwrap())
        .collect::<Result<_>>()
        .unwrap();
    assert_eq!(scanned.len(), items.len());
    for ((item, found), extent) in items.iter().zip(&found).zip(&scanned) {
        assert_eq!((extent.offset, extent.extent_bytes), (found.offset, found.extent_bytes));
        assert_eq!((&extent.header.key[..], extent.version), (item.key, Some(item.version)));
    }
}

#[test]
fn threads_write_side_by_side() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 2 << 20);
    let written = parking_lot::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let (space, written) = (&space, &written);
            scope.spawn(move || {
                for index in 0..30_u64 {
                    let seed = thread * 1000 + index;
                    let value = pattern(
                        (seed as usize * 7919) % 900_000 + if index % 10 == 0 { 1 << 20 } else { 0 },
                        seed,
                    );
                    let key = format!("{thread}/{index}").into_bytes();
                    let found = match index % 3 {
                        0 => stream(space, &key, &value, 50_000).unwrap(),
                        _ => space.write(&key, b"", &value, seed).unwrap(),
                    };
                    space.sync_all(&[found]).unwrap();
                    if index % 7 == 6 {
                        space.abandoned(&found);
                        continue;
                    }
                    space.committed(&found, seed + 1);
                    written.lock().push((key, value, found, seed + 1));
                    space.seal_ready().unwrap();
                }
            });
        }
    });
    space.close().unwrap();
    drop(space);
    let space = open(&disk, 2 << 20);
    let written = written.into_inner();
    for (key, value, found, _) in &written {
        assert_eq!(read(&space, key, found).unwrap(), value[..]);
    }
    let mut versions = Vec::new();
    for block in space.blocks() {
        let scan = space.scan_block(block.number).unwrap();
        assert!(scan.has_footer());
        versions.extend(scan.map(|extent| extent.unwrap().version.unwrap()));
    }
    versions.sort_unstable();
    let mut expected: Vec<u64> = written.iter().map(|(.., version)| *version).collect();
    expected.sort_unstable();
    assert_eq!(versions, expected);
}

#[test]
fn works_on_the_file_system() {
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(FileDisk::new(dir.path()).unwrap());
    let (space, _) = LargeSpace::open(Arc::clone(&disk), options(4 << 20)).unwrap();
    let mut written = Vec::new();
    for index in 0..40_u64 {
        let value = pattern(100_000 + index as usize * 50_000, index);
        let key = format!("key/{index}").into_bytes();
        let found = match index % 2 {
            0 => space.write(&key, b"attributes", &value, index).unwrap(),
            _ => stream(&space, &key, &value, 123_456).unwrap(),
        };
        space.sync_all(&[found]).unwrap();
        space.committed(&found, index + 1);
        written.push((key, value, found));
    }
    space.close().unwrap();
    drop(space);
    let (space, report) = LargeSpace::open(disk, options(4 << 20)).unwrap();
    assert_eq!(report, OpenReport::default());
    for (key, value, found) in &written {
        assert_eq!(read(&space, key, found).unwrap(), value[..]);
    }
}
