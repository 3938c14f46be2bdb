//! Tests of the drives as a whole.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

/// Not a test: the daemon of drives that tests create. See [`super::daemon`].
#[test]
#[ignore = "the tests' daemon; started by them"]
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
