//! What a full device of the index holds up: nothing at first, since memtables take more; the
//! commits, once too many memtables wait or the index has too many runs; the readers never.
//!
//! Invariants: while the applier is held up no caller's commit is taken, so what it still applies
//! is bounded by what is committed. It goes on with that all the same, since snapshots and scans
//! wait for it. A success ends what its failure began.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Why the index cannot take more, while its device is full.
#[derive(Debug, Default)]
pub struct IndexFull {
    state: Mutex<State>,
    /// Whether the applier is held up: changed with the state's lock held, for every commit looks.
    refuses: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    flush: Option<String>,
    compaction: Option<String>,
    applier_held_up: bool,
}

impl IndexFull {
    /// Notes how a flush ended: with a full device, for this reason, or well. True if the one
    /// before ended otherwise.
    pub fn flush_ended(&self, full: Option<String>) -> bool {
        self.ended(full, |state| &mut state.flush)
    }

    /// Notes how a compaction ended. True if the one before ended otherwise.
    pub fn compaction_ended(&self, full: Option<String>) -> bool {
        self.ended(full, |state| &mut state.compaction)
    }

    fn ended(&self, full: Option<String>, step: fn(&mut State) -> &mut Option<String>) -> bool {
        let mut state = self.state.lock();
        state.applier_held_up &= full.is_some();
        self.refuses.store(state.applier_held_up, Ordering::Release);
        let is_full = full.is_some();
        std::mem::replace(step(&mut state), full).is_some() != is_full
    }

    /// The applier may not seal its memtable now. Whether that is for want of room, so that waiting
    /// is of no use.
    pub fn holds_up_applier(&self) -> bool {
        let mut state = self.state.lock();
        let full = state.flush.is_some() || state.compaction.is_some();
        state.applier_held_up |= full;
        self.refuses.store(state.applier_held_up, Ordering::Release);
        full
    }

    /// Why the index cannot persist more, if it cannot.
    pub fn reason(&self) -> Option<String> {
        let state = self.state.lock();
        let held_up = || state.compaction.clone().filter(|_| state.applier_held_up);
        state.flush.clone().or_else(held_up)
    }

    /// Why commits are refused, if they are.
    pub fn refuses_commits(&self) -> Option<String> {
        if !self.refuses.load(Ordering::Acquire) {
            return None;
        }
        let state = self.state.lock();
        if !state.applier_held_up {
            return None;
        }
        state.flush.clone().or_else(|| state.compaction.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Option<String> {
        Some("no space".to_owned())
    }

    #[test]
    fn commits_are_refused_only_while_the_applier_is_held_up() {
        let index = IndexFull::default();
        assert!(!index.holds_up_applier(), "it waits, for there is room");
        assert!(
            index.flush_ended(full()) && !index.flush_ended(full()),
            "it is told of once"
        );
        assert_eq!((index.reason(), index.refuses_commits()), (full(), None));
        assert!(index.holds_up_applier());
        assert_eq!((index.reason(), index.refuses_commits()), (full(), full()));
        assert!(index.flush_ended(None));
        assert_eq!((index.reason(), index.refuses_commits()), (None, None));
    }

    #[test]
    fn a_compaction_without_room_matters_once_the_applier_waits_for_it() {
        let index = IndexFull::default();
        index.compaction_ended(full());
        assert_eq!((index.reason(), index.refuses_commits()), (None, None), "flushes go on");
        assert!(index.holds_up_applier());
        assert_eq!((index.reason(), index.refuses_commits()), (full(), full()));
        index.compaction_ended(None);
        assert_eq!((index.reason(), index.refuses_commits()), (None, None));
    }
}
