//! Power cuts at every operation of a backup and of a restore, and full targets.

use super::{Contents, contents, filled, options};
use std::{path::Path, sync::Arc};
use terrace::{
    BackupOptions, Error, Options, RestoreOptions, Store,
    io::{SimDisk, Survival},
};

fn to(disk: &SimDisk) -> BackupOptions {
    BackupOptions {
        target_disk: Some(Arc::new(disk.clone())),
        ..BackupOptions::default()
    }
}

fn from(disk: &SimDisk) -> RestoreOptions {
    RestoreOptions {
        backup_disk: Some(Arc::new(disk.clone())),
        ..RestoreOptions::default()
    }
}

/// Contents of a backup on a simulated disk.
fn restored(disk: &SimDisk) -> terrace::Result<Contents> {
    let dir = tempfile::tempdir().unwrap();
    Store::restore("backup", &options(dir.path()), &from(disk))?;
    let store = Store::open(options(dir.path())).unwrap();
    assert_eq!(store.verify().unwrap().errors, [""; 0]);
    Ok(contents(&store))
}

#[test]
fn a_power_cut_at_any_moment_of_a_backup_leaves_a_backup_or_a_part_that_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(dir.path());
    let expected = contents(&store);
    let whole = SimDisk::new(1);
    store.backup("backup", &to(&whole)).unwrap();
    assert_eq!(restored(&whole).unwrap(), expected);
    let operations = whole.operations();
    let (mut parts, mut complete) = (0, 0);
    // Each of the first and last operations, where the order matters, and some others.
    let cuts = (0..operations).filter(|&at| at < 25 || at % 9 == 0 || at + 40 > operations);
    for (at, survival) in cuts.zip(Survival::ALL.into_iter().cycle()) {
        let disk = SimDisk::new(at);
        disk.cut_after(at);
        let taken = store.backup("backup", &to(&disk));
        disk.power_cycle(survival);
        match restored(&disk) {
            Ok(found) => {
                assert_eq!(found, expected, "cut after {at} operations");
                complete += 1;
            }
            Err(error @ Error::NotAStore { .. }) => {
                assert!(taken.is_err(), "a backup that was reported is gone: {error}");
                let text = error.to_string();
                assert!(
                    text.contains("not complete") || text.contains("there is no backup here"),
                    "{text}"
                );
                parts += 1;
                store.backup("backup", &to(&disk)).unwrap();
                assert_eq!(restored(&disk).unwrap(), expected, "after a cut at {at}");
            }
            Err(error) => panic!("cut after {at} operations: {error}"),
        }
    }
    assert!(parts > 20 && complete > 0, "{parts} parts, {complete} complete");
    assert_eq!(store.stats().failed, None);
    assert_eq!(store.verify().unwrap().errors, [""; 0]);
    assert_eq!(contents(&store), expected);
}

/// A machine to restore to. The index keeps its files in a real directory, which simulated cuts do
/// not affect.
struct Machine {
    dir: tempfile::TempDir,
    flash: SimDisk,
    large: SimDisk,
}

impl Machine {
    fn new(seed: u64) -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            flash: SimDisk::new(seed),
            large: SimDisk::new(seed + 1),
        }
    }

    fn options(&self) -> Options {
        Options {
            create: false,
            flash_disk: Some(Arc::new(self.flash.clone())),
            large_disk: Some(Arc::new(self.large.clone())),
            ..options(self.dir.path())
        }
    }

    fn restore(&self, backup: &Path) -> terrace::Result<()> {
        Store::restore(backup, &self.options(), &RestoreOptions::default()).map(drop)
    }
}

#[test]
fn a_power_cut_at_any_moment_of_a_restore_leaves_a_store_or_a_part_that_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(&dir.path().join("store"));
    let expected = contents(&store);
    let backup = dir.path().join("backup");
    store.backup(&backup, &BackupOptions::default()).unwrap();
    let whole = Machine::new(1);
    whole.restore(&backup).unwrap();
    let disks = |machine: &Machine| [machine.flash.clone(), machine.large.clone()];
    let (mut parts, mut complete) = (0, 0);
    for (which, disk) in disks(&whole).into_iter().enumerate() {
        let operations = disk.operations();
        let cuts = (0..=operations).filter(|&at| at < 20 || at % 13 == 0 || at + 15 > operations);
        for (at, survival) in cuts.zip(Survival::ALL.into_iter().cycle()) {
            let machine = Machine::new(at);
            disks(&machine)[which].cut_after(at);
            let restored = machine.restore(&backup);
            disks(&machine).iter().for_each(|disk| disk.power_cycle(survival));
            match Store::open(machine.options()) {
                Ok(store) => {
                    assert_eq!(contents(&store), expected, "cut after {at} operations");
                    complete += 1;
                    continue;
                }
                Err(Error::NotAStore { reason, .. }) => {
                    assert!(restored.is_err(), "a restore that was reported is gone: {reason}");
                    let says = ["cut short", "there is no store here"];
                    assert!(says.iter().any(|text| reason.contains(text)), "{reason}");
                    parts += 1;
                }
                Err(error) => panic!("cut after {at} operations: {error}"),
            }
            machine.restore(&backup).unwrap();
            let store = Store::open(machine.options()).unwrap();
            assert_eq!(contents(&store), expected, "after a cut at {at}");
            assert_eq!(store.verify().unwrap().errors, [""; 0]);
        }
    }
    assert!(parts > 20 && complete > 0, "{parts} parts, {complete} complete");
}

#[test]
fn a_part_of_a_restore_is_not_repaired_either() {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(&dir.path().join("store"));
    let backup = dir.path().join("backup");
    store.backup(&backup, &BackupOptions::default()).unwrap();
    let machine = Machine::new(3);
    machine.large.cut_after(10);
    assert!(machine.restore(&backup).is_err());
    machine.large.power_cycle(Survival::Everything);
    let error = Store::repair(machine.options()).unwrap_err();
    assert!(error.to_string().contains("terrace restore"), "{error}");
}

#[test]
fn a_full_target_is_said_to_be_and_leaves_the_store_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(dir.path());
    let expected = contents(&store);
    let whole = SimDisk::new(1);
    let bytes = store.backup("backup", &to(&whole)).unwrap().bytes;
    for share in [0, 1, 4, 8] {
        let disk = SimDisk::new(share);
        disk.set_capacity(Some(bytes * share / 9));
        let error = store.backup("backup", &to(&disk)).unwrap_err();
        let text = error.to_string();
        if share > 0 {
            assert!(text.contains("full: free space there"), "{text}");
        }
        assert!(restored(&disk).is_err());
        assert_eq!(store.stats().failed, None, "the store has nothing to do with it");
        store.put("still written", b"yes").unwrap();
        store.delete("still written").unwrap();
        disk.set_capacity(None);
        store.backup("backup", &to(&disk)).unwrap();
        assert_eq!(restored(&disk).unwrap(), expected);
    }
}
