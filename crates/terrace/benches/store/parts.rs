//! The measurements.

use crate::{Bench, causes, device, disk, popular, steady, sweep, together};
use std::{
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};
use terrace::{Durability, FilledFrom, Options, PutOptions, Stats, Store};

type Part = fn(&mut Bench);

pub const ALL: [(&str, Part); 14] = [
    ("put", put),
    ("sync", sync),
    ("large", large),
    ("get", get),
    ("open", open),
    ("recycle", recycle),
    ("overwrite", overwrite),
    ("reads-first", steady::reads_first),
    ("causes", causes::reads_by_cause),
    ("churn", steady::churn),
    ("popular", popular::popular),
    ("multi-get", together::multi_get),
    ("disk", disk::reads_of_a_disk),
    ("sweep", sweep::reads_beside_a_sweep),
];

pub const BUFFERED: PutOptions = PutOptions {
    attributes: terrace::Attributes::new(),
    durability: Durability::Buffered,
    condition: terrace::Condition::None,
    expiry: terrace::Expiry::Never,
};

/// Keys of 16 bytes in random order, a function of the number.
pub fn key(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    let mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    key[..8].copy_from_slice(&(mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9).to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

pub fn value(length: usize) -> Vec<u8> {
    let mut state = 88_172_645_463_325_252_u64;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

pub fn fresh(bench: &Bench, name: &str) -> (std::path::PathBuf, Options) {
    let dir = bench.dir.join(name);
    let _ = std::fs::remove_dir_all(&dir);
    let options = Options {
        cache_bytes: 0,
        ..Options::new(&dir)
    };
    (dir, options)
}

pub fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit(')').next().unwrap_or_default();
    let ticks: f64 = after
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<f64>().ok())
        .sum();
    ticks / 100.0
}

pub fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap_or("0");
    line.split_whitespace()
        .next()
        .and_then(|kib| kib.parse::<f64>().ok())
        .unwrap_or(0.0)
        / 1024.0
}

fn amplification(stats: &Stats) -> String {
    format!("write amplification {:.2}", stats.written.write_amplification())
}

/// Buffered puts, one thread.
fn put(bench: &mut Bench) {
    bench.report.heading("Buffered puts, one thread, random keys");
    for (length, full) in [(100_usize, 4_000_000_u64), (1024, 4_000_000), (8192, 500_000)] {
        if std::env::var("TERRACE_BENCH_BYTES").is_ok_and(|only| only != length.to_string()) {
            continue;
        }
        let (dir, options) = fresh(bench, "put");
        let count = bench.count(full);
        let store = Store::open(options).unwrap();
        let bytes = value(length);
        let (start, cpu) = (Instant::now(), cpu_seconds());
        for number in 0..count {
            store.put_with(key(number), &bytes, &BUFFERED).unwrap();
        }
        let rate = count as f64 / start.elapsed().as_secs_f64();
        store.flush().unwrap();
        let settled = count as f64 / start.elapsed().as_secs_f64();
        let cpu_us = (cpu_seconds() - cpu) * 1e6 / count as f64;
        let notes = format!(
            "until all is persisted {settled:.0}/s; {cpu_us:.2} µs of CPU per put; {}",
            amplification(&store.stats())
        );
        bench
            .report
            .figure(&format!("put {length} B"), rate, "puts/s", None, &notes);
        drop(store);
        let _ = std::fs::remove_dir_all(dir);
    }
}

