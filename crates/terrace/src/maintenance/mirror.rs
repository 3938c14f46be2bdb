//! Copies tables of the ordered index that are not merged away soon ([`crate::ordered_index`],
//! "mirror"), after everything else that uses the flash tier.
//!
//! On failure: there is no copy, and it is tried again.

use crate::{Error, engine::Engine, ordered_index::MIRROR_STEP_BYTES};
use std::{
    io,
    time::{Duration, Instant},
};

/// How often it looks which tables have been there long enough.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// When it has looked.
#[derive(Debug, Default)]
pub struct Mirroring {
    looked_at: Option<Instant>,
    /// A failure was logged, and nothing has succeeded since.
    is_told: bool,
}

impl Mirroring {
    /// Copies the next table, or removes copies that have no room. Whether there may be more to do.
    pub fn turn(&mut self, engine: &Engine) -> bool {
        let (index, tuning) = (&engine.index, &engine.options.tuning);
        let settled = tuning.index_mirror_after.unwrap_or(Duration::MAX);
        let interval = LOOK_INTERVAL.min(settled);
        let is_due = self.looked_at.is_none_or(|at| at.elapsed() >= interval);
        if !(is_due && index.keeps_up() || index.mirror_exceeds_room()) {
            return false;
        }
        let mut is_held_up = false;
        let copied = index.mirror_next(settled, |work| {
            is_held_up = engine.log.is_closing() || index.mirror_exceeds_room() || !index.keeps_up();
            if is_held_up {
                return Err(io::ErrorKind::Interrupted.into());
            }
            engine.flash_step(MIRROR_STEP_BYTES, work)
        });
        let is_more = match copied {
            Ok(is_more) => {
                self.is_told = false;
                is_more
            }
            // It is noted and logged. The other tables can be copied.
            Err(Error::Corruption { .. }) => true,
            Err(Error::OutOfSpace { .. }) => false,
            Err(error) => {
                if !is_held_up && !std::mem::replace(&mut self.is_told, true) {
                    tracing::warn!(%error, "tables of the index cannot be copied; trying again until it succeeds");
                }
                false
            }
        };
        if is_more {
            engine.share_flash();
        }
        self.looked_at = (!is_more).then(Instant::now);
        is_more
    }
}
