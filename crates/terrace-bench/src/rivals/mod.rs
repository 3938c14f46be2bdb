//! The engines of the comparisons behind one interface: Terrace and its alternatives.
//!
//! Each adapter is a module behind its own feature (`rival-…`, `rivals` for all), tuned as the
//! engine's documentation advises; it reports its tuning. `conformance` checks each against a model
//! before anything is measured. An engine's [`Abilities`] say what it cannot do; experiments that
//! need it skip the engine, and nothing is emulated.
//!
//! This is the only module of this crate that may use `unsafe`: the engines are C and C++.

#[cfg(test)]
mod conformance;
#[cfg(feature = "rival-fjall")]
mod fjall;
#[cfg(any(feature = "rival-leveldb", feature = "rival-berkeley-db", feature = "rival-faster"))]
mod foreign;
#[cfg(feature = "rival-foyer")]
mod foyer;
#[cfg(feature = "rival-lmdb")]
mod lmdb;
#[cfg(feature = "rival-memcached")]
mod memcached;
#[cfg(feature = "rival-rocksdb")]
mod rocksdb;
pub mod terrace;

use crate::Outcome;
use ::terrace::Durability;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
#[cfg(any(feature = "rival-foyer", feature = "rival-memcached"))]
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// An open database. A write with [`Durability::Sync`] also makes all earlier writes durable, as
/// far as the engine can; without, it is acknowledged at once.
pub trait KeyValue: Send + Sync {
    /// Puts one pair.
    fn put(&self, key: &[u8], value: &[u8], durability: Durability) -> Outcome;

    /// Puts pairs in this order, as one batch if the engine has batches.
    fn put_all(&self, pairs: &[(&[u8], &[u8])], durability: Durability) -> Outcome {
        for (key, value) in pairs {
            self.put(key, value, Durability::Buffered)?;
        }
        match durability {
            Durability::Buffered => Ok(()),
            Durability::Sync => self.sync(),
        }
    }

    /// Reads a value into `value`, replacing its contents. False if there is none; then `value` is
    /// empty.
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Outcome<bool>;

    /// Deletes a key, which need not exist.
    fn delete(&self, key: &[u8], durability: Durability) -> Outcome;

    /// Visits at most `count` pairs from `from` on, in key order.
    ///
    /// # Errors
    /// The engine's, or that it has no order.
    fn scan(&self, from: &[u8], count: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Outcome;

    /// Makes all writes durable.
    fn sync(&self) -> Outcome;

    /// Makes the engine write its RAM buffers to their final place, if it has such a call.
    fn flush(&self) -> Outcome {
        self.sync()
    }

    /// RAM as reported by the engine: caches, tables in RAM, indexes.
    fn ram_bytes(&self) -> Option<u64> {
        None
    }

    /// The engine's statistics.
    fn figures(&self) -> Figures {
        Figures::default()
    }

    /// The engine's process, if it has its own.
    fn process(&self) -> Option<u32> {
        None
    }

    /// The tuning, for the report.
    fn settings(&self) -> String;

    /// Closes.
    fn close(self: Box<Self>) -> Outcome;
}

/// Copies what a get found; false if that is nothing.
fn give(found: Option<impl AsRef<[u8]>>, value: &mut Vec<u8>) -> bool {
    value.clear();
    found.is_some_and(|found| {
        value.extend_from_slice(found.as_ref());
        true
    })
}

/// An engine's statistics, as far as it has them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// RAM of evictable data.
    pub cache_bytes: Option<u64>,
    /// RAM of a hash index.
    pub hash_index_bytes: Option<u64>,
    /// RAM of filters and block indexes of tables.
    pub filter_bytes: Option<u64>,
    /// Levels of its tree with tables.
    pub levels: Option<u64>,
    /// Sorted runs in them: an absent key is looked up in each.
    pub runs: Option<u64>,
    /// Bytes of the tables.
    pub table_bytes: Option<u64>,
    /// Bytes of tables written by compactions since it was opened.
    pub merged_bytes: Option<u64>,
    /// Device reads since it was opened.
    pub device_reads: Option<u64>,
    /// Memtables written as tables since it was opened.
    pub flushes: Option<u64>,
    /// Compactions of tables since it was opened.
    pub compactions: Option<u64>,
    /// All bytes written since it was opened, as counted by the engine.
    pub written_bytes: Option<u64>,
    /// A cache's gets since it was opened.
    pub gets: Option<u64>,
    /// A cache's hits since it was opened.
    pub found: Option<u64>,
}

/// Counts a cache's gets and hits. Threads use different counters, so that counting does not share
/// cache lines between cores.
#[cfg(any(feature = "rival-foyer", feature = "rival-memcached"))]
#[derive(Debug, Default)]
struct Lookups {
    places: [LookupsOfThreads; 16],
}

/// Padded to a cache line and its prefetched neighbour.
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

    /// Gets and hits.
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

/// An engine's abilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)]
pub struct Abilities {
    /// Its keys have an order.
    pub scans: bool,
    /// Synced data is there after closing and opening.
    pub persists: bool,
    /// Synced data is there after a kill, and the database can be opened.
    pub survives_kill: bool,
    /// It can use a second, slower drive.
    pub two_drives: bool,
}

