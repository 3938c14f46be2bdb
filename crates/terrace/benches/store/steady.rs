//! A store after long use: latencies of reads beside background work, and leaks.

use crate::{
    Bench,
    parts::{BUFFERED, fresh, key, resident_mib, value},
};
use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};
use terrace::{Options, Stats, Store};

const GIB: u64 = 1 << 30;
/// Readers beside the background work.
const READERS: u64 = 4;
/// Objects that they read.
pub const HOT: u64 = 400_000;
/// Large objects, and the bytes of each.
const LARGE: (u64, usize) = (2_000, 512 << 10);

/// Pseudo-random numbers, the same in each run.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

/// Latencies of callers' flash reads beside recycling, destaging, block GC and promotion.
pub fn reads_first(bench: &mut Bench) {
    bench.report.heading(
        "Flash reads of 1 KiB by 4 threads, µs: with nothing else, and while everything in the background runs",
    );
    let (store, dir) = filled(bench, "reads-first");
    let seconds = Duration::from_secs_f64(10.0 * bench.scale.min(1.0));
    let read = || latencies(&store, HOT, key, seconds);
    // Twice, to show the machine's variation.
    let idle = [read(), read()];
    let before = store.stats();
    let busy = beside_everything(&store, || [read(), read()]);
    report_reads(bench, &idle, &busy, &before, &store.stats());
    drop(store);
    let _ = std::fs::remove_dir_all(dir);
}

/// A store with objects to be read, and large ones.
pub fn filled(bench: &Bench, name: &str) -> (Store, PathBuf) {
    let (dir, options) = fresh(bench, name);
    let options = Options {
        log_capacity_bytes: Some(2 * GIB),
        split_threshold_bytes: 16 << 20,
        ..options.tuned(|tuning| tuning.space_slack_bytes = 0)
    };
    let store = Store::open(options).unwrap();
    let (small_bytes, large_bytes) = (value(1024), value(LARGE.1));
    for number in 0..HOT {
        store.put_with(key(number), &small_bytes, &BUFFERED).unwrap();
    }
    for number in 0..LARGE.0 {
        store.put_with(large_key(number), &large_bytes, &BUFFERED).unwrap();
    }
    store.flush().unwrap();
    (store, dir)
}

/// The result of `measure`, which runs beside recycling, destaging, block GC and promotion.
pub fn beside_everything<T>(store: &Store, measure: impl FnOnce() -> T) -> T {
    let churned = 1_500_000;
    let (small_bytes, large_bytes) = (value(1024), value(LARGE.1));
    let is_over = AtomicBool::new(false);
    let recycled_before = store.stats().log.segments_reclaimed;
    std::thread::scope(|scope| {
        // Small values at a rate that keeps recycling busy, large ones so that blocks die, and
        // reads of large ones, so that they are promoted.
        scope.spawn(|| {
            let mut numbers = Numbers(77);
            at_rate(&is_over, 30_000.0, || {
                let number = HOT + numbers.below(churned);
                store.put_with(key(number), &small_bytes, &BUFFERED).unwrap();
            });
        });
        scope.spawn(|| {
            let mut numbers = Numbers(78);
            at_rate(&is_over, 60.0, || {
                let number = numbers.below(LARGE.0);
                store.put_with(large_key(number), &large_bytes, &BUFFERED).unwrap();
            });
        });
        scope.spawn(|| {
            let mut numbers = Numbers(79);
            at_rate(&is_over, 60.0, || {
                store.get(large_key(numbers.below(LARGE.0 / 10))).unwrap();
            });
        });
        // Until the log is being recycled.
        let until = Instant::now() + Duration::from_secs(120);
        while store.stats().log.segments_reclaimed < recycled_before + 4 && Instant::now() < until {
            // Read the hot values meanwhile.
            latencies(store, HOT, key, Duration::from_millis(500));
        }
        let measured = measure();
        is_over.store(true, Ordering::Relaxed);
        measured
    })
}

fn report_reads(bench: &mut Bench, idle: &[Vec<u32>; 2], busy: &[Vec<u32>; 2], before: &Stats, after: &Stats) {
    let did = format!(
        "{} segments recycled, {} MiB destaged, {} MiB of copies written; background share {} per mille, rested {:.1} s",
        after.log.segments_reclaimed - before.log.segments_reclaimed,
        (after.written.large_destaged_bytes - before.written.large_destaged_bytes) >> 20,
        (after.written.copy_bytes - before.written.copy_bytes) >> 20,
        after.flash_throttle.share_per_mille,
        (after.flash_throttle.rested_us - before.flash_throttle.rested_us) as f64 / 1e6,
    );
    for (share, name) in [(0.5, "median"), (0.99, "p99"), (0.999, "p99.9")] {
        let at = |run: &Vec<u32>| f64::from(run[((run.len() - 1) as f64 * share) as usize]);
        let figures = [at(&idle[0]), at(&idle[1]), at(&busy[0]), at(&busy[1])];
        let idle = f64::midpoint(figures[0], figures[1]);
        let notes = format!(
            "idle {:.0} and {:.0}, busy {:.0} and {:.0}; {did}",
            figures[0], figures[1], figures[2], figures[3]
        );
        let busy = f64::midpoint(figures[2], figures[3]);
        bench.report.figure(name, busy, "µs", Some(idle), &notes);
    }
}

