//! What a drive itself does, by `fio`: random reads of one size, direct, one at a time.
//!
//! The file they read is as large as the data they are compared with, because the way a disk's head
//! travels depends on it. It is written whole first, in haste where the drive is emulated: reads of
//! an extent that was only reserved never reach the drive.

use super::place::{HASTE, Place, drop_caches};
use crate::Outcome;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::process::Command;

/// Shortest file: it is written by whole MiB.
const FILE_BYTES_MIN: u64 = 16 << 20;

/// Random reads to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RandomReads {
    /// Bytes of one read.
    pub read_bytes: u64,
    /// Bytes of the file; at least 16 MiB are used.
    pub file_bytes: u64,
    /// For so long.
    pub seconds: u32,
    /// Seed of the offsets.
    pub seed: u64,
}

/// What `fio` measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RawReads {
    /// Mean time of a read.
    pub mean_us: f64,
    /// Standard deviation of that time.
    pub deviation_us: f64,
    /// Reads made.
    pub reads: u64,
    /// Version of fio.
    pub version: String,
}

/// Measures random reads in a place.
///
/// # Errors
/// If `fio` is not installed, fails, or says what is not understood.
pub fn random_reads(place: &Place, reads: RandomReads) -> Outcome<RawReads> {
    let file = place.path.join("fio.data");
    let block = reads.read_bytes.max(1);
    let file_bytes = reads.file_bytes.max(FILE_BYTES_MIN).next_multiple_of(1 << 20);
    let base = [
        "--name=raw".to_owned(),
        format!("--filename={}", file.display()),
        format!("--size={file_bytes}"),
        "--ioengine=psync".to_owned(),
        "--fallocate=none".to_owned(),
        "--output-format=json".to_owned(),
        format!("--randseed={}", reads.seed),
    ];
    let write = ["--rw=write", "--bs=1m", "--end_fsync=1", "--direct=1"].map(str::to_owned);
    let read = [
        "--rw=randread".to_owned(),
        format!("--bs={block}"),
        "--direct=1".to_owned(),
        "--iodepth=1".to_owned(),
        "--norandommap".to_owned(),
        "--time_based".to_owned(),
        format!("--runtime={}", reads.seconds),
    ];
    place.hurry(HASTE)?;
    let written = fio(&[&base[..], &write[..]].concat());
    place.hurry(1.0)?;
    // The stores begin with empty caches as well; under an emulated drive these are the cache of
    // the file that it lies in.
    drop_caches(&[place])?;
    let outcome = written
        .and_then(|_| fio(&[&base[..], &read[..]].concat()))
        .and_then(|text| parse(&text));
    let _ = std::fs::remove_file(file);
    outcome
}

/// Whether there is one to call.
#[must_use]
pub fn is_installed() -> bool {
    fio(&["--version".to_owned()]).is_ok()
}

fn fio(arguments: &[String]) -> Outcome<String> {
    let output = Command::new("fio")
        .args(arguments)
        .output()
        .map_err(|error| format!("fio cannot be started ({error}); install the package fio, or give --no-raw"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("fio failed: {}", said.trim()).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Takes fio's JSON, before which it may print notes.
fn parse(text: &str) -> Outcome<RawReads> {
    let json: Value = serde_json::from_str(text.get(text.find('{').unwrap_or(0)..).unwrap_or_default())
        .map_err(|error| format!("fio printed no JSON ({error}); version 3 or later is needed"))?;
    let read = &json["jobs"][0]["read"];
    let figure = |value: &Value, name: &str| {
        let found = value.as_f64();
        found.ok_or_else(|| format!("fio's JSON has no {name}; version 3 or later is needed"))
    };
    let reads = figure(&read["total_ios"], "jobs[0].read.total_ios")? as u64;
    if reads == 0 {
        return Err("fio made no read in the given time; give it more".into());
    }
    Ok(RawReads {
        mean_us: figure(&read["lat_ns"]["mean"], "jobs[0].read.lat_ns.mean")? / 1e3,
        deviation_us: figure(&read["lat_ns"]["stddev"], "jobs[0].read.lat_ns.stddev")? / 1e3,
        reads,
        version: json["fio version"].as_str().unwrap_or("unknown").to_owned(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn figures_are_taken_from_json() {
        let text = r#"fio: a note
            {"fio version": "fio-3.33", "jobs": [{"read": {"total_ios": 12, "lat_ns": {"mean": 1500.0, "stddev": 10}}}]}"#;
        let raw = parse(text).unwrap();
        assert!((raw.mean_us - 1.5).abs() < 1e-9);
        assert_eq!((raw.reads, raw.version.as_str()), (12, "fio-3.33"));
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        for text in [
            "",
            "nothing",
            "{}",
            r#"{"jobs": []}"#,
            r#"{"jobs":[{"read":{"total_ios":0}}]}"#,
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
