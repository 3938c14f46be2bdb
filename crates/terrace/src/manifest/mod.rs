//! The manifest of a directory: that it holds a tier of a store, of which store, in which format.
//!
//! A manifest is written when the store is created, the flash tier's first, and again when a newer
//! program upgrades its format, the large tier's first, so that nothing of the new format is ever
//! stored under an old version. A flash tier without segments, in which nothing was ever committed,
//! beside a large tier without a manifest is an interrupted creation, and is finished with the same
//! identity. The opposite case would be a store whose flash tier is missing.
//!
//! Each tier has its manifest twice, in `TERRACE` and in `TERRACE.copy`, each written by a rename.
//! `TERRACE` counts if it is valid; without it the copy does. An open for writing makes both equal
//! before anything else of the store is written, so an outdated copy left by a crash is never used
//! for data that was written under the newer one.
//!
//! The flash tier's manifest also records by which rules values were placed last, and whether all
//! of them are where they belong. It is rewritten when a store is opened with other rules, before
//! anything is written by those; so in any case a later open with the former rules finds that it
//! has to check all values again. And once more when everything is in its place.

mod lock;
pub mod marks;
pub mod opens;

pub use lock::{Lock, lock};

use crate::{
    Error, Options, Result, Tier,
    codec::{is_zero, put_u32, put_u64, u32_at, u64_at},
    io::{Disk, OpenMode, replace},
};
use lock::LOCK_FILE;
use opens::Opens;
use std::{
    hash::{BuildHasher, Hasher},
    path::Path,
};

const FILE: &str = "TERRACE";
/// A second copy: the store opens if one of the two is valid.
const COPY: &str = "TERRACE.copy";
const MAGIC: [u8; 8] = *b"TERRACE1";
/// Values are being moved to where they belong,
const MIGRATING: u8 = 1;
/// or all of them are there.
const SETTLED: u8 = 2;
/// The format of new stores, and of older ones once they are opened for writing.
const FORMAT_VERSION: u32 = 5;
/// Minimum segments of a new store: the one being written, the next one, two reserved for log GC,
/// and one segment's worth of space for the index.
const SEGMENTS_AT_FIRST: u64 = 5;
/// Shorter segments are not advised: a large value must fit into a quarter of one.
const SEGMENT_BYTES_ADVISED: u64 = 512 << 10;
/// Message for a large tier of another store.
const OF_ANOTHER_STORE: &str = "it belongs to another store than the flash tier; give the two directories of one store";
/// The file that held the placement rules in formats before 4.
const PLACED_BEFORE: &str = "TERRACE.placed";
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
    /// Highest format version of the contents of this tier.
    format_version: u32,
    /// How values were placed, as found at the open. Without it that is not known, which costs a
    /// walk over the index.
    pub placed: Option<Placed>,
}

/// By which rules the values of a store were placed last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// Fingerprint of the rules.
    pub fingerprint: u64,
    /// Everything is where it belongs.
    pub is_settled: bool,
}

/// Why bytes are no manifest this version can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotAManifest {
    /// Other bytes, or damaged ones.
    Unreadable,
    /// A later format.
    Newer(u32),
}

/// Manifest of a directory.
enum Found {
    Absent,
    Damaged,
    Sound(Manifest),
}

impl Manifest {
    /// Where it is in a tier's directory.
    pub const PATH: &str = FILE;
    /// Where it is once more.
    pub const COPY_PATH: &str = COPY;

    /// The manifest of a tier of the same store, of which it is not known how values are placed.
    #[must_use]
    pub const fn of(mut self, tier: Tier) -> Self {
        self.tier = Self::number(tier);
        self.placed = None;
        self
    }

    /// The same in the format that this program writes.
    const fn newest_of(self, tier: Tier) -> Self {
        Self {
            format_version: FORMAT_VERSION,
            ..self.of(tier)
        }
    }

    /// The flash tier's of a new store.
    const fn new(store_id: u64, segment_bytes: u64) -> Self {
        Self {
            store_id,
            tier: Self::number(Tier::Flash),
            segment_bytes,
            format_version: FORMAT_VERSION,
            placed: None,
        }
    }

