//! The seeds in `seeds/` that encoders can make: each is the same as here, and accepted by its
//! target.
//!
//! After a change of format, `TERRACE_WRITE_SEEDS=1 cargo test --test seeds` writes them anew.

use std::{collections::BTreeMap, fs, path::Path};
use terrace::{
    Attributes, Version,
    blocks::{
        format::{
            ChunkEncoder, ExtentKind, FooterEntry, RecordKind, encode_block_header, encode_footer, encode_record_header,
        },
        meta::{BlockState, Meta, MetaBlock, encode_meta},
    },
    fuzzing,
    io::AlignedBuffer,
    log::format::{Body, Extent, FRAME_HEADER_BYTES, FrameHeader, Record, SegmentHeader, SegmentUse},
    ordered_index::{Entry, Home, IndexMark, LostRange},
};
use terrace_fuzz::{BLOCK, PLACE, target};
use terrace_objects::{
    checksum::{Algorithm, Checksum},
    keyspace::{self, Id},
    lock,
    manifest::{self, Part},
    record, tags,
};

const EXTENT: Extent = Extent {
    block: 0x0A0B,
    offset: 0x3000,
    extent_bytes: 0x456,
    length: 0x400,
};

type Seeds = BTreeMap<String, Vec<u8>>;

fn attributes() -> Vec<u8> {
    Attributes::new()
        .with("type", "image/jpeg")
        .encode()
        .expect("they are short")
}

fn bodies() -> [(&'static str, Body<'static>); 8] {
    let value = &b"a value"[..];
    [
        ("put", Body::Put { value }),
        ("put-inline", Body::PutInline { value: b"" }),
        ("put-large", Body::PutLarge { extent: EXTENT }),
        ("delete", Body::Delete),
        ("move-to-flash", Body::MoveToFlash { version: 3, value }),
        (
            "move-to-block",
            Body::MoveToBlock {
                version: 3,
                extent: EXTENT,
            },
        ),
        ("drop", Body::Drop { version: 3 }),
        ("delete-range", Body::DeleteRange { end: b"film/2" }),
    ]
}

fn record_bytes(body: Body<'_>, attributes: &[u8]) -> Vec<u8> {
    let attributes = if body.names_value() { attributes } else { &[] };
    let record = Record {
        seq: 9,
        generation: 2,
        key: b"film/1",
        attributes,
        checksum: crc32c::crc32c(body.value()),
        body,
    };
    let mut bytes = vec![0; record.record_bytes()];
    record.encode_into(&mut bytes);
    bytes
}

fn frame(records: &[Vec<u8>]) -> Vec<u8> {
    let payload = records.concat();
    let header = FrameHeader {
        generation: 2,
        first_seq: 9,
        last_seq: 9,
        payload_bytes: payload.len() as u32,
        record_count: records.len() as u32,
        durable_seq: 8,
    };
    let mut bytes = header.encode().to_vec();
    bytes.extend(payload);
    assert!(bytes.len() > FRAME_HEADER_BYTES);
    bytes
}

fn flash(seeds: &mut Seeds) {
    let header = SegmentHeader {
        store_id: 7,
        number: 3,
        generation: 2,
        first_seq: 9,
        segment_bytes: 256 << 10,
        segment_use: SegmentUse::Log,
    };
    seeds.insert("segment_header/valid".to_owned(), header.encode().to_vec());
    let attributes = attributes();
    let mut all = Vec::new();
    for (name, body) in bodies() {
        all.push(record_bytes(body, &attributes));
        seeds.insert(format!("record/{name}"), record_bytes(body, &attributes));
        seeds.insert(format!("record/{name}-plain"), record_bytes(body, &[]));
    }
    for (name, slots, elsewhere) in [
        ("few", &[1_u64, 1 << 63, 77 << 40][..], &[][..]),
        ("filter", &[9 << 50], &[5]),
    ] {
        let bytes = fuzzing::encode_checkpoint(slots, elsewhere);
        seeds.insert(format!("checkpoint/{name}"), bytes);
    }
    seeds.insert("frame/one".to_owned(), frame(&all[..1]));
    seeds.insert("frame/all".to_owned(), frame(&all));
}

