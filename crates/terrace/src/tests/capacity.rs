//! The capacity of the flash tier: what all its files take by `du`, while values of all kinds are
//! written, and while it is changed.

use super::{bytes, eventually, small_options};
use crate::{
    Condition, Durability, Error, Options, PutOptions, Result, Store, Tier,
    engine::capacity::fixed_bytes,
    io::{Disk as _, SimDisk},
};
use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

const MIB: u64 = 1 << 20;
const KEYS: u64 = 3_000;
const LENGTH: usize = 5_000;

fn put(store: &Store, n: u64) {
    put_small(store, &format!("{:05}", n % KEYS), bytes(n % KEYS, LENGTH)).unwrap();
}

/// Options that bound all files of the flash tier.
fn options_of(dir: &Path, flash_capacity_bytes: u64) -> Options {
    Options {
        flash_capacity_bytes,
        log_capacity_bytes: None,
        ..small_options(dir)
    }
    // The applier seals a memtable between two frames: shorter ones get much longer than they say.
    .tuned(|tuning| tuning.memtable_bytes = (flash_capacity_bytes / 256).max(64 << 10))
}

/// What the files below a directory take by `du`.
fn du(dir: &Path) -> u64 {
    let items = fs::read_dir(dir).into_iter().flatten().flatten();
    let bytes = |item: fs::DirEntry| match item.metadata() {
        Ok(it) if it.is_dir() => du(&item.path()),
        // A file that is gone meanwhile takes nothing.
        it => it.map_or(0, |it| it.blocks() * 512),
    };
    items.map(bytes).sum()
}

/// The most that the flash tier took while something was done, with the bytes of each directory.
#[derive(Debug, Default)]
struct Most {
    bytes: u64,
    by_directory: Vec<(String, u64)>,
}

impl Most {
    /// Looks twice: while files come and go, one walk may count what was never there together.
    fn look(&mut self, tier: &Path) {
        let items = fs::read_dir(tier).into_iter().flatten().flatten();
        let directories: Vec<_> = items.map(|item| item.path()).filter(|path| path.is_dir()).collect();
        let walk = || -> Vec<u64> { directories.iter().map(|path| du(path)).collect() };
        let (first, whole, second) = (walk(), du(tier), walk());
        if first == second && whole > self.bytes {
            let names = directories
                .iter()
                .map(|path| path.file_name().unwrap().to_string_lossy().into_owned());
            self.bytes = whole;
            self.by_directory = names.zip(first).collect();
        }
    }
}

fn du_max_during(dir: &Path, work: impl FnOnce()) -> Most {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = Most::default();
            while !is_over.load(Ordering::Acquire) {
                most.look(&dir.join("flash"));
                std::thread::sleep(Duration::from_millis(5));
            }
            most
        });
        // One that fails ends the watch as well.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        is_over.store(true, Ordering::Release);
        let most = watch.join().unwrap();
        outcome.map_or_else(|panic| std::panic::resume_unwind(panic), |()| most)
    })
}

fn put_small(store: &Store, key: &str, value: impl AsRef<[u8]>) -> Result<()> {
    let buffered = PutOptions {
        durability: Durability::Buffered,
        ..PutOptions::default()
    };
    store.put_with(key, value, &buffered).map(drop)
}

fn assert_holds_all(store: &Store) {
    for n in 0..KEYS {
        let object = store.get(format!("{n:05}")).unwrap();
        assert!(object.unwrap().value == bytes(n, LENGTH), "{n}");
    }
    assert_eq!(store.verify().unwrap().errors, [""; 0]);
}

/// Regression: a lower capacity never gave back the segments that were there.
#[test]
fn the_log_follows_the_capacity_down_and_up_while_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let flash = dir.path().join("flash");
    let options = options_of(dir.path(), 10 * MIB);
    let store = Store::open(options.clone()).unwrap();
    (0..KEYS).for_each(|n| put(&store, n));
    assert!(du(&flash) > 6 * MIB, "{}", du(&flash));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // None of these is refused.
            for n in 0.. {
                if is_over.load(Ordering::Acquire) {
                    break;
                }
                put(&store, n);
            }
        });
        let refused = store.set_flash_capacity(2 * MIB).unwrap_err();
        assert!(refused.to_string().contains("other files"), "{refused}");
        store.set_flash_capacity(MIB << 30).unwrap_err();
        store.set_flash_capacity(5 * MIB).unwrap();
        eventually("all files within 5 MiB", || du(&flash) <= 5 * MIB);
        store.set_flash_capacity(18 * MIB).unwrap();
        eventually("a longer log", || du(&flash) > 7 * MIB);
        is_over.store(true, Ordering::Release);
    });
    assert_holds_all(&store);
    store.close().unwrap();
    drop(store);
    let lower = Options {
        flash_capacity_bytes: 5 * MIB,
        ..options
    };
    let store = Store::open(lower).unwrap();
    eventually("all files within what it was opened with", || du(&flash) <= 5 * MIB);
    assert_holds_all(&store);
}

