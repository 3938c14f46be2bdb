//! What a directory says of itself: that it holds a tier of a store, of which store, in which format.
//!
//! A manifest is written when the store is created, the flash tier's first, and once more when a newer program raises its
//! format, the large tier's first, so that nothing of the new format is ever under an old number: a flash tier without segments, so
//! that nothing was ever committed, beside a large tier without a manifest is a creation that a crash cut short, and is
//! finished with the same identity. The other way around it would be a store whose flash tier is missing.

use crate::{
    Error, Options, Result, Tier,
    admin::backup,
    io::{Disk, OpenMode},
    mutation::{Mutation, unless},
};
use std::{
    fs::{File, TryLockError},
    hash::{BuildHasher, Hasher},
    path::Path,
    time::{Duration, Instant},
};

const FILE: &str = "TERRACE";
const MAGIC: [u8; 8] = *b"TERRACE1";
/// What a new store gets, and an older one when it is opened for writing.
const FORMAT_VERSION: u32 = 2;
/// Room for so many segments is needed to begin with: one that is written, one that is next, two that are kept for recycling, and as much
/// as one for the index.
const SEGMENTS_AT_FIRST: u64 = 5;
/// Shorter segments are not advised: a large value must fit into a quarter of one.
const SEGMENT_BYTES_ADVISED: u64 = 512 << 10;
/// Length of a manifest.
pub const MANIFEST_BYTES: usize = 64;

/// A tier's manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Manifest {
    /// Identity of the store, the same on both tiers.
    pub store_id: u64,
    /// Which tier this directory holds: 1 flash, 2 large.
    tier: u8,
    /// Length of the store's segments.
    pub segment_bytes: u64,
    /// Version of the format of what is on this tier, at most.
    format_version: u32,
}

/// Why bytes are no manifest this version can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotAManifest {
    /// Other bytes, or damaged ones.
    Unreadable,
    /// A later format.
    Newer(u32),
}

/// What a directory has for a manifest.
enum Found {
    Absent,
    Damaged,
    Sound(Manifest),
}

impl Manifest {
    /// Where it is in a tier's directory.
    pub const PATH: &str = FILE;

    /// The manifest of a tier of the same store.
    #[must_use]
    pub const fn of(mut self, tier: Tier) -> Self {
        self.tier = Self::number(tier);
        self
    }

