//! The engines of the comparisons behind one interface: Terrace and those that one would pick
//! instead.
//!
//! Each adapter is in its own module, behind its own feature (`rival-…`, `rivals` for all), tuned
//! as its engine's documents advise; what was chosen it says itself, for the report. `conformance`
//! holds each against a model before anything is timed. What an engine cannot do its [`Abilities`]
//! say; it is left out of what needs it, never imitated.
//!
//! This is the one room of this crate that may use `unsafe`: the engines are C and C++.

#[cfg(test)]
mod conformance;
#[cfg(feature = "rival-fjall")]
mod fjall;
#[cfg(any(feature = "rival-leveldb", feature = "rival-berkeley-db"))]
mod foreign;
#[cfg(feature = "rival-foyer")]
mod foyer;
#[cfg(feature = "rival-lmdb")]
mod lmdb;
#[cfg(feature = "rival-memcached")]
mod memcached;
#[cfg(feature = "rival-rocksdb")]
mod rocksdb;
mod terrace;

use crate::Outcome;
use ::terrace::Durability;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
#[cfg(any(feature = "rival-foyer", feature = "rival-memcached"))]
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// An open database. A write with [`Durability::Sync`] makes everything written before it durable
/// too, as far as the engine can; without, it is acknowledged at once.
pub trait KeyValue: Send + Sync {
    /// Puts one pair.
    ///
    /// # Errors
    /// The engine's.
    fn put(&self, key: &[u8], value: &[u8], durability: Durability) -> Outcome;

    /// Puts pairs in this order, as one batch where the engine has batches.
    ///
    /// # Errors
    /// The engine's.
    fn put_all(&self, pairs: &[(&[u8], &[u8])], durability: Durability) -> Outcome {
        for (key, value) in pairs {
            self.put(key, value, Durability::Buffered)?;
        }
        match durability {
            Durability::Buffered => Ok(()),
            Durability::Sync => self.sync(),
        }
    }

    /// Reads a value into `value`, whatever was in it. False if there is none; then `value` is
    /// empty.
    ///
    /// # Errors
    /// The engine's.
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Outcome<bool>;

    /// Deletes a key, whether or not it is there.
    ///
    /// # Errors
    /// The engine's.
    fn delete(&self, key: &[u8], durability: Durability) -> Outcome;

    /// Visits at most so many pairs from `from` on, with their values, in the order of the keys.
    ///
    /// # Errors
    /// The engine's, or that it has no order.
    fn scan(&self, from: &[u8], count: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Outcome;

    /// Has everything that was written on the device.
    ///
    /// # Errors
    /// The engine's.
    fn sync(&self) -> Outcome;

    /// Has the engine write what it holds in RAM to where it will stay, as far as it can be asked
    /// to.
    ///
    /// # Errors
    /// The engine's.
    fn flush(&self) -> Outcome {
        self.sync()
    }

    /// RAM by the engine's own account: caches, tables in RAM, indexes.
    fn ram_bytes(&self) -> Option<u64> {
        None
    }

    /// What it says of itself.
    fn figures(&self) -> Figures {
        Figures::default()
    }

    /// The engine's process, if it has its own.
    fn process(&self) -> Option<u32> {
        None
    }

    /// What was chosen, for the report.
    fn settings(&self) -> String;

    /// Closes.
    ///
    /// # Errors
    /// The engine's.
    fn close(self: Box<Self>) -> Outcome;
}

/// What an engine says of itself, as far as it does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// RAM of what could be forgotten and read again.
    pub cache_bytes: Option<u64>,
    /// RAM of an index that is whole in RAM.
    pub hash_index_bytes: Option<u64>,
    /// RAM of filters and block indexes of tables.
    pub filter_bytes: Option<u64>,
    /// Levels of its tree that have tables.
    pub levels: Option<u64>,
    /// Sorted runs in them: a key that is not there is looked for in each.
    pub runs: Option<u64>,
    /// Bytes of the tables.
    pub table_bytes: Option<u64>,
    /// Bytes of tables that merges have written since it was opened.
    pub merged_bytes: Option<u64>,
    /// Reads of devices since it was opened.
    pub device_reads: Option<u64>,
    /// Of a cache: gets since it was opened.
    #[serde(default)]
    pub gets: Option<u64>,
    /// Of a cache: those of them that found a value.
    #[serde(default)]
    pub found: Option<u64>,
}

/// Counts the gets of a cache, and what they found. Each thread counts in one of several places,
/// so that counting costs callers no line of memory that another core writes.
#[cfg(any(feature = "rival-foyer", feature = "rival-memcached"))]
#[derive(Debug, Default)]
struct Lookups {
    places: [LookupsOfThreads; 16],
}