    /// A manifest's bytes.
    pub(crate) fn encode(&self) -> [u8; MANIFEST_BYTES] {
        let mut bytes = [0; MANIFEST_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        put_u32(&mut bytes, 12, self.format_version);
        put_u64(&mut bytes, 16, self.store_id);
        put_u64(&mut bytes, 24, self.segment_bytes);
        bytes[32] = self.tier;
        if let Some(placed) = self.placed {
            bytes[33] = if placed.is_settled { SETTLED } else { MIGRATING };
            put_u64(&mut bytes, 40, placed.fingerprint);
        }
        let checksum = crc32c::crc32c(&bytes[12..]);
        put_u32(&mut bytes, 8, checksum);
        bytes
    }

    /// Reads a manifest.
    ///
    /// # Errors
    /// A description of the error.
    pub fn decode(bytes: &[u8]) -> std::result::Result<Self, NotAManifest> {
        let unreadable = NotAManifest::Unreadable;
        let (Some(checksum), Some(version)) = (u32_at(bytes, 8), u32_at(bytes, 12)) else {
            return Err(unreadable);
        };
        if bytes.len() != MANIFEST_BYTES || bytes[..8] != MAGIC || checksum != crc32c::crc32c(&bytes[12..]) {
            return Err(unreadable);
        }
        if version > FORMAT_VERSION {
            return Err(NotAManifest::Newer(version));
        }
        let placed = match bytes[33] {
            flag @ (MIGRATING | SETTLED) if version >= 4 && bytes[32] == Self::number(Tier::Flash) => Some(Placed {
                fingerprint: u64_at(bytes, 40).ok_or(unreadable)?,
                is_settled: flag == SETTLED,
            }),
            0 => None,
            _ => return Err(unreadable),
        };
        let is_rest_zero = is_zero(&bytes[34..40]) && is_zero(&bytes[if placed.is_some() { 48 } else { 40 }..]);
        if version == 0 || !matches!(bytes[32], 1 | 2) || !is_rest_zero {
            return Err(unreadable);
        }
        Ok(Self {
            store_id: u64_at(bytes, 16).ok_or(unreadable)?,
            tier: bytes[32],
            segment_bytes: u64_at(bytes, 24).ok_or(unreadable)?,
            format_version: version,
            placed,
        })
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
            Found::Damaged => Err(Error::not_a_store(
                dir,
                format!(
                    "its files {FILE} and {COPY} are both damaged; restore one from a backup, or run `terrace repair`"
                ),
            )),
        }
    }

    /// The manifest of a tier's directory, from either place.
    fn find(disk: &dyn Disk, tier: Tier, dir: &Path) -> Result<Found> {
        let is_of_tier = |found: &Found| matches!(found, Found::Sound(manifest) if manifest.tier == Self::number(tier));
        let found = Self::look(disk, FILE, dir)?;
        if is_of_tier(&found) {
            return Ok(found);
        }
        let copy = Self::look(disk, COPY, dir)?;
        if is_of_tier(&copy) {
            return Ok(copy);
        }
        match found {
            Found::Sound(_) => {
                let swap = "this directory holds the other tier; swap the directories given for flash and large";
                Err(Error::not_a_store(dir, format!("{swap} ({tier} was expected here)")))
            }
            Found::Absent if matches!(copy, Found::Damaged) => Ok(copy),
            found => Ok(found),
        }
    }

    fn look(disk: &dyn Disk, name: &str, dir: &Path) -> Result<Found> {
        let Some(bytes) =
            content(disk, name).map_err(|error| Error::io(format!("read {}", dir.join(name).display()), &error))?
        else {
            return Ok(Found::Absent);
        };
        match Self::decode(&bytes) {
            Ok(manifest) => Ok(Found::Sound(manifest)),
            Err(NotAManifest::Unreadable) => Ok(Found::Damaged),
            Err(NotAManifest::Newer(version)) => {
                let advice = "use the program that wrote it or a newer one";
                let reason =
                    format!("the store has format {version} and this program reads up to {FORMAT_VERSION}; {advice}");
                Err(Error::not_a_store(dir, reason))
            }
        }
    }

