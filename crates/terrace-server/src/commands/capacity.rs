//! `terrace capacity`: another bound for a tier of a store that is served.

use super::{print, print_json};
use crate::{
    cli::{CapacityArgs, LargeCapacity},
    control::{self, Asked, Request},
    failure::{Code, Failure, Outcome},
    settings::Settings,
    signals,
    size::Size,
};

/// `terrace capacity SIZE|device`, `terrace capacity --flash SIZE`
pub fn run(args: &CapacityArgs, settings: &Settings) -> Outcome {
    let (request, what) = match (args.flash, args.size) {
        (Some(Size(bytes)), _) => (Request::FlashCapacity { bytes }, "segments"),
        (None, wanted) => {
            let large_bytes = wanted.and_then(|LargeCapacity(size)| size).map(|Size(bytes)| bytes);
            (Request::Capacity { large_bytes }, "blocks")
        }
    };
    let stop = signals::install()?;
    let Asked::Capacity(tier) = control::ask(&settings.options.flash_dir, &request, &stop, |_, _| {})? else {
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
