//! Table 3, figures 11 and 13: the costs of reads, and predictions from them.

use super::{cell, colour, dashed, over_ratios, ratio_chart, ratio_row, ratio_table};
use crate::{
    harness::{
        chart::{Mark, Series},
        page::{Section, number},
        setup::Setup,
    },
    mris::{evaluation::Contender, model::Model, paper::Paper},
    rivals::Candidate,
};

/// Table 3, and figures 11 and 13.
#[must_use]
pub fn section(model: &Model, paper: &Paper) -> Section {
    let mut section = Section::new("Figures 11 and 13, table 3: what a read costs");
    let rows = rows(model, paper);
    let head = [
        "",
        "small µs (regression)",
        "large µs (regression)",
        "R²",
        "small µs (timed)",
        "large µs (timed)",
    ];
    section.table("Table 3: costs of reads", &head, rows);
    section.text(format!("Paper: {}.", paper.table3.source));
    section.text(
        "Regression: the time of a cycle of ratio small reads and a large one, over the ratio; the slope is a small read, the \
         intercept a large one. Timed: the mean of every single read.",
    );
    predictions(model, &mut section);
    section
}

/// Table 3: by regression, measured, the paper's, and the drives' own.
fn rows(model: &Model, paper: &Paper) -> Vec<Vec<String>> {
    let row = |name: String, cells: [Option<f64>; 5]| {
        let digits = [0, 0, 4, 0, 0];
        let cells = cells.into_iter().zip(digits).map(|(cell, digits)| number(cell, digits));
        std::iter::once(name).chain(cells).collect()
    };
    let mut rows: Vec<Vec<String>> = Vec::new();
    for contender in model.contenders() {
        let (line, timed) = (model.regression(contender), model.timed(contender));
        let cells = [
            line.map(|line| line.slope),
            line.map(|line| line.intercept),
            line.map(|line| line.r_squared),
            timed.map(|timed| timed.0),
            timed.map(|timed| timed.1),
        ];
        rows.push(row(contender.name(), cells));
    }
    let published = &paper.table3;
    for (name, small, large) in [
        ("paper SSD", published.small_ssd_us, published.large_ssd_us),
        ("paper HDD", published.small_hdd_us, published.large_hdd_us),
    ] {
        rows.push(row(name.to_owned(), [Some(small), Some(large), None, None, None]));
    }
    for (drive, (summary, bytes)) in &model.raw {
        let name = format!("fio, {} reads of {bytes} B", drive.name());
        let mut cells = row(name, [None; 5]);
        cells[if *drive == Setup::Hdd { 5 } else { 4 }] = cell(Some(*summary), 0);
        rows.push(cells);
    }
    rows
}

/// Figures 11 and 13.
fn predictions(model: &Model, section: &mut Section) {
    let Some(costs) = model.costs(Candidate::Terrace) else {
        return;
    };
    let predicted = |setup| {
        let costs = &costs;
        move |ratio: u64| Some(costs.reads_per_second(setup, ratio as f64))
    };
    let (mut operations, mut megabytes, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    for setup in Setup::ALL {
        let contender = Contender::terrace(setup);
        let line = |points| Series {
            name: contender.name(),
            colour: colour(contender),
            mark: Mark::Line,
            points,
        };
        operations.push(line(over_ratios(model, |ratio| {
            model.reads_per_second(contender, ratio)
        })));
        megabytes.push(line(over_ratios(model, |ratio| {
            model.read_mb_per_second(contender, ratio)
        })));
        let name = format!("{} predicted", contender.name());
        let rate = |ratio| model.reads_per_second(contender, ratio);
        rows.push(ratio_row(model, &contender.name(), |ratio| cell(rate(ratio), 1)));
        rows.push(ratio_row(model, &name, |ratio| number(predicted(setup)(ratio), 1)));
        operations.push(dashed(model, &name, colour(contender), predicted(setup)));
        let in_mb = |ratio| predicted(setup)(ratio).map(|rate| model.mb_of(rate, ratio));
        megabytes.push(dashed(model, &name, colour(contender), in_mb));
    }
    let title = "Figure 11: predicted (equations 1 to 3) and measured";
    section.chart("figure-11", ratio_chart(model, title, "reads/s", operations));
    ratio_table(
        model,
        section,
        "Reads per second, measured and predicted by these costs",
        rows,
    );
    let title = "Figure 13: predicted (equation 5) and measured";
    section.chart("figure-13", ratio_chart(model, title, "MB/s", megabytes));
}
