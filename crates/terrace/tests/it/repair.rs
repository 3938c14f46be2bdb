//! Tests of repair: what is recovered after parts of a closed store were lost or damaged, and what
//! is reported.

use crate::common::bytes;
use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
};
use terrace::{
    Attributes, Batch, Condition, Durability, Error, HomeKind, Options, PutOptions, RepairReport, ScanRange, Store,
    Version, WriterOptions,
    io::{Fault, FaultKind, SimDisk},
};

mod without_tier;

fn options(dir: &Path) -> Options {
    Options {
        segment_bytes: 256 << 10,
        log_capacity_bytes: Some(4 << 20),
        size_threshold_bytes: 16 << 10,
        split_threshold_bytes: 256 << 10,
        cache_bytes: 0,
        ..Options::new(dir)
    }
    .tuned(|tuning| (tuning.space_slack_bytes, tuning.memtable_bytes, tuning.overlay_bytes) = (0, 64 << 10, 1 << 20))
}

/// Expected objects: value, attributes, version.
type Model = BTreeMap<String, (Vec<u8>, Attributes, Version)>;

struct Bench {
    dir: tempfile::TempDir,
    model: Model,
}

impl Bench {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            model: Model::new(),
        }
    }

    fn path(&self, part: &str) -> PathBuf {
        self.dir.path().join(part)
    }

    fn open(&self) -> Store {
        Store::open(options(self.dir.path())).unwrap()
    }

    fn repair(&self) -> RepairReport {
        Store::repair(options(self.dir.path())).unwrap()
    }

    /// Options for a repair although a whole tier is gone.
    fn without_tier(&self) -> Options {
        Options {
            repair_without_tier: true,
            ..options(self.dir.path())
        }
    }

    fn put(&mut self, store: &Store, key: &str, value: Vec<u8>) {
        let attributes = Attributes::new().with("of", key).with("bytes", value.len().to_string());
        let put = PutOptions {
            attributes: attributes.clone(),
            durability: Durability::Buffered,
            ..PutOptions::default()
        };
        let version = store.put_with(key, &value, &put).unwrap();
        self.model.insert(key.to_owned(), (value, attributes, version));
    }

    fn delete(&mut self, store: &Store, key: &str) {
        store.delete_with(key, Condition::None, Durability::Buffered).unwrap();
        self.model.remove(key);
    }

    /// Puts objects in every home, overwritten from every home to every other, deleted, and
    /// batched.
    fn fill(&mut self, store: &Store) {
        let sizes = [10, 700, 5_000, 20_000, 90_000];
        for (n, size) in (0..60_u64).zip(sizes.into_iter().cycle()) {
            self.put(store, &format!("plain/{n:03}"), bytes(n + 1000, size));
        }
        for (n, old) in (0_u64..).zip(sizes) {
            for (m, new) in (0_u64..).zip(sizes) {
                let key = format!("overwritten/{old}/{new}");
                self.put(store, &key, bytes(n, old));
                self.put(store, &key, bytes(n + m + 9, new));
            }
            let key = format!("deleted/{old}");
            self.put(store, &key, bytes(n, old));
            self.delete(store, &key);
            let key = format!("back again/{old}");
            self.put(store, &key, bytes(n, old));
            self.delete(store, &key);
            self.put(store, &key, bytes(n + 5, old));
        }
        let mut batch = Batch::new();
        let values = [bytes(1, 33), bytes(2, 3_000), bytes(3, 40_000)];
        for (n, value) in values.iter().enumerate() {
            batch.put(format!("batch/{n}"), value.clone());
        }
        let version = store.write(batch, Durability::Sync).unwrap();
        for (n, value) in values.into_iter().enumerate() {
            self.model
                .insert(format!("batch/{n}"), (value, Attributes::new(), version));
        }
    }

    fn filled() -> Self {
        let mut bench = Self::new();
        let store = bench.open();
        bench.fill(&store);
        store.close().unwrap();
        bench
    }

    /// Checks that the store contains exactly the model.
    fn check(&self, store: &Store) {
        let keys: Vec<_> = store
            .scan(ScanRange::all())
            .unwrap()
            .map(|item| String::from_utf8(item.unwrap().key.to_vec()).unwrap())
            .collect();
        assert_eq!(keys, self.model.keys().cloned().collect::<Vec<_>>());
        for (key, (value, attributes, version)) in &self.model {
            let object = store.get(key).unwrap().unwrap();
            assert!(object.value == *value, "{key}: another value");
            assert_eq!((&object.attributes, object.version), (attributes, *version), "{key}");
        }
    }

    /// The segment that holds a value.
    fn segment_with(&self, value: &[u8]) -> PathBuf {
        let segments = self.segments();
        segments.into_iter().find(|path| find(path, value).is_some()).unwrap()
    }

    /// Repairs, then checks; `verify` must find no error.
    fn repair_and_check(&self) -> RepairReport {
        let report = self.repair();
        assert_eq!(report.objects, self.model.len() as u64, "{report:?}");
        let store = self.open();
        self.check(&store);
        let verified = store.verify().unwrap();
        assert_eq!((verified.objects, verified.errors), (self.model.len() as u64, vec![]));
        store.close().unwrap();
        report
    }

    fn segments(&self) -> Vec<PathBuf> {
        let mut paths: Vec<_> = fs::read_dir(self.path("flash/segments"))
            .unwrap()
            .map(|item| item.unwrap().path())
            .collect();
        paths.sort();
        paths
    }
}

