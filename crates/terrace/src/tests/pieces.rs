//! Long values in pieces, from the device and from RAM; and what can be had without waiting.

use super::{bytes, eventually, small_options};
use crate::{
    Durability, Options, RamAnswer, Reader, ScanRange, Store, cache::Place, ordered_index::Home, read::is_cached,
};
use std::path::Path;

const PIECE_BYTES: usize = 4 * 65_532;
/// Two pieces more than one read of the device brings, and a bit.
const LONG: usize = 6 * PIECE_BYTES + 1000;

fn open_with_cache(dir: &Path, cache_bytes: u64) -> Store {
    let options = Options {
        cache_bytes,
        ..small_options(dir)
    }
    .tuned(|tuning| {
        // No images, so that only the cache is in question.
        tuning.staging_bytes = 0;
    });
    Store::open(options).unwrap()
}

fn reader(store: &Store, key: &str) -> Reader {
    store.reader(key).unwrap().unwrap()
}

/// All of a value, as a download reads it.
fn read_all(mut reader: Reader) -> Vec<u8> {
    let mut read = Vec::new();
    loop {
        let piece = reader.read_piece(1 << 20).unwrap();
        if piece.is_empty() {
            return read;
        }
        read.extend_from_slice(&piece);
    }
}

/// What RAM has of a value from `start` on.
fn read_in_ram(mut reader: Reader, start: usize) -> Vec<u8> {
    reader.seek_to(start as u64).unwrap();
    std::iter::from_fn(|| reader.piece_in_ram()).flatten().collect()
}

fn device_reads(store: &Store) -> u64 {
    store.stats().reads.block_reads
}

#[test]
fn pieces_that_were_read_are_in_ram_for_the_next_reader() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_with_cache(dir.path(), 16 << 20);
    let value = bytes(1, LONG);
    store.put("long", &value).unwrap();
    store.flush().unwrap();
    assert!(read_in_ram(reader(&store, "long"), 0).is_empty(), "it was not read");
    let before = device_reads(&store);
    assert!(read_all(reader(&store, "long")) == value);
    assert_eq!(
        device_reads(&store) - before,
        2,
        "twice pieces, its head with the first"
    );
    let before = device_reads(&store);
    for start in [0, 1, PIECE_BYTES - 1, PIECE_BYTES, 2 * PIECE_BYTES + 77, LONG - 1, LONG] {
        assert!(read_in_ram(reader(&store, "long"), start) == value[start..], "{start}");
    }
    assert!(read_all(reader(&store, "long")) == value);
    assert_eq!(device_reads(&store), before);
    // Another value of the same key is another value.
    let other = bytes(2, LONG);
    store.put("long", &other).unwrap();
    assert!(read_in_ram(reader(&store, "long"), 0).is_empty());
    assert!(read_all(reader(&store, "long")) == other);
}

/// Regression: the thread that reads ahead looks whether RAM has a value. Each look counted as a
/// read of all its pieces, so they stayed in RAM longer than what callers read.
#[test]
fn a_look_whether_a_value_is_in_ram_is_no_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_with_cache(dir.path(), 16 << 20);
    store.put("long", bytes(1, LONG)).unwrap();
    store.flush().unwrap();
    let engine = store.engine();
    let entry = engine.index.get(b"long").unwrap().unwrap();
    let Home::Block(extent) = entry.home else {
        panic!("{entry:?}");
    };
    let value = engine.large.open_value(&extent).unwrap();
    assert!(!is_cached(engine, &value));
    read_all(reader(&store, "long"));
    assert!((0..3).all(|_| is_cached(engine, &value)));
    let (block, offset) = value.place_of_piece(1);
    let reads = engine.cache.take(Place::block(block, offset));
    assert_eq!(reads, Some(0), "it was read from the block, and not since");
    assert!(!is_cached(engine, &value), "a piece is missing");
}

