//! Time of slow reads by cause: the core, the processor, and what the device did meanwhile.
//!
//! Linux counts for each thread how long it ran and how long it was ready without a core
//! (`schedstat`), and for each device what it has completed (`stat`). Both are read before and
//! after each read, which takes some microseconds of it.

use crate::{Bench, parts::key, steady};
use std::{
    fs::File,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use terrace::Store;

/// Shares of all reads, fastest first, that are reported together.
const BANDS: [(f64, f64, &str); 5] = [
    (0.0, 0.5, "up to the median"),
    (0.5, 0.9, "median to p90"),
    (0.9, 0.99, "p90 to p99"),
    (0.99, 0.999, "p99 to p99.9"),
    (0.999, 1.0, "above p99.9"),
];
/// Sectors that the other readers' values are far below: a longer read is background work's.
const LONG_SECTORS: u64 = 256;

/// Reads of flash beside all background work, with their causes.
pub fn reads_by_cause(bench: &mut Bench) {
    bench.report.heading(
        "Causes of slow flash reads of 1 KiB by 4 threads, µs on average, while everything in the background runs",
    );
    let (store, dir) = steady::filled(bench, "causes");
    let Some(device) = device_of(&dir) else {
        println!("(no block device is below {}: nothing to tell)", dir.display());
        return;
    };
    let seconds = Duration::from_secs_f64(20.0 * bench.scale.min(1.0));
    let mut reads = steady::beside_everything(&store, || measured_reads(&store, &device, seconds));
    reads.sort_unstable_by_key(|read| read.total);
    for (from, to, name) in BANDS {
        let at = |share: f64| (reads.len() as f64 * share) as usize;
        report(bench, name, &reads[at(from)..at(to)]);
    }
    drop(store);
    let _ = std::fs::remove_dir_all(dir);
}

fn report(bench: &mut Bench, name: &str, reads: &[Read]) {
    if reads.is_empty() {
        return;
    }
    let mean = |of: fn(&Read) -> u64| reads.iter().map(of).sum::<u64>() as f64 / reads.len() as f64 / 1e3;
    let share = |of: fn(&Read) -> bool| 100 * reads.iter().filter(|read| of(read)).count() / reads.len();
    let notes = format!(
        "{:.0} without a core, {:.0} running, {:.0} waiting; while the device completed a long read {} %, a write {} %, \
         a discard {} %, none of them {} %",
        mean(|read| read.ready),
        mean(|read| read.ran),
        mean(|read| read.total.saturating_sub(read.ready + read.ran)),
        share(|read| read.device.is_long_read()),
        share(|read| read.device.writes > 0),
        share(|read| read.device.discards > 0),
        share(|read| !read.device.is_long_read() && read.device.writes + read.device.discards == 0),
    );
    bench.report.figure(name, mean(|read| read.total), "µs", None, &notes);
}

/// One read, in nanoseconds.
struct Read {
    total: u64,
    /// Ready, and no core was free.
    ready: u64,
    ran: u64,
    device: Completed,
}

/// What a device has completed.
#[derive(Clone, Copy)]
struct Completed {
    reads: u64,
    read_sectors: u64,
    writes: u64,
    discards: u64,
}

impl Completed {
    fn since(self, before: Self) -> Self {
        Self {
            reads: self.reads - before.reads,
            read_sectors: self.read_sectors - before.read_sectors,
            writes: self.writes - before.writes,
            discards: self.discards - before.discards,
        }
    }

    /// Whether the reads are longer, all together, than as many of the readers'.
    const fn is_long_read(&self) -> bool {
        self.read_sectors >= LONG_SECTORS + 8 * self.reads
    }
}

/// The kernel's counters of this thread and of a device.
struct Counters {
    thread: File,
    device: File,
}

impl Counters {
    fn open(device: &Path) -> Self {
        Self {
            thread: File::open("/proc/thread-self/schedstat").unwrap(),
            device: File::open(device).unwrap(),
        }
    }

    /// Nanoseconds on a core and without one.
    fn thread(&self) -> (u64, u64) {
        let numbers = numbers(&self.thread);
        (numbers[0], numbers[1])
    }

    fn device(&self) -> Completed {
        let numbers = numbers(&self.device);
        Completed {
            reads: numbers[0],
            read_sectors: numbers[2],
            writes: numbers[4],
            discards: numbers.get(11).copied().unwrap_or(0),
        }
    }
}

fn numbers(file: &File) -> Vec<u64> {
    let mut text = [0; 512];
    let length = file.read_at(&mut text, 0).unwrap();
    let text = std::str::from_utf8(&text[..length]).unwrap();
    text.split_whitespace().map(|number| number.parse().unwrap()).collect()
}

/// The counters of the block device below a directory, if there is one.
fn device_of(dir: &Path) -> Option<PathBuf> {
    let device = dir.metadata().ok()?.dev();
    // As the kernel's `MAJOR` and `MINOR` for user space.
    let major = device >> 32 & 0xffff_f000 | device >> 8 & 0xfff;
    let minor = device >> 12 & 0xffff_ff00 | device & 0xff;
    Some(PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"))).filter(|path| path.exists())
}

fn measured_reads(store: &Store, device: &Path, duration: Duration) -> Vec<Read> {
    steady::by_readers(steady::after(duration), || {
        let counters = Counters::open(device);
        move |numbers: &mut steady::Numbers| {
            let (completed, (ran, ready)) = (counters.device(), counters.thread());
            let began = Instant::now();
            let key = key(numbers.below(steady::HOT));
            assert!(store.get(key).unwrap().is_some());
            let total = began.elapsed().as_nanos() as u64;
            let after = counters.thread();
            Read {
                total,
                ready: after.1 - ready,
                ran: after.0 - ran,
                device: counters.device().since(completed),
            }
        }
    })
}
