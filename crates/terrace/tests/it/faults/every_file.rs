//! Every file of a store, damaged in every way: open and read, verify, repair, read and verify
//! again. There must never be a wrong value, and a repair must not make it worse.
//!
//! Each run damages each file in one way, which `TERRACE_MODEL_SEED` chooses. With
//! `TERRACE_DAMAGE_PLACES` (flipped bits per file) it tries all ways, which takes minutes.

mod go_on;
mod mirror;

use super::bench::{BUFFERED, Bench, bytes, files};
use crate::common::{seed, variable};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};
use terrace::{Condition, Durability, Error, Options, Store, io::Disk};

/// All values that each key ever had, in order; `None` is a delete.
type Histories = BTreeMap<String, Vec<Option<Vec<u8>>>>;

/// A store that is closed or was killed, an earlier copy of it, and its contents.
struct Fixture {
    bench: Bench,
    earlier: Bench,
    held: Histories,
    /// The index has persisted everything, so damage to the log hides nothing.
    is_closed: bool,
    /// The log has every commit ever made.
    is_young: bool,
}

fn options(bench: &Bench, is_young: bool) -> Options {
    Options {
        log_capacity_bytes: Some(if is_young { 8 << 20 } else { 2 << 20 }),
        ..bench.options()
    }
    .tuned(|tuning| tuning.memtable_bytes = 64 << 10)
}

impl Fixture {
    fn new(is_young: bool, is_closed: bool) -> Self {
        let mut tries = (0..50).filter_map(|_| Self::try_new(is_young, is_closed));
        tries.next().expect("the index always has persisted everything")
    }

    /// `None` if the index has persisted what a killed store should have in the log only.
    fn try_new(is_young: bool, is_closed: bool) -> Option<Self> {
        let bench = Bench::new(21);
        let mut held = Histories::new();
        let store = Store::open(options(&bench, is_young)).unwrap();
        fill(&store, &mut held, 0);
        store.close().unwrap();
        drop(store);
        let earlier = bench.fork();
        let store = Store::open(options(&bench, is_young)).unwrap();
        fill(&store, &mut held, 1);
        if !is_young {
            // Cold small values move to blocks, in other segments; deletes then are in the index
            // only.
            for n in 0..900_u64 {
                put(&store, &mut held, &format!("filler {:03}", n % 300), bytes(n, 2_500));
            }
            store.flush().unwrap();
            assert!(store.stats().log.segments_reclaimed > 0, "{:?}", store.stats().log);
        }
        let bench = if is_closed {
            store.checkpoint().unwrap();
            store.close().unwrap();
            bench
        } else {
            // More than a segment of commits that the index has not persisted. Recycling persists
            // them once the store is idle.
            store.flush().unwrap();
            let before = store.stats().queue.committed_seq;
            for n in 0..120_u64 {
                put(
                    &store,
                    &mut held,
                    &format!("flash {:02}", n % 40),
                    bytes(n + 7_000, 4_000),
                );
            }
            store.put("last", "synced").unwrap();
            held.entry("last".to_owned())
                .or_default()
                .push(Some(b"synced".to_vec()));
            let copy = bench.fork();
            if store.stats().index.persisted_seq > before {
                return None;
            }
            copy
        };
        Some(Self {
            bench,
            earlier,
            held,
            is_closed,
            is_young,
        })
    }

    fn open(&self, bench: &Bench) -> terrace::Result<Store> {
        Store::open(options(bench, self.is_young))
    }
}

fn put(store: &Store, held: &mut Histories, key: &str, value: Vec<u8>) {
    store.put_with(key, &value, &BUFFERED).unwrap();
    held.entry(key.to_owned()).or_default().push(Some(value));
}

/// Puts objects in every home, overwritten and deleted ones.
fn fill(store: &Store, held: &mut Histories, round: u64) {
    for n in 0..40_u64 {
        put(
            store,
            held,
            &format!("flash {n:02}"),
            bytes(n + round * 100, 3_000 + n as usize),
        );
        put(store, held, &format!("inline {n:02}"), bytes(n + round * 101, 50));
        // So that the index has several tables.
        put(
            store,
            held,
            &format!("many {n:02} {}", "x".repeat(300)),
            bytes(n + round * 9, 300),
        );
    }
    for n in 0..8_u64 {
        put(
            store,
            held,
            &format!("large {n:02}"),
            bytes(n + round * 103, 20_000 + 9_000 * n as usize),
        );
    }
    store.flush().unwrap();
    for kind in ["flash", "inline", "large"] {
        for n in [3, 5] {
            let key = format!("{kind} {n:02}");
            store.delete_with(&key, Condition::None, Durability::Buffered).unwrap();
            held.get_mut(&key).unwrap().push(None);
        }
    }
    store.flush().unwrap();
}

