//! Sweeps of a log with more short values than fit into RAM, beside writers, deletions, scans from
//! both ends, flushes and recycling.

use super::{buffered, bytes, eventually, small_options};
use crate::{
    Durability, Options, ScanRange, Store,
    io::{Disk as _, Fault, FaultKind, SimDisk},
    log::segments::SegmentState,
    ordered_index::{Entry, Home},
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    ops::Bound,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// With their values as much as the least RAM of a sweep.
const KEYS: usize = 9_000;
/// How long everything goes on at most.
const TIME_MAX: Duration = Duration::from_secs(20);
/// After so many sweeps it is enough.
const SWEEPS: u64 = 6;

fn options(dir: &Path) -> Options {
    Options {
        log_capacity_bytes: Some(12 << 20),
        cache_bytes: 64 << 10,
        ..small_options(dir)
    }
    .tuned(|tuning| {
        tuning.order_bytes_per_second = 1 << 30;
        tuning.sweep_price_percent = 0;
        tuning.memtable_bytes = 256 << 10;
    })
}

fn key(number: usize) -> String {
    format!("k/{number:05}")
}

/// Bytes that say which change of which key made them.
fn value(number: usize, change: u64) -> Vec<u8> {
    let length = 100 + (number * 7 + change as usize * 31) % 150;
    let mut value = bytes(change << 32 | number as u64, length);
    value[..8].copy_from_slice(&change.to_le_bytes());
    value
}

/// What was done to a key: its changes are numbered, and odd numbers behind a multiple of 16 delete
/// it.
#[derive(Debug, Default)]
struct Changes {
    begun: AtomicU64,
    done: AtomicU64,
}

const fn deletes(change: u64) -> bool {
    change % 16 == 15
}

/// A key as a reader found it is as it was at some moment between two.
fn check(number: usize, found: Option<&[u8]>, done_before: u64, begun_after: u64) {
    let change = found.map(|found| {
        let change = u64::from_le_bytes(found[..8].try_into().unwrap());
        assert!(found == value(number, change), "key {number} has what was never put");
        change
    });
    let is_right = match change {
        Some(change) => (done_before..=begun_after).contains(&change) && !deletes(change),
        None => (done_before..=begun_after).any(|change| change == 0 || deletes(change)),
    };
    assert!(
        is_right,
        "key {number} has change {change:?}, not one of {done_before} to {begun_after}"
    );
}

struct Arena<'a> {
    store: &'a Store,
    keys: Vec<Changes>,
    is_over: AtomicBool,
}

impl Arena<'_> {
    fn change(&self, number: usize) {
        let changes = &self.keys[number];
        let change = changes.begun.fetch_add(1, Ordering::SeqCst) + 1;
        if deletes(change) {
            self.store
                .delete_with(key(number), crate::Condition::None, Durability::Buffered)
                .unwrap();
        } else {
            self.store
                .put_with(key(number), value(number, change), &buffered())
                .unwrap();
        }
        changes.done.store(change, Ordering::SeqCst);
    }

    /// One thread changes the keys of its own remainder.
    fn write(&self, remainder: usize) {
        let mut rng = StdRng::seed_from_u64(remainder as u64);
        let mut fillers = 0;
        while !self.is_over.load(Ordering::SeqCst) {
            for _ in 0..50 {
                self.change(rng.random_range(0..KEYS / 2) * 2 + remainder);
            }
            fillers += 1;
            let filler = format!("z/{remainder}/{}", fillers % 200);
            self.store.put(filler, bytes(fillers, 6_000)).unwrap();
        }
    }

    fn done(&self) -> Vec<u64> {
        self.keys
            .iter()
            .map(|changes| changes.done.load(Ordering::SeqCst))
            .collect()
    }

    /// Scans a range, and checks each key of it.
    fn scan(&self, rng: &mut StdRng) {
        let first = rng.random_range(0..KEYS);
        let end = (first + rng.random_range(1..2_000)).min(KEYS);
        let done = self.done();
        let mut scan = self.store.scan(ScanRange::range(key(first)..key(end))).unwrap();
        let mut found: Vec<Option<Vec<u8>>> = vec![None; end - first];
        let mut note = |key: &[u8], value: Vec<u8>| {
            let number: usize = std::str::from_utf8(&key[2..]).unwrap().parse().unwrap();
            let before = found[number - first].replace(value);
            assert!(before.is_none(), "key {number} comes twice");
        };
        let from_both = rng.random_bool(0.5);
        loop {
            if !from_both {
                let pairs = scan.next_values(rng.random_range(1..300)).unwrap();
                if pairs.is_empty() {
                    break;
                }
                for (item, value) in pairs {
                    note(&item.key, value.unwrap().to_vec());
                }
                continue;
            }
            let item = if rng.random_bool(0.5) {
                scan.next()
            } else {
                scan.next_back()
            };
            let Some(item) = item else { break };
            let item = item.unwrap();
            note(&item.key, item.value().unwrap().to_vec());
        }
        for (at, found) in found.iter().enumerate() {
            let number = first + at;
            let begun = self.keys[number].begun.load(Ordering::SeqCst);
            check(number, found.as_deref(), done[number], begun);
        }
    }

    fn is_enough(&self) -> bool {
        let stats = self.store.stats();
        stats.scan_order.sweeps >= SWEEPS && stats.log.segments_reclaimed > 20
    }
}

