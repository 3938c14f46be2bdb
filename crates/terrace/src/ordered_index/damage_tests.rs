//! Damaged, missing and unwritable files, and crashes, under the ordered index.
#![allow(clippy::unwrap_used)]

use super::{tests::*, *};
use crate::test_common::{copy_directory, files};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    fs,
    ops::Bound,
    path::Path,
    time::{Duration, Instant},
};

const ALL: KeyBounds = (Bound::Unbounded, Bound::Unbounded);

/// An index of a few tables in several levels; returns the last seq.
fn fill(dir: &Path) -> u64 {
    let (index, _) = open(dir);
    let mut applier = index.applier().unwrap();
    let mut seq = 0;
    for _ in 0..12 {
        for _ in 0..100 {
            seq += 1;
            applier.insert(
                format!("key-{:05}", seq * 7919 % 5000).as_bytes(),
                &flash_entry(seq),
                seq,
            );
            applier.applied(seq);
        }
        applier.rotate(mark(seq)).unwrap();
        index.flush_sealed(seq).unwrap();
        if seq < 1000 {
            index.compact(seq).unwrap();
        }
    }
    assert!(index.stats().tables > 5);
    seq
}

/// Opens and reads everything there is; counts the errors and checks what is shown against what was
/// written.
fn read_everything(dir: &Path) -> Result<usize> {
    let (index, mark) = OrderedIndex::open(dir, SMALL)?;
    let seq = mark.map_or(0, |mark| mark.applied_seq);
    let mut shown = 0;
    for item in index.scan(ALL, seq)? {
        let (key, entry) = item?;
        let version = entry.version.0;
        assert_eq!(key, format!("key-{:05}", version * 7919 % 5000));
        assert_eq!(entry, flash_entry(version));
        shown += 1;
    }
    for number in 0..5000 {
        index.get(format!("key-{number:05}").as_bytes())?;
    }
    Ok(shown)
}

#[test]
fn a_flipped_byte_is_corruption_or_without_effect() {
    let original = tempfile::tempdir().unwrap();
    fill(original.path());
    let whole = read_everything(original.path()).unwrap();
    assert_eq!(whole, 1200);
    let mut rng = StdRng::seed_from_u64(4);
    let (mut noticed, mut panics_caught, mut harmless) = (0, 0, 0);
    for file in files(original.path()) {
        let name = file.strip_prefix(original.path()).unwrap();
        for _ in 0..40 {
            let damaged = tempfile::tempdir().unwrap();
            copy_directory(original.path(), damaged.path()).unwrap();
            let mut bytes = fs::read(&file).unwrap();
            let at = rng.random_range(0..bytes.len());
            bytes[at] ^= 1 << rng.random_range(0..8);
            fs::write(damaged.path().join(name), bytes).unwrap();
            match read_everything(damaged.path()) {
                Err(Error::Corruption { place, reason }) if reason.contains("gave up") => {
                    println!("{} byte {at}: {place}: {reason}", name.display());
                    panics_caught += 1;
                }
                Err(Error::Corruption { .. }) => noticed += 1,
                // Some bytes of a table are not needed to read it.
                Ok(shown) if shown == whole && name.starts_with("tables") => harmless += 1,
                other => panic!("{} byte {at}: {other:?}", name.display()),
            }
        }
    }
    println!("{noticed} noticed, {panics_caught} panics caught, {harmless} without effect");
    assert!(harmless * 50 < noticed, "{harmless} flips without effect");
}

#[test]
fn a_shortened_or_missing_file_is_corruption() {
    let original = tempfile::tempdir().unwrap();
    fill(original.path());
    let mut rng = StdRng::seed_from_u64(5);
    for file in files(original.path()) {
        let name = file.strip_prefix(original.path()).unwrap();
        for round in 0..10 {
            let damaged = tempfile::tempdir().unwrap();
            copy_directory(original.path(), damaged.path()).unwrap();
            let target = damaged.path().join(name);
            if round == 0 {
                fs::remove_file(&target).unwrap();
            } else {
                let bytes = fs::read(&file).unwrap();
                fs::write(&target, &bytes[..rng.random_range(0..bytes.len())]).unwrap();
            }
            let result = read_everything(damaged.path());
            assert!(
                matches!(result, Err(Error::Corruption { .. })),
                "{}: {result:?}",
                name.display()
            );
        }
    }
}

