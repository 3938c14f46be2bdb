//! What is found of chunks, and what drops them.

use super::{
    ranges::{CHANGED_MAX, bytes_of_changed},
    *,
};
use crate::{
    HomeKind,
    cache::{
        CachedValue,
        chunk::{Added, ChunkWriter, Pair},
    },
    log::frame_table::FrameTable,
};
use bytes::Bytes;
use std::sync::Arc;

fn cache(bytes: u64) -> ScanCache {
    ScanCache::new(ValueCache::new(bytes, &Arc::new(FrameTable::starting_at(0, 0, 0))))
}

fn made(start: &str, end: &str, keys: &[&str]) -> Made {
    made_of(start, end, keys, |key| (None, key.as_bytes()))
}

fn made_of<'k>(
    start: &str,
    end: &str,
    keys: &[&'k str],
    value_of: impl Fn(&'k str) -> (Option<Place>, &'k [u8]),
) -> Made {
    let mut writer = ChunkWriter::default();
    for key in keys {
        let (place, value) = value_of(key);
        let pair = Pair {
            key: key.as_bytes(),
            version: 1,
            checksum: 0,
            home: HomeKind::Flash,
            place,
            attributes: &[],
            value,
        };
        assert_eq!(writer.add(&pair, 1 << 20), Added::Here);
    }
    Made {
        start: start.into(),
        end: end.into(),
        chunk: writer.take().unwrap(),
    }
}

/// What there is of a key: how many pairs, and where they end.
fn found(cache: &ScanCache, key: &str, seq: u64) -> Option<(usize, String)> {
    let mut end = Vec::new();
    match cache.find(key.as_bytes(), seq, &mut end) {
        Found::Chunk(chunk) => Some((chunk.count(), String::from_utf8(end).unwrap())),
        Found::Nothing(_) | Found::Lost(..) | Found::Changed => None,
    }
}

fn change(cache: &ScanCache, seq: u64, keys: &[&str]) {
    cache.changing(seq, keys.iter().map(|key| key.as_bytes()));
}

fn add(cache: &ScanCache, seq: u64, made: Made) -> bool {
    let begun = cache.begin(&made.start, seq).unwrap();
    cache.finish(&begun, vec![made])
}

#[test]
fn a_chunk_is_found_by_the_keys_of_its_range_from_its_seq_on() {
    let cache = cache(1 << 20);
    change(&cache, 7, &[]);
    assert!(add(&cache, 7, made("b", "d", &["b", "c"])));
    for (key, is_there) in [("a", false), ("b", true), ("c", true), ("cz", true), ("d", false)] {
        assert_eq!(found(&cache, key, 7), is_there.then(|| (2, "d".to_owned())), "{key}");
        assert_eq!(found(&cache, key, 8).is_some(), is_there);
        assert_eq!(found(&cache, key, 6), None, "it says nothing of the time before");
    }
    let mut end = Vec::new();
    assert!(matches!(cache.find(b"a", 7, &mut end), Found::Nothing(Some(next)) if next == b"b"));
    assert!(matches!(cache.find(b"a", 6, &mut end), Found::Nothing(None)));
    assert!(matches!(cache.find(b"d", 7, &mut end), Found::Nothing(None)));
    // To the end of all keys.
    assert!(add(&cache, 7, made("x", "", &["y"])));
    assert_eq!(found(&cache, "zzz", 7), Some((1, String::new())));
    let stats = cache.stats();
    assert_eq!((stats.chunks, stats.made, stats.dropped), (2, 2, 0));
}

#[test]
fn what_is_changed_drops_its_chunk_and_no_other() {
    let cache = cache(1 << 20);
    assert!(add(&cache, 0, made("b", "d", &["b", "c"])));
    assert!(add(&cache, 0, made("d", "f", &["d", "e"])));
    change(&cache, 1, &["a", "bx", "f"]);
    assert_eq!(found(&cache, "b", 1), None);
    assert_eq!(found(&cache, "d", 1), Some((2, "f".to_owned())));
    let mut end = Vec::new();
    let borders = cache.find(b"c", 1, &mut end);
    assert!(matches!(borders, Found::Lost(start, end) if start == b"b" && end == b"d"));
    assert!(
        add(&cache, 1, made("b", "d", &["b", "bx", "c"])),
        "within them it is made anew"
    );
    assert_eq!(found(&cache, "b", 0), None);
    assert_eq!(found(&cache, "b", 1), Some((3, "d".to_owned())));
    change(&cache, 2, &["b"]);
    change(&cache, 3, &["c"]);
    assert!(
        matches!(cache.find(b"c", 3, &mut end), Found::Nothing(_)),
        "nobody reads it"
    );
    let stats = cache.stats();
    assert_eq!((stats.chunks, stats.made, stats.dropped), (1, 3, 2));
}

