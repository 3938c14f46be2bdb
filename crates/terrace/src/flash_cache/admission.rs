//! Admission policy: which objects of the large space are worth a copy on flash, by decayed
//! popularity of groups.
//!
//! Recency does not work for video: a title's segments are read once each and then not for hours.
//! The read rate of the *title* does. Reads are therefore counted per group (for a key, the part up
//! to its last `/`), and all objects of a group have the same score: reads per byte. Groups are
//! ranked by score, and those that fit into the space for copies are *settled*: their objects are
//! copied when they are read, and kept.
//!
//! A better predictor than popularity is a sequential reader. If a reader reads a group in order
//! and has the object ahead of it, the object will be read again soon. Such an object is copied as
//! *passing*, and is worthless once the last reader has passed. The two kinds go to separate
//! segments, because they become worthless in different ways.
//!
//! Objects of a group that is too large to have one popularity (a million photos under one prefix)
//! are counted one by one, in a sketch.
//!
//! Time is counted in reads, not in seconds: a store that is not read forgets nothing.
//!
//! Errors and losses here cost hits, never data.

use super::{forget_quarter, sequences::Sequences, sketch::Sketch};
use crate::{
    api::group::{GroupRule, ordinal},
    key_hash,
};
use hashbrown::HashMap;
use parking_lot::Mutex;
use std::collections::VecDeque;

/// Maximum number of groups; those read least are forgotten.
const GROUPS_MAX: usize = 1 << 16;
/// A group with more bytes than this share of the space for copies is not of one heat.
const GROUP_SHARE_MAX: f64 = 0.25;
/// Share of the space for copies that settled groups may fill: the rest is what cleaning needs to
/// be cheap.
const SETTLED_SHARE: f64 = 0.98;
/// Share of the space that passing copies can take from settled groups. Copies that their reader
/// has passed stay until their segment is reclaimed, which does not happen while passing copies get
/// more and more room: without a bound they evicted all settled groups from a small flash, and kept
/// it.
const PASSING_SHARE_MAX: f64 = 0.2;
/// How much better than a settled group another one must be to take its place.
const MARGIN: f64 = 0.5;
/// Reads of an object that counts by itself before it may be copied: one read is no popularity.
const SINGLE_READS_MIN: f64 = 2.0;
/// Popularity halves after as many reads as this many times the objects there are in the groups
/// counted. Longer counts better, shorter follows changes sooner.
const HALF_LIFE: f64 = 16.0;
/// The same where little is known yet.
const HALF_LIFE_READS_MIN: f64 = 100_000.0;
/// The ranking is recomputed after this fraction of a half-life.
const RANKING_SHARE: f64 = 0.0025;

/// Value of copying an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Worth {
    /// Nothing: it stays where it is.
    None,
    /// Its group is popular.
    Settled,
    /// A reader that reads its group in order will reach it.
    Passing,
}

/// Result of noting a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Value of copying the object.
    pub worth: Worth,
    /// How many objects of its group the reader has read in order, this one included; 0 if unknown.
    pub run: u32,
    /// It is the first read of its group, which is to be measured.
    pub is_new: bool,
}

/// A group that should be measured: how many objects it has, and bytes in the large space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmeasured {
    /// The start that the keys of the group have in common.
    pub prefix: Vec<u8>,
    hash: u64,
}

#[derive(Debug)]
struct Group {
    prefix: Box<[u8]>,
    /// Reads, decayed to `counted_at`.
    score: f64,
    counted_at: f64,
    /// Objects and their bytes, once measured.
    size: Option<(u64, u64)>,
    settled: bool,
}

/// An object to be judged.
#[derive(Debug, Clone, Copy)]
struct Asked<'a> {
    /// Hash of the prefix of its group's keys,
    group: u64,
    key: &'a [u8],
    /// and the rest of its own.
    name: &'a [u8],
    bytes: u64,
}

