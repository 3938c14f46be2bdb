//! Which values are kept, which are evicted, and what readers see meanwhile.

use super::{record::Words, table::Table, values::allocated_bytes, *};
use crate::log::format::Body;
use std::{
    ops::Range,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

/// A place of its own for each number.
fn place(number: u64) -> Place {
    Place::log((1 + number / 1_000, 4096 + number % 1_000 * 160))
}

fn key(number: u64) -> Vec<u8> {
    format!("key of {number:06}").into_bytes()
}

/// Bytes that identify their place.
fn value(number: u64, bytes: usize) -> Vec<u8> {
    let word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    let mut value = word.repeat(bytes.div_ceil(word.len()));
    value.truncate(bytes);
    value
}

fn keep(values: &Values, number: u64, bytes: usize) -> u64 {
    let (key, value) = (key(number), value(number, bytes));
    let item = Item {
        place: place(number),
        key: &key,
        version: number,
        attributes: &[],
        value: &value,
    };
    values.insert(&item, Rank::Newcomer, || CachedValue {
        version: number,
        attributes: Bytes::new(),
        value: Bytes::copy_from_slice(&value),
    })
}

/// Whether it is there, as it was put there.
fn is_there(values: &Values, number: u64, bytes: usize) -> bool {
    values.get(place(number), &key(number)).is_some_and(|found| {
        assert_eq!(found.version, number);
        assert!(found.value == value(number, bytes), "{number}");
        assert!(found.attributes.is_empty());
        true
    })
}

fn count_there(values: &Values, numbers: Range<u64>, bytes: usize) -> usize {
    numbers.filter(|number| is_there(values, *number, bytes)).count()
}

fn is_within_bounds(values: &Values) -> bool {
    values.bytes() + values.index_bytes() <= values.capacity_bytes()
}

#[test]
fn records_come_back_whatever_their_lengths_and_numbers_are() {
    let places = [
        Place::log((1, 0)),
        Place::log((300, 4096 + 16)),
        Place::block(7, 4096),
        Place::block(u64::MAX, (1 << 60) + 1),
        Place::log((u64::MAX, (1 << 60) + 16)),
    ];
    let lengths = [0, 1, 7, 8, 9, 100, 127, 128, 1_000, 4_000];
    let mut encoded = Vec::new();
    for place in places {
        for (key_bytes, attribute_bytes) in [(0, 0), (1, 0), (16, 5), (13, 200), (300, 0)] {
            for value_bytes in lengths {
                let (key, attributes) = (value(1, key_bytes), value(2, attribute_bytes));
                let value = value(3, value_bytes);
                let version = u64::MAX >> (value_bytes % 60);
                let item = Item {
                    place,
                    key: &key,
                    version,
                    attributes: &attributes,
                    value: &value,
                };
                item.encode(&mut encoded).unwrap();
                // As the last one in its memory, and with something behind it.
                for behind in 0..3 {
                    let words = encoded.len() / record::WORD_BYTES;
                    let memory: Vec<_> = (0..words + behind).map(|_| AtomicU64::new(u64::MAX)).collect();
                    Words(&memory).write(&encoded);
                    let words_of_it = Words(&memory).head().unwrap().words();
                    assert_eq!(words_of_it, words);
                    let found = Words(&memory).read(place, &key).unwrap();
                    assert_eq!(found.version, version);
                    assert!(found.attributes == attributes && found.value == value);
                    assert!(Words(&memory).read(Place::log((2, 32)), &key).is_none());
                    assert!(Words(&memory).read(place, b"another key").is_none());
                    assert!(words == 1 || Words(&memory[1..]).read(place, &key).is_none());
                }
            }
        }
    }
    let too_far = Item {
        place: Place(1, u64::MAX),
        key: &[],
        version: 1,
        attributes: &[],
        value: &[],
    };
    assert!(too_far.encode(&mut encoded).is_none());
}

#[test]
fn memory_without_a_record_is_no_record() {
    for word in [0, u64::MAX, 0x8080_8080_8080_8080, 0x7f7f_7f7f_7f7f_7f7f] {
        for words in 0..9 {
            let memory: Vec<_> = (0..words).map(|_| AtomicU64::new(word)).collect();
            assert!(Words(&memory).read(place(1), &key(1)).is_none());
        }
    }
}

#[test]
fn a_value_of_100_bytes_costs_at_most_30_more() {
    const CAPACITY_BYTES: u64 = 32 << 20;
    let values = Values::new(CAPACITY_BYTES);
    let mut number = 0;
    // Until it is full.
    while values.unused_bytes() > CAPACITY_BYTES / 20 {
        keep(&values, number, 100);
        number += 1;
    }
    let kept = count_there(&values, 0..number, 100) as u64;
    let taken = values.bytes() + values.index_bytes();
    let overhead = taken / kept - 100 - key(0).len() as u64;
    // Of those that are not read a table that is nearly full loses a few.
    assert!(kept * 100 >= number * 97, "{kept} of {number}");
    assert!(overhead <= 30, "{overhead}");
}

#[test]
fn nothing_takes_more_than_it_may() {
    for capacity_bytes in [60_000, 200_000, 4 << 20] {
        let values = Values::new(capacity_bytes);
        // Short ones, long ones and both.
        for round in 0..6 {
            let bytes = [100, 20_000, 1_000, 300, 3_000, 100_000][round as usize];
            let count = 2 * capacity_bytes / bytes + 3;
            for number in round << 32..(round << 32) + count {
                keep(&values, number, bytes as usize);
                is_there(&values, number - number % (1 << 32) / 2, bytes as usize);
                if number % 16 == 0 {
                    assert!(is_within_bounds(&values), "{} of {capacity_bytes}", values.bytes());
                }
            }
        }
        assert!(is_within_bounds(&values));
        assert!(capacity_bytes < 1 << 20 || values.unused_bytes() < capacity_bytes / 5);
    }
}

#[test]
fn what_takes_more_than_an_eighth_is_not_kept() {
    let values = Values::new(800_000);
    assert_eq!(keep(&values, 1, 150_000), 0);
    assert!(!is_there(&values, 1, 150_000));
    assert!(keep(&values, 2, 90_000) >= 90_000 && is_there(&values, 2, 90_000));
}

/// Short ones by themselves, and long ones, each of which is a segment.
#[test]
fn what_is_read_gets_a_second_chance_and_the_rest_leaves() {
    for (bytes, overhead_bytes, capacity_bytes) in [(100, 40, 2 << 20), (6_000, 400, 16 << 20)] {
        let values = Values::new(capacity_bytes);
        let fits = capacity_bytes / (bytes as u64 + overhead_bytes);
        let popular = fits / 4;
        for number in 0..popular {
            keep(&values, number, bytes);
        }
        let next = std::cell::Cell::new(popular);
        let others = |count| {
            for number in next.get()..next.get() + count {
                keep(&values, number, bytes);
                // Each of the popular ones again before its turn comes.
                is_there(&values, number % popular, bytes);
            }
            next.set(next.get() + count);
        };
        others(6 * fits);
        let kept = count_there(&values, 0..popular, bytes) as u64;
        assert!(kept * 100 >= popular * 85, "{kept} of {popular} with {bytes} bytes");
        let of_others = count_there(&values, popular..next.get() - fits, bytes) as u64;
        assert!(of_others * 20 <= fits, "{of_others} of {fits} with {bytes} bytes");
        // Not for ever: what is no longer read goes when others are read.
        let start = next.get();
        for number in start..start + 8 * fits {
            keep(&values, number, bytes);
            is_there(&values, number, bytes);
        }
        let kept = count_there(&values, 0..popular, bytes) as u64;
        assert!(kept * 2 <= popular, "{kept} of {popular} with {bytes} bytes");
    }
}

#[test]
fn what_comes_back_soon_is_known() {
    const CAPACITY_BYTES: u64 = 4 << 20;
    let values = Values::new(CAPACITY_BYTES);
    let fits = CAPACITY_BYTES / 130;
    // More than fit, all read as often as each other, one after the other: were all of them
    // newcomers each time, each would leave before it is read.
    let mut found = 0;
    for round in 0..4 {
        found = 0;
        for number in 0..fits * 5 / 4 {
            if is_there(&values, number, 100) {
                found += 1;
            } else {
                keep(&values, number, 100);
            }
        }
        assert!(round > 0 || found == 0);
    }
    assert!(found > fits / 10, "{found} of {fits}");
}

/// Regression: if keys were overwritten often, the cache filled with dead values, and live ones
/// that had not been read twice were evicted for them.
#[test]
fn what_is_dead_leaves_before_what_lives() {
    const CAPACITY_BYTES: u64 = 8 << 20;
    let values = Values::new(CAPACITY_BYTES);
    let fits = CAPACITY_BYTES / 130;
    let (old, young) = (0..fits / 3, fits / 3..fits * 3 / 4);
    for number in old.start..young.end {
        keep(&values, number, 100);
    }
    assert!(count_there_unread(&values, old.clone()) as u64 * 100 >= fits / 3 * 97);
    for number in young.clone().filter(|number| number % 4 > 0) {
        values.take(place(number));
    }
    for number in young.end..young.end + fits / 3 {
        keep(&values, number, 100);
    }
    assert!(is_within_bounds(&values));
    for living in [old, young.end..young.end + fits / 3] {
        let expected = (living.end - living.start) as usize;
        let found = count_there_unread(&values, living);
        assert!(found * 100 >= expected * 97, "{found} of {expected}");
    }
    let quarter = young.filter(|number| number % 4 == 0);
    let (there, all) = quarter.fold((0, 0), |(there, all), number| {
        (there + usize::from(values.has(place(number))), all + 1)
    });
    assert!(there * 100 >= all * 97, "{there} of {all}");
}

fn count_there_unread(values: &Values, numbers: std::ops::Range<u64>) -> usize {
    numbers.filter(|number| values.has(place(*number))).count()
}

/// Overwriting at random, without readers, was half as fast when what lives was copied all the
/// same.
#[test]
fn what_nobody_reads_is_not_copied() {
    let values = Values::new(4 << 20);
    assert!(!values.takes_unread(1_000), "nothing was read");
    values.note_read(100);
    assert!(!values.takes_unread(1 << 20) && values.takes_unread(6_000));
    assert!(!values.takes_unread(6_000), "it was paid for once");
    for _ in 0..1_000 {
        values.note_read(1 << 20);
    }
    assert!(
        values.takes_unread(500_000) && !values.takes_unread(500_000),
        "not far ahead"
    );
    let mut number = 0;
    while values.unused_bytes() > 300_000 {
        keep(&values, number, 100);
        number += 1;
    }
    values.note_read(4_000);
    assert!(
        !values.takes_unread(400_000) && values.takes_unread(200_000),
        "there must be room"
    );
}

/// Regression: an emptied segment of records leaves notes in the lists of fuller ones. If a long
/// value had its number next, such a note led to the value: it was taken for an empty segment and
/// evicted, however often it was read, and its slot stayed in the table forever.
#[test]
fn notes_of_an_emptied_segment_do_not_evict_the_long_value_with_its_number() {
    let values = Values::new(2 << 20);
    // Segments of records that die an eighth after the other.
    let mut first = 0;
    for _ in 0..10 {
        let records = first..first + 5_000;
        records.clone().for_each(|number| _ = keep(&values, number, 200));
        for part in 0..8 {
            let dies = records.clone().filter(|number| number % 8 == part);
            dies.for_each(|number| _ = values.take(place(number)));
        }
        first = records.end;
    }
    // Fifty long values are read all the time, others never.
    let hot = first..first + 50;
    hot.clone().for_each(|number| _ = keep(&values, number, 10_000));
    for number in hot.end..hot.end + 1_000 {
        let found = count_there(&values, hot.clone(), 10_000);
        assert_eq!(found, 50, "after {} others", number - hot.end);
        keep(&values, number, 10_000);
    }
}

#[test]
fn what_is_taken_out_leaves_no_bytes_and_no_numbers() {
    let values = Values::new(4 << 20);
    for number in 0..5_000 {
        keep(&values, number, 6_000);
        assert!(is_there(&values, number, 6_000));
        assert_eq!(values.take(place(number)), Some(1));
        assert_eq!(values.take(place(number)), None);
        assert_eq!(values.bytes(), 0);
    }
    for number in 0..10 {
        keep(&values, number, 6_000);
    }
    for number in 5_000..20_000 {
        keep(&values, number, 5_000);
        values.take(place(number));
    }
    assert_eq!(
        count_there(&values, 0..10, 6_000),
        10,
        "they had not to leave for what was gone"
    );
}

#[test]
fn what_is_renamed_is_found_at_its_new_place_only() {
    let frames = Arc::new(FrameTable::starting_at(0, 0, 0));
    let cache = ValueCache::new(1 << 20, &frames);
    for (number, bytes) in [(1, 100), (2, 9_000)] {
        let kept = CachedValue {
            version: number,
            attributes: Bytes::from_static(b"attributes"),
            value: value(number, bytes).into(),
        };
        let (from, to) = (place(number), Place::block(5, number << 12));
        cache.insert(from, &key(number), &kept);
        assert!(!cache.rename(from, to, b"another"), "of another key");
        assert!(cache.rename(from, to, &key(number)));
        assert!(cache.get(from, &key(number)).is_none());
        let found = cache.get(to, &key(number)).unwrap();
        assert_eq!((found.version, found.attributes), (number, kept.attributes));
        assert!(found.value == value(number, bytes));
        assert!(!cache.rename(from, to, &key(number)), "nothing is there");
    }
}

#[test]
fn a_table_has_what_was_put_there_and_becomes_longer() {
    let hashes: Vec<u64> = (0..4_000).map(|number| place(number).hash()).collect();
    let values = Values::new(64 << 20);
    let before = values.index_bytes();
    for number in 0..100_000 {
        keep(&values, number, 40);
    }
    assert!(count_there(&values, 0..100_000, 40) > 97_000);
    let per_value = (values.index_bytes() - before) / 100_000;
    assert!((9..=13).contains(&per_value), "{per_value}");
    let table = Table::new(600);
    for (number, hash) in (0_u32..).zip(&hashes) {
        table.insert(*hash, table::Slot::new(*hash, 1 + number, 7, 0));
    }
    let found = (0_u32..).zip(&hashes).filter(|(number, hash)| {
        let found = table.find_record(**hash, 1 + number, 7);
        found.is_some_and(|found| (found.slot.segment(), found.slot.at()) == (1 + number, 7))
    });
    let found = found.count();
    assert!(found > 3_900);
    // Where slots are says enough of their hashes: nothing that they lead to is looked at.
    let longer = Table::new(1_200);
    assert_eq!(table.copy_to(&longer, |_| None), found);
    let again = (0_u32..)
        .zip(&hashes)
        .filter(|(number, hash)| longer.find_record(**hash, 1 + number, 7).is_some());
    assert_eq!(again.count(), found);
    let short = Table::new(255);
    short.insert(hashes[0], table::Slot::new(hashes[0], 1, 7, 0));
    for (hash, copied) in [(None, 0), (Some(hashes[0]), 1)] {
        let longer = Table::longer_than(&short);
        assert_eq!(short.copy_to(&longer, |_| hash), copied);
        assert_eq!(longer.find_record(hashes[0], 1, 7).is_some(), hash.is_some());
    }
    let first = table.find_record(hashes[0], 1, 7).unwrap();
    assert!(!table.was_here(hashes[0]) && first.leave(hashes[0]) && table.was_here(hashes[0]));
    assert!(!first.leave(hashes[0]) && table.find(hashes[0]).next().is_none());
}

/// Keys are overwritten and read at once. A writer puts a version at a place of its own and then
/// says where it is, as the hash index does; a reader that looks there finds that version of that
/// key, or nothing. Segments go from one use to the next all the time.
#[test]
fn readers_never_find_another_version_than_that_of_the_place() {
    const KEYS: u64 = 64;
    const WRITERS: u64 = 2;
    for bytes in [60, 3_000] {
        let values = Values::new(300_000);
        let newest: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
        let (is_over, found) = (AtomicBool::new(false), AtomicU64::new(0));
        let bytes_of = |version: u64| bytes + (version % 50) as usize;
        std::thread::scope(|scope| {
            for reader in 0..3 {
                let (values, newest, is_over, found) = (&values, &newest, &is_over, &found);
                scope.spawn(move || {
                    let mut number = reader;
                    while !is_over.load(Ordering::Relaxed) {
                        number = (number * 29 + 1) % KEYS;
                        let version = newest[number as usize].load(Ordering::Acquire);
                        let key = number.to_le_bytes();
                        let Some(read) = values.get(place(version), &key) else {
                            continue;
                        };
                        assert_eq!(read.version, version);
                        assert!(read.value == value(version, bytes_of(version)), "{version} of {number}");
                        found.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let (values, newest) = (&values, &newest);
                    scope.spawn(move || {
                        for round in 1..6_000 {
                            let version = round * WRITERS + writer;
                            let number = version % KEYS;
                            let (key, value) = (number.to_le_bytes(), value(version, bytes_of(version)));
                            let item = Item {
                                place: place(version),
                                key: &key,
                                version,
                                attributes: &[],
                                value: &value,
                            };
                            let whole = || CachedValue {
                                version,
                                attributes: Bytes::new(),
                                value: Bytes::copy_from_slice(&value),
                            };
                            values.insert(&item, Rank::Newcomer, whole);
                            let before = newest[number as usize].swap(version, Ordering::AcqRel);
                            if round % 2 == 0 {
                                values.take(place(before));
                            }
                        }
                    })
                })
                .collect();
            for writer in writers {
                writer.join().unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert!(found.into_inner() > 100 && is_within_bounds(&values));
    }
}

/// A server with 6 GiB of cache took half a minute to end, at full speed, when 64 threads had read:
/// each of a million and a half empty places asked each of them whether it still reads there.
#[test]
fn a_large_cache_is_gone_at_once_after_many_threads() {
    const THREADS: usize = 64;
    let values = Values::new(6 << 30);
    let all = std::sync::Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                assert!(values.get(place(1), &key(1)).is_none());
                all.wait();
            });
        }
    });
    let began = std::time::Instant::now();
    drop(values);
    assert!(
        began.elapsed() < std::time::Duration::from_secs(4),
        "{:?}",
        began.elapsed()
    );
}

#[test]
fn what_frames_hand_on_is_what_readers_get() {
    let frames = Arc::new(FrameTable::starting_at(0, 0, 1 << 20));
    let cache = ValueCache::new(1 << 20, &frames);
    let heir = ValuesOfFrames(Arc::clone(&cache.values));
    for (number, bytes) in [(5, 100), (6, 30_000)] {
        let (key, value) = (key(number), value(number, bytes));
        let record = Record {
            seq: 9,
            generation: 0,
            key: &key,
            attributes: b"some",
            checksum: 0,
            body: Body::MoveToFlash {
                version: number,
                value: &value,
            },
        };
        heir.inherit((3, number * 4096), &record);
        let found = cache.get(Place::log((3, number * 4096)), &key).unwrap();
        assert_eq!((found.version, &found.attributes[..]), (number, &b"some"[..]));
        assert!(found.value == value);
    }
}

#[test]
fn what_a_value_costs_is_what_an_allocator_takes_for_it() {
    for (bytes, allocated) in [
        (0, 0),
        (1, 16),
        (128, 128),
        (129, 160),
        (1024, 1024),
        (1040, 1280),
        (8208, 10240),
    ] {
        assert_eq!(allocated_bytes(bytes), allocated, "{bytes}");
    }
}