fn index(seeds: &mut Seeds) {
    let homes = [
        ("inline", 5, Home::Inline("tiny!".into())),
        ("flash", 4000, Home::Flash { address: 0x1234_5600 }),
        (
            "block",
            3 << 30,
            Home::Block(Extent {
                block: 77,
                offset: 0x3000,
                extent_bytes: 0x2_0010_0000,
                length: 3 << 30,
            }),
        ),
    ];
    for (name, length, home) in homes {
        for (suffix, attributes) in [("", Vec::new()), ("-attributes", attributes())] {
            let entry = Entry {
                version: Version(9),
                length,
                checksum: 0xCAFE_F00D,
                home: home.clone(),
                attributes: attributes.into(),
                copy: None,
            };
            let mut bytes = Vec::new();
            entry.encode_into(&mut bytes);
            seeds.insert(format!("index_entry/{name}{suffix}"), bytes);
        }
    }
    mark(seeds);
    lost(seeds);
}

/// The mark and its payload.
fn mark(seeds: &mut Seeds) {
    let ranges: [(u64, &[u8], &[u8]); 2] = [(5, b"a", b"b"), (1 << 40, b"film/", b"")];
    let payload = fuzzing::encode_mark_payload(
        &[(1, 9), (70, 1 << 40)],
        &[0..3, 4..400],
        &ranges,
        &[(1, 5), (300, 1 << 33)],
    );
    seeds.insert("mark_payload/of-all".to_owned(), payload.clone());
    let none = fuzzing::encode_mark_payload(&[], &[], &[], &[]);
    seeds.insert("mark_payload/of-none".to_owned(), none);
    for (name, attributes) in [
        ("alone", Attributes::new()),
        ("and-attributes", Attributes::new().with("type", "image/jpeg")),
    ] {
        let stored = fuzzing::encode_expiring(&attributes, Some(1_700_000_000_000)).expect("it is short");
        seeds.insert(format!("expiry/{name}"), stored);
    }
    for (name, payload) in [("whole", payload), ("empty", Vec::new())] {
        let mark = IndexMark {
            applied_seq: 9,
            payload: payload.into(),
        };
        seeds.insert(format!("index_mark/{name}"), mark.encode());
    }
}

/// Lost ranges.
fn lost(seeds: &mut Seeds) {
    for (name, first, end) in [("part", &b"a"[..], &b"b\0"[..]), ("from-the-first", b"", b"film/9")] {
        let range = LostRange {
            seq: 1 << 33,
            first: first.to_vec(),
            end: end.to_vec(),
        };
        seeds.insert(format!("lost_range/{name}"), range.encode());
    }
}

fn large(seeds: &mut Seeds) {
    seeds.insert("block_header/valid".to_owned(), encode_block_header(BLOCK).to_vec());
    for (name, kind) in [("put", RecordKind::Put), ("destaged", RecordKind::Destaged)] {
        let mut out = AlignedBuffer::new();
        encode_record_header(&mut out, PLACE, kind, 9, 70_000, b"film/1", &attributes());
        seeds.insert(format!("large_record_header/{name}"), out.to_vec());
    }
    // The sixth chunk of a value: the target reads its chunk as that.
    let mut chunks = ChunkEncoder::new(PLACE);
    let mut out = AlignedBuffer::new();
    for _ in 0..5 {
        let full = vec![1; 65_532];
        assert_eq!(chunks.push(&full, &mut out), full.len());
    }
    out.clear();
    chunks.push(b"the end of a value", &mut out);
    chunks.finish(&mut out);
    seeds.insert("chunk/short".to_owned(), out.to_vec());
    let entries = [
        (ExtentKind::Put, 0x1000, 0x1234, 9),
        (ExtentKind::Region, 0x3000, 0x800, 0),
    ]
    .map(|(kind, offset, extent_bytes, version)| FooterEntry {
        kind,
        offset,
        extent_bytes,
        version,
    });
    let bytes = encode_footer(BLOCK, 0x4000, &entries).to_vec();
    seeds.insert("footer/two".to_owned(), bytes.clone());
    seeds.insert("footer/none".to_owned(), encode_footer(BLOCK, 0x1000, &[]).to_vec());
    seeds.insert("trailer/two".to_owned(), bytes);
    let states = [
        BlockState::Sealed,
        BlockState::Draining,
        BlockState::Drained(5),
        BlockState::Open,
    ];
    let blocks = (1..)
        .zip(states)
        .map(|(number, state)| (number, MetaBlock { state, bytes: 0x4000 }));
    let meta = Meta {
        number: 8,
        store_id: 7,
        next_block: 9,
        blocks: blocks.collect(),
    };
    seeds.insert("large_meta/every-state".to_owned(), encode_meta(&meta));
    seeds.insert("large_meta/empty".to_owned(), encode_meta(&Meta::empty(7)));
}

