//! A store on simulated disks for these tests.

use crate::common::copy_directory;
pub use crate::common::{bytes, files};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use terrace::{Durability, Options, PutOptions, Result, Stats, Store, io::SimDisk};

pub const BUFFERED: PutOptions = PutOptions {
    attributes: terrace::Attributes::new(),
    durability: Durability::Buffered,
    condition: terrace::Condition::None,
    expiry: terrace::Expiry::Never,
};

/// Another program takes the space of a device, by a file, but for so many bytes. Returns how many
/// it took.
pub fn take_all_but(path: &Path, left: u64) -> u64 {
    let mut file = File::create(path).unwrap();
    while file.write_all(&[1; 4096]).is_ok() {}
    let taken = file.metadata().unwrap().len().saturating_sub(left);
    file.set_len(taken).unwrap();
    taken
}

pub struct Bench {
    pub flash: SimDisk,
    pub large: SimDisk,
    pub dir: tempfile::TempDir,
}

impl Bench {
    pub fn new(seed: u64) -> Self {
        Self {
            flash: SimDisk::new(seed),
            large: SimDisk::new(seed + 1),
            dir: tempfile::tempdir().unwrap(),
        }
    }

    /// A copy of everything as it is now, index included. If the index changes state during the
    /// copy, it is copied again: index and log must be of one moment.
    pub fn fork(&self) -> Self {
        let state = || fs::read(self.index_dir().join("current")).ok();
        for _ in 0..100 {
            let before = state();
            let copy = Self {
                flash: self.flash.fork(1),
                large: self.large.fork(2),
                dir: tempfile::tempdir().unwrap(),
            };
            let copied = copy_directory(&self.index_dir(), &copy.index_dir());
            if copied.is_ok() && state() == before {
                return copy;
            }
        }
        panic!("the index never comes to rest");
    }

    pub fn index_dir(&self) -> PathBuf {
        self.dir.path().join("flash/index")
    }

    pub fn options(&self) -> Options {
        Options {
            segment_bytes: 256 << 10,
            log_capacity_bytes: Some(2 << 20),
            size_threshold_bytes: 8 << 10,
            split_threshold_bytes: 64 << 10,
            cache_bytes: 0,
            flash_disk: Some(Arc::new(self.flash.clone())),
            large_disk: Some(Arc::new(self.large.clone())),
            ..Options::new(self.dir.path())
        }
        .tuned(|tuning| {
            tuning.space_slack_bytes = 0;
            tuning.memtable_bytes = 1 << 20;
            tuning.overlay_bytes = 1 << 20;
            // Block GC is off, except in tests that set it: others damage blocks that they look up
            // first.
            tuning.space_amplification_percent = 1_000_000;
            tuning.space_amplification_max_percent = 2_000_000;
        })
    }

    pub fn open(&self) -> Result<Store> {
        Store::open(self.options())
    }

    /// Bytes of the block files.
    pub fn block_bytes(&self) -> u64 {
        let length = |block: &String| self.large.read_file(block).map_or(0, |content| content.len() as u64);
        self.blocks().iter().map(length).sum()
    }

    /// The block files.
    pub fn blocks(&self) -> Vec<String> {
        let files = self.large.files().into_iter();
        let mut blocks: Vec<String> = files.filter(|file| file.ends_with(".blk")).collect();
        blocks.sort();
        blocks
    }
}

/// Less than the longest wait in the engine, which is ten seconds, and enough for an operation
/// without a wait on a busy machine.
pub const AT_ONCE: Duration = Duration::from_secs(9);

/// Waits for background work.
pub fn eventually(what: &str, store: &Store, mut holds: impl FnMut(&Stats) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds(&store.stats()) {
        assert!(
            Instant::now() < deadline,
            "{what} does not come about: {:#?}",
            store.stats()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Acknowledged values: all values that each key ever had, the last one being current.
pub type Values = BTreeMap<String, Vec<Vec<u8>>>;

/// Asserts that every acknowledged value is there.
pub fn assert_all(store: &Store, values: &Values) {
    for (key, versions) in values {
        let object = store.get(key).unwrap_or_else(|error| panic!("{key}: {error}"));
        let object = object.unwrap_or_else(|| panic!("{key} is gone"));
        assert!(object.value == versions.last().unwrap(), "{key} has other bytes");
    }
}
