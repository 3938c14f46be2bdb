//! Scans that take what earlier ones have read out of chunks: they show what scans of the index
//! show.

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
            assert_eq!(item.value().unwrap(), value);
            (String::from_utf8(item.key.to_vec()).unwrap(), value)
        }));
    }
}

fn all(store: &Store) -> Vec<(String, Vec<u8>)> {
    rest(&mut store.scan(ScanRange::all()).unwrap(), 37)
}

#[test]
fn a_second_scan_takes_from_chunks_what_the_first_has_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(Options {
        cache_bytes: 8 << 20,
        ..small_options(dir.path())
    })
    .unwrap();
    let written: Vec<(String, Vec<u8>)> = (0..300).map(|n| (key(n), bytes(n.into(), 100))).collect();
    for (key, value) in &written {
        put(&store, key, value);
    }
    assert_eq!(all(&store), written);
    let made = store.stats().scan_cache;
    assert!(made.chunks > 2 && made.pair_hits == 0, "{made:?}");
    assert_eq!(all(&store), written);
    let mut part = store.scan(ScanRange::range(key(17)..key(211))).unwrap();
    assert_eq!(rest(&mut part, 10), written[17..211]);
    let hits = store.stats().scan_cache;
    assert_eq!((hits.pair_hits, hits.made, hits.dropped), (300 + 194, made.made, 0));
    put(&store, &key(40), "new");
    store.delete(key(200)).unwrap();
    put(&store, "k041x", "another");
    let found = all(&store);
    let expected: BTreeMap<String, Vec<u8>> = written.into_iter().collect();
    let mut expected: BTreeMap<_, _> = expected.into_iter().filter(|(name, _)| *name != key(200)).collect();
    expected.insert(key(40), b"new".to_vec());
    expected.insert("k041x".to_owned(), b"another".to_vec());
    assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
    let dropped = store.stats().scan_cache.dropped;
    assert!((1..=3).contains(&dropped), "{dropped}");
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
        flash_capacity_bytes: 16 << 20,
        ..small_options(dir.path())
    })
    .unwrap();
    let mut rng = StdRng::seed_from_u64(33);
    let mut now = State::new();
    let mut snapshots: Vec<(Snapshot, State)> = Vec::new();
    for _ in 0..1500 {
        for _ in 0..rng.random_range(0..4) {
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
    assert!(stats.pair_hits > 1000 && stats.dropped > 100, "{stats:?}");
}

/// A store whose cache has room for longer values to move to chunks, and some of them, scanned.
fn scanned(dir: &Path, count: u32) -> (Store, BTreeMap<String, Vec<u8>>) {
    let store = Store::open(Options {
        flash_capacity_bytes: 32 << 20,
        cache_bytes: 8 << 20,
        ..small_options(dir)
    })
    .unwrap();
    let written: BTreeMap<_, _> = (0..count).map(|n| (key(n), bytes(n.into(), 1_000))).collect();
    for (key, value) in &written {
        put(&store, key, value);
    }
    // A scan makes chunks of a part of the cache only.
    for _ in 0..6 {
        assert_eq!(all(&store), Vec::from_iter(written.clone()));
    }
    (store, written)
}

/// Each was in RAM twice, and drove others out.
#[test]
fn longer_values_are_in_their_chunk_and_nowhere_else() {
    let dir = tempfile::tempdir().unwrap();
    let (store, written) = scanned(dir.path(), 300);
    let stats = store.stats();
    assert!(
        stats.scan_cache.pair_hits >= 300 && stats.scan_cache.chunks > 4,
        "{stats:?}"
    );
    for (key, value) in &written {
        assert_eq!(&*store.get(key).unwrap().unwrap().value, value);
    }
    // Frames have let go of what lives in chunks, to the last byte.
    let in_frames_bytes = store.engine().log.frames.living_bytes();
    assert_eq!(in_frames_bytes, 0);
    let (living_bytes, _) = store.engine().cache.living_and_room_bytes();
    assert!((300_000..400_000).contains(&living_bytes), "{living_bytes}");
    assert_eq!(store.stats().reads.flash_reads, stats.reads.flash_reads);
}

/// Scans of few pairs made chunks of few, each of which takes more RAM than its pairs and is one
/// more to look for.
#[test]
fn a_short_scan_makes_a_full_chunk() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        flash_capacity_bytes: 32 << 20,
        cache_bytes: 8 << 20,
        ..small_options(dir.path())
    };
    let store = Store::open(options.clone()).unwrap();
    let mut written: BTreeMap<_, _> = (0..300).map(|n| (key(n), bytes(n.into(), 1_000))).collect();
    written.insert(key(110), bytes(110, 100));
    for (key, value) in &written {
        put(&store, key, value);
    }
    store.delete(key(40)).unwrap();
    written.remove(&key(40));
    let few = |store: &Store, from: u32, to: u32, count: usize| {
        let mut scan = store.scan(ScanRange::range(key(from)..key(to))).unwrap();
        let found = scan.next_values(count).unwrap();
        assert_eq!(found.len(), count);
        for ((item, value), (key, wanted)) in found.iter().zip(written.range(key(from)..)) {
            assert_eq!(
                (&*item.key, value.as_ref().unwrap()),
                (key.as_bytes(), &wanted.clone().into())
            );
        }
        // What was read ahead was not shown.
        let rest_of_it: Vec<_> = written.range(key(from)..key(to)).skip(count).collect();
        let found = rest(&mut scan, 7);
        assert_eq!(
            found.iter().map(|(key, value)| (key, value)).collect::<Vec<_>>(),
            rest_of_it
        );
    };
    let made_by = |store: &Store, from, to, count| {
        let before = store.stats();
        few(store, from, to, count);
        let after = store.stats();
        let bytes = after.scan_cache.made_bytes - before.scan_cache.made_bytes;
        assert_eq!(after.reads.flash_reads, before.reads.flash_reads);
        (after.scan_cache.made - before.scan_cache.made, bytes / 1_000)
    };
    // A chunk has at most a segment of this cache, sixteen such pairs.
    let (made, length) = made_by(&store, 200, 216, 1);
    assert!(made == 1 && (15..=17).contains(&length), "{made}: {length}");
    assert_eq!(made_by(&store, 198, 206, 1), (1, 2), "up to the next chunk");
    assert_eq!(made_by(&store, 200, 206, 3).0, 0);
    // Up to what is short, and to the end of what was asked for.
    assert_eq!(made_by(&store, 104, 110, 1), (1, 6));
    assert_eq!(made_by(&store, 150, 153, 1), (1, 3));
    // A deleted object is no pair.
    let (made, length) = made_by(&store, 36, 50, 1);
    assert!(made >= 1 && length >= 13, "{made}: {length}");
    drop(store);
    // Nothing is read from the device for it.
    let store = Store::open(options).unwrap();
    few(&store, 220, 225, 5);
    let flash_reads = store.stats().reads.flash_reads;
    let mut scan = store.scan(ScanRange::range(key(220)..)).unwrap();
    assert_eq!(scan.next_values(5).unwrap().len(), 5);
    assert_eq!(store.stats().reads.flash_reads, flash_reads);
}

