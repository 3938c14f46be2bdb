//! Figure 14: what the drives had to read.

use super::{HDD, SSD, colour, number, over_ratios, ratio_chart};
use crate::{
    harness::{
        chart::{Mark, Series},
        page::Section,
        setup::Setup,
    },
    mris::model::Model,
};

/// Figure 14.
#[must_use]
pub fn section(model: &Model) -> Section {
    let mut section = Section::new("Figure 14: what the drives had to read");
    let mut series = Vec::new();
    let mut rows = Vec::new();
    for contender in model.contenders() {
        let uses_hdd = contender.setup != Setup::Ssd;
        let uses_ssd = contender.setup != Setup::Hdd;
        for (drive, place, used) in [("SSD", SSD, uses_ssd), ("HDD", HDD, uses_hdd)] {
            if used {
                series.push(Series {
                    name: format!("{}: {drive}", contender.name()),
                    colour: colour(contender),
                    mark: if drive == "HDD" && contender.setup == Setup::Hybrid {
                        Mark::Dashed
                    } else {
                        Mark::Line
                    },
                    points: over_ratios(model, |ratio| model.device_mb_per_second(contender, ratio, place)),
                });
            }
        }
        let cells = model.ratios().into_iter().map(|ratio| {
            let read = |place, used: bool| {
                let found = model
                    .device_mb_per_second(contender, ratio, place)
                    .map(|summary| summary.mean);
                if used { found } else { Some(0.0) }
            };
            let values = model.read_mb_per_second(contender, ratio).map(|summary| summary.mean);
            let share = || Some((read(SSD, uses_ssd)? + read(HDD, uses_hdd)?) / values?);
            number(share(), 2)
        });
        rows.push(std::iter::once(contender.name()).chain(cells).collect());
    }
    section.text(
        "As iostat shows it: bytes the kernel read from the drives while the store read values. Over 1.00 times the values' \
         bytes it is read-ahead, metadata of the file system, metadata of the store, and padding of direct reads to whole \
         blocks.",
    );
    section.chart(
        "figure-14",
        ratio_chart(model, "Figure 14: MB per second from each drive", "MB/s", series),
    );
    let ratios: Vec<String> = model.ratios().iter().map(u64::to_string).collect();
    let head: Vec<&str> = std::iter::once("ratio")
        .chain(ratios.iter().map(String::as_str))
        .collect();
    section.table("Bytes read from the drives over bytes of values", &head, rows);
    section
}
