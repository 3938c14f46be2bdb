//! Scans that take what earlier ones have read out of chunks: they show what scans of the index
//! show.

mod gets;
mod homes;

use super::{Hands, bytes, eventually, open, small_options, timed_options};
use crate::{Condition, Durability, Expiry, Options, PutOptions, Scan, ScanCacheStats, ScanRange, Snapshot, Store};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    collections::{BTreeMap, VecDeque},
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

fn put(store: &Store, key: &str, value: impl AsRef<[u8]>) {
    let options = PutOptions {
        durability: Durability::Buffered,
        ..PutOptions::default()
    };
    store.put_with(key, value, &options).unwrap();
}

fn key(number: u32) -> String {
    format!("k{number:03}")
}

/// The rest of a scan, so many pairs in each call.
fn rest(scan: &mut Scan, together: usize) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    loop {
        let found = scan.next_values(together).unwrap();
        if found.is_empty() {
            return all;
        }
        all.extend(found.into_iter().map(|(item, value)| {
            let value = value.unwrap().to_vec();
            assert_eq!(
                (item.info.length, item.info.checksum),
                (value.len() as u64, crc32c::crc32c(&value))
            );
            (String::from_utf8(item.key.to_vec()).unwrap(), value)
        }));
    }
}

fn all(store: &Store) -> Vec<(String, Vec<u8>)> {
    rest(&mut store.scan(ScanRange::all()).unwrap(), 37)
}

#[test]
fn what_is_visited_is_what_a_scan_gives() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(Options {
        cache_bytes: 8 << 20,
        ..small_options(dir.path())
    })
    .unwrap();
    // Inline, in chunks as copies and as homes, in blocks.
    let length = |n: u32| [20, 100, 1_000, 100_000][n as usize / 20 % 4];
    let written: Vec<_> = (0..400).map(|n| (key(n), bytes(n.into(), length(n)))).collect();
    for (key, value) in &written {
        put(&store, key, value);
    }
    for round in 0..3 {
        let mut scan = store.scan(ScanRange::all()).unwrap();
        let mut found = Vec::new();
        // Both ways in turn go on where the other ended.
        while found.len() < written.len() {
            let before = found.len();
            let visit = |key: &[u8], value: crate::Result<&[u8]>| {
                found.push((String::from_utf8(key.to_vec()).unwrap(), value.unwrap().to_vec()));
            };
            assert_eq!(scan.visit_values(17, visit).unwrap(), (written.len() - before).min(17));
            for (object, value) in scan.next_values(9).unwrap() {
                found.push((String::from_utf8(object.key.to_vec()).unwrap(), value.unwrap().to_vec()));
            }
        }
        assert!(found == written, "round {round}");
        assert_eq!(scan.visit_values(1, |_, _| panic!("nothing is left")).unwrap(), 0);
    }
    assert!(store.stats().scan_cache.pair_hits > 0);
}

/// A store with three hundred values of 100 bytes.
fn with_short_values(dir: &Path) -> (Store, Vec<(String, Vec<u8>)>) {
    let store = Store::open(Options {
        cache_bytes: 8 << 20,
        ..small_options(dir)
    })
    .unwrap();
    let written: Vec<(String, Vec<u8>)> = (0..300).map(|n| (key(n), bytes(n.into(), 100))).collect();
    for (key, value) in &written {
        put(&store, key, value);
    }
    (store, written)
}

#[test]
fn a_second_scan_takes_from_chunks_what_the_first_has_read() {
    let dir = tempfile::tempdir().unwrap();
    let (store, written) = with_short_values(dir.path());
    assert_eq!(all(&store), written);
    let made = store.stats().scan_cache;
    // What it has read ahead it takes from its own chunks.
    assert!(made.chunks > 2 && (1..300).contains(&made.pair_hits), "{made:?}");
    assert_eq!(all(&store), written);
    let mut part = store.scan(ScanRange::range(key(17)..key(211))).unwrap();
    assert_eq!(rest(&mut part, 10), written[17..211]);
    let hits = store.stats().scan_cache;
    let hit = hits.pair_hits - made.pair_hits;
    assert_eq!((hit, hits.made, hits.dropped), (300 + 194, made.made, 0));
    put(&store, &key(40), "new");
    store.delete(key(200)).unwrap();
    put(&store, "k041x", "another");
    let found = all(&store);
    let expected: BTreeMap<String, Vec<u8>> = written.into_iter().collect();
    let mut expected: BTreeMap<_, _> = expected.into_iter().filter(|(name, _)| *name != key(200)).collect();
    expected.insert(key(40), b"new".to_vec());
    expected.insert("k041x".to_owned(), b"another".to_vec());
    assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
    let after = store.stats().scan_cache;
    assert!(
        (1..=3).contains(&(after.made - hits.made)) && after.dropped == 0,
        "{after:?}"
    );
}

