//! Figures 5 to 7 and tables 4 and 5 of the FlashStore paper, with Terrace in FlashStore's place.
//!
//! The paper's rates are computed from its tables 4 and 5 with the power of its table 2, since its
//! figures have no numbers; FlashStore's are in its text (sections 5.6 and 5.7).

use super::{
    super::{
        Bounded, Meeting,
        report::{conditions, look},
    },
    EXPERIMENT, Measured, PLATFORMS, Platform, Settings, Syncing,
    trace::Kind,
};
use crate::{
    Outcome,
    harness::{
        chart::{Chart, Mark, Series},
        page::{Section, number},
        results::{Record, rows},
        setup::Setup,
    },
    rivals::Candidate,
};
use serde::Deserialize;
use std::collections::BTreeSet;

type Row = (Settings, Bounded<Measured>);

/// The profile whose flash corresponds to the paper's second, slower machine.
const MODEST_FLASH: &str = "intel-320";

/// The paper's rates on a machine: FlashStore, Berkeley DB on flash, Berkeley DB on disk; Xbox and
/// dedup.
struct Published {
    platform: &'static str,
    flashstore: [f64; 2],
    berkeley_ssd: [f64; 2],
    berkeley_hdd: [f64; 2],
}

/// Operations per joule of tables 4 and 5, times watts of table 2.
const BLUE: Published = Published {
    platform: "Blue",
    flashstore: [42_527.0, 57_271.0],
    berkeley_ssd: [100.0 * 83.5, 88.0 * 83.5],
    berkeley_hdd: [9.0 * 80.5, 30.0 * 80.5],
};
const GREEN: Published = Published {
    platform: "Green",
    flashstore: [8_470.0, 10_884.0],
    berkeley_ssd: [489.0 * 10.2, 197.0 * 10.2],
    berkeley_hdd: [42.0 * 11.4, 89.0 * 11.4],
};

/// All sections for which there are results.
pub fn sections(records: &[Record]) -> Outcome<Vec<Section>> {
    let rows = rows::<Settings, Bounded<Measured>>(records, EXPERIMENT)?;
    let platforms = platforms(records)?;
    let fast: BTreeSet<&str> = rows.iter().map(|row| row.0.meeting.ssd.as_str()).collect();
    let mut sections = Vec::new();
    for (number, ssd) in fast.into_iter().enumerate() {
        let of_drive: Vec<&Row> = rows.iter().filter(|row| row.0.meeting.ssd == ssd).collect();
        sections.push(section(number, ssd, &of_drive, &platforms));
    }
    Ok(sections)
}

/// The machines in the newest record that has any.
fn platforms(records: &[Record]) -> Outcome<Vec<Platform>> {
    let newest = records
        .iter()
        .filter(|record| record.experiment == PLATFORMS)
        .max_by(|one, other| one.started.cmp(&other.started));
    newest.map_or_else(|| Ok(Vec::new()), |record| Ok(Vec::deserialize(&record.settings)?))
}

fn section(number: usize, ssd: &str, rows: &[&Row], platforms: &[Platform]) -> Section {
    let mut section = Section::new(&format!("FlashStore's traces, flash: {ssd}"));
    let published = if ssd.contains(MODEST_FLASH) { &GREEN } else { &BLUE };
    let figure = if ssd.contains(MODEST_FLASH) { 6 } else { 5 };
    let all: BTreeSet<String> = rows
        .iter()
        .map(|row| conditions(&row.0.meeting, row.1.memory_bounded))
        .collect();
    for conditions in all {
        section.text(conditions);
    }
    section.text(
        "The traces are made up with the published properties. One caller, a sync whenever 4 KiB of writes have come together. \
         \"Terrace, no cache\" stands in FlashStore's place: its RAM cache is off, as in the paper; Berkeley DB's caching is left as it is. \
         The paper's bars are another machine's, of 2010.",
    );
    let title = format!("Figure {figure}: operations per second");
    let mut series = rates(rows, Syncing::EveryPage);
    series.extend(paper(published));
    let name = format!("flashstore-figure-{figure}-{number}");
    section.chart(&name, over_traces(&title, series));
    let title = "Operations per second, 64 callers, each write synced";
    let synced = over_traces(title, rates(rows, Syncing::EveryWrite));
    section.chart(&format!("flashstore-synced-{number}"), synced);
    figure_7(number, rows, &mut section);
    for (kind, table) in [(Kind::Xbox, 4), (Kind::Dedup, 5)] {
        efficiency(kind, table, rows, platforms, &mut section);
    }
    all_runs(rows, &mut section);
    section
}

