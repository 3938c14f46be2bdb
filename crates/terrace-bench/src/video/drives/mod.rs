//! Video on two drives, timed: Terrace and other uses of flash in front of a disk, on the same
//! drives with the same RAM.
//!
//! [`rivals`] are the other systems, [`terrace`] ours; all of them really read and write the
//! drives, with direct I/O. [`audience`] has the players: first the caches warm up from cold
//! without playing, then all players read at full speed, then all play at a bit rate. [`targets`]
//! has the goals and [`report`] makes the tables.
//!
//! A hit is defined alike for all: a delivered byte that was not read from the disk.

mod audience;
pub mod report;
mod rivals;
pub mod targets;
mod terrace;
#[cfg(test)]
mod tests;

use super::{
    Arguments, given_or,
    sessions::{Catalogue, Choice, Titles},
};
use crate::{
    Outcome,
    harness::{
        place::HASTE,
        progress::Progress,
        report::print,
        results::{Bench, Plan},
        setup::{BothTraffic, Places},
        values::Values,
        workload::read_toml,
    },
};
use audience::{Audience, Played, Rush, Window};
use rivals::{Rival, Shelf};
use serde::{Deserialize, Serialize};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use terrace::Terrace;

/// Experiment name in the results.
pub const EXPERIMENT: &str = "video-drives";
/// Name of the directories.
const NAME: &str = "video";

/// A system that serves reads of segments.
pub trait Server: Send + Sync {
    /// Reads a whole segment.
    fn read(&self, object: usize) -> Outcome<Segment>;

    /// Bytes read from the disk so far.
    fn disk_read_bytes(&self) -> u64;

    /// Bytes written to flash so far, as counted by the system.
    fn flash_written_bytes(&self) -> u64;

    /// Advances the system's time while caches warm up; with `None` it runs in real time from then
    /// on.
    fn warm_up_passed(&self, _time: Option<Duration>) -> Outcome {
        Ok(())
    }

    /// Ends background work.
    fn close(self: Box<Self>) -> Outcome;
}

/// A segment's bytes.
pub type Segment = Box<dyn std::ops::Deref<Target = [u8]>>;

/// The workload file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkloadFile {
    seed: u64,
    titles: usize,
    sessions: usize,
    ahead: usize,
    asked_records: usize,
    l2arc_bytes_per_second: u64,
    haste: f64,
    small: Amount,
    full: Amount,
}

/// Amount of work at a scale.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Amount {
    parts: usize,
    segment_bytes: usize,
    ram_bytes: u64,
    segment_seconds: f64,
    warm_up_sessions: u64,
    rush_reads: u64,
    play_seconds: f64,
    exponents: Vec<f64>,
    shares: Vec<f64>,
}

impl WorkloadFile {
    fn read(file: Option<&Path>) -> Outcome<Self> {
        let workload: Self = read_toml(file, include_str!("../../../workloads/video.toml"))?;
        if workload.titles == 0 || !(2..=1024).contains(&workload.sessions) || workload.ahead == 0 {
            return Err("titles and ahead must be at least 1, sessions from 2 to 1024".into());
        }
        if !(0.001..=HASTE).contains(&workload.haste) || workload.l2arc_bytes_per_second == 0 {
            return Err(
                format!("haste must be between 0.001 and {HASTE}, and l2arc_bytes_per_second at least 1").into(),
            );
        }
        for amount in [&workload.small, &workload.full] {
            // Terrace does not copy shorter ones.
            if !amount.segment_bytes.is_multiple_of(rivals::UNIT_BYTES) || amount.segment_bytes < 64 << 10 {
                return Err("segment_bytes must be a multiple of 18 x 4096, and at least 65536".into());
            }
            if amount.parts < 2 || amount.warm_up_sessions < WINDOWS {
                return Err(format!("parts must be at least 2, warm_up_sessions at least {WINDOWS}").into());
            }
            let seconds = [amount.segment_seconds, amount.play_seconds];
            if seconds.iter().any(|&seconds| !(0.001..=1e6).contains(&seconds)) || amount.rush_reads == 0 {
                return Err("segment_seconds, rush_reads and play_seconds must be above 0".into());
            }
            if amount.play_seconds <= amount.parts as f64 * amount.segment_seconds {
                return Err("play_seconds must be longer than a title".into());
            }
        }
        Ok(workload)
    }
}

/// Number of intervals of the warm-up.
const WINDOWS: u64 = 20;

/// The systems.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// Terrace.
    Terrace,
    /// No flash.
    DiskOnly,
    /// Whole objects, evicting the least recently used.
    ObjectLru,
    /// Facebook's cache below the file system.
    Flashcache,
    /// The second level of ZFS's cache.
    L2Arc,
}

