//! A flash device filled by the index: the index keeps its own files, so a simulated disk cannot
//! refuse it space. Each test runs itself again in a process with its own mount namespace, on a
//! small tmpfs that disappears with the process. Where the system does not allow this, the test
//! reports it and tests nothing, which `.ci/run` counts.

use super::bench::{BUFFERED, Values, assert_all, bytes, eventually};
use crate::common::left_out;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};
use terrace::{Batch, Durability, Error, Options, ScanRange, Store, Tier};

/// Environment variable of the process with the small device: its mount point.
const DEVICE: &str = "TERRACE_TEST_DEVICE";

/// Longest log.
const LOG_BYTES: u64 = 2 << 20;

fn succeeds(command: &mut Command) -> bool {
    let output = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    output.status().is_ok_and(|status| status.success())
}

/// `unshare` with the flags that work here: as root, or as root of a user namespace.
fn unshare(dir: &Path) -> Option<Command> {
    for flags in ["-m", "-Urm"] {
        let command = || {
            let mut command = Command::new("unshare");
            command.arg(flags);
            command
        };
        let mut probe = command();
        probe
            .args(["mount", "-t", "tmpfs", "-o", "size=64k", "terrace-test"])
            .arg(dir);
        if succeeds(&mut probe) {
            return Some(command());
        }
    }
    None
}

