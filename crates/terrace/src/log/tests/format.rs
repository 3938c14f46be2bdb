//! The bytes defined by docs/format.md, and decoders given other bytes.

use super::{
    super::format::{
        FRAME_HEADER_BYTES, FrameHeader, Record, RecordLayout, SegmentHeader, SegmentUse, check_frame, records,
    },
    *,
};
use crate::io::PAGE_BYTES;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn encoded(record: &Record<'_>) -> Vec<u8> {
    // Former contents of the memory must not show in the padding.
    let mut bytes = vec![0xAA; record.record_bytes()];
    record.encode_into(&mut bytes);
    bytes
}

/// A record of every kind that contains or locates a value, and a delete, with their bytes.
fn golden_of_format_1() -> [(Record<'static>, &'static str); 6] {
    const ATTRIBUTES: &[u8] = &[1, 0, 2, 0, 0, 0, b'w', b'6', b'4'];
    let make = |attributes: &'static [u8], body: Body<'static>| Record {
        seq: 0x0123,
        generation: 0x89AB_CDEF,
        attributes,
        ..record(b"film/1", body)
    };
    let value = &b"value"[..];
    [
        (
            make(ATTRIBUTES, Body::Put { value }),
            concat!(
                "fbb87fd401000600230100000000000009000000050000006303e0e1efcdab89",
                "66696c6d2f3101000200000077363476616c7565000000000000000000000000",
            ),
        ),
        (
            make(&[], Body::PutInline { value }),
            concat!(
                "ad7140c202000600230100000000000000000000050000006303e0e1efcdab89",
                "66696c6d2f3176616c75650000000000",
            ),
        ),
        (
            make(ATTRIBUTES, Body::PutLarge { extent: EXTENT }),
            concat!(
                "5f59ef8b03000600230100000000000009000000000000000df0fecaefcdab89",
                "0b0a000000000000003000000000000056040000000000000004000000000000",
                "66696c6d2f3101000200000077363400",
            ),
        ),
        (
            make(&[], Body::Delete),
            concat!(
                "49fb2290040006002301000000000000000000000000000000000000efcdab89",
                "66696c6d2f3100000000000000000000",
            ),
        ),
        (
            make(&[], Body::MoveToFlash { version: 0x11, value }),
            concat!(
                "45a83fbd05000600230100000000000000000000050000006303e0e1efcdab89",
                "1100000000000000000000000000000066696c6d2f3176616c75650000000000",
            ),
        ),
        (
            make(
                ATTRIBUTES,
                Body::MoveToBlock {
                    version: 0x11,
                    extent: EXTENT,
                },
            ),
            concat!(
                "8ccee6fc06000600230100000000000009000000000000000df0fecaefcdab89",
                "110000000000000000000000000000000b0a0000000000000030000000000000",
                "5604000000000000000400000000000066696c6d2f3101000200000077363400",
            ),
        ),
    ]
}

/// A record of every kind with its bytes.
fn golden() -> Vec<(Record<'static>, &'static str)> {
    let make = |body: Body<'static>| Record {
        seq: 0x0123,
        generation: 0x89AB_CDEF,
        ..record(b"film/1", body)
    };
    let since = [
        (
            make(Body::Drop { version: 0x11 }),
            concat!(
                "5f00bbcf070006002301000000000000000000000000000000000000efcdab89",
                "1100000000000000000000000000000066696c6d2f3100000000000000000000",
            ),
        ),
        (
            make(Body::DeleteRange { end: b"film/2" }),
            concat!(
                "3f4e83cc080006002301000000000000000000000600000030a70cf9efcdab89",
                "66696c6d2f3166696c6d2f3200000000",
            ),
        ),
    ];
    golden_of_format_1().into_iter().chain(since).collect()
}

const SEGMENT: SegmentHeader = SegmentHeader {
    store_id: STORE,
    number: 0x0A,
    generation: 0x77,
    first_seq: 0x0123,
    segment_bytes: SEGMENT_BYTES,
    segment_use: SegmentUse::Log,
};

