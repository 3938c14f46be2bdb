//! The files of an index whose tables have copies, in a store that was recycled: what is in the
//! index alone outlives each damage.

use super::{Answer, Damage, Fixture, all_files, answers, apply, damages, options, serve};
use crate::{
    common::{copy_directory, left_out, seed, variable},
    faults::bench::{Bench, eventually},
};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
use std::{collections::BTreeMap, os::unix::fs::MetadataExt as _, path::Path, time::Duration};
use terrace::{Error, Store};

fn names(all: &BTreeMap<String, Vec<u8>>, directory: &str) -> Vec<String> {
    all.keys().filter(|name| name.starts_with(directory)).cloned().collect()
}

/// A recycled store in which each table of the index has a copy.
fn mirrored() -> Fixture {
    let fixture = Fixture::new(false, true);
    let mirroring =
        options(&fixture.bench, false).tuned(|tuning| tuning.index_mirror_after = Some(Duration::from_millis(1)));
    let count = |directory| std::fs::read_dir(fixture.bench.index_dir().join(directory)).map_or(0, Iterator::count);
    // The index may be flushed or merged once more at a close.
    while count("mirror") == 0 || count("mirror") != count("tables") {
        let store = Store::open(mirroring.clone()).unwrap();
        eventually("a copy of each table", &store, |stats| {
            count("mirror") as u64 == stats.index.tables && stats.index.mirror_bytes > stats.index.bytes
        });
        store.close().unwrap();
    }
    fixture
}

/// Opens a damaged store twice, since a damaged block is found when it is read: the second time
/// everything must be there.
fn assert_outlives(fixture: &Fixture, copy: &Bench, file: &str, what: &str) -> bool {
    assert!(
        serve(fixture, copy, file, what, &mut Default::default()).is_some(),
        "{what}"
    );
    let store = fixture.open(copy).unwrap_or_else(|error| panic!("{what}: {error}"));
    let stats = store.stats();
    assert_eq!(stats.damage, [""; 0], "{what}");
    for (key, answer) in answers(&store, &fixture.held, what) {
        assert_eq!(answer, Answer::Right, "{what}: {key}");
    }
    assert_eq!(store.verify().unwrap().errors, [""; 0], "{what}");
    store.close().unwrap();
    !stats.mended.is_empty()
}

#[test]
fn damage_to_tables_with_copies_loses_nothing() {
    let fixture = mirrored();
    let mut rng = StdRng::seed_from_u64(seed());
    let all = all_files(&fixture.bench);
    let (tables, copies) = (names(&all, "index/tables/"), names(&all, "index/mirror/"));
    assert!(
        !tables.is_empty() && tables.len() == copies.len(),
        "{tables:?}, {copies:?}"
    );
    let mut mended = 0;
    // With `TERRACE_DAMAGE_PLACES` all ways, as in the tests beside this one.
    for file in tables.iter().chain(&copies) {
        let places = variable("TERRACE_DAMAGE_PLACES");
        let mut ways = damages(file, &all[file], &fixture, places.unwrap_or(3) as usize, &mut rng);
        let other = &copies[rng.random_range(0..copies.len())];
        ways.push(Damage::Become("another one", all[other].clone()));
        if places.is_none() {
            ways.shuffle(&mut rng);
            ways.truncate(2);
        }
        for damage in ways {
            let copy = fixture.bench.fork();
            apply(&copy, file, &all[file], &damage);
            let what = format!("{file}: {damage:.40?}");
            mended += u32::from(assert_outlives(&fixture, &copy, file, &what));
        }
    }
    println!("{mended} mended by the open after the damage was found");

    // All tables and a file that names them, at once; by an open, and by a repair.
    for lost in ["index/current", "index/tables/"] {
        for is_repaired in [false, true] {
            let copy = fixture.bench.fork();
            for file in all
                .keys()
                .filter(|file| file.starts_with("index/tables/") || *file == lost)
            {
                apply(&copy, file, &all[file], &Damage::Remove);
            }
            let what = format!("all tables and {lost}, repaired: {is_repaired}");
            if is_repaired {
                Store::repair(options(&copy, false)).unwrap();
            }
            assert_outlives(&fixture, &copy, "index/tables", &what);
        }
    }
}

