//! The contest's part of the report: single operations, YCSB, recovery, and what was aimed at.

use super::{
    Bounded, Meeting, micro, recovery,
    step::Step,
    targets::{rows, targets},
    ycsb,
};
use crate::{
    Outcome,
    harness::{
        chart::{Chart, Mark, Point, Series},
        page::Section,
        results::Record,
        setup::Setup,
        target,
    },
    rivals::Candidate,
};
use std::collections::BTreeSet;

/// All sections for which there are results.
///
/// # Errors
/// If a result has not its form.
pub fn sections(records: &[Record]) -> Outcome<Vec<Section>> {
    let mut sections = Vec::new();
    sections.extend(micro_section(records)?);
    sections.extend(ycsb_section(records)?);
    sections.extend(recovery_section(records)?);
    sections.extend(crate::scale::report::sections(records)?);
    sections.extend(target::section("Targets against the rivals", &targets(records)?));
    Ok(sections)
}

/// The same look for the same candidate everywhere; on the disk it is pale.
#[must_use]
pub const fn look(candidate: Candidate, setup: Setup) -> (usize, Mark) {
    let colour = match candidate {
        Candidate::Terrace => 0,
        Candidate::TerraceUncached => 1,
        Candidate::RocksDb => 2,
        Candidate::BerkeleyDb => 3,
        Candidate::LevelDb => 4,
        Candidate::RocksDbBlobs => 5,
        Candidate::Fjall | Candidate::Lmdb | Candidate::Memcached => 6,
    };
    match (setup, candidate) {
        (Setup::Hdd, _) | (_, Candidate::Lmdb) => (colour, Mark::PaleBar),
        _ => (colour, Mark::Bar),
    }
}

/// What a run was made under, for people.
#[must_use]
pub fn conditions(meeting: &Meeting, bounded: bool) -> String {
    let Meeting {
        setup,
        ssd,
        hdd,
        memory_bytes,
        ..
    } = meeting;
    let drives = match setup {
        Setup::Ssd => ssd.clone(),
        Setup::Hdd => hdd.clone(),
        Setup::Hybrid => format!("{ssd} and {hdd}"),
    };
    let bound = if bounded {
        format!("{} MiB of RAM in all", memory_bytes >> 20)
    } else {
        "RAM not bounded".to_owned()
    };
    format!("{} ({drives}), {bound}", setup.name())
}

/// Settings of the engines, a row each.
fn settings_table<'a>(section: &mut Section, engines: impl Iterator<Item = (Candidate, &'a str)>) {
    let distinct: BTreeSet<(Candidate, &str)> = engines.collect();
    let rows = distinct
        .into_iter()
        .map(|(candidate, settings)| vec![candidate.name().to_owned(), settings.to_owned()]);
    section.table("How the engines were tuned", &["", "settings"], rows.collect());
}

const STEP_HEAD: [&str; 16] = [
    "",
    "operations/s",
    "pairs/s",
    "MB/s",
    "50 % µs",
    "99 % µs",
    "99.9 % µs",
    "µs of CPU",
    "RAM, MiB",
    "RAM at most, MiB",
    "engine's RAM, MiB",
    "read, B",
    "written, B",
    "written per byte",
    "device wrote, MB",
    "on flash at most, MB",
];

/// What was measured of a part; bytes are per operation.
fn step_row(name: String, step: &Step) -> Vec<String> {
    let number =
        |value: Option<f64>, digits: usize| value.map_or_else(|| "–".to_owned(), |value| format!("{value:.digits$}"));
    let per_operation = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64 / step.operations.max(1) as f64);
    let mib = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64 / f64::from(1 << 20));
    let mb_per_s = (step.user_bytes > 0).then(|| step.user_bytes as f64 / 1e6 / step.seconds.max(1e-9));
    vec![
        name,
        format!("{:.0}", step.rate()),
        format!("{:.0}", step.pair_rate()),
        number(mb_per_s, 1),
        number(step.latency.percentile_us(50.0), 1),
        number(step.latency.percentile_us(99.0), 1),
        number(step.latency.percentile_us(99.9), 1),
        number(step.cpu_us(), 2),
        number(mib(step.usage.ram_bytes), 0),
        number(mib(step.usage.ram_bytes_max), 0),
        number(mib(step.engine_ram_bytes), 0),
        number(per_operation(step.usage.read_bytes), 0),
        number(per_operation(step.usage.written_bytes), 0),
        number(step.write_amplification(), 2),
        number(step.device.map(|device| device.written_bytes as f64 / 1e6), 1),
        number(step.flash_bytes_max.map(|bytes| bytes as f64 / 1e6), 0),
    ]
}

