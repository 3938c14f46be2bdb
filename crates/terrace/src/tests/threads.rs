//! Threads that cannot be started, and how long the lock is held.

use super::{bytes, small_options};
use crate::{
    Error, Options, Store,
    io::{
        SimDisk,
        threads::watch::{Watch, watching},
    },
};
use parking_lot::Mutex;
use std::{fs::File, path::Path, sync::Arc};

/// What was seen of a store's threads.
struct Seen {
    watch: Watch,
    /// Those that have ended, and whether another process could have had the lock by then.
    ended: Arc<Mutex<Vec<(String, bool)>>>,
}

impl Seen {
    fn new(dir: &Path, refused: Option<&str>) -> Self {
        let ended = Arc::<Mutex<Vec<_>>>::default();
        let (lock, its) = (dir.join("LOCK"), Arc::clone(&ended));
        let at_end = move |name: &str| {
            let is_free = File::options()
                .write(true)
                .open(&lock)
                .is_ok_and(|file| file.try_lock().is_ok());
            its.lock().push((name.to_owned(), is_free));
        };
        let watch = Watch {
            refused: refused.map(ToOwned::to_owned),
            started: Arc::default(),
            at_start: Arc::new(|| ()),
            at_end: Arc::new(at_end),
        };
        Self { watch, ended }
    }

    fn started(&self) -> Vec<String> {
        let mut started = self.watch.started.lock().clone();
        started.sort();
        started
    }

    /// All that were started have ended, and the lock was held until then.
    #[track_caller]
    fn assert_all_ended_under_the_lock(&self) {
        let mut ended = self.ended.lock().clone();
        ended.sort();
        let names: Vec<&String> = ended.iter().map(|(name, _)| name).collect();
        assert_eq!(names, self.started().iter().collect::<Vec<_>>());
        assert!(ended.iter().all(|(_, is_free)| !is_free), "{ended:?}");
    }
}

fn put_and_get(store: &Store, seed: u64) {
    for (key, length) in [("small", 300), ("large", 40_000)] {
        store.put(key, bytes(seed, length)).unwrap();
        assert!(store.get(key).unwrap().unwrap().value == bytes(seed, length));
    }
}

/// A process at its limit of threads got an error from `open`, but those started by then went on
/// for ever, and the lock was free: the next `open` made a second set of them on the same files.
#[test]
fn a_store_whose_threads_cannot_all_be_started_leaves_none_and_can_be_opened_later() {
    let dir = tempfile::tempdir().unwrap();
    let seen = Seen::new(dir.path(), None);
    let store = watching(&seen.watch, || Store::open(small_options(dir.path()))).unwrap();
    put_and_get(&store, 1);
    drop(store);
    let names = seen.started();
    assert!(names.len() >= 14, "{names:?}");
    seen.assert_all_ended_under_the_lock();
    for (seed, name) in (2..).zip(&names) {
        let seen = Seen::new(dir.path(), Some(name));
        let error = watching(&seen.watch, || Store::open(small_options(dir.path()))).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{name}: {error:?}");
        assert!(
            error.to_string().contains(&format!("start the thread {name}")),
            "{error}"
        );
        assert!(seen.started().len() < names.len(), "{name}");
        seen.assert_all_ended_under_the_lock();
        let store = Store::open(small_options(dir.path())).unwrap();
        assert!(store.get("large").unwrap().unwrap().value == bytes(seed - 1, 40_000));
        put_and_get(&store, seed);
        store.close().unwrap();
    }
}

/// Recycling and cleaning were started before the rules that they place values by were noted: after
/// a crash in between an open by the rules before did not look for what was placed by the new ones.
#[test]
fn the_rules_are_noted_before_any_thread_is_started() {
    let (dir, flash) = (tempfile::tempdir().unwrap(), SimDisk::new(1));
    let options = |size_threshold_bytes| Options {
        flash_disk: Some(Arc::new(flash.clone())),
        size_threshold_bytes,
        ..small_options(dir.path())
    };
    drop(Store::open(options(16 << 10)).unwrap());
    let before = flash.read_file("TERRACE").unwrap();
    let mut seen = Seen::new(dir.path(), Some("terrace-apply"));
    let noted = Arc::<Mutex<Vec<Vec<u8>>>>::default();
    let (disk, its) = (flash.clone(), Arc::clone(&noted));
    seen.watch.at_start = Arc::new(move || its.lock().push(disk.read_file("TERRACE").unwrap()));
    watching(&seen.watch, || Store::open(options(8 << 10))).unwrap_err();
    // The writers of large values do nothing by themselves.
    assert_ne!(*noted.lock().last().unwrap(), before);
}
