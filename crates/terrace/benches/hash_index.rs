//! Measures the hash index and prints a Markdown table: `cargo bench -p terrace --bench
//! hash_index`.
//!
//! Times are processor times of the thread, which a busy machine affects less. A numeric argument
//! limits the largest table (entries). Every figure is of one run. Lookups are of random keys, so
//! in tables larger than the processor's caches nearly every one misses them.

use rustix::time::{ClockId, clock_gettime};
use std::{hint::black_box, thread, time::Duration};
use terrace::hash_index::{Config, HashIndex};
use terrace::log::address::Address;

const LOOKUPS: u64 = 4_000_000;
const MINIMUM_TIME: Duration = Duration::from_millis(500);

/// Processor time of this thread.
struct Watch(Duration);

impl Watch {
    fn now() -> Duration {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    fn start() -> Self {
        Self(Self::now())
    }

    fn elapsed(&self) -> Duration {
        Self::now() - self.0
    }
}

/// SplitMix64, in place of the hash of key number `key`.
fn hash(key: u64) -> u64 {
    let mut mixed = key.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

fn address(key: u64) -> Address {
    Address::from_packed(key % (1 << 36) + 1).expect("not 0 and below 2^36")
}

/// Keys from this one on are never inserted.
const ABSENT: u64 = 1 << 50;

fn millions_per_second(operations: u64, time: Duration) -> f64 {
    operations as f64 / time.as_secs_f64() / 1e6
}

/// Lookups per second of one of `threads` concurrent threads, in millions.
fn lookups(index: &HashIndex, entries: u64, threads: u64, first: u64) -> f64 {
    let work = |number: u64| {
        let start = Watch::start();
        let mut hits = 0;
        for step in 0..LOOKUPS {
            let random = hash((number << 40) + step);
            let key = ((u128::from(random) * u128::from(entries)) >> 64) as u64;
            hits += u64::from(index.lookup(hash(first + key)).is_some());
        }
        black_box(hits);
        start.elapsed()
    };
    let time = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|number| scope.spawn(move || work(number))).collect();
        workers.into_iter().map(|worker| worker.join().expect("no panic")).sum()
    });
    millions_per_second(LOOKUPS * threads, time)
}

/// Dependent random reads of a plain array as large as the largest table, in millions per second:
/// the speed of memory without an index.
fn dependent_reads() -> f64 {
    let words: Vec<u64> = (0..11_000_000).collect();
    let start = Watch::start();
    let mut carried = 0;
    for step in 0..LOOKUPS {
        let random = hash(step ^ carried);
        carried = words[((u128::from(random) * words.len() as u128) >> 64) as usize] >> 63;
    }
    black_box(carried);
    millions_per_second(LOOKUPS, start.elapsed())
}

struct Filled {
    index: HashIndex,
    inserts: f64,
    load_max: f64,
    /// Durations of single insertions: 99.99th percentile and longest.
    slowest: [Duration; 2],
}

/// Inserts keys `0..entries` into an index of the smallest initial size.
fn fill(entries: u64) -> Filled {
    let index = HashIndex::new(Config::default()).expect("a good configuration");
    let start = Watch::start();
    for key in 0..entries {
        black_box(index.insert(hash(key), address(key), 1000));
    }
    let inserts = millions_per_second(entries, start.elapsed());
    // A second time, with measurements of each insertion, which slow it down.
    index.clear();
    drop(index);
    let index = HashIndex::new(Config::default()).expect("a good configuration");
    let (mut load_max, mut times) = (0.0f64, Vec::with_capacity(entries as usize));
    for key in 0..entries {
        if key % 4096 == 0 {
            load_max = load_max.max(index.load());
        }
        let start = Watch::start();
        black_box(index.insert(hash(key), address(key), 1000));
        times.push(start.elapsed());
    }
    times.sort_unstable();
    let slowest = [times[times.len() - 1 - times.len() / 10_000], times[times.len() - 1]];
    Filled {
        load_max: load_max.max(index.load()),
        index,
        inserts,
        slowest,
    }
}

/// Insertions per second, in millions, into a table with space: the first half of the initial 4
/// MiB.
fn inserts_with_room() -> f64 {
    let (mut inserted, mut time) = (0, Duration::ZERO);
    while time < MINIMUM_TIME {
        let index = HashIndex::new(Config::default()).expect("a good configuration");
        let start = Watch::start();
        for key in 0..250_000 {
            black_box(index.insert(hash(key), address(key), 1000));
        }
        time += start.elapsed();
        inserted += 250_000;
    }
    millions_per_second(inserted, time)
}

/// Replaces old keys by new ones at the table's load; pairs per second in millions.
fn replacements(index: &HashIndex, entries: u64) -> f64 {
    let pairs = entries.min(1_000_000);
    let start = Watch::start();
    for key in 0..pairs {
        index.remove(hash(key));
        black_box(index.insert(hash(entries + key), address(key), 1000));
    }
    millions_per_second(pairs, start.elapsed())
}

fn main() {
    let limit = std::env::args()
        .filter_map(|argument| argument.parse().ok())
        .next()
        .unwrap_or(10_000_000);
    println!(
        "Dependent random reads of an array of 88 MB: {:.1} M/s",
        dependent_reads()
    );
    println!(
        "Insertions with room (load 0 to 0.48): {:.1} M/s\n",
        inserts_with_room()
    );
    println!(
        "| entries | load | highest load | RAM bytes per entry | growths | single insertion, 99.99 % / longest | inserts M/s, growing from 4 MiB | remove + insert M/s | false matches of absent keys | \
         hits M/s, 1 / 2 / 4 threads | misses M/s, 1 / 2 / 4 threads |"
    );
    println!("|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    for entries in [100_000, 1_000_000, 10_000_000]
        .into_iter()
        .filter(|entries| *entries <= limit)
    {
        let filled = fill(entries);
        let index = &filled.index;
        let (load, growths) = (index.load(), index.growths());
        let bytes = index.ram_bytes() as f64 / index.len() as f64;
        let probes = 20_000_000;
        let matches = (0..probes)
            .filter(|key| index.peek(hash(ABSENT + key)).is_some())
            .count();
        let rates = |first| {
            [1, 2, 4]
                .map(|threads| format!("{:.1}", lookups(index, entries, threads, first)))
                .join(" / ")
        };
        let (hits, misses) = (rates(0), rates(ABSENT));
        let replaced = replacements(index, entries);
        println!(
            "| {entries} | {load:.3} | {:.3} | {bytes:.2} | {growths} | {} | {:.1} | {replaced:.1} | {:.5} % (expected {:.5} %) | {hits} | {misses} |",
            filled.load_max,
            filled
                .slowest
                .map(|time| format!("{:.2} ms", time.as_secs_f64() * 1e3))
                .join(" / "),
            filled.inserts,
            matches as f64 / probes as f64 * 100.0,
            entries as f64 / (1u64 << 35) as f64 * 100.0,
        );
    }
}