    /// The store's manifest, for repair: a tier without a valid one gets it from its copy, from the
    /// other tier, or from `otherwise` (store id and segment length). `check` is called as by
    /// [`Manifest::open`]. Also returns the tiers whose manifests were rewritten.
    ///
    /// # Errors
    /// [`Error::NotAStore`] if the identity of the store cannot be determined, or the tiers are of
    /// two stores; `check`'s.
    pub fn mend(
        options: &Options,
        flash: &dyn Disk,
        large: &dyn Disk,
        otherwise: impl FnOnce() -> Result<Option<(u64, u64)>>,
        check: impl FnOnce(u64) -> Result<()>,
    ) -> Result<(Self, Vec<Tier>)> {
        marks::refuse_marked(options, flash)?;
        let tiers = [
            (Tier::Flash, flash, &options.flash_dir),
            (Tier::Large, large, &options.large_dir),
        ];
        let mut sound: Option<Self> = None;
        let mut own = Vec::new();
        for (tier, disk, dir) in tiers {
            match Self::find(disk, tier, dir)? {
                Found::Sound(manifest) if sound.is_some_and(|other| other.store_id != manifest.store_id) => {
                    return Err(Error::not_a_store(dir, OF_ANOTHER_STORE));
                }
                Found::Sound(manifest) => {
                    sound.get_or_insert(manifest);
                    own.push((tier, disk, Some(manifest)));
                }
                Found::Absent | Found::Damaged => own.push((tier, disk, None)),
            }
        }
        let manifest = match sound {
            Some(manifest) => manifest,
            None => {
                let nothing = "no manifest, segment or block of a store is here; check the paths";
                let (store_id, segment_bytes) =
                    otherwise()?.ok_or_else(|| Error::not_a_store(&options.flash_dir, nothing))?;
                Self::new(store_id, segment_bytes)
            }
        };
        check(manifest.segment_bytes)?;
        let mut written = Vec::new();
        // The large tier's first. What a repair writes is of the newest format.
        for (tier, disk, found) in own.into_iter().rev() {
            let manifest = match found {
                Some(found) => found.raise(disk, tier)?,
                None => manifest.newest_of(tier),
            };
            if manifest.secure(disk, tier)? {
                written.insert(0, tier);
            }
        }
        Ok((manifest, written))
    }

    /// Writes the manifest to those of its two files that do not have it. Returns whether `TERRACE`
    /// was one of them, or the copy was present and damaged. It returns false for the first copy of
    /// an older store, and for a copy that is behind because of a crash.
    fn secure(&self, disk: &dyn Disk, tier: Tier) -> Result<bool> {
        let bytes = self.encode();
        let mut was_damaged = false;
        for name in [FILE, COPY] {
            let found = content(disk, name)
                .map_err(|error| Error::io_on(tier, format!("read {name} of the {tier} tier"), &error))?;
            if found.as_deref() == Some(&bytes) {
                continue;
            }
            let is_behind = |found: &[u8]| Self::decode(found).is_ok_and(|found| found.store_id == self.store_id);
            was_damaged |= match &found {
                Some(found) => name == FILE || !is_behind(found),
                None => name == FILE,
            };
            self.write_as(name, disk, tier)?;
        }
        Ok(was_damaged)
    }

    /// Messages about damage to the two files of a tier's manifest. An older store that was never
    /// written by this program has no copy.
    pub fn check(disk: &dyn Disk, tier: Tier, wants_copy: bool) -> Vec<String> {
        let mut wrong = Vec::new();
        for (name, is_wanted) in [(FILE, true), (COPY, wants_copy)] {
            let reason = match content(disk, name) {
                Ok(Some(bytes)) if Self::decode(&bytes).is_ok_and(|found| found.tier == Self::number(tier)) => continue,
                Ok(None) if !is_wanted => continue,
                Ok(Some(_)) => "is damaged".to_owned(),
                Ok(None) => "is gone".to_owned(),
                Err(error) => format!("cannot be read: {error}"),
            };
            wrong.push(format!(
                "{name} of the {tier} tier {reason}; the next open for writing writes it anew from its other copy"
            ));
        }
        wrong
    }

    fn write(&self, disk: &dyn Disk, tier: Tier) -> Result<()> {
        self.write_as(FILE, disk, tier)
    }

