//! The contest's part of the report: single operations, YCSB, recovery.

use super::{Bounded, Meeting, micro, recovery, step::Step, ycsb};
use crate::{
    Outcome,
    harness::{
        chart::{Chart, Mark, Series},
        page::{Column, Section, number},
        results::{Record, rows},
        setup::Setup,
    },
    rivals::Candidate,
};
use std::collections::{BTreeMap, BTreeSet};

/// All sections for which there are results.
pub fn sections(records: &[Record]) -> Outcome<Vec<Section>> {
    let found = [
        micro_section(records)?,
        ycsb_section(records)?,
        recovery_section(records)?,
    ];
    Ok(found.into_iter().flatten().collect())
}

/// The same colour and mark for a candidate in every chart; pale on the disk.
pub const fn look(candidate: Candidate, setup: Setup) -> (usize, Mark) {
    let colour = match candidate {
        Candidate::Terrace => 0,
        Candidate::TerraceUncached => 1,
        Candidate::RocksDb => 2,
        Candidate::BerkeleyDb => 3,
        Candidate::LevelDb => 4,
        Candidate::RocksDbBlobs => 5,
        Candidate::Fjall | Candidate::Lmdb | Candidate::Memcached => 6,
        Candidate::Faster | Candidate::Foyer | Candidate::FoyerOnInsertion => 7,
    };
    match (setup, candidate) {
        (Setup::Hdd, _) | (_, Candidate::Lmdb | Candidate::FoyerOnInsertion) => (colour, Mark::PaleBar),
        _ => (colour, Mark::Bar),
    }
}

/// Conditions of a run, as text.
pub fn conditions(meeting: &Meeting, bounded: bool) -> String {
    let Meeting { setup, ssd, hdd, .. } = meeting;
    let drives = match setup {
        Setup::Ssd => ssd.clone(),
        Setup::Hdd => hdd.clone(),
        Setup::Hybrid => format!("{ssd} and {hdd}"),
    };
    let bound = if bounded {
        format!("{} MiB of RAM in all", meeting.memory_bytes >> 20)
    } else {
        "RAM not bounded".to_owned()
    };
    format!("{} ({drives}), {bound}", setup.name())
}

/// Groups runs by conditions.
fn by_conditions<S, T>(
    rows: &[(S, Bounded<T>)],
    meeting: impl Fn(&S) -> &Meeting,
) -> BTreeMap<String, Vec<&(S, Bounded<T>)>> {
    let mut groups: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for row in rows {
        let group = conditions(meeting(&row.0), row.1.memory_bounded);
        groups.entry(group).or_default().push(row);
    }
    groups
}

/// Settings of the engines, a row each.
pub fn settings_table<'a>(section: &mut Section, engines: impl Iterator<Item = (Candidate, &'a str)>) {
    let distinct: BTreeSet<(Candidate, &str)> = engines.collect();
    section.columns(
        "How the engines were tuned",
        distinct,
        &[
            ("", &|(candidate, _)| candidate.name().to_owned()),
            ("settings", &|(_, settings)| (*settings).to_owned()),
        ],
    );
}

/// Table of measured steps; bytes are per operation.
fn steps_table(section: &mut Section, caption: &str, steps: Vec<(String, Step)>) {
    let mib = |bytes: Option<u64>| number(bytes.map(|bytes| bytes as f64 / f64::from(1 << 20)), 0);
    let us = |step: &Step, percent| number(step.latency.percentile_us(percent), 1);
    let each =
        |step: &Step, bytes: Option<u64>| number(bytes.map(|bytes| bytes as f64 / step.operations.max(1) as f64), 0);
    let mb_per_s = |step: &Step| (step.user_bytes > 0).then(|| step.user_bytes as f64 / 1e6 / step.seconds.max(1e-9));
    let columns: [Column<'_, (String, Step)>; 17] = [
        ("", &|(name, _)| name.clone()),
        ("operations/s", &|(_, step)| format!("{:.0}", step.rate())),
        ("pairs/s", &|(_, step)| format!("{:.0}", step.pair_rate())),
        ("MB/s", &|(_, step)| number(mb_per_s(step), 1)),
        ("gets that found", &|(_, step)| number(step.hit_ratio, 3)),
        ("50 % µs", &|(_, step)| us(step, 50.0)),
        ("99 % µs", &|(_, step)| us(step, 99.0)),
        ("99.9 % µs", &|(_, step)| us(step, 99.9)),
        ("µs of CPU", &|(_, step)| number(step.cpu_us(), 2)),
        ("RAM, MiB", &|(_, step)| mib(step.usage.ram_bytes)),
        ("RAM at most, MiB", &|(_, step)| mib(step.usage.ram_bytes_max)),
        ("engine's RAM, MiB", &|(_, step)| mib(step.engine_ram_bytes)),
        ("read, B", &|(_, step)| each(step, step.usage.read_bytes)),
        ("written, B", &|(_, step)| each(step, step.usage.written_bytes)),
        ("written per byte", &|(_, step)| number(step.write_amplification(), 2)),
        ("device wrote, MB", &|(_, step)| {
            number(step.device.map(|device| device.written_bytes as f64 / 1e6), 1)
        }),
        ("on flash at most, MB", &|(_, step)| {
            number(step.flash_bytes_max.map(|bytes| bytes as f64 / 1e6), 0)
        }),
    ];
    section.columns(caption, steps, &columns);
}

