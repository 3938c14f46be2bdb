//! Operations and acknowledgements, and what may be missing after a cut.
//!
//! Commits are ordered by their versions. A store is correct after a cut if some point in that
//! order explains all it holds: every commit up to it is there and none after it, and the point is
//! not before the last acknowledged `Sync` commit. An operation without an acknowledgement may have
//! happened. If it put a value, that value's version tells; if it deleted one, the value may be
//! absent. A `Sync` commit that was read counts as acknowledged: a visible value must not
//! disappear.
//!
//! Invariant: each caller has one operation under way at a time, and keys that are not shared have
//! one caller. So an operation without an acknowledgement is the last one on its keys.

#[cfg(test)]
mod tests;

use super::{
    protocol::{Change, Held},
    workload::caller_of,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
};

/// All objects of a store.
pub type State = BTreeMap<String, Held>;

/// The check that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// The store could not be opened.
    Open,
    /// A value or attributes are not what an operation wrote, or cannot be read.
    Value,
    /// An acknowledged durable write is missing.
    Durable,
    /// A batch is only partly there.
    Batch,
    /// No point of the history explains what is there.
    Order,
    /// `verify` or the statistics of the store.
    Verify,
    /// A wrong result with the power on: of a read, a condition, a snapshot, a refused write.
    Running,
    /// The writer sent no report for too long.
    Hang,
}

/// A failed check.
#[derive(Debug, Clone)]
pub struct Violation {
    /// The check.
    pub check: Check,
    /// A description.
    pub what: String,
}

impl Violation {
    /// A failed check, and its description.
    pub const fn new(check: Check, what: String) -> Self {
        Self { check, what }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Open => "open",
            Self::Value => "value",
            Self::Durable => "durable write lost",
            Self::Batch => "batch in part",
            Self::Order => "hole in history",
            Self::Verify => "verify",
            Self::Running => "running",
            Self::Hang => "hang",
        })
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.check, self.what)
    }
}

/// An operation that was begun.
#[derive(Debug, Clone)]
struct Announced {
    is_sync: bool,
    changes: Vec<Change>,
    /// The last version of its caller before it.
    after_version: u64,
}

/// A commit whose version is known.
#[derive(Debug, Clone)]
struct Commit {
    op: u64,
    changes: Vec<Change>,
}

/// Statistics of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Survived {
    /// Acknowledged commits that are missing and may be.
    pub lost: u64,
    /// Commits that are there without an acknowledgement.
    pub unheard: u64,
}

/// The history since the store's objects were last listed.
#[derive(Debug, Default)]
pub struct Journal {
    base: State,
    commits: BTreeMap<u64, Commit>,
    under_way: HashMap<u64, Announced>,
    last_version: HashMap<(u64, u64), u64>,
    /// `Sync` commits that were read before they were acknowledged.
    read: HashMap<u64, u64>,
    durable_version: u64,
}

impl Journal {
    /// A history that begins with the objects `base`.
    pub fn starting_with(base: State) -> Self {
        Self {
            base,
            ..Self::default()
        }
    }

    /// An operation begins.
    pub fn announced(&mut self, op: u64, is_sync: bool, changes: Vec<Change>) {
        let after_version = self.last_version.get(&caller_of(op)).copied().unwrap_or(0);
        let announced = Announced {
            is_sync,
            changes,
            after_version,
        };
        self.under_way.insert(op, announced);
    }

    /// An operation's condition did not hold.
    pub fn refused(&mut self, op: u64) {
        self.under_way.remove(&op);
    }

    /// An operation was acknowledged.
    ///
    /// # Errors
    /// If the version is impossible.
    pub fn done(&mut self, op: u64, version: u64) -> Result<(), Violation> {
        let wrong = |what: String| Err(Violation::new(Check::Running, what));
        if let Some(read) = self.read.remove(&op) {
            return match read == version {
                true => Ok(()),
                false => wrong(format!("operation {op:x} was read at version {read} and got {version}")),
            };
        }
        let Some(announced) = self.under_way.remove(&op) else {
            return wrong(format!("operation {op:x} was acknowledged and never announced"));
        };
        if version <= announced.after_version {
            return wrong(format!(
                "operation {op:x} got version {version} after {}",
                announced.after_version
            ));
        }
        self.last_version.insert(caller_of(op), version);
        if announced.is_sync {
            self.durable_version = self.durable_version.max(version);
        }
        let changes = announced.changes;
        match self.commits.insert(version, Commit { op, changes }) {
            None => Ok(()),
            Some(other) => wrong(format!("version {version} was given to {op:x} and {:x}", other.op)),
        }
    }

