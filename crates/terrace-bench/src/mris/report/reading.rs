//! Figures 10 to 14, tables 2 to 4: the rates of reads, what a read costs, and what the drives had
//! to read.

use super::{Curve, HDD, SSD, cell, chart, colour, shared_device, table};
use crate::{
    harness::{
        chart::Mark,
        page::{Section, number},
        setup::Setup,
    },
    mris::{evaluation::Contender, model::Model, paper::Paper},
    rivals::Candidate,
};

/// Figures 10 and 12, tables 2 and 4.
pub fn rates(model: &Model, paper: &Paper) -> Section {
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
    let measured = |contender| Curve::measured(contender, move |ratio| model.reads_per_second(contender, ratio));
    let mut curves: Vec<Curve<'_>> = model.contenders().into_iter().map(measured).collect();
    for setup in Setup::ALL {
        let name = format!("paper {} (equations)", setup.name());
        curves.push(Curve::exact(name, Some(setup as usize), move |ratio| {
            Some(paper.table3.reads_per_second(setup, ratio as f64))
        }));
    }
    for setup in [Setup::Ssd, Setup::Hybrid] {
        let name = format!("paper {} (table 2 × equation 2)", setup.name());
        curves.push(Curve::exact(name, None, move |ratio| {
            let hdd = paper.table3.reads_per_second(Setup::Hdd, ratio as f64);
            Some(paper.table2.at(setup, ratio)? * hdd)
        }));
    }
    let limit = |ratio| model.limit(ratio);
    curves.push(Curve::exact("limit of the drives, Hybrid".to_owned(), Some(6), limit));
    let title = ("Figure 10: reads per second", "reads/s");
    chart(model, &mut section, "figure-10", title, &curves);
    let mb = |contender| Curve::measured(contender, move |ratio| model.read_mb_per_second(contender, ratio));
    let in_mb: Vec<Curve<'_>> = model.contenders().into_iter().map(mb).collect();
    let title = ("Figure 12: MB read per second", "MB/s");
    chart(model, &mut section, "figure-12", title, &in_mb);
    table(model, &mut section, "Reads per second", 1, &curves);
    let rate = |setup, ratio| Some(model.reads_per_second(Contender::terrace(setup), ratio)?.mean);
    for (name, published, unit) in [
        ("Table 2", &paper.table2, "reads/s"),
        ("Table 4", &paper.table4, "MB/s"),
    ] {
        let speedups = [Setup::Ssd, Setup::Hybrid].map(|setup| {
            let ours = move |ratio| Some(rate(setup, ratio)? / rate(Setup::Hdd, ratio)?);
            let theirs = move |ratio| published.at(setup, ratio);
            [
                Curve::exact(format!("Terrace {}", setup.name()), None, ours),
                Curve::exact(format!("paper {}", setup.name()), None, theirs),
            ]
        });
        let caption = format!("{name}: speed-up over HDD ({unit})");
        table(model, &mut section, &caption, 2, speedups.as_flattened());
        section.text(format!("Paper: {}.", published.source));
    }
    section.text(
        "Every run of a ratio reads the same bytes, so our speed-ups in MB/s are those in reads/s; the paper's differ a little.",
    );
    section.text("The targets mean the paper's drives, emulated. On others a comparison with the paper's own figures says nothing.");
    shared_device(model, &mut section);
    section
}

