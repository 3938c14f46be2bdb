//! A directory for a store's files, and the traffic of the drive below it.
//!
//! The kernel counts the traffic of a block device (what iostat shows); an emulated drive counts
//! its own. If a counter does not exist, its figure is absent from the results, never zero. A
//! device's counters include all processes that use the device.

use crate::Outcome;
use emulated_drives::{Drive, Fault};
use rustix::fs::{major, minor};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Speed-up of an emulated drive while nothing is measured: the fraction of the modelled times.
pub const HASTE: f64 = 0.1;

/// Requests and bytes in an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// Read requests.
    pub reads: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Seconds with at least one pending request.
    pub busy_seconds: f64,
}

impl Traffic {
    /// The difference to an earlier reading.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            reads: self.reads.saturating_sub(earlier.reads),
            writes: self.writes.saturating_sub(earlier.writes),
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(earlier.written_bytes),
            busy_seconds: (self.busy_seconds - earlier.busy_seconds).max(0.0),
        }
    }
}

/// The kernel's counters of a block device.
#[derive(Debug)]
struct BlockDevice {
    stat: PathBuf,
}

impl BlockDevice {
    /// The device below a directory; `None` for tmpfs, overlays and the like.
    fn under(directory: &Path) -> Outcome<Option<Self>> {
        let device = rustix::fs::stat(directory)?.st_dev;
        let stat = PathBuf::from(format!("/sys/dev/block/{}:{}/stat", major(device), minor(device)));
        Ok(stat.exists().then_some(Self { stat }))
    }

    fn traffic(&self) -> Outcome<Traffic> {
        parse_stat(&fs::read_to_string(&self.stat)?)
            .ok_or_else(|| format!("{} has an unknown form", self.stat.display()).into())
    }
}

/// From the kernel's Documentation/block/stat.rst: sectors always have 512 bytes, times are in
/// milliseconds.
fn parse_stat(text: &str) -> Option<Traffic> {
    let fields: Vec<u64> = text.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let [reads, _, sectors_read, _, writes, _, sectors_written, _, _, busy_ms, ..] = fields[..] else {
        return None;
    };
    Some(Traffic {
        reads,
        writes,
        read_bytes: sectors_read.checked_mul(512)?,
        written_bytes: sectors_written.checked_mul(512)?,
        busy_seconds: busy_ms as f64 / 1e3,
    })
}

/// The counters of an emulated drive.
fn of_drive(drive: &Drive) -> Outcome<Traffic> {
    let counters = drive.counters()?;
    Ok(Traffic {
        reads: counters.reads.requests,
        writes: counters.writes.requests,
        read_bytes: counters.reads.bytes,
        written_bytes: counters.writes.bytes,
        busy_seconds: counters.busy_nanoseconds as f64 / 1e9,
    })
}

/// A directory on a drive.
#[derive(Debug, Clone)]
pub struct Place {
    /// Description in the results: a drive's profile, or the directory.
    pub description: String,
    /// The directory.
    pub path: PathBuf,
    /// The emulated drive, if it is one.
    pub drive: Option<Arc<Drive>>,
    device: Option<Arc<BlockDevice>>,
}

/// Traffic of a place, for each counter that exists.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct PlaceTraffic {
    /// From the kernel, as in iostat.
    pub device: Option<Traffic>,
    /// From the emulated drive.
    pub drive: Option<Traffic>,
}

impl PlaceTraffic {
    /// The difference to an earlier reading of the same place.
    pub fn since(&self, earlier: &Self) -> Self {
        let added = |now: Option<Traffic>, then: Option<Traffic>| Some(now?.since(&then?));
        Self {
            device: added(self.device, earlier.device),
            drive: added(self.drive, earlier.drive),
        }
    }
}

