//! Scans of values written in random order: YCSB's workload E with short and longer values.
//!
//! `cargo bench -p terrace --bench scans -- [<objects> <value bytes> <RAM MiB> <seconds> <inline
//! bytes> <threads> <MiB/s written in order> <directory> <MiB of it for the index's blocks>
//! <seconds of each of the others> <overwrites of each object>]`.
//!
//! Loads the objects in random order. With overwrites it overwrites them by Zipf's law, so many
//! times each on average: most of the log is dead then. Then it does 95 % scans of 50 pairs, from
//! start keys by Zipf's law (exponent 0.99, popular keys spread over all), and 5 % inserts between
//! the existing keys, as YCSB does. Every four seconds it prints the operations done, the processor
//! time of each, and the bytes read and written. Then scans of 100 pairs from uniform keys, and
//! gets and overwrites of scanned keys. RAM is divided as in `terrace-bench contest`. Objects that
//! a directory has from an earlier run are not loaded again.
#![allow(missing_docs, clippy::unwrap_used, clippy::cast_precision_loss)]

use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};
use terrace::{Durability, Options, PutOptions, ScanRange, Stats, Store};

const EXPONENT: f64 = 0.99;

/// Draws numbers by Zipf's law (Gray et al., SIGMOD 1994), as YCSB does.
struct Zipf {
    count: u64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    fn new(count: u64) -> Self {
        let zeta_of = |count: u64| -> f64 { (1..=count).map(|rank| (rank as f64).powf(-EXPONENT)).sum() };
        let zeta = zeta_of(count);
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - EXPONENT)) / (1.0 - zeta_of(2) / zeta);
        Self { count, zeta, eta }
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // below the count
    fn draw(&self, rng: &mut StdRng) -> u64 {
        let part: f64 = rng.random();
        let scaled = part * self.zeta;
        let rank = if scaled < 1.0 {
            0
        } else if scaled < 1.0 + 0.5_f64.powf(EXPONENT) {
            1
        } else {
            (self.count as f64 * (self.eta * part - self.eta + 1.0).powf(1.0 / (1.0 - EXPONENT))) as u64
        };
        spread(rank.min(self.count - 1), self.count)
    }
}

/// The number of the object with this rank.
fn spread(rank: u64, count: u64) -> u64 {
    let mut bits = rank.wrapping_add(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (bits ^ (bits >> 31)) % count
}

fn key(number: u64) -> String {
    format!("user{number:012}")
}

fn value(number: u64, bytes: usize) -> Vec<u8> {
    let mut value = Vec::with_capacity(bytes + 8);
    let mut word = number.wrapping_mul(0xD6E8_FEB8_6659_FD93) | 1;
    while value.len() < bytes {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        value.extend_from_slice(&word.to_le_bytes());
    }
    value.truncate(bytes);
    value
}

/// Processor time of the process.
fn processor() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}

struct Settings {
    objects: u64,
    value_bytes: usize,
    ram_bytes: u64,
    time: Duration,
    inline_bytes: u64,
    threads: u64,
    order_bytes: u64,
    index_cache_bytes: u64,
}

fn open(directory: &Path, settings: &Settings) -> Store {
    let ram = settings.ram_bytes;
    let mut options = Options::new(directory);
    options.tuning.inline_bytes_max = settings.inline_bytes;
    options.tuning.memtable_bytes = options.tuning.memtable_bytes.min(ram / 8);
    options.tuning.overlay_bytes = options.tuning.overlay_bytes.min(ram / 16);
    options.tuning.staging_bytes = 0;
    options.tuning.order_bytes_per_second = settings.order_bytes;
    options.tuning.index_cache_bytes = settings.index_cache_bytes;
    let others = options.tuning.index_cache_bytes + 2 * options.tuning.memtable_bytes + options.tuning.overlay_bytes;
    options.cache_bytes = ram - others;
    Store::open(options).unwrap()
}

/// Statistics of an interval.
struct Step<'a> {
    store: &'a Store,
    began: Instant,
    processor: Duration,
    stats: Stats,
}

impl<'a> Step<'a> {
    fn begin(store: &'a Store) -> Self {
        Self {
            store,
            began: Instant::now(),
            processor: processor(),
            stats: store.stats(),
        }
    }

    fn tell(&self, name: &str, operations: u64) {
        let count = operations.max(1) as f64;
        let (now, before) = (self.store.stats(), &self.stats);
        let per = |now: u64, before: u64| now.saturating_sub(before) as f64 / count;
        println!(
            "{name:>10}: {:9.0}/s {:7.1} us; per operation: reads of the log {:.2}, of the index {:.2}, bytes written {:.0}; chunks read {:.2}, made {:.3}, dropped {:.3}; pairs of them {:.1}; copied {}, swept {} MiB",
            count / self.began.elapsed().as_secs_f64(),
            (processor() - self.processor).as_secs_f64() * 1e6 / count,
            per(now.reads.flash_reads, before.reads.flash_reads),
            per(now.index.block_reads, before.index.block_reads),
            per(now.written.flash_bytes(), before.written.flash_bytes()),
            per(now.scan_cache.chunk_hits, before.scan_cache.chunk_hits),
            per(now.scan_cache.made, before.scan_cache.made),
            per(now.scan_cache.dropped, before.scan_cache.dropped),
            per(now.scan_cache.pair_hits, before.scan_cache.pair_hits),
            now.scan_order.copied,
            now.scan_order.sweep_bytes >> 20,
        );
    }
}

