//! Tests of everything in miniature, on two directories, and of evaluating made-up results.

#![allow(clippy::unwrap_used)]

use super::{
    EXPERIMENT, Measured, Played, Rush, Scene, Server, Settings, System, Window,
    rivals::{RECORDS, Rival, Shelf, UNIT_BYTES},
    targets::targets,
};
use crate::{
    Outcome,
    harness::{
        parse,
        results::{Record, Results},
        setup::BothTraffic,
        target::Target,
        values::Values,
    },
    video::{
        Arguments,
        sessions::{Catalogue, Choice},
    },
};
use serde_json::json;
use std::{
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

fn scene() -> Scene {
    Scene {
        choice: Choice {
            exponent: 0.7,
            swap_every: 0,
        },
        catalogue: Catalogue { titles: 10, parts: 4 },
        segment_bytes: UNIT_BYTES,
        ram_bytes: UNIT_BYTES as u64,
        segment_seconds: 0.01,
        sessions_max: 4,
        ahead: 2,
        asked_records: 2,
        l2arc_bytes_per_second: 8 << 20,
        haste: 0.1,
        warm_up_sessions: 20,
        rush_reads: 60,
        play_seconds: 0.2,
        ssd: "fast".to_owned(),
        hdd: "slow".to_owned(),
        seed: 5,
    }
}

fn settings(system: System, share: Option<f64>) -> Settings {
    Settings {
        system,
        sessions: 4,
        share,
        scene: scene(),
    }
}

/// A rival with flash for a share of 40 segments, and the segments' values.
fn rival(directory: &Path, system: System, share: f64) -> (Box<Rival>, Values) {
    let settings = settings(System::DiskOnly, Some(share));
    let values = Values::new(1, UNIT_BYTES);
    let shelf = Shelf::fill(&directory.join("disk"), &settings.scene, &values).unwrap();
    let rival = Rival::new(system, Arc::new(shelf), &directory.join("flash"), &settings).unwrap();
    (Box::new(rival), values)
}

/// Reads a segment; returns the number of bytes from the disk.
fn read(rival: &Rival, values: &Values, object: usize) -> u64 {
    let before = rival.disk_read_bytes();
    let found = rival.read(object).unwrap();
    assert!(**found == *values.piece(object as u64, UNIT_BYTES), "{object}");
    rival.disk_read_bytes() - before
}

/// Waits until this many bytes are on flash, since some rivals write in the background.
fn wait_for_flash(rival: &Rival, bytes: u64) {
    let begun = Instant::now();
    while rival.flash_written_bytes() < bytes {
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "less than {bytes} bytes are written"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn without_flash_only_ram_helps() {
    let directory = tempfile::tempdir().unwrap();
    let (rival, values) = rival(directory.path(), System::DiskOnly, 0.0);
    // RAM has space for one segment.
    let from_disk: Vec<u64> = [3, 3, 4, 3].map(|object| read(&rival, &values, object)).to_vec();
    let whole = UNIT_BYTES as u64;
    assert_eq!(
        (from_disk, rival.flash_written_bytes()),
        (vec![whole, 0, whole, whole], 0)
    );
    rival.close().unwrap();
}

#[test]
fn flashcache_writes_every_miss_before_the_reader_has_it() {
    let directory = tempfile::tempdir().unwrap();
    // 40 segments are 720 blocks; 0.8 of them are one set of 512.
    let (rival, values) = rival(directory.path(), System::Flashcache, 0.8);
    let whole = UNIT_BYTES as u64;
    for object in 0..28 {
        assert_eq!(read(&rival, &values, object), whole);
        assert_eq!(rival.flash_written_bytes(), (object as u64 + 1) * whole);
    }
    // 28 segments are 504 blocks. The next one takes the last 8 slots and the first 10, and so
    // evicts this much of the first segment.
    assert_eq!(read(&rival, &values, 0), 0);
    assert_eq!(read(&rival, &values, 28), whole);
    assert_eq!(read(&rival, &values, 0), 10 * 4096);
    assert_eq!(read(&rival, &values, 20), 0);
    rival.close().unwrap();
}

#[test]
fn whole_objects_leave_by_their_last_use() {
    let directory = tempfile::tempdir().unwrap();
    let (rival, values) = rival(directory.path(), System::ObjectLru, 0.05);
    // Space for two; writes are done by another thread.
    let settled = |written: u64| wait_for_flash(&rival, written * UNIT_BYTES as u64);
    for (object, written) in [(1, 1), (2, 2)] {
        assert_eq!(read(&rival, &values, object), UNIT_BYTES as u64);
        settled(written);
    }
    assert_eq!(read(&rival, &values, 1), 0);
    assert_eq!(read(&rival, &values, 3), UNIT_BYTES as u64);
    settled(3);
    assert_eq!(read(&rival, &values, 1), 0);
    assert_eq!(read(&rival, &values, 2), UNIT_BYTES as u64);
    rival.close().unwrap();
}

#[test]
fn l2arc_keeps_what_was_asked_for_and_not_what_was_prefetched() {
    let directory = tempfile::tempdir().unwrap();
    let (rival, values) = rival(directory.path(), System::L2Arc, 0.5);
    let whole = UNIT_BYTES as u64;
    assert_eq!(read(&rival, &values, 0), whole);
    // Most of the segment is still in RAM when the feeder reads the end of the list, which has the
    // two records.
    rival.warm_up_passed(Some(Duration::from_secs(1))).unwrap();
    assert_eq!(rival.flash_written_bytes(), 2 * whole / RECORDS as u64);
    rival.warm_up_passed(Some(Duration::from_secs(1))).unwrap();
    assert_eq!(
        rival.flash_written_bytes(),
        2 * whole / RECORDS as u64,
        "they are there already"
    );
    assert_eq!(read(&rival, &values, 1), whole);
    assert_eq!(read(&rival, &values, 0), 16 * whole / RECORDS as u64);
    rival.close().unwrap();
}

#[test]
fn many_readers_get_what_was_stored_while_everything_moves() {
    for kind in [System::Flashcache, System::L2Arc, System::ObjectLru] {
        let directory = tempfile::tempdir().unwrap();
        let (rival, values) = rival(directory.path(), kind, 0.1);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (rival, values) = (&rival, &values);
                scope.spawn(move || {
                    for step in 0..400 {
                        let object = (step * 7 + thread * 13) % 40;
                        let found = rival.read(object).unwrap();
                        assert!(**found == *values.piece(object as u64, UNIT_BYTES), "{kind:?} {object}");
                        rival.warm_up_passed(Some(Duration::from_millis(20))).unwrap();
                    }
                });
            }
        });
        wait_for_flash(&rival, 1);
        rival.close().unwrap();
    }
}

