//! Goals: more hits and throughput than every rival at each share of flash, a tenth of Flashcache's
//! writes, and no pauses with twice the sessions that the disk alone sustains. Only runs with the
//! same common settings are compared.

use super::{EXPERIMENT, Measured, Settings, System};
use crate::{
    Outcome,
    harness::{
        results::{Record, rows},
        target::Target,
    },
};

const WRITES_OF_FLASHCACHE: f64 = 0.1;

/// A run.
pub type Row = (Settings, Measured);

/// The goals with measurements.
pub fn targets(records: &[Record]) -> Outcome<Vec<Target>> {
    let rows: Vec<Row> = rows(records, EXPERIMENT)?;
    let ours = rows.iter().filter(|row| row.0.system == System::Terrace);
    Ok(ours.flat_map(|row| of_run(&rows, row)).collect())
}

/// Runs with the same common settings, and the same share if they use flash.
fn others<'a>(rows: &'a [Row], settings: &'a Settings) -> impl Iterator<Item = &'a Row> {
    rows.iter().filter(|(other, _)| {
        let same_flash = other.share.is_none() || other.share == settings.share;
        other.system != System::Terrace && other.scene == settings.scene && same_flash
    })
}

/// Whether the disk alone sustained half of the sessions, if that was measured.
pub fn disk_holds_half(rows: &[Row], settings: &Settings) -> Option<bool> {
    let mut alone = others(rows, settings)
        .filter(|(other, _)| other.system == System::DiskOnly && other.sessions * 2 <= settings.sessions);
    alone.next().map(|(_, measured)| measured.played.paused_sessions == 0)
}

fn of_run(rows: &[Row], (settings, ours): &Row) -> Vec<Target> {
    let mut targets = Vec::new();
    let of_flash = format!(
        "video, exponent {}, flash {}",
        settings.scene.choice.exponent,
        settings.share.unwrap_or_default()
    );
    let with_all = || others(rows, settings).filter(|(other, _)| other.sessions == settings.sessions);
    let mut over_best = |what: &str, figure: &dyn Fn(&Measured) -> f64| {
        let best = with_all().max_by(|one, other| figure(&one.1).total_cmp(&figure(&other.1)));
        if let Some((rival, theirs)) = best.filter(|(_, theirs)| figure(theirs) > 0.0) {
            let name = format!("{of_flash}: {what} over the best rival's ({})", rival.system.name());
            targets.push(Target::at_least(name, 1.0, figure(ours) / figure(theirs)));
        }
    };
    over_best("hits", &Measured::hits);
    over_best("throughput", &|measured| measured.rush.bytes_per_second);
    if let Some((_, theirs)) = with_all().find(|(other, _)| other.system == System::Flashcache) {
        let name = format!("{of_flash}: bytes written to flash over Flashcache's");
        let written = ours.flash_written() / theirs.flash_written();
        targets.push(Target::at_most(name, WRITES_OF_FLASHCACHE, written));
    }
    if disk_holds_half(rows, settings) == Some(true) {
        let name = format!("{of_flash}: sessions with pauses, at twice what the disk alone holds");
        targets.push(Target::at_most(name, 0.0, ours.played.paused_sessions as f64));
    }
    targets
}
