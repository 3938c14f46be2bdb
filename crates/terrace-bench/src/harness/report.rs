//! The report: one HTML page and the charts as files, from a directory of results.
//!
//! Each [`Evaluation`] makes sections from the results. The same results give the same bytes: the
//! report contains nothing of the machine or time at which it is made.

use super::{
    page::{self, Section},
    results::{Bench, Record, Results},
    target::{self, Target},
};
use crate::Outcome;
use std::{collections::BTreeSet, path::Path};

/// An evaluation's part of the report.
pub trait Evaluation: Sync {
    /// Heading of its goals.
    fn name(&self) -> &'static str;

    /// All sections for which there are results.
    fn sections(&self, records: &[Record]) -> Outcome<Vec<Section>>;

    /// Its goals. Those without measurements are left out.
    fn targets(&self, _records: &[Record]) -> Outcome<Vec<Target>> {
        Ok(Vec::new())
    }
}

/// Writes the page, and the charts' files if a directory for them is given. Returns all goals with
/// measurements.
pub fn write(
    evaluations: &[&dyn Evaluation],
    results: &Path,
    output: &Path,
    charts: Option<&Path>,
) -> Outcome<Vec<Target>> {
    if !results.is_dir() {
        return Err(format!("{} is no directory of results; make some first", results.display()).into());
    }
    let records = Results::create(results)?.all()?;
    if records.is_empty() {
        return Err(format!("{} holds no results", results.display()).into());
    }
    let (mut sections, mut reached) = (Vec::new(), Vec::new());
    for evaluation in evaluations {
        sections.extend(evaluation.sections(&records)?);
        let targets = evaluation.targets(&records)?;
        if !targets.is_empty() {
            let mut section = Section::new(&format!("Targets: {}", evaluation.name()));
            target::table(&mut section, &targets);
            sections.push(section);
        }
        reached.extend(targets);
    }
    sections.push(runs(&records));
    std::fs::write(output, page::html("Evaluation of Terrace", &sections)?)?;
    charts.map_or(Ok(()), |directory| page::write_charts(directory, &sections))?;
    Ok(reached)
}

/// Prints an evaluation's tables and goals.
pub fn print(evaluation: &dyn Evaluation, bench: &Bench) -> Outcome {
    let records = bench.results.all()?;
    for section in evaluation.sections(&records)? {
        println!("{}", section.markdown());
    }
    evaluation
        .targets(&records)?
        .iter()
        .for_each(|target| println!("{target}"));
    Ok(())
}

/// Machines and times of all runs.
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
    section.columns(
        "All runs",
        records,
        &[
            ("run", &|record| record.name.clone()),
            ("experiment", &|record| record.experiment.clone()),
            ("started", &|record| record.started.clone()),
            ("seconds", &|record| format!("{:.1}", record.seconds)),
            ("seed", &|record| record.seed.to_string()),
            ("host", &|record| record.host.name.clone()),
            ("commit", &|record| record.commit.clone()),
            ("settings", &|record| record.settings_hash.chars().take(16).collect()),
        ],
    );
    section
}
