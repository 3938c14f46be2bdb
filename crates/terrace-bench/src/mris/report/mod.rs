//! The evaluation's part of the report: the paper's figures and tables, ours beside the paper's.
//!
//! This module has the order of the sections and common functions. A [`Curve`] is a figure by
//! ratio, drawn as a line of a chart and printed as a row of a table. Figures without measurements
//! are left out.

mod insertion;
mod reading;
mod requests;

use super::{evaluation::Contender, figure8, heat, model::Model, paper::Paper};
use crate::{
    Outcome,
    harness::{
        chart::{Chart, Mark, Series},
        page::Section,
        place::PlaceTraffic,
        results::Record,
        setup::BothTraffic,
        statistics::Summary,
    },
    rivals::Candidate,
};

const SSD: fn(&BothTraffic) -> &PlaceTraffic = |traffic| &traffic.ssd;
const HDD: fn(&BothTraffic) -> &PlaceTraffic = |traffic| &traffic.hdd;

/// All sections for which there are results.
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
        sections.extend([
            reading::rates(&model, &paper),
            reading::costs(&model, &paper),
            reading::traffic(&model),
        ]);
    }
    sections.extend(heat::section(records)?);
    Ok(sections)
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
    match contender.engine {
        Candidate::LevelDb => [4, 4, 5][contender.setup as usize],
        _ => contender.setup as usize,
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

/// A figure by ratio.
struct Curve<'a> {
    name: String,
    /// In the chart; `None` if it is in the table only.
    look: Option<(usize, Mark)>,
    figure: Box<dyn Fn(u64) -> Option<Summary> + 'a>,
}

impl<'a> Curve<'a> {
    /// A figure of several runs.
    fn measured(contender: Contender, figure: impl Fn(u64) -> Option<Summary> + 'a) -> Self {
        Self {
            name: contender.name(),
            look: Some((colour(contender), Mark::Line)),
            figure: Box::new(figure),
        }
    }

    /// A single figure, dashed in the chart.
    fn exact(name: String, colour: Option<usize>, figure: impl Fn(u64) -> Option<f64> + 'a) -> Self {
        Self {
            name,
            look: colour.map(|colour| (colour, Mark::Dashed)),
            figure: Box::new(move |ratio| figure(ratio).map(Summary::exact)),
        }
    }
}

/// Adds a chart of curves.
fn chart(model: &Model, section: &mut Section, name: &str, (title, unit): (&str, &str), curves: &[Curve<'_>]) {
    let ratios = model.ratios();
    let series = curves.iter().filter_map(|curve| {
        let figures = ratios.iter().map(|&ratio| (curve.figure)(ratio));
        Some(Series::new(curve.name.clone(), curve.look?, figures))
    });
    let x_label = "ratio: small reads per large read";
    section.chart(name, Chart::new(title, x_label, unit, &ratios, series));
}

/// Adds a table of curves, a row each.
fn table(model: &Model, section: &mut Section, caption: &str, digits: usize, curves: &[Curve<'_>]) {
    let ratios = model.ratios();
    let heads: Vec<String> = ratios.iter().map(u64::to_string).collect();
    let head: Vec<&str> = std::iter::once("ratio")
        .chain(heads.iter().map(String::as_str))
        .collect();
    let row = |curve: &Curve<'_>| {
        let cells = ratios.iter().map(|&ratio| cell((curve.figure)(ratio), digits));
        std::iter::once(curve.name.clone()).chain(cells).collect()
    };
    section.table(caption, &head, curves.iter().map(row).collect());
}
