//! Runtime state of drives: a directory per drive, with a description, a socket, and mount points.
//!
//! Invariant: the description is replaced as a whole (written beside and renamed), so a reader
//! never sees part of one.

use super::counters::Counters;
use super::profile::Profile;
use crate::Outcome;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Description of a drive.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Description {
    /// Name.
    pub name: String,
    /// Its profile.
    pub profile: Profile,
    /// Length.
    pub bytes: u64,
    /// Seed of everything random.
    pub seed: u64,
    /// The sparse backing file.
    pub backing_file: PathBuf,
    /// The loop device, if attached.
    pub loop_device: Option<PathBuf>,
    /// The daemon's process ID, if it runs.
    pub process: Option<u32>,
}

/// The runtime directory of one drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    directory: PathBuf,
}

/// Name of the directory of all drives, unless a program has set its own.
const NAME: &str = "emulated-drives";
static PROGRAM: OnceLock<&'static str> = OnceLock::new();

/// Names the directory of all drives after a program. Only the first call has effect.
pub fn name_after(program: &'static str) {
    PROGRAM.get_or_init(|| program);
}

/// The directory of all drives: `EMULATED_DRIVES_RUNTIME`, or `emulated-drives` in
/// `XDG_RUNTIME_DIR`, or in `/run`; with the program's name instead, if set.
pub fn root() -> PathBuf {
    let program = PROGRAM.get().copied().unwrap_or(NAME);
    let variable = format!("{}_RUNTIME", program.replace('-', "_").to_ascii_uppercase());
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    set(&variable)
        .or_else(|| set("XDG_RUNTIME_DIR").map(|directory| directory.join(program)))
        .unwrap_or_else(|| Path::new("/run").join(program))
}

impl Place {
    /// The place of a drive, which need not exist.
    ///
    /// # Errors
    /// If the name is not valid for a directory.
    pub fn of(root: &Path, name: &str) -> Outcome<Self> {
        let is_plain = |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.');
        if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.chars().all(is_plain) {
            return Err(format!(
                "`{name}` cannot be a drive's name: use up to 64 letters, digits, `-`, `_` and `.`, and no `.` first"
            )
            .into());
        }
        // In the form that the kernel shows in its lists of mounts and loop devices.
        let root = root.canonicalize().or_else(|_| std::path::absolute(root))?;
        Ok(Self {
            directory: root.join(name),
        })
    }

    /// The place in a given directory, for the daemon.
    pub fn at(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Places of all drives.
    pub fn all(root: &Path) -> Outcome<Vec<Self>> {
        let root = root.canonicalize().or_else(|_| std::path::absolute(root))?;
        let entries = match std::fs::read_dir(&root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(format!("cannot read {}: {error}", root.display()).into()),
        };
        let paths = entries.map(|entry| entry.map(|entry| entry.path()));
        let mut places = paths.collect::<Result<Vec<_>, _>>()?;
        places.sort();
        let places = places.into_iter().map(|directory| Self { directory });
        Ok(places.filter(|place| place.description_file().exists()).collect())
    }

    /// The directory itself.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The control socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("control")
    }

    /// Where the FUSE file system is mounted.
    pub fn fuse(&self) -> PathBuf {
        self.directory.join("fuse")
    }

    /// Where ext4 is mounted.
    pub fn mount_point(&self) -> PathBuf {
        self.directory.join("mount")
    }

    /// The daemon's log.
    pub fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    fn description_file(&self) -> PathBuf {
        self.directory.join("drive.json")
    }

    fn counters_file(&self) -> PathBuf {
        self.directory.join("counters.json")
    }

    /// Reads the description.
    ///
    /// # Errors
    /// If there is no such drive, or its description is damaged.
    pub fn description(&self) -> Outcome<Description> {
        let path = self.description_file();
        let text = std::fs::read(&path)
            .map_err(|error| format!("no drive is described at {}: {error}; create it first", path.display()))?;
        serde_json::from_slice(&text).map_err(|error| format!("{} is damaged: {error}", path.display()).into())
    }

    /// Replaces the description.
    pub fn describe(&self, description: &Description) -> Outcome {
        replace(&self.description_file(), &serde_json::to_vec_pretty(description)?)
    }

    /// Counters stored by an earlier daemon; zero if there are none.
    pub fn counters(&self) -> Counters {
        let text = std::fs::read(self.counters_file()).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Stores counters for the next daemon.
    pub fn keep_counters(&self, counters: &Counters) -> Outcome {
        replace(&self.counters_file(), &serde_json::to_vec(counters)?)
    }
}

fn replace(path: &Path, contents: &[u8]) -> Outcome {
    let fresh = path.with_extension("new");
    let written = std::fs::write(&fresh, contents).and_then(|()| std::fs::rename(&fresh, path));
    written.map_err(|error| format!("cannot write {}: {error}", path.display()).into())
}
