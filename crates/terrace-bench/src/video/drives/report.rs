//! Tables and charts of video on two drives.

use super::{
    EXPERIMENT, Scene, Settings, System,
    audience::Played,
    targets::{Row, disk_holds_half},
};
use crate::{
    Outcome,
    harness::{
        chart::{Chart, Mark, Series},
        page::{Section, number},
        results::{Record, rows},
    },
};

const SYSTEMS: [System; 5] = [
    System::Terrace,
    System::ObjectLru,
    System::Flashcache,
    System::L2Arc,
    System::DiskOnly,
];

/// A section for each set of common settings, and the goals.
pub fn sections(records: &[Record]) -> Outcome<Vec<Section>> {
    let rows: Vec<Row> = rows(records, EXPERIMENT)?;
    let mut scenes: Vec<&Scene> = Vec::new();
    for (settings, _) in &rows {
        if !scenes.contains(&&settings.scene) {
            scenes.push(&settings.scene);
        }
    }
    scenes.sort_by(|one, other| one.choice.exponent.total_cmp(&other.choice.exponent));
    let sections = scenes
        .into_iter()
        .enumerate()
        .map(|(number, scene)| section(&rows, scene, number));
    Ok(sections.collect())
}

fn section(all: &[Row], scene: &Scene, number: usize) -> Section {
    let mut rows: Vec<&Row> = all.iter().filter(|row| row.0.scene == *scene).collect();
    // Numbers that are not negative are ordered as their bits are.
    rows.sort_by_key(|(settings, _)| {
        let share = settings.share.unwrap_or_default().to_bits();
        (share, settings.system, settings.sessions)
    });
    let exponent = scene.choice.exponent;
    let mut section = Section::new(&format!("Video on two drives, exponent {exponent}"));
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    section.text(format!(
        "{} titles of {} segments of {} bytes, {:.0} MiB in all; RAM of {:.0} MiB for what was read. {} sessions; a segment plays for {} s. \
         SSD: {}. HDD: {}.",
        scene.catalogue.titles,
        scene.catalogue.parts,
        scene.segment_bytes,
        mib(scene.bytes()),
        mib(scene.ram_bytes),
        scene.sessions_max,
        scene.segment_seconds,
        scene.ssd,
        scene.hdd,
    ));
    section.text(
        "Hits: share of the bytes delivered that were not read from the disk, once caches were warm. Throughput: all readers as fast as they can. \
         Start-up times and pauses: all players at the bit rate; only sessions that began when all players had started. Flash written: bytes per byte delivered.",
    );
    measured_table(&mut section, &rows);
    if let Some((settings, _)) = rows.iter().find(|row| row.0.system == System::Terrace) {
        section.text(match disk_holds_half(all, settings) {
            Some(true) => "The disk alone held half of the sessions without a pause.",
            Some(false) => "The disk alone did not hold half of the sessions, so nothing is asked of pauses.",
            None => "Whether the disk alone holds half of the sessions was not measured.",
        });
    }
    charts(&mut section, &rows, number);
    section
}

fn measured_table(section: &mut Section, rows: &[&Row]) {
    let optimum = |settings: &Settings| {
        let Scene { choice, catalogue, .. } = &settings.scene;
        let share = settings.share?;
        Some(choice.optimum(catalogue.titles, share) * 100.0)
    };
    let start_ms = |played: &Played| {
        let us = played.start.percentile_us(99.0).filter(|_| played.sessions > 0)?;
        Some(us / 1e3)
    };
    let paused = |played: &Played| {
        let all = (played.shown_seconds + played.paused_seconds).max(1e-9);
        played.paused_seconds / all * 100.0
    };
    let runs = rows
        .iter()
        .map(|(settings, measured)| (settings, measured, &measured.played));
    section.columns(
        "Measured",
        runs,
        &[
            ("flash", &|(settings, ..)| {
                settings.share.map_or_else(|| "–".to_owned(), |share| share.to_string())
            }),
            ("", &|(settings, ..)| settings.system.name().to_owned()),
            ("sessions", &|(settings, ..)| settings.sessions.to_string()),
            ("hits, %", &|(_, measured, _)| format!("{:.1}", measured.hits() * 100.0)),
            ("fixed optimum, %", &|(settings, ..)| number(optimum(settings), 1)),
            ("MB/s", &|(_, measured, _)| {
                format!("{:.1}", measured.rush.bytes_per_second / 1e6)
            }),
            ("start, 99 %, ms", &|(.., played)| number(start_ms(played), 1)),
            ("sessions with pauses", &|(.., played)| {
                format!("{} of {}", played.paused_sessions, played.sessions)
            }),
            ("time paused, %", &|(.., played)| format!("{:.2}", paused(played))),
            ("flash written", &|(_, measured, _)| {
                format!("{:.3}", measured.flash_written())
            }),
        ],
    );
}

/// The same colour for a system in every chart.
const fn colour(system: System) -> usize {
    match system {
        System::Terrace => 0,
        System::ObjectLru => 1,
        System::Flashcache => 2,
        System::L2Arc => 3,
        System::DiskOnly => 6,
    }
}

fn charts(section: &mut Section, rows: &[&Row], number: usize) {
    let mut shares: Vec<f64> = rows.iter().filter_map(|row| row.0.share).collect();
    shares.sort_by(f64::total_cmp);
    shares.dedup();
    let of = |system: System, share: f64| {
        let fits = |settings: &Settings| {
            let same_flash = settings.share.is_none() || settings.share == Some(share);
            settings.system == system && same_flash && settings.sessions == settings.scene.sessions_max
        };
        rows.iter().find(|row| fits(&row.0))
    };
    let series =
        |system: System, values: Vec<Option<f64>>| Series::exact(system.name(), (colour(system), Mark::Line), values);
    let rates = SYSTEMS.map(|system| {
        let found = shares.iter().map(|&share| of(system, share));
        let rate = |row: &&Row| row.1.rush.bytes_per_second / 1e6;
        series(system, found.map(|row| row.map(rate)).collect())
    });
    let x_label = "flash, share of the catalogue";
    section.chart(
        &format!("video-{number}-throughput"),
        Chart::new("As fast as possible", x_label, "MB/s", &shares, rates),
    );
    let Some(&share) = shares.get(shares.len() / 2) else {
        return;
    };
    // The middle share, from cold to warm. More may be read than delivered, which is no hit.
    let in_time = |system: &System| {
        let windows = of(*system, share).map_or(&[][..], |row| &row.1.windows);
        let hits = windows.iter().map(|window| Some(window.hits().max(0.0) * 100.0));
        series(*system, hits.collect())
    };
    let windows = of(System::Terrace, share).map_or(0, |row| row.1.windows.len());
    let sessions = rows.first().map_or(0, |row| row.0.scene.warm_up_sessions) as usize;
    let title = format!("Hits from cold to warm, flash {share} of the catalogue");
    let positions = (1..=windows).map(|at| at * sessions / windows.max(1));
    let lines = SYSTEMS
        .iter()
        .filter(|system| **system != System::DiskOnly)
        .map(in_time);
    section.chart(
        &format!("video-{number}-hits"),
        Chart::new(&title, "sessions begun", "hits, %", positions, lines),
    );
}