fn edit(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut content = fs::read(path).unwrap();
    change(&mut content);
    fs::write(path, content).unwrap();
}

/// Offset of a value in a file.
fn find(path: &Path, value: &[u8]) -> Option<usize> {
    let content = fs::read(path).unwrap();
    let start = &value[..value.len().min(64)];
    content.windows(start.len()).position(|window| window == start)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for item in fs::read_dir(from).unwrap() {
        let item = item.unwrap();
        let target = to.join(item.file_name());
        if item.file_type().unwrap().is_dir() {
            copy(&item.path(), &target);
        } else if let Err(error) = fs::copy(item.path(), target) {
            // The store is open and may remove a file that it no longer needs.
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
        }
    }
}

#[test]
fn without_its_index_everything_comes_back() {
    let bench = Bench::filled();
    fs::remove_dir_all(bench.path("flash/index")).unwrap();
    assert_eq!(bench.repair_and_check().notes, Vec::<String>::new());
    // A second repair, of an intact store.
    assert_eq!(bench.repair_and_check().notes, Vec::<String>::new());
}

#[test]
fn a_corrupt_index_says_what_to_do_and_is_replaced() {
    let bench = Bench::filled();
    edit(&bench.path("flash/index/current"), |content| content[10] ^= 1);
    // A read-only open changes nothing and reports what to do.
    let looking = Options {
        read_only: true,
        ..options(bench.dir.path())
    };
    let error = Store::open(looking).unwrap_err();
    assert!(error.to_string().contains("run `terrace repair`"), "{error}");
    bench.repair_and_check();
}

#[test]
fn large_meta_and_manifests_are_written_anew() {
    let bench = Bench::filled();
    fs::remove_dir_all(bench.path("large/meta")).unwrap();
    let report = bench.repair_and_check();
    assert_eq!(report.notes, ["LargeMeta was written anew from the blocks"]);
    for lost in [&["flash"][..], &["large"], &["flash", "large"]] {
        for tier in lost {
            fs::remove_file(bench.path(tier).join("TERRACE")).unwrap();
            fs::remove_file(bench.path(tier).join("TERRACE.copy")).unwrap();
        }
        assert!(Store::open(options(bench.dir.path())).is_err());
        let report = bench.repair_and_check();
        assert_eq!(report.notes.len(), lost.len(), "{report:?}");
        for (tier, note) in lost.iter().zip(&report.notes) {
            assert!(note.contains(&format!("manifest of the {tier} tier")), "{note}");
        }
    }
    edit(&bench.path("large/TERRACE"), |content| content[20] ^= 0x40);
    bench.repair_and_check();
    // With segments only: their length comes from them.
    for tier in ["flash", "large"] {
        fs::remove_file(bench.path(tier).join("TERRACE")).unwrap();
        fs::remove_file(bench.path(tier).join("TERRACE.copy")).unwrap();
    }
    let other_length = Options {
        segment_bytes: 1 << 20,
        log_capacity_bytes: Some(8 << 20),
        ..options(bench.dir.path())
    };
    Store::repair(other_length).unwrap();
    bench.check(&bench.open());
}

