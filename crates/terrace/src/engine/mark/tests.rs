//! The bytes defined by docs/format.md, those of older formats, and what is refused.
#![allow(clippy::unwrap_used)]
use super::*;

fn range(seq: u64, start: &[u8], end: &[u8]) -> DeletedRange {
    DeletedRange {
        seq,
        start: start.into(),
        end: end.into(),
    }
}

fn payload() -> MarkPayload {
    let home = |objects, bytes| HomeStats { objects, bytes };
    MarkPayload {
        store_id: 0x2827_2625_2423_2221,
        earliest_ms: 0x1817_1615_1413_1211,
        homes: [home(1, 5), home(2, 300), home(1, 1 << 33)],
        over_uses: vec![(5, 6), (0x0403_0201, 0x1817_1615_1413_1211)],
        in_use: vec![0..5, 6..0x0403_0201],
        swept: vec![(7, 9)],
        ranges: vec![range(0x0807_0605_0403_0201, b"a", b"b"), range(u64::MAX, b"xyz", b"")],
        live: Some(vec![(1, 5), (300, 1 << 33)]),
    }
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(byte).collect()
}

const HOMES: &str = concat!(
    "01000000000000000500000000000000",
    "02000000000000002c01000000000000",
    "01000000000000000000000002000000",
);
const SEGMENTS: &str = concat!("02000000", "050000000600000000000000", "010203041112131415161718");
const RANGES: &str = concat!(
    "02000000",
    "0102030405060708010001006162",
    "ffffffffffffffff0300000078797a",
);
const LIVE: &str = "02000000000000000105ab028080808020";
const IN_USE: &str = concat!("02000000", "0005", "01fb838c20");
const SWEPT: &str = concat!("01000000", "070000000900000000000000");

#[test]
fn golden_bytes() {
    let head = concat!("5452434d41524b50", "02000000", "2122232425262728", "1112131415161718");
    let expected = bytes_of(&[head, HOMES, SEGMENTS, RANGES, LIVE, IN_USE, SWEPT].concat());
    assert_eq!(payload().encode(), expected);
    assert_eq!(MarkPayload::decode(&expected), Some(payload()));
    for length in 0..expected.len() {
        assert_eq!(MarkPayload::decode(&expected[..length]), None, "{length} bytes");
    }
    assert_eq!(MarkPayload::decode(&[&expected[..], &[0]].concat()), None);
    let mut newer = expected;
    newer[8] = 3;
    assert_eq!(MarkPayload::decode(&newer), None);
}

/// Payloads of format 4 do not say of which store they are, nor which segments are in use.
#[test]
fn what_format_4_has_is_read() {
    let head = concat!("5452434d41524b50", "01000000", "1112131415161718");
    let old = MarkPayload {
        store_id: 0,
        in_use: Vec::new(),
        swept: Vec::new(),
        ..payload()
    };
    let bytes = bytes_of(&[head, HOMES, SEGMENTS, RANGES, LIVE].concat());
    assert_eq!(MarkPayload::decode(&bytes), Some(old.clone()));
    let check = |payload: &MarkPayload, store_id| {
        let mark = IndexMark {
            applied_seq: 1,
            payload: payload.encode().into(),
        };
        MarkPayload::check_store(&mark, store_id, Path::new(""))
    };
    assert!(check(&old, 1).is_ok());
    assert!(check(&payload(), 0x2827_2625_2423_2221).is_ok());
    assert!(check(&payload(), 1).is_err());
}

#[test]
fn what_older_formats_have_is_read() {
    let head = "01000000"; // of each part, behind its magic number
    let segments = ["54524653", head, SEGMENTS].concat();
    let ranges = ["54524452", head, "1112131415161718", RANGES].concat();
    let live = ["54524341", head, LIVE, "c4547438"].concat();
    // As a store of format 3 wrote it,
    let whole = bytes_of(&[HOMES, &segments, &ranges, &live].concat());
    let of_format_3 = MarkPayload {
        store_id: 0,
        in_use: Vec::new(),
        swept: Vec::new(),
        live: None,
        ..payload()
    };
    assert_eq!(MarkPayload::decode(&whole), Some(of_format_3.clone()));
    // of format 1,
    let old = MarkPayload {
        earliest_ms: 0,
        ranges: Vec::new(),
        ..of_format_3
    };
    let bytes = bytes_of(&[HOMES, &segments, &live].concat());
    assert_eq!(MarkPayload::decode(&bytes), Some(old.clone()));
    // and a repair.
    let repaired = MarkPayload {
        over_uses: Vec::new(),
        ..old
    };
    let bytes = bytes_of(&[HOMES, &live].concat());
    assert_eq!(MarkPayload::decode(&bytes), Some(repaired));
    for length in 0..whole.len() {
        assert_eq!(MarkPayload::decode(&whole[..length]), None, "{length} bytes");
    }
    for bit in 0..32 {
        let mut flipped = whole.clone();
        let end = flipped.len() - 4;
        flipped[end + bit / 8] ^= 1 << (bit % 8);
        assert_eq!(MarkPayload::decode(&flipped), None, "bit {bit} of the checksum");
    }
}

#[test]
fn what_no_writer_writes_is_refused() {
    let refused = |payload: &MarkPayload| assert_eq!(MarkPayload::decode(&payload.encode()), None, "{payload:?}");
    for over_uses in [[(3, 4), (1, 2)], [(1, 2), (1, 3)], [(1, 0), (3, 4)]] {
        refused(&MarkPayload {
            over_uses: over_uses.to_vec(),
            ..payload()
        });
    }
    let long = vec![b'k'; KEY_BYTES_MAX + 1];
    for ranges in [
        vec![range(1, b"", b"b")],
        vec![range(1, b"b", b"b")],
        vec![range(1, b"b", b"a")],
        vec![range(0, b"a", b"b")],
        vec![range(1, &long, b"")],
        vec![range(1, b"a", &long)],
        vec![range(2, b"a", b"b"), range(2, b"c", b"d")],
        vec![range(2, b"a", b"b"), range(1, b"c", b"d")],
    ] {
        refused(&MarkPayload { ranges, ..payload() });
    }
    refused(&MarkPayload {
        live: Some(vec![(7, 5), (7, 6)]),
        ..payload()
    });
    // Runs of segments that are empty, touch, or end behind the last number.
    for runs in [
        "0100000000",
        "020000000001",
        "02000000000100",
        "0200000000010001",
        "01000000018080808010",
    ] {
        let bytes = MarkPayload::empty().encode();
        let bytes = [&bytes[..bytes.len() - 8], &bytes_of(runs), &[0; 4]].concat();
        assert_eq!(MarkPayload::decode(&bytes), None, "{runs}");
    }
    // Numbers of items for which the bytes have no room.
    let bytes = MarkPayload::empty().encode();
    for at in [76, 80, 84, bytes.len() - 8, bytes.len() - 4] {
        let mut huge = bytes.clone();
        huge[at..at + 4].fill(0xff);
        assert_eq!(MarkPayload::decode(&huge), None, "at {at}");
    }
}

#[test]
fn lists_are_of_bounded_length_and_blocks_without_live_bytes_are_left_out() {
    let long = MarkPayload {
        over_uses: (0..LISTED_MAX as u32 + 10).map(|number| (number, 7)).collect(),
        live: Some(vec![(1, 0), (2, 5), (3, 0)]),
        ..MarkPayload::empty()
    };
    let read = MarkPayload::decode(&long.encode()).unwrap();
    assert_eq!(read.over_uses, long.over_uses[..LISTED_MAX]);
    assert_eq!(read.live, Some(vec![(2, 5)]));
}
