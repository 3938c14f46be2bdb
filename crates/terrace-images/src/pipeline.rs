//! Imports many files concurrently.
//!
//! ```text
//! walk ──paths──> decoding threads ──groups──> committing threads ──> store
//! ```
//!
//! Commits wait for the device, and decoding does not wait for commits: there are as many
//! committing threads as decoding ones, and the store joins concurrent commits in one sync. Both
//! queues are short; the memory gate limits what they hold.
//!
//! Invariants: a content hash is claimed before it is looked up in the store, so of two files with
//! the same content only one is imported. A group that reached a committing thread is committed,
//! also after a stop. After an error of the store nothing more is committed.
//!
//! Failure: a file's failure is in the report; the store's ends the import and is the report's
//! outcome. A panic while a file is processed is that file's failure.

use super::{
    catalogue::{ImageId, catalogue_key},
    gate::{MemoryGate, Permit},
    group::{Group, Original, make_group},
    options::ImportOptions,
    progress::Progress,
    report::{FailedFile, ImportReport, Outcome},
    source::{Refusal, Source},
    walk::{Found, Walk},
};
use fast_image_resize::Resizer;
use parking_lot::Mutex;
use std::{
    collections::{HashMap, hash_map::Entry},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Instant,
};
use terrace::{Batch, Durability, Error, Result, Store};

/// Destination of groups.
pub trait GroupSink: Sync {
    /// Whether an object has this key.
    ///
    /// # Errors
    /// Those of the store.
    fn contains(&self, key: &str) -> Result<bool>;

    /// Commits a group durably, whole or not at all.
    ///
    /// # Errors
    /// Those of the store.
    fn commit(&self, batch: Batch) -> Result<()>;
}

impl GroupSink for Store {
    fn contains(&self, key: &str) -> Result<bool> {
        Ok(self.head(key)?.is_some())
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        self.write(batch, Durability::Sync).map(drop)
    }
}

/// Imports every image under `directory`, or a single file, into `sink`.
///
/// `stop` ends the import after the groups in flight. The report is returned also if the store
/// fails.
///
/// # Errors
/// [`Error::Invalid`] for options that contradict each other, [`Error::Io`] if there is nothing at
/// `directory`.
pub fn import(
    directory: &Path,
    sink: &dyn GroupSink,
    options: &ImportOptions,
    progress: &Progress,
    stop: &AtomicBool,
) -> Result<ImportReport> {
    options.validate()?;
    std::fs::metadata(directory).map_err(|error| Error::io(format!("import from {}", directory.display()), &error))?;
    let started = Instant::now();
    let run = Run {
        sink,
        options,
        progress,
        stop,
        store_failed: AtomicBool::new(false),
        gate: MemoryGate::new(options.memory_budget_bytes()),
        claimed: Mutex::default(),
        report: Mutex::default(),
    };
    run.run(directory);
    let mut report = run.report.into_inner();
    if report.outcome == Outcome::Finished && stop.load(Relaxed) {
        report.outcome = Outcome::Stopped;
    }
    report.failed.sort_by(|one, other| one.path.cmp(&other.path));
    report.duplicates.sort();
    report.elapsed = started.elapsed();
    Ok(report)
}

/// State shared by the threads of an import.
struct Run<'a> {
    sink: &'a dyn GroupSink,
    options: &'a ImportOptions,
    progress: &'a Progress,
    stop: &'a AtomicBool,
    store_failed: AtomicBool,
    gate: MemoryGate,
    /// Content hashes claimed in this import, each with its file.
    claimed: Mutex<HashMap<ImageId, PathBuf>>,
    report: Mutex<ImportReport>,
}

/// A group to be committed, and its memory permit.
struct InFlight<'a> {
    path: PathBuf,
    group: Group,
    _permit: Permit<'a>,
}

/// Result for a file without a group.
enum Ended {
    NotAnImage,
    AlreadyStored,
    DuplicateOf(PathBuf),
    Failed(String),
    StoreFailed(Error),
}

impl From<Refusal> for Ended {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NotAnImage => Self::NotAnImage,
            Refusal::Failed(reason) => Self::Failed(reason),
        }
    }
}

