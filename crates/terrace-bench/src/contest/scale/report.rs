//! Tables and charts of the growth of stores, and its goals.

use super::{EXPERIMENT, Measured, Settings, grow::Level};
use crate::{
    Outcome,
    contest::{
        Bounded,
        data::ValueSize,
        report::{conditions, look, settings_table},
    },
    harness::{
        chart::{Chart, Mark, Series},
        page::{Section, number},
        results::{Record, rows},
        setup::Setup,
        target::Target,
    },
    rivals::Candidate,
};
use std::collections::{BTreeMap, BTreeSet};

/// Goal: share of the first step's filling rate at the last step.
const FILL_KEPT_MIN: f64 = 0.6;
const OVER_ROCKSDB_MIN: f64 = 1.5;
const RAM_PER_OBJECT_MAX: f64 = 11.0;
const READS_PER_ABSENT_MAX: f64 = 0.01;
const FIRST_READ_SECONDS_MAX: f64 = 1.0;
const HALF_SECONDS_MAX: f64 = 5.0;

type Row = (Settings, Bounded<Measured>);

/// The section, if there are results.
pub fn sections(records: &[Record]) -> Outcome<Option<Section>> {
    let rows: Vec<Row> = rows(records, EXPERIMENT)?;
    let mut section = Section::new("As a store grows");
    section.text(
        "Keys of 16 bytes, put in random order. RAM besides caches is what the process has of its own, less what the engine says that its \
         caches hold; filters of RocksDB are in its cache. \"Written\" is what the process wrote for a byte of the caller's, background \
         work included; reads of the device are the engine's own account.",
    );
    for (number, ((value_bytes, conditions), of_group)) in groups(&rows).into_iter().enumerate() {
        let size = ValueSize::Bytes(value_bytes);
        section.text(format!("Values of {size}; {conditions}"));
        section.chart(&format!("scale-fill-{number}"), fill_chart(size, &of_group));
        section.chart(&format!("scale-gets-{number}"), gets_chart(size, &of_group));
        levels_table(&mut section, &of_group);
        reopened_table(&mut section, &of_group);
    }
    let engines = rows.iter().map(|(settings, outcome)| {
        let settings_of_engine = outcome.measured.grown.engine_settings.as_str();
        (settings.meeting.candidate, settings_of_engine)
    });
    settings_table(&mut section, engines);
    Ok((!rows.is_empty()).then_some(section))
}

/// Runs with the same values and conditions.
fn groups(rows: &[Row]) -> BTreeMap<(usize, String), Vec<&Row>> {
    let mut groups: BTreeMap<_, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        groups.entry(group(row)).or_default().push(row);
    }
    groups
}

/// The group of a run: values and conditions.
fn group((settings, outcome): &Row) -> (usize, String) {
    let conditions = conditions(&settings.meeting, outcome.memory_bounded);
    (settings.value_bytes, conditions)
}

/// A number of objects, as text.
fn count(objects: u64) -> String {
    match objects {
        0..10_000 => objects.to_string(),
        10_000..1_000_000 => format!("{} k", objects as f64 / 1e3),
        _ => format!("{} M", (objects as f64 / 1e4).round() / 1e2),
    }
}

/// A line of a chart: name, candidate, mark, and figures by number of objects.
type Line = (String, Candidate, Mark, BTreeMap<u64, f64>);

/// A chart by number of objects.
fn chart(title: &str, y_label: &str, lines: Vec<Line>) -> Chart {
    let positions: BTreeSet<u64> = lines.iter().flat_map(|line| line.3.keys().copied()).collect();
    let series = lines.into_iter().map(|(name, candidate, mark, figures)| {
        let values = positions.iter().map(|objects| figures.get(objects).copied());
        Series::exact(name, (look(candidate, Setup::Ssd).0, mark), values)
    });
    let names = positions.iter().map(|&objects| count(objects));
    Chart::new(title, "objects", y_label, names, series)
}

