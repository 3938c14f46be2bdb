//! `terrace capacity`: changes the capacity of a tier while a server runs.

use super::{print, print_json};
use crate::{
    admin::{self, TierBytes},
    cli::{Capacity, CapacityArgs, TierName},
    failure::{Code, Failure, Outcome},
    settings::Settings,
    signals,
    size::Size,
};

/// `terrace capacity SIZE|device [--tier flash|large]`
pub fn run(args: &CapacityArgs, settings: &Settings) -> Outcome {
    let Capacity(wanted) = args.size;
    let bytes = wanted.map(|Size(bytes)| bytes);
    let (request, what) = match (args.tier, bytes) {
        (TierName::Large, large_bytes) => (TierBytes::Large(large_bytes), "blocks"),
        (TierName::Flash, Some(bytes)) => (TierBytes::Flash(bytes), "files of the flash tier"),
        (TierName::Flash, None) => {
            return Err(Failure::new(
                Code::Usage,
                "the flash tier has a capacity of its own; give a size instead of `device`",
            ));
        }
    };
    let stop = signals::install()?;
    let asked = admin::ask(
        &settings.options.flash_dir,
        &admin::CAPACITY,
        &request,
        &stop,
        |_, _| {},
    )?;
    let Some(tier) = asked else {
        return Err(Failure::new(
            Code::Error,
            "no server has this store open; give --large-capacity or --flash-capacity when it is opened",
        ));
    };
    if args.json {
        return print_json(&tier);
    }
    let capacity = tier
        .capacity_bytes
        .map_or_else(|| "what the device has".to_owned(), |bytes| Size(bytes).to_string());
    let used = Size(tier.allocated_bytes);
    print(&format!("{what} have {used} and may have: {capacity}\n"))
}
