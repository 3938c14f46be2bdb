//! Performance goals against the rivals, and whether they are met. Goals without measurements are
//! left out.
//!
//! Only runs on the same drives with the same RAM are compared.

use super::{
    Bounded, Meeting,
    data::{Mixed, ValueSize},
    flashstore, micro,
    step::Step,
};
use crate::{
    Outcome,
    harness::{
        results::{Record, rows},
        setup::Setup,
        target::Target,
    },
    rivals::Candidate,
};
use clap::ValueEnum as _;

/// The goals with measurements.
pub fn targets(records: &[Record]) -> Outcome<Vec<Target>> {
    let mut targets = Vec::new();
    micro_targets(&rows(records, micro::EXPERIMENT)?, &mut targets);
    flashstore_targets(&rows(records, flashstore::EXPERIMENT)?, &mut targets);
    Ok(targets)
}

/// Whether two runs have the same conditions. The RAM of the whole process is one of them; its
/// division into caches is tuning.
fn same_conditions(one: &Meeting, other: &Meeting) -> bool {
    Meeting {
        candidate: other.candidate,
        cache_bytes: other.cache_bytes,
        ..one.clone()
    } == *other
}

type MicroRow = (micro::Settings, Bounded<micro::Measured>);

/// Goal of Terrace's puts relative to RocksDB's, for a length of values.
fn puts_wanted(bytes: usize) -> f64 {
    match bytes {
        0..1024 => 1.5,
        1024..8192 => 2.0,
        _ => 4.0,
    }
}

/// Goal of Terrace's scans; `None` for short values.
fn scans_wanted(bytes: usize) -> Option<f64> {
    match bytes {
        0..1024 => None,
        1024..8192 => Some(0.7),
        _ => Some(1.0),
    }
}

fn micro_targets(rows: &[MicroRow], targets: &mut Vec<Target>) {
    for (settings, ours) in rows.iter().filter(|row| row.0.meeting.candidate == Candidate::Terrace) {
        let rival = |candidate: Candidate| {
            rows.iter().find(|(other, _)| {
                let same = other.size == settings.size
                    && other.objects == settings.objects
                    && other.seconds_max.to_bits() == settings.seconds_max.to_bits();
                other.meeting.candidate == candidate && same && same_conditions(&settings.meeting, &other.meeting)
            })
        };
        match settings.size {
            ValueSize::Bytes(bytes) => {
                if let Some((_, theirs)) = rival(Candidate::RocksDb) {
                    against_rocksdb(settings, bytes, &ours.measured, &theirs.measured, targets);
                }
            }
            ValueSize::Mixed(Mixed::Mixed) if settings.meeting.setup == Setup::Hybrid => {
                let Some((_, theirs)) = rival(Candidate::RocksDb) else {
                    continue;
                };
                for operation in ["fillrandom", "readrandom"] {
                    let rate = |measured: &micro::Measured| measured.step(operation).map(Step::rate);
                    if let (Some(ours), Some(theirs)) = (rate(&ours.measured), rate(&theirs.measured)) {
                        let name = format!("{operation}, mixed, on two drives, over RocksDB's");
                        targets.push(Target::at_least(name, 3.0, ours / theirs));
                    }
                }
            }
            ValueSize::Mixed(_) => {}
        }
    }
}

fn against_rocksdb(
    settings: &micro::Settings,
    bytes: usize,
    ours: &micro::Measured,
    theirs: &micro::Measured,
    targets: &mut Vec<Target>,
) {
    let setup = settings.meeting.setup.name();
    let mut add = |operation: &str, what: &str, wanted: f64, at_most: bool, figure: &dyn Fn(&Step) -> Option<f64>| {
        let both = || Some((figure(ours.step(operation)?)?, figure(theirs.step(operation)?)?));
        if let Some((ours, theirs)) = both().filter(|both| both.1 > 0.0) {
            targets.push(Target {
                name: format!("{operation}, {}, {setup}: {what} over RocksDB's", settings.size),
                wanted,
                at_most,
                measured: ours / theirs,
            });
        }
    };
    let rate = |step: &Step| Some(step.rate());
    add("fillrandom", "rate", puts_wanted(bytes), false, &rate);
    add("readrandom", "rate", 1.0, false, &rate);
    add("readrandom", "processor time", 0.5, true, &Step::cpu_us);
    add(
        "overwrite",
        "write amplification",
        0.5,
        true,
        &Step::write_amplification,
    );
    if let Some(wanted) = scans_wanted(bytes) {
        add("scan", "rate", wanted, false, &|step| Some(step.pair_rate()));
    }
    add("fillsync", "rate", 1.5, false, &rate);
}

