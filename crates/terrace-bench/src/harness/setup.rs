//! The two drives of an evaluation and the three placements of a store on them (MRIS, table 1).

use super::{
    emulated::{EmulateArguments, Emulated},
    place::{Place, PlaceTraffic, drop_caches},
};
use crate::Outcome;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The drives for runs.
#[derive(Debug, Clone, clap::Args)]
pub struct PlaceArguments {
    /// Directory on the fast drive.
    #[arg(long, value_name = "DIR")]
    pub ssd: Option<PathBuf>,
    /// Directory on the disk.
    #[arg(long, value_name = "DIR")]
    pub hdd: Option<PathBuf>,
    /// Emulated drives instead.
    #[command(flatten)]
    pub emulated: EmulateArguments,
}

impl PlaceArguments {
    /// Whether two drives were given.
    pub const fn are_given(&self) -> bool {
        self.emulated.emulate || self.ssd.is_some() || self.hdd.is_some()
    }
}

/// The two drives.
#[derive(Debug)]
pub struct Places {
    /// The fast drive.
    pub ssd: Place,
    /// The disk.
    pub hdd: Place,
    /// Keeps emulated drives until it is dropped.
    _emulated: Option<Emulated>,
}

/// Traffic of the two drives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct BothTraffic {
    /// The fast drive.
    pub ssd: PlaceTraffic,
    /// The disk.
    pub hdd: PlaceTraffic,
}

impl BothTraffic {
    /// The difference to an earlier reading.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            ssd: self.ssd.since(&earlier.ssd),
            hdd: self.hdd.since(&earlier.hdd),
        }
    }
}

impl Places {
    /// Opens the drives of the arguments.
    pub fn open(arguments: &PlaceArguments, seed: u64) -> Outcome<Self> {
        if arguments.emulated.emulate {
            let (emulated, ssd, hdd) = Emulated::create(&arguments.emulated, seed)?;
            return Ok(Self {
                ssd,
                hdd,
                _emulated: Some(emulated),
            });
        }
        let (Some(ssd), Some(hdd)) = (&arguments.ssd, &arguments.hdd) else {
            return Err("give a directory on each drive, --ssd DIR --hdd DIR, or --emulate".into());
        };
        let places = Self {
            ssd: Place::directory(ssd)?,
            hdd: Place::directory(hdd)?,
            _emulated: None,
        };
        if places.ssd.path == places.hdd.path {
            return Err("--ssd and --hdd must be two directories".into());
        }
        Ok(places)
    }

    /// Whether both are on one device, whose counters then include both.
    pub fn share_a_device(&self) -> bool {
        self.ssd.device_number() == self.hdd.device_number()
    }

    /// The counters of both drives, after a sync.
    pub fn traffic(&self) -> Outcome<BothTraffic> {
        Ok(BothTraffic {
            ssd: self.ssd.traffic()?,
            hdd: self.hdd.traffic()?,
        })
    }

    /// See [`drop_caches`].
    pub fn drop_caches(&self) -> Outcome<bool> {
        drop_caches(&[&self.ssd, &self.hdd])
    }

    /// See [`Place::hurry`].
    pub fn hurry(&self, factor: f64) -> Outcome {
        self.ssd.hurry(factor)?;
        self.hdd.hurry(factor)
    }

    /// Creates empty directories of this name for a store.
    pub fn fresh(&self, name: &str) -> Outcome {
        self.ssd.fresh(name)?;
        self.hdd.fresh(name).map(drop)
    }

    /// Removes directories created by [`Places::fresh`].
    pub fn remove(&self, name: &str) -> Outcome {
        self.ssd.remove(name)?;
        self.hdd.remove(name)
    }
}

/// Placement of data (MRIS, table 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Setup {
    /// Everything on the fast drive.
    Ssd,
    /// Small values and metadata on the fast drive, large values on the disk.
    Hybrid,
    /// Everything on the disk.
    Hdd,
}

impl Setup {
    /// All, in the paper's order.
    pub const ALL: [Self; 3] = [Self::Ssd, Self::Hybrid, Self::Hdd];

    /// The paper's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ssd => "SSD",
            Self::Hybrid => "Hybrid",
            Self::Hdd => "HDD",
        }
    }

    /// The drive of small values and metadata.
    pub const fn flash(self, places: &Places) -> &Place {
        match self {
            Self::Ssd | Self::Hybrid => &places.ssd,
            Self::Hdd => &places.hdd,
        }
    }

    /// The drive of large values.
    pub const fn large(self, places: &Places) -> &Place {
        match self {
            Self::Ssd => &places.ssd,
            Self::Hybrid | Self::Hdd => &places.hdd,
        }
    }

    /// Options of a store of this name, with its two directories on their drives.
    pub fn options(self, places: &Places, name: &str) -> terrace::Options {
        let flash = self.flash(places).path.join(name).join("flash");
        let large = self.large(places).path.join(name).join("large");
        terrace::Options::on_tiers(flash, large)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn setups_are_those_of_table_1() {
        let directory = tempfile::tempdir().unwrap();
        let place = |name: &str| Place::directory(&directory.path().join(name)).unwrap();
        let places = Places {
            ssd: place("s"),
            hdd: place("h"),
            _emulated: None,
        };
        let on = |setup: Setup| {
            let options = setup.options(&places, "store");
            let drive = |path: PathBuf| {
                if path.starts_with(&places.ssd.path) {
                    "ssd"
                } else {
                    "hdd"
                }
            };
            (drive(options.flash_dir), drive(options.large_dir))
        };
        assert_eq!(Setup::ALL.map(on), [("ssd", "ssd"), ("ssd", "hdd"), ("hdd", "hdd")]);
    }
}