/// Opens a damaged store: one message says what was put right, and everything is there.
fn assert_mended_at_once(fixture: &Fixture, copy: &Bench, file: &str) {
    let store = fixture.open(copy).unwrap_or_else(|error| panic!("{file}: {error}"));
    let stats = store.stats();
    assert!(stats.mended.len() == 1 && stats.damage.is_empty(), "{file}: {stats:?}");
    let answers = answers(&store, &fixture.held, file);
    assert!(answers.values().all(|answer| *answer == Answer::Right), "{file}");
    store.close().unwrap();
}

/// Regression: a table that the device does not read, as a sector that has died, kept the store
/// closed with the system's error, though there was a copy. Here a link that leads to itself stands
/// for such a table.
#[test]
fn tables_that_cannot_be_read_are_replaced_by_their_copies() {
    let fixture = mirrored();
    let all = all_files(&fixture.bench);
    for file in names(&all, "index/tables/") {
        let copy = fixture.bench.fork();
        let table = copy.index_dir().join(file.strip_prefix("index/").unwrap());
        std::fs::remove_file(&table).unwrap();
        std::os::unix::fs::symlink(&table, &table).unwrap();
        assert_mended_at_once(&fixture, &copy, &file);
        assert_eq!(std::fs::read(&table).unwrap(), all[&file], "{file}");
    }
}

/// The next open after a read that failed compares all tables: damage in the middle of one is put
/// right before anything is read from it.
#[test]
fn after_a_failed_read_an_open_compares_all_tables() {
    let fixture = mirrored();
    let all = all_files(&fixture.bench);
    for file in names(&all, "index/tables/") {
        let copy = fixture.bench.fork();
        let place = all[&file].len() / 2;
        let mut damaged = all[&file].clone();
        damaged[place] ^= 1;
        std::fs::write(copy.index_dir().join(file.strip_prefix("index/").unwrap()), damaged).unwrap();
        std::fs::write(copy.index_dir().join("unreadable"), "input/output error").unwrap();
        assert_mended_at_once(&fixture, &copy, &file);
        assert!(!copy.index_dir().join("unreadable").exists());
    }
}

/// Regression: a repair did without the tables that it could not replace by their copies, as on a
/// device that was full, though it only had to be tried again. Here the mirror is on another file
/// system, since a copy on the same is renamed.
#[test]
fn a_repair_without_room_for_a_table_ends_and_the_next_one_has_it() {
    let elsewhere = tempfile::tempdir_in("/dev/shm").ok().filter(|elsewhere| {
        let device = |path: &Path| std::fs::metadata(path).unwrap().dev();
        device(elsewhere.path()) != device(&std::env::temp_dir())
    });
    let Some(elsewhere) = elsewhere else {
        let test = "faults::every_file::mirror::a_repair_without_room_for_a_table_ends_and_the_next_one_has_it";
        return left_out(test, "/dev/shm is no other file system");
    };
    let fixture = mirrored();
    let index = fixture.bench.index_dir();
    copy_directory(&index.join("mirror"), elsewhere.path()).unwrap();
    std::fs::remove_dir_all(index.join("mirror")).unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), index.join("mirror")).unwrap();
    std::fs::remove_dir_all(index.join("tables")).unwrap();
    let temporary = index.join(".tmp-mirror");
    std::os::unix::fs::symlink("/dev/full", &temporary).unwrap();
    let refused = Store::repair(options(&fixture.bench, false));
    assert!(matches!(refused, Err(Error::OutOfSpace { .. })), "{refused:?}");
    std::fs::remove_file(temporary).unwrap();
    Store::repair(options(&fixture.bench, false)).unwrap();
    assert_outlives(&fixture, &fixture.bench, "index/tables", "repaired once there was room");
}
