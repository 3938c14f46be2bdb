//! Tables that are damaged, cut or missing: set aside, and the rest of the index served and written
//! on. Every read is compared with what was written: the right entry, or `Corruption`.
#![allow(clippy::unwrap_used)]

use super::{
    background::Choice,
    set_aside::{Outcome, set_damaged_aside},
    tests::*,
    *,
};
use crate::test_common::{copy_directory, files};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    fs,
    ops::Bound,
    path::{Path, PathBuf},
};

const ALL: KeyBounds = (Bound::Unbounded, Bound::Unbounded);
const KEYS: u64 = 900;
pub(super) const GUARDED: IndexOptions = IndexOptions { guards: true, ..SMALL };

/// Seq of each key's last put; `None` if it was deleted since.
pub(super) type Model = BTreeMap<Vec<u8>, Option<u64>>;

fn key(number: u64) -> Vec<u8> {
    format!("key-{number:05}").into_bytes()
}

/// Writes rounds of keys into an index, each round flushed.
struct Rounds {
    index: Arc<OrderedIndex>,
    applier: Applier,
    model: Model,
    seq: u64,
}

impl Rounds {
    fn on(dir: &Path, model: Model) -> Self {
        let (index, found) = OrderedIndex::open(dir, GUARDED).unwrap();
        let index = Arc::new(index);
        let seq = found.map_or(0, |found| found.applied_seq);
        let applier = index.applier().unwrap();
        Self {
            index,
            applier,
            model,
            seq,
        }
    }

    /// Every ninth is deleted.
    fn write(&mut self, numbers: impl Iterator<Item = u64>) {
        for number in numbers {
            self.seq += 1;
            let is_deleted = self.seq.is_multiple_of(9);
            if is_deleted {
                self.applier.remove(&key(number), self.seq);
            } else {
                self.applier.insert(&key(number), &flash_entry(self.seq), self.seq);
            }
            self.model.insert(key(number), (!is_deleted).then_some(self.seq));
            self.applier.applied(self.seq);
        }
        self.applier.rotate(mark(self.seq)).unwrap();
        self.index.flush_sealed(self.seq).unwrap();
    }

    fn merge_all(&self) {
        let all = || Some(Choice::All { table_bytes: 4 << 10 });
        self.index.compact_by(self.seq, all).unwrap();
    }
}

/// An index with tables in several levels, with overwritten and deleted keys.
pub(super) struct Original {
    pub dir: tempfile::TempDir,
    pub model: Model,
    pub seq: u64,
}

impl Original {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut rounds = Rounds::on(dir.path(), Model::new());
        rounds.write(0..KEYS);
        rounds.merge_all();
        for round in 0..10_u64 {
            rounds.write((0..120).map(|n| (round * 131 + n * 7919) % KEYS));
            // The last ones stay in the first level.
            while round < 7 && rounds.index.compact(rounds.seq).unwrap() {}
            if round == 3 {
                rounds.merge_all();
            }
        }
        let stats = rounds.index.stats();
        assert!(stats.tables > 5 && stats.levels > 1, "{stats:?}");
        let Rounds { model, seq, .. } = rounds;
        Self { dir, model, seq }
    }

    pub fn fork(&self) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        copy_directory(self.dir.path(), dir.path()).unwrap();
        dir
    }

    /// Its tables, by path in its directory.
    pub fn tables(&self) -> Vec<PathBuf> {
        let all = files(self.dir.path()).into_iter();
        let names = all.map(|file| file.strip_prefix(self.dir.path()).unwrap().to_owned());
        names.filter(|name| name.starts_with("tables")).collect()
    }
}

/// Reads everything in every way; the number of keys that cannot be read.
pub(super) fn unreadable(index: &OrderedIndex, model: &Model, what: &str) -> usize {
    let seq = index.applied_seq();
    let mut unreadable = 0;
    for (key, written) in model {
        let expected = written.map(flash_entry);
        for found in [index.get(key), index.get_at(key, seq)] {
            match found {
                Ok(found) => assert_eq!(found, expected, "{what}: {}", key.escape_ascii()),
                Err(Error::Corruption { .. }) => unreadable += 1,
                Err(error) => panic!("{what}: {error}"),
            }
        }
    }
    let living: Vec<_> = model.iter().filter_map(|(key, seq)| Some((key, (*seq)?))).collect();
    let mut forth = living.iter();
    for item in index.scan(ALL, seq).unwrap() {
        let Ok((key, entry)) = item else { break };
        let expected = forth.next().map(|(key, seq)| (key.as_slice(), flash_entry(*seq)));
        assert_eq!(Some((&key[..], entry)), expected, "{what}");
    }
    let mut back = living.iter().rev();
    for item in index.scan(ALL, seq).unwrap().rev() {
        let Ok((key, entry)) = item else { break };
        let expected = back.next().map(|(key, seq)| (key.as_slice(), flash_entry(*seq)));
        assert_eq!(Some((&key[..], entry)), expected, "{what}, backwards");
    }
    assert!(
        unreadable > 0 || forth.next().is_none() && back.next().is_none(),
        "{what}"
    );
    // Damage that was not noticed yet is in no lost range.
    let bounds = index.sound_bounds().into_iter();
    for bounds in bounds.filter(|_| index.lost_ranges().next().is_some()) {
        for item in index.scan(bounds, seq).unwrap() {
            item.unwrap_or_else(|error| panic!("{what}: between the lost ranges: {error}"));
        }
    }
    unreadable
}

