//! `terrace-bench zipf`: reads of small objects by Zipf's law, with flash for only a part of the
//! data and the rest on a slow large tier. Figure 7 of the FlashStore paper, with reads.
//!
//! The objects are stored in an order that is independent of their popularity; most are destaged.
//! Then they are read: first to warm up, without the large tier's delay and not counted, then
//! measured. For comparison: a perfect cache of the same size, which always holds the most popular
//! objects. Its hits follow from Zipf's law, and its rate from the rates at which this store reads
//! flash and the large tier, measured in the same run with the same threads:
//!
//! `1 / (hits / rate of reads on flash + (1 - hits) / rate of reads of blocks)`

mod reads;
mod slow;

use crate::{
    Outcome,
    harness::{
        page::Section,
        report::{self, Evaluation},
        results::{Bench, Plan, Record, ResultArguments, rows},
        target::Target,
        values::Values,
        workload::Scale,
    },
};
use reads::{Objects, by_popularity, each_once};
use serde::{Deserialize, Serialize};
use slow::SlowDisk;
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use terrace::{Durability, HomeKind, Options, PutOptions, Store};

const EXPERIMENT: &str = "zipf";
/// Goal: share of a perfect cache's rate.
const OF_PERFECT_MIN: f64 = 0.8;
/// Objects read to measure the rates of flash and of blocks.
const FLASH_SAMPLE: usize = 20_000;
const BLOCK_SAMPLE: usize = 8_000;

const SHARES: [f64; 5] = [0.1, 0.25, 0.5, 0.75, 0.9];

/// Arguments of the subcommand.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// Directory for the store; it needs space for two and a half times the data.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub directory: PathBuf,
    #[command(flatten)]
    pub results: ResultArguments,
    /// Length of a value.
    #[arg(long, value_name = "BYTES", default_value = "1024")]
    pub value_bytes: usize,
    /// Flash as a share of the values' bytes.
    #[arg(long = "share", value_name = "SHARE", default_values_t = SHARES)]
    pub shares: Vec<f64>,
    /// Zipf's exponent.
    #[arg(long, default_value = "0.99")]
    pub exponent: f64,
    /// Reading threads.
    #[arg(long, default_value = "8")]
    pub threads: u64,
    /// Delay of a read of the large tier, in addition to its device's.
    #[arg(long, value_name = "MICROSECONDS", default_value = "1000")]
    pub large_read_us: u64,
    /// Seed of everything random.
    #[arg(long, default_value = "1")]
    pub seed: u64,
}

/// Settings of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Settings {
    objects: u64,
    value_bytes: usize,
    share: f64,
    exponent: f64,
    threads: u64,
    large_read_us: u64,
    warm_up_reads: u64,
    measured_reads: u64,
    seed: u64,
}

/// Measurements of a run. Hits are shares of the reads.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Measured {
    reads_per_second: f64,
    perfect_reads_per_second: f64,
    flash_reads_per_second: f64,
    block_reads_per_second: f64,
    hits: f64,
    perfect_hits: f64,
    /// Values moved back to the log, and values rewritten by recycling, per 100 reads.
    moved_per_100: f64,
    reinserted_per_100: f64,
    destaged_per_100: f64,
    dropped: u64,
}

impl Measured {
    /// The rate relative to a perfect cache's.
    fn of_perfect(&self) -> f64 {
        self.reads_per_second / self.perfect_reads_per_second
    }
}