#[test]
fn what_was_recycled_and_destaged_comes_back_too() {
    let mut bench = Bench::new();
    let store = bench.open();
    bench.put(&store, "tiny and old", b"lives in the index alone by now".to_vec());
    // 4 MiB of flash, 9 MiB of live values, each written twice.
    for round in 0..2_u64 {
        for n in 0..2_200_u64 {
            bench.put(&store, &format!("many/{n:05}"), bytes(n + round * 7, 4_000));
        }
    }
    for n in 0..30_u64 {
        bench.delete(&store, &format!("many/{n:05}"));
    }
    let stats = store.stats();
    assert!(
        stats.log.segments_reclaimed > 20 && stats.block.objects > 500,
        "{stats:?}"
    );
    store.close().unwrap();
    let report = bench.repair_and_check();
    // Tombstones were recycled; the old index knows what is deleted.
    assert_eq!(report.notes, Vec::<String>::new());
    let homes = |store: &Store| -> Vec<_> {
        let scan = store.scan(ScanRange::all()).unwrap();
        scan.map(|item| item.unwrap().info.home).collect()
    };
    // An open for writing lets recycling continue.
    let looking = || {
        let options = Options {
            read_only: true,
            ..options(bench.dir.path())
        };
        Store::open(options).unwrap()
    };
    let once = homes(&looking());
    assert!(once.contains(&HomeKind::Block) && once.contains(&HomeKind::Flash) && once.contains(&HomeKind::Inline));
    bench.repair();
    assert_eq!(homes(&looking()), once);
    bench.repair_and_check();
    // Without the old index the tiny value is lost, which is reported.
    fs::remove_dir_all(bench.path("flash/index")).unwrap();
    bench.model.remove("tiny and old");
    let report = bench.repair_and_check();
    for said in ["tiny values", "cannot be known"] {
        assert!(report.notes.iter().any(|note| note.contains(said)), "{report:?}");
    }
}

#[test]
fn commits_after_a_repair_are_newer_and_stay() {
    let mut bench = Bench::filled();
    for round in 0..3_u64 {
        fs::remove_dir_all(bench.path("flash/index")).unwrap();
        bench.repair_and_check();
        let newest = bench.model.values().map(|item| item.2).max().unwrap();
        let store = bench.open();
        bench.put(&store, "plain/001", bytes(round + 77, 600));
        bench.put(&store, &format!("new/{round}"), bytes(round, 30_000));
        bench.delete(&store, &format!("plain/{:03}", round + 2));
        assert!(bench.model["plain/001"].2 > newest);
        store.close().unwrap();
        drop(store);
        bench.check(&bench.open());
    }
}

#[test]
fn a_store_that_was_killed_is_repaired() {
    let mut bench = Bench::new();
    let store = bench.open();
    bench.fill(&store);
    let mut unfinished = store.writer("unfinished", WriterOptions::default()).unwrap();
    unfinished.write_all(&bytes(1, 2_000_000)).unwrap();
    let failed = PutOptions {
        condition: Condition::Present,
        ..PutOptions::default()
    };
    assert!(store.put_with("never there", bytes(2, 50_000), &failed).is_err());
    store.flush().unwrap();
    let killed = Bench {
        dir: tempfile::tempdir().unwrap(),
        model: bench.model.clone(),
    };
    copy(bench.dir.path(), killed.dir.path());
    fs::remove_dir_all(killed.path("flash/index")).unwrap();
    fs::remove_dir_all(killed.path("large/meta")).unwrap();
    killed.repair_and_check();
}