/// Table 3, and figures 11 and 13.
pub fn costs(model: &Model, paper: &Paper) -> Section {
    let mut section = Section::new("Figures 11 and 13, table 3: what a read costs");
    let head = [
        "",
        "small µs (regression)",
        "large µs (regression)",
        "R²",
        "small µs (timed)",
        "large µs (timed)",
    ];
    section.table("Table 3: costs of reads", &head, cost_rows(model, paper));
    section.text(format!("Paper: {}.", paper.table3.source));
    section.text(
        "Regression: the time of a cycle of ratio small reads and a large one, over the ratio; the slope is a small read, the \
         intercept a large one. Timed: the mean of every single read.",
    );
    if let Some(costs) = &model.costs(Candidate::Terrace) {
        let predicted = |setup, ratio| costs.reads_per_second(setup, ratio as f64);
        let (mut operations, mut megabytes) = (Vec::new(), Vec::new());
        for setup in Setup::ALL {
            let contender = Contender::terrace(setup);
            let (name, colour) = (format!("{} predicted", contender.name()), Some(colour(contender)));
            operations.extend([
                Curve::measured(contender, move |ratio| model.reads_per_second(contender, ratio)),
                Curve::exact(name.clone(), colour, move |ratio| Some(predicted(setup, ratio))),
            ]);
            megabytes.extend([
                Curve::measured(contender, move |ratio| model.read_mb_per_second(contender, ratio)),
                Curve::exact(name, colour, move |ratio| {
                    Some(model.mb_of(predicted(setup, ratio), ratio))
                }),
            ]);
        }
        let title = ("Figure 11: predicted (equations 1 to 3) and measured", "reads/s");
        chart(model, &mut section, "figure-11", title, &operations);
        let caption = "Reads per second, measured and predicted by these costs";
        table(model, &mut section, caption, 1, &operations);
        let title = ("Figure 13: predicted (equation 5) and measured", "MB/s");
        chart(model, &mut section, "figure-13", title, &megabytes);
    }
    section
}

/// Table 3: by regression, measured, the paper's, and the drives' own.
fn cost_rows(model: &Model, paper: &Paper) -> Vec<Vec<String>> {
    let row = |name: String, cells: [Option<f64>; 5]| {
        let cells = cells.into_iter().zip([0, 0, 4, 0, 0]);
        let cells = cells.map(|(cell, digits)| number(cell, digits));
        std::iter::once(name).chain(cells).collect::<Vec<String>>()
    };
    let mut rows = Vec::new();
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

/// Figure 14.
pub fn traffic(model: &Model) -> Section {
    let mut section = Section::new("Figure 14: what the drives had to read");
    let one_device = model
        .surroundings
        .as_ref()
        .is_some_and(|surroundings| surroundings.one_device);
    let (mut lines, mut shares) = (Vec::new(), Vec::new());
    for contender in model.contenders() {
        let uses = [contender.setup != Setup::Hdd, contender.setup != Setup::Ssd];
        for ((drive, place), used) in [("SSD", SSD), ("HDD", HDD)].into_iter().zip(uses) {
            let figure = move |ratio| model.device_mb_per_second(contender, ratio, place).filter(|_| used);
            let is_second = uses == [true, true] && drive == "HDD";
            lines.push(Curve {
                name: format!("{}: {drive}", contender.name()),
                look: Some((colour(contender), if is_second { Mark::Dashed } else { Mark::Line })),
                figure: Box::new(figure),
            });
        }
        // On one device the other counter includes the same bytes.
        let counts = [uses[0], uses[1] && !(one_device && uses[0])];
        shares.push(Curve::exact(contender.name(), None, move |ratio| {
            let read = |place, counts: bool| {
                let found = model.device_mb_per_second(contender, ratio, place);
                if counts { Some(found?.mean) } else { Some(0.0) }
            };
            Some((read(SSD, counts[0])? + read(HDD, counts[1])?) / model.read_mb_per_second(contender, ratio)?.mean)
        }));
    }
    section.text(
        "As iostat shows it: bytes the kernel read from the drives while the store read values. Over 1.00 times the values' \
         bytes it is read-ahead, metadata of the file system, metadata of the store, and padding of direct reads to whole \
         blocks.",
    );
    let title = ("Figure 14: MB per second from each drive", "MB/s");
    chart(model, &mut section, "figure-14", title, &lines);
    let caption = "Bytes read from the drives over bytes of values";
    table(model, &mut section, caption, 2, &shares);
    section
}