/// Does the runs and prints the table.
///
/// # Errors
/// The store's, or if the directory cannot be used.
pub fn run(arguments: &Arguments) -> Outcome {
    if arguments.shares.iter().any(|share| !(0.05..=1.0).contains(share)) || arguments.threads == 0 {
        return Err("--share must be between 0.05 and 1, and --threads above 0".into());
    }
    if !(65..=16_000).contains(&arguments.value_bytes) {
        return Err("--value-bytes must be between 65 (shorter values live in the index) and 16000".into());
    }
    let bench = Bench::new(&arguments.results.results, arguments.results.resume)?;
    let objects = match arguments.results.scale {
        Scale::Small => 100_000,
        Scale::Full => 200_000,
    };
    let plans: Vec<_> = arguments
        .shares
        .iter()
        .map(|&share| Plan {
            experiment: EXPERIMENT,
            name: format!("flash {share}"),
            seed: arguments.seed,
            expected_seconds: objects as f64 / 4_000.0,
            settings: Settings {
                objects,
                value_bytes: arguments.value_bytes,
                share,
                exponent: arguments.exponent,
                threads: arguments.threads,
                large_read_us: arguments.large_read_us,
                warm_up_reads: objects * 12,
                measured_reads: objects * 2,
                seed: arguments.seed,
            },
        })
        .collect();
    bench.run_each_in(&arguments.directory, &plans, |directory, settings, progress| {
        measure(directory, settings, |share| progress.share(share))
    })?;
    report::print(&Reads, &bench)
}

fn options(directory: &Path, settings: &Settings, large_read_us: &Arc<AtomicU64>) -> Outcome<Options> {
    let data_bytes = settings.objects * settings.value_bytes as u64;
    let capacity_bytes = (data_bytes as f64 * settings.share) as u64;
    let segment_bytes = (capacity_bytes / 64)
        .next_multiple_of(64 << 10)
        .clamp(256 << 10, 64 << 20);
    let large = directory.join("large");
    Ok(Options {
        segment_bytes,
        flash_capacity_bytes: capacity_bytes.max(8 * segment_bytes),
        size_threshold_bytes: segment_bytes / 4,
        cache_bytes: 0,
        large_disk: Some(Arc::new(SlowDisk::new(&large, large_read_us)?)),
        ..Options::on_tiers(directory.join("flash"), large)
    })
}

fn measure(directory: &Path, settings: &Settings, progress: impl Fn(f64) + Sync) -> Outcome<Measured> {
    let large_read_us = Arc::new(AtomicU64::new(0));
    let store = Store::open(options(directory, settings, &large_read_us)?)?;
    let objects = Objects {
        count: settings.objects,
        value_bytes: settings.value_bytes,
        exponent: settings.exponent,
    };
    fill(&store, objects, settings.seed)?;
    let all = (settings.warm_up_reads + settings.measured_reads) as f64;
    let (threads, seed) = (settings.threads, settings.seed);
    by_popularity(&store, objects, threads, settings.warm_up_reads, seed, |done| {
        progress(done as f64 / all);
    })?;
    large_read_us.store(settings.large_read_us, Ordering::Relaxed);
    let before = store.stats();
    let rate = by_popularity(&store, objects, threads, settings.measured_reads, seed + 1, |done| {
        progress((settings.warm_up_reads + done) as f64 / all);
    })?;
    let after = store.stats();
    let on_flash = each_once(
        &store,
        objects,
        threads,
        &sample(&store, objects, HomeKind::Flash)?,
        seed,
    )?;
    let in_blocks = each_once(
        &store,
        objects,
        threads,
        &sample(&store, objects, HomeKind::Block)?,
        seed,
    )?;
    store.close()?;
    let per_100 = |bytes: u64| bytes as f64 / settings.value_bytes as f64 / rate.reads as f64 * 100.0;
    let perfect_hits = objects.perfect_hits(settings.share);
    let perfect_seconds = perfect_hits / on_flash.per_second() + (1.0 - perfect_hits) / in_blocks.per_second();
    let missed = after.reads.block_hits - before.reads.block_hits;
    let dropped = |stats: &terrace::Stats| stats.flash_cache.dropped_full + stats.flash_cache.dropped_no_room;
    Ok(Measured {
        reads_per_second: rate.per_second(),
        perfect_reads_per_second: 1.0 / perfect_seconds,
        flash_reads_per_second: on_flash.per_second(),
        block_reads_per_second: in_blocks.per_second(),
        hits: 1.0 - missed as f64 / rate.reads as f64,
        perfect_hits,
        moved_per_100: per_100(after.flash_cache.moved_bytes - before.flash_cache.moved_bytes),
        reinserted_per_100: per_100(after.written.flash_reinserted_bytes - before.written.flash_reinserted_bytes),
        destaged_per_100: per_100(after.written.large_destaged_bytes - before.written.large_destaged_bytes),
        dropped: dropped(&after) - dropped(&before),
    })
}

