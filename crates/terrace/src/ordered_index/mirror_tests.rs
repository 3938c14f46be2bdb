//! Copies of tables: damage to any table loses nothing, and a copy is used only as what it is.
#![allow(clippy::unwrap_used)]

use super::{
    mirror::mend,
    set_aside_tests::{GUARDED, Original, unreadable},
    tests::SMALL,
    *,
};
use crate::test_common::{copy_directory, left_out};
use rustix::fs::{FileType, Mode};
use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt as _,
    path::Path,
    sync::mpsc,
    time::Duration,
};

/// Copies everything that has no copy yet; returns how many tables there were.
fn copy_all(index: &OrderedIndex) -> usize {
    let mut copied = 0;
    while index.mirror_next(Duration::ZERO, |work| work()).unwrap() {
        copied += 1;
    }
    copied
}

/// An index of several levels, all of it with copies.
fn mirrored() -> Original {
    let original = Original::new();
    let (index, _) = OrderedIndex::open(original.dir.path(), GUARDED).unwrap();
    assert_eq!(copy_all(&index) as u64, index.stats().tables);
    assert_eq!(index.mirror_bytes(), index.copy_bytes() - state_copy_bytes(&index));
    assert_eq!(copies(original.dir.path()).len() as u64, index.stats().tables);
    original
}

fn state_copy_bytes(index: &OrderedIndex) -> u64 {
    index.written.state_copy_bytes.load(Ordering::Relaxed)
}

fn copies(dir: &Path) -> Vec<std::path::PathBuf> {
    let files = fs::read_dir(dir.join("mirror")).into_iter().flatten();
    files.map(|file| file.unwrap().path()).collect()
}

/// All that can happen to a file.
fn damages(bytes: &[u8]) -> Vec<(&'static str, Option<Vec<u8>>)> {
    let flipped = |at: usize| {
        let mut bytes = bytes.to_vec();
        bytes[at] ^= 0x10;
        Some(bytes)
    };
    vec![
        ("removed", None),
        ("emptied", Some(Vec::new())),
        ("cut", Some(bytes[..bytes.len() / 2].to_vec())),
        ("zeroed", Some(vec![0; bytes.len()])),
        ("flipped first", flipped(0)),
        ("flipped in the middle", flipped(bytes.len() / 2)),
        ("flipped last", flipped(bytes.len() - 1)),
    ]
}

fn write(path: &Path, bytes: Option<&[u8]>) {
    match bytes {
        Some(bytes) => fs::write(path, bytes).unwrap(),
        None => fs::remove_file(path).unwrap(),
    }
}

fn assert_whole(dir: &Path, original: &Original, what: &str) {
    let (index, found) = OrderedIndex::open(dir, GUARDED).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(found.map(|mark| mark.applied_seq), Some(original.seq), "{what}");
    assert_eq!(index.lost_ranges().count(), 0, "{what}");
    assert_eq!(unreadable(&index, &original.model, what), 0, "{what}");
}

#[test]
fn every_damaged_table_is_replaced_by_its_copy() {
    let original = mirrored();
    for table in original.tables() {
        let bytes = fs::read(original.dir.path().join(&table)).unwrap();
        for (way, damaged) in damages(&bytes) {
            let what = format!("{} {way}", table.display());
            let dir = original.fork();
            write(&dir.path().join(&table), damaged.as_deref());
            fs::write(dir.path().join("damaged"), "a reader found it").unwrap();
            let messages = mend(dir.path()).unwrap();
            assert!(
                messages.len() == 1 && messages[0].contains("1 of them were replaced by their copies in "),
                "{what}: {messages:?}"
            );
            assert_eq!(noted_damage(dir.path()), None, "{what}");
            assert_eq!(fs::read(dir.path().join(&table)).unwrap(), bytes, "{what}");
            assert_whole(dir.path(), &original, &what);
            assert_eq!(mend(dir.path()).unwrap(), Vec::<String>::new(), "{what}");
        }
    }
}

