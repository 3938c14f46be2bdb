//! Drives end to end: FUSE, loop device, ext4, power cut. They need root and /dev/fuse; without
//! these the tests report it and pass.
//!
//! Every drive has a guard that removes it, so that a failed test leaves no mounts behind.

use crate::profile::Kind;
use crate::{Counters, Drive, DriveSpec, Fault, Profile, Survival, fault::Errors, system};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Whether drives can be made here. If not, the test reports it directly to the terminal, since the
/// runner hides the output of tests that pass; `.ci/run` counts it.
fn is_possible() -> bool {
    let Err(error) = system::check_requirements() else {
        return true;
    };
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    let line = format!("test {name}: {error}\n");
    let _ = std::io::stderr().write_all(format!("left out: {line}").as_bytes());
    if let Some(list) = std::env::var_os("CI_LEFT_OUT") {
        let list = OpenOptions::new().append(true).open(list);
        list.and_then(|mut list| list.write_all(line.as_bytes())).unwrap();
    }
    false
}

/// Removes its drive at the end of the test.
struct Guard {
    drive: Option<Drive>,
    root: tempfile::TempDir,
}

impl Guard {
    fn new(name: &str, profile: &str) -> Option<Self> {
        Self::with(name, Profile::find(profile).unwrap())
    }

    /// A drive, unless none can be made here.
    fn with(name: &str, profile: Profile) -> Option<Self> {
        if !is_possible() {
            return None;
        }
        let root = tempfile::tempdir().unwrap();
        let spec = DriveSpec {
            name: name.to_owned(),
            profile,
            bytes: 64 << 20,
            seed: 5,
            directory: root.path().join("files"),
        };
        let drive = Some(Drive::create_in(&root.path().join("run"), spec).unwrap());
        Some(Self { drive, root })
    }

    fn drive(&self) -> &Drive {
        self.drive.as_ref().unwrap()
    }

    fn runtime(&self) -> std::path::PathBuf {
        self.root.path().join("run")
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.drive.take().map(Drive::remove) {
            eprintln!("{error}");
        }
    }
}

fn write_synced(path: &Path, data: &[u8]) {
    let mut file = File::create(path).unwrap();
    file.write_all(data).unwrap();
    file.sync_all().unwrap();
    // Sync the directory as well.
    File::open(path.parent().unwrap()).unwrap().sync_all().unwrap();
}

fn pattern(bytes: usize, salt: u8) -> Vec<u8> {
    (0..bytes).map(|index| (index * 31 / 7) as u8 ^ salt).collect()
}

/// A drive that keeps writes in memory until they are flushed.
fn forgetful() -> Profile {
    let mut profile = Profile::find("nvme").unwrap();
    if let Kind::Flat(flat) = &mut profile.kind {
        flat.write_back_ms = 3_600_000.0;
    }
    profile
}

/// Overwrites a file in place with direct I/O: the drive has the data, without a flush.
fn overwrite_direct(path: &Path, data: &[u8]) {
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let file = OpenOptions::new().write(true).custom_flags(direct).open(path).unwrap();
    let mut buffer = vec![0; data.len() + 4096];
    let start = buffer.as_ptr().align_offset(4096);
    buffer[start..start + data.len()].copy_from_slice(data);
    file.write_all_at(&buffer[start..start + data.len()], 0).unwrap();
}

