//! How a life goes, by chance and by what a mutation needs.

use super::{
    life::{Moment, Plan},
    mutations::Focus,
    workload::{COLD, MOODS, SINGLE},
    writer::TOLD,
};
use emulated_drives::Survival;
use rand::{Rng, rngs::StdRng, seq::IndexedRandom};
use std::time::Duration;

/// So that short histories have cuts during recovery, too.
const OPENING_EVERY: u64 = 8;

/// How the life before went.
#[derive(Debug, Clone, Copy, Default)]
pub struct Before {
    /// Killed without a cut, with frames in the page cache.
    pub left_cached: bool,
    /// Writes that a cut found in the drives' memories.
    pub pending_writes: u64,
    /// What there shall be more of.
    pub focus: Option<Focus>,
}

/// How a life goes, by chance. What the life before left is followed up now and then: a process
/// that dies with frames in the page cache and then a power cut, or a short life on a log with a
/// hole in it.
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
        plan.moment = Moment::Time(Duration::from_micros(rng.random_range(50_000..700_000)));
    }
    if let Moment::Unflushed { is_large, .. } = plan.moment {
        // Elsewhere there is hardly ever anything unflushed.
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
        // The index is flushed as soon as the store is open: recycling wants it.
        plan.page_cache = true;
        plan.is_cut = has_power;
        plan.moment = Moment::Opening(Duration::from_micros(rng.random_range(20_000..500_000)));
    } else if before.pending_writes >= 4 && rng.random_bool(0.35) {
        plan.moment = Moment::Acknowledgements(rng.random_range(1..60));
    }
    plan
}

/// How a life goes of those that show what a hole leaves behind. One writes frames of one commit,
/// and the cut takes any of them: in segments that were in use before, since of a new file ext4
/// shows what was written only after a sync. The next writes some in their places, with their seqs,
/// and dies with the power on: where its last one ends a frame from behind the hole is the log's
/// next, unless it was wiped.
fn around_hole(plan: Plan, rng: &mut StdRng, has_power: bool, before: Before) -> Plan {
    let is_behind = before.pending_writes > 1;
    let moment = if is_behind {
        Moment::Time(Duration::from_micros(rng.random_range(1_000..60_000)))
    } else {
        Moment::Unflushed {
            is_large: false,
            writes: rng.random_range(4..16),
            after: Duration::from_micros(rng.random_range(2_000..60_000)),
        }
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

/// How a life goes that ends with a torn frame behind whole ones: long frames, few of them in the
/// drive's memory, and segments that were in use before ([`around_hole`] says why).
fn torn_frame(plan: Plan, rng: &mut StdRng, has_power: bool) -> Plan {
    Plan {
        moment: Moment::Unflushed {
            is_large: false,
            writes: rng.random_range(1..4),
            after: Duration::from_micros(rng.random_range(2_000..200_000)),
        },
        mood: MOODS.iter().position(|mood| mood.name == COLD).unwrap_or(0),
        page_cache: false,
        has_neighbour: false,
        is_cut: has_power,
        survival: Survival::Torn,
        large_first: false,
        ..plan
    }
}

/// A mood with many durable commits, and values in the large space.
fn prompt_mood(rng: &mut StdRng) -> usize {
    let is_prompt = |mood: &usize| MOODS[*mood].buffered <= 0.6 && MOODS[*mood].large >= 0.1;
    let prompt: Vec<usize> = (0..MOODS.len()).filter(is_prompt).collect();
    prompt.choose(rng).copied().unwrap_or(0)
}

/// Makes a life one of those that show a rule's absence best.
fn focus_on(focus: Focus, plan: &mut Plan, rng: &mut StdRng, has_power: bool) {
    plan.is_cut = has_power && focus != Focus::Killed;
    let after = Duration::from_micros(rng.random_range(2_000..500_000));
    match focus {
        Focus::TornFrames | Focus::LargeUnflushed => {
            let is_large = focus == Focus::LargeUnflushed;
            let writes = if is_large {
                rng.random_range(1..4)
            } else {
                rng.random_range(1..20)
            };
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

/// While the store is opened, most likely.
fn opening(rng: &mut StdRng) -> Moment {
    let limit_us = [30_000, 250_000][rng.random_range(0..2)];
    Moment::Opening(Duration::from_micros(rng.random_range(0..limit_us)))
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
        36..52 => Moment::Unflushed {
            is_large: true,
            writes: rng.random_range(1..4),
            after: Duration::from_micros(rng.random_range(2_000..1_000_000)),
        },
        52..92 => Moment::Unflushed {
            is_large: false,
            writes: rng.random_range(1..20),
            after: Duration::from_micros(rng.random_range(2_000..1_400_000)),
        },
        _ => Moment::Time(Duration::from_micros(rng.random_range(2_000..1_800_000))),
    }
}

/// How an early life of a store goes: it is to end while the store is made, or soon after. Nothing
/// is recycled yet, so what a cut left behind a hole is still there when the next life ends.
pub fn early(rng: &mut StdRng, life: u64, has_power: bool) -> Plan {
    let mut mood = rng.random_range(0..MOODS.len());
    let moment = match rng.random_range(0..6) {
        0 => Moment::Opening(Duration::from_micros(rng.random_range(0..60_000))),
        1 | 2 => Moment::Acknowledgements(rng.random_range(1..40)),
        3 => {
            mood = calm_mood(rng);
            Moment::Unflushed {
                is_large: false,
                writes: rng.random_range(4..24),
                after: Duration::from_micros(rng.random_range(2_000..60_000)),
            }
        }
        4 => Moment::Event {
            name: "began a segment",
            nth: rng.random_range(1..4),
            delay: Duration::from_micros(rng.random_range(0..2_000)),
        },
        _ => Moment::Time(Duration::from_micros(rng.random_range(0..60_000))),
    };
    Plan {
        moment,
        mood,
        is_cut: has_power,
        large_first: false,
        ..plan(rng, life, has_power, Before::default())
    }
}
