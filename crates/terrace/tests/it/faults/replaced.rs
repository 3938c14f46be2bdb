//! Another directory at the place of an open store's.

use crate::{
    backup::{contents, options},
    common::{bytes, files},
};
use std::fs;
use terrace::{Durability, PutOptions, Store};

/// A server was started before its devices were mounted, or a backup was restored to where its
/// directory had been: blocks, marks and tables of the open store went among the files of the other
/// one, whose objects were lost when it was opened.
#[test]
fn an_open_store_writes_nothing_into_one_that_took_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let (place, moved) = (dir.path().join("store"), dir.path().join("moved"));
    let store = Store::open(options(&place)).unwrap();
    let synced = PutOptions {
        durability: Durability::Sync,
        ..PutOptions::default()
    };
    let mut acknowledged = Vec::new();
    let mut put = |store: &Store, number: u64| {
        // Into blocks, the log, and the index.
        let value = bytes(number, [200_000, 1_000, 10][number as usize % 3]);
        let key = format!("{number}");
        let put = store.put_with(&key, &value, &synced);
        if put.is_ok() {
            acknowledged.push((key, value));
        }
        put.map(drop)
    };
    for number in 0..30 {
        put(&store, number).unwrap();
    }

    fs::rename(&place, &moved).unwrap();
    let other = Store::open(options(&place)).unwrap();
    for number in 0..30_u64 {
        other.put(format!("other {number}"), bytes(number, 150_000)).unwrap();
    }
    other.close().unwrap();
    let files_of = || {
        let mut all = files(&place);
        all.sort();
        all.into_iter()
            .map(|path| (fs::read(&path).unwrap(), path))
            .collect::<Vec<_>>()
    };
    let before = files_of();
    let mut refused = None;
    for number in 30..600 {
        if let Err(error) = put(&store, number) {
            refused = Some(error.to_string());
            break;
        }
    }
    let refused = refused.expect("the place of its blocks is another store's");
    // Background work may have found none, between the two.
    let reasons = ["is not the directory that was opened", "cannot find"];
    assert!(reasons.iter().any(|reason| refused.contains(reason)), "{refused}");
    let _ = store.flush();
    let _ = store.close();
    assert!(files_of() == before, "it wrote into the other store");

    let other = Store::open(options(&place)).unwrap();
    assert_eq!(contents(&other).len(), 30);
    other.close().unwrap();
    let store = Store::open(options(&moved)).unwrap();
    for (key, value) in &acknowledged {
        assert_eq!(store.get(key).unwrap().unwrap().value, value, "{key}");
    }
}
