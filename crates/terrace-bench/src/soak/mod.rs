//! `terrace-bench soak`: full load on a small flash tier for hours, with checks that nothing grows.
//!
//! RAM, handles, threads, latencies and space are sampled every few seconds. The first half of the
//! time is warm-up; of the rest, the second half is compared with the first. [`load`] has the load.

mod load;
pub mod verdict;

use crate::{
    Outcome,
    contest::usage::Usage,
    harness::{
        driver::in_threads,
        page::Section,
        progress::Progress,
        report::Evaluation,
        results::{Bench, Plan, Record},
        target,
        values::Values,
    },
};
use load::{Done, Load};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};
use terrace::{Options, Store, Tier};
use verdict::verdicts;

/// Experiment name in the results.
pub const EXPERIMENT: &str = "soak";
/// Segment size of the log: small, for a small log.
const SEGMENT_BYTES: u64 = 4 << 20;
const BLOCK_BYTES: u64 = 16 << 20;

/// Arguments of the subcommand.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// Directory for the store; it needs space for ten times the flash tier.
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    /// Directory for the result.
    #[arg(long, value_name = "DIR", default_value = "results")]
    results: PathBuf,
    /// Duration in minutes.
    #[arg(long, default_value = "120")]
    minutes: f64,
    /// Interval of samples.
    #[arg(long, value_name = "SECONDS", default_value = "5")]
    every: f64,
    /// Size of the flash log. The data are three times as large.
    #[arg(long, value_name = "MIB", default_value = "256")]
    flash_mib: u64,
    /// Loading threads.
    #[arg(long, default_value = "4")]
    threads: u64,
}

/// Settings of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    minutes: f64,
    every: f64,
    flash_bytes: u64,
    threads: u64,
    keys_of_thread: u64,
}

/// A sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Time since the beginning.
    pub seconds: f64,
    /// RAM of the process.
    pub ram_bytes: Option<u64>,
    /// Open handles.
    pub handles: u64,
    /// Threads.
    pub threads: u64,
    /// Operations per second since the last sample.
    pub operations_per_second: f64,
    /// Bytes put per second.
    pub written_bytes_per_second: f64,
    /// 99th percentile of reads.
    pub read_p99_us: f64,
    /// Median of the reads.
    pub read_p50_us: f64,
    /// 99th percentile of writes.
    pub write_p99_us: f64,
    /// Bytes of the files of both tiers.
    pub disk_bytes: u64,
    /// Bytes of blocks, except those being written, relative to live bytes.
    pub large_amplification: f64,
    /// The blocks allowed beyond the share ([`Options::HOLD_BLOCKS`]), relative to live bytes.
    /// Missing in older results.
    #[serde(default)]
    pub amplification_beyond: f64,
}

/// Runs the soak test; prints the samples and the verdict.
///
/// # Errors
/// The store's, or if something grew.
pub fn run(arguments: &Arguments) -> Outcome {
    if !(0.01..=100_000.0).contains(&arguments.minutes) || !(0.05..=3600.0).contains(&arguments.every) {
        return Err("--minutes must be from 0.01 to 100000, --every from 0.05 to 3600".into());
    }
    if !(1..=256).contains(&arguments.threads) || arguments.flash_mib < 32 {
        return Err("--threads must be from 1 to 256, --flash-mib at least 32".into());
    }
    let flash_bytes = arguments.flash_mib << 20;
    let settings = Settings {
        minutes: arguments.minutes,
        every: arguments.every,
        flash_bytes,
        threads: arguments.threads,
        keys_of_thread: (3 * flash_bytes / load::VALUE_BYTES_MEAN / arguments.threads).max(1),
    };
    let plan = Plan {
        experiment: EXPERIMENT,
        name: format!("soak, {} minutes", settings.minutes),
        expected_seconds: settings.minutes * 60.0,
        seed: 0,
        settings,
    };
    let bench = Bench::new(&arguments.results, false)?;
    let samples = Mutex::new(Vec::new());
    bench.run_each_in(&arguments.directory, &[plan], |directory, settings, progress| {
        let measured = measure(directory, settings, progress)?;
        samples.lock().clone_from(&measured);
        Ok(measured)
    })?;
    let samples = samples.into_inner();
    println!("{}", section("Soak", &samples).markdown());
    let verdicts = verdicts(&samples)?;
    verdicts.iter().for_each(|verdict| println!("{verdict}"));
    let grown: Vec<&str> = verdicts
        .iter()
        .filter(|verdict| !verdict.is_met())
        .map(|verdict| verdict.name.as_str())
        .collect();
    if grown.is_empty() {
        println!("flat");
        return Ok(());
    }
    Err(format!("not flat: {}", grown.join(", ")).into())
}

fn measure(directory: &Path, settings: &Settings, progress: &Progress) -> Outcome<Vec<Sample>> {
    let store = Store::open(
        Options {
            segment_bytes: SEGMENT_BYTES,
            split_threshold_bytes: BLOCK_BYTES,
            log_capacity_bytes: Some(settings.flash_bytes),
            // Small, since RAM is checked and filling a large cache would take long.
            cache_bytes: 32 << 20,
            ..Options::new(directory)
        }
        .tuned(|tuning| tuning.space_slack_bytes = 0),
    )?;
    let values = Values::new(1, load::VALUE_BYTES_MAX);
    let (end, done) = (AtomicBool::new(false), Mutex::new(Done::default()));
    let load = Load {
        store: &store,
        values: &values,
        keys: settings.keys_of_thread,
        done: &done,
        end: &end,
    };
    let samples = std::thread::scope(|scope| {
        let loading = scope.spawn(|| {
            in_threads(settings.threads as usize, |thread| {
                // After an error everything ends at the next sample.
                let outcome = load.run(thread as u64);
                end.store(true, Ordering::Relaxed);
                outcome
            })
        });
        let samples = watch(&store, settings, &done, &end, progress);
        end.store(true, Ordering::Relaxed);
        loading.join().map_err(|_| "a thread of the load panicked")??;
        Outcome::Ok(samples)
    })?;
    store.close()?;
    Ok(samples)
}