/// How good an object is. All of it is in reads per byte, over the same time, so any two compare.
#[derive(Debug, Clone, Copy)]
enum Score {
    /// As its group, whose objects are of one heat.
    OfGroup {
        per_byte: f64,
        is_settled: bool,
        /// By the next reader that reads the group in order, if there is one.
        passing: Option<f64>,
    },
    /// By its own reads: its group is of no one heat, or not measured yet.
    Single {
        reads: f64,
        per_byte: f64,
        is_measured: bool,
    },
}

/// Popularity. Called on reads of the large space and of its copies.
#[derive(Debug)]
pub struct Popularity {
    /// What objects are a group.
    pub rule: GroupRule,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    groups: HashMap<u64, Group>,
    /// The readers that go through a group in order.
    readers: Sequences,
    /// Reads so far.
    now: f64,
    half_life: f64,
    ranked_at: f64,
    /// Space for copies, and what passing ones take of it.
    space_bytes: u64,
    passing_bytes: u64,
    /// Reads per byte of the last settled group.
    margin: f64,
    /// Groups in the order of their first reads: popular ones tend to be read early.
    unmeasured: VecDeque<u64>,
    sketch: Sketch,
}

impl Popularity {
    /// Counts nothing yet.
    pub fn new(rule: GroupRule) -> Self {
        Self {
            rule,
            state: Mutex::new(State {
                groups: HashMap::new(),
                readers: Sequences::new(GROUPS_MAX),
                now: 0.0,
                half_life: HALF_LIFE_READS_MIN,
                ranked_at: 0.0,
                space_bytes: 0,
                passing_bytes: 0,
                margin: 0.0,
                unmeasured: VecDeque::new(),
                sketch: Sketch::default(),
            }),
        }
    }

    /// Counts a read of an object.
    pub fn read(&self, key: &[u8], bytes: u64) -> Seen {
        let asked = self.asked(key, bytes);
        let hash = asked.group;
        let state = &mut *self.state.lock();
        state.now += 1.0;
        state.sketch.count(key_hash(key));
        if state.now >= state.ranked_at + state.half_life * RANKING_SHARE {
            state.rank();
        }
        let (now, half_life) = (state.now, state.half_life);
        let run = ordinal(asked.name).map_or(0, |ordinal| state.readers.read(hash, ordinal, now));
        let is_new = !state.groups.contains_key(&hash);
        if let Some(group) = state.groups.get_mut(&hash) {
            group.score = group.decayed(now, half_life) + 1.0;
            group.counted_at = now;
        } else {
            if state.groups.len() >= GROUPS_MAX {
                forget_quarter(&mut state.groups, |group| group.decayed(now, half_life));
            }
            let group = Group {
                prefix: self.rule.group(key).into(),
                score: 1.0,
                counted_at: now,
                size: None,
                settled: false,
            };
            state.groups.insert(hash, group);
            state.unmeasured.push_back(hash);
        }
        let worth = state.score(&asked).worth(state.margin);
        Seen { worth, run, is_new }
    }