    fn write_as(&self, name: &str, disk: &dyn Disk, tier: Tier) -> Result<()> {
        replace(disk, name, &self.encode())
            .map_err(|error| Error::io_on(tier, format!("write the manifest of the {tier} tier"), &error))
    }

    /// Reads the manifests of both tiers, or creates the store. `check` is called with the length
    /// of the store's segments before anything is written: settings that do not fit the store leave
    /// it as it is. Descriptions of repaired damage are appended to `mended`.
    ///
    /// # Errors
    /// [`Error::NotAStore`] if the directories hold something else, not the same store, or nothing
    /// and `create` is off; `check`'s.
    pub fn open(
        options: &Options,
        flash: &dyn Disk,
        large: &dyn Disk,
        check: impl Fn(u64) -> Result<()>,
        mended: &mut Vec<String>,
    ) -> Result<Self> {
        let manifest = Self::open_or_create(options, flash, large, check)?;
        if !options.read_only {
            // The large tier's first, as when it is raised.
            let on_large = manifest.of(Tier::Large);
            for (manifest, tier, disk) in [(on_large, Tier::Large, large), (manifest, Tier::Flash, flash)] {
                if manifest.secure(disk, tier)? {
                    let note = format!(
                        "the manifest of the {tier} tier was damaged in one of its two places and was written anew"
                    );
                    tracing::warn!("{note}");
                    mended.push(note);
                }
            }
            let store_id = manifest.store_id;
            if let Some(note) = Opens::read(store_id, flash, large)?.raise(store_id, flash, large)? {
                tracing::warn!("{note}");
                mended.push(note);
            }
        }
        Ok(manifest)
    }

    fn open_or_create(
        options: &Options,
        flash: &dyn Disk,
        large: &dyn Disk,
        check: impl Fn(u64) -> Result<()>,
    ) -> Result<Self> {
        marks::refuse_marked(options, flash)?;
        let on_flash = Self::read(flash, Tier::Flash, &options.flash_dir)?;
        let on_large = Self::read(large, Tier::Large, &options.large_dir)?;
        let refuse = |path: &Path, reason: &str| Err(Error::not_a_store(path, reason));
        match (on_flash, on_large) {
            (Some(on_flash), Some(on_large)) if on_flash.store_id == on_large.store_id => {
                Opens::read(on_flash.store_id, flash, large)?.check(options)?;
                check(on_flash.segment_bytes)?;
                if options.read_only {
                    return Ok(on_flash);
                }
                on_large.raise(large, Tier::Large)?;
                let on_flash = on_flash.raise(flash, Tier::Flash)?;
                if is_empty(flash, "segments") {
                    check_room(options, flash, on_flash.segment_bytes)?;
                }
                Ok(on_flash)
            }
            (Some(_), Some(_)) => refuse(&options.large_dir, OF_ANOTHER_STORE),
            (Some(on_flash), None) if is_empty(flash, "segments") && options.create && !options.read_only => {
                check(on_flash.segment_bytes)?;
                check_room(options, flash, on_flash.segment_bytes)?;
                on_flash.write_large(large)?;
                on_flash.raise(flash, Tier::Flash)
            }
            (Some(_), None) => refuse(
                &options.large_dir,
                "the store's large tier is not here; is its file system mounted? Give the directory it was created with",
            ),
            (None, Some(_)) => refuse(
                &options.flash_dir,
                "the store's flash tier is not here; is its file system mounted? Give the directory it was created with; \
                 `terrace repair --without-tier` is only for one that is lost for good, and loses what was on it",
            ),
            (None, None) if !options.create || options.read_only => refuse(
                &options.flash_dir,
                "there is no store here; check the path, or create one by putting or importing something",
            ),
            (None, None) => {
                refuse_used(flash, &options.flash_dir, "segments")?;
                refuse_used(large, &options.large_dir, "blocks")?;
                check(options.segment_bytes)?;
                check_room(options, flash, options.segment_bytes)?;
                Self::create(options, flash, large, new_store_id())
            }
        }
    }

    /// Whether a disk has nothing of a store's tier, as one that is not mounted.
    pub fn is_unused(disk: &dyn Disk) -> bool {
        let is_of_store = |name: &String| is_ours(name) && name != LOCK_FILE;
        let names = disk.list(Path::new(""));
        let directories = ["segments", "blocks", "meta"];
        names.is_ok_and(|names| !names.iter().any(is_of_store)) && directories.iter().all(|name| is_empty(disk, name))
    }