#[test]
fn what_was_flushed_survives_a_cut_and_the_rest_meets_its_fate() {
    let Some(guard) = Guard::with("cut", forgetful()) else {
        return;
    };
    let drive = guard.drive();
    let path = drive.mount().unwrap().join("file");
    let (old, new) = (pattern(256 << 10, 1), pattern(256 << 10, 2));
    for survival in [
        Survival::None,
        Survival::All,
        Survival::Torn,
        Survival::Random,
        Survival::Prefix,
    ] {
        let point = drive.mount().unwrap();
        // Otherwise ext4 flushes the drive every five seconds, and its memory is empty.
        let seldom = ["-o", "remount,commit=3600"].map(OsStr::new);
        system::run("mount", seldom.into_iter().chain([point.as_ref()])).unwrap();
        let before = drive.counters().unwrap();
        write_synced(&path, &old);
        let flushes = drive.counters().unwrap().flushes - before.flushes;
        assert!(flushes > 0, "fsync reaches the drive as a flush");
        for piece in [0, 128 << 10] {
            overwrite_direct(&path, &new[..(256 << 10) - piece]);
        }
        assert!(
            drive.counters().unwrap().pending_bytes >= 256 << 10,
            "no flush, so it is in memory"
        );
        assert_eq!(
            fs::read(&path).unwrap(),
            new,
            "{survival:?}: reads see what is in memory"
        );
        let report = drive.cut(survival).unwrap();
        assert!(report.pending_bytes >= 256 << 10);
        let raw = drive.device().unwrap();
        let failed = File::open(raw).and_then(|mut file| file.read_exact(&mut [0; 512]));
        assert!(failed.is_err(), "without power every request fails");
        assert!(drive.cut(Survival::Any).is_err(), "there is no power to cut");

        drive.restore().unwrap();
        drive.mount().unwrap();
        let found = fs::read(&path).unwrap();
        assert_eq!(found.len(), old.len());
        let sectors = found.chunks(512).zip(old.chunks(512)).zip(new.chunks(512));
        let (mut is_old, mut is_new) = (0, 0);
        for ((found, old), new) in sectors {
            assert!(
                found == old || found == new,
                "{survival:?}: a sector is neither old nor new"
            );
            is_old += u32::from(found == old);
            is_new += u32::from(found == new);
        }
        match survival {
            Survival::None => assert_eq!(is_new, 0),
            Survival::All => assert_eq!(is_old, 0),
            _ => assert_eq!(is_old + is_new, 512),
        }
    }
    assert_eq!(drive.counters().unwrap().cuts, 5);
}

#[test]
fn each_cut_and_restore_keeps_all_that_was_synced() {
    let Some(guard) = Guard::new("cuts", "intel-320") else {
        return;
    };
    let drive = guard.drive();
    for round in 0..6_u8 {
        let point = drive.mount().unwrap();
        for earlier in 0..round {
            let data = fs::read(point.join(format!("synced-{earlier}"))).unwrap();
            assert_eq!(data, pattern(40_000, earlier), "round {round}");
        }
        // The file system is in use when the power goes.
        let mut busy = File::create(point.join("busy")).unwrap();
        write_synced(&point.join(format!("synced-{round}")), &pattern(40_000, round));
        busy.write_all(&pattern(100_000, round)).unwrap();
        drive.cut(Survival::Any).unwrap();
        drive.restore().unwrap();
        drop(busy);
    }
}

#[test]
fn a_write_error_reaches_the_writer_and_ends_on_command() {
    let Some(guard) = Guard::new("errors", "nvme") else {
        return;
    };
    let drive = guard.drive();
    let point = drive.mount().unwrap();
    let path = point.join("file");
    write_synced(&path, &pattern(8192, 3));
    let description = drive.description().unwrap();
    // After the superblock and the first group's tables.
    let fault = Fault::WriteErrors(Errors {
        start: description.bytes / 8,
        bytes: u64::MAX,
        chance: 1.0,
    });
    drive.fault(fault).unwrap();
    let mut file = File::create(point.join("failing")).unwrap();
    file.write_all(&pattern(4 << 20, 4)).unwrap();
    assert!(file.sync_all().is_err());
    drive.fault(Fault::None).unwrap();
    drop(file);
    assert!(drive.counters().unwrap().failed > 0);
    assert_eq!(fs::read(&path).unwrap(), pattern(8192, 3));
}

#[test]
fn counters_see_what_the_host_did() {
    let Some(guard) = Guard::new("counters", "nvme") else {
        return;
    };
    let drive = guard.drive();
    let point = drive.mount().unwrap();
    let before = drive.counters().unwrap();
    write_synced(&point.join("file"), &pattern(1 << 20, 5));
    drive.unmount().unwrap();
    let point = drive.mount().unwrap();
    assert_eq!(fs::read(point.join("file")).unwrap().len(), 1 << 20);
    let done: Counters = drive.counters().unwrap().since(&before);
    assert!(done.writes.bytes >= 1 << 20 && done.reads.bytes >= 1 << 20);
    assert!(done.flushes >= 2 && done.writes.requests == done.writes.sequential + done.writes.random);

    // Any process can open the drive by name, and it outlives its daemon.
    let other = Drive::open_in(&guard.runtime(), "counters").unwrap();
    let before = other.counters().unwrap();
    other.stop().unwrap();
    assert!(drive.counters().is_err());
    let point = drive.mount().unwrap();
    assert_eq!(fs::read(point.join("file")).unwrap(), pattern(1 << 20, 5));
    assert!(
        drive.counters().unwrap().reads.requests >= before.reads.requests,
        "counters go on"
    );
}

