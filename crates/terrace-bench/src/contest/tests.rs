//! The experiments in miniature, with every candidate in this build, in this process.
#![allow(clippy::unwrap_used)]

use super::{
    Amount, Common, Contest, Meeting, Paths, Rivals, WorkloadFile,
    data::{Mixed, ValueSize},
    flashstore::{self, Syncing, trace::Kind},
    micro, none_failed, recovery,
    worker::{Errand, Task, Teller, perform},
    ycsb,
};
use crate::{
    harness::{
        parse, report,
        results::{Bench, Plan},
        setup::Setup,
        target::Target,
    },
    rivals::Candidate,
};
use serde::{Serialize, de::DeserializeOwned};
use std::path::Path;

fn meeting(candidate: Candidate, setup: Setup) -> Meeting {
    Meeting {
        candidate,
        setup,
        ssd: "fast".to_owned(),
        hdd: "slow".to_owned(),
        cache_bytes: 16 << 20,
        memory_bytes: 512 << 20,
        paths: Paths::default(),
    }
}

fn done<T: DeserializeOwned>(directory: &Path, task: Task) -> T {
    let paths = Paths {
        ssd: directory.join("ssd"),
        hdd: directory.join("hdd"),
    };
    let outcome = perform(Errand { paths, task }, &Teller::silent()).unwrap_or_else(|error| panic!("{error}"));
    serde_json::from_value(outcome).unwrap()
}

fn micro_settings(candidate: Candidate, setup: Setup, size: ValueSize) -> micro::Settings {
    micro::Settings {
        meeting: meeting(candidate, setup),
        size,
        objects: 300,
        written: 400,
        flash_share: (setup == Setup::Hybrid).then_some(0.5),
        seconds_max: 0.05,
        write_threads: 1,
        sync_threads: 4,
        read_threads: 2,
        seed: 3,
    }
}

#[test]
fn single_operations_of_all_candidates() {
    for candidate in Candidate::compiled_in() {
        let directory = tempfile::tempdir().unwrap();
        let settings = micro_settings(candidate, Setup::Ssd, ValueSize::Bytes(1000));
        let measured: micro::Measured = done(directory.path(), Task::Micro(settings));
        let scans = candidate.abilities().scans;
        assert_eq!(measured.steps.len(), if scans { 9 } else { 8 }, "{}", candidate.name());
        for step in &measured.steps {
            assert!(
                step.operations > 0 && step.rate() > 0.0,
                "{}: {}",
                candidate.name(),
                step.name
            );
            // In so short a time the writer may not get a turn beside the readers.
            if step.name != "readwhilewriting" {
                let writes = !["readrandom", "readmissing", "scan"].contains(&step.name.as_str());
                assert_eq!(step.user_bytes > 0, writes, "{}: {}", candidate.name(), step.name);
            }
        }
        if scans {
            assert!(measured.step("scan").unwrap().pairs_per_operation > 2.0);
        }
        assert!(!measured.engine_settings.is_empty());
        let left = std::fs::read_dir(directory.path().join("ssd")).unwrap().count();
        assert_eq!(left, 0, "{} left something", candidate.name());
    }
}

#[test]
fn mixed_values_on_two_drives() {
    for candidate in Candidate::compiled_in() {
        if candidate.abilities().two_drives {
            let directory = tempfile::tempdir().unwrap();
            let settings = micro_settings(candidate, Setup::Hybrid, ValueSize::Mixed(Mixed::Mixed));
            let measured: micro::Measured = done(directory.path(), Task::Micro(settings));
            assert!(measured.step("readrandom").unwrap().operations > 0);
            let filled = measured.step("fillrandom").unwrap();
            assert!(filled.flash_bytes_max > Some(0), "{filled:?}");
        }
    }
}

