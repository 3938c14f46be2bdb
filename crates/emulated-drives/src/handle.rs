//! A handle of a drive: create, mount, cut, restore, remove. Any process may open the same drive.
//!
//! The parts of a drive, in the order of creation: runtime directory, backing file, daemon with its
//! FUSE mount, loop device, ext4, mount. `remove` removes those that exist in the opposite order,
//! and continues after failures. Failure: `create` leaves nothing behind. If a daemon dies, the
//! unflushed writes are lost, as in a power cut; the next `mount` or `restore` reports it, cleans
//! up and starts another.

use super::control::{self, Command, Status};
use super::counters::Counters;
use super::daemon;
use super::engine::Pace;
use super::fault::Fault;
use super::filesystem;
use super::media::{CutReport, Survival};
use super::place::{self, Description, Place};
use super::profile::{Kind, Profile};
use super::system;
use crate::Outcome;
use serde::de::DeserializeOwned;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Minimum size: ext4 and its journal need space.
const SMALLEST_BYTES: u64 = 16 << 20;
/// Longest wait for the end of a process.
const END_PATIENCE: Duration = Duration::from_secs(20);

/// Parameters of a new drive.
#[derive(Debug, Clone, PartialEq, clap::Args)]
pub struct DriveSpec {
    /// The drive's name in later commands.
    pub name: String,
    /// Its profile: a name from `drive profiles`, or a file that ends in .toml.
    #[arg(long, default_value = "nvme", value_parser = Profile::find)]
    pub profile: Profile,
    /// Its length, such as 512M or 8G (powers of 1024).
    #[arg(long = "size", value_name = "SIZE", default_value = "8G", value_parser = parse_bytes)]
    pub bytes: u64,
    /// Seed of cuts and faults.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Directory for the sparse backing file.
    #[arg(long, default_value = ".")]
    pub directory: PathBuf,
}

/// Parses a length such as `512M`: a number and a power of 1024.
///
/// # Errors
/// If it is something else, or too large.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|character: char| !character.is_ascii_digit());
    let shift = match text[digits.len()..]
        .to_ascii_uppercase()
        .trim_end_matches("IB")
        .trim_end_matches('B')
    {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err("write a number and K, M, G or T, such as 512M".to_owned()),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| "write a number and K, M, G or T, such as 512M".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "too large".to_owned())
}

/// See the module.
#[derive(Debug)]
pub struct Drive {
    name: String,
    place: Place,
}

impl Drive {
    /// Creates a drive with an empty ext4. It replaces nothing that exists.
    ///
    /// # Errors
    /// If a requirement is missing on this machine, if a drive or file of that name exists, or if a
    /// step fails.
    pub fn create(spec: DriveSpec) -> Outcome<Self> {
        Self::create_in(&place::root(), spec)
    }