/// A scan fills its chunk with as many pairs as it was asked for, and one that has stopped inside a
/// chunk goes on in it, whatever is written meanwhile.
#[test]
fn a_scan_fills_its_chunk_and_goes_on_where_it_stopped_in_one() {
    let dir = tempfile::tempdir().unwrap();
    let (store, written) = with_short_values(dir.path());
    let visit = |scan: &mut Scan, count: usize| {
        let mut seen = Vec::new();
        scan.visit_values(count, |key, value| seen.push((key.to_vec(), value.unwrap().to_vec())))
            .unwrap();
        seen
    };
    let expected = |range: std::ops::Range<usize>| -> Vec<(Vec<u8>, Vec<u8>)> {
        let pairs = written[range].iter().cloned();
        pairs.map(|(key, value)| (key.into_bytes(), value)).collect()
    };
    let from = |number| store.scan(ScanRange::range(key(number)..)).unwrap();
    assert_eq!(visit(&mut from(100), 10), expected(100..110));
    assert_eq!(store.stats().scan_cache.chunks, 1);
    let mut scan = from(102);
    assert_eq!(visit(&mut scan, 3), expected(102..105));
    put(&store, &key(106), "new");
    // A new scan waits for the applier.
    drop(from(0));
    assert_eq!(visit(&mut scan, 15), expected(105..120));
    let stats = store.stats().scan_cache;
    assert_eq!((stats.pair_hits, stats.made), (18, 1), "{stats:?}");
    assert_eq!(visit(&mut from(106), 1)[0].1, b"new");
}

type State = BTreeMap<String, Vec<u8>>;

fn change(store: &Store, rng: &mut StdRng, state: &mut State) {
    let name = key(rng.random_range(0..120));
    match rng.random_range(0..20) {
        0..8 => {
            let value = bytes(
                rng.random(),
                [3, 300, 700, 2_000, 5_000, 20_000][rng.random_range(0..6)],
            );
            put(store, &name, &value);
            state.insert(name, value);
        }
        8..12 => {
            store.delete_with(&name, Condition::None, Durability::Buffered).unwrap();
            state.remove(&name);
        }
        12 => {
            let end = format!("{name}~");
            store
                .delete_range(ScanRange::range(name.clone()..end.clone()), Durability::Buffered)
                .unwrap();
            state.retain(|key, _| !(&name..&end).contains(&key));
        }
        13 => store.flush().unwrap(),
        _ => {}
    }
}

/// In any order of steps from both ends, with writes between any two of them.
#[test]
fn scans_that_mix_chunks_and_index_show_their_moment() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(Options {
        log_capacity_bytes: Some(16 << 20),
        ..small_options(dir.path())
    })
    .unwrap();
    let mut rng = StdRng::seed_from_u64(33);
    let mut now = State::new();
    let mut snapshots: Vec<(Snapshot, State)> = Vec::new();
    for _ in 0..1500 {
        // Now and then more than are noted beside a chunk.
        for _ in 0..rng.random_range(0..4) * [1, 100][usize::from(rng.random_bool(0.02))] {
            change(&store, &mut rng, &mut now);
        }
        if rng.random_bool(0.1) {
            snapshots.truncate(2);
            snapshots.insert(0, (store.snapshot().unwrap(), now.clone()));
        }
        let (from, to) = (rng.random_range(0..120), rng.random_range(0..130));
        let (from, to) = (key(from.min(to)), key(from.max(to)));
        let range = ScanRange::range(from.clone()..to.clone());
        let (mut scan, state) = match snapshots.get(rng.random_range(0..6)) {
            Some((snapshot, then)) => (snapshot.scan(range).unwrap(), then),
            None => (store.scan(range).unwrap(), &now.clone()),
        };
        let expected = state.range(from..to).map(|(key, value)| (key.clone(), value.clone()));
        let mut expected: VecDeque<(String, Vec<u8>)> = expected.collect();
        let from_both = rng.random_bool(0.3);
        loop {
            if rng.random_bool(0.2) {
                change(&store, &mut rng, &mut now);
            }
            let found: Vec<_> = match rng.random_range(0..10) {
                0 if from_both => {
                    let found = scan.next_back().map(|item| item.unwrap());
                    let wanted = expected.pop_back();
                    assert_eq!(
                        found.map(|item| (item.key.clone(), item.value().unwrap())),
                        wanted.map(|(key, value)| (key.into(), value.into()))
                    );
                    continue;
                }
                0..4 => scan
                    .next()
                    .map(|item| item.unwrap())
                    .map(|item| (item.key.clone(), item.value()))
                    .into_iter()
                    .collect(),
                _ => {
                    let found = scan.next_values(rng.random_range(1..30)).unwrap();
                    found.into_iter().map(|(item, value)| (item.key, value)).collect()
                }
            };
            if found.is_empty() {
                break;
            }
            for (key, value) in found {
                let wanted = expected.pop_front().unwrap();
                assert_eq!((&*key, &*value.unwrap()), (wanted.0.as_bytes(), &*wanted.1));
            }
        }
        assert_eq!(expected, []);
    }
    let stats = store.stats().scan_cache;
    assert!(
        stats.pair_hits > 1000 && stats.made > 300 && stats.dropped > 0,
        "{stats:?}"
    );
}