/// Puts that wait for the device, by number of threads.
fn sync(bench: &mut Bench) {
    bench
        .report
        .heading("Synced puts of 1 KiB; the device's figure is its rate of synced 4 KiB writes times the threads");
    let device = device::synced_writes(&bench.dir);
    let only: Option<u64> = std::env::var("TERRACE_BENCH_THREADS")
        .ok()
        .map(|text| text.parse().unwrap());
    for threads in only.map_or(vec![1, 8, 64], |threads| vec![threads]) {
        let (dir, options) = fresh(bench, "sync");
        let store = Store::open(options).unwrap();
        let bytes = value(1024);
        let (done, start) = (AtomicU64::new(0), Instant::now());
        let limit = Duration::from_secs_f64(4.0 * bench.scale.min(1.0));
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (store, bytes, done) = (&store, &bytes, &done);
                scope.spawn(move || {
                    let mut number = thread << 32;
                    while start.elapsed() < limit {
                        store.put(key(number), bytes).unwrap();
                        number += 1;
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        let rate = done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
        let syncs = store.stats().queue.syncs as f64 / start.elapsed().as_secs_f64();
        let group = rate / syncs;
        let of_device = device.map_or(0.0, |device| rate / (device * group));
        let notes = format!(
            "{syncs:.0} syncs/s of {group:.1} writers each: {of_device:.2} of the device's rate times the group"
        );
        bench.report.figure(
            &format!("{threads} threads"),
            rate,
            "puts/s",
            device.map(|rate| rate * threads as f64),
            &notes,
        );
        drop(store);
        let _ = std::fs::remove_dir_all(dir);
    }
}

/// Values of 128 KiB into the large space.
fn large(bench: &mut Bench) {
    bench.report.heading("Values of 128 KiB into the large space, MiB/s");
    for (threads, durability) in [
        (1_u64, Durability::Buffered),
        (4, Durability::Buffered),
        (32, Durability::Sync),
    ] {
        let device = device::sequential_writes(&bench.dir);
        let (dir, options) = fresh(bench, "large");
        let store = Store::open(options).unwrap();
        let bytes = value(128 << 10);
        let count = bench.count(24_000) / threads;
        let options = PutOptions { durability, ..BUFFERED };
        let start = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (store, bytes, options) = (&store, &bytes, &options);
                scope.spawn(move || {
                    for number in 0..count {
                        store.put_with(key(thread << 32 | number), bytes, options).unwrap();
                    }
                });
            }
        });
        store.flush().unwrap();
        let mib = |bytes: f64| bytes / f64::from(1 << 20);
        let rate = mib((count * threads * (128 << 10)) as f64 / start.elapsed().as_secs_f64());
        let what = format!("{threads} threads, {durability:?}");
        let notes = amplification(&store.stats());
        bench.report.figure(&what, rate, "MiB/s", device.map(mib), &notes);
        drop(store);
        let _ = std::fs::remove_dir_all(dir);
    }
}

/// Reads of 1 KiB values that live on flash, RAM cache off.
fn get(bench: &mut Bench) {
    let (dir, options) = fresh(bench, "get");
    let count = bench.count(3_000_000);
    let store = Store::open(options).unwrap();
    let bytes = value(1024);
    for number in 0..count {
        store.put_with(key(number), &bytes, &BUFFERED).unwrap();
    }
    store.flush().unwrap();
    bench
        .report
        .heading("Reads of 1 KiB values on flash, no cache; the device's figure is its random 4 KiB reads");
    for threads in [1_usize, 8, 32] {
        let device = device::random_reads(&bench.dir, threads);
        let before = store.stats();
        let limit = Duration::from_secs_f64(5.0 * bench.scale.min(1.0));
        let (rate, gets, cpu_us) = read_for(&store, threads, count, limit, 0);
        let after = store.stats();
        let per_hit = (after.reads.flash_reads - before.reads.flash_reads) as f64 / gets as f64;
        let notes = format!("{per_hit:.4} flash reads per hit; {cpu_us:.1} µs of CPU per get");
        bench
            .report
            .figure(&format!("{threads} threads"), rate, "gets/s", device, &notes);
    }
    bench.report.heading("Reads of absent keys");
    let before = store.stats();
    let limit = Duration::from_secs_f64(5.0 * bench.scale.min(1.0));
    let (rate, gets, cpu_us) = read_for(&store, 8, count, limit, 1 << 40);
    let after = store.stats();
    let flash = after.reads.flash_reads - before.reads.flash_reads + after.index.block_reads - before.index.block_reads;
    let notes = format!(
        "{:.4} flash reads per miss, index included; {cpu_us:.1} µs of CPU per get",
        flash as f64 / gets as f64
    );
    bench.report.figure("8 threads", rate, "gets/s", None, &notes);
    drop(store);
    let _ = std::fs::remove_file(bench.dir.join("fio.read"));
    let _ = std::fs::remove_dir_all(dir);
}