fn micro_section(records: &[Record]) -> Outcome<Option<Section>> {
    let rows = rows::<micro::Settings, Bounded<micro::Measured>>(records, micro::EXPERIMENT)?;
    let mut section = Section::new("Single operations");
    section.text(
        "Keys of 16 bytes. One writer, 8 readers, 64 writers where each write is synced (fillsync). \"Written\" is what the process wrote, \
         its background work until the file system was synced included; \"read\" what it had fetched from a device. The device's counter \
         counts all processes.",
    );
    for (group, of_group) in by_conditions(&rows, |settings| &settings.meeting) {
        section.text(group);
        let sizes: BTreeSet<_> = of_group.iter().map(|row| row.0.size).collect();
        for size in &sizes {
            let of_size = || of_group.iter().filter(|row| row.0.size == *size);
            let names: Vec<&str> = of_size()
                .next()
                .map_or_else(Vec::new, |row| step_names(&row.1.measured));
            let steps = names.into_iter().flat_map(|name| {
                of_size().filter_map(move |(settings, run)| {
                    let step = run.measured.step(name)?.clone();
                    Some((format!("{name}, {}", settings.meeting.candidate.name()), step))
                })
            });
            steps_table(&mut section, &format!("Values of {size}"), steps.collect());
            section.columns(
                &format!("Values of {size}: bytes on disk per byte of keys and values"),
                of_size(),
                &[
                    ("", &|(settings, _)| settings.meeting.candidate.name().to_owned()),
                    ("objects", &|(_, run)| run.measured.stored.to_string()),
                    ("after fillrandom", &|(_, run)| {
                        format!("{:.2}", run.measured.space_after_fill)
                    }),
                    ("after overwrite", &|(_, run)| {
                        format!("{:.2}", run.measured.space_after_overwrite)
                    }),
                ],
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
    // All candidates have these; one without order has no scan.
    let mut names: Vec<&str> = measured.steps.iter().map(|step| step.name.as_str()).collect();
    if !names.contains(&"scan") {
        names.push("scan");
    }
    names
}

fn ycsb_section(records: &[Record]) -> Outcome<Option<Section>> {
    let rows = rows::<ycsb::Settings, Bounded<ycsb::Measured>>(records, ycsb::EXPERIMENT)?;
    let mut section = Section::new("YCSB");
    section.text("Workloads A to F on values of 1 KiB, 8 callers, writes acknowledged at once. F's operations are reads and read-modify-writes.");
    for (number, (group, of_group)) in by_conditions(&rows, |settings| &settings.meeting)
        .into_iter()
        .enumerate()
    {
        section.text(group);
        let names = ["load", "A", "B", "C", "D", "E", "F"];
        let step = |row: &(ycsb::Settings, Bounded<ycsb::Measured>), name: &str| {
            row.1.measured.steps.iter().find(|step| step.name == name).cloned()
        };
        let series = of_group.iter().map(|row| {
            let Meeting { candidate, setup, .. } = row.0.meeting;
            let rates = names.map(|name| step(row, name).map(|step| step.rate()));
            Series::exact(candidate.name(), look(candidate, setup), rates)
        });
        section.chart(
            &format!("ycsb-{number}"),
            Chart::new("YCSB: operations per second", "workload", "operations/s", names, series),
        );
        let steps = names.into_iter().flat_map(|name| {
            let named = of_group
                .iter()
                .filter_map(move |row| Some((row.0.meeting.candidate, step(row, name)?)));
            named.map(move |(candidate, step)| (format!("{name}, {}", candidate.name()), step))
        });
        steps_table(&mut section, "Workloads", steps.collect());
        section.columns(
            "Bytes on disk per byte of keys and values, at the end",
            of_group,
            &[
                ("", &|(settings, _)| settings.meeting.candidate.name().to_owned()),
                ("", &|(_, run)| format!("{:.2}", run.measured.space)),
            ],
        );
    }
    let engines = rows
        .iter()
        .map(|row| (row.0.meeting.candidate, row.1.measured.engine_settings.as_str()));
    settings_table(&mut section, engines);
    Ok((!rows.is_empty()).then_some(section))
}

fn recovery_section(records: &[Record]) -> Outcome<Option<Section>> {
    let rows = rows::<recovery::Settings, Bounded<recovery::Measured>>(records, recovery::EXPERIMENT)?;
    let mut section = Section::new("Opening after kill -9");
    section.text(
        "Values of 1 KiB; the process was killed while it wrote. Everything that was synced before was looked for and found. Berkeley DB's \
         concurrent data store, memcached and foyer keep nothing of a killed process, so they are not here.",
    );
    let found = !rows.is_empty();
    section.columns(
        "Opening",
        rows,
        &[
            ("", &|(settings, _)| settings.meeting.candidate.name().to_owned()),
            ("objects", &|(settings, _)| settings.objects.to_string()),
            ("open, s", &|(_, run)| format!("{:.3}", run.measured.open_seconds)),
            ("first value read, s", &|(_, run)| {
                format!("{:.3}", run.measured.first_read_seconds)
            }),
            ("MB on disk", &|(_, run)| {
                format!("{:.1}", run.measured.disk_bytes as f64 / 1e6)
            }),
            ("conditions", &|(settings, run)| {
                conditions(&settings.meeting, run.memory_bounded)
            }),
        ],
    );
    Ok(found.then_some(section))
}
