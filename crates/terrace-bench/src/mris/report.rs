//! The evaluation's part of the report: the paper's figures and tables, ours beside the paper's.

use super::{
    evaluation::{Contender, EngineKind},
    figure8,
    insert::Order,
    model::{Model, Source},
    pagecounts::{Counts, EXPONENT_MAX},
    paper::Paper,
    targets::targets,
};
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
};

const SSD: fn(&BothTraffic) -> &PlaceTraffic = |traffic| &traffic.ssd;
const HDD: fn(&BothTraffic) -> &PlaceTraffic = |traffic| &traffic.hdd;

/// All sections for which there are results.
///
/// # Errors
/// If a result has not its form.
pub fn sections(records: &[Record]) -> Outcome<Vec<Section>> {
    let paper = Paper::published()?;
    let model = Model::of(records)?;
    let mut sections = Vec::new();
    for record in records.iter().filter(|record| record.experiment == figure8::EXPERIMENT) {
        sections.push(requests(record, &paper, sections.len())?);
    }
    if !model.inserts.is_empty() {
        sections.push(insertion(&model, &paper));
    }
    if !model.reads.is_empty() {
        sections.push(reading(&model, &paper));
        sections.push(costs(&model, &paper));
        sections.push(traffic(&model));
        sections.extend(aims(&model, &paper));
    }
    Ok(sections)
}

fn point(position: usize, summary: Summary) -> Point {
    Point {
        position,
        value: summary.mean,
        deviation: summary.deviation,
    }
}

fn exact(position: usize, value: f64) -> Point {
    Point {
        position,
        value,
        deviation: 0.0,
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

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.digits$}"))
}

/// The same colour for the same contender everywhere.
fn colour(contender: Contender) -> usize {
    match (contender.engine, contender.setup) {
        (EngineKind::Terrace, Setup::Ssd) => 0,
        (EngineKind::Terrace, Setup::Hybrid) => 1,
        (EngineKind::Terrace, Setup::Hdd) => 2,
        (EngineKind::LevelDb, Setup::Hdd) => 5,
        (EngineKind::LevelDb, _) => 4,
    }
}

fn requests(record: &Record, paper: &Paper, number: usize) -> Outcome<Section> {
    let counts: Counts = record.outcome()?;
    let mut section = Section::new(&format!("Figure 8: {}", record.name));
    if counts.bins.len() != EXPONENT_MAX + 1 {
        return Err(format!("result \"{}\" has {} sizes; remove it", record.name, counts.bins.len()).into());
    }
    section.text(format!(
        "{} requests of images, by size rounded up to a power of two. {} lines read, {} of other pages, {} without the form of \
         the files.",
        counts.requests(),
        counts.lines,
        counts.other_lines,
        counts.hostile_lines
    ));
    for broken in &counts.broken_files {
        section.text(format!("Read only in part: {broken}"));
    }
    let Some(shares) = counts.shares() else {
        return Ok(section);
    };
    let published = &paper.figure8;
    let row = |name: &str, ours: f64, theirs: f64| vec![name.to_owned(), format!("{ours:.2}"), format!("{theirs:.2}")];
    let rows = vec![
        row(
            "requests over 4 up to 64 KB",
            shares.between_4k_and_64k,
            published.between_4k_and_64k_percent,
        ),
        row("requests up to 128 KB", shares.up_to_128k, published.up_to_128k_percent),
        row(
            "traffic of those",
            shares.up_to_128k_traffic,
            published.up_to_128k_traffic_percent,
        ),
    ];
    section.table("Shares in percent", &["", "here", "paper"], rows);
    section.text(format!("Paper: {}.", published.source));
    let bins = &counts.bins[10..];
    let requests = counts.requests() as f64;
    let bytes: f64 = counts.bins.iter().map(|bin| bin.bytes as f64).sum();
    let percent = |part: u64, whole: f64| if whole > 0.0 { 100.0 * part as f64 / whole } else { 0.0 };
    let of = |figure: &dyn Fn(usize) -> f64| {
        (0..bins.len())
            .map(|position| exact(position, figure(position)))
            .collect()
    };
    let bar = |name: &str, colour, points| Series {
        name: name.to_owned(),
        colour,
        mark: Mark::Bar,
        points,
    };
    let size = |exponent: usize| match exponent {
        10..20 => format!("{}K", 1 << (exponent - 10)),
        _ => format!("{}M", 1 << (exponent - 20)),
    };
    let chart = Chart {
        title: format!("Figure 8: {}", record.name),
        x_label: "size up to, bytes".to_owned(),
        y_label: "percent".to_owned(),
        positions: (10..=EXPONENT_MAX).map(size).collect(),
        series: vec![
            bar(
                "requests",
                0,
                of(&|position| percent(bins[position].requests, requests)),
            ),
            bar("traffic", 5, of(&|position| percent(bins[position].bytes, bytes))),
        ],
    };
    section.chart(&format!("figure-8-{number}"), chart);
    Ok(section)
}