/// One call of a scan kept all it had read, and what others had in the cache left for it.
#[test]
fn one_call_makes_chunks_of_a_part_of_the_cache_only() {
    for value_bytes in [100, 800] {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Options {
            log_capacity_bytes: Some(32 << 20),
            cache_bytes: 8 << 20,
            ..small_options(dir.path())
        })
        .unwrap();
        let written: Vec<_> = (0..3_000)
            .map(|n| (format!("k{n:05}"), bytes(n, value_bytes)))
            .collect();
        for (key, value) in &written {
            put(&store, key, value);
        }
        assert_eq!(rest(&mut store.scan(ScanRange::all()).unwrap(), 5_000), written);
        let made = store.stats().scan_cache;
        // A sixty-fourth, and the chunk that goes over it.
        assert!(made.made > 0 && made.made_bytes <= (128 + 56) << 10, "{made:?}");
        assert_eq!(rest(&mut store.scan(ScanRange::all()).unwrap(), 5_000), written);
    }
}

#[test]
fn what_expires_or_is_deleted_by_a_range_is_not_shown_out_of_a_chunk() {
    let dir = tempfile::tempdir().unwrap();
    let hands = Hands::new();
    let store = Store::open(timed_options(dir.path(), &hands)).unwrap();
    let shown = || all(&store).into_iter().map(|(key, _)| key).collect::<Vec<_>>();
    for n in 0..6 {
        let expiry = [Expiry::Never, Expiry::After(Duration::from_secs(60))][n as usize % 2];
        let options = PutOptions {
            expiry,
            ..PutOptions::default()
        };
        store.put_with(key(n), "value", &options).unwrap();
    }
    let keys = |numbers: &[u32]| numbers.iter().map(|n| key(*n)).collect::<Vec<_>>();
    for _ in 0..2 {
        assert_eq!(shown(), keys(&[0, 1, 2, 3, 4, 5]));
    }
    let mut before = store.scan(ScanRange::all()).unwrap();
    hands.advance(Duration::from_secs(61));
    assert_eq!(shown(), keys(&[0, 2, 4]));
    // Its time stands still; and what came between did not make a chunk without what it shows.
    assert_eq!(rest(&mut before, 4).len(), 6);
    let snapshot = store.snapshot().unwrap();
    store
        .delete_range(ScanRange::range(key(2)..key(4)), Durability::Buffered)
        .unwrap();
    for _ in 0..2 {
        assert_eq!(shown(), keys(&[0, 4]));
        let of_snapshot = rest(&mut snapshot.scan(ScanRange::all()).unwrap(), 9);
        assert_eq!(of_snapshot.len(), 3);
    }
    drop(snapshot);
    eventually("sweeping", || store.engine().log.ranges.count() == 0);
    for _ in 0..2 {
        assert_eq!(shown(), keys(&[0, 4]));
    }
}

