//! Checkpoints of the hash index: used if they are valid, and harmless otherwise.

use super::bench::{BUFFERED, Bench, Values, assert_all, bytes};
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};
use terrace::{
    FilledFrom, Options, Result, Stats, Store,
    io::{Fault, FaultKind, SimDisk, Survival},
};

const FILE: &str = "CHECKPOINT";
const NEW_FILE: &str = "CHECKPOINT.new";

/// Waits until the hash index is filled; returns the statistics.
fn filled(store: &Store) -> Stats {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let stats = store.stats();
        if !stats.hash_index.refilling {
            return stats;
        }
        assert!(Instant::now() < deadline, "the hash index is never filled");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn filled_from(store: &Store) -> FilledFrom {
    filled(store).hash_index.checkpoint.filled_from.unwrap()
}

/// A store's history: present and deleted keys.
#[derive(Default, Clone)]
struct Told {
    values: Values,
    gone: BTreeSet<String>,
}

impl Told {
    fn put(&mut self, store: &Store, n: u64, seed: u64) {
        let (key, value) = (format!("{n:04}"), bytes(seed, [500, 30, 2_500, 9_000][n as usize % 4]));
        store.put_with(&key, &value, &BUFFERED).unwrap();
        self.gone.remove(&key);
        self.values.entry(key).or_default().push(value);
    }

    fn delete(&mut self, store: &Store, n: u64) {
        let key = format!("{n:04}");
        store.delete(&key).unwrap();
        self.values.remove(&key);
        self.gone.insert(key);
    }

    /// Puts, overwrites and deletes.
    fn go_on(&mut self, store: &Store, seed: u64) {
        for n in 0..120 {
            match (n + seed) % 7 {
                0 => self.delete(store, n),
                1..4 => self.put(store, n, n + seed * 1_000),
                _ => {}
            }
        }
    }

    /// Checks that the hash index and the ordered index return the expected values, and that the
    /// counts are right.
    fn check(&self, store: &Store) {
        for _ in 0..2 {
            assert_all(store, &self.values);
            for key in &self.gone {
                assert_eq!(store.get(key).unwrap(), None, "{key} is back");
            }
            filled(store);
        }
        assert_eq!(store.verify().unwrap().errors, [""; 0]);
        let stats = store.stats();
        let objects = [stats.inline, stats.flash, stats.block].map(|home| home.objects);
        assert_eq!(objects.iter().sum::<u64>(), self.values.len() as u64, "{objects:?}");
    }
}

/// Opens a store that takes a checkpoint after each `checkpoint_log_bytes` of log.
fn open_with(bench: &Bench, checkpoint_log_bytes: u64) -> Store {
    let options = bench
        .options()
        .tuned(|tuning| tuning.checkpoint_log_bytes = checkpoint_log_bytes);
    Store::open(options).unwrap()
}

/// A bench whose store has a history, a checkpoint, and later commits that the index has persisted.
fn prepared(seed: u64) -> (Bench, Store, Told) {
    let bench = Bench::new(seed);
    let store = open_with(&bench, 0);
    let mut told = Told::default();
    (0..120).for_each(|n| told.put(&store, n, n));
    assert_eq!(filled_from(&store), FilledFrom::Index);
    store.flush().unwrap();
    assert!(store.checkpoint().unwrap());
    told.go_on(&store, 1);
    store.flush().unwrap();
    told.go_on(&store, 2);
    (bench, store, told)
}

/// Ends like a killed process: what was written is on the devices.
fn die(bench: &Bench, store: Store) {
    store.put("the last", "one").unwrap();
    store.delete("the last").unwrap();
    bench.flash.power_cut();
    bench.large.power_cut();
    drop(store);
    for disk in [&bench.flash, &bench.large] {
        disk.set_survival(Survival::Everything);
        disk.restore_power();
    }
}

#[test]
fn one_is_used_after_a_crash() {
    let (bench, store, mut told) = prepared(1);
    die(&bench, store);
    for life in 0..4_u64 {
        let store = bench.open().unwrap();
        if life == 1 {
            // Also written while it is loaded.
            told.go_on(&store, 3);
        }
        assert_eq!(filled_from(&store), FilledFrom::Checkpoint);
        told.check(&store);
        told.go_on(&store, 4 + life);
        told.check(&store);
        if life % 2 == 1 {
            store.flush().unwrap();
            assert!(store.checkpoint().unwrap());
        }
        die(&bench, store);
    }
}

#[test]
fn one_is_written_at_a_close_and_used() {
    let bench = Bench::new(2);
    let mut told = Told::default();
    for life in 0..3_u64 {
        let store = bench.open().unwrap();
        let expected = if life == 0 {
            FilledFrom::Index
        } else {
            FilledFrom::Checkpoint
        };
        assert_eq!(filled_from(&store), expected);
        told.check(&store);
        let before = bench.flash.read_file(FILE).ok();
        // More log than the length of a checkpoint.
        (0..1_200).for_each(|n| told.put(&store, n % 120, n + life));
        told.go_on(&store, life);
        store.close().unwrap();
        // At the close, or shortly before so that the close needs none.
        assert!(bench.flash.read_file(FILE).ok() != before, "it was written anew");
    }
    // The newest one may be from before the close, with nearly the allowed amount of log after it.
    // Now one with nothing after it:
    let store = bench.open().unwrap();
    filled(&store);
    store.checkpoint().unwrap();
    store.close().unwrap();
    // After few commits, reading the log is cheaper than writing a checkpoint.
    let before = bench.flash.read_file(FILE).unwrap();
    let store = bench.open().unwrap();
    filled(&store);
    told.put(&store, 1, 99);
    store.close().unwrap();
    assert!(bench.flash.read_file(FILE).unwrap() == before, "it was left as it is");
    let store = bench.open().unwrap();
    assert_eq!(filled_from(&store), FilledFrom::Checkpoint);
    told.check(&store);
}

#[test]
fn they_are_written_by_themselves_and_off_with_0() {
    let bench = Bench::new(3);
    let mut told = Told::default();
    let store = open_with(&bench, 0);
    (0..120).for_each(|n| told.put(&store, n, n));
    store.close().unwrap();
    assert!(!bench.flash.files().contains(&FILE.to_owned()));
    let store = open_with(&bench, 100 << 10);
    filled(&store);
    let deadline = Instant::now() + Duration::from_secs(60);
    for round in 0.. {
        told.go_on(&store, round);
        let checkpoint = store.stats().hash_index.checkpoint;
        if checkpoint.taken >= 3 {
            break;
        }
        assert!(Instant::now() < deadline, "{checkpoint:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    told.check(&store);
    assert!(store.stats().written.checkpoint_bytes > 3 * 64 * 1024);
    die(&bench, store);
    let looking = Options {
        read_only: true,
        ..bench.options()
    };
    let files = bench.flash.files();
    let store = Store::open(looking).unwrap();
    assert_eq!(filled_from(&store), FilledFrom::Checkpoint);
    told.check(&store);
    assert!(store.checkpoint().is_err());
    store.close().unwrap();
    assert_eq!(bench.flash.files(), files);
}

/// Opens a copy of a bench after `harm`, and expects a walk of the index; then takes a checkpoint
/// and expects it to be used.
fn expect_a_walk(what: &str, bench: &Bench, told: &Told, harm: impl FnOnce(&Bench)) {
    let bench = bench.fork();
    harm(&bench);
    let store = bench.open().unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(filled_from(&store), FilledFrom::Index, "{what}");
    let mut told = told.clone();
    assert!(store.checkpoint().unwrap(), "{what}");
    told.check(&store);
    told.go_on(&store, 9);
    die(&bench, store);
    let store = bench.open().unwrap();
    assert_eq!(filled_from(&store), FilledFrom::Checkpoint, "{what}");
    told.check(&store);
}

/// Changes the checkpoint's header page and corrects its checksum.
fn change_header(disk: &SimDisk, change: impl FnOnce(&mut [u8])) {
    let mut bytes = disk.read_file(FILE).unwrap();
    change(&mut bytes);
    let checksum = crc32c::crc32c(&bytes[12..4096]);
    bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
    disk.put_file(FILE, &bytes).unwrap();
}

#[test]
fn one_that_cannot_be_believed_costs_time_only() {
    let (bench, store, told) = prepared(4);
    die(&bench, store);
    let (other, other_store, _) = prepared(5);
    drop(other_store);
    let length = bench.flash.read_file(FILE).unwrap().len() as u64;
    let walk = |what: &str, harm: &dyn Fn(&Bench)| expect_a_walk(what, &bench, &told, harm);
    walk("cut short", &|bench| bench.flash.truncate(FILE, length - 4096).unwrap());
    walk("cut to a page", &|bench| bench.flash.truncate(FILE, 4096).unwrap());
    walk("empty", &|bench| bench.flash.truncate(FILE, 0).unwrap());
    walk("longer", &|bench| bench.flash.truncate(FILE, length + 4096).unwrap());
    for bit in [0, 8 * 40, 8 * 4096, 8 * 5000, length * 4, 8 * (length - 1)] {
        walk("a flipped bit", &|bench| bench.flash.flip_bit(FILE, bit).unwrap());
    }
    walk("another store's", &|bench| {
        let bytes = other.flash.read_file(FILE).unwrap();
        bench.flash.put_file(FILE, &bytes).unwrap();
    });
    for version in [1, 3] {
        walk("the format before, or a newer one", &|bench| {
            change_header(&bench.flash, |page| page[12] = version)
        });
    }
    walk("another shape", &|bench| {
        change_header(&bench.flash, |page| page[32] = 32)
    });
    walk("other segments", &|bench| {
        change_header(&bench.flash, |page| page[26] ^= 8)
    });
}

#[test]
fn one_whose_log_was_recycled_costs_time_only() {
    let (bench, store, mut told) = prepared(6);
    let begun = store.stats().log.segments_reclaimed;
    for round in 0.. {
        told.go_on(&store, round);
        if store.stats().log.segments_reclaimed >= begun + 12 {
            break;
        }
        assert!(round < 500, "nothing is recycled");
    }
    die(&bench, store);
    expect_a_walk("recycled", &bench, &told, |_| ());
}

#[test]
fn one_behind_which_the_log_is_damaged_costs_time_only() {
    let (bench, store, told) = prepared(7);
    store.flush().unwrap();
    let begun = u64::from_le_bytes(bench.flash.read_file(FILE).unwrap()[40..48].try_into().unwrap());
    die(&bench, store);
    let bench = bench.fork();
    let segments = bench.flash.files().into_iter().filter(|file| file.ends_with(".seg"));
    let harmed = segments.into_iter().find_map(|segment| {
        let bytes = bench.flash.read_file(&segment).unwrap();
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        // The third and fourth word of a frame are its first and last seq.
        let is_frame = |at: &usize| bytes[*at..at + 4] == *b"FRM1";
        let is_it = |at: &usize| is_frame(at) && (number(at + 16)..=number(at + 24)).contains(&(begun + 30));
        (4096..bytes.len())
            .step_by(4096)
            .find(is_it)
            .map(|at| (segment, at as u64))
    });
    let (segment, at) = harmed.expect("a frame behind the checkpoint");
    bench.flash.flip_bit(&segment, (at + 70) * 8).unwrap();
    let store = bench.open().unwrap();
    assert_eq!(filled_from(&store), FilledFrom::Index);
    for key in &told.gone {
        assert_eq!(store.get(key).unwrap(), None, "{key} is back");
    }
    let unread = told.values.iter().filter(|(key, versions)| match store.get(key) {
        Ok(found) => {
            assert!(
                found.unwrap().value == versions.last().unwrap(),
                "{key} has other bytes"
            );
            false
        }
        Err(_) => true,
    });
    assert!(unread.count() < 20, "only what was in that frame");
}

#[test]
fn one_that_is_ahead_of_the_index_is_removed_before_anything_is_committed() {
    let (bench, store, told) = prepared(8);
    die(&bench, store);
    let ahead = |bench: &Bench| {
        change_header(&bench.flash, |page| {
            page[48..56].copy_from_slice(&(1_u64 << 40).to_le_bytes())
        })
    };
    expect_a_walk("ahead of the index", &bench, &told, ahead);
    ahead(&bench);
    let looking = Options {
        read_only: true,
        ..bench.options()
    };
    let store = Store::open(looking).unwrap();
    assert_eq!(filled_from(&store), FilledFrom::Index);
    drop(store);
    assert!(
        bench.flash.files().contains(&FILE.to_owned()),
        "a read-only open removes nothing"
    );
    let store = bench.open().unwrap();
    assert!(!bench.flash.files().contains(&FILE.to_owned()));
    told.check(&store);
    // If the removal were not durable, it could reappear beside other commits.
    store.close().unwrap();
    drop(store);
    ahead(&bench);
    // The open itself is counted first, by two syncs.
    bench.flash.set_fault(Some(Fault::new(FaultKind::Sync).after(2)));
    let refused = bench.open().map(drop).unwrap_err().to_string();
    assert!(refused.contains("ahead of the index"), "{refused}");
}

/// A checkpoint fails; the store continues, and the next one is taken and used.
fn fail_and_go_on(seed: u64, what: &str, can_remove: bool, break_it: impl FnOnce(&SimDisk)) {
    let (bench, store, mut told) = prepared(seed);
    store.flush().unwrap();
    let before = bench.flash.read_file(FILE).unwrap();
    break_it(&bench.flash);
    let failed: Result<bool> = store.checkpoint();
    assert!(failed.is_err(), "{what}: {failed:?}");
    bench.flash.set_fault(None);
    bench.flash.set_capacity(None);
    let stats = store.stats();
    assert_eq!(stats.failed, None, "{what}");
    assert_eq!(
        (stats.hash_index.checkpoint.taken, stats.hash_index.checkpoint.failed),
        (1, 1),
        "{what}"
    );
    assert_eq!(bench.flash.read_file(FILE).unwrap(), before, "{what}");
    assert!(
        !can_remove || !bench.flash.files().contains(&NEW_FILE.to_owned()),
        "{what}"
    );
    told.go_on(&store, 5);
    told.check(&store);
    assert!(store.checkpoint().unwrap(), "{what}");
    told.go_on(&store, 6);
    die(&bench, store);
    let store = bench.open().unwrap();
    assert_eq!(filled_from(&store), FilledFrom::Checkpoint, "{what}");
    told.check(&store);
}

#[test]
fn one_that_cannot_be_written_does_not_stop_the_store() {
    // Creating it, writing its content, its header, renaming it. (Removing an old one, which does
    // not exist here, comes first.)
    for after in 0..5 {
        let fault = Fault::new(FaultKind::Write).on(NEW_FILE).after(after);
        fail_and_go_on(20 + after, "a write fails", false, |disk| disk.set_fault(Some(fault)));
    }
    let fault = Fault::new(FaultKind::Sync).on(NEW_FILE);
    fail_and_go_on(30, "the sync fails", true, |disk| disk.set_fault(Some(fault)));
    fail_and_go_on(31, "the device is full", true, |disk| disk.set_capacity(Some(0)));
}

#[test]
fn a_failed_sync_of_the_directory_leaves_one_that_is_whole() {
    for survival in Survival::ALL {
        let (bench, store, mut told) = prepared(40);
        store.flush().unwrap();
        // The first sync is the file's.
        bench.flash.set_fault(Some(Fault::new(FaultKind::Sync).after(1)));
        assert!(store.checkpoint().is_err());
        bench.flash.set_fault(None);
        told.put(&store, 7, 7_000);
        store.put("synced", "after").unwrap();
        bench.flash.power_cut();
        bench.large.power_cut();
        drop(store);
        for disk in [&bench.flash, &bench.large] {
            disk.set_survival(survival);
            disk.restore_power();
        }
        let store = bench.open().unwrap();
        assert_eq!(filled_from(&store), FilledFrom::Checkpoint);
        store.delete("synced").unwrap();
        told.check(&store);
    }
}

#[test]
fn what_a_crash_left_of_one_is_removed() {
    let (bench, store, told) = prepared(50);
    bench.flash.put_file(NEW_FILE, b"half of one").unwrap();
    die(&bench, store);
    let store = bench.open().unwrap();
    assert_eq!(filled_from(&store), FilledFrom::Checkpoint);
    assert!(!bench.flash.files().contains(&NEW_FILE.to_owned()));
    told.check(&store);
}

#[test]
fn verify_tells_of_a_damaged_one_and_repair_removes_it() {
    let (bench, store, told) = prepared(60);
    store.close().unwrap();
    drop(store);
    bench.flash.flip_bit(FILE, 8 * 5_000).unwrap();
    let store = bench.open().unwrap();
    assert_eq!(filled_from(&store), FilledFrom::Index);
    let errors = store.verify().unwrap().errors;
    assert!(errors.len() == 1 && errors[0].contains("checkpoint"), "{errors:?}");
    assert!(store.checkpoint().unwrap());
    told.check(&store);
    store.close().unwrap();
    drop(store);
    Store::repair(bench.options()).unwrap();
    assert!(!bench.flash.files().contains(&FILE.to_owned()));
    let store = bench.open().unwrap();
    assert_eq!(filled_from(&store), FilledFrom::Index);
    assert_all(&store, &told.values);
}
