//! How long a commit waits for a segment.

use crate::log::segments::Segments;
use std::time::{Duration, Instant};

/// How long a commit waits for recycling before it reports that the tier is full.
const SPACE_WAIT_MAX: Duration = Duration::from_secs(10);

/// How long a commit still waits for a segment. As long as segments become free, whoever gets them, it is worth waiting: on a
/// slow disk many writers may stand in line for each.
pub(crate) struct Patience {
    until: Instant,
    uses_begun: u64,
}

impl Patience {
    pub(crate) fn new(segments: &Segments) -> Self {
        Self {
            until: Instant::now() + SPACE_WAIT_MAX,
            uses_begun: segments.uses_begun(),
        }
    }

    pub(crate) fn is_over(&mut self, segments: &Segments) -> bool {
        if self.uses_begun != segments.uses_begun() {
            *self = Self::new(segments);
        }
        Instant::now() >= self.until
    }
}