/// Reads; returns gets per second, gets, and processor time per get.
fn read_for(store: &Store, threads: usize, count: u64, limit: Duration, offset: u64) -> (f64, u64, f64) {
    let (done, start, cpu) = (AtomicU64::new(0), Instant::now(), cpu_seconds());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let done = &done;
            scope.spawn(move || {
                let mut state = 0x2545_f491_4f6c_dd1d_u64.wrapping_mul(thread as u64 + 1);
                let mut gets = 0;
                while gets % 64 != 0 || start.elapsed() < limit {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    let found = store.get(key(offset + state % count)).unwrap();
                    assert_eq!(found.is_some(), offset == 0);
                    gets += 1;
                }
                done.fetch_add(gets, Ordering::Relaxed);
            });
        }
    });
    let gets = done.load(Ordering::Relaxed);
    (
        gets as f64 / start.elapsed().as_secs_f64(),
        gets,
        (cpu_seconds() - cpu) * 1e6 / gets as f64,
    )
}

/// Overwrites on a flash tier far smaller than the data: every segment is recycled repeatedly.
fn recycle(bench: &mut Bench) {
    bench
        .report
        .heading("Buffered overwrites of 1 KiB values, flash log of 1 GiB, data of 4 GiB");
    let (dir, options) = fresh(bench, "recycle");
    let options = Options {
        log_capacity_bytes: Some(1 << 30),
        ..options
    };
    let store = Store::open(options).unwrap();
    let bytes = value(1024);
    let keys = bench.count(4_000_000);
    for round in ["first writing", "overwriting in random order"] {
        let start = Instant::now();
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for number in 0..keys {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let chosen = if round == "first writing" {
                number
            } else {
                (state >> 20) % keys
            };
            store.put_with(key(chosen), &bytes, &BUFFERED).unwrap();
        }
        let rate = keys as f64 / start.elapsed().as_secs_f64();
        let stats = store.stats();
        let notes = format!(
            "{} segments recycled; {}",
            stats.log.segments_reclaimed,
            amplification(&stats)
        );
        bench.report.figure(round, rate, "puts/s", None, &notes);
    }
    drop(store);
    let _ = std::fs::remove_dir_all(dir);
}