#[test]
fn a_damaged_segment_loses_what_was_in_the_damage() {
    let mut bench = Bench::new();
    let store = bench.open();
    for n in 0..200_u64 {
        bench.put(&store, &format!("{n:03}"), bytes(n, 3_000));
        store.flush().unwrap();
    }
    store.close().unwrap();
    let victim = bench.model["020"].0.clone();
    let segment = &bench.segment_with(&victim);
    let at = find(segment, &victim).unwrap();
    edit(segment, |content| content[at + 5] ^= 0x10);
    fs::remove_dir_all(bench.path("flash/index")).unwrap();
    let report = bench.repair();
    assert!(
        report.notes[0].starts_with("segment 0000000")
            && report.notes[0].contains(": bytes ")
            && report.notes[0].contains("hold no sound frame"),
        "{report:?}"
    );
    let store = bench.open();
    assert_eq!(store.get("020").unwrap(), None);
    bench.model.remove("020");
    bench.check(&store);
    let before = bench.model.values().map(|item| item.2).max().unwrap();
    bench.put(&store, "after", bytes(1, 100));
    assert!(bench.model["after"].2 > before);
    store.close().unwrap();
    bench.check(&bench.open());
}

#[test]
fn a_segment_without_its_header_or_its_end_keeps_the_rest() {
    let mut bench = Bench::new();
    let store = bench.open();
    // The cut should be in a frame after its first page, however few values the frame has; hence
    // the long value 100.
    let value = |n: u64| bytes(n, if n == 100 { 12_000 } else { 3_000 });
    for n in 0..200_u64 {
        bench.put(&store, &format!("{n:03}"), value(n));
    }
    store.close().unwrap();
    let headless = bench.segment_with(&bytes(0, 3_000));
    edit(&headless, |content| content[..64].fill(0xEE));
    fs::remove_dir_all(bench.path("flash/index")).unwrap();
    let report = bench.repair_and_check();
    assert!(report.notes[0].contains("its header was damaged"), "{report:?}");
    let cut = bench.segment_with(&value(100));
    assert!(cut != headless);
    let at = find(&cut, &value(100)).unwrap() + 6_000;
    edit(&cut, |content| content.truncate(at));
    let report = bench.repair();
    assert!(
        report.notes[0].contains(&format!("cut short at byte {at}")),
        "{report:?}"
    );
    assert!(
        report
            .notes
            .iter()
            .any(|note| note.contains("is damaged or was never whole")),
        "{report:?}"
    );
    // The old index has entries for the missing part: reading them is an error, not absence.
    assert_eq!(report.objects, 200, "{report:?}");
    let store = bench.open();
    let mut lost = 0;
    for (key, (value, ..)) in &bench.model {
        match store.get(key) {
            Ok(object) => assert_eq!(object.unwrap().value, *value),
            Err(Error::Corruption { .. }) => {
                assert!(
                    report
                        .notes
                        .iter()
                        .any(|note| note.starts_with(&format!("key {key:?}")))
                );
                lost += 1;
            }
            Err(error) => panic!("{key}: {error}"),
        }
    }
    assert!((1..100).contains(&lost), "{lost}");
}

#[test]
fn a_damaged_block_loses_what_was_in_the_damage_and_names_it() {
    let mut bench = Bench::filled();
    let blocks: Vec<_> = fs::read_dir(bench.path("large/blocks"))
        .unwrap()
        .map(|item| item.unwrap().path())
        .collect();
    let place = |key: &str| {
        let value = &bench.model[key].0;
        blocks.iter().find_map(|path| Some((path, find(path, value)?))).unwrap()
    };
    let (path, at) = place("plain/004");
    edit(path, |content| content[at + 70_000] ^= 1);
    let (path, at) = place("plain/009");
    edit(path, |content| content[at / 4096 * 4096 + 17] ^= 1);
    fs::remove_dir_all(bench.path("flash/index")).unwrap();
    let report = bench.repair();
    let about = |key: &str| {
        report
            .notes
            .iter()
            .find(|note| note.starts_with(&format!("key {key:?}")))
            .unwrap()
    };
    assert!(about("plain/004").contains("is damaged"), "{report:?}");
    assert!(about("plain/009").contains("is lost"), "{report:?}");
    let store = bench.open();
    assert!(matches!(store.get("plain/004"), Err(Error::Corruption { .. })));
    let sound = store.get_range("plain/004", 0..60_000).unwrap().unwrap();
    assert_eq!(sound, bench.model["plain/004"].0[..60_000]);
    assert_eq!(store.get("plain/009").unwrap(), None);
    let verified = store.verify().unwrap();
    assert_eq!(verified.errors.len(), 1, "{verified:?}");
    store.delete("plain/004").unwrap();
    bench.model.remove("plain/004");
    bench.model.remove("plain/009");
    bench.check(&store);
}