/// Result of reading a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Answer {
    /// The current value.
    Right,
    /// An error.
    Error,
    /// Nothing, although there is a value.
    Gone,
    /// An earlier or a deleted value.
    Older,
}

fn answers(store: &Store, held: &Histories, what: &str) -> BTreeMap<String, Answer> {
    let answer = |key: &str, history: &[Option<Vec<u8>>]| match store.get(key) {
        Ok(found) => {
            let found = found.map(|object| object.value.to_vec());
            if found.as_ref() == history.last().unwrap().as_ref() {
                Answer::Right
            } else if found.is_none() {
                Answer::Gone
            } else {
                assert!(
                    history.contains(&found),
                    "{what}: {key} has bytes that were never written"
                );
                Answer::Older
            }
        }
        Err(Error::Corruption { .. } | Error::Io { .. }) => Answer::Error,
        Err(error) => panic!("{what}: {key}: {error}"),
    };
    held.iter()
        .map(|(key, history)| (key.clone(), answer(key, history)))
        .collect()
}

#[derive(Debug, Default)]
struct Tally {
    cases: u32,
    refused: BTreeSet<String>,
    unharmed: u32,
    mended: u32,
    damaged: u32,
}

/// A kind of damage.
#[derive(Debug, Clone)]
enum Damage {
    Flip(u64),
    Cut(u64),
    Zero,
    Remove,
    /// Of the index: a directory has its place.
    Directory,
    /// The file's bytes are replaced.
    Become(&'static str, Vec<u8>),
}

/// A store's files by name, including the index's.
fn all_files(bench: &Bench) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for (tier, disk) in [("flash", &bench.flash), ("large", &bench.large)] {
        for file in disk.files() {
            all.insert(format!("{tier}/{file}"), disk.read_file(&file).unwrap());
        }
    }
    for file in files(&bench.index_dir()) {
        let name = file.strip_prefix(bench.index_dir()).unwrap().to_str().unwrap();
        all.insert(format!("index/{name}"), fs::read(&file).unwrap());
    }
    all
}

fn apply(bench: &Bench, file: &str, content: &[u8], damage: &Damage) {
    let mut bytes = content.to_vec();
    match damage {
        Damage::Flip(bit) => bytes[(bit / 8) as usize] ^= 1 << (bit % 8),
        Damage::Cut(at) => bytes.truncate(*at as usize),
        Damage::Zero => bytes.fill(0),
        Damage::Become(_, other) => bytes.clone_from(other),
        Damage::Remove | Damage::Directory => {}
    }
    let is_removed = matches!(damage, Damage::Remove);
    let (tier, name) = file.split_once('/').unwrap();
    if matches!(damage, Damage::Directory) {
        let place = bench.index_dir().join(name);
        fs::remove_file(&place).unwrap();
        return fs::create_dir_all(place.join("stray")).unwrap();
    }
    let disk = match tier {
        "flash" => &bench.flash,
        "large" => &bench.large,
        _ if is_removed => return fs::remove_file(bench.index_dir().join(name)).unwrap(),
        _ => return fs::write(bench.index_dir().join(name), bytes).unwrap(),
    };
    disk.remove(Path::new(name)).unwrap();
    if !is_removed {
        disk.put_file(name, &bytes).unwrap();
    }
}

/// The damages to try on a file.
fn damages(file: &str, content: &[u8], fixture: &Fixture, places: usize, rng: &mut StdRng) -> Vec<Damage> {
    let length = content.len() as u64;
    let mut damages = vec![Damage::Remove, Damage::Zero, Damage::Cut(0)];
    if length > 0 {
        for n in 0..places as u64 {
            // In the header of the file, of a page, or anywhere.
            let at = match n % 3 {
                0 => rng.random_range(0..length.min(80)),
                1 => (rng.random_range(0..length) / 4096 * 4096 + rng.random_range(0..64)).min(length - 1),
                _ => rng.random_range(0..length),
            };
            damages.push(Damage::Flip(at * 8 + rng.random_range(0..8)));
        }
        for _ in 0..places.div_ceil(3) {
            damages.push(Damage::Cut(rng.random_range(0..length)));
            damages.push(Damage::Cut(rng.random_range(0..length) / 4096 * 4096));
        }
    }
    if file.starts_with("index/tables/") {
        damages.push(Damage::Directory);
    }
    let earlier = all_files(&fixture.earlier);
    if let Some(older) = earlier.get(file).filter(|older| *older != content) {
        damages.push(Damage::Become("an older copy", older.clone()));
    }
    damages
}