#[test]
fn a_chunk_is_not_kept_if_something_in_it_changed_since_it_was_begun() {
    let cache = cache(1 << 20);
    change(&cache, 1, &[]);
    let begun = cache.begin(b"b", 1).unwrap();
    change(&cache, 2, &["a", "e", "d"]);
    let all = ["b", "c", "d", "e"].map(|key| {
        let end = char::from(key.as_bytes()[0] + 1).to_string();
        made(key, &end, &[key])
    });
    assert!(cache.finish(&begun, all.into()));
    assert_eq!(
        ["b", "c", "d", "e"].map(|key| found(&cache, key, 2).is_some()),
        [true, true, false, false]
    );
    // Without an end it has every key behind its start.
    let begun = cache.begin(b"f", 2).unwrap();
    change(&cache, 3, &["x"]);
    assert!(!cache.finish(&begun, vec![made("f", "", &["g"])]));
}

#[test]
fn a_chunk_is_not_begun_beside_what_is_being_applied() {
    let cache = cache(1 << 20);
    change(&cache, 5, &[]);
    // The applier goes on to 6. What it changes it told before there was anything here, so a
    // snapshot of 5 must not begin.
    change(&cache, 6, &["b"]);
    assert!(cache.begin(b"a", 5).is_none());
    assert!(cache.begin(b"a", 6).is_some());
}

#[test]
fn ranges_do_not_overlap() {
    let cache = cache(1 << 20);
    assert!(add(&cache, 0, made("b", "d", &["b"])));
    for (start, end) in [("a", "c"), ("c", "e"), ("a", "e"), ("b", "d"), ("bb", "c"), ("a", "")] {
        assert!(!add(&cache, 0, made(start, end, &[start])), "{start} to {end}");
    }
    assert!(add(&cache, 0, made("a", "b", &["a"])));
    assert!(add(&cache, 0, made("d", "e", &["d"])));
    change(&cache, 1, &["a", "b", "d"]);
    assert!(
        add(&cache, 1, made("aa", "da", &["c"])),
        "what is lost is in nobody's way"
    );
    assert_eq!(cache.stats().chunks, 1);
}

#[test]
fn where_chunks_lie_takes_a_part_of_the_cache_only() {
    let cache = cache(256 << 10);
    let keys: Vec<String> = (0..5000).map(|number| format!("{number:05}")).collect();
    for start in &keys {
        if let Some(begun) = cache.begin(start.as_bytes(), 0) {
            cache.finish(&begun, vec![made(start, &format!("{start}x"), &[start])]);
        }
    }
    let stats = cache.stats();
    assert!(stats.table_bytes > 4 << 10 && stats.table_bytes <= 8 << 10, "{stats:?}");
    assert!(cache.values.bytes() + cache.values.index_bytes() <= 256 << 10);
    for seq in 1..3 {
        cache.changing(seq, keys.iter().map(String::as_bytes));
    }
    let stats = cache.stats();
    assert_eq!((stats.chunks, stats.table_bytes), (0, 0));
}

#[test]
fn chunks_take_no_room_of_values() {
    let cache = cache(1 << 20);
    let value = CachedValue {
        version: 1,
        attributes: Bytes::new(),
        value: Bytes::from(vec![1; 1000]),
    };
    assert!(add(&cache, 0, made("b", "d", &["b", "c"])));
    for number in 0..2000 {
        cache.values.insert(Place::block(1, number), b"key", &value);
    }
    assert!(cache.begin(b"x", 0).is_none_or(|making| !making.may_copy));
}

