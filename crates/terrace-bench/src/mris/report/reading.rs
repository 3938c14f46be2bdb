//! Figures 10 and 12, tables 2 and 4: how fast reads are.

use super::{cell, dashed, lines, number, ratio_chart, shared_device};
use crate::{
    harness::{page::Section, setup::Setup},
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
    rates_table(model, &mut section);
    for (name, published, unit) in [
        ("Table 2", &paper.table2, "reads/s"),
        ("Table 4", &paper.table4, "MB/s"),
    ] {
        let mut rows = Vec::new();
        for setup in [Setup::Ssd, Setup::Hybrid] {
            let ours = |ratio| {
                let rate = |setup| {
                    model
                        .reads_per_second(Contender::terrace(setup), ratio)
                        .map(|summary| summary.mean)
                };
                Some(rate(setup)? / rate(Setup::Hdd)?)
            };
            let row = |name: String, value: &dyn Fn(u64) -> Option<f64>| {
                let cells = model.ratios().into_iter().map(|ratio| number(value(ratio), 2));
                std::iter::once(name).chain(cells).collect::<Vec<String>>()
            };
            rows.push(row(format!("Terrace {}", setup.name()), &ours));
            rows.push(row(format!("paper {}", setup.name()), &|ratio| {
                published.at(setup, ratio)
            }));
        }
        let ratios: Vec<String> = model.ratios().iter().map(u64::to_string).collect();
        let head: Vec<&str> = std::iter::once("ratio")
            .chain(ratios.iter().map(String::as_str))
            .collect();
        section.table(&format!("{name}: speed-up over HDD ({unit})"), &head, rows);
        section.text(format!("Paper: {}.", published.source));
    }
    section.text(
        "Every run of a ratio reads the same bytes, so our speed-ups in MB/s are those in reads/s; the paper's differ a little.",
    );
    shared_device(model, &mut section);
    section
}

fn rates_table(model: &Model, section: &mut Section) {
    let ratios: Vec<String> = model.ratios().iter().map(u64::to_string).collect();
    let head: Vec<&str> = std::iter::once("ratio")
        .chain(ratios.iter().map(String::as_str))
        .collect();
    let rows = model.contenders().into_iter().map(|contender| {
        let cells = model
            .ratios()
            .into_iter()
            .map(|ratio| cell(model.reads_per_second(contender, ratio), 1));
        std::iter::once(contender.name()).chain(cells).collect()
    });
    section.table("Reads per second", &head, rows.collect());
}