/// One that holds the shortest log but not the reserve beside it would refuse each write.
#[test]
fn a_capacity_without_room_for_the_reserve_is_refused_at_open() {
    let dir = tempfile::tempdir().unwrap();
    let refused = Store::open(options_of(dir.path(), 2 * MIB)).unwrap_err();
    assert!(
        matches!(&refused, Error::Invalid(text) if text.contains("other files")),
        "{refused}"
    );
}

/// Regression: the capacity bounded the log alone. With 24 MiB 42 MiB lay on the flash tier.
#[test]
fn a_growing_index_makes_the_log_shorter() {
    let dir = tempfile::tempdir().unwrap();
    let capacity = 48 * MIB;
    let store = Store::open(options_of(dir.path(), capacity)).unwrap();
    let key = |n: u64| format!("{n:012}{}", "k".repeat(100));
    let count = 100_000;
    let most = du_max_during(dir.path(), || {
        (0..count).for_each(|n| put_small(&store, &key(n * 7_919 % count), bytes(n, 300)).unwrap());
    });
    assert!(most.bytes <= capacity, "{most:?} of {capacity}");
    let stats = store.stats();
    assert!(stats.index.bytes > 3 * MIB, "{}", stats.index.bytes);
    assert!(stats.log.capacity_bytes + stats.index.bytes < capacity);
    assert!(stats.fill.flash.capacity_bytes <= capacity || stats.fill.is_shared);
    for n in (0..count).step_by(97) {
        assert!(
            store.get(key(n * 7_919 % count)).unwrap().unwrap().value == bytes(n, 300),
            "{n}"
        );
    }
}

/// Values that live in the index alone fill the tier up to a refusal that says so; deletes go on
/// and make room, all within the capacity.
#[test]
fn an_index_that_fills_the_tier_is_refused_by_name_and_deletes_make_room() {
    let dir = tempfile::tempdir().unwrap();
    let capacity = 32 * MIB;
    let store = Store::open(options_of(dir.path(), capacity)).unwrap();
    let key = |n: u64| format!("{n:08}{}", "k".repeat(50));
    let fill = |from: u64| {
        let mut n = from;
        let refused = loop {
            match put_small(&store, &key(n), bytes(n, 40)) {
                Ok(()) => n += 1,
                Err(refused) => break refused,
            }
            assert!(n < 1_000_000, "it is never full");
        };
        (n, refused)
    };
    let mut first = 0;
    let most = du_max_during(dir.path(), || {
        let (count, refused) = fill(0);
        assert!(refused.is_out_of_space_on(Tier::Flash), "{refused}");
        assert!(refused.to_string().contains("flash_capacity_bytes"), "{refused}");
        first = count;
    });
    assert!(most.bytes <= capacity, "{most:?} of {capacity}");
    // A level of the index is merged whole for what was deleted, which takes it twice.
    for n in 0..first {
        store
            .delete_with(key(n), Condition::None, Durability::Buffered)
            .unwrap();
    }
    assert!(first > 10_000, "{first}");
    eventually("room for what is new", || {
        put_small(&store, &key(first), bytes(first, 40)).is_ok()
    });
    eventually("an index without what was deleted", || {
        store.stats().index.bytes < 2 * MIB
    });
    let mut second = first;
    let most = du_max_during(dir.path(), || second = fill(first).0);
    assert!(
        second - first >= first * 9 / 10,
        "{first} went in, then {}",
        second - first
    );
    assert!(most.bytes <= capacity, "{most:?} of {capacity}");
    for n in (0..first).step_by(101) {
        assert!(store.get(key(n)).unwrap().is_none(), "{n}");
    }
    for n in (first..second).step_by(101) {
        assert!(store.get(key(n)).unwrap().unwrap().value == bytes(n, 40), "{n}");
    }
}