    fn asked<'a>(&self, key: &'a [u8], bytes: u64) -> Asked<'a> {
        let prefix = self.rule.group(key);
        Asked {
            group: key_hash(prefix),
            key,
            name: &key[prefix.len()..],
            bytes,
        }
    }

    fn with_score<R>(&self, key: &[u8], bytes: u64, say: impl FnOnce(Score, f64) -> R) -> R {
        let asked = self.asked(key, bytes);
        let state = self.state.lock();
        say(state.score(&asked), state.margin)
    }

    /// The value of copying an object; counts nothing.
    pub fn worth(&self, key: &[u8], bytes: u64) -> Worth {
        self.with_score(key, bytes, |score, margin| score.worth(margin))
    }

    /// The score (reads per byte) that a copy needs to stay when this object is to be copied.
    /// Nothing is evicted for objects of groups, since their ranks decide which of them have room;
    /// objects counted one by one have no ranks, so each must have a higher score than those it
    /// evicts.
    pub fn bar(&self, key: &[u8], bytes: u64) -> Option<f64> {
        self.with_score(key, bytes, |score, _| match score {
            Score::OfGroup { .. } => None,
            Score::Single { per_byte, .. } => Some(per_byte / (1.0 + MARGIN)),
        })
    }

    /// Whether an object has at least this many reads per byte.
    pub fn reaches(&self, bar: f64, key: &[u8], bytes: u64) -> bool {
        self.with_score(key, bytes, |score, _| score.per_byte() >= bar)
    }

    /// Whether a copy of this score is rewritten when its segment is reclaimed. A passing copy
    /// serves a reader or two, so it is not once passing copies have their full share, nor in a
    /// segment with few copies. Of a dozen copies most are soon passed by all readers, so keeping
    /// the rest would write each several times.
    pub fn may_stay(&self, worth: Worth, is_of_many: bool) -> bool {
        match worth {
            Worth::None => false,
            Worth::Settled => true,
            Worth::Passing if !is_of_many => false,
            Worth::Passing => {
                let state = self.state.lock();
                state.passing_bytes as f64 <= state.passing_bytes_max()
            }
        }
    }

    /// Sets how much room copies have, and how much of it passing ones take.
    pub fn set_space(&self, space_bytes: u64, passing_bytes: u64) {
        let mut state = self.state.lock();
        state.space_bytes = space_bytes;
        state.passing_bytes = passing_bytes;
    }

    /// A group to measure, if there is one.
    #[must_use]
    pub fn unmeasured(&self) -> Option<Unmeasured> {
        let mut state = self.state.lock();
        loop {
            let hash = state.unmeasured.pop_front()?;
            if let Some(group) = state.groups.get(&hash) {
                let prefix = group.prefix.to_vec();
                return Some(Unmeasured { prefix, hash });
            }
        }
    }

    /// A group was measured.
    pub fn measured(&self, group: &Unmeasured, objects: u64, bytes: u64) {
        if let Some(group) = self.state.lock().groups.get_mut(&group.hash) {
            group.size = Some((objects.max(1), bytes.max(1)));
        }
    }
}

impl Group {
    fn decayed(&self, now: f64, half_life: f64) -> f64 {
        self.score * f64::exp2((self.counted_at - now) / half_life)
    }

    fn per_byte(&self, now: f64, half_life: f64) -> Option<f64> {
        let (_, bytes) = self.size?;
        Some(self.decayed(now, half_life) / bytes as f64)
    }
}

impl Score {
    /// The value of a copy, if the last settled group has `margin` reads per byte.
    fn worth(self, margin: f64) -> Worth {
        match self {
            Self::OfGroup { is_settled: true, .. } => Worth::Settled,
            Self::OfGroup { passing, .. } if passing.is_some_and(|passing| passing > margin) => Worth::Passing,
            Self::Single {
                reads,
                per_byte,
                is_measured: true,
            } if reads >= SINGLE_READS_MIN && per_byte > margin * (1.0 + MARGIN) => Worth::Settled,
            Self::OfGroup { .. } | Self::Single { .. } => Worth::None,
        }
    }

    /// Reads per byte, as objects that stand in each other's way are compared.
    fn per_byte(self) -> f64 {
        match self {
            Self::OfGroup { per_byte, passing, .. } => passing.map_or(per_byte, |passing| passing.max(per_byte)),
            Self::Single { per_byte, .. } => per_byte,
        }
    }
}

impl State {
    /// How good an object is, by its group, by the next reader on its way, or by itself.
    fn score(&self, asked: &Asked<'_>) -> Score {
        let group = self.groups.get(&asked.group);
        if let Some(group) = group.filter(|group| self.is_of_one_heat(group)) {
            return Score::OfGroup {
                per_byte: group.per_byte(self.now, self.half_life).unwrap_or(0.0),
                is_settled: group.settled,
                passing: self.passing(asked),
            };
        }
        let reads = self.sketch.estimate(key_hash(asked.key));
        Score::Single {
            reads,
            per_byte: reads / asked.bytes.max(1) as f64,
            is_measured: group.is_some_and(|group| group.size.is_some()),
        }
    }

