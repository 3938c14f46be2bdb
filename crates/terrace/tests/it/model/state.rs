//! The expected contents of a store, and what a crash may take back.

use bytes::Bytes;
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};
use terrace::{Attributes, Object};

pub type Key = Vec<u8>;

/// An object in the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Held {
    pub version: u64,
    pub value: Bytes,
    pub attributes: Attributes,
    pub expires_ms: Option<u64>,
}

impl Held {
    /// Whether it exists at this time.
    pub fn is_there(&self, now_ms: u64) -> bool {
        self.expires_ms.is_none_or(|expires_ms| expires_ms > now_ms)
    }

    /// Whether a read returned this object.
    pub fn is(&self, object: &Object) -> bool {
        (self.version, &self.value, &self.attributes) == (object.version.0, &object.value, &object.attributes)
    }
}

pub type State = BTreeMap<Key, Held>;

/// The visible part of a state at a time.
pub fn at_time(mut state: State, now_ms: u64) -> State {
    state.retain(|_, held| held.is_there(now_ms));
    state
}

pub type Bounds = (Bound<Key>, Bound<Key>);

/// A value, its attributes and its expiry.
#[derive(Debug, Clone)]
pub struct Put {
    pub value: Bytes,
    pub attributes: Attributes,
    pub expires_ms: Option<u64>,
}

/// One operation of a commit.
#[derive(Debug, Clone)]
pub enum Change {
    Put(Key, Put),
    Delete(Key),
    DeleteRange(Bounds),
}

/// Whether no key can lie between the bounds, for which `BTreeMap` panics.
pub fn is_empty((low, high): &Bounds) -> bool {
    match (low, high) {
        (Bound::Included(low), Bound::Included(high)) => low > high,
        (Bound::Included(low) | Bound::Excluded(low), Bound::Included(high) | Bound::Excluded(high)) => low >= high,
        _ => false,
    }
}

impl Change {
    pub fn name(&self) -> String {
        match self {
            Self::Put(key, _) | Self::Delete(key) => name(key),
            Self::DeleteRange(_) => "a range".to_owned(),
        }
    }

    /// The keys it changes in a state.
    fn keys(&self, state: &State) -> Vec<Key> {
        match self {
            Self::Put(key, _) | Self::Delete(key) => vec![key.clone()],
            Self::DeleteRange(bounds) if is_empty(bounds) => Vec::new(),
            Self::DeleteRange(bounds) => state.range(bounds.clone()).map(|(key, _)| key.clone()).collect(),
        }
    }
}

pub fn apply(state: &mut State, version: u64, changes: &[Change]) {
    for change in changes {
        match change {
            Change::Put(key, put) => {
                let held = Held {
                    version,
                    value: put.value.clone(),
                    attributes: put.attributes.clone(),
                    expires_ms: put.expires_ms,
                };
                state.insert(key.clone(), held);
            }
            Change::Delete(_) | Change::DeleteRange(_) => {
                for key in change.keys(state) {
                    state.remove(&key);
                }
            }
        }
    }
}

/// All operations since the last open.
#[derive(Debug, Default)]
pub struct Journal {
    pub base: State,
    /// Acknowledged commits by seq.
    pub commits: BTreeMap<u64, Vec<Change>>,
    /// Commits that returned an error and may or may not have happened.
    pub in_flight: Vec<Vec<Change>>,
    /// Every commit up to this seq was acknowledged as durable.
    pub durable_seq: u64,
}

impl Journal {
    pub fn starting_with(base: State) -> Self {
        Self {
            base,
            ..Self::default()
        }
    }

    /// Every key that ever existed or was written.
    pub fn keys(&self) -> BTreeSet<Key> {
        let changes = self.commits.values().chain(&self.in_flight).flatten();
        let written = changes.filter_map(|change| match change {
            Change::Put(key, _) | Change::Delete(key) => Some(key),
            Change::DeleteRange(_) => None,
        });
        written.chain(self.base.keys()).cloned().collect()
    }

    pub fn merge(&mut self, other: Self) {
        self.commits.extend(other.commits);
        self.in_flight.extend(other.in_flight);
        self.durable_seq = self.durable_seq.max(other.durable_seq);
    }