fn fill_chart(size: ValueSize, rows: &[&Row]) -> Chart {
    let lines = rows.iter().map(|(settings, outcome)| {
        let slices = outcome.measured.grown.slices.iter();
        let points = slices.map(|slice| (slice.objects, slice.put as f64 / slice.seconds.max(1e-9)));
        let candidate = settings.meeting.candidate;
        (candidate.name().to_owned(), candidate, Mark::Line, points.collect())
    });
    let title = format!("Puts in random order, values of {size}");
    chart(&title, "puts/s", lines.collect())
}

fn gets_chart(size: ValueSize, rows: &[&Row]) -> Chart {
    let mut lines = Vec::new();
    for (settings, outcome) in rows {
        let candidate = settings.meeting.candidate;
        let levels = &outcome.measured.grown.levels;
        let mut add = |name: &str, mark, rate: &dyn Fn(&Level) -> f64| {
            let points = levels.iter().map(|level| (level.objects, rate(level)));
            let name = format!("{}, {name}", candidate.name());
            lines.push((name, candidate, mark, points.collect()));
        };
        add("popular", Mark::Line, &|level| level.popular.step.rate());
        add("uniform", Mark::Dashed, &|level| level.uniform.step.rate());
    }
    chart(&format!("Gets, values of {size}"), "gets/s", lines)
}

fn mib(bytes: Option<u64>) -> String {
    number(bytes.map(|bytes| bytes as f64 / f64::from(1 << 20)), 0)
}

fn levels_table(section: &mut Section, rows: &[&Row]) {
    let levels = rows.iter().flat_map(|row| {
        let name = row.0.meeting.candidate.name();
        row.1.measured.grown.levels.iter().map(move |level| (name, level))
    });
    let whole = |value: Option<u64>| number(value.map(|value| value as f64), 0);
    let tables_mb = |level: &Level| level.figures.table_bytes.map(|bytes| bytes as f64 / 1e6);
    section.columns(
        "Steps",
        levels,
        &[
            ("", &|(name, _)| (*name).to_owned()),
            ("objects", &|(_, level)| count(level.objects)),
            ("puts/s", &|(_, level)| format!("{:.0}", level.fill.rate())),
            ("µs of CPU a put", &|(_, level)| number(level.fill.cpu_us(), 2)),
            ("written per byte", &|(_, level)| {
                number(level.fill.write_amplification(), 2)
            }),
            ("RAM, MiB", &|(_, level)| mib(level.ram_bytes)),
            ("RAM besides caches, B an object", &|(_, level)| {
                number(level.other_ram_per_object(), 1)
            }),
            ("levels / runs", &|(_, level)| {
                format!("{} / {}", whole(level.figures.levels), whole(level.figures.runs))
            }),
            ("tables, MB", &|(_, level)| number(tables_mb(level), 0)),
            ("on disk, MB", &|(_, level)| {
                format!("{:.0}", level.disk_bytes as f64 / 1e6)
            }),
            ("uniform gets/s", &|(_, level)| {
                format!("{:.0}", level.uniform.step.rate())
            }),
            ("device reads a get", &|(_, level)| {
                number(level.uniform.device_reads, 3)
            }),
            ("popular gets/s", &|(_, level)| {
                format!("{:.0}", level.popular.step.rate())
            }),
            ("absent gets/s", &|(_, level)| {
                format!("{:.0}", level.absent.step.rate())
            }),
            ("device reads an absent key", &|(_, level)| {
                number(level.absent.device_reads, 5)
            }),
        ],
    );
}