fn entries(store: &Store) -> Vec<Entry> {
    let all = (Bound::Unbounded, Bound::Unbounded);
    let index = &store.engine().index;
    let scan = index.scan(all, index.applied_seq()).unwrap();
    scan.map(|item| item.unwrap().1).collect()
}

#[test]
fn sweeps_of_many_spills_beside_everything_else_lose_and_mix_up_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path())).unwrap();
    let arena = Arena {
        store: &store,
        keys: (0..KEYS).map(|_| Changes::default()).collect(),
        is_over: AtomicBool::new(false),
    };
    (0..KEYS).for_each(|number| arena.change(number * 4_001 % KEYS));
    store.flush().unwrap();
    std::thread::scope(|scope| {
        let writers = [0, 1].map(|remainder| {
            scope.spawn({
                let arena = &arena;
                move || arena.write(remainder)
            })
        });
        let scanners = [7, 8].map(|seed| {
            scope.spawn({
                let arena = &arena;
                move || {
                    let mut rng = StdRng::seed_from_u64(seed);
                    while !arena.is_over.load(Ordering::SeqCst) {
                        arena.scan(&mut rng);
                        if rng.random_bool(0.1) {
                            arena.store.flush().unwrap();
                        }
                    }
                }
            })
        });
        let began = Instant::now();
        let ended = || writers.iter().chain(&scanners).any(|thread| thread.is_finished());
        while began.elapsed() < TIME_MAX && !arena.is_enough() && !ended() {
            std::thread::sleep(Duration::from_millis(20));
        }
        arena.is_over.store(true, Ordering::SeqCst);
    });
    assert!(arena.is_enough(), "{:#?}", store.stats());
    // Nothing is written any more: sweeps go through, and every short value in the log has its
    // copy.
    eventually("every value is copied", || {
        arena.scan(&mut StdRng::seed_from_u64(1));
        store.flush().unwrap();
        let entries = entries(&store);
        let short = entries.iter().filter(|entry| entry.length <= 256);
        let in_log = short.filter(|entry| matches!(entry.home, Home::Flash { .. }));
        let (copied, all) = in_log.fold((0, 0), |(copied, all), entry| {
            (copied + usize::from(entry.sound_copy().is_some()), all + 1)
        });
        copied * 10 >= all * 9
    });
    for number in 0..KEYS {
        let done = arena.keys[number].done.load(Ordering::SeqCst);
        let found = store.get(key(number)).unwrap();
        check(number, found.as_ref().map(|found| &found.value[..]), done, done);
    }
    assert_eq!(store.verify().unwrap().errors, [""; 0]);
    drop(arena);
    store.close().unwrap();
}