impl System {
    const WITH_FLASH: [Self; 4] = [Self::ObjectLru, Self::Flashcache, Self::L2Arc, Self::Terrace];

    /// As text.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Terrace => "Terrace",
            Self::DiskOnly => "disk only",
            Self::ObjectLru => "LRU by object",
            Self::Flashcache => "Flashcache model",
            Self::L2Arc => "L2ARC model",
        }
    }
}

/// Settings of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The system.
    pub system: System,
    /// Concurrent sessions.
    pub sessions: usize,
    /// Flash as a share of the catalogue.
    pub share: Option<f64>,
    /// Settings common to all systems.
    pub scene: Scene,
}

/// Settings common to all systems.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scene {
    /// Distribution of titles.
    pub choice: Choice,
    /// Titles and segments.
    pub catalogue: Catalogue,
    /// Length of a segment.
    pub segment_bytes: usize,
    /// RAM for caching.
    pub ram_bytes: u64,
    /// Playing time of a segment.
    pub segment_seconds: f64,
    /// Concurrent sessions, except in runs with half of them.
    pub sessions_max: usize,
    /// Segments that a player keeps ahead.
    pub ahead: usize,
    /// Records at the beginning of a segment that ZFS does not prefetch.
    pub asked_records: usize,
    /// Rate of writes to L2ARC.
    pub l2arc_bytes_per_second: u64,
    /// Fraction of the modelled times that drives take during the warm-up.
    pub haste: f64,
    /// Sessions of the warm-up.
    pub warm_up_sessions: u64,
    /// Segments read at full speed: a number and not a time, so that all systems have the same
    /// sessions.
    pub rush_reads: u64,
    /// Duration of playing at the bit rate.
    pub play_seconds: f64,
    /// The fast drive.
    pub ssd: String,
    /// The disk.
    pub hdd: String,
    /// Seed of everything random.
    pub seed: u64,
}

impl Scene {
    /// Bytes of all segments.
    pub const fn bytes(&self) -> u64 {
        (self.catalogue.objects() * self.segment_bytes) as u64
    }
}

/// Measurements of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    /// Intervals of the warm-up, from cold.
    pub windows: Vec<Window>,
    /// Bytes written to flash until then.
    pub flash_written_before: u64,
    /// Reading at full speed.
    pub rush: Rush,
    /// Playing at the bit rate.
    pub played: Played,
    /// Traffic of both, as counted by the system.
    pub warm: Window,
    /// Traffic of the drives in both.
    pub traffic: BothTraffic,
}

impl Measured {
    /// The last quarter of the warm-up, and everything timed.
    fn late(&self) -> Window {
        let late = &self.windows[self.windows.len() - self.windows.len() / 4..];
        let mut all = self.warm;
        late.iter().for_each(|window| all.add(window));
        all
    }

    /// Hit ratio in bytes, late.
    pub fn hits(&self) -> f64 {
        self.late().hits()
    }

    /// Bytes written to flash per delivered byte, late.
    pub fn flash_written(&self) -> f64 {
        let all = self.late();
        all.flash_written_bytes as f64 / all.delivered_bytes.max(1) as f64
    }
}

/// Does the runs and prints the tables.
pub fn run(arguments: &Arguments) -> Outcome {
    let mut file = WorkloadFile::read(arguments.workload.as_deref())?;
    file.seed = arguments.seed.unwrap_or(file.seed);
    let places = Places::open(&arguments.places, file.seed)?;
    let bench = Bench::new(&arguments.results.results, arguments.results.resume)?;
    let plans = plans(arguments, &file, &places);
    bench
        .progress
        .expect(plans.iter().map(|plan| plan.expected_seconds).sum());
    let made = make_all(&bench, &places, &plans);
    // Leaves the directories as they were.
    places.remove(NAME)?;
    made?;
    bench.progress.finish();
    print(&super::Video, &bench)
}

