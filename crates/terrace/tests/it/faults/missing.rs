//! Files that are gone, cut short, or another store's, while nothing has read them yet: the open
//! says so, and names the keys.

use super::bench::{BUFFERED, Bench, bytes};
use crate::common::copy_directory;
use std::{fs, path::Path};
use terrace::{Error, Store, io::Disk};

/// A closed store with values in several segments and blocks, and no inline ones.
fn closed(seed: u64) -> Bench {
    let bench = Bench::new(seed);
    let store = bench.open().unwrap();
    for n in 0..200_u64 {
        store
            .put_with(format!("flash {n:03}"), bytes(n, 4_000), &BUFFERED)
            .unwrap();
    }
    for n in 0..20_u64 {
        store
            .put_with(format!("large {n:03}"), bytes(n, 40_000), &BUFFERED)
            .unwrap();
    }
    store.flush().unwrap();
    store.close().unwrap();
    bench
}

/// Opens the store: every key whose value cannot be read is named, and no other. Returns how many,
/// and everything that was said.
fn lost_and_named(bench: &Bench, what: &str) -> (usize, String) {
    let store = bench.open().unwrap();
    let damage = store.stats().damage;
    let keys = (0..200)
        .map(|n| format!("flash {n:03}"))
        .chain((0..20).map(|n| format!("large {n:03}")));
    let mut lost = 0;
    for key in keys {
        let is_lost = match store.get(&key) {
            Ok(found) => {
                assert!(found.is_some(), "{what}: {key} is gone without an error");
                false
            }
            Err(Error::Corruption { .. } | Error::Io { .. }) => true,
            Err(error) => panic!("{what}: {key}: {error}"),
        };
        let is_named = damage.iter().any(|line| line.contains(&format!("{key:?}")));
        assert_eq!(is_named, is_lost, "{what}: {key} in {damage:#?}");
        lost += usize::from(is_lost);
    }
    (lost, damage.join("\n"))
}

/// Opens were silent about a segment's file that was gone: only its reads failed, and `verify`
/// found it.
#[test]
fn a_missing_segment_is_named_with_its_keys_by_the_open() {
    let bench = closed(31);
    let segments = bench.flash.files().into_iter().filter(|file| file.ends_with(".seg"));
    let mut had_losses = 0;
    for segment in segments {
        let copy = bench.fork();
        copy.flash.remove(Path::new(&segment)).unwrap();
        let (lost, damage) = lost_and_named(&copy, &segment);
        let number = segment.trim_start_matches("segments/").trim_end_matches(".seg");
        let is_named = damage.contains(&format!("segment {number} is gone"));
        assert_eq!(is_named, lost > 0, "{segment}: {damage}");
        had_losses += u32::from(lost > 0);
    }
    assert!(had_losses >= 3, "{had_losses} segments had values");
}

#[test]
fn all_segments_are_missed() {
    let bench = closed(32);
    // Where frames were written one by one, the log was full, and the first values went to blocks.
    let in_log = bench.open().unwrap().stats().flash.objects;
    assert!(in_log > 0);
    for segment in bench.flash.files().into_iter().filter(|file| file.ends_with(".seg")) {
        bench.flash.remove(Path::new(&segment)).unwrap();
    }
    let (lost, _) = lost_and_named(&bench, "without segments");
    assert_eq!(lost as u64, in_log);
}

/// Segments that were emptied after the index's mark, or never used, are not missed.
#[test]
fn a_missing_segment_without_values_is_no_loss() {
    let bench = Bench::new(33);
    let store = bench.open().unwrap();
    for round in 0..8_u64 {
        for n in 0..60_u64 {
            store
                .put_with(format!("{n}"), bytes(round * 60 + n, 4_000), &BUFFERED)
                .unwrap();
        }
        store.flush().unwrap();
    }
    store.close().unwrap();
    let segments = bench.flash.files().into_iter().filter(|file| file.ends_with(".seg"));
    let mut unharmed = 0;
    for segment in segments {
        let copy = bench.fork();
        copy.flash.remove(Path::new(&segment)).unwrap();
        let store = copy.open().unwrap();
        let lost = (0..60).filter(|n| store.get(format!("{n}")).is_err()).count();
        let damage = store.stats().damage;
        assert_eq!(damage.is_empty(), lost == 0, "{segment}: {lost} lost, {damage:#?}");
        unharmed += u32::from(lost == 0);
    }
    assert!(unharmed > 0, "each segment had a value");
}

