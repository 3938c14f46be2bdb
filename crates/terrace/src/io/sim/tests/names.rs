//! What becomes of names when the power is cut.

pub(super) use super::super::names::parent;
use super::*;

/// The sets of files that cuts with many seeds leave behind, each with its content.
fn survivors(act: impl Fn(&SimDisk)) -> BTreeSet<Vec<(String, Vec<u8>)>> {
    let mut outcomes = BTreeSet::new();
    for seed in 0..60 {
        let disk = SimDisk::new(seed);
        disk.create_dir_all(path("d")).unwrap();
        disk.create_dir_all(path("e")).unwrap();
        act(&disk);
        disk.power_cycle(Survival::Random);
        let files = disk.files().into_iter();
        outcomes.insert(
            files
                .map(|name| (name.clone(), disk.read_file(&name).unwrap()))
                .collect(),
        );
    }
    outcomes
}

fn outcome(files: &[(&str, &[u8])]) -> Vec<(String, Vec<u8>)> {
    let files = files.iter();
    files
        .map(|(name, content)| ((*name).to_owned(), content.to_vec()))
        .collect()
}

/// A file with synced content; its name is not synced.
fn put(disk: &SimDisk, name: &str, content: &[u8]) {
    let file = disk.open(path(name), OpenMode::CREATE).unwrap();
    file.write_all_at(content, 0).unwrap();
    file.sync_data().unwrap();
}

fn sync(disk: &SimDisk, directory: &str) {
    disk.sync_dir(path(directory)).unwrap();
}

#[test]
fn a_new_file_may_vanish_though_its_data_was_synced() {
    let outcomes = survivors(|disk| put(disk, "d/a", b"A"));
    assert_eq!(outcomes, BTreeSet::from([outcome(&[]), outcome(&[("d/a", b"A")])]));
    let outcomes = survivors(|disk| {
        put(disk, "d/a", b"A");
        sync(disk, "e");
        sync(disk, "");
    });
    assert_eq!(outcomes.len(), 2, "syncing another directory does not help");
    let outcomes = survivors(|disk| {
        put(disk, "d/a", b"A");
        sync(disk, "d");
    });
    assert_eq!(outcomes, BTreeSet::from([outcome(&[("d/a", b"A")])]));
}

#[test]
fn a_removal_may_be_undone() {
    let remove = |disk: &SimDisk| {
        put(disk, "a", b"A");
        sync(disk, "");
        disk.remove(path("a")).unwrap();
    };
    assert_eq!(
        survivors(remove),
        BTreeSet::from([outcome(&[]), outcome(&[("a", b"A")])])
    );
    let outcomes = survivors(|disk| {
        remove(disk);
        sync(disk, "");
    });
    assert_eq!(outcomes, BTreeSet::from([outcome(&[])]));
}

#[test]
fn a_rename_over_another_file_is_all_or_nothing() {
    let replace = |disk: &SimDisk| {
        put(disk, "current", b"old");
        put(disk, "current.new", b"new");
        sync(disk, "");
        disk.rename(path("current.new"), path("current")).unwrap();
    };
    let before = outcome(&[("current", b"old"), ("current.new", b"new")]);
    let after = outcome(&[("current", b"new")]);
    assert_eq!(survivors(replace), BTreeSet::from([before, after.clone()]));
    let outcomes = survivors(|disk| {
        replace(disk);
        sync(disk, "");
    });
    assert_eq!(outcomes, BTreeSet::from([after]));
}

#[test]
fn without_a_sync_a_rename_may_bring_an_empty_file() {
    // The classic mistake: write, rename, sync the directory; never the data.
    let outcomes = survivors(|disk| {
        put(disk, "a", b"old");
        sync(disk, "");
        let file = disk.open(path("b"), OpenMode::CREATE).unwrap();
        file.write_all_at(b"new", 0).unwrap();
        disk.rename(path("b"), path("a")).unwrap();
        sync(disk, "");
    });
    assert!(outcomes.contains(&outcome(&[("a", b"")])), "{outcomes:?}");
    assert!(outcomes.contains(&outcome(&[("a", b"new")])), "{outcomes:?}");
    assert!(!outcomes.contains(&outcome(&[("a", b"old")])), "{outcomes:?}");
}

#[test]
fn a_rename_between_directories_needs_both() {
    let rename = |disk: &SimDisk| {
        put(disk, "d/a", b"A");
        sync(disk, "d");
        disk.rename(path("d/a"), path("e/a")).unwrap();
    };
    let (before, after) = (outcome(&[("d/a", b"A")]), outcome(&[("e/a", b"A")]));
    let both = BTreeSet::from([before, after.clone()]);
    assert_eq!(survivors(rename), both);
    for directories in [["d", "d"], ["e", "e"]] {
        let outcomes = survivors(|disk| {
            rename(disk);
            directories.iter().for_each(|directory| sync(disk, directory));
        });
        assert_eq!(outcomes, both);
    }
    for directories in [["d", "e"], ["e", "d"]] {
        let outcomes = survivors(|disk| {
            rename(disk);
            directories.iter().for_each(|directory| sync(disk, directory));
        });
        assert_eq!(outcomes, BTreeSet::from([after.clone()]));
    }
}

#[test]
fn a_durable_removal_takes_the_renames_before_it_along() {
    let outcomes = survivors(|disk| {
        put(disk, "d/a", b"A");
        sync(disk, "d");
        disk.rename(path("d/a"), path("e/a")).unwrap();
        disk.remove(path("e/a")).unwrap();
        // Only the second directory: the file must not come back under either name.
        sync(disk, "e");
    });
    assert_eq!(outcomes, BTreeSet::from([outcome(&[])]));
}

#[test]
fn a_file_never_gets_two_names() {
    let outcomes = survivors(|disk| {
        put(disk, "a", b"A");
        sync(disk, "");
        disk.rename(path("a"), path("b")).unwrap();
        disk.rename(path("b"), path("c")).unwrap();
    });
    let alone = |name| outcome(&[(name, b"A")]);
    assert_eq!(outcomes, BTreeSet::from([alone("a"), alone("b"), alone("c")]));
}

#[test]
fn a_name_used_again_shows_the_old_or_the_new_file() {
    let outcomes = survivors(|disk| {
        put(disk, "a", b"old");
        sync(disk, "");
        disk.remove(path("a")).unwrap();
        put(disk, "a", b"new");
    });
    let expected = [outcome(&[]), outcome(&[("a", b"old")]), outcome(&[("a", b"new")])];
    assert_eq!(outcomes, BTreeSet::from(expected));
}

#[test]
fn a_failed_directory_sync_loses_names_for_good() {
    let outcomes = survivors(|disk| {
        put(disk, "a", b"A");
        disk.fail_after(0, FaultKind::Sync);
        disk.sync_dir(path("")).unwrap_err();
        disk.set_fault(None);
        sync(disk, "");
        assert_eq!(disk.files(), ["a"]);
    });
    assert_eq!(outcomes, BTreeSet::from([outcome(&[]), outcome(&[("a", b"A")])]));
}

#[test]
fn a_prefix_never_has_a_later_name_without_an_earlier_one() {
    let mut counts = BTreeSet::new();
    for seed in 0..60 {
        let disk = SimDisk::new(seed);
        for number in 0..6 {
            put(&disk, &number.to_string(), b"");
        }
        disk.power_cycle(Survival::Prefix);
        let files = disk.files();
        let expected: Vec<String> = (0..files.len()).map(|number| number.to_string()).collect();
        assert_eq!(files, expected);
        counts.insert(files.len());
    }
    assert_eq!(counts, (0..=6).collect());
}