#[test]
fn ycsb_of_all_candidates() {
    for candidate in Candidate::compiled_in() {
        let directory = tempfile::tempdir().unwrap();
        let settings = ycsb::Settings {
            meeting: meeting(candidate, Setup::Ssd),
            amount: ycsb::Amount {
                records: 500,
                operations: 400,
                seconds_max: 600.0,
                threads: 4,
                value_bytes: 1 << 10,
            },
            seed: 3,
        };
        let measured: ycsb::Measured = done(directory.path(), Task::Ycsb(settings));
        let names: String = measured.steps.iter().map(|step| step.name.as_str()).collect();
        let expected = if candidate.abilities().scans {
            "loadABCFDE"
        } else {
            "loadABCFD"
        };
        assert_eq!(names, expected, "{}", candidate.name());
        for step in &measured.steps[1..] {
            assert_eq!(step.operations, 400, "{}: {}", candidate.name(), step.name);
            let share = step.user_bytes as f64 / 400.0 / 1040.0;
            let wanted = match step.name.as_str() {
                "A" | "F" => 0.5,
                "C" => 0.0,
                _ => 0.05,
            };
            assert!(
                (share - wanted).abs() < 0.12,
                "{}: {share} written in {}",
                candidate.name(),
                step.name
            );
        }
    }
}

fn trace_settings(candidate: Candidate, setup: Setup, trace: Kind, syncing: Syncing) -> flashstore::Settings {
    flashstore::Settings {
        meeting: meeting(candidate, setup),
        trace,
        operations: 3000,
        syncing,
        flash_share: None,
        seconds_max: 600.0,
        seed: 3,
    }
}

#[test]
fn traces_of_all_candidates_are_complete() {
    for candidate in Candidate::compiled_in() {
        for trace in Kind::ALL {
            for syncing in [Syncing::EveryPage, Syncing::EveryWrite] {
                let directory = tempfile::tempdir().unwrap();
                let settings = trace_settings(candidate, Setup::Ssd, trace, syncing);
                let measured: flashstore::Measured = done(directory.path(), Task::FlashStore(settings));
                assert!(measured.complete, "{}", candidate.name());
                assert_eq!(measured.step.operations, 3000);
                assert!(
                    measured.found > 0 && measured.sets > 200,
                    "{}: {measured:?}",
                    candidate.name()
                );
            }
        }
    }
}

/// With a quarter of the flash, values are destaged, and all of them are found.
#[test]
fn a_trace_goes_on_with_less_flash_than_data() {
    let directory = tempfile::tempdir().unwrap();
    let settings = flashstore::Settings {
        operations: 40_000,
        flash_share: Some(0.3),
        ..trace_settings(
            Candidate::TerraceUncached,
            Setup::Hybrid,
            Kind::Xbox,
            Syncing::EveryPage,
        )
    };
    let measured: flashstore::Measured = done(directory.path(), Task::FlashStore(settings));
    assert!(measured.complete);
    assert!(
        measured.engine_settings.contains("flash log"),
        "{}",
        measured.engine_settings
    );
}

/// Files of a process that ended without closing: here they are copied under a running engine.
#[test]
fn what_was_synced_is_recovered_and_what_is_missing_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let settings = recovery::Settings {
        meeting: meeting(Candidate::Terrace, Setup::Ssd),
        objects: 2000,
        seed: 3,
    };
    let mut bound = settings.clone();
    bound.meeting.paths.ssd = directory.path().join("ssd");
    let opening = super::step::below(&bound.meeting.opening(2000, 1040), "killed");
    let engine = Candidate::Terrace.open(&opening).unwrap();
    let objects = super::data::Objects::new(ValueSize::Bytes(1 << 10), 3);
    for number in 0..2000 {
        let key = super::data::Objects::key(number);
        engine
            .put(&key, objects.value(number), terrace::Durability::Buffered)
            .unwrap();
    }
    engine.close().unwrap();
    let measured: recovery::Measured = done(directory.path(), Task::Recover(settings.clone()));
    assert_eq!(measured.looked_for, 1000);
    assert!(measured.first_read_seconds >= measured.open_seconds && measured.open_seconds > 0.0);
    let more = recovery::Settings {
        objects: 4000,
        ..settings
    };
    let paths = bound.meeting.paths.clone();
    let task = Task::Recover(more);
    let error = perform(Errand { paths, task }, &Teller::silent())
        .unwrap_err()
        .to_string();
    assert!(error.contains("is gone"), "{error}");
}

