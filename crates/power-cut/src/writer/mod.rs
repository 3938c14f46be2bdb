//! The writer process: opens the store, lists its objects, waits for the parent's word, and writes
//! until it is killed.
//!
//! It checks what only it can know: that values are what was written, that `verify` finds no error,
//! and that conditions, reads and snapshots are right while it runs. The parent checks what may be
//! missing after a cut.

mod caller;
mod events;
mod reader;

pub use events::TOLD;

use super::{
    protocol::{Counts, Held, Said},
    workload::{self, CALLERS, MOODS},
};
use crate::Outcome;
use caller::Caller;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    io::BufRead,
    path::PathBuf,
    sync::{Mutex, mpsc::sync_channel},
    time::Duration,
};
use terrace::{ScanRange, Store};

/// Interval of counter reports.
const COUNTS_INTERVAL: Duration = Duration::from_millis(30);

/// The task of a writer: a line of JSON on its standard input.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Task {
    /// Directory of the flash tier.
    pub flash: PathBuf,
    /// Directory of the large tier.
    pub large: PathBuf,
    /// Number of this life of the store.
    pub life: u64,
    /// The mood.
    pub mood: usize,
    /// The seed.
    pub seed: u64,
    /// Size of a memtable.
    pub memtable_bytes: u64,
    /// Write the log through the page cache.
    pub page_cache: bool,
    /// Occasionally sync the file systems, as another process may.
    pub neighbour: bool,
    /// Disable every fsync (not fdatasync): those of lsm-tree, and of directories.
    pub without_fsync: bool,
}

/// Runs the writer, the hidden subcommand. Returns only if a call failed, which it has then
/// reported.
///
/// # Errors
/// If there is no task or no such mood, or fsync cannot be disabled.
pub fn run() -> Outcome {
    let mut word = String::new();
    std::io::stdin().lock().read_line(&mut word)?;
    let arguments: Task = serde_json::from_str(&word)?;
    let mood = MOODS.get(arguments.mood).ok_or("there is no such mood")?;
    events::install();
    if arguments.without_fsync {
        super::mutations::leave_out_fsync()?;
    }
    let options = workload::options(&arguments.flash, &arguments.large).tuned(|tuning| {
        tuning.direct_io = !arguments.page_cache;
        tuning.memtable_bytes = arguments.memtable_bytes;
    });
    let store = match Store::open(options) {
        Ok(store) => store,
        Err(error) => {
            Said::Failed(format!("open: {error}")).say();
            return Ok(());
        }
    };
    Said::Opened.say();
    // Without a complete list nothing is checked: with the power off it says nothing about the
    // store.
    let Some(held) = show(&store) else {
        return Ok(());
    };
    check_verify(&store);
    check_stats(&store);
    Said::Ready.say();
    if std::io::stdin().lock().read_line(&mut word)? == 0 {
        return Ok(());
    }
    let mut rng = StdRng::seed_from_u64(arguments.seed);
    let (snapshots, taken) = sync_channel(0);
    let under_way: Vec<Mutex<String>> = (0..CALLERS).map(|_| Mutex::default()).collect();
    std::thread::scope(|scope| {
        let own_rng = StdRng::from_rng(&mut rng);
        scope.spawn(move || caller::check_snapshots(&taken, own_rng));
        for number in 0..CALLERS {
            let snapshots = (number == 0).then(|| snapshots.clone());
            let own_rng = StdRng::from_rng(&mut rng);
            let caller = Caller::new(&store, arguments.life, number, mood, &held, own_rng, snapshots);
            let caller = caller.telling(&under_way[number as usize]);
            scope.spawn(move || caller.run());
        }
        let own_rng = StdRng::from_rng(&mut rng);
        scope.spawn(|| reader::run(&store, arguments.life, mood.keys, &under_way, own_rng));
        if arguments.neighbour {
            let directories = [&arguments.flash, &arguments.large];
            scope.spawn(move || sync_file_systems(directories, rng));
        }
        loop {
            std::thread::sleep(COUNTS_INTERVAL);
            say_counts(&store);
        }
    })
}

