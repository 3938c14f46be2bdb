//! Fill levels of the tiers, the estimated time until they are full, and warnings.
//!
//! Used space is space that cannot be reclaimed: live values, the index and its checkpoint, the
//! reserve. Dead bytes, free segments and preallocated space count as room. Values in a log on a
//! device of its own do not count, because cold ones move to the large tier.
//!
//! Only figures in RAM: after an open "today" starts over.

use crate::{
    Tier,
    api::stats::{FillStats, TierFill},
};
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Minimum interval of measurements.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The rate of growth is of at most this span,
const RATE_SPAN: Duration = Duration::from_secs(24 * 3600);
/// from samples at this interval,
const SAMPLE_INTERVAL: Duration = Duration::from_secs(600);
/// and of at least this span.
const RATE_SPAN_MIN: Duration = Duration::from_secs(60);
/// Fill levels, in per cent, at which a warning is logged once,
const WARN_PERCENT: [u64; 2] = [85, 95];
/// and again after the level was this much lower.
const WARN_AGAIN_BELOW: u64 = 2;
/// New data must be accepted for this long before the end of the shortage is logged: on a full
/// device each deletion frees some room, which the next write uses.
const ROOM_AGAIN: Duration = Duration::from_secs(10);

/// The last measurement.
#[derive(Debug, Default)]
pub struct FillWatch(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    looked_at: Option<Instant>,
    fill: FillStats,
    samples: VecDeque<(Instant, [u64; 2])>,
    /// How many of the shares were warned of.
    warned: [usize; 2],
    /// A warning said that new data is refused, and when that was last so.
    full_at: Option<Instant>,
}

impl FillWatch {
    /// Measures by `measure`, which also returns why no new data is accepted, if so; logs warnings,
    /// and returns the figures. Figures less than a second old are not measured again.
    pub fn look(&self, measure: impl FnOnce() -> (FillStats, Option<String>)) -> FillStats {
        let mut state = self.0.lock();
        let now = Instant::now();
        let is_young = |at: Instant| now.duration_since(at) < LOOK_INTERVAL;
        if !state.looked_at.is_some_and(is_young) {
            state.looked_at = Some(now);
            let (fill, full) = measure();
            state.see(fill, now);
            state.see_full(full.as_deref(), now);
        }
        state.fill
    }
}

impl State {
    fn see(&mut self, mut fill: FillStats, now: Instant) {
        let is_old = |at: Instant, span| now.duration_since(at) >= span;
        while self.samples.len() > 1 && is_old(self.samples[1].0, RATE_SPAN) {
            self.samples.pop_front();
        }
        if self.samples.back().is_none_or(|(at, _)| is_old(*at, SAMPLE_INTERVAL)) {
            self.samples
                .push_back((now, [fill.flash.used_bytes, fill.large.used_bytes]));
        }
        let first = self.samples.front().filter(|(at, _)| is_old(*at, RATE_SPAN_MIN));
        for (number, tier) in [&mut fill.flash, &mut fill.large].into_iter().enumerate() {
            tier.hours_to_full = first.and_then(|(at, used)| hours(tier, used[number], now.duration_since(*at)));
        }
        let tiers = [(Tier::Flash, fill.flash), (Tier::Large, fill.large)];
        for (number, (tier, seen)) in tiers.into_iter().enumerate() {
            if number == 0 || !fill.is_shared {
                self.warn(number, tier, &seen);
            }
        }
        self.fill = fill;
    }

    /// Warns once that new data is refused, and once that it is accepted again: each refusal is in
    /// the log of requests.
    fn see_full(&mut self, reason: Option<&str>, now: Instant) {
        match (reason, self.full_at) {
            (Some(reason), told) => {
                if told.is_none() {
                    tracing::warn!(
                        reason,
                        "the store is full: nothing new is taken until something was deleted"
                    );
                }
                self.full_at = Some(now);
            }
            (None, Some(at)) if now.duration_since(at) >= ROOM_AGAIN => {
                tracing::warn!("the store has room again: new data is taken");
                self.full_at = None;
            }
            (None, _) => {}
        }
    }

    fn warn(&mut self, number: usize, tier: Tier, seen: &TierFill) {
        let percent = seen.percent();
        let warned = &mut self.warned[number];
        while *warned > 0 && percent + WARN_AGAIN_BELOW < WARN_PERCENT[*warned - 1] {
            *warned -= 1;
        }
        let passed = WARN_PERCENT.iter().filter(|share| percent >= **share).count();
        if passed > *warned {
            *warned = passed;
            tracing::warn!(
                %tier,
                percent,
                used_bytes = seen.used_bytes,
                capacity_bytes = seen.capacity_bytes,
                hours_to_full = seen.hours_to_full,
                "a tier fills up: delete objects, raise its capacity, or enlarge its device"
            );
        }
    }
}

/// Hours until the tier is full at the rate of growth since then.
fn hours(tier: &TierFill, used_then: u64, since: Duration) -> Option<f64> {
    let grown = tier.used_bytes.saturating_sub(used_then);
    let left = tier.capacity_bytes.saturating_sub(tier.used_bytes);
    (grown > 0).then(|| left as f64 / grown as f64 * since.as_secs_f64() / 3600.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(used_bytes: u64) -> FillStats {
        let flash = TierFill {
            used_bytes,
            capacity_bytes: 1_000,
            hours_to_full: None,
        };
        FillStats {
            flash,
            large: flash,
            is_shared: true,
        }
    }

    #[test]
    fn a_share_is_warned_of_once_and_again_after_it_was_below() {
        let mut state = State::default();
        let mut warned = Vec::new();
        for used in [840, 850, 849, 900, 839, 851, 820, 850, 960, 940, 955, 900, 955, 999] {
            state.see(fill(used), Instant::now());
            warned.push(state.warned[0]);
        }
        assert_eq!(warned, [0, 1, 1, 1, 1, 1, 0, 1, 2, 2, 2, 1, 2, 2]);
        assert_eq!(state.warned[1], 0, "both tiers are one device");
    }

    /// Regression: each refusal was an error in the log.
    #[test]
    fn a_full_store_is_told_of_once_and_again_after_it_had_room() {
        let mut state = State::default();
        let began = Instant::now();
        let full = [true, true, false, true, false, false, false, true];
        let seconds = [0, 1, 2, 3, 4, 12, 13, 14];
        let told = full.into_iter().zip(seconds).map(|(is_full, second)| {
            state.see_full(is_full.then_some("why"), began + Duration::from_secs(second));
            state.full_at.is_some()
        });
        let told: Vec<bool> = told.collect();
        assert_eq!(told, [true, true, true, true, true, true, false, true]);
    }

    #[test]
    fn what_is_left_lasts_as_long_as_it_goes_on_as_today() {
        let mut state = State::default();
        let began = Instant::now();
        let at = |minutes: u64| began + Duration::from_secs(60 * minutes);
        state.see(fill(100), began);
        assert_eq!(state.fill.flash.hours_to_full, None, "there is no rate yet");
        state.see(fill(200), at(60));
        assert_eq!(state.fill.flash.hours_to_full, Some(8.0));
        state.see(fill(90), at(120));
        assert_eq!(state.fill.flash.hours_to_full, None, "it falls");
        for hour in 3..60 {
            state.see(fill(90 + 10 * hour), at(60 * hour));
        }
        // 10 an hour today, whatever was before.
        let hours = state.fill.flash.hours_to_full;
        assert!(hours.is_some_and(|hours| (30.0..34.0).contains(&hours)), "{hours:?}");
        assert!(state.samples.len() < 200);
    }
}
