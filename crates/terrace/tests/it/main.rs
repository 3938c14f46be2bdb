//! The engine by its public interface: the integration tests that can share a process.
//!
//! One program, so that the engine is linked once and all tests fill both processors. Tests of what
//! the kernel counts per process start it again for themselves ([`in_own_process`]).
#![allow(clippy::unwrap_used, missing_docs)]

mod backup;
mod churn;
#[path = "../common/mod.rs"]
mod common;
mod faults;
mod model;
mod older_copy;
mod repair;
mod written;

use std::{env, process::Command};

/// Environment variable of a process that was started for one test: the test's name.
const ALONE: &str = "TERRACE_TEST_ALONE";

/// Runs `body` in a process without other tests; `name` is the test's name as the test runner shows
/// it.
fn in_own_process(name: &str, body: fn()) {
    if env::var_os(ALONE).is_some_and(|test| test == name) {
        body();
        return;
    }
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(ALONE, name)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    eprintln!("{text}");
}
