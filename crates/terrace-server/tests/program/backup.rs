//! `terrace backup` and `terrace restore` through the real program, with and without a running
//! `serve`.

use crate::common::{PATIENCE, Place, bytes, eventually, files, signal, wait};
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Child, Stdio},
    time::Instant,
};

/// A store with values of all homes.
fn filled(place: &Place) -> Vec<u8> {
    let large = bytes(1_500_000);
    place.run_with_input(&["put", "large", "-"], &large).code(0);
    place.run_with_input(&["put", "small", "-"], &large[..5_000]).code(0);
    place.run_with_input(&["put", "tiny", "-"], b"tiny").code(0);
    large
}

/// Colourful noise as PNG files, enough for an import to take a while.
fn images(dir: &Path, count: u32) {
    fs::create_dir_all(dir).unwrap();
    for n in 0..count {
        let image = image::RgbImage::from_fn(400, 300, |x, y| {
            let noise = x.wrapping_mul(2_654_435_761).wrapping_add(y * 40_503 + n * 7_919);
            image::Rgb([(noise >> 3) as u8, (noise >> 11) as u8, (noise >> 19) as u8])
        });
        image.save(dir.join(format!("{n:03}.png"))).unwrap();
    }
}

fn listing(place: &Place, store: &str) -> String {
    place.run(&["ls", "--long", "--store", store]).code(0).text()
}

#[test]
fn a_chain_and_a_restore_without_a_server() {
    let place = Place::new();
    let large = filled(&place);
    let first = place.run(&["backup", "first", "--json"]).code(0).json();
    assert!(first["linked_bytes"].as_u64().unwrap() > 1_000_000, "{first}");
    assert!(place.path("first/BACKUP").is_file());
    place.run_with_input(&["put", "later", "-"], b"later").code(0);
    let second = place
        .run(&["backup", "second", "--onto", "first", "--json"])
        .code(0)
        .json();
    assert!(second["reused_bytes"].as_u64().unwrap() > 1_000_000, "{second}");
    assert!(second["version"].as_u64() > first["version"].as_u64());
    let text = place
        .run(&["backup", "third", "--onto", "second", "--copy"])
        .code(0)
        .text();
    assert!(text.contains(" copied, 0 B linked from the store"), "{text}");

    for name in ["first", "second", "third"] {
        let check = place.run(&["backup", "--verify", name, "--json"]).code(0).json();
        assert_eq!(check["sound"], true, "{check}");
        assert_eq!(check["objects"], if name == "first" { 3 } else { 4 });
    }
    let restored = place
        .run(&["restore", "second", "--store", "new", "--json"])
        .code(0)
        .json();
    assert_eq!(restored["version"], second["version"]);
    assert_eq!(listing(&place, "new"), listing(&place, "terrace-data"));
    place.run(&["verify", "--store", "new"]).code(0);
    place.run(&["get", "large", "-o", "got", "--store", "new"]).code(0);
    assert_eq!(fs::read(place.path("got")).unwrap(), large);
    // On a tier each, and what was put since is not in the first.
    place
        .run(&["restore", "first", "--flash", "ssd", "--large", "disk"])
        .code(0);
    place
        .run(&["get", "later", "--flash", "ssd", "--large", "disk"])
        .code(3);
    // A backup may be read, not written.
    assert_eq!(place.run(&["get", "later", "--store", "third"]).code(0).text(), "later");
    let refused = place.run(&["rm", "later", "--store", "third"]).code(1);
    assert!(refused.error().contains("this is a backup"), "{}", refused.error());
}

#[test]
fn a_running_server_is_asked_while_it_is_written_and_read() {
    let place = Place::new();
    let large = filled(&place);
    images(&place.path("pictures"), 60);
    let mut server = place.serve(&["--import", place.path("pictures").to_str().unwrap()]);
    let socket = place.path("terrace-data/flash/control.sock");
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let mut names: Vec<String> = Vec::new();
    let start = Instant::now();
    loop {
        let is_importing = server.get("/api/stats").status(200).json()["import"]["running"] == true;
        let name = format!("backup-{}", names.len());
        let mut args = vec!["backup", name.as_str(), "--json"];
        if let Some(last) = names.last() {
            args.extend(["--onto", last.as_str()]);
        }
        let report = place.run(&args).code(0).json();
        assert!(report["files"].as_u64() > Some(5), "{report}");
        drop(args);
        names.push(name);
        if !is_importing && names.len() >= 3 {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "the import does not end");
    }
    server.process.end();
    assert!(!socket.exists(), "it goes with the server");
    for name in &names {
        place.run(&["backup", "--verify", name]).code(0);
    }
    // The last was taken when nothing was written any more.
    let last = names.last().unwrap();
    place.run(&["restore", last, "--store", "new"]).code(0);
    assert_eq!(listing(&place, "new"), listing(&place, "terrace-data"));
    place.run(&["get", "large", "-o", "got", "--store", "new"]).code(0);
    assert_eq!(fs::read(place.path("got")).unwrap(), large);
    // An import commits each image whole, so each backup has whole groups.
    place.run(&["restore", &names[0], "--store", "early"]).code(0);
    let early = listing(&place, "early");
    let count = |what: &str| early.lines().filter(|line| line.contains(what)).count();
    assert_eq!(count("/original"), count("catalogue/"), "{early}");
}

