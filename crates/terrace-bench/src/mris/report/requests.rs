//! Figure 8: image requests by size.

use crate::{
    Outcome,
    harness::{
        chart::{Chart, Mark, Point, Series},
        page::Section,
        results::Record,
    },
    mris::{
        pagecounts::{Counts, EXPONENT_MAX},
        paper::Paper,
    },
};

/// The section of one result.
///
/// # Errors
/// If it is malformed.
pub fn section(record: &Record, paper: &Paper, number: usize) -> Outcome<Section> {
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
    if let (eights, large @ 1..) = (counts.bins[13].requests, counts.bins[17].requests) {
        section.text(format!(
            "Images of 8 KB are asked for {:.1} times as often as those of 128 KB; in the paper {:.1} times.",
            eights as f64 / large as f64,
            published.ratio_8k_to_128k
        ));
    }
    section.table("Shares in percent", &["", "here", "paper"], rows);
    section.text(format!("Paper: {}.", published.source));
    section.chart(&format!("figure-8-{number}"), chart(&record.name, &counts));
    Ok(section)
}

/// Requests and traffic by size, from 1 KB on.
fn chart(name: &str, counts: &Counts) -> Chart {
    let bins = &counts.bins[10..];
    let requests = counts.requests() as f64;
    let bytes: f64 = counts.bins.iter().map(|bin| bin.bytes as f64).sum();
    let percent = |part: u64, whole: f64| if whole > 0.0 { 100.0 * part as f64 / whole } else { 0.0 };
    let of = |figure: &dyn Fn(usize) -> f64| {
        (0..bins.len())
            .map(|position| Point::exact(position, figure(position)))
            .collect()
    };
    let bar = |what: &str, colour, points| Series {
        name: what.to_owned(),
        colour,
        mark: Mark::Bar,
        points,
    };
    let size = |exponent: usize| match exponent {
        10..20 => format!("{}K", 1 << (exponent - 10)),
        _ => format!("{}M", 1 << (exponent - 20)),
    };
    Chart {
        title: format!("Figure 8: {name}"),
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
    }
}