/// Candidates and setups with space for all data, except a cache that does not persist, which is
/// only in the table of all runs.
fn candidates(rows: &[&Row]) -> BTreeSet<(Candidate, Setup)> {
    let with_room = rows.iter().filter(|row| row.0.flash_share.is_none());
    with_room
        .map(|row| (row.0.meeting.candidate, row.0.meeting.setup))
        .filter(|entrant| entrant.0.abilities().persists)
        .collect()
}

fn rate(rows: &[&Row], (candidate, setup): (Candidate, Setup), kind: Kind, syncing: Syncing) -> Option<f64> {
    let found = rows.iter().find(|(settings, _)| {
        let Settings { meeting, .. } = settings;
        let is_its = meeting.candidate == candidate && meeting.setup == setup;
        is_its && settings.trace == kind && settings.syncing == syncing && settings.flash_share.is_none()
    });
    found.map(|row| row.1.measured.step.rate())
}

fn rates(rows: &[&Row], syncing: Syncing) -> Vec<Series> {
    let series = |entrant: (Candidate, Setup)| {
        let name = format!("{} on {}", entrant.0.name(), entrant.1.name());
        let rates = Kind::ALL.map(|kind| rate(rows, entrant, kind, syncing));
        Series::exact(name, look(entrant.0, entrant.1), rates)
    };
    candidates(rows).into_iter().map(series).collect()
}

fn paper(published: &Published) -> [Series; 3] {
    [
        ("FlashStore", 0, published.flashstore),
        ("Berkeley DB, SSD", 2, published.berkeley_ssd),
        ("Berkeley DB, HDD", 5, published.berkeley_hdd),
    ]
    .map(|(name, colour, rates)| {
        let name = format!("paper, {}: {name}", published.platform);
        Series::exact(name, (colour, Mark::PaleBar), rates)
    })
}

fn over_traces(title: &str, series: Vec<Series>) -> Chart {
    Chart::new(title, "trace", "operations/s", Kind::ALL.map(Kind::name), series)
}

fn figure_7(number: usize, rows: &[&Row], section: &mut Section) {
    let mut shares: Vec<f64> = rows.iter().filter_map(|row| row.0.flash_share).collect();
    shares.sort_by(|one, other| other.total_cmp(one));
    shares.dedup();
    let mut series = Vec::new();
    for (colour, kind) in Kind::ALL.into_iter().enumerate() {
        let at = |&share: &f64| {
            let mut of_kind = rows.iter().filter(|row| row.0.trace == kind);
            let found = of_kind.find(|row| row.0.flash_share == Some(share));
            found.map(|row| row.1.measured.step.rate())
        };
        let name = format!("{}, Terrace", kind.name());
        series.push(Series::exact(name, (2 * colour, Mark::Line), shares.iter().map(at)));
        let base = rate(rows, (Candidate::BerkeleyDb, Setup::Hdd), kind, Syncing::EveryPage);
        let name = format!("{}, Berkeley DB on HDD", kind.name());
        series.push(Series::exact(
            name,
            (2 * colour, Mark::Dashed),
            shares.iter().map(|_| base),
        ));
    }
    let title = "Figure 7: operations per second with less flash than data";
    let x_label = "flash log, share of the data; the rest on the disk";
    let positions = shares.iter().map(|share| format!("{:.0} %", share * 100.0));
    section.chart(
        &format!("flashstore-figure-7-{number}"),
        Chart::new(title, x_label, "operations/s", positions, series),
    );
}

