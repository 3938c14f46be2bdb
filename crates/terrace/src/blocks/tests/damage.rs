//! Flipped bits and hostile bytes: an error for that value, never wrong bytes, never a panic.

use super::{
    format::{
        BlockHeader, ExtentKind, FooterEntry, Place, RecordKind, Trailer, decode_block_header, decode_chunk,
        decode_footer, decode_record_header, decode_trailer, encode_block_header, encode_footer, encode_record_header,
    },
    meta::{MetaBlock, decode_meta, encode_meta},
    *,
};
use crate::io::PAGE_BYTES;

#[test]
fn no_flipped_byte_yields_wrong_bytes() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 1 << 20);
    let values = [pattern(3000, 1), pattern(70_000, 2), Vec::new()];
    let key = b"a/key";
    let mut found: Vec<LargeValue> = values
        .iter()
        .map(|value| space.write(key, b"attr", value, 5).unwrap())
        .collect();
    let small = pattern(100, 4);
    let item = DestageItem {
        key,
        attributes: b"",
        value: &small,
        version: 9,
    };
    found.extend(space.write_batch(&[item, item], Origin::User).unwrap());
    let values: Vec<&[u8]> = values
        .iter()
        .map(Vec::as_slice)
        .chain([&small[..], &small[..]])
        .collect();
    found.iter().for_each(|found| space.committed(found, 6));
    space.close().unwrap();
    let path = block_path(found[0].block);
    let length = disk.file(&path).bytes.lock().len();
    for at in 0..length {
        let file = disk.file(&path);
        file.bytes.lock()[at] ^= 1 << (at % 8);
        for (value, found) in values.iter().zip(&found) {
            let start = found.offset as usize;
            let hit = (start..start + found.extent_bytes as usize).contains(&at);
            // Reading all five for every byte would take minutes.
            if !hit && at % 61 != 0 {
                continue;
            }
            match read(&space, key, found) {
                Ok(bytes) => assert!(
                    !hit && bytes == value[..],
                    "byte {at} of the extent at {start} was not noticed"
                ),
                Err(Error::Corruption { place, .. }) => {
                    assert!(hit, "byte {at} is not in the extent at {start}");
                    assert!(
                        place.contains("blk") && place.contains(&found.offset.to_string()),
                        "{place}"
                    );
                }
                Err(other) => panic!("{other}"),
            }
        }
        file.bytes.lock()[at] ^= 1 << (at % 8);
    }
}

#[test]
fn ranges_beside_the_damage_are_still_read() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 1 << 20);
    let value = pattern(200_000, 2);
    let found = space.write(b"key", b"", &value, 5).unwrap();
    let reader = space.open_value(&found.extent()).unwrap();
    disk.file(&block_path(found.block)).bytes.lock()[found.offset as usize + 51 + 65_536 + 17] ^= 4;
    let mut out = Vec::new();
    reader.read_range(0..65_532, &mut out).unwrap();
    reader.read_range(131_064..200_000, &mut out).unwrap();
    assert_eq!(out, [&value[..65_532], &value[131_064..]].concat());
    let mut out = Vec::new();
    let error = reader.read_range(60_000..131_065, &mut out).unwrap_err();
    assert!(error.to_string().contains("chunk 1"), "{error}");
    assert_eq!(out, value[60_000..65_532], "only verified bytes are handed out");
}

