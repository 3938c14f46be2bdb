//! Where a store is: on two emulated drives whose power can be cut, or in two directories of this
//! machine. On directories the writer is only killed.
//!
//! Failure: the drives are removed however this process ends, unless it is killed.

use crate::Outcome;
use emulated_drives::{Drive, DriveSpec, Profile, Survival};
use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

/// Where stores are made.
#[derive(Debug, Clone)]
pub enum Place {
    /// On emulated drives.
    Drives {
        /// Profile of the flash drive.
        flash: String,
        /// Profile of the large drive.
        large: String,
        /// Directory for the backing files.
        directory: PathBuf,
    },
    /// In directories.
    Directories {
        /// For the flash tier.
        flash: PathBuf,
        /// For the large tier.
        large: PathBuf,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drives { flash, large, .. } => write!(f, "emulated drives {flash} and {large}"),
            Self::Directories { flash, large } => write!(
                f,
                "directories {} and {} (no power to cut: the writer is killed)",
                flash.display(),
                large.display()
            ),
        }
    }
}

impl Place {
    /// Whether the power can be cut.
    pub const fn is_cut(&self) -> bool {
        matches!(self, Self::Drives { .. })
    }
}

/// The drives or directories of one store.
#[derive(Debug)]
pub struct Machine {
    flash: PathBuf,
    large: PathBuf,
    /// Name of the store's directories.
    store: String,
    drives: Vec<Drive>,
}

/// Name of a store's directory in those given, or on a drive: a tier needs an empty directory, and
/// a new ext4 is not empty.
const STORE: &str = "terrace-power-cut";
/// Size of each drive; the backing file is sparse. Most of it is for blocks of values longer than a
/// block: each reserves 8 MiB until it is sealed, and dozens may be open when many blocks are
/// deleted.
const DRIVE_BYTES: u64 = 1 << 30;

/// A cut tears writes at this granularity. ext4 does not survive a superblock torn within its 4
/// KiB, so smaller sectors would test the file system; the simulated disks tear at 512 bytes.
const SECTOR_BYTES: u64 = 4096;

impl Machine {
    /// Prepares drives or directories for a new store.
    pub fn create(place: &Place, seed: u64) -> Outcome<Self> {
        match place {
            Place::Drives {
                flash,
                large,
                directory,
            } => Self::with_drives([("flash", flash), ("large", large)], directory, seed),
            Place::Directories { flash, large } => {
                for path in [flash, large] {
                    if fs::read_dir(path)?.next().is_some() {
                        let path = path.display();
                        return Err(format!("{path} is not empty; give an empty directory").into());
                    }
                }
                Ok(Self {
                    flash: flash.clone(),
                    large: large.clone(),
                    store: STORE.to_owned(),
                    drives: Vec::new(),
                })
            }
        }
    }

    fn with_drives(tiers: [(&str, &String); 2], directory: &Path, seed: u64) -> Outcome<Self> {
        let mut machine = Self {
            flash: PathBuf::new(),
            large: PathBuf::new(),
            store: STORE.to_owned(),
            drives: Vec::new(),
        };
        for (number, (tier, profile)) in tiers.into_iter().enumerate() {
            let profile = Profile {
                sector_bytes: SECTOR_BYTES,
                ..Profile::find(profile)?
            };
            machine.drives.push(Drive::create(DriveSpec {
                name: format!("power-cut-{}-{tier}", std::process::id()),
                profile,
                bytes: DRIVE_BYTES,
                seed: seed.wrapping_mul(2).wrapping_add(number as u64),
                directory: directory.to_owned(),
            })?);
        }
        machine.mount()?;
        Ok(machine)
    }

    fn mount(&mut self) -> Outcome {
        if let [flash, large] = &self.drives[..] {
            self.flash = flash.mount()?;
            self.large = large.mount()?;
        }
        Ok(())
    }

    /// Directory of the flash tier; needs power.
    pub fn flash(&self) -> PathBuf {
        self.flash.join(&self.store)
    }

    /// Directory of the large tier; needs power.
    pub fn large(&self) -> PathBuf {
        self.large.join(&self.store)
    }

    /// Selects another store on the same drives: the one with this name, or the first.
    pub fn turn_to(&mut self, store: Option<&str>) {
        store.unwrap_or(STORE).clone_into(&mut self.store);
    }

    /// Removes the selected store.
    pub fn remove_store(&self) -> Outcome {
        for path in [self.flash(), self.large()] {
            match fs::remove_dir_all(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(format!("cannot remove {}: {error}", path.display()).into());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes in a drive's cache. `None` where there is no such drive.
    pub fn pending_writes(&self, is_large: bool) -> Outcome<Option<u64>> {
        let counters = self
            .drives
            .get(usize::from(is_large))
            .map(Drive::counters)
            .transpose()?;
        Ok(counters.map(|counters| counters.pending_writes))
    }

    /// Cuts the power, of the large drive first or last. Returns the number of writes in the
    /// drives' caches.
    pub fn cut(&mut self, large_first: bool, survival: Survival) -> Outcome<u64> {
        let mut order: Vec<&Drive> = self.drives.iter().collect();
        if large_first {
            order.reverse();
        }
        let mut pending = 0;
        for drive in order {
            pending += drive.cut(survival)?.pending_writes;
        }
        Ok(pending)
    }

    /// Switches the power on again. The writer must have ended.
    pub fn restore(&mut self) -> Outcome {
        for drive in &self.drives {
            drive.restore()?;
        }
        self.mount()
    }

    /// Removes the drives or directories, and the store with them.
    pub fn remove(mut self) -> Outcome {
        if self.drives.is_empty() {
            self.remove_store()?;
        }
        self.drives.drain(..).try_for_each(Drive::remove)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for drive in self.drives.drain(..) {
            if let Err(error) = drive.remove() {
                eprintln!("a drive could not be removed: {error}");
            }
        }
    }
}