/// Setups side by side, sequential and random, ours and the paper's.
fn insertion_chart(
    model: &Model,
    title: &str,
    y_label: &str,
    ours: &dyn Fn(Contender, Order) -> Option<Summary>,
    theirs: &dyn Fn(Setup, Order) -> f64,
) -> Chart {
    let mut series = Vec::new();
    for (order, colour) in [(Order::Sequential, 0), (Order::Random, 2)] {
        let of = |engine| {
            let contender = move |setup| Contender { engine, setup };
            let points = Setup::ALL.into_iter().enumerate();
            points
                .filter_map(|(position, setup)| Some(point(position, ours(contender(setup), order)?)))
                .collect()
        };
        let mut add = |name: &str, colour, mark, points: Vec<Point>| {
            if !points.is_empty() {
                series.push(Series {
                    name: format!("{name}, {}", order.name()),
                    colour,
                    mark,
                    points,
                });
            }
        };
        add("Terrace", colour, Mark::Bar, of(EngineKind::Terrace));
        add("LevelDB", colour + 4, Mark::Bar, of(EngineKind::LevelDb));
        let published = Setup::ALL.into_iter().enumerate();
        add(
            "paper",
            colour,
            Mark::PaleBar,
            published
                .map(|(position, setup)| exact(position, theirs(setup, order)))
                .collect(),
        );
    }
    let groups = model.insert_groups;
    Chart {
        title: title.to_owned(),
        x_label: format!("setup ({groups} groups; LevelDB keeps large values inline, so it has no Hybrid)"),
        y_label: y_label.to_owned(),
        positions: Setup::ALL.map(|setup| setup.name().to_owned()).to_vec(),
        series,
    }
}

fn insertion(model: &Model, paper: &Paper) -> Section {
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
    section.chart(
        "figure-9a",
        insertion_chart(
            model,
            "Figure 9 (a): objects written per second",
            "objects/s",
            &ours,
            &objects,
        ),
    );
    let ours = |contender, order| model.insert_mb_per_second(contender, order);
    section.chart(
        "figure-9b",
        insertion_chart(model, "Figure 9 (b): MB written per second", "MB/s", &ours, &theirs),
    );
    let mut rows = Vec::new();
    for contender in model.contenders() {
        for order in [Order::Sequential, Order::Random] {
            let count = |figure| cell(model.engine_count(contender, order, figure), 0);
            let amplification = model.write_amplification(contender, order);
            let source = match amplification {
                None => "–",
                Some((_, Source::Drives)) => "the drives",
                Some((_, Source::Engine)) => "the engine",
            };
            rows.push(vec![
                format!("{}, {}", contender.name(), order.name()),
                cell(model.objects_per_second(contender, order), 1),
                cell(model.insert_mb_per_second(contender, order), 1),
                count(|figures| figures.flushes),
                count(|figures| figures.compactions),
                cell(model.written_mb(contender, order, SSD), 0),
                cell(model.written_mb(contender, order, HDD), 0),
                cell(amplification.map(|found| found.0), 2),
                source.to_owned(),
            ]);
        }
    }
    let head = [
        "",
        "objects/s",
        "MB/s",
        "flushes",
        "compactions",
        "MB to SSD",
        "MB to HDD",
        "write amplification",
        "counted by",
    ];
    section.table(
        "Insertion; what the paper's author wished to have recorded",
        &head,
        rows,
    );
    over_hdd_table(model, paper, &mut section);
    section.text(
        "MB per drive are what its counters say from the store's opening until after it is closed and synced. LevelDB's \
         compactions are those in its log; where the engine counts, LevelDB's own log of writes is added once.",
    );
    shared_device(model, &mut section);
    section
}