/// A piece that a slow client kept was 256 KiB of RAM besides the cache once that had dropped it.
#[test]
fn pieces_can_be_had_as_short_copies() {
    const SHORT: usize = 10_000;
    let dir = tempfile::tempdir().unwrap();
    let store = open_with_cache(dir.path(), 16 << 20);
    let values = [bytes(1, LONG), bytes(2, 3 * SHORT + 1)];
    for (key, value) in ["long", "small"].into_iter().zip(&values) {
        store.put(key, value).unwrap();
        store.flush().unwrap();
        // From the device, and then from RAM.
        for _ in 0..2 {
            let mut reader = reader(&store, key);
            let mut read = Vec::new();
            while read.len() < value.len() {
                // In between, pieces as they are.
                let is_short = !(20 * SHORT..50 * SHORT).contains(&read.len());
                reader.copy_pieces(is_short.then_some(SHORT));
                let piece = reader
                    .piece_in_ram()
                    .unwrap_or_else(|| reader.read_piece(1 << 18).unwrap());
                assert!(!piece.is_empty() && (piece.len() <= SHORT || !is_short));
                read.extend_from_slice(&piece);
            }
            assert!(read == *value, "{key}");
            assert!(reader.piece_in_ram().is_none() && reader.read_piece(1).unwrap().is_empty());
        }
    }
    let before = device_reads(&store);
    let mut from_ram = reader(&store, "long");
    from_ram.copy_pieces(Some(SHORT));
    assert!(read_in_ram(from_ram, 77) == values[0][77..]);
    assert_eq!(device_reads(&store), before);
}

#[test]
fn a_reader_reads_what_ram_does_not_have() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_with_cache(dir.path(), 16 << 20);
    let value = bytes(3, LONG);
    store.put("long", &value).unwrap();
    // The third piece only.
    let mut first = reader(&store, "long");
    first.seek_to(2 * PIECE_BYTES as u64).unwrap();
    assert_eq!(
        first.read_piece(PIECE_BYTES).unwrap(),
        value[2 * PIECE_BYTES..3 * PIECE_BYTES]
    );
    let before = device_reads(&store);
    assert!(read_all(reader(&store, "long")) == value);
    assert_eq!(
        device_reads(&store) - before,
        2,
        "what is before it, with its head, and what is behind"
    );
}

/// A client that had the newest version already cost a seek of the disk, and one that had not cost
/// two: one for the header alone.
#[test]
fn a_reader_that_nobody_reads_from_reads_nothing_and_one_read_brings_head_and_value() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_with_cache(dir.path(), 0);
    let value = bytes(8, 300_000);
    store.put("photo", &value).unwrap();
    let before = device_reads(&store);
    assert_eq!(reader(&store, "photo").info().length, 300_000);
    assert_eq!(device_reads(&store) - before, 0);
    assert!(read_all(reader(&store, "photo")) == value);
    assert_eq!(device_reads(&store) - before, 1);
    // From the middle: the header by itself, then what is wanted.
    let mut middle = reader(&store, "photo");
    middle.seek_to(280_000).unwrap();
    assert!(middle.read_piece(1 << 20).unwrap() == value[280_000..]);
    assert_eq!(device_reads(&store) - before, 3);
}

#[test]
fn parts_of_pieces_are_read_as_parts() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_with_cache(dir.path(), 16 << 20);
    let value = bytes(7, LONG);
    store.put("long", &value).unwrap();
    let mut parts = reader(&store, "long");
    parts.seek_to(100).unwrap();
    assert_eq!(parts.read_piece(50).unwrap(), value[100..65_532]);
    parts.seek_to(PIECE_BYTES as u64 - 10).unwrap();
    assert_eq!(parts.read_piece(1 << 20).unwrap(), value[PIECE_BYTES - 10..PIECE_BYTES]);
    assert!(read_in_ram(parts, 0).is_empty());
}