pub fn large_key(number: u64) -> String {
    format!("large/{:03}/{number:06}", number / 50)
}

/// Calls `work` at a rate, as far as it keeps up.
pub fn at_rate(is_over: &AtomicBool, rate: f64, mut work: impl FnMut()) {
    let start = Instant::now();
    let mut done = 0_u64;
    while !is_over.load(Ordering::Relaxed) {
        work();
        done += 1;
        let due = Duration::from_secs_f64(done as f64 / rate);
        if let Some(early) = due.checked_sub(start.elapsed())
            && early > Duration::from_millis(1)
        {
            std::thread::sleep(early);
        }
    }
}

/// Latencies of reads of random keys by several threads, in microseconds, sorted.
pub fn latencies<K: AsRef<[u8]>>(
    store: &Store,
    keys: u64,
    key: impl Fn(u64) -> K + Sync,
    duration: Duration,
) -> Vec<u32> {
    latencies_until(store, keys, key, after(duration))
}

/// The same until something is over.
pub fn latencies_until<K: AsRef<[u8]>>(
    store: &Store,
    keys: u64,
    key: impl Fn(u64) -> K + Sync,
    is_over: impl Fn() -> bool + Sync,
) -> Vec<u32> {
    let mut all = by_readers(is_over, || {
        |numbers: &mut Numbers| {
            let began = Instant::now();
            assert!(store.get(key(numbers.below(keys))).unwrap().is_some());
            u32::try_from(began.elapsed().as_micros()).unwrap()
        }
    });
    all.sort_unstable();
    all
}

/// Whether this time has passed from now on.
pub fn after(duration: Duration) -> impl Fn() -> bool {
    let start = Instant::now();
    move || start.elapsed() >= duration
}

/// What the readers, which `reader` makes, each on its thread, return until something is over.
pub fn by_readers<T: Send, R: FnMut(&mut Numbers) -> T>(
    is_over: impl Fn() -> bool + Sync,
    reader: impl Fn() -> R + Sync,
) -> Vec<T> {
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|number| {
                let (reader, is_over) = (&reader, &is_over);
                scope.spawn(move || {
                    let (mut numbers, mut read) = (Numbers(1_000 + number), reader());
                    let mut own = Vec::new();
                    while !is_over() {
                        own.push(read(&mut numbers));
                    }
                    own
                })
            })
            .collect();
        readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect()
    })
}

/// Writes a hundred times the flash tier; nothing may grow.
pub fn churn(bench: &mut Bench) {
    bench
        .report
        .heading("Churn: a hundred times a flash tier of 256 MiB, overwriting, deleting, reading");
    let (dir, options) = fresh(bench, "churn");
    let capacity = 256_u64 << 20;
    let store = Store::open(
        Options {
            log_capacity_bytes: Some(capacity),
            segment_bytes: 8 << 20,
            split_threshold_bytes: 16 << 20,
            size_threshold_bytes: 64 << 10,
            ..options
        }
        .tuned(|tuning| tuning.space_slack_bytes = 0),
    )
    .unwrap();
    let rounds = (10.0 * bench.scale).max(1.0) as u64;
    let (keys, large) = (300_000, 1_000);
    let (small_bytes, large_bytes) = (value(1024), value(100_000));
    let mut numbers = Numbers(4711);
    for round in 0..rounds {
        let target = store.stats().written.user_bytes + 10 * capacity;
        while store.stats().written.user_bytes < target {
            for _ in 0..10_000 {
                let number = numbers.below(keys);
                match numbers.below(16) {
                    0 => store.delete(key(number)).map(drop).unwrap(),
                    1 => drop(store.get(key(number)).unwrap()),
                    2 if number.is_multiple_of(8) => {
                        let name = large_key(number % large);
                        store.put_with(name, &large_bytes, &BUFFERED).map(drop).unwrap();
                    }
                    _ => store.put_with(key(number), &small_bytes, &BUFFERED).map(drop).unwrap(),
                }
            }
        }
        let now = Levels::of(&store, &dir);
        bench.report.figure(
            &format!("after {} times the tier", (round + 1) * 10),
            now.disk_mib,
            "MiB on disk",
            None,
            &now.to_string(),
        );
    }
    let found = store.verify().unwrap();
    assert!(found.errors.is_empty(), "{:?}", found.errors);
    drop(store);
    let _ = std::fs::remove_dir_all(dir);
}

/// Resources that may leak.
struct Levels {
    disk_mib: f64,
    live_mib: f64,
    resident_mib: f64,
    handles: usize,
    threads: usize,
}

impl Levels {
    fn of(store: &Store, dir: &Path) -> Self {
        let stats = store.stats();
        let live = stats.flash.bytes + stats.block.bytes + stats.inline.bytes;
        let count = |path: &str| std::fs::read_dir(path).map_or(0, Iterator::count);
        Self {
            disk_mib: allocated(dir) as f64 / f64::from(1 << 20),
            live_mib: live as f64 / f64::from(1 << 20),
            resident_mib: resident_mib(),
            handles: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
        }
    }
}

impl std::fmt::Display for Levels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:.0} MiB live; {:.0} MiB resident, {} handles, {} threads",
            self.live_mib, self.resident_mib, self.handles, self.threads
        )
    }
}

/// Bytes allocated on its device by a directory.
fn allocated(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => allocated(&entry.path()),
            Ok(metadata) => metadata.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}
