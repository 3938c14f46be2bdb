//! Speed of the ordered index: insertions, with flushes and compactions running, and lookups.
//!
//! `cargo bench -p terrace --bench ordered_index [-- <million entries> [<directory>]]`. Each row:
//! the order of the keys, whether batches were sorted before they were inserted, the memtable's
//! size, then rates. Keys have 16 bytes, entries 20. One thread inserts, one flushes, one compacts.
//! The inserting thread waits while four memtables are sealed or level 0 has sixteen runs, as the
//! store does; that time is part of the rate.
#![allow(missing_docs, clippy::unwrap_used, clippy::cast_precision_loss)]

use bytes::Bytes;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use terrace::{
    Version,
    ordered_index::{Entry, Home, IndexMark, IndexOptions, OrderedIndex},
};

const BATCH: u64 = 5000;

fn key(number: u64, random: bool) -> [u8; 16] {
    let mut key = [0; 16];
    // A bijection, so that random keys are distinct and can be found again by number.
    let place = if random {
        number
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .swap_bytes()
            .wrapping_mul(0xD6E8_FEB8_6659_FD93)
    } else {
        number
    };
    key[..8].copy_from_slice(&place.to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

fn entry(number: u64) -> Entry {
    Entry {
        version: Version(number),
        length: 1000,
        checksum: 0x1234_5678,
        home: Home::Flash { address: number * 1024 },
        attributes: Bytes::new(),
        copy: None,
    }
}

struct Inserted {
    elapsed: Duration,
    on_processor: Duration,
    waited: Duration,
    drained: Duration,
}

/// Inserts everything, then waits for flushes and compactions.
fn insert(index: &Arc<OrderedIndex>, entries: u64, random: bool, sorted: bool) -> Inserted {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flusher = scope.spawn(|| {
            loop {
                let last = done.load(Ordering::Acquire);
                if index.flush_sealed(index.applied_seq()).unwrap().is_none() {
                    if last {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        let compactor = scope.spawn(|| {
            loop {
                let last = done.load(Ordering::Acquire) && index.sealed_count() == 0;
                if !index.compact(index.applied_seq()).unwrap() {
                    if last {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        let mut applier = index.applier().unwrap();
        let mut batch = Vec::with_capacity(BATCH as usize);
        let mut waited = Duration::ZERO;
        let (start, started_at) = (Instant::now(), thread_time());
        let mut next = 0;
        while next < entries {
            batch.clear();
            batch.extend((next..entries.min(next + BATCH)).map(|number| (key(number, random), entry(number + 1))));
            if sorted {
                batch.sort_unstable_by_key(|(key, _)| *key);
            }
            next += batch.len() as u64;
            for (key, entry) in &batch {
                applier.insert(key, entry, next);
            }
            applier.applied(next);
            if applier.is_full() || next == entries {
                let waiting = Instant::now();
                while index.sealed_count() >= 4 || index.l0_runs() >= 16 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                waited += waiting.elapsed();
                applier
                    .rotate(IndexMark {
                        applied_seq: next,
                        payload: Bytes::new(),
                    })
                    .unwrap();
            }
        }
        let elapsed = start.elapsed();
        let on_processor = thread_time() - started_at;
        done.store(true, Ordering::Release);
        flusher.join().unwrap();
        compactor.join().unwrap();
        Inserted {
            elapsed,
            on_processor,
            waited,
            drained: start.elapsed(),
        }
    })
}

/// Lookups per second and data blocks read per lookup.
fn look_up(index: &OrderedIndex, entries: u64, random: bool, present: bool) -> (f64, f64) {
    let mut rng = StdRng::seed_from_u64(7);
    let lookups = 200_000;
    let before = index.stats().block_reads;
    let start = Instant::now();
    for _ in 0..lookups {
        let number = rng.random_range(0..entries);
        let mut key = key(number, random);
        if !present {
            key[15] ^= 1;
            key[8] ^= 0x80;
        }
        assert_eq!(index.get(&key).unwrap().is_some(), present);
    }
    let rate = f64::from(lookups) / start.elapsed().as_secs_f64();
    (rate, (index.stats().block_reads - before) as f64 / f64::from(lookups))
}

/// Processor time of this thread, for a rate without the time of other programs.
fn thread_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split_whitespace().next().and_then(|number| number.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or(0))
}

/// Bytes written to devices by this process so far; 0 where the system does not tell.
fn written_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    line.and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
}

fn run(parent: &Path, entries: u64, random: bool, sorted: bool, [memtable_mib, table_mib]: [u64; 2]) {
    let dir = tempfile::tempdir_in(parent).unwrap();
    let options = IndexOptions {
        memtable_bytes: memtable_mib << 20,
        table_bytes: table_mib << 20,
        guards: false,
        ..IndexOptions::default()
    };
    let (index, _) = OrderedIndex::open(&dir.path().join("index"), options).unwrap();
    let index = Arc::new(index);
    let before = written_bytes();
    let inserted = insert(&index, entries, random, sorted);
    let written = written_bytes() - before;
    let (hit_rate, hit_reads) = look_up(&index, entries, random, true);
    let (miss_rate, miss_reads) = look_up(&index, entries, random, false);
    let stats = index.stats();
    println!(
        "| {} | {} | {memtable_mib} | {table_mib} | {:.0} k/s | {:.0} k/s | {:.1} s | {:.1} s | {:.0} B | {:.0} k/s, {hit_reads:.3} | \
         {:.0} k/s, {miss_reads:.5} | {}, {} | {:.1} B, {:.2} B |",
        if random { "random" } else { "ascending" },
        if sorted { "sorted" } else { "as is" },
        entries as f64 / inserted.elapsed.as_secs_f64() / 1e3,
        entries as f64 / inserted.on_processor.as_secs_f64() / 1e3,
        inserted.waited.as_secs_f64(),
        inserted.drained.as_secs_f64(),
        written as f64 / entries as f64,
        hit_rate / 1e3,
        miss_rate / 1e3,
        stats.tables,
        index.l0_runs(),
        stats.bytes as f64 / entries as f64,
        index.pinned_bytes() as f64 / entries as f64,
    );
}

fn main() {
    // `cargo bench` adds `--bench`.
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let millions: f64 = arguments.next().map_or(2.0, |argument| argument.parse().unwrap());
    let parent = arguments.next().map_or_else(std::env::temp_dir, Into::into);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let entries = (millions * 1e6) as u64;
    println!(
        "| keys | batches | memtable MiB | table MiB | insert | per second on a processor | of it waiting | until compacted | written per key | get, block reads \
         | get absent, block reads | tables, L0 runs | per key on flash, in RAM |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    );
    for sizes in [[8, 16], [16, 16], [16, 32], [16, 64], [32, 32], [64, 64]] {
        for sorted in [false, true] {
            run(&parent, entries, true, sorted, sizes);
        }
    }
    run(&parent, entries, false, false, [16, 32]);
}