/// Candidates of the comparisons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Candidate {
    /// Terrace, with a cache like the others.
    Terrace,
    /// Terrace without its RAM cache for values, as measured in the FlashStore paper.
    TerraceUncached,
    /// Hash table, concurrent data store.
    BerkeleyDb,
    /// The small LSM tree.
    #[serde(alias = "leveldb")]
    LevelDb,
    /// LSM tree, levelled.
    RocksDb,
    /// LSM tree, values in separate files.
    RocksDbBlobs,
    /// LSM tree in Rust, values in separate files.
    Fjall,
    /// B+ tree mapped into memory.
    Lmdb,
    /// A cache in RAM and on flash (extstore).
    Memcached,
    /// A hash table over a log in RAM and on flash; the newest part is overwritten in place.
    Faster,
    /// A cache in Rust, in RAM and on flash; writes to flash on eviction from RAM.
    Foyer,
    /// The same; writes to flash on insertion.
    FoyerOnInsertion,
}

impl Candidate {
    /// Name, as text; feature; and whether this build has it.
    const fn described(self) -> (&'static str, &'static str, bool) {
        match self {
            Self::Terrace => ("Terrace", "", true),
            Self::TerraceUncached => ("Terrace, no cache", "", true),
            Self::BerkeleyDb => ("Berkeley DB", "rival-berkeley-db", cfg!(feature = "rival-berkeley-db")),
            Self::LevelDb => ("LevelDB", "rival-leveldb", cfg!(feature = "rival-leveldb")),
            Self::RocksDb => ("RocksDB", "rival-rocksdb", cfg!(feature = "rival-rocksdb")),
            Self::RocksDbBlobs => ("RocksDB BlobDB", "rival-rocksdb", cfg!(feature = "rival-rocksdb")),
            Self::Fjall => ("fjall", "rival-fjall", cfg!(feature = "rival-fjall")),
            Self::Lmdb => ("LMDB", "rival-lmdb", cfg!(feature = "rival-lmdb")),
            Self::Memcached => ("memcached", "rival-memcached", cfg!(feature = "rival-memcached")),
            Self::Faster => ("FASTER", "rival-faster", cfg!(feature = "rival-faster")),
            Self::Foyer => ("foyer", "rival-foyer", cfg!(feature = "rival-foyer")),
            Self::FoyerOnInsertion => (
                "foyer, written on insertion",
                "rival-foyer",
                cfg!(feature = "rival-foyer"),
            ),
        }
    }

    /// Name, as text.
    pub const fn name(self) -> &'static str {
        self.described().0
    }

    /// Whether it is Terrace.
    pub const fn is_terrace(self) -> bool {
        matches!(self, Self::Terrace | Self::TerraceUncached)
    }

    /// Whether its files are read and written by direct I/O: all its cached data is its own.
    pub const fn bypasses_page_cache(self) -> bool {
        self.is_terrace() || matches!(self, Self::Faster)
    }

    /// The candidates in this build.
    pub fn compiled_in() -> Vec<Self> {
        let all = Self::value_variants().iter().copied();
        all.filter(|candidate| candidate.described().2).collect()
    }

    /// Its abilities.
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
            // Blob files go to the first path, whatever its capacity.
            Self::RocksDbBlobs | Self::LevelDb | Self::Fjall | Self::Lmdb => all,
            // No log: pages written since the last sync may be inconsistent with others.
            Self::BerkeleyDb => Abilities {
                scans: false,
                survives_kill: false,
                ..all
            },
            // FASTER: only as of its last checkpoint, and none is made here.
            Self::Memcached | Self::Faster | Self::Foyer | Self::FoyerOnInsertion => Abilities {
                scans: false,
                persists: false,
                survives_kill: false,
                two_drives: false,
            },
        }
    }

    /// Opens a database, or creates one.
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
            #[cfg(feature = "rival-faster")]
            Self::Faster => Ok(Box::new(foreign::Foreign::faster(opening)?)),
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
                self.described().1
            )
            .into()),
        }
    }
}

/// Options of a database, the same for every candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Opening {
    /// Its directory on the fast drive.
    pub directory: PathBuf,
    /// Its directory on a second, slower drive, for engines that can use one.
    pub large_directory: Option<PathBuf>,
    /// RAM for all its caches and memtables; 0 leaves LevelDB's settings as they are.
    pub cache_bytes: u64,
    /// Expected number of objects, if known.
    pub expected_objects: u64,
    /// Average bytes of key and value.
    pub expected_object_bytes: u64,
    /// Every write will be synced; engines with a special mode for this use it.
    pub every_write_is_synced: bool,
    /// Limit on flash, for engines that use a second drive as well.
    pub flash_capacity_bytes: Option<u64>,
    /// Terrace's inline limit instead of its default.
    pub inline_bytes_max: Option<u64>,
}

impl Opening {
    /// Options for one directory, with 64 MiB of RAM.
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

    /// Size on flash of a cache: twice the data, at least 256 MiB; 2 GiB if the data is unknown.
    #[cfg(any(feature = "rival-foyer", feature = "rival-memcached"))]
    fn flash_bytes_of_cache(&self) -> u64 {
        match self.expected_objects * self.expected_object_bytes {
            0 => 2 << 30,
            bytes => (2 * bytes).max(256 << 20),
        }
    }

    /// Its directories.
    pub fn directories(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(self.directory.as_path()).chain(self.large_directory.as_deref())
    }

    /// Bytes of its files on their devices.
    pub fn disk_bytes(&self) -> Outcome<u64> {
        self.directories().map(disk_bytes).sum()
    }
}

/// Allocated bytes of the files below a directory, without holes. A file that disappears meanwhile
/// counts as zero.
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