    /// Checks that `found`, at `now_ms`, is a possible state after a crash: all commits up to some
    /// seq and none after it, with that seq not below what was acknowledged as durable, and each
    /// commit whole or absent.
    pub fn check(mut self, found: &State, now_ms: u64) -> Result<(), String> {
        let unclear = self.place_in_flight(found, now_ms);
        let mut state = self.base;
        let mut nearest: Option<(usize, u64, String)> = None;
        let mut compare = |state: &State, seq: u64| {
            let differences = differences(&at_time(state.clone(), now_ms), found);
            if differences.is_empty() || explained(&differences, state, found, &unclear, now_ms) {
                return true;
            }
            if nearest.as_ref().is_none_or(|(count, ..)| differences.len() < *count) {
                let shown: Vec<_> = differences.values().take(5).cloned().collect();
                nearest = Some((differences.len(), seq, shown.join("\n  ")));
            }
            false
        };
        if self.commits.keys().next().is_none_or(|&first| first > self.durable_seq) && compare(&state, 0) {
            return Ok(());
        }
        let seqs: Vec<u64> = self.commits.keys().copied().collect();
        for (at, (seq, changes)) in self.commits.iter().enumerate() {
            apply(&mut state, *seq, changes);
            let is_last_durable = seqs.get(at + 1).is_none_or(|&next| next > self.durable_seq);
            if is_last_durable && compare(&state, *seq) {
                return Ok(());
            }
        }
        let (count, seq, shown) = nearest.unwrap_or_default();
        Err(format!(
            "the store holds no state it ever had since seq {} was durable (last commit {:?}); nearest is after seq {seq}, with {count} differences:\n  {shown}",
            self.durable_seq,
            seqs.last()
        ))
    }

    /// Inserts commits in flight whose version is in `found` among the others; returns those that
    /// would leave no version. (A commit that would leave one and did not has not happened.)
    fn place_in_flight(&mut self, found: &State, now_ms: u64) -> Vec<Vec<Change>> {
        let mut unclear = Vec::new();
        for changes in std::mem::take(&mut self.in_flight) {
            let mut effect = State::new();
            apply(&mut effect, 0, &changes);
            let effect = at_time(effect, now_ms);
            let version = effect.keys().find_map(|key| {
                let version = found.get(key)?.version;
                let known = self.commits.contains_key(&version)
                    || self.base.get(key).is_some_and(|held| held.version == version);
                (!known).then_some(version)
            });
            match version {
                Some(version) => drop(self.commits.insert(version, changes)),
                None if effect.is_empty() => unclear.push(changes),
                None => {}
            }
        }
        unclear
    }
}

/// Whether some of the uncertain commits, each whole, turn `state` into what was found. They come
/// last: a caller with a commit in flight has made none since, and callers use their own keys.
fn explained(
    differences: &BTreeMap<Key, String>,
    state: &State,
    found: &State,
    unclear: &[Vec<Change>],
    now_ms: u64,
) -> bool {
    let touched: Vec<BTreeSet<Key>> = unclear
        .iter()
        .map(|changes| changes.iter().flat_map(|change| change.keys(state)).collect())
        .collect();
    let is_touched = |key: &Key| touched.iter().any(|keys| keys.contains(key));
    if !differences.keys().all(is_touched) {
        return false;
    }
    (1..1_u32 << unclear.len()).any(|chosen| {
        let mut changed = state.clone();
        for (_, changes) in unclear.iter().enumerate().filter(|(at, _)| chosen & (1 << at) != 0) {
            apply(&mut changed, 0, changes);
        }
        let is_there = |key: &Key| changed.get(key).filter(|held| held.is_there(now_ms));
        touched.iter().flatten().all(|key| is_there(key) == found.get(key))
    })
}

fn differences(state: &State, found: &State) -> BTreeMap<Key, String> {
    let mut differences = BTreeMap::new();
    let show = |held: Option<&Held>| held.map_or("nothing".to_owned(), brief);
    for (key, held) in state {
        let other = found.get(key);
        if other != Some(held) {
            let difference = format!("{}: {} instead of {}", name(key), show(other), show(Some(held)));
            differences.insert(key.clone(), difference);
        }
    }
    for (key, held) in found {
        if !state.contains_key(key) {
            let difference = format!("{}: {} instead of nothing", name(key), show(Some(held)));
            differences.insert(key.clone(), difference);
        }
    }
    differences
}

pub fn brief(held: &Held) -> String {
    format!(
        "version {} ({} bytes, checksum {:08x}, expires {:?})",
        held.version,
        held.value.len(),
        crc32c::crc32c(&held.value),
        held.expires_ms
    )
}

pub fn name(key: &[u8]) -> String {
    let shown: String = key[..key.len().min(24)].escape_ascii().to_string();
    if key.len() > 24 {
        format!("{shown}… ({} bytes)", key.len())
    } else {
        shown
    }
}