/// Each key that came into a full chunk left a chunk of one pair behind.
#[test]
fn a_chunk_that_becomes_too_long_is_halved() {
    let dir = tempfile::tempdir().unwrap();
    let (store, mut written) = scanned(dir.path(), 300);
    let chunks_before = store.stats().scan_cache.chunks;
    for round in 0..8 {
        for n in 0..30 {
            let name = format!("k{:03}{round}", n * 10 + 5);
            let value = bytes(n * 100 + round, 1_000);
            put(&store, &name, &value);
            written.insert(name, value);
            if n % 5 == 4 {
                assert_eq!(all(&store), Vec::from_iter(written.clone()));
            }
        }
    }
    let stats = store.stats().scan_cache;
    assert_eq!(stats.dropped, 0);
    let chunks_max = 2 * chunks_before * written.len() as u64 / 300;
    assert!(
        (chunks_before + 1..=chunks_max).contains(&stats.chunks),
        "{chunks_before}, {stats:?}"
    );
}

/// A write dropped the chunk, and the next scan asked the index for each of its pairs.
#[test]
fn a_chunk_with_changed_keys_is_made_anew_of_itself() {
    let dir = tempfile::tempdir().unwrap();
    let (store, mut written) = scanned(dir.path(), 300);
    let before = store.stats().scan_cache;
    let new = |n: u32| bytes(u64::from(n) + 1_000, 600);
    for (name, value) in [(key(100), new(1)), (key(200), new(2)), ("k100a".to_owned(), new(3))] {
        put(&store, &name, &value);
        written.insert(name, value);
    }
    store.delete(key(101)).unwrap();
    written.remove(&key(101));
    assert_eq!(all(&store), Vec::from_iter(written.clone()));
    let after = store.stats().scan_cache;
    assert_eq!((after.made - before.made, after.dropped), (2, before.dropped));
    assert_eq!(after.pair_hits - before.pair_hits, written.len() as u64);
    // Too many changes at once are less work by the index.
    for n in 0..100 {
        put(&store, &key(n), new(n));
        written.insert(key(n), new(n));
    }
    assert_eq!(all(&store), Vec::from_iter(written.clone()));
    assert!(store.stats().scan_cache.dropped > after.dropped);
    for (key, value) in &written {
        assert_eq!(&*store.get(key).unwrap().unwrap().value, value);
    }
}