#[test]
fn streams_read_in_order_and_after_seeks_and_leave_nothing_in_ram() {
    let dir = tempfile::tempdir().unwrap();
    for cache_bytes in [0, 16 << 20] {
        let store = open_with_cache(dir.path(), cache_bytes);
        let value = bytes(8, 2_345_678);
        store.put("stream", &value).unwrap();
        store.flush().unwrap();
        let mut stream = reader(&store, "stream");
        let mut piece = vec![0; 10_007];
        for start in [0_usize, 1_000_000, 65_531, 2_345_677, 2_345_678] {
            stream.seek_to(start as u64).unwrap();
            let mut out = Vec::new();
            loop {
                let count = stream.read_some(&mut piece).unwrap();
                if count == 0 {
                    break;
                }
                out.extend_from_slice(&piece[..count]);
            }
            assert!(out == value[start..], "{start}");
            assert_eq!(stream.read_some(&mut []).unwrap(), 0);
        }
        assert!(stream.seek_to(9_999_999).is_err());
        assert!(read_in_ram(reader(&store, "stream"), 0).is_empty());
    }
}

#[test]
fn a_stream_is_read_by_bytes_and_by_pieces_in_turn() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_with_cache(dir.path(), 16 << 20);
    let value = bytes(9, LONG);
    store.put("mixed", &value).unwrap();
    store.flush().unwrap();
    let mut mixed = reader(&store, "mixed");
    let (mut out, mut some) = (Vec::new(), [0; 7]);
    loop {
        let count = mixed.read_some(&mut some).unwrap();
        out.extend_from_slice(&some[..count]);
        // To where the stream is: nothing that was read is read again.
        let before = device_reads(&store);
        mixed.seek_to(out.len() as u64).unwrap();
        out.extend(mixed.piece_in_ram().unwrap_or_default());
        assert_eq!(device_reads(&store), before);
        let piece = mixed.read_piece(100).unwrap();
        if piece.is_empty() {
            break;
        }
        out.extend_from_slice(&piece);
    }
    assert!(out == value);
}

#[test]
fn a_value_of_one_piece_is_the_same_for_gets_and_streams() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_with_cache(dir.path(), 16 << 20);
    let value = bytes(4, 200_000);
    store.put("one", &value).unwrap();
    store.flush().unwrap();
    assert!(read_all(reader(&store, "one")) == value);
    let before = (device_reads(&store), store.stats().reads.cache_hits);
    assert!(store.get("one").unwrap().unwrap().value == value);
    assert!(read_in_ram(reader(&store, "one"), 7) == value[7..]);
    assert_eq!(
        (device_reads(&store), store.stats().reads.cache_hits),
        (before.0, before.1 + 2)
    );
    store.delete("one").unwrap();
    store.flush().unwrap();
    assert_eq!(store.engine().cache.bytes(), 0, "it leaves with its object");
}

#[test]
fn without_a_cache_pieces_come_from_the_device() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_with_cache(dir.path(), 0);
    let value = bytes(5, LONG);
    store.put("long", &value).unwrap();
    for _ in 0..2 {
        let before = device_reads(&store);
        assert!(read_all(reader(&store, "long")) == value);
        assert_eq!(device_reads(&store) - before, 2);
    }
}

#[test]
fn small_values_are_had_without_waiting_if_they_are_in_ram() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_with_cache(dir.path(), 1 << 20);
    let value = bytes(6, 5000);
    let is_described = |store: &Store| {
        let described = store.head_in_ram("small").unwrap();
        let is_same = |described| assert_eq!(described, store.head("small").unwrap().unwrap());
        described.found().map(is_same).is_some()
    };
    let is_absent = |store: &Store| store.head_in_ram("small").unwrap() == RamAnswer::Absent;
    eventually("knowing what is absent", || is_absent(&store));
    assert!(store.reader_in_ram("small").unwrap().is_none());
    store.put("small", &value).unwrap();
    assert!(store.reader_in_ram("small").unwrap().is_some(), "it was just written");
    assert!(is_described(&store), "while it is pending or settled");
    store.flush().unwrap();
    assert!(is_described(&store), "from a frame that is kept");
    store.close().unwrap();
    drop(store);
    let store = open_with_cache(dir.path(), 1 << 20);
    assert!(store.reader_in_ram("small").unwrap().is_none(), "it is on flash only");
    assert!(store.head_in_ram("small").unwrap().is_unknown());
    // The index is loaded after an open.
    eventually("keeping what is read", || {
        assert!(store.get("small").unwrap().unwrap().value == value);
        store.reader_in_ram("small").unwrap().is_some()
    });
    let before = store.stats().reads.flash_reads;
    let found = store.reader_in_ram("small").unwrap().unwrap();
    assert_eq!(*found.info(), *reader(&store, "small").info());
    assert!(read_in_ram(found, 0) == value);
    assert!(is_described(&store), "from the cache");
    assert_eq!(store.stats().reads.flash_reads, before);
    store.delete("small").unwrap();
    assert!(store.reader_in_ram("small").unwrap().is_none() && is_absent(&store));
}