    /// A manifest's bytes.
    pub(crate) fn encode(&self) -> [u8; MANIFEST_BYTES] {
        let mut bytes = [0; MANIFEST_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[12..16].copy_from_slice(&self.format_version.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.store_id.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.segment_bytes.to_le_bytes());
        bytes[32] = self.tier;
        let checksum = crc32c::crc32c(&bytes[12..]);
        bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads a manifest.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &[u8]) -> std::result::Result<Self, NotAManifest> {
        let word = |at: usize| {
            bytes
                .get(at..at + 4)
                .and_then(|part| part.try_into().ok())
                .map(u32::from_le_bytes)
        };
        let long = |at: usize| {
            bytes
                .get(at..at + 8)
                .and_then(|part| part.try_into().ok())
                .map(u64::from_le_bytes)
        };
        let (Some(checksum), Some(version)) = (word(8), word(12)) else {
            return Err(NotAManifest::Unreadable);
        };
        if bytes.len() != MANIFEST_BYTES || bytes[..8] != MAGIC || checksum != crc32c::crc32c(&bytes[12..]) {
            return Err(NotAManifest::Unreadable);
        }
        if version > FORMAT_VERSION {
            return Err(NotAManifest::Newer(version));
        }
        if version == 0 || !matches!(bytes[32], 1 | 2) || bytes[33..].iter().any(|&byte| byte != 0) {
            return Err(NotAManifest::Unreadable);
        }
        match (long(16), long(24)) {
            (Some(store_id), Some(segment_bytes)) => Ok(Self {
                store_id,
                tier: bytes[32],
                segment_bytes,
                format_version: version,
            }),
            _ => Err(NotAManifest::Unreadable),
        }
    }

    const fn number(tier: Tier) -> u8 {
        match tier {
            Tier::Flash => 1,
            Tier::Large => 2,
        }
    }

    fn read(disk: &dyn Disk, tier: Tier, dir: &Path) -> Result<Option<Self>> {
        match Self::find(disk, tier, dir)? {
            Found::Absent => Ok(None),
            Found::Sound(manifest) => Ok(Some(manifest)),
            Found::Damaged => Err(Error::NotAStore {
                path: dir.to_owned(),
                reason: format!("its file {FILE} is damaged; restore it from a backup, or run `terrace repair`"),
            }),
        }
    }

    fn find(disk: &dyn Disk, tier: Tier, dir: &Path) -> Result<Found> {
        let not_a_store = |reason: String| Error::NotAStore {
            path: dir.to_owned(),
            reason,
        };
        let context = || format!("read {}", dir.join(FILE).display());
        let file = match disk.open(Path::new(FILE), OpenMode::READ) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Found::Absent),
            Err(error) => return Err(Error::io(context(), &error)),
        };
        let mut bytes = [0; MANIFEST_BYTES];
        let length = file
            .read_up_to_at(&mut bytes, 0)
            .map_err(|error| Error::io(context(), &error))?;
        let manifest = match Self::decode(&bytes[..length]) {
            Ok(manifest) => manifest,
            Err(NotAManifest::Unreadable) => return Ok(Found::Damaged),
            Err(NotAManifest::Newer(version)) => {
                return Err(not_a_store(format!(
                    "the store has format {version} and this program reads up to {FORMAT_VERSION}; use the program that wrote it or a newer one"
                )));
            }
        };
        if manifest.tier != Self::number(tier) {
            return Err(not_a_store(format!(
                "this directory holds the other tier; swap the directories given for flash and large ({tier} was expected here)"
            )));
        }
        Ok(Found::Sound(manifest))
    }

    /// The store's manifest, for repair: a tier without a sound one gets it from the other tier, or from `otherwise`
    /// (store id and segment length). Returns the tiers whose manifests were written, too.
    ///
    /// # Errors
    /// [`Error::NotAStore`] if nothing says which store this is, or the tiers are of two.
    pub fn mend(
        options: &Options,
        flash: &dyn Disk,
        large: &dyn Disk,
        otherwise: impl FnOnce() -> Result<Option<(u64, u64)>>,
    ) -> Result<(Self, Vec<Tier>)> {
        backup::refuse_marked(options, flash)?;
        let tiers = [
            (Tier::Flash, flash, &options.flash_dir),
            (Tier::Large, large, &options.large_dir),
        ];
        let mut sound: Option<Self> = None;
        let mut missing = Vec::new();
        for (tier, disk, dir) in tiers {
            match Self::find(disk, tier, dir)? {
                Found::Sound(manifest) if sound.is_some_and(|other| other.store_id != manifest.store_id) => {
                    return Err(Error::NotAStore {
                        path: dir.clone(),
                        reason:
                            "it belongs to another store than the flash tier; give the two directories of one store"
                                .to_owned(),
                    });
                }
                Found::Sound(manifest) => {
                    sound.get_or_insert(manifest);
                }
                Found::Absent | Found::Damaged => missing.push((tier, disk)),
            }
        }
        let manifest = match sound {
            Some(manifest) => manifest,
            None => {
                let (store_id, segment_bytes) = otherwise()?.ok_or_else(|| Error::NotAStore {
                    path: options.flash_dir.clone(),
                    reason: "no manifest, segment or block of a store is here; check the paths".to_owned(),
                })?;
                Self {
                    store_id,
                    tier: Self::number(Tier::Flash),
                    segment_bytes,
                    format_version: FORMAT_VERSION,
                }
            }
        };
        for &(tier, disk) in &missing {
            let tier_number = Self::number(tier);
            Self {
                tier: tier_number,
                ..manifest
            }
            .write(disk, tier)?;
        }
        Ok((manifest, missing.into_iter().map(|(tier, _)| tier).collect()))
    }

    fn write(&self, disk: &dyn Disk, tier: Tier) -> Result<()> {
        let temporary = Path::new("TERRACE.new");
        let write = || {
            let _ = disk.remove(temporary);
            let file = disk.open(temporary, OpenMode::CREATE)?;
            file.write_all_at(&self.encode(), 0)?;
            unless(Mutation::ManifestSync, || file.sync_data())?;
            disk.rename(temporary, Path::new(FILE))?;
            unless(Mutation::ManifestDirectory, || disk.sync_dir(Path::new("")))
        };
        write().map_err(|error| Error::io_on(tier, format!("write the manifest of the {tier} tier"), &error))
    }

    /// Reads the manifests of both tiers, or creates the store.
    ///
    /// # Errors
    /// [`Error::NotAStore`] if the directories hold something else, not the same store, or nothing and `create` is off.
    pub fn open(options: &Options, flash: &dyn Disk, large: &dyn Disk) -> Result<Self> {
        backup::refuse_marked(options, flash)?;
        let on_flash = Self::read(flash, Tier::Flash, &options.flash_dir)?;
        let on_large = Self::read(large, Tier::Large, &options.large_dir)?;
        let refuse = |path: &Path, reason: &str| {
            Err(Error::NotAStore {
                path: path.to_owned(),
                reason: reason.to_owned(),
            })
        };
        match (on_flash, on_large) {
            (Some(on_flash), Some(on_large)) if on_flash.store_id == on_large.store_id => {
                if !options.read_only {
                    on_large.raise(large, Tier::Large)?;
                    on_flash.raise(flash, Tier::Flash)?;
                    if is_empty(flash, "segments") {
                        check_room(options, flash, on_flash.segment_bytes)?;
                    }
                }
                Ok(on_flash)
            }
            (Some(_), Some(_)) => refuse(
                &options.large_dir,
                "it belongs to another store than the flash tier; give the two directories of one store",
            ),
            (Some(on_flash), None) if is_empty(flash, "segments") && options.create && !options.read_only => {
                check_room(options, flash, on_flash.segment_bytes)?;
                on_flash.write_large(large)?;
                on_flash.raise(flash, Tier::Flash)?;
                Ok(on_flash)
            }
            (Some(_), None) => refuse(
                &options.large_dir,
                "the store's large tier is not here; give the directory it was created with",
            ),
            (None, Some(_)) => refuse(
                &options.flash_dir,
                "the store's flash tier is not here; give the directory it was created with, or run `terrace repair`",
            ),
            (None, None) if !options.create || options.read_only => refuse(
                &options.flash_dir,
                "there is no store here; check the path, or create one by putting or importing something",
            ),
            (None, None) => {
                for (disk, dir, directory) in [
                    (flash, &options.flash_dir, "segments"),
                    (large, &options.large_dir, "blocks"),
                ] {
                    // A new store's identity would make them all foreign, and so free to be written over.
                    if disk.list(Path::new(directory)).is_ok_and(|names| !names.is_empty()) {
                        let reason = format!(
                            "its {directory} are here, but its manifest is not on either tier; run `terrace repair`"
                        );
                        return refuse(dir, &reason);
                    }
                    if disk
                        .list(Path::new(""))
                        .is_ok_and(|names| names.iter().any(|name| !is_ours(name)))
                    {
                        return refuse(
                            dir,
                            "the directory is not empty and holds no store; choose an empty or new one",
                        );
                    }
                }
                check_room(options, flash, options.segment_bytes)?;
                Self::create(options, flash, large, new_store_id())
            }
        }
    }

    fn create(options: &Options, flash: &dyn Disk, large: &dyn Disk, store_id: u64) -> Result<Self> {
        let manifest = Self {
            store_id,
            tier: Self::number(Tier::Flash),
            segment_bytes: options.segment_bytes,
            format_version: FORMAT_VERSION,
        };
        manifest.write(flash, Tier::Flash)?;
        manifest.write_large(large)?;
        Ok(manifest)
    }

    /// Writes the manifest anew if its format is older than what this program writes. To be done before anything else is
    /// written: a program that does not know the format must not take what it cannot read for damage.
    fn raise(&self, disk: &dyn Disk, tier: Tier) -> Result<()> {
        if self.format_version >= FORMAT_VERSION {
            return Ok(());
        }
        tracing::info!(
            from = self.format_version,
            to = FORMAT_VERSION,
            "raising the format of the {tier} tier"
        );
        let format_version = FORMAT_VERSION;
        Self {
            format_version,
            ..*self
        }
        .write(disk, tier)
    }

    /// Writes the large tier's manifest of the same store.
    fn write_large(&self, large: &dyn Disk) -> Result<()> {
        let tier = Self::number(Tier::Large);
        let format_version = FORMAT_VERSION;
        Self {
            tier,
            format_version,
            ..*self
        }
        .write(large, Tier::Large)
    }
}