/// Tables 4 and 5: these rates with the power and price of each platform.
fn efficiency(kind: Kind, table: u32, rows: &[&Row], platforms: &[Platform], section: &mut Section) {
    let mut found = Vec::new();
    for platform in platforms {
        for entrant in candidates(rows) {
            let rate = rate(rows, entrant, kind, Syncing::EveryPage);
            found.extend(rate.map(|rate| (platform, entrant, rate)));
        }
    }
    section.columns(
        &format!(
            "Table {table}: {}. Rates measured here with power and prices of the platform: for comparison among each other only",
            kind.name()
        ),
        found,
        &[
            ("platform", &|(platform, entrant, _)| {
                format!("{}, {} on {}", platform.name, entrant.0.name(), entrant.1.name())
            }),
            ("operations/s", &|(.., rate)| format!("{rate:.0}")),
            ("operations/J", &|(platform, entrant, rate)| {
                format!("{:.1}", platform.per_joule(*rate, entrant.1))
            }),
            ("operations/s/$", &|(platform, entrant, rate)| {
                format!("{:.2}", platform.per_dollar(*rate, entrant.1))
            }),
        ],
    );
}

fn all_runs(rows: &[&Row], section: &mut Section) {
    let name = |settings: &Settings| {
        let Meeting { candidate, setup, .. } = settings.meeting;
        format!("{}, {} on {}", settings.trace.name(), candidate.name(), setup.name())
    };
    let runs = rows
        .iter()
        .map(|(settings, run)| (settings, &run.measured, &run.measured.step));
    section.columns(
        "All runs of the traces",
        runs,
        &[
            ("", &|(settings, ..)| name(settings)),
            ("syncs", &|(settings, ..)| settings.syncing.name().to_owned()),
            ("flash", &|(settings, ..)| {
                let share = settings.flash_share;
                share.map_or_else(|| "all".to_owned(), |share| format!("{:.0} %", share * 100.0))
            }),
            ("operations/s", &|(.., step)| format!("{:.0}", step.rate())),
            ("50 % µs", &|(.., step)| number(step.latency.percentile_us(50.0), 2)),
            ("99 % µs", &|(.., step)| number(step.latency.percentile_us(99.0), 2)),
            ("µs of CPU", &|(.., step)| number(step.cpu_us(), 2)),
            ("written per byte", &|(.., step)| number(step.write_amplification(), 2)),
            ("disk per byte", &|(_, measured, _)| number(measured.space, 2)),
            ("operations", &|(settings, _, step)| {
                format!("{} of {}", step.operations, settings.operations)
            }),
        ],
    );
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::super::WorkloadFile;
    use super::*;

    /// The built-in platforms with the paper's rates reproduce the paper's tables.
    #[test]
    fn tables_4_and_5_follow_from_the_papers_rates() {
        let platforms = WorkloadFile::read(None).unwrap().platforms;
        let of = |name: &str| platforms.iter().find(|platform| platform.name == name).unwrap();
        for (platform, rate, joule, dollar) in [
            ("Blue", 42_527.0, 509.0, 13.0),
            ("Blue", 57_271.0, 686.0, 17.0),
            ("Green", 8_470.0, 830.0, 12.0),
            ("Green", 10_884.0, 1067.0, 16.0),
        ] {
            assert!((of(platform).per_joule(rate, Setup::Ssd) - joule).abs() < 1.0);
            assert!((of(platform).per_dollar(rate, Setup::Ssd) - dollar).abs() < 0.6);
        }
        // Berkeley DB on the disk: 0.6 and 2 operations per second and dollar.
        assert!((of("Blue").per_dollar(BLUE.berkeley_hdd[0], Setup::Hdd) - 0.6).abs() < 0.05);
        assert!((of("Green").per_dollar(GREEN.berkeley_hdd[0], Setup::Hdd) - 2.0).abs() < 0.5);
    }
}
