//! Video on two drives, in time: Terrace beside other ways to use flash before a disk, each on the
//! same drives with the same RAM.
//!
//! [`rivals`] are the others, [`terrace`] ours; all of them really read and write the drives, past
//! the kernel's cache. [`audience`] has the readers: first only the drives are busy (the caches
//! warm up, from cold), then all read as fast as they can, then all play at a bit rate. [`targets`]
//! says what was aimed at and [`report`] makes the tables.
//!
//! What counts as a hit is the same for all: a byte delivered that was not read from the disk.

mod audience;
pub mod report;
mod rivals;
pub mod targets;
mod terrace;
#[cfg(test)]
mod tests;

use super::{
    Arguments,
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
        workload::{Scale, read_toml},
    },
};
use audience::{Audience, Played, Rush, Window};
use rivals::{Kind, Rival, Shelf};
use serde::{Deserialize, Serialize};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use terrace::Terrace;

/// What kind of run this is, in the results.
pub const EXPERIMENT: &str = "video-drives";
/// Name of the directories.
const NAME: &str = "video";

/// Somebody who answers reads of segments.
pub trait Server: Send + Sync {
    /// Reads a segment whole.
    ///
    /// # Errors
    /// The drives'.
    fn read(&self, object: usize) -> Outcome<Segment>;

    /// Bytes read from the disk so far.
    fn disk_read_bytes(&self) -> u64;

    /// Bytes written to flash so far, by its own account.
    fn flash_written_bytes(&self) -> u64;

    /// So much time passed while caches warmed up; from then on, with `None`, it passes as it does.
    ///
    /// # Errors
    /// Those of work that is done in that time.
    fn warm_up_passed(&self, _time: Option<Duration>) -> Outcome {
        Ok(())
    }

    /// Ends what goes on in the background.
    ///
    /// # Errors
    /// Its errors.
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

/// How much at a scale.
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
            // Shorter ones are not copied by Terrace.
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

/// Looks at the hits while the caches warm up.
const WINDOWS: u64 = 20;

/// Who takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// Ours.
    Terrace,
    /// No flash.
    DiskOnly,
    /// Whole objects, the one used longest ago leaves.
    ObjectLru,
    /// Facebook's cache below the file system.
    Flashcache,
    /// The second level of the cache of ZFS.
    L2Arc,
}

impl System {
    const WITH_FLASH: [Self; 4] = [Self::ObjectLru, Self::Flashcache, Self::L2Arc, Self::Terrace];

    /// For people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Terrace => "Terrace",
            Self::DiskOnly => "disk only",
            Self::ObjectLru => "LRU by object",
            Self::Flashcache => "Flashcache model",
            Self::L2Arc => "L2ARC model",
        }
    }

    const fn kind(self) -> Option<Kind> {
        match self {
            Self::Terrace => None,
            Self::DiskOnly => Some(Kind::None),
            Self::ObjectLru => Some(Kind::ObjectLru),
            Self::Flashcache => Some(Kind::Flashcache),
            Self::L2Arc => Some(Kind::L2Arc),
        }
    }
}

/// What was chosen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Who.
    pub system: System,
    /// Sessions at a time.
    pub sessions: usize,
    /// Flash as a share of the catalogue.
    pub share: Option<f64>,
    /// Everything that is the same for all.
    pub scene: Scene,
}

/// What is the same for all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scene {
    /// How titles are chosen.
    pub choice: Choice,
    /// Titles and segments.
    pub catalogue: Catalogue,
    /// Length of a segment.
    pub segment_bytes: usize,
    /// RAM for what was read.
    pub ram_bytes: u64,
    /// How long a segment plays.
    pub segment_seconds: f64,
    /// Sessions at a time, where not half of them.
    pub sessions_max: usize,
    /// Segments a player keeps ahead.
    pub ahead: usize,
    /// Records of a segment that ZFS does not prefetch.
    pub asked_records: usize,
    /// How fast L2ARC is fed.
    pub l2arc_bytes_per_second: u64,
    /// What drives take of their time meanwhile.
    pub haste: f64,
    /// Sessions from cold.
    pub warm_up_sessions: u64,
    /// Segments read as fast as possible: a number and not a time, so that all of them have the
    /// same sessions.
    pub rush_reads: u64,
    /// At the bit rate, for so long.
    pub play_seconds: f64,
    /// The fast drive.
    pub ssd: String,
    /// The disk.
    pub hdd: String,
    /// Of everything random.
    pub seed: u64,
}

impl Scene {
    /// Bytes of all segments.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        (self.catalogue.objects() * self.segment_bytes) as u64
    }
}

/// What was measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    /// From cold on, while the caches warmed up.
    pub windows: Vec<Window>,
    /// Bytes written to flash until then.
    pub flash_written_before: u64,
    /// As fast as possible.
    pub rush: Rush,
    /// At the bit rate.
    pub played: Played,
    /// Delivered, read from the disk and written to flash by both.
    pub warm: Window,
    /// What reached the drives in both.
    pub traffic: BothTraffic,
}

impl Measured {
    /// Share of the bytes that did not come from the disk: of the last quarter of warming up, and
    /// all that was timed.
    #[must_use]
    pub fn hits(&self) -> f64 {
        let late = &self.windows[self.windows.len() - self.windows.len() / 4..];
        let mut all = self.warm;
        late.iter().for_each(|window| all.add(window));
        all.hits()
    }

    /// Bytes written to flash for each that was delivered, in the same time.
    #[must_use]
    pub fn flash_written(&self) -> f64 {
        let late = &self.windows[self.windows.len() - self.windows.len() / 4..];
        let mut all = self.warm;
        late.iter().for_each(|window| all.add(window));
        all.flash_written_bytes as f64 / all.delivered_bytes.max(1) as f64
    }
}

/// Makes the runs and prints the tables.
///
/// # Errors
/// The first run's that fails.
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
    // The next who uses these directories finds them as they were.
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
    let amount = match arguments.results.scale {
        Scale::Small => &file.small,
        Scale::Full => &file.full,
    };
    let mut plans = Vec::new();
    for &exponent in arguments.exponents_or(&amount.exponents) {
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
        // What the disk alone holds.
        add(System::DiskOnly, file.sessions / 2, None);
        for system in System::WITH_FLASH {
            for &share in arguments.shares_or(&amount.shares) {
                add(system, file.sessions, Some(share));
            }
        }
    }
    plans.retain(|plan| arguments.only.is_empty() || arguments.only.contains(&plan.settings.system));
    // The rivals' catalogue is written once and stays. Terrace needs the disk for itself, so it
    // goes first.
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

/// One run. The rivals' catalogue on the disk is the same for all of them, so it is written once.
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
    let server: Box<dyn Server> = match settings.system.kind() {
        None => {
            *shelf = None;
            on_an_empty_disk(places)?;
            Box::new(Terrace::open(places, NAME, settings, &values)?)
        }
        Some(kind) => {
            let shelf = match shelf {
                Some(shelf) => Arc::clone(shelf),
                None => {
                    let filled = Arc::new(Shelf::fill(&on_an_empty_disk(places)?, scene, &values)?);
                    Arc::clone(shelf.insert(filled))
                }
            };
            Box::new(Rival::new(kind, shelf, &places.ssd.path.join(NAME), settings)?)
        }
    };
    let watched = watch(places, settings, &values, server.as_ref(), progress);
    places.hurry(1.0)?;
    server.close()?;
    places.ssd.remove(NAME)?;
    watched
}

/// The directory on the disk. Where another one was before, ext4 would put a catalogue elsewhere
/// than on an empty disk: further in, where a disk is slower, or in more pieces.
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