fn make_all(bench: &Bench, places: &Places, plans: &[Plan<'_, Settings>]) -> Outcome {
    let mut shelf = None;
    for plan in plans {
        bench.run(plan, |progress| measure(places, &plan.settings, &mut shelf, progress))?;
    }
    Ok(())
}

fn plans(arguments: &Arguments, file: &WorkloadFile, places: &Places) -> Vec<Plan<'static, Settings>> {
    let amount = arguments.results.scale.of(&file.small, &file.full);
    let mut plans = Vec::new();
    for &exponent in given_or(&arguments.exponents, &amount.exponents) {
        let scene = scene(file, amount, exponent, places);
        let mut add = |system: System, sessions, share: Option<f64>| {
            let flash = share.map_or_else(String::new, |share| format!(", flash {share}"));
            let half = if sessions < file.sessions {
                format!(", {sessions} sessions")
            } else {
                String::new()
            };
            let reads = amount.warm_up_sessions * amount.parts as u64;
            plans.push(Plan {
                experiment: EXPERIMENT,
                name: format!("{}, exponent {exponent}{flash}{half}", system.name()),
                seed: file.seed,
                expected_seconds: amount.rush_reads as f64 / 200.0
                    + amount.play_seconds
                    + (scene.bytes() + reads * amount.segment_bytes as u64) as f64 / 1e9,
                settings: Settings {
                    system,
                    sessions,
                    share,
                    scene: scene.clone(),
                },
            });
        };
        add(System::DiskOnly, file.sessions, None);
        // The number of sessions that the disk alone sustains.
        add(System::DiskOnly, file.sessions / 2, None);
        for system in System::WITH_FLASH {
            for &share in given_or(&arguments.shares, &amount.shares) {
                add(system, file.sessions, Some(share));
            }
        }
    }
    plans.retain(|plan| arguments.only.is_empty() || arguments.only.contains(&plan.settings.system));
    // The rivals' catalogue is written once and kept. Terrace needs the whole disk, so it runs
    // first.
    plans.sort_by_key(|plan: &Plan<Settings>| plan.settings.system != System::Terrace);
    plans
}

fn scene(file: &WorkloadFile, amount: &Amount, exponent: f64, places: &Places) -> Scene {
    Scene {
        choice: Choice {
            exponent,
            swap_every: 0,
        },
        catalogue: Catalogue {
            titles: file.titles,
            parts: amount.parts,
        },
        segment_bytes: amount.segment_bytes,
        ram_bytes: amount.ram_bytes,
        segment_seconds: amount.segment_seconds,
        sessions_max: file.sessions,
        ahead: file.ahead,
        asked_records: file.asked_records,
        l2arc_bytes_per_second: file.l2arc_bytes_per_second,
        haste: file.haste,
        warm_up_sessions: amount.warm_up_sessions,
        rush_reads: amount.rush_reads,
        play_seconds: amount.play_seconds,
        ssd: places.ssd.description.clone(),
        hdd: places.hdd.description.clone(),
        seed: file.seed,
    }
}

/// One run. The catalogue on the disk is the same for all rivals, so it is written once.
fn measure(
    places: &Places,
    settings: &Settings,
    shelf: &mut Option<Arc<Shelf>>,
    progress: &Progress,
) -> Outcome<Measured> {
    let scene = &settings.scene;
    let values = Arc::new(Values::new(scene.seed, scene.segment_bytes));
    places.ssd.fresh(NAME)?;
    // Nothing is timed until the caches are warm.
    places.hurry(HASTE)?;
    let server: Box<dyn Server> = match settings.system {
        System::Terrace => {
            *shelf = None;
            on_an_empty_disk(places)?;
            Box::new(Terrace::open(places, NAME, settings, &values)?)
        }
        rival => {
            let shelf = match shelf {
                Some(shelf) => Arc::clone(shelf),
                None => {
                    let filled = Arc::new(Shelf::fill(&on_an_empty_disk(places)?, scene, &values)?);
                    Arc::clone(shelf.insert(filled))
                }
            };
            Box::new(Rival::new(rival, shelf, &places.ssd.path.join(NAME), settings)?)
        }
    };
    let watched = watch(places, settings, &values, server.as_ref(), progress);
    places.hurry(1.0)?;
    server.close()?;
    places.ssd.remove(NAME)?;
    watched
}

/// The directory on the disk. After another one, ext4 would place a catalogue elsewhere than on an
/// empty disk: further in, where a disk is slower, or in more pieces.
fn on_an_empty_disk(places: &Places) -> Outcome<PathBuf> {
    places.hdd.empty()?;
    places.hdd.fresh(NAME)
}

fn watch(
    places: &Places,
    settings: &Settings,
    values: &Values,
    server: &dyn Server,
    progress: &Progress,
) -> Outcome<Measured> {
    let scene = &settings.scene;
    let titles = Titles::new(scene.catalogue, scene.choice, scene.seed);
    let audience = Audience::new(server, titles, values, settings);
    places.hurry(scene.haste)?;
    let windows = audience.warm_up(WINDOWS, |share| progress.share(share * 0.4))?;
    places.hurry(1.0)?;
    let flash_written_before = server.flash_written_bytes();
    let (before, traffic) = (audience.so_far(), places.traffic()?);
    let rush = audience.rush()?;
    progress.share(0.6);
    let played = audience.play()?;
    Ok(Measured {
        windows,
        flash_written_before,
        rush,
        played,
        warm: audience.so_far().since(&before),
        traffic: places.traffic()?.since(&traffic),
    })
}