#[test]
fn leftovers_of_a_repair_that_was_killed_are_removed() {
    let bench = Bench::filled();
    // Killed while building.
    copy(&bench.path("flash/index"), &bench.path("flash/index.new"));
    fs::write(bench.path("flash/index.new/current"), "nonsense").unwrap();
    fs::create_dir(bench.path("flash/index.old-3")).unwrap();
    bench.repair_and_check();
    let left = || {
        let items = fs::read_dir(bench.path("flash")).unwrap();
        let mut names: Vec<_> = items
            .map(|item| item.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != "CHECKPOINT") // written by a close after the hash index was filled
            .collect();
        names.sort();
        names
    };
    let expected = [
        "LOCK",
        "TERRACE",
        "TERRACE.copy",
        "TERRACE.opens",
        "TERRACE.opens.copy",
        "TERRACE.reserve",
        "index",
        "segments",
    ];
    assert_eq!(left(), expected);
    // Killed between the renames.
    copy(&bench.path("flash/index"), &bench.path("flash/index.new"));
    fs::rename(bench.path("flash/index"), bench.path("flash/index.old-0")).unwrap();
    bench.repair_and_check();
    assert_eq!(left(), expected);
}

#[test]
fn a_device_that_fails_leaves_the_old_index_in_place() {
    let dir = tempfile::tempdir().unwrap();
    let (flash, large) = (SimDisk::new(1), SimDisk::new(2));
    let on_sim = || Options {
        flash_disk: Some(Arc::new(flash.clone())),
        large_disk: Some(Arc::new(large.clone())),
        ..options(dir.path())
    };
    let mut bench = Bench::new();
    let store = Store::open(on_sim()).unwrap();
    bench.fill(&store);
    store.close().unwrap();
    drop(store);
    fs::create_dir_all(dir.path().join("large")).unwrap();
    large.truncate("meta/0000000000000001.meta", 3).ok();
    for name in large.files().iter().filter(|name| name.starts_with("meta/")) {
        large.truncate(name, 3).unwrap();
    }
    large.set_fault(Some(Fault::new(FaultKind::Write).on("meta/")));
    assert!(Store::repair(on_sim()).is_err());
    assert!(dir.path().join("flash/index").is_dir());
    large.set_fault(None);
    // A segment that cannot be read is a reported loss; repair continues.
    flash.set_fault(Some(Fault::new(FaultKind::Read).on("00000001.seg")));
    let report = Store::repair(on_sim()).unwrap();
    assert!(
        report.notes.iter().any(|note| note.contains("segment 00000001")),
        "{report:?}"
    );
    flash.set_fault(None);
    let report = Store::repair(on_sim()).unwrap();
    assert_eq!((report.objects, report.notes), (bench.model.len() as u64, vec![]));
    bench.check(&Store::open(on_sim()).unwrap());
}

#[test]
fn what_is_not_a_closed_store_is_refused() {
    let bench = Bench::filled();
    let store = bench.open();
    assert!(matches!(
        Store::repair(options(bench.dir.path())),
        Err(Error::Locked(_))
    ));
    bench.check(&store);
    drop(store);
    let other = Bench::filled();
    let mixed = Options {
        large_dir: other.path("large"),
        ..options(bench.dir.path())
    };
    assert!(matches!(Store::repair(mixed.clone()), Err(Error::NotAStore { .. })));
    for name in ["TERRACE", "TERRACE.copy"] {
        fs::remove_file(bench.path("flash").join(name)).unwrap();
        fs::remove_file(other.path("large").join(name)).unwrap();
    }
    let error = Store::repair(mixed).unwrap_err();
    assert!(error.to_string().contains("belong to the stores"), "{error}");
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(
        Store::repair(options(empty.path())),
        Err(Error::NotAStore { .. })
    ));
    fs::create_dir(empty.path().join("flash")).unwrap();
    fs::create_dir(empty.path().join("large")).unwrap();
    let error = Store::repair(options(empty.path())).unwrap_err();
    assert!(error.to_string().contains("check the paths"), "{error}");
}