    /// Makes the tiers ones of each other at the end of a repair, whatever copies they were.
    ///
    /// # Errors
    /// Errors of the devices.
    pub fn settle_opens(&self, flash: &dyn Disk, large: &dyn Disk) -> Result<()> {
        Opens::read(self.store_id, flash, large)?.settle(self.store_id, flash, large)
    }

    fn create(options: &Options, flash: &dyn Disk, large: &dyn Disk, store_id: u64) -> Result<Self> {
        let manifest = Self::new(store_id, options.segment_bytes);
        manifest.write(flash, Tier::Flash)?;
        manifest.write_large(large)?;
        Ok(manifest)
    }

    /// Rewrites the manifest if its format is older than this program's. Must be done before
    /// anything else is written: a program that does not support the format must not take newer
    /// data for damage.
    fn raise(self, disk: &dyn Disk, tier: Tier) -> Result<Self> {
        if self.format_version >= FORMAT_VERSION {
            return Ok(self);
        }
        tracing::info!(
            from = self.format_version,
            to = FORMAT_VERSION,
            "raising the format of the {tier} tier"
        );
        let raised = Self {
            format_version: FORMAT_VERSION,
            ..self
        };
        raised.write(disk, tier)?;
        // Left behind it would do no harm.
        let _ = disk.remove(Path::new(PLACED_BEFORE));
        Ok(raised)
    }

    /// Writes the large tier's manifest of the same store.
    fn write_large(&self, large: &dyn Disk) -> Result<()> {
        self.newest_of(Tier::Large).write(large, Tier::Large)
    }

    /// Records the state of placement in the flash tier's manifest; durable when this returns.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn note_placed(&self, flash: &dyn Disk, placed: Placed) -> Result<()> {
        let noted = Self {
            placed: Some(placed),
            ..*self
        };
        [FILE, COPY]
            .iter()
            .try_for_each(|name| noted.write_as(name, flash, Tier::Flash))
    }
}

/// A file of a manifest's length, or what there is of it; `None` if it is not there.
fn content(disk: &dyn Disk, name: &str) -> std::io::Result<Option<Vec<u8>>> {
    let file = match disk.open(Path::new(name), OpenMode::READ) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = [0; MANIFEST_BYTES];
    let length = file.read_up_to_at(&mut bytes, 0)?;
    Ok(Some(bytes[..length].to_vec()))
}

fn is_ours(name: &str) -> bool {
    name == LOCK_FILE || name.starts_with(FILE)
}

fn is_empty(disk: &dyn Disk, directory: &str) -> bool {
    disk.list(Path::new(directory)).is_ok_and(|names| names.is_empty())
}

/// Refuses to create a tier in a directory that has something in it.
fn refuse_used(disk: &dyn Disk, dir: &Path, directory: &str) -> Result<()> {
    // Under a new store's identity they would be foreign, and written over.
    if disk.list(Path::new(directory)).is_ok_and(|names| !names.is_empty()) {
        let reason = format!("its {directory} are here, but its manifest is not on either tier; run `terrace repair`");
        return Err(Error::not_a_store(dir, reason));
    }
    let names = disk.list(Path::new(""));
    if names.is_ok_and(|names| names.iter().any(|name| !is_ours(name))) {
        let reason = "the directory is not empty and holds no store; choose an empty or new one";
        return Err(Error::not_a_store(dir, reason));
    }
    Ok(())
}

/// Refuses a flash tier without segments whose device has no room for the segments needed for a
/// commit: better now than at the first write.
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
    let reason = format!(
        "a store with segments of {} MiB needs {:.0} MiB to begin with, and the device of {dir} has {:.1}{advice}",
        mib(segment_bytes),
        mib(needed),
        mib(available)
    );
    Err(Error::no_room(Tier::Flash, reason))
}

fn new_store_id() -> u64 {
    // The standard library seeds its hash maps from the operating system's randomness.
    std::collections::hash_map::RandomState::new().build_hasher().finish() | 1
}

#[cfg(test)]
mod tests;