/// What the object model stores.
fn objects(seeds: &mut Seeds) {
    let part = |number, salt, checksum: Option<Vec<u8>>| Part {
        number,
        nonce: 0x0102_0304,
        length: 5 << 20,
        salt,
        checksum: checksum.map(|value| Checksum {
            algorithm: Algorithm::Crc32c,
            value,
        }),
    };
    for (name, parts) in [
        ("one", vec![part(1, None, None)]),
        (
            "sealed",
            vec![part(1, Some([0xbb; 16]), None), part(2, Some([0xcc; 16]), None)],
        ),
        (
            "checksums",
            vec![part(7, None, Some(vec![0xaa; 4])), part(9, None, Some(vec![1; 4]))],
        ),
        ("empty", Vec::new()),
    ] {
        let bytes = manifest::encode(&parts, Some(Algorithm::Crc32c));
        seeds.insert(format!("part_list/{name}"), bytes);
    }
    let id = Id::parse("018bcfe5687b000102030405060708ff").expect("an ID");
    let mut attributes = Attributes::new()
        .with("content-type", "text/plain")
        .with("x-amz-meta-a", "b");
    record::stamp(&mut attributes, "00ff", 1_700_000_000_123);
    record::place(&mut attributes, id, 1 << 40);
    record::set_version(&mut attributes, id, true);
    let attributes = record::with_list(
        &record::with_tagging(&attributes, Some("a=b&c=%20")),
        "a=READ @all=WRITE",
    );
    let mut locked = record::delete_marker(id, false, 5);
    lock::set_legal_hold(&mut locked, true);
    for (name, attributes) in [("object", attributes), ("marker", locked)] {
        let bytes = attributes.encode().expect("they are short");
        seeds.insert(format!("object_attributes/{name}"), bytes);
    }
    let golden = "010100000cfd17a06a5ae0ec0707070707070707070707079dc31ef167b101fb316feb532964be88\
                  a824b4d3e00668aafbc96e2e2d0ee02295d8687694ef30cb55131302cbc2b6c9";
    let bytes = (0..72).map(|at| u8::from_str_radix(&golden[at * 2..at * 2 + 2], 16).expect("hex"));
    seeds.insert("sealed_key/master".to_owned(), bytes.collect());
    // Lengths, where the range begins, how long it is, where bytes are changed; then by what.
    seeds.insert("sealed_value/short".to_owned(), vec![9, 0, 2, 0, 3, 0, 0, 0, 0, 0]);
    seeds.insert(
        "sealed_value/pieces".to_owned(),
        vec![9, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 1, 0],
    );
    let upload = keyspace::upload("b", "a/key", id);
    let rest = upload[keyspace::uploads("b").len()..].to_vec();
    seeds.insert("store_keys/upload".to_owned(), rest);
    let version = keyspace::version("b", "a/key", id);
    let rest = version[keyspace::versions("b").len()..].to_vec();
    seeds.insert("store_keys/version".to_owned(), rest);
    let tags = [("a b".to_owned(), "v&=".to_owned()), ("c".to_owned(), String::new())];
    seeds.insert("tags_query/two".to_owned(), tags::encode(&tags).into_bytes());
    texts(seeds);
}

