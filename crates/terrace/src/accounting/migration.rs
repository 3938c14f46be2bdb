//! How far the values are where they belong by the rules of now.

use crate::{PlacementStats, api::stats::PlacementCounters};
use std::sync::atomic::{AtomicBool, Ordering};

/// Progress of the migration, shared by all threads.
#[derive(Debug, Default)]
pub struct Migration {
    /// The index is walked since the rules have changed.
    pub is_under_way: AtomicBool,
    /// Values visited and moved.
    pub counters: PlacementCounters,
}

impl Migration {
    /// A picture.
    pub fn stats(&self) -> PlacementStats {
        PlacementStats {
            migrating: self.is_under_way.load(Ordering::Relaxed),
            ..self.counters.picture()
        }
    }
}