fn micro_section(records: &[Record]) -> Outcome<Option<Section>> {
    let rows = rows::<micro::Settings, micro::Measured>(records, micro::EXPERIMENT)?;
    let mut section = Section::new("Single operations");
    section.text(
        "Keys of 16 bytes. One writer, 8 readers, 64 writers where each write is synced (fillsync). \"Written\" is what the process wrote, \
         its background work until the file system was synced included; \"read\" what it had fetched from a device. The device's counter \
         counts everybody.",
    );
    let groups: BTreeSet<String> = rows
        .iter()
        .map(|row| conditions(&row.0.meeting, row.1.memory_bounded))
        .collect();
    for group in &groups {
        section.text(group.clone());
        let of_group: Vec<_> = rows
            .iter()
            .filter(|row| conditions(&row.0.meeting, row.1.memory_bounded) == *group)
            .collect();
        let sizes: BTreeSet<_> = of_group.iter().map(|row| row.0.size).collect();
        for size in &sizes {
            let mut cells = Vec::new();
            let mut spaces = Vec::new();
            let of_size: Vec<_> = of_group.iter().filter(|row| row.0.size == *size).collect();
            let names: Vec<&str> = of_size.first().map_or_else(Vec::new, |row| step_names(&row.1.measured));
            for name in names {
                for (settings, measured) in &of_size {
                    if let Some(step) = measured.measured.step(name) {
                        cells.push(step_row(format!("{name}, {}", settings.meeting.candidate.name()), step));
                    }
                }
            }
            for (settings, Bounded { measured, .. }) in &of_size {
                spaces.push(vec![
                    settings.meeting.candidate.name().to_owned(),
                    measured.stored.to_string(),
                    format!("{:.2}", measured.space_after_fill),
                    format!("{:.2}", measured.space_after_overwrite),
                ]);
            }
            section.table(&format!("Values of {size}"), &STEP_HEAD, cells);
            let head = ["", "objects", "after fillrandom", "after overwrite"];
            section.table(
                &format!("Values of {size}: bytes on disk per byte of keys and values"),
                &head,
                spaces,
            );
        }
    }
    let engines = rows
        .iter()
        .map(|row| (row.0.meeting.candidate, row.1.measured.engine_settings.as_str()));
    settings_table(&mut section, engines);
    Ok((!rows.is_empty()).then_some(section))
}

fn step_names(measured: &micro::Measured) -> Vec<&str> {
    // All of them have these; a candidate without order has no scan.
    let mut names: Vec<&str> = measured.steps.iter().map(|step| step.name.as_str()).collect();
    if !names.contains(&"scan") {
        names.push("scan");
    }
    names
}

fn ycsb_section(records: &[Record]) -> Outcome<Option<Section>> {
    let rows = rows::<ycsb::Settings, ycsb::Measured>(records, ycsb::EXPERIMENT)?;
    let mut section = Section::new("YCSB");
    section.text("Workloads A to F on values of 1 KiB, 8 callers, writes acknowledged at once. F's operations are reads and read-modify-writes.");
    let groups: BTreeSet<String> = rows
        .iter()
        .map(|row| conditions(&row.0.meeting, row.1.memory_bounded))
        .collect();
    for (number, group) in groups.iter().enumerate() {
        let of_group: Vec<_> = rows
            .iter()
            .filter(|row| conditions(&row.0.meeting, row.1.memory_bounded) == *group)
            .collect();
        section.text(group.clone());
        let names = ["load", "A", "B", "C", "D", "E", "F"];
        let step = |row: &(ycsb::Settings, Bounded<ycsb::Measured>), name: &str| {
            row.1.measured.steps.iter().find(|step| step.name == name).cloned()
        };
        let series = |row: &&(ycsb::Settings, Bounded<ycsb::Measured>)| {
            let Meeting { candidate, setup, .. } = row.0.meeting;
            let (colour, mark) = look(candidate, setup);
            Series {
                name: candidate.name().to_owned(),
                colour,
                mark,
                points: (0..names.len())
                    .filter_map(|position| Some(exact(position, step(row, names[position])?.rate())))
                    .collect(),
            }
        };
        section.chart(
            &format!("ycsb-{number}"),
            Chart {
                title: "YCSB: operations per second".to_owned(),
                x_label: "workload".to_owned(),
                y_label: "operations/s".to_owned(),
                positions: names.map(str::to_owned).to_vec(),
                series: of_group.iter().map(series).collect(),
            },
        );
        let mut cells = Vec::new();
        for name in names {
            for row in &of_group {
                if let Some(step) = step(row, name) {
                    cells.push(step_row(format!("{name}, {}", row.0.meeting.candidate.name()), &step));
                }
            }
        }
        section.table("Workloads", &STEP_HEAD, cells);
        let spaces = of_group.iter().map(|row| {
            vec![
                row.0.meeting.candidate.name().to_owned(),
                format!("{:.2}", row.1.measured.space),
            ]
        });
        section.table(
            "Bytes on disk per byte of keys and values, at the end",
            &["", ""],
            spaces.collect(),
        );
    }
    let engines = rows
        .iter()
        .map(|row| (row.0.meeting.candidate, row.1.measured.engine_settings.as_str()));
    settings_table(&mut section, engines);
    Ok((!rows.is_empty()).then_some(section))
}

/// A point without deviation.
#[must_use]
pub const fn exact(position: usize, value: f64) -> Point {
    Point {
        position,
        value,
        deviation: 0.0,
    }
}

fn recovery_section(records: &[Record]) -> Outcome<Option<Section>> {
    let rows = rows::<recovery::Settings, recovery::Measured>(records, recovery::EXPERIMENT)?;
    let mut section = Section::new("Opening after kill -9");
    section.text(
        "Values of 1 KiB; the process was killed while it wrote. Everything that was synced before was looked for and found. Berkeley DB's \
         concurrent data store and memcached keep nothing of a killed process, so they are not here.",
    );
    let cells = rows.iter().map(
        |(
            settings,
            Bounded {
                measured,
                memory_bounded,
            },
        )| {
            vec![
                settings.meeting.candidate.name().to_owned(),
                settings.objects.to_string(),
                format!("{:.3}", measured.open_seconds),
                format!("{:.3}", measured.first_read_seconds),
                format!("{:.1}", measured.disk_bytes as f64 / 1e6),
                conditions(&settings.meeting, *memory_bounded),
            ]
        },
    );
    let head = [
        "",
        "objects",
        "open, s",
        "first value read, s",
        "MB on disk",
        "conditions",
    ];
    section.table("Opening", &head, cells.collect());
    Ok((!rows.is_empty()).then_some(section))
}