type TraceRow = (flashstore::Settings, Bounded<flashstore::Measured>);

fn flashstore_targets(rows: &[TraceRow], targets: &mut Vec<Target>) {
    for (settings, ours) in rows {
        let rate = ours.measured.step.rate();
        let is_flashstore = settings.meeting.candidate == Candidate::TerraceUncached
            && settings.meeting.setup == Setup::Ssd
            && settings.syncing == flashstore::Syncing::EveryPage;
        let mut add = |what: String, wanted: f64, base: f64| {
            let name = format!("{} trace: Terrace over {what}", settings.trace.name());
            targets.push(Target::at_least(name, wanted, rate / base));
        };
        if is_flashstore {
            for (setup, wanted) in [(Setup::Ssd, 5.0), (Setup::Hdd, 60.0)] {
                if let Some(base) = rate_of(rows, settings, Candidate::BerkeleyDb, setup) {
                    add(format!("Berkeley DB on {}", setup.name()), wanted, base);
                }
            }
        }
        if settings.meeting.candidate == Candidate::Terrace && settings.meeting.setup == Setup::Ssd {
            let best = Candidate::value_variants()
                .iter()
                .copied()
                .filter(|candidate| !candidate.is_terrace() && candidate.abilities().persists)
                .filter_map(|candidate| Some((rate_of(rows, settings, candidate, Setup::Ssd)?, candidate)))
                .max_by(|one, other| one.0.total_cmp(&other.0));
            if let Some((base, candidate)) = best {
                let how = settings.syncing.name();
                add(
                    format!("the best rival ({}), synced by {how}", candidate.name()),
                    1.0,
                    base,
                );
            }
        }
    }
    graceful(rows, targets);
}

/// Another candidate's rate in the same trace.
fn rate_of(rows: &[TraceRow], settings: &flashstore::Settings, candidate: Candidate, setup: Setup) -> Option<f64> {
    let meeting = Meeting {
        setup,
        ..settings.meeting.clone()
    };
    let found = rows.iter().find(|(other, _)| {
        let same =
            (other.trace, other.operations, other.syncing) == (settings.trace, settings.operations, settings.syncing);
        other.meeting.candidate == candidate
            && same
            && other.flash_share.is_none()
            && same_conditions(&meeting, &other.meeting)
    });
    found.map(|row| row.1.measured.step.rate())
}

/// Figure 7: with the least flash the rate is at least this share of that with the most, and above
/// Berkeley DB on the disk.
const GRACEFUL_MIN: f64 = 0.3;

fn graceful(rows: &[TraceRow], targets: &mut Vec<Target>) {
    let mut with_share: Vec<(f64, &TraceRow)> = rows.iter().filter_map(|row| Some((row.0.flash_share?, row))).collect();
    with_share.sort_by(|one, other| one.0.total_cmp(&other.0));
    for kind in flashstore::trace::Kind::ALL {
        let mut of_kind = with_share.iter().filter(|(_, row)| row.0.trace == kind);
        let (Some((least, low)), Some((most, high))) = (of_kind.next(), of_kind.next_back()) else {
            continue;
        };
        if !same_conditions(&low.0.meeting, &high.0.meeting) {
            continue;
        }
        let rate = low.1.measured.step.rate();
        let what = format!("{} trace: {:.0} % flash over", kind.name(), least * 100.0);
        let kept = rate / high.1.measured.step.rate();
        let name = format!("{what} {:.0} %", most * 100.0);
        targets.push(Target::at_least(name, GRACEFUL_MIN, kept));
        if let Some(base) = rate_of(rows, &low.0, Candidate::BerkeleyDb, Setup::Hdd) {
            let name = format!("{what} Berkeley DB on HDD");
            targets.push(Target::at_least(name, 2.0, rate / base));
        }
    }
}