/// Regression: only a damaged block was noted. A table with a sector that had died gave an error at
/// each read of it for ever, though there was a copy.
#[test]
fn a_table_that_was_not_read_is_replaced_by_its_copy() {
    let original = mirrored();
    let dir = original.fork();
    let table = dir.path().join(&original.tables()[0]);
    let bytes = fs::read(&table).unwrap();
    let (index, _) = OrderedIndex::open(dir.path(), GUARDED).unwrap();
    // EIO, as a read of the index returns it.
    index.note_damage(&Error::io("reading the index", &io::Error::from_raw_os_error(5)));
    assert!(!index.is_damaged() && noted_damage(dir.path()).is_none(), "it may pass");
    assert!(noted_unreadable(dir.path()));
    drop(index);
    let mut damaged = bytes.clone();
    damaged[bytes.len() / 2] ^= 1;
    write(&table, Some(&damaged));
    assert_eq!(mend(dir.path()).unwrap().len(), 1);
    assert_eq!(fs::read(&table).unwrap(), bytes);
    assert!(!noted_unreadable(dir.path()));
    assert_whole(dir.path(), &original, "a table that was not read");
}

/// Puts a directory that is not empty in the place of a table.
fn become_directory(table: &Path) {
    fs::remove_file(table).unwrap();
    fs::create_dir(table).unwrap();
    fs::write(table.join("note"), "no table").unwrap();
}

/// Regression: a copy cannot be renamed to the name of a directory, so the store did not open.
#[test]
fn a_directory_in_the_place_of_a_table_is_moved_away_for_its_copy() {
    let original = mirrored();
    for (round, table) in original.tables().into_iter().enumerate() {
        let what = table.display().to_string();
        let dir = original.fork();
        // It may happen again.
        for again in 0..=round.min(1) {
            become_directory(&dir.path().join(&table));
            let messages = mend(dir.path()).unwrap();
            let name = table.file_name().unwrap().to_str().unwrap();
            let kept = format!("damaged-tables/{name}-stray-{again}");
            assert!(messages[0].ends_with(&kept), "{messages:?}");
            assert!(dir.path().join(kept).join("note").exists(), "{what}");
            if again == 0 {
                assert_eq!(messages.len(), 2, "{messages:?}");
                assert_whole(dir.path(), &original, &what);
            }
        }
    }
}

/// Regression: the library gave up at anything among the tables that is none, such as a copy of one
/// under another name.
#[test]
fn what_is_no_table_is_moved_away_and_kept() {
    let original = mirrored();
    let tables = original.dir.path().join("tables");
    let bytes = fs::read(original.dir.path().join(&original.tables()[0])).unwrap();
    fs::write(tables.join("0.bak"), &bytes).unwrap();
    fs::write(tables.join("._0"), "of a Mac").unwrap();
    fs::create_dir(tables.join("99999")).unwrap();
    let refused = OrderedIndex::open(original.dir.path(), GUARDED).err().unwrap();
    assert!(refused.to_string().contains("it is no table"), "{refused}");
    assert_eq!(mend(original.dir.path()).unwrap().len(), 2);
    let kept = original.dir.path().join("damaged-tables");
    assert_eq!(fs::read(kept.join("0.bak-stray-0")).unwrap(), bytes);
    assert!(kept.join("99999-stray-0").is_dir());
    assert_whole(original.dir.path(), &original, "after strays");
}

/// Regression: a copy cannot be renamed into a directory that is not there. A repair then did
/// without the tables.
#[test]
fn tables_are_replaced_although_their_directory_is_gone() {
    let original = mirrored();
    fs::remove_dir_all(original.dir.path().join("tables")).unwrap();
    assert_eq!(mend(original.dir.path()).unwrap().len(), 1);
    assert_whole(original.dir.path(), &original, "without a directory of tables");
}

/// Regression: a file that names the state and is not read, as on a sector that has died, was not
/// replaced by what `copy` has of it. A link to itself stands for such a file.
#[test]
fn files_that_name_the_state_and_cannot_be_read_are_replaced() {
    let original = mirrored();
    let (index, _) = OrderedIndex::open(original.dir.path(), GUARDED).unwrap();
    let listed = format!("v{}", index.tree.current_version().id());
    drop(index);
    for file in ["current", &listed] {
        let dir = original.fork();
        let place = dir.path().join(file);
        fs::remove_file(&place).unwrap();
        std::os::unix::fs::symlink(&place, &place).unwrap();
        assert!(matches!(OrderedIndex::open(dir.path(), GUARDED), Err(Error::Io { .. })));
        assert_eq!(mend(dir.path()).unwrap().len(), 1, "{file}");
        assert_whole(dir.path(), &original, file);
    }
    // A copy that is not read is none.
    let copy = original.dir.path().join("copy");
    fs::remove_file(&copy).unwrap();
    std::os::unix::fs::symlink(&copy, &copy).unwrap();
    assert_eq!(mend(original.dir.path()).unwrap(), [""; 0]);
    assert_whole(original.dir.path(), &original, "copy");
}