/// A line of memory of its own, and that which the processor fetches with it.
#[cfg(any(feature = "rival-foyer", feature = "rival-memcached"))]
#[derive(Debug, Default)]
#[repr(align(128))]
struct LookupsOfThreads {
    gets: AtomicU64,
    found: AtomicU64,
}

#[cfg(any(feature = "rival-foyer", feature = "rival-memcached"))]
impl Lookups {
    fn count(&self, found: bool) {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static THREAD: usize = THREADS.fetch_add(1, Ordering::Relaxed);
        }
        let place = &self.places[THREAD.with(|thread| thread % self.places.len())];
        place.gets.fetch_add(1, Ordering::Relaxed);
        place.found.fetch_add(u64::from(found), Ordering::Relaxed);
    }

    /// Gets, and those of them that found a value.
    fn figures(&self) -> Figures {
        let sum = |of: fn(&LookupsOfThreads) -> &AtomicU64| {
            Some(self.places.iter().map(|place| of(place).load(Ordering::Relaxed)).sum())
        };
        Figures {
            gets: sum(|place| &place.gets),
            found: sum(|place| &place.found),
            ..Figures::default()
        }
    }
}

/// What an engine can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)]
pub struct Abilities {
    /// Its keys have an order.
    pub scans: bool,
    /// What was synced is there after closing and opening again.
    pub persists: bool,
    /// What was synced is there after the process was killed, and the database can be opened.
    pub survives_kill: bool,
    /// It can use a second, slower drive.
    pub two_drives: bool,
}

/// Who takes part in a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Candidate {
    /// Ours, with the cache the others have.
    Terrace,
    /// Ours without its RAM cache for values, as the FlashStore paper measures.
    TerraceUncached,
    /// Hash table, concurrent data store.
    BerkeleyDb,
    /// The small LSM tree.
    LevelDb,
    /// LSM tree, levelled.
    RocksDb,
    /// LSM tree, values in files of their own.
    RocksDbBlobs,
    /// LSM tree in Rust, values in files of their own.
    Fjall,
    /// B+ tree mapped into memory.
    Lmdb,
    /// A cache in RAM that goes on on flash (extstore).
    Memcached,
    /// A cache in Rust, in RAM and on flash; values go to flash when they leave RAM.
    Foyer,
    /// The same; values go to flash when they are inserted.
    FoyerOnInsertion,
}

impl Candidate {
    /// All there are.
    pub const ALL: [Self; 11] = [
        Self::Terrace,
        Self::TerraceUncached,
        Self::BerkeleyDb,
        Self::LevelDb,
        Self::RocksDb,
        Self::RocksDbBlobs,
        Self::Fjall,
        Self::Lmdb,
        Self::Memcached,
        Self::Foyer,
        Self::FoyerOnInsertion,
    ];

