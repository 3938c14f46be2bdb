//! Removes dead objects from the index: those that range deletions hide, and expired ones.
//!
//! A pass walks entries of the ordered index, not values, a bounded step at a time, and commits a
//! *drop* for each dead one: a move without a destination, which the applier takes only if the
//! entry still has that version. Between steps it waits until the drops are applied, and rests as
//! long as the step took; so it delays no other work for long.
//!
//! - Ranges, the oldest first. A range is forgotten when nothing it hides can be found any more:
//!   docs/durability.md, section 7.
//! - Expired objects by a pass over all of the index, and only if the earliest expiry has passed.
//!   Passes have a minimum interval.
//! - If there are both, they alternate, unless many ranges are outstanding: then ranges go first.
//!
//! Invariant: an aborted pass changes nothing except what it dropped; the next one starts over.
//!
//! On failure: the range stays in the set and its objects stay hidden, so only the space is
//! affected. It is tried again.

use crate::{
    Error, Result,
    api::{clock::NEVER_MS, expiry},
    engine::{Engine, go_on_if},
    log::commit::Committer,
    maintenance::moves,
    metrics::count,
    ordered_index::KeyBounds,
    visibility::range_tombstones::{DeletedRange, RANGES_MAX},
};
use std::{
    collections::VecDeque,
    ops::Bound,
    sync::Arc,
    time::{Duration, Instant},
};

/// Entries visited in one step.
const STEP_ENTRIES: usize = 8192;
/// Drops in one commit: some 100 KiB of records.
const STEP_DROPS: usize = 1024;
/// Bytes of keys in one commit of drops.
const STEP_KEY_BYTES: usize = 128 << 10;
/// Rest after a step.
const REST_MAX: Duration = Duration::from_millis(50);
/// From this many ranges on they are swept without alternating with expiry: at the maximum number
/// callers of `delete_prefix` wait.
const RANGES_URGENT: usize = RANGES_MAX / 2;
/// Passes for expired objects are this many times as long apart as one took.
const PASS_DISTANCE: u32 = 20;

/// The thread's state.
pub struct Expirer {
    engine: Arc<Engine>,
    range: Option<RangePass>,
    /// Ranges whose drops are committed, with the seq of the last one.
    swept: VecDeque<(u64, u64)>,
    expiry: Option<ExpiryPass>,
    /// The last step was on a range: a pass for expired objects has the next one, if there is any.
    ranges_had_turn: bool,
    /// When the next pass for expired objects may begin.
    expiry_after: Option<Instant>,
}

/// A walk over one range.
struct RangePass {
    range: Arc<DeletedRange>,
    walk: Walk,
}

/// A walk over everything.
struct ExpiryPass {
    walk: Walk,
    began: Instant,
    /// Earliest expiry of the remaining objects.
    earliest_ms: u64,
}

/// How far a pass has got.
struct Walk {
    bounds: KeyBounds,
    /// Seq of the last drop; 0 if there was none.
    last_drop: u64,
    is_over: bool,
}

impl Expirer {
    /// Expiry of a store.
    pub const fn new(engine: Arc<Engine>) -> Self {
        Self {
            engine,
            range: None,
            swept: VecDeque::new(),
            expiry: None,
            ranges_had_turn: false,
            expiry_after: None,
        }
    }

    /// Executes the next step. `false` if there was none.
    ///
    /// # Errors
    /// Errors of the log or the index; it can be tried again.
    pub fn turn(&mut self) -> Result<bool> {
        let forgot = self.forget_swept();
        let began = Instant::now();
        let is_urgent = self.engine.log.ranges.count() >= RANGES_URGENT;
        let take_turns = std::mem::take(&mut self.ranges_had_turn) && !is_urgent;
        let outcome = if !(take_turns && self.begin_expiry()) && self.begin_range() {
            self.ranges_had_turn = true;
            self.range_step()
        } else if self.begin_expiry() {
            self.expiry_step()
        } else {
            return Ok(forgot);
        };
        if outcome.is_err() {
            self.range = None;
            self.expiry = None;
            self.expiry_after = Some(Instant::now() + self.engine.options.tuning.expire_interval);
        }
        outcome?;
        if !is_urgent {
            self.engine.pause(began.elapsed().min(REST_MAX));
        }
        Ok(true)
    }

    /// Forgets the ranges whose drops are applied and written.
    fn forget_swept(&mut self) -> bool {
        let released = self.engine.log.frames.released_seq();
        let mut over = Vec::new();
        while let Some(&(seq, _)) = self.swept.front().filter(|(_, last_drop)| *last_drop <= released) {
            self.swept.pop_front();
            tracing::debug!(seq, "a range deletion is swept");
            over.push(seq);
        }
        if over.is_empty() {
            return false;
        }
        self.engine.log.ranges.forget(&over);
        self.engine.log.notify_progress();
        true
    }