/// Write amplification on flash under endless random overwrites, with live values of four fifths of
/// the log: without reads, and with everything read between two writes.
fn overwrite(bench: &mut Bench) {
    bench.report.heading(
        "Bytes written to flash per user byte, index included: overwriting in random order, live values of 0.8 of the log",
    );
    for (length, target) in [(1024_usize, 1.8), (8192, 1.5)] {
        for reads_per_write in [0_u64, 2] {
            let (dir, options) = fresh(bench, "overwrite");
            let capacity = bench.count(1 << 30).next_multiple_of(64 << 20);
            let options = Options {
                log_capacity_bytes: Some(capacity),
                segment_bytes: capacity / 64,
                ..options
            };
            let store = Store::open(options).unwrap();
            let bytes = value(length);
            let keys = capacity * 8 / 10 / length as u64;
            for number in 0..keys {
                store.put_with(key(number), &bytes, &BUFFERED).unwrap();
            }
            let mut state = 0x9e37_79b9_7f4a_7c15_u64;
            let mut chosen = || {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (state >> 20) % keys
            };
            let mut overwrite = |count: u64| {
                for _ in 0..count {
                    store.put_with(key(chosen()), &bytes, &BUFFERED).unwrap();
                    for _ in 0..reads_per_write {
                        assert!(store.get(key(chosen())).unwrap().is_some());
                    }
                }
            };
            overwrite(keys);
            let before = store.stats().written;
            overwrite(keys * 2);
            store.flush().unwrap();
            let after = store.stats().written;
            let user = (after.user_bytes - before.user_bytes) as f64;
            let per_byte = |after: u64, before: u64| (after - before) as f64 / user;
            let flash = per_byte(after.flash_bytes(), before.flash_bytes());
            let notes = format!(
                "target {target}; reinserted {:.2}, moved back {:.2}, index {:.2}; destaged to the large device {:.2}",
                per_byte(after.flash_reinserted_bytes, before.flash_reinserted_bytes),
                per_byte(after.flash_moved_bytes, before.flash_moved_bytes),
                per_byte(
                    after.index_bytes + after.compaction_bytes,
                    before.index_bytes + before.compaction_bytes
                ),
                per_byte(after.large_destaged_bytes, before.large_destaged_bytes),
            );
            let what = format!("{length} B, {reads_per_write} reads per write");
            bench.report.figure(&what, flash, "B/B", None, &notes);
            drop(store);
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

/// Loads a store and aborts without closing it. Runs in a process of its own.
pub fn load_and_die(dir: &Path, count: u64) -> ! {
    let store = Store::open(Options {
        cache_bytes: 0,
        ..Options::new(dir)
    })
    .unwrap();
    let bytes = value(100);
    for number in 0..count {
        store.put_with(key(number), &bytes, &BUFFERED).unwrap();
    }
    let stats = store.stats();
    let index = stats.hash_index;
    println!(
        "{} {} {}",
        resident_mib(),
        index.ram_bytes as f64 / index.entries as f64,
        store.stats().flash.objects
    );
    store.put("last", "one").unwrap();
    // Like SIGKILL: no destructor, no flush, no close.
    std::process::abort();
}

/// Opens after a kill with 10 million objects.
fn open(bench: &mut Bench) {
    let (dir, options) = fresh(bench, "open");
    let count = bench.count(10_000_000);
    bench.report.heading("Opening after a kill");
    let program = std::env::current_exe().unwrap();
    let child = std::process::Command::new(program)
        .args(["load-and-die", dir.to_str().unwrap(), &count.to_string()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout).into_owned();
    let said: Vec<f64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert_eq!(said.len(), 3, "{}", String::from_utf8_lossy(&child.stderr));
    let start = Instant::now();
    let store = Store::open(options).unwrap();
    let opened = start.elapsed();
    assert_eq!(&store.get(key(count / 2)).unwrap().unwrap()[..], &value(100)[..]);
    let first = start.elapsed();
    assert_eq!(&store.get("last").unwrap().unwrap()[..], b"one");
    let notes = format!("opened after {:.3} s", opened.as_secs_f64());
    bench.report.figure(
        &format!("first read, {count} objects of 100 B"),
        first.as_secs_f64(),
        "s",
        None,
        &notes,
    );
    while store.stats().hash_index.refilling || store.stats().queue.frames > 1 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let filled = start.elapsed().as_secs_f64();
    let after = store.stats();
    let source = after.hash_index.checkpoint.filled_from.map_or("?", FilledFrom::name);
    let file = std::fs::metadata(dir.join("flash/CHECKPOINT")).map_or(0, |file| file.len());
    let notes = format!(
        "in the background, from: {source}; the checkpoint has {:.2} B per object, all objects counted",
        file as f64 / count as f64
    );
    bench
        .report
        .figure("hash index filled again", filled, "s", None, &notes);
    let per_object = after.hash_index.ram_bytes as f64 / after.hash_index.entries as f64;
    bench.report.figure(
        "hash index",
        said[1],
        "B/object",
        None,
        &format!("after the load; {per_object:.2} after the refill"),
    );
    bench.report.figure(
        "process while loading",
        said[0],
        "MiB",
        None,
        "resident, at the end of the load",
    );
    bench
        .report
        .figure("process after reopening", resident_mib(), "MiB", None, "resident");
    drop(store);
    let _ = std::fs::remove_dir_all(dir);
}
