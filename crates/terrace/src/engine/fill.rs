//! How full the tiers are, computed from each part of the store.

use super::Engine;
use crate::{
    HomeKind, Result, Room, Tier,
    api::stats::{FillStats, TierFill},
};

impl Engine {
    /// How full the tiers are; the figures are at most a second old.
    pub fn look_at_fill(&self) -> FillStats {
        self.fill.look(|| {
            self.share_flash();
            (measure(self), self.full())
        })
    }

    /// An outcome as returned to callers: `OutOfSpace` gets the usage of the tier.
    ///
    /// # Errors
    /// The error of the outcome.
    pub fn told<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|error| error.with_room(|tier| room(self, tier)))
    }

    /// Why new data is refused; `None` if it is accepted.
    pub fn full(&self) -> Option<String> {
        if self.options.read_only {
            return None;
        }
        let log = &self.log;
        let index = || {
            let reason = log.index_full.refuses_commits()?;
            Some(format!("the index has no room: {reason}"))
        };
        let recycling = || {
            let stuck = log.recycling_is_stuck() && !log.segments.has_for_callers();
            stuck.then(|| "the flash log has no free segment, and recycling cannot free one".to_owned())
        };
        let large = || {
            let lacks = self.large.lacks_room(self.options.size_threshold_bytes);
            lacks.then(|| "the large tier has no room for another value".to_owned())
        };
        let by_space = || log.refusal(Tier::Flash).map(|refusal| refusal.to_string());
        by_space().or_else(index).or_else(recycling).or_else(large)
    }
}

/// Maximum size of the blocks, given what other files use of their device.
fn large_capacity(engine: &Engine) -> u64 {
    // A device that cannot be queried counts as full.
    let left = engine.large.available_bytes().unwrap_or(0);
    let limit = engine.large.capacity_bytes().unwrap_or(u64::MAX);
    engine.large.totals().allocated_bytes.saturating_add(left).min(limit)
}

/// Bytes that a tier's files use, live or dead, and may use.
fn room(engine: &Engine, tier: Tier) -> Room {
    let reserve_bytes = engine.log.reserve.bytes();
    if tier == Tier::Large {
        return Room {
            used_bytes: engine.large.totals().allocated_bytes,
            capacity_bytes: large_capacity(engine),
            reserve_bytes: 0,
        };
    }
    let log_bytes = u64::from(engine.log.segments.created()) * engine.log.segments.segment_bytes();
    let used_bytes = engine.beside_log_bytes() + log_bytes;
    let left = engine.flash_disk.available_bytes().unwrap_or(0);
    Room {
        used_bytes,
        capacity_bytes: used_bytes.saturating_add(left).min(engine.flash_limit_bytes()),
        reserve_bytes,
    }
}

fn measure(engine: &Engine) -> FillStats {
    let segments = &engine.log.segments;
    let log_bytes = u64::from(segments.created()) * segments.segment_bytes();
    let log_live = engine.accounting.stats(HomeKind::Flash).bytes.min(log_bytes);
    let reserve = &engine.log.reserve;
    // The copies of tables are removed where room is scarce.
    let mirror = engine.index.mirror_bytes();
    let fixed = engine.beside_log_bytes().saturating_sub(mirror);
    // A device that cannot be queried counts as full.
    let flash_left = engine.flash_disk.available_bytes().unwrap_or(0).saturating_add(mirror);
    let totals = engine.large.totals();
    let large_live = totals.live_bytes.min(totals.allocated_bytes);
    let limit = engine.large.capacity_bytes().unwrap_or(u64::MAX);
    let large = TierFill::of(large_live, large_capacity(engine));
    let is_shared = reserve.is_shared();
    let (flash, large) = if is_shared {
        let fixed = fixed + reserve.large_bytes();
        let all = fixed + log_bytes + totals.allocated_bytes;
        let capacity_bytes = all
            .saturating_add(flash_left)
            .min(engine.flash_limit_bytes().saturating_add(limit));
        let both = TierFill::of(fixed + log_live + large_live, capacity_bytes);
        (both, both)
    } else {
        let capacity_bytes = (fixed + log_bytes)
            .saturating_add(flash_left)
            .min(engine.flash_limit_bytes());
        (TierFill::of(fixed, capacity_bytes), large)
    };
    FillStats {
        flash,
        large,
        is_shared,
    }
}
