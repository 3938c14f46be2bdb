//! Latencies of reads during a sweep of the log, which copies short values into their entries
//! because scans have paid for it.

use crate::{
    Bench,
    parts::{BUFFERED, fresh, key, value},
    steady::{latencies, latencies_until},
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use terrace::{Options, ScanRange, Store};

const VALUE_BYTES: usize = 100;
/// A quarter of the values fit into RAM, or an eighth while the sweep uses the rest.
const CACHE_BYTES: u64 = 64 << 20;

/// A sweep that takes longer is measured for so long,
const SWEEP_MAX: Duration = Duration::from_secs(60);
/// and its end is looked for this often.
const LOOK: Duration = Duration::from_millis(10);

/// Reads alone, and during a sweep of the log.
pub fn reads_beside_a_sweep(bench: &mut Bench) {
    bench
        .report
        .heading("Reads of 100 bytes by 4 threads: alone, and beside a sweep of the log");
    let (dir, options) = fresh(bench, "reads-beside-a-sweep");
    let options = Options {
        cache_bytes: CACHE_BYTES,
        ..options
    };
    // The first scan that reads the device pays for the whole sweep.
    let store = Store::open(options.tuned(|tuning| tuning.sweep_price_percent = 0)).unwrap();
    let count = bench.count(2_000_000);
    let bytes = value(VALUE_BYTES);
    for number in 0..count {
        store.put_with(key(number), &bytes, &BUFFERED).unwrap();
    }
    store.flush().unwrap();
    let seconds = Duration::from_secs_f64(8.0 * bench.scale.min(1.0));
    // Wait for the compactions after the load.
    std::thread::sleep(seconds);
    let alone = latencies(&store, count, key, seconds);
    store.scan(ScanRange::all()).unwrap().next_values(1000).unwrap();
    let before = store.stats();
    let began = Instant::now();
    let is_over = || began.elapsed() >= SWEEP_MAX || store.stats().scan_order.sweeps > before.scan_order.sweeps;
    let has_ended = AtomicBool::new(false);
    let beside = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over() {
                std::thread::sleep(LOOK);
            }
            has_ended.store(true, Ordering::Relaxed);
        });
        latencies_until(&store, count, key, || has_ended.load(Ordering::Relaxed))
    });
    let took = began.elapsed();
    let after = store.stats();
    let swept = (after.scan_order.sweep_bytes - before.scan_order.sweep_bytes) >> 20;
    let copied = after.scan_order.copied - before.scan_order.copied;
    let notes = format!(
        "over alone; {swept} MiB swept, {copied} copies, {} sweeps over, after {:.1} s",
        after.scan_order.sweeps,
        took.as_secs_f64()
    );
    let rate = |run: &[u32], time: Duration| run.len() as f64 / time.as_secs_f64();
    bench.report.figure(
        "reads beside a sweep",
        rate(&beside, took),
        "per s",
        Some(rate(&alone, seconds)),
        &notes,
    );
    for (share, name) in [(0.5, "median"), (0.99, "p99"), (0.999, "p99.9")] {
        let at = |run: &[u32]| f64::from(run[((run.len() - 1) as f64 * share) as usize]);
        bench
            .report
            .figure(name, at(&beside), "µs", Some(at(&alone)), "over alone");
    }
    drop(store);
    let _ = std::fs::remove_dir_all(dir);
}
