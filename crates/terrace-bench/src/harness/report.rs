//! `terrace-bench report`: one HTML page and the charts as files, from a directory of results
//! alone.
//!
//! The same results give the same bytes: nothing of the machine or the moment of making goes in.

use super::{
    page::{self, Section},
    results::{Record, Results},
    run::{self, Measured, Settings},
};
use crate::Outcome;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// Arguments of the subcommand.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Directory of the results.
    results: PathBuf,
    /// The page to write.
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
    /// Also write every chart as SVG into this directory.
    #[arg(long, value_name = "DIR")]
    charts: Option<PathBuf>,
}

/// Makes the report.
///
/// # Errors
/// If a result cannot be read or the page not be written.
pub fn run(arguments: Arguments) -> Outcome {
    write(&arguments.results, &arguments.output, arguments.charts.as_deref())?;
    println!("{}", arguments.output.display());
    Ok(())
}

/// Makes the page, and the charts' files if a directory for them is given.
///
/// # Errors
/// As [`run()`].
pub fn write(results: &Path, output: &Path, charts: Option<&Path>) -> Outcome {
    if !results.is_dir() {
        return Err(format!("{} is no directory of results; make some first", results.display()).into());
    }
    let records = Results::create(results)?.all()?;
    if records.is_empty() {
        return Err(format!("{} holds no results", results.display()).into());
    }
    let mut sections = crate::mris::report::sections(&records)?;
    sections.extend(crate::flashstore::report::sections(&records)?);
    sections.extend(crate::contest::report::sections(&records)?);
    sections.extend(crate::video::sections(&records)?);
    sections.extend(crate::zipf::sections(&records)?);
    sections.extend(crate::soak::sections(&records)?);
    sections.extend(workloads(&records)?);
    sections.push(runs(&records));
    std::fs::write(output, page::html("Evaluation of Terrace", &sections)?)?;
    charts.map_or(Ok(()), |directory| page::write_charts(directory, &sections))
}

fn workloads(records: &[Record]) -> Outcome<Option<Section>> {
    let mut rows = Vec::new();
    for record in records.iter().filter(|record| record.experiment == run::EXPERIMENT) {
        let measured: Measured = record.outcome()?;
        let settings: Settings = record.settings()?;
        for (kind, summary) in [("get", &measured.get), ("put", &measured.put)] {
            if summary.count > 0 {
                let percentile = |wanted| {
                    summary
                        .percentile_us(wanted)
                        .map_or(String::new(), |us| format!("{us:.0}"))
                };
                rows.push(vec![
                    record.name.clone(),
                    settings.setup.name().to_owned(),
                    kind.to_owned(),
                    format!("{:.1}", summary.count as f64 / measured.seconds),
                    format!("{:.0}", summary.mean_us),
                    percentile(50.0),
                    percentile(99.0),
                    percentile(99.9),
                ]);
            }
        }
    }
    let mut section = Section::new("Workloads");
    section.text("In an open loop a latency counts from the moment the operation was due, so waiting is included.");
    let head = [
        "run",
        "setup",
        "operation",
        "per second",
        "mean µs",
        "median µs",
        "99 % µs",
        "99.9 % µs",
    ];
    let found = !rows.is_empty();
    section.table("Operations", &head, rows);
    Ok(found.then_some(section))
}

/// Where and when everything was measured.
fn runs(records: &[Record]) -> Section {
    let mut section = Section::new("Runs");
    let distinct = |what: fn(&Record) -> String| records.iter().map(what).collect::<BTreeSet<String>>();
    let hosts = distinct(|record| {
        let host = &record.host;
        let gib = host.memory_bytes as f64 / f64::from(1 << 30);
        format!(
            "{}: {}, {} processors, {gib:.1} GiB of RAM, Linux {}",
            host.name, host.cpu, host.cpus, host.kernel
        )
    });
    let commits = distinct(|record| record.commit.clone());
    for host in &hosts {
        section.text(host.clone());
    }
    if hosts.len() > 1 || commits.len() > 1 {
        section.text("Attention: the runs are of different machines or commits, as the table shows.");
    }
    let rows = records.iter().map(|record| {
        vec![
            record.name.clone(),
            record.experiment.clone(),
            record.started.clone(),
            format!("{:.1}", record.seconds),
            record.seed.to_string(),
            record.host.name.clone(),
            record.commit.clone(),
            record.settings_hash.chars().take(16).collect(),
        ]
    });
    let head = [
        "run",
        "experiment",
        "started",
        "seconds",
        "seed",
        "host",
        "commit",
        "settings",
    ];
    section.table("All runs", &head, rows.collect());
    section
}