    /// Score of an object by the next reader that approaches it: one read after this many others,
    /// as a rate comparable with the groups' scores.
    fn passing(&self, asked: &Asked<'_>) -> Option<f64> {
        let reads = self.readers.reads_until(asked.group, ordinal(asked.name)?, self.now)?;
        Some(self.half_life / std::f64::consts::LN_2 / reads / asked.bytes.max(1) as f64)
    }

    fn passing_bytes_max(&self) -> f64 {
        self.space_bytes as f64 * PASSING_SHARE_MAX
    }

    /// Whether its objects are read alike as far as that can matter.
    fn is_of_one_heat(&self, group: &Group) -> bool {
        let share = |(_, bytes)| bytes as f64 <= self.space_bytes as f64 * GROUP_SHARE_MAX;
        group.size.is_some_and(share)
    }

    /// Decides which groups are settled.
    fn rank(&mut self) {
        self.ranked_at = self.now;
        let objects: u64 = self
            .groups
            .values()
            .filter_map(|group| group.size)
            .map(|(objects, _)| objects)
            .sum();
        self.half_life = (objects as f64 * HALF_LIFE).max(HALF_LIFE_READS_MIN);
        self.sketch.set_period(self.half_life);
        let (now, half_life) = (self.now, self.half_life);
        // A group that is settled already has an advantage: ranks that change all the time would
        // cost flash writes and gain nothing.
        let mut ranked: Vec<(f64, f64, u64, u64)> = (self.groups.iter())
            .filter(|(_, group)| self.is_of_one_heat(group))
            .filter_map(|(hash, group)| {
                let per_byte = group.per_byte(now, half_life)?;
                let rank = if group.settled {
                    per_byte * (1.0 + MARGIN)
                } else {
                    per_byte
                };
                Some((rank, per_byte, group.size?.1, *hash))
            })
            .collect();
        ranked.sort_unstable_by(|one, other| other.0.total_cmp(&one.0));
        let passing = (self.passing_bytes as f64).min(self.passing_bytes_max());
        let room = (self.space_bytes as f64 - passing) * SETTLED_SHARE;
        let mut filled = 0.0;
        self.margin = 0.0;
        self.groups.values_mut().for_each(|group| group.settled = false);
        for (_, per_byte, bytes, hash) in ranked {
            filled += bytes as f64;
            if filled > room {
                self.margin = per_byte;
                break;
            }
            if let Some(group) = self.groups.get_mut(&hash) {
                group.settled = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_copy_is_worth_is_said_by_one_score() {
        let of_group = |is_settled, passing| Score::OfGroup {
            per_byte: 2.0,
            is_settled,
            passing,
        };
        let single = |reads, is_measured| Score::Single {
            reads,
            per_byte: reads,
            is_measured,
        };
        let worth = |score: Score| score.worth(4.0);
        assert_eq!(worth(of_group(true, None)), Worth::Settled, "its rank is decided");
        assert_eq!(worth(of_group(false, None)), Worth::None);
        assert_eq!(
            worth(of_group(false, Some(4.0))),
            Worth::None,
            "not better than what is there"
        );
        assert_eq!(worth(of_group(false, Some(5.0))), Worth::Passing);
        assert_eq!(worth(single(7.0, true)), Worth::Settled);
        assert_eq!(worth(single(6.0, true)), Worth::None, "it must be better by the margin");
        assert_eq!(worth(single(7.0, false)), Worth::None, "its group may be of one heat");
        assert_eq!(single(1.0, true).worth(0.0), Worth::None, "one read is no popularity");
        let compared = [of_group(true, None), of_group(false, Some(5.0)), single(3.0, true)];
        assert_eq!(compared.map(Score::per_byte), [2.0, 5.0, 3.0]);
    }
}
