//! Longer values, of which chunks are the home in RAM.

use super::*;

/// A store whose cache has room for longer values to move to chunks, and some of them, scanned.
fn scanned(dir: &Path, count: u32) -> (Store, BTreeMap<String, Vec<u8>>) {
    let store = Store::open(Options {
        log_capacity_bytes: Some(32 << 20),
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
        log_capacity_bytes: Some(32 << 20),
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
    let stats = store.stats();
    assert_eq!((stats.reads.flash_reads, stats.scan_cache.made), (flash_reads, 1));
    // The chunk ends before what was not in RAM.
    assert_eq!(all(&store), Vec::from_iter(written.clone()));
}

/// One value that was not in RAM, and a scan had listed fifty for nothing.
#[test]
fn a_chunk_is_made_though_a_few_of_its_values_are_not_in_ram() {
    let dir = tempfile::tempdir().unwrap();
    let (store, written) = scanned(dir.path(), 300);
    let mut options = store.engine().options.clone();
    options.read_only = false;
    drop(store);
    // One of 24, or six. Of those that were read the cache may have lost one.
    for (one_in, is_made) in [(24, true), (4, false)] {
        let store = Store::open(options.clone()).unwrap();
        for n in (0..100).filter(|n| n % one_in != 1) {
            store.get(key(n)).unwrap().unwrap();
        }
        let few = || {
            let mut scan = store.scan(ScanRange::range(key(24)..)).unwrap();
            let found = scan.next_values(24).unwrap();
            let found = found.into_iter().map(|(_, value)| value.unwrap().to_vec());
            assert!(found.eq(written.range(key(24)..).take(24).map(|(_, value)| value.clone())));
            store.stats()
        };
        let flash_reads = store.stats().reads.flash_reads;
        let first = few();
        assert!(first.reads.flash_reads > flash_reads);
        assert_eq!(first.scan_cache.made > 0, is_made, "{first:?}");
        let second = few();
        assert_eq!(second.reads.flash_reads, first.reads.flash_reads);
        assert_eq!(second.scan_cache.pair_hits, if is_made { 24 } else { 0 });
    }
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

/// A scan that has begun with a chunk goes on as of its moment, while another makes that anew; and
/// so do snapshots of before, of between, and steps from the back. A read by key finds the value of
/// now in RAM at every step.
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

/// Values go from chunk to chunk, and a read by key meanwhile finds them in RAM.
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
    // A reader that is held up between two looks, while a chunk is made anew twice, asks the
    // device.
    assert!(flash_reads < 10, "{flash_reads}");
}

/// Chunks take no room that other values need.
#[test]
fn longer_values_move_only_where_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(Options {
        log_capacity_bytes: Some(32 << 20),
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
