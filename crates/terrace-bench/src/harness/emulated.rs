//! Emulated drives for an evaluation: two are created, mounted and, at the end, removed.
//!
//! They are removed when the evaluation ends, fails, or is interrupted. After SIGKILL,
//! `terrace-bench drive list` shows what is left.

use super::place::Place;
use crate::Outcome;
use emulated_drives::{Drive, DriveSpec, Profile};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::{Handle, Signals},
};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Options of emulated drives, used instead of two directories.
#[derive(Debug, Clone, clap::Args)]
pub struct EmulateArguments {
    /// Create two emulated drives for the evaluation (as root).
    #[arg(long, conflicts_with_all = ["ssd", "hdd"])]
    pub emulate: bool,
    /// Profile of the fast drive.
    #[arg(long, value_name = "PROFILE", default_value = "intel-320")]
    pub ssd_profile: String,
    /// Profile of the disk.
    #[arg(long, value_name = "PROFILE", default_value = "maxtor-7l250s0")]
    pub hdd_profile: String,
    /// Size of each drive in GiB; their files are sparse.
    #[arg(long, value_name = "GIB", default_value = "24")]
    pub drive_gib: u64,
    /// Directory for the drives' files: on the fastest disk available, with space for the data.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub drive_directory: std::path::PathBuf,
}

/// Drives that are removed when this is dropped.
#[derive(Debug, Default)]
pub struct Emulated {
    drives: Vec<Arc<Drive>>,
    signals: Option<Handle>,
    interrupted: Arc<AtomicBool>,
}

impl Emulated {
    /// Creates the two drives.
    pub fn create(arguments: &EmulateArguments, seed: u64) -> Outcome<(Self, Place, Place)> {
        let mut emulated = Self::default();
        let bytes = arguments.drive_gib.saturating_mul(1 << 30);
        let directory = &arguments.drive_directory;
        let ssd = emulated.add("ssd", &arguments.ssd_profile, bytes, seed, directory)?;
        let hdd = emulated.add("hdd", &arguments.hdd_profile, bytes, seed + 1, directory)?;
        emulated.remove_on_signals()?;
        Ok((emulated, ssd, hdd))
    }

    fn add(&mut self, kind: &str, profile: &str, bytes: u64, seed: u64, directory: &Path) -> Outcome<Place> {
        let drive = Arc::new(Drive::create(DriveSpec {
            name: format!("evaluation-{kind}-{}", std::process::id()),
            profile: Profile::find(profile)?,
            bytes,
            seed,
            directory: directory.to_owned(),
        })?);
        // From here on it is removed in any case.
        self.drives.push(Arc::clone(&drive));
        let mut place = Place::directory(&drive.mount()?)?;
        place.description = format!("emulated {profile}, {} GiB", bytes >> 30);
        place.drive = Some(drive);
        Ok(place)
    }

    /// Removes the drives on Ctrl-C and similar signals.
    fn remove_on_signals(&mut self) -> Outcome {
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        self.signals = Some(signals.handle());
        let names: Vec<String> = self.drives.iter().map(|drive| drive.name().to_owned()).collect();
        let interrupted = Arc::clone(&self.interrupted);
        std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                interrupted.store(true, Ordering::SeqCst);
                eprintln!("interrupted; removing the emulated drives");
                for name in names {
                    if let Err(error) = Drive::open(&name).and_then(Drive::remove) {
                        eprintln!("{error}");
                    }
                }
                std::process::exit(128 + signal);
            }
        });
        Ok(())
    }
}

impl Drop for Emulated {
    fn drop(&mut self) {
        // Errors caused by the removal of the drives are not reported: the thread that removes them
        // ends the process.
        while self.interrupted.load(Ordering::SeqCst) {
            std::thread::park();
        }
        if let Some(signals) = self.signals.take() {
            signals.close();
        }
        for drive in self.drives.drain(..) {
            // There may be other references to it; it can be removed by name.
            if let Err(error) = Drive::open(drive.name()).and_then(Drive::remove) {
                eprintln!("{error}");
            }
        }
    }
}