/// What an open for writing does where the log does not have everything. Says whether it could.
fn open_or_set_aside(dir: &Path) -> bool {
    if OrderedIndex::open(dir, GUARDED).is_ok() {
        return true;
    }
    match set_damaged_aside(dir, false).unwrap() {
        Outcome::Done { .. } => true,
        Outcome::NotPossible(_) => false,
        Outcome::NoDamage => panic!("it does not open, and is not damaged"),
    }
}

/// Writes on in an index, reads, merges, and opens it again.
fn go_on(dir: &Path, original: &Original, what: &str) {
    let mut rounds = Rounds::on(dir, original.model.clone());
    assert_eq!(rounds.seq, original.seq, "{what}");
    let before = unreadable(&rounds.index, &rounds.model, what);
    let lost = rounds.index.lost_ranges().count();
    for round in 0..12 {
        rounds.write((0..60).map(|n| round * 5 + n));
        // The range of a damaged block in a table that opens is not set aside yet.
        while lost > 0 && rounds.index.compact(rounds.seq).unwrap() {}
    }
    let after = unreadable(&rounds.index, &rounds.model, what);
    assert!(
        after <= before + if lost > 0 { 2 * 115 } else { 0 },
        "{what}: {before}, {after}"
    );
    for number in 0..115_u64 {
        let written = rounds.model[&key(number)];
        if written.is_some() {
            assert_eq!(
                rounds.index.get(&key(number)).unwrap(),
                written.map(flash_entry),
                "{what}"
            );
        }
    }
    let model = rounds.model.clone();
    drop(rounds);
    // What was found while reading is set aside, too.
    set_damaged_aside(dir, true).unwrap();
    let rounds = Rounds::on(dir, model);
    unreadable(&rounds.index, &rounds.model, what);
    rounds.merge_all();
    unreadable(&rounds.index, &rounds.model, what);
}

fn damages(content: &[u8], others: &[Vec<u8>], rng: &mut StdRng) -> Vec<(String, Option<Vec<u8>>)> {
    let mut damages = vec![
        ("removed".to_owned(), None),
        ("zeroed".to_owned(), Some(vec![0; content.len()])),
        ("emptied".to_owned(), Some(Vec::new())),
        (
            "another".to_owned(),
            Some(others[rng.random_range(0..others.len())].clone()),
        ),
    ];
    for n in 0..3 {
        let cut = rng.random_range(0..content.len());
        damages.push((format!("cut at {cut}"), Some(content[..cut].to_vec())));
        // At its end are the parts without which it does not open.
        let from = if n % 2 == 0 {
            0
        } else {
            content.len().saturating_sub(1_500)
        };
        let at = rng.random_range(from..content.len());
        let mut flipped = content.to_vec();
        flipped[at] ^= 1 << rng.random_range(0..8);
        damages.push((format!("flipped in byte {at}"), Some(flipped)));
    }
    damages
}

/// Without this an index with such a table did not open, and the store stayed closed.
#[test]
fn any_damage_of_any_table_costs_its_keys_and_nothing_else() {
    let original = Original::new();
    let mut rng = StdRng::seed_from_u64(6);
    let tables = original.tables();
    let contents: Vec<_> = tables
        .iter()
        .map(|name| fs::read(original.dir.path().join(name)).unwrap())
        .collect();
    let (mut cases, mut opened_before, mut set_aside) = (0, 0, 0);
    for (name, content) in tables.iter().zip(&contents) {
        let others: Vec<_> = contents.iter().filter(|other| *other != content).cloned().collect();
        for (damage, bytes) in damages(content, &others, &mut rng) {
            let what = format!("{}: {damage}", name.display());
            let dir = original.fork();
            match bytes {
                Some(bytes) => fs::write(dir.path().join(name), bytes).unwrap(),
                None => fs::remove_file(dir.path().join(name)).unwrap(),
            }
            cases += 1;
            let opens = OrderedIndex::open(dir.path(), SMALL).is_ok();
            opened_before += u32::from(opens);
            assert!(open_or_set_aside(dir.path()), "{what}");
            if !opens {
                set_aside += 1;
                let kept = fs::read_dir(dir.path().join("damaged-tables")).unwrap().count();
                assert_eq!(kept > 0, damage != "removed", "{what}");
            }
            if cases % 6 == 0 {
                go_on(dir.path(), &original, &what);
            } else {
                let (index, found) = OrderedIndex::open(dir.path(), GUARDED).unwrap();
                assert_eq!(found, Some(mark(original.seq)), "{what}");
                unreadable(&index, &original.model, &what);
            }
        }
    }
    println!("{cases} cases: {opened_before} open as they are, {set_aside} were set aside");
    assert!(set_aside > 30 && opened_before > 5);
}