/// A backup that has begun, and would take half an hour.
fn slow_backup(place: &Place, name: &str) -> Child {
    let child = place
        .command(&["backup", name, "--copy", "--rate", "1KiB"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let part = place.path(name).join("BACKUP.part");
    eventually("a backup begins", || part.exists().then_some(()));
    child
}

#[test]
fn an_interrupted_backup_leaves_a_part_and_the_server_goes_on() {
    let place = Place::new();
    filled(&place);
    let mut server = place.serve(&[]);
    let mut child = slow_backup(&place, "part");
    signal(&child, "INT");
    assert_eq!(wait(&mut child).code(), Some(130));
    let checked = place.run(&["backup", "--verify", "part"]).code(1);
    assert!(checked.error().contains("not complete"), "{}", checked.error());
    eventually("the server lets go of it", || {
        let again = place.run(&["backup", "part"]);
        let is_done = again.0.status.success();
        assert!(
            is_done || again.error().contains("another backup is being taken"),
            "{}",
            again.error()
        );
        is_done.then_some(())
    });
    place.run(&["backup", "--verify", "part"]).code(0);
    // The server's end is the backup's as well.
    let mut child = slow_backup(&place, "other");
    server.process.end();
    assert_eq!(wait(&mut child).code(), Some(1));
    place.run(&["verify"]).code(0);
}

#[test]
fn wrong_use_is_said_to_be() {
    let place = Place::new();
    let says = |args: &[&str], code: i32, text: &str| {
        let run = place.run(args).code(code);
        assert!(run.error().contains(text), "{args:?}: {}", run.error());
    };
    says(&["backup", "b"], 1, "there is no store here");
    filled(&place);
    says(&["backup"], 2, "<DIR>");
    says(&["backup", "--verify", "b", "--copy"], 2, "cannot be used with");
    says(&["backup", "b", "--rate", "fast"], 2, "is not a size");
    says(&["backup", "b", "--rate", "0"], 2, "would never end");
    says(&["backup", "b", "--onto", "nowhere"], 1, "no such directory");
    says(&["backup", "terrace-data"], 2, "is not empty");
    says(&["backup", "--verify", "terrace-data"], 1, "there is no backup here");
    says(
        &["restore", "terrace-data", "--store", "new"],
        1,
        "there is no backup here",
    );
    says(&["restore"], 2, "<BACKUP>");
    assert!(!place.path("b").exists() && !place.path("new").exists());
    place.run(&["backup", "b"]).code(0);
    says(&["backup", "b"], 2, "holds a backup already");
    says(&["restore", "b"], 2, "is not empty");
    says(&["--snapshot-max-age", "soon", "stat"], 2, "span of time");
    let block = files(&place.path("b/large/blocks"))[0].clone();
    let length = fs::metadata(&block).unwrap().len();
    // It is the store's file as well, so not written but replaced.
    fs::remove_file(&block).unwrap();
    fs::write(&block, vec![7; usize::try_from(length).unwrap()]).unwrap();
    says(&["backup", "--verify", "b"], 5, "findings of damage");
}

#[test]
fn snapshots_show_in_the_figures() {
    let place = Place::new();
    filled(&place);
    let server = place.serve(&["--snapshot-max-age", "1h"]);
    // What tidies up after the start, and goes through the store now and then, does it by
    // snapshots.
    eventually("no snapshot is open, in JSON", || {
        let snapshots = server.get("/api/stats").status(200).json()["snapshots"].clone();
        (snapshots["open"] == 0 && snapshots["held_segment_bytes"] == 0).then_some(())
    });
    eventually("no snapshot is open, in the metrics", || {
        let metrics = server.get("/metrics").status(200).text();
        let none = [
            "terrace_snapshot_oldest_age_seconds 0",
            "terrace_snapshot_held_bytes{tier=\"flash\"} 0",
            "terrace_snapshots_expired_total 0",
        ];
        none.iter().all(|name| metrics.contains(name)).then_some(())
    });
}
