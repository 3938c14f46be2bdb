//! Reads of many values per call: `multi_get`, and scans of keys whose values are scattered.

use crate::{
    Bench,
    parts::{BUFFERED, cpu_seconds, fresh, key, value},
    steady::Numbers,
};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};
use terrace::{Options, ScanRange, Store};

/// Values per call.
const TOGETHER: u64 = 16;
const SCANNED: usize = 50;

/// Values of 1 KiB on flash, with no cache unless `TERRACE_BENCH_CACHE_MIB` is set; then reads
/// begin with a full cache. With `TERRACE_BENCH_KEEP` the store is kept and reused, so that two
/// builds can alternate on the same store.
pub fn multi_get(bench: &mut Bench) {
    let count = bench.count(3_000_000);
    let keeps = std::env::var_os("TERRACE_BENCH_KEEP").is_some();
    let cache_mib = std::env::var("TERRACE_BENCH_CACHE_MIB").map_or(0, |text| text.parse().unwrap());
    let kept = bench.dir.join("multi-get");
    let (dir, options) = if keeps && kept.exists() {
        let options = Options::new(&kept);
        (kept, options)
    } else {
        let (dir, options) = fresh(bench, "multi-get");
        load(&options, count);
        (dir, options)
    };
    let options = Options {
        cache_bytes: cache_mib << 20,
        ..options
    };
    // If scans wrote values in order, only the next build would benefit.
    let store = Store::open(options.tuned(|tuning| tuning.order_bytes_per_second = 0)).unwrap();
    while store.stats().hash_index.refilling {
        std::thread::sleep(Duration::from_millis(20));
    }
    bench.report.heading(&format!(
        "Values of 1 KiB on flash read together, uniform, {cache_mib} MiB of cache"
    ));
    let get_some = |numbers: &mut Numbers| {
        let keys: Vec<_> = (0..TOGETHER).map(|_| key(numbers.below(count))).collect();
        let found = store.multi_get(&keys);
        assert!(found.iter().all(|object| object.as_ref().unwrap().is_some()));
        found.len()
    };
    fill_cache(cache_mib << 20, get_some);
    let limit = Duration::from_secs_f64(5.0 * bench.scale.min(1.0));
    for threads in [1, 8] {
        let name = format!("multi_get of {TOGETHER}, {threads} threads");
        run(bench, &store, &name, threads, limit, get_some);
    }
    for threads in [1, 8] {
        let name = format!("scan of {SCANNED}, {threads} threads");
        run(bench, &store, &name, threads, limit, |numbers| {
            let range = ScanRange::range(key(numbers.below(count))..);
            let found = store.scan(range).unwrap().next_values(SCANNED).unwrap();
            assert!(found.iter().all(|(_, value)| value.is_ok()));
            found.len()
        });
    }
    drop(store);
    if !keeps {
        let _ = std::fs::remove_dir_all(dir);
    }
}

fn load(options: &Options, count: u64) {
    let store = Store::open(options.clone()).unwrap();
    let bytes = value(1024);
    for number in 0..count {
        store.put_with(key(number), &bytes, &BUFFERED).unwrap();
    }
    store.flush().unwrap();
}

/// Reads until the cache is full.
fn fill_cache(bytes: u64, call: impl Fn(&mut Numbers) -> usize) {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let mut read = 0;
    while read * 1024 < bytes * 3 / 2 {
        read += call(&mut numbers) as u64;
    }
}

/// Values per second by calls that return how many they read.
fn run(
    bench: &mut Bench,
    store: &Store,
    name: &str,
    threads: u64,
    limit: Duration,
    call: impl Fn(&mut Numbers) -> usize + Sync,
) {
    let (done, slowest, switches) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let (before, before_switches) = (store.stats(), all_switches());
    let (start, cpu) = (Instant::now(), cpu_seconds());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (call, done, slowest, switches) = (&call, &done, &slowest, &switches);
            scope.spawn(move || {
                let mut numbers = Numbers(0x2545_f491_4f6c_dd1d_u64.wrapping_mul(thread + 1));
                let mut took_us = Vec::new();
                while start.elapsed() < limit {
                    let began = Instant::now();
                    let values = call(&mut numbers) as u64;
                    took_us.push(began.elapsed().as_micros() as u64);
                    done.fetch_add(values, Ordering::Relaxed);
                }
                took_us.sort_unstable();
                // The 99th percentile; the worst of the threads.
                slowest.fetch_max(took_us[took_us.len() * 99 / 100], Ordering::Relaxed);
                let own = switches_of("/proc/thread-self/status".as_ref());
                switches.fetch_add(own, Ordering::Relaxed);
            });
        }
    });
    let seconds = start.elapsed().as_secs_f64();
    let (values, cpu) = (done.into_inner() as f64, cpu_seconds() - cpu);
    let reads = (store.stats().reads.flash_reads - before.reads.flash_reads) as f64;
    let notes = format!(
        "{:.2} µs of CPU and {:.2} context switches per value, {:.2} reads of the device; 99 of 100 calls within {} µs",
        cpu * 1e6 / values,
        // Those of threads that have ended meanwhile are not included.
        (switches.into_inner() + all_switches().saturating_sub(before_switches)) as f64 / values,
        reads / values,
        slowest.into_inner(),
    );
    bench.report.figure(name, values / seconds, "values/s", None, &notes);
}

/// Context switches of a thread, from its file in `/proc`.
fn switches_of(status: &std::path::Path) -> u64 {
    let status = std::fs::read_to_string(status).unwrap_or_default();
    let counts = status.lines().filter(|line| line.contains("ctxt_switches"));
    counts
        .filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok())
        .sum()
}

/// Context switches of all present threads.
fn all_switches() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    tasks
        .flatten()
        .map(|task| switches_of(&task.path().join("status")))
        .sum()
}