    /// A reader found what an operation has put. If it is a `Sync` operation, it is durable by now;
    /// otherwise it may be lost. No effect if it was acknowledged already or belongs to an earlier
    /// life.
    ///
    /// # Errors
    /// If the version is impossible.
    pub fn read(&mut self, op: u64, version: u64) -> Result<(), Violation> {
        if self.under_way.get(&op).is_some_and(|announced| announced.is_sync) {
            self.done(op, version)?;
            self.read.insert(op, version);
        }
        Ok(())
    }

    /// Checks the objects of a store after a cut.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn judge(mut self, found: &State) -> Result<Survived, Violation> {
        let (unheard, maybe_deleted) = self.place_unheard(found)?;
        self.check_lengths(found)?;
        let moments: Vec<u64> = std::iter::once(0).chain(self.commits.keys().copied()).collect();
        let mismatches = self.mismatches(found, &moments, &maybe_deleted);
        let first = moments.partition_point(|&moment| moment <= self.durable_version) - 1;
        let moment = (first..moments.len()).rev().find(|&at| mismatches[at] == 0);
        if let Some(at) = moment {
            let lost = (moments.len() - 1 - at) as u64;
            return Ok(Survived { lost, unheard });
        }
        Err(self.explain(found, &maybe_deleted, &moments, &mismatches, first))
    }

    /// Assigns versions to operations that are there without an acknowledgement. Returns their
    /// number, and the keys that others of them may have deleted.
    fn place_unheard(&mut self, found: &State) -> Result<(u64, BTreeSet<String>), Violation> {
        let mut unheard = 0;
        let mut maybe_deleted = BTreeSet::new();
        for (op, announced) in std::mem::take(&mut self.under_way) {
            let version = announced.changes.iter().find_map(|change| {
                let held = found.get(&change.key)?;
                (held.op == op).then_some(held.version)
            });
            let Some(version) = version else {
                let deletes_only = announced.changes.iter().all(|change| change.put.is_none());
                if deletes_only {
                    maybe_deleted.extend(announced.changes.into_iter().map(|change| change.key));
                }
                continue;
            };
            unheard += 1;
            let changes = announced.changes;
            let other = self.commits.insert(version, Commit { op, changes });
            if version <= announced.after_version || other.is_some() {
                let what = format!("operation {op:x}, not acknowledged, has version {version}, which cannot be");
                return Err(Violation::new(Check::Order, what));
            }
        }
        Ok((unheard, maybe_deleted))
    }

    /// Checks that each object has the length its operation wrote.
    fn check_lengths(&self, found: &State) -> Result<(), Violation> {
        for (key, held) in found {
            let Some(commit) = self.commits.get(&held.version) else {
                continue;
            };
            let put = commit.changes.iter().find(|change| change.key == *key);
            if put.is_none_or(|change| change.put != Some(held.length)) || commit.op != held.op {
                let what = format!("{key}: {held:?}, but that version is {commit:?}");
                return Err(Violation::new(Check::Value, what));
            }
        }
        Ok(())
    }

    /// The contents of each key over the versions, ascending.
    fn timelines(&self) -> BTreeMap<&str, Vec<(u64, Option<Held>)>> {
        let mut timelines: BTreeMap<&str, Vec<(u64, Option<Held>)>> = BTreeMap::new();
        for (key, held) in &self.base {
            timelines.insert(key, vec![(0, Some(*held))]);
        }
        for (&version, commit) in &self.commits {
            for change in &commit.changes {
                let held = change.put.map(|length| Held {
                    version,
                    op: commit.op,
                    length,
                });
                let timeline = timelines.entry(&change.key).or_insert_with(|| vec![(0, None)]);
                timeline.push((version, held));
            }
        }
        timelines
    }

    /// The number of keys that each point fails to explain.
    fn mismatches(&self, found: &State, moments: &[u64], maybe_deleted: &BTreeSet<String>) -> Vec<usize> {
        let mut changes = vec![0_isize; moments.len() + 1];
        let at = |version: u64| moments.partition_point(|&moment| moment < version);
        let timelines = self.timelines();
        for (key, timeline) in &timelines {
            let held = found.get(*key).copied();
            for (position, (version, expected)) in timeline.iter().enumerate() {
                let next = timeline.get(position + 1);
                let may_be_gone = next.is_none() && held.is_none() && maybe_deleted.contains(*key);
                if *expected != held && !may_be_gone {
                    changes[at(*version)] += 1;
                    changes[next.map_or(moments.len(), |next| at(next.0))] -= 1;
                }
            }
        }
        let strangers = found.keys().filter(|key| !timelines.contains_key(&***key)).count();
        let mut count = strangers as isize;
        let sums = changes.iter().take(moments.len()).map(|change| {
            count += change;
            count.unsigned_abs()
        });
        sums.collect()
    }

    /// Describes the failure if no point explains what was found.
    fn explain(
        &self,
        found: &State,
        maybe_deleted: &BTreeSet<String>,
        moments: &[u64],
        mismatches: &[usize],
        first: usize,
    ) -> Violation {
        let timelines = self.timelines();
        // A key that every point from the last durable commit on contradicts: older, or missing
        // without a later delete.
        let mut lost = Vec::new();
        for (key, timeline) in &timelines {
            let held = found.get(*key).copied();
            let durable = timeline.partition_point(|(version, _)| *version <= self.durable_version) - 1;
            let is_explained = timeline[durable..].iter().any(|(_, expected)| *expected == held);
            let may_be_gone = held.is_none() && maybe_deleted.contains(*key);
            if !is_explained && !may_be_gone {
                lost.push(format!("{key}: {held:?} instead of {:?}", timeline[durable].1));
            }
        }
        if !lost.is_empty() {
            let what = format!(
                "{} keys do not hold what was durable at version {}: {}",
                lost.len(),
                self.durable_version,
                lost[..lost.len().min(3)].join("; ")
            );
            return Violation::new(Check::Durable, what);
        }
        if let Some(what) = self.torn_batch(found) {
            return Violation::new(Check::Batch, what);
        }
        let nearest = (first..moments.len()).min_by_key(|&at| mismatches[at]).unwrap_or(first);
        let moment = moments[nearest];
        let differing = timelines.iter().filter_map(|(key, timeline)| {
            let at = timeline.partition_point(|(version, _)| *version <= moment) - 1;
            let held = found.get(*key).copied();
            (timeline[at].1 != held).then(|| format!("{key}: {held:?} instead of {:?}", timeline[at].1))
        });
        let shown: Vec<String> = differing.take(3).collect();
        Violation {
            check: Check::Order,
            what: format!(
                "no moment from version {} to {} explains all; nearest is {moment}, with {} differences: {}",
                self.durable_version,
                moments.last().copied().unwrap_or(0),
                mismatches[nearest],
                shown.join("; ")
            ),
        }
    }

    /// A commit of which only some changes are there.
    fn torn_batch(&self, found: &State) -> Option<String> {
        let timelines = self.timelines();
        self.commits.iter().find_map(|(&version, commit)| {
            let is_there = |change: &Change| found.get(&change.key).is_some_and(|held| held.version == version);
            let is_older = |change: &Change| {
                let held = found.get(&change.key).copied();
                let timeline = &timelines[&*change.key];
                let own = timeline.iter().position(|(at, _)| *at == version)?;
                let matched = timeline.iter().position(|(_, expected)| *expected == held)?;
                (matched < own && timeline[own..].iter().all(|(_, expected)| *expected != held)).then_some(())
            };
            let there = commit.changes.iter().find(|change| is_there(change))?;
            let older = commit.changes.iter().find(|change| is_older(change).is_some())?;
            Some(format!(
                "of version {version} {} is there and {} is not",
                there.key, older.key
            ))
        })
    }
}
