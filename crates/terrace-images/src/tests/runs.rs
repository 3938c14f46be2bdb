//! Tests of whole runs: importing twice, duplicates, stops, a failing store.

use super::{
    super::{CATALOGUE_PREFIX, GroupSink, ImportOptions, Outcome, Progress, import},
    MemorySink, encoded, import_all, import_with, jpeg, picture,
};
use image::ImageFormat;
use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};
use terrace::{Batch, Error, Result};

/// Fills a directory with different pictures.
fn fill(directory: &Path, count: u32) {
    for number in 0..count {
        let bytes = encoded(picture(40 + number, 30), ImageFormat::Png);
        fs::write(directory.join(format!("{number:03}.png")), bytes).unwrap();
    }
}

#[test]
fn importing_again_imports_nothing() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path(), 12);
    let sink = MemorySink::new();
    assert_eq!(import_all(directory.path(), &sink).imported, 12);
    let before = sink.objects.lock().clone();
    let again = import_all(directory.path(), &sink);
    assert_eq!((again.imported, again.already_stored, again.failed.len()), (0, 12, 0));
    assert_eq!(*sink.objects.lock(), before);
    assert_eq!(sink.batches.lock().len(), 12);
    assert!(
        again
            .to_string()
            .starts_with("imported 0, skipped 12 (12 already stored), failed 0"),
        "{again}"
    );
}

#[test]
fn a_second_import_does_not_decode() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("a.jpg"), jpeg(&picture(200, 200))).unwrap();
    let sink = MemorySink::new();
    import_all(directory.path(), &sink);
    // The pixel limit would refuse it if it were decoded.
    let options = ImportOptions {
        pixel_limit: 1,
        ..ImportOptions::default()
    };
    let again = import_with(directory.path(), &sink, &options);
    assert_eq!((again.already_stored, again.failed.len()), (1, 0));
}

#[test]
fn of_equal_files_exactly_one_is_imported() {
    let directory = tempfile::tempdir().unwrap();
    let bytes = jpeg(&picture(300, 200));
    for number in 0..20 {
        fs::write(directory.path().join(format!("{number:02}.jpg")), &bytes).unwrap();
    }
    let sink = MemorySink::new();
    let options = ImportOptions {
        threads: 8,
        ..ImportOptions::default()
    };
    let report = import_with(directory.path(), &sink, &options);
    assert_eq!(
        (report.imported, report.duplicates.len(), report.failed.len()),
        (1, 19, 0)
    );
    assert_eq!(sink.batches.lock().len(), 1);
    let first = &report.duplicates[0].1;
    assert!(report.duplicates.iter().all(|(path, of)| of == first && path != first));
}

#[test]
fn nested_directories_and_single_files_are_imported() {
    let directory = tempfile::tempdir().unwrap();
    let deep = directory.path().join("2024/05/a trip");
    fs::create_dir_all(&deep).unwrap();
    fill(&deep, 3);
    fs::write(
        directory.path().join("top.gif"),
        encoded(picture(5, 5), ImageFormat::Gif),
    )
    .unwrap();
    assert_eq!(import_all(directory.path(), &MemorySink::new()).imported, 4);
    assert_eq!(import_all(&deep.join("001.png"), &MemorySink::new()).imported, 1);
}

#[test]
fn nothing_to_import_from_is_an_error() {
    let sink = MemorySink::new();
    let (progress, stop) = (Progress::default(), AtomicBool::new(false));
    let result = import(
        Path::new("/nowhere/at/all"),
        &sink,
        &ImportOptions::default(),
        &progress,
        &stop,
    );
    assert!(result.unwrap_err().to_string().contains("/nowhere/at/all"));
}

#[test]
fn a_store_that_fails_ends_the_import_and_the_report_says_so() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path(), 60);
    let sink = MemorySink::failing_after(5);
    let report = import_all(directory.path(), &sink);
    assert_eq!(report.imported, 5);
    assert!(
        matches!(report.outcome, Outcome::StoreFailed(Error::OutOfSpace { .. })),
        "{report}"
    );
    assert!(report.failed.is_empty(), "the files are not to blame");
    let text = report.to_string();
    assert!(
        text.starts_with("the store failed: out of space") && text.contains("imported 5"),
        "{text}"
    );
    // After space is freed, the next import continues.
    sink.commits_left.store(u64::MAX, Relaxed);
    let again = import_all(directory.path(), &sink);
    assert_eq!((again.imported, again.already_stored), (55, 5));
}

