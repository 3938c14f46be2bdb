//! Figures 10 and 12, tables 2 and 4: the speed of reads.

use super::{cell, dashed, lines, ratio_chart, ratio_row, ratio_table, shared_device};
use crate::{
    harness::{
        page::{Section, number},
        setup::Setup,
    },
    mris::{evaluation::Contender, model::Model, paper::Paper},
};

/// Figures 10 and 12, tables 2 and 4.
#[must_use]
pub fn section(model: &Model, paper: &Paper) -> Section {
    let mut section = Section::new("Figures 10 and 12, tables 2 and 4: reads");
    let cold = model.reads.values().flatten().all(|read| read.caches_dropped);
    section.text(format!(
        "{} groups; random reads of small objects, after every ratio of them the large one of the last, one at a time. {}",
        model.read_groups,
        if cold {
            "Before each run the kernel's caches were dropped and the store opened anew, its RAM cache off."
        } else {
            "Attention: the kernel's caches were not dropped before every run, because that was not allowed."
        }
    ));
    let mut series = lines(model, |contender, ratio| model.reads_per_second(contender, ratio));
    series.push(dashed(model, "limit of the drives, Hybrid", 6, |ratio| {
        model.limit(ratio)
    }));
    for (setup, colour) in [(Setup::Ssd, 0), (Setup::Hybrid, 1), (Setup::Hdd, 2)] {
        let name = format!("paper {} (equations)", setup.name());
        series.push(dashed(model, &name, colour, |ratio| {
            Some(paper.table3.reads_per_second(setup, ratio as f64))
        }));
    }
    section.chart(
        "figure-10",
        ratio_chart(model, "Figure 10: reads per second", "reads/s", series),
    );
    let mb = lines(model, |contender, ratio| model.read_mb_per_second(contender, ratio));
    section.chart(
        "figure-12",
        ratio_chart(model, "Figure 12: MB read per second", "MB/s", mb),
    );
    rates_table(model, paper, &mut section);
    for (name, published, unit) in [
        ("Table 2", &paper.table2, "reads/s"),
        ("Table 4", &paper.table4, "MB/s"),
    ] {
        let mut rows = Vec::new();
        for setup in [Setup::Ssd, Setup::Hybrid] {
            let ours = |ratio| {
                let rate = |setup| {
                    let found = model.reads_per_second(Contender::terrace(setup), ratio);
                    found.map(|summary| summary.mean)
                };
                Some(rate(setup)? / rate(Setup::Hdd)?)
            };
            let theirs = |ratio| number(published.at(setup, ratio), 2);
            rows.push(ratio_row(model, &format!("Terrace {}", setup.name()), |ratio| {
                number(ours(ratio), 2)
            }));
            rows.push(ratio_row(model, &format!("paper {}", setup.name()), theirs));
        }
        ratio_table(
            model,
            &mut section,
            &format!("{name}: speed-up over HDD ({unit})"),
            rows,
        );
        section.text(format!("Paper: {}.", published.source));
    }
    section.text(
        "Every run of a ratio reads the same bytes, so our speed-ups in MB/s are those in reads/s; the paper's differ a little.",
    );
    section.text("The targets mean the paper's drives, emulated. On others a comparison with the paper's own figures says nothing.");
    shared_device(model, &mut section);
    section
}

fn rates_table(model: &Model, paper: &Paper, section: &mut Section) {
    let ours = |contender| move |ratio| cell(model.reads_per_second(contender, ratio), 1);
    let contenders = model.contenders().into_iter();
    let mut rows: Vec<_> = contenders
        .map(|contender| ratio_row(model, &contender.name(), ours(contender)))
        .collect();
    for setup in Setup::ALL {
        let name = format!("paper {} (equations)", setup.name());
        let theirs = |ratio| format!("{:.1}", paper.table3.reads_per_second(setup, ratio as f64));
        rows.push(ratio_row(model, &name, theirs));
    }
    for setup in [Setup::Ssd, Setup::Hybrid] {
        let name = format!("paper {} (table 2 × equation 2)", setup.name());
        let theirs = |ratio| {
            let hdd = paper.table3.reads_per_second(Setup::Hdd, ratio as f64);
            number(paper.table2.at(setup, ratio).map(|speedup| speedup * hdd), 1)
        };
        rows.push(ratio_row(model, &name, theirs));
    }
    rows.push(ratio_row(model, "limit of the drives, Hybrid", |ratio| {
        number(model.limit(ratio), 1)
    }));
    ratio_table(model, section, "Reads per second", rows);
}
