//! `measure`: measures mounted drives with `fio` and compares with their targets.
//!
//! One thread, direct I/O, a file over most of the drive, several runs of each access and size. The
//! file is laid out at full speed. Before each run the drive writes back its cache, so that no run
//! is slowed by the writes of the previous one. Failure: drives are removed after an error or an
//! interrupt too.

mod figures;

use super::counters::Counters;
use super::engine::Pace;
use super::fio;
use super::handle::{Drive, DriveSpec, parse_bytes};
use super::model;
use super::model::rates::{self, Access};
use super::profile::Profile;
use super::system;
use crate::Outcome;
use clap::Args;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest wait for a drive to write back its cache.
const REST_PATIENCE: Duration = Duration::from_secs(300);
/// Share of the drive that the file covers, in percent.
const FILE_PERCENT: u64 = 85;

/// Arguments of `measure`.
#[derive(Debug, Args)]
pub struct MeasureArguments {
    /// Profiles to measure: names, or files that end in .toml.
    #[arg(long = "profile", value_parser = Profile::find, default_values = ["maxtor-7l250s0", "intel-320", "hdd-modern", "nvme"])]
    profiles: Vec<Profile>,
    /// Accesses, by fio's names.
    #[arg(long = "access", default_values = ["randread", "read", "randwrite", "write"])]
    accesses: Vec<String>,
    /// Request sizes.
    #[arg(long = "bytes", value_parser = parse_bytes, default_values = ["4K", "8K", "16K", "64K", "256K", "1M"])]
    sizes: Vec<u64>,
    /// Seconds of each run.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Runs of each access and size.
    #[arg(long, default_value_t = 3)]
    runs: u64,
    /// Length of the drives.
    #[arg(long, default_value = "4G", value_parser = parse_bytes)]
    size: u64,
    /// Seed of fio's offsets.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory for the sparse backing files.
    #[arg(long, default_value = ".")]
    directory: PathBuf,
    /// Run the models in virtual time only: no drive, no fio, no root.
    #[arg(long)]
    model: bool,
    /// Write the results to this file, too.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// All results and their conditions.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// Kernel's name and version.
    pub kernel: String,
    /// Processors.
    pub processors: usize,
    /// Load average of the last minute before and after: other work on the machine slows the runs
    /// down.
    pub load: [f64; 2],
    /// fio's version.
    pub fio: String,
    /// Seconds of each run.
    pub seconds: u64,
    /// Seed of fio's offsets.
    pub seed: u64,
    /// Length of the drives.
    pub drive_bytes: u64,
    /// One per profile, access and size.
    pub results: Vec<Measured>,
}

/// One access and size on one profile.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    /// Profile.
    pub profile: String,
    /// fio's name of the access.
    pub access: String,
    /// Bytes per request.
    pub bytes: u64,
    /// Rate of each run, in 10⁶ bytes per second.
    pub runs_mb_per_s: Vec<f64>,
    /// Median rate.
    pub median_mb_per_s: f64,
    /// Standard deviation of the runs.
    pub deviation_mb_per_s: f64,
    /// Mean time of a request in the median run, by fio, in microseconds.
    pub request_us: f64,
    /// Mean time of a request in the model, over all runs; the difference is the delay of a busy
    /// machine.
    pub model_us: f64,
    /// Target, if there is one.
    pub target_mb_per_s: Option<f64>,
    /// Source of the target.
    pub source: Option<String>,
    /// The drive's counters during the runs.
    pub counters: Counters,
}

impl Measured {
    /// Measured through target.
    pub fn ratio(&self) -> Option<f64> {
        self.target_mb_per_s.map(|target| self.median_mb_per_s / target)
    }
}

/// Removes a drive when dropped.
struct Guard(Option<Drive>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.0.take().map(Drive::remove) {
            eprintln!("{error}");
        }
    }
}

/// Runs the measurement.
///
/// # Errors
/// If drives cannot be emulated here, fio is missing, or a run fails.
pub fn measure(arguments: MeasureArguments) -> Outcome {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, interrupted.clone())?;
    }
    let fio = if arguments.model {
        "the models alone".to_owned()
    } else {
        system::check_requirements()?;
        fio::version()?
    };
    let mut report = Report {
        kernel: system::run("uname", ["-sr"])?,
        processors: std::thread::available_parallelism()?.get(),
        load: [load(), 0.0],
        fio,
        seconds: arguments.seconds,
        seed: arguments.seed,
        drive_bytes: arguments.size,
        results: Vec::new(),
    };
    for profile in &arguments.profiles {
        let part = Part {
            profile,
            arguments: &arguments,
            interrupted: &interrupted,
        };
        report.results.extend(if arguments.model {
            part.ask_model()?
        } else {
            part.measure()?
        });
    }
    report.load[1] = load();
    figures::print(&report);
    if let Some(path) = &arguments.json {
        std::fs::write(path, serde_json::to_vec_pretty(&report)?)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(())
}

fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0)
}

/// The measurement of a profile.
struct Part<'a> {
    profile: &'a Profile,
    arguments: &'a MeasureArguments,
    interrupted: &'a AtomicBool,
}

