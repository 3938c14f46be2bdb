//! Tests of the evaluation end to end at a tiny size, and of evaluating made-up results.

#![allow(clippy::unwrap_used)]

use super::{evaluation::Contender, model::Model, paper::Paper, targets::targets};
use crate::{
    Outcome,
    all::EVALUATIONS,
    harness::{
        fio, parse, report,
        results::{Record, Results},
        setup::Setup,
        target::Target,
    },
    rivals::Candidate,
};
use serde_json::{Value, json};
use std::{fs, path::Path};

/// Sizes with which everything takes seconds. Small objects are on flash and large ones in blocks,
/// as in the original.
const TINY: &str = "
seed = 5
small_bytes = 512
large_bytes = 16384
size_threshold_bytes = 16384
segment_bytes = 1048576
split_threshold_bytes = 1048576
heat_exponent = 0.99
heat_flash_share = 0.3
[small]
runs = 2
insert_groups = 70
read_groups = 150
small_reads = 32
ratios = [1, 4]
raw_seconds = 1
heat_reads = 600
";

fn mris(arguments: &[&str]) -> Outcome {
    let results = super::run(parse(arguments)?)?;
    crate::all::conclude(&results, &[])
}

fn have_leveldb() -> bool {
    Candidate::compiled_in().contains(&Candidate::LevelDb)
}

/// Command line of a part of a tiny evaluation, with all files in `directory`.
fn tiny_line(directory: &Path, part: &str) -> Vec<String> {
    let (_, small) = TINY.split_once("[small]").unwrap();
    fs::write(directory.join("tiny.toml"), format!("{TINY}[full]{small}")).unwrap();
    let mut line = vec![part.to_owned()];
    for (option, name) in [
        ("--ssd", "ssd"),
        ("--hdd", "hdd"),
        ("--results", "results"),
        ("--workload", "tiny.toml"),
    ] {
        line.extend([option.to_owned(), directory.join(name).to_str().unwrap().to_owned()]);
    }
    line
}

fn all(directory: &Path, resume: bool) {
    let line = tiny_line(directory, "all");
    let mut line: Vec<&str> = line.iter().map(String::as_str).collect();
    line.extend(resume.then_some("--resume"));
    line.extend((!fio::is_installed()).then_some("--no-raw"));
    mris(&line).unwrap();
}

#[test]
fn a_tiny_evaluation_makes_a_report_that_its_results_make_again() {
    let directory = tempfile::tempdir().unwrap();
    all(directory.path(), false);
    let results = directory.path().join("results");
    let page = fs::read_to_string(results.join("report.html")).unwrap();
    for part in [
        "figure-9a",
        "figure-10",
        "figure-11",
        "figure-12",
        "figure-13",
        "figure-14",
        "Table 3",
        "Targets",
        "Popular images, with heat",
    ] {
        assert!(page.contains(part), "{part} is missing");
    }
    assert!(page.contains("Terrace Hybrid") && page.contains("paper Hybrid") && !page.contains("NaN"));
    assert_eq!(page.contains("LevelDB HDD"), have_leveldb());
    assert_eq!(page.matches("<section").count(), page.matches("</section>").count());
    assert!(
        !page.contains("src=") && !page.contains("<script"),
        "the page must stand alone"
    );
    for chart in ["figure-9a", "figure-10", "figure-14"] {
        assert!(
            fs::read_to_string(results.join(format!("charts/{chart}.svg")))
                .unwrap()
                .starts_with("<svg")
        );
    }

    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(&results).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "json") {
            fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    let again = copy.path().join("again.html");
    report::write(&EVALUATIONS, copy.path(), &again, None).unwrap();
    assert_eq!(fs::read_to_string(again).unwrap(), page);

    let starts = |records: Vec<Record>| records.into_iter().map(|record| record.started).collect::<Vec<_>>();
    let before = starts(Results::create(&results).unwrap().all().unwrap());
    let contenders = if have_leveldb() { 5 } else { 3 };
    let raw = if fio::is_installed() { 4 } else { 0 };
    // `heat`: two runs of two ratios, off and on.
    assert_eq!(before.len(), contenders * (2 * 2 + 2 * 2) + raw + 2 * 2 * 2);
    all(directory.path(), true);
    assert_eq!(starts(Results::create(&results).unwrap().all().unwrap()), before);
    assert_eq!(
        fs::read_dir(directory.path().join("ssd")).unwrap().count(),
        0,
        "stores must not stay"
    );
}

