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

mod slow;

use crate::{
    Outcome,
    contest::data::{Objects, Order, ValueSize},
    harness::{
        driver::{in_threads, settle, timed_loop},
        page::Section,
        report::{self, Evaluation},
        results::{Bench, Plan, Record, ResultArguments, rows},
        target::Target,
        values::buffered,
    },
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Zipf};
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
use terrace::{HomeKind, Options, Store};

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
    /// Flash as a share of the values' bytes.
    #[arg(long = "share", value_name = "SHARE", default_values_t = SHARES)]
    pub shares: Vec<f64>,
    #[command(flatten)]
    pub scene: Scene,
}

/// Settings common to all runs.
#[derive(Debug, Clone, Serialize, Deserialize, clap::Args)]
pub struct Scene {
    /// Length of a value.
    #[arg(long, value_name = "BYTES", default_value = "1024")]
    value_bytes: usize,
    /// Zipf's exponent.
    #[arg(long, default_value = "0.99")]
    exponent: f64,
    /// Reading threads.
    #[arg(long, default_value = "8")]
    threads: usize,
    /// Delay of a read of the large tier, in addition to its device's.
    #[arg(long, value_name = "MICROSECONDS", default_value = "1000")]
    large_read_us: u64,
    /// Seed of everything random.
    #[arg(long, default_value = "1")]
    seed: u64,
}

/// Settings of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Settings {
    objects: u64,
    share: f64,
    warm_up_reads: u64,
    measured_reads: u64,
    #[serde(flatten)]
    scene: Scene,
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
pub fn run(arguments: &Arguments) -> Outcome {
    let Arguments {
        results, shares, scene, ..
    } = arguments;
    if shares.iter().any(|share| !(0.05..=1.0).contains(share)) || scene.threads == 0 {
        return Err("--share must be between 0.05 and 1, and --threads above 0".into());
    }
    if !(65..=16_000).contains(&scene.value_bytes) {
        return Err("--value-bytes must be between 65 (shorter values live in the index) and 16000".into());
    }
    let bench = Bench::new(&results.results, results.resume)?;
    let objects = results.scale.of(100_000, 200_000);
    let plan = |&share: &f64| Plan {
        experiment: EXPERIMENT,
        name: format!("flash {share}"),
        seed: scene.seed,
        expected_seconds: objects as f64 / 4_000.0,
        settings: Settings {
            objects,
            share,
            warm_up_reads: objects * 12,
            measured_reads: objects * 2,
            scene: scene.clone(),
        },
    };
    let plans: Vec<_> = shares.iter().map(plan).collect();
    bench.run_each_in(&arguments.directory, &plans, |directory, settings, progress| {
        measure(directory, settings, |share| progress.share(share))
    })?;
    report::print(&Reads, &bench)
}

fn options(directory: &Path, settings: &Settings, large_read_us: &Arc<AtomicU64>) -> Outcome<Options> {
    let data_bytes = settings.objects * settings.scene.value_bytes as u64;
    let capacity_bytes = (data_bytes as f64 * settings.share) as u64;
    let segment_bytes = (capacity_bytes / 64)
        .next_multiple_of(64 << 10)
        .clamp(256 << 10, 64 << 20);
    let large = directory.join("large");
    Ok(Options {
        segment_bytes,
        log_capacity_bytes: Some(capacity_bytes.max(8 * segment_bytes)),
        size_threshold_bytes: segment_bytes / 4,
        cache_bytes: 0,
        large_disk: Some(Arc::new(SlowDisk::new(&large, large_read_us)?)),
        ..Options::on_tiers(directory.join("flash"), large)
    })
}

/// A store and its objects, which are stored in the order of their numbers.
struct Run<'a> {
    settings: &'a Settings,
    store: Store,
    objects: Objects,
    /// The object of each rank.
    ranking: Order,
}

fn measure(directory: &Path, settings: &Settings, progress: impl Fn(f64) + Sync) -> Outcome<Measured> {
    let (scene, large_read_us) = (&settings.scene, Arc::new(AtomicU64::new(0)));
    let run = Run {
        settings,
        store: Store::open(options(directory, settings, &large_read_us)?)?,
        objects: Objects::new(ValueSize::Bytes(scene.value_bytes), scene.seed),
        ranking: Order::new(settings.objects, scene.seed),
    };
    run.fill()?;
    let warm_up_share = settings.warm_up_reads as f64 / (settings.warm_up_reads + settings.measured_reads) as f64;
    run.by_popularity(settings.warm_up_reads, scene.seed, |done| {
        progress(warm_up_share * done)
    })?;
    large_read_us.store(scene.large_read_us, Ordering::Relaxed);
    let before = run.store.stats();
    let reads_per_second = run.by_popularity(settings.measured_reads, scene.seed + 1, |done| {
        progress(warm_up_share + (1.0 - warm_up_share) * done);
    })?;
    let after = run.store.stats();
    let flash_reads_per_second = run.each_once(&run.sample(HomeKind::Flash, FLASH_SAMPLE)?)?;
    let block_reads_per_second = run.each_once(&run.sample(HomeKind::Block, BLOCK_SAMPLE)?)?;
    run.store.close()?;
    let reads = (settings.measured_reads / scene.threads as u64 * scene.threads as u64) as f64;
    let per_100 = |bytes: u64| bytes as f64 / scene.value_bytes as f64 / reads * 100.0;
    let perfect_hits = perfect_hits(settings.objects, scene.exponent, settings.share);
    let perfect_seconds = perfect_hits / flash_reads_per_second + (1.0 - perfect_hits) / block_reads_per_second;
    let missed = after.reads.block_hits - before.reads.block_hits;
    let dropped = |stats: &terrace::Stats| stats.flash_cache.dropped_full + stats.flash_cache.dropped_no_room;
    Ok(Measured {
        reads_per_second,
        perfect_reads_per_second: 1.0 / perfect_seconds,
        flash_reads_per_second,
        block_reads_per_second,
        hits: 1.0 - missed as f64 / reads,
        perfect_hits,
        moved_per_100: per_100(after.flash_cache.moved_bytes - before.flash_cache.moved_bytes),
        reinserted_per_100: per_100(after.written.flash_reinserted_bytes - before.written.flash_reinserted_bytes),
        destaged_per_100: per_100(after.written.large_destaged_bytes - before.written.large_destaged_bytes),
        dropped: dropped(&after) - dropped(&before),
    })
}