#[test]
fn a_daemon_that_was_killed_is_a_power_cut() {
    use rustix::process::{Pid, Signal, kill_process};
    let Some(guard) = Guard::new("killed", "maxtor-7l250s0") else {
        return;
    };
    let drive = guard.drive();
    let point = drive.mount().unwrap();
    write_synced(&point.join("synced"), &pattern(10_000, 6));
    let process = drive.description().unwrap().process.unwrap();
    kill_process(Pid::from_raw(process as i32).unwrap(), Signal::KILL).unwrap();
    // Nothing hangs: requests that are not cached fail.
    let failed = File::create(point.join("more")).and_then(|file| file.sync_all());
    assert!(failed.is_err());
    let point = drive.mount().unwrap();
    assert_eq!(fs::read(point.join("synced")).unwrap(), pattern(10_000, 6));
}

#[test]
fn removing_leaves_nothing_and_creating_replaces_nothing() {
    let Some(mut guard) = Guard::new("twice", "nvme") else {
        return;
    };
    let description = guard.drive().description().unwrap();
    let point = guard.drive().mount().unwrap();
    let spec = DriveSpec {
        name: "twice".to_owned(),
        profile: description.profile.clone(),
        bytes: 64 << 20,
        seed: 1,
        directory: guard.root.path().join("files"),
    };
    let refused = Drive::create_in(&guard.runtime(), spec.clone()).unwrap_err();
    assert!(refused.to_string().contains("remove it first"), "{refused}");
    assert!(
        point.join("lost+found").exists(),
        "the drive that was there is still there"
    );

    // With a file open, too.
    let open = File::create(point.join("open")).unwrap();
    let device = guard.drive().device().unwrap();
    guard.drive.take().unwrap().remove().unwrap();
    drop(open);
    assert!(!description.backing_file.exists() && !system::is_mounted(&point));
    assert!(fs::read_dir(guard.runtime()).unwrap().next().is_none());
    assert!(!system::is_attached(&device, &guard.runtime().join("twice/fuse/drive")));
    guard.drive = Some(Drive::create_in(&guard.runtime(), spec).unwrap());
}

/// Regression: files left by one contender of a benchmark decided the placement of the next one's
/// files, and so the speed of its disk.
#[test]
fn an_emptied_drive_is_as_a_new_one() {
    let Some(guard) = Guard::new("emptied", "nvme") else {
        return;
    };
    let drive = guard.drive();
    let point = drive.mount().unwrap();
    let file = point.join("file");
    write_synced(&file, &pattern(100_000, 1));
    let open = File::open(&file).unwrap();
    assert!(drive.empty().is_err(), "a file is open");
    assert!(file.exists(), "nothing has changed then");
    drop(open);
    drive.empty().unwrap();
    assert!(drive.is_mounted() && !file.exists());
    write_synced(&file, &pattern(100_000, 2));
}

/// Regression: the read-ahead was set when the loop device was made; making the file system undid
/// it on disks, and a reader by mapped memory read 2.5 MiB for each page.
#[test]
fn the_kernel_reads_no_more_ahead_than_on_a_disk() {
    for profile in ["maxtor-7l250s0", "nvme"] {
        let Some(guard) = Guard::new("ahead", profile) else {
            return;
        };
        let point = guard.drive().mount().unwrap();
        write_synced(&point.join("file"), &pattern(64 << 10, 1));
        let device = guard.drive().device().unwrap();
        let setting = Path::new("/sys/block")
            .join(device.file_name().unwrap())
            .join("queue/read_ahead_kb");
        assert_eq!(fs::read_to_string(setting).unwrap().trim(), "128", "{profile}");
    }
}
