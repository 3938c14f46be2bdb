//! Commands on the whole store: stat, verify, repair.

use super::{Access, open, print, print_json};
use crate::{
    cli::RepairArgs,
    failure::{Code, Failure, Outcome},
    report,
    settings::Settings,
    size::Size,
};
use serde_json::json;
use std::fmt::Write as _;
use terrace::{Options, Store};

/// `terrace stat`
pub fn stat(json: bool, settings: Settings) -> Outcome {
    let stats = open(&settings, Access::Look)?.stats();
    if json {
        print_json(&report::stats_json(&stats))
    } else {
        print(&report::stats_text(&stats))
    }
}

/// `terrace verify`
pub fn verify(json: bool, settings: Settings) -> Outcome {
    let report = open(&settings, Access::Look)?.verify()?;
    if json {
        print_json(&json!({
            "sound": report.errors.is_empty(),
            "objects": report.objects,
            "bytes": report.bytes,
            "orphaned_bytes": report.orphaned_bytes,
            "errors": report.errors,
        }))?;
    } else {
        let mut text = String::new();
        for error in &report.errors {
            let _ = writeln!(text, "damaged: {error}");
        }
        let _ = writeln!(
            text,
            "{} objects ({}) are sound; blocks have {} more, of dead values and padding",
            report.objects,
            Size(report.bytes),
            Size(report.orphaned_bytes)
        );
        print(&text)?;
    }
    if report.errors.is_empty() {
        return Ok(());
    }
    Err(Failure::new(
        Code::Corruption,
        format!(
            "{} findings of damage; restore those objects from a copy, or run `terrace repair` if the store does not open",
            report.errors.len()
        ),
    ))
}

/// `terrace repair`
pub fn repair(args: &RepairArgs, settings: Settings) -> Outcome {
    let report = Store::repair(Options {
        repair_without_tier: args.without_tier,
        ..settings.options
    })?;
    if args.json {
        return print_json(&json!({ "objects": report.objects, "notes": report.notes }));
    }
    let mut text = String::new();
    for note in &report.notes {
        let _ = writeln!(text, "note: {note}");
    }
    let _ = writeln!(
        text,
        "{} objects are there again; run `terrace verify` to read them all",
        report.objects
    );
    print(&text)
}