/// A directory on another file system, if there is one.
fn elsewhere(test: &str) -> Option<tempfile::TempDir> {
    let made = tempfile::tempdir_in("/dev/shm").ok().filter(|elsewhere| {
        let device = |path: &Path| fs::metadata(path).unwrap().dev();
        device(elsewhere.path()) != device(&std::env::temp_dir())
    });
    if made.is_none() {
        left_out(test, "/dev/shm is no other file system");
    }
    made
}

/// Regression: a copy was renamed from the directory of the index, and back into it. Where the
/// mirror is on another file system both fail: each table was copied again and again, and a store
/// with a damaged table did not open.
#[test]
fn copies_may_be_on_another_file_system() {
    let Some(elsewhere) = elsewhere("copies_may_be_on_another_file_system") else {
        return;
    };
    let original = Original::new();
    std::os::unix::fs::symlink(elsewhere.path(), original.dir.path().join("mirror")).unwrap();
    // Left by a crash.
    fs::write(elsewhere.path().join(".tmp-mirror"), "half a copy").unwrap();
    let (index, _) = OrderedIndex::open(original.dir.path(), GUARDED).unwrap();
    assert_eq!((index.mirror_bytes(), index.check_mirror().len()), (0, 0));
    assert_eq!(copy_all(&index) as u64, index.stats().tables);
    drop(index);
    let bytes = |table: &Path| fs::read(original.dir.path().join(table)).unwrap();
    let before: Vec<_> = original.tables().iter().map(|table| bytes(table)).collect();
    for table in original.tables() {
        fs::remove_file(original.dir.path().join(table)).unwrap();
    }
    assert_eq!(mend(original.dir.path()).unwrap().len(), 1);
    let after: Vec<_> = original.tables().iter().map(|table| bytes(table)).collect();
    assert_eq!(before, after);
    assert_whole(original.dir.path(), &original, "copies elsewhere");
    let (index, _) = OrderedIndex::open(original.dir.path(), GUARDED).unwrap();
    assert_eq!(copy_all(&index), 0, "they are still there");
}

/// Regression: damaged tables were kept by a link, and the store did not open where links fail.
#[test]
fn damaged_tables_may_be_kept_on_another_file_system() {
    let Some(elsewhere) = elsewhere("damaged_tables_may_be_kept_on_another_file_system") else {
        return;
    };
    let original = Original::new();
    std::os::unix::fs::symlink(elsewhere.path(), original.dir.path().join("damaged-tables")).unwrap();
    let table = original.dir.path().join(&original.tables()[0]);
    fs::write(&table, "not a table any more").unwrap();
    assert!(matches!(
        set_damaged_aside(original.dir.path(), false).unwrap(),
        SetAside::Done { tables: 1, .. }
    ));
    let kept: Vec<_> = fs::read_dir(elsewhere.path()).unwrap().collect();
    assert_eq!(kept.len(), 1);
    assert_eq!(
        fs::read(kept[0].as_ref().unwrap().path()).unwrap(),
        b"not a table any more"
    );
    let (index, _) = OrderedIndex::open(original.dir.path(), GUARDED).unwrap();
    assert!(index.lost_ranges().count() > 0);
}

#[test]
fn all_tables_at_once_are_replaced_also_after_an_end_in_the_middle() {
    let original = mirrored();
    let tables = original.tables();
    for replaced_before in 0..tables.len() {
        let dir = original.fork();
        for (number, table) in tables.iter().enumerate() {
            let path = dir.path().join(table);
            if number >= replaced_before {
                fs::remove_file(&path).unwrap();
                continue;
            }
            // As renames leave it that were cut short.
            let id = format!("{}-", table.file_name().unwrap().to_str().unwrap());
            let is_its = |copy: &std::path::PathBuf| copy.file_name().unwrap().to_str().unwrap().starts_with(&id);
            let copy = copies(dir.path()).into_iter().find(is_its).unwrap();
            fs::rename(copy, path).unwrap();
        }
        assert_eq!(mend(dir.path()).unwrap().len(), 1);
        assert_whole(dir.path(), &original, &format!("{replaced_before} replaced before"));
    }
}