    /// Like [`Drive::create`], with the directory for runtime state.
    ///
    /// # Errors
    /// As there.
    pub fn create_in(root: &Path, spec: DriveSpec) -> Outcome<Self> {
        system::check_requirements()?;
        let bytes = spec.bytes / 4096 * 4096;
        if bytes < SMALLEST_BYTES {
            return Err(format!("a drive of {bytes} bytes is too small: use at least {SMALLEST_BYTES}").into());
        }
        let in_directory = |error| format!("{}: {error}", spec.directory.display());
        fs::create_dir_all(&spec.directory).map_err(in_directory)?;
        let backing_file = spec
            .directory
            .canonicalize()
            .map_err(in_directory)?
            .join(format!("{}.drive", spec.name));
        fs::create_dir_all(root).map_err(|error| format!("cannot create {}: {error}", root.display()))?;
        let place = Place::of(root, &spec.name)?;
        fs::create_dir(place.directory()).map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => format!("a drive called `{}` exists: remove it first", spec.name),
            _ => format!("cannot create {}: {error}", place.directory().display()),
        })?;
        let file = fs::File::create_new(&backing_file).and_then(|file| file.set_len(bytes));
        if let Err(error) = file {
            let _ = fs::remove_dir(place.directory());
            return Err(format!("cannot create the backing file {}: {error}", backing_file.display()).into());
        }
        let drive = Self {
            name: spec.name.clone(),
            place,
        };
        let description = Description {
            name: spec.name,
            profile: spec.profile,
            bytes,
            seed: spec.seed,
            backing_file: backing_file.clone(),
            loop_device: None,
            process: None,
        };
        if let Err(error) = drive.build(&description) {
            // Without a description `remove` would not find the file.
            let _ = fs::remove_file(&backing_file);
            let place = drive.place.directory().to_owned();
            let _ = drive.remove();
            let _ = fs::remove_dir_all(place);
            return Err(error);
        }
        Ok(drive)
    }

    fn build(&self, description: &Description) -> Outcome {
        self.place.describe(description)?;
        fs::create_dir(self.place.fuse())?;
        fs::create_dir(self.place.mount_point())?;
        self.start_daemon()?;
        self.format()
    }

    /// Creates an empty ext4.
    fn format(&self) -> Outcome {
        // At a disk's modelled pace formatting takes minutes.
        self.set_pace(Pace::Instant)?;
        let device = self.attach()?;
        let options = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        let arguments = ["-q", "-F", "-m", "0", "-E", options].map(OsStr::new);
        system::run("mkfs.ext4", arguments.into_iter().chain([device.as_ref()]))?;
        self.set_pace(Pace::Model)
    }

    /// Replaces a mounted ext4 by an empty one, so that new files are placed as on a new drive.
    ///
    /// # Errors
    /// If ext4 is in use, or a step fails.
    pub fn empty(&self) -> Outcome {
        self.unmount()?;
        self.format()?;
        self.mount().map(drop)
    }

    /// The drive of that name.
    ///
    /// # Errors
    /// If there is none.
    pub fn open(name: &str) -> Outcome<Self> {
        Self::open_in(&place::root(), name)
    }

    /// Like [`Drive::open`], with the directory for runtime state.
    ///
    /// # Errors
    /// As there.
    pub fn open_in(root: &Path, name: &str) -> Outcome<Self> {
        let place = Place::of(root, name)?;
        place.description()?;
        Ok(Self {
            name: name.to_owned(),
            place,
        })
    }

    /// All drives.
    ///
    /// # Errors
    /// If the runtime directory cannot be read.
    pub fn all(root: &Path) -> Outcome<Vec<Self>> {
        let places = Place::all(root)?.into_iter();
        let named = places.filter_map(|place| {
            let name = place.directory().file_name()?.to_str()?.to_owned();
            Some(Self { name, place })
        });
        Ok(named.collect())
    }

    /// The drive's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The drive's description.
    ///
    /// # Errors
    /// If the description is gone or damaged.
    pub fn description(&self) -> Outcome<Description> {
        self.place.description()
    }

    /// Where ext4 is mounted, or would be.
    pub fn mount_point(&self) -> PathBuf {
        self.place.mount_point()
    }

    /// The loop device, if it is attached.
    pub fn device(&self) -> Option<PathBuf> {
        let device = self.description().ok()?.loop_device?;
        system::is_attached(&device, &self.file()).then_some(device)
    }

    /// Whether ext4 is mounted.
    pub fn is_mounted(&self) -> bool {
        system::is_mounted(&self.mount_point())
    }

    /// Whether the drive has power; `None` without its daemon.
    pub fn is_on(&self) -> Option<bool> {
        self.status().ok().map(|status| status.is_on)
    }

    fn file(&self) -> PathBuf {
        self.place.fuse().join(filesystem::FILE)
    }

    fn status(&self) -> Outcome<Status> {
        self.ask(&Command::Status)
    }

    fn ask<T: DeserializeOwned>(&self, command: &Command) -> Outcome<T> {
        control::ask(&self.place.socket(), command).map_err(|error| format!("drive {}: {error}", self.name).into())
    }

    fn start_daemon(&self) -> Outcome {
        let process = daemon::spawn(&self.place)?;
        let mut description = self.description()?;
        description.process = Some(process);
        description.loop_device = None;
        self.place.describe(&description)
    }

    /// Attaches the loop device, unless it is attached.
    fn attach(&self) -> Outcome<PathBuf> {
        if let Some(device) = self.device() {
            return Ok(device);
        }
        let device = system::attach(&self.file())?;
        let mut description = self.description()?;
        system::set_rotational(&device, matches!(description.profile.kind, Kind::Disk(_)));
        description.loop_device = Some(device.clone());
        self.place.describe(&description)?;
        Ok(device)
    }

    /// Unmounts ext4 and detaches the loop device, by force if necessary. Returns the failures of
    /// all steps.
    fn detach(&self) -> Failures {
        let mut failures = Vec::new();
        let mut keep = |outcome: Outcome| failures.extend(outcome.err());
        keep(system::unmount_by_force(&self.mount_point()));
        if let Some(device) = self.device() {
            keep(system::detach(&device));
        }
        if let Ok(mut description) = self.description() {
            description.loop_device = None;
            keep(self.place.describe(&description));
        }
        failures
    }

    /// Ensures that the daemon runs. One that died is replaced; its cache is lost.
    fn revive(&self) -> Outcome {
        if self.status().is_ok() {
            return Ok(());
        }
        if let Some(process) = self.description()?.process {
            eprintln!(
                "drive {}: its daemon (process {process}) has ended unasked; unflushed writes are lost",
                self.name
            );
            self.end_process(process);
        }
        self.detach();
        system::unmount_by_force(&self.place.fuse())?;
        self.start_daemon()
    }

    /// Mounts ext4 unless it is mounted, and returns the mount point.
    ///
    /// # Errors
    /// If a step fails, or the drive has no power.
    pub fn mount(&self) -> Outcome<PathBuf> {
        system::check_requirements()?;
        self.revive()?;
        if self.is_on() == Some(false) {
            return Err(format!("drive {} has no power: restore it first", self.name).into());
        }
        let point = self.mount_point();
        if !self.is_mounted() {
            let device = self.attach()?;
            let options = ["-t", "ext4"].map(OsStr::new);
            system::run("mount", options.into_iter().chain([device.as_ref(), point.as_ref()]))?;
            // Only now: when the file system is made, the kernel sets it again for a disk.
            system::read_ahead_like_a_disk(&device);
        }
        Ok(point)
    }

    /// Unmounts ext4, if it is mounted; the drive stays as it is.
    ///
    /// # Errors
    /// If it is in use.
    pub fn unmount(&self) -> Outcome {
        system::unmount(&self.mount_point())
    }

    /// Unmounts, and ends the daemon; the contents are kept for the next [`Drive::mount`].
    ///
    /// # Errors
    /// If ext4 is in use.
    pub fn stop(&self) -> Outcome {
        self.unmount()?;
        let mut failures = self.detach();
        failures.extend(self.end_daemon());
        all_done(&self.name, &failures)
    }

    /// Ends the daemon and removes its FUSE mount.
    fn end_daemon(&self) -> Failures {
        let mut failures = Vec::new();
        let process = self.description().ok().and_then(|description| description.process);
        if self.status().is_ok() {
            failures.extend(self.ask::<()>(&Command::Stop).err());
        }
        if let Some(process) = process {
            self.end_process(process);
        }
        if let Ok(mut description) = self.description() {
            description.process = None;
            failures.extend(self.place.describe(&description).err());
        }
        failures.extend(system::unmount_by_force(&self.place.fuse()).err());
        failures
    }

    /// Waits for the end of the daemon's process, and kills it if that takes too long.
    fn end_process(&self, process: u32) {
        use rustix::process::{Pid, Signal, kill_process};
        let runs = || system::is_daemon(process, self.place.directory());
        let Some(pid) = i32::try_from(process).ok().and_then(Pid::from_raw) else {
            return;
        };
        let wait = |patience: Duration| {
            let begun = Instant::now();
            while runs() && begun.elapsed() < patience {
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        wait(Duration::from_secs(2));
        for signal in [Signal::TERM, Signal::KILL] {
            if runs() {
                let _ = kill_process(pid, signal);
                wait(END_PATIENCE);
            }
        }
    }

    /// Removes everything: mounts, loop device, daemon, files.
    ///
    /// # Errors
    /// If something could not be removed; everything else has been.
    pub fn remove(self) -> Outcome {
        let backing_file = self.description().map(|description| description.backing_file);
        let mut failures = self.detach();
        failures.extend(self.end_daemon());
        if let Ok(path) = backing_file {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    failures.push(format!("cannot remove {}: {error}", path.display()).into());
                }
                _ => {}
            }
        }
        if system::is_mounted(&self.mount_point()) || system::is_mounted(&self.place.fuse()) {
            let directory = self.place.directory().display();
            failures.push(format!("something is still mounted in {directory}").into());
        } else if let Err(error) = fs::remove_dir_all(self.place.directory()) {
            failures.push(format!("cannot remove {}: {error}", self.place.directory().display()).into());
        }
        all_done(&self.name, &failures)
    }

    /// Switches the power off: from then on every request fails with EIO. Returns what happened to
    /// unflushed writes; with [`Survival::Any`] they are dropped, reordered or torn, depending on
    /// the seed.
    ///
    /// # Errors
    /// If the drive has no power already.
    pub fn cut(&self, survival: Survival) -> Outcome<CutReport> {
        self.ask(&Command::Cut { survival })
    }

    /// Switches the power on after a cut: unmounts (lazily if necessary), and detaches and attaches
    /// the loop device. Mount the drive afterwards.
    ///
    /// # Errors
    /// If a step fails.
    pub fn restore(&self) -> Outcome {
        let failures = self.detach();
        all_done(&self.name, &failures)?;
        self.revive()?;
        self.ask::<()>(&Command::PowerOn)?;
        self.attach().map(drop)
    }

    /// Sets the pace: as modelled, or everything immediate and durable, to lay out data before a
    /// measurement.
    ///
    /// # Errors
    /// If the daemon refuses.
    pub fn set_pace(&self, pace: Pace) -> Outcome {
        self.ask(&Command::Pace { pace })
    }

    /// Adds a fault, or ends them all.
    ///
    /// # Errors
    /// If the daemon refuses.
    pub fn fault(&self, fault: Fault) -> Outcome {
        self.ask::<Vec<u64>>(&Command::Fault { fault }).map(drop)
    }

    /// The drive's counters over its whole life. Cheap: one line over a socket.
    ///
    /// # Errors
    /// If there is no daemon.
    pub fn counters(&self) -> Outcome<Counters> {
        self.ask(&Command::Counters)
    }
}

type Failures = Vec<Box<dyn std::error::Error + Send + Sync>>;

fn all_done(name: &str, failures: &Failures) -> Outcome {
    if failures.is_empty() {
        return Ok(());
    }
    let failures: Vec<String> = failures.iter().map(ToString::to_string).collect();
    Err(format!("drive {name}: {}", failures.join("; ")).into())
}
