//! A large tier on a disk that seeks: what its readers notice of destaging and cleaning.

use crate::{
    Bench,
    device::sequential_writes,
    parts::{BUFFERED, fresh, key, value},
    steady::{Numbers, at_rate, large_key, latencies},
};
use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};
use terrace::{Options, Stats, Store, WrittenStats};

/// Chooses the directory of the large tier: one on a disk.
const DIRECTORY: &str = "TERRACE_BENCH_LARGE_DIR";
const LARGE_BYTES: usize = 128 << 10;
const SMALL_BYTES: usize = 8 << 10;
const MIB: f64 = 1048576.0;

/// Reads of the large tier alone, and beside destaging and cleaning of it.
pub fn reads_of_a_disk(bench: &mut Bench) {
    bench.report.heading(
        "Reads of 128 KiB on the large tier by 4 threads: with nothing else, and beside destaging and cleaning",
    );
    let Some(large_dir) = std::env::var_os(DIRECTORY).map(|dir| Path::new(&dir).join("reads-of-a-disk")) else {
        println!("Not measured: set {DIRECTORY} to a directory on a disk.");
        return;
    };
    let _ = std::fs::remove_dir_all(&large_dir);
    std::fs::create_dir_all(&large_dir).unwrap();
    let sequential = sequential_writes(&large_dir);
    let (dir, options) = fresh(bench, "reads-of-a-disk");
    let store = Store::open(Options {
        large_dir: large_dir.clone(),
        flash_capacity_bytes: 512 << 20,
        ..options
    })
    .unwrap();
    let large = bench.count(12_000);
    let (small_bytes, large_bytes) = (value(SMALL_BYTES), value(LARGE_BYTES));
    for number in 0..large {
        store.put_with(large_key(number), &large_bytes, &BUFFERED).unwrap();
    }
    // As many small ones as the log holds, so that each one more has another one destaged.
    let small = (512 << 20) / SMALL_BYTES as u64;
    for number in 0..small {
        store.put_with(key(number), &small_bytes, &BUFFERED).unwrap();
    }
    store.flush().unwrap();
    wait_for_rest(&store);
    let seconds = Duration::from_secs_f64(60.0 * bench.scale.min(1.0));
    let alone = latencies(&store, large, large_key, seconds);
    let is_over = AtomicBool::new(false);
    let (before, busy, after) = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = small;
            at_rate(&is_over, 1_500.0, || {
                store.put_with(key(number), &small_bytes, &BUFFERED).unwrap();
                number += 1;
            });
        });
        scope.spawn(|| {
            let mut numbers = Numbers(78);
            at_rate(&is_over, 30.0, || {
                let name = large_key(numbers.below(large));
                store.put_with(name, &large_bytes, &BUFFERED).unwrap();
            });
        });
        latencies(&store, large, large_key, seconds / 2);
        let before = store.stats();
        let busy = latencies(&store, large, large_key, seconds);
        is_over.store(true, Ordering::Relaxed);
        (before, busy, store.stats())
    });
    report(
        bench,
        seconds.as_secs_f64(),
        sequential,
        [&alone, &busy],
        [&before, &after],
    );
    drop(store);
    let _ = std::fs::remove_dir_all(dir);
    let _ = std::fs::remove_dir_all(large_dir);
}

/// Until the background has done what the loading left to it.
fn wait_for_rest(store: &Store) {
    let until = Instant::now() + Duration::from_secs(120);
    let moved = |stats: Stats| stats.written.large_destaged_bytes + stats.written.large_cleaned_bytes;
    let mut last = moved(store.stats());
    while Instant::now() < until {
        std::thread::sleep(Duration::from_secs(3));
        let now = moved(store.stats());
        if now == last {
            return;
        }
        last = now;
    }
}

fn report(bench: &mut Bench, seconds: f64, sequential: Option<f64>, runs: [&Vec<u32>; 2], stats: [&Stats; 2]) {
    let [alone, busy] = runs;
    let rates = [alone.len() as f64 / seconds, busy.len() as f64 / seconds];
    let grown = |figure: fn(&WrittenStats) -> u64| {
        (figure(&stats[1].written) - figure(&stats[0].written)) as f64 / seconds / MIB
    };
    let written = grown(|written| written.large_user_bytes);
    let destaged = grown(|written| written.large_destaged_bytes);
    let cleaned = grown(|written| written.large_cleaned_bytes);
    let did = format!(
        "{written:.1} MiB/s written by callers, {destaged:.1} destaged, {cleaned:.1} cleaned; {} blocks cleaned, share {} per mille",
        stats[1].large.blocks_cleaned - stats[0].large.blocks_cleaned,
        stats[1].large_pace.share_per_mille,
    );
    // What is cleaned is read and written. All of it in one long run would leave this much of the disk's time to readers.
    let left = sequential.map(|rate| rates[0] * (1.0 - (written + destaged + 2.0 * cleaned) * MIB / rate).max(0.0));
    bench.report.figure("reads alone", rates[0], "per s", None, "");
    bench.report.figure(
        "reads beside, over reads alone",
        rates[1],
        "per s",
        Some(rates[0]),
        &did,
    );
    let notes = sequential.map_or_else(String::new, |rate| format!("sequential writes {:.0} MiB/s", rate / MIB));
    bench.report.figure(
        "reads beside, over what long runs would leave",
        rates[1],
        "per s",
        left,
        &notes,
    );
    for (share, name) in [(0.5, "median"), (0.99, "p99"), (0.999, "p99.9")] {
        let at = |run: &Vec<u32>| f64::from(run[((run.len() - 1) as f64 * share) as usize]) / 1e3;
        bench.report.figure(name, at(busy), "ms", Some(at(alone)), "over alone");
    }
}
