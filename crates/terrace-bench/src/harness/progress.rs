//! A progress bar with the remaining time, in seconds of expected work.
//!
//! Expected times come from the plans. A run reports its share while it is going on. The remaining
//! time is the remaining expectation, scaled by the ratio of actual to expected time so far. If
//! standard error is not a terminal, one line per run is printed instead.

use indicatif::{ProgressBar, ProgressStyle};
use std::{
    io::IsTerminal,
    sync::Mutex,
    time::{Duration, Instant},
};

/// Seconds of expected work.
#[derive(Debug, Default)]
struct State {
    /// Of all runs that are made.
    expected: f64,
    made: f64,
    current: f64,
    /// Of the current run.
    share: f64,
}

/// The bar.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    is_terminal: bool,
    clock: Instant,
    state: Mutex<State>,
}

impl Progress {
    /// An empty bar.
    pub fn new() -> Self {
        let bar = ProgressBar::new(1000);
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {percent:>3} %  {msg}") {
            bar.set_style(style);
        }
        Self {
            bar,
            is_terminal: std::io::stderr().is_terminal(),
            clock: Instant::now(),
            state: Mutex::default(),
        }
    }

    fn change(&self, what: &str, change: impl FnOnce(&mut State)) {
        let Ok(mut state) = self.state.lock() else { return };
        change(&mut state);
        let share = (state.made + state.current * state.share) / state.expected.max(1e-9);
        self.bar.set_position((share * 1000.0) as u64);
        if !what.is_empty() || self.is_terminal {
            let left = time_left(self.clock.elapsed(), share);
            let message = left.map_or_else(String::new, |left| format!("{} left", in_words(left)));
            if self.is_terminal {
                self.bar.set_message(message);
            } else {
                eprintln!("{:>3.0} %  {what}  {message}", share * 100.0);
            }
        }
    }

    /// Adds expected work.
    pub fn expect(&self, seconds: f64) {
        self.change("", |state| state.expected += seconds);
    }

    /// A run starts.
    pub fn start(&self, name: &str, expected_seconds: f64) {
        if self.is_terminal {
            self.bar.println(name);
        }
        self.change(name, |state| (state.current, state.share) = (expected_seconds, 0.0));
    }

    /// The run's share that is done, from 0 to 1.
    pub fn share(&self, share: f64) {
        self.change("", |state| state.share = share.clamp(0.0, 1.0));
    }

    /// The run has ended.
    pub fn end(&self) {
        self.change("", |state| {
            state.made += state.current;
            state.current = 0.0;
        });
    }

    /// A run was skipped.
    pub fn skipped(&self, name: &str, expected_seconds: f64) {
        let text = format!("{name}: there already");
        if self.is_terminal {
            self.bar.println(&text);
        }
        self.change(&text, |state| state.expected -= expected_seconds);
    }

    /// All runs have ended.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// The remaining time. `None` before a hundredth is done.
fn time_left(elapsed: Duration, share: f64) -> Option<Duration> {
    (share >= 0.01).then(|| elapsed.mul_f64(((1.0 - share) / share).clamp(0.0, 1e4)))
}

fn in_words(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..90 => format!("{seconds} s"),
        90..5400 => format!("{} min", (seconds + 30) / 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_follows_what_was_done() {
        let minute = Duration::from_secs(60);
        assert_eq!(time_left(minute, 0.0), None);
        assert_eq!(time_left(minute, 0.25), Some(minute * 3));
        assert_eq!(time_left(minute, 1.0), Some(Duration::ZERO));
        assert_eq!(time_left(minute, 1.2), Some(Duration::ZERO));
    }

    #[test]
    fn times_are_short() {
        assert_eq!(in_words(Duration::from_secs(89)), "89 s");
        assert_eq!(in_words(Duration::from_secs(119)), "2 min");
        assert_eq!(in_words(Duration::from_secs(7500)), "2 h 05 min");
    }

    #[test]
    fn shares_add_up() {
        let progress = Progress::new();
        progress.expect(10.0);
        progress.start("one", 4.0);
        progress.share(0.5);
        assert_eq!(progress.bar.position(), 200);
        progress.end();
        progress.skipped("two", 6.0);
        assert_eq!(progress.bar.position(), 1000);
    }
}