/// A sweep waited until what it had written was earned, and held up all merges of the index for as
/// long. With a low rate that was minutes: the applier waited for merges, log GC for the applier,
/// and after ten seconds puts were refused since the log had no segment.
#[test]
fn a_sweep_that_waits_to_write_more_holds_up_no_writer() {
    let dir = tempfile::tempdir().unwrap();
    let slow = options(dir.path()).tuned(|tuning| {
        tuning.order_bytes_per_second = 4 << 10;
        tuning.memtable_bytes = 64 << 10;
    });
    let store = Store::open(slow).unwrap();
    let put = |number, change| {
        let _version = store.put_with(key(number), value(number, change), &buffered()).unwrap();
    };
    (0..KEYS).for_each(|number| put(number * 4_001 % KEYS, 1));
    store.flush().unwrap();
    eventually("a sweep has read", || {
        store.scan(ScanRange::all()).unwrap().next_values(200).unwrap();
        store.stats().scan_order.sweep_bytes > 256 << 10
    });
    let began = Instant::now();
    for round in 2..10 {
        (0..KEYS).for_each(|number| put(number, round));
    }
    store.flush().unwrap();
    let took = began.elapsed();
    store.close().unwrap();
    assert!(took < Duration::from_secs(60), "{took:?}");
    assert!(began.elapsed() < took + Duration::from_secs(20), "closing took long");
}

/// A store on a simulated disk with all keys in its log.
fn on_sim_disk(dir: &Path, disk: &SimDisk) -> Store {
    let on_disk = Options {
        flash_disk: Some(Arc::new(disk.clone())),
        cache_bytes: 0,
        ..options(dir)
    };
    let store = Store::open(on_disk).unwrap();
    // Together in frames: of pages with one value each the log would give room back meanwhile.
    (0..KEYS).for_each(|number| {
        let (key, value) = (key(number * 4_001 % KEYS), value(number, 1));
        store.put_with(key, value, &buffered()).unwrap();
    });
    store.flush().unwrap();
    store
}

/// Of a log that is mostly long values, a sweep reads the parts in which short values begin.
#[test]
fn a_sweep_does_not_read_long_values() {
    const LONG: usize = 300;
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path())).unwrap();
    for number in 0..KEYS / 4 {
        store.put_with(key(number), value(number, 1), &buffered()).unwrap();
    }
    for number in 0..LONG {
        let long = bytes(number as u64, 16 << 10);
        store.put_with(format!("l/{number}"), long, &buffered()).unwrap();
    }
    store.flush().unwrap();
    let next = AtomicU64::new(0);
    eventually("a sweep", || {
        let from = next.fetch_add(10, Ordering::Relaxed) as usize % (KEYS / 4);
        let mut scan = store.scan(ScanRange::range(key(from)..)).unwrap();
        scan.next_values(10).unwrap();
        store.stats().scan_order.sweeps > 0
    });
    let order = store.stats().scan_order;
    assert!(order.copied > KEYS as u64 / 8, "{order:?}");
    assert!((1..2 << 20).contains(&order.sweep_bytes), "{order:?}");
    assert_eq!(store.verify().unwrap().errors, [""; 0]);
}

/// The values in the segment that was being written had to wait for a second sweep, and another
/// merge of the whole index: of two million values the last fifth, for four more seconds. And what
/// was swept was forgotten by the next open, so that it could be swept again.
#[test]
fn a_sweep_copies_what_the_segment_has_that_is_being_written() {
    const IN_OPEN: usize = 100;
    let (dir, disk) = (tempfile::tempdir().unwrap(), SimDisk::new(2));
    let store = on_sim_disk(dir.path(), &disk);
    let segments = &store.engine().log.segments;
    let is_open = |address| {
        let number = (address / segments.segment_bytes()) as u32;
        segments.get(number).unwrap().state() == SegmentState::Open
    };
    let within = |is_there: &dyn Fn(u64) -> bool| {
        let mut entries = entries(&store);
        entries.retain(|entry| matches!(entry.home, Home::Flash { address } if is_there(address)));
        entries
    };
    // Where the last segment begins depends on how records came together in frames.
    let mut number = KEYS;
    while within(&is_open).len() < IN_OPEN {
        for _ in 0..IN_OPEN {
            store.put_with(key(number), value(number, 1), &buffered()).unwrap();
            number += 1;
        }
        store.flush().unwrap();
    }
    // The next frame may find no more room in it.
    let open = segments.in_state(SegmentState::Open).map(|segment| segment.number);
    let open: Vec<u32> = open.collect();
    eventually("a sweep", || {
        store.scan(ScanRange::all()).unwrap().next_values(10).unwrap();
        store.stats().scan_order.sweeps > 0
    });
    let was_open = |address| open.contains(&((address / segments.segment_bytes()) as u32));
    let (copied, not): (Vec<_>, Vec<_>) = within(&was_open)
        .into_iter()
        .partition(|entry| entry.sound_copy().is_some());
    assert!(
        copied.len() >= IN_OPEN && not.is_empty(),
        "{}, {}",
        copied.len(),
        not.len()
    );
    // More is written into it, and swept once it is full.
    assert!(segments.in_state(SegmentState::Open).all(|segment| !segment.is_swept()));
    let swept = segments.swept_uses();
    assert!(!swept.is_empty());
    // A mark is made when there is something to persist.
    store.put("k/later", "value").unwrap();
    store.close().unwrap();
    drop(store);
    let again = Options {
        flash_disk: Some(Arc::new(disk)),
        ..options(dir.path())
    };
    let store = Store::open(again).unwrap();
    assert_eq!(store.engine().log.segments.swept_uses(), swept);
}