impl Run<'_> {
    fn run(&self, directory: &Path) {
        let threads = self.options.thread_count();
        let (path_sender, path_receiver) = sync_channel(threads * 4);
        let (group_sender, group_receiver) = sync_channel(threads);
        let (path_receiver, group_receiver) = (&Mutex::new(path_receiver), &Mutex::new(group_receiver));
        thread::scope(|scope| {
            scope.spawn(|| self.count(directory));
            for _ in 0..threads {
                let group_sender = group_sender.clone();
                scope.spawn(move || self.decode_files(path_receiver, &group_sender));
                scope.spawn(move || self.commit_groups(group_receiver));
            }
            drop(group_sender);
            for found in Walk::new(directory) {
                if self.halted() {
                    break;
                }
                match found {
                    Found::File(path) => {
                        if path_sender.send(path).is_err() {
                            break;
                        }
                    }
                    Found::Failed(path, reason) => self.end(path, Ended::Failed(reason)),
                }
            }
            drop(path_sender);
        });
    }

    fn halted(&self) -> bool {
        self.stop.load(Relaxed) || self.store_failed.load(Relaxed)
    }

    /// Counts the files, ahead of the walk, which waits for the decoders, so that the remaining
    /// time can be estimated.
    fn count(&self, directory: &Path) {
        for _ in Walk::new(directory) {
            if self.halted() {
                return;
            }
            self.progress.files_found.fetch_add(1, Relaxed);
        }
        self.progress.counted.store(true, Relaxed);
    }

    fn decode_files<'run>(&'run self, paths: &Mutex<Receiver<PathBuf>>, groups: &SyncSender<InFlight<'run>>) {
        let mut resizer = Resizer::new();
        loop {
            // The lock is held while waiting; other threads would wait for a path too.
            let received = paths.lock().recv();
            let Ok(path) = received else { return };
            if self.halted() {
                continue;
            }
            let made = catch_unwind(AssertUnwindSafe(|| self.make(&path, &mut resizer)));
            match made {
                Ok(Ok((group, permit))) => {
                    let in_flight = InFlight {
                        path,
                        group,
                        _permit: permit,
                    };
                    if groups.send(in_flight).is_err() {
                        return;
                    }
                }
                Ok(Err(ended)) => self.end(path, ended),
                Err(panic) => {
                    resizer = Resizer::new();
                    self.end(
                        path,
                        Ended::Failed(format!("its decoder gave up ({})", panic_message(panic.as_ref()))),
                    );
                }
            }
        }
    }

    /// Reads a file and builds its group, unless it is not to be imported.
    fn make(&self, path: &Path, resizer: &mut Resizer) -> std::result::Result<(Group, Permit<'_>), Ended> {
        let bytes_max = self.options.file_bytes_max;
        let source = Source::open(path, bytes_max)?;
        let format = source.format;
        let mut permit = self.gate.enter(source.length);
        let bytes = source.read(bytes_max)?;
        let hash = blake3::hash(&bytes);
        let id = ImageId::of(&hash);
        match self.claimed.lock().entry(id) {
            Entry::Occupied(first) => return Err(Ended::DuplicateOf(first.get().clone())),
            Entry::Vacant(vacant) => vacant.insert(path.to_owned()),
        };
        if self.sink.contains(&catalogue_key(id)).map_err(Ended::StoreFailed)? {
            return Err(Ended::AlreadyStored);
        }
        let original = Original {
            path,
            bytes,
            format,
            hash,
        };
        let group = make_group(&original, self.options, &mut permit, resizer).map_err(Ended::Failed)?;
        permit.settle(group.original_bytes + group.resolution_bytes);
        Ok((group, permit))
    }

    fn commit_groups(&self, groups: &Mutex<Receiver<InFlight<'_>>>) {
        loop {
            let received = groups.lock().recv();
            let Ok(in_flight) = received else { return };
            if self.store_failed.load(Relaxed) {
                continue;
            }
            let InFlight { path, group, _permit } = in_flight;
            // If a panic ended this thread, the decoding ones would wait forever.
            let committed = catch_unwind(AssertUnwindSafe(|| self.sink.commit(group.batch)));
            let committed = committed.unwrap_or_else(|panic| Err(Error::Failed(panic_message(panic.as_ref()))));
            match committed {
                Ok(()) => {
                    let mut report = self.report.lock();
                    report.imported += 1;
                    report.original_bytes += group.original_bytes;
                    report.resolution_bytes += group.resolution_bytes;
                    drop(report);
                    self.progress.imported.fetch_add(1, Relaxed);
                    self.progress.files_done.fetch_add(1, Relaxed);
                }
                // Another import has stored the same image since the look-up.
                Err(Error::ConditionFailed { .. }) => self.end(path, Ended::AlreadyStored),
                // This group is not valid; the store has not failed.
                Err(Error::Invalid(reason)) => self.end(path, Ended::Failed(reason)),
                Err(error) => self.end(path, Ended::StoreFailed(error)),
            }
        }
    }

    /// Records the result for a file.
    fn end(&self, path: PathBuf, ended: Ended) {
        self.progress.files_done.fetch_add(1, Relaxed);
        let mut report = self.report.lock();
        match ended {
            Ended::NotAnImage => report.not_images += 1,
            Ended::AlreadyStored => report.already_stored += 1,
            Ended::DuplicateOf(first) => report.duplicates.push((path, first)),
            Ended::Failed(reason) => {
                self.progress.failed.fetch_add(1, Relaxed);
                report.failed.push(FailedFile { path, reason });
            }
            Ended::StoreFailed(error) => {
                self.store_failed.store(true, Relaxed);
                if report.outcome == Outcome::Finished {
                    report.outcome = Outcome::StoreFailed(error);
                }
            }
        }
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message")
        .to_owned()
}