#[test]
fn a_damaged_table_fails_the_compaction_that_meets_it_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (index, _) = open(dir.path());
    let mut applier = index.applier().unwrap();
    // As many runs as start a compaction.
    for seq in 1..=8_u64 {
        for key in 0..250_u64 {
            applier.insert(&(key * 8 + seq).to_be_bytes(), &flash_entry(seq), seq);
        }
        applier.applied(seq);
        applier.rotate(mark(seq)).unwrap();
        index.flush_sealed(seq).unwrap();
    }
    let table = files(&dir.path().join("tables")).pop().unwrap();
    let good = fs::read(&table).unwrap();
    let mut bad = good.clone();
    bad[5000] ^= 0x40;
    fs::write(&table, bad).unwrap();
    for _ in 0..2 {
        let failed = index.compact(8);
        assert!(matches!(failed, Err(Error::Corruption { .. })), "{failed:?}");
    }
    applier.insert(b"later", &flash_entry(9), 9);
    applier.applied(9);
    applier.rotate(mark(9)).unwrap();
    assert_eq!(index.flush_sealed(9).unwrap(), Some(mark(9)), "flushes go on");
    // Nothing was dropped by the failure: once the file is well, everything is there.
    fs::write(&table, good).unwrap();
    while index.compact(9).unwrap() {}
    assert_eq!(index.scan(ALL, 9).unwrap().map(Result::unwrap).count(), 2001);
}

#[test]
fn a_flush_that_cannot_write_keeps_the_data_and_can_be_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let (index, mut applier) = with_one_sealed(dir.path());
    let (tables, hidden) = (dir.path().join("tables"), dir.path().join("hidden"));
    fs::rename(&tables, &hidden).unwrap();
    for _ in 0..2 {
        let failed = index.flush_sealed(1);
        assert!(matches!(failed, Err(Error::Io { .. })), "{failed:?}");
    }
    applier.insert(b"b", &flash_entry(2), 2);
    applier.applied(2);
    applier.rotate(mark(2)).unwrap();
    assert_eq!(index.sealed_count(), 2);
    assert_eq!(index.get(b"a").unwrap(), Some(flash_entry(1)));
    fs::rename(&hidden, &tables).unwrap();
    assert_eq!(index.flush_sealed(2).unwrap(), Some(mark(2)));
    drop((applier, index));
    let (index, found) = open(dir.path());
    assert_eq!(found, Some(mark(2)));
    assert_eq!(index.scan(ALL, 2).unwrap().count(), 2);
}

#[test]
fn when_directory_and_memory_disagree_flushes_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (index, _applier) = with_one_sealed(dir.path());
    let current = dir.path().join("current");
    let mut bytes = fs::read(&current).unwrap();
    bytes[0] += 1;
    fs::write(&current, bytes).unwrap();
    fs::rename(dir.path().join("tables"), dir.path().join("hidden")).unwrap();
    assert!(matches!(index.flush_sealed(1), Err(Error::Io { .. })));
    fs::rename(dir.path().join("hidden"), dir.path().join("tables")).unwrap();
    assert!(matches!(index.flush_sealed(1), Err(Error::Failed(_))));
    assert!(matches!(index.compact(1), Err(Error::Failed(_))));
    assert_eq!(index.get(b"a").unwrap(), Some(flash_entry(1)), "reads go on");
}

