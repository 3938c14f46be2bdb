//! One measured step of a run: operations, speed, and resource usage.

use super::usage::Usage;
use crate::{
    Outcome,
    harness::{
        driver::LoopOutcome,
        latency::LatencySummary,
        place::{Place, Traffic},
    },
    rivals::{Candidate, Figures, KeyValue, Opening, disk_bytes},
};
use serde::{Deserialize, Serialize};
use std::{
    cell::RefCell,
    path::{Path, PathBuf},
    sync::mpsc::{self, RecvTimeoutError},
    time::Duration,
};

/// Interval of checks of flash usage, on two drives.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Measurements of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Its name.
    pub name: String,
    /// Operations acknowledged.
    pub operations: u64,
    /// Average pairs per operation; more than one for scans.
    pub pairs_per_operation: f64,
    /// From the start of the first operation to the end of the last.
    pub seconds: f64,
    /// Keys and values written by the caller.
    pub user_bytes: u64,
    /// Latencies of the operations.
    pub latency: LatencySummary,
    /// Resource usage of the process until the file systems were synced.
    pub usage: Usage,
    /// RAM reported by the engine, at the end.
    pub engine_ram_bytes: Option<u64>,
    /// Traffic of the fast drive by its counter; on a shared device, of all processes.
    pub device: Option<Traffic>,
    /// Traffic of the second drive.
    pub large_device: Option<Traffic>,
    /// Largest size of its files on the fast of two drives, which only has space for a share of the
    /// data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flash_bytes_max: Option<u64>,
    /// A cache's hit ratio; for engines that do not evict, absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hit_ratio: Option<f64>,
}

impl Step {
    /// Operations per second.
    pub fn rate(&self) -> f64 {
        self.operations as f64 / self.seconds.max(1e-9)
    }

    /// Pairs per second.
    pub fn pair_rate(&self) -> f64 {
        self.rate() * self.pairs_per_operation
    }

    /// Processor time of an operation.
    pub fn cpu_us(&self) -> Option<f64> {
        Some(self.usage.cpu_seconds? * 1e6 / self.operations.max(1) as f64)
    }

    /// Write amplification of the process.
    pub fn write_amplification(&self) -> Option<f64> {
        (self.user_bytes > 0).then_some(self.usage.written_bytes? as f64 / self.user_bytes as f64)
    }
}

/// An engine with its directories.
pub struct Bench<'a> {
    /// The engine.
    pub engine: &'a dyn KeyValue,
    places: Vec<Place>,
    /// The fast one of two drives.
    flash: Option<PathBuf>,
}

/// Work of a step, before its usage is known.
#[derive(Debug)]
pub struct Done {
    /// Latencies.
    pub times: LoopOutcome,
    /// Pairs of all operations.
    pub pairs: u64,
    /// Keys and values the caller wrote.
    pub user_bytes: u64,
}

impl Done {
    /// Operations of this many pairs in all, of which the caller wrote these bytes.
    pub const fn of(times: LoopOutcome, pairs: u64, user_bytes: u64) -> Self {
        Self {
            times,
            pairs,
            user_bytes,
        }
    }

    /// Operations of a pair each, none of them written.
    pub fn reads(times: LoopOutcome) -> Self {
        let pairs = times.count();
        Self::of(times, pairs, 0)
    }
}

impl<'a> Bench<'a> {
    /// For an engine opened with these options.
    pub fn new(engine: &'a dyn KeyValue, opening: &Opening) -> Outcome<Self> {
        let places = opening.directories().map(Place::directory).collect::<Outcome<_>>()?;
        let flash = opening.large_directory.is_some().then(|| opening.directory.clone());
        Ok(Self { engine, places, flash })
    }

    /// Does the work and monitors the size of its files on flash, if that can be read.
    fn watched<T>(&self, work: impl FnOnce() -> Outcome<T>) -> Outcome<(T, Option<u64>)> {
        let Some(flash) = &self.flash else {
            return Ok((work()?, None));
        };
        let (ended, is_ended) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let looking = scope.spawn(move || -> Outcome<u64> {
                let mut most = 0;
                loop {
                    let goes_on = is_ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout);
                    most = most.max(disk_bytes(flash)?);
                    if !goes_on {
                        return Ok(most);
                    }
                }
            });
            let done = work();
            drop(ended);
            let most = looking.join().map_err(|_| "the thread that looks at flash panicked")?;
            Ok((done?, most.ok()))
        })
    }

    /// Measures a step.
    pub fn step(&self, name: &str, work: impl FnOnce() -> Outcome<Done>) -> Outcome<Step> {
        let traffic = |place: &Place| Ok(place.traffic()?.device);
        let all = || {
            self.places
                .iter()
                .map(traffic)
                .collect::<Outcome<Vec<Option<Traffic>>>>()
        };
        let (device_before, before) = (all()?, Usage::now(self.engine.process()));
        let lookups = self.engine.figures();
        let (done, flash_bytes_max) = self.watched(work)?;
        let hit_ratio = hit_ratio(&lookups, &self.engine.figures());
        let device_after = all()?;
        let usage = Usage::now(self.engine.process()).since(&before);
        let devices: Vec<Option<Traffic>> = device_after
            .into_iter()
            .zip(device_before)
            .map(|(after, before)| Some(after?.since(&before?)))
            .collect();
        let latency = done.times.kinds[0].summary();
        Ok(Step {
            name: name.to_owned(),
            operations: latency.count,
            pairs_per_operation: done.pairs as f64 / latency.count.max(1) as f64,
            seconds: done.times.seconds,
            user_bytes: done.user_bytes,
            latency,
            usage,
            engine_ram_bytes: self.engine.ram_bytes(),
            device: devices.first().copied().flatten(),
            large_device: devices.get(1).copied().flatten(),
            flash_bytes_max,
            hit_ratio,
        })
    }
}

/// The hit ratio between two figures; `None` without gets, or if the engine does not count.
fn hit_ratio(before: &Figures, after: &Figures) -> Option<f64> {
    let gets = after.gets? - before.gets?;
    (gets > 0).then_some((after.found? - before.found?) as f64 / gets as f64)
}

thread_local! {
    static FOUND: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Reads a value into a thread-local buffer, and passes it to `look`.
pub fn get<T>(engine: &dyn KeyValue, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> Outcome<T>) -> Outcome<T> {
    FOUND.with_borrow_mut(|found| {
        let is_there = engine.get(key, found)?;
        look(is_there.then_some(found.as_slice()))
    })
}

/// Opens an empty database of a candidate; returns it and its options.
pub fn open_fresh(candidate: Candidate, opening: &Opening, name: &str) -> Outcome<(Box<dyn KeyValue>, Opening)> {
    let opening = below(opening, name);
    remove(&opening)?;
    Ok((candidate.open(&opening)?, opening))
}

/// The same options, with directories of this name below the given ones.
pub fn below(opening: &Opening, name: &str) -> Opening {
    let inside = |directory: &Path| -> PathBuf { directory.join(name) };
    Opening {
        directory: inside(&opening.directory),
        large_directory: opening.large_directory.as_deref().map(inside),
        ..opening.clone()
    }
}

/// Removes a database's directories.
pub fn remove(opening: &Opening) -> Outcome {
    for directory in opening.directories() {
        match std::fs::remove_dir_all(directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}
