//! How far the values are where they belong by the rules of now: what the migration counts, for
//! everybody.

use crate::{PlacementStats, api::stats::PlacementCounters};
use std::sync::atomic::{AtomicBool, Ordering};

/// What is known of places, for everybody.
#[derive(Debug, Default)]
pub struct Migration {
    /// The index is walked since the rules have changed.
    pub is_under_way: AtomicBool,
    /// Pins to flash ask for too much.
    pub pins_exceed: AtomicBool,
    /// What was looked at and moved.
    pub counters: PlacementCounters,
}

impl Migration {
    /// Whether pins to flash count: they do unless they ask for too much.
    pub fn pins_hold(&self) -> bool {
        !self.pins_exceed.load(Ordering::Relaxed)
    }

    /// A picture.
    pub fn stats(&self) -> PlacementStats {
        PlacementStats {
            migrating: self.is_under_way.load(Ordering::Relaxed),
            pins_exceed_flash: !self.pins_hold(),
            ..self.counters.picture()
        }
    }
}
