//! The engine without FUSE: answers, power, faults, pace, slowness.

use crate::Counters;
use crate::engine::{Engine, Pace};
use crate::fault::{Errors, Failure, Fault};
use crate::media::{Media, Survival};
use crate::profile::{Kind, Profile};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const BYTES: u64 = 16 << 20;

struct Running {
    engine: Arc<Engine>,
    clock: Option<std::thread::JoinHandle<()>>,
    _directory: tempfile::TempDir,
}

impl Running {
    fn new(profile: Profile) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("media");
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
            .unwrap();
        file.set_len(BYTES).unwrap();
        let media = Media::new(file, profile.sector_bytes);
        let engine = Arc::new(Engine::new(profile, BYTES, 3, media, Counters::default()));
        let timing = engine.clone();
        let clock = Some(std::thread::spawn(move || timing.keep_time()));
        Self {
            engine,
            clock,
            _directory: directory,
        }
    }

    fn ask(&self, request: impl FnOnce(crate::engine::Answer)) -> Receiver<Result<Vec<u8>, Failure>> {
        let (sender, receiver) = channel();
        request(Box::new(move |answer| drop(sender.send(answer))));
        receiver
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<Vec<u8>, Failure> {
        let epoch = self.engine.epoch();
        self.ask(|answer| self.engine.write(epoch, offset, data, answer))
            .recv()
            .unwrap()
    }

    fn read(&self, offset: u64, bytes: u64) -> Result<Vec<u8>, Failure> {
        let epoch = self.engine.epoch();
        self.ask(|answer| self.engine.read(epoch, offset, bytes, answer))
            .recv()
            .unwrap()
    }

    fn flush(&self) -> Result<Vec<u8>, Failure> {
        let epoch = self.engine.epoch();
        self.ask(|answer| self.engine.flush(epoch, answer)).recv().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.engine.close().unwrap();
        self.clock.take().unwrap().join().unwrap();
    }
}

/// Longest wait for an expected event, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Whether `work` at some time takes less than `bound`; used to show that it never does.
fn is_ever_below(bound: Duration, mut work: impl FnMut()) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let start = Instant::now();
        work();
        if start.elapsed() < bound {
            return true;
        }
    }
    false
}

/// A drive with a measurable latency that keeps writes in memory.
fn slow(read_us: f64) -> Profile {
    let mut profile = Profile::find("nvme").unwrap();
    if let Kind::Flat(flat) = &mut profile.kind {
        flat.read_us = read_us;
        flat.write_back_ms = 3_600_000.0;
    }
    profile
}

#[test]
fn a_read_takes_its_modelled_time_and_a_slow_drive_a_multiple() {
    let drive = Running::new(slow(20_000.0));
    let time = |drive: &Running| {
        let begun = Instant::now();
        drive.read(0, 4096).unwrap();
        begun.elapsed()
    };
    let normal = time(&drive);
    assert!(normal >= Duration::from_micros(19_900), "{normal:?}");
    drive.engine.fault(Fault::Slow { factor: 3.0 }).unwrap();
    let slow = time(&drive);
    assert!(slow >= Duration::from_micros(59_700), "{slow:?}");
    drive.engine.fault(Fault::None).unwrap();
    let least = Duration::from_micros(59_700);
    assert!(is_ever_below(least, || drop(drive.read(0, 4096).unwrap())));
    assert!(drive.engine.fault(Fault::Slow { factor: 0.0 }).is_err());
}

#[test]
fn requests_are_worked_on_side_by_side_and_each_is_answered() {
    let drive = Running::new(slow(30_000.0));
    let epoch = drive.engine.epoch();
    let ask_for_all = || {
        let waiting: Vec<_> = (0..32)
            .map(|index| drive.ask(|answer| drive.engine.read(epoch, index * 4096, 4096, answer)))
            .collect();
        assert!(waiting.into_iter().all(|answer| answer.recv().unwrap().is_ok()));
    };
    ask_for_all();
    let counters = drive.engine.counters();
    assert_eq!((counters.reads.requests, counters.reads.bytes), (32, 32 * 4096));
    assert_eq!((counters.reads.sequential, counters.reads.random), (31, 1));
    assert!(counters.busy_nanoseconds >= 29_000_000);
    let one_after_the_other = Duration::from_millis(32 * 30);
    assert!(is_ever_below(one_after_the_other, ask_for_all));
}

#[test]
fn a_cut_answers_what_is_under_way_and_kills_old_handles() {
    // An hour per read.
    let drive = Running::new(slow(3_600_000_000.0));
    let old = drive.engine.epoch();
    drive.write(0, &[1; 4096]).unwrap();
    drive.flush().unwrap();
    drive.write(0, &[2; 4096]).unwrap();
    let under_way = drive.ask(|answer| drive.engine.read(old, 0, 4096, answer));
    let report = drive.engine.cut(Survival::None).unwrap();
    assert_eq!(
        (report.pending_writes, report.pending_bytes, report.survived_bytes),
        (1, 4096, 0)
    );
    assert_eq!(under_way.recv().unwrap(), Err(Failure::Input));
    assert_eq!(drive.write(0, &[3; 4096]), Err(Failure::Input));
    assert_eq!(drive.flush(), Err(Failure::Input));
    assert!(drive.engine.cut(Survival::None).is_err());

    drive.engine.power_on();
    let stale = drive.ask(|answer| drive.engine.write(old, 0, &[4; 4096], answer));
    assert_eq!(stale.recv().unwrap(), Err(Failure::Input));
    drive.engine.set_pace(Pace::Instant).unwrap();
    assert_eq!(drive.read(0, 4096).unwrap(), vec![1; 4096]);
    assert_eq!(drive.engine.counters().cuts, 1);
}

#[test]
fn faults_hit_their_range_and_end() {
    let drive = Running::new(slow(0.0));
    drive
        .engine
        .fault(Fault::ReadErrors(Errors {
            start: 8192,
            bytes: 4096,
            chance: 1.0,
        }))
        .unwrap();
    assert!(drive.read(4096, 4096).is_ok());
    assert_eq!(drive.read(4096, 8192), Err(Failure::Input));
    assert!(drive.read(12_288, 4096).is_ok());
    assert!(drive.write(8192, &[1; 4096]).is_ok());
    drive.engine.fault(Fault::Full).unwrap();
    assert_eq!(drive.write(0, &[1; 512]), Err(Failure::Full));
    drive.engine.fault(Fault::None).unwrap();
    assert!(drive.write(0, &[1; 512]).is_ok() && drive.read(8192, 512).is_ok());
    assert_eq!(drive.engine.counters().failed, 2);
    assert_eq!(drive.write(BYTES - 512, &[1; 1024]), Err(Failure::Full));
}

#[test]
fn a_flush_puts_everything_on_the_media() {
    for name in Profile::names() {
        let drive = Running::new(Profile::find(name).unwrap());
        for index in 0..40_u64 {
            drive.write(index * 131_072 % BYTES, &[index as u8; 4096]).unwrap();
        }
        drive.flush().unwrap();
        assert_eq!(drive.engine.counters().pending_writes, 0, "{name}");
        drive.engine.cut(Survival::None).unwrap();
        drive.engine.power_on();
        for index in 0..40_u64 {
            assert_eq!(
                drive.read(index * 131_072, 4096).unwrap(),
                vec![index as u8; 4096],
                "{name}"
            );
        }
    }
}
