//! The bytes that docs/format.md promises.

use super::{
    format::{
        BlockHeader, ChunkEncoder, ExtentKind, FooterEntry, Place, RecordHeader, RecordKind, decode_block_header,
        decode_chunk, decode_footer, decode_record_header, decode_trailer, encode_block_header, encode_footer,
        encode_record_header,
    },
    meta::{MetaBlock, decode_meta, encode_meta},
    *,
};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const HEADER: BlockHeader = BlockHeader {
    store_id: 0x1122_3344_5566_7788,
    block: 0x0A0B,
};

const PLACE: Place = Place {
    store_id: 0x1122_3344_5566_7788,
    block: 0x0A0B,
    offset: 0x3000,
};

#[test]
fn block_header() {
    let page = encode_block_header(HEADER);
    assert_eq!(
        hex(&page[..36]),
        concat!(
            "545243424c4f434b010000000000000088776655443322110b0a000000000000",
            "c526b56f",
        )
    );
    assert_eq!(page.len(), 4096);
    assert!(page[36..].iter().all(|&byte| byte == 0));
    assert_eq!(decode_block_header(&page), Some(HEADER));
}

#[test]
fn record_header() {
    let mut out = AlignedBuffer::new();
    encode_record_header(&mut out, PLACE, RecordKind::Put, 0x77, 0x0123_4567, b"film/1", b"at");
    assert_eq!(
        hex(&out),
        concat!(
            "54524352010006000200000070e9bc8267452301000000007700000000000000",
            "0b0a000000000000003000000000000066696c6d2f316174",
        )
    );
    let header = RecordHeader {
        kind: RecordKind::Put,
        ticket: 0x77,
        length: 0x0123_4567,
        key: b"film/1".to_vec(),
        attributes: b"at".to_vec(),
    };
    assert_eq!(decode_record_header(&out, PLACE), Some(header));
    let elsewhere = Place {
        offset: 0x4000,
        ..PLACE
    };
    assert_eq!(decode_record_header(&out, elsewhere), None);
}

#[test]
fn chunks() {
    let mut chunks = ChunkEncoder::new(PLACE);
    let mut out = AlignedBuffer::new();
    let value = vec![0xA5; 65_534];
    let taken = chunks.push(&value, &mut out);
    assert_eq!(taken, 65_532);
    chunks.push(&value[taken..], &mut out);
    chunks.finish(&mut out);
    assert_eq!(out.len(), 65_542);
    assert_eq!(hex(&out[65_530..]), "a5a58bbce667a5a558e42dad");
    assert_eq!(decode_chunk(&out[..65_536], PLACE.chunk_seed(), 0), Some(&value[2..]));
    assert_eq!(decode_chunk(&out[65_536..], PLACE.chunk_seed(), 1), Some(&value[..2]));
    assert_eq!(
        decode_chunk(&out[65_536..], PLACE.chunk_seed(), 0),
        None,
        "a chunk knows its place"
    );
}

#[test]
fn footer() {
    let entries = [
        FooterEntry {
            kind: ExtentKind::Put,
            offset: 0x1000,
            extent_bytes: 0x1234,
            version: 0x99,
        },
        FooterEntry {
            kind: ExtentKind::Region,
            offset: 0x3000,
            extent_bytes: 0x800,
            version: 0,
        },
    ];
    let bytes = encode_footer(HEADER, 0x4000, &entries);
    assert_eq!(bytes.len(), 4096);
    assert_eq!(
        hex(&bytes[..64]),
        concat!(
            "0010000000000000341200000000000099000000000000000100000000000000",
            "0030000000000000000800000000000000000000000000000200000000000000",
        )
    );
    assert!(bytes[64..4032].iter().all(|&byte| byte == 0));
    assert_eq!(
        hex(&bytes[4032..]),
        concat!(
            "545243545241494c010000000200000000400000000000008877665544332211",
            "0b0a00000000000006eac726000000000000000000000000000000007bd75ad7",
        )
    );
    let trailer = decode_trailer(&bytes, HEADER, 0x5000).unwrap();
    assert_eq!(decode_footer(&bytes, &trailer).unwrap(), entries);
}

#[test]
fn large_meta() {
    let states = [
        (1, BlockState::Sealed, 0x4000),
        (2, BlockState::Draining, 0x5000),
        (3, BlockState::Drained(0x55), 0x6000),
        (9, BlockState::Open, 0),
    ];
    let meta = Meta {
        number: 0x21,
        store_id: 0x1122_3344_5566_7788,
        next_block: 10,
        blocks: states
            .into_iter()
            .map(|(number, state, bytes)| (number, MetaBlock { state, bytes }))
            .collect(),
    };
    let bytes = encode_meta(&meta);
    assert_eq!(
        hex(&bytes),
        concat!(
            "5452434c4d455441010000000000000088776655443322112100000000000000",
            "0a00000000000000040000000000000001000000000000000200000000000000",
            "0040000000000000000000000000000002000000000000000300000000000000",
            "0050000000000000000000000000000003000000000000000400000000000000",
            "0060000000000000550000000000000009000000000000000100000000000000",
            "000000000000000000000000000000008c3b68ef",
        )
    );
    assert_eq!(decode_meta(&bytes), Some(meta));
    assert_eq!(meta::meta_path(0x21), Path::new("meta/0000000000000021.meta"));
    assert_eq!(block_path(0x0A0B), Path::new("blocks/0000000000000a0b.blk"));
}
