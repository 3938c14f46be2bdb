//! Repair of a store of which a whole tier is not there.

use super::*;

#[test]
fn with_the_flash_tier_gone_the_blocks_give_what_they_have() {
    let mut bench = Bench::filled();
    fs::remove_dir_all(bench.path("flash")).unwrap();
    let report = Store::repair(bench.without_tier()).unwrap();
    assert!(
        report.notes.iter().any(|note| note.contains("cannot be known")),
        "{report:?}"
    );
    let store = bench.open();
    let newest = bench.model.values().map(|item| item.2).max().unwrap();
    let mut stale = 0;
    for item in store.scan(ScanRange::all()).unwrap() {
        let item = item.unwrap();
        let key = String::from_utf8(item.key.to_vec()).unwrap();
        match bench.model.get(&key) {
            Some((value, attributes, version)) if item.info.version == *version => {
                assert_eq!(item.value().unwrap(), *value);
                assert_eq!(&item.info.attributes, attributes);
            }
            // Overwritten with a small value, or deleted: it cannot be known which.
            _ => stale += 1,
        }
    }
    let large = bench.model.values().filter(|item| item.0.len() >= 16 << 10).count();
    assert!(report.objects as usize == large + stale, "{large} {stale} {report:?}");
    bench.put(&store, "new", bytes(1, 100));
    assert!(bench.model["new"].2 > newest);
}

/// Regression: a tier whose file system was not mounted, so that its directory was empty, counted
/// as lost: the repair noted that its manifest was missing, and forgot everything on it. The loss
/// of a whole tier must be said, and before that nothing is written.
#[test]
fn a_tier_that_is_not_there_is_not_forgotten_unasked() {
    for tier in ["flash", "large"] {
        for is_mount_point in [true, false] {
            let bench = Bench::filled();
            let (here, away) = (bench.path(tier), bench.path("away"));
            fs::rename(&here, &away).unwrap();
            if is_mount_point {
                fs::create_dir(&here).unwrap();
                fs::create_dir(here.join("lost+found")).unwrap();
            }
            let error = Store::repair(options(bench.dir.path())).unwrap_err();
            assert!(matches!(error, Error::Invalid(_)), "{tier}: {error}");
            let text = error.to_string();
            assert!(text.contains(here.to_str().unwrap()), "it names the directory: {text}");
            assert!(text.contains("--without-tier") && text.contains("mounted"), "{text}");
            if is_mount_point {
                let left: Vec<_> = fs::read_dir(&here)
                    .unwrap()
                    .map(|item| item.unwrap().file_name())
                    .collect();
                assert!(
                    left.iter().all(|name| name == "LOCK" || name == "lost+found"),
                    "{left:?}"
                );
                fs::remove_dir_all(&here).unwrap();
            }
            assert!(!here.exists());
            fs::rename(&away, &here).unwrap();
            // Mounted again, nothing is missing, with the permission as without it.
            assert_eq!(bench.repair_and_check().notes, [""; 0]);
            assert_eq!(Store::repair(bench.without_tier()).unwrap().notes, [""; 0]);
            bench.check(&bench.open());
        }
    }
    let empty = tempfile::tempdir().unwrap();
    let neither = Store::repair(Options {
        repair_without_tier: true,
        ..options(empty.path())
    });
    assert!(matches!(neither, Err(Error::NotAStore { .. })), "{neither:?}");
}