/// The copy of the state has the ranges and the mark. Without it ranges follow from the tables
/// beside the lost one; where the mark is lost as well, nothing is guessed.
#[test]
fn without_the_copy_tables_are_replaced_where_the_mark_is_left() {
    let original = Original::new();
    let (mut done, mut refused) = (0, 0);
    for name in original.tables() {
        for stale in [false, true] {
            let dir = original.fork();
            let what = format!("{}, {stale}", name.display());
            let mut model = original.model.clone();
            if stale {
                // The state that a crash may leave: the copy is of the state before.
                let copy = fs::read(dir.path().join("copy")).unwrap();
                let mut rounds = Rounds::on(dir.path(), original.model.clone());
                rounds.write([KEYS + 5].into_iter());
                model = rounds.model.clone();
                drop(rounds);
                fs::write(dir.path().join("copy"), copy).unwrap();
            } else {
                fs::remove_file(dir.path().join("copy")).unwrap();
            }
            fs::remove_file(dir.path().join(&name)).unwrap();
            if !open_or_set_aside(dir.path()) {
                refused += 1;
                assert!(OrderedIndex::open(dir.path(), SMALL).is_err(), "{what}");
                continue;
            }
            done += 1;
            let (index, found) = OrderedIndex::open(dir.path(), GUARDED).unwrap();
            assert!(found.unwrap().applied_seq >= original.seq, "{what}");
            assert!(unreadable(&index, &model, &what) > 0, "{what}");
        }
    }
    println!("{done} without the copy, {refused} refused");
    assert!(done > 5 && refused > 1);
}

/// A crash leaves the former state, with files that nothing names, or the new one.
#[test]
fn a_crash_while_tables_are_set_aside_starts_over() {
    let original = Original::new();
    for name in original.tables() {
        let dir = original.fork();
        let place = |name: &str| dir.path().join(name);
        let current = fs::read(place("current")).unwrap();
        fs::write(dir.path().join(&name), b"damaged").unwrap();
        assert!(open_or_set_aside(dir.path()));
        let named = fs::read(place("current")).unwrap();
        assert_ne!(named, current);
        // Everything but the rename of `current`; then torn files that nothing names.
        for torn in [false, true] {
            fs::write(place("current"), &current).unwrap();
            if torn {
                for file in files(dir.path()) {
                    let name = file.strip_prefix(dir.path()).unwrap();
                    if !original.dir.path().join(name).exists() && !name.starts_with("damaged-tables") {
                        fs::write(&file, b"torn").unwrap();
                    }
                }
            }
            assert!(matches!(
                set_damaged_aside(dir.path(), false).unwrap(),
                Outcome::Done { .. }
            ));
            assert_eq!(fs::read(place("current")).unwrap()[..8], named[..8]);
        }
        go_on(dir.path(), &original, &name.display().to_string());
    }
}

/// Two tables at once, and then a third, in which are the ranges that were lost before.
#[test]
fn lost_ranges_survive_the_loss_of_the_table_that_has_them() {
    let original = Original::new();
    let dir = original.fork();
    let tables = original.tables();
    fs::remove_file(dir.path().join(&tables[0])).unwrap();
    fs::remove_file(dir.path().join(&tables[1])).unwrap();
    assert!(open_or_set_aside(dir.path()));
    let (index, _) = OrderedIndex::open(dir.path(), GUARDED).unwrap();
    let lost: Vec<_> = index.lost_ranges().cloned().collect();
    assert_eq!(lost.len(), 2);
    let newest = index.tree.current_version().iter_tables().next().unwrap().id();
    drop(index);
    fs::remove_file(dir.path().join("tables").join(newest.to_string())).unwrap();
    assert!(open_or_set_aside(dir.path()));
    let (index, found) = OrderedIndex::open(dir.path(), GUARDED).unwrap();
    assert_eq!(index.lost_ranges().cloned().collect::<Vec<_>>(), lost);
    assert_eq!(found, Some(mark(original.seq)));
    assert!(unreadable(&index, &original.model, "the third") > 0);
}