/// The log's segments go round beneath: an entry of then leads nowhere, the chunk has the value.
#[test]
fn values_of_chunks_outlive_their_places() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let written: Vec<(String, Vec<u8>)> = (0..40).map(|n| (key(n), bytes(n.into(), 100))).collect();
    for (key, value) in &written {
        put(&store, key, value);
    }
    let kept = || rest(&mut store.scan(ScanRange::prefix("k")).unwrap(), 100);
    assert_eq!(kept(), written);
    let reclaimed = store.stats().log.segments_reclaimed;
    let mut number = 0;
    while store.stats().log.segments_reclaimed < reclaimed + 20 {
        put(&store, &format!("z{}", number % 10), bytes(number, 10_000));
        number += 1;
    }
    let before = store.stats().scan_cache;
    assert_eq!(kept(), written);
    let after = store.stats().scan_cache;
    assert_eq!(after.dropped, 0, "moves drop nothing");
    assert!(
        after.pair_hits >= before.pair_hits + 40 || after.made > before.made,
        "{after:?}"
    );
}

/// What was acknowledged before a scan began is shown by it, whatever is read and written beside
/// it.
#[test]
fn a_scan_shows_what_was_acknowledged_before_it_began() {
    let stats = scans_beside_writers(8);
    assert!(stats.pair_hits > 0 && stats.dropped > 0, "{stats:?}");
}

/// The same where chunks are made anew of themselves.
#[test]
fn a_scan_of_longer_values_shows_what_was_acknowledged_before_it_began() {
    let stats = scans_beside_writers(700);
    assert!(stats.pair_hits > 0 && stats.made > stats.dropped, "{stats:?}");
}

fn scans_beside_writers(value_bytes: usize) -> ScanCacheStats {
    const WRITERS: u32 = 2;
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(Options {
        log_capacity_bytes: Some(64 << 20),
        cache_bytes: 8 << 20,
        ..small_options(dir.path())
    })
    .unwrap();
    let value_of = |count: u64| {
        let mut value = count.to_le_bytes().to_vec();
        value.resize(value_bytes, 0);
        value
    };
    // Each writer counts up in keys of its own, which lie between the others'.
    let counts: Vec<AtomicU64> = (0..100).map(|_| AtomicU64::new(0)).collect();
    for number in 0..100 {
        put(&store, &key(number), value_of(0));
    }
    let is_over = AtomicBool::new(false);
    let (scans, found_in_chunks) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (store, counts, is_over, value_of) = (&store, &counts, &is_over, &value_of);
            scope.spawn(move || {
                let mut rng = StdRng::seed_from_u64(writer.into());
                for count in 1_u64.. {
                    let number = rng.random_range(0..100 / WRITERS) * WRITERS + writer;
                    put(store, &key(number), value_of(count));
                    counts[number as usize].store(count, Ordering::SeqCst);
                    if is_over.load(Ordering::SeqCst) {
                        return;
                    }
                    if rng.random_bool(0.2) {
                        std::thread::sleep(Duration::from_micros(rng.random_range(0..300)));
                    }
                }
            });
        }
        let scanners: Vec<_> = (0..3)
            .map(|seed| {
                let (store, counts, scans, found_in_chunks) = (&store, &counts, &scans, &found_in_chunks);
                scope.spawn(move || {
                    let mut rng = StdRng::seed_from_u64(seed);
                    for _ in 0..4000 {
                        let from = rng.random_range(0..100);
                        let least: Vec<u64> = counts.iter().map(|count| count.load(Ordering::SeqCst)).collect();
                        let mut scan = store.scan(ScanRange::range(key(from)..)).unwrap();
                        let found = scan.next_values(rng.random_range(1..40)).unwrap();
                        for (number, (item, value)) in (from..).zip(found) {
                            assert_eq!(item.key, key(number));
                            let count = u64::from_le_bytes(value.unwrap()[..8].try_into().unwrap());
                            assert!(count >= least[number as usize], "{} is {count}", key(number));
                        }
                        if scans.fetch_add(1, Ordering::Relaxed) % 16 == 0 {
                            let count = gets::count_in_chunk(store, &key(from));
                            assert!(count.is_none_or(|count| count >= least[from as usize]));
                            found_in_chunks.fetch_add(count.is_some().into(), Ordering::Relaxed);
                        }
                    }
                })
            })
            .collect();
        let outcomes: Vec<_> = scanners.into_iter().map(|scanner| scanner.join()).collect();
        is_over.store(true, Ordering::SeqCst);
        assert!(outcomes.iter().all(Result::is_ok), "a scan has missed something");
    });
    assert!(found_in_chunks.into_inner() > 0);
    store.stats().scan_cache
}
