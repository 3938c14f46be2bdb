//! Directories of the wrong kind or of another store.

use super::bench::{BUFFERED, Bench, bytes};
use std::{fs, sync::Arc};
use terrace::{Error, Options, Store};

fn filled(seed: u64, puts: u64) -> Bench {
    let bench = Bench::new(seed);
    let store = bench.open().unwrap();
    for n in 0..puts {
        store
            .put_with(format!("{:03}", n % 200), bytes(seed * 1_000 + n, 3_000), &BUFFERED)
            .unwrap();
    }
    store.close().unwrap();
    bench
}

#[test]
fn swapped_and_foreign_tiers_are_refused() {
    let (one, other) = (filled(1, 50), filled(2, 50));
    let with = |flash: &Bench, large: &Bench| Options {
        flash_disk: Some(Arc::new(flash.flash.clone())),
        large_disk: Some(Arc::new(large.large.clone())),
        ..flash.options()
    };
    let refused = |options: Options, hint: &str| {
        let error = Store::open(options).unwrap_err();
        assert!(matches!(error, Error::NotAStore { .. }), "{error}");
        assert!(error.to_string().contains(hint), "{error}");
    };
    refused(with(&one, &other), "another store");
    let swapped = Options {
        flash_disk: Some(Arc::new(one.large.clone())),
        large_disk: Some(Arc::new(one.flash.clone())),
        ..one.options()
    };
    refused(swapped, "swap");
    let alone = Bench::new(9);
    refused(
        with(&one, &alone),
        "large tier is not here; is its file system mounted?",
    );
    refused(
        with(&alone, &one),
        "flash tier is not here; is its file system mounted?",
    );
    Store::open(with(&one, &one)).unwrap();
}

#[test]
fn a_newer_format_is_refused() {
    let bench = filled(3, 10);
    for disk in [&bench.flash, &bench.large] {
        let mut manifest = disk.read_file("TERRACE").unwrap();
        manifest[12..16].copy_from_slice(&6_u32.to_le_bytes());
        let checksum = crc32c::crc32c(&manifest[12..]);
        manifest[8..12].copy_from_slice(&checksum.to_le_bytes());
        disk.put_file("TERRACE", &manifest).unwrap();
    }
    let error = bench.open().unwrap_err();
    assert!(matches!(error, Error::NotAStore { .. }), "{error}");
    assert!(error.to_string().contains("format 6"), "{error}");
}

#[test]
fn another_stores_segments_are_left_alone() {
    let (one, other) = (filled(4, 50), filled(5, 50));
    let written = |file: &String| file.ends_with(".seg") && other.flash.read_file(file).unwrap()[0] != 0;
    let file = other.flash.files().into_iter().find(written).unwrap();
    let segment = other.flash.read_file(&file).unwrap();
    one.flash.put_file("segments/00000007.seg", &segment).unwrap();
    let store = one.open().unwrap();
    assert!(
        store.stats().damage[0].contains("another store"),
        "{:?}",
        store.stats().damage
    );
    for n in 0..2_000_u64 {
        store
            .put_with(format!("{:03}", n % 200), bytes(n, 3_000), &BUFFERED)
            .unwrap();
    }
    store.close().unwrap();
    assert!(one.flash.read_file("segments/00000007.seg").unwrap() == segment);
}

/// Old values would reappear.
#[test]
fn an_index_that_is_gone_or_too_old_is_refused() {
    let bench = filled(6, 100);
    let old = bench.fork();
    let store = bench.open().unwrap();
    for n in 0..3_000_u64 {
        store
            .put_with(format!("{:03}", n % 200), bytes(n, 3_000), &BUFFERED)
            .unwrap();
    }
    assert!(store.stats().log.segments_reclaimed > 8);
    store.close().unwrap();
    drop(store);
    let refused = |what: &str| {
        let error = bench.open().expect_err(what);
        assert!(matches!(error, Error::Corruption { .. }), "{what}: {error}");
        assert!(error.to_string().contains("repair"), "{what}: {error}");
    };
    let index = bench.index_dir();
    let newest = bench.dir.path().join("newest");
    fs::rename(&index, &newest).unwrap();
    refused("no index");
    fs::remove_dir_all(&index).unwrap();
    fs::rename(old.index_dir(), &index).unwrap();
    refused("an index from before most of the log");
    fs::remove_dir_all(&index).unwrap();
    fs::rename(newest, &index).unwrap();
    bench.open().unwrap();
}

/// While the log has every commit, the index can be rebuilt from it.
#[test]
fn an_index_that_is_gone_is_folded_anew_from_a_whole_log() {
    let bench = filled(7, 100);
    fs::remove_dir_all(bench.index_dir()).unwrap();
    let store = bench.open().unwrap();
    for n in 0..100_u64 {
        let object = store.get(format!("{n:03}")).unwrap().unwrap();
        assert!(object.value == bytes(7_000 + n, 3_000));
    }
    assert!(store.verify().unwrap().errors.is_empty());
}
