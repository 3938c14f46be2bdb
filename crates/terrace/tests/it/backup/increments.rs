//! Which files are linked, reused and copied, by bytes and inodes.

use super::{PATIENCE, assert_verifies, contents, fill, filled, onto, options, restored};
use crate::common::files;
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Instant,
};
use terrace::{BackupOptions, BackupReport, RestoreOptions, Store};

fn inodes(dir: &Path) -> BTreeSet<u64> {
    files(dir)
        .iter()
        .map(|path| fs::metadata(path).unwrap().ino())
        .collect()
}

fn assert_adds_up(report: &BackupReport) {
    assert_eq!(
        report.bytes,
        report.copied_bytes + report.linked_bytes + report.reused_bytes,
        "{report:?}"
    );
}

#[test]
fn a_chain_copies_what_is_new_and_links_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let store = filled(&place("store"));
    let first = store.backup(place("1"), &BackupOptions::default()).unwrap();
    assert_adds_up(&first);
    assert!(
        first.linked_bytes > 1 << 20,
        "sealed blocks and tables are linked: {first:?}"
    );
    assert_eq!(first.reused_bytes, 0);

    // Nothing has changed: small files are written, and the tail's segment is reused.
    let second = store.backup(place("2"), &onto(&place("1"))).unwrap();
    assert_adds_up(&second);
    assert_eq!(second.version, first.version);
    assert_eq!(second.linked_bytes, 0, "{second:?}");
    assert!(
        second.reused_bytes > first.linked_bytes,
        "segments are reused, too: {second:?}"
    );
    let open_blocks = 512 << 10;
    assert!(second.copied_bytes < open_blocks, "{second:?}");

    // A few new values, some of them in a block.
    fill(&store, "new/", 8);
    let third = store.backup(place("3"), &onto(&place("2"))).unwrap();
    assert_adds_up(&third);
    assert!(third.version > second.version);
    assert!(
        third.copied_bytes + third.linked_bytes < first.bytes / 3,
        "{third:?} after {first:?}"
    );
    let expected = contents(&store);
    store.flush().unwrap();

    // Each backup is complete: earlier ones and the store may be removed.
    drop(store);
    for gone in ["store", "1", "2"] {
        fs::remove_dir_all(place(gone)).unwrap();
    }
    assert_verifies(&place("3"));
    assert_eq!(restored(&place("3")), expected);
}

#[test]
fn segments_are_never_shared_with_the_store_and_a_copy_shares_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let store = filled(&place("store"));
    store.backup(place("linked"), &BackupOptions::default()).unwrap();
    let of_store = inodes(&place("store"));
    assert!(
        !inodes(&place("linked")).is_disjoint(&of_store),
        "this file system links"
    );
    assert!(inodes(&place("linked/flash/segments")).is_disjoint(&of_store));

    let copying = |earlier: Option<PathBuf>| BackupOptions {
        onto: earlier,
        copy: true,
        ..BackupOptions::default()
    };
    // Not even through an earlier backup with links.
    let copied = store.backup(place("copied"), &copying(Some(place("linked")))).unwrap();
    assert_adds_up(&copied);
    assert_eq!(copied.linked_bytes, 0);
    assert!(inodes(&place("copied")).is_disjoint(&of_store));
    let again = store.backup(place("again"), &copying(Some(place("copied")))).unwrap();
    assert!(again.reused_bytes > again.bytes / 2, "{again:?}");
    assert!(inodes(&place("again")).is_disjoint(&of_store));
    for name in ["linked", "copied", "again"] {
        assert_verifies(&place(name));
        assert_eq!(restored(&place(name)), contents(&store), "{name}");
    }
}