    /// Whether there is a range to walk over now.
    fn begin_range(&mut self) -> bool {
        if self.range.is_some() {
            return true;
        }
        let Some(set) = self.engine.log.ranges.current() else {
            return false;
        };
        let is_new = |range: &&Arc<DeletedRange>| self.swept.iter().all(|(seq, _)| *seq != range.seq);
        let Some(range) = set.ranges().iter().find(is_new) else {
            return false;
        };
        // The entries that it hides must be in the index.
        if self.engine.log.applied_seq() < range.seq {
            return false;
        }
        let end = if range.end.is_empty() {
            Bound::Unbounded
        } else {
            Bound::Excluded(range.end.to_vec())
        };
        self.range = Some(RangePass {
            range: Arc::clone(range),
            walk: Walk::over((Bound::Included(range.start.to_vec()), end)),
        });
        true
    }

    fn range_step(&mut self) -> Result<()> {
        let Some(pass) = &mut self.range else { return Ok(()) };
        pass.walk.step(&self.engine, |_| {})?;
        if pass.walk.is_over {
            self.swept
                .push_back((pass.range.seq, pass.walk.last_drop.max(pass.range.seq)));
            self.range = None;
        }
        Ok(())
    }

    /// Whether there is a pass for expired objects to do now.
    fn begin_expiry(&mut self) -> bool {
        if self.expiry.is_some() {
            return true;
        }
        let engine = &self.engine;
        if engine.expiring.earliest_ms() > engine.options.clock.now_ms() {
            return false;
        }
        if self.expiry_after.is_some_and(|after| Instant::now() < after) {
            return false;
        }
        engine.expiring.pass_begins();
        self.expiry = Some(ExpiryPass {
            walk: Walk::over((Bound::Unbounded, Bound::Unbounded)),
            began: Instant::now(),
            earliest_ms: NEVER_MS,
        });
        true
    }

    fn expiry_step(&mut self) -> Result<()> {
        let Some(pass) = &mut self.expiry else { return Ok(()) };
        let earliest_ms = &mut pass.earliest_ms;
        pass.walk
            .step(&self.engine, |expires_ms| *earliest_ms = (*earliest_ms).min(expires_ms))?;
        if pass.walk.is_over {
            count(&self.engine.expire_counters.expiry_passes, 1);
            self.engine.expiring.pass_ends(pass.earliest_ms);
            let interval = self.engine.options.tuning.expire_interval;
            let distance = interval.max(pass.began.elapsed() * PASS_DISTANCE);
            self.expiry_after = Some(Instant::now() + distance);
            self.expiry = None;
        }
        Ok(())
    }
}

impl Walk {
    const fn over(bounds: KeyBounds) -> Self {
        Self {
            bounds,
            last_drop: 0,
            is_over: false,
        }
    }

    /// Visits the next entries, drops dead ones, and waits until the drops are applied. Calls
    /// `stays` with the expiries of the others.
    fn step(&mut self, engine: &Engine, mut stays: impl FnMut(u64)) -> Result<()> {
        let mut doomed = Vec::new();
        let (mut seen, mut key_bytes) = (0, 0);
        let presence = engine.presence();
        // The drops come later than what the walk reads, so what a snapshot still needs stays.
        let rest = engine.walk(self.bounds.clone(), |key, entry| {
            seen += 1;
            match presence.dead(key, entry.version.0, &entry.attributes) {
                Some(_) => {
                    key_bytes += key.len();
                    doomed.push((key.clone(), entry.version.0));
                }
                None => expiry::of(&entry.attributes).into_iter().for_each(&mut stays),
            }
            go_on_if(seen < STEP_ENTRIES && doomed.len() < STEP_DROPS && key_bytes < STEP_KEY_BYTES)
        })?;
        if engine.log.is_closing() && !doomed.is_empty() {
            return Err(Error::Unavailable("the store is closed"));
        }
        let drops = doomed.iter().map(|(key, version)| moves::to_nowhere(key, *version));
        let committed = moves::commit(engine, Committer::Freeing, drops);
        committed.outcome?;
        if let Some(seq) = committed.last_seq {
            self.last_drop = seq;
            engine.log.wait_for(|| Ok(engine.log.applied_seq() >= seq))?;
        }
        self.is_over = rest.is_none();
        if let Some(start) = rest {
            self.bounds.0 = start;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{Durability, Expiry, Options, PutOptions, Store};

    /// The thread used an ordinary snapshot: with a short `snapshot_max_age` the index could forget
    /// its state during a step, which failed, and it was counted as a caller's snapshot that had
    /// become too old.
    #[test]
    fn what_a_step_reads_by_does_not_become_too_old() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            snapshot_max_age: Some(Duration::from_nanos(1)),
            ..Options::new(dir.path())
        };
        let store = Store::open(options).unwrap();
        let passing = PutOptions {
            expiry: Expiry::After(Duration::from_secs(3600)),
            durability: Durability::Buffered,
            ..PutOptions::default()
        };
        store.put_with("k", "v", &passing).unwrap();
        store.flush().unwrap();
        let engine = store.engine();
        let mut seen = Vec::new();
        Walk::over((Bound::Unbounded, Bound::Unbounded))
            .step(engine, |_| seen.push(engine.snapshots.oldest_or(|| u64::MAX)))
            .unwrap();
        assert_eq!(seen, [engine.log.applied_seq()], "its state is kept");
        assert_eq!(store.stats().snapshots.expired, 0);
    }
}