#[test]
fn a_wrong_entry_is_corruption() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 1 << 20);
    let value = pattern(100_000, 2);
    let found = space.write(b"key", b"", &value, 5).unwrap();
    let other = space.write(b"key", b"", &value, 5).unwrap();
    let Extent {
        block,
        offset,
        extent_bytes,
        length,
    } = found.extent();
    let is_corrupt = |key: &[u8], block, offset, extent_bytes, length| {
        let extent = Extent {
            block,
            offset,
            extent_bytes,
            length,
        };
        matches!(space.read_all(key, &extent), Err(Error::Corruption { .. }))
    };
    assert!(is_corrupt(b"other", block, offset, extent_bytes, length));
    assert!(is_corrupt(b"key", block + 1, offset, extent_bytes, length));
    assert!(is_corrupt(b"key", block, offset + 64, extent_bytes, length));
    assert!(is_corrupt(b"key", block, offset, extent_bytes, length - 1));
    assert!(is_corrupt(b"key", block, offset, extent_bytes + 1, length + 1));
    assert!(is_corrupt(b"key", block, 1 << 40, extent_bytes, length));
    for wild in [0, 1, u64::MAX, u64::MAX - 4096, 1 << 63, 5 << 30, 1 << 33] {
        assert!(is_corrupt(b"key", block, wild, extent_bytes, length));
        assert!(is_corrupt(b"key", block, offset, wild, length));
        assert!(is_corrupt(b"key", block, offset, extent_bytes, wild));
        assert!(is_corrupt(b"key", block, offset, wild, wild));
        assert!(is_corrupt(b"key", block, offset, wild, wild.wrapping_sub(200_000)));
    }
    // An extent that was written elsewhere does not pass here, not even with equal content.
    let file = disk.file(&block_path(block));
    let mut bytes = file.bytes.lock();
    let (from, to) = (other.offset as usize, offset as usize);
    bytes.copy_within(from..from + extent_bytes as usize, to);
    drop(bytes);
    assert!(is_corrupt(b"key", block, offset, extent_bytes, length));
    let reader = space.open_value(&found.extent()).unwrap();
    assert!(reader.read_range(5..10, &mut Vec::new()).is_err());
}

#[test]
fn a_scan_goes_on_after_a_damaged_header() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 8 << 20);
    let values: Vec<LargeValue> = (0..5_u64)
        .map(|index| {
            space
                .write(&[b'k', index as u8], b"", &pattern(150_000, index), index)
                .unwrap()
        })
        .collect();
    let small = pattern(300, 4);
    let items: Vec<DestageItem<'_>> = (0..5)
        .map(|version| DestageItem {
            key: b"small",
            attributes: b"",
            value: &small,
            version,
        })
        .collect();
    let destaged = space.write_batch(&items, Origin::User).unwrap();
    let file = disk.file(&block_path(values[0].block));
    file.bytes.lock()[values[1].offset as usize + 20] ^= 1;
    file.bytes.lock()[destaged[2].offset as usize + 20] ^= 1;
    let expected: Vec<u64> = [
        values[0],
        values[2],
        values[3],
        values[4],
        destaged[0],
        destaged[1],
        destaged[3],
        destaged[4],
    ]
    .iter()
    .map(|value| value.offset)
    .collect();
    let check = |versions_known: bool| {
        let scan = space.scan_block(values[0].block).unwrap();
        assert_eq!(scan.has_footer(), versions_known);
        let (found, damaged): (Vec<_>, Vec<_>) = scan.partition(Result::is_ok);
        let found: Vec<ScannedExtent> = found.into_iter().map(Result::unwrap).collect();
        assert_eq!(found.iter().map(|extent| extent.offset).collect::<Vec<_>>(), expected);
        assert_eq!(damaged.len(), 2, "{damaged:?}");
        let known = found.iter().filter(|extent| extent.version.is_some()).count();
        assert_eq!(known, if versions_known { 8 } else { 4 });
    };
    check(false);
    values.iter().for_each(|value| space.committed(value, 77));
    space.close().unwrap();
    check(true);
}