const FRAME: FrameHeader = FrameHeader {
    generation: 0x77,
    first_seq: 0x0101,
    last_seq: 0x0103,
    payload_bytes: 0x1234,
    record_count: 3,
    durable_seq: 0x99,
};

#[test]
fn golden_bytes_of_headers() {
    let page = SEGMENT.encode();
    assert_eq!(
        hex(&page[..56]),
        concat!(
            "54455252534547316c1711870100000088776655443322110a00000000000000",
            "770000000000000023010000000000000000040000000000",
        )
    );
    assert!(page[56..].iter().all(|&byte| byte == 0));
    assert_eq!(SegmentHeader::decode(&page), Some(SEGMENT));
    let bytes = FRAME.encode();
    assert_eq!(
        hex(&bytes),
        concat!(
            "46524d31e6cf1e7a770000000000000001010000000000000301000000000000",
            "3412000003000000990000000000000000000000000000000000000000000000",
        )
    );
    assert_eq!(FrameHeader::decode(&bytes), Some(FRAME));
    assert_eq!(FRAME.frame_bytes(), 0x2000);
}

#[test]
fn golden_bytes_of_every_kind_of_record() {
    for (record, expected) in golden() {
        let bytes = encoded(&record);
        assert_eq!(hex(&bytes), expected, "{:?}", record.body);
        let decoded = Record::decode(&bytes).unwrap();
        assert_eq!(decoded, record);
        assert!(decoded.value_matches());
        assert_eq!(RecordLayout::read(&bytes).unwrap().record_bytes(), bytes.len());
        let version = if record.body.is_move() { 0x11 } else { 0x0123 };
        assert_eq!(decoded.version(), version);
    }
}

#[test]
fn every_flipped_bit_in_a_record_is_seen() {
    for (record, _) in golden() {
        let bytes = encoded(&record);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let passes = Record::decode(&flipped).is_some_and(|record| record.value_matches());
            assert!(!passes, "bit {bit} of {:?}", record.body);
        }
        for length in 0..bytes.len() {
            assert_eq!(Record::decode(&bytes[..length]), None, "{length} bytes");
        }
        let mut longer = bytes.clone();
        longer.extend_from_slice(&[0x55; 40]);
        assert_eq!(Record::decode(&longer), Some(record));
    }
}

#[test]
fn every_flipped_bit_in_a_header_is_seen() {
    let frame = FRAME.encode();
    for bit in 0..frame.len() * 8 {
        let mut flipped = frame;
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(FrameHeader::decode(&flipped), None, "bit {bit}");
    }
    let page = SEGMENT.encode();
    for bit in (0..64 * 8).chain([4095 * 8]) {
        let mut flipped = page;
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(SegmentHeader::decode(&flipped), None, "bit {bit}");
    }
    assert_eq!(SegmentHeader::decode(&page[..4095]), None);
    assert_eq!(FrameHeader::decode(&frame[..63]), None);
}

/// Computes the checksum of a record again, as an attacker would.
fn resign(bytes: &mut [u8]) {
    if let Some(layout) = RecordLayout::read(bytes) {
        let covered = layout.value_at.min(bytes.len());
        let checksum = crc32c::crc32c(&bytes[4..covered]);
        bytes[..4].copy_from_slice(&checksum.to_le_bytes());
    }
}

