//! The file: its bytes, and everything that may be wrong with them.
#![allow(clippy::unwrap_used)]

use super::{
    FILE, NEW_FILE,
    file::{Sink, Source},
    format::{FORMAT_VERSION, Header, NotAHeader},
};
use crate::{
    Error,
    hash_index::{
        Config, HashIndex,
        key_filter::{KeyFilter, layer_lines},
    },
    io::{Disk, OpenMode, PAGE_BYTES, SimDisk},
    log::address::Address,
};
use std::path::Path;

const CONFIG: Config = Config {
    partitions: 2,
    buckets_min: 2,
    ram_bytes_max: usize::MAX,
};

const HEADER: Header = Header {
    store_id: 0x0102_0304_0506_0708,
    segment_bytes: 256 << 10,
    partitions: 2,
    buckets_min: 2,
    begun_seq: 41,
    ended_seq: 45,
    generation_max: 9,
    filter_layers: 0,
    was_crowded: false,
    file_bytes: 0,
};

/// Evenly spread, so that no two of them share a class.
fn hash(n: u64) -> u64 {
    (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn hash_elsewhere(n: u64) -> u64 {
    crate::key_hash(&n.to_le_bytes())
}

fn address(n: u64) -> Address {
    Address::new((n + 1) * 16).unwrap()
}

fn filled(slots: u64, elsewhere: u64) -> (HashIndex, KeyFilter) {
    let (index, filter) = (HashIndex::new(CONFIG).unwrap(), KeyFilter::default());
    (0..slots).for_each(|n| assert_eq!(index.insert(hash(n), address(n), n * 37), None));
    (0..elsewhere).for_each(|n| filter.insert(hash_elsewhere(n)));
    (index, filter)
}

/// Writes a checkpoint and gives its bytes.
fn written(index: &HashIndex, filter: &KeyFilter) -> Vec<u8> {
    let disk = SimDisk::new(1);
    let mut sink = Sink::create(&disk, true).unwrap();
    let filter_layers = sink.write_contents(index, filter, |_| Ok(())).unwrap();
    let file_bytes = sink
        .finish(&Header {
            filter_layers,
            ..HEADER
        })
        .unwrap();
    let bytes = disk.read_file(NEW_FILE).unwrap();
    assert_eq!(bytes.len() as u64, file_bytes);
    bytes
}

/// Reads a checkpoint to the end.
fn read(bytes: &[u8]) -> Result<(HashIndex, KeyFilter, Header), Error> {
    let disk = SimDisk::new(1);
    disk.put_file(FILE, bytes).unwrap();
    let mut source = Source::open(&disk, true)?.expect("it is there");
    let header = *source.header();
    let index = HashIndex::new(CONFIG).unwrap();
    while !source.step(Some(&index), |_| true)? {}
    Ok((index, source.into_filter(), header))
}

#[test]
fn what_is_written_is_read() {
    for (slots, elsewhere) in [(0, 0), (1, 0), (20, 5), (3_000, 0), (10_000, 80_000)] {
        let (index, filter) = filled(slots, elsewhere);
        let _ = index.lookup(hash(7));
        let bytes = written(&index, &filter);
        let (read_index, read_filter, header) = read(&bytes).unwrap();
        let filter_layers = filter.layers() as u32;
        let file_bytes = bytes.len() as u64;
        assert_eq!(
            header,
            Header {
                filter_layers,
                file_bytes,
                ..HEADER
            }
        );
        assert_eq!((read_index.len(), read_filter.len()), (slots, filter.len()));
        for n in 0..slots {
            assert_eq!(read_index.peek(hash(n)), index.peek(hash(n)));
            assert_eq!(read_index.recency(hash(n), address(n)), Some(u8::from(n == 7)));
        }
        assert!((0..elsewhere).all(|n| read_filter.may_contain(hash_elsewhere(n))));
        assert_eq!(written(&read_index, &read_filter), bytes, "there is one form");
        if slots == 10_000 {
            let filter_bytes = filter.bytes();
            assert!(
                file_bytes - filter_bytes < slots * 9,
                "{file_bytes} bytes, {filter_bytes} of them the filter's"
            );
        }
    }
}

#[test]
fn slots_that_are_refused_are_left_out() {
    let (index, filter) = filled(100, 0);
    let disk = SimDisk::new(1);
    disk.put_file(FILE, &written(&index, &filter)).unwrap();
    let mut source = Source::open(&disk, false).unwrap().unwrap();
    let kept = HashIndex::new(CONFIG).unwrap();
    while !source.step(Some(&kept), |address| address.packed() % 3 == 0).unwrap() {}
    for n in 0..100 {
        assert_eq!(kept.peek(hash(n)).is_some(), address(n).packed().is_multiple_of(3));
    }
    assert_eq!(kept.len(), 33);
    let filter = source.into_filter();
    for n in 0..100 {
        let is_refused = !address(n).packed().is_multiple_of(3);
        assert_eq!(filter.may_contain(kept.class_hash(hash(n))), is_refused, "{n}");
    }
}

#[test]
fn it_is_said_whether_slots_were_given_up() {
    let header = Header {
        was_crowded: true,
        file_bytes: PAGE_BYTES as u64,
        ..HEADER
    };
    assert_eq!(Header::decode(&header.encode()), Ok(header));
}

#[test]
fn any_flipped_bit_is_noticed() {
    let (index, filter) = filled(40, 0);
    let bytes = written(&index, &filter);
    assert!(read(&bytes).is_ok());
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        assert!(matches!(read(&flipped), Err(Error::Corruption { .. })), "byte {at}");
    }
    // With a filter there are too many bytes to try all.
    let (index, filter) = filled(4, 100);
    let bytes = written(&index, &filter);
    for at in (PAGE_BYTES..bytes.len()).step_by(1009) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 0x10;
        assert!(matches!(read(&flipped), Err(Error::Corruption { .. })), "byte {at}");
    }
}