const TINY: &str = "
seed = 5
titles = 12
sessions = 6
ahead = 2
asked_records = 2
l2arc_bytes_per_second = 8388608
haste = 0.1
[small]
parts = 4
segment_bytes = 73728
ram_bytes = 1048576
segment_seconds = 0.02
warm_up_sessions = 60
rush_reads = 100
play_seconds = 0.5
exponents = [0.7]
shares = [0.5]
";

/// Runs the program with `TINY` and further arguments.
fn in_miniature(more: &[&str]) -> Outcome<Vec<Record>> {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (_, small) = TINY.split_once("[small]").unwrap();
    fs::write(path("tiny.toml"), format!("{TINY}[full]{small}")).unwrap();
    let (ssd, hdd, results, file) = (path("ssd"), path("hdd"), path("results"), path("tiny.toml"));
    let [options, paths] = [
        ["--ssd", "--hdd", "--results", "--workload"],
        [&ssd, &hdd, &results, &file],
    ];
    let line: Vec<&str> = options
        .into_iter()
        .zip(paths)
        .flat_map(|(option, path)| [option, path])
        .collect();
    let arguments: Arguments = parse(&[&line, more].concat()).unwrap();
    super::super::run(&arguments)?;
    for place in [ssd, hdd] {
        assert_eq!(fs::read_dir(place).unwrap().count(), 0, "something stayed on a drive");
    }
    Results::create(Path::new(&results)).unwrap().all()
}