/// Each engine separately: what was put is there after reopening; reading what was not put is an
/// error.
#[test]
fn engines_keep_groups_and_miss_absent_ones() {
    let directory = tempfile::tempdir().unwrap();
    let line = tiny_line(directory.path(), "read");
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    let super::Part::Read(common) = parse::<super::Arguments>(&line).unwrap().part else {
        panic!()
    };
    let evaluation = super::Evaluation::new(&common).unwrap();
    for contender in evaluation.contenders() {
        evaluation.places.fresh("store").unwrap();
        let progress = &evaluation.bench.progress;
        let store = evaluation.open(contender, "store").unwrap();
        let inserted = store.insert(&[3, 1], progress).unwrap();
        assert_eq!(inserted.kinds[0].summary().count, 2);
        store.engine.flush().unwrap();
        store.close().unwrap();
        let store = evaluation.open(contender, "store").unwrap();
        let read = store.read(&[2, 7, 3, 6], progress).unwrap();
        let counts: Vec<u64> = read.kinds.iter().map(|kind| kind.summary().count).collect();
        assert_eq!(counts, [2, 2], "{}", contender.name());
        assert!(store.read(&[4], progress).is_err(), "{}", contender.name());
    }
}

#[test]
fn hostile_pagecounts_files_are_counted_from_the_command_line() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pagecounts");
    fs::write(&file, b"en File:A.jpg 2 20000\nrubbish\nen Main_Page 1 5\n").unwrap();
    let results = directory.path().join("results");
    mris(&[
        "figure8",
        file.to_str().unwrap(),
        "--results",
        results.to_str().unwrap(),
    ])
    .unwrap();
    let records = Results::create(&results).unwrap().all().unwrap();
    assert_eq!(records[0].outcome["hostile_lines"], 1);
    assert_eq!(records[0].outcome["bins"][14]["requests"], 2);
    let page = directory.path().join("page.html");
    report::write(&EVALUATIONS, &results, &page, None).unwrap();
    let page = fs::read_to_string(page).unwrap();
    assert!(
        page.contains("Figure 8") && page.contains("81.58"),
        "the paper's sums are beside ours"
    );
    assert!(mris(&["figure8", "--results", results.to_str().unwrap()]).is_err());
    assert!(mris(&["figure8", "absent-file", "--results", results.to_str().unwrap()]).is_err());
}

fn surroundings() -> Value {
    json!({
        "small_bytes": 8192, "large_bytes": 131_072, "ssd": "s", "hdd": "h", "one_device": false,
        "tuning": {"size_threshold_bytes": 131_072, "segment_bytes": 1 << 26, "split_threshold_bytes": 1 << 26},
    })
}

