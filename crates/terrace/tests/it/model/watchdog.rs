//! Aborts a run in which a history hangs: otherwise the test would hang without saying which.

use std::{
    fs,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    time::Duration,
};

/// Longest duration of one history. The longest take ten seconds on a busy machine.
const HISTORY_MAX: Duration = Duration::from_secs(300);

/// Receives each history's seed as it begins; dropped after the last.
pub struct Watchdog(Sender<u64>);

impl Watchdog {
    /// A watchdog for the histories of this test.
    pub fn of(test: &str) -> Self {
        let (begun, histories) = channel();
        let test = test.to_owned();
        std::thread::spawn(move || watch(&test, &histories));
        Self(begun)
    }

    /// A history with this seed begins.
    pub fn begins(&self, seed: u64) {
        let _ = self.0.send(seed);
    }
}

fn watch(test: &str, histories: &Receiver<u64>) {
    let mut seed = 0;
    loop {
        match histories.recv_timeout(HISTORY_MAX) {
            Ok(begun) => seed = begun,
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => break,
        }
    }
    eprintln!("{test}: TERRACE_MODEL_SEED={seed} does not end within {HISTORY_MAX:?}; its threads:");
    for thread in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let told = |file: &str| fs::read_to_string(thread.path().join(file)).unwrap_or_default();
        // Its state and processor ticks tell a blocked thread from one in a loop.
        let stat = told("stat");
        let stat: Vec<&str> = stat.rsplit(") ").next().unwrap_or("").split(' ').collect();
        let [state, ran] = [0, 11].map(|at| stat.get(at).copied().unwrap_or("?"));
        eprintln!("  {:16} {state} ran {ran}, in {}", told("comm").trim(), told("wchan"));
    }
    std::process::abort();
}