#[test]
fn systems_and_the_seed_can_be_chosen() {
    let records = in_miniature(&["--only", "terrace", "--only", "disk-only", "--seed", "7"]).unwrap();
    let chosen = records.iter().map(|record| record.settings::<Settings>().unwrap());
    let mut chosen: Vec<_> = chosen.map(|settings| (settings.system, settings.scene.seed)).collect();
    chosen.sort_unstable();
    // The disk alone with half of the sessions as well.
    assert_eq!(
        chosen,
        [(System::Terrace, 7), (System::DiskOnly, 7), (System::DiskOnly, 7)]
    );
    let arguments: Arguments = parse(&["--only", "terrace"]).unwrap();
    let refused = super::super::run(&arguments).unwrap_err().to_string();
    assert!(refused.contains("--emulate"), "{refused}");
}

#[test]
fn all_systems_in_miniature() {
    let records = in_miniature(&[]).unwrap();
    assert_eq!(records.len(), 6);
    // In half a second a busy machine may begin no session.
    let mut played = 0;
    for record in &records {
        let (settings, measured): (Settings, Measured) = (record.settings().unwrap(), record.outcome().unwrap());
        assert_eq!(measured.windows.len(), 20, "{}", record.name);
        assert!(
            measured.rush.reads > 0 && measured.rush.bytes_per_second > 0.0,
            "{}",
            record.name
        );
        assert_eq!(measured.played.start.count, measured.played.sessions, "{}", record.name);
        played += measured.played.sessions;
        let wrote = measured.flash_written() > 0.0 || measured.flash_written_before > 0;
        assert_eq!(wrote, settings.system != System::DiskOnly, "{}", record.name);
        assert!(
            (-1.0..=1.0).contains(&measured.hits()),
            "{}: {}",
            record.name,
            measured.hits()
        );
    }
    assert!(played > 0);
    let page = super::report::sections(&records).unwrap();
    let text: String = page.iter().map(crate::harness::page::Section::markdown).collect();
    for part in ["Flashcache model", "L2ARC model", "disk only", "3 |"] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    let reached = targets(&records).unwrap();
    let over_best = |target: &Target| target.name.contains("throughput over the best rival's");
    assert!(reached.iter().any(over_best), "{reached:?}");
}

fn made_up(system: System, sessions: usize, from_disk: u64, rate: f64, written: u64, paused: u64) -> Record {
    let window = Window {
        delivered_bytes: 100,
        disk_read_bytes: from_disk,
        flash_written_bytes: written,
    };
    let measured = Measured {
        windows: vec![window; 4],
        flash_written_before: 0,
        rush: Rush {
            seconds: 1.0,
            reads: 1,
            bytes_per_second: rate,
            latency: Default::default(),
        },
        played: Played {
            sessions: 9,
            paused_sessions: paused,
            ..Played::default()
        },
        warm: window,
        traffic: BothTraffic::default(),
    };
    let settings = Settings {
        sessions,
        ..settings(system, (system != System::DiskOnly).then_some(0.2))
    };
    Record::made_up(EXPERIMENT, json!(settings), json!(measured))
}

#[test]
fn targets_are_against_the_best_of_the_same_scene() {
    let mut records = vec![
        made_up(System::Terrace, 4, 60, 200.0, 5, 2),
        made_up(System::Flashcache, 4, 80, 90.0, 80, 9),
        made_up(System::ObjectLru, 4, 75, 160.0, 70, 9),
        made_up(System::DiskOnly, 4, 100, 100.0, 0, 9),
        made_up(System::DiskOnly, 2, 100, 1000.0, 0, 0),
    ];
    let found = |records: &[Record]| {
        let targets = targets(records).unwrap();
        targets
            .iter()
            .map(|target| ((target.measured * 1000.0).round() / 1000.0, target.is_met()))
            .collect::<Vec<_>>()
    };
    // Hits 40 over 25, the rate over the LRU's, 5 of 80 bytes; pauses, since the disk sustained
    // half.
    assert_eq!(
        found(&records),
        [(1.6, true), (1.25, true), (0.063, true), (2.0, false)]
    );
    records[4] = made_up(System::DiskOnly, 2, 100, 1000.0, 0, 1);
    assert_eq!(
        found(&records).len(),
        3,
        "nothing is asked of pauses where the disk does not hold half"
    );
    records.truncate(1);
    assert_eq!(found(&records), []);
}