#[test]
fn a_copy_that_is_damaged_or_another_ones_is_not_used() {
    let original = mirrored();
    let tables = original.tables();
    let bytes = fs::read(original.dir.path().join(&tables[0])).unwrap();
    let id = format!("{}-", tables[0].file_name().unwrap().to_str().unwrap());
    let all = copies(original.dir.path());
    let (its, others): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|copy| copy.file_name().unwrap().to_str().unwrap().starts_with(&id));
    let other = fs::read(&others[0]).unwrap();
    let ways = damages(&bytes).into_iter().chain([("another one's", Some(other))]);
    for (way, damaged) in ways {
        let dir = original.fork();
        let copy = dir.path().join(its[0].strip_prefix(original.dir.path()).unwrap());
        write(&copy, damaged.as_deref());
        fs::remove_file(dir.path().join(&tables[0])).unwrap();
        fs::write(dir.path().join("damaged"), "a reader found it").unwrap();
        assert_eq!(mend(dir.path()).unwrap(), Vec::<String>::new(), "{way}");
        assert!(!dir.path().join(&tables[0]).exists(), "{way}");
        assert!(noted_damage(dir.path()).is_some(), "{way}: not all is put right");
        assert!(OrderedIndex::open(dir.path(), GUARDED).is_err(), "{way}");
    }
}

#[test]
fn a_damaged_copy_is_told_and_made_again() {
    let original = mirrored();
    let (index, _) = OrderedIndex::open(original.dir.path(), GUARDED).unwrap();
    assert_eq!(index.check_mirror(), [""; 0]);
    let copies = copies(original.dir.path());
    let whole = fs::read(&copies[0]).unwrap();
    for (way, damaged) in damages(&whole) {
        write(&copies[0], damaged.as_deref());
        let told = index.check_mirror();
        assert!(
            told.len() == 1 && told[0].contains("no data is lost"),
            "{way}: {told:?}"
        );
        assert_eq!(copy_all(&index), 1, "{way}");
        assert_eq!(fs::read(&copies[0]).unwrap(), whole, "{way}");
    }
}

/// Regression: while `verify` read the copies, which takes minutes where they are long, none could
/// be removed: on a device that became full meanwhile they did not give way to other data.
#[test]
fn copies_give_way_while_they_are_read() {
    let original = mirrored();
    let (index, _) = OrderedIndex::open(original.dir.path(), GUARDED).unwrap();
    // A pipe is read for as long as nothing writes to it.
    let elsewhere = original.dir.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &elsewhere, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let copy = copies(original.dir.path()).remove(0);
    fs::remove_file(&copy).unwrap();
    fs::hard_link(&elsewhere, copy).unwrap();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| index.check_mirror());
        // Opening it waits until it is being read.
        let pipe = File::options().write(true).open(&elsewhere).unwrap();
        index.set_mirror_room(0);
        let (send, removed) = mpsc::channel();
        let index = &index;
        scope.spawn(move || send.send(index.mirror_next(Duration::ZERO, |work| work())).unwrap());
        let removed = removed.recv_timeout(Duration::from_secs(20));
        drop(pipe);
        assert!(matches!(removed, Ok(Ok(false))), "{removed:?}");
        assert_eq!(
            reading.join().unwrap(),
            [""; 0],
            "a copy that was removed is not damaged"
        );
    });
    assert_eq!((index.mirror_bytes(), copies(original.dir.path()).len()), (0, 0));
}

/// Regression: a directory among the copies counted as one that is of no use. It could not be
/// removed, so nothing was copied any more.
#[test]
fn a_directory_among_the_copies_is_left_alone() {
    let original = Original::new();
    let stray = original.dir.path().join("mirror/stray");
    fs::create_dir_all(&stray).unwrap();
    let (index, _) = OrderedIndex::open(original.dir.path(), GUARDED).unwrap();
    assert_eq!(index.mirror_bytes(), 0);
    assert_eq!(copy_all(&index) as u64, index.stats().tables);
    assert!(stray.exists());
}

/// Regression: where copies cannot have their place, a table was copied nevertheless, at each look.
#[test]
fn nothing_is_copied_where_there_is_no_place_for_it() {
    let original = Original::new();
    fs::write(original.dir.path().join("mirror"), "no directory").unwrap();
    let (index, _) = OrderedIndex::open(original.dir.path(), GUARDED).unwrap();
    let mut steps = 0;
    let copied = index.mirror_next(Duration::ZERO, |work| {
        steps += 1;
        work()
    });
    assert!(matches!(copied, Err(Error::Io { .. })), "{copied:?}");
    assert_eq!(steps, 0);
    assert!(!index.is_damaged());
}