/// Regression: a put was refused between a flush of the index and the merge that dropped what was
/// in it twice.
#[test]
fn nothing_is_refused_for_what_the_next_merge_of_the_index_drops() {
    let dir = tempfile::tempdir().unwrap();
    let options = options_of(dir.path(), 16 * MIB).tuned(|tuning| tuning.memtable_bytes = 512 << 10);
    let store = Store::open(options).unwrap();
    // Each round adds the same keys to the index, in a table of about the same length.
    let round = |round: u64| {
        for n in 0..1_000 {
            put_small(&store, &format!("{n:0100}"), bytes(round, 40)).unwrap();
        }
        store.flush().unwrap();
    };
    let index_bytes = || store.stats().index.bytes;
    let runs = || store.engine().index.l0_runs();
    round(0);
    let (each, together) = (index_bytes(), store.engine().index.runs_merged_at_once());
    (0..together).for_each(|_| round(1));
    eventually("the first merge", || runs() <= 1);
    while runs() + 1 < together {
        round(1);
    }
    // Before each further merge the index has half a table too much for the least capacity.
    eventually("a checkpoint", || store.checkpoint().unwrap());
    let log = &store.engine().log;
    let checkpoints_bytes = 2 * store.engine().checkpoints.stats().file_bytes;
    let least = log.segments.segment_bytes() * 8 + fixed_bytes(&log.reserve) + checkpoints_bytes;
    store
        .set_flash_capacity(least + 3 * (index_bytes() + each / 2))
        .unwrap();
    let (mut merges, mut before) = (0, runs());
    for number in 2..40 {
        round(number);
        let now = runs();
        merges += u32::from(now < before);
        before = now;
    }
    assert!(merges > 2, "{merges}");
}

/// Merges for space alone begin at eight runs, and refused data adds none: fewer stay, although one
/// merge of them would give the room. Deletes that pay for it lead to that merge, and so does data
/// that a larger capacity accepts.
#[test]
fn an_index_of_few_runs_is_merged_for_deletes_and_not_for_room() {
    let dir = tempfile::tempdir().unwrap();
    let options = options_of(dir.path(), 128 * MIB).tuned(|tuning| tuning.memtable_bytes = 8 << 20);
    let store = Store::open(options).unwrap();
    let key = |n: u64| format!("{n:0100}");
    let count = 10_000;
    for round in 0..3 {
        (0..count).for_each(|n| put_small(&store, &key(n), bytes(round, 40)).unwrap());
        store.flush().unwrap();
    }
    eventually("a checkpoint", || store.checkpoint().unwrap());
    let runs = || store.engine().index.l0_runs();
    let together = store.engine().index.runs_merged_at_once();
    assert!(runs() >= 2 && runs() + 1 < together, "{} of {together}", runs());
    let (log, index_bytes) = (&store.engine().log, store.stats().index.bytes);
    let checkpoints_bytes = 2 * store.engine().checkpoints.stats().file_bytes;
    let others_bytes = log.segments.segment_bytes() * 8 + fixed_bytes(&log.reserve) + checkpoints_bytes;
    let capacity = others_bytes + 3 * index_bytes - index_bytes / 2;
    let put_new = |key: &str| put_small(&store, key, [1; 40]);
    let assert_refused = || {
        assert!(!log.segments.awaits_merge());
        let refused = put_new("new").unwrap_err();
        assert!(refused.is_out_of_space_on(Tier::Flash), "{refused}");
    };
    store.set_flash_capacity(capacity).unwrap();
    assert_refused();
    store.set_flash_capacity(128 * MIB).unwrap();
    put_new("accepted").unwrap();
    store.set_flash_capacity(capacity).unwrap();
    assert_refused();
    let delete = |keys: std::ops::Range<u64>| {
        for n in keys {
            store
                .delete_with(key(n), Condition::None, Durability::Buffered)
                .unwrap();
        }
    };
    // A hundred are one run more.
    delete(0..100);
    let before = runs();
    store.flush().unwrap();
    assert_eq!(runs(), before + 1);
    assert_refused();
    delete(100..9_000);
    eventually("the merge that the deletes pay for", || put_new("new").is_ok());
    // Of three runs with all keys one is left, and runs of the deletes that came after the merge
    // had begun: the log is short, so they are flushed a few at a time.
    assert!(store.stats().index.bytes < index_bytes / 2);
    for n in (0..count).step_by(37) {
        assert_eq!(store.get(key(n)).unwrap().is_some(), n >= 9_000, "{n}");
    }
}