/// Runs in which each small and each large read takes exactly this long.
fn made_up(costs: &[(Setup, f64, f64)]) -> Vec<Record> {
    let mut records = Vec::new();
    for &(setup, small_us, large_us) in costs {
        for ratio in [1_u64, 4, 16] {
            let large = 1600 / ratio;
            let seconds = (1600.0 * small_us + large as f64 * large_us) / 1e6;
            let latency =
                |count: u64, us: f64| json!({"count": count, "mean_us": us, "deviation_us": 0.0, "percentiles_us": []});
            let settings = json!({
                "contender": Contender::terrace(setup), "ratio": ratio, "groups": 1000, "small_reads": 1600, "run": 1,
                "surroundings": surroundings(),
            });
            let outcome = json!({
                "seconds": seconds, "small": latency(1600, small_us), "large": latency(large, large_us),
                "traffic": {"ssd": {"device": null, "drive": null}, "hdd": {"device": null, "drive": null}},
                "engine": {}, "caches_dropped": true, "open_seconds": 0.0,
            });
            records.push(Record::made_up("mris-read", settings, outcome));
        }
    }
    for (drive, read_bytes, mean_us) in [("ssd", 8192_u64, 350.0), ("hdd", 131_072, 14_000.0)] {
        let settings = json!({
            "drive": drive, "description": &drive[..1], "run": 1,
            "reads": {"read_bytes": read_bytes, "file_bytes": read_bytes * 1000, "seconds": 1, "seed": 1},
        });
        let outcome = json!({"mean_us": mean_us, "deviation_us": 0.0, "reads": 9, "version": "fio-3"});
        records.push(Record::made_up("mris-raw", settings, outcome));
    }
    records
}

#[test]
fn regression_and_limit_find_the_costs_that_were_put_in() {
    let records = made_up(&[
        (Setup::Ssd, 400.0, 2000.0),
        (Setup::Hybrid, 400.0, 15_000.0),
        (Setup::Hdd, 10_000.0, 15_000.0),
    ]);
    let model = Model::of(&records).unwrap();
    let costs = model.costs(Candidate::Terrace).unwrap();
    for (found, put_in) in [
        (costs.small_ssd_us, 400.0),
        (costs.large_ssd_us, 2000.0),
        (costs.small_hdd_us, 10_000.0),
        (costs.large_hdd_us, 15_000.0),
    ] {
        assert!((found - put_in).abs() < 1e-3, "{costs:?}");
    }
    let measured = model
        .reads_per_second(Contender::terrace(Setup::Hybrid), 16)
        .unwrap()
        .mean;
    assert!((measured - costs.reads_per_second(Setup::Hybrid, 16.0)).abs() < 1e-6);
    let megabytes = model
        .read_mb_per_second(Contender::terrace(Setup::Hybrid), 16)
        .unwrap()
        .mean;
    assert!((megabytes - model.mb_of(measured, 16)).abs() < 1e-6);
    assert!((model.limit(16).unwrap() - 1e6 * 17.0 / (16.0 * 350.0 + 14_000.0)).abs() < 1e-6);
    assert_eq!(model.timed(Contender::terrace(Setup::Hdd)), Some((10_000.0, 15_000.0)));
}

#[test]
fn targets_are_met_or_missed_by_what_was_measured() {
    let paper = Paper::published().unwrap();
    let verdicts = |costs: &[(Setup, f64, f64)]| {
        let targets = targets(&Model::of(&made_up(costs)).unwrap(), &paper);
        assert_eq!(targets.len(), 9);
        targets.iter().map(Target::is_met).collect::<Vec<bool>>()
    };
    let hdd = (Setup::Hdd, 10_000.0, 15_000.0);
    assert_eq!(verdicts(&[(Setup::Hybrid, 360.0, 14_500.0), hdd]), [true; 9]);
    // As slow as the paper's: above HDD from ratio 4 on, far from the limit, never twice the
    // paper's.
    let slow = verdicts(&[(Setup::Hybrid, 1482.0, 37_599.0), hdd]);
    assert_eq!(slow, [false, true, true, false, false, false, false, false, false]);
}

#[test]
fn runs_of_another_size_are_left_out_and_said() {
    let mut records = made_up(&[(Setup::Hybrid, 400.0, 15_000.0)]);
    records[0].settings["groups"] = json!(50);
    let model = Model::of(&records).unwrap();
    assert_eq!(
        (model.left_out, model.ratios(), model.read_groups),
        (1, vec![4, 16], 1000)
    );
}
