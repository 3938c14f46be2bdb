//! Copies of large objects on flash, through the whole engine.

use super::{bytes, eventually, small_options};
use crate::{
    Durability, Error, Options, PutOptions, ReadOptions, Store,
    io::{SimDisk, Survival},
};
use std::{
    io::Read as _,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

const PARTS: u64 = 8;
const PART_BYTES: usize = 40_000;
/// For what the background does.
const PATIENCE: Duration = Duration::from_secs(60);

fn key(part: u64) -> String {
    format!("titles/1/seg-{part:04}.ts")
}

/// No cache in RAM, so that every read is one of the large space.
fn options(dir: &Path, flash: &SimDisk) -> Options {
    Options {
        cache_bytes: 0,
        flash_disk: Some(Arc::new(flash.clone())),
        ..small_options(dir)
    }
}

fn put_title(store: &Store, seed: u64) {
    for part in 0..PARTS {
        store.put(key(part), bytes(seed + part, PART_BYTES)).unwrap();
    }
}

fn read_part(store: &Store, seed: u64, part: u64) {
    let found = store.get(key(part)).unwrap().unwrap();
    assert!(found.value == bytes(seed + part, PART_BYTES), "{part}");
}

/// From its end: for a reader in order something would be read ahead, now or a little later.
fn read_title(store: &Store, seed: u64) {
    (0..PARTS).rev().for_each(|part| read_part(store, seed, part));
}

fn read_in_order(store: &Store, seed: u64) {
    (0..PARTS).for_each(|part| read_part(store, seed, part));
}

fn heat_up(store: &Store, seed: u64) {
    heat_up_by(read_title, store, seed);
}

/// Reads a title until all of it is copied.
fn heat_up_by(read: fn(&Store, u64), store: &Store, seed: u64) {
    let until = Instant::now() + PATIENCE;
    while store.stats().flash_cache.copies < PARTS {
        read(store, seed);
        assert!(Instant::now() < until, "{:?}", store.stats().flash_cache);
    }
}

#[test]
fn what_is_read_often_is_read_from_flash_also_after_an_open() {
    let (dir, flash) = (tempfile::tempdir().unwrap(), SimDisk::new(1));
    let store = Store::open(options(dir.path(), &flash)).unwrap();
    put_title(&store, 1);
    heat_up(&store, 1);
    let before = store.stats();
    read_title(&store, 1);
    let after = store.stats();
    assert_eq!(after.reads.copy_hits - before.reads.copy_hits, PARTS);
    assert_eq!(after.reads.block_reads, before.reads.block_reads);
    assert_eq!(after.flash_cache.promoted_bytes, after.written.copy_bytes);
    // A range and a stream come from there as well.
    let range = store.get_range(key(3), 10_000..20_000).unwrap().unwrap();
    assert!(range == bytes(4, PART_BYTES)[10_000..20_000]);
    let mut streamed = Vec::new();
    std::io::copy(&mut store.reader(key(5)).unwrap().unwrap(), &mut streamed).unwrap();
    assert!(streamed == bytes(6, PART_BYTES));
    assert_eq!(store.stats().reads.block_reads, before.reads.block_reads);
    store.close().unwrap();
    drop(store);

    let store = Store::open(options(dir.path(), &flash)).unwrap();
    eventually("finding the copies", || store.stats().flash_cache.copies >= PARTS);
    read_title(&store, 1);
    let reads = store.stats().reads;
    assert_eq!((reads.copy_hits, reads.block_reads), (PARTS, 0));
    assert!(store.verify().unwrap().errors.is_empty());
}

/// What may be written again to make room for copies follows what is read, so it must be counted
/// once, wherever it comes from.
#[test]
fn bytes_that_are_asked_for_count_once_from_blocks_and_from_copies() {
    let (dir, flash) = (tempfile::tempdir().unwrap(), SimDisk::new(1));
    let store = Store::open(options(dir.path(), &flash)).unwrap();
    put_title(&store, 1);
    let asked_for_title = |from: &str| {
        let before = store.stats();
        read_title(&store, 1);
        let after = store.stats();
        let asked = after.flash_cache.asked_bytes - before.flash_cache.asked_bytes;
        // With headers and checksums.
        let title_bytes = PARTS * PART_BYTES as u64;
        assert!(
            (title_bytes..title_bytes * 105 / 100).contains(&asked),
            "{from}: {asked}"
        );
        after.reads.copy_hits - before.reads.copy_hits
    };
    assert_eq!(asked_for_title("blocks"), 0);
    heat_up(&store, 1);
    assert_eq!(asked_for_title("copies"), PARTS);
}

/// A client that paused a video kept what it had read of an object in RAM: each reader that came
/// after it waited 100 ms at every read, and as long as it paused the object got no copy, however
/// often it was read.
#[test]
fn a_reader_that_pauses_keeps_an_object_from_nobody() {
    let (dir, flash) = (tempfile::tempdir().unwrap(), SimDisk::new(1));
    let options = Options {
        segment_bytes: 2 << 20,
        log_capacity_bytes: Some(32 << 20),
        split_threshold_bytes: 4 << 20,
        ..options(dir.path(), &flash)
    };
    let store = Store::open(options).unwrap();
    // Longer than what one read of the device brings.
    let value = bytes(1, 1_500_000);
    store.put("film", &value).unwrap();
    let mut paused = store.reader("film").unwrap().unwrap();
    let mut start = vec![0; 1000];
    paused.read_exact(&mut start).unwrap();
    let until = Instant::now() + PATIENCE;
    while store.stats().flash_cache.copies == 0 {
        let mut all = Vec::new();
        store.reader("film").unwrap().unwrap().read_to_end(&mut all).unwrap();
        assert!(all == value);
        assert!(Instant::now() < until, "{:?}", store.stats().flash_cache);
    }
    paused.read_to_end(&mut start).unwrap();
    assert!(start == value);
}

#[test]
fn an_overwritten_object_is_never_read_from_its_old_copy() {
    let (dir, flash) = (tempfile::tempdir().unwrap(), SimDisk::new(2));
    let store = Store::open(options(dir.path(), &flash)).unwrap();
    put_title(&store, 1);
    heat_up(&store, 1);
    let snapshot = store.snapshot().unwrap();
    put_title(&store, 100);
    read_title(&store, 100);
    let hits = store.stats().reads.copy_hits;
    for part in 0..PARTS {
        assert!(snapshot.get(key(part)).unwrap().unwrap().value == bytes(1 + part, PART_BYTES));
    }
    assert!(
        store.stats().reads.copy_hits >= hits + PARTS,
        "a snapshot finds the old copies"
    );
    store.delete(key(0)).unwrap();
    assert!(store.get(key(0)).unwrap().is_none());
}

#[test]
fn a_damaged_copy_costs_a_read_of_the_block_and_nothing_else() {
    let (dir, flash) = (tempfile::tempdir().unwrap(), SimDisk::new(3));
    let store = Store::open(options(dir.path(), &flash)).unwrap();
    put_title(&store, 1);
    heat_up(&store, 1);
    let segments = flash.files().into_iter().filter(|path| path.starts_with("segments/"));
    for path in segments {
        // All that is not the header.
        let length = flash.read_file(&path).unwrap().len();
        flash.corrupt(&path, 4096, &vec![0x5a; length - 4096]).unwrap();
    }
    let before = store.stats();
    read_title(&store, 1);
    let after = store.stats();
    assert_eq!(after.flash_cache.forgotten - before.flash_cache.forgotten, PARTS);
    assert_eq!(after.reads.block_hits - before.reads.block_hits, PARTS);
}

#[test]
fn a_power_cut_loses_copies_at_most() {
    let (dir, flash) = (tempfile::tempdir().unwrap(), SimDisk::new(4));
    for survival in Survival::ALL {
        let store = Store::open(options(dir.path(), &flash)).unwrap();
        put_title(&store, 1);
        heat_up_by(read_in_order, &store, 1);
        flash.power_cut();
        drop(store);
        flash.set_survival(survival);
        flash.restore_power();
        let store = Store::open(options(dir.path(), &flash)).unwrap();
        read_title(&store, 1);
        assert_eq!(store.stats().damage, [""; 0]);
        assert!(store.verify().unwrap().errors.is_empty());
    }
}

#[test]
fn copies_make_way_for_small_values() {
    let (dir, flash) = (tempfile::tempdir().unwrap(), SimDisk::new(5));
    let store = Store::open(options(dir.path(), &flash).tuned(|tuning| tuning.copies_share_percent = 0)).unwrap();
    put_title(&store, 1);
    heat_up(&store, 1);
    assert!(store.stats().flash_cache.segments > 0);
    for number in 0..3_000_u64 {
        store
            .put(format!("small/{}", number % 600), bytes(number, 3_000))
            .unwrap();
    }
    read_title(&store, 1);
    for number in 2_400..3_000_u64 {
        assert!(store.get(format!("small/{}", number % 600)).unwrap().unwrap().value == bytes(number, 3_000));
    }
    let heat = store.stats().flash_cache;
    assert!(heat.evicted >= PARTS && heat.segments <= 2, "{heat:?}");
}

#[test]
fn repair_passes_over_copies() {
    let (dir, flash) = (tempfile::tempdir().unwrap(), SimDisk::new(7));
    let store = Store::open(options(dir.path(), &flash)).unwrap();
    put_title(&store, 1);
    heat_up_by(read_in_order, &store, 1);
    store.close().unwrap();
    drop(store);
    let report = Store::repair(options(dir.path(), &flash)).unwrap();
    assert_eq!(report.objects, PARTS, "{report:?}");
    let store = Store::open(options(dir.path(), &flash)).unwrap();
    read_title(&store, 1);
    assert_eq!(store.stats().damage, [""; 0]);
}

#[test]
fn after_reads_in_order_the_next_object_is_in_ram() {
    let (dir, flash) = (tempfile::tempdir().unwrap(), SimDisk::new(8));
    let store = Store::open(Options {
        // No copies: what is read ahead stays in RAM.
        promotion_bytes_per_day: Some(0),
        ..options(dir.path(), &flash)
    })
    .unwrap();
    put_title(&store, 1);
    for part in 0..PARTS {
        assert!(store.get(key(part)).unwrap().unwrap().value == bytes(1 + part, PART_BYTES));
        // From the third on it is clear that this reader reads in order.
        let ahead = part.saturating_sub(1).min(PARTS - 3);
        let until = Instant::now() + PATIENCE;
        while store.stats().flash_cache.prefetch_objects < ahead {
            assert!(Instant::now() < until, "part {part}: {:?}", store.stats().flash_cache);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let stats = store.stats();
    assert_eq!(
        (stats.reads.block_hits, stats.reads.prefetch_hits),
        (3, PARTS - 3),
        "{stats:?}"
    );
    assert_eq!((stats.reads.copy_hits, stats.flash_cache.prefetch_unused), (0, 0));
    assert_eq!(stats.flash_cache.prefetch_objects, PARTS - 3, "nothing behind the end");
    // A range and a stream are served as well.
    for part in [0, 1, 2] {
        store.get(key(part)).unwrap();
    }
    let until = Instant::now() + PATIENCE;
    while store.stats().flash_cache.prefetch_objects < PARTS - 2 {
        assert!(Instant::now() < until, "{:?}", store.stats().flash_cache);
    }
    let hits = store.stats().reads.prefetch_hits;
    let mut streamed = Vec::new();
    std::io::copy(&mut store.reader(key(3)).unwrap().unwrap(), &mut streamed).unwrap();
    assert!(streamed == bytes(4, PART_BYTES));
    assert_eq!(store.stats().reads.prefetch_hits, hits + 1);
}

/// What was read ahead was copied to flash for the reader it was read for, which then read it from
/// there: one flash write for most reads, and a hit that the disk had answered. 35 writes for 100
/// reads in the benchmark of videos instead of 7.
#[test]
fn nothing_is_copied_for_the_reader_it_was_read_ahead_for() {
    let (dir, flash) = (tempfile::tempdir().unwrap(), SimDisk::new(18));
    let store = Store::open(options(dir.path(), &flash)).unwrap();
    put_title(&store, 1);
    for part in 0..PARTS {
        store.get(key(part)).unwrap();
        let ahead = part.saturating_sub(1).min(PARTS - 3);
        let until = Instant::now() + PATIENCE;
        while store.stats().flash_cache.prefetch_objects < ahead {
            assert!(Instant::now() < until, "part {part}: {:?}", store.stats().flash_cache);
            std::thread::sleep(Duration::from_millis(1));
        }
        // Time for a copy to be written.
        std::thread::sleep(Duration::from_millis(40));
    }
    let stats = store.stats();
    assert_eq!((stats.flash_cache.promoted, stats.reads.copy_hits), (0, 0), "{stats:?}");
    assert_eq!(stats.reads.prefetch_hits, PARTS - 3, "{stats:?}");
}

#[test]
fn without_reads_in_order_nothing_is_read_ahead() {
    let (dir, flash) = (tempfile::tempdir().unwrap(), SimDisk::new(9));
    let store = Store::open(Options {
        promotion_bytes_per_day: Some(0),
        ..options(dir.path(), &flash)
    })
    .unwrap();
    put_title(&store, 1);
    // A step of two may be a reader that skipped one; no reader here goes on by less than three.
    for part in [7, 4, 1, 7, 4, 1] {
        store.get(key(part)).unwrap();
    }
    std::thread::sleep(Duration::from_millis(50));
    let stats = store.stats();
    assert_eq!((stats.flash_cache.prefetch_objects, stats.reads.prefetch_hits), (0, 0));
}

/// Regression: a client that read objects in order a second time, all of them in RAM, had each one
/// read from the device again for it: half of the processor time of its downloads over S3.
#[test]
fn what_the_cache_has_is_not_read_ahead() {
    let (dir, flash) = (tempfile::tempdir().unwrap(), SimDisk::new(12));
    let store = Store::open(Options {
        cache_bytes: 8 << 20,
        promotion_bytes_per_day: Some(0),
        ..options(dir.path(), &flash)
    })
    .unwrap();
    put_title(&store, 1);
    for key in ["long", "cold"] {
        store.put(key, bytes(60, 700_000)).unwrap();
    }
    store.flush().unwrap();
    let device_reads = || store.stats().reads.block_reads;
    eventually("reading from the cache alone", || {
        let before = device_reads();
        let mut long = store.reader("long").unwrap().unwrap();
        while !long.read_piece(1 << 20).unwrap().is_empty() {}
        read_title(&store, 1);
        device_reads() == before
    });
    for part in 0..3 {
        store.read_ahead(key(part));
    }
    store.read_ahead("long");
    store.read_ahead("cold");
    eventually("reading ahead", || store.stats().flash_cache.prefetch_objects > 0);
    let ahead = store.stats().flash_cache;
    assert_eq!((ahead.prefetch_objects, ahead.prefetch_bytes), (1, 700_000));
}

/// The index alone was asked for it, and where the applier had not come to it yet nothing was read:
/// one run in a hundred of the next test, beside other work.
#[test]
fn what_was_written_just_now_is_read_ahead() {
    let (dir, flash) = (tempfile::tempdir().unwrap(), SimDisk::new(11));
    let store = Store::open(Options {
        promotion_bytes_per_day: Some(0),
        ..options(dir.path(), &flash)
    })
    .unwrap();
    for part in [0, 1, 2] {
        store.put(key(part), bytes(part, PART_BYTES)).unwrap();
    }
    store.flush().unwrap();
    let buffered = PutOptions {
        durability: Durability::Buffered,
        ..PutOptions::default()
    };
    store.put_with(key(3), bytes(3, PART_BYTES), &buffered).unwrap();
    for part in [0, 1, 2] {
        store.get(key(part)).unwrap();
    }
    let until = Instant::now() + PATIENCE;
    while store.stats().flash_cache.prefetch_objects == 0 {
        assert!(Instant::now() < until, "{:?}", store.stats().flash_cache);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_is_read_ahead_and_overwritten_is_not_seen() {
    let (dir, flash) = (tempfile::tempdir().unwrap(), SimDisk::new(10));
    let store = Store::open(Options {
        promotion_bytes_per_day: Some(0),
        ..options(dir.path(), &flash)
    })
    .unwrap();
    put_title(&store, 1);
    for part in [0, 1, 2] {
        store.get(key(part)).unwrap();
    }
    let until = Instant::now() + PATIENCE;
    while store.stats().flash_cache.prefetch_objects == 0 {
        assert!(Instant::now() < until, "{:?}", store.stats().flash_cache);
    }
    store.put(key(3), bytes(300, PART_BYTES)).unwrap();
    assert!(store.get(key(3)).unwrap().unwrap().value == bytes(300, PART_BYTES));
    assert_eq!(store.stats().reads.prefetch_hits, 0);
}

#[test]
fn a_daily_budget_is_kept() {
    let (dir, flash) = (tempfile::tempdir().unwrap(), SimDisk::new(6));
    let store = Store::open(Options {
        // An hour's share is three parts.
        promotion_bytes_per_day: Some(24 * 3 * 41_000),
        ..options(dir.path(), &flash)
    })
    .unwrap();
    put_title(&store, 1);
    let until = Instant::now() + PATIENCE;
    while store.stats().flash_cache.dropped_budget < 20 {
        read_title(&store, 1);
        assert!(Instant::now() < until, "{:?}", store.stats().flash_cache);
    }
    let heat = store.stats().flash_cache;
    assert!((1..=3).contains(&heat.promoted), "{heat:?}");
}

/// While the disk is busy no caller with a limit to its wait begins to read it, and everything else
/// goes on.
#[test]
fn an_impatient_read_of_a_busy_disk_is_refused() {
    let (dir, flash) = (tempfile::tempdir().unwrap(), SimDisk::new(1));
    let store = Store::open(options(dir.path(), &flash)).unwrap();
    put_title(&store, 1);
    heat_up(&store, 1);
    store.put("open", bytes(50, PART_BYTES)).unwrap();
    store.put("cold", bytes(52, PART_BYTES)).unwrap();
    store.put("small", bytes(51, 100)).unwrap();
    store.flush().unwrap();
    let options = ReadOptions {
        large_wait_max: Some(Duration::from_millis(5)),
    };
    let impatient = |key: &str| store.reader_with(key, &options);
    let mut open = impatient("open").unwrap().unwrap();
    let stuck = store.engine().paces.large.read();
    std::thread::sleep(Duration::from_millis(20));
    assert!(matches!(impatient("cold"), Err(Error::Busy { .. })));
    let mut begun = Vec::new();
    open.read_to_end(&mut begun).unwrap();
    assert!(begun == bytes(50, PART_BYTES), "a stream that is open goes on");
    std::thread::sleep(Duration::from_millis(20));
    for key in ["small", &key(0)] {
        assert!(impatient(key).unwrap().is_some(), "{key} is on flash");
    }
    assert!(store.reader("cold").unwrap().is_some(), "others wait");
    drop(stuck);
    assert!(impatient("cold").unwrap().is_some());
}

/// Objects of a group that is much larger than flash, all read alike: none is better than another,
/// so none is written for another's sake.
#[test]
fn copies_that_are_worth_the_same_do_not_drive_each_other_out() {
    let (dir, flash) = (tempfile::tempdir().unwrap(), SimDisk::new(31));
    let store = Store::open(options(dir.path(), &flash)).unwrap();
    // No digits: they must not be taken for parts in order.
    let letter = |digit: u64| char::from(b'a' + u8::try_from(digit % 26).unwrap());
    let photo = |number: u64| format!("photos/{}{}", letter(number / 26), letter(number));
    // Twice what flash holds.
    let photos = 200;
    for number in 0..photos {
        store.put(photo(number), bytes(number, PART_BYTES)).unwrap();
    }
    let until = Instant::now() + PATIENCE;
    while store.stats().flash_cache.dropped_no_room < photos {
        for number in 0..photos {
            assert!(store.get(photo(number)).unwrap().is_some());
        }
        assert!(Instant::now() < until, "{:?}", store.stats().flash_cache);
    }
    let heat = store.stats().flash_cache;
    assert!(heat.copies > 0 && heat.recopied_bytes == 0, "{heat:?}");
}

/// A site of images has a group for each of them. Groups were measured ten a second, the one read
/// last first, and nothing is copied before: 12,000 reads of 4,000 images of different popularity
/// left it to the disk to answer 397 of the 400 that followed.
#[test]
fn a_thousand_groups_are_known_soon() {
    let (dir, flash) = (tempfile::tempdir().unwrap(), SimDisk::new(32));
    let store = Store::open(options(dir.path(), &flash)).unwrap();
    let image = |number: u64| format!("images/{number:04}/large");
    for number in 0..1_000 {
        store.put(image(number), bytes(number, PART_BYTES)).unwrap();
    }
    // The popular ones come first, then each once, then the popular ones for a fifth of the time
    // that measuring all took.
    let until = Instant::now() + PATIENCE;
    let popular = 0..10_u64;
    for number in popular.clone().chain(0..1_000) {
        assert!(store.get(image(number)).unwrap().is_some());
    }
    while store.stats().flash_cache.copies < 10 {
        for number in popular.clone() {
            assert!(store.get(image(number)).unwrap().is_some());
        }
        assert!(Instant::now() < until, "{:?}", store.stats().flash_cache);
    }
    let before = store.stats().reads.copy_hits;
    for number in popular {
        assert!(store.get(image(number)).unwrap().is_some());
    }
    assert!(
        store.stats().reads.copy_hits >= before + 8,
        "{:?}",
        store.stats().flash_cache
    );
}