fn keep<S: Serialize, T: Serialize>(bench: &Bench, experiment: &'static str, settings: S, measured: T) {
    let plan = Plan {
        experiment,
        name: experiment.to_owned(),
        settings,
        seed: 3,
        expected_seconds: 1.0,
    };
    let outcome = super::Bounded {
        memory_bounded: true,
        measured,
    };
    bench.run(&plan, |_| Ok(outcome)).unwrap();
}

/// A step with this many operations in a second, this processor time and this write amplification.
fn made(name: &str, operations: u64, cpu_seconds: f64, amplification: f64) -> super::step::Step {
    let user_bytes = 1_000_000;
    super::step::Step {
        name: name.to_owned(),
        operations,
        pairs_per_operation: 1.0,
        seconds: 1.0,
        user_bytes,
        latency: crate::harness::latency::LatencySummary::default(),
        usage: super::usage::Usage {
            cpu_seconds: Some(cpu_seconds),
            written_bytes: Some((user_bytes as f64 * amplification) as u64),
            ..super::usage::Usage::default()
        },
        engine_ram_bytes: None,
        device: None,
        large_device: None,
        flash_bytes_max: None,
        hit_ratio: None,
    }
}

fn singles(steps: Vec<super::step::Step>) -> micro::Measured {
    micro::Measured {
        steps,
        stored: 1000,
        space_after_fill: 1.0,
        space_after_overwrite: 1.1,
        engine_settings: "as <they> are".to_owned(),
    }
}

/// Results with known figures.
fn keep_known(bench: &Bench) {
    for (candidate, rate, cpu, amplification) in [
        (Candidate::Terrace, 3000, 0.4, 1.5),
        (Candidate::RocksDb, 1000, 1.0, 2.0),
    ] {
        let steps = ["fillrandom", "overwrite", "readrandom", "scan", "fillsync"];
        let measured = singles(steps.map(|name| made(name, rate, cpu, amplification)).to_vec());
        keep(
            bench,
            micro::EXPERIMENT,
            micro_settings(candidate, Setup::Ssd, ValueSize::Bytes(8192)),
            measured,
        );
    }
    for (candidate, setup, rate) in [
        (Candidate::TerraceUncached, Setup::Ssd, 6000),
        (Candidate::BerkeleyDb, Setup::Ssd, 1000),
        (Candidate::BerkeleyDb, Setup::Hdd, 200),
    ] {
        let measured = flashstore::Measured {
            step: made("trace", rate, 1.0, 1.0),
            complete: true,
            found: 1,
            sets: 1,
            space: None,
            engine_settings: String::new(),
        };
        let settings = trace_settings(candidate, setup, Kind::Xbox, Syncing::EveryPage);
        keep(bench, flashstore::EXPERIMENT, settings, measured);
    }
}

#[test]
fn targets_and_pages_follow_from_results() {
    let directory = tempfile::tempdir().unwrap();
    let bench = Bench::new(directory.path(), false).unwrap();
    keep_known(&bench);
    let records = bench.results.all().unwrap();
    let targets = super::targets::targets(&records).unwrap();
    let found = |part: &str| -> &Target {
        targets
            .iter()
            .find(|target| target.name.contains(part))
            .unwrap_or_else(|| panic!("no target {part} in {targets:?}"))
    };
    let puts = found("fillrandom, 8 KiB");
    assert!((puts.measured - 3.0).abs() < 1e-9 && !puts.is_met(), "{puts}");
    assert!(found("readrandom, 8 KiB, SSD: rate").is_met());
    let cpu = found("processor time");
    assert!((cpu.measured - 0.4 / 3.0).abs() < 1e-3 && cpu.is_met(), "{cpu}");
    let amplification = found("write amplification");
    assert!(
        (amplification.measured - 0.75).abs() < 1e-9 && !amplification.is_met(),
        "{amplification}"
    );
    let ssd = found("Terrace over Berkeley DB on SSD");
    assert!((ssd.measured - 6.0).abs() < 1e-9 && ssd.is_met());
    let hdd = found("Terrace over Berkeley DB on HDD");
    assert!((hdd.measured - 30.0).abs() < 1e-9 && !hdd.is_met());
    let page = directory.path().join("report.html");
    report::write(&[&Rivals], directory.path(), &page, None).unwrap();
    let page = std::fs::read_to_string(page).unwrap();
    for part in [
        "as &lt;they&gt; are",
        "Values of 8 KiB",
        "Figure 5",
        "MISSED",
        "Berkeley DB on HDD",
    ] {
        assert!(page.contains(part), "{part}");
    }
}

