//! Figures 6 and 7 of the MRIS paper as text: measured values beside the targets.

use super::{Measured, Report};

/// Tolerated deviation of a measurement from its target.
const TOLERANCE: f64 = 0.15;
/// Speed of random reads on the paper's SSD relative to its disk, by request size (section 4.1).
const SPEEDUPS: [(u64, f64); 4] = [(4 << 10, 23.1), (8 << 10, 18.4), (64 << 10, 8.4), (256 << 10, 4.8)];
const DISK: &str = "maxtor-7l250s0";
const SSD: &str = "intel-320";

/// Prints the whole report.
pub fn print(report: &Report) {
    println!(
        "{}, {} processors, load {:.1} before and {:.1} after; {}; drives of {}; runs of {} s",
        report.kernel,
        report.processors,
        report.load[0],
        report.load[1],
        report.fio,
        size(report.drive_bytes),
        report.seconds
    );
    println!("10⁶ bytes per second: median ± standard deviation of the runs.");
    table(
        report,
        "Figure 6: reading",
        [("randread", "random"), ("read", "sequential")],
    );
    table(
        report,
        "Figure 7: writing",
        [("randwrite", "random"), ("write", "sequential")],
    );
    speedups(report);
    let with_target: Vec<f64> = report.results.iter().filter_map(Measured::ratio).collect();
    let met = with_target.iter().filter(|ratio| is_met(**ratio)).count();
    println!(
        "\n{met} of {} targets are met within {:.0} %.",
        with_target.len(),
        TOLERANCE * 100.0
    );
}

fn is_met(ratio: f64) -> bool {
    (ratio - 1.0).abs() <= TOLERANCE
}

fn table(report: &Report, title: &str, accesses: [(&str, &str); 2]) {
    println!("\n{title}\n");
    println!("| profile | access | request | measured | per request | in the model | target | measured / target |");
    println!("|---|---|---|---|---|---|---|---|");
    for result in &report.results {
        let Some((_, access)) = accesses.iter().find(|(name, _)| *name == result.access) else {
            continue;
        };
        println!(
            "| {} | {access} | {} | {:.2} ± {:.2} | {:.0} µs | {:.0} µs | {} | {} |",
            result.profile,
            size(result.bytes),
            result.median_mb_per_s,
            result.deviation_mb_per_s,
            result.request_us,
            result.model_us,
            result
                .target_mb_per_s
                .map_or_else(|| "–".to_owned(), |target| format!("{target:.1}")),
            result.ratio().map_or_else(|| "–".to_owned(), verdict)
        );
    }
}

fn verdict(ratio: f64) -> String {
    format!("{ratio:.2}, {}", if is_met(ratio) { "met" } else { "**missed**" })
}

/// The ratios in the paper's text.
fn speedups(report: &Report) {
    let rate = |profile: &str, bytes: u64| {
        let mut results = report.results.iter();
        let found =
            results.find(|result| result.profile == profile && result.bytes == bytes && result.access == "randread");
        found.map(|result| result.median_mb_per_s)
    };
    let rows = SPEEDUPS.iter().filter_map(|(bytes, paper)| {
        let measured = rate(SSD, *bytes)? / rate(DISK, *bytes)?;
        Some((bytes, paper, measured))
    });
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        return;
    }
    println!("\nRandom reads, {SSD} against {DISK}\n");
    println!("| request | measured | paper | measured / paper |");
    println!("|---|---|---|---|");
    for (bytes, paper, measured) in rows {
        println!(
            "| {} | {measured:.1} | {paper} | {} |",
            size(*bytes),
            verdict(measured / paper)
        );
    }
}

/// One line per result, to follow a run.
pub fn line(result: &Measured) -> String {
    let target = result
        .ratio()
        .map_or_else(String::new, |ratio| format!(", {} of its target", verdict(ratio)));
    format!(
        "{} {} {}: {:.2} ± {:.2} MB/s{target}",
        result.profile,
        result.access,
        size(result.bytes),
        result.median_mb_per_s,
        result.deviation_mb_per_s
    )
}

/// Bytes in the largest unit that leaves no fraction.
fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units
        .iter()
        .find(|(shift, _)| bytes >= 1 << shift && bytes.is_multiple_of(1 << shift));
    unit.map_or_else(
        || format!("{bytes} B"),
        |(shift, name)| format!("{} {name}", bytes >> shift),
    )
}