#[test]
fn a_missing_block_is_named_with_its_keys_by_the_open() {
    let bench = closed(37);
    let block = bench.blocks().swap_remove(0);
    bench.large.remove(Path::new(&block)).unwrap();
    let (lost, damage) = lost_and_named(&bench, &block);
    assert!(lost > 0 && damage.contains(" is gone;"), "{damage}");
    assert_eq!(bench.open().unwrap().stats().damage, [""; 0], "it is told once");
}

/// Opens were silent about a block's file that ended early.
#[test]
fn a_block_that_was_cut_is_named_with_its_keys_by_the_open() {
    let bench = closed(34);
    let mut had_losses = 0;
    for block in bench.blocks() {
        let length = bench.large.read_file(&block).unwrap().len() as u64;
        for left in [0, 4_096, length / 2 / 4_096 * 4_096, length - 1] {
            let copy = bench.fork();
            copy.large.truncate(&block, left).unwrap();
            let (lost, damage) = lost_and_named(&copy, &format!("{block} with {left} of {length}"));
            // One that was being written has no length in LargeMeta, and may have no value yet.
            let is_named = damage.contains(&format!("ends at byte {left};"));
            assert!(is_named || lost == 0, "{damage}");
            had_losses += u32::from(lost > 0);
            // It is told once: LargeMeta now has what is there.
            let damage = copy.open().unwrap().stats().damage;
            assert!(damage.is_empty(), "{damage:#?}");
        }
    }
    assert!(had_losses >= 3, "{had_losses} cuts cost values");
}

/// The index of another store, put beside this one's segments by mistake, was used: its keys
/// appeared here, and its entries led to whatever lay at their addresses.
#[test]
fn the_index_of_another_store_is_refused_and_left_alone() {
    let (bench, other) = (closed(35), closed(36));
    fs::remove_dir_all(bench.index_dir()).unwrap();
    copy_directory(&other.index_dir(), &bench.index_dir()).unwrap();
    let refused = bench.open().unwrap_err();
    assert!(matches!(refused, Error::NotAStore { .. }), "{refused}");
    let told = refused.to_string();
    assert!(
        told.contains("index") && told.contains("belongs to the store"),
        "{told}"
    );
    let refused = Store::repair(bench.options()).unwrap_err();
    assert!(matches!(refused, Error::NotAStore { .. }), "{refused}");
    // One that is noted as damaged would be mended, or built anew from this store's log.
    let note = bench.index_dir().join("damaged");
    fs::write(&note, "a block was damaged").unwrap();
    let refused = bench.open().unwrap_err();
    assert!(matches!(refused, Error::NotAStore { .. }), "{refused}");
    fs::remove_file(&note).unwrap();

    // It is still whole, for the store that it belongs to.
    fs::remove_dir_all(other.index_dir()).unwrap();
    copy_directory(&bench.index_dir(), &other.index_dir()).unwrap();
    assert_eq!(lost_and_named(&other, "with its own index again").0, 0);

    // Without it, this store is repaired from what it has.
    fs::remove_dir_all(bench.index_dir()).unwrap();
    Store::repair(bench.options()).unwrap();
    let store = bench.open().unwrap();
    for n in 0..200_u64 {
        assert_eq!(
            store.get(format!("flash {n:03}")).unwrap().unwrap().value,
            bytes(n, 4_000)
        );
    }
}