/// The kind of a file; two of one kind may be swapped.
fn kind(file: &str) -> &str {
    file.rsplit_once('/').map_or("", |(directory, _)| directory)
}

/// Opens, verifies and repairs one damaged store.
fn live(fixture: &Fixture, copy: &Bench, file: &str, what: &str, tally: &mut Tally) {
    tally.cases += 1;
    let before = serve(fixture, copy, file, what, tally);
    let mut held = fixture.held.clone();
    let before = match before {
        Some(before) if file.starts_with("index/") && !fixture.is_young => {
            Some(go_on::go_on(fixture, copy, what, &mut held, &before))
        }
        before => before,
    };
    repair(fixture, copy, file, what, &held, before.as_ref());
}

/// Opens a damaged store, reads and verifies it. `None` if it cannot be opened.
fn serve(
    fixture: &Fixture,
    copy: &Bench,
    file: &str,
    what: &str,
    tally: &mut Tally,
) -> Option<BTreeMap<String, Answer>> {
    match fixture.open(copy) {
        Ok(store) => {
            let stats = store.stats();
            let before = answers(&store, &fixture.held, what);
            for (key, answer) in &before {
                // Losses at the log's end that the index has not persisted are reported, but
                // without keys.
                let is_told = !fixture.is_closed && !stats.damage.is_empty();
                // If the end of the log is missing as a whole, it looks as if it had never been.
                let may_be_gone = !fixture.is_closed && file.ends_with(".seg");
                assert!(
                    *answer <= Answer::Error || is_told || may_be_gone,
                    "{what}: {key} is {answer:?}; {:?}",
                    stats.damage
                );
            }
            let verified = store.verify();
            let is_reported = verified.as_ref().map_or(true, |report| !report.errors.is_empty());
            let has_errors = before.values().any(|answer| *answer == Answer::Error);
            assert!(is_reported || !has_errors, "{what}: verify found nothing");
            assert!(is_reported || stats.damage.is_empty(), "{what}: verify found nothing");
            *(if has_errors || !stats.damage.is_empty() {
                &mut tally.damaged
            } else if stats.mended.is_empty() {
                &mut tally.unharmed
            } else {
                &mut tally.mended
            }) += 1;
            // A close may fail because of damage; acknowledged commits are there nevertheless.
            let _ = store.close();
            Some(before)
        }
        Err(Error::Corruption { .. } | Error::NotAStore { .. }) => {
            tally.refused.insert(file.to_owned());
            // The log has all commits, so the store must open.
            assert!(
                !(fixture.is_young && fixture.is_closed),
                "{what}: the store stays closed"
            );
            assert!(
                !file.contains("TERRACE") && !file.ends_with(".blk"),
                "{what}: the store stays closed"
            );
            None
        }
        Err(error) => panic!("{what}: opening failed with {error}"),
    }
}

/// Repairs a store, reads and verifies it again. `before`: the results of reads before.
fn repair(
    fixture: &Fixture,
    copy: &Bench,
    file: &str,
    what: &str,
    held: &Histories,
    before: Option<&BTreeMap<String, Answer>>,
) {
    let in_index = file.starts_with("index/");
    let report =
        Store::repair(options(copy, fixture.is_young)).unwrap_or_else(|error| panic!("{what}: repair: {error}"));
    let store = fixture
        .open(copy)
        .unwrap_or_else(|error| panic!("{what}: after repair: {error}"));
    let after = answers(&store, held, what);
    for (key, answer) in &after {
        let was = before.map(|before| before[key]);
        assert!(
            was != Some(Answer::Right) || *answer == Answer::Right,
            "{what}: {key} was right before the repair and is {answer:?}: {:?}",
            report.notes
        );
        // If the index is lost and the log was recycled, or the log's end is lost, the value cannot
        // be known; this is reported.
        let is_known = fixture.is_closed && (fixture.is_young || !in_index);
        assert!(
            *answer < Answer::Older || was == Some(Answer::Older) || !is_known,
            "{what}: {key} has an older value after the repair: {:?}",
            report.notes
        );
        assert!(
            *answer == Answer::Right || !report.notes.is_empty() || was == Some(*answer),
            "{what}: {key} is {answer:?}, unsaid"
        );
    }
    let verified = store
        .verify()
        .unwrap_or_else(|error| panic!("{what}: verify after repair: {error}"));
    let is_explained = |line: &String| line.contains("key ") || line.contains("segment ") || line.contains("block ");
    assert!(
        verified.errors.iter().all(is_explained),
        "{what}: {:?}",
        verified.errors
    );
    store.put("new", "value").unwrap();
    store.close().unwrap();
}