/// A description that RAM gives is of what there is: neither of what has expired, nor of what is
/// hidden by a deletion of a range.
#[test]
fn only_what_lives_is_described_from_ram() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_with_cache(dir.path(), 1 << 20);
    store.put("a/1", bytes(1, 3000)).unwrap();
    store.put("a/2", bytes(2, 3000)).unwrap();
    store.put("large", bytes(3, 3 << 20)).unwrap();
    store.delete_range(ScanRange::prefix("a/1"), Durability::Sync).unwrap();
    assert_eq!(store.head_in_ram("a/1").unwrap(), RamAnswer::Absent);
    assert_eq!(store.head_in_ram("a/2").unwrap().found(), store.head("a/2").unwrap());
    let large = store.head("large").unwrap();
    assert!(large.is_some() && store.head_in_ram("large").unwrap().found() == large);
    store
        .delete_range(ScanRange::prefix("large"), Durability::Sync)
        .unwrap();
    assert_eq!(store.head_in_ram("large").unwrap(), RamAnswer::Absent);
}

/// An entry that is only in the ordered index is looked up without waiting once a lookup that may
/// wait has found it; and so is its value once that is cached, whatever moves or changes meanwhile.
#[test]
fn values_of_the_large_tier_are_had_without_waiting_if_they_are_in_ram() {
    let dir = tempfile::tempdir().unwrap();
    let open = || open_with_cache(dir.path(), 4 << 20);
    let value = |seed| bytes(seed, 200_000);
    let store = open();
    store.put("a", value(1)).unwrap();
    store.put("b", value(2)).unwrap();
    store.put("tiny", "t").unwrap();
    store.flush().unwrap();
    store.close().unwrap();
    drop(store);
    let store = open();
    eventually("filling the hash index", || !store.stats().hash_index.refilling);
    let in_ram = |key| store.reader_in_ram(key).unwrap().map(|reader| read_in_ram(reader, 0));
    assert!(store.head_in_ram("a").unwrap().is_unknown() && in_ram("a").is_none());
    let found = store.head("a").unwrap();
    assert_eq!(store.head_in_ram("a").unwrap().found(), found);
    assert!(in_ram("a").is_none(), "its value is in its block only");
    assert!(store.head_in_ram("b").unwrap().is_unknown() && store.head_in_ram("tiny").unwrap().is_unknown());
    let before = device_reads(&store);
    assert!(read_all(reader(&store, "a")) == value(1));
    assert!(device_reads(&store) > before);
    let before = device_reads(&store);
    assert!(in_ram("a").unwrap() == value(1));
    assert_eq!(store.reader_in_ram("a").unwrap().unwrap().info(), &found.unwrap());
    assert_eq!(device_reads(&store), before);
    assert!(store.get("tiny").unwrap().is_some() && in_ram("tiny").unwrap() == b"t");
    // Never what was: neither after an overwrite nor after a delete, pending, applied or flushed.
    store.put("a", value(3)).unwrap();
    assert!(in_ram("a").is_none_or(|read| read == value(3)));
    eventually("applying it", || {
        store.get("a").unwrap().is_some() && in_ram("a").is_some()
    });
    assert!(in_ram("a").unwrap() == value(3));
    store.flush().unwrap();
    assert!(read_all(reader(&store, "a")) == value(3));
    assert!(in_ram("a").is_none_or(|read| read == value(3)));
    store.delete("a").unwrap();
    assert!(in_ram("a").is_none() && store.head_in_ram("a").unwrap().found().is_none());
    store.flush().unwrap();
    assert!(in_ram("a").is_none() && store.head_in_ram("a").unwrap().found().is_none());
}
