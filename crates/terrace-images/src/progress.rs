//! Progress of an import.
//!
//! Invariant: counters only grow; a file is counted as done exactly once, whatever its result.
//! Failure: nothing here can fail the import; if the terminal goes away, only the bar is lost.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::{
    io::IsTerminal,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

/// Interval of drawing the bar.
const DRAW_INTERVAL: Duration = Duration::from_millis(100);

/// Counters of a running import, shared with it.
#[derive(Debug, Default)]
pub struct Progress {
    /// Files found so far; all of them once `counted`.
    pub files_found: AtomicU64,
    /// Whether all files were found.
    pub counted: AtomicBool,
    /// Files done: imported, skipped, ignored or failed.
    pub files_done: AtomicU64,
    /// Images imported.
    pub imported: AtomicU64,
    /// Files that failed.
    pub failed: AtomicU64,
}

/// A progress bar on the terminal, drawn by a thread until it is dropped.
#[derive(Debug)]
pub struct TerminalBar {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl TerminalBar {
    /// Shows a bar with rate and time left on standard error, if that is a terminal.
    #[must_use]
    pub fn start(progress: Arc<Progress>) -> Option<Self> {
        if !std::io::stderr().is_terminal() {
            return None;
        }
        let over = Arc::new(AtomicBool::new(false));
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_style(style());
        let thread = std::thread::Builder::new().name("progress".to_owned()).spawn({
            let over = over.clone();
            move || {
                while !over.load(Relaxed) {
                    show(&bar, &progress);
                    std::thread::park_timeout(DRAW_INTERVAL);
                }
                bar.finish_and_clear();
            }
        });
        let thread = Some(thread.ok()?);
        Some(Self { over, thread })
    }
}

impl Drop for TerminalBar {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn style() -> ProgressStyle {
    let template = "{bar:30} {pos}/{len} files  {rate}  {left}  {msg}";
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .with_key("rate", |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            let _ = write!(out, "{:.1}/s", state.per_sec());
        })
        .with_key("left", |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            let _ = write!(out, "{} s left", state.eta().as_secs());
        })
}

fn show(bar: &ProgressBar, progress: &Progress) {
    bar.set_length(progress.files_found.load(Relaxed));
    bar.set_position(progress.files_done.load(Relaxed));
    let failed = progress.failed.load(Relaxed);
    let counting = if progress.counted.load(Relaxed) {
        ""
    } else {
        "(still counting)"
    };
    if failed > 0 {
        bar.set_message(format!("{failed} failed {counting}"));
    } else {
        bar.set_message(counting);
    }
}
