//! Tests of the drives as a whole.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

/// The daemon of drives that tests create, when one of them started this; else nothing. See
/// [`super::daemon`].
#[test]
fn daemon_process() {
    let Some(directory) = std::env::var_os("TERRACE_BENCH_TEST_DAEMON").map(PathBuf::from) else {
        return;
    };
    if std::env::var_os("TERRACE_BENCH_TEST_DETACH").is_none() {
        super::daemon::run(directory).unwrap();
        return;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(std::env::args_os().skip(1));
    command.env_remove("TERRACE_BENCH_TEST_DETACH");
    super::daemon::detach(command).unwrap();
}

mod engine;
mod media;
mod whole;