/// Syncs the file systems as the kernel or another process may at any time. This makes data durable
/// in an order that the engine did not ask for; the engine must neither need nor suffer from it.
fn sync_file_systems(directories: [&PathBuf; 2], mut rng: StdRng) {
    loop {
        std::thread::sleep(Duration::from_millis(rng.random_range(5..60)));
        for directory in directories {
            // With the power off it fails, which does not matter.
            let _ = std::fs::File::open(directory).map(rustix::fs::syncfs);
        }
    }
}

fn say_counts(store: &Store) {
    let stats = store.stats();
    Said::Counts(Counts {
        recycled: stats.log.segments_reclaimed,
        flushes: stats.index.flushes,
        reinserted_bytes: stats.written.flash_reinserted_bytes,
        destaged_bytes: stats.written.large_destaged_bytes,
    })
    .say();
}

/// Reports every object of the store, by a scan, and reads some by key as well. `None` if something
/// could not be read, which it has then reported.
fn show(store: &Store) -> Option<BTreeMap<String, Held>> {
    let (mut all, mut is_whole) = (BTreeMap::new(), true);
    let mut scan = match store.scan(ScanRange::all()) {
        Ok(scan) => scan,
        Err(error) => {
            Said::Failed(format!("scan: {error}")).say();
            return None;
        }
    };
    loop {
        let items = match scan.next_values(64) {
            Ok(items) if items.is_empty() => return is_whole.then_some(all),
            Ok(items) => items,
            Err(error) => {
                Said::Failed(format!("scan: {error}")).say();
                return None;
            }
        };
        for (item, bytes) in items {
            let key = String::from_utf8_lossy(&item.key).into_owned();
            let bytes = match bytes {
                Ok(bytes) => bytes,
                Err(error) => {
                    Said::Failed(format!("value: {key}: {error}")).say();
                    is_whole = false;
                    continue;
                }
            };
            match workload::origin(&key, &bytes, &item.info.attributes) {
                Ok(op) => {
                    let held = Held {
                        version: item.info.version.0,
                        op,
                        length: bytes.len() as u64,
                    };
                    Said::Holds(key.clone(), held).say();
                    check_get(store, &key, held);
                    all.insert(key, held);
                }
                Err(reason) => Said::Broken(format!("value: {reason}")).say(),
            }
        }
    }
}

/// Checks that a get returns what the scan did.
fn check_get(store: &Store, key: &str, held: Held) {
    match store.get(key) {
        Ok(Some(object)) if object.version.0 == held.version && object.value.len() as u64 == held.length => {}
        Ok(Some(object)) => {
            let (version, bytes) = (object.version, object.value.len());
            Said::Broken(format!(
                "get: {key}: version {version} of {bytes} bytes, the scan has {held:?}"
            ))
            .say();
        }
        Ok(None) => Said::Broken(format!("get: {key}: nothing, the scan has {held:?}")).say(),
        Err(error) => Said::Failed(format!("get: {key}: {error}")).say(),
    }
}

fn check_verify(store: &Store) {
    match store.verify() {
        Ok(report) => {
            // The first few are enough.
            for error in report.errors.iter().take(5) {
                Said::Broken(format!("verify: {error}")).say();
            }
        }
        Err(error) => Said::Failed(format!("verify: {error}")).say(),
    }
}

/// Checks that the statistics of a newly opened store are plausible.
fn check_stats(store: &Store) {
    let stats = store.stats();
    if let Some(reason) = &stats.failed {
        Said::Failed(format!("stats: {reason}")).say();
    }
    let claims = [
        (stats.log.segments_quarantined == 0, "a segment is in quarantine"),
        (
            stats.log.allocated_bytes <= stats.log.capacity_bytes,
            "the log is larger than it may be",
        ),
        (
            stats.large.live_bytes <= stats.large.allocated_bytes,
            "more lives in blocks than they are long",
        ),
        (
            stats.index.persisted_seq <= stats.queue.applied_seq,
            "the index persisted what was not applied",
        ),
        (
            stats.queue.applied_seq <= stats.queue.committed_seq,
            "more is applied than committed",
        ),
        (
            stats.index.persisted_seq <= stats.queue.durable_seq,
            "the index is ahead of the log",
        ),
    ];
    for (_, what) in claims.iter().filter(|claim| !claim.0) {
        Said::Broken(format!("stats: {what}")).say();
    }
}
