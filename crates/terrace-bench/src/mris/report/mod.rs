//! The evaluation's part of the report: the paper's figures and tables, ours beside the paper's.
//!
//! This module has the order of the sections and common functions; each section has a file. Figures
//! without measurements are left out.

mod costs;
mod insertion;
mod reading;
mod requests;
mod traffic;

use super::{evaluation::Contender, figure8, heat, model::Model, paper::Paper};
use crate::{
    Outcome,
    harness::{
        chart::{Chart, Mark, Point, Series},
        page::Section,
        place::PlaceTraffic,
        results::Record,
        setup::{BothTraffic, Setup},
        statistics::Summary,
    },
    rivals::Candidate,
};

const SSD: fn(&BothTraffic) -> &PlaceTraffic = |traffic| &traffic.ssd;
const HDD: fn(&BothTraffic) -> &PlaceTraffic = |traffic| &traffic.hdd;

/// All sections for which there are results.
///
/// # Errors
/// If a result is malformed.
pub fn sections(records: &[Record]) -> Outcome<Vec<Section>> {
    let paper = Paper::published()?;
    let model = Model::of(records)?;
    let mut sections = Vec::new();
    for record in records.iter().filter(|record| record.experiment == figure8::EXPERIMENT) {
        sections.push(requests::section(record, &paper, sections.len())?);
    }
    if !model.inserts.is_empty() {
        sections.push(insertion::section(&model, &paper));
    }
    if !model.reads.is_empty() {
        sections.push(reading::section(&model, &paper));
        sections.push(costs::section(&model, &paper));
        sections.push(traffic::section(&model));
    }
    sections.extend(heat::section(records)?);
    Ok(sections)
}

fn point(position: usize, summary: Summary) -> Point {
    Point {
        position,
        value: summary.mean,
        deviation: summary.deviation,
    }
}

/// Mean and standard deviation.
fn cell(summary: Option<Summary>, digits: usize) -> String {
    match summary {
        None => "–".to_owned(),
        Some(Summary { mean, count: 1, .. }) => format!("{mean:.digits$}"),
        Some(Summary { mean, deviation, .. }) => format!("{mean:.digits$} ± {deviation:.digits$}"),
    }
}

/// The same colour for a contender in every chart.
fn colour(contender: Contender) -> usize {
    let of_setup = match contender.setup {
        Setup::Ssd => 0,
        Setup::Hybrid => 1,
        Setup::Hdd => 2,
    };
    match contender.engine {
        Candidate::LevelDb => [4, 4, 5][of_setup],
        _ => of_setup,
    }
}

fn shared_device(model: &Model, section: &mut Section) {
    let Some(surroundings) = &model.surroundings else {
        return;
    };
    section.text(format!("SSD: {}. HDD: {}.", surroundings.ssd, surroundings.hdd));
    if surroundings.one_device {
        section.text("Both are on one device, so the kernel's counters of each count both.");
    }
    if model.left_out > 0 {
        section.text(format!("{} runs with other settings are left out.", model.left_out));
    }
}

/// A row of a table by ratio.
fn ratio_row(model: &Model, name: &str, cell: impl Fn(u64) -> String) -> Vec<String> {
    let cells = model.ratios().into_iter().map(cell);
    std::iter::once(name.to_owned()).chain(cells).collect()
}

/// A table by ratio.
fn ratio_table(model: &Model, section: &mut Section, caption: &str, rows: Vec<Vec<String>>) {
    let head = ratio_row(model, "ratio", |ratio| ratio.to_string());
    section.table(caption, &head.iter().map(String::as_str).collect::<Vec<&str>>(), rows);
}

/// A chart by ratio.
fn ratio_chart(model: &Model, title: &str, y_label: &str, series: Vec<Series>) -> Chart {
    Chart {
        title: title.to_owned(),
        x_label: "ratio: small reads per large read".to_owned(),
        y_label: y_label.to_owned(),
        positions: model.ratios().iter().map(u64::to_string).collect(),
        series: series.into_iter().filter(|series| !series.points.is_empty()).collect(),
    }
}

fn over_ratios(model: &Model, value: impl Fn(u64) -> Option<Summary>) -> Vec<Point> {
    let ratios = model.ratios().into_iter().enumerate();
    ratios
        .filter_map(|(position, ratio)| Some(point(position, value(ratio)?)))
        .collect()
}

fn lines(model: &Model, value: impl Fn(Contender, u64) -> Option<Summary>) -> Vec<Series> {
    let line = |contender: Contender| Series {
        name: contender.name(),
        colour: colour(contender),
        mark: Mark::Line,
        points: over_ratios(model, |ratio| value(contender, ratio)),
    };
    model.contenders().into_iter().map(line).collect()
}

fn dashed(model: &Model, name: &str, colour: usize, value: impl Fn(u64) -> Option<f64>) -> Series {
    let summary = |value| Summary {
        mean: value,
        deviation: 0.0,
        count: 1,
    };
    Series {
        name: name.to_owned(),
        colour,
        mark: Mark::Dashed,
        points: over_ratios(model, |ratio| value(ratio).map(summary)),
    }
}
