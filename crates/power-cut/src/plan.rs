//! Chooses the parameters of a life, at random and for the needs of a mutation.

use super::{
    life::{Moment, Plan},
    mutations::Focus,
    workload::{COLD, MOODS, SINGLE},
    writer::TOLD,
};
use emulated_drives::Survival;
use rand::{Rng, rngs::StdRng, seq::IndexedRandom};
use std::{ops::Range, time::Duration};

/// One life in this many is cut during the open, so that short histories have some.
const OPENING_EVERY: u64 = 8;

/// Result of the previous life.
#[derive(Debug, Clone, Copy, Default)]
pub struct Before {
    /// Killed without a cut, with frames in the page cache.
    pub left_cached: bool,
    /// Writes in the drives' caches at the cut.
    pub pending_writes: u64,
    /// The kind of life to prefer.
    pub focus: Option<Focus>,
}

/// Parameters of a life, at random. Sometimes it follows up the previous life: a power cut after a
/// process died with frames in the page cache, or a short life on a log with a hole.
pub fn plan(rng: &mut StdRng, life: u64, has_power: bool, before: Before) -> Plan {
    let mut plan = Plan {
        life,
        mood: rng.random_range(0..MOODS.len()),
        seed: rng.random(),
        page_cache: rng.random_bool(0.25),
        memtable_bytes: [64 << 10, 2 << 20][rng.random_range(0..2)],
        has_neighbour: rng.random_bool(0.6),
        moment: moment(rng),
        is_cut: has_power && rng.random_bool(0.8),
        survival: match rng.random_range(0..20) {
            0..14 => Survival::Torn,
            14..17 => Survival::Random,
            17..19 => Survival::None,
            _ => Survival::Prefix,
        },
        large_first: rng.random_bool(0.5),
    };
    match before.focus {
        Some(Focus::Holes) if rng.random_bool(0.8) => return around_hole(plan, rng, has_power, before),
        Some(Focus::TornFrames) if rng.random_bool(0.8) => return torn_frame(plan, rng, has_power),
        _ => {}
    }
    if let Some(focus) = before.focus.filter(|_| rng.random_bool(0.6)) {
        focus_on(focus, &mut plan, rng, has_power);
    }
    if !plan.is_cut && rng.random_bool(0.6) {
        plan.page_cache = true;
        plan.mood = calm_mood(rng);
        plan.moment = Moment::Time(micros(rng, 50_000..700_000));
    }
    if let Moment::Unflushed { is_large, .. } = plan.moment {
        // With other moods there are hardly ever unflushed writes.
        plan.mood = if is_large { prompt_mood(rng) } else { calm_mood(rng) };
        plan.page_cache = false;
        plan.has_neighbour = false;
        plan.large_first = is_large;
    }
    if matches!(plan.moment, Moment::Acknowledgements(_)) && rng.random_bool(0.6) {
        plan.mood = prompt_mood(rng);
    }
    if life.is_multiple_of(OPENING_EVERY) {
        plan.moment = opening(rng);
    } else if before.left_cached && rng.random_bool(0.8) {
        // The index is flushed as soon as the store is open: recycling needs it.
        plan.page_cache = true;
        plan.is_cut = has_power;
        plan.moment = Moment::Opening(micros(rng, 20_000..500_000));
    } else if before.pending_writes >= 4 && rng.random_bool(0.35) {
        plan.moment = Moment::Acknowledgements(rng.random_range(1..60));
    }
    plan
}

/// Parameters of a life that shows what a hole leaves behind. One life writes frames of one commit,
/// and the cut drops any of them, in segments that were in use before, since ext4 shows the data of
/// a new file only after a sync. The next life writes some frames in their places, with their seqs,
/// and is killed with the power on. After its last frame, a frame from behind the hole continues
/// the log unless it was wiped.
fn around_hole(plan: Plan, rng: &mut StdRng, has_power: bool, before: Before) -> Plan {
    let is_behind = before.pending_writes > 1;
    let moment = if is_behind {
        Moment::Time(micros(rng, 1_000..60_000))
    } else {
        unflushed(rng, false, 4..16, 2_000..60_000)
    };
    Plan {
        moment,
        mood: MOODS.iter().position(|mood| mood.name == SINGLE).unwrap_or(0),
        page_cache: false,
        has_neighbour: false,
        is_cut: has_power && !is_behind,
        survival: Survival::Random,
        large_first: false,
        ..plan
    }
}

