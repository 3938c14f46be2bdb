//! What a store should hold, and what of it a crash may have taken.

use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use terrace::{Attributes, Object};

pub type Key = Vec<u8>;

/// An object as the model knows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Held {
    pub version: u64,
    pub value: Bytes,
    pub attributes: Attributes,
}

impl Held {
    pub fn of(object: Object) -> Self {
        Self {
            version: object.version.0,
            value: object.value,
            attributes: object.attributes,
        }
    }
}

pub type State = BTreeMap<Key, Held>;

/// One operation of a commit: `None` deletes.
#[derive(Debug, Clone)]
pub struct Change {
    pub key: Key,
    pub put: Option<(Bytes, Attributes)>,
}

pub fn apply(state: &mut State, version: u64, changes: &[Change]) {
    for change in changes {
        match &change.put {
            Some((value, attributes)) => {
                let held = Held {
                    version,
                    value: value.clone(),
                    attributes: attributes.clone(),
                };
                state.insert(change.key.clone(), held);
            }
            None => drop(state.remove(&change.key)),
        }
    }
}

/// Everything that happened since the store was last opened.
#[derive(Debug, Default)]
pub struct Journal {
    pub base: State,
    /// Acknowledged commits by seq.
    pub commits: BTreeMap<u64, Vec<Change>>,
    /// Commits that ended in an error that leaves open whether they happened.
    pub in_flight: Vec<Vec<Change>>,
    /// Everything up to this seq was acknowledged as durable.
    pub durable_seq: u64,
}

impl Journal {
    pub fn starting_with(base: State) -> Self {
        Self {
            base,
            ..Self::default()
        }
    }

    pub fn merge(&mut self, other: Self) {
        self.commits.extend(other.commits);
        self.in_flight.extend(other.in_flight);
        self.durable_seq = self.durable_seq.max(other.durable_seq);
    }

    /// Checks that `found` is what is left after a crash: all commits up to some seq, none after it, that seq
    /// being no earlier than what was acknowledged as durable; each commit whole or absent.
    pub fn check(mut self, found: &State) -> Result<(), String> {
        let mut maybe_deleted = BTreeSet::new();
        for changes in std::mem::take(&mut self.in_flight) {
            let mut effect = State::new();
            apply(&mut effect, 0, &changes);
            let version = effect.keys().find_map(|key| {
                let version = found.get(key)?.version;
                let known = self.commits.contains_key(&version)
                    || self.base.get(key).is_some_and(|held| held.version == version);
                (!known).then_some(version)
            });
            match version {
                Some(version) => drop(self.commits.insert(version, changes)),
                // Nothing of it would show, or it did not happen.
                None if effect.is_empty() => maybe_deleted.extend(changes.into_iter().map(|change| change.key)),
                None => {}
            }
        }
        let mut state = self.base;
        let mut nearest: Option<(usize, u64, String)> = None;
        let mut compare = |state: &State, seq: u64| {
            let differences = differences(state, found, &maybe_deleted);
            if differences.is_empty() {
                return true;
            }
            if nearest.as_ref().is_none_or(|(count, ..)| differences.len() < *count) {
                let shown = differences[..differences.len().min(5)].join("\n  ");
                nearest = Some((differences.len(), seq, shown));
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
}

fn differences(state: &State, found: &State, maybe_deleted: &BTreeSet<Key>) -> Vec<String> {
    let mut differences = Vec::new();
    let show = |held: Option<&Held>| held.map_or("nothing".to_owned(), brief);
    for (key, held) in state {
        let other = found.get(key);
        if other != Some(held) && !(other.is_none() && maybe_deleted.contains(key)) {
            differences.push(format!(
                "{}: {} instead of {}",
                name(key),
                show(other),
                show(Some(held))
            ));
        }
    }
    for (key, held) in found {
        if !state.contains_key(key) {
            differences.push(format!("{}: {} instead of nothing", name(key), show(Some(held))));
        }
    }
    differences
}

pub fn brief(held: &Held) -> String {
    format!(
        "version {} ({} bytes, checksum {:08x})",
        held.version,
        held.value.len(),
        crc32c::crc32c(&held.value)
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