/// Stores the objects in the order of their numbers and waits until recycling is idle.
fn fill(store: &Store, objects: Objects, seed: u64) -> Outcome {
    let values = Values::new(seed, objects.value_bytes);
    let buffered = PutOptions {
        durability: Durability::Buffered,
        ..PutOptions::default()
    };
    for number in 0..objects.count {
        store.put_with(
            Objects::key(number),
            values.value(number, objects.value_bytes),
            &buffered,
        )?;
    }
    store.flush()?;
    let (mut last, mut since) = (store.stats().log.segments_reclaimed, Instant::now());
    while since.elapsed() < Duration::from_millis(500) {
        std::thread::sleep(Duration::from_millis(50));
        let now = store.stats().log.segments_reclaimed;
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    Ok(())
}

/// Objects of one home, spread over all of them.
fn sample(store: &Store, objects: Objects, home: HomeKind) -> Outcome<Vec<u64>> {
    let wanted = if home == HomeKind::Flash {
        FLASH_SAMPLE
    } else {
        BLOCK_SAMPLE
    };
    let mut found = Vec::new();
    for rank in 0..objects.count {
        let number = (rank * 611_953) % objects.count;
        let info = store.head(Objects::key(number))?;
        if info.is_some_and(|info| info.home == home) {
            found.push(number);
        }
        if found.len() >= wanted {
            break;
        }
    }
    if found.is_empty() {
        return Err(format!("no object has its home in {home:?}: there is nothing to compare with").into());
    }
    Ok(found)
}

/// The table and the goals, in the report.
pub struct Reads;

impl Evaluation for Reads {
    fn name(&self) -> &'static str {
        "reads by Zipf's law"
    }

    fn sections(&self, records: &[Record]) -> Outcome<Vec<Section>> {
        let rows = sorted(records)?;
        let mut section = Section::new("Small objects by Zipf's law");
        section.text("Hits are per 100 reads, values moved back, reinserted and destaged as well.");
        section.columns(
            "Reads",
            &rows,
            &[
                ("flash", &|row| row.0.share.to_string()),
                ("hits", &|row| format!("{:.1}", row.1.hits * 100.0)),
                ("perfect", &|row| format!("{:.1}", row.1.perfect_hits * 100.0)),
                ("reads/s", &|row| format!("{:.0}", row.1.reads_per_second)),
                ("perfect", &|row| format!("{:.0}", row.1.perfect_reads_per_second)),
                ("ratio", &|row| format!("{:.2}", row.1.of_perfect())),
                ("flash alone", &|row| format!("{:.0}", row.1.flash_reads_per_second)),
                ("blocks alone", &|row| format!("{:.0}", row.1.block_reads_per_second)),
                ("moved back", &|row| format!("{:.2}", row.1.moved_per_100)),
                ("reinserted", &|row| format!("{:.2}", row.1.reinserted_per_100)),
                ("destaged", &|row| format!("{:.2}", row.1.destaged_per_100)),
            ],
        );
        Ok((!rows.is_empty()).then_some(section).into_iter().collect())
    }

    fn targets(&self, records: &[Record]) -> Outcome<Vec<Target>> {
        let target = |(settings, measured): (Settings, Measured)| Target {
            name: format!("flash {}: rate over a perfect cache's", settings.share),
            wanted: OF_PERFECT_MIN,
            at_most: false,
            measured: measured.of_perfect(),
        };
        Ok(sorted(records)?.into_iter().map(target).collect())
    }
}

fn sorted(records: &[Record]) -> Outcome<Vec<(Settings, Measured)>> {
    let mut rows: Vec<(Settings, Measured)> = rows(records, EXPERIMENT)?;
    rows.sort_by(|(one, _), (other, _)| one.share.total_cmp(&other.share));
    Ok(rows)
}
