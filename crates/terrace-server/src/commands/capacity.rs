//! `terrace capacity`: another bound for the large tier of a store that is served.

use super::{print, print_json};
use crate::{
    cli::{CapacityArgs, LargeCapacity},
    control::{self, Asked, Request},
    failure::{Code, Failure, Outcome},
    settings::Settings,
    signals,
    size::Size,
};

/// `terrace capacity SIZE|device`
pub fn run(args: &CapacityArgs, settings: &Settings) -> Outcome {
    let LargeCapacity(wanted) = args.size;
    let request = Request::Capacity {
        large_bytes: wanted.map(|Size(bytes)| bytes),
    };
    let stop = signals::install()?;
    let Asked::Capacity(large) = control::ask(&settings.options.flash_dir, &request, &stop, |_, _| {})? else {
        return Err(Failure::new(
            Code::Error,
            "no server has this store open; give --large-capacity when it is opened",
        ));
    };
    if args.json {
        return print_json(&large);
    }
    let capacity = large
        .capacity_bytes
        .map_or_else(|| "what the device has".to_owned(), |bytes| Size(bytes).to_string());
    let used = Size(large.allocated_bytes);
    print(&format!("blocks have {used} and may have: {capacity}\n"))
}
