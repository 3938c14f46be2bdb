//! Ends a run in which a history does not end: a store that hangs is a bug, and a test that hangs
//! with it tells nobody which.

use std::{
    fs,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    time::Duration,
};

/// How long one history may take. The longest take ten seconds on a busy machine.
const HISTORY_MAX: Duration = Duration::from_secs(300);

/// Told of each history as it begins; dropped after the last.
pub struct Watchdog(Sender<u64>);

impl Watchdog {
    /// Watches the histories of this test.
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
        // Its state, and the ticks it has run, tell one that waits from one that turns in circles.
        let stat = told("stat");
        let stat: Vec<&str> = stat.rsplit(") ").next().unwrap_or("").split(' ').collect();
        let [state, ran] = [0, 11].map(|at| stat.get(at).copied().unwrap_or("?"));
        eprintln!("  {:16} {state} ran {ran}, in {}", told("comm").trim(), told("wchan"));
    }
    std::process::abort();
}