impl Place {
    /// A plain directory, created if it does not exist.
    pub fn directory(path: &Path) -> Outcome<Self> {
        fs::create_dir_all(path).map_err(|error| format!("{} cannot be made: {error}", path.display()))?;
        let path = path.canonicalize()?;
        Ok(Self {
            description: format!("directory {}", path.display()),
            device: BlockDevice::under(&path)?.map(Arc::new),
            path,
            drive: None,
        })
    }

    /// The number of its block device, if there is one.
    pub fn device_number(&self) -> Option<u64> {
        rustix::fs::stat(&self.path).ok().map(|stat| stat.st_dev)
    }

    /// The counters, after a sync of the file system.
    pub fn traffic(&self) -> Outcome<PlaceTraffic> {
        rustix::fs::syncfs(fs::File::open(&self.path)?)?;
        Ok(PlaceTraffic {
            device: self.device.as_ref().map(|device| device.traffic()).transpose()?,
            drive: self.drive.as_ref().map(|drive| of_drive(drive)).transpose()?,
        })
    }

    /// Sets the fraction of its modelled times that an emulated drive takes; 1 for the modelled
    /// times. For intervals without measurements. No effect on real drives.
    pub fn hurry(&self, factor: f64) -> Outcome {
        let slow = Fault::Slow { factor };
        self.drive.as_ref().map_or(Ok(()), |drive| drive.fault(slow))
    }

    /// Creates a new file system on an emulated drive, so that files are placed as on a new drive.
    /// Everything on it is lost. No effect on real drives.
    ///
    /// # Errors
    /// If a file in it is open.
    pub fn empty(&self) -> Outcome {
        self.drive.as_ref().map_or(Ok(()), |drive| drive.empty())
    }

    /// Creates an empty directory of this name, replacing an old one.
    pub fn fresh(&self, name: &str) -> Outcome<PathBuf> {
        self.remove(name)?;
        let path = self.path.join(name);
        fs::create_dir(&path)?;
        Ok(path)
    }

    /// Removes a directory created by [`Place::fresh`].
    pub fn remove(&self, name: &str) -> Outcome {
        match fs::remove_dir_all(self.path.join(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// Drops the kernel's caches after a sync. False without the permission, which root has.
pub fn drop_caches(places: &[&Place]) -> Outcome<bool> {
    for place in places {
        rustix::fs::syncfs(fs::File::open(&place.path)?)?;
    }
    Ok(fs::write("/proc/sys/vm/drop_caches", "3").is_ok())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn stat_of_the_kernel_is_read() {
        let line = "  4 1 1608 2 3 0 24 1 0 1250 3 0 0 0 0 1 0\n";
        let traffic = parse_stat(line).unwrap();
        assert_eq!((traffic.reads, traffic.read_bytes), (4, 1608 * 512));
        assert_eq!((traffic.writes, traffic.written_bytes), (3, 24 * 512));
        assert!((traffic.busy_seconds - 1.25).abs() < 1e-9);
        assert_eq!(parse_stat(""), None);
        assert_eq!(parse_stat("1 2 x 4 5 6 7 8 9 10 11"), None);
        assert_eq!(parse_stat("1 2 18446744073709551615 4 5 6 7 8 9 10 11"), None);
    }

    #[test]
    fn a_missing_counter_stays_missing() {
        let counted = Traffic {
            reads: 5,
            ..Traffic::default()
        };
        let now = PlaceTraffic {
            device: Some(counted),
            drive: None,
        };
        let then = PlaceTraffic {
            device: Some(Traffic { reads: 2, ..counted }),
            drive: None,
        };
        let added = now.since(&then);
        assert_eq!(added.device.unwrap().reads, 3);
        assert_eq!(added.drive, None);
    }

    #[test]
    fn fresh_empties_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::directory(&directory.path().join("new")).unwrap();
        let store = place.fresh("store").unwrap();
        fs::write(store.join("old"), "x").unwrap();
        assert_eq!(fs::read_dir(place.fresh("store").unwrap()).unwrap().count(), 0);
        place.remove("store").unwrap();
        place.remove("store").unwrap();
        place.traffic().unwrap();
    }
}
