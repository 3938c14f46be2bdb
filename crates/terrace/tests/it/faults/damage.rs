//! Flipped bits, truncated files and missing files, everywhere.

use super::bench::{BUFFERED, Bench, Values, bytes, eventually, files};
use crate::common::seed;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{fs, path::Path};
use terrace::{Durability, Error, Store, io::Disk};

/// The key of the log's last commit. Damage to it looks like a write that a crash interrupted.
const LAST: &str = "last";

/// A store with objects in every home, overwritten ones, and recycled segments. `persisted`:
/// closed, so that the index has everything; otherwise the last commits are in the log only, most
/// of them in its last segment.
fn fixture(persisted: bool) -> (Bench, Values) {
    for _ in 0..50 {
        let bench = Bench::new(11);
        let store = bench.open().unwrap();
        let mut values = Values::new();
        fill(&store, &mut values);
        let before = store.stats().queue.committed_seq;
        put_last(&store, &mut values);
        if persisted {
            store.close().unwrap();
            return (bench, values);
        }
        let copy = bench.fork();
        // Recycling may make the index persist these commits, and the log may just have moved to
        // its next segment. Then too little is left for damage to lose.
        let in_log_only = store.stats().index.persisted_seq <= before;
        let end = copy.flash.read_file(&last_segment(&copy)).unwrap();
        let value = values["flash 10"].last().unwrap();
        if in_log_only && end.windows(value.len()).any(|window| window == value) {
            return (copy, values);
        }
    }
    panic!("the index always has persisted everything");
}

fn put(store: &Store, values: &mut Values, key: &str, value: Vec<u8>, durability: Durability) {
    let options = terrace::PutOptions { durability, ..BUFFERED };
    store.put_with(key, &value, &options).unwrap();
    values.entry(key.to_owned()).or_default().push(value);
}

/// Puts objects in every home, until segments have been recycled.
fn fill(store: &Store, values: &mut Values) {
    let mut put = |key: String, value| put(store, values, &key, value, Durability::Buffered);
    for round in 0..4 {
        for n in 0..40_u64 {
            put(format!("flash {n:02}"), bytes(n + round * 100, 3_000 + n as usize));
            put(format!("inline {n:02}"), bytes(n + round * 101, 50));
        }
        for n in 0..12_u64 {
            put(format!("large {n:02}"), bytes(n + round * 103, 20_000));
        }
    }
    // Cold small values are destaged to blocks.
    for n in 0..900_u64 {
        put(format!("filler {:03}", n % 300), bytes(n, 2_500));
    }
    store.flush().unwrap();
    // Recycling runs beside the last puts, and is slow on a busy machine.
    eventually("cold values have moved to blocks", store, |stats| {
        stats.large.live_bytes > 300_000 && stats.log.segments_reclaimed > 0
    });
}

/// Puts the last commits.
fn put_last(store: &Store, values: &mut Values) {
    let mut put = |key: &str, value, durability| put(store, values, key, value, durability);
    for n in 0..20_u64 {
        let (inline, flash) = (bytes(n + 1_001, 60), bytes(n + 1_000, 2_000));
        put(&format!("inline {n:02}"), inline, Durability::Buffered);
        put(&format!("flash {n:02}"), flash, Durability::Sync);
    }
    put("large 03", bytes(7, 30_000), Durability::Buffered);
    // Damage can be told from an interrupted write only in what a later frame records as durable.
    // So the last frame holds only LAST and records everything before it as durable.
    put("large 04", bytes(9, 30_000), Durability::Sync);
    put(LAST, bytes(8, 100), Durability::Sync);
}

/// Outcomes of opening damaged stores.
#[derive(Debug, Default)]
struct Tally {
    refused: u32,
    unharmed: u32,
    errors: u32,
    reported_loss: u32,
}

/// The segment with the end of the log.
fn last_segment(bench: &Bench) -> String {
    let generation = |file: &String| {
        let content = bench.flash.read_file(file).unwrap();
        let word = |at: usize| u64::from_le_bytes(content[at..at + 8].try_into().unwrap());
        // From its header, and from its first frame if that is of the same use.
        (word(32), word(4096 + 8))
    };
    let segments = bench.flash.files().into_iter().filter(|file| file.ends_with(".seg"));
    let used = segments.filter(|file| generation(file).0 == generation(file).1);
    used.max_by_key(generation).unwrap()
}