/// Regression: what was deleted left the log only once the store was idle, or the device full. A
/// device of 776 MB had 700 MB of dead segments for as long as its clients went on.
#[test]
fn what_was_deleted_leaves_the_log_of_a_busy_store() {
    let dir = tempfile::tempdir().unwrap();
    let disk = SimDisk::new(1);
    let options = || Options {
        flash_disk: Some(Arc::new(disk.clone())),
        ..options_of(dir.path(), 256 * MIB)
    };
    let store = Store::open(options()).unwrap();
    let buffered = |key: &str, value: Vec<u8>| put_small(&store, key, value).unwrap();
    const CAPACITY: u64 = 1 << 30;
    let count = 3_000;
    for n in 0..count {
        buffered(&format!("{n:05}"), bytes(n, LENGTH));
    }
    // An open after a crash would read the log behind it.
    eventually("a checkpoint", || store.checkpoint().unwrap());
    for n in 0..count {
        buffered(&format!("{n:05}"), bytes(n + 1, LENGTH));
    }
    let log = || store.stats().log;
    let full = log().segments_used;
    assert!(full > 90, "{full} segments");
    store.flush().unwrap();
    // From now on the device has half as much space left as the log takes.
    let used = CAPACITY - {
        disk.set_capacity(Some(CAPACITY));
        disk.available_bytes().unwrap()
    };
    disk.set_capacity(Some(used + full * (256 << 10) / 2));

    let is_over = AtomicBool::new(false);
    let checkpoints = || store.stats().hash_index.checkpoint.taken;
    let before = checkpoints();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0;
            while !is_over.load(Ordering::Relaxed) {
                n += 1;
                put_small(&store, &format!("busy {}", n % 10), bytes(n, LENGTH)).unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        for n in 0..count {
            store
                .delete_with(format!("{n:05}"), Condition::None, Durability::Buffered)
                .unwrap();
        }
        eventually("the room of what was deleted", || log().segments_used < full / 3);
        is_over.store(true, Ordering::Relaxed);
    });
    // Half of the log was behind it.
    assert!(checkpoints() > before);
    store.close().unwrap();
    drop(store);
    let store = Store::open(options()).unwrap();
    assert_eq!(store.get("00001").unwrap(), None);
    assert!(store.get("busy 1").unwrap().is_some());
}

/// Copies of the index's tables are made of spare room, and are the first to go.
#[test]
fn copies_of_tables_take_spare_room_and_leave_a_full_device() {
    let dir = tempfile::tempdir().unwrap();
    let disk = SimDisk::new(1);
    let capacity = 256 * MIB;
    let options = Options {
        flash_disk: Some(Arc::new(disk.clone())),
        ..options_of(dir.path(), capacity)
    }
    .tuned(|tuning| tuning.index_mirror_after = Some(Duration::from_millis(1)));
    let store = Store::open(options.clone()).unwrap();
    let key = |n: u64| format!("{n:012}{}", "k".repeat(100));
    for n in 0..20_000 {
        put_small(&store, &key(n), bytes(n, 40)).unwrap();
    }
    store.flush().unwrap();
    let index = || store.stats().index;
    eventually("a copy of each table", || {
        let index = index();
        index.bytes > 0 && index.mirror_bytes >= index.bytes
    });
    let stats = store.stats();
    assert!(stats.log.capacity_bytes + stats.index.bytes + stats.index.mirror_bytes < capacity);
    let copied = stats.written.index_bytes - stats.index.flushed_bytes;
    assert!(
        copied >= stats.index.mirror_bytes,
        "{copied} of {}",
        stats.index.mirror_bytes
    );
    drop(store);
    // Turned off, they go.
    let without = options.clone().tuned(|tuning| tuning.index_mirror_after = None);
    let store = Store::open(without).unwrap();
    eventually("no copy", || store.stats().index.mirror_bytes == 0);
    drop(store);
    let store = Store::open(options).unwrap();
    let mirror_bytes = || store.stats().index.mirror_bytes;
    eventually("copies again", || mirror_bytes() > 0);
    // As an operation that frees space does which finds the device full. The reserve is made again
    // at once here.
    eventually("no copy on a full device", || {
        store.engine().log.reserve.give_up();
        store.engine().share_flash();
        mirror_bytes() == 0
    });
    eventually("copies where there is room again", || mirror_bytes() > 0);
    // A device without room for more than segments need gets none.
    store.engine().log.reserve.give_up();
    store.engine().share_flash();
    eventually("no copy", || mirror_bytes() == 0);
    let used = (1 << 30) - {
        disk.set_capacity(Some(1 << 30));
        disk.available_bytes().unwrap()
    };
    disk.set_capacity(Some(used));
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(mirror_bytes(), 0);
}
