//! Small values with skewed popularity that do not all fit into RAM.

use crate::{
    Bench,
    parts::{BUFFERED, cpu_seconds, fresh, key, resident_mib, value},
    steady::Numbers,
};
use std::time::Instant;
use terrace::{Options, Store};

/// Concurrent callers.
const THREADS: u64 = 8;
/// YCSB's exponent of popularity.
const EXPONENT: f64 = 0.99;

/// Popularity by Zipf's law, as in YCSB (Gray and others, SIGMOD 1994).
#[derive(Clone, Copy)]
struct Zipf {
    count: u64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    fn over(count: u64) -> Self {
        let zeta: f64 = (1..=count).map(|rank| (rank as f64).powf(-EXPONENT)).sum();
        let first_two = 1.0 + 0.5_f64.powf(EXPONENT);
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - EXPONENT)) / (1.0 - first_two / zeta);
        Self { count, zeta, eta }
    }

    /// Draws an object's number; popular ones are spread over all.
    fn draw(&self, numbers: &mut Numbers) -> u64 {
        let part = numbers.below(1 << 52) as f64 / (1_u64 << 52) as f64;
        let scaled = part * self.zeta;
        let rank = if scaled < 1.0 {
            0
        } else if scaled < 1.0 + 0.5_f64.powf(EXPONENT) {
            1
        } else {
            (self.count as f64 * (self.eta * part - self.eta + 1.0).powf(1.0 / (1.0 - EXPONENT))) as u64
        };
        u64::from_le_bytes(key(rank)[..8].try_into().unwrap()) % self.count
    }
}

/// The distribution, and the percentage of overwrites.
#[derive(Clone, Copy)]
struct Step {
    name: &'static str,
    /// Operations per object.
    each: f64,
    zipf: Option<Zipf>,
    updates: u64,
}

/// RAM for values in MiB.
fn cache_mib() -> f64 {
    std::env::var("TERRACE_BENCH_CACHE_MIB").map_or(256.0, |text| text.parse().unwrap())
}

/// Two million values of 100 bytes, then 300,000 of 1 KiB, with 256 MiB for values.
pub fn popular(bench: &mut Bench) {
    for (length, full) in [(100_usize, 2_000_000_u64), (1024, 300_000)] {
        if std::env::var("TERRACE_BENCH_BYTES").is_ok_and(|only| only != length.to_string()) {
            continue;
        }
        bench.report.heading(&format!(
            "Values of {length} B by {THREADS} threads, with {} MiB for values",
            cache_mib()
        ));
        let count = bench.count(full);
        let (dir, options) = fresh(bench, "popular");
        let store = Store::open(Options {
            cache_bytes: (f64::from(1 << 20) * cache_mib() * bench.scale) as u64,
            ..options
        })
        .unwrap();
        measure(bench, &store, length, count);
        drop(store);
        let _ = std::fs::remove_dir_all(dir);
    }
}

fn measure(bench: &mut Bench, store: &Store, length: usize, count: u64) {
    let bytes = value(length);
    let load = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let bytes = &bytes;
            scope.spawn(move || {
                for number in (thread..count).step_by(THREADS as usize) {
                    store.put_with(key(number), bytes, &BUFFERED).unwrap();
                }
            });
        }
    });
    store.flush().unwrap();
    let rate = count as f64 / load.elapsed().as_secs_f64();
    bench.report.figure("load", rate, "puts/s", None, "");
    let zipf = Some(Zipf::over(count));
    let step = |name, each, zipf, updates| Step {
        name,
        each,
        zipf,
        updates,
    };
    let steps = [
        step("C, Zipf, just loaded", 1.0, zipf, 0),
        step("C, uniform", 2.0, None, 0),
        step("C, Zipf", 2.0, zipf, 0),
        step("C, Zipf again", 2.0, zipf, 0),
        step("C, uniform again", 1.0, None, 0),
        step("B, Zipf", 1.0, zipf, 5),
        step("A, Zipf", 2.0, zipf, 50),
        step("A, uniform", 1.0, None, 50),
    ];
    let only = std::env::var("TERRACE_BENCH_STEPS").unwrap_or_default();
    let is_wanted = |step: &Step| only.split(';').any(|only| step.name.starts_with(only));
    for (number, step) in (1..).zip(steps).filter(|(_, step)| is_wanted(step)) {
        run(bench, store, number, step, &bytes, count);
    }
}

fn run(bench: &mut Bench, store: &Store, number: u64, step: Step, bytes: &[u8], count: u64) {
    let times: f64 = std::env::var("TERRACE_BENCH_TIMES").map_or(1.0, |text| text.parse().unwrap());
    let each_thread = (count as f64 * step.each * times) as u64 / THREADS;
    let (before, cpu) = (store.stats(), cpu_seconds());
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let mut numbers = Numbers((number << 32) + 7919 * (thread + 1));
                for _ in 0..each_thread {
                    let number = match step.zipf {
                        Some(zipf) => zipf.draw(&mut numbers),
                        None => numbers.below(count),
                    };
                    if step.updates > 0 && numbers.below(100) < step.updates {
                        store.put_with(key(number), bytes, &BUFFERED).unwrap();
                    } else {
                        let found = store.get(key(number)).unwrap().unwrap();
                        assert_eq!(found.value.len(), bytes.len());
                    }
                }
            });
        }
    });
    let (done, seconds) = ((each_thread * THREADS) as f64, start.elapsed().as_secs_f64());
    let cpu_us = (cpu_seconds() - cpu) * 1e6 / done;
    let after = store.stats();
    let in_ram =
        after.reads.cache_hits + after.reads.overlay_hits - before.reads.cache_hits - before.reads.overlay_hits;
    let from_flash = after.reads.flash_hits - before.reads.flash_hits;
    let notes = format!(
        "{cpu_us:.2} µs of CPU each; {:.1} of 100 reads from RAM; resident {:.0} MiB",
        100.0 * in_ram as f64 / (in_ram + from_flash).max(1) as f64,
        resident_mib()
    );
    bench.report.figure(step.name, done / seconds, "/s", None, &notes);
}