#[test]
fn a_backup_stays_as_it_is_while_the_store_writes_all_of_it_anew() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let store = filled(&place("store"));
    let expected = contents(&store);
    store.backup(place("backup"), &BackupOptions::default()).unwrap();
    let before: Vec<_> = files(&place("backup"))
        .iter()
        .map(|path| fs::read(path).unwrap())
        .collect();
    for round in 0..12 {
        fill(&store, "k/", 200);
        fill(&store, &format!("more{round}/"), 40);
        store.flush().unwrap();
    }
    assert!(store.stats().log.segments_reclaimed > 0, "{:?}", store.stats());
    let until = Instant::now() + PATIENCE;
    while store.stats().index.compactions == 0 {
        assert!(Instant::now() < until, "{:?}", store.stats());
        std::thread::yield_now();
    }
    store.close().unwrap();
    drop(Store::open(options(&place("store"))).unwrap());
    let after: Vec<_> = files(&place("backup"))
        .iter()
        .map(|path| fs::read(path).unwrap())
        .collect();
    assert!(before == after, "the backup's files have changed");
    assert_verifies(&place("backup"));
    assert_eq!(restored(&place("backup")), expected);
    let names = files(&place("backup"));
    assert_verifies(&place("backup"));
    assert_eq!(files(&place("backup")), names, "checking leaves nothing behind");
}

/// A restored store continues with the same numbers for other blocks and segments.
#[test]
fn another_life_of_the_store_takes_nothing_from_a_backup_of_this_one() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let store = filled(&place("store"));
    store.backup(place("1"), &BackupOptions::default()).unwrap();
    Store::restore(place("1"), &options(&place("other")), &RestoreOptions::default()).unwrap();
    fill(&store, "a/", 60);
    store.close().unwrap();
    drop(store);
    let store = Store::open(options(&place("store"))).unwrap();
    store.backup(place("2"), &onto(&place("1"))).unwrap();
    // The same lengths at the same places, with other bytes.
    let other = Store::open(options(&place("other"))).unwrap();
    fill(&other, "b/", 60);
    other.close().unwrap();
    drop(other);
    let other = Store::open(options(&place("other"))).unwrap();
    let third = other.backup(place("3"), &onto(&place("2"))).unwrap();
    assert_eq!(third.reused_bytes, 0, "{third:?}");
    assert_verifies(&place("3"));
    assert_eq!(restored(&place("3")), contents(&other));
    assert_eq!(restored(&place("2")), contents(&store));
}

#[test]
fn an_empty_store_is_backed_up_and_a_limit_of_the_rate_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let store = Store::open(options(&place("store"))).unwrap();
    let report = store.backup(place("empty"), &BackupOptions::default()).unwrap();
    assert_eq!(report.version.0, 0);
    assert_verifies(&place("empty"));
    assert!(restored(&place("empty")).is_empty());
    fill(&store, "k/", 100);
    let slow = BackupOptions {
        copy: true,
        bytes_per_second: Some(4 << 20),
        ..BackupOptions::default()
    };
    let report = store.backup(place("slow"), &slow).unwrap();
    #[allow(clippy::cast_precision_loss)]
    let least = report.copied_bytes as f64 / f64::from(5 << 20);
    assert!(report.elapsed.as_secs_f64() > least, "{report:?}");
    assert_eq!(restored(&place("slow")), contents(&store));
}

/// A file of the earlier backup that had been cut short was linked: the new backup could not be
/// used either, and said nothing.
#[test]
fn a_file_of_the_earlier_backup_that_was_cut_short_is_copied_anew() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let store = filled(&place("store"));
    let copies = BackupOptions {
        copy: true,
        ..BackupOptions::default()
    };
    store.backup(place("1"), &copies).unwrap();
    let of_kind = |kind: &str| {
        let all = files(&place("1"));
        all.into_iter()
            .find(|path| path.to_string_lossy().contains(kind))
            .unwrap()
    };
    for path in [of_kind("/blocks/"), of_kind("/tables/")] {
        fs::File::options()
            .write(true)
            .open(path)
            .unwrap()
            .set_len(1000)
            .unwrap();
    }
    let second = store.backup(place("2"), &onto(&place("1"))).unwrap();
    assert_adds_up(&second);
    assert!(second.reused_bytes > 0, "{second:?}");
    assert_verifies(&place("2"));
}
