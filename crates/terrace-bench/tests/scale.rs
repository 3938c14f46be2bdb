//! `terrace-bench scale` in miniature, with its real processes, one of which is killed.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::{fs, path::Path, process::Command};

/// Runs it below a directory and returns its result.
fn run(directory: &Path, more: &[&str]) -> Value {
    let results = directory.join("results");
    let done = Command::new(env!("CARGO_BIN_EXE_terrace-bench"))
        .args(["scale", "--only", "terrace", "--value-bytes", "100"])
        .args(["--memory-mib", "512", "--cache-mib", "32", "--terrace-cache-mib", "32"])
        .args(["--read-seconds", "0.1", "--reopened-seconds", "0.6"])
        .args(["--writers", "2", "--readers", "4"])
        .args(more)
        .arg("--directory")
        .arg(directory)
        .arg("--results")
        .arg(&results)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    let mut files = fs::read_dir(&results).unwrap().map(|item| item.unwrap().path());
    let result = files
        .find(|path| path.extension().is_some_and(|extension| extension == "json"))
        .unwrap();
    serde_json::from_str::<Value>(&fs::read_to_string(result).unwrap()).unwrap()["outcome"].clone()
}

#[test]
fn a_store_grows_is_killed_and_is_there_again() {
    let directory = tempfile::tempdir().unwrap();
    let outcome = run(directory.path(), &["--objects", "3000", "--objects", "9000"]);
    let levels = outcome["grown"]["levels"].as_array().unwrap();
    let objects: Vec<u64> = levels.iter().map(|level| level["objects"].as_u64().unwrap()).collect();
    assert_eq!(objects, [3000, 9000]);
    for (level, put) in levels.iter().zip([3000, 6000]) {
        assert_eq!(level["fill"]["operations"], put);
        for kind in ["uniform", "popular", "absent"] {
            assert!(level[kind]["step"]["operations"].as_u64() > Some(0), "{kind}");
        }
        for figure in ["hash_index_bytes", "filter_bytes", "levels", "runs", "table_bytes"] {
            assert!(level["figures"][figure].as_u64() > Some(0), "{figure}");
        }
        assert!(level["disk_bytes"].as_u64() > Some(100 * level["objects"].as_u64().unwrap()));
    }
    let slices = outcome["grown"]["slices"].as_array().unwrap();
    let put: u64 = slices.iter().map(|slice| slice["put"].as_u64().unwrap()).sum();
    assert_eq!(put, 9000);
    assert_eq!(outcome["reopened"]["looked_for"], 1000);
    assert!(!outcome["reopened"]["rates"].as_array().unwrap().is_empty());
    let results = directory.path().join("results");
    let report = fs::read_to_string(results.join("report.html")).unwrap();
    for part in [
        "As a store grows",
        "After kill -9",
        "puts/s of the last step over the first",
    ] {
        assert!(report.contains(part), "{part} is missing");
    }
    for chart in ["scale-fill-0.svg", "scale-gets-0.svg"] {
        let svg = fs::read_to_string(results.join("charts").join(chart)).unwrap();
        assert!(svg.contains("Terrace") && svg.contains("9000"), "{chart}");
    }
}

/// Everything put before the kill is measured and found again.
#[test]
fn filling_ends_when_its_time_is_up() {
    let directory = tempfile::tempdir().unwrap();
    let outcome = run(
        directory.path(),
        &["--objects", "500", "--objects", "40000000", "--fill-seconds-max", "0.3"],
    );
    let levels = outcome["grown"]["levels"].as_array().unwrap();
    let last = levels.last().unwrap()["objects"].as_u64().unwrap();
    assert!((500..40_000_000).contains(&last), "{last}");
    assert_eq!(outcome["reopened"]["looked_for"], last.min(1000));
}