fn over_hdd_table(model: &Model, paper: &Paper, section: &mut Section) {
    let mut rows = Vec::new();
    for setup in [Setup::Ssd, Setup::Hybrid] {
        for order in [Order::Sequential, Order::Random] {
            let rate = |setup| {
                model
                    .objects_per_second(Contender::terrace(setup), order)
                    .map(|summary| summary.mean)
            };
            let ours = || Some(rate(setup)? / rate(Setup::Hdd)?);
            let theirs = match order {
                Order::Sequential => paper.figure9.sequential_over_hdd(setup),
                Order::Random => paper.figure9.random(setup) / paper.figure9.random(Setup::Hdd),
            };
            rows.push(vec![
                format!("{}, {}", setup.name(), order.name()),
                number(ours(), 2),
                format!("{theirs:.2}"),
            ]);
        }
    }
    section.table("Insertion over insertion into HDD", &["", "Terrace", "paper"], rows);
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

/// Something over the ratios.
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

fn reading(model: &Model, paper: &Paper) -> Section {
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

fn costs(model: &Model, paper: &Paper) -> Section {
    let mut section = Section::new("Figures 11 and 13, table 3: what a read costs");
    let mut rows = Vec::new();
    for contender in model.contenders() {
        let (line, timed) = (model.regression(contender), model.timed(contender));
        rows.push(vec![
            contender.name(),
            number(line.map(|line| line.slope), 0),
            number(line.map(|line| line.intercept), 0),
            number(line.map(|line| line.r_squared), 4),
            number(timed.map(|timed| timed.0), 0),
            number(timed.map(|timed| timed.1), 0),
        ]);
    }
    let published = &paper.table3;
    for (name, small, large) in [
        ("paper SSD", published.small_ssd_us, published.large_ssd_us),
        ("paper HDD", published.small_hdd_us, published.large_hdd_us),
    ] {
        let none = || "–".to_owned();
        rows.push(vec![
            name.to_owned(),
            format!("{small:.0}"),
            format!("{large:.0}"),
            none(),
            none(),
            none(),
        ]);
    }
    for (drive, (summary, bytes)) in &model.raw {
        let text = cell(Some(*summary), 0);
        let (small, large) = if *drive == Setup::Hdd {
            ("–".to_owned(), text)
        } else {
            (text, "–".to_owned())
        };
        let none = || "–".to_owned();
        rows.push(vec![
            format!("fio, {} reads of {bytes} B", drive.name()),
            none(),
            none(),
            none(),
            small,
            large,
        ]);
    }
    let head = [
        "",
        "small µs (regression)",
        "large µs (regression)",
        "R²",
        "small µs (timed)",
        "large µs (timed)",
    ];
    section.table("Table 3: costs of reads", &head, rows);
    section.text(format!("Paper: {}.", published.source));
    section.text(
        "Regression: the time of a cycle of ratio small reads and a large one, over the ratio; the slope is a small read, the \
         intercept a large one. Timed: the mean of every single read.",
    );
    let Some(costs) = model.costs(EngineKind::Terrace) else {
        return section;
    };
    let predicted = |setup| {
        let costs = &costs;
        move |ratio: u64| Some(costs.reads_per_second(setup, ratio as f64))
    };
    let (mut operations, mut megabytes) = (Vec::new(), Vec::new());
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
        operations.push(dashed(model, &name, colour(contender), predicted(setup)));
        let in_mb = |ratio| predicted(setup)(ratio).map(|rate| model.mb_of(rate, ratio));
        megabytes.push(dashed(model, &name, colour(contender), in_mb));
    }
    let title = "Figure 11: predicted (equations 1 to 3) and measured";
    section.chart("figure-11", ratio_chart(model, title, "reads/s", operations));
    let title = "Figure 13: predicted (equation 5) and measured";
    section.chart("figure-13", ratio_chart(model, title, "MB/s", megabytes));
    section
}

fn traffic(model: &Model) -> Section {
    let mut section = Section::new("Figure 14: what the drives had to read");
    let mut series = Vec::new();
    let mut rows = Vec::new();
    for contender in model.contenders() {
        let uses_hdd = contender.setup != Setup::Ssd;
        let uses_ssd = contender.setup != Setup::Hdd;
        for (drive, place, used) in [("SSD", SSD, uses_ssd), ("HDD", HDD, uses_hdd)] {
            if used {
                series.push(Series {
                    name: format!("{}: {drive}", contender.name()),
                    colour: colour(contender),
                    mark: if drive == "HDD" && contender.setup == Setup::Hybrid {
                        Mark::Dashed
                    } else {
                        Mark::Line
                    },
                    points: over_ratios(model, |ratio| model.device_mb_per_second(contender, ratio, place)),
                });
            }
        }
        let cells = model.ratios().into_iter().map(|ratio| {
            let read = |place, used: bool| {
                let found = model
                    .device_mb_per_second(contender, ratio, place)
                    .map(|summary| summary.mean);
                if used { found } else { Some(0.0) }
            };
            let values = model.read_mb_per_second(contender, ratio).map(|summary| summary.mean);
            let share = || Some((read(SSD, uses_ssd)? + read(HDD, uses_hdd)?) / values?);
            number(share(), 2)
        });
        rows.push(std::iter::once(contender.name()).chain(cells).collect());
    }
    section.text(
        "As iostat shows it: bytes the kernel read from the drives while the store read values. Over 1.00 times the values' \
         bytes it is read-ahead, metadata of the file system, metadata of the store, and padding of direct reads to whole \
         blocks.",
    );
    section.chart(
        "figure-14",
        ratio_chart(model, "Figure 14: MB per second from each drive", "MB/s", series),
    );
    let ratios: Vec<String> = model.ratios().iter().map(u64::to_string).collect();
    let head: Vec<&str> = std::iter::once("ratio")
        .chain(ratios.iter().map(String::as_str))
        .collect();
    section.table("Bytes read from the drives over bytes of values", &head, rows);
    section
}

fn aims(model: &Model, paper: &Paper) -> Option<Section> {
    let targets = targets(model, paper);
    let rows = targets.iter().map(|target| {
        vec![
            target.name.to_owned(),
            target.ratio.to_string(),
            format!("{:.1}", target.base),
            format!("{:.2}", target.wanted),
            format!("{:.2}", target.measured),
            target.verdict().to_owned(),
        ]
    });
    let mut section = Section::new("Targets");
    section.text(
        "They mean the paper's drives, emulated. On others a comparison with the paper's own figures says nothing.",
    );
    let head = ["target", "ratio", "base, reads/s", "at least", "measured", ""];
    section.table("Targets", &head, rows.collect());
    (!targets.is_empty()).then_some(section)
}