/// One call of a scan kept all it had read, and what others had in the cache left for it.
#[test]
fn one_call_makes_chunks_of_a_part_of_the_cache_only() {
    for value_bytes in [100, 800] {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Options {
            flash_capacity_bytes: 32 << 20,
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

/// A scan that has begun with a chunk goes on as of its moment, while another makes that anew; and
/// so do snapshots of before, of between, and steps from the back. Whoever reads by key finds the
/// value of now in RAM at every step.
#[test]
fn a_chunk_is_made_anew_under_a_scan() {
    let dir = tempfile::tempdir().unwrap();
    let (store, mut written) = scanned(dir.path(), 120);
    type Pairs = VecDeque<(String, Vec<u8>)>;
    let mut moments: Vec<(Snapshot, State, Scan, Pairs)> = Vec::new();
    let made = store.stats().scan_cache.made;
    let flash_reads = store.stats().reads.flash_reads;
    for round in 0..12_u32 {
        let snapshot = store.snapshot().unwrap();
        let scan = snapshot.scan(ScanRange::all()).unwrap();
        moments.push((snapshot, written.clone(), scan, written.clone().into_iter().collect()));
        for step in 0..3 {
            let name = key((round * 31 + step * 7) % 120);
            let value = bytes(u64::from(round * 3 + step) + 5_000, 900 + round as usize);
            put(&store, &name, &value);
            written.insert(name, value);
        }
        let gone = key((round * 17 + 3) % 120);
        store.delete_with(&gone, Condition::None, Durability::Buffered).unwrap();
        written.remove(&gone);
        // Older scans go on a little before the chunks are made anew, and after that.
        for part in 0..2 {
            for (number, (_, _, scan, expected)) in moments.iter_mut().enumerate() {
                if number % 4 == 3 && part == 0 {
                    let found = scan.next_back().map(|item| item.unwrap());
                    let found = found.map(|item| (item.key.to_vec(), item.value().unwrap().to_vec()));
                    assert_eq!(found, expected.pop_back().map(|(key, value)| (key.into_bytes(), value)));
                }
                for (item, value) in scan.next_values(5).unwrap() {
                    let (key, wanted) = expected.pop_front().unwrap();
                    assert_eq!((&*item.key, &*value.unwrap()), (key.as_bytes(), &*wanted), "{round}");
                }
            }
            assert_eq!(all(&store), Vec::from_iter(written.clone()), "{round}");
        }
        for (key, value) in &written {
            assert_eq!(&*store.get(key).unwrap().unwrap().value, value);
        }
        assert!(store.get(&gone).unwrap().is_none());
    }
    for (snapshot, then, ..) in &moments {
        let found = rest(&mut snapshot.scan(ScanRange::all()).unwrap(), 37);
        assert_eq!(found, Vec::from_iter(then.clone()));
    }
    let stats = store.stats();
    assert!(stats.scan_cache.made >= made + 12, "{stats:?}");
    assert_eq!(stats.reads.flash_reads, flash_reads, "all of it is in RAM");
}

/// Values go from chunk to chunk, and whoever reads one by its key meanwhile finds it in RAM.
#[test]
fn gets_find_values_in_ram_while_chunks_are_made_anew() {
    const ROUNDS: u64 = 300;
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = scanned(dir.path(), 120);
    let before = store.stats();
    let round_now = AtomicU64::new(0);
    let value_of = |round: u64| bytes(round + 1_000, 1_000);
    // Of one key in ten values change, in turn.
    let changed = |round: u64| key((round * 10 % 120) as u32);
    std::thread::scope(|scope| {
        let (store, round_now) = (&store, &round_now);
        scope.spawn(move || {
            for round in 1..=ROUNDS {
                put(store, &changed(round), value_of(round));
                round_now.store(round, Ordering::SeqCst);
                assert_eq!(all(store).len(), 120);
            }
            round_now.store(u64::MAX, Ordering::SeqCst);
        });
        let mut rng = StdRng::seed_from_u64(7);
        loop {
            let round = round_now.load(Ordering::SeqCst);
            if round == u64::MAX {
                break;
            }
            let stays = rng.random_range(0..12) * 10 + rng.random_range(1..10);
            let found = store.get(key(stays)).unwrap().unwrap().value;
            assert_eq!(found, bytes(stays.into(), 1_000));
            if round > 0 {
                let found = store.get(changed(round)).unwrap().unwrap().value;
                // The value of then, or a later one of the key.
                let last = round_now.load(Ordering::SeqCst).min(ROUNDS) + 1;
                let mut since = (round..=last).step_by(12);
                assert!(since.any(|round| found == value_of(round)), "{round} to {last}");
            }
        }
    });
    let after = store.stats();
    assert!(after.scan_cache.made - before.scan_cache.made > ROUNDS / 2, "{after:?}");
    let flash_reads = after.reads.flash_reads - before.reads.flash_reads;
    // Who is held up between two looks, while a chunk is made anew twice, asks the device.
    assert!(flash_reads < 10, "{flash_reads}");
}

/// Chunks are in nobody's way who wants the room more.
#[test]
fn longer_values_move_only_where_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(Options {
        flash_capacity_bytes: 32 << 20,
        ..small_options(dir.path())
    })
    .unwrap();
    let written: Vec<_> = (0..1_700).map(|n| (format!("k{n:05}"), bytes(n, 900))).collect();
    for (key, value) in &written {
        put(&store, key, value);
    }
    for _ in 0..3 {
        assert_eq!(all(&store), written);
    }
    let made = store.stats().scan_cache;
    assert!(made.made_bytes < 300_000, "{made:?}");
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

/// What was acknowledged before a scan began is shown by it, whoever reads and writes beside it.
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
        flash_capacity_bytes: 64 << 20,
        cache_bytes: 8 << 20,
        ..small_options(dir.path())
    })
    .unwrap();
    let value_of = |count: u64| {
        let mut value = count.to_le_bytes().to_vec();
        value.resize(value_bytes, 0);
        value
    };
    // Each writer counts up in keys of its own, which lie between the others', and takes every
    // seventh out now and then.
    let counts: Vec<AtomicU64> = (0..100).map(|_| AtomicU64::new(0)).collect();
    for number in 0..100 {
        put(&store, &key(number), value_of(0));
    }
    let is_over = AtomicBool::new(false);
    let scans = AtomicU64::new(0);
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
                let (store, counts, scans) = (&store, &counts, &scans);
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
                        scans.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let outcomes: Vec<_> = scanners.into_iter().map(|scanner| scanner.join()).collect();
        is_over.store(true, Ordering::SeqCst);
        assert!(outcomes.iter().all(Result::is_ok), "a scan has missed something");
    });
    store.stats().scan_cache
}
