//! What a store is on: two emulated drives whose power can go, or two directories of this machine.
//!
//! On directories there is no power to cut; then killing the writer is all that happens.

use crate::Outcome;
use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

/// Where stores are to be made.
#[derive(Debug, Clone)]
pub enum Place {
    /// On emulated drives.
    Drives {
        /// Profile of the flash drive.
        flash: String,
        /// Profile of the large drive.
        large: String,
        /// Where the drives keep what they hold.
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
    /// Whether there is power to cut.
    pub const fn is_cut(&self) -> bool {
        matches!(self, Self::Drives { .. })
    }
}

/// What one store is on.
#[derive(Debug)]
pub struct Machine {
    flash: PathBuf,
    large: PathBuf,
}

/// Name of a store's directory below the directories given.
const STORE: &str = "terrace-power-cut";

impl Machine {
    /// Makes a place for a new store.
    ///
    /// # Errors
    /// If drives or directories cannot be made.
    pub fn create(place: &Place, _seed: u64) -> Outcome<Self> {
        match place {
            Place::Drives { .. } => Err("emulated drives are not there yet; give --flash and --large".into()),
            Place::Directories { flash, large } => {
                let (flash, large) = (flash.join(STORE), large.join(STORE));
                for path in [&flash, &large] {
                    if path.exists() {
                        let path = path.display();
                        return Err(format!("{path} is there already; remove it, or give another directory").into());
                    }
                    fs::create_dir_all(path)?;
                }
                Ok(Self { flash, large })
            }
        }
    }

    /// Directory of the flash tier, while there is power.
    pub fn flash(&self) -> &Path {
        &self.flash
    }

    /// Directory of the large tier, while there is power.
    pub fn large(&self) -> &Path {
        &self.large
    }

    /// Takes the power away.
    ///
    /// # Errors
    /// If a drive does not answer.
    pub fn cut(&mut self) -> Outcome {
        Ok(())
    }

    /// Gives the power back. The writer must be gone.
    ///
    /// # Errors
    /// If a drive cannot be mounted again.
    pub fn restore(&mut self) -> Outcome {
        Ok(())
    }

    /// Removes the drives or directories, and the store with them.
    ///
    /// # Errors
    /// If something cannot be removed.
    pub fn remove(self) -> Outcome {
        fs::remove_dir_all(&self.flash)?;
        fs::remove_dir_all(&self.large)?;
        Ok(())
    }
}