/// Whatever fails of its file, a sweep costs nothing but its own work.
#[test]
fn a_sweep_whose_file_fails_is_made_again_later() {
    let (dir, disk) = (tempfile::tempdir().unwrap(), SimDisk::new(1));
    let store = on_sim_disk(dir.path(), &disk);
    let segments = &store.engine().log.segments;
    let is_swept = || {
        segments
            .in_state(SegmentState::Sealed)
            .any(|segment| segment.is_swept())
    };
    // Other values each time: those that were scanned get copies without a sweep.
    let next = AtomicU64::new(0);
    let scan = || {
        let from = next.fetch_add(10, Ordering::Relaxed) as usize % KEYS;
        let mut scan = store.scan(ScanRange::range(key(from)..)).unwrap();
        scan.next_values(10).unwrap();
    };
    // When it is made, when it is written for the first time and later, and when it is read.
    let writing = [0, 1, 2].map(|after| Fault::new(FaultKind::Write).after(after));
    for fault in writing.into_iter().chain([Fault::new(FaultKind::Read)]) {
        let fault = fault.on("TERRACE.sweep");
        let before = store.stats().scan_order.sweeps;
        disk.set_fault(Some(fault.clone()));
        eventually("a sweep failed", || {
            scan();
            store.stats().scan_order.sweeps > before
        });
        disk.set_fault(None);
        assert!(!is_swept(), "{fault:?}");
    }
    eventually("a sweep", || {
        scan();
        is_swept()
    });
    assert_eq!(store.verify().unwrap().errors, [""; 0]);
}

/// Copies make the index longer, and a sweep writes all of it anew beside what there is. On a
/// nearly full device both met the end of it and took the reserve, and so puts were refused because
/// of scans (seen on a file system of 6 MiB with 700 KiB left).
#[test]
fn where_the_device_has_no_room_scans_write_nothing() {
    const CAPACITY: u64 = 1 << 30;
    let (dir, disk) = (tempfile::tempdir().unwrap(), SimDisk::new(1));
    let store = on_sim_disk(dir.path(), &disk);
    let engine = store.engine();
    disk.set_capacity(Some(CAPACITY));
    let used = CAPACITY - disk.available_bytes().unwrap();
    let scan = || drop(store.scan(ScanRange::all()).unwrap().next_values(200).unwrap());
    let order = || store.stats().scan_order;
    // Not even for merges of the index as it is.
    disk.set_capacity(Some(used + engine.index.disk_bytes()));
    eventually("there was no room for what was bought", || {
        scan();
        order().dropped_no_room > 1_000
    });
    assert_eq!((order().sweeps, order().sweep_bytes, order().copied), (0, 0, 0));
    assert!(engine.scan_order.sweep.has_grown(), "it can be had later");
    disk.set_capacity(None);
    eventually("a sweep", || {
        scan();
        order().sweeps > 0 && order().copied > 0
    });
}
