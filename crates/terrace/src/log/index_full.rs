//! What waits while the index's device is full: nothing at first, since memtables accept more;
//! commits, once too many memtables wait or the index has too many runs; readers never.
//!
//! Invariants: while the applier waits, no caller's commit is accepted, so the remaining work of
//! the applier is bounded by the existing commits. It continues to apply these, since snapshots and
//! scans wait for them. A success ends the state that a failure began.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Why the index accepts no more data, while its device is full.
#[derive(Debug, Default)]
pub struct IndexFull {
    state: Mutex<State>,
    /// Whether the applier waits; changed with the state's lock held, since every commit reads it.
    refuses: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    flush: Option<String>,
    compaction: Option<String>,
    applier_held_up: bool,
}

impl IndexFull {
    /// Notes the result of a flush: a full device, for this reason, or success. True if the
    /// previous result differed.
    pub fn flush_ended(&self, full: Option<String>) -> bool {
        self.ended(full, |state| &mut state.flush)
    }

    /// Notes the result of a compaction. True if the previous result differed.
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

    /// The applier may not seal its memtable now. Returns whether the reason is a lack of space, so
    /// that waiting is useless.
    pub fn holds_up_applier(&self) -> bool {
        let mut state = self.state.lock();
        let full = state.flush.is_some() || state.compaction.is_some();
        state.applier_held_up |= full;
        self.refuses.store(state.applier_held_up, Ordering::Release);
        full
    }

    /// Why the index cannot persist more; `None` if it can.
    pub fn reason(&self) -> Option<String> {
        let state = self.state.lock();
        let held_up = || state.compaction.clone().filter(|_| state.applier_held_up);
        state.flush.clone().or_else(held_up)
    }

    /// Why commits are refused; `None` if they are not.
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