fn watch(store: &Store, settings: &Settings, done: &Mutex<Done>, end: &AtomicBool, progress: &Progress) -> Vec<Sample> {
    let (started, all) = (Instant::now(), Duration::from_secs_f64(settings.minutes * 60.0));
    let (mut samples, mut last) = (Vec::new(), Instant::now());
    while started.elapsed() < all && !end.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_secs_f64(settings.every).min(all));
        let since = std::mem::take(&mut *done.lock());
        let passed = last.elapsed().as_secs_f64();
        last = Instant::now();
        samples.push(look(store, &since, started.elapsed().as_secs_f64(), passed));
        progress.share(started.elapsed().as_secs_f64() / all.as_secs_f64());
    }
    samples
}

fn look(store: &Store, done: &Done, seconds: f64, passed: f64) -> Sample {
    let stats = store.stats();
    let entries = |directory: &str| std::fs::read_dir(directory).map_or(0, |entries| entries.count() as u64);
    let (reads, writes) = (done.reads.summary(), done.writes.summary());
    let closed_bytes = stats.large.allocated_bytes.saturating_sub(stats.large.open_bytes);
    let over_live = |bytes: u64| bytes as f64 / stats.large.live_bytes.max(1) as f64;
    Sample {
        seconds,
        ram_bytes: Usage::now(None).ram_bytes,
        handles: entries("/proc/self/fd"),
        threads: entries("/proc/self/task"),
        operations_per_second: done.operations as f64 / passed,
        written_bytes_per_second: done.written_bytes as f64 / passed,
        read_p99_us: reads.percentile_us(99.0).unwrap_or_default(),
        read_p50_us: reads.percentile_us(50.0).unwrap_or_default(),
        write_p99_us: writes.percentile_us(99.0).unwrap_or_default(),
        disk_bytes: stats.space(Tier::Flash).disk_bytes + stats.space(Tier::Large).disk_bytes,
        large_amplification: over_live(closed_bytes),
        amplification_beyond: over_live(Options::HOLD_BLOCKS * BLOCK_BYTES),
    }
}

/// The samples and verdicts of all runs, in the report.
pub struct Soak;

impl Evaluation for Soak {
    fn name(&self) -> &'static str {
        "nothing grows"
    }

    fn sections(&self, records: &[Record]) -> Outcome<Vec<Section>> {
        let runs = records.iter().filter(|record| record.experiment == EXPERIMENT);
        runs.map(|record| {
            let samples: Vec<Sample> = record.outcome()?;
            let mut section = section(&record.name, &samples);
            target::table(&mut section, &verdicts(&samples)?);
            Ok(section)
        })
        .collect()
    }
}

/// A table of twenty evenly spaced samples.
fn section(title: &str, samples: &[Sample]) -> Section {
    let mut section = Section::new(title);
    section.text("Puts over old values, deletions, reads and scans all the time; data three times the flash log.");
    let step = samples.len().div_ceil(20).max(1);
    let mib = |bytes: u64| format!("{:.0}", bytes as f64 / f64::from(1 << 20));
    section.columns(
        "Looks",
        samples.iter().skip(step - 1).step_by(step),
        &[
            ("minutes", &|sample| format!("{:.1}", sample.seconds / 60.0)),
            ("RAM, MiB", &|sample| {
                sample.ram_bytes.map_or_else(|| "–".to_owned(), mib)
            }),
            ("handles", &|sample| sample.handles.to_string()),
            ("threads", &|sample| sample.threads.to_string()),
            ("operations/s", &|sample| format!("{:.0}", sample.operations_per_second)),
            ("put, MB/s", &|sample| {
                format!("{:.1}", sample.written_bytes_per_second / 1e6)
            }),
            ("reads 50 %, µs", &|sample| format!("{:.0}", sample.read_p50_us)),
            ("reads 99 %, µs", &|sample| format!("{:.0}", sample.read_p99_us)),
            ("writes 99 %, µs", &|sample| format!("{:.0}", sample.write_p99_us)),
            ("on disk, MiB", &|sample| mib(sample.disk_bytes)),
            ("blocks over live", &|sample| {
                format!("{:.2}", sample.large_amplification)
            }),
        ],
    );
    section
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_short_soak_is_looked_at_and_answers_right() {
        let directory = tempfile::tempdir().unwrap();
        let settings = Settings {
            minutes: 0.06,
            every: 0.2,
            flash_bytes: 64 << 20,
            threads: 2,
            keys_of_thread: 100,
        };
        let samples = measure(directory.path(), &settings, &Progress::new()).unwrap();
        assert!((4..=19).contains(&samples.len()), "{samples:?}");
        let last = samples.last().unwrap();
        assert!(
            last.ram_bytes > Some(1 << 20) && last.handles > 5 && last.threads > 3,
            "{last:?}"
        );
        assert!(samples.iter().map(|sample| sample.operations_per_second).sum::<f64>() > 0.0);
        assert!(last.disk_bytes > 0, "{last:?}");
        // With so few objects, one block waiting for deletion is many times the live data. This is
        // in some samples, but not in most.
        let is_within = |sample: &&Sample| (1.0..10.0).contains(&sample.large_amplification);
        assert!(
            2 * samples.iter().filter(is_within).count() >= samples.len(),
            "{samples:?}"
        );
    }
}