/// Opens a damaged store and reads all of it. `what`: the damage; `end_is_gone`: the log's last
/// segment is missing, so its commits look as if they had never been made.
fn judge(bench: &Bench, values: &Values, what: &str, end_is_gone: bool, tally: &mut Tally) {
    let store = match bench.open() {
        Ok(store) => store,
        Err(Error::Corruption { .. } | Error::NotAStore { .. }) => {
            tally.refused += 1;
            return;
        }
        Err(error) => panic!("{what}: opening failed with {error}"),
    };
    let damage = store.stats().damage;
    let (mut errors, mut lost) = (Vec::new(), Vec::new());
    for (key, versions) in values {
        match store.get(key) {
            Ok(Some(object)) if object.value == versions.last().unwrap() => {}
            Ok(Some(object)) => {
                assert!(
                    versions.iter().any(|value| object.value == value),
                    "{what}: {key} has bytes that were never written"
                );
                lost.push(key);
            }
            Ok(None) => lost.push(key),
            Err(Error::Corruption { .. } | Error::Io { .. }) => errors.push(key),
            Err(error) => panic!("{what}: {key}: {error}"),
        }
    }
    let silent = !end_is_gone && damage.is_empty() && !(lost.is_empty() || lost == [LAST]);
    assert!(!silent, "{what}: silently lost {lost:?}");
    let reported = match store.verify() {
        Ok(report) => !report.errors.is_empty(),
        Err(_) => true,
    };
    assert!(
        reported || (errors.is_empty() && damage.is_empty()),
        "{what}: verify found nothing, reading {errors:?}"
    );
    // Whatever the damage, the store can continue.
    if store.put("new", "value").is_ok() {
        assert_eq!(&store.get("new").unwrap().unwrap()[..], b"value", "{what}");
    }
    let outcome = match (errors.is_empty(), lost.is_empty()) {
        (true, true) => &mut tally.unharmed,
        (false, true) => &mut tally.errors,
        (_, false) => &mut tally.reported_loss,
    };
    *outcome += 1;
}

/// Bits of a file to flip: in its header, and elsewhere.
fn bits(rng: &mut StdRng, length: u64, count: usize) -> Vec<u64> {
    let mut bits: Vec<u64> = (0..count.div_ceil(3))
        .map(|_| rng.random_range(0..length.min(80) * 8))
        .collect();
    while bits.len() < count {
        // Half of them near a page's beginning, where headers are.
        let page = rng.random_range(0..length) / 4096 * 4096;
        let at = if rng.random_bool(0.5) {
            page + rng.random_range(0..128)
        } else {
            rng.random_range(0..length)
        };
        if at < length {
            bits.push(at * 8 + rng.random_range(0..8));
        }
    }
    bits
}

fn flip_bits_on_the_tiers(persisted: bool, per_file: usize) -> Tally {
    let (bench, values) = fixture(persisted);
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut tally = Tally::default();
    for is_flash in [true, false] {
        let disk = if is_flash { &bench.flash } else { &bench.large };
        for file in disk.files() {
            let length = disk.read_file(&file).unwrap().len() as u64;
            for bit in bits(&mut rng, length.max(1), per_file) {
                let copy = bench.fork();
                let disk = if is_flash { &copy.flash } else { &copy.large };
                if disk.flip_bit(&file, bit).is_ok() {
                    let what = format!("{file}: bit {} of byte {} (seed {seed})", bit % 8, bit / 8);
                    judge(&copy, &values, &what, false, &mut tally);
                }
            }
        }
    }
    tally
}

#[test]
fn flipped_bits_in_a_closed_store() {
    let tally = flip_bits_on_the_tiers(true, 4);
    println!("{tally:?}");
    // There are two copies of the manifest, and other damage loses only what it hits: no file of
    // the tiers prevents the open.
    assert!(
        tally.errors > 0 && tally.unharmed > 0 && tally.refused == 0,
        "{tally:?}"
    );
}

