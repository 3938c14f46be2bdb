//! Figure 8: image requests by size.

use crate::{
    Outcome,
    harness::{
        chart::{Chart, Mark, Series},
        page::Section,
        results::Record,
    },
    mris::{
        pagecounts::{Bin, Counts, EXPONENT_MAX},
        paper::Paper,
    },
};

/// The section of one result.
pub fn section(record: &Record, paper: &Paper, number: usize) -> Outcome<Section> {
    let counts: Counts = record.outcome()?;
    let mut section = Section::new(&format!("Figure 8: {}", record.name));
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
    if let (eights, large @ 1..) = (counts.bins[13].requests, counts.bins[17].requests) {
        section.text(format!(
            "Images of 8 KB are asked for {:.1} times as often as those of 128 KB; in the paper {:.1} times.",
            eights as f64 / large as f64,
            published.ratio_8k_to_128k
        ));
    }
    let rows = [
        (
            "requests over 4 up to 64 KB",
            shares.between_4k_and_64k,
            published.between_4k_and_64k_percent,
        ),
        ("requests up to 128 KB", shares.up_to_128k, published.up_to_128k_percent),
        (
            "traffic of those",
            shares.up_to_128k_traffic,
            published.up_to_128k_traffic_percent,
        ),
    ];
    section.columns(
        "Shares in percent",
        rows,
        &[
            ("", &|row| row.0.to_owned()),
            ("here", &|row| format!("{:.2}", row.1)),
            ("paper", &|row| format!("{:.2}", row.2)),
        ],
    );
    section.text(format!("Paper: {}.", published.source));
    section.chart(&format!("figure-8-{number}"), chart(&record.name, &counts));
    Ok(section)
}

/// Requests and traffic by size, from 1 KB on.
fn chart(name: &str, counts: &Counts) -> Chart {
    let bar = |what: &str, colour, figure: fn(&Bin) -> u64| {
        let all = counts.bins.iter().map(|bin| figure(bin) as f64).sum::<f64>().max(1.0);
        let percents = counts.bins[10..].iter().map(|bin| 100.0 * figure(bin) as f64 / all);
        Series::exact(what, (colour, Mark::Bar), percents)
    };
    let size = |exponent: usize| match exponent {
        10..20 => format!("{}K", 1 << (exponent - 10)),
        _ => format!("{}M", 1 << (exponent - 20)),
    };
    Chart::new(
        &format!("Figure 8: {name}"),
        "size up to, bytes",
        "percent",
        (10..=EXPONENT_MAX).map(size),
        [
            bar("requests", 0, |bin| bin.requests),
            bar("traffic", 5, |bin| bin.bytes),
        ],
    )
}
