//! A tier that is an older copy than the other is refused: its opens for writing are counted.

use crate::common::{bytes, copy_directory};
use std::{fs, path::Path};
use terrace::{Error, Options, Store};

fn options(dir: &Path) -> Options {
    Options {
        segment_bytes: 256 << 10,
        log_capacity_bytes: Some(4 << 20),
        size_threshold_bytes: 16 << 10,
        split_threshold_bytes: 256 << 10,
        ..Options::new(dir)
    }
}

fn put(options: &Options, key: &str) {
    let store = Store::open(options.clone()).unwrap();
    store.put(key, bytes(1, 100_000)).unwrap();
    store.close().unwrap();
}

fn blocks(options: &Options) -> usize {
    fs::read_dir(options.large_dir.join("blocks")).unwrap().count()
}

/// A clone of the SSD was opened with the large tier of today: the blocks written since were
/// deleted at once, as unreferenced, and the right SSD, put back, had lost acknowledged objects.
/// Likewise an older large tier with the flash tier of today.
#[test]
fn an_older_copy_of_a_tier_is_refused_and_nothing_is_deleted() {
    for older in ["flash", "large"] {
        let dir = tempfile::tempdir().unwrap();
        let now = options(dir.path());
        put(&now, "first");
        let clone = dir.path().join("clone");
        copy_directory(&dir.path().join(older), &clone).unwrap();
        // One open is enough.
        put(&now, "second");
        let before = blocks(&now);
        let mut mixed = now.clone();
        *(if older == "flash" {
            &mut mixed.flash_dir
        } else {
            &mut mixed.large_dir
        }) = clone;
        for read_only in [false, true] {
            let mixed = Options {
                read_only,
                ..mixed.clone()
            };
            let error = Store::open(mixed).unwrap_err();
            assert!(matches!(error, Error::NotAStore { .. }), "{error}");
            let message = error.to_string();
            assert!(
                message.contains(&format!("the {older} tier is an older copy")),
                "{message}"
            );
        }
        assert_eq!(blocks(&now), before, "{older}");
        let store = Store::open(now.clone()).unwrap();
        assert_eq!(store.verify().unwrap().errors, Vec::<String>::new());
        for key in ["first", "second"] {
            assert!(store.get(key).unwrap().is_some(), "{key}");
        }
        drop(store);
        // A repair accepts the loss; and then the other one is the older copy.
        Store::repair(mixed.clone()).unwrap();
        put(&mixed, "third");
        assert!(matches!(Store::open(now), Err(Error::NotAStore { .. })));
    }
}

/// Stores of before have no counts, and programs of before leave them as they are.
#[test]
fn a_store_without_counts_is_opened_and_gets_them() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path());
    put(&options, "first");
    let tiers = [&options.flash_dir, &options.large_dir];
    let counts = ["TERRACE.opens", "TERRACE.opens.copy"].map(|name| tiers.map(|dir| dir.join(name)));
    let counts = counts.as_flattened();
    for count in counts {
        fs::remove_file(count).unwrap();
    }
    let reading = Options {
        read_only: true,
        ..options.clone()
    };
    assert!(Store::open(reading).unwrap().get("first").unwrap().is_some());
    assert!(counts.iter().all(|count| !count.exists()));
    put(&options, "second");
    assert!(counts.iter().all(|count| count.exists()));
}
