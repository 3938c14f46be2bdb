//! Figure 9: insertion, with counts that its author wished to have recorded.

use super::{HDD, SSD, cell, shared_device};
use crate::{
    harness::{
        chart::{Chart, Mark, Series},
        page::{Section, number},
        setup::Setup,
        statistics::Summary,
    },
    mris::{
        evaluation::Contender,
        insert::Order,
        model::{Model, Source},
        paper::Paper,
    },
    rivals::Candidate,
};

/// All setups, sequential and random, ours and the paper's.
fn insertion_chart(
    model: &Model,
    (title, unit): (&str, &str),
    ours: &dyn Fn(Contender, Order) -> Option<Summary>,
    theirs: &dyn Fn(Setup, Order) -> f64,
) -> Chart {
    let mut series = Vec::new();
    for (order, colour) in [(Order::Sequential, 0), (Order::Random, 2)] {
        let name = |engine: &str| format!("{engine}, {}", order.name());
        for (engine, colour) in [(Candidate::Terrace, colour), (Candidate::LevelDb, colour + 4)] {
            let values = Setup::ALL.map(|setup| ours(Contender { engine, setup }, order));
            series.push(Series::new(name(engine.name()), (colour, Mark::Bar), values));
        }
        let published = Setup::ALL.map(|setup| theirs(setup, order));
        series.push(Series::exact(name("paper"), (colour, Mark::PaleBar), published));
    }
    let groups = model.insert_groups;
    let x_label = format!("setup ({groups} groups; LevelDB keeps large values inline, so it has no Hybrid)");
    Chart::new(title, &x_label, unit, Setup::ALL.map(Setup::name), series)
}

/// Figure 9.
pub fn section(model: &Model, paper: &Paper) -> Section {
    let mut section = Section::new("Figure 9: insertion");
    section.text(
        "Groups of a small and a large object, inserted one after the other, acknowledged at once; the time runs until the \
         last is durable. A MB has 10^6 bytes.",
    );
    section.text(format!(
        "Paper: {}. Its objects per second follow from its MB per second and the size of a group.",
        paper.figure9.source
    ));
    let theirs = |setup, order| match order {
        Order::Sequential => paper.figure9.sequential(setup),
        Order::Random => paper.figure9.random(setup),
    };
    let group_mb = model
        .surroundings
        .as_ref()
        .map_or(f64::NAN, |sizes| sizes.sizes().group() as f64 / 1e6);
    let objects = |setup, order| 2.0 * theirs(setup, order) / group_mb;
    let ours = |contender, order| model.objects_per_second(contender, order);
    let title = ("Figure 9 (a): objects written per second", "objects/s");
    section.chart("figure-9a", insertion_chart(model, title, &ours, &objects));
    let ours = |contender, order| model.insert_mb_per_second(contender, order);
    let title = ("Figure 9 (b): MB written per second", "MB/s");
    section.chart("figure-9b", insertion_chart(model, title, &ours, &theirs));
    work_table(model, &mut section);
    over_hdd_table(model, paper, &mut section);
    section.text(
        "MB per drive are what its counters say from the store's opening until after it is closed and synced. LevelDB's \
         compactions are those in its log; where the engine counts, LevelDB's own log of writes is added once.",
    );
    shared_device(model, &mut section);
    section
}

/// Work of the engine and the drives in each run.
fn work_table(model: &Model, section: &mut Section) {
    let orders = [Order::Sequential, Order::Random];
    let runs = model
        .contenders()
        .into_iter()
        .flat_map(|contender| orders.map(|order| (contender, order)));
    let counted_by = |source| match source {
        Source::Drives => "the drives",
        Source::Engine => "the engine",
    };
    section.columns(
        "Insertion; what the paper's author wished to have recorded",
        runs,
        &[
            ("", &|(contender, order)| {
                format!("{}, {}", contender.name(), order.name())
            }),
            ("objects/s", &|(contender, order)| {
                cell(model.objects_per_second(*contender, *order), 1)
            }),
            ("MB/s", &|(contender, order)| {
                cell(model.insert_mb_per_second(*contender, *order), 1)
            }),
            ("flushes", &|(contender, order)| {
                cell(model.engine_count(*contender, *order, |figures| figures.flushes), 0)
            }),
            ("compactions", &|(contender, order)| {
                cell(model.engine_count(*contender, *order, |figures| figures.compactions), 0)
            }),
            ("MB to SSD", &|(contender, order)| {
                cell(model.written_mb(*contender, *order, SSD), 0)
            }),
            ("MB to HDD", &|(contender, order)| {
                cell(model.written_mb(*contender, *order, HDD), 0)
            }),
            ("write amplification", &|(contender, order)| {
                cell(model.write_amplification(*contender, *order).map(|found| found.0), 2)
            }),
            ("counted by", &|(contender, order)| {
                let source = model.write_amplification(*contender, *order).map(|found| found.1);
                source.map_or("–", counted_by).to_owned()
            }),
        ],
    );
}

fn over_hdd_table(model: &Model, paper: &Paper, section: &mut Section) {
    let rate = |setup, order| Some(model.objects_per_second(Contender::terrace(setup), order)?.mean);
    let ours = |setup, order| Some(rate(setup, order)? / rate(Setup::Hdd, order)?);
    let theirs = |setup, order| match order {
        Order::Sequential => paper.figure9.sequential_over_hdd(setup),
        Order::Random => paper.figure9.random(setup) / paper.figure9.random(Setup::Hdd),
    };
    let orders = [Order::Sequential, Order::Random];
    let both = [Setup::Ssd, Setup::Hybrid].map(|setup| orders.map(|order| (setup, order)));
    section.columns(
        "Insertion over insertion into HDD",
        both.into_iter().flatten(),
        &[
            ("", &|(setup, order)| format!("{}, {}", setup.name(), order.name())),
            ("Terrace", &|(setup, order)| number(ours(*setup, *order), 2)),
            ("paper", &|(setup, order)| format!("{:.2}", theirs(*setup, *order))),
        ],
    );
}
