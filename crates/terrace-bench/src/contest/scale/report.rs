//! Tables and charts of the growth of stores, and its goals.

use super::{EXPERIMENT, Measured, Settings, grow::Level};
use crate::{
    Outcome,
    contest::{
        Bounded,
        data::ValueSize,
        report::{conditions, look},
    },
    harness::{
        chart::{Chart, Mark, Point, Series},
        page::Section,
        results::{Record, rows},
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
///
/// # Errors
/// If a result is malformed.
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
        let levels = of_group.iter().flat_map(|row| {
            let name = row.0.meeting.candidate.name();
            let levels = row.1.measured.grown.levels.iter();
            levels.map(move |level| level_row(name, level))
        });
        section.table("Steps", &LEVEL_HEAD, levels.collect());
        let reopened = of_group.iter().map(|row| reopened_row(row)).collect();
        section.table("After kill -9", &REOPENED_HEAD, reopened);
    }
    let tuned = rows.iter().map(|(settings, outcome)| {
        vec![
            settings.meeting.candidate.name().to_owned(),
            outcome.measured.grown.engine_settings.clone(),
        ]
    });
    let tuned: BTreeSet<Vec<String>> = tuned.collect();
    section.table(
        "How the engines were tuned",
        &["", "settings"],
        tuned.into_iter().collect(),
    );
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
type Line = (String, Candidate, Mark, Vec<(u64, f64)>);

/// A chart by number of objects.
fn chart(title: String, y_label: &str, lines: Vec<Line>) -> Chart {
    let positions: BTreeSet<u64> = lines
        .iter()
        .flat_map(|line| line.3.iter().map(|point| point.0))
        .collect();
    let positions: Vec<u64> = positions.into_iter().collect();
    let series = lines.into_iter().map(|(name, candidate, mark, points)| {
        let place = |objects| positions.binary_search(&objects).unwrap_or_default();
        Series {
            name,
            colour: look(candidate, crate::harness::setup::Setup::Ssd).0,
            mark,
            points: points
                .into_iter()
                .map(|(objects, value)| Point::exact(place(objects), value))
                .collect(),
        }
    });
    Chart {
        title,
        x_label: "objects".to_owned(),
        y_label: y_label.to_owned(),
        series: series.collect(),
        positions: positions.into_iter().map(count).collect(),
    }
}

fn fill_chart(size: ValueSize, rows: &[&Row]) -> Chart {
    let lines = rows.iter().map(|(settings, outcome)| {
        let slices = outcome.measured.grown.slices.iter();
        let points = slices.map(|slice| (slice.objects, slice.put as f64 / slice.seconds.max(1e-9)));
        let candidate = settings.meeting.candidate;
        (candidate.name().to_owned(), candidate, Mark::Line, points.collect())
    });
    let title = format!("Puts in random order, values of {size}");
    chart(title, "puts/s", lines.collect())
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
    chart(format!("Gets, values of {size}"), "gets/s", lines)
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.digits$}"))
}

const LEVEL_HEAD: [&str; 15] = [
    "",
    "objects",
    "puts/s",
    "µs of CPU a put",
    "written per byte",
    "RAM, MiB",
    "RAM besides caches, B an object",
    "levels / runs",
    "tables, MB",
    "on disk, MB",
    "uniform gets/s",
    "device reads a get",
    "popular gets/s",
    "absent gets/s",
    "device reads an absent key",
];

fn level_row(name: &str, level: &Level) -> Vec<String> {
    let mib = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64 / f64::from(1 << 20));
    let whole = |value: Option<u64>| number(value.map(|value| value as f64), 0);
    let figures = &level.figures;
    vec![
        name.to_owned(),
        count(level.objects),
        format!("{:.0}", level.fill.rate()),
        number(level.fill.cpu_us(), 2),
        number(level.fill.write_amplification(), 2),
        number(mib(level.ram_bytes), 0),
        number(level.other_ram_per_object(), 1),
        format!("{} / {}", whole(figures.levels), whole(figures.runs)),
        number(figures.table_bytes.map(|bytes| bytes as f64 / 1e6), 0),
        format!("{:.0}", level.disk_bytes as f64 / 1e6),
        format!("{:.0}", level.uniform.step.rate()),
        number(level.uniform.device_reads, 3),
        format!("{:.0}", level.popular.step.rate()),
        format!("{:.0}", level.absent.step.rate()),
        number(level.absent.device_reads, 5),
    ]
}

const REOPENED_HEAD: [&str; 9] = [
    "",
    "objects",
    "open, s",
    "first read, s",
    "gets/s in the end",
    "half of that after, s",
    "gets/s before the kill",
    "half of that after, s",
    "RAM, MiB",
];

fn reopened_row((settings, outcome): &Row) -> Vec<String> {
    let Measured { grown, reopened } = &outcome.measured;
    let steady = reopened.steady_rate();
    let before = grown.levels.last().map(|level| level.uniform.step.rate());
    let half_of = |rate: f64| reopened.seconds_to(rate / 2.0);
    vec![
        settings.meeting.candidate.name().to_owned(),
        count(grown.stored()),
        format!("{:.3}", reopened.open_seconds),
        format!("{:.3}", reopened.first_read_seconds),
        format!("{steady:.0}"),
        number(half_of(steady), 1),
        number(before, 0),
        number(before.and_then(half_of), 1),
        number(reopened.ram_bytes.map(|bytes| bytes as f64 / f64::from(1 << 20)), 0),
    ]
}

fn rate(levels: &[Level], which: impl Fn(&[Level]) -> Option<&Level>) -> Option<f64> {
    which(levels).map(|level| level.fill.rate())
}

/// All goals with measurements.
///
/// # Errors
/// If a result is malformed.
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