    /// For people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Terrace => "Terrace",
            Self::TerraceUncached => "Terrace, no cache",
            Self::BerkeleyDb => "Berkeley DB",
            Self::LevelDb => "LevelDB",
            Self::RocksDb => "RocksDB",
            Self::RocksDbBlobs => "RocksDB BlobDB",
            Self::Fjall => "fjall",
            Self::Lmdb => "LMDB",
            Self::Memcached => "memcached",
            Self::Foyer => "foyer",
            Self::FoyerOnInsertion => "foyer, written on insertion",
        }
    }

    /// Ours.
    #[must_use]
    pub const fn is_terrace(self) -> bool {
        matches!(self, Self::Terrace | Self::TerraceUncached)
    }

    /// The feature it is compiled with, and whether this program has it.
    const fn feature(self) -> (&'static str, bool) {
        match self {
            Self::Terrace | Self::TerraceUncached => ("", true),
            Self::BerkeleyDb => ("rival-berkeley-db", cfg!(feature = "rival-berkeley-db")),
            Self::LevelDb => ("rival-leveldb", cfg!(feature = "rival-leveldb")),
            Self::RocksDb | Self::RocksDbBlobs => ("rival-rocksdb", cfg!(feature = "rival-rocksdb")),
            Self::Fjall => ("rival-fjall", cfg!(feature = "rival-fjall")),
            Self::Lmdb => ("rival-lmdb", cfg!(feature = "rival-lmdb")),
            Self::Memcached => ("rival-memcached", cfg!(feature = "rival-memcached")),
            Self::Foyer | Self::FoyerOnInsertion => ("rival-foyer", cfg!(feature = "rival-foyer")),
        }
    }

    /// Those in this program.
    #[must_use]
    pub fn compiled_in() -> Vec<Self> {
        Self::ALL
            .into_iter()
            .filter(|candidate| candidate.feature().1)
            .collect()
    }

    /// What it can do.
    #[must_use]
    pub const fn abilities(self) -> Abilities {
        let all = Abilities {
            scans: true,
            persists: true,
            survives_kill: true,
            two_drives: false,
        };
        match self {
            Self::Terrace | Self::TerraceUncached | Self::RocksDb => Abilities {
                two_drives: true,
                ..all
            },
            // Blob files go to the first path, whatever room that has.
            Self::RocksDbBlobs | Self::LevelDb | Self::Fjall | Self::Lmdb => all,
            // No log: pages that were written since the last sync may not fit the others.
            Self::BerkeleyDb => Abilities {
                scans: false,
                survives_kill: false,
                ..all
            },
            Self::Memcached | Self::Foyer | Self::FoyerOnInsertion => Abilities {
                scans: false,
                persists: false,
                survives_kill: false,
                two_drives: false,
            },
        }
    }

    /// Opens a database, or makes one.
    ///
    /// # Errors
    /// The engine's, or that this program has not got it.
    pub fn open(self, opening: &Opening) -> Outcome<Box<dyn KeyValue>> {
        std::fs::create_dir_all(&opening.directory)?;
        match self {
            Self::Terrace | Self::TerraceUncached => {
                Ok(Box::new(terrace::Terrace::open(opening, self == Self::Terrace)?))
            }
            #[cfg(feature = "rival-berkeley-db")]
            Self::BerkeleyDb => Ok(Box::new(foreign::Foreign::berkeley_db(opening)?)),
            #[cfg(feature = "rival-leveldb")]
            Self::LevelDb => Ok(Box::new(foreign::Foreign::leveldb(opening)?)),
            #[cfg(feature = "rival-rocksdb")]
            Self::RocksDb | Self::RocksDbBlobs => {
                Ok(Box::new(rocksdb::RocksDb::open(opening, self == Self::RocksDbBlobs)?))
            }
            #[cfg(feature = "rival-fjall")]
            Self::Fjall => Ok(Box::new(fjall::Fjall::open(opening)?)),
            #[cfg(feature = "rival-lmdb")]
            Self::Lmdb => Ok(Box::new(lmdb::Lmdb::open(opening)?)),
            #[cfg(feature = "rival-memcached")]
            Self::Memcached => Ok(Box::new(memcached::Memcached::open(opening)?)),
            #[cfg(feature = "rival-foyer")]
            Self::Foyer | Self::FoyerOnInsertion => {
                Ok(Box::new(foyer::Foyer::open(opening, self == Self::FoyerOnInsertion)?))
            }
            #[allow(unreachable_patterns)]
            _ => Err(format!(
                "{} is not in this program: build it with --features {}",
                self.name(),
                self.feature().0
            )
            .into()),
        }
    }
}

/// How a database is opened: the same for every candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Opening {
    /// Its directory on the fast drive.
    pub directory: PathBuf,
    /// Its directory on a second, slower drive, for engines that can use one.
    pub large_directory: Option<PathBuf>,
    /// RAM for all its caches and tables in RAM together.
    pub cache_bytes: u64,
    /// Objects that will be in it, where that is known.
    pub expected_objects: u64,
    /// Key and value of one of them, on average.
    pub expected_object_bytes: u64,
    /// Every write will be synced: engines that have a better way for that use it.
    pub every_write_is_synced: bool,
    /// Most that may be on flash, for engines that go on on a second drive.
    pub flash_capacity_bytes: Option<u64>,
    /// Terrace's inline limit instead of its default.
    pub inline_bytes_max: Option<u64>,
}

impl Opening {
    /// In one directory, with 64 MiB of RAM.
    #[must_use]
    pub fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            large_directory: None,
            cache_bytes: 64 << 20,
            expected_objects: 0,
            expected_object_bytes: 0,
            every_write_is_synced: false,
            flash_capacity_bytes: None,
            inline_bytes_max: None,
        }
    }

    /// Its directories.
    pub fn directories(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(self.directory.as_path()).chain(self.large_directory.as_deref())
    }

    /// Bytes its files take on their devices.
    ///
    /// # Errors
    /// If a directory cannot be read.
    pub fn disk_bytes(&self) -> Outcome<u64> {
        self.directories().map(disk_bytes).sum()
    }
}

/// Bytes that the files below a directory take; a hole takes none. A file that goes away meanwhile
/// counts nothing.
///
/// # Errors
/// If a directory cannot be read.
pub fn disk_bytes(directory: &Path) -> Outcome<u64> {
    use std::os::unix::fs::MetadataExt;
    let gone = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
    let entries = match std::fs::read_dir(directory) {
        Err(error) if gone(&error) => return Ok(0),
        entries => entries?,
    };
    let mut bytes = 0;
    for entry in entries {
        let entry = entry?;
        match entry.metadata() {
            Err(error) if gone(&error) => {}
            Err(error) => return Err(error.into()),
            Ok(metadata) if metadata.is_dir() => bytes += disk_bytes(&entry.path())?,
            Ok(metadata) => bytes += metadata.blocks() * 512,
        }
    }
    Ok(bytes)
}