fn reopened_table(section: &mut Section, rows: &[&Row]) {
    let before = |run: &Measured| run.grown.levels.last().map(|level| level.uniform.step.rate());
    let half_of = |run: &Measured, rate: f64| run.reopened.seconds_to(rate / 2.0);
    let runs = rows.iter().map(|row| (row.0.meeting.candidate, &row.1.measured));
    section.columns(
        "After kill -9",
        runs,
        &[
            ("", &|(candidate, _)| candidate.name().to_owned()),
            ("objects", &|(_, run)| count(run.grown.stored())),
            ("open, s", &|(_, run)| format!("{:.3}", run.reopened.open_seconds)),
            ("first read, s", &|(_, run)| {
                format!("{:.3}", run.reopened.first_read_seconds)
            }),
            ("gets/s in the end", &|(_, run)| {
                format!("{:.0}", run.reopened.steady_rate())
            }),
            ("half of that after, s", &|(_, run)| {
                number(half_of(run, run.reopened.steady_rate()), 1)
            }),
            ("gets/s before the kill", &|(_, run)| number(before(run), 0)),
            ("half of that after, s", &|(_, run)| {
                number(before(run).and_then(|rate| half_of(run, rate)), 1)
            }),
            ("RAM, MiB", &|(_, run)| mib(run.reopened.ram_bytes)),
        ],
    );
}

fn rate(levels: &[Level], which: impl Fn(&[Level]) -> Option<&Level>) -> Option<f64> {
    which(levels).map(|level| level.fill.rate())
}

/// All goals with measurements.
pub fn targets(records: &[Record]) -> Outcome<Vec<Target>> {
    let rows: Vec<Row> = rows(records, EXPERIMENT)?;
    Ok(groups(&rows)
        .values()
        .flat_map(|of_group| targets_of(of_group))
        .collect())
}

fn targets_of(rows: &[&Row]) -> Vec<Target> {
    let mut targets = Vec::new();
    for (settings, Bounded { measured, .. }) in rows.iter().filter(|row| row.0.meeting.candidate.is_terrace()) {
        let (levels, reopened) = (&measured.grown.levels, &measured.reopened);
        let name = settings.meeting.candidate.name();
        let mut add = |what: &str, wanted: f64, at_most: bool, measured: Option<f64>| {
            targets.extend(measured.map(|measured| Target {
                name: format!(
                    "{name}, {} objects: {what}",
                    count(levels.last().map_or(0, |level| level.objects))
                ),
                wanted,
                at_most,
                measured,
            }));
        };
        let (first, last) = (rate(levels, <[Level]>::first), rate(levels, <[Level]>::last));
        if levels.len() > 1 {
            let kept = first.zip(last).map(|(first, last)| last / first);
            add("puts/s of the last step over the first", FILL_KEPT_MIN, false, kept);
        }
        let rocksdb = rows.iter().find(|row| row.0.meeting.candidate == Candidate::RocksDb);
        let theirs = rocksdb.and_then(|row| {
            // Only at the same number of objects.
            let their_levels = &row.1.measured.grown.levels;
            let same = their_levels.last()?.objects == levels.last()?.objects;
            same.then(|| rate(their_levels, <[Level]>::last))?
        });
        let over = last.zip(theirs).map(|(ours, theirs)| ours / theirs);
        add("puts/s of the last step over RocksDB's", OVER_ROCKSDB_MIN, false, over);
        let level = levels.last();
        let ram = level.and_then(Level::other_ram_per_object);
        add("RAM besides caches, B an object", RAM_PER_OBJECT_MAX, true, ram);
        let absent = level.and_then(|level| level.absent.device_reads);
        add("device reads an absent key", READS_PER_ABSENT_MAX, true, absent);
        let first_read = Some(reopened.first_read_seconds);
        add("first read after kill -9, s", FIRST_READ_SECONDS_MAX, true, first_read);
        // A rate that was never reached has no figure, but is reported.
        let half = reopened
            .seconds_to(reopened.steady_rate() / 2.0)
            .unwrap_or(f64::INFINITY);
        add(
            "half of the steady rate after kill -9, s",
            HALF_SECONDS_MAX,
            true,
            Some(half),
        );
    }
    targets
}