#[test]
fn a_value_that_looks_like_a_record_is_not_found_by_a_scan() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 8 << 20);
    let mut forged = AlignedBuffer::new();
    for offset in (4096..40_960).step_by(PAGE_BYTES) {
        // All an uploader can know or guess, except the store's identity.
        let place = Place {
            store_id: 0,
            block: 1,
            offset: offset as u64 + 4096,
        };
        forged.set_len(offset - 4096);
        encode_record_header(&mut forged, place, RecordKind::Put, 1, 0, b"victim", b"");
        forged.pad_to_page();
    }
    // The writer is dropped: what it wrote has no header, so the scan searches through it.
    let mut writer = space.writer(b"k", b"", Length::AtLeast(0), 1).unwrap();
    writer.write(&pattern((1 << 20) - 49, 1)).unwrap();
    writer.write(&forged).unwrap();
    writer.write(&pattern(1 << 20, 1)).unwrap();
    drop(writer);
    let found: Vec<_> = space.scan_block(1).unwrap().filter_map(Result::ok).collect();
    assert_eq!(found, []);
}

#[test]
fn decoders_take_any_bytes() {
    let header = BlockHeader {
        store_id: STORE,
        block: 3,
    };
    let place = Place {
        store_id: STORE,
        block: 3,
        offset: 4096,
    };
    let mut record = AlignedBuffer::new();
    encode_record_header(&mut record, place, RecordKind::Put, 1, 10, b"key", b"attributes");
    let entry = FooterEntry {
        kind: ExtentKind::Put,
        offset: 4096,
        extent_bytes: 100,
        version: 4,
    };
    let footer = encode_footer(header, 8192, &[entry]);
    let mut meta = Meta::empty(STORE);
    meta.next_block = 2;
    let listed = MetaBlock {
        state: BlockState::Open,
        bytes: 0,
    };
    meta.blocks.insert(1, listed);
    let meta = encode_meta(&meta);
    let valid: [&[u8]; 4] = [&encode_block_header(header), &record, &footer, &meta];
    let decode_all = |bytes: &[u8]| {
        let trailer = Trailer {
            footer_offset: 8192,
            entries: bytes.len() as u32 % 100,
            entries_checksum: 0,
        };
        [
            decode_block_header(bytes).is_some(),
            decode_record_header(bytes, place).is_some(),
            decode_trailer(bytes, header, 12_288).is_some() && decode_footer(bytes, &trailer).is_none(),
            decode_meta(bytes).is_some(),
            decode_chunk(bytes, 1, 2).is_some(),
        ]
    };
    for (which, &bytes) in valid.iter().enumerate() {
        assert!(decode_all(bytes)[which], "the valid form of {which} decodes");
        for length in 0..bytes.len() {
            assert!(!decode_all(&bytes[..length])[which], "{which} cut to {length}");
        }
        // The footer's own checksum covers its entries, and its padding holds nothing.
        let covered = if which == 2 {
            bytes.len() - 64..bytes.len()
        } else {
            0..bytes.len()
        };
        for at in covered {
            let mut bytes = bytes.to_vec();
            bytes[at] ^= 1 << (at % 8);
            assert!(!decode_all(&bytes)[which], "{which} flipped at {at}");
        }
    }
    for seed in 0..2000 {
        let bytes = pattern(seed as usize % 300, seed);
        assert_eq!(decode_all(&bytes), [false; 5]);
    }
}

#[test]
fn a_damaged_footer_leaves_a_block_without_one() {
    let disk = MemoryDisk::new();
    let space = open(&disk, 1 << 20);
    let found = space.write(b"key", b"", &pattern(5000, 1), 5).unwrap();
    space.committed(&found, 8);
    space.close().unwrap();
    let file = disk.file(&block_path(1));
    let end = file.bytes.lock().len();
    for at in [end - 4096, end - 4096 + 16, end - 64, end - 1, end - 48] {
        file.bytes.lock()[at] ^= 2;
        let scan = space.scan_block(1).unwrap();
        assert!(!scan.has_footer());
        let found: Vec<_> = scan.filter_map(Result::ok).collect();
        assert_eq!((found.len(), found[0].version), (1, None));
        file.bytes.lock()[at] ^= 2;
    }
    assert!(space.scan_block(1).unwrap().has_footer());
}
