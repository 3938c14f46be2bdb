//! Backups with flipped bits and missing files: they are detected, reported by name, and not
//! restored unless forced.

use super::{Contents, assert_verifies, contents, filled, options};
use crate::common::files;
use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};
use terrace::{BackupOptions, BackupProgress, Error, RestoreOptions, ScanRange, Store};

fn flip(path: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 4], at).unwrap();
}

fn taken(dir: &Path) -> (PathBuf, Contents) {
    let store = filled(&dir.join("store"));
    let copying = BackupOptions {
        copy: true,
        ..BackupOptions::default()
    };
    store.backup(dir.join("backup"), &copying).unwrap();
    (dir.join("backup"), contents(&store))
}

fn findings(backup: &Path) -> Vec<String> {
    let check = Store::verify_backup(backup, &BackupProgress::default()).unwrap();
    check.errors
}

#[test]
fn a_flipped_bit_in_any_file_is_found_and_not_restored() {
    let dir = tempfile::tempdir().unwrap();
    let (backup, _) = taken(dir.path());
    let listed: Vec<PathBuf> = files(&backup)
        .into_iter()
        .filter(|path| path.file_name().unwrap() != "BACKUP")
        .collect();
    assert!(listed.len() > 10, "{listed:?}");
    for path in &listed {
        let length = fs::metadata(path).unwrap().len();
        flip(path, length / 3);
        let found = findings(&backup);
        let name = path.strip_prefix(&backup).unwrap().display().to_string();
        assert!(
            found.iter().any(|finding| finding.starts_with(&name)),
            "{name}: {found:?}"
        );
        // After the end of a segment's frames, restore writes zeros.
        let restored = Store::restore(&backup, &options(&dir.path().join("new")), &RestoreOptions::default());
        match restored {
            Err(Error::Corruption { place, .. }) => assert!(place.ends_with(&name), "{place} instead of {name}"),
            Err(error) => panic!("{error}"),
            Ok(_) => assert!(found[0].contains("behind its end"), "{found:?}"),
        }
        let _ = fs::remove_dir_all(dir.path().join("new"));
        flip(path, length / 3);
    }
    assert_verifies(&backup);
    let at = fs::metadata(backup.join("BACKUP")).unwrap().len() / 2;
    flip(&backup.join("BACKUP"), at);
    let check = Store::verify_backup(&backup, &BackupProgress::default());
    assert!(matches!(check, Err(Error::Corruption { .. })), "{check:?}");
}

#[test]
fn a_damaged_backup_is_restored_if_asked_and_the_damage_found_when_read() {
    let dir = tempfile::tempdir().unwrap();
    let (backup, expected) = taken(dir.path());
    let blocks = files(&backup.join("large/blocks"));
    fs::remove_file(&blocks[0]).unwrap();
    flip(&blocks[1], 60_000);
    let found = findings(&backup);
    assert!(found.iter().any(|finding| finding.contains("it is gone")), "{found:?}");
    let options = options(&dir.path().join("new"));
    let keep = RestoreOptions {
        keep_damaged: true,
        ..RestoreOptions::default()
    };
    let report = Store::restore(&backup, &options, &keep).unwrap();
    assert_eq!(report.damaged.len(), 2, "{report:?}");
    let store = Store::open(options).unwrap();
    let (mut sound, mut lost) = (0, 0);
    for item in store.scan(ScanRange::all()).unwrap() {
        let item = item.unwrap();
        match item.value() {
            Ok(value) => {
                assert_eq!(value, expected[std::str::from_utf8(&item.key).unwrap()]);
                sound += 1;
            }
            Err(Error::Corruption { .. }) => lost += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(sound + lost, expected.len());
    assert!(lost > 0 && sound > lost, "{lost} of {}", expected.len());
}

#[test]
fn damage_of_a_linked_file_is_found_by_reading_what_is_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(&dir.path().join("store"));
    let backup = dir.path().join("backup");
    store.backup(&backup, &BackupOptions::default()).unwrap();
    let check = Store::verify_backup(&backup, &BackupProgress::default()).unwrap();
    assert!(check.linked_bytes > 0 && check.compared_bytes > 0, "{check:?}");
    // In the first value of the first block.
    flip(&files(&backup.join("large/blocks"))[0], 20_000);
    let found = findings(&backup);
    assert!(found.iter().any(|finding| finding.starts_with("key ")), "{found:?}");
}
