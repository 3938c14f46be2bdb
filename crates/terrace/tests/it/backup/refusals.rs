//! Refused backups and restores, and their messages.

use super::{PATIENCE, assert_verifies, contents, fill, filled, onto, options, restored};
use std::{fs, sync::Arc, time::Instant};
use terrace::{BackupOptions, BackupProgress, Error, Options, RestoreOptions, Store};

/// A rate so low that a backup lasts through other operations, however busy the machine is.
const SLOW: u64 = 1 << 10;

#[track_caller]
fn refused<T: std::fmt::Debug>(result: terrace::Result<T>, says: &str) {
    let error = result.expect_err("it was not refused");
    assert!(error.to_string().contains(says), "{error}");
}

#[test]
fn a_directory_with_something_in_it_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let store = filled(&place("store"));
    let backup = |name: &str| store.backup(place(name), &BackupOptions::default());
    fs::create_dir_all(place("other/flash")).unwrap();
    fs::write(place("other/flash/notes"), "kept").unwrap();
    refused(backup("other"), "is not empty");
    fs::write(place("file"), "kept").unwrap();
    refused(backup("file"), "is no directory");
    refused(backup("store"), "is not empty");
    fs::create_dir(place("empty")).unwrap();
    backup("empty").unwrap();
    refused(backup("empty"), "holds a backup already");
    assert_verifies(&place("empty"));
    assert_eq!(fs::read(place("file")).unwrap(), b"kept");

    refused(
        Store::restore(place("empty"), &options(&place("other")), &RestoreOptions::default()),
        "is not empty",
    );
    refused(
        Store::restore(place("empty"), &options(&place("store")), &RestoreOptions::default()),
        "is not empty",
    );
    refused(
        Store::restore(place("other"), &options(&place("new")), &RestoreOptions::default()),
        "there is no backup here",
    );
    refused(
        Store::restore(place("nowhere"), &options(&place("new")), &RestoreOptions::default()),
        "no such directory",
    );
    assert!(!place("new").exists() && !place("nowhere").exists());
    assert!(!place("other/flash/LOCK").exists());
}

/// The store removed such backups, as files that it does not know, or they took the place of its
/// own temporary files.
#[test]
fn a_backup_is_not_made_among_the_files_of_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let store = filled(&place("store"));
    std::os::unix::fs::symlink(place("store/large"), place("link")).unwrap();
    let within = [
        "store/flash",
        "store/flash/index.new",
        "store/large/blocks/a/b",
        "link/backup",
    ];
    for name in within {
        refused(
            store.backup(place(name), &BackupOptions::default()),
            "is in a directory of the store itself",
        );
    }
    assert!(!place("store/flash/index.new").exists());
    store.backup(place("store/backup"), &BackupOptions::default()).unwrap();
    assert_verifies(&place("store/backup"));
}

#[test]
fn what_an_increment_cannot_be_built_on() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let store = filled(&place("store"));
    let stranger = Store::open(options(&place("stranger"))).unwrap();
    stranger.backup(place("strange"), &BackupOptions::default()).unwrap();
    refused(store.backup(place("b"), &onto(&place("strange"))), "another store");
    refused(store.backup(place("b"), &onto(&place("nowhere"))), "no such directory");
    refused(
        store.backup(place("b"), &onto(&place("store"))),
        "there is no backup here",
    );
    assert!(!place("b").exists(), "refused before anything was made");
    store.backup(place("1"), &BackupOptions::default()).unwrap();
    fs::write(place("1/BACKUP"), "terrace backup 1\nend").unwrap();
    assert!(matches!(
        store.backup(place("b"), &onto(&place("1"))),
        Err(Error::Corruption { .. })
    ));
}