/// Parameters of a life that ends with a torn frame after whole ones: long frames, few of them in
/// the drive's cache, in segments that were in use before (see [`around_hole`]).
fn torn_frame(plan: Plan, rng: &mut StdRng, has_power: bool) -> Plan {
    Plan {
        moment: unflushed(rng, false, 1..4, 2_000..200_000),
        mood: MOODS.iter().position(|mood| mood.name == COLD).unwrap_or(0),
        page_cache: false,
        has_neighbour: false,
        is_cut: has_power,
        survival: Survival::Torn,
        large_first: false,
        ..plan
    }
}

/// A mood with many durable commits and values in the large space.
fn prompt_mood(rng: &mut StdRng) -> usize {
    let is_prompt = |mood: &usize| MOODS[*mood].buffered <= 0.6 && MOODS[*mood].large >= 0.1;
    let prompt: Vec<usize> = (0..MOODS.len()).filter(is_prompt).collect();
    prompt.choose(rng).copied().unwrap_or(0)
}

/// Changes a life's parameters to those that show a broken rule best.
fn focus_on(focus: Focus, plan: &mut Plan, rng: &mut StdRng, has_power: bool) {
    plan.is_cut = has_power && focus != Focus::Killed;
    let after = micros(rng, 2_000..500_000);
    match focus {
        Focus::TornFrames | Focus::LargeUnflushed => {
            let is_large = focus == Focus::LargeUnflushed;
            let writes = rng.random_range(1..if is_large { 4 } else { 20 });
            plan.survival = Survival::Torn;
            plan.moment = Moment::Unflushed {
                is_large,
                writes,
                after,
            };
        }
        Focus::Neighbour => {
            plan.has_neighbour = true;
            plan.page_cache = false;
            plan.mood = prompt_mood(rng);
            plan.moment = Moment::Time(after * 3);
        }
        Focus::Young | Focus::Holes | Focus::Killed => {}
    }
}

/// A mood with few flushes.
fn calm_mood(rng: &mut StdRng) -> usize {
    let calm: Vec<usize> = (0..MOODS.len()).filter(|&mood| MOODS[mood].buffered >= 1.0).collect();
    // Frames longer than a sector, to be torn.
    let longest = calm.iter().copied().max_by_key(|&mood| MOODS[mood].small_bytes_min);
    let chosen = if rng.random_bool(0.4) {
        longest
    } else {
        calm.choose(rng).copied()
    };
    chosen.unwrap_or(0)
}

fn micros(rng: &mut StdRng, range: Range<u64>) -> Duration {
    Duration::from_micros(rng.random_range(range))
}

/// Once a drive has this many unflushed writes, but not before this many microseconds.
fn unflushed(rng: &mut StdRng, is_large: bool, writes: Range<u64>, after_us: Range<u64>) -> Moment {
    Moment::Unflushed {
        is_large,
        writes: rng.random_range(writes),
        after: micros(rng, after_us),
    }
}

/// A time that is probably during the open.
fn opening(rng: &mut StdRng) -> Moment {
    let limit_us = [30_000, 250_000][rng.random_range(0..2)];
    Moment::Opening(micros(rng, 0..limit_us))
}

fn moment(rng: &mut StdRng) -> Moment {
    match rng.random_range(0..100) {
        0..5 => opening(rng),
        5..20 => Moment::Acknowledgements(rng.random_range(1..12)),
        20..36 => {
            let delays = [0, rng.random_range(0..3_000), rng.random_range(0..60_000)];
            Moment::Event {
                name: TOLD.choose(rng).copied().unwrap_or(TOLD[0]),
                nth: rng.random_range(1..20),
                delay: Duration::from_micros(delays[rng.random_range(0..delays.len())]),
            }
        }
        36..52 => unflushed(rng, true, 1..4, 2_000..1_000_000),
        52..92 => unflushed(rng, false, 1..20, 2_000..1_400_000),
        _ => Moment::Time(micros(rng, 2_000..1_800_000)),
    }
}

/// Parameters of an early life, which ends while the store is made or soon after. Nothing has been
/// recycled yet, so frames behind a hole are still there when the next life ends.
pub fn early(rng: &mut StdRng, life: u64, has_power: bool) -> Plan {
    let mut mood = rng.random_range(0..MOODS.len());
    let moment = match rng.random_range(0..6) {
        0 => Moment::Opening(micros(rng, 0..60_000)),
        1 | 2 => Moment::Acknowledgements(rng.random_range(1..40)),
        3 => {
            mood = calm_mood(rng);
            unflushed(rng, false, 4..24, 2_000..60_000)
        }
        4 => Moment::Event {
            name: "began a segment",
            nth: rng.random_range(1..4),
            delay: micros(rng, 0..2_000),
        },
        _ => Moment::Time(micros(rng, 0..60_000)),
    };
    Plan {
        moment,
        mood,
        is_cut: has_power,
        large_first: false,
        ..plan(rng, life, has_power, Before::default())
    }
}