#[test]
fn flipped_bits_in_a_store_that_crashed() {
    let tally = flip_bits_on_the_tiers(false, 4);
    println!("{tally:?}");
    assert!(tally.errors > 0 && tally.unharmed > 0, "{tally:?}");
}

/// Losses of commits that the index has not persisted are reported.
#[test]
fn flipped_bits_in_the_end_of_the_log() {
    let (bench, values) = fixture(false);
    let file = last_segment(&bench);
    let content = bench.flash.read_file(&file).unwrap();
    let end = content.iter().rposition(|&byte| byte != 0).unwrap() as u64;
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut tally = Tally::default();
    for bit in bits(&mut rng, end, 90) {
        let copy = bench.fork();
        copy.flash.flip_bit(&file, bit).unwrap();
        let what = format!("{file}: bit {} of byte {} (seed {seed})", bit % 8, bit / 8);
        judge(&copy, &values, &what, false, &mut tally);
    }
    println!("{tally:?}");
    assert!(tally.reported_loss > 0 && tally.unharmed > 0, "{tally:?}");
}

#[test]
fn flipped_bits_in_the_index() {
    let (bench, values) = fixture(true);
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut tally = Tally::default();
    for file in files(&bench.index_dir()) {
        let name = file.strip_prefix(bench.index_dir()).unwrap();
        let content = fs::read(&file).unwrap();
        // The last byte of a table locates everything in it. (In a single table, twelve bits at
        // random places sometimes did no harm that prevents the open.)
        let end = content.len().max(1) as u64 * 8 - 1;
        for bit in bits(&mut rng, content.len().max(1) as u64, 12).into_iter().chain([end]) {
            let copy = bench.fork();
            let mut damaged = content.clone();
            let Some(byte) = damaged.get_mut(bit as usize / 8) else {
                continue;
            };
            *byte ^= 1 << (bit % 8);
            fs::write(copy.index_dir().join(name), &damaged).unwrap();
            let what = format!("{}: bit {} of byte {} (seed {seed})", name.display(), bit % 8, bit / 8);
            judge(&copy, &values, &what, false, &mut tally);
        }
    }
    println!("{tally:?}");
    // Damaged tables are set aside.
    assert!(tally.refused == 0 && tally.errors > 0, "{tally:?}");
}

#[test]
fn cut_and_missing_files() {
    let mut tally = Tally::default();
    for persisted in [true, false] {
        let (bench, values) = fixture(persisted);
        let last = last_segment(&bench);
        for is_flash in [true, false] {
            let disk = if is_flash { &bench.flash } else { &bench.large };
            for file in disk.files() {
                let length = disk.read_file(&file).unwrap().len() as u64;
                for cut in [None, Some(0), Some(length / 2), Some(length.saturating_sub(1))] {
                    let copy = bench.fork();
                    let disk = if is_flash { &copy.flash } else { &copy.large };
                    match cut {
                        Some(bytes) => disk.truncate(&file, bytes).unwrap(),
                        None => disk.remove(Path::new(&file)).unwrap(),
                    }
                    let what = format!("persisted {persisted}, {file} of {length} bytes: {cut:?} left");
                    judge(&copy, &values, &what, !persisted && file == last, &mut tally);
                }
            }
        }
        for file in files(&bench.index_dir()) {
            let name = file.strip_prefix(bench.index_dir()).unwrap();
            let content = fs::read(&file).unwrap();
            for cut in [
                None,
                Some(0),
                Some(content.len() / 2),
                Some(content.len().saturating_sub(1)),
            ] {
                let copy = bench.fork();
                let target = copy.index_dir().join(name);
                match cut {
                    Some(bytes) => fs::write(&target, &content[..bytes]).unwrap(),
                    None => fs::remove_file(&target).unwrap(),
                }
                judge(
                    &copy,
                    &values,
                    &format!("{}: {cut:?} left", name.display()),
                    false,
                    &mut tally,
                );
            }
        }
        // After a crash the copy of the index's state may be of the state before.
        assert!(tally.refused == 0 || !persisted, "{tally:?}");
    }
    println!("{tally:?}");
    assert!(tally.errors > 0, "{tally:?}");
}