#[test]
fn decoders_take_any_bytes() {
    let golden = golden();
    for seed in 0..20_000_u64 {
        let (record, _) = golden[seed as usize % golden.len()];
        let mut bytes = encoded(&record);
        let random = noise(seed, 8);
        for pair in random.chunks(2).take(1 + seed as usize % 4) {
            let at = usize::from(pair[0]) % bytes.len();
            bytes[at] = pair[1];
        }
        if seed % 3 == 0 {
            resign(&mut bytes);
        }
        if let Some(decoded) = Record::decode(&bytes) {
            assert_eq!(encoded(&decoded), bytes[..decoded.record_bytes()], "seed {seed}");
        }
        assert!(records(&bytes).filter(|(_, record)| record.value_matches()).count() <= bytes.len() / 48);
        let _ = check_frame(&bytes, seed);
        let _ = FrameHeader::decode(&noise(seed, 64));
        let _ = RecordLayout::read(&noise(seed, 32)).map(|layout| layout.record_bytes());
    }
}

#[test]
fn reserved_fields_and_values_where_none_belong_are_refused() {
    for ((record, _), at) in golden().into_iter().zip([5, 5, 20, 20, 40, 44, 20, 16]) {
        let mut bytes = encoded(&record);
        bytes.extend_from_slice(&[0; 64]);
        bytes[at] = 16;
        resign(&mut bytes);
        assert_eq!(Record::decode(&bytes), None, "byte {at} of {:?}", record.body);
    }
    for kind in [0, 9, 255] {
        let mut bytes = encoded(&golden()[0].0);
        bytes[4] = kind;
        assert!(RecordLayout::read(&bytes).is_none() && Record::decode(&bytes).is_none());
    }
}

#[test]
fn a_range_that_ends_before_it_begins_is_refused() {
    for (end, is_range) in [
        (&b"film/1\0"[..], true),
        (b"", true),
        (b"film/1", false),
        (b"film/", false),
    ] {
        let bytes = encoded(&record(b"film/1", Body::DeleteRange { end }));
        assert_eq!(Record::decode(&bytes).is_some(), is_range, "{end:?}");
    }
    let longest = vec![b'z'; crate::KEY_BYTES_MAX + 1];
    for (end, is_range) in [(&longest[1..], true), (&longest[..], false)] {
        let bytes = encoded(&record(b"film/1", Body::DeleteRange { end }));
        assert_eq!(Record::decode(&bytes).is_some(), is_range, "{} bytes", end.len());
    }
}

#[test]
fn a_frame_counts_whole_or_not_at_all() {
    let values = [noise(1, 100), noise(2, 3_000), noise(3, 0), noise(4, 2_500)];
    let frame = sealed(3, 9, 4096, 50, &values);
    let bytes = frame.view().bytes().to_vec();
    let header = check_frame(&bytes, 9).unwrap();
    assert_eq!((header.first_seq, header.last_seq, header.record_count), (50, 53, 4));
    assert_eq!((header.durable_seq, header.frame_bytes()), (49, bytes.len()));
    let end = FRAME_HEADER_BYTES + header.payload_bytes as usize;
    let mut longer = bytes.clone();
    longer.extend_from_slice(&noise(5, PAGE_BYTES));
    assert_eq!(
        check_frame(&longer, 9),
        Some(header),
        "what follows a frame is another's"
    );
    for length in (0..end).step_by(7).chain([end - 1]) {
        assert_eq!(check_frame(&bytes[..length], 9), None, "cut to {length}");
    }
    assert_eq!(check_frame(&bytes, 10), None, "another use of the segment");
    for at in 0..end {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        assert_eq!(check_frame(&flipped, 9), None, "byte {at}");
    }
    for change in [
        FrameHeader {
            record_count: 3,
            ..header
        },
        FrameHeader {
            payload_bytes: header.payload_bytes - 16,
            ..header
        },
        FrameHeader {
            payload_bytes: header.payload_bytes + 16,
            ..header
        },
        FrameHeader {
            first_seq: 51,
            ..header
        },
        FrameHeader { last_seq: 52, ..header },
        FrameHeader {
            payload_bytes: u32::MAX,
            ..header
        },
    ] {
        let mut changed = bytes.clone();
        changed[..FRAME_HEADER_BYTES].copy_from_slice(&change.encode());
        assert_eq!(check_frame(&changed, 9), None, "{change:?}");
    }
}