/// All threads do `operation` for some time; prints statistics every four seconds.
fn run(store: &Store, settings: &Settings, name: &str, time: Duration, operation: impl Fn(&mut StdRng) + Sync) {
    let (done, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for thread in 0..settings.threads {
            let (done, is_over, operation) = (&done, &is_over, &operation);
            scope.spawn(move || {
                let mut rng = StdRng::seed_from_u64(thread + 17);
                while !is_over.load(Ordering::Relaxed) {
                    operation(&mut rng);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let all = Instant::now();
        while all.elapsed() < time {
            let step = Step::begin(store);
            let before = done.load(Ordering::Relaxed);
            std::thread::sleep(Duration::from_secs(4));
            step.tell(name, done.load(Ordering::Relaxed) - before);
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

fn scan(store: &Store, from: u64, count: usize) {
    let from = key(from);
    let mut scan = store.scan(ScanRange::range(from.as_bytes()..)).unwrap();
    let mut left = count;
    while left > 0 {
        let visit = |_: &[u8], value: terrace::Result<&[u8]>| assert!(!value.unwrap().is_empty());
        let found = scan.visit_values(left.min(64), visit).unwrap();
        if found == 0 {
            break;
        }
        left -= found;
    }
}

/// Puts all objects that there are not yet, and overwrites each so many times on average.
fn load(store: &Store, settings: &Settings, zipf: &Zipf, times: u64, put: impl Fn(u64)) {
    let objects = settings.objects;
    let step = Step::begin(store);
    // A step coprime with the count visits each number once.
    if store.get(key(objects - 1)).unwrap().is_none() {
        (0..objects).for_each(|n| put(n.wrapping_mul(7_368_787) % objects));
    }
    store.flush().unwrap();
    step.tell("load", objects);
    if times > 0 {
        let step = Step::begin(store);
        let mut rng = StdRng::seed_from_u64(5);
        (0..times * objects).for_each(|_| put(zipf.draw(&mut rng)));
        store.flush().unwrap();
        step.tell("overwrites", times * objects);
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    let number = |at: usize, default: u64| arguments.get(at).map_or(default, |text| text.parse().unwrap());
    let settings = Settings {
        objects: number(0, 200_000),
        value_bytes: usize::try_from(number(1, 100)).unwrap(),
        ram_bytes: number(2, 64) << 20,
        time: Duration::from_secs(number(3, 10)),
        inline_bytes: number(4, 64),
        threads: number(5, 8),
        order_bytes: number(6, 64) << 20,
        index_cache_bytes: arguments.get(8).map_or_else(
            || (number(0, 200_000) * 200).min(number(2, 64) << 18),
            |text| text.parse::<u64>().unwrap() << 20,
        ),
    };
    let temporary = tempfile::tempdir().unwrap();
    let directory = arguments.get(7).map_or(temporary.path(), Path::new);
    let store = open(directory, &settings);
    let buffered = PutOptions {
        durability: Durability::Buffered,
        ..PutOptions::default()
    };
    let put_at = |key: String, number: u64| {
        store
            .put_with(key, value(number, settings.value_bytes), &buffered)
            .unwrap();
    };
    let put = |number: u64| put_at(key(number), number);
    let zipf = Zipf::new(settings.objects);
    load(&store, &settings, &zipf, number(10, 0), put);
    let next = AtomicU64::new(settings.objects);
    run(&store, &settings, "E-z", settings.time, |rng| {
        if rng.random_range(0..100) < 5 {
            let number = next.fetch_add(1, Ordering::Relaxed);
            put_at(format!("{}n{number}", key(spread(number, settings.objects))), number);
        } else {
            scan(&store, zipf.draw(rng), 50);
        }
    });
    let short = Duration::from_secs(number(9, 4));
    run(&store, &settings, "scan 100 u", short, |rng| {
        scan(&store, rng.random_range(0..settings.objects), 100);
    });
    run(&store, &settings, "C-z", short, |rng| {
        store.get(key(zipf.draw(rng))).unwrap().unwrap();
    });
    run(&store, &settings, "C-u", short, |rng| {
        store.get(key(rng.random_range(0..settings.objects))).unwrap().unwrap();
    });
    run(&store, &settings, "A-z", short, |rng| {
        let number = zipf.draw(rng);
        if rng.random_bool(0.5) {
            put(number);
        } else {
            store.get(key(number)).unwrap().unwrap();
        }
    });
    println!("{:?}\n{:?}", store.stats().scan_order, store.stats().ram);
    store.close().unwrap();
}