/// Of what is text: what is stored, as the golden tests beside the decoders have it.
fn texts(seeds: &mut Seeds) {
    let bucket = concat!(
        r#"{"created_ms":1700000000000,"policy":"{}","tags":[["a","b"]],"versioning":"enabled","#,
        r#""lifecycle":[{"id":"r","enabled":true,"filter":{"form":"and","prefix":"logs/","longer":10},"#,
        r#""expire":{"days":3},"noncurrent":{"days":1,"keep":2}}],"#,
        r#""lock":{"default":{"mode":"GOVERNANCE","period":{"days":1}}},"#,
        r#""logging":{"target":"logs","target_created_ms":5,"format":"simple"},"website":{"index":"index.html"},"#,
        r#""encryption":{"bucket_key":true},"account":"press","acl":"press=FULL_CONTROL @all=READ"}"#
    );
    let policy = concat!(
        r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":"*","Action":"s3:GetObject","#,
        r#""Resource":"arn:aws:s3:::bucket/*","Condition":{"IpAddress":{"aws:SourceIp":"192.0.2.0/24"}}}]}"#
    );
    let session = r#"{"Version":"2012-10-17","Statement":{"Effect":"Allow","Action":"s3:*","Resource":"*"}}"#;
    let open_key = r#"{"secret":"s","created_ms":5,"grants":{"abc":"read","*":"admin"},"expires_ms":7}"#;
    let sealed_key = r#"{"secret_aes_256_gcm":"AAAA","created_ms":5,"grants":{},"account":"press"}"#;
    for (name, text) in [
        ("access_list/two", "press=FULL_CONTROL @authenticated=READ_ACP"),
        ("access_list/canned", "public-read"),
        ("account_record/email", r#"{"email":"a@example.org"}"#),
        ("bucket_record/settings", bucket),
        ("bucket_record/empty", r#"{"created_ms":0}"#),
        ("key_record/open", open_key),
        ("key_record/sealed", sealed_key),
        ("key_record/session", r#"{"key_aes_256_gcm":"AAAA"}"#),
        ("key_record/bounds", r#"{"expires_ms":5,"policy":"{}"}"#),
        ("policy/bucket", policy),
        ("policy/session", session),
    ] {
        seeds.insert(name.to_owned(), text.as_bytes().to_vec());
    }
}

#[test]
fn seeds_are_what_encoders_write_and_are_accepted() {
    let mut seeds = Seeds::new();
    flash(&mut seeds);
    index(&mut seeds);
    large(&mut seeds);
    objects(&mut seeds);
    // The golden bytes of the engine's own test: nothing outside can make a manifest.
    let tail = "887766554433221100000400000000000100000000000000000000000000000000000000000000000000000000000000";
    for (name, head) in [
        ("format-1", "5445525241434531536a86d401000000"),
        ("format-2", "54455252414345315c01d93d02000000"),
        ("format-4", "5445525241434531b3a18bea04000000"),
    ] {
        let hex = [head, tail].concat();
        let bytes = (0..64).map(|at| u8::from_str_radix(&hex[at * 2..at * 2 + 2], 16).expect("hex"));
        seeds.insert(format!("manifest/{name}"), bytes.collect());
    }
    let backup = "terrace backup 1\nstore 000000000000abcd\ncommit 77\ntime 1763700000\n\
        file 4096 65536 00000000000000000000000000001234 copied use7-42-1763700000.000000001 flash/segments/00000001.seg\n\
        file 9 9 - linked - large/blocks/0000000000000001.blk\n";
    let end = terrace::fuzzing::backup_manifest_end(backup.as_bytes(), 2);
    seeds.insert("backup_manifest/two".to_owned(), format!("{backup}{end}").into_bytes());
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    let write = std::env::var_os("TERRACE_WRITE_SEEDS").is_some();
    for (name, bytes) in seeds {
        let path = directory.join(&name);
        if write {
            fs::create_dir_all(path.parent().expect("a seed is in a directory")).expect("the directory can be made");
            fs::write(&path, &bytes).expect("the seed can be written");
        }
        let on_disk = fs::read(&path).unwrap_or_default();
        assert!(
            on_disk == bytes,
            "seeds/{name} is not what the encoder writes; see this file's header"
        );
        let (target_name, _) = name.split_once('/').expect("a seed belongs to a target");
        let target = target(target_name).expect("the target is listed");
        assert!(target(&bytes), "seeds/{name} is refused");
    }
}
