//! Figure 14: bytes read from the drives.

use super::{HDD, SSD, colour, over_ratios, ratio_chart, ratio_row, ratio_table};
use crate::{
    harness::{
        chart::{Mark, Series},
        page::{Section, number},
        setup::Setup,
    },
    mris::model::Model,
};

/// Figure 14.
#[must_use]
pub fn section(model: &Model) -> Section {
    let mut section = Section::new("Figure 14: what the drives had to read");
    let one_device = model
        .surroundings
        .as_ref()
        .is_some_and(|surroundings| surroundings.one_device);
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
        // On one device the other counter includes the same bytes.
        let counts_hdd = uses_hdd && !(one_device && uses_ssd);
        rows.push(ratio_row(model, &contender.name(), |ratio| {
            let read = |place, used: bool| {
                let found = model.device_mb_per_second(contender, ratio, place);
                if used {
                    found.map(|summary| summary.mean)
                } else {
                    Some(0.0)
                }
            };
            let values = || Some(model.read_mb_per_second(contender, ratio)?.mean);
            let share = || Some((read(SSD, uses_ssd)? + read(HDD, counts_hdd)?) / values()?);
            number(share(), 2)
        }));
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
    ratio_table(
        model,
        &mut section,
        "Bytes read from the drives over bytes of values",
        rows,
    );
    section
}