fn is_ours(name: &str) -> bool {
    name == LOCK_FILE || name.starts_with(FILE)
}

fn is_empty(disk: &dyn Disk, directory: &str) -> bool {
    disk.list(Path::new(directory)).is_ok_and(|names| names.is_empty())
}

/// Refuses a flash tier without segments whose device has no room for those without which nothing can be committed: better now than at the
/// first write.
fn check_room(options: &Options, flash: &dyn Disk, segment_bytes: u64) -> Result<()> {
    let dir = options.flash_dir.display();
    let available = flash
        .available_bytes()
        .map_err(|error| Error::io(format!("ask for the free space of {dir}"), &error))?;
    let needed = SEGMENTS_AT_FIRST * segment_bytes;
    if available >= needed {
        return Ok(());
    }
    // In a few segments too much would have to stay free.
    let shorter = (available / (4 * SEGMENTS_AT_FIRST))
        .checked_ilog2()
        .map_or(0, |bits| 1 << bits);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let advice = if shorter >= SEGMENT_BYTES_ADVISED {
        format!(
            "; one with segments of {} MiB fits (segment-size, segment_bytes)",
            mib(shorter)
        )
    } else {
        String::new()
    };
    Err(Error::OutOfSpace {
        tier: Tier::Flash,
        reason: format!(
            "a store with segments of {} MiB needs {:.0} MiB to begin with, and the device of {dir} has {:.1}{advice}",
            mib(segment_bytes),
            mib(needed),
            mib(available)
        ),
    })
}