fn try_all(fixture: &Fixture) -> Tally {
    let (seed, places) = (seed(), variable("TERRACE_DAMAGE_PLACES"));
    let mut rng = StdRng::seed_from_u64(seed);
    let mut tally = Tally::default();
    let all = all_files(&fixture.bench);
    let mut kinds = BTreeSet::new();
    for (file, content) in &all {
        kinds.insert(kind(file).to_owned());
        let mut chosen = damages(file, content, fixture, places.unwrap_or(3) as usize, &mut rng);
        if places.is_none() {
            let one = rng.random_range(0..chosen.len());
            chosen = vec![chosen.swap_remove(one)];
        }
        for damage in chosen {
            let copy = fixture.bench.fork();
            apply(&copy, file, content, &damage);
            let name = match &damage {
                Damage::Become(name, _) => (*name).to_owned(),
                other => format!("{other:?}"),
            };
            let what = format!("{file} of {} bytes: {name} (seed {seed})", content.len());
            live(fixture, &copy, file, &what, &mut tally);
        }
        let others: Vec<_> = all
            .keys()
            .filter(|other| *other > file && kind(other) == kind(file))
            .collect();
        // Files that name the index's tables are of one kind each.
        let is_swapped = kind(file) != "index" && (places.is_some() || rng.random_bool(0.2));
        if let Some(other) = others
            .get(rng.random_range(0..others.len().max(1)))
            .filter(|_| is_swapped)
        {
            let copy = fixture.bench.fork();
            apply(&copy, file, content, &Damage::Become("the other", all[*other].clone()));
            apply(&copy, other, &all[*other], &Damage::Become("the one", content.clone()));
            let what = format!("{file} and {other} swapped (seed {seed})");
            live(fixture, &copy, file, &what, &mut tally);
        }
    }
    println!("{} files: {tally:#?}", all.len());
    for wanted in [
        "flash",
        "flash/segments",
        "index",
        "index/tables",
        "large",
        "large/blocks",
        "large/meta",
    ] {
        assert!(kinds.contains(wanted), "{wanted} is not among {kinds:?}");
    }
    tally
}

#[test]
fn every_file_of_a_store_whose_log_has_everything() {
    let tally = try_all(&Fixture::new(true, true));
    assert!(
        tally.mended > 0 && tally.damaged > 0 && tally.refused.is_empty(),
        "{tally:?}"
    );
}

#[test]
fn every_file_of_a_store_that_was_recycled() {
    let tally = try_all(&Fixture::new(false, true));
    assert!(tally.mended > 0 && tally.damaged > 0, "{tally:?}");
    assert!(tally.refused.is_empty(), "{tally:?}");
}

#[test]
fn every_file_of_a_store_that_was_killed() {
    let tally = try_all(&Fixture::new(true, false));
    assert!(tally.mended > 0 && tally.damaged > 0, "{tally:?}");
}

/// Regression: a truncated segment prevented the open if the log continued in another one, and its
/// losses were reported only as commits.
#[test]
fn a_segment_cut_short_costs_its_own_records_and_names_them() {
    let fixture = Fixture::new(true, true);
    let segments = fixture
        .bench
        .flash
        .files()
        .into_iter()
        .filter(|file| file.ends_with(".seg"));
    let mut named = 0;
    for file in segments {
        let copy = fixture.bench.fork();
        copy.flash.truncate(&file, 96 << 10).unwrap();
        let store = fixture.open(&copy).unwrap();
        let damage = store.stats().damage;
        let verified = store.verify().unwrap().errors;
        for (key, answer) in answers(&store, &fixture.held, &file) {
            let about = format!("key {key:?}: ");
            let is_lost = answer == Answer::Error;
            assert!(is_lost || answer == Answer::Right, "{file}: {key} is {answer:?}");
            let says_so = |lines: &[String]| lines.iter().any(|line| line.starts_with(&about));
            assert_eq!(
                (says_so(&damage), says_so(&verified)),
                (is_lost, is_lost),
                "{file}: {key}: {damage:?}"
            );
            named += u32::from(is_lost);
        }
    }
    assert!(named > 10, "{named}");
    // For losses that the index has not persisted, only the number of commits is known; the rest of
    // the store works.
    let fixture = Fixture::new(true, false);
    let mut reported = 0;
    for file in fixture
        .bench
        .flash
        .files()
        .into_iter()
        .filter(|file| file.ends_with(".seg"))
    {
        let copy = fixture.bench.fork();
        copy.flash.truncate(&file, 96 << 10).unwrap();
        let store = fixture.open(&copy).unwrap_or_else(|error| panic!("{file}: {error}"));
        reported += u32::from(store.stats().damage.iter().any(|line| line.contains("durable commits")));
    }
    assert!(reported > 0);
}