/// A chunk that is the home of a value for each key.
fn home(start: &str, end: &str, keys: &[&str]) -> Made {
    made_of(start, end, keys, |key| {
        let place = Place::block(7, u64::from(key.as_bytes()[0]));
        (Some(place), &[1; 1000])
    })
}

#[test]
fn changed_keys_are_noted_beside_a_chunk_that_is_a_home() {
    let cache = cache(1 << 20);
    assert!(add(&cache, 0, home("b", "x", &["b", "c", "d"])));
    let value_of = |key: &str| {
        cache
            .values
            .get(Place::block(7, u64::from(key.as_bytes()[0])), key.as_bytes())
    };
    assert!(value_of("c").is_some() && value_of("e").is_none());
    change(&cache, 1, &["d", "a", "c", "d"]);
    let mut end = Vec::new();
    assert!(matches!(cache.find(b"b", 1, &mut end), Found::Changed));
    assert!(
        cache.begin_anew(b"b", 0).is_none(),
        "of a moment that does not show the changes"
    );
    let making = cache.begin_anew(b"bb", 1).unwrap();
    let from = making.from.as_ref().unwrap();
    assert_eq!(
        (&*from.start, &*from.end, from.chunk.count()),
        (&b"b"[..], &b"x"[..], 3)
    );
    assert_eq!(from.keys, [Box::from(&b"c"[..]), Box::from(&b"d"[..])]);
    // Another change meanwhile: the chunk is as it was, with one more.
    change(&cache, 2, &["e"]);
    assert!(!cache.finish(&making, vec![home("b", "x", &["b"])]));
    let making = cache.begin_anew(b"w", 2).unwrap();
    assert_eq!(making.from.as_ref().unwrap().keys.len(), 3);
    // In two pieces, of which the second has a value that is new.
    let held_bytes = cache.values.bytes();
    cache.values.take(Place::block(7, u64::from(b'd')));
    let pieces = vec![home("b", "c", &["b"]), home("c", "x", &["d", "e"])];
    assert!(cache.finish(&making, pieces));
    assert_eq!(found(&cache, "b", 2), Some((1, "c".to_owned())));
    assert_eq!(found(&cache, "d", 2), Some((2, "x".to_owned())));
    assert_eq!(["b", "d", "e"].map(|key| value_of(key).is_some()), [true; 3]);
    assert!(
        value_of("c").is_some(),
        "of the chunk before, until the applier takes it out"
    );
    cache.values.take(Place::block(7, u64::from(b'c')));
    assert!(cache.values.bytes() < held_bytes + 1024, "and nothing is left of it");
    assert_eq!(cache.stats().chunks, 2);
    // More than are noted.
    let many: Vec<String> = (0..=CHANGED_MAX).map(|number| format!("d{number}")).collect();
    change(&cache, 3, &many.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(matches!(cache.find(b"d", 3, &mut end), Found::Lost(..)));
    assert!(value_of("e").is_some(), "values stay where they are");
    assert_eq!(cache.stats().dropped, 1);
    change(&cache, 4, &["b", "d"]);
    let table_bytes = cache.stats().table_bytes;
    assert_eq!(table_bytes, bytes_of(b"b", b"c") + bytes_of_changed(b"b"));
}

/// Values whose chunk leaves: what was read by itself stays, as of any segment.
#[test]
fn what_was_read_outlives_its_chunk() {
    let cache = cache(1 << 20);
    let keys: Vec<String> = ('b'..='k').map(String::from).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let value_of = |key: &str| {
        cache
            .values
            .get(Place::block(7, u64::from(key.as_bytes()[0])), key.as_bytes())
    };
    let begun = cache.begin(b"b", 0).unwrap();
    assert!(cache.finish(&begun, vec![home("b", "x", &keys)]));
    let value = CachedValue {
        version: 1,
        attributes: Bytes::new(),
        value: Bytes::from(vec![1; 1000]),
    };
    for number in 0..10_000 {
        cache.values.insert(Place::block(1, number), b"key", &value);
        assert!(value_of("c").is_some(), "{number}");
        // Known, not newcomers, which leave before.
        cache.values.get(Place::block(1, number), b"key");
    }
    assert_eq!(found(&cache, "b", 0), None);
    assert!(value_of("d").is_none());
    assert!(cache.values.bytes() + cache.values.index_bytes() <= 1 << 20);
}