#[test]
fn a_backup_is_read_and_never_written() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let store = filled(&place("store"));
    store.backup(place("backup"), &BackupOptions::default()).unwrap();
    let for_writing = options(&place("backup"));
    refused(Store::open(for_writing.clone()), "this is a backup");
    refused(Store::repair(for_writing.clone()), "this is a backup");
    let copy = Store::open(Options {
        read_only: true,
        ..for_writing
    })
    .unwrap();
    assert_eq!(contents(&copy), contents(&store));
    refused(copy.backup(place("of a copy"), &BackupOptions::default()), "read-only");
    drop(copy);
    assert_verifies(&place("backup"));
}

#[test]
fn one_that_was_stopped_is_a_part_which_the_next_run_takes_anew() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let store = filled(&place("store"));
    store.backup(place("earlier"), &BackupOptions::default()).unwrap();
    let progress = Arc::new(BackupProgress::default());
    let slow = BackupOptions {
        copy: true,
        bytes_per_second: Some(SLOW),
        progress: Arc::clone(&progress),
        ..BackupOptions::default()
    };
    std::thread::scope(|scope| {
        let backup = scope.spawn(|| store.backup(place("part"), &slow));
        while progress.done_bytes() == 0 {
            std::thread::yield_now();
        }
        assert!(progress.total_bytes() > progress.done_bytes());
        refused(
            store.backup(place("part"), &BackupOptions::default()),
            "another backup is being taken",
        );
        // No other operation waits for it.
        fill(&store, "meanwhile/", 200);
        progress.stop();
        refused(backup.join().unwrap(), "stopped");
    });
    let check = |name: &str| Store::verify_backup(place(name), &BackupProgress::default());
    refused(check("part"), "not complete");
    refused(store.backup(place("next"), &onto(&place("part"))), "not complete");
    refused(
        Store::restore(place("part"), &options(&place("new")), &RestoreOptions::default()),
        "not complete",
    );
    refused(Store::open(options(&place("part"))), "");
    assert_verifies(&place("earlier"));
    store.backup(place("part"), &BackupOptions::default()).unwrap();
    assert_verifies(&place("part"));
    assert_eq!(restored(&place("part")), contents(&store));
    assert_eq!(store.verify().unwrap().errors, [""; 0]);
}

/// Regression: a cancelled backup with a low rate waited until its copied bytes were due.
#[test]
fn closing_the_store_ends_its_backup() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let store = filled(&place("store"));
    let slow = BackupOptions {
        copy: true,
        bytes_per_second: Some(SLOW),
        ..BackupOptions::default()
    };
    std::thread::scope(|scope| {
        let backup = scope.spawn(|| store.backup(place("part"), &slow));
        while slow.progress.done_bytes() == 0 {
            std::thread::yield_now();
        }
        let start = Instant::now();
        store.close().unwrap();
        refused(backup.join().unwrap(), "closed");
        assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    });
    refused(store.backup(place("late"), &BackupOptions::default()), "closed");
}

#[test]
fn a_restore_that_was_stopped_is_refused_and_taken_anew() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let store = filled(&place("store"));
    store.backup(place("backup"), &BackupOptions::default()).unwrap();
    let new = options(&place("new"));
    let stopped = RestoreOptions::default();
    stopped.progress.stop();
    refused(Store::restore(place("backup"), &new, &stopped), "stopped");
    refused(
        Store::open(new.clone()),
        "a restore into it is under way or was cut short",
    );
    // The parts of another restore are not used for this one.
    let mixed = Options {
        large_dir: place("elsewhere"),
        ..new.clone()
    };
    fs::create_dir_all(place("elsewhere/blocks")).unwrap();
    fs::write(place("elsewhere/blocks/0000000000000001.blk"), "kept").unwrap();
    refused(
        Store::restore(place("backup"), &mixed, &RestoreOptions::default()),
        "is not empty",
    );
    assert!(place("elsewhere/blocks/0000000000000001.blk").exists());
    Store::restore(place("backup"), &new, &RestoreOptions::default()).unwrap();
    assert_eq!(contents(&Store::open(new.clone()).unwrap()), contents(&store));
    // A complete store is never overwritten.
    refused(
        Store::restore(place("backup"), &new, &RestoreOptions::default()),
        "is not empty",
    );
}
