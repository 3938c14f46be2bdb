//! How full the tiers are: what is asked of each part of the store.

use super::Engine;
use crate::{
    HomeKind, Result, Room, Tier,
    api::stats::{FillStats, TierFill},
};

/// Most of the flash device that new data leaves to compactions of the index, as a divisor: of an
/// index that is a larger part of it, tables are merged some at a time.
const COMPACTION_ROOM_DIVISOR: u64 = 16;

impl Engine {
    /// How full the tiers are, as of a second ago at most.
    pub fn look_at_fill(&self) -> FillStats {
        self.fill.look(|| {
            self.leave_room_to_compactions();
            (measure(self), self.full())
        })
    }

    /// An outcome as callers are told it: where a tier had no room, with what it has.
    ///
    /// # Errors
    /// The outcome's.
    pub fn told<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|error| error.with_room(|tier| room(self, tier)))
    }

    /// A compaction of the index has what it reads twice until it is done. Without room for that on
    /// a full device it used the reserve, and nothing new was taken though log GC went on.
    fn leave_room_to_compactions(&self) {
        let most = self.flash_disk.total_bytes().unwrap_or(0) / COMPACTION_ROOM_DIVISOR;
        let index_bytes = self.index.stats().bytes.min(most);
        let cleaning_bytes = self.log.reserve.cleaning_bytes();
        self.log.segments.leave_to_others(cleaning_bytes + index_bytes);
    }

    /// Why nothing new is taken, if it is not.
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
        let reserve = || log.reserve.refusal(Tier::Flash).map(|refusal| refusal.to_string());
        reserve().or_else(index).or_else(recycling).or_else(large)
    }
}

/// What is on the flash tier beside the log.
fn beside_log(engine: &Engine) -> u64 {
    engine.index.stats().bytes + engine.checkpoints.stats().file_bytes + engine.log.reserve.bytes()
}

/// Most that blocks may take, of what others have left of their device.
fn large_capacity(engine: &Engine) -> u64 {
    // What cannot be asked has nothing left.
    let left = engine.large.available_bytes().unwrap_or(0);
    let limit = engine.large.capacity_bytes().unwrap_or(u64::MAX);
    engine.large.totals().allocated_bytes.saturating_add(left).min(limit)
}

/// What lies on a tier, living or dead, and what may.
fn room(engine: &Engine, tier: Tier) -> Room {
    let reserve_bytes = engine.log.reserve.bytes();
    if tier == Tier::Large {
        return Room {
            used_bytes: engine.large.totals().allocated_bytes,
            capacity_bytes: large_capacity(engine),
            reserve_bytes: 0,
        };
    }
    let segments = &engine.log.segments;
    let of_segments = |count: u32| u64::from(count) * segments.segment_bytes();
    let (log_bytes, beside) = (of_segments(segments.created()), beside_log(engine));
    let left = engine.flash_disk.available_bytes().unwrap_or(0);
    let log_most = log_bytes.saturating_add(left).min(of_segments(segments.capacity()));
    Room {
        used_bytes: beside + log_bytes,
        capacity_bytes: beside + log_most.max(log_bytes),
        reserve_bytes,
    }
}

fn measure(engine: &Engine) -> FillStats {
    let segments = &engine.log.segments;
    let log_bytes = u64::from(segments.created()) * segments.segment_bytes();
    let log_live = engine.accounting.stats(HomeKind::Flash).bytes.min(log_bytes);
    let reserve = &engine.log.reserve;
    let fixed = beside_log(engine);
    // What cannot be asked has nothing left.
    let flash_left = engine.flash_disk.available_bytes().unwrap_or(0);
    let totals = engine.large.totals();
    let large_live = totals.live_bytes.min(totals.allocated_bytes);
    let limit = engine.large.capacity_bytes().unwrap_or(u64::MAX);
    let large = TierFill::of(large_live, large_capacity(engine));
    let is_shared = reserve.is_shared();
    let (flash, large) = if is_shared {
        let all = fixed + log_bytes + totals.allocated_bytes;
        let log_limit = u64::from(segments.capacity()) * segments.segment_bytes();
        let all_limit = (fixed + log_limit).saturating_add(limit);
        let capacity_bytes = all.saturating_add(flash_left).min(all_limit);
        let both = TierFill::of(fixed + log_live + large_live, capacity_bytes);
        (both, both)
    } else {
        let capacity_bytes = (fixed + log_bytes).saturating_add(flash_left);
        (TierFill::of(fixed, capacity_bytes), large)
    };
    FillStats {
        flash,
        large,
        is_shared,
    }
}
