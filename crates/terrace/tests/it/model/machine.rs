//! The machine under test: two simulated disks, a real directory for the index, and a store that is
//! reopened many times.
//!
//! Simulated cuts do not affect the index's directory. It stays as it is at the cut: the index
//! makes durable what it publishes, and does so only after the log has. (That nothing is published
//! after the cut is part of the test: a flush first asks the log, whose disk is off.)

use super::state::{Held, State};
use rand::{Rng, rngs::StdRng};
use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use terrace::{
    Clock, Options, Pin, Pinning, Result, ScanRange, Store,
    io::{Disk, FileDisk, SimDisk, Survival},
};

pub struct Machine {
    pub flash: SimDisk,
    pub large: SimDisk,
    _dir: tempfile::TempDir,
    options: Mutex<Options>,
    /// The clock for expiries.
    now_ms: Arc<AtomicU64>,
}

/// In the model's form.
pub fn ms(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

impl Machine {
    pub fn new(rng: &mut StdRng) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (flash, large) = (SimDisk::new(rng.random()), SimDisk::new(rng.random()));
        let now_ms = Arc::new(AtomicU64::new(1_700_000_000_000));
        let clock = {
            let now_ms = Arc::clone(&now_ms);
            Clock::new(move || UNIX_EPOCH + Duration::from_millis(now_ms.load(Ordering::SeqCst)))
        };
        // Mostly such that block GC runs all the time; sometimes never, so that blocks die as a
        // whole.
        let space = [(105, 115), (130, 150), (1_000_000, 2_000_000)][rng.random_range(0..3)];
        let options = Options {
            clock,
            segment_bytes: 256 << 10,
            log_capacity_bytes: Some((10 + rng.random_range(0..8)) * (256 << 10)),
            size_threshold_bytes: [4 << 10, 8 << 10, 24 << 10][rng.random_range(0..3)],
            split_threshold_bytes: [64 << 10, 256 << 10][rng.random_range(0..2)],
            // The last keeps all of the log in RAM.
            cache_bytes: [0, 256 << 10, 64 << 20][rng.random_range(0..3)],
            flash_disk: Some(Arc::new(flash.clone())),
            large_disk: Some(Arc::new(large.clone())),
            ..Options::new(dir.path())
        }
        .tuned(|tuning| {
            tuning.space_amplification_percent = space.0;
            tuning.space_amplification_max_percent = space.1;
            tuning.expire_interval = Duration::from_millis([0, 20, 1_000_000][rng.random_range(0..3)]);
            tuning.space_slack_bytes = [0, 256 << 10][rng.random_range(0..2)];
            tuning.memtable_bytes = 64 << 10;
            tuning.overlay_bytes = 1 << 20;
            tuning.checkpoint_log_bytes = [1, 100 << 10, 1 << 30][rng.random_range(0..3)];
            tuning.order_bytes_per_second = [1 << 20, 1 << 30][rng.random_range(0..2)];
            tuning.sweep_price_percent = [0, 100][rng.random_range(0..2)];
            tuning.index_mirror_after = [None, Some(Duration::ZERO)][rng.random_range(0..2)];
        });
        Self {
            flash,
            large,
            _dir: dir,
            options: Mutex::new(options),
            now_ms,
        }
    }

    /// Changes, for the next open, the limits of inline, large and split values.
    pub fn change_limits(&self, rng: &mut StdRng) {
        let mut options = self.options.lock().unwrap();
        options.tuning.inline_bytes_max = [0, 20, 64, 130, 2_000][rng.random_range(0..5)];
        options.size_threshold_bytes = [4 << 10, 8 << 10, 24 << 10][rng.random_range(0..3)];
        options.split_threshold_bytes = [64 << 10, 256 << 10][rng.random_range(0..2)];
    }

    /// Changes, for the next open, the pinned prefixes and the rate of migration.
    pub fn change_placement(&self, rng: &mut StdRng) {
        let mut options = self.options.lock().unwrap();
        options.tuning.migrate_bytes_per_second = [0, 1 << 20, 1 << 30][rng.random_range(0..3)];
        let pins = rng.random_range(0..4);
        let pin = |_| Pin {
            prefix: format!("{}/{:02}", ["k", "a"][rng.random_range(0..2)], rng.random_range(0..7)).into_bytes(),
            to: [Pinning::Flash, Pinning::Disk, Pinning::None][rng.random_range(0..3)],
        };
        options.pins = (0..pins).map(pin).collect();
        options.pins.sort_by(|one, other| one.prefix.cmp(&other.prefix));
        options.pins.dedup_by(|one, other| one.prefix == other.prefix);
    }

    /// Changes, for the next open, the amount of RAM, and sizes and times that trigger background
    /// work.
    pub fn change_sizes(&self, rng: &mut StdRng) {
        let mut options = self.options.lock().unwrap();
        let segments: u64 = 10 + rng.random_range(0..8);
        let log_bytes = segments * (256 << 10);
        let memtable_bytes = [64 << 10, 256 << 10, 1 << 20][rng.random_range(0..3)];
        // Some opens bound all files of the flash tier, the others the log alone.
        let others_bytes = 4 * memtable_bytes + 3 * (256 << 10) + (2 << 20);
        (options.flash_capacity_bytes, options.log_capacity_bytes) = if segments.is_multiple_of(3) {
            (log_bytes + others_bytes, None)
        } else {
            (64 << 30, Some(log_bytes))
        };
        // The second evicts everything at once.
        options.cache_bytes = [0, 64 << 10, 256 << 10, 2 << 20, 64 << 20][rng.random_range(0..5)];
        let tuning = &mut options.tuning;
        tuning.memtable_bytes = memtable_bytes;
        tuning.overlay_bytes = [1 << 20, 8 << 20][rng.random_range(0..2)];
        tuning.index_cache_bytes = [64 << 10, 64 << 20][rng.random_range(0..2)];
        tuning.staging_bytes = [0, 1 << 20, 64 << 20][rng.random_range(0..3)];
        tuning.copies_share_percent = [0, 50][rng.random_range(0..2)];
        tuning.coalesce_interval = Duration::from_millis([0, 1, 30][rng.random_range(0..3)]);
        tuning.checkpoint_log_bytes = [0, 1, 100 << 10, 1 << 30][rng.random_range(0..4)];
        tuning.order_bytes_per_second = [0, 64 << 10, 1 << 30, 1 << 30][rng.random_range(0..4)];
        tuning.sweep_price_percent = [0, 100][rng.random_range(0..2)];
        tuning.index_mirror_after = [None, Some(Duration::ZERO)][rng.random_range(0..2)];
        // On a disk that seeks, values are gathered before they are written.
        let read_time = Duration::from_millis([0, 0, 0, 8][rng.random_range(0..4)]);
        self.large.set_read_time(read_time);
    }

    pub fn now_ms(&self) -> u64 {
        self.now_ms.load(Ordering::SeqCst)
    }

    /// Advances the clock by at most `ms_max` milliseconds.
    pub fn pass_time(&self, rng: &mut StdRng, ms_max: u64) {
        self.now_ms.fetch_add(rng.random_range(0..=ms_max), Ordering::SeqCst);
    }

    /// The same on the real file system: the power cannot be cut, and files can be linked.
    pub fn on_real_disks(rng: &mut StdRng) -> Self {
        let machine = Self::new(rng);
        {
            let mut options = machine.options.lock().unwrap();
            options.flash_disk = None;
            options.large_disk = None;
        }
        machine
    }

    /// Options for a store like this one in another directory of the real file system.
    pub fn elsewhere(&self, dir: &Path) -> Options {
        Options {
            flash_dir: dir.join("flash"),
            large_dir: dir.join("large"),
            flash_disk: None,
            large_disk: None,
            ..self.options.lock().unwrap().clone()
        }
    }

    /// Number of blocks deleted so far.
    pub fn blocks_deleted(&self) -> u64 {
        let options = self.options.lock().unwrap().clone();
        let disk: Arc<dyn Disk> = match &options.large_disk {
            Some(disk) => Arc::clone(disk),
            None => Arc::new(FileDisk::new(&options.large_dir).unwrap()),
        };
        let names = disk.list(Path::new("blocks")).unwrap();
        let blocks: Vec<u64> = (names.iter())
            .filter_map(|name| u64::from_str_radix(name.strip_suffix(".blk")?, 16).ok())
            .collect();
        blocks.iter().max().map_or(0, |last| last - blocks.len() as u64)
    }

    pub fn open(&self) -> Result<Store> {
        let options = self.options.lock().unwrap().clone();
        Store::open(options)
    }

    /// Opens the store read-only.
    pub fn look(&self) -> Store {
        let options = Options {
            read_only: true,
            ..self.options.lock().unwrap().clone()
        };
        Store::open(options).unwrap()
    }

    pub fn is_powered(&self) -> bool {
        self.flash.is_powered() && self.large.is_powered()
    }

    /// Schedules a power cut within the next operations.
    pub fn cut_within(&self, rng: &mut StdRng, operations: u64) {
        let disk = if rng.random_bool(0.7) { &self.flash } else { &self.large };
        disk.cut_after(rng.random_range(0..operations));
    }

    /// Cuts the power of both disks, drops the store, and switches the power on.
    pub fn power_cycle(&self, store: Option<Store>, rng: &mut StdRng) {
        self.flash.power_cut();
        self.large.power_cut();
        drop_promptly(store);
        let survival = Survival::ALL[rng.random_range(0..Survival::ALL.len())];
        for disk in [&self.flash, &self.large] {
            disk.set_survival(survival);
            disk.restore_power();
        }
    }

    /// Opens the store after a crash, sometimes with another crash during recovery.
    pub fn recover(&self, rng: &mut StdRng) -> Store {
        while rng.random_bool(0.3) {
            self.cut_within(rng, 40);
            let opened = self.open();
            if let Err(error) = &opened {
                assert!(!self.is_powered(), "{error}");
            }
            self.power_cycle(opened.ok(), rng);
        }
        self.open().unwrap()
    }
}

