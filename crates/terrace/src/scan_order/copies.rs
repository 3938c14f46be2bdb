//! Queue of values to the applier, which copies them into their entries.
//!
//! Invariants: at most one list of them is queued, so RAM is bounded by the thread that queues it,
//! and waits. The applier decides about each value; all of this may be lost at any time.

use crate::log::move_queue::Moving;
use parking_lot::{Condvar, Mutex};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// How often a wait looks whether the store stops.
const WAIT_STEP: Duration = Duration::from_millis(20);

/// Result of a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Copied {
    /// Copies that were made.
    pub values: u64,
    /// Time-equivalent bytes written to the index by that.
    pub index_bytes: u64,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Nothing,
    Waits(Vec<Moving>),
    /// The applier has it.
    Taken,
    Done(Copied),
}

/// The way to the applier.
#[derive(Debug, Default)]
pub struct Copies {
    state: Mutex<State>,
    is_waiting: AtomicBool,
    done: Condvar,
}

impl Copies {
    /// Hands over a list, has a commit made by `wake`, in whose turn it is applied, and waits until
    /// it is done, or `is_over`. For one thread at a time.
    pub fn hand_over(&self, values: Vec<Moving>, wake: impl FnOnce(), is_over: impl Fn() -> bool) -> Copied {
        *self.state.lock() = State::Waits(values);
        self.is_waiting.store(true, Ordering::Release);
        wake();
        let mut state = self.state.lock();
        loop {
            if let State::Done(copied) = *state {
                *state = State::Nothing;
                return copied;
            }
            if is_over() {
                return Copied::default();
            }
            self.done.wait_for(&mut state, WAIT_STEP);
        }
    }

    /// The list that waits, for the applier.
    pub fn take(&self) -> Option<Vec<Moving>> {
        if !self.is_waiting.swap(false, Ordering::AcqRel) {
            return None;
        }
        match std::mem::replace(&mut *self.state.lock(), State::Taken) {
            State::Waits(values) => Some(values),
            _ => None,
        }
    }

    /// There will be no turn for the waiting list.
    pub fn give_up(&self) {
        if self.take().is_some() {
            self.finish(Copied::default());
        }
    }

    /// The applier has finished the list that it took.
    pub fn finish(&self, copied: Copied) {
        *self.state.lock() = State::Done(copied);
        self.done.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::move_queue::tests::value;

    #[test]
    fn a_caller_that_hands_a_list_over_learns_the_outcome() {
        let copies = Copies::default();
        assert!(copies.take().is_none());
        let copied = Copied {
            values: 2,
            index_bytes: 7,
        };
        std::thread::scope(|scope| {
            let applier = scope.spawn(|| {
                let values = loop {
                    if let Some(values) = copies.take() {
                        break values.len();
                    }
                    std::thread::yield_now();
                };
                copies.finish(copied);
                values
            });
            let said = copies.hand_over(vec![value(1, 10), value(2, 10)], || {}, || false);
            assert_eq!(said, copied);
            assert_eq!(applier.join().ok(), Some(2));
        });
        assert!(copies.take().is_none());
        let said = copies.hand_over(vec![value(1, 10)], || {}, || true);
        assert_eq!(said, Copied::default(), "the store stops");
    }
}
