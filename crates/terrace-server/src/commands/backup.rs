//! `terrace backup` and `terrace restore`.
//!
//! A backup is taken by the process that has the store open: a running `serve`, otherwise this
//! process. Ctrl-C leaves the store and earlier backups unchanged.

use super::{Access, print, print_json, watched_call};
use crate::{
    admin::{self, BackupRequest},
    cli::{BackupArgs, RestoreArgs},
    failure::{Code, Failure, Outcome},
    settings::Settings,
    signals,
    size::Size,
};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, UNIX_EPOCH},
};
use terrace::{BackupCheck, BackupProgress, RestoreOptions, Store};

/// How often the bar is drawn and the stop flag checked.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// `terrace backup DIR`
pub fn backup(args: &BackupArgs, settings: &Settings) -> Outcome {
    if args.verify {
        return verify(args);
    }
    let stop = signals::install()?;
    let dir = absolute(&args.dir)?;
    let onto = args.onto.as_deref().map(absolute).transpose()?;
    let rate = args.rate.map(|Size(bytes)| bytes);
    if rate == Some(0) {
        return Err(Failure::usage("--rate 0 would never end; leave it out for no limit"));
    }
    let bar = Bar::new("backing up");
    let request = BackupRequest {
        dir,
        onto,
        copy: args.copy,
        bytes_per_second: rate,
    };
    let show = |done, total| bar.show(done, total);
    let summary = watched_call(settings, Access::Change, (&admin::BACKUP, request), &stop, show)?;
    drop(bar);
    if args.json {
        return print_json(&summary);
    }
    print(&format!(
        "{} in {} files as of version {}: {} copied, {} linked from the store, {} from the earlier backup\n",
        Size(summary.bytes),
        summary.files,
        summary.version,
        Size(summary.copied_bytes),
        Size(summary.linked_bytes),
        Size(summary.reused_bytes),
    ))
}

/// `terrace backup --verify DIR`
fn verify(args: &BackupArgs) -> Outcome {
    let stop = signals::install()?;
    let progress = Arc::new(BackupProgress::default());
    let bar = Bar::new("checking");
    let show = |done, total| bar.show(done, total);
    let check = watched(&progress, &stop, show, || {
        Ok(Store::verify_backup(&args.dir, &progress)?)
    })?;
    drop(bar);
    let objects = check.store.as_ref().map(|report| report.objects);
    if args.json {
        print_json(&json!({
            "sound": check.errors.is_empty(),
            "version": check.version.0,
            "taken_at_seconds": check.taken_at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            "files": check.files,
            "compared_bytes": check.compared_bytes,
            "linked_bytes": check.linked_bytes,
            "objects": objects,
            "errors": check.errors,
        }))?;
    } else {
        print(&check_text(&check))?;
    }
    if check.errors.is_empty() {
        return Ok(());
    }
    Err(Failure::new(
        Code::Corruption,
        format!("{} findings of damage in the backup; use another", check.errors.len()),
    ))
}

fn check_text(check: &BackupCheck) -> String {
    let mut text = String::new();
    for error in &check.errors {
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(text, "damaged: {error}");
    }
    let age = check.taken_at.elapsed().map_or(0, |age| age.as_secs());
    let _ = writeln!(
        text,
        "version {}, taken {age} seconds ago; {} files, {} compared with their checksums, {} linked from the store",
        check.version,
        check.files,
        Size(check.compared_bytes),
        Size(check.linked_bytes),
    );
    if let Some(report) = &check.store {
        let _ = writeln!(text, "{} objects ({}) are sound", report.objects, Size(report.bytes));
    }
    text
}

/// `terrace restore BACKUP`
pub fn restore(args: &RestoreArgs, settings: &Settings) -> Outcome {
    let stop = signals::install()?;
    let progress = Arc::new(BackupProgress::default());
    let how = RestoreOptions {
        keep_damaged: args.keep_damaged,
        progress: Arc::clone(&progress),
        ..RestoreOptions::default()
    };
    let bar = Bar::new("restoring");
    let show = |done, total| bar.show(done, total);
    let report = watched(&progress, &stop, show, || {
        Ok(Store::restore(&args.backup, &settings.options, &how)?)
    })?;
    drop(bar);
    if args.json {
        print_json(&json!({
            "version": report.version.0,
            "files": report.files,
            "bytes": report.bytes,
            "damaged": report.damaged,
            "elapsed_seconds": report.elapsed.as_secs_f64(),
        }))?;
    } else {
        let mut text = String::new();
        for damaged in &report.damaged {
            let _ = writeln!(text, "damaged: {damaged}");
        }
        let _ = writeln!(
            text,
            "restored {} in {} files as of version {}; run `terrace verify` to read everything",
            Size(report.bytes),
            report.files,
            report.version
        );
        print(&text)?;
    }
    if report.damaged.is_empty() {
        return Ok(());
    }
    Err(Failure::new(
        Code::Corruption,
        format!(
            "{} files of the backup were damaged; `terrace verify` says what is lost",
            report.damaged.len()
        ),
    ))
}

/// Runs `work` on a thread of its own, shows its progress, and stops it on request.
pub(super) fn watched<T: Send>(
    progress: &BackupProgress,
    stop: &AtomicBool,
    show: impl Fn(u64, u64),
    work: impl FnOnce() -> Outcome<T> + Send,
) -> Outcome<T> {
    let watcher = thread::current();
    let outcome = thread::scope(|scope| {
        let work = scope.spawn(move || {
            let done = work();
            watcher.unpark();
            done
        });
        while !work.is_finished() {
            if stop.load(Ordering::Relaxed) {
                progress.stop();
            }
            show(progress.done_bytes(), progress.total_bytes());
            thread::park_timeout(LOOK_INTERVAL);
        }
        work.join()
    });
    match outcome {
        Ok(Err(_)) if stop.load(Ordering::Relaxed) => Err(Failure::new(
            Code::Interrupted,
            "interrupted before it was complete; the next run begins again",
        )),
        Ok(done) => done,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn absolute(path: &Path) -> Outcome<PathBuf> {
    std::path::absolute(path).map_err(|error| Failure::io(path.display(), &error))
}

/// A progress bar on standard error, if that is a terminal, until it is dropped.
struct Bar(ProgressBar);

impl Bar {
    fn new(what: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_message(what);
        let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes} of {total_bytes} ({bytes_per_sec})");
        // The template is a constant; on an error the default bar is used.
        Self(style.map(|style| bar.clone().with_style(style)).unwrap_or(bar))
    }

    fn show(&self, done: u64, total: u64) {
        self.0.set_length(total.max(done));
        self.0.set_position(done);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
