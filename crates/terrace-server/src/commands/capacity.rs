//! `terrace capacity`: changes the capacity of a tier while a server runs.

use super::{print, print_json};
use crate::{
    cli::{Capacity, CapacityArgs, TierName},
    control::{self, Answer, Request},
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
        (TierName::Large, large_bytes) => (Request::Capacity { large_bytes }, "blocks"),
        (TierName::Flash, Some(bytes)) => (Request::FlashCapacity { bytes }, "segments"),
        (TierName::Flash, None) => {
            return Err(Failure::new(
                Code::Usage,
                "the flash log has a capacity of its own; give a size instead of `device`",
            ));
        }
    };
    let stop = signals::install()?;
    let Some(Answer::Capacity(tier)) = control::ask(&settings.options.flash_dir, &request, &stop, |_, _| {})? else {
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