/// Runs `body` on a device of its own; `name` is the test's name as the test runner shows it.
pub fn on_a_small_device(name: &str, body: fn(&Device)) {
    if let Some(dir) = env::var_os(DEVICE) {
        let device = Device { dir: dir.into() };
        assert!(
            device.mount(&["-t", "tmpfs", "-o", "size=6m", "terrace-test"]),
            "{name}"
        );
        body(&device);
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let Some(mut command) = unshare(dir.path()) else {
        left_out(name, "this system does not allow mounting a file system");
        return;
    };
    command
        .arg(env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"]);
    let output = command.env(DEVICE, dir.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    eprintln!("{text}");
}

pub struct Device {
    dir: PathBuf,
}

impl Device {
    /// The device of a process that a process on a small device started.
    pub fn here() -> Self {
        let dir = env::var_os(DEVICE).unwrap().into();
        Self { dir }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn mount(&self, options: &[&str]) -> bool {
        succeeds(Command::new("mount").args(options).arg(&self.dir))
    }

    /// Mounts a second device at a directory on the first.
    pub fn mount_second(&self, name: &str, size: &str) -> bool {
        let options = ["-t", "tmpfs", "-o", size, "terrace-test"];
        succeeds(Command::new("mount").args(options).arg(self.dir.join(name)))
    }

    fn enlarge(&self) {
        assert!(self.mount(&["-o", "remount,size=256m"]));
    }

    fn open(&self, large: &Path) -> Store {
        Store::open(self.options(large)).unwrap()
    }

    /// Options with a log that is small relative to the device, so that the index fills it.
    fn options(&self, large: &Path) -> Options {
        Options {
            flash_dir: self.dir.join("flash"),
            large_dir: large.to_owned(),
            segment_bytes: 256 << 10,
            log_capacity_bytes: Some(LOG_BYTES),
            size_threshold_bytes: 8 << 10,
            cache_bytes: 0,
            ..Options::new(&self.dir)
        }
        .tuned(|tuning| {
            tuning.memtable_bytes = 256 << 10;
            tuning.overlay_bytes = 1 << 20;
            tuning.index_cache_bytes = 1 << 20;
        })
    }

    /// Both tiers on the device, with space for some dozens of segments and blocks.
    pub fn for_everything(&self) -> Options {
        assert!(self.mount(&["-o", "remount,size=48m"]));
        self.everything()
    }

    /// Both tiers on the device.
    pub fn everything(&self) -> Options {
        Options {
            flash_dir: self.dir.join("flash"),
            large_dir: self.dir.join("large"),
            segment_bytes: 1 << 20,
            split_threshold_bytes: 1 << 20,
            size_threshold_bytes: 64 << 10,
            cache_bytes: 0,
            ..Options::new(&self.dir)
        }
        .tuned(|tuning| {
            tuning.memtable_bytes = 256 << 10;
            tuning.space_slack_bytes = 1 << 20;
        })
    }

    /// Number of table files, finished or not.
    fn table_files(&self) -> u64 {
        fs::read_dir(self.dir.join("flash/index/tables")).unwrap().count() as u64
    }

    /// Bytes of the tables and the index's other files.
    fn index_bytes(&self) -> u64 {
        let files = super::bench::files(&self.dir.join("flash/index"));
        files
            .iter()
            .map(|file| fs::metadata(file).map_or(0, |file| file.len()))
            .sum()
    }
}

/// Puts tiny objects, which are stored inline in the index, until they are refused. A compaction
/// that ends may free space meanwhile; then more are accepted. What remains to be persisted then
/// has the reserve.
fn fill_up(store: &Store, values: &mut Values) {
    for _ in 0..50 {
        let before = values.len();
        put_until_refused(store, values);
        match store.flush() {
            Err(Error::OutOfSpace { tier: Tier::Flash, .. }) => return,
            flushed => flushed.unwrap(),
        }
        if values.len() == before {
            return;
        }
    }
    panic!("there is always room again");
}

/// Fills the device until the index is longer than the log may ever be. A refusal alone does not
/// show that: the unfinished output of a compaction fills a device as well, and when it is removed
/// the reserve is restored and more is accepted. Below this length there is always space for the
/// reserve.
fn fill_with_index(device: &Device, store: &Store, values: &mut Values) {
    eventually("filling the device with the index", store, |_| {
        fill_up(store, values);
        device.index_bytes() > LOG_BYTES
    });
}

fn put_until_refused(store: &Store, values: &mut Values) {
    for n in values.len() as u64..1_000_000 {
        let (key, value) = (format!("tiny/{n:07}"), bytes(n, 40));
        match store.put_with(&key, &value, &BUFFERED) {
            Ok(_) => values.entry(key).or_default().push(value),
            Err(Error::OutOfSpace { tier: Tier::Flash, .. }) => return,
            Err(error) => panic!("{error}; {:#?}", store.stats()),
        }
    }
    panic!("there is no end of room");
}

/// Writes until it succeeds again. A flush and a compaction may still compete for space for a
/// moment.
fn resumes(store: &Store, values: &mut Values, count: u64) {
    let start = Instant::now();
    let until_done = |attempt: &dyn Fn() -> terrace::Result<()>| {
        while let Err(error) = attempt() {
            assert!(matches!(error, Error::OutOfSpace { .. }), "{error}");
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "writes do not resume: {error}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    for n in 0..count {
        let (key, value) = (format!("more/{n:05}"), bytes(n, 40));
        until_done(&|| store.put_with(&key, &value, &BUFFERED).map(drop));
        values.entry(key).or_default().push(value);
    }
    until_done(&|| store.flush().map(drop));
}

/// Closing must not wait for space that does not become free.
fn drop_promptly(store: Store) {
    let start = Instant::now();
    let closed = store.close();
    drop(store);
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "closing took {:?}",
        start.elapsed()
    );
    assert!(matches!(closed, Ok(()) | Err(Error::OutOfSpace { .. })), "{closed:?}");
}

/// Whether a flush is still refused depends on the space that compactions freed; [`fill_up`] waits
/// until one was.
fn assert_answers_and_reads(store: &Store, values: &Values) {
    assert_all(store, values);
    // A scan waits for the applier, which must not wait for space.
    let start = Instant::now();
    let scanned = store.scan(ScanRange::all()).unwrap().map(|item| item.unwrap().key);
    assert!(
        scanned.eq(values.keys().map(String::as_bytes)),
        "the scan has other keys"
    );
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "the scan took {:?}",
        start.elapsed()
    );
    let start = Instant::now();
    let flushed = store.flush();
    assert!(
        matches!(flushed, Ok(()) | Err(Error::OutOfSpace { tier: Tier::Flash, .. })),
        "{flushed:?}"
    );
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "the flush took {:?}",
        start.elapsed()
    );
    assert_eq!(store.stats().failed, None, "a full device is no failure");
}

#[test]
fn a_device_that_the_index_fills_refuses_writes_and_takes_them_again_with_more_room() {
    on_a_small_device(
        "faults::full::a_device_that_the_index_fills_refuses_writes_and_takes_them_again_with_more_room",
        |device| {
            let large = tempfile::tempdir().unwrap();
            let store = device.open(large.path());
            let mut values = Values::new();
            fill_with_index(device, &store, &mut values);
            assert_answers_and_reads(&store, &values);
            // Compactions retry meanwhile.
            std::thread::sleep(Duration::from_secs(6));
            assert_answers_and_reads(&store, &values);
            fill_up(&store, &mut values);
            assert_answers_and_reads(&store, &values);
            // Of all those attempts only the output of those under way is left.
            eventually("removing what attempts left", &store, |stats| {
                device.table_files() <= stats.index.tables + 4
            });
            device.enlarge();
            resumes(&store, &mut values, 20_000);
            assert_all(&store, &values);
            store.close().unwrap();
            drop(store);
            let store = device.open(large.path());
            assert_all(&store, &values);
            assert_eq!(store.verify().unwrap().errors, Vec::<String>::new());
        },
    );
}

#[test]
fn a_store_on_a_full_device_closes_and_opens_and_has_everything_acknowledged() {
    on_a_small_device(
        "faults::full::a_store_on_a_full_device_closes_and_opens_and_has_everything_acknowledged",
        |device| {
            let large = tempfile::tempdir().unwrap();
            let mut values = Values::new();
            let store = device.open(large.path());
            fill_up(&store, &mut values);
            drop_promptly(store);
            for _ in 0..3 {
                let store = device.open(large.path());
                assert_all(&store, &values);
                drop_promptly(store);
            }
            device.enlarge();
            let store = device.open(large.path());
            assert_all(&store, &values);
            resumes(&store, &mut values, 20_000);
            assert_all(&store, &values);
            assert_eq!(store.verify().unwrap().errors, Vec::<String>::new());
        },
    );
}

#[test]
fn writes_resume_when_the_device_has_space_again() {
    on_a_small_device(
        "faults::full::writes_resume_when_the_device_has_space_again",
        |device| {
            let large = tempfile::tempdir().unwrap();
            let store = device.open(large.path());
            let mut values = Values::new();
            // Another file takes the rest of the device, and is removed again.
            let ballast = device.dir.join("ballast");
            fs::write(&ballast, vec![1; 2 << 20]).unwrap();
            fill_up(&store, &mut values);
            assert_answers_and_reads(&store, &values);
            fs::remove_file(&ballast).unwrap();
            resumes(&store, &mut values, 2_000);
            assert_all(&store, &values);
        },
    );
}

#[test]
fn a_new_store_on_a_device_that_is_too_small_is_refused_and_says_what_fits() {
    on_a_small_device(
        "faults::full::a_new_store_on_a_device_that_is_too_small_is_refused_and_says_what_fits",
        |device| {
            let large = tempfile::tempdir().unwrap();
            let with_segments = |segment_bytes| {
                Options {
                    segment_bytes,
                    log_capacity_bytes: Some(64 << 20),
                    size_threshold_bytes: 8 << 10,
                    ..device.options(large.path())
                }
                .tuned(|tuning| tuning.memtable_bytes = 256 << 10)
            };
            let refused = Store::open(with_segments(2 << 20)).unwrap_err();
            assert!(
                matches!(refused, Error::OutOfSpace { tier: Tier::Flash, .. }),
                "{refused}"
            );
            let text = refused.to_string();
            assert!(
                text.contains("needs 10 MiB") && !text.contains("segment-size"),
                "{text}"
            );
            // No decision is permanent.
            let store = Store::open(with_segments(256 << 10)).unwrap();
            store.put("key", bytes(1, 5_000)).unwrap();
            assert!(store.get("key").unwrap().is_some());
            store.close().unwrap();
            drop(store);
            // An existing store is opened, however little space is left.
            fs::write(device.dir.join("ballast"), vec![1; 3 << 20]).unwrap();
            let store = Store::open(with_segments(256 << 10)).unwrap();
            assert!(store.get("key").unwrap().is_some());
        },
    );
}

/// Regression: with the defaults a store could not be created on a disk of 300 MB, since segments
/// had 64 MiB.
#[test]
fn a_store_begins_on_a_hundred_megabytes_without_a_setting() {
    on_a_small_device(
        "faults::full::a_store_begins_on_a_hundred_megabytes_without_a_setting",
        |device| {
            assert!(device.mount(&["-o", "remount,size=100000000"]));
            let options = Options::new(device.dir().join("store"));
            let store = Store::open(options.clone()).unwrap();
            assert!(store.stats().reserve_bytes > 0, "{:?}", store.stats().full);
            for (key, length) in [("inline", 50), ("flash", 20_000), ("large", 5_000_000)] {
                store.put(key, bytes(1, length)).unwrap();
            }
            store.close().unwrap();
            drop(store);
            let store = Store::open(options).unwrap();
            for (key, length) in [("inline", 50), ("flash", 20_000), ("large", 5_000_000)] {
                assert!(store.get(key).unwrap().unwrap().value == bytes(1, length), "{key}");
            }
        },
    );
}

/// Puts objects of one length until they are refused; returns how many were accepted, and the
/// duration of the refusal.
pub fn fill_with(store: &Store, prefix: &str, length: usize) -> (u64, Duration) {
    let value = bytes(1, length);
    for n in 0..100_000 {
        let start = Instant::now();
        match store.put_with(format!("{prefix}/{n:06}"), &value, &BUFFERED) {
            Ok(_) => {}
            Err(Error::OutOfSpace { .. }) => return (n, start.elapsed()),
            Err(error) => panic!("{error}"),
        }
    }
    panic!("there is no end of room");
}

/// Regression: one file system for everything was filled and emptied: the index could no longer be
/// flushed, deletes were refused after ten seconds each, and dead data stayed for ever.
#[test]
fn a_full_file_system_takes_deletes_and_then_as_much_as_before() {
    on_a_small_device(
        "faults::full::a_full_file_system_takes_deletes_and_then_as_much_as_before",
        |device| {
            let options = device.for_everything();
            let store = Store::open(options.clone()).unwrap();
            let mut first = 0;
            for round in 0..4 {
                let (large, _) = fill_with(&store, "large", 200_000);
                let (small, _) = fill_with(&store, "small", 20_000);
                // Space that recycling can still free is used meanwhile.
                let (more, _) = fill_with(&store, "more", 20_000);
                let (again, refusal) = fill_with(&store, "more", 20_000);
                assert!(refusal < Duration::from_secs(5), "{round}: refused after {refusal:?}");
                let bytes = large * 200_000 + (small + more) * 20_000;
                eprintln!("{round}: {large} large, {small} small, {bytes} bytes");
                first = first.max(bytes);
                assert!(
                    bytes >= first * 9 / 10,
                    "{round}: {bytes} bytes of {first}; {:#?}",
                    store.stats()
                );
                // Recycling may have freed space for more of them than before.
                for (prefix, count) in [("large", large), ("small", small), ("more", more.max(again))] {
                    for n in 0..count {
                        let start = Instant::now();
                        store.delete(format!("{prefix}/{n:06}")).unwrap();
                        assert!(start.elapsed() < Duration::from_secs(5), "{round}: {prefix} {n}");
                    }
                }
                eventually("giving back", &store, |stats| {
                    stats.large.live_bytes == 0
                        && stats.large.allocated_bytes <= 4 << 20
                        && stats.log.allocated_bytes <= 8 << 20
                });
            }
            store.close().unwrap();
            drop(store);
            let store = Store::open(options).unwrap();
            assert_eq!(store.scan(ScanRange::all()).unwrap().count(), 0);
            assert_eq!(store.verify().unwrap().errors, Vec::<String>::new());
        },
    );
}

/// Fills a store, deletes half of its objects in scattered places, as S3 does, and waits until this
/// percentage of them is accepted again.
fn half_is_deleted_and_room_again(store: &Store, durability: Durability, percent: u64) {
    let began = Instant::now();
    let (large, _) = fill_with(store, "large", 200_000);
    let (small, _) = fill_with(store, "small", 20_000);
    eprintln!("filled: {:?}", began.elapsed());
    let mut deleted = 0;
    for (prefix, count, length) in [("large", large, 200_000), ("small", small, 20_000)] {
        for n in (0..count).step_by(2) {
            let mut batch = Batch::new();
            batch
                .delete(format!("{prefix}/{n:06}"))
                .put(format!("mark/{prefix}/{n:06}"), "");
            store.write(batch, durability).unwrap();
            deleted += length;
        }
    }
    eprintln!(
        "{large} large, {small} small, {deleted} bytes deleted: {:?}",
        began.elapsed()
    );
    let value = bytes(2, 20_000);
    let deadline = Instant::now() + Duration::from_secs(120);
    let mut again = 0;
    while again * 100 < deleted * percent {
        match store.put_with(format!("again/{again}"), &value, &BUFFERED) {
            Ok(_) => again += 20_000,
            Err(error) => {
                assert!(matches!(error, Error::OutOfSpace { .. }), "{error}");
                assert!(Instant::now() < deadline, "{again} of {deleted}; {:#?}", store.stats());
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
    eprintln!("{again} bytes went in again: {:?}", began.elapsed());
    let kept = store.get("large/000001").unwrap().unwrap();
    assert!(kept.value == bytes(1, 200_000));
    assert_eq!(store.verify().unwrap().errors, Vec::<String>::new());
}

/// Regression: one file system for everything was filled with small values to its last byte, so
/// block GC had no space to move live values: it stayed full until all was deleted. Deletes that
/// also write a marker, as those of S3 do, were refused.
#[test]
fn what_is_deleted_here_and_there_of_a_full_file_system_is_room_again() {
    on_a_small_device(
        "faults::full::what_is_deleted_here_and_there_of_a_full_file_system_is_room_again",
        |device| {
            let store = Store::open(device.for_everything()).unwrap();
            half_is_deleted_and_room_again(&store, Durability::Buffered, 80);
        },
    );
}

/// Regression: two full file systems accepted nothing until nearly all was deleted: recycling
/// waited for segments, which it expected to be made.
#[test]
fn what_is_deleted_here_and_there_of_two_full_file_systems_is_room_again() {
    on_a_small_device(
        "faults::full::what_is_deleted_here_and_there_of_two_full_file_systems_is_room_again",
        |device| {
            let options = device.for_everything();
            assert!(device.mount(&["-o", "remount,size=8m"]));
            fs::create_dir(device.dir().join("second")).unwrap();
            assert!(device.mount_second("second", "size=8m"));
            let large_dir = device.dir().join("second");
            let store = Store::open(
                Options {
                    large_dir,
                    segment_bytes: 256 << 10,
                    split_threshold_bytes: 512 << 10,
                    ..options
                }
                .tuned(|tuning| tuning.memtable_bytes = 64 << 10),
            );
            half_is_deleted_and_room_again(&store.unwrap(), Durability::Sync, 80);
        },
    );
}

/// Regression: the copies of the index's tables may be on a device of their own. Where that was
/// full, as much of a table as it had room for was written at each look.
#[test]
fn copies_that_do_not_fit_are_not_begun() {
    on_a_small_device("faults::full::copies_that_do_not_fit_are_not_begun", |device| {
        assert!(device.mount(&["-o", "remount,size=48m"]));
        let large = tempfile::tempdir().unwrap();
        let options = device
            .options(large.path())
            .tuned(|tuning| tuning.index_mirror_after = Some(Duration::from_millis(1)));
        Store::open(options.clone()).unwrap().close().unwrap();
        fs::create_dir(device.dir().join("flash/index/mirror")).unwrap();
        assert!(device.mount_second("flash/index/mirror", "size=96k"));
        let store = Store::open(options).unwrap();
        let mut values = Values::new();
        for n in 0..20_000 {
            let (key, value) = (format!("tiny/{n:07}"), bytes(n, 40));
            store.put_with(&key, &value, &BUFFERED).unwrap();
            values.insert(key, vec![value]);
        }
        store.flush().unwrap();
        let kernel_bytes = || {
            let text = fs::read_to_string("/proc/self/io").unwrap();
            let line = text.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap();
            line.parse::<u64>().unwrap()
        };
        // Merges go on for some time. A store that is read looks ten times a second.
        let mut seconds = (0..30).map(|_| {
            let before = kernel_bytes();
            for _ in 0..10 {
                std::thread::sleep(Duration::from_millis(100));
                assert_eq!(store.scan(ScanRange::all()).unwrap().take(10).count(), 10);
            }
            kernel_bytes() - before
        });
        assert!(seconds.any(|bytes| bytes < 16 << 10), "it writes for ever");
        assert!(store.stats().index.bytes > store.stats().index.mirror_bytes + (96 << 10));
        assert_all(&store, &values);
    });
}