/// Dropping must not wait for something that cannot happen any more, such as space, for which the
/// engine waits ten seconds.
pub fn drop_promptly(store: Option<Store>) {
    let start = Instant::now();
    drop(store);
    assert!(
        start.elapsed() < Duration::from_secs(9),
        "closing took {:?}",
        start.elapsed()
    );
}

/// The store's contents from a scan, with each object compared with `get`.
pub fn contents(store: &Store) -> State {
    let mut state = State::new();
    for (item, value) in store.scan(ScanRange::all()).unwrap().next_values(usize::MAX).unwrap() {
        let held = Held {
            version: item.info.version.0,
            value: value.unwrap_or_else(|error| panic!("{}: {error}", super::state::name(&item.key))),
            attributes: item.info.attributes,
            expires_ms: item.info.expires_at.map(ms),
        };
        assert_eq!(held.value.len() as u64, item.info.length);
        assert_eq!(crc32c::crc32c(&held.value), item.info.checksum);
        let got = store.get(&item.key).unwrap();
        assert!(
            got.is_some_and(|got| held.is(&got)),
            "get and scan differ on {}",
            super::state::name(&item.key)
        );
        state.insert(item.key.to_vec(), held);
    }
    state
}

pub fn assert_sound(store: &Store) {
    let report = store.verify().unwrap();
    assert!(report.errors.is_empty(), "{:#?}", report.errors);
}