#[test]
fn leftovers_of_a_crash_are_removed_at_open() {
    let dir = tempfile::tempdir().unwrap();
    let seq = fill(dir.path());
    let well = files(dir.path()).len();
    for name in [".tmpAbC123", "v99999", "tables/99999"] {
        fs::write(dir.path().join(name), b"half a write").unwrap();
    }
    assert_eq!(open(dir.path()).1, Some(mark(seq)));
    assert_eq!(files(dir.path()).len(), well);
}

/// On a full device flushes and compactions fail repeatedly and may overlap. Cleaning up was done
/// only by one that overlapped no other, so the files that they left behind used up the room that
/// had been freed.
#[test]
fn leftovers_of_a_flush_are_removed_once_the_compaction_beside_it_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let (index, _applier) = with_one_sealed(dir.path());
    let tables = dir.path().join("tables");
    let leftover = tables.join("99999");
    fs::write(&leftover, b"half a table").unwrap();
    // What has the name of the next table keeps the flush from writing it.
    let in_the_way: Vec<_> = (0..20).map(|id| tables.join(id.to_string())).collect();
    in_the_way.iter().for_each(|path| fs::create_dir(path).unwrap());
    let compaction = index.compacting.lock();
    let failed = index.flush_sealed(1);
    assert!(matches!(failed, Err(Error::Io { .. })), "{failed:?}");
    assert!(leftover.exists(), "it might be the compaction's");
    drop(compaction);
    in_the_way.iter().for_each(|path| fs::remove_dir(path).unwrap());
    assert!(!index.compact(1).unwrap());
    assert!(!leftover.exists());
    assert_eq!(index.flush_sealed(1).unwrap(), Some(mark(1)));
}

/// Every step of the library's way to a new state, seen from a crash: the directory is copied over
/// and over while another thread applies, flushes and compacts. A copy is not taken at one moment;
/// so it is only used if the file that names the state did not change meanwhile and no table it
/// names was removed.
#[test]
fn a_crash_at_any_moment_reopens_at_a_mark() {
    let dir = tempfile::tempdir().unwrap();
    let live = dir.path().join("live");
    let (index, _) = open(&live);
    let done = AtomicBool::new(false);
    let (mut used, mut seen, last_seen) = (0, Vec::new(), AtomicU64::new(0));
    // A copy of this or a later moment has been looked at; or no thread copies any more.
    let wait_for_copy = |seq: u64| {
        let until = Instant::now() + Duration::from_secs(60);
        while last_seen.load(Ordering::Acquire) < seq && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut applier = index.applier().unwrap();
            for seq in 1..=600_u64 {
                applier.insert(&(seq % 100).to_be_bytes(), &flash_entry(seq), seq);
                applier.applied(seq);
                if seq % 5 == 0 {
                    applier.rotate(mark(seq)).unwrap();
                    index.flush_sealed(seq).unwrap();
                    index.compact(seq).unwrap();
                }
                // On a busy machine all of it was over before a few copies were made.
                if seq % 100 == 0 {
                    wait_for_copy(seq);
                }
            }
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            let copy = tempfile::tempdir().unwrap();
            let before = fs::read(live.join("current")).unwrap();
            let persisted = index.persisted_mark();
            if copy_directory(&live, copy.path()).is_err() || fs::read(live.join("current")).unwrap() != before {
                continue;
            }
            let (copied, found) = open(copy.path());
            let seq = found.as_ref().map_or(0, |mark| mark.applied_seq);
            assert!(
                seq >= persisted.map_or(0, |mark| mark.applied_seq),
                "what was persisted before"
            );
            assert_eq!(found, (seq > 0).then(|| mark(seq)));
            for key in 0..100_u64 {
                let newest = (1..=seq).rev().find(|at| at % 100 == key);
                assert_eq!(copied.get(&key.to_be_bytes()).unwrap(), newest.map(flash_entry));
            }
            used += 1;
            seen.push(seq);
            last_seen.store(seq, Ordering::Release);
        }
    });
    seen.dedup();
    println!("{used} copies, {} different marks", seen.len());
    assert!(seen.len() > 3);
}
