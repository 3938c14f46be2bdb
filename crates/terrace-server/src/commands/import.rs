//! `terrace import`.

use super::{Access, close, open, print_json};
use crate::{
    cli::ImportArgs,
    failure::{Code, Failure, Outcome},
    key_text,
    output::tell,
    server,
    settings::Settings,
    signals,
};
use std::{os::unix::ffi::OsStrExt as _, path::Path, sync::Arc};
use terrace_images::{self as import, ImportReport, Progress, TerminalBar};

/// `terrace import DIR`
pub fn run(args: &ImportArgs, settings: Settings) -> Outcome {
    let options = server::import_options(&args.tuning)?;
    server::check_directory(&args.dir)?;
    let stop = signals::install()?;
    let store = open(&settings, Access::Create)?;
    let progress = Arc::new(Progress::default());
    let bar = TerminalBar::start(Arc::clone(&progress));
    let result = import::import(&args.dir, &store, &options, &progress, &stop);
    drop(bar);
    let report = result?;
    if args.json {
        print_json(&report_json(&report))?;
    } else {
        tell(&report);
    }
    let judged = judge(&report);
    close(&store)?;
    judged
}

/// The exit code of an import's report.
fn judge(report: &ImportReport) -> Outcome {
    match &report.outcome {
        // The report has printed it.
        import::Outcome::StoreFailed(error) => Err(Failure {
            message: String::new(),
            ..Failure::from(error.clone())
        }),
        import::Outcome::Stopped => Err(Failure::new(Code::Interrupted, "")),
        import::Outcome::Finished if report.failed.is_empty() => Ok(()),
        import::Outcome::Finished => Err(Failure::new(Code::Partial, "")),
    }
}

fn report_json(report: &ImportReport) -> serde_json::Value {
    let path = |path: &Path| key_text::to_json(path.as_os_str().as_bytes());
    let (outcome, error) = match &report.outcome {
        import::Outcome::Finished => ("finished", None),
        import::Outcome::Stopped => ("stopped", None),
        import::Outcome::StoreFailed(error) => ("store failed", Some(error.to_string())),
    };
    let failed: Vec<_> = report
        .failed
        .iter()
        .map(|file| serde_json::json!({ "path": path(&file.path), "reason": file.reason }))
        .collect();
    let duplicates: Vec<_> = report
        .duplicates
        .iter()
        .map(|(file, first)| serde_json::json!({ "path": path(file), "same_as": path(first) }))
        .collect();
    serde_json::json!({
        "outcome": outcome,
        "error": error,
        "imported": report.imported,
        "skipped": report.skipped(),
        "already_stored": report.already_stored,
        "duplicates": duplicates,
        "not_images": report.not_images,
        "failed": failed,
        "original_bytes": report.original_bytes,
        "resolution_bytes": report.resolution_bytes,
        "elapsed_seconds": report.elapsed.as_secs_f64(),
    })
}
