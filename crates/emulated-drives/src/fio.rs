//! Runs `fio`: one job, with its report as JSON.

use super::system;
use crate::Outcome;
use serde_json::Value;
use std::path::Path;

/// The installed version.
///
/// # Errors
/// If it is not installed.
pub fn version() -> Outcome<String> {
    system::run("fio", ["--version"]).map_err(|error| format!("{error} (Debian package fio)").into())
}

/// Runs a job on a file, with direct I/O and these options without their dashes. Returns its part
/// of the report.
///
/// # Errors
/// If `fio` is not installed, fails, or prints an unknown report.
pub fn job(file: &Path, options: &[&str]) -> Outcome<Value> {
    let file = format!("filename={}", file.display());
    let usual = ["name=job", "output-format=json", "direct=1", &file];
    let options = usual.iter().chain(options).map(|option| format!("--{option}"));
    only_job(&system::run("fio", options)?)
}

/// The report's single job. fio may print notes before the JSON.
fn only_job(text: &str) -> Outcome<Value> {
    let json = text.find('{').map_or("", |start| &text[start..]);
    let mut report: Value = serde_json::from_str(json)
        .map_err(|error| format!("fio printed no JSON ({error}); version 3 or later is needed"))?;
    let job = report.pointer_mut("/jobs/0").map(Value::take);
    job.ok_or_else(|| "fio's report has no job; version 3 or later is needed".into())
}

/// A figure from a result of [`job`], by JSON pointer: `/read/lat_ns/mean`.
///
/// # Errors
/// If it is not there.
pub fn figure(job: &Value, place: &str) -> Outcome<f64> {
    let found = job.pointer(place).and_then(Value::as_f64);
    found.ok_or_else(|| format!("fio's JSON has no {place}; version 3 or later is needed").into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn figures_are_taken_from_json_behind_notes() {
        let text = r#"fio: a note
            {"fio version": "fio-3.33", "jobs": [{"read": {"total_ios": 12, "lat_ns": {"mean": 1500.0}}}]}"#;
        let job = only_job(text).unwrap();
        assert!((figure(&job, "/read/lat_ns/mean").unwrap() - 1500.0).abs() < 1e-9);
        assert!(figure(&job, "/write/lat_ns/mean").is_err());
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        for text in ["", "nothing", "{}", r#"{"jobs": []}"#] {
            assert!(only_job(text).is_err(), "{text}");
        }
    }
}