/// Hit ratio of a cache that always holds this share of the objects, the most popular ones.
fn perfect_hits(objects: u64, exponent: f64, share: f64) -> f64 {
    let sum = |ranks: u64| (1..=ranks).map(|rank| (rank as f64).powf(-exponent)).sum::<f64>();
    sum((share * objects as f64) as u64) / sum(objects)
}

impl Run<'_> {
    /// Stores the objects and waits until recycling is idle.
    fn fill(&self) -> Outcome {
        for number in 0..self.settings.objects {
            self.store
                .put_with(Objects::key(number), self.objects.value(number), &buffered())?;
        }
        self.store.flush()?;
        settle(Duration::from_millis(500), || {
            Ok(self.store.stats().log.segments_reclaimed)
        })
    }

    fn look(&self, number: u64) -> Outcome<usize> {
        let found = self.store.get(Objects::key(number))?;
        let found = found.ok_or_else(|| format!("object {number} is gone"))?;
        self.objects.check(number, &found.value)?;
        Ok(0)
    }

    /// Reads and checks `count` objects by Zipf's law; returns the rate.
    fn by_popularity(&self, count: u64, seed: u64, progress: impl Fn(f64) + Sync) -> Outcome<f64> {
        let Settings { objects, scene, .. } = self.settings;
        let (zipf, each) = (
            Zipf::new(*objects as f64, scene.exponent)?,
            count / scene.threads as u64,
        );
        let started = Instant::now();
        in_threads(scene.threads, |thread| {
            let mut random = ChaCha8Rng::seed_from_u64(seed ^ (thread as u64 + 1) << 32);
            for read in 0..each {
                self.look(self.ranking.at(zipf.sample(&mut random) as u64 - 1))?;
                if thread == 0 && read.is_multiple_of(128) {
                    progress(read as f64 / each as f64);
                }
            }
            Ok(())
        })?;
        Ok((each * scene.threads as u64) as f64 / started.elapsed().as_secs_f64())
    }

    /// The rate of reading these objects once each, in random order.
    fn each_once(&self, numbers: &[u64]) -> Outcome<f64> {
        let order = Order::new(numbers.len() as u64, self.settings.scene.seed);
        let times = timed_loop(self.settings.scene.threads, numbers.len() as u64, None, 1, |read| {
            self.look(numbers[order.at(read) as usize])
        })?;
        Ok(times.rate())
    }

    /// Objects of one home, spread over all of them.
    fn sample(&self, home: HomeKind, wanted: usize) -> Outcome<Vec<u64>> {
        let Settings { objects, scene, .. } = self.settings;
        let (order, mut found) = (Order::new(*objects, scene.seed + 2), Vec::new());
        for number in (0..*objects).map(|place| order.at(place)) {
            let info = self.store.head(Objects::key(number))?;
            found.extend(info.is_some_and(|info| info.home == home).then_some(number));
            if found.len() >= wanted {
                break;
            }
        }
        if found.is_empty() {
            return Err(format!("no object has its home in {home:?}: there is nothing to compare with").into());
        }
        Ok(found)
    }
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
        let target = |(settings, measured): (Settings, Measured)| {
            let name = format!("flash {}: rate over a perfect cache's", settings.share);
            Target::at_least(name, OF_PERFECT_MIN, measured.of_perfect())
        };
        Ok(sorted(records)?.into_iter().map(target).collect())
    }
}

fn sorted(records: &[Record]) -> Outcome<Vec<(Settings, Measured)>> {
    let mut rows: Vec<(Settings, Measured)> = rows(records, EXPERIMENT)?;
    rows.sort_by(|(one, _), (other, _)| one.share.total_cmp(&other.share));
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_perfect_cache_answers_what_zipf_says() {
        assert!((perfect_hits(20_000, 0.99, 1.0) - 1.0).abs() < 1e-9);
        let tenth = perfect_hits(20_000, 0.99, 0.1);
        assert!((0.75..0.82).contains(&tenth), "{tenth}");
        // The sampler and the sum must follow the same law.
        let zipf = Zipf::new(20_000.0, 0.99).expect("sound parameters");
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let inside = (0..100_000).filter(|_| zipf.sample(&mut random) <= 2_000.0).count();
        assert!((inside as f64 / 100_000.0 - tenth).abs() < 0.01, "{inside}");
    }
}