/// A sink that sets `stop` at the n-th commit, or fails in particular ways.
struct Meddling<'a> {
    inner: MemorySink,
    commits: AtomicUsize,
    meddle: &'a (dyn Fn(usize) -> Result<()> + Sync),
}

impl GroupSink for Meddling<'_> {
    fn contains(&self, key: &str) -> Result<bool> {
        self.inner.contains(key)
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        (self.meddle)(self.commits.fetch_add(1, Relaxed))?;
        self.inner.commit(batch)
    }
}

fn meddling(meddle: &(dyn Fn(usize) -> Result<()> + Sync)) -> Meddling<'_> {
    Meddling {
        inner: MemorySink::new(),
        commits: AtomicUsize::new(0),
        meddle,
    }
}

#[test]
fn a_stop_ends_the_import_after_what_is_in_flight() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path(), 200);
    let stop = AtomicBool::new(false);
    let meddle = |commit| {
        stop.fetch_or(commit == 10, Relaxed);
        Ok(())
    };
    let sink = meddling(&meddle);
    let options = ImportOptions {
        threads: 2,
        ..ImportOptions::default()
    };
    let report = import(directory.path(), &sink, &options, &Progress::default(), &stop).unwrap();
    assert_eq!(report.outcome, Outcome::Stopped);
    // Eleven before the stop, then at most what two threads and the queue between them hold.
    assert!((11..=11 + 8).contains(&report.imported), "{report}");
    assert_eq!(sink.inner.entries().len() as u64, report.imported);
}

#[test]
fn a_group_the_store_refuses_is_that_files_failure() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path(), 10);
    let meddle = |commit| match commit {
        3 => Err(Error::invalid("too odd for me")),
        5 => Err(Error::ConditionFailed {
            key: "catalogue".to_owned(),
            reason: "it is there".to_owned(),
        }),
        _ => Ok(()),
    };
    let sink = meddling(&meddle);
    let (progress, stop) = (Progress::default(), AtomicBool::new(false));
    let report = import(directory.path(), &sink, &ImportOptions::default(), &progress, &stop).unwrap();
    assert_eq!(report.outcome, Outcome::Finished);
    assert_eq!((report.imported, report.already_stored, report.failed.len()), (8, 1, 1));
    assert_eq!(report.failed[0].reason, "too odd for me");
    assert_eq!(progress.files_done.load(Relaxed), 10);
    assert_eq!(progress.files_found.load(Relaxed), 10);
    assert_eq!((progress.imported.load(Relaxed), progress.failed.load(Relaxed)), (8, 1));
}

#[test]
fn a_store_that_panics_ends_the_import() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path(), 40);
    let meddle = |commit| {
        if commit < 2 {
            Ok(())
        } else {
            panic!("a bug in the store")
        }
    };
    let sink = meddling(&meddle);
    let (progress, stop) = (Progress::default(), AtomicBool::new(false));
    let report = import(directory.path(), &sink, &ImportOptions::default(), &progress, &stop).unwrap();
    assert_eq!(report.imported, 2);
    assert!(report.to_string().contains("a bug in the store"), "{report}");
}

#[test]
fn every_catalogue_entry_comes_with_its_whole_group() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path(), 9);
    let sink = MemorySink::new();
    import_all(directory.path(), &sink);
    for keys in sink.batches.lock().iter() {
        assert_eq!(keys.len(), 5);
        let entry = keys.iter().filter(|key| key.starts_with(CATALOGUE_PREFIX));
        assert_eq!(entry.count(), 1);
    }
    assert_eq!(sink.entries().len(), 9);
}

#[test]
fn little_memory_makes_an_import_slow_but_not_stuck() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path(), 30);
    let options = ImportOptions {
        memory_bytes: 1,
        threads: 6,
        ..ImportOptions::default()
    };
    assert_eq!(import_with(directory.path(), &MemorySink::new(), &options).imported, 30);
}

#[test]
fn the_report_names_failures_without_moving_the_cursor() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path(), 2);
    fs::write(directory.path().join("\u{1b}[2Jbad.jpg"), "no image").unwrap();
    let report = import_all(directory.path(), &MemorySink::new());
    let text = report.to_string();
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("imported 2, skipped 0, failed 1 in "), "{text}");
    assert!(lines[1].contains("bad.jpg: named like jpeg"), "{text}");
    assert!(!text.contains('\u{1b}'));
}