fn new_store_id() -> u64 {
    // The standard library seeds its hash maps from the operating system's randomness.
    std::collections::hash_map::RandomState::new().build_hasher().finish() | 1
}

const LOCK_FILE: &str = "LOCK";
/// How long a lock that is held is tried again. A process that starts another one shares its open files, and their locks, with it until
/// the other program runs: a store that was just closed here may be held for a moment more.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);
const LOCK_STEP: Duration = Duration::from_millis(5);

/// Holds the store for this process until dropped. Readers share it.
///
/// # Errors
/// [`Error::Locked`] if another process has it.
pub fn lock(options: &Options) -> Result<Option<File>> {
    let path = options.flash_dir.join(LOCK_FILE);
    let context = || format!("lock {}", path.display());
    if !options.create && !options.flash_dir.is_dir() {
        return Err(Error::NotAStore {
            path: options.flash_dir.clone(),
            reason: "there is no store here; check the path".to_owned(),
        });
    }
    if !options.read_only {
        std::fs::create_dir_all(&options.flash_dir).map_err(|error| Error::io_on(Tier::Flash, context(), &error))?;
    }
    let file = match File::options()
        .create(!options.read_only)
        .truncate(false)
        .write(true)
        .read(true)
        .open(&path)
    {
        Ok(file) => file,
        Err(error) if options.read_only && error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io_on(Tier::Flash, context(), &error)),
    };
    let patience = Instant::now() + LOCK_PATIENCE;
    loop {
        let outcome = if options.read_only {
            file.try_lock_shared()
        } else {
            file.try_lock()
        };
        match outcome {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) if Instant::now() < patience => std::thread::sleep(LOCK_STEP),
            Err(TryLockError::WouldBlock) => return Err(Error::Locked(options.flash_dir.clone())),
            Err(TryLockError::Error(error)) => return Err(Error::io(context(), &error)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const MANIFEST: Manifest = Manifest {
        store_id: 0x1122_3344_5566_7788,
        tier: 1,
        segment_bytes: 0x4_0000,
        format_version: 2,
    };

    #[test]
    fn golden_bytes_of_both_formats() {
        let tail = "887766554433221100000400000000000100000000000000000000000000000000000000000000000000000000000000";
        for (format_version, head) in [
            (1, "5445525241434531536a86d401000000"),
            (2, "54455252414345315c01d93d02000000"),
        ] {
            let manifest = Manifest {
                format_version,
                ..MANIFEST
            };
            let bytes = manifest.encode();
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, [head, tail].concat());
            assert_eq!(Manifest::decode(&bytes), Ok(manifest));
        }
    }

    #[test]
    fn an_older_store_is_raised_when_it_is_written_and_only_then() {
        let (flash, large) = (crate::io::SimDisk::new(1), crate::io::SimDisk::new(2));
        let old = |tier| Manifest {
            format_version: 1,
            tier,
            ..MANIFEST
        };
        let read = |disk: &dyn Disk, tier| {
            Manifest::read(disk, tier, Path::new(""))
                .unwrap()
                .unwrap()
                .format_version
        };
        let options = Options::new("nowhere");
        let looking = Options {
            read_only: true,
            ..options.clone()
        };
        old(1).write(&flash, Tier::Flash).unwrap();
        old(2).write(&large, Tier::Large).unwrap();
        assert_eq!(
            Manifest::open(&looking, &flash, &large).unwrap().store_id,
            MANIFEST.store_id
        );
        assert_eq!((read(&flash, Tier::Flash), read(&large, Tier::Large)), (1, 1));
        for operations in 0..12 {
            old(1).write(&flash, Tier::Flash).unwrap();
            old(2).write(&large, Tier::Large).unwrap();
            for disk in [&flash, &large] {
                disk.cut_after(operations);
            }
            let _ = Manifest::open(&options, &flash, &large);
            for disk in [&flash, &large] {
                disk.power_cut();
                disk.restore_power();
            }
            assert!(
                read(&flash, Tier::Flash) <= read(&large, Tier::Large),
                "{operations} operations"
            );
            Manifest::open(&options, &flash, &large).unwrap();
            assert_eq!((read(&flash, Tier::Flash), read(&large, Tier::Large)), (2, 2));
        }
    }

    #[test]
    fn a_flipped_bit_or_another_length_is_refused() {
        let bytes = MANIFEST.encode();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Manifest::decode(&flipped), Err(NotAManifest::Unreadable), "bit {bit}");
        }
        for length in 0..bytes.len() {
            assert_eq!(Manifest::decode(&bytes[..length]), Err(NotAManifest::Unreadable));
        }
    }

    #[test]
    fn a_newer_format_is_told_from_damage() {
        let mut bytes = MANIFEST.encode();
        for (version, expected) in [(0, NotAManifest::Unreadable), (3, NotAManifest::Newer(3))] {
            bytes[12] = version;
            let checksum = crc32c::crc32c(&bytes[12..]);
            bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
            assert_eq!(Manifest::decode(&bytes), Err(expected));
        }
    }

    /// A store was closed and could not be opened again: meanwhile the process had started another program, which held its lock.
    #[test]
    fn a_lock_that_goes_soon_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::new(dir.path());
        let held = lock(&options).unwrap();
        assert!(matches!(lock(&options), Err(Error::Locked(_))));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(LOCK_PATIENCE / 10);
                drop(held);
            });
            assert!(lock(&options).is_ok());
        });
    }
}