#[test]
fn a_damaged_table_is_noted_and_not_copied() {
    let original = Original::new();
    let table = original.dir.path().join(&original.tables()[0]);
    let (index, _) = OrderedIndex::open(original.dir.path(), GUARDED).unwrap();
    let mut bytes = fs::read(&table).unwrap();
    bytes[100] ^= 1;
    fs::write(&table, bytes).unwrap();
    let mut errors = 0;
    loop {
        match index.mirror_next(Duration::ZERO, |work| work()) {
            Ok(true) => {}
            Ok(false) => break,
            Err(Error::Corruption { place, .. }) => {
                assert_eq!(place, table.display().to_string());
                errors += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(errors, 1);
    assert!(index.is_damaged() && noted_damage(original.dir.path()).is_some());
    assert_eq!(copies(original.dir.path()).len() as u64, index.stats().tables - 1);
    let unfinished = fs::read_dir(original.dir.path()).unwrap().flatten();
    let mut unfinished = unfinished.filter(|file| file.file_name().to_string_lossy().starts_with(".tmp"));
    assert!(unfinished.next().is_none());
}

#[test]
fn copies_of_merged_tables_go_and_young_tables_wait() {
    let original = mirrored();
    let (index, _) = OrderedIndex::open(original.dir.path(), GUARDED).unwrap();
    let before = copies(original.dir.path());
    let all = || Some(super::background::Choice::All { table_bytes: 4 << 10 });
    index.compact_by(original.seq, all).unwrap();
    // Too young.
    assert!(!index.mirror_next(Duration::from_secs(3600), |work| work()).unwrap());
    assert_eq!((copies(original.dir.path()).len(), index.mirror_bytes()), (0, 0));
    copy_all(&index);
    let after = copies(original.dir.path());
    assert!(!after.is_empty() && after.iter().all(|copy| !before.contains(copy)));
}

#[test]
fn copies_keep_within_their_room_and_the_deepest_tables_come_first() {
    let original = Original::new();
    let (index, _) = OrderedIndex::open(original.dir.path(), GUARDED).unwrap();
    let newest = index.tree.current_version().iter_tables().next().unwrap().id();
    let newest_has_copy = || {
        let prefix = format!("{newest}-");
        let mut names = copies(original.dir.path()).into_iter();
        names.any(|copy| copy.file_name().unwrap().to_str().unwrap().starts_with(&prefix))
    };
    index.set_mirror_room(0);
    assert_eq!(copy_all(&index), 0);
    let all_bytes = index.mirror_wanted_bytes();
    index.set_mirror_room(all_bytes / 2);
    copy_all(&index);
    let half = index.mirror_bytes();
    assert!(
        half > 0 && half <= all_bytes / 2 && !newest_has_copy(),
        "{half} of {all_bytes}"
    );
    index.set_mirror_room(u64::MAX);
    copy_all(&index);
    assert!(newest_has_copy() && index.mirror_bytes() == all_bytes);
    index.set_mirror_room(half);
    assert!(index.mirror_exceeds_room());
    // Removes what is beyond the room.
    copy_all(&index);
    assert!(index.mirror_bytes() <= half && !newest_has_copy() && !index.mirror_exceeds_room());
    index.set_mirror_room(0);
    copy_all(&index);
    assert_eq!((index.mirror_bytes(), copies(original.dir.path()).len()), (0, 0));
    // What an earlier life has left counts, too.
    index.set_mirror_room(u64::MAX);
    copy_all(&index);
    let bytes = index.mirror_bytes();
    drop(index);
    let (index, _) = OrderedIndex::open(original.dir.path(), SMALL).unwrap();
    assert_eq!(index.mirror_bytes(), bytes);
}

/// The steps of a copy are where a crash may come, or a device may refuse.
#[test]
fn a_copy_that_is_cut_short_leaves_nothing_of_use() {
    let original = Original::new();
    let refused = |steps: usize| {
        let dir = tempfile::tempdir().unwrap();
        copy_directory(original.dir.path(), dir.path()).unwrap();
        let (index, _) = OrderedIndex::open(dir.path(), GUARDED).unwrap();
        let mut taken = 0;
        let copied = index.mirror_next(Duration::ZERO, |work| {
            taken += 1;
            if taken > steps {
                return Err(io::ErrorKind::StorageFull.into());
            }
            work()
        });
        let count = usize::from(copied.is_ok());
        assert_eq!((copies(dir.path()).len(), index.mirror_bytes() > 0), (count, count > 0));
        assert!(!dir.path().join("mirror/.tmp-mirror").exists());
        copied
    };
    let mut steps = 0;
    while let Err(error) = refused(steps) {
        assert!(matches!(error, Error::OutOfSpace { .. }), "{error}");
        steps += 1;
    }
    assert_eq!(steps, 3, "the bytes, their end, the sync");
}
