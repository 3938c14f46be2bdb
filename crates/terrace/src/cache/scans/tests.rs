//! Which chunks are found, and what drops them.

use super::{
    ranges::{CHANGED_MAX, CHANGED_SHORT_MAX, bytes_of_changed},
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
    let values = ValueCache::new(bytes, &Arc::new(FrameTable::starting_at(0, 0, 0)));
    ScanCache::new(values, |record_bytes| record_bytes)
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
        Found::Chunk { chunk, .. } => Some((chunk.count(), String::from_utf8(end).unwrap())),
        Found::Nothing(_) | Found::Lost(..) | Found::Changed => None,
    }
}

fn change(cache: &ScanCache, seq: u64, keys: &[&str]) {
    cache.changing(seq, keys.iter().map(|key| key.as_bytes()));
}

fn add(cache: &ScanCache, seq: u64, made: Made) -> bool {
    let (begun, _) = cache.begin(&made.start, seq).unwrap();
    cache.finish(&begun, vec![made], |_| true)
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

/// Keys behind this one: one more than may be noted beside a chunk.
fn keys_behind(start: &str, noted_max: usize) -> Vec<String> {
    (0..=noted_max).map(|number| format!("{start}{number}")).collect()
}

fn strs(keys: &[String]) -> Vec<&str> {
    keys.iter().map(String::as_str).collect()
}

#[test]
fn what_is_changed_often_drops_its_chunk_and_no_other() {
    let cache = cache(1 << 20);
    let many = keys_behind("b", CHANGED_SHORT_MAX);
    let many = strs(&many);
    assert!(add(&cache, 0, made("b", "d", &["b", "c"])));
    assert!(add(&cache, 0, made("d", "f", &["d", "e"])));
    change(&cache, 1, &[&["a"], &many[..], &["f"]].concat());
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
    change(&cache, 2, &many);
    change(&cache, 3, &["c"]);
    assert!(
        matches!(cache.find(b"c", 3, &mut end), Found::Nothing(_)),
        "it is not read"
    );
    let stats = cache.stats();
    assert_eq!((stats.chunks, stats.made, stats.dropped), (1, 3, 2));
}

#[test]
fn a_chunk_is_not_kept_if_something_in_it_changed_since_it_was_begun() {
    let cache = cache(1 << 20);
    change(&cache, 1, &[]);
    let (begun, _) = cache.begin(b"b", 1).unwrap();
    change(&cache, 2, &["a", "e", "d"]);
    let all = ["b", "c", "d", "e"].map(|key| {
        let end = char::from(key.as_bytes()[0] + 1).to_string();
        made(key, &end, &[key])
    });
    assert!(cache.finish(&begun, all.into(), |_| true));
    assert_eq!(
        ["b", "c", "d", "e"].map(|key| found(&cache, key, 2).is_some()),
        [true, true, false, false]
    );
    // Without an end it has every key behind its start.
    let (begun, _) = cache.begin(b"f", 2).unwrap();
    change(&cache, 3, &["x"]);
    assert!(!cache.finish(&begun, vec![made("f", "", &["g"])], |_| true));
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
    for start in ["a", "b", "d"] {
        change(&cache, 1, &strs(&keys_behind(start, CHANGED_SHORT_MAX)));
    }
    assert!(
        add(&cache, 1, made("aa", "da", &["c"])),
        "what is lost is in no other range's way"
    );
    assert_eq!(cache.stats().chunks, 1);
}

#[test]
fn where_chunks_lie_takes_a_part_of_the_cache_only() {
    let cache = cache(256 << 10);
    let keys: Vec<String> = (0..5000).map(|number| format!("{number:05}")).collect();
    for start in &keys {
        if let Some((begun, _)) = cache.begin(start.as_bytes(), 0) {
            cache.finish(&begun, vec![made(start, &format!("{start}x"), &[start])], |_| true);
        }
    }
    let stats = cache.stats();
    assert!(stats.table_bytes > 4 << 10 && stats.table_bytes <= 8 << 10, "{stats:?}");
    assert!(cache.values.bytes() + cache.values.index_bytes() <= 256 << 10);
    for seq in 1..3 {
        let all = keys.iter().flat_map(|start| keys_behind(start, CHANGED_SHORT_MAX));
        all.for_each(|key| change(&cache, seq, &[&key]));
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
    let begin = || cache.begin(b"x", 0).filter(|(_, takes)| takes.short);
    assert!(begin().is_none());

    // Unless scans have used chunks so often that another one is worth it,
    (0..USES_FOR_CHUNK).for_each(|_| cache.count_use(1));
    let (begun, _) = begin().unwrap();
    assert!(cache.finish(&begun, vec![made("x", "z", &["x"])], |_| true));
    assert!(begin().is_none(), "they are spent");
    // and but for one of many.
    let trials = (0..10 * SCANS_OF_TRIAL).filter(|_| begin().is_some()).count();
    assert_eq!(trials as u64, 10);
    // A store whose chunks were used all day does not make them of a scan of everything.
    (0..1_000_000).for_each(|_| cache.count_use(1));
    assert!(begin().is_some());
    let saved_up = cache.uses.sum(|uses| &uses.chunks) - cache.spent_uses.load(Ordering::Relaxed);
    assert!((USES_FOR_CHUNK..2_000).contains(&saved_up), "{saved_up}");
}

/// A chunk that is the home of a value for each key.
fn home(start: &str, end: &str, keys: &[&str]) -> Made {
    made_of(start, end, keys, |key| {
        let place = Place::block(7, u64::from(key.as_bytes()[0]));
        (Some(place), &[1; 1000])
    })
}

#[test]
fn a_get_finds_what_has_not_changed() {
    let cache = cache(1 << 20);
    assert!(add(&cache, 0, made("b", "f", &["b", "c", "d"])));
    change(&cache, 1, &["c", "dx"]);
    let has = |key: &str| cache.pair_of(key.as_bytes(), |pair| pair.key == key.as_bytes());
    assert_eq!(["b", "c", "d"].map(has), [Some(true), None, Some(true)]);
    assert_eq!(["a", "bx", "dx", "f"].map(has), [None; 4]);
    assert_eq!(found(&cache, "b", 1), None, "a scan needs all of them");
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
    let (making, from) = cache.begin_anew(b"bb", 1).unwrap();
    assert_eq!(
        (&*from.start, &*from.end, from.chunk.count()),
        (&b"b"[..], &b"x"[..], 3)
    );
    assert_eq!(from.keys, [Box::from(&b"c"[..]), Box::from(&b"d"[..])]);
    // Another change meanwhile: the chunk is as it was, with one more.
    change(&cache, 2, &["e"]);
    assert!(!cache.finish(&making, vec![home("b", "x", &["b"])], |key| from.has(key)));
    let (making, from) = cache.begin_anew(b"w", 2).unwrap();
    assert_eq!(from.keys.len(), 3);
    // In two pieces, of which the second has a value that is new.
    let held_bytes = cache.values.bytes();
    cache.values.take(Place::block(7, u64::from(b'd')));
    let pieces = vec![home("b", "c", &["b"]), home("c", "x", &["d", "e"])];
    assert!(cache.finish(&making, pieces, |key| from.has(key)));
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
    change(&cache, 3, &strs(&keys_behind("d", CHANGED_MAX)));
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
    assert!(add(&cache, 0, home("b", "x", &keys)));
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

/// A snapshot older than all chunks walked over the whole table between any two of its pairs.
#[test]
fn where_a_usable_chunk_begins_is_looked_for_among_a_few() {
    let cache = cache(4 << 20);
    let keys: Vec<String> = (0..1000).map(|number| format!("k{number:03}")).collect();
    assert!(add(&cache, 0, made("z", "zz", &["z"])));
    change(&cache, 1, &[]);
    for key in &keys {
        assert!(add(&cache, 1, made(key, &format!("{key}x"), &[key])));
    }
    let mut end = Vec::new();
    assert!(matches!(cache.find(b"k999x", 0, &mut end), Found::Nothing(Some(next)) if next == b"z"));
    assert!(matches!(cache.find(b"a", 0, &mut end), Found::Nothing(None)));
}

/// A scan that met a chunk that had left read on through the next ones, and kept nothing of it.
#[test]
fn where_a_chunk_has_left_the_next_one_is_found() {
    let cache = cache(1 << 20);
    assert!(add(&cache, 0, made("b", "d", &["b", "c"])));
    assert!(add(&cache, 0, made("d", "f", &["d", "e"])));
    let number = cache.table.read().at(b"b").unwrap().1.chunk.unwrap().number;
    cache.values.take(place(number));
    let mut end = Vec::new();
    assert!(matches!(cache.find(b"b", 0, &mut end), Found::Nothing(Some(next)) if next == b"d"));
}

/// The same with a table that is long already: one that becomes longer loses a slot now and then.
fn cache_with_long_table(bytes: u64) -> ScanCache {
    let cache = cache(bytes);
    let value = CachedValue {
        version: 1,
        attributes: Bytes::new(),
        value: Bytes::new(),
    };
    for number in 0..2_000 {
        cache.values.insert(Place::block(2, number), b"key", &value);
    }
    for number in 0..2_000 {
        cache.values.take(Place::block(2, number));
    }
    cache
}

/// A cache with as many ranges with longer values as its table has room for.
fn full_of_homes(bytes: u64) -> (ScanCache, Vec<String>) {
    let cache = cache_with_long_table(bytes);
    let keys: Vec<String> = (0..5000).map(|number| format!("{number:05}")).collect();
    let is_made = |key: &&String| {
        let place = Some(Place::block(7, key.parse().unwrap()));
        let home = made_of(key, &format!("{key}x"), &[key], |_| (place, &[1; 600]));
        add(&cache, 0, home)
    };
    let kept: Vec<String> = keys.iter().take_while(is_made).cloned().collect();
    assert!(kept.len() > 20 && kept.len() < keys.len());
    (cache, kept)
}

/// Regression: each scan made such a chunk, dropped it and used the index all the same.
#[test]
fn a_chunk_is_made_anew_where_the_table_is_full() {
    let (cache, keys) = full_of_homes(256 << 10);
    let key = keys[7].as_str();
    change(&cache, 1, &[key]);
    let (making, from) = cache.begin_anew(key.as_bytes(), 1).unwrap();
    let end = format!("{key}x");
    assert!(cache.finish(&making, vec![home(key, &end, &[key])], |key| from.has(key)));
    assert_eq!(found(&cache, key, 1), Some((1, end)));
}

/// Keys that had changed were noted whatever room the table had.
#[test]
fn changed_keys_take_no_more_room_than_the_table_may() {
    let (cache, keys) = full_of_homes(256 << 10);
    for number in 0..CHANGED_MAX {
        let changed: Vec<String> = keys.iter().map(|key| format!("{key}{number}")).collect();
        cache.changing(1 + number as u64, changed.iter().map(String::as_bytes));
        assert!(cache.stats().table_bytes <= 8 << 10, "{:?}", cache.stats());
    }
    for key in &keys {
        assert!(found(&cache, key, 99).is_none());
    }
}

/// A chunk of as many pairs of so many bytes as there may be, of which each third key dies. What is
/// left stays when the chunk is emptied.
fn empty_a_chunk(bytes: u64, pair_bytes: usize) {
    let cache = cache_with_long_table(bytes);
    let value = vec![1; pair_bytes - 4];
    let place_of = |key: &str| Place::block(7, key.parse().unwrap());
    let count = (cache.chunk_bytes_max() / (pair_bytes + 50)).max(1);
    let keys: Vec<String> = (1000..1000 + count).map(|number| number.to_string()).collect();
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    let home = made_of("1", "2", &names, |key| (Some(place_of(key)), value.as_slice()));
    assert!(home.chunk.bytes() <= cache.chunk_bytes_max());
    assert!(add(&cache, 0, home));
    let (dead, living): (Vec<_>, Vec<_>) = names.iter().enumerate().partition(|(at, _)| at % 3 == 1);
    assert!(!dead.is_empty() && !living.is_empty(), "{count}");
    for (_, key) in dead {
        assert!(cache.values.take(place_of(key)).is_some());
    }
    let other = CachedValue {
        version: 1,
        attributes: Bytes::new(),
        value: Bytes::from(vec![1; 20_000]),
    };
    for number in 0.. {
        if found(&cache, "1", 0).is_none() {
            break;
        }
        cache.values.insert(Place::block(1, number), b"key", &other);
        assert!(cache.values.bytes() + cache.values.index_bytes() <= bytes);
    }
    let lost: Vec<_> = living
        .iter()
        .filter(|(_, key)| !cache.values.has(place_of(key)))
        .collect();
    assert!(lost.is_empty(), "{bytes} {pair_bytes}: {lost:?} of {}", living.len());
}

/// Regression: records are shorter than the longest pairs were, and segments than the longest
/// chunks: pairs that did not fit were lost, and had to be read from the device.
#[test]
fn what_lives_in_a_chunk_stays_whatever_its_length() {
    for bytes in [1 << 20, 1_950_000, 3 << 20, 7 << 20, 16 << 20] {
        let longest = cache(bytes).long_pair_bytes_max();
        for pair_bytes in [520, 700, longest - 60, longest] {
            empty_a_chunk(bytes, pair_bytes);
        }
    }
}

/// A thread that takes a value out while it moves must find it at one place or the other.
#[test]
fn what_is_taken_out_while_it_moves_is_gone() {
    let values = ValueCache::new(1 << 20, &Arc::new(FrameTable::starting_at(0, 0, 0)));
    let value = CachedValue {
        version: 1,
        attributes: Bytes::new(),
        value: Bytes::from(vec![1; 600]),
    };
    let names: Vec<String> = (10..22).map(|number| number.to_string()).collect();
    for round in 0..2_000 {
        let place_of = |key: &str| Place::block(8 + round, key.parse().unwrap());
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for key in &names {
            values.insert(place_of(key), key.as_bytes(), &value);
        }
        let chunk = made_of("1", "3", &names, |key| (Some(place_of(key)), &[1; 600])).chunk;
        values.insert_chunk(place(round), &chunk);
        std::thread::scope(|scope| {
            scope.spawn(|| values.move_to_chunk(place(round), &chunk, |_| false, |bytes| bytes));
            for key in names.iter().rev() {
                assert!(values.take(place_of(key)).is_some(), "{round} {key}");
            }
        });
        values.take(place(round));
        assert!(names.iter().all(|key| !values.has(place_of(key))), "{round}");
        assert_eq!(values.living_bytes(), values.index_bytes(), "{round}");
    }
}

/// Frames kept their part of the RAM for values though all that lived was in chunks, and so it did
/// not fit.
#[test]
fn of_what_is_in_chunks_frames_have_no_part() {
    const SHARE_BYTES: u64 = 1 << 20;
    let frames = Arc::new(FrameTable::starting_at(0, 0, SHARE_BYTES));
    let values = ValueCache::new(7 << 20, &frames);
    let cache = ScanCache::new(values, |record_bytes| record_bytes);
    let all_bytes = || cache.values.capacity_bytes() + frames.share_bytes();
    let numbered = |number: u64, place: Option<Place>| {
        let start = format!("{number:05}");
        let end = format!("{start}x");
        let places = (0..20).map(|at| place.map(|Place(block, _)| Place::block(block, at)));
        let keys: Vec<String> = (0..20).map(|at| format!("{start}{at:02}")).collect();
        let names: Vec<&str> = keys.iter().map(String::as_str).collect();
        let places: Vec<_> = places.collect();
        let value: &[u8] = if place.is_some() { &[1; 1000] } else { &[1; 100] };
        made_of(&start, &end, &names, |key| {
            (places[key[5..].parse::<usize>().unwrap()], value)
        })
    };
    for number in 0..20 {
        assert!(add(&cache, 0, numbered(number, None)));
    }
    assert_eq!(frames.share_bytes(), SHARE_BYTES, "second copies count as any value");
    let mut made_bytes = 0;
    for number in 100..140 {
        let home = numbered(number, Some(Place::block(number, 0)));
        made_bytes += home.chunk.bytes() as u64;
        assert!(add(&cache, 0, home));
        let borrowed_bytes = SHARE_BYTES - frames.share_bytes();
        // Allocators have a length for 20 KiB and one for 24.
        let part = made_bytes / 8..=made_bytes / 8 + made_bytes / 32 + 1_000;
        assert!(part.contains(&borrowed_bytes), "{borrowed_bytes} for {made_bytes}");
        assert_eq!(all_bytes(), 8 << 20);
    }
    // All room is theirs, and frames keep a quarter of their share.
    for number in 200..700 {
        if let Some((begun, _)) = cache.begin(format!("{number:05}").as_bytes(), 0) {
            cache.finish(&begun, vec![numbered(number, Some(Place::block(number, 0)))], |_| true);
        }
        assert_eq!(all_bytes(), 8 << 20);
        assert!(cache.values.bytes() + cache.values.index_bytes() <= cache.values.capacity_bytes());
    }
    assert_eq!(frames.share_bytes(), SHARE_BYTES / 4);
    assert!(cache.values.bytes() > 7 << 20, "{}", cache.values.bytes());
    let other = CachedValue {
        version: 1,
        attributes: Bytes::new(),
        value: Bytes::from(vec![1; 20_000]),
    };
    for number in 0..2_000 {
        cache.values.insert(Place::block(1, number), b"key", &other);
        cache.values.get(Place::block(1, number), b"key");
        assert_eq!(all_bytes(), 8 << 20);
        assert!(cache.values.bytes() + cache.values.index_bytes() <= cache.values.capacity_bytes());
    }
    assert_eq!(frames.share_bytes(), SHARE_BYTES, "and have it back when those leave");
    cache.values.set_capacity(4 << 20);
    assert_eq!((all_bytes(), frames.share_bytes()), (4 << 20, 1 << 19));
}
