//! A large tier on a disk that seeks: latencies of reads beside destaging and block GC.

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

/// Environment variable with the directory of the large tier, on a disk.
const DIRECTORY: &str = "TERRACE_BENCH_LARGE_DIR";
const LARGE_BYTES: usize = 128 << 10;
const SMALL_BYTES: usize = 8 << 10;
const MIB: f64 = 1048576.0;

/// Reads of the large tier alone, and beside destaging and block GC.
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
        log_capacity_bytes: Some(512 << 20),
        ..options
    })
    .unwrap();
    let large = bench.count(12_000);
    let (small_bytes, large_bytes) = (value(SMALL_BYTES), value(LARGE_BYTES));
    for number in 0..large {
        store.put_with(large_key(number), &large_bytes, &BUFFERED).unwrap();
    }
    // As many small ones as the log holds, so that each further one causes another to be destaged.
    let small = (512 << 20) / SMALL_BYTES as u64;
    for number in 0..small {
        store.put_with(key(number), &small_bytes, &BUFFERED).unwrap();
    }
    store.flush().unwrap();
    wait_for_rest(&store);
    let seconds = Duration::from_secs_f64(60.0 * bench.scale.min(1.0));
    let alone = latencies(&store, large, large_key, seconds);
    rate(bench, "reads alone", &alone, seconds, None, "");
    let mut next = small;
    let mut destage = || {
        store.put_with(key(next), &small_bytes, &BUFFERED).unwrap();
        next += 1;
    };
    let found = beside(&store, large, seconds, 1_500.0, &mut destage);
    report(bench, "destaging", seconds, sequential, &alone, &found);
    // Enough is dead that block GC has begun, and continues while callers overwrite.
    let mut numbers = Numbers(78);
    let mut overwrite = || {
        let name = large_key(numbers.below(large));
        store.put_with(name, &large_bytes, &BUFFERED).unwrap();
    };
    (0..large).for_each(|_| overwrite());
    let found = beside(&store, large, seconds, 30.0, &mut overwrite);
    report(bench, "overwriting and cleaning", seconds, sequential, &alone, &found);
    drop(store);
    let _ = std::fs::remove_dir_all(dir);
    let _ = std::fs::remove_dir_all(large_dir);
}

/// Latencies of reads, and background work, while `write` is called at a rate.
fn beside(
    store: &Store,
    large: u64,
    seconds: Duration,
    per_second: f64,
    write: &mut (dyn FnMut() + Send),
) -> (Stats, Vec<u32>, Stats) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| at_rate(&is_over, per_second, write));
        latencies(store, large, large_key, seconds / 4);
        let before = store.stats();
        let busy = latencies(store, large, large_key, seconds);
        is_over.store(true, Ordering::Relaxed);
        (before, busy, store.stats())
    })
}

/// Waits until the background work of the loading is done.
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

fn rate(bench: &mut Bench, what: &str, run: &[u32], seconds: Duration, other: Option<f64>, notes: &str) -> f64 {
    let rate = run.len() as f64 / seconds.as_secs_f64();
    bench.report.figure(what, rate, "per s", other, notes);
    rate
}

fn report(
    bench: &mut Bench,
    what: &str,
    seconds: Duration,
    sequential: Option<f64>,
    alone: &[u32],
    (before, busy, after): &(Stats, Vec<u32>, Stats),
) {
    let grown = |figure: fn(&WrittenStats) -> u64| {
        (figure(&after.written) - figure(&before.written)) as f64 / seconds.as_secs_f64() / MIB
    };
    let written = grown(|written| written.large_user_bytes);
    let destaged = grown(|written| written.large_destaged_bytes);
    let cleaned = grown(|written| written.large_cleaned_bytes);
    let did = format!(
        "MiB/s: {written:.1} written by callers, {destaged:.1} destaged, {cleaned:.1} cleaned; {} blocks cleaned, share {} per mille",
        after.large.blocks_reclaimed - before.large.blocks_reclaimed,
        after.large_throttle.share_per_mille,
    );
    let of_alone = alone.len() as f64 / seconds.as_secs_f64();
    rate(
        bench,
        &format!("{what}: over reads alone"),
        busy,
        seconds,
        Some(of_alone),
        &did,
    );
    // Moved values are read and written. In one long run each, they would leave this share of the
    // disk's time to readers.
    let moved = (written + destaged + 2.0 * cleaned) * MIB;
    let left = sequential.map(|rate| of_alone * (1.0 - moved / rate).max(0.0));
    let notes = sequential.map_or_else(String::new, |rate| format!("sequential writes {:.0} MiB/s", rate / MIB));
    rate(
        bench,
        &format!("{what}: over what one long run would leave"),
        busy,
        seconds,
        left,
        &notes,
    );
    for (share, name) in [(0.5, "median"), (0.99, "p99")] {
        let at = |run: &[u32]| f64::from(run[((run.len() - 1) as f64 * share) as usize]) / 1e3;
        bench.report.figure(
            &format!("{what}: {name}"),
            at(busy),
            "ms",
            Some(at(alone)),
            "over alone",
        );
    }
}