impl Part<'_> {
    fn span(&self) -> u64 {
        self.arguments.size / 100 * FILE_PERCENT
    }

    /// Computes the rates of the model.
    fn ask_model(&self) -> Outcome<Vec<Measured>> {
        let run = |name: &str, bytes, seed| {
            let access = Access::parse(name, bytes)
                .ok_or_else(|| format!("no access is called `{name}`: use randread, read, randwrite or write"))?;
            let mut model = model::build(self.profile, self.arguments.size, seed);
            let rate = rates::rate(model.as_mut(), access, self.span(), self.arguments.seconds, seed);
            Ok((rate, bytes as f64 / rate))
        };
        self.each(run, || Ok(Counters::default()))
    }

    /// Measures a drive.
    fn measure(&self) -> Outcome<Vec<Measured>> {
        let spec = DriveSpec {
            name: format!("measure-{}-{}", self.profile.name, std::process::id()),
            profile: self.profile.clone(),
            bytes: self.arguments.size,
            seed: self.arguments.seed,
            directory: self.arguments.directory.clone(),
        };
        let mut guard = Guard(Some(Drive::create(spec)?));
        let Some(drive) = &guard.0 else {
            return Err("the drive is gone".into());
        };
        let file = drive.mount()?.join("file");
        lay_out(drive, &file, self.span())?;
        let run = |access: &str, bytes, seed| {
            rest(drive)?;
            run(&file, access, bytes, self.arguments.seconds, seed)
        };
        let results = self.each(run, || drive.counters())?;
        guard.0.take().map_or(Ok(()), Drive::remove)?;
        Ok(results)
    }

    /// Runs each access and size, with a seed for each run.
    fn each(
        &self,
        run: impl Fn(&str, u64, u64) -> Outcome<(f64, f64)>,
        counters: impl Fn() -> Outcome<Counters>,
    ) -> Outcome<Vec<Measured>> {
        let mut results = Vec::new();
        for access in &self.arguments.accesses {
            for &bytes in &self.arguments.sizes {
                let (before, mut runs) = (counters()?, Vec::new());
                for number in 0..self.arguments.runs.max(1) {
                    let seed = self.arguments.seed.wrapping_mul(1_000) + number;
                    runs.push(run(access, bytes, seed)?);
                    if self.interrupted.load(Ordering::Relaxed) {
                        return Err("interrupted".into());
                    }
                }
                let result = summarise(self.profile, access, bytes, runs, counters()?.since(&before));
                eprintln!("{}", figures::line(&result));
                results.push(result);
            }
        }
        Ok(results)
    }
}

/// Writes the file at full speed.
fn lay_out(drive: &Drive, file: &Path, bytes: u64) -> Outcome {
    drive.set_pace(Pace::Instant)?;
    let size = format!("size={}", bytes / 4096 * 4096);
    fio::job(file, &[&size, "rw=write", "bs=1M", "end_fsync=1"])?;
    drive.set_pace(Pace::Model)
}

/// Waits until the drive has written back its cache.
fn rest(drive: &Drive) -> Outcome {
    let begun = Instant::now();
    while drive.counters()?.pending_writes > 0 {
        if begun.elapsed() > REST_PATIENCE {
            return Err(format!(
                "drive {} does not come to rest: something else writes to it",
                drive.name()
            )
            .into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Result of a run of fio: rate in 10⁶ bytes per second, mean time of a request in microseconds.
fn run(file: &Path, access: &str, bytes: u64, seconds: u64, seed: u64) -> Outcome<(f64, f64)> {
    let (rw, bs, randseed) = (
        format!("rw={access}"),
        format!("bs={bytes}"),
        format!("randseed={seed}"),
    );
    // The first writes go to the cache, whatever the speed of the media.
    let (ramp, runtime) = (
        format!("ramp_time={}", seconds.div_ceil(5)),
        format!("runtime={seconds}"),
    );
    // Priority over other work on the machine, so that only the drive is measured.
    let usual = ["ioengine=psync", "thread", "nice=-20", "time_based"];
    let own = [rw, bs, randseed, ramp, runtime];
    let options: Vec<&str> = usual.into_iter().chain(own.iter().map(String::as_str)).collect();
    let job = fio::job(file, &options)?;
    let side = if access.ends_with("read") { "read" } else { "write" };
    let rate = fio::figure(&job, &format!("/{side}/bw_bytes"))?;
    if rate == 0.0 {
        return Err(format!("fio did nothing for {access}: use randread, read, randwrite or write").into());
    }
    let time_ns = fio::figure(&job, &format!("/{side}/clat_ns/mean"))?;
    Ok((rate / 1e6, time_ns / 1e3))
}

fn summarise(profile: &Profile, access: &str, bytes: u64, runs: Vec<(f64, f64)>, counters: Counters) -> Measured {
    let (rates, times): (Vec<f64>, Vec<f64>) = runs.into_iter().unzip();
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    let squares: f64 = rates.iter().map(|rate| (rate - mean).powi(2)).sum();
    let deviation = (squares / (rates.len() as f64 - 1.0).max(1.0)).sqrt();
    let traffic = if access.ends_with("read") {
        counters.reads
    } else {
        counters.writes
    };
    let model_us = match traffic.requests {
        0 => median(&times),
        requests => traffic.waited_nanoseconds as f64 / requests as f64 / 1e3,
    };
    let target = profile
        .targets
        .iter()
        .find(|target| target.access == access && target.bytes == bytes);
    Measured {
        profile: profile.name.clone(),
        access: access.to_owned(),
        bytes,
        median_mb_per_s: median(&rates),
        deviation_mb_per_s: deviation,
        request_us: median(&times),
        model_us,
        runs_mb_per_s: rates,
        target_mb_per_s: target.map(|target| target.mb_per_s),
        source: target.map(|target| target.source.clone()),
        counters,
    }
}

/// The median; of an even number, the lower of the middle two.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get((sorted.len().max(1) - 1) / 2).copied().unwrap_or(0.0)
}