/// Runs under other conditions are not compared.
#[test]
fn runs_on_other_drives_are_not_compared() {
    let directory = tempfile::tempdir().unwrap();
    let bench = Bench::new(directory.path(), false).unwrap();
    for (candidate, ssd) in [(Candidate::Terrace, "one"), (Candidate::RocksDb, "other")] {
        let measured = singles(vec![made("fillrandom", 10, 1.0, 1.0)]);
        let mut settings = micro_settings(candidate, Setup::Ssd, ValueSize::Bytes(8192));
        settings.meeting.ssd = ssd.to_owned();
        keep(&bench, micro::EXPERIMENT, settings, measured);
    }
    assert!(
        super::targets::targets(&bench.results.all().unwrap())
            .unwrap()
            .is_empty()
    );
}

#[test]
fn the_file_in_the_repository_can_be_run_and_misspelt_ones_not() {
    let workload = WorkloadFile::read(None).unwrap();
    let Amount { micro, .. } = &workload.small;
    assert_eq!(micro.sizes.len(), 6);
    assert_eq!(workload.platforms.len(), 2);
    let text = include_str!("../../workloads/contest.toml");
    let directory = tempfile::tempdir().unwrap();
    let refused = |text: String| {
        let file = directory.path().join("contest.toml");
        std::fs::write(&file, text).unwrap();
        WorkloadFile::read(Some(&file)).unwrap_err().to_string()
    };
    assert!(refused(text.replace("records =", "recordz =")).contains("recordz"));
    assert!(refused(text.replace("cache_mib = 128", "cache_mib = 1")).contains("cache_mib"));
    assert!(refused(text.replace("threads = 8", "threads = 0")).contains("threads"));
}

/// Regression: after a rival that stopped answering, no further candidate was in the report.
#[test]
fn a_run_that_fails_is_named_and_the_others_are_made() {
    let directory = tempfile::tempdir().unwrap();
    let results = directory.path().join("results");
    let place = directory.path().to_str().unwrap();
    let contest = |more: &[&str]| {
        let line = ["--directory", place, "--results", results.to_str().unwrap()];
        let common: Common = parse(&[&line, more].concat()).unwrap();
        Contest::open(&common).unwrap()
    };
    let plans =
        |contest: &Contest| ["one", "two", "three"].map(|name| contest.plan("test", name.to_owned(), 1.0, name));
    let first = contest(&[]);
    let fails = |name: &&str, _: &_| match *name {
        "two" => Err("it stopped answering".into()),
        _ => Ok(1),
    };
    first.make_by(&plans(&first), fails).unwrap();
    assert_eq!(first.failed(), ["two: it stopped answering"]);
    let error = none_failed(&first.failed()).unwrap_err().to_string();
    assert!(
        error.starts_with("1 run(s) failed") && error.contains("two: it"),
        "{error}"
    );
    assert_eq!(first.bench.results.all().unwrap().len(), 2);
    let again = contest(&["--resume"]);
    let only_two = |name: &&str, _: &_| {
        if *name == "two" {
            Ok(2)
        } else {
            Err("it was there".into())
        }
    };
    again.make_by(&plans(&again), only_two).unwrap();
    none_failed(&again.failed()).unwrap();
    assert_eq!(again.bench.results.all().unwrap().len(), 3);
}