#[test]
fn a_file_of_another_length_is_noticed() {
    let (index, filter) = filled(40, 0);
    let bytes = written(&index, &filter);
    for length in [0, 1, 100, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, bytes.len() - 1] {
        assert!(
            matches!(read(&bytes[..length]), Err(Error::Corruption { .. })),
            "{length} bytes"
        );
    }
    let longer = [bytes, vec![0; PAGE_BYTES]].concat();
    assert!(matches!(read(&longer), Err(Error::Corruption { .. })));
}

/// Changes a header page and puts its checksum right.
fn with_header(bytes: &[u8], change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    change(&mut bytes);
    let checksum = crc32c::crc32c(&bytes[12..PAGE_BYTES]);
    bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

#[test]
fn a_header_that_does_not_fit_its_file_is_noticed() {
    let (index, filter) = filled(40, 0);
    let bytes = written(&index, &filter);
    let refused = |what: &str, bytes: &[u8]| {
        assert!(matches!(read(bytes), Err(Error::Corruption { .. })), "{what}");
    };
    refused("the format before", &with_header(&bytes, |page| page[12] = 1));
    refused("a newer format", &with_header(&bytes, |page| page[12] = 3));
    refused("no format", &with_header(&bytes, |page| page[12] = 0));
    refused("reserved bytes", &with_header(&bytes, |page| page[4095] = 1));
    refused("neither crowded nor not", &with_header(&bytes, |page| page[68] = 2));
    refused("the end before the begin", &with_header(&bytes, |page| page[48] = 40));
    refused("more partitions", &with_header(&bytes, |page| page[32] = 3));
    refused("fewer partitions", &with_header(&bytes, |page| page[32] = 1));
    refused("a filter", &with_header(&bytes, |page| page[64] = 1));
    refused("another length", &with_header(&bytes, |page| page[73] ^= 0x10));
    let page = with_header(&bytes, |page| page[12] = 7);
    assert_eq!(Header::decode(&page[..PAGE_BYTES]), Err(NotAHeader::Version(7)));
}

#[test]
fn parts_in_another_order_are_noticed() {
    let (index, filter) = filled(40, 0);
    let bytes = written(&index, &filter);
    let length =
        |at: usize| (16 + u32::from_le_bytes(bytes[at + 12..at + 16].try_into().unwrap()) as usize).next_multiple_of(8);
    let (first, second) = (PAGE_BYTES, PAGE_BYTES + length(PAGE_BYTES));
    let end = second + length(second);
    let swapped = [
        &bytes[..first],
        &bytes[second..end],
        &bytes[first..second],
        &bytes[end..],
    ]
    .concat();
    assert_eq!(swapped.len(), bytes.len());
    assert!(matches!(read(&swapped), Err(Error::Corruption { .. })));
}

#[test]
fn an_unfinished_file_has_no_header() {
    let disk = SimDisk::new(1);
    let (index, filter) = filled(3_000, 0);
    let mut sink = Sink::create(&disk, true).unwrap();
    sink.write_contents(&index, &filter, |_| Ok(())).unwrap();
    drop(sink);
    // The next one begins again.
    let sink = Sink::create(&disk, true).unwrap();
    assert_eq!(sink.written_bytes(), PAGE_BYTES as u64);
    assert_eq!(disk.read_file(NEW_FILE).unwrap(), b"");
    assert!(disk.open(Path::new(FILE), OpenMode::READ).is_err());
    assert!(Source::open(&disk, true).unwrap().is_none());
}

#[test]
fn golden_bytes() {
    let index = HashIndex::new(CONFIG).unwrap();
    // The first class of the first partition, and the last of the last.
    index.insert(0, Address::new(0x50).unwrap(), 1000);
    index.insert(u64::MAX, Address::new(0xF0).unwrap(), 100);
    let bytes = written(&index, &KeyFilter::default());
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(bytes.len(), 2 * PAGE_BYTES);
    assert_eq!(bytes[..8], *b"TERRCKP1");
    assert_eq!(
        u32::from_le_bytes(bytes[8..12].try_into().unwrap()),
        crc32c::crc32c(&bytes[12..PAGE_BYTES])
    );
    assert_eq!(FORMAT_VERSION, 2);
    assert_eq!(
        hex(&bytes[12..80]),
        concat!(
            "02000000",
            "0807060504030201",
            "0000040000000000",
            "02000000",
            "02000000",
            "2900000000000000",
            "2d00000000000000",
            "0900000000000000",
            "00000000",
            "00000000",
            "0020000000000000",
        )
    );
    assert!(bytes[80..PAGE_BYTES].iter().all(|&byte| byte == 0));
    let chunk = |at: usize, ordinal: u32, payload: &str| {
        assert_eq!(bytes[at..at + 4], *b"TRCS");
        let end = at + 16 + payload.len() / 2;
        let checksum = crc32c::crc32c(&bytes[at + 8..end]);
        assert_eq!(u32::from_le_bytes(bytes[at + 4..at + 8].try_into().unwrap()), checksum);
        assert_eq!(
            hex(&bytes[at + 8..at + 16]),
            format!("{:02x}000000{:02x}000000", ordinal, payload.len() / 2)
        );
        assert_eq!(hex(&bytes[at + 16..end]), payload);
        end.next_multiple_of(8)
    };
    let second = chunk(
        PAGE_BYTES,
        0,
        concat!("02000000", "01000000", "0100", "0500000080010000"),
    );
    let end = chunk(second, 1, concat!("02000000", "01000000", "0001", "0f00000000e0ffff"));
    assert!(bytes[end..].iter().all(|&byte| byte == 0));
}

#[test]
fn golden_bytes_of_the_filter() {
    let filter = KeyFilter::default();
    filter.insert(0);
    let bytes = written(&HashIndex::new(CONFIG).unwrap(), &filter);
    // Behind two empty partitions of 16 + 8 + 2 bytes, and zeros up to eight.
    let at = PAGE_BYTES + 2 * 32;
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(bytes[at..at + 4], *b"TRCF");
    assert_eq!(hex(&bytes[at + 8..at + 16]), "0200000010800100");
    assert_eq!(layer_lines(0) * 64 + 16, 0x01_8010);
    assert_eq!(
        hex(&bytes[at + 16..at + 32]),
        concat!("00000000", "00000000", "ffff000000000000")
    );
    // A hash of 0 stays 0 however it is mixed: its six bits are one, the first of the first line.
    assert_eq!(hex(&bytes[at + 32..at + 48]), "01000000000000000000000000000000");
    assert!(bytes[at + 40..].iter().all(|&byte| byte == 0));
}
